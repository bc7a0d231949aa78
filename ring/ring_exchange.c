/* gather, scatter, all_to_all: every rank sends every other one message, which may be empty, and
 * gets one. So each pair checks that it runs the same operation. One round; sent are the bytes of
 * the parts. Parts travel in segments. */
#include "base/mem.h"

#include "ring/ring_algo.h"
#include "ring/ring_plan.h"

#include <string.h>

/* One part: elements of the input or output. */
static ring_span outgoing(const ring_run *run, int to)
{
    const ring_op *op = run->op;
    ring_span p = {.first_elem = 0, .elems = op->n_elems};
    switch (op->kind) {
    case RING_OP_GATHER:
        p.elems = to == op->root ? op->n_elems : 0;
        break;
    case RING_OP_SCATTER:
        p.first_elem = (size_t)to * op->n_elems;
        p.elems = run->rank == op->root ? op->n_elems : 0;
        break;
    case RING_OP_ALL_TO_ALL_V:
        for (int r = 0; r < to; r++) {
            p.first_elem += op->send_counts[r];
        }
        p.elems = op->send_counts[to];
        break;
    default:
        p.first_elem = (size_t)to * op->n_elems;
        break;
    }
    return p;
}

static ring_span incoming(const ring_run *run, int from)
{
    const ring_op *op = run->op;
    ring_span p = {.first_elem = (size_t)from * op->n_elems, .elems = op->n_elems};
    switch (op->kind) {
    case RING_OP_GATHER:
        p.elems = run->rank == op->root ? op->n_elems : 0;
        break;
    case RING_OP_SCATTER:
        p.first_elem = 0;
        p.elems = from == op->root ? op->n_elems : 0;
        break;
    case RING_OP_ALL_TO_ALL_V:
        p.first_elem = 0;
        for (int r = 0; r < from; r++) {
            p.first_elem += op->recv_counts[r];
        }
        p.elems = op->recv_counts[from];
        break;
    default:
        break;
    }
    return p;
}

static size_t seg_elems(const ring_run *run)
{
    return RING_SEGMENT_BYTES / run->elem_bytes;
}

static uint8_t *at(const ring_run *run, void *base, size_t elem)
{
    return base == NULL ? NULL : (uint8_t *)base + elem * run->elem_bytes;
}

/* Scratch: the next segment expected of each rank. */
static uint32_t *next_of(const ring_run *run)
{
    return (uint32_t *)(void *)run->scratch;
}

static bd_status send_part(ring_run *run, int to, bd_err *err)
{
    ring_span part = outgoing(run, to);
    uint32_t n = ring_plan_n_segments(&part, seg_elems(run));
    bd_status rc = BD_OK;
    for (uint32_t s = 0; rc == BD_OK && s < n; s++) {
        ring_span seg = ring_plan_segment(&part, seg_elems(run), s);
        rc = ring_run_send(run, to, n, s, at(run, run->op->in, seg.first_elem),
                           seg.elems * run->elem_bytes, err);
    }
    return rc;
}

static void keep_own(const ring_run *run)
{
    ring_span from = outgoing(run, run->rank);
    ring_span to = incoming(run, run->rank);
    uint8_t *src = at(run, run->op->in, from.first_elem);
    uint8_t *dst = at(run, run->op->out, to.first_elem);
    if (from.elems == to.elems && from.elems > 0 && src != dst) {
        memmove(dst, src, from.elems * run->elem_bytes);
    }
}

static bd_status start(ring_run *run, bd_err *err)
{
    bd_status rc = ring_run_scratch(run, (size_t)run->world * sizeof(uint32_t), err);
    if (rc != BD_OK) {
        return rc;
    }
    memset(run->scratch, 0, (size_t)run->world * sizeof(uint32_t));
    if (run->op->kind == RING_OP_ALL_TO_ALL_V &&
        run->op->send_counts[run->rank] != run->op->recv_counts[run->rank]) {
        return bd_err_set(err, BD_E_MISMATCH, "sends %zu elements to itself, but expects %zu",
                          run->op->send_counts[run->rank], run->op->recv_counts[run->rank]);
    }
    keep_own(run);
    run->n_to_receive = 0;
    for (int r = 0; r < run->world; r++) {
        ring_span part = incoming(run, r);
        run->n_to_receive += r == run->rank ? 0 : ring_plan_n_segments(&part, seg_elems(run));
    }
    for (int i = 1; rc == BD_OK && i < run->world; i++) {
        rc = send_part(run, (run->rank + i) % run->world, err);
    }
    return rc;
}

static bd_status place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    ring_span part = incoming(run, peer);
    uint32_t n = ring_plan_n_segments(&part, seg_elems(run));
    uint32_t next = next_of(run)[peer];
    ring_span seg = {0, 0};
    if (next < n) {
        seg = ring_plan_segment(&part, seg_elems(run), next);
    }
    if (peer == run->rank || f->step != n || next >= n || f->segment != next ||
        f->payload_bytes != seg.elems * run->elem_bytes) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "rank %d sent another count than the %zu elements expected of it", peer,
                          part.elems);
    }
    *dst = at(run, run->op->out, seg.first_elem);
    return BD_OK;
}

static bd_status arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    (void)f;
    (void)err;
    next_of(run)[peer]++;
    return BD_OK;
}

static bd_status finish(ring_run *run, bd_err *err)
{
    (void)run;
    (void)err;
    return BD_OK;
}

static bool awaits(const ring_run *run, int peer)
{
    ring_span part = incoming(run, peer);
    return peer != run->rank && next_of(run)[peer] < ring_plan_n_segments(&part, seg_elems(run));
}

const ring_algo ring_exchange_pairs = {.name = "pairs",
                                       .start = start,
                                       .place = place,
                                       .arrived = arrived,
                                       .finish = finish,
                                       .awaits = awaits,
                                       .needs = awaits};
