/* send and recv. They are no operations of the group: they have no number in its order, run beside
 * its operation, and several at once. Between two ranks they keep their order: a connection does. A
 * message that nobody receives yet is held back (with all that its sender sends after it). */
#include "base/assert.h"
#include "base/mem.h"

#include "ring/ring_engine_text.h"
#include "ring/ring_plan.h"

#include <inttypes.h>

static size_t seg_elems(const ring_op *op)
{
    return RING_SEGMENT_BYTES / num_dtype_bytes((int)op->dtype);
}

static ring_span segment_of(const ring_op *op, uint32_t idx)
{
    ring_span all = {.first_elem = 0, .elems = op->n_elems};
    return ring_plan_segment(&all, seg_elems(op), idx);
}

static uint32_t n_segments(const ring_op *op)
{
    ring_span all = {.first_elem = 0, .elems = op->n_elems};
    return ring_plan_n_segments(&all, seg_elems(op));
}

static uint8_t *at(void *base, const ring_op *op, size_t elem)
{
    return base == NULL ? NULL : (uint8_t *)base + elem * num_dtype_bytes((int)op->dtype);
}

static void unlink_p2p(ring_engine *e, ring_p2p *p)
{
    ring_p2p **link = &e->p2p;
    while (*link != p) {
        link = &(*link)->next;
    }
    *link = p->next;
}

static void end(ring_engine *e, ring_p2p *p, bd_status rc, const bd_err *err)
{
    unlink_p2p(e, p);
    e->on_p2p_done(e->user, p, rc, err);
}

static void fail_p2p(ring_engine *e, const ring_p2p *p, bd_err *err)
{
    const ring_op *op = p->op;
    (void)bd_err_wrap(err, "rank %d: %s \"%s\" %s rank %d (tag %" PRIu32 ", %s x %zu)",
                      ring_engine_label(e, e->rank), ring_op_name((int)op->kind), op->name,
                      op->kind == RING_OP_SEND ? "to" : "from", ring_engine_label(e, op->peer),
                      op->tag, num_dtype_name((int)op->dtype), op->n_elems);
    ring_engine_fail(e, err);
}

static bool check_peer(ring_engine *e, ring_p2p *p)
{
    bd_err err = BD_ERR_INIT;
    const ring_peer *peer = &e->peers[p->op->peer];
    if (e->pending.code != BD_OK && (peer->gone || peer->has_failed)) {
        end(e, p, e->pending.code, &e->pending);
        return false;
    }
    if (peer->gone) {
        (void)bd_err_set(&err, BD_E_PEER_LOST, "it has left the group");
        fail_p2p(e, p, &err);
        return false;
    }
    return true;
}

static void send_all(ring_engine *e, ring_p2p *p)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_OK;
    uint32_t n = n_segments(p->op);
    for (uint32_t s = 0; rc >= BD_OK && s < n; s++) {
        ring_span seg = segment_of(p->op, s);
        rc = ring_engine_send_op(e, p->op, p->op->peer, 0, p->op->tag, s,
                                 at(p->op->in, p->op, seg.first_elem),
                                 seg.elems * num_dtype_bytes((int)p->op->dtype), &err);
        p->n_left += rc == BD_AGAIN ? 1 : 0;
    }
    if (rc < BD_OK) {
        fail_p2p(e, p, &err);
    } else if (p->n_left == 0) {
        end(e, p, BD_OK, NULL);
    }
}

void ring_engine_start_p2p(ring_engine *e, ring_p2p *p)
{
    ring_p2p **link = &e->p2p;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    p->next = NULL;
    p->n_left = 0;
    p->segment = 0;
    p->progress_ns = bd_now_ns(e->clock);
    *link = p;
    if (!check_peer(e, p)) {
        return; /* the failure has ended it */
    }
    if (p->op->kind == RING_OP_SEND) {
        send_all(e, p);
    } else {
        e->n_started++; /* what was held may be for it */
    }
}

bool ring_engine_p2p_sent(ring_engine *e, int peer)
{
    for (ring_p2p *p = e->p2p; p != NULL; p = p->next) {
        if (p->op->kind == RING_OP_SEND && p->op->peer == peer && p->n_left > 0) {
            p->progress_ns = bd_now_ns(e->clock);
            if (--p->n_left == 0) {
                end(e, p, BD_OK, NULL);
            }
            return true;
        }
    }
    return false;
}

static ring_p2p *receiver_of(ring_engine *e, int peer, uint32_t tag)
{
    for (ring_p2p *p = e->p2p; p != NULL; p = p->next) {
        if (p->op->kind == RING_OP_RECV && p->op->peer == peer && p->op->tag == tag) {
            return p;
        }
    }
    return NULL;
}

ring_verdict ring_engine_p2p_header(ring_engine *e, int peer, const ring_frame *f, void **dst)
{
    bd_err err = BD_ERR_INIT;
    ring_p2p *p = receiver_of(e, peer, f->step);
    if (p == NULL) {
        return RING_HOLD;
    }
    const ring_op *op = p->op;
    uint32_t n = n_segments(op);
    ring_span seg = segment_of(op, p->segment < n ? p->segment : 0);
    if (f->dtype != op->dtype || f->count != op->n_elems || f->name_hash != op->name_hash) {
        (void)bd_err_set(&err, BD_E_MISMATCH, "but rank %d sends \"%.*s\", %s x %" PRIu64,
                         ring_engine_label(e, peer), RING_NAME_BYTES - 1, f->name,
                         num_dtype_name(f->dtype), f->count);
        fail_p2p(e, p, &err);
        return RING_STOP;
    }
    if (f->segment != p->segment ||
        f->payload_bytes != seg.elems * num_dtype_bytes((int)op->dtype)) {
        (void)bd_err_set(&err, BD_E_CORRUPT, "segment %" PRIu32 " instead of %" PRIu32, f->segment,
                         p->segment);
        fail_p2p(e, p, &err);
        return RING_STOP;
    }
    *dst = at(op->out, op, seg.first_elem);
    ring_engine_lane(e, peer, 0)->frame = *f;
    return RING_TAKE;
}

void ring_engine_p2p_payload(ring_engine *e, int peer)
{
    ring_p2p *p = receiver_of(e, peer, ring_engine_lane(e, peer, 0)->frame.step);
    BD_ASSERT(p != NULL);
    p->progress_ns = bd_now_ns(e->clock);
    p->segment++;
    if (p->segment == n_segments(p->op)) {
        end(e, p, BD_OK, NULL);
    }
}

void ring_engine_p2p_give_up(ring_engine *e, int peer, const bd_err *why)
{
    ring_p2p *next = NULL;
    for (ring_p2p *p = e->p2p; p != NULL; p = next) {
        next = p->next;
        /* a send whose frames the transport still holds ends when they are out */
        if (p->op->peer == peer && p->n_left == 0) {
            end(e, p, why->code, why);
        }
    }
}

void ring_engine_p2p_fail(ring_engine *e)
{
    while (e->p2p != NULL) {
        end(e, e->p2p, e->failure.code, &e->failure);
    }
}

int64_t ring_engine_p2p_deadline_ns(const ring_engine *e)
{
    int64_t first = INT64_MAX;
    for (const ring_p2p *p = e->p2p; p != NULL; p = p->next) {
        int64_t at_ns = p->progress_ns + e->timeout_ns;
        first = at_ns < first ? at_ns : first;
    }
    return first;
}

void ring_engine_p2p_tick(ring_engine *e, int64_t now)
{
    for (const ring_p2p *p = e->p2p; p != NULL; p = p->next) {
        if (now >= p->progress_ns + e->timeout_ns) {
            bd_err err = BD_ERR_INIT;
            (void)bd_err_set(&err, BD_E_TIMEOUT, "rank %d did not take part for %" PRId64 " ms",
                             ring_engine_label(e, p->op->peer),
                             (int64_t)(e->timeout_ns / BD_NS_PER_MS));
            fail_p2p(e, p, &err);
            return;
        }
    }
}
