/* rpc/rpc.h - calls and servers over gRPC, or over memory with virtual time.
 *
 * Layer:     rpc. The only folder that includes grpc/: everything above speaks this header.
 * Messages:  bytes as bd_chain (base/buf.h); encoding is proto/'s business. Sending does not copy;
 *            received chains point into the transport's own slices.
 * Threads:   every function from any thread. Callbacks run on the env's threads: they must not
 *            block (hand work over), but may start calls, reply, and cancel. Server handlers run on
 *            the env's pool and may block in nested calls (rpc_server_register_inline: not).
 * Errors:    a server answers with a bd_status and one line of text; both arrive at the caller
 *            unchanged (trailing metadata `braid-status`), whatever the transport.
 * Deadlines: every unary call has one. A reply that comes after it changes nothing.
 * Security:  rpc_security.h: TLS, mutual TLS and tokens, one set for each env. Without TLS plain
 *            text is allowed on loopback and unix sockets only, unless allow_insecure says
 *            otherwise.
 * Read next: rpc_int.h (the transport table), rpc_call.c (retries), rpc_grpc_*.c (the real
 *            transport), rpc_mem.h (the fake), rpc_autograd.h.
 */
#ifndef RPC_H
#define RPC_H

#include "base/buf.h"
#include "base/err.h"

#include "rpc/rpc_security.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct rpc_env rpc_env;         /* queues and threads, one per process (or per test) */
typedef struct rpc_channel rpc_channel; /* to one peer; reconnects by itself */
typedef struct rpc_call rpc_call;
typedef struct rpc_stream rpc_stream;
typedef struct rpc_server rpc_server;
typedef struct rpc_req rpc_req; /* one unary request being served */

typedef struct rpc_env_options {
    int n_queues;  /* completion queues, 0: min(cores / 2, 4), at least 1 */
    int n_threads; /* threads per queue, 0: 1 (2 hand the polling to each other: 10 % more CPU a
                      MiB of bulk, measured) */
    int n_workers; /* threads of the pool that runs server handlers, 0: max(4, cores); grows when
                      all of them wait in nested calls, so nesting cannot deadlock */
    int spin_us;   /* queue threads poll this long without sleeping after an event; 0 (default): no
                      spinning. About 50 pays only while the host's threads fit its cores */
    const rpc_security_options *security; /* borrowed during the call; NULL: none */
} rpc_env_options;

/* First thing in the main of a program, before any thread (it sets an environment variable): a
 * reader of large messages then sleeps until a frame is in instead of waking for every 64 KiB of it
 * (SO_RCVLOWAT; at 1 MiB 10 to 20 % more messages a second). A GRPC_EXPERIMENTS that the user has
 * set stays. Without it all works as well. */
void rpc_tune_process(void);
/* The gRPC transport. */
bd_status rpc_env_new(const rpc_env_options *opt, rpc_env **out, bd_err *err) BD_MUST_CHECK;
/* All channels and servers must be gone. Joins the threads. */
void rpc_env_free(rpc_env *env);

/* ---- client side ---- */
typedef struct rpc_channel_options {
    int64_t connect_timeout_ms; /* how long one attempt may take, 0: 5000 */
    const char *name;           /* for logs and errors, e.g. "ps-1"; copied; NULL: the target */
    size_t max_message_bytes;   /* largest reply, 0: 256 MiB */
    bool allow_insecure;        /* without TLS: plain text to a peer that is not on this host */
    /* The peer is not Braid but etcd: it is shown etcd's certificates (rpc_security.h), never this
     * process's token; metadata "token" is what rpc_channel_set_token gave. */
    bool to_etcd;
} rpc_channel_options;

/* target: "host:port" or "unix:/path". Does not connect yet. */
bd_status rpc_channel_new(rpc_env *env, const char *target, const rpc_channel_options *opt,
                          rpc_channel **out, bd_err *err) BD_MUST_CHECK;
/* Of a channel to etcd: goes with the calls and streams started from now on. "": none. */
bd_status rpc_channel_set_token(rpc_channel *ch, const char *token, bd_err *err) BD_MUST_CHECK;
/* Open calls and streams on it end with BD_E_CANCELLED first; waits for their callbacks, except
 * when called on an env thread (from a callback). */
void rpc_channel_free(rpc_channel *ch);

typedef struct rpc_call_options {
    int64_t deadline_ms; /* from now, > 0; covers all tries */
    bool idempotent; /* try again on BD_E_UNAVAILABLE with back-off and jitter until the deadline;
                        only for requests that may arrive twice */
} rpc_call_options;

/* rc BD_OK: reply holds the answer (borrowed: valid during the callback; bd_chain_move to keep it).
 * Else err tells, prefixed "<channel name> <method>: ". Runs exactly once. */
typedef void (*rpc_done_fn)(void *user, bd_status rc, bd_chain *reply, const bd_err *err);

/* Starts a unary call. method: "/braid.v1.ParameterServer/Lookup". request is moved (emptied).
 * out may be NULL; else *out (for rpc_call_cancel) must be released with rpc_call_unref.
 * Returns an error (and done never runs) only when the call could not be started at all. */
bd_status rpc_call_start(rpc_channel *ch, const char *method, bd_chain *request,
                         const rpc_call_options *opt, rpc_done_fn done, void *user, rpc_call **out,
                         bd_err *err) BD_MUST_CHECK;
void rpc_call_cancel(rpc_call *call);
void rpc_call_unref(rpc_call *call);
/* Blocks until the answer: for control traffic, not from a callback on an env queue thread (server
 * handlers may). reply must be empty; on BD_OK it owns the answer. */
bd_status rpc_call_sync(rpc_channel *ch, const char *method, bd_chain *request,
                        const rpc_call_options *opt, bd_chain *reply, bd_err *err) BD_MUST_CHECK;

/* A bidirectional stream of messages. on_message: msg borrowed; may be kept by bd_chain_move.
 * on_close runs exactly once, last: rc BD_OK after a clean end, else why it broke. */
typedef struct rpc_stream_events {
    void (*on_message)(void *user, bd_chain *msg);
    void (*on_close)(void *user, bd_status rc, const bd_err *err);
    void *user;
    /* Server side: the client sends no more, but still reads; end with rpc_stream_finish. NULL: the
     * stream is finished by itself after the messages queued so far. */
    void (*on_peer_finish)(void *user);
} rpc_stream_events;

bd_status rpc_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                          rpc_stream **out, bd_err *err) BD_MUST_CHECK;
/* Queues a message (moved); messages keep their order. BD_E_EXHAUSTED: more than 64 MiB wait to be
 * sent, slow down; BD_E_STATE: closed. */
bd_status rpc_stream_send(rpc_stream *s, bd_chain *msg, bd_err *err) BD_MUST_CHECK;
/* No more sends; the peer sees the end after the last message. */
void rpc_stream_finish(rpc_stream *s);
/* Breaks it at once. on_close still runs. */
void rpc_stream_cancel(rpc_stream *s);
/* Server side: the caller's token allows `method` too; for streams that carry other methods'
 * requests. */
bool rpc_stream_may(const rpc_stream *s, const char *method);
/* Both sides: drop the handle (after or before on_close). */
void rpc_stream_unref(rpc_stream *s);
rpc_stream *rpc_stream_ref(rpc_stream *s);

/* ---- server side ---- */
/* Runs on the handler pool; may block on nested calls but not on the disk. Must lead to exactly one
 * rpc_req_reply or rpc_req_fail, from any thread, at any later time. */
typedef void (*rpc_handler_fn)(void *user, rpc_req *req);

/* A stream opened by a client. on_open returns the events for it (by filling ev) or an error that
 * refuses it; the stream handle is borrowed until on_close (ref to keep it). */
typedef bd_status (*rpc_stream_handler_fn)(void *user, rpc_stream *s, rpc_stream_events *ev,
                                           bd_err *err);

/* What one peer (an address without its port) may ask of a server; 0: no limit. Health checks are
 * not counted. Over a limit a call ends with BD_E_EXHAUSTED, a stream is read more slowly, a
 * connection is closed. */
typedef struct rpc_limits {
    int max_connections; /* real transport, TCP; looked at a few times a second. -1: no limit of a
                            peer, but descriptors are kept free; 0: nobody looks */
    size_t max_bytes;    /* of its requests that are not answered yet; one request always fits */
    double max_requests_per_s; /* bursts: one second's worth */
} rpc_limits;

typedef struct rpc_server_options {
    const char *listen;       /* "host:port", port 0: the system picks; "unix:/path" */
    size_t max_message_bytes; /* of a request, 0: 16 MiB; twice that for a message of a stream */
    int max_requests;         /* unary requests being served at once, 0: 1024; over it the transport
                                 waits. Soft: a few that were on their way (8 for each method and
                                 queue) are still taken */
    rpc_limits limits;
    bool allow_insecure; /* without TLS: plain text on an address that other hosts reach */
} rpc_server_options;

bd_status rpc_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out,
                         bd_err *err) BD_MUST_CHECK;
/* The scope a caller's token must have for a registered method, if not the one of
 * rpc_scope_of_method. Before rpc_server_start. BD_E_NOT_FOUND: not registered. */
bd_status rpc_server_set_scope(rpc_server *s, const char *method, rpc_scope scope) BD_MUST_CHECK;
/* Before rpc_server_start. */
bd_status rpc_server_register(rpc_server *s, const char *method, rpc_handler_fn fn,
                              void *user) BD_MUST_CHECK;
/* The same, but fn runs on the thread that received the request: no hand-over, and fn promises not
 * to block at all (no nested rpc_call_sync). */
bd_status rpc_server_register_inline(rpc_server *s, const char *method, rpc_handler_fn fn,
                                     void *user) BD_MUST_CHECK;
/* fn runs on the receiving thread and must not block. */
bd_status rpc_server_register_stream(rpc_server *s, const char *method, rpc_stream_handler_fn fn,
                                     void *user) BD_MUST_CHECK;
/* Binds and serves. A port in use is BD_E_IO naming host and port. grpc.health.v1.Health is served
 * by the transport itself: NOT_SERVING until rpc_server_set_serving; and so is server reflection.
 */
bd_status rpc_server_start(rpc_server *s, bd_err *err) BD_MUST_CHECK;
int rpc_server_port(const rpc_server *s); /* the bound one */
void rpc_server_set_serving(rpc_server *s, bool serving);
/* Gives a name of the health service a state of its own, besides the whole server's: probes ask for
 * "liveness" and "readiness". BD_E_EXHAUSTED: more than 8 names, or one of 64 bytes and more. */
bd_status rpc_server_set_service(rpc_server *s, const char *name, bool serving) BD_MUST_CHECK;
/* Orderly: no new requests, waits up to grace_ms for the open ones, cancels the rest (and streams,
 * once nothing of theirs waits to be sent). Not from a callback. Handlers must come to an end. */
void rpc_server_stop(rpc_server *s, int64_t grace_ms);
void rpc_server_free(rpc_server *s); /* stops it without grace when it still runs */

/* A handler that is about to wait for something other than a call (a lock held over a call, another
 * handler) says so, so that the pool can start another thread. Nests; no effect elsewhere. */
void rpc_blocking_begin(void);
void rpc_blocking_end(void);

/* The caller's token allows `method` too; for requests that do what another method does. */
bool rpc_req_may(const rpc_req *req, const char *method);
bd_chain *rpc_req_body(rpc_req *req);  /* may be moved out by the handler */
bool rpc_req_cancelled(rpc_req *req);  /* the caller gave up: do not start what cannot be undone */
int64_t rpc_req_ms_left(rpc_req *req); /* until the caller's deadline */
void rpc_req_reply(rpc_req *req, bd_chain *reply);  /* moved; ends the request */
void rpc_req_fail(rpc_req *req, const bd_err *err); /* err->code negative; ends the request */

#endif
