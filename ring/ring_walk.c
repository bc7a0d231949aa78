#include "ring/ring_walk.h"

#include "base/assert.h"

#include "ring/ring_algo.h"
#include "ring/ring_plan.h"

static ring_span chunk_at(const ring_run *run, uint32_t step)
{
    const ring_walk *w = &run->as.walk;
    ring_span span = {0, 0};
    uint32_t chunk = ring_plan_chunk(w->first_chunk, (uint32_t)run->world, step);
    bd_status rc = ring_plan_span(w->total_elems, (uint32_t)run->world, chunk, &span);
    BD_ASSERT(rc == BD_OK);
    return span;
}

static int next_rank(const ring_run *run)
{
    return (run->rank + 1) % run->world;
}

static int previous_rank(const ring_run *run)
{
    return (run->rank + run->world - 1) % run->world;
}

static uint32_t n_segments_at(const ring_run *run, uint32_t step)
{
    ring_span chunk = chunk_at(run, step);
    return ring_plan_n_segments(&chunk, run->as.walk.seg_elems);
}

static bd_status send_segment(ring_run *run, uint32_t step, uint32_t segment, bd_err *err)
{
    const ring_walk *w = &run->as.walk;
    ring_span chunk = chunk_at(run, step);
    ring_span seg = ring_plan_segment(&chunk, w->seg_elems, segment);
    return ring_run_send_lane(run, next_rank(run), (int)segment % run->n_lanes, step, segment,
                              w->base + seg.first_elem * run->elem_bytes,
                              seg.elems * run->elem_bytes, err);
}

/* Steps in which the lane has no segment are none of its business. */
static void skip_empty(ring_run *run, int lane)
{
    ring_walk *w = &run->as.walk;
    uint32_t *step = &w->next[lane].step;
    while (*step < w->n_steps && w->next[lane].segment >= n_segments_at(run, *step + 1)) {
        w->next[lane].segment = (uint32_t)lane;
        (*step)++;
    }
}

bd_status ring_walk_start(ring_run *run, bd_err *err)
{
    ring_walk *w = &run->as.walk;
    bd_status rc = BD_OK;
    size_t longest = w->total_elems / (size_t)run->world + 1;
    BD_ASSERT(run->n_lanes <= RING_MAX_LANES);
    w->seg_elems = ring_plan_seg_elems(longest, run->elem_bytes);
    run->n_to_receive = 0;
    for (uint32_t t = 0; t < w->n_steps; t++) {
        run->n_to_receive += n_segments_at(run, t + 1);
    }
    if (w->n_steps == 0) {
        return BD_OK;
    }
    for (int lane = 0; lane < run->n_lanes; lane++) {
        w->next[lane].step = 0;
        w->next[lane].segment = (uint32_t)lane;
        skip_empty(run, lane);
    }
    if (w->n_reduce_steps > 0) {
        rc = ring_run_scratch(run, (size_t)run->n_lanes * RING_SEGMENT_BYTES, err);
    }
    uint32_t n = n_segments_at(run, 0);
    for (uint32_t s = 0; rc == BD_OK && s < n; s++) {
        rc = send_segment(run, 0, s, err);
    }
    return rc;
}

static ring_span expected_segment(const ring_run *run)
{
    const ring_walk *w = &run->as.walk;
    ring_span chunk = chunk_at(run, w->next[run->lane].step + 1);
    return ring_plan_segment(&chunk, w->seg_elems, w->next[run->lane].segment);
}

static uint8_t *lane_scratch(const ring_run *run)
{
    return run->scratch + (size_t)run->lane * RING_SEGMENT_BYTES;
}

bd_status ring_walk_place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    const ring_walk *w = &run->as.walk;
    uint32_t step = w->next[run->lane].step;
    uint32_t segment = w->next[run->lane].segment;
    ring_span seg = expected_segment(run);
    if (peer != previous_rank(run) || f->step != step || f->segment != segment ||
        step >= w->n_steps || f->payload_bytes != seg.elems * run->elem_bytes) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "rank %d sent step %u segment %u, expected step %u segment %u of rank %d",
                          peer, f->step, f->segment, step, segment, previous_rank(run));
    }
    *dst =
        step < w->n_reduce_steps ? lane_scratch(run) : w->base + seg.first_elem * run->elem_bytes;
    return BD_OK;
}

static bd_status combine(ring_run *run, const ring_span *seg, bd_err *err)
{
    const ring_walk *w = &run->as.walk;
    const ring_op *op = run->op;
    uint8_t *at = w->base + seg->first_elem * run->elem_bytes;
    bd_status rc =
        num_reduce(at, lane_scratch(run), seg->elems, op->dtype, (num_reduce_op)op->reduce);
    if (rc != BD_OK) {
        return bd_err_set(err, rc, "reduce %s of %s", num_reduce_op_name(op->reduce),
                          num_dtype_name((int)op->dtype));
    }
    if (op->reduce == NUM_AVG && w->next[run->lane].step + 1 == w->n_reduce_steps) {
        ring_divide(at, seg->elems, op->dtype, run->world);
    }
    return BD_OK;
}

bd_status ring_walk_arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    (void)peer;
    (void)f;
    ring_walk *w = &run->as.walk;
    uint32_t step = w->next[run->lane].step;
    uint32_t segment = w->next[run->lane].segment;
    ring_span seg = expected_segment(run);
    bd_status rc = BD_OK;
    if (step < w->n_reduce_steps) {
        rc = combine(run, &seg, err);
    }
    if (rc == BD_OK && step + 1 < w->n_steps) {
        rc = send_segment(run, step + 1, segment, err);
    }
    w->next[run->lane].segment += (uint32_t)run->n_lanes;
    skip_empty(run, run->lane);
    return rc;
}

bool ring_walk_awaits(const ring_run *run, int peer)
{
    return peer == previous_rank(run) && run->n_received < run->n_to_receive;
}
