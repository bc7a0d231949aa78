/* ring/ring_walk.h - one walk of chunks round the ring: the common part of allreduce,
 * reduce_scatter and all_gather.
 *
 * At step t a rank sends chunk first - t to rank + 1 and receives chunk first - t - 1 from rank
 * - 1. In the first n_reduce_steps a received segment is combined into the vector, afterwards it is
 * stored; then it goes on as step t + 1. The rank that finishes a chunk forwards the same bytes, so
 * that all ranks end with equal bits. Segment s uses lane s % n_lanes all the way round, so each
 * lane has its own order and is followed on its own.
 *
 * Why storing into the vector never races with our own sends: a stored (finished) segment contains
 * our contribution, so ours has left this rank before.
 *
 * Layer: ring (pure part). Threads: the communicator's thread.
 */
#ifndef RING_WALK_H
#define RING_WALK_H

#include "base/err.h"

#include "ring/ring_frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring_run;

#define RING_MAX_LANES 16

typedef struct ring_walk {
    uint8_t *base;      /* borrowed: the vector */
    size_t total_elems; /* of the vector */
    size_t seg_elems;
    uint32_t first_chunk;
    uint32_t n_steps;
    uint32_t n_reduce_steps;
    struct {
        uint32_t step; /* next frame expected; n_steps: no more */
        uint32_t segment;
    } next[RING_MAX_LANES];
} ring_walk;

/* run->as.walk has base, total_elems, first_chunk, n_steps and n_reduce_steps. */
bd_status ring_walk_start(struct ring_run *run, bd_err *err) BD_MUST_CHECK;
bd_status ring_walk_place(struct ring_run *run, int peer, const ring_frame *f, void **dst,
                          bd_err *err) BD_MUST_CHECK;
bd_status ring_walk_arrived(struct ring_run *run, int peer, const ring_frame *f,
                            bd_err *err) BD_MUST_CHECK;
bool ring_walk_awaits(const struct ring_run *run, int peer);

#endif
