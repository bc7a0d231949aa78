/* reduce to one rank: a pipelined chain root + 1, root + 2, ..., root. Every rank adds its vector
 * to what comes and sends it on, segment by segment; world - 1 hops, all bytes sent once per rank.
 * The end goes back down the chain, so that no rank returns from a reduce that the others did not
 * call. */
#include "ring/ring_algo.h"
#include "ring/ring_plan.h"

enum { STEP_DATA = 0, STEP_ACK = 1 };

static int before(const ring_run *run)
{
    return run->rank == (run->op->root + 1) % run->world
               ? -1
               : (run->rank + run->world - 1) % run->world;
}

static int after(const ring_run *run)
{
    return run->rank == run->op->root ? -1 : (run->rank + 1) % run->world;
}

static size_t seg_elems(const ring_run *run)
{
    return RING_SEGMENT_BYTES / run->elem_bytes;
}

static uint32_t n_segments(const ring_run *run)
{
    ring_span all = {.first_elem = 0, .elems = run->op->n_elems};
    return ring_plan_n_segments(&all, seg_elems(run));
}

static ring_span segment_of(const ring_run *run, uint32_t idx)
{
    ring_span all = {.first_elem = 0, .elems = run->op->n_elems};
    return ring_plan_segment(&all, seg_elems(run), idx);
}

static uint8_t *at(const ring_run *run, const ring_span *seg)
{
    uint8_t *base = run->op->out;
    return base == NULL ? base : base + seg->first_elem * run->elem_bytes;
}

static bd_status send_on(ring_run *run, uint32_t segment, bd_err *err)
{
    ring_span seg = segment_of(run, segment);
    return ring_run_send(run, after(run), STEP_DATA, segment, at(run, &seg),
                         seg.elems * run->elem_bytes, err);
}

static bd_status start(ring_run *run, bd_err *err)
{
    bd_status rc = BD_OK;
    run->as.chain.segment = 0;
    run->as.chain.has_ack = after(run) < 0;
    if (run->world == 1) {
        return BD_OK;
    }
    run->n_to_receive = (before(run) >= 0 ? n_segments(run) : 0) + (after(run) >= 0 ? 1 : 0);
    if (before(run) >= 0) {
        return ring_run_scratch(run, RING_SEGMENT_BYTES, err);
    }
    for (uint32_t s = 0; rc == BD_OK && s < n_segments(run); s++) {
        rc = send_on(run, s, err);
    }
    return rc;
}

static bd_status place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    uint32_t next = run->as.chain.segment;
    ring_span seg = segment_of(run, next < n_segments(run) ? next : 0);
    bool data = f->step == STEP_DATA && peer == before(run) && f->segment == next &&
                next < n_segments(run) && f->payload_bytes == seg.elems * run->elem_bytes;
    bool ack = f->step == STEP_ACK && peer == after(run) && f->payload_bytes == 0;
    if (!data && !ack) {
        return bd_err_set(err, BD_E_MISMATCH, "rank %d sent an unexpected frame (step %u)", peer,
                          f->step);
    }
    *dst = data ? run->scratch : NULL;
    return BD_OK;
}

static bd_status combine(ring_run *run, const ring_span *seg, bd_err *err)
{
    const ring_op *op = run->op;
    bd_status rc =
        num_reduce(at(run, seg), run->scratch, seg->elems, op->dtype, (num_reduce_op)op->reduce);
    if (rc == BD_OK && op->reduce == NUM_AVG && after(run) < 0) {
        ring_divide(at(run, seg), seg->elems, op->dtype, run->world);
    }
    return rc == BD_OK ? rc : bd_err_set(err, rc, "reduce %s", num_reduce_op_name(op->reduce));
}

static bd_status arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    bd_status rc = BD_OK;
    (void)peer;
    if (f->step == STEP_ACK) {
        run->as.chain.has_ack = true;
    } else {
        ring_span seg = segment_of(run, run->as.chain.segment);
        rc = seg.elems > 0 ? combine(run, &seg, err) : BD_OK;
        if (rc == BD_OK && after(run) >= 0) {
            rc = send_on(run, run->as.chain.segment, err);
        }
        run->as.chain.segment++;
    }
    bool complete = run->n_received == run->n_to_receive;
    if (rc == BD_OK && complete && before(run) >= 0) {
        rc = ring_run_send(run, before(run), STEP_ACK, 0, NULL, 0, err);
    }
    return rc;
}

static bd_status finish(ring_run *run, bd_err *err)
{
    (void)run;
    (void)err;
    return BD_OK;
}

static bool awaits(const ring_run *run, int peer)
{
    bool data = before(run) >= 0 && run->as.chain.segment < n_segments(run);
    return data ? peer == before(run) : peer == after(run) && !run->as.chain.has_ack;
}

static bool needs(const ring_run *run, int peer)
{
    bool data = before(run) >= 0 && run->as.chain.segment < n_segments(run);
    return (data && peer == before(run)) || (peer == after(run) && !run->as.chain.has_ack);
}

const ring_algo ring_reduce_chain = {.name = "chain",
                                     .start = start,
                                     .place = place,
                                     .arrived = arrived,
                                     .finish = finish,
                                     .awaits = awaits,
                                     .needs = needs};
