/* ps_server/ps_bags.h - pooling beside the rows: sums of rows into bags, and back from the
 * gradients of bags to those of keys.
 *
 * Layer:   ps_server (memory only). Threads: any; nothing is kept between calls.
 * Why:     bags of a batch are far fewer bytes than their rows: on the wire, and in the journal,
 * whose record of a push holds the gradients of the bags (ps_record.h). Format:  as
 * proto/braid/v1/parameter_server.proto says (TableKeys): entries in the order of the keys, bit 31
 * on the further entries of a key. Order:   a bag is summed in the order of its entries, a key's
 * gradient in the order of its own: pure functions of the request.
 */
#ifndef PS_BAGS_H
#define PS_BAGS_H

#include "base/err.h"
#include "base/num/vec.h"

#include "ps_server/ps_types.h"

#include <string.h>

#define PS_BAG_SAME_KEY 0x80000000u

/* BD_E_INVALID says which entry is wrong; "entries" must begin a key exactly n_keys times. */
bd_status ps_bags_check(const ps_bags *b, size_t n_keys, bd_err *err) BD_MUST_CHECK;

/* The keys of a push of bags, in memory of its own. */
typedef struct ps_bag_keys {
    uint64_t *keys; /* [n_keys], and with them */
    uint32_t *rows; /* where their rows may be; NULL: no idea */
    size_t n_keys;
    uint32_t *entries; /* [n_entries] as ps_bags_check wants them */
    float *weights;    /* [n_entries]; NULL: all 1 */
    size_t n_entries;
} ps_bag_keys;

/* ps_bags_merge - makes the keys distinct, in place: a key that comes again goes, and its entries
 * follow those it has. So the lists become those of a client that has sent distinct keys: each row is
 * updated once, with its gradient summed in the order of the entries. BD_E_NOMEM. Cost: one pass
 * where the keys of each slot stand together, as clients send them. */
bd_status ps_bags_merge(ps_bag_keys *k) BD_MUST_CHECK;

/* out[n_bags x dim] += weight x row for the n_keys keys whose entries begin at `entry` and whose
 * rows are rows[n_keys x dim]. Returns the entry after them. */
size_t ps_bags_pool(const ps_bags *b, const float *rows, size_t dim, size_t entry, size_t n_keys,
                    float *out);

/* grads[n_keys x dim] = gradients of the keys whose entries begin at `entry`, from those of the
 * bags [n_bags x dim]. Returns the entry after them. */
size_t ps_bags_expand(const ps_bags *b, const float *bag_grads, size_t dim, size_t entry,
                      size_t n_keys, float *grads);

/* Walks along the entries of one request, a key after another. */
typedef struct ps_bag_walk {
    const ps_bags *bags; /* borrowed */
    size_t dim;
    size_t entry; /* where the next key's begin */
} ps_bag_walk;

static inline float ps_bag_weight(const ps_bags *b, size_t entry)
{
    return b->weights == NULL ? 1.0f : b->weights[entry];
}

static inline bool ps_bag_same_key(const ps_bags *b, size_t entry)
{
    return entry < b->n_entries && (b->entries[entry] & PS_BAG_SAME_KEY) != 0;
}

/* out[n_bags x dim] += weight x row[dim] for the bags of the next key. */
static inline void ps_bag_add(ps_bag_walk *w, const float *row, float *out)
{
    const ps_bags *b = w->bags;
    size_t entry = w->entry;
    do {
        size_t bag = b->entries[entry] & ~PS_BAG_SAME_KEY;
        num_axpy(out + bag * w->dim, ps_bag_weight(b, entry), row, w->dim);
        entry++;
    } while (ps_bag_same_key(b, entry));
    w->entry = entry;
}

/* The gradient of the next key from those of the bags [n_bags x dim]: one of them as it is, or a
 * sum in scratch[dim]. Valid until the next call. */
static inline const float *ps_bag_grad(ps_bag_walk *w, const float *bag_grads, float *scratch)
{
    const ps_bags *b = w->bags;
    size_t entry = w->entry++;
    const float *first = bag_grads + (size_t)(b->entries[entry] & ~PS_BAG_SAME_KEY) * w->dim;
    if (ps_bag_weight(b, entry) == 1.0f && !ps_bag_same_key(b, w->entry)) {
        return first;
    }
    memset(scratch, 0, w->dim * sizeof *scratch);
    num_axpy(scratch, ps_bag_weight(b, entry), first, w->dim);
    for (; ps_bag_same_key(b, w->entry); w->entry++) {
        size_t bag = b->entries[w->entry] & ~PS_BAG_SAME_KEY;
        num_axpy(scratch, ps_bag_weight(b, w->entry), bag_grads + bag * w->dim, w->dim);
    }
    return scratch;
}

#endif
