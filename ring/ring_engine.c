#include "ring/ring_engine.h"

#include "base/assert.h"
#include "base/mem.h"

#include "ring/ring_engine_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How long ranks have to answer a PROBE: a twentieth of the time limit, but enough for a rank whose
 * thread is busy or scheduled late. */
#define GRACE_MIN_NS (300 * BD_NS_PER_MS)
#define GRACE_MAX_NS (3 * BD_NS_PER_S)

bd_status ring_engine_set_lanes(ring_engine *e, int n_lanes, bd_err *err)
{
    ring_lane *lanes = bd_calloc((size_t)e->world * (size_t)n_lanes, sizeof *lanes);
    if (lanes == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring engine");
    }
    bd_free(e->lanes);
    e->lanes = lanes;
    e->n_lanes = n_lanes;
    return BD_OK;
}

bd_status ring_engine_init(ring_engine *e, bd_err *err)
{
    e->peers = bd_calloc((size_t)e->world, sizeof *e->peers);
    e->tell_at_ns = INT64_MAX;
    bd_status rc = e->peers != NULL ? ring_engine_set_lanes(e, 1, err)
                                    : bd_err_set(err, BD_E_NOMEM, "ring engine");
    if (rc != BD_OK) {
        ring_engine_deinit(e);
    }
    return rc;
}

void ring_engine_deinit(ring_engine *e)
{
    bd_free(e->peers);
    bd_free(e->lanes);
    bd_free(e->scratch);
    e->peers = NULL;
    e->lanes = NULL;
    e->scratch = NULL;
}

bool ring_engine_is_idle(const ring_engine *e)
{
    return e->op == NULL && e->failure.code == BD_OK;
}

/* Frames out. */

static ring_frame control_frame(const ring_engine *e, ring_frame_kind kind)
{
    return (ring_frame){.kind = (uint8_t)kind,
                        .root = -1,
                        .group = e->group_hash,
                        .epoch = e->epoch,
                        .seq = e->seq,
                        .rank = e->rank,
                        .world = e->world};
}

static void count_sent(ring_engine *e, size_t payload_bytes)
{
    (void)atomic_fetch_add_explicit(&e->bytes_sent, RING_FRAME_BYTES + payload_bytes,
                                    memory_order_relaxed);
}

static void send_control(ring_engine *e, int peer, int lane, const ring_frame *f,
                         const void *payload)
{
    bd_err ignored = BD_ERR_INIT;
    if (peer == e->rank || e->peers[peer].gone) {
        return;
    }
    if (e->transport->send(e->transport, peer, lane, f, payload, &ignored) == BD_OK) {
        count_sent(e, (size_t)f->payload_bytes);
    }
}

/* Over every lane: what ends connections must come before their end on each of them. */
static void send_last(ring_engine *e, const ring_frame *f, const void *payload)
{
    for (int p = 0; p < e->world; p++) {
        for (int lane = 0; lane < e->n_lanes; lane++) {
            send_control(e, p, lane, f, payload);
        }
    }
}

/* NOLINTNEXTLINE(readability-function-size): a frame's address and content */
bd_status ring_engine_send_op(ring_engine *e, const ring_op *op, int peer, int lane, uint32_t step,
                              uint32_t segment, const void *payload, size_t n_bytes, bd_err *err)
{
    ring_frame f = control_frame(e, RING_FRAME_DATA);
    f.op = (uint8_t)op->kind;
    f.dtype = (uint8_t)op->dtype;
    f.reduce = (uint8_t)op->reduce;
    f.root = op->root;
    f.count = op->n_elems;
    f.name_hash = op->name_hash;
    f.step = step;
    f.segment = segment;
    f.payload_bytes = n_bytes;
    memcpy(f.name, op->name, sizeof f.name);
    bd_status rc = e->transport->send(e->transport, peer, lane, &f, payload, err);
    if (rc >= BD_OK) {
        count_sent(e, n_bytes);
    }
    return rc;
}

/* NOLINTNEXTLINE(readability-function-size): a frame's address and content */
bd_status ring_run_send_lane(ring_run *run, int peer, int lane, uint32_t step, uint32_t segment,
                             const void *payload, size_t n_bytes, bd_err *err)
{
    bd_status rc =
        ring_engine_send_op(run->engine, run->op, peer, lane, step, segment, payload, n_bytes, err);
    if (rc == BD_AGAIN) {
        run->n_sending++;
        rc = BD_OK;
    }
    return rc;
}

bd_status ring_run_send(ring_run *run, int peer, uint32_t step, uint32_t segment,
                        const void *payload, size_t n_bytes, bd_err *err)
{
    return ring_run_send_lane(run, peer, 0, step, segment, payload, n_bytes, err);
}

bd_status ring_run_scratch(ring_run *run, size_t n_bytes, bd_err *err)
{
    ring_engine *e = run->engine;
    if (n_bytes > e->scratch_bytes) {
        uint8_t *p = bd_alloc_aligned(BD_CACHE_LINE_BYTES, n_bytes);
        if (p == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "scratch of %zu bytes", n_bytes);
        }
        bd_free(e->scratch);
        e->scratch = p;
        e->scratch_bytes = n_bytes;
    }
    run->scratch = e->scratch;
    return BD_OK;
}

/* Failure. */

static void finish_op(ring_engine *e, bd_status rc, const bd_err *err)
{
    e->op = NULL;
    e->is_probing = false;
    if (rc == BD_OK) {
        e->seq++;
    }
    e->on_done(e->user, rc, err);
}

static void settle_failed(ring_engine *e)
{
    e->draining = false;
    if (e->op != NULL) {
        finish_op(e, e->failure.code, &e->failure);
    }
    ring_engine_p2p_fail(e);
}

static void flood(ring_engine *e)
{
    ring_frame f = control_frame(e, RING_FRAME_ABORT);
    f.count = (uint64_t)(int64_t)e->failure.code;
    f.name_hash = e->outer_at;
    f.payload_bytes = strlen(e->failure.text);
    send_last(e, &f, e->failure.text);
}

/* outer_at is set. A failure that was to come is the first one, and the reason. */
static void fail_now(ring_engine *e, const bd_err *why)
{
    e->failure = e->pending.code != BD_OK ? e->pending : *why;
    if (e->transport != NULL && !e->has_left) {
        e->draining = !e->transport->quiesce(e->transport);
        flood(e);
    }
    if (!e->draining) {
        settle_failed(e);
    }
}

void ring_engine_fail(ring_engine *e, const bd_err *why)
{
    if (e->failure.code != BD_OK) {
        return;
    }
    const _Atomic uint64_t *outer_done = atomic_load(&e->outer_done);
    if (outer_done != NULL) {
        uint64_t now_at = atomic_load(outer_done) + 1;
        bool is_earlier = e->pending.code != BD_OK && e->outer_at != 0 && e->outer_at < now_at;
        e->outer_at = is_earlier ? e->outer_at : now_at;
    }
    fail_now(e, why);
}

/* Operation `at` is the first that fails; those before it go on. */
static void fail_from(ring_engine *e, const bd_err *why, uint64_t at, uint64_t outer_at)
{
    if (e->failure.code != BD_OK) {
        return;
    }
    if (e->pending.code == BD_OK) {
        e->outer_at = outer_at;
    }
    if (at <= e->seq) {
        fail_now(e, why);
        return;
    }
    if (e->pending.code == BD_OK || at < e->pending_at) {
        e->pending_at = at;
    }
    bd_err_keep_first(&e->pending, why);
}

void ring_engine_on_quiet(ring_engine *e)
{
    if (e->draining) {
        settle_failed(e);
    }
}

/* What the error was about: the running operation. */
static void wrap_op(const ring_engine *e, bd_err *err)
{
    if (e->op != NULL) {
        char what[RING_OP_TEXT_BYTES];
        ring_op_text(e->op, e->seq, what, sizeof what);
        (void)bd_err_wrap(err, "rank %d: %s", ring_engine_label(e, e->rank), what);
    }
}

static void fail_op(ring_engine *e, bd_err *err)
{
    wrap_op(e, err);
    ring_engine_fail(e, err);
}

/* The operation. */

static void settle(ring_engine *e)
{
    if (e->op == NULL || e->failure.code != BD_OK || e->run.n_sending > 0 ||
        e->run.n_received < e->run.n_to_receive) {
        return;
    }
    bd_err err = BD_ERR_INIT;
    if (e->run.algo->finish(&e->run, &err) != BD_OK) {
        fail_op(e, &err);
        return;
    }
    finish_op(e, BD_OK, NULL);
    if (e->pending.code != BD_OK && e->seq >= e->pending_at) {
        fail_now(e, &e->pending);
    }
}

static void fail_left(ring_engine *e, int peer)
{
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_PEER_LOST, "rank %d left the group after %" PRIu64 " operations",
                     ring_engine_label(e, peer), e->peers[peer].gone_at);
    fail_op(e, &err);
}

/* A failure is to come, and already this operation lacks something from a rank that has ended. */
static void fail_if_bereft(ring_engine *e)
{
    for (int p = 0; e->op != NULL && e->pending.code != BD_OK && p < e->world; p++) {
        if (e->peers[p].gone && e->peers[p].has_failed && e->run.algo->needs(&e->run, p)) {
            fail_now(e, &e->pending);
            return;
        }
    }
}

void ring_engine_start(ring_engine *e, const ring_op *op)
{
    bd_err err = BD_ERR_INIT;
    BD_ASSERT(ring_engine_is_idle(e));
    e->op = op;
    e->run = (ring_run){.engine = e,
                        .algo = ring_algo_choose(op, e->world),
                        .op = op,
                        .rank = e->rank,
                        .world = e->world,
                        .n_lanes = e->n_lanes,
                        .elem_bytes = num_dtype_bytes((int)op->dtype)};
    e->n_started++;
    e->has_waited_on = false;
    e->tell_at_ns = INT64_MAX;
    e->progress_ns = bd_now_ns(e->clock);
    for (int p = 0; p < e->world; p++) {
        const ring_peer *peer = &e->peers[p];
        if (peer->gone && !peer->has_failed && e->seq >= peer->gone_at) {
            fail_left(e, p);
            return;
        }
    }
    if (e->run.algo->start(&e->run, &err) != BD_OK) {
        fail_op(e, &err);
        return;
    }
    settle(e);
    fail_if_bereft(e);
}

void ring_engine_on_sent(ring_engine *e, int peer, int op)
{
    if (op == RING_OP_SEND) {
        (void)ring_engine_p2p_sent(e, peer);
        return;
    }
    if (e->op != NULL && e->run.n_sending > 0) {
        e->run.n_sending--;
    }
    e->progress_ns = bd_now_ns(e->clock);
    settle(e);
}

/* Frames in. */

static bool is_same_op(const ring_engine *e, const ring_frame *f)
{
    const ring_op *op = e->op;
    return f->seq == e->seq && f->op == op->kind && f->dtype == op->dtype &&
           f->reduce == op->reduce && f->root == op->root && f->count == op->n_elems &&
           f->name_hash == op->name_hash;
}

static ring_verdict on_data(ring_engine *e, int peer, int lane, const ring_frame *f, void **dst)
{
    bd_err err = BD_ERR_INIT;
    if (f->op == RING_OP_SEND && lane == 0) {
        return ring_engine_p2p_header(e, peer, f, dst);
    }
    if (f->seq > e->seq || (e->op == NULL && f->seq == e->seq)) {
        e->peers[peer].held_seq = f->seq;
        if (e->tell_at_ns == INT64_MAX && atomic_load(&e->outer_started) != NULL) {
            e->tell_at_ns = bd_now_ns(e->clock) + e->timeout_ns / 2;
        }
        return RING_HOLD;
    }
    if (e->op == NULL || !is_same_op(e, f)) {
        ring_mismatch_text(e, peer, f, &err);
        ring_engine_fail(e, &err);
        return RING_STOP;
    }
    e->run.lane = lane;
    if (e->run.algo->place(&e->run, peer, f, dst, &err) != BD_OK) {
        fail_op(e, &err);
        return RING_STOP;
    }
    ring_engine_lane(e, peer, lane)->frame = *f;
    return RING_TAKE;
}

ring_verdict ring_engine_on_header(ring_engine *e, int peer, int lane, const ring_frame *f,
                                   void **dst)
{
    ring_lane *p = ring_engine_lane(e, peer, lane);
    if (e->failure.code != BD_OK) {
        return RING_STOP;
    }
    bool fits = f->rank == peer && f->group == e->group_hash && f->epoch == e->epoch;
    bool is_data = f->kind == RING_FRAME_DATA;
    if (!fits || (!is_data && f->payload_bytes >= sizeof p->text)) {
        bd_err err = BD_ERR_INIT;
        (void)bd_err_set(&err, BD_E_CORRUPT, "rank %d got a frame of another group from rank %d",
                         ring_engine_label(e, e->rank), ring_engine_label(e, peer));
        ring_engine_fail(e, &err);
        return RING_STOP;
    }
    if (is_data) {
        return on_data(e, peer, lane, f, dst);
    }
    p->frame = *f;
    *dst = p->text;
    return RING_TAKE;
}

static void on_abort(ring_engine *e, int peer, ring_lane *in)
{
    bd_err err = BD_ERR_INIT;
    bd_status code = bd_status_known((int)(int64_t)in->frame.count);
    in->text[in->frame.payload_bytes] = '\0';
    (void)bd_err_set(&err, code < BD_OK ? code : BD_E_INTERNAL, "%s", in->text);
    e->peers[peer].has_failed = true;
    fail_from(e, &err, in->frame.seq, in->frame.name_hash);
    if (e->failure.code == BD_OK) {
        ring_engine_p2p_give_up(e, peer, &e->pending);
    }
}

static void hear(ring_engine *e, int peer, const ring_frame *f)
{
    ring_peer *p = &e->peers[peer];
    p->heard_ns = bd_now_ns(e->clock);
    p->heard_seq = f->seq;
    p->was_running = f->step == RING_STATE_RUNNING;
    p->was_elsewhere = f->step == RING_STATE_ELSEWHERE;
}

static bool is_elsewhere(const ring_engine *e)
{
    const _Atomic uint64_t *started = atomic_load(&e->outer_started);
    const _Atomic uint64_t *done = atomic_load(&e->outer_done);
    return e->op == NULL && started != NULL && atomic_load(started) != atomic_load(done);
}

static void tell_state(ring_engine *e, int peer)
{
    ring_frame f = control_frame(e, RING_FRAME_STATE);
    f.step = e->op != NULL     ? RING_STATE_RUNNING
             : is_elsewhere(e) ? RING_STATE_ELSEWHERE
                               : RING_STATE_IDLE;
    send_control(e, peer, 0, &f, NULL);
}

static void on_probe(ring_engine *e, int peer, const ring_frame *question)
{
    hear(e, peer, question);
    tell_state(e, peer);
}

/* Who holds frames of others does not read their questions. */
static void tell_all(ring_engine *e)
{
    e->tell_at_ns = INT64_MAX;
    for (int p = 0; e->failure.code == BD_OK && p < e->world; p++) {
        if (is_elsewhere(e)) {
            tell_state(e, p);
        }
    }
}

static void on_goodbye(ring_engine *e, int peer, const ring_frame *f)
{
    ring_peer *p = &e->peers[peer];
    if (p->gone) {
        return; /* said so over another lane */
    }
    p->gone = true;
    p->gone_at = f->seq;
    if (e->op != NULL && e->seq >= p->gone_at) {
        fail_left(e, peer);
    }
    for (const ring_p2p *q = e->p2p; q != NULL; q = q->next) {
        if (q->op->peer == peer && q->op->kind == RING_OP_RECV) {
            fail_left(e, peer); /* nothing comes any more */
            return;
        }
    }
}

static void on_data_in(ring_engine *e, int peer, int lane)
{
    bd_err err = BD_ERR_INIT;
    const ring_frame *f = &ring_engine_lane(e, peer, lane)->frame;
    BD_ASSERT(e->op != NULL);
    e->progress_ns = bd_now_ns(e->clock);
    e->is_probing = false;
    e->run.n_received++;
    e->run.bytes_received += f->payload_bytes;
    e->run.lane = lane;
    if (e->run.algo->arrived(&e->run, peer, f, &err) != BD_OK) {
        fail_op(e, &err);
        return;
    }
    settle(e);
}

void ring_engine_on_payload(ring_engine *e, int peer, int lane)
{
    ring_lane *p = ring_engine_lane(e, peer, lane);
    if (e->failure.code != BD_OK) {
        return;
    }
    switch ((ring_frame_kind)p->frame.kind) {
    case RING_FRAME_DATA:
        if (p->frame.op == RING_OP_SEND) {
            ring_engine_p2p_payload(e, peer);
        } else {
            on_data_in(e, peer, lane);
        }
        break;
    case RING_FRAME_ABORT:
        on_abort(e, peer, p);
        break;
    case RING_FRAME_GOODBYE:
        on_goodbye(e, peer, &p->frame);
        break;
    case RING_FRAME_PROBE:
        on_probe(e, peer, &p->frame);
        break;
    case RING_FRAME_STATE:
        hear(e, peer, &p->frame);
        break;
    case RING_FRAME_HELLO: /* the transport's; harmless here */
        break;
    }
}

void ring_engine_on_peer_lost(ring_engine *e, int peer, const char *why)
{
    bd_err err = BD_ERR_INIT;
    ring_peer *p = &e->peers[peer];
    if (p->gone) {
        return; /* it said so before */
    }
    p->gone = true;
    p->gone_at = 0;
    if (e->failure.code != BD_OK) {
        return;
    }
    if (p->has_failed) { /* it said why, and what it completed */
        fail_if_bereft(e);
        return;
    }
    (void)bd_err_set(&err, BD_E_PEER_LOST, "rank %d lost (%s)", ring_engine_label(e, peer), why);
    bool is_done = e->op != NULL && !e->run.algo->needs(&e->run, peer);
    if (e->op != NULL && !is_done) {
        wrap_op(e, &err);
    }
    fail_from(e, &err, e->seq + (is_done ? 1 : 0), 0);
    if (e->failure.code == BD_OK) {
        ring_engine_p2p_give_up(e, peer, &e->pending);
    }
}

void ring_engine_goodbye(ring_engine *e)
{
    if (e->transport == NULL || e->failure.code != BD_OK) {
        return;
    }
    if (e->op != NULL) {
        bd_err err = BD_ERR_INIT;
        (void)bd_err_set(&err, BD_E_ABORTED, "the communicator was freed");
        fail_op(e, &err);
        return;
    }
    ring_frame f = control_frame(e, RING_FRAME_GOODBYE);
    send_last(e, &f, NULL);
    e->has_left = true;
}

/* Time. */

static int64_t grace_ns(const ring_engine *e)
{
    int64_t ns = e->timeout_ns / 20;
    ns = ns < GRACE_MIN_NS ? GRACE_MIN_NS : ns;
    return ns < GRACE_MAX_NS ? ns : GRACE_MAX_NS;
}

static bool waits_behind(const ring_engine *e, const ring_peer *p)
{
    return p->heard_ns >= e->heard_since_ns && p->was_running && p->heard_seq < e->seq;
}

/* A rank in an earlier operation waits for the culprit itself: let it speak first. */
static bool defer(ring_engine *e, int64_t now)
{
    for (int p = 0; !e->has_deferred && p < e->world; p++) {
        if (waits_behind(e, &e->peers[p])) {
            e->has_deferred = true;
            e->probe_until_ns = now + grace_ns(e);
            return true;
        }
    }
    return false;
}

/* A rank that has not come waits in another part of the larger group: it will name the culprit. */
static bool wait_on(ring_engine *e, int64_t now)
{
    for (int p = 0; !e->has_waited_on && p < e->world; p++) {
        const ring_peer *peer = &e->peers[p];
        if (peer->was_elsewhere && peer->heard_seq == e->seq) { /* if it was lately: once */
            e->has_waited_on = true;
            e->is_probing = false;
            e->progress_ns = now - e->timeout_ns / 2;
            return true;
        }
    }
    return false;
}

static void probe(ring_engine *e, int64_t now)
{
    ring_frame f = control_frame(e, RING_FRAME_PROBE);
    f.step = RING_STATE_RUNNING;
    e->is_probing = true;
    e->has_deferred = false;
    e->probe_until_ns = now + grace_ns(e);
    e->heard_since_ns = now - grace_ns(e);
    for (int p = 0; p < e->world; p++) {
        send_control(e, p, 0, &f, NULL);
    }
}

static int64_t op_deadline_ns(const ring_engine *e)
{
    if (e->op == NULL || e->failure.code != BD_OK) {
        return INT64_MAX;
    }
    return e->is_probing ? e->probe_until_ns : e->progress_ns + e->timeout_ns;
}

int64_t ring_engine_deadline_ns(const ring_engine *e)
{
    int64_t op_ns = op_deadline_ns(e);
    int64_t p2p_ns = e->failure.code != BD_OK ? INT64_MAX : ring_engine_p2p_deadline_ns(e);
    op_ns = op_ns < p2p_ns ? op_ns : p2p_ns;
    return e->failure.code == BD_OK && e->tell_at_ns < op_ns ? e->tell_at_ns : op_ns;
}

void ring_engine_on_tick(ring_engine *e)
{
    int64_t now = bd_now_ns(e->clock);
    if (now < ring_engine_deadline_ns(e)) {
        return;
    }
    if (now >= e->tell_at_ns) {
        tell_all(e);
    }
    ring_engine_p2p_tick(e, now);
    if (now < op_deadline_ns(e)) {
        return;
    }
    if (!e->is_probing) {
        probe(e, now);
        return;
    }
    if (defer(e, now) || wait_on(e, now)) {
        return;
    }
    bd_err err = BD_ERR_INIT;
    ring_timeout_text(e, &err);
    fail_op(e, &err);
}
