/* ps_server/ps_sweep.h - looking for rows that eviction rules take, a slice of a table at a time.
 *
 * Layer:   ps_server (memory only). Threads: the one that applies; each stripe is locked for
 * reading while its part of the slice is looked at, 1/64 of it. Cost:    one index line and one row
 * for each row of the slice: rows / every of the rule. Scope:   rows in memory. A row on the disk
 * only is seen once it has come back.
 */
#ifndef PS_SWEEP_H
#define PS_SWEEP_H

#include "ps_server/ps_table.h"

typedef struct ps_sweep ps_sweep;
ps_sweep *ps_sweep_new(void); /* NULL: no memory */
void ps_sweep_free(ps_sweep *s);

/* ps_sweep_slice - the rows that the table's rules take from slice number `turn` (of each rule's
 * own count of slices), grouped by stripe; besides, tombstones of the slice that the store has
 * leave memory. *keys: owned by the sweep until the next call. BD_E_NOMEM. */
bd_status ps_sweep_slice(ps_sweep *s, ps_table *t, uint64_t turn, const ps_evict_now *now,
                         uint64_t **keys, size_t *n) BD_MUST_CHECK;

/* Takes keys of `not[n_not]` out of keys[n]; returns how many are left, in order. BD_E_NOMEM is 0:
 * all of them can wait for the next pass. */
size_t ps_sweep_exclude(ps_sweep *s, uint64_t *keys, size_t n, const uint64_t * not, size_t n_not);

#endif
