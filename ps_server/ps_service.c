#include "ps_server/ps_service.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#include "proto/px_pack.h"
#include "ps_server/ps_autograd.h"
#include "ps_server/ps_metrics.h"
#include "ps_server/ps_service_int.h"

#include <string.h>
#include <time.h>

#define SWEEP_MS 500

/* ---- calls ---- */
static void conn_unref(ps_conn *c)
{
    if (c != NULL && atomic_fetch_sub(&c->refs, 1) == 1) {
        rpc_stream_unref(c->stream);
        bd_free(c);
    }
}

static ps_call *call_new(ps_service *v)
{
    ps_call *c = bd_calloc(1, sizeof *c);
    if (c != NULL) {
        c->service = v;
        c->start_ns = bd_mono_ns();
        bd_arena_init(&c->arena);
    }
    return c;
}

static void call_free(ps_call *c)
{
    if (c->timed != NULL) {
        bd_metric_observe(c->timed, (double)(bd_mono_ns() - c->start_ns) * 1e-9);
    }
    ps_away_drop(c);
    bd_buf_unref(c->rows);
    ps_wire_drop(c);
    bd_chain_deinit(&c->body);
    bd_arena_deinit(&c->arena);
    conn_unref(c->conn);
    bd_free(c);
}

ps_call *ps_call_new(ps_service *v, rpc_req *req)
{
    ps_call *c = call_new(v);
    if (c == NULL) {
        bd_err err;
        (void)bd_err_set(&err, BD_E_NOMEM, "no memory for a request");
        rpc_req_fail(req, &err);
        return NULL;
    }
    c->req = req;
    bd_chain_move(&c->body, rpc_req_body(req));
    return c;
}

/* A reply that cannot be queued breaks the stream, so that the client asks again on a new one. */
static void stream_reply(ps_call *c, px_stream_reply *r)
{
    bd_chain out = {0};
    bd_err err;
    r->id = c->id;
    if (bd_fault_hit("ps.stream.lose_reply")) {
        rpc_stream_cancel(c->conn->stream);
        return;
    }
    bd_status rc = px_encode_stream_reply(r, &out, &err);
    if (rc == BD_OK) {
        rc = rpc_stream_send(c->conn->stream, &out, &err);
    }
    if (rc != BD_OK && !atomic_load(&c->conn->closed)) {
        BD_LOG(WARN, "a stream is broken because its reader does not keep up", "error",
               bd_err_text(&err));
        rpc_stream_cancel(c->conn->stream);
    }
    bd_chain_deinit(&out);
}

void ps_call_fail(ps_call *c, const bd_err *err)
{
    bd_metric_add(&ps_metric_failures, 1);
    c->timed = NULL;
    if (c->req != NULL) {
        rpc_req_fail(c->req, err);
    } else {
        px_stream_reply r = {.status = err->code, .text = bd_err_text(err)};
        stream_reply(c, &r);
    }
    call_free(c);
}

void ps_call_reply(ps_call *c, bd_chain *reply)
{
    rpc_req_reply(c->req, reply);
    call_free(c);
}

void ps_call_reply_message(ps_call *c, const ProtobufCMessage *msg)
{
    bd_chain out = {0};
    bd_err err;
    if (px_pack(msg, &out, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_call_reply(c, &out);
    }
}

void ps_call_lookup_reply(ps_call *c, px_lookup_reply *r)
{
    bd_chain out = {0};
    bd_err err;
    if (c->req == NULL) {
        px_stream_reply s = {.lookup = r};
        stream_reply(c, &s);
        call_free(c);
    } else if (px_encode_lookup_reply(r, &out, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_call_reply(c, &out);
    }
}

void ps_call_push_reply(ps_call *c, px_push_reply *r)
{
    bd_chain out = {0};
    bd_err err;
    if (c->req == NULL) {
        px_stream_reply s = {.push = r};
        stream_reply(c, &s);
        call_free(c);
    } else if (px_encode_push_reply(r, &out, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_call_reply(c, &out);
    }
}

void ps_call_commit_reply(ps_call *c, px_commit_reply *r)
{
    bd_chain out = {0};
    bd_err err;
    if (c->req == NULL) {
        px_stream_reply s = {.commit = r};
        stream_reply(c, &s);
        call_free(c);
    } else if (px_encode_commit_reply(r, &out, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_call_reply(c, &out);
    }
}

void *ps_call_unpack(ps_call *c, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *msg = NULL;
    bd_err err;
    if (px_unpack(type, &c->body, 0, &msg, &err) != BD_OK) {
        ps_call_fail(c, &err);
        return NULL;
    }
    return msg;
}

/* ---- streams ---- */
static void take_message(ps_conn *conn, bd_chain *msg)
{
    px_stream_request r;
    bd_err err;
    ps_call *c = call_new(conn->service);
    if (c == NULL) {
        rpc_stream_cancel(conn->stream); /* without memory there is no id to answer */
        return;
    }
    c->conn = conn;
    (void)atomic_fetch_add(&conn->refs, 1);
    bd_chain_move(&c->body, msg);
    if (px_decode_stream_request(&c->body, NULL, &c->arena, &r, &err) != BD_OK) {
        BD_LOG(WARN, "a stream is broken: its client sent what is not a request", "error",
               bd_err_text(&err));
        rpc_stream_cancel(conn->stream);
        call_free(c);
        return;
    }
    c->id = r.id;
    if (r.lookup != NULL) {
        ps_start_lookup(c, r.lookup);
    } else if (!conn->may_train) {
        (void)bd_err_set(&err, BD_E_DENIED, "the token's scope is read, this needs train");
        ps_call_fail(c, &err);
    } else if (r.push != NULL) {
        ps_start_push(c, r.push);
    } else if (r.commit != NULL) {
        ps_start_commit(c, r.commit);
    } else {
        (void)bd_err_set(&err, BD_E_INVALID, "request %llu has no body", (unsigned long long)r.id);
        ps_call_fail(c, &err);
    }
}

/* What a network does to a message: it never comes (the stream breaks), or it comes twice. */
static bool trouble(ps_conn *conn, bd_chain *msg)
{
    bd_chain again = {0};
    if (bd_fault_hit("ps.stream.lose_request")) {
        rpc_stream_cancel(conn->stream);
        return true;
    }
    if (bd_fault_hit("ps.stream.repeat") && bd_chain_add_chain(&again, msg) == BD_OK) {
        take_message(conn, &again);
    }
    bd_chain_deinit(&again);
    return false;
}

static void on_stream_message(void *user, bd_chain *msg)
{
    ps_conn *conn = user;
    if (!trouble(conn, msg)) {
        take_message(conn, msg);
    }
}

static void on_stream_close(void *user, bd_status rc, const bd_err *err)
{
    ps_conn *conn = user;
    (void)rc;
    (void)err;
    atomic_store(&conn->closed, true);
    conn_unref(conn);
}

bd_status ps_on_stream(void *service, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    ps_conn *conn = bd_calloc(1, sizeof *conn);
    if (conn == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "no memory for a stream");
    }
    conn->service = service;
    conn->stream = rpc_stream_ref(s);
    conn->may_train = rpc_stream_may(s, "/braid.v1.ParameterServer/Push");
    atomic_init(&conn->refs, 1);
    *ev = (rpc_stream_events){
        .on_message = on_stream_message, .on_close = on_stream_close, .user = conn};
    return BD_OK;
}

/* ---- answering threads ---- */
void ps_service_hand_over(ps_service *v, ps_call *c)
{
    c->next = NULL;
    (void)pthread_mutex_lock(&v->lock);
    if (v->last == NULL) {
        v->first = c;
    } else {
        v->last->next = c;
    }
    v->last = c;
    (void)pthread_cond_signal(&v->changed);
    (void)pthread_mutex_unlock(&v->lock);
}

static bool is_dead(const ps_waiter *w)
{
    if (w->expires_ns != 0) { /* a vote of the Autograd service */
        return bd_mono_ns() > w->expires_ns;
    }
    const ps_call *c = (const ps_call *)(const void *)((const char *)w - offsetof(ps_call, waiter));
    return c->req != NULL ? rpc_req_cancelled(c->req) : atomic_load(&c->conn->closed);
}

/* The next call; NULL with *quit false: time to sweep. */
static ps_call *next_call(ps_service *v, bool *quit)
{
    struct timespec until;
    int64_t at = bd_mono_ns() + SWEEP_MS * BD_NS_PER_MS;
    until.tv_sec = (time_t)(at / BD_NS_PER_S);
    until.tv_nsec = (long)(at % BD_NS_PER_S);
    int e = 0;
    (void)pthread_mutex_lock(&v->lock);
    while (v->first == NULL && !(v->quit && v->n_away == 0) && e == 0) {
        e = pthread_cond_timedwait(&v->changed, &v->lock, &until);
    }
    ps_call *c = v->first;
    if (c != NULL) {
        v->first = c->next;
        v->last = v->first == NULL ? NULL : v->last;
    }
    *quit = v->quit && v->n_away == 0 && c == NULL;
    (void)pthread_mutex_unlock(&v->lock);
    return c;
}

/* A server that takes no pushes any more is not ready: somebody has to look after it. */
static void tell_health(ps_service *v)
{
    bd_err why;
    if (v->health != NULL && ps_shard_is_broken(v->shard, &why)) {
        ps_health_set_failed(v->health, bd_err_text(&why));
    }
}

static void *answer_main(void *service)
{
    ps_service *v = service;
    int64_t swept_ns = bd_mono_ns();
    for (;;) {
        bool quit = false;
        ps_call *c = next_call(v, &quit);
        if (quit) {
            return NULL;
        }
        if (c != NULL) {
            ps_answer_lookup(c);
        }
        if (bd_mono_ns() - swept_ns > SWEEP_MS * BD_NS_PER_MS) {
            swept_ns = bd_mono_ns();
            ps_shard_sweep(v->shard, is_dead);
            if (atomic_load(&v->autograd) != NULL) {
                ps_autograd_sweep(atomic_load(&v->autograd));
            }
            ps_metrics_update(v->shard);
            tell_health(v);
        }
    }
}

/* ---- life ---- */
bd_status ps_service_new(const ps_service_options *opt, ps_shard *shard, ps_coord *coord,
                         ps_service **out, bd_err *err)
{
    pthread_condattr_t attr;
    size_t n = opt->n_threads <= 0 ? 2 : (size_t)opt->n_threads;
    ps_service *v = bd_calloc(1, sizeof *v);
    if (v == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "service: no memory");
    }
    v->shard = shard;
    v->coord = coord;
    v->health = opt->health;
    ps_trail_init(&v->trail);
    (void)pthread_mutex_init(&v->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&v->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    v->instance = bd_strdup(opt->instance == NULL ? "" : opt->instance);
    v->threads = bd_calloc(n, sizeof *v->threads);
    bd_status rc = v->instance == NULL || v->threads == NULL
                       ? bd_err_set(err, BD_E_NOMEM, "service: no memory")
                       : BD_OK;
    for (size_t i = 0; v->threads != NULL && i < n && rc == BD_OK; i++) {
        int e = pthread_create(&v->threads[i], NULL, answer_main, v);
        rc = e == 0 ? BD_OK : bd_err_errno(err, BD_E_EXHAUSTED, e, "start threads");
        v->n_threads += e == 0;
    }
    if (rc != BD_OK) {
        ps_service_free(v);
        return rc;
    }
    *out = v;
    return BD_OK;
}

void ps_service_set_map_epoch(ps_service *v, uint64_t epoch)
{
    atomic_store(&v->map_epoch, epoch);
}

void ps_service_set_autograd(ps_service *v, ps_autograd *a)
{
    atomic_store(&v->autograd, a);
}

void ps_service_free(ps_service *v)
{
    if (v == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&v->lock);
    v->quit = true;
    (void)pthread_cond_broadcast(&v->changed);
    (void)pthread_mutex_unlock(&v->lock);
    for (size_t i = 0; i < v->n_threads; i++) {
        (void)pthread_join(v->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&v->changed);
    (void)pthread_mutex_destroy(&v->lock);
    ps_trail_deinit(&v->trail);
    bd_free(v->threads);
    bd_free(v->instance);
    bd_free(v);
}

bd_status ps_service_register(ps_service *v, rpc_server *server, bd_err *err)
{
    bd_status rc = rpc_server_register(server, "/braid.v1.ParameterServer/Lookup", ps_on_lookup, v);
    if (rc == BD_OK) {
        rc = rpc_server_register(server, "/braid.v1.ParameterServer/Push", ps_on_push, v);
    }
    if (rc == BD_OK) {
        rc = rpc_server_register(server, "/braid.v1.ParameterServer/Commit", ps_on_commit, v);
    }
    if (rc == BD_OK) {
        rc =
            rpc_server_register_stream(server, "/braid.v1.ParameterServer/Stream", ps_on_stream, v);
    }
    if (rc == BD_OK) {
        rc = ps_register_admin(v, server);
    }
    if (rc == BD_OK && v->coord != NULL) {
        rc = ps_register_coord(v, server);
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "register the services");
}
