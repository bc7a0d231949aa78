/* rpc/rpc_worker.h - workers that call one another's C functions by name; futures of their answers.
 *
 * Layer:     rpc, public. On rpc.h alone: any transport.
 * Names:     a worker publishes its address in the key-value store under its name; callers look it
 *            up at their first call to it and keep a channel.
 * Functions: handlers of rpc.h under the name `/braid.worker.Functions/<function>`; with tokens,
 *            callers need scope train.
 * Threads:   all functions from any thread. Continuations run like rpc_done_fn: on an env thread,
 * or on the caller's when the answer is there already; they must not block. Failure:   as rpc.h;
 * texts begin with the called worker's name.
 */
#ifndef RPC_WORKER_H
#define RPC_WORKER_H

#include "base/kv.h"

#include "rpc/rpc.h"

/* ---- futures ---- */
typedef struct rpc_future rpc_future;

/* rpc_call_start with its answer kept. *out is released with rpc_future_unref, before or after the
 * answer. */
bd_status rpc_future_call(rpc_channel *ch, const char *method, bd_chain *request,
                          const rpc_call_options *opt, rpc_future **out, bd_err *err) BD_MUST_CHECK;
/* fn runs once, when the answer is there; its reply is borrowed, and still there for the wait
 * unless fn moves it. At most one continuation a future. */
void rpc_future_then(rpc_future *f, rpc_done_fn fn, void *user);
bool rpc_future_is_done(rpc_future *f);
/* Blocks (not on an env thread; handlers may). reply (empty, may be NULL) gets the answer; a second
 * wait finds it empty. */
bd_status rpc_future_wait(rpc_future *f, bd_chain *reply, bd_err *err) BD_MUST_CHECK;
void rpc_future_cancel(rpc_future *f); /* reaches the server, too */
void rpc_future_unref(rpc_future *f);  /* NULL is fine */

/* ---- workers ---- */
typedef struct rpc_worker rpc_worker;

typedef struct rpc_worker_options {
    const char *name;    /* unique in the store; copied */
    const char *group;   /* prefix of the keys, e.g. "job-7"; copied */
    int world;           /* workers that rpc_worker_leave waits for */
    int64_t find_ms;     /* how long a called worker may take to appear, 0: 30,000 */
    bool allow_insecure; /* of the channels */
} rpc_worker_options;

/* env, server and kv are borrowed and outlive it. */
bd_status rpc_worker_new(rpc_env *env, rpc_server *server, bd_kv *kv, const rpc_worker_options *opt,
                         rpc_worker **out, bd_err *err) BD_MUST_CHECK;
/* Before rpc_server_start. BD_E_EXISTS: registered already. */
bd_status rpc_worker_register(rpc_worker *w, const char *function, rpc_handler_fn fn,
                              void *user) BD_MUST_CHECK;
/* After rpc_server_start: others find it at this address. BD_E_EXISTS: the name is taken. */
bd_status rpc_worker_join(rpc_worker *w, const char *address, bd_err *err) BD_MUST_CHECK;
/* Starts a call of another worker's function (or the own). May block until that one has joined. */
bd_status rpc_worker_call(rpc_worker *w, const char *to, const char *function, bd_chain *request,
                          const rpc_call_options *opt, rpc_future **out, bd_err *err) BD_MUST_CHECK;
/* The orderly end where some finish earlier: goes on serving until all `world` workers have called
 * it, so that the slow ones still find the fast ones. BD_E_TIMEOUT says how many are missing. */
bd_status rpc_worker_leave(rpc_worker *w, int64_t timeout_ms, bd_err *err) BD_MUST_CHECK;
/* Open calls of its channels end with BD_E_CANCELLED. The server is stopped by its owner. */
void rpc_worker_free(rpc_worker *w);

#endif
