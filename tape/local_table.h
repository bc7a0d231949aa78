/* tape/local_table.h - an embedding table in this process: key -> row, with sparse gradients.
 *
 * Layer:     tape.
 * Threads:   one owner thread.
 * Ownership: the table owns its rows and their optimiser state; what a lookup gives belongs to the
 *            tape and dies at its reset.
 * Keys:      any 64-bit number, 0 and 2^64 - 1 included.
 * Promise:   as the parameter server's tables: a lookup creates nothing, an absent key reads as its
 *            initial value, a pure function of (seed, table name, key); only tp_table_apply makes
 *            rows. So local and remote training read the same numbers.
 */
#ifndef TP_LOCAL_TABLE_H
#define TP_LOCAL_TABLE_H

#include "base/num/optim.h"

#include "tape/ops.h"

typedef struct tp_table tp_table;

typedef struct tp_table_config {
    const char *name; /* copied */
    size_t dim;       /* >= 1 */
    uint64_t seed;
    float init_low, init_high; /* uniform; equal: constant */
    const num_optim *optim;
} tp_table_config;

/* The distinct keys of one lookup, in order of first use. */
typedef struct tp_table_rows {
    size_t n_unique;
    uint64_t *keys;  /* [n_unique] */
    uint32_t *index; /* [n_ids] row of each id */
    tp_tensor *rows; /* [n_unique x dim]; after backward rows->grad is the sparse gradient */
} tp_table_rows;

bd_status tp_table_new(tp_device *dev, const tp_table_config *cfg, tp_table **out,
                       bd_err *err) BD_MUST_CHECK;
void tp_table_free(tp_table *t);
size_t tp_table_n_rows(const tp_table *t);
/* Copies the row's weights (its initial value when absent) to w[dim]; true when it exists. */
bool tp_table_get(const tp_table *t, uint64_t key, float *w);

/* Gathers the distinct rows of ids[n_ids] as a leaf of the tape. */
bd_status tp_table_lookup(tp_table *t, tp_tape *tape, const uint64_t *ids, size_t n_ids,
                          tp_table_rows *out, bd_err *err) BD_MUST_CHECK;
/* Bags of ids: sample i owns ids [offsets[i], offsets[i + 1]). */
typedef struct tp_table_bags {
    const uint64_t *ids;     /* [offsets[n]] */
    const uint32_t *offsets; /* [n + 1], borrowed until the tape's reset */
    size_t n;
    tp_bag_mode mode;
} tp_table_bags;

/* tp_table_lookup and tp_embedding_bag in one. */
bd_status tp_table_bag(tp_table *t, tp_tape *tape, const tp_table_bags *bags, tp_table_rows *rows,
                       tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* One optimiser step for every row of a lookup with its gradient; makes absent rows. grads: host
 * memory [n_unique x dim], e.g. tp_read of rows->grad. hyper: base/num/optim.h. On failure
 * nothing has changed. */
bd_status tp_table_apply(tp_table *t, const tp_table_rows *rows, const float *grads,
                         const float *hyper, bd_err *err) BD_MUST_CHECK;

#endif
