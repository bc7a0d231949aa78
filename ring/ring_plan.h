/* ring/ring_plan.h - which piece of the vector moves between which ranks at each step.
 *
 * Layer:     ring (pure part). Includes base/ only: no sockets, no clock.
 * Threads:   every function is pure; call from any thread.
 * Ownership: nothing is allocated; outputs are written to caller memory.
 * Cost:      ring allreduce: 2 * (world - 1) steps, 2 * (world - 1) / world * total bytes sent per
 *            rank; reduce_scatter and all_gather: half of that; broadcast: total bytes, log2(world)
 *            hops when small, world - 1 pipelined hops when large; barrier: log2(world) rounds.
 * Read next: ring/ring_walk.h (the state machine that walks round the ring by this plan).
 */
#ifndef RING_PLAN_H
#define RING_PLAN_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Operations up to this size take a latency algorithm. */
#define RING_SMALL_BYTES ((size_t)32 << 10)
/* The same for an allreduce of two ranks, which costs no more bytes in one round than in two. */
#define RING_SMALL_PAIR_BYTES ((size_t)512 << 10)
/* A chunk moves in segments of at most this size, so that receiving, reducing and sending overlap.
 * Small enough that a segment is still in the cache when it is sent on. */
#define RING_SEGMENT_BYTES ((size_t)256 << 10)
/* Not smaller: a frame costs about as much as 16 KiB of payload. */
#define RING_SEGMENT_MIN_BYTES ((size_t)64 << 10)

typedef struct ring_span {
    size_t first_elem; /* index of the first element, [0, total_elems] */
    size_t elems;      /* number of elements; 0 for an empty chunk */
} ring_span;

/* ring_plan_span - the elements that chunk `chunk` covers.
 *
 * The vector x[total_elems] is cut into `world` chunks whose sizes differ by at most one element;
 * the first (total_elems % world) chunks are the longer ones.
 *
 *   total_elems  length of x in elements (not bytes), may be 0
 *   world        number of ranks, >= 1
 *   chunk        chunk index, [0, world)
 *   out          written on BD_OK, untouched otherwise; caller-owned
 *
 * Returns BD_OK, or BD_E_INVALID when world == 0 or chunk >= world.
 * Never blocks or allocates. O(1).
 */
bd_status ring_plan_span(size_t total_elems, uint32_t world, uint32_t chunk,
                         ring_span *out) BD_MUST_CHECK;

/* Elements of a segment of a chunk that walks round the ring: a quarter of the chunk within the two
 * bounds, so that the chunk's first part moves on while the last one is still coming in. */
size_t ring_plan_seg_elems(size_t chunk_elems, size_t elem_bytes);
/* Segments of a span, at least 1: an empty span still travels as one empty segment, because its
 * header is what tells a mismatch. seg_elems >= 1. */
uint32_t ring_plan_n_segments(const ring_span *span, size_t seg_elems);
/* Segment idx of the span, idx in [0, ring_plan_n_segments). */
ring_span ring_plan_segment(const ring_span *span, size_t seg_elems, uint32_t idx);

/* The chunk that the rank whose first chunk is `first` sends at `step`: one chunk back each step.
 * What it receives at `step` is what it sends at `step + 1`. */
uint32_t ring_plan_chunk(uint32_t first, uint32_t world, uint64_t step);

/* Broadcast tree of `world` ranks. The parent of rank, -1 for the root. `chain`: root, root + 1,
 * ... one after the other (bandwidth); else a binomial tree (latency). */
int ring_plan_parent(int rank, int world, int root, int chain);
/* Child number idx of rank, -1 when it has fewer. */
int ring_plan_child(int rank, int world, int root, int chain, int idx);

/* Rounds of a dissemination barrier: ceil(log2(world)). In round k a rank tells rank + 2^k. */
uint32_t ring_plan_rounds(int world);

#endif
