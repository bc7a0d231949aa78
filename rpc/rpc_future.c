/* A future: an rpc_call whose answer waits for its reader. */
#include "base/assert.h"
#include "base/mem.h"

#include "rpc/rpc_int.h"
#include "rpc/rpc_worker.h"

/* References: the reader's, and the call's until its answer. */
struct rpc_future {
    _Atomic int refs;
    rpc_channel *ch; /* shared: for the way to wait */
    rpc_call *call;  /* owned */
    rpc_wait wait;
    pthread_mutex_t lock; /* guards the fields below */
    bool done;
    bd_status rc;
    bd_err err;
    bd_chain reply;
    rpc_done_fn then;
    void *user;
};

void rpc_future_unref(rpc_future *f)
{
    if (f == NULL || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    rpc_call_unref(f->call);
    rpc_channel_unref(f->ch);
    bd_chain_deinit(&f->reply);
    rpc_wait_deinit(&f->wait);
    (void)pthread_mutex_destroy(&f->lock);
    bd_free(f);
}

static void on_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    rpc_future *f = user;
    (void)pthread_mutex_lock(&f->lock);
    f->rc = rc;
    if (rc == BD_OK) {
        bd_chain_move(&f->reply, reply);
    } else {
        f->err = *err;
    }
    f->done = true;
    rpc_done_fn then = f->then;
    (void)pthread_mutex_unlock(&f->lock);
    if (then != NULL) {
        then(f->user, rc, &f->reply, &f->err); /* before the wait ends: it sees what is left */
    }
    rpc_wait_post(&f->wait);
    rpc_future_unref(f);
}

bd_status rpc_future_call(rpc_channel *ch, const char *method, bd_chain *request,
                          const rpc_call_options *opt, rpc_future **out, bd_err *err)
{
    rpc_future *f = bd_calloc(1, sizeof *f);
    if (f == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s %s: out of memory", ch->name, method);
    }
    atomic_init(&f->refs, 2);
    atomic_fetch_add_explicit(&ch->refs, 1, memory_order_relaxed);
    f->ch = ch;
    rpc_wait_init(&f->wait);
    (void)pthread_mutex_init(&f->lock, NULL);
    bd_status rc = rpc_call_start(ch, method, request, opt, on_done, f, &f->call, err);
    if (rc != BD_OK) {
        f->call = NULL;
        atomic_store_explicit(&f->refs, 1, memory_order_relaxed); /* on_done never runs */
        rpc_future_unref(f);
        return rc;
    }
    *out = f;
    return BD_OK;
}

void rpc_future_then(rpc_future *f, rpc_done_fn fn, void *user)
{
    (void)pthread_mutex_lock(&f->lock);
    BD_ASSERT(f->then == NULL);
    f->then = fn;
    f->user = user;
    bool done = f->done;
    (void)pthread_mutex_unlock(&f->lock);
    if (done) {
        fn(user, f->rc, &f->reply, &f->err);
    }
}

bool rpc_future_is_done(rpc_future *f)
{
    (void)pthread_mutex_lock(&f->lock);
    bool done = f->done;
    (void)pthread_mutex_unlock(&f->lock);
    return done;
}

bd_status rpc_future_wait(rpc_future *f, bd_chain *reply, bd_err *err)
{
    f->ch->t->block(f->ch->env, &f->wait);
    (void)pthread_mutex_lock(&f->lock);
    bd_status rc = f->rc;
    if (rc != BD_OK && err != NULL) {
        *err = f->err;
    } else if (rc == BD_OK && reply != NULL) {
        bd_chain_move(reply, &f->reply);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return rc;
}

void rpc_future_cancel(rpc_future *f)
{
    rpc_call_cancel(f->call);
}
