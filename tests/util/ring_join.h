/* tests/util/ring_join.h - uneven inputs (Join), for ring_ranks_run on any backend and world.
 *
 * Layer: tests.
 */
#ifndef TU_RING_JOIN_H
#define TU_RING_JOIN_H

#include "tests/util/ring_ranks.h"

/* Batches 3, 5, 4 (and again): every step is the sum over the ranks that still have data. */
void ring_join_uneven(rank_test *t);
/* A no_sync step after somebody ran out: joined ranks follow no bucket then. */
void ring_join_with_no_sync(rank_test *t);
/* Buffers of the highest active rank, the divisor (arg: bool *, by the active ranks), and what the
 * last one to end hands to all. */
void ring_join_buffers(rank_test *t);
/* The option that makes the first rank without data an error on all. */
void ring_join_throws(rank_test *t);

#endif
