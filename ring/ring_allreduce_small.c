/* Small allreduce: every rank sends its whole vector to every other in one round, then all of them
 * add the same vectors in rank order, so results are equal bit for bit. One step, (P-1) * S bytes
 * sent per rank. f16 and bf16 sums keep an f32 accumulator over all ranks and round once.
 *
 * Vectors are sent from where they are, and received side by side in the scratch. Two ranks send
 * theirs in segments: a segment is reduced as soon as the other one's is in and the own one is out,
 * while the next ones travel. */
#include "base/mem.h"

#include "ring/ring_algo.h"
#include "ring/ring_combine.h"
#include "ring/ring_plan.h"

#include <string.h>

#define PAIR 2

static size_t vector_bytes(const ring_run *run)
{
    return run->op->n_elems * run->elem_bytes;
}

static size_t seg_elems(const ring_run *run)
{
    return run->world == PAIR ? RING_SEGMENT_MIN_BYTES / run->elem_bytes : run->op->n_elems + 1;
}

static ring_span segment_of(const ring_run *run, uint32_t idx)
{
    ring_span all = {.first_elem = 0, .elems = run->op->n_elems};
    return ring_plan_segment(&all, seg_elems(run), idx);
}

/* Where the vector of rank is: the own one with the caller. NULL when vectors are empty. */
static uint8_t *vector_of(const ring_run *run, int rank)
{
    size_t stride =
        (vector_bytes(run) + BD_CACHE_LINE_BYTES - 1) / BD_CACHE_LINE_BYTES * BD_CACHE_LINE_BYTES;
    return rank == run->rank ? run->op->in : run->scratch + (size_t)rank * stride;
}

static uint8_t *segment_at(const ring_run *run, int rank, const ring_span *seg)
{
    uint8_t *v = vector_of(run, rank);
    return v != NULL ? v + seg->first_elem * run->elem_bytes : v;
}

static bool has_arrived(const ring_run *run, int peer)
{
    if (run->world == PAIR) {
        return run->n_received >= run->n_to_receive;
    }
    return (run->as.small.arrived[peer / 64] >> (peer % 64) & 1) != 0;
}

static bd_status start(ring_run *run, bd_err *err)
{
    ring_span all = {.first_elem = 0, .elems = run->op->n_elems};
    memset(&run->as.small, 0, sizeof run->as.small);
    run->as.small.n_segments = ring_plan_n_segments(&all, seg_elems(run));
    run->n_to_receive = ((uint64_t)run->world - 1) * run->as.small.n_segments;
    size_t need = (vector_bytes(run) + BD_CACHE_LINE_BYTES) * (size_t)run->world;
    bd_status rc = ring_run_scratch(run, need, err);
    /* rank + 1 first: not everybody to rank 0 at once */
    for (int i = 1; i < run->world; i++) {
        int to = (run->rank + i) % run->world;
        for (uint32_t s = 0; rc == BD_OK && s < run->as.small.n_segments; s++) {
            ring_span seg = segment_of(run, s);
            rc = ring_run_send(run, to, 0, s, segment_at(run, run->rank, &seg),
                               seg.elems * run->elem_bytes, err);
        }
    }
    return rc;
}

static bd_status place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    uint32_t next = run->world == PAIR ? (uint32_t)run->n_received : 0;
    ring_span seg = segment_of(run, next < run->as.small.n_segments ? next : 0);
    if (f->step != 0 || f->segment != next || next >= run->as.small.n_segments ||
        f->payload_bytes != seg.elems * run->elem_bytes || has_arrived(run, peer)) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "rank %d sent an unexpected frame (step %u, segment %u)", peer, f->step,
                          f->segment);
    }
    *dst = segment_at(run, peer, &seg);
    return BD_OK;
}

static bd_status reduce_next(ring_run *run, bd_err *err)
{
    const void *src[1024];
    const ring_op *op = run->op;
    ring_span seg = segment_of(run, run->as.small.n_reduced++);
    if (seg.elems == 0) {
        return BD_OK;
    }
    for (int r = 0; r < run->world; r++) {
        src[r] = segment_at(run, r, &seg);
    }
    return ring_combine((uint8_t *)op->out + seg.first_elem * run->elem_bytes, src, run->world,
                        seg.elems, op->dtype, op->reduce, err);
}

static bd_status arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    (void)f;
    bd_status rc = BD_OK;
    if (run->world != PAIR) {
        run->as.small.arrived[peer / 64] |= (uint64_t)1 << (peer % 64);
        return rc;
    }
    uint64_t n_out = run->as.small.n_segments - run->n_sending; /* they leave in order */
    while (rc == BD_OK && run->as.small.n_reduced < run->n_received &&
           run->as.small.n_reduced < n_out) {
        rc = reduce_next(run, err);
    }
    return rc;
}

static bd_status finish(ring_run *run, bd_err *err)
{
    bd_status rc = BD_OK;
    while (rc == BD_OK && run->as.small.n_reduced < run->as.small.n_segments) {
        rc = reduce_next(run, err);
    }
    return rc;
}

static bool awaits(const ring_run *run, int peer)
{
    return peer != run->rank && !has_arrived(run, peer);
}

const ring_algo ring_allreduce_small = {.name = "all-to-all",
                                        .is_even = true,
                                        .start = start,
                                        .place = place,
                                        .arrived = arrived,
                                        .finish = finish,
                                        .awaits = awaits,
                                        .needs = awaits};
