/* ps_server/ps_sweep.h - looking for rows that eviction rules take, a slice of a table at a time.
 *
 * Layer:   ps_server (memory only). Threads: the one that applies; each stripe is locked for
 * reading while its part of the slice is looked at, 1/64 of it. Cost:    one index line and one row
 * for each row of the slice: rows / every of the rule. Scope:   rows in memory. Of those on the
 * disk only, ps_reap.h brings the ones to look at besides.
 */
#ifndef PS_SWEEP_H
#define PS_SWEEP_H

#include "ps_server/ps_table.h"

typedef struct ps_sweep ps_sweep;
ps_sweep *ps_sweep_new(void); /* NULL: no memory */
void ps_sweep_free(ps_sweep *s);

/* A row's place in the order of a rule that has one. */
typedef struct ps_rank {
    uint64_t rank, key;
} ps_rank;

static inline bool ps_rank_less(const ps_rank *a, const ps_rank *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->key < b->key;
}

/* Rows of one table that are looked at besides the slice. */
typedef struct ps_sweep_more {
    uint32_t table_id;
    size_t n;
    const uint64_t *keys;         /* borrowed [n] */
    ps_rank below[PS_MAX_EVICTS]; /* of a rule that ranks: rows before it may go */
} ps_sweep_more;

/* What a rule thinks of a row: true when it goes; of one that ranks, when it is before `below`. */
bool ps_sweep_takes(const ps_eviction *e, const ps_evict_row *row, const ps_evict_now *now,
                    const ps_rank *below);

/* ps_sweep_slice - the rows that the table's rules take from slice number `turn` (of each rule's
 * own count of slices) and of `more` (NULL: none), grouped by stripe; besides, tombstones of the
 * slice that the store has leave memory. *keys: owned by the sweep until the next call.
 * BD_E_NOMEM. */
bd_status ps_sweep_slice(ps_sweep *s, ps_table *t, uint64_t turn, const ps_evict_now *now,
                         const ps_sweep_more *more, uint64_t **keys, size_t *n) BD_MUST_CHECK;

/* Takes keys of `not[n_not]` out of keys[n]; returns how many are left, in order. BD_E_NOMEM is 0:
 * all of them can wait for the next pass. */
size_t ps_sweep_exclude(ps_sweep *s, uint64_t *keys, size_t n, const uint64_t * not, size_t n_not);

#endif
