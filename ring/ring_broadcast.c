/* Broadcast down a tree: binomial when small, a pipelined chain when large. Every rank then tells
 * its parent that its whole subtree has the data, so that a root never returns from a broadcast
 * that the others did not call (a mismatch must reach everybody). */
#include "ring/ring_algo.h"
#include "ring/ring_plan.h"

enum { STEP_DATA = 0, STEP_ACK = 1 };

static size_t seg_elems(const ring_run *run)
{
    return RING_SEGMENT_BYTES / run->elem_bytes;
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

static int child(const ring_run *run, int idx)
{
    return ring_plan_child(run->rank, run->world, run->op->root, run->as.tree.chain, idx);
}

static bd_status send_down(ring_run *run, uint32_t segment, bd_err *err)
{
    ring_span seg = segment_of(run, segment);
    bd_status rc = BD_OK;
    for (int i = 0; rc == BD_OK && child(run, i) >= 0; i++) {
        rc = ring_run_send(run, child(run, i), STEP_DATA, segment, at(run, &seg),
                           seg.elems * run->elem_bytes, err);
    }
    return rc;
}

static bd_status start(ring_run *run, bd_err *err)
{
    ring_span all = {.first_elem = 0, .elems = run->op->n_elems};
    bd_status rc = BD_OK;
    int chain = run->op->n_elems * run->elem_bytes > RING_SMALL_BYTES;
    run->as.tree.chain = chain;
    run->as.tree.parent = ring_plan_parent(run->rank, run->world, run->op->root, chain);
    run->as.tree.n_segments = ring_plan_n_segments(&all, seg_elems(run));
    run->as.tree.segment = 0;
    run->as.tree.n_acked = 0;
    run->as.tree.acked = 0;
    run->as.tree.n_children = 0;
    while (child(run, run->as.tree.n_children) >= 0) {
        run->as.tree.n_children++;
    }
    run->n_to_receive = (uint64_t)run->as.tree.n_children;
    if (run->as.tree.parent >= 0) {
        run->n_to_receive += run->as.tree.n_segments;
        return BD_OK;
    }
    for (uint32_t s = 0; rc == BD_OK && s < run->as.tree.n_segments; s++) {
        rc = send_down(run, s, err);
    }
    return rc;
}

/* -1: not a child. */
static int child_idx(const ring_run *run, int peer)
{
    for (int i = 0; child(run, i) >= 0; i++) {
        if (child(run, i) == peer) {
            return i;
        }
    }
    return -1;
}

static bool owes_ack(const ring_run *run, int peer)
{
    int i = child_idx(run, peer);
    return i >= 0 && (run->as.tree.acked >> i & 1) == 0;
}

static bd_status place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    ring_span seg = segment_of(run, run->as.tree.segment);
    bool data = f->step == STEP_DATA && peer == run->as.tree.parent &&
                f->segment == run->as.tree.segment &&
                run->as.tree.segment < run->as.tree.n_segments &&
                f->payload_bytes == seg.elems * run->elem_bytes;
    bool ack = f->step == STEP_ACK && owes_ack(run, peer) && f->payload_bytes == 0;
    if (!data && !ack) {
        return bd_err_set(err, BD_E_MISMATCH, "rank %d sent an unexpected frame (step %u)", peer,
                          f->step);
    }
    *dst = data ? at(run, &seg) : NULL;
    return BD_OK;
}

static bd_status arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    bd_status rc = BD_OK;
    if (f->step == STEP_ACK) {
        run->as.tree.acked |= (uint32_t)1 << child_idx(run, peer);
        run->as.tree.n_acked++;
    } else {
        rc = send_down(run, run->as.tree.segment, err);
        run->as.tree.segment++;
    }
    bool complete = run->as.tree.segment == run->as.tree.n_segments &&
                    run->as.tree.n_acked == run->as.tree.n_children;
    if (rc == BD_OK && complete && run->as.tree.parent >= 0) {
        rc = ring_run_send(run, run->as.tree.parent, STEP_ACK, 0, NULL, 0, err);
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
    bool data = run->as.tree.parent >= 0 && run->as.tree.segment < run->as.tree.n_segments;
    return data ? peer == run->as.tree.parent : owes_ack(run, peer);
}

static bool needs(const ring_run *run, int peer)
{
    bool data = run->as.tree.parent >= 0 && run->as.tree.segment < run->as.tree.n_segments;
    return (data && peer == run->as.tree.parent) || owes_ack(run, peer);
}

const ring_algo ring_broadcast_tree = {.name = "tree",
                                       .start = start,
                                       .place = place,
                                       .arrived = arrived,
                                       .finish = finish,
                                       .awaits = awaits,
                                       .needs = needs};
