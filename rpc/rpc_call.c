/* A unary call: its deadline, its tries and its end. The transport knows only single tries. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_int.h"

#include <inttypes.h>
#include <string.h>

#define BACKOFF_FIRST_NS (20 * BD_NS_PER_MS)
#define BACKOFF_MAX_NS   (500 * BD_NS_PER_MS)

static void call_unref(rpc_call *c)
{
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    rpc_channel *ch = c->ch;
    bd_chain_deinit(&c->request);
    (void)pthread_mutex_destroy(&c->lock);
    bd_free(c);
    rpc_channel_unref(ch);
}

void rpc_call_unref(rpc_call *call)
{
    if (call != NULL) {
        call_unref(call);
    }
}

static bool enter_channel(rpc_channel *ch, rpc_call *c)
{
    (void)pthread_mutex_lock(&ch->lock);
    bool open = !ch->closed;
    if (open) {
        c->next = ch->calls;
        if (c->next != NULL) {
            c->next->prev = c;
        }
        ch->calls = c;
    }
    (void)pthread_mutex_unlock(&ch->lock);
    return open;
}

static void leave_channel(rpc_call *c)
{
    rpc_channel *ch = c->ch;
    (void)pthread_mutex_lock(&ch->lock);
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        ch->calls = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    if (ch->idle != NULL && ch->calls == NULL && ch->streams == NULL) {
        rpc_wait_post(ch->idle);
    }
    (void)pthread_mutex_unlock(&ch->lock);
}

/* The call is over: tell the user, then let the channel go. */
static void finish(rpc_call *c, bd_status rc, bd_chain *reply, bd_err *err)
{
    if (rc != BD_OK) {
        err->code = rc;
        (void)bd_err_wrap(err, "%s %s", c->ch->name, c->method);
    }
    rpc_stats_add(&c->stats->received_bytes, reply->n_bytes);
    rpc_stats_call(c->stats, rc,
                   c->ch->t->now_ns(c->ch->env) - (c->deadline_ns - c->deadline_ms * BD_NS_PER_MS));
    c->done(c->user, rc, reply, err);
    bd_chain_deinit(reply);
    leave_channel(c);
    call_unref(c);
}

static void fail(rpc_call *c, bd_err *err)
{
    bd_chain none = {0};
    finish(c, err->code, &none, err);
}

/* 20 ms, doubling to 500 ms, each minus up to half: callers that failed together spread out. */
static int64_t backoff_ns(const rpc_call *c)
{
    int64_t full = BACKOFF_FIRST_NS;
    for (uint32_t i = 1; i < c->n_tries && full < BACKOFF_MAX_NS; i++) {
        full *= 2;
    }
    full = full < BACKOFF_MAX_NS ? full : BACKOFF_MAX_NS;
    uint64_t mixed = bd_mix64(bd_mix64((uint64_t)c->deadline_ns + c->salt) + c->n_tries);
    return full - (int64_t)(mixed % (uint64_t)(full / 2));
}

static bd_status start_try_locked(rpc_call *c, bd_err *err)
{
    c->state = RPC_CALL_TRYING;
    c->n_tries++;
    return c->ch->t->try_start(c, err);
}

/* Back-off is over, or the call was cancelled in it. Holds its own reference. */
static void on_backoff_end(void *user)
{
    rpc_call *c = user;
    bd_err err = BD_ERR_INIT;
    bool failed = false;
    (void)pthread_mutex_lock(&c->lock);
    if (c->state == RPC_CALL_BACKOFF) {
        if (c->cancelled) {
            failed = true;
            (void)bd_err_set(&err, BD_E_CANCELLED, "cancelled by the caller");
        } else {
            failed = start_try_locked(c, &err) != BD_OK;
        }
        c->state = failed ? RPC_CALL_DONE : c->state;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (failed) {
        fail(c, &err);
    }
    call_unref(c);
}

/* c->lock held, state BACKOFF. */
static bd_status wake_after(rpc_call *c, int64_t delay_ns)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    bd_status rc = c->ch->t->after(c->ch->env, delay_ns, on_backoff_end, c);
    if (rc != BD_OK) {
        atomic_fetch_sub_explicit(&c->refs, 1, memory_order_relaxed);
    }
    return rc;
}

/* True: another try follows. */
static bool try_again_locked(rpc_call *c, const bd_err *err)
{
    if (!c->idempotent || c->cancelled || err->code != BD_E_UNAVAILABLE) {
        return false;
    }
    int64_t wait_ns = backoff_ns(c);
    if (c->ch->t->now_ns(c->ch->env) + wait_ns >= c->deadline_ns) {
        return false;
    }
    c->last = *err;
    c->state = RPC_CALL_BACKOFF;
    return wake_after(c, wait_ns) == BD_OK;
}

static void describe_end_locked(const rpc_call *c, bd_err *err)
{
    /* A server may answer E_TIMEOUT too, with a text of its own. */
    bool late = c->ch->t->now_ns(c->ch->env) >= c->deadline_ns - BD_NS_PER_MS;
    if (c->cancelled) {
        (void)bd_err_set(err, BD_E_CANCELLED, "cancelled by the caller");
    } else if (err->code == BD_E_TIMEOUT && late && c->n_tries > 1) {
        (void)bd_err_set(err, BD_E_TIMEOUT,
                         "no answer within %" PRId64 " ms, %u tries (before: %s)", c->deadline_ms,
                         c->n_tries, bd_err_text(&c->last));
    } else if (err->code == BD_E_TIMEOUT && late) {
        (void)bd_err_set(err, BD_E_TIMEOUT, "no answer within %" PRId64 " ms (%s)", c->deadline_ms,
                         bd_err_text(err));
    } else if (c->n_tries > 1) {
        (void)bd_err_wrap(err, "after %u tries in %" PRId64 " ms", c->n_tries, c->deadline_ms);
    }
}

void rpc_call_try_done(rpc_call *c, bd_status rc, bd_chain *reply, const bd_err *err)
{
    bd_err end = BD_ERR_INIT;
    bool again = false;
    (void)pthread_mutex_lock(&c->lock);
    if (rc != BD_OK) {
        end = *err;
        end.code = rc;
        again = try_again_locked(c, &end);
        if (!again) {
            describe_end_locked(c, &end);
        }
    }
    if (!again) {
        c->state = RPC_CALL_DONE;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (!again) {
        finish(c, rc == BD_OK ? BD_OK : end.code, reply, &end);
    }
}

static rpc_call *call_new(rpc_channel *ch, const char *method, const rpc_call_options *opt,
                          rpc_done_fn done, void *user)
{
    size_t n_method = strlen(method) + 1;
    rpc_call *c = bd_alloc(sizeof *c + ch->t->try_bytes + n_method);
    if (c == NULL) {
        return NULL;
    }
    memset(c, 0, offsetof(rpc_call, last));
    c->last.code = BD_OK;
    c->last.text[0] = '\0';
    c->method = memcpy(c->try_space + ch->t->try_bytes, method, n_method);
    (void)pthread_mutex_init(&c->lock, NULL);
    atomic_init(&c->refs, 1);
    c->ch = ch;
    c->salt = atomic_fetch_add_explicit(&ch->n_calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&ch->refs, 1, memory_order_relaxed);
    c->deadline_ms = opt->deadline_ms;
    c->deadline_ns = ch->t->now_ns(ch->env) + opt->deadline_ms * BD_NS_PER_MS;
    c->idempotent = opt->idempotent;
    c->stats = rpc_stats_of(RPC_CLIENT_SIDE, method);
    c->done = done;
    c->user = user;
    return c;
}

bd_status rpc_call_start(rpc_channel *ch, const char *method, bd_chain *request,
                         const rpc_call_options *opt, rpc_done_fn done, void *user, rpc_call **out,
                         bd_err *err)
{
    BD_ASSERT(opt->deadline_ms > 0);
    rpc_call *c = call_new(ch, method, opt, done, user);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s %s: out of memory", ch->name, method);
    }
    if (!enter_channel(ch, c)) {
        call_unref(c);
        return bd_err_set(err, BD_E_STATE, "%s %s: the channel is closed", ch->name, method);
    }
    rpc_stats_add(&c->stats->sent_bytes, request->n_bytes);
    bd_chain_move(&c->request, request);
    if (out != NULL) {
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
        *out = c;
    }
    (void)pthread_mutex_lock(&c->lock);
    bd_status rc = start_try_locked(c, err);
    (void)pthread_mutex_unlock(&c->lock);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "%s %s", ch->name, method);
        bd_chain_move(request, &c->request); /* not started: the caller still owns it */
        if (out != NULL) {
            *out = NULL;
            call_unref(c);
        }
        leave_channel(c);
        call_unref(c);
    }
    return rc;
}

void rpc_call_cancel(rpc_call *c)
{
    (void)pthread_mutex_lock(&c->lock);
    if (!c->cancelled && c->state != RPC_CALL_DONE) {
        c->cancelled = true;
        if (c->state == RPC_CALL_TRYING) {
            c->ch->t->try_cancel(c);
        } else {
            /* End the wait now; without memory it ends by itself within 500 ms. */
            (void)wake_after(c, 0);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
}

typedef struct sync_call {
    rpc_wait wait;
    bd_chain *reply;
    bd_err *err;
    bd_status rc;
} sync_call;

static void on_sync_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    sync_call *s = user;
    s->rc = rc;
    if (rc == BD_OK) {
        bd_chain_move(s->reply, reply);
    } else if (s->err != NULL) {
        *s->err = *err;
    }
    rpc_wait_post(&s->wait);
}

bd_status rpc_call_sync(rpc_channel *ch, const char *method, bd_chain *request,
                        const rpc_call_options *opt, bd_chain *reply, bd_err *err)
{
    sync_call s = {.reply = reply, .err = err, .rc = BD_E_INTERNAL};
    rpc_wait_init(&s.wait);
    bd_status rc = rpc_call_start(ch, method, request, opt, on_sync_done, &s, NULL, err);
    if (rc == BD_OK) {
        ch->t->block(ch->env, &s.wait);
        rc = s.rc;
    }
    rpc_wait_deinit(&s.wait);
    return rc;
}
