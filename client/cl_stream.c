/* One lane of a link: a bidirectional stream that carries lookups, or pushes and commits. Requests
 * get a number of their own at every try, so an answer to a try that was given up finds nobody. */
#include "base/clock.h"
#include "base/mem.h"

#include "client/cl_int.h"

/* An open stream and the calls that wait for answers on it. */
struct cl_tube {
    _Atomic uint32_t refs; /* lane, stream (until on_close), each call in it */
    cl_link *link;         /* for its name; outlives every tube */
    rpc_stream *stream;    /* owned */
    uint64_t last_id;      /* under the lane's send_lock */
    pthread_mutex_t lock;
    cl_call *pending; /* under lock */
    bool is_closed;   /* under lock */
};

static cl_tube *tube_ref(cl_tube *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void cl_tube_unref(cl_tube *t)
{
    if (t != NULL && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) {
        if (t->stream != NULL) {
            rpc_stream_unref(t->stream);
        }
        (void)pthread_mutex_destroy(&t->lock);
        bd_free(t);
    }
}

/* Takes the call with this id (0: any) out of the tube. */
static cl_call *take(cl_tube *t, uint64_t id)
{
    cl_call *found = NULL;
    (void)pthread_mutex_lock(&t->lock);
    for (cl_call **at = &t->pending; *at != NULL; at = &(*at)->next_pending) {
        if (id == 0 || (*at)->stream_id == id) {
            found = *at;
            *at = found->next_pending;
            break;
        }
    }
    (void)pthread_mutex_unlock(&t->lock);
    return found;
}

bool cl_stream_forget(cl_tube *t, cl_call *call)
{
    return take(t, call->stream_id) != NULL;
}

static const char *kind_name(const cl_call *call)
{
    return call->kind == CL_LOOKUP ? "Lookup" : call->kind == CL_PUSH ? "Push" : "Commit";
}

static bool has_body_of(const px_stream_reply *got, const cl_call *call)
{
    return call->kind == CL_LOOKUP ? got->lookup != NULL
           : call->kind == CL_PUSH ? got->push != NULL
                                   : got->commit != NULL;
}

static void deliver(cl_tube *t, cl_call *call, px_stream_reply *got, bd_arena *arena, bd_chain *msg)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_OK;
    if (got->status != 0) {
        rc = bd_status_known(got->status);
        rc = rc < 0 ? rc : BD_E_INTERNAL;
        (void)bd_err_set(&err, rc, "%s %s: %s", t->link->name, kind_name(call),
                         got->text != NULL ? got->text : bd_status_text(rc));
    } else if (!has_body_of(got, call)) {
        rc = bd_err_set(&err, BD_E_CORRUPT, "%s %s: answer without a body", t->link->name,
                        kind_name(call));
    }
    cl_call_arrive(call, rc, &err, msg, arena, got);
}

static void on_message(void *user, bd_chain *msg)
{
    cl_tube *t = user;
    bd_arena arena;
    px_stream_reply got;
    bd_err err = BD_ERR_INIT;
    bd_arena_init(&arena);
    if (px_decode_stream_reply(msg, NULL, &arena, &got, &err) == BD_OK) {
        cl_call *call = take(t, got.id != 0 ? got.id : UINT64_MAX);
        if (call != NULL) {
            deliver(t, call, &got, &arena, msg);
        }
    } else {
        rpc_stream_cancel(t->stream); /* whose answer it was is unknown: all are asked again */
    }
    bd_arena_deinit(&arena);
}

/* The stream broke: what the server says about a whole stream (no such method, not allowed) counts,
 * everything else may pass. */
static void on_close(void *user, bd_status rc, const bd_err *why)
{
    cl_tube *t = user;
    bd_err err = BD_ERR_INIT;
    bd_status code = rc == BD_E_DENIED || rc == BD_E_UNAUTHENTICATED || rc == BD_E_UNSUPPORTED
                         ? rc
                         : BD_E_UNAVAILABLE;
    if (rc == BD_OK) {
        (void)bd_err_set(&err, code, "%s: the server ended the stream", t->link->name);
    } else {
        (void)bd_err_set(&err, code, "%s", bd_err_text(why)); /* names the channel itself */
    }
    (void)pthread_mutex_lock(&t->lock);
    t->is_closed = true; /* nothing is added from here on */
    (void)pthread_mutex_unlock(&t->lock);
    for (cl_call *call = take(t, 0); call != NULL; call = take(t, 0)) {
        cl_call_arrive(call, code, &err, NULL, NULL, NULL);
    }
    cl_tube_unref(t);
}

static bd_status tube_open(cl_link *link, cl_tube **out, bd_err *err)
{
    cl_tube *t = bd_calloc(1, sizeof *t);
    if (t == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "%s: stream", link->name);
        return BD_E_NOMEM;
    }
    atomic_init(&t->refs, 2); /* the lane's and the stream's */
    t->link = link;
    (void)pthread_mutex_init(&t->lock, NULL);
    rpc_stream_events ev = {.on_message = on_message, .on_close = on_close, .user = t};
    bd_status rc = rpc_stream_open(link->channel, CL_SERVICE "Stream", &ev, &t->stream, err);
    if (rc != BD_OK) { /* on_close will not run */
        cl_tube_unref(t);
        cl_tube_unref(t);
        return rc;
    }
    *out = t;
    return BD_OK;
}

static bd_status encode(cl_call *call, bd_chain *out, bd_err *err)
{
    px_stream_request req = {.id = call->stream_id};
    switch (call->kind) {
    case CL_LOOKUP:
        req.lookup = &call->body.lookup;
        break;
    case CL_PUSH:
        req.push = &call->body.push;
        break;
    default:
        req.commit = &call->body.commit;
        break;
    }
    return px_encode_stream_request(&req, out, err);
}

/* Puts the call into the tube unless it has closed. */
static bool enter(cl_tube *t, cl_call *call)
{
    (void)pthread_mutex_lock(&t->lock);
    bool open = !t->is_closed;
    if (open) {
        call->next_pending = t->pending;
        t->pending = call;
    }
    (void)pthread_mutex_unlock(&t->lock);
    return open;
}

static bool is_closed(cl_tube *t)
{
    (void)pthread_mutex_lock(&t->lock);
    bool closed = t->is_closed;
    (void)pthread_mutex_unlock(&t->lock);
    return closed;
}

bd_status cl_stream_send(cl_lane *lane, cl_link *link, cl_call *call, bd_err *err)
{
    bd_chain bytes = {0};
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&lane->send_lock);
    if (lane->tube != NULL && is_closed(lane->tube)) {
        cl_tube_unref(lane->tube);
        lane->tube = NULL;
    }
    if (lane->tube == NULL) {
        rc = tube_open(link, &lane->tube, err);
    }
    if (rc != BD_OK) {
        goto out;
    }
    cl_tube *t = lane->tube;
    call->stream_id = ++t->last_id;
    rc = encode(call, &bytes, err);
    if (rc != BD_OK) {
        goto out;
    }
    call->tube = tube_ref(t);
    if (!enter(t, call)) {
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "%s: stream closed", link->name);
        goto out;
    }
    rc = rpc_stream_send(t->stream, &bytes, err);
    if (rc != BD_OK && !cl_stream_forget(t, call)) {
        rc = BD_OK; /* on_close has it: it arrives from there */
    } else if (rc == BD_E_STATE) {
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "%s: stream closed", link->name);
    }
out:
    (void)pthread_mutex_unlock(&lane->send_lock);
    bd_chain_deinit(&bytes);
    return rc;
}

void cl_lane_init(cl_lane *lane)
{
    *lane = (cl_lane){0};
    (void)pthread_mutex_init(&lane->send_lock, NULL);
}

void cl_lane_cut(cl_lane *lane)
{
    (void)pthread_mutex_lock(&lane->send_lock);
    if (lane->tube != NULL) {
        rpc_stream_cancel(lane->tube->stream);
    }
    (void)pthread_mutex_unlock(&lane->send_lock);
}

void cl_lane_deinit(cl_lane *lane)
{
    cl_tube_unref(lane->tube);
    lane->tube = NULL;
    (void)pthread_mutex_destroy(&lane->send_lock);
}
