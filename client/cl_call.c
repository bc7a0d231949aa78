/* Requests in flight. Env threads only put answers down; the waiting thread decides what they mean
 * and sends again, so that all retry logic runs in one place and no callback blocks. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "client/cl_int.h"

#include <inttypes.h>
#include <time.h>

bd_status cl_batch_init(cl_batch *b, cl_client *c, size_t n_calls, bd_err *err)
{
    *b = (cl_batch){.c = c, .n_calls = n_calls};
    b->calls = bd_calloc(n_calls, sizeof *b->calls);
    if (b->calls == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%zu requests", n_calls);
    }
    for (size_t i = 0; i < n_calls; i++) {
        b->calls[i].batch = b;
        bd_arena_init(&b->calls[i].arena);
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&b->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&b->lock, NULL);
    b->is_init = true;
    return BD_OK;
}

static void drop_answer(cl_call *call)
{
    bd_chain_deinit(&call->reply);
    bd_arena_deinit(&call->arena);
    call->is_decoded = false;
}

void cl_batch_deinit(cl_batch *b)
{
    if (!b->is_init) {
        return;
    }
    cl_batch_cancel(b);
    for (size_t i = 0; i < b->n_calls; i++) {
        drop_answer(&b->calls[i]);
        bd_chain_deinit(&b->calls[i].bytes);
    }
    bd_free(b->calls);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    *b = (cl_batch){0};
}

/* What is to be sent now that the call's answer is in; marked as sent, so that the waiter does not
 * take the batch for done. Batch lock held. */
static cl_call *start_then(cl_call *call)
{
    cl_batch *b = call->batch;
    cl_call *then = call->then;
    if (then == NULL || call->rc != BD_OK || b->is_cancelled || then->state != CL_IDLE) {
        return NULL;
    }
    then->state = CL_SENT;
    then->sent_ns = bd_mono_ns();
    b->n_sending++;
    return then;
}

static void send_then(cl_call *then)
{
    cl_batch *b = then->batch;
    cl_call_send(then);
    (void)pthread_mutex_lock(&b->lock);
    b->n_sending--;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

void cl_call_arrive(cl_call *call, bd_status rc, const bd_err *err, bd_chain *reply,
                    bd_arena *arena, const px_stream_reply *got)
{
    cl_batch *b = call->batch;
    bd_err own = BD_ERR_INIT;
    bool is_taken = rc == BD_OK && got != NULL && b->on_take != NULL;
    if (is_taken) {
        rc = b->on_take(b->take_user, call, got, &own);
        err = &own;
    }
    (void)pthread_mutex_lock(&b->lock);
    call->rc = rc;
    call->is_taken = is_taken;
    call->err = (bd_err)BD_ERR_INIT;
    if (rc != BD_OK) {
        (void)bd_err_set(&call->err, rc, "%s", bd_err_text(err));
    } else if (!is_taken) {
        bd_chain_move(&call->reply, reply);
    }
    if (rc == BD_OK && arena != NULL && !is_taken) {
        call->arena = *arena;
        bd_arena_init(arena);
        call->got = *got;
        call->is_decoded = true;
    }
    cl_call *then = start_then(call);
    call->state = CL_ARRIVED;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    if (then != NULL) { /* the batch lives until it is sent: cl_batch_cancel */
        send_then(then);
    }
}

static void on_unary_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    cl_call_arrive(user, rc, err, reply, NULL, NULL);
}

static bd_status send_unary(cl_call *call, bd_err *err)
{
    bd_chain bytes = {0};
    bd_status rc = bd_chain_add_chain(&bytes, &call->bytes);
    if (rc == BD_OK) {
        rpc_call_options opt = {.deadline_ms = call->batch->c->ps_wait_ms};
        rc = rpc_call_start(call->link->channel, call->method, &bytes, &opt, on_unary_done, call,
                            &call->unary, err);
    } else {
        (void)bd_err_set(err, rc, "%s", call->method);
    }
    bd_chain_deinit(&bytes);
    return rc;
}

/* The shard map may have moved on since the request was made: its epoch follows, so that a server
 * that kept the slots takes it. */
static void stamp_epoch(cl_call *call)
{
    cl_map *map = cl_client_map(call->batch->c);
    if (call->kind == CL_LOOKUP) {
        call->body.lookup.map_epoch = map->epoch;
    } else if (call->kind == CL_PUSH) {
        call->body.push.map_epoch = map->epoch;
    }
    cl_map_unref(map);
}

void cl_call_send(cl_call *call)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc;
    cl_link *link = cl_client_link(call->batch->c, call->server_idx);
    stamp_epoch(call);
    (void)pthread_mutex_lock(&call->batch->lock);
    call->link = link;
    call->sent_ns = bd_mono_ns();
    call->state = CL_SENT;
    (void)pthread_mutex_unlock(&call->batch->lock);
    if (call->kind == CL_CONTROL) {
        rc = send_unary(call, &err);
    } else {
        cl_lane *lane = &call->link->lanes[call->kind == CL_LOOKUP ? CL_LANE_LOOKUP : CL_LANE_PUSH];
        rc = cl_stream_send(lane, call->link, call, &err);
    }
    if (rc != BD_OK) {
        cl_call_arrive(call, rc, &err, NULL, NULL, NULL);
    }
}

/* ---- the waiter's side ---- */
/* Asks a sent call to end. It arrives, now or later. Batch lock not held. */
static void call_cancel(cl_call *call)
{
    bd_err err = BD_ERR_INIT;
    if (call->unary != NULL) {
        rpc_call_cancel(call->unary);
    } else if (call->tube != NULL && cl_stream_forget(call->tube, call)) {
        (void)bd_err_set(&err, BD_E_CANCELLED, "given up");
        cl_call_arrive(call, BD_E_CANCELLED, &err, NULL, NULL, NULL);
    }
}

static void release_try(cl_call *call)
{
    if (call->unary != NULL) {
        rpc_call_unref(call->unary);
        call->unary = NULL;
    }
    cl_tube_unref(call->tube);
    call->tube = NULL;
}

void cl_batch_cancel(cl_batch *b)
{
    (void)pthread_mutex_lock(&b->lock);
    b->is_cancelled = true;
    while (b->n_sending > 0) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    (void)pthread_mutex_unlock(&b->lock);
    for (size_t i = 0; i < b->n_calls; i++) {
        cl_call *call = &b->calls[i];
        (void)pthread_mutex_lock(&b->lock);
        bool open = call->state == CL_SENT;
        (void)pthread_mutex_unlock(&b->lock);
        if (open) {
            call_cancel(call);
        }
    }
    for (size_t i = 0; i < b->n_calls; i++) {
        cl_call *call = &b->calls[i];
        (void)pthread_mutex_lock(&b->lock);
        while (call->state == CL_SENT) { /* the transport ends every call it was given */
            (void)pthread_cond_wait(&b->changed, &b->lock);
        }
        if (call->state == CL_ARRIVED || call->state == CL_DUE) {
            call->state = CL_SETTLED;
        }
        (void)pthread_mutex_unlock(&b->lock);
        release_try(call);
        drop_answer(call);
    }
}

void cl_link_down(cl_link *link, int64_t sent_ns, const cl_trouble *t, const bd_err *why)
{
    int64_t now = bd_mono_ns();
    int64_t next = atomic_load(&link->next_log_ns);
    /* A request older than the last answer belongs to the outage that the answer has ended. */
    if (sent_ns > atomic_load(&link->up_ns) && !atomic_load(&link->is_down)) {
        atomic_store(&link->down_since_ns, sent_ns);
        if (!atomic_exchange(&link->is_down, true)) {
            cl_stats_down(link->stats);
        }
    }
    if (now >= next &&
        atomic_compare_exchange_strong(&link->next_log_ns, &next, now + 5 * BD_NS_PER_S)) {
        BD_LOG(WARN, "waiting for a server", "server", link->name, "for_ms",
               (now - t->since_ns) / BD_NS_PER_MS, "why", bd_err_text(why));
    }
}

void cl_link_up(cl_link *link)
{
    if (atomic_load_explicit(&link->is_down, memory_order_relaxed) &&
        atomic_exchange(&link->is_down, false)) {
        int64_t now = bd_mono_ns();
        cl_stats_up(link->stats, now - atomic_load(&link->down_since_ns));
        atomic_store(&link->up_ns, now);
        BD_LOG(INFO, "server answers again", "server", link->name);
    }
}

static bd_status give_up(const cl_call *call, bd_err *err)
{
    int64_t ms = (bd_mono_ns() - call->trouble.since_ns) / BD_NS_PER_MS;
    return bd_err_set(err, BD_E_UNAVAILABLE, "%s: waited %" PRId64 ".%" PRId64 " s: %s",
                      call->link->name, ms / 1000, ms % 1000 / 100, bd_err_text(&call->err));
}

/* After so many failures of a request (about 5 s) a map is looked for that has another address. */
enum { MOVED_EVERY = 16 };

static bd_status refresh(cl_call *call, bd_err *err)
{
    cl_client *c = call->batch->c;
    cl_map *before = cl_client_map(c);
    bd_status rc = cl_map_refresh(c, before->epoch, 1000, err);
    cl_map *after = cl_client_map(c);
    if (rc == BD_OK && !cl_map_same_owners(before, after)) {
        rc = call->kind == CL_CONTROL
                 ? BD_OK
                 : bd_err_set(err, BD_E_MOVED, "slots of %s have moved", call->link->name);
    }
    cl_map_unref(before);
    cl_map_unref(after);
    return rc;
}

/* A try failed: again (BD_OK, state CL_DUE), or the error for good. */
static bd_status handle_failure(cl_call *call, bd_err *err)
{
    cl_client *c = call->batch->c;
    bd_status rc = BD_OK;
    cl_verdict v =
        cl_retry_decide(&call->trouble, call->rc, bd_mono_ns(), c->ps_wait_ms, cl_client_random(c));
    if (v != CL_FAIL && v != CL_GIVE_UP) {
        cl_stats_retry(call->link->stats, call->rc);
    }
    switch (v) {
    case CL_FAIL:
        *err = call->err;
        return call->rc;
    case CL_GIVE_UP:
        return give_up(call, err);
    case CL_REFRESH:
        rc = refresh(call, err);
        break;
    case CL_SEND_PARTS:
        if (call->kind == CL_LOOKUP || call->kind == CL_COMMIT) {
            rc = cl_push_resend(c, call->server_idx, call->after_parts_of, err);
        }
        break;
    case CL_AGAIN:
        cl_link_down(call->link, call->sent_ns, &call->trouble, &call->err);
        if (c->store_apart && call->trouble.n_failures % MOVED_EVERY == 0) {
            rc = refresh(call, err); /* it may have come back at another address */
        }
        break;
    }
    if (rc == BD_OK) {
        call->state = CL_DUE;
    }
    return rc;
}

static bd_status handle_answer(cl_call *call, cl_answer_fn on_answer, void *user, bd_err *err)
{
    bd_status rc = BD_OK;
    cl_link_up(call->link);
    call->trouble = (cl_trouble){0};
    if (on_answer != NULL) {
        rc = on_answer(user, call, err);
    }
    if (rc == BD_OK) {
        call->state = CL_SETTLED;
    }
    return rc;
}

/* A server that takes requests but does not answer: what arrives next counts as the end of trouble
 * that began with the try. */
static void give_up_waiting(cl_call *call)
{
    if (call->trouble.since_ns == 0) {
        call->trouble.since_ns = call->sent_ns;
    }
    call_cancel(call);
}

/* Does what can be done for one call now. *next_ns: when it wants to be looked at again. */
static bd_status step(cl_call *call, cl_answer_fn on_answer, void *user, bool *open,
                      int64_t *next_ns, bd_err *err)
{
    cl_batch *b = call->batch;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&b->lock);
    cl_call_state state = call->state;
    /* One that an env thread is still sending is not looked at more closely. */
    bool is_late = state == CL_SENT && b->n_sending == 0 &&
                   bd_mono_ns() - call->sent_ns > b->c->ps_wait_ms * BD_NS_PER_MS;
    (void)pthread_mutex_unlock(&b->lock);
    if (state == CL_ARRIVED) {
        release_try(call);
        if (call->rc == BD_OK) {
            rc = handle_answer(call, on_answer, user, err);
        } else if (call->is_taken) { /* it came, and is not what was asked for */
            *err = call->err;
            rc = call->rc;
        } else {
            rc = handle_failure(call, err);
        }
        if (call->kind != CL_CONTROL || call->state != CL_SETTLED) {
            drop_answer(call); /* control answers are read after the wait */
        }
        state = call->state;
    }
    if (is_late) {
        give_up_waiting(call);
    }
    if (rc == BD_OK && state == CL_DUE && call->trouble.next_try_ns <= bd_mono_ns()) {
        cl_call_send(call);
        state = CL_SENT;
    }
    if (state == CL_DUE && call->trouble.next_try_ns < *next_ns) {
        *next_ns = call->trouble.next_try_ns;
    }
    *open = state == CL_DUE || state == CL_SENT;
    return rc;
}

static bool any_arrived(const cl_batch *b)
{
    for (size_t i = 0; i < b->n_calls; i++) {
        if (b->calls[i].state == CL_ARRIVED) {
            return true;
        }
    }
    return false;
}

static void wait_for_change(cl_batch *b, int64_t until_ns)
{
    struct timespec ts = {.tv_sec = until_ns / BD_NS_PER_S, .tv_nsec = until_ns % BD_NS_PER_S};
    int timed_out = 0;
    (void)pthread_mutex_lock(&b->lock);
    while (!any_arrived(b) && timed_out == 0) {
        timed_out = pthread_cond_timedwait(&b->changed, &b->lock, &ts);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

bd_status cl_batch_wait(cl_batch *b, cl_answer_fn on_answer, void *user, bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    bd_status rc = BD_OK;
    for (;;) {
        size_t n_open = 0;
        int64_t next_ns = bd_mono_ns() + BD_NS_PER_S;
        for (size_t i = 0; rc == BD_OK && i < b->n_calls; i++) {
            bool open = false;
            rc = step(&b->calls[i], on_answer, user, &open, &next_ns, &local);
            n_open += open ? 1 : 0;
        }
        if (rc != BD_OK || n_open == 0) {
            break;
        }
        wait_for_change(b, next_ns);
    }
    if (rc != BD_OK) {
        cl_batch_cancel(b);
        if (err != NULL) {
            *err = local;
        }
    }
    return rc;
}
