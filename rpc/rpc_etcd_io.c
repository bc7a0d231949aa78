#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_etcd_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRY_MS = 3000, MAX_ENDPOINTS = 16 };

/* ---- unary ---- */
bd_status etcd_ask_one(rpc_channel *ch, const char *method, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *type, int64_t try_ms,
                       ProtobufCMessage **reply, bd_err *err)
{
    char path[64];
    bd_chain out = {0}, in = {0};
    const rpc_call_options opt = {.deadline_ms = try_ms};
    (void)snprintf(path, sizeof path, "/etcdserverpb.%s", method);
    bd_status rc = px_pack(request, &out, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(ch, path, &out, &opt, &in, err);
    }
    if (rc == BD_OK) {
        rc = px_unpack(type, &in, 0, reply, err);
    }
    bd_chain_deinit(&out);
    bd_chain_deinit(&in);
    return rc;
}

/* As the user, if there is one. */
static bd_status ask_as_user(etcd *e, size_t at, const char *method,
                             const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *type, int64_t try_ms,
                             ProtobufCMessage **reply, bd_err *err)
{
    bd_status rc = etcd_login(e, at, 0, try_ms, err);
    uint64_t seen = atomic_load(&e->n_logins);
    if (rc == BD_OK) {
        rc = etcd_ask_one(e->channels[at], method, request, type, try_ms, reply, err);
    }
    if (rc != BD_OK && e->user != NULL && seen > 0 && etcd_wants_login(err)) {
        rc = etcd_login(e, at, seen, try_ms, err);
        if (rc == BD_OK) {
            rc = etcd_ask_one(e->channels[at], method, request, type, try_ms, reply, err);
        }
    }
    return rc;
}

/* All endpoints once, beginning with the one that answered last. */
static bd_status ask_all(etcd *e, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *type, ProtobufCMessage **reply,
                         bd_err *err)
{
    bd_status rc = BD_E_UNAVAILABLE;
    size_t first = atomic_load(&e->current);
    int64_t try_ms = e->base.store.wait_ms < TRY_MS ? e->base.store.wait_ms : TRY_MS;
    for (size_t i = 0; i < e->n_channels; i++) {
        size_t at = (first + i) % e->n_channels;
        rc = ask_as_user(e, at, method, request, type, try_ms, reply, err);
        if (rc == BD_OK) {
            atomic_store(&e->current, at);
        }
        if (rc != BD_E_UNAVAILABLE && rc != BD_E_TIMEOUT) {
            return rc;
        }
    }
    return rc;
}

bd_status etcd_ask(etcd *e, const char *method, const ProtobufCMessage *request,
                   const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **reply,
                   bd_err *err)
{
    rpc_store_trouble trouble = {0};
    bd_err local = BD_ERR_INIT;
    while (ask_all(e, method, request, reply_type, reply, &local) != BD_OK) {
        if (!rpc_store_again(&trouble, e->name, e->base.store.wait_ms, &local)) {
            etcd_explain(e, &local);
            return bd_err_set(err, local.code, "%s", bd_err_text(&local));
        }
    }
    return BD_OK;
}

/* ---- streams: one message out, and wait for what comes back ---- */
typedef struct dialog {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    const ProtobufCMessageDescriptor *type;
    /* true: this message is what was waited for */
    bool (*is_it)(const ProtobufCMessage *msg);
    ProtobufCMessage *got; /* owned; under lock */
    bool closed;           /* under lock */
} dialog;

static void on_message(void *user, bd_chain *msg)
{
    dialog *d = user;
    ProtobufCMessage *m = NULL;
    bd_err ignored = BD_ERR_INIT;
    bool readable = px_unpack(d->type, msg, 0, &m, &ignored) == BD_OK;
    (void)pthread_mutex_lock(&d->lock);
    if (readable && d->got == NULL && d->is_it(m)) {
        d->got = m;
        m = NULL;
        (void)pthread_cond_signal(&d->changed);
    }
    (void)pthread_mutex_unlock(&d->lock);
    px_unpacked_free(m);
}

static void on_close(void *user, bd_status rc, const bd_err *err)
{
    dialog *d = user;
    (void)rc;
    (void)err;
    (void)pthread_mutex_lock(&d->lock);
    d->closed = true;
    (void)pthread_cond_signal(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
}

/* Until it has come, the stream is closed, or end_ns. */
static void wait_for_it(dialog *d, int64_t end_ns)
{
    const struct timespec until = {.tv_sec = end_ns / BD_NS_PER_S, .tv_nsec = end_ns % BD_NS_PER_S};
    (void)pthread_mutex_lock(&d->lock);
    while (d->got == NULL && !d->closed &&
           pthread_cond_timedwait(&d->changed, &d->lock, &until) == 0) {
    }
    (void)pthread_mutex_unlock(&d->lock);
}

static void wait_until_closed(dialog *d)
{
    (void)pthread_mutex_lock(&d->lock);
    while (!d->closed) {
        (void)pthread_cond_wait(&d->changed, &d->lock);
    }
    (void)pthread_mutex_unlock(&d->lock);
}

/* NULL: it did not come within timeout_ms, or the stream broke. px_unpacked_free. */
static ProtobufCMessage *converse(etcd *e, const char *path, const ProtobufCMessage *request,
                                  const ProtobufCMessageDescriptor *type,
                                  bool (*is_it)(const ProtobufCMessage *msg), int64_t timeout_ms)
{
    dialog d = {.type = type, .is_it = is_it};
    bd_err ignored = BD_ERR_INIT;
    bd_chain out = {0};
    rpc_stream *stream = NULL;
    pthread_condattr_t attr;
    const rpc_stream_events events = {.on_message = on_message, .on_close = on_close, .user = &d};
    int64_t end_ns = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    (void)pthread_mutex_init(&d.lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&d.changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    rpc_channel *ch = e->channels[atomic_load(&e->current)];
    if (px_pack(request, &out, &ignored) == BD_OK &&
        rpc_stream_open(ch, path, &events, &stream, &ignored) == BD_OK) {
        if (rpc_stream_send(stream, &out, &ignored) == BD_OK) {
            wait_for_it(&d, end_ns);
        }
        rpc_stream_cancel(stream);
        wait_until_closed(&d);
        rpc_stream_unref(stream);
    }
    bd_chain_deinit(&out);
    (void)pthread_cond_destroy(&d.changed);
    (void)pthread_mutex_destroy(&d.lock);
    return d.got;
}

static bool is_change(const ProtobufCMessage *msg)
{
    const Etcdserverpb__WatchResponse *r = (const void *)msg;
    return r->n_events > 0 || r->canceled;
}

void etcd_watch(etcd *e, const char *full_key, int64_t start_revision, int64_t timeout_ms)
{
    Etcdserverpb__WatchRequest req;
    Etcdserverpb__WatchCreateRequest create;
    union {
        const char *in;
        uint8_t *out;
    } key = {.in = full_key};
    int64_t start_ns = bd_mono_ns();
    etcdserverpb__watch_request__init(&req);
    etcdserverpb__watch_create_request__init(&create);
    create.key = (ProtobufCBinaryData){.len = strlen(full_key), .data = key.out};
    create.start_revision = start_revision;
    req.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    req.create_request = &create;
    ProtobufCMessage *got =
        converse(e, "/etcdserverpb.Watch/Watch", &req.base,
                 &etcdserverpb__watch_response__descriptor, is_change, timeout_ms);
    bool refused =
        got == NULL || ((const Etcdserverpb__WatchResponse *)(const void *)got)->canceled;
    if (refused && bd_mono_ns() - start_ns < 100 * BD_NS_PER_MS) {
        bd_sleep_ms(timeout_ms < 100 ? timeout_ms : 100); /* do not storm */
    }
    px_unpacked_free(got);
}

/* ---- leases ---- */
static bd_status grant(etcd *e, int64_t ttl_s, int64_t *id, bd_err *err)
{
    Etcdserverpb__LeaseGrantRequest req;
    ProtobufCMessage *msg = NULL;
    etcdserverpb__lease_grant_request__init(&req);
    req.ttl = ttl_s;
    bd_status rc = etcd_ask(e, "Lease/LeaseGrant", &req.base,
                            &etcdserverpb__lease_grant_response__descriptor, &msg, err);
    if (rc == BD_OK && msg != NULL) {
        *id = ((const Etcdserverpb__LeaseGrantResponse *)(const void *)msg)->id;
    }
    px_unpacked_free(msg);
    return rc;
}

static bool is_any(const ProtobufCMessage *msg)
{
    return msg != NULL;
}

/* False: it has run out, or nobody answered. */
static bool keep_alive(etcd *e, int64_t id, int64_t ttl_s)
{
    Etcdserverpb__LeaseKeepAliveRequest req;
    etcdserverpb__lease_keep_alive_request__init(&req);
    req.id = id;
    ProtobufCMessage *got =
        converse(e, "/etcdserverpb.Lease/LeaseKeepAlive", &req.base,
                 &etcdserverpb__lease_keep_alive_response__descriptor, is_any, ttl_s * 1000 / 2);
    bool lives =
        got != NULL && ((const Etcdserverpb__LeaseKeepAliveResponse *)(const void *)got)->ttl > 0;
    px_unpacked_free(got);
    return lives;
}

bd_status etcd_op_lease(etcd *e, int64_t ttl_s, int64_t *id, bd_err *err)
{
    bd_status rc = BD_OK;
    int64_t now = bd_mono_ns();
    (void)pthread_mutex_lock(&e->lock);
    *id = now < e->op_lease_till ? e->op_lease : 0;
    (void)pthread_mutex_unlock(&e->lock);
    if (*id != 0) {
        return BD_OK;
    }
    rc = grant(e, ttl_s, id, err);
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&e->lock);
        e->op_lease = *id;
        e->op_lease_till = now + ttl_s * BD_NS_PER_S / 2;
        (void)pthread_mutex_unlock(&e->lock);
    }
    return rc;
}

static etcd_lease *find_locked(etcd *e, const char *key)
{
    etcd_lease *l = e->leases;
    while (l != NULL && strcmp(l->key, key) != 0) {
        l = l->next;
    }
    return l;
}

/* Notes a new lease. False: no memory. */
static bool keep_locked(etcd *e, const char *key, int64_t id, int64_t ttl_s)
{
    etcd_lease *l = find_locked(e, key);
    if (l == NULL) {
        l = bd_calloc(1, sizeof *l);
        char *name = l == NULL ? NULL : bd_strdup(key);
        if (name == NULL) {
            bd_free(l);
            return false;
        }
        l->key = name;
        l->next = e->leases;
        e->leases = l;
    }
    bd_free(l->val);
    l->val = NULL;
    l->id = id;
    l->ttl_s = ttl_s;
    return true;
}

void etcd_key_was_set(etcd *e, const char *key, const char *val)
{
    (void)pthread_mutex_lock(&e->lock);
    etcd_lease *l = find_locked(e, key);
    if (l != NULL) {
        bd_free(l->val);
        l->val = bd_strdup(val); /* no memory: set once more next time */
    }
    (void)pthread_mutex_unlock(&e->lock);
}

bd_status etcd_key_lease(etcd *e, const char *key, const char *val, int64_t ttl_s, int64_t *id,
                         bool *again, bd_err *err)
{
    (void)pthread_mutex_lock(&e->lock);
    const etcd_lease *l = find_locked(e, key);
    *id = l != NULL && l->ttl_s == ttl_s ? l->id : 0;
    *again = *id != 0 && l->val != NULL && strcmp(l->val, val) == 0;
    (void)pthread_mutex_unlock(&e->lock);
    if (*id != 0 && keep_alive(e, *id, ttl_s)) {
        return BD_OK;
    }
    *again = false;
    bd_status rc = grant(e, ttl_s, id, err);
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&e->lock);
        bool ok = keep_locked(e, key, *id, ttl_s);
        (void)pthread_mutex_unlock(&e->lock);
        rc = ok ? BD_OK : bd_err_set(err, BD_E_NOMEM, "lease of %s", key);
    }
    return rc;
}

/* ---- life ---- */
static void etcd_free(rpc_store *s)
{
    etcd *e = (etcd *)(void *)s;
    for (size_t i = 0; i < e->n_channels; i++) {
        rpc_channel_free(e->channels[i]);
    }
    while (e->leases != NULL) {
        etcd_lease *l = e->leases;
        e->leases = l->next;
        bd_free(l->key);
        bd_free(l->val);
        bd_free(l);
    }
    (void)pthread_mutex_destroy(&e->lock);
    (void)pthread_mutex_destroy(&e->login);
    bd_free(e->user);
    bd_free(e->password_file);
    bd_free(e->channels);
    bd_free(e->prefix);
    bd_free(e->name);
    bd_free(e);
}

static bd_status connect_all(etcd *e, rpc_env *env, char *endpoints, bool allow_insecure,
                             bd_err *err)
{
    char *rest = NULL;
    bd_status rc = BD_OK;
    const rpc_channel_options opt = {.name = e->name,
                                     .allow_insecure = allow_insecure,
                                     .connect_timeout_ms = TRY_MS,
                                     .to_etcd = true};
    e->channels = bd_calloc(MAX_ENDPOINTS, sizeof(rpc_channel *));
    if (e->channels == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "etcd");
    }
    for (char *word = strtok_r(endpoints, ",", &rest); rc == BD_OK && word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        if (e->n_channels == MAX_ENDPOINTS) {
            return bd_err_set(err, BD_E_USAGE, "etcd: more than %d endpoints", MAX_ENDPOINTS);
        }
        rc = rpc_channel_new(env, word, &opt, &e->channels[e->n_channels], err);
        e->n_channels += rc == BD_OK;
    }
    return rc == BD_OK && e->n_channels == 0
               ? bd_err_set(err, BD_E_USAGE, "etcd:// needs HOST:PORT[,HOST:PORT...]")
               : rc;
}

bd_status etcd_io_new(rpc_env *env, const char *url, const rpc_store_options *opt, etcd **out,
                      bd_err *err)
{
    etcd *e = bd_calloc(1, sizeof *e);
    const rpc_security *sec = env->security;
    const char *slash = strchr(url, '/');
    size_t n = slash == NULL ? strlen(url) : (size_t)(slash - url);
    char *endpoints = bd_strfmt("%.*s", (int)n, url);
    if (e == NULL || endpoints == NULL) {
        bd_free(endpoints);
        bd_free(e);
        return bd_err_set(err, BD_E_NOMEM, "etcd");
    }
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_mutex_init(&e->login, NULL);
    e->base.store.wait_ms = opt->wait_ms;
    e->base.store.free = etcd_free;
    e->name = bd_strfmt("etcd (%s)", endpoints);
    e->prefix = bd_strdup(slash != NULL && slash[1] != '\0' ? slash + 1 : "braid");
    bool has_user = sec != NULL && sec->etcd_user != NULL;
    e->user = has_user ? bd_strdup(sec->etcd_user) : NULL;
    e->password_file = has_user ? bd_strdup(sec->etcd_password_file) : NULL;
    bd_status rc = e->name == NULL || e->prefix == NULL ||
                           (has_user && (e->user == NULL || e->password_file == NULL))
                       ? bd_err_set(err, BD_E_NOMEM, "etcd")
                       : connect_all(e, env, endpoints, opt->allow_insecure, err);
    bd_free(endpoints);
    if (rc != BD_OK) {
        etcd_free(&e->base.store);
        return rc;
    }
    *out = e;
    return BD_OK;
}
