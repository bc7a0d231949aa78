/* grpc.health.v1.Health, so that probes and grpcurl work: Check and Watch over the server's own
 * methods. A service is known when one of its methods is registered; "" is the whole server. Other
 * names ("liveness", "readiness") get a state of their own by rpc_server_set_service.
 */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_int.h"

#include <string.h>

#include "grpc/health/v1/health.pb-c.h"

#define MAX_REQUEST_BYTES 4096

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

/* A name that has a state of its own. */
typedef struct named {
    char name[RPC_HEALTH_NAME_BYTES];
    bool serving;
} named;

typedef struct watcher {
    rpc_health *health;
    rpc_stream *stream; /* shared */
    bool asked;         /* the request has come */
    char name[256];     /* asked for */
    int told;           /* the last state sent */
    struct watcher *prev, *next;
} watcher;

struct rpc_health {
    rpc_server *server;
    pthread_mutex_t lock; /* guards everything below */
    bool serving;
    named names[RPC_HEALTH_MAX_NAMES];
    size_t n_names;
    watcher *watchers;
};

/* The service name of the request, or an error. */
static bd_status parse(const bd_chain *body, char *name, size_t cap, bd_err *err)
{
    ProtobufCMessage *msg = NULL;
    bd_status rc = px_unpack(&grpc__health__v1__health_check_request__descriptor, body,
                             MAX_REQUEST_BYTES, &msg, err);
    const Grpc__Health__V1__HealthCheckRequest *m = (const void *)msg;
    if (rc == BD_OK && strlen(m->service) >= cap) {
        rc = bd_err_set(err, BD_E_INVALID, "not a health request");
    } else if (rc == BD_OK) {
        memcpy(name, m->service, strlen(m->service) + 1);
    }
    px_unpacked_free(msg);
    return rc;
}

static bool is_known(const rpc_health *h, const char *name)
{
    size_t n = strlen(name);
    if (n == 0) {
        return true;
    }
    for (size_t i = 0; i < h->server->n_methods; i++) {
        const char *path = h->server->methods[i].path; /* "/package.Service/Method" */
        if (path[0] == '/' && strncmp(path + 1, name, n) == 0 && path[1 + n] == '/') {
            return true;
        }
    }
    return false;
}

static named *find_named_locked(rpc_health *h, const char *name)
{
    for (size_t i = 0; i < h->n_names; i++) {
        if (strcmp(h->names[i].name, name) == 0) {
            return &h->names[i];
        }
    }
    return NULL;
}

static int state_locked(rpc_health *h, const char *name)
{
    const named *n = find_named_locked(h, name);
    if (n == NULL && !is_known(h, name)) {
        return SERVICE_UNKNOWN;
    }
    return (n != NULL ? n->serving : h->serving) ? SERVING : NOT_SERVING;
}

/* HealthCheckResponse: field 1, varint. */
static bd_status encode(int status, bd_chain *out)
{
    const uint8_t bytes[2] = {0x08, (uint8_t)status};
    return bd_chain_add_copy(out, bytes, sizeof bytes);
}

static void on_check(void *user, rpc_req *req)
{
    rpc_health *h = user;
    bd_err err = BD_ERR_INIT;
    char name[256];
    bd_chain reply = {0};
    bd_status rc = parse(rpc_req_body(req), name, sizeof name, &err);
    int state = SERVICE_UNKNOWN;
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&h->lock);
        state = state_locked(h, name);
        (void)pthread_mutex_unlock(&h->lock);
    }
    if (rc == BD_OK && state == SERVICE_UNKNOWN) {
        rc = bd_err_set(&err, BD_E_NOT_FOUND, "no such service: %s", name);
    }
    if (rc == BD_OK) {
        rc = encode(state, &reply);
        (void)bd_err_set(&err, rc, "out of memory");
    }
    if (rc == BD_OK) {
        rpc_req_reply(req, &reply);
    } else {
        rpc_req_fail(req, &err);
    }
}

static void tell_locked(watcher *w)
{
    int state = state_locked(w->health, w->name);
    bd_chain msg = {0};
    if (state == w->told) {
        return;
    }
    w->told = state;
    if (encode(state, &msg) != BD_OK || rpc_stream_send(w->stream, &msg, NULL) != BD_OK) {
        bd_chain_deinit(&msg); /* closed, or so slow that the next change will do */
    }
}

static void on_watch_message(void *user, bd_chain *msg)
{
    watcher *w = user;
    if (w->asked || parse(msg, w->name, sizeof w->name, NULL) != BD_OK) {
        rpc_stream_cancel(w->stream);
        return;
    }
    (void)pthread_mutex_lock(&w->health->lock);
    w->asked = true;
    tell_locked(w);
    (void)pthread_mutex_unlock(&w->health->lock);
}

static void on_watch_half_closed(void *user)
{
    (void)user; /* a watcher says no more, and listens on */
}

static void on_watch_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    watcher *w = user;
    rpc_health *h = w->health;
    (void)pthread_mutex_lock(&h->lock);
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        h->watchers = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    (void)pthread_mutex_unlock(&h->lock);
    rpc_stream_unref(w->stream);
    bd_free(w);
}

static bd_status on_watch(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    rpc_health *h = user;
    watcher *w = bd_calloc(1, sizeof *w);
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    w->health = h;
    w->stream = rpc_stream_ref(s);
    *ev = (rpc_stream_events){.on_message = on_watch_message,
                              .on_close = on_watch_close,
                              .user = w,
                              .on_peer_finish = on_watch_half_closed};
    (void)pthread_mutex_lock(&h->lock);
    w->next = h->watchers;
    if (w->next != NULL) {
        w->next->prev = w;
    }
    h->watchers = w;
    (void)pthread_mutex_unlock(&h->lock);
    return BD_OK;
}

bd_status rpc_health_new(rpc_server *s, rpc_health **out)
{
    rpc_health *h = bd_calloc(1, sizeof *h);
    if (h == NULL) {
        return BD_E_NOMEM;
    }
    (void)pthread_mutex_init(&h->lock, NULL);
    h->server = s;
    *out = h; /* the server owns it from here, also on failure */
    bd_status rc = rpc_server_register_inline(s, "/grpc.health.v1.Health/Check", on_check, h);
    if (rc == BD_OK) {
        rc = rpc_server_register_stream(s, "/grpc.health.v1.Health/Watch", on_watch, h);
    }
    return rc;
}

void rpc_health_free(rpc_health *h)
{
    if (h != NULL) {
        (void)pthread_mutex_destroy(&h->lock);
        bd_free(h);
    }
}

static void tell_all_locked(rpc_health *h)
{
    for (watcher *w = h->watchers; w != NULL; w = w->next) {
        if (w->asked) {
            tell_locked(w);
        }
    }
}

void rpc_health_set(rpc_health *h, bool serving)
{
    (void)pthread_mutex_lock(&h->lock);
    h->serving = serving;
    tell_all_locked(h);
    (void)pthread_mutex_unlock(&h->lock);
}

bd_status rpc_health_set_named(rpc_health *h, const char *name, bool serving)
{
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&h->lock);
    named *n = find_named_locked(h, name);
    if (n == NULL && h->n_names < RPC_HEALTH_MAX_NAMES && strlen(name) < sizeof n->name) {
        n = &h->names[h->n_names++];
        memcpy(n->name, name, strlen(name) + 1);
    }
    if (n != NULL) {
        n->serving = serving;
        tell_all_locked(h);
    } else {
        rc = BD_E_EXHAUSTED;
    }
    (void)pthread_mutex_unlock(&h->lock);
    return rc;
}
