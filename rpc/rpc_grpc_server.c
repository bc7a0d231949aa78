/* Servers: listening, accepting (arms), orderly stop. */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_conns.h"
#include "rpc/rpc_gate.h"
#include "rpc/rpc_grpc_int.h"
#include "rpc/rpc_status.h"

#include <grpc/support/alloc.h>

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ARMS_PER_QUEUE 8 /* requests of one method that arrive together need no second look */

/* One outstanding request_call: where the next request of a method will land. */
typedef struct gr_arm {
    gr_tag tag;
    gr_server *srv;
    const rpc_method *method; /* NULL: any method that is not registered */
    void *handle;
    grpc_completion_queue *q;
    grpc_call *call;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_byte_buffer *payload;
    grpc_call_details details;
    struct gr_arm *next; /* in the parked list */
} gr_arm;

struct gr_server {
    rpc_server base;
    grpc_server *core;
    char *listen; /* owned */
    int port;
    int max_message_bytes, max_requests;
    gr_tls_feed tls;
    int max_connections; /* of one peer */
    bool counts_connections;
    rpc_conns *conns;
    gr_tag shutdown_tag;
    rpc_wait shutdown;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    bool running, stopping;
    int n_requests; /* unary ones being served */
    int n_streams, n_arms;
    gr_arm *parked; /* not set again while n_requests is at its maximum */
    rpc_stream *streams;
};

gr_env *gr_server_env(gr_server *srv)
{
    return (gr_env *)srv->base.env;
}

rpc_server *gr_server_base(gr_server *srv)
{
    return &srv->base;
}

rpc_peers *gr_server_peers(gr_server *srv)
{
    return srv->base.peers;
}

/* ---- arms ---- */

static void arm_free(gr_arm *a)
{
    grpc_metadata_array_destroy(&a->metadata);
    grpc_call_details_destroy(&a->details);
    bd_free(a);
}

static void arm_gone(gr_arm *a)
{
    gr_server *srv = a->srv;
    arm_free(a);
    (void)pthread_mutex_lock(&srv->lock);
    srv->n_arms--;
    (void)pthread_cond_broadcast(&srv->changed);
    (void)pthread_mutex_unlock(&srv->lock);
}

static void arm_set(gr_arm *a)
{
    a->call = NULL;
    a->payload = NULL;
    gr_tag_publish(&a->tag);
    grpc_call_error e;
    if (a->handle != NULL) {
        grpc_byte_buffer **payload = a->method->fn != NULL ? &a->payload : NULL;
        e = grpc_server_request_registered_call(a->srv->core, a->handle, &a->call, &a->deadline,
                                                &a->metadata, payload, a->q, a->q, &a->tag);
    } else {
        e = grpc_server_request_call(a->srv->core, &a->call, &a->details, &a->metadata, a->q, a->q,
                                     &a->tag);
    }
    if (e != GRPC_CALL_OK) {
        arm_gone(a);
    }
}

/* The next request may come, unless enough are being served: then the arm is parked. */
static void arm_again(gr_arm *a)
{
    gr_server *srv = a->srv;
    (void)pthread_mutex_lock(&srv->lock);
    bool park = !srv->stopping && srv->n_requests >= srv->max_requests && a->method != NULL &&
                a->method->fn != NULL;
    if (park) {
        a->next = srv->parked;
        srv->parked = a;
    }
    (void)pthread_mutex_unlock(&srv->lock);
    if (!park) {
        arm_set(a); /* on a server that is shutting down it comes back failed */
    }
}

void gr_server_req_gone(gr_server *srv)
{
    (void)pthread_mutex_lock(&srv->lock);
    srv->n_requests--;
    gr_arm *a = srv->parked;
    if (a != NULL) {
        srv->parked = a->next;
    } else {
        (void)pthread_cond_broadcast(&srv->changed);
    }
    (void)pthread_mutex_unlock(&srv->lock);
    if (a != NULL) {
        arm_set(a);
    }
}

/* The peer's address without its port. */
static void peer_name(grpc_call *call, char *out, size_t cap)
{
    char *peer = grpc_call_get_peer(call);
    const char *colon = peer != NULL ? strrchr(peer, ':') : NULL;
    if (colon == NULL || strncmp(peer, "unix", 4) == 0) {
        (void)snprintf(out, cap, "unix");
    } else {
        (void)snprintf(out, cap, "%.*s", (int)(colon - peer), peer);
    }
    gpr_free(peer);
}

static void apply_limits(const gr_arm *a, gr_visit *v)
{
    char name[RPC_PEER_NAME_BYTES];
    rpc_peers *peers = a->srv->base.peers;
    peer_name(a->call, name, sizeof name);
    if (a->method->fn != NULL) {
        v->refusal.code =
            rpc_peers_enter(peers, name, v->n_bytes, bd_mono_ns(), &v->peer, &v->refusal);
    } else {
        v->refusal.code = rpc_peers_join(peers, name, bd_mono_ns(), &v->peer, &v->refusal);
    }
}

/* Fills v, which is not initialised, for the call that landed in a. */
static void judge(const gr_arm *a, bool stopping, gr_visit *v)
{
    const rpc_server *s = &a->srv->base;
    const grpc_metadata *auth = NULL;
    if (s->env->security != NULL) {
        auth = gr_metadata_find(&a->metadata, RPC_AUTH_KEY);
    }
    v->peer = NULL;
    v->n_bytes = a->payload != NULL ? grpc_byte_buffer_length(a->payload) : 0;
    v->refusal.code = rpc_gate_authenticate(
        &a->srv->base, a->method,
        auth != NULL ? (const char *)GRPC_SLICE_START_PTR(auth->value) : NULL,
        auth != NULL ? GRPC_SLICE_LENGTH(auth->value) : 0, &v->scope, &v->refusal);
    if (v->refusal.code == BD_OK && stopping) {
        (void)bd_err_set(&v->refusal, BD_E_UNAVAILABLE, "server on %s is stopping", a->srv->listen);
    } else if (v->refusal.code == BD_OK && a->method == NULL) {
        char name[128];
        const grpc_slice *m = &a->details.method;
        rpc_escape(name, sizeof name, GRPC_SLICE_START_PTR(*m), GRPC_SLICE_LENGTH(*m));
        (void)bd_err_set(&v->refusal, BD_E_UNSUPPORTED, "no such method: %s", name);
    } else if (v->refusal.code == BD_OK && a->method->fn != NULL && a->payload == NULL) {
        /* cancelled before it was sent, or ended without one: not the same as an empty message */
        (void)bd_err_set(&v->refusal, BD_E_INVALID, "a call without a request message");
    } else if (v->refusal.code == BD_OK && v->n_bytes > (size_t)a->srv->max_message_bytes) {
        (void)bd_err_set(&v->refusal, BD_E_EXHAUSTED,
                         "a message of %zu bytes is larger than the %d this server takes",
                         v->n_bytes, a->srv->max_message_bytes);
    } else if (v->refusal.code == BD_OK && rpc_gate_limits(s, a->method)) {
        apply_limits(a, v);
    }
}

static void on_arrival(gr_tag *tag, bool ok)
{
    gr_arm *a = (gr_arm *)tag;
    gr_server *srv = a->srv;
    if (!ok) { /* the core has been shut down */
        arm_gone(a);
        return;
    }
    const rpc_method *m = a->method;
    grpc_call *call = a->call;
    gpr_timespec deadline = m != NULL ? a->deadline : a->details.deadline;
    grpc_byte_buffer *payload = a->payload;
    bool unary = m == NULL || m->fn != NULL;
    gr_visit visit;
    (void)pthread_mutex_lock(&srv->lock);
    bool stopping = srv->stopping;
    srv->n_requests += unary ? 1 : 0;
    srv->n_streams += unary ? 0 : 1;
    (void)pthread_mutex_unlock(&srv->lock);
    judge(a, stopping, &visit);
    grpc_metadata_array_destroy(&a->metadata);
    grpc_metadata_array_init(&a->metadata);
    if (m == NULL) {
        grpc_call_details_destroy(&a->details);
        grpc_call_details_init(&a->details);
    }
    arm_again(a);
    if (unary) {
        gr_req_begin(srv, m, call, deadline, payload, &visit);
    } else {
        gr_stream_accept(srv, m, call, &visit);
    }
}

static bd_status arm_new(gr_server *srv, const rpc_method *m, void *handle,
                         grpc_completion_queue *q)
{
    gr_arm *a = bd_calloc(1, sizeof *a);
    if (a == NULL) {
        return BD_E_NOMEM;
    }
    a->tag.fn = on_arrival;
    a->srv = srv;
    a->method = m;
    a->handle = handle;
    a->q = q;
    grpc_metadata_array_init(&a->metadata);
    grpc_call_details_init(&a->details);
    (void)pthread_mutex_lock(&srv->lock);
    srv->n_arms++;
    (void)pthread_mutex_unlock(&srv->lock);
    arm_set(a);
    return BD_OK;
}

/* ---- start ---- */

bd_status gr_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out, bd_err *err)
{
    gr_server *srv = bd_calloc(1, sizeof *srv);
    bd_status rc = BD_E_NOMEM;
    if (srv == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "server on %s: out of memory", opt->listen);
    }
    size_t max = opt->max_message_bytes > 0 ? opt->max_message_bytes : RPC_SERVER_MAX_BYTES;
    gr_watch_handshakes();
    srv->max_message_bytes = max > (size_t)INT32_MAX ? INT32_MAX : (int)max;
    srv->counts_connections = opt->limits.max_connections != 0;
    srv->max_connections = opt->limits.max_connections > 0 ? opt->limits.max_connections : 0;
    srv->max_requests = opt->max_requests > 0 ? opt->max_requests : RPC_SERVER_MAX_REQS;
    (void)pthread_mutex_init(&srv->lock, NULL);
    (void)pthread_cond_init(&srv->changed, NULL);
    rpc_wait_init(&srv->shutdown);
    gr_env_enter((gr_env *)env);
    srv->base.t = env->t;
    srv->base.env = env;
    srv->listen = bd_strdup(opt->listen);
    if (srv->listen != NULL) {
        rc = rpc_server_init(&srv->base, env, &opt->limits);
    }
    if (rc != BD_OK) {
        gr_server_destroy(&srv->base);
        return bd_err_set(err, rc, "server on %s: out of memory", opt->listen);
    }
    *out = &srv->base;
    return BD_OK;
}

static grpc_arg int_arg(const char *key, int value)
{
    union {
        const char *in;
        char *out;
    } k = {.in = key};
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = k.out, .value.integer = value};
}

static grpc_server *core_server_new(const gr_server *srv)
{
    grpc_arg args[] = {
        /* What the core refuses never reaches us: up to twice the size we refuse and count. */
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                srv->max_message_bytes > INT32_MAX / 2 ? INT32_MAX : 2 * srv->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)RPC_CLIENT_MAX_BYTES),
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, GR_FRAME_BYTES),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), /* a second server must fail, not share the port */
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, GR_HANDSHAKE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, GR_PING_MIN_MS),
    };
    grpc_channel_args list = {sizeof args / sizeof args[0], args};
    return grpc_server_create(&list, NULL);
}

/* gRPC does not say why it could not bind: ask the system the same question. */
static int bind_errno(const char *listen)
{
    char host[256];
    const char *colon = strrchr(listen, ':');
    if (strncmp(listen, "unix:", 5) == 0 || colon == NULL ||
        (size_t)(colon - listen) >= sizeof host) {
        return EINVAL;
    }
    size_t skip = listen[0] == '[' ? 1 : 0; /* [::1]:port */
    (void)snprintf(host, sizeof host, "%.*s", (int)(colon - listen) - 2 * (int)skip, listen + skip);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &list) != 0) {
        return EADDRNOTAVAIL;
    }
    int e = EADDRINUSE;
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        e = bind(fd, list->ai_addr, list->ai_addrlen) != 0 ? errno : EADDRINUSE;
        (void)close(fd);
    }
    freeaddrinfo(list);
    return e;
}

static bd_status bind_port(gr_server *srv, bd_err *err)
{
    srv->tls.security = srv->base.env->security;
    grpc_server_credentials *creds = gr_server_creds(&srv->tls);
    srv->port = grpc_server_add_http2_port(srv->core, srv->listen, creds);
    grpc_server_credentials_release(creds);
    if (srv->port == 0) {
        int e = bind_errno(srv->listen);
        return bd_err_errno(err, BD_E_IO, e, "cannot listen on %s", srv->listen);
    }
    return BD_OK;
}

static bd_status arm_all(gr_server *srv, void **handles)
{
    gr_env *env = gr_server_env(srv);
    bd_status rc = BD_OK;
    for (int q = 0; q < env->n_queues && rc == BD_OK; q++) {
        rc = arm_new(srv, NULL, NULL, env->queues[q].core);
        for (size_t m = 0; m < srv->base.n_methods; m++) {
            for (int k = 0; k < ARMS_PER_QUEUE && rc == BD_OK; k++) {
                rc = arm_new(srv, &srv->base.methods[m], handles[m], env->queues[q].core);
            }
        }
    }
    return rc;
}

static bd_status register_methods(gr_server *srv, void **handles, bd_err *err)
{
    for (size_t m = 0; m < srv->base.n_methods; m++) {
        const rpc_method *method = &srv->base.methods[m];
        handles[m] = grpc_server_register_method(
            srv->core, method->path, NULL,
            method->fn != NULL ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER : GRPC_SRM_PAYLOAD_NONE,
            0);
        if (handles[m] == NULL) {
            return bd_err_set(err, BD_E_INVALID, "method %s was refused", method->path);
        }
    }
    return BD_OK;
}

bd_status gr_server_start(rpc_server *s, bd_err *err)
{
    gr_server *srv = (gr_server *)s;
    gr_env *env = gr_server_env(srv);
    void **handles = bd_calloc(s->n_methods + 1, sizeof *handles);
    if (handles == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "server on %s: out of memory", srv->listen);
    }
    srv->core = core_server_new(srv);
    for (int q = 0; q < env->n_queues; q++) {
        grpc_server_register_completion_queue(srv->core, env->queues[q].core, NULL);
    }
    bd_status rc = register_methods(srv, handles, err);
    if (rc == BD_OK) {
        rc = bind_port(srv, err);
    }
    if (rc == BD_OK) {
        grpc_server_start(srv->core);
        srv->running = true;
        rc = arm_all(srv, handles);
        if (rc != BD_OK) {
            (void)bd_err_set(err, rc, "server on %s: out of memory", srv->listen);
        } else if (srv->counts_connections && strncmp(srv->listen, "unix:", 5) != 0) {
            rc = rpc_conns_start(srv->port, srv->max_connections, &srv->conns, err);
        }
        if (rc != BD_OK) {
            gr_server_stop(s, 0);
        }
    }
    bd_free(handles);
    return rc;
}

int gr_server_port(const rpc_server *s)
{
    return ((const gr_server *)s)->port;
}

/* ---- streams ---- */

void gr_server_enter_stream(gr_server *srv, rpc_stream *s)
{
    (void)pthread_mutex_lock(&srv->lock);
    s->prev = NULL;
    s->next = srv->streams;
    if (s->next != NULL) {
        s->next->prev = s;
    }
    srv->streams = s;
    (void)pthread_mutex_unlock(&srv->lock);
}

void gr_server_leave_stream(gr_server *srv, rpc_stream *s)
{
    (void)pthread_mutex_lock(&srv->lock);
    if (s != NULL) {
        if (s->prev != NULL) {
            s->prev->next = s->next;
        } else {
            srv->streams = s->next;
        }
        if (s->next != NULL) {
            s->next->prev = s->prev;
        }
    }
    srv->n_streams--;
    (void)pthread_cond_broadcast(&srv->changed);
    (void)pthread_mutex_unlock(&srv->lock);
}

/* ---- stop ---- */

static void on_shutdown_event(gr_tag *tag, bool ok)
{
    (void)ok;
    gr_server *srv = (gr_server *)(void *)((char *)tag - offsetof(gr_server, shutdown_tag));
    rpc_wait_post(&srv->shutdown);
}

static bool busy_locked(const gr_server *srv)
{
    if (srv->n_requests > 0) {
        return true;
    }
    for (rpc_stream *s = srv->streams; s != NULL; s = s->next) {
        if (gr_stream_is_busy(s)) {
            return true;
        }
    }
    return false;
}

/* Until the open requests are answered and nothing waits to be sent, or the grace is over. */
static void wait_for_grace(gr_server *srv, int64_t grace_ms)
{
    int64_t until = bd_mono_ns() + grace_ms * BD_NS_PER_MS;
    (void)pthread_mutex_lock(&srv->lock);
    while (busy_locked(srv) && bd_mono_ns() < until) {
        int64_t wake = bd_wall_ns() + 5 * BD_NS_PER_MS; /* sends do not signal */
        struct timespec ts = {.tv_sec = wake / BD_NS_PER_S, .tv_nsec = wake % BD_NS_PER_S};
        (void)pthread_cond_timedwait(&srv->changed, &srv->lock, &ts);
    }
    (void)pthread_mutex_unlock(&srv->lock);
}

/* From now on requests are refused, also those that waited for a parked arm. */
static void begin_stop(gr_server *srv)
{
    (void)pthread_mutex_lock(&srv->lock);
    gr_arm *parked = srv->parked;
    srv->parked = NULL;
    srv->stopping = true;
    (void)pthread_mutex_unlock(&srv->lock);
    while (parked != NULL) {
        gr_arm *next = parked->next;
        arm_set(parked);
        parked = next;
    }
}

/* The core's own shutdown comes after the grace: a request that crosses it on its way may be neither
 * served nor refused until all calls are cancelled, so that must follow at once. */
void gr_server_stop(rpc_server *s, int64_t grace_ms)
{
    gr_server *srv = (gr_server *)s;
    if (!srv->running) {
        return;
    }
    srv->running = false;
    begin_stop(srv);
    wait_for_grace(srv, grace_ms);
    rpc_conns_stop(srv->conns);
    srv->conns = NULL;
    srv->shutdown_tag.fn = on_shutdown_event;
    gr_tag_publish(&srv->shutdown_tag);
    grpc_server_shutdown_and_notify(srv->core, gr_server_env(srv)->queues[0].core,
                                    &srv->shutdown_tag);
    grpc_server_cancel_all_calls(srv->core);
    rpc_wait_block(&srv->shutdown);
    (void)pthread_mutex_lock(&srv->lock);
    while (srv->n_requests > 0 || srv->n_streams > 0 || srv->n_arms > 0) {
        (void)pthread_cond_wait(&srv->changed, &srv->lock);
    }
    (void)pthread_mutex_unlock(&srv->lock);
}

void gr_server_destroy(rpc_server *s)
{
    gr_server *srv = (gr_server *)s;
    gr_env *env = gr_server_env(srv);
    if (srv->core != NULL) {
        grpc_server_destroy(srv->core);
    }
    rpc_server_deinit(s);
    rpc_wait_deinit(&srv->shutdown);
    (void)pthread_cond_destroy(&srv->changed);
    (void)pthread_mutex_destroy(&srv->lock);
    bd_free(srv->listen);
    bd_free(srv);
    gr_env_leave(env);
}
