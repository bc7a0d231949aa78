#include "ps_server/ps_bags.h"

#include "base/mem.h"

#include <string.h>

#define LONGEST_RUN  64u   /* keys of a slot that are compared one by one */
#define MOST_ENTRIES 1024u /* of a slot, that may move one by one */

bd_status ps_bags_check(const ps_bags *b, size_t n_keys, bd_err *err)
{
    size_t n_begun = 0;
    uint32_t top = 0;
    for (size_t i = 0; i < b->n_entries; i++) {
        uint32_t bag = b->entries[i] & ~PS_BAG_SAME_KEY;
        n_begun += (b->entries[i] & PS_BAG_SAME_KEY) == 0;
        top = bag > top ? bag : top;
    }
    if (b->n_entries > 0 && (b->entries[0] & PS_BAG_SAME_KEY) != 0) {
        return bd_err_set(err, BD_E_INVALID, "the first entry of the bags belongs to no key");
    }
    if (n_begun != n_keys) {
        return bd_err_set(err, BD_E_INVALID, "the bags have entries of %zu keys, there are %zu",
                          n_begun, n_keys);
    }
    if (b->n_entries > 0 && top >= b->n_bags) {
        return bd_err_set(err, BD_E_INVALID, "bag %u of %u", top, b->n_bags);
    }
    return BD_OK;
}

/* ---- distinct keys ---- */
static size_t end_of_key(const ps_bag_keys *k, size_t entry)
{
    do {
        entry++;
    } while (entry < k->n_entries && (k->entries[entry] & PS_BAG_SAME_KEY) != 0);
    return entry;
}

/* Entries [from, end) of a key that comes again move to `to`, behind those of its first place. */
static void move_entries(const ps_bag_keys *k, size_t to, size_t from, size_t end)
{
    for (; from < end; from++, to++) {
        uint32_t e = k->entries[from] | PS_BAG_SAME_KEY;
        memmove(k->entries + to + 1, k->entries + to, (from - to) * sizeof *k->entries);
        k->entries[to] = e;
        if (k->weights != NULL) {
            float w = k->weights[from];
            memmove(k->weights + to + 1, k->weights + to, (from - to) * sizeof *k->weights);
            k->weights[to] = w;
        }
    }
}

/* The keys of a slot that were seen so far. */
typedef struct slot_run {
    size_t first, first_key, first_entry; /* the first one: as it came, and where it stays */
    uint64_t bits[4];                     /* of the keys' hashes */
} slot_run;

/* Which of the run's distinct keys it is, from the run's first; n_keys: none. */
static size_t place_in_run(const ps_bag_keys *k, const slot_run *run, size_t n_keys, uint64_t key)
{
    size_t i = run->first_key;
    while (i < n_keys && k->keys[i] != key) {
        i++;
    }
    return i;
}

/* Entries [from, end) join those of key `at`. */
static void join(const ps_bag_keys *k, const slot_run *run, size_t at, size_t from, size_t end)
{
    size_t to = run->first_entry;
    for (size_t i = run->first_key; i <= at; i++) {
        to = end_of_key(k, to);
    }
    move_entries(k, to, from, end);
}

/* Merges as far as keys stand slot by slot, few in each, and joining moves few entries, so that no
 * request costs more than a fixed number of steps an entry; true: that is all of them. Else the rest
 * has moved up. */
static bool merge_runs(ps_bag_keys *k)
{
    uint64_t seen[PS_N_SLOTS / 64] = {0};
    uint32_t slot = PS_N_SLOTS;
    slot_run run = {0};
    size_t n = 0, i = 0, entry = 0;
    for (; i < k->n_keys; i++) {
        uint64_t key = k->keys[i], mixed = bd_mix64(key), bit = 1ull << (mixed & 63);
        uint64_t *bits = &run.bits[mixed >> 6 & 3];
        uint32_t of_key = ps_slot_of_mixed(mixed);
        if (of_key != slot) {
            if ((seen[of_key / 64] >> of_key % 64 & 1) != 0) {
                break;
            }
            slot = of_key;
            seen[slot / 64] |= 1ull << slot % 64;
            run = (slot_run){.first = i, .first_key = n, .first_entry = entry};
        }
        if (i - run.first >= LONGEST_RUN) {
            break;
        }
        size_t end = end_of_key(k, entry);
        size_t at = (*bits & bit) == 0 ? n : place_in_run(k, &run, n, key);
        if (at < n) {
            if (end - run.first_entry > MOST_ENTRIES) {
                break;
            }
            join(k, &run, at, entry, end);
        } else {
            k->keys[n] = key;
            if (k->rows != NULL) {
                k->rows[n] = k->rows[i];
            }
            n++;
            *bits |= bit;
        }
        entry = end;
    }
    size_t rest = k->n_keys - i;
    memmove(k->keys + n, k->keys + i, rest * sizeof *k->keys);
    if (k->rows != NULL) {
        memmove(k->rows + n, k->rows + i, rest * sizeof *k->rows);
    }
    k->n_keys = n + rest;
    return rest == 0;
}

/* Keys in any order: numbers[i] = which of the distinct ones key i is. Those come to the front. */
static size_t number_keys(ps_bag_keys *k, uint32_t *cells, size_t mask, uint32_t *numbers)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n_keys; i++) {
        uint64_t key = k->keys[i];
        size_t at = bd_mix64(key) & mask;
        while (cells[at] != 0 && k->keys[cells[at] - 1] != key) {
            at = (at + 1) & mask;
        }
        if (cells[at] == 0) {
            k->keys[n] = key;
            if (k->rows != NULL) {
                k->rows[n] = k->rows[i];
            }
            cells[at] = (uint32_t)++n;
        }
        numbers[i] = cells[at] - 1;
    }
    return n;
}

/* Entries by number; next[n] zeroed, `was` a copy of k's lists. */
static void sort_entries(ps_bag_keys *k, const ps_bag_keys *was, const uint32_t *numbers, size_t n,
                         size_t *next)
{
    size_t before = 0, entry = 0;
    for (size_t i = 0; i < was->n_keys; i++, entry = end_of_key(was, entry)) {
        next[numbers[i]] += end_of_key(was, entry) - entry;
    }
    for (size_t i = 0; i < n; i++) {
        size_t of_key = next[i];
        next[i] = before;
        before += of_key;
    }
    entry = 0;
    for (size_t i = 0; i < was->n_keys; i++) {
        for (size_t end = end_of_key(was, entry); entry < end; entry++) {
            size_t to = next[numbers[i]]++;
            k->entries[to] = was->entries[entry] | PS_BAG_SAME_KEY;
            if (was->weights != NULL) {
                k->weights[to] = was->weights[entry];
            }
        }
    }
    for (size_t i = 0; i < n; i++) { /* next[i] is where key i ends */
        k->entries[i == 0 ? 0 : next[i - 1]] &= ~PS_BAG_SAME_KEY;
    }
}

static bd_status merge_any(ps_bag_keys *k)
{
    ps_bag_keys was = *k;
    size_t cap = 16;
    while (cap < 2 * k->n_keys) {
        cap *= 2;
    }
    uint32_t *cells = bd_calloc(cap, sizeof *cells);
    uint32_t *numbers = bd_alloc(k->n_keys * sizeof *numbers);
    size_t *next = bd_calloc(k->n_keys, sizeof *next);
    was.entries = bd_alloc(k->n_entries * sizeof *was.entries);
    was.weights = k->weights == NULL ? NULL : bd_alloc(k->n_entries * sizeof *was.weights);
    bool ok = cells != NULL && numbers != NULL && next != NULL && was.entries != NULL &&
              (was.weights != NULL || k->weights == NULL);
    if (ok) {
        memcpy(was.entries, k->entries, k->n_entries * sizeof *was.entries);
        if (was.weights != NULL) {
            memcpy(was.weights, k->weights, k->n_entries * sizeof *was.weights);
        }
        k->n_keys = number_keys(k, cells, cap - 1, numbers);
        sort_entries(k, &was, numbers, k->n_keys, next);
    }
    bd_free(cells);
    bd_free(numbers);
    bd_free(next);
    bd_free(was.entries);
    bd_free(was.weights);
    return ok ? BD_OK : BD_E_NOMEM;
}

bd_status ps_bags_merge(ps_bag_keys *k)
{
    return merge_runs(k) ? BD_OK : merge_any(k);
}

size_t ps_bags_pool(const ps_bags *b, const float *rows, size_t dim, size_t entry, size_t n_keys,
                    float *out)
{
    ps_bag_walk w = {b, dim, entry};
    for (size_t i = 0; i < n_keys; i++) {
        ps_bag_add(&w, rows + i * dim, out);
    }
    return w.entry;
}

size_t ps_bags_expand(const ps_bags *b, const float *bag_grads, size_t dim, size_t entry,
                      size_t n_keys, float *grads)
{
    ps_bag_walk w = {b, dim, entry};
    for (size_t i = 0; i < n_keys; i++) {
        float *to = grads + i * dim;
        const float *g = ps_bag_grad(&w, bag_grads, to);
        if (g != to) {
            memcpy(to, g, dim * sizeof *to);
        }
    }
    return w.entry;
}
