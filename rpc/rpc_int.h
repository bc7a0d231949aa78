/* rpc/rpc_int.h - what the transports (rpc_grpc_*.c, rpc_mem.c) and the common part share.
 *
 * Layer:     rpc, private.
 * Split:     rpc.c dispatches the public functions to the transport's table; rpc_call.c owns a
 *            unary call (deadline, retries, cancel) and asks the transport for single tries.
 * Ownership: a channel is shared by its handle and its open calls and streams; a call by its handle
 *            (if any), its progress, and a waiting back-off timer.
 * Locks:     channel lock before call lock; neither is held over a callback.
 */
#ifndef RPC_INT_H
#define RPC_INT_H

#include "base/err.h"

#include "rpc/rpc.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_security_int.h"
#include "rpc/rpc_stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#define RPC_SEND_QUEUE_BYTES   ((size_t)64 << 20) /* waiting messages of one stream */
#define RPC_SERVER_MAX_BYTES   ((size_t)16 << 20)
#define RPC_CLIENT_MAX_BYTES   ((size_t)256 << 20)
#define RPC_SERVER_MAX_REQS    1024
#define RPC_CONNECT_TIMEOUT_MS 5000
#define RPC_AUTH_KEY           "authorization" /* metadata */
#define RPC_ETCD_AUTH_KEY      "token"

/* A one-shot event one thread waits for. */
typedef struct rpc_wait {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
} rpc_wait;

void rpc_wait_init(rpc_wait *w);
void rpc_wait_deinit(rpc_wait *w);
void rpc_wait_post(rpc_wait *w);
void rpc_wait_block(rpc_wait *w); /* on the condition variable; tells the handler pool */

typedef struct rpc_transport rpc_transport;
typedef struct rpc_method rpc_method;

struct rpc_env {
    const rpc_transport *t;
    rpc_security *security; /* owned, freed by the transport's env_free; NULL: none */
};

struct rpc_channel {
    const rpc_transport *t;
    rpc_env *env;
    char *name; /* owned */
    /* Fixed; borrowed from the env: certificates for this peer. NULL: none. */
    rpc_security *security;
    bool to_etcd; /* fixed */
    _Atomic int refs;
    _Atomic uint64_t n_calls; /* so far */
    pthread_mutex_t lock;     /* guards the fields below */
    bool closed;
    rpc_own_token *token; /* shared; of a channel to etcd; NULL: none */
    rpc_call *calls;      /* open ones */
    rpc_stream *streams;  /* open ones */
    rpc_wait *idle;       /* posted when the last open one goes; set by rpc_channel_free */
};

typedef enum rpc_call_state { RPC_CALL_TRYING, RPC_CALL_BACKOFF, RPC_CALL_DONE } rpc_call_state;

struct rpc_call {
    rpc_channel *ch; /* shared */
    _Atomic int refs;
    pthread_mutex_t lock; /* guards state, cancelled, and the transport's cancel handle */
    rpc_call_state state;
    bool cancelled;
    bool idempotent;
    uint32_t n_tries;
    uint64_t salt;       /* of the back-off: not the address, so that virtual runs repeat */
    int64_t deadline_ms; /* as asked for, for texts */
    int64_t deadline_ns; /* on the transport's clock */
    const char *method;  /* in the same block */
    bd_chain request;    /* kept for further tries */
    rpc_done_fn done;
    void *user;
    rpc_stats *stats;
    rpc_call *prev, *next; /* channel's list */
    bd_err last;           /* why the last try failed */
    _Alignas(max_align_t) unsigned char try_space[];
};

/* Head of each transport's stream. */
struct rpc_stream {
    const rpc_transport *t;
    _Atomic int refs;
    rpc_channel *ch; /* client side: shared; server side: NULL */
    rpc_scope scope; /* server side: of the caller's token */
    rpc_stats *stats;
    int64_t start_ns; /* on the transport's clock */
    rpc_stream *prev, *next;
};

/* One method of a server. */
struct rpc_method {
    char *path;        /* owned */
    rpc_handler_fn fn; /* unary */
    rpc_stream_handler_fn stream_fn;
    void *user;
    bool is_inline;
    rpc_scope scope; /* that callers need */
    rpc_stats *stats;
};

typedef struct rpc_health rpc_health;

/* Head of each transport's server. */
struct rpc_server {
    const rpc_transport *t;
    rpc_env *env;
    rpc_method *methods; /* owned, fixed once started */
    size_t n_methods, cap_methods;
    bool started;
    rpc_health *health; /* owned */
    rpc_peers *peers;   /* owned; NULL: no limits */
};

struct rpc_req {
    const rpc_transport *t;
    const rpc_method *method;
    bd_chain body;
    rpc_server *server; /* while it is counted */
    rpc_scope scope;    /* of the caller's token */
    rpc_stats *stats;
    int64_t start_ns; /* on the transport's clock */
    rpc_peer *peer;   /* charged with n_charged; NULL: no limits */
    size_t n_charged;
    _Atomic bool ended; /* replied or failed: the second one is a bug of the handler */
};

struct rpc_transport {
    size_t try_bytes; /* room a try needs behind rpc_call */
    void (*env_free)(rpc_env *env);
    int64_t (*now_ns)(const rpc_env *env);
    /* Runs fn(user) once on an env thread, delay_ns from now; at env_free at the latest. */
    bd_status (*after)(rpc_env *env, int64_t delay_ns, void (*fn)(void *user), void *user);
    /* Returns once w is posted; memory: by moving the network on. */
    void (*block)(rpc_env *env, rpc_wait *w);
    bool (*on_env_thread)(const rpc_env *env);

    bd_status (*channel_new)(rpc_env *env, const char *target, const rpc_channel_options *opt,
                             rpc_channel **out, bd_err *err);
    void (*channel_destroy)(rpc_channel *ch); /* the last reference is gone */
    /* One try of c (request, method, deadline_ns). BD_OK: rpc_call_try_done follows, once. Called
     * with c->lock held, so that try_cancel (also under it) sees a whole try. */
    bd_status (*try_start)(rpc_call *c, bd_err *err);
    void (*try_cancel)(rpc_call *c);

    bd_status (*stream_open)(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                             rpc_stream **out, bd_err *err);
    bd_status (*stream_send)(rpc_stream *s, bd_chain *msg, bd_err *err);
    void (*stream_finish)(rpc_stream *s);
    void (*stream_cancel)(rpc_stream *s);
    void (*stream_destroy)(rpc_stream *s);

    bd_status (*server_new)(rpc_env *env, const rpc_server_options *opt, rpc_server **out,
                            bd_err *err);
    bd_status (*server_start)(rpc_server *s, bd_err *err);
    int (*server_port)(const rpc_server *s);
    void (*server_stop)(rpc_server *s, int64_t grace_ms);
    void (*server_destroy)(rpc_server *s);

    bool (*req_cancelled)(rpc_req *req);
    int64_t (*req_ms_left)(rpc_req *req);
    void (*req_reply)(rpc_req *req, bd_chain *reply);
    void (*req_fail)(rpc_req *req, bd_status code, const char *text);
};

/* ---- channels (rpc.c) ---- */
/* Fills the head; refs is 1 (the handle). */
bd_status rpc_channel_init(rpc_channel *ch, rpc_env *env, const char *target,
                           const rpc_channel_options *opt);
void rpc_channel_deinit(rpc_channel *ch);
/* What the next call on it carries; NULL: nothing. rpc_own_token_unref. */
rpc_own_token *rpc_channel_token(rpc_channel *ch);
void rpc_channel_unref(rpc_channel *ch);
/* Enters or leaves the list of open streams; enter is false when the channel is closed. */
bool rpc_channel_enter_stream(rpc_channel *ch, rpc_stream *s);
void rpc_channel_leave_stream(rpc_channel *ch, rpc_stream *s);

/* A stream is open; it ends with rpc_stats_call. */
void rpc_stream_count_start(rpc_stream *s, rpc_side side, const char *method, int64_t now_ns);
void rpc_stream_count_message(const rpc_stream *s, size_t n_bytes, bool sent);

/* ---- calls (rpc_call.c) ---- */
/* rc BD_OK: reply is taken over. Else err has code and text of this try. Any env thread. */
void rpc_call_try_done(rpc_call *c, bd_status rc, bd_chain *reply, const bd_err *err);

/* ---- servers (rpc.c) ---- */
bd_status rpc_server_init(rpc_server *s, rpc_env *env, const rpc_limits *limits);
void rpc_server_deinit(rpc_server *s);
/* A request of n_bytes has come: from here it is counted. peer (may be NULL) is charged with them.
 */
void rpc_req_count(rpc_req *req, rpc_server *s, const rpc_method *m, size_t n_bytes,
                   rpc_peer *peer);
/* The answer is about to leave (the server may be gone once it has), or the server goes. */
void rpc_req_count_end(rpc_req *req, bd_status rc, size_t n_bytes);
/* The req's handler, on the current thread. */
void rpc_req_run(rpc_req *req);

/* ---- reflection (rpc_reflection.c) ---- */
bd_status rpc_reflection_register(rpc_server *s) BD_MUST_CHECK;

/* ---- health (rpc_health.c) ---- */
bd_status rpc_health_new(rpc_server *s, rpc_health **out);
void rpc_health_free(rpc_health *h);
void rpc_health_set(rpc_health *h, bool serving);
enum { RPC_HEALTH_MAX_NAMES = 8, RPC_HEALTH_NAME_BYTES = 64 };
bd_status rpc_health_set_named(rpc_health *h, const char *name, bool serving) BD_MUST_CHECK;

#endif
