/* rpc/rpc_grpc_int.h - the gRPC C core transport: queues, tags, bytes.
 *
 * Layer:   rpc, private to rpc_grpc_*.c. Made for gRPC core 1.51.
 * Threads: each completion queue always has threads inside `next` (gRPC makes progress only there).
 *          An event runs its tag's function on that thread.
 * Tags:    every batch has one gr_tag, embedded in the object that owns all out-parameters of the
 *          batch, and that object lives until the event. gr_tag_publish before each start.
 * Ends:    env_free waits until no channel and no server is left (n_live), so no batch can start on
 *          a queue that is shut.
 */
#ifndef RPC_GRPC_INT_H
#define RPC_GRPC_INT_H

#include "base/clock.h"

#include "rpc/rpc_int.h"
#include "rpc/rpc_pool.h"
#include "rpc/rpc_timer.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#define GR_MAX_QUEUES        16
#define GR_THREADS_PER_QUEUE 16
/* A client pings when it has heard nothing for so long. A ping, or bytes that TCP cannot deliver,
 * are waited for so long: then the host is gone (gRPC sets TCP_USER_TIMEOUT to it). */
#define GR_KEEPALIVE_MS      10000
#define GR_KEEPALIVE_WAIT_MS 5000
#define GR_PING_MIN_MS       5000 /* the server's limit, below the client's interval */
#define GR_DNS_WAIT_MS       3000 /* gRPC's 120 s let one lost packet keep a server's old address */
#define GR_FRAME_BYTES       (1 << 20)
#define GR_HANDSHAKE_MS      10000 /* TLS and HTTP/2 greetings of a new connection */

typedef struct gr_tag {
    void (*fn)(struct gr_tag *tag, bool ok);
    _Atomic uint32_t published; /* hands the owner's fields to the thread that takes the event */
} gr_tag;

static inline void gr_tag_publish(gr_tag *t)
{
    atomic_fetch_add_explicit(&t->published, 1, memory_order_release);
}

typedef struct gr_env gr_env;

typedef struct gr_queue {
    gr_env *env;
    grpc_completion_queue *core;
    pthread_t threads[GR_THREADS_PER_QUEUE];
    int n_started;
} gr_queue;

struct gr_env {
    rpc_env base;
    int n_queues, n_threads; /* threads per queue */
    int64_t spin_ns;
    gr_queue queues[GR_MAX_QUEUES];
    _Atomic uint32_t next_queue;
    rpc_pool *pool;
    rpc_timer *timer;
    pthread_mutex_t lock; /* guards n_live */
    pthread_cond_t none_left;
    int n_live; /* channels and servers */
};

extern const rpc_transport gr_transport;

void gr_env_enter(gr_env *env); /* one more channel or server */
void gr_env_leave(gr_env *env);
grpc_completion_queue *gr_env_queue(gr_env *env); /* the next one, round robin */
/* From here failed handshakes of servers are counted. */
void gr_watch_handshakes(void);

/* ---- bytes (rpc_grpc_bytes.c) ---- */
/* Shares the chain's buffers with gRPC, no copy but for small pieces. NULL: no memory. */
grpc_byte_buffer *gr_bytes_from_chain(const bd_chain *c);
/* Moves the message into out (empty) without copying but for inlined slices; b stays to destroy. */
bd_status gr_bytes_to_chain(grpc_byte_buffer *b, bd_chain *out) BD_MUST_CHECK;

/* ---- credentials (rpc_grpc_tls.c) ---- */
/* What a server's handshakes have been given. Outlives the core server. */
typedef struct gr_tls_feed {
    rpc_security *security; /* borrowed from the env */
    _Atomic uint64_t handed;
} gr_tls_feed;

/* Plain text without certificates. Released by the caller. */
grpc_channel_credentials *gr_channel_creds(const rpc_certs *c);
grpc_server_credentials *gr_server_creds(gr_tls_feed *f);
/* The call's `authorization` (etcd: `token`): 0 or 1 entry, which lives until gr_auth_release. */
size_t gr_auth_fill(rpc_channel *ch, grpc_metadata *md);
void gr_auth_release(grpc_metadata *md, size_t n);
const grpc_metadata *gr_metadata_find(const grpc_metadata_array *a, const char *key);

/* ---- channel and unary calls (rpc_grpc_channel.c) ---- */
/* A channel of the core; a renewed certificate makes another one. Shared by the channel and, under
 * TLS, each call on it. */
typedef struct gr_core gr_core;
void gr_core_unref(gr_core *core); /* NULL is fine */

/* Lies behind rpc_call: one try's batch with all its out-parameters. */
typedef struct gr_try {
    gr_tag tag;
    rpc_call *owner;
    grpc_call *call; /* under owner->lock: NULL once the event has come */
    gr_core *core;   /* shared; NULL without TLS */
    grpc_metadata auth;
    size_t n_auth;
    grpc_byte_buffer *send, *recv;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
} gr_try;

bd_status gr_channel_new(rpc_env *env, const char *target, const rpc_channel_options *opt,
                         rpc_channel **out, bd_err *err);
void gr_channel_destroy(rpc_channel *base);
/* *core: to be released after the call; NULL without TLS. */
grpc_call *gr_channel_call(rpc_channel *base, const char *method, gpr_timespec deadline,
                           gr_core **core);
bd_status gr_try_start(rpc_call *c, bd_err *err);
void gr_try_cancel(rpc_call *c);
/* Code and text of a finished call; BD_OK leaves err alone. own_cancel: this side cancelled it. */
bd_status gr_status_read(grpc_status_code code, grpc_slice details,
                         const grpc_metadata_array *trailing, bool own_cancel, bd_err *err);

/* What a server sends with a failure: lives in the op's owner until the event. */
typedef struct gr_failure {
    grpc_status_code code;
    grpc_slice details;
    grpc_metadata trailer;
} gr_failure;

void gr_failure_init(gr_failure *f, bd_status code, const char *text);
void gr_failure_deinit(gr_failure *f);
/* Fills a SEND_STATUS_FROM_SERVER op; f NULL: success. */
void gr_op_status(grpc_op *op, gr_failure *f);

/* ---- streams (rpc_grpc_stream.c) ---- */
typedef struct gr_server gr_server;

bd_status gr_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                         rpc_stream **out, bd_err *err);
bd_status gr_stream_send(rpc_stream *base, bd_chain *msg, bd_err *err);
void gr_stream_finish(rpc_stream *base);
void gr_stream_cancel(rpc_stream *base);
void gr_stream_destroy(rpc_stream *base);
/* What the gate says of a call that has come. */
typedef struct gr_visit {
    rpc_scope scope; /* of its token */
    rpc_peer *peer;  /* charged (unary: with n_bytes); NULL: limits do not count it */
    size_t n_bytes;  /* of a unary request */
    bd_err refusal;  /* code BD_OK: come in */
} gr_visit;

/* Takes over an accepted call, also one that is refused. */
void gr_stream_accept(gr_server *srv, const rpc_method *m, grpc_call *call, gr_visit *visit);
/* Something waits to be sent. */
bool gr_stream_is_busy(rpc_stream *base);

/* ---- server (rpc_grpc_server.c, rpc_grpc_req.c) ---- */
bd_status gr_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out, bd_err *err);
bd_status gr_server_start(rpc_server *s, bd_err *err);
int gr_server_port(const rpc_server *s);
void gr_server_stop(rpc_server *s, int64_t grace_ms);
void gr_server_destroy(rpc_server *s);
void gr_server_enter_stream(gr_server *srv, rpc_stream *s);
void gr_server_leave_stream(gr_server *srv, rpc_stream *s);
/* A request is over: one less open, and an arm that waited for that is set again. */
void gr_server_req_gone(gr_server *srv);
gr_env *gr_server_env(gr_server *srv);
rpc_peers *gr_server_peers(gr_server *srv);
rpc_server *gr_server_base(gr_server *srv);

/* A unary request: takes over call and payload, also one that is refused. */
void gr_req_begin(gr_server *srv, const rpc_method *m, grpc_call *call, gpr_timespec deadline,
                  grpc_byte_buffer *payload, const gr_visit *visit);
bool gr_req_cancelled(rpc_req *base);
int64_t gr_req_ms_left(rpc_req *base);
void gr_req_reply(rpc_req *base, bd_chain *reply);
void gr_req_fail(rpc_req *base, bd_status code, const char *text);

#endif
