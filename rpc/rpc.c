/* The public functions: heads of the objects, and dispatch to the transport's table. */
#include "rpc/rpc.h"

#include "base/assert.h"
#include "base/mem.h"

#include "rpc/rpc_gate.h"
#include "rpc/rpc_int.h"
#include "rpc/rpc_status.h"

#include <string.h>

void rpc_wait_init(rpc_wait *w)
{
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->cond, NULL);
    w->done = false;
}

void rpc_wait_deinit(rpc_wait *w)
{
    (void)pthread_cond_destroy(&w->cond);
    (void)pthread_mutex_destroy(&w->lock);
}

void rpc_wait_post(rpc_wait *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->done = true;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
}

void rpc_wait_block(rpc_wait *w)
{
    rpc_blocking_begin();
    (void)pthread_mutex_lock(&w->lock);
    while (!w->done) {
        (void)pthread_cond_wait(&w->cond, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    rpc_blocking_end();
}

void rpc_env_free(rpc_env *env)
{
    if (env != NULL) {
        env->t->env_free(env);
    }
}

/* ---- channels ---- */

static rpc_security *security_for(const rpc_env *env, bool to_etcd)
{
    rpc_security *sec = env->security;
    return to_etcd && sec != NULL && sec->etcd != NULL ? sec->etcd : sec;
}

bd_status rpc_channel_init(rpc_channel *ch, rpc_env *env, const char *target,
                           const rpc_channel_options *opt)
{
    ch->name = bd_strdup(opt != NULL && opt->name != NULL ? opt->name : target);
    if (ch->name == NULL) {
        return BD_E_NOMEM;
    }
    ch->t = env->t;
    ch->env = env;
    ch->to_etcd = opt != NULL && opt->to_etcd;
    ch->security = security_for(env, ch->to_etcd);
    atomic_init(&ch->refs, 1);
    (void)pthread_mutex_init(&ch->lock, NULL);
    return BD_OK;
}

void rpc_channel_deinit(rpc_channel *ch)
{
    rpc_own_token_unref(ch->token);
    (void)pthread_mutex_destroy(&ch->lock);
    bd_free(ch->name);
}

bd_status rpc_channel_set_token(rpc_channel *ch, const char *token, bd_err *err)
{
    rpc_own_token *t = NULL;
    BD_ASSERT(ch->to_etcd);
    if (token[0] != '\0') {
        size_t n = strlen(token);
        t = bd_alloc(sizeof *t + n);
        if (t == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "%s: token", ch->name);
        }
        atomic_init(&t->refs, 1);
        t->n = n;
        memcpy(t->text, token, n);
    }
    (void)pthread_mutex_lock(&ch->lock);
    rpc_own_token *old = ch->token;
    ch->token = t;
    (void)pthread_mutex_unlock(&ch->lock);
    rpc_own_token_unref(old);
    return BD_OK;
}

rpc_own_token *rpc_channel_token(rpc_channel *ch)
{
    rpc_security *sec = ch->env->security;
    if (!ch->to_etcd) {
        rpc_security_poll(sec, ch->t->now_ns(ch->env));
        return sec != NULL && sec->has_own ? rpc_security_own(sec) : NULL;
    }
    (void)pthread_mutex_lock(&ch->lock);
    rpc_own_token *t = ch->token;
    if (t != NULL) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&ch->lock);
    return t;
}

/* A secret that calls on such a channel may carry, NULL: none. */
static const char *secret_of(const rpc_security *sec, bool to_etcd)
{
    if (sec == NULL || sec->allow_insecure) {
        return NULL;
    }
    return to_etcd ? (sec->etcd_user != NULL ? "a password" : NULL)
                   : (sec->has_own ? "a token" : NULL);
}

void rpc_channel_unref(rpc_channel *ch)
{
    if (atomic_fetch_sub_explicit(&ch->refs, 1, memory_order_acq_rel) == 1) {
        ch->t->channel_destroy(ch);
    }
}

bd_status rpc_channel_new(rpc_env *env, const char *target, const rpc_channel_options *opt,
                          rpc_channel **out, bd_err *err)
{
    static const rpc_channel_options defaults;
    opt = opt != NULL ? opt : &defaults;
    const char *secret = secret_of(env->security, opt->to_etcd);
    const char *option = opt->to_etcd ? "etcd_ca" : "tls_ca";
    bool is_plain =
        !rpc_security_calls_tls(security_for(env, opt->to_etcd)) && !rpc_target_is_local(target);
    if (is_plain && secret != NULL) {
        return bd_err_set(err, BD_E_DENIED,
                          "%s: %s is not sent in plain text to another host: set %s, or the option "
                          "that allows insecure connections",
                          target, secret, option);
    }
    if (is_plain && !opt->allow_insecure) {
        return bd_err_set(err, BD_E_DENIED,
                          "%s: plain text is allowed on this host only (loopback, unix socket): "
                          "set %s, or the option that allows insecure connections",
                          target, option);
    }
    rpc_stats_register();
    return env->t->channel_new(env, target, opt, out, err);
}

void rpc_channel_free(rpc_channel *ch)
{
    if (ch == NULL) {
        return;
    }
    rpc_wait idle;
    rpc_wait_init(&idle);
    bool wait = !ch->t->on_env_thread(ch->env);
    (void)pthread_mutex_lock(&ch->lock);
    ch->closed = true;
    for (rpc_call *c = ch->calls; c != NULL; c = c->next) {
        rpc_call_cancel(c);
    }
    for (rpc_stream *s = ch->streams; s != NULL; s = s->next) {
        ch->t->stream_cancel(s);
    }
    wait = wait && (ch->calls != NULL || ch->streams != NULL);
    ch->idle = wait ? &idle : NULL;
    (void)pthread_mutex_unlock(&ch->lock);
    if (wait) {
        ch->t->block(ch->env, &idle);
        /* The poster still holds the channel's lock while it posts. */
        (void)pthread_mutex_lock(&ch->lock);
        ch->idle = NULL;
        (void)pthread_mutex_unlock(&ch->lock);
    }
    rpc_wait_deinit(&idle);
    rpc_channel_unref(ch);
}

/* ---- streams ---- */

bool rpc_channel_enter_stream(rpc_channel *ch, rpc_stream *s)
{
    (void)pthread_mutex_lock(&ch->lock);
    bool open = !ch->closed;
    if (open) {
        s->prev = NULL;
        s->next = ch->streams;
        if (s->next != NULL) {
            s->next->prev = s;
        }
        ch->streams = s;
    }
    (void)pthread_mutex_unlock(&ch->lock);
    return open;
}

void rpc_channel_leave_stream(rpc_channel *ch, rpc_stream *s)
{
    (void)pthread_mutex_lock(&ch->lock);
    if (s->prev != NULL) {
        s->prev->next = s->next;
    } else {
        ch->streams = s->next;
    }
    if (s->next != NULL) {
        s->next->prev = s->prev;
    }
    if (ch->idle != NULL && ch->calls == NULL && ch->streams == NULL) {
        rpc_wait_post(ch->idle);
    }
    (void)pthread_mutex_unlock(&ch->lock);
}

bd_status rpc_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                          rpc_stream **out, bd_err *err)
{
    bd_status rc = ch->t->stream_open(ch, method, ev, out, err);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "%s %s", ch->name, method);
    }
    return rc;
}

void rpc_stream_count_start(rpc_stream *s, rpc_side side, const char *method, int64_t now_ns)
{
    s->stats = rpc_stats_of(side, method);
    s->start_ns = now_ns;
}

void rpc_stream_count_message(const rpc_stream *s, size_t n_bytes, bool sent)
{
    rpc_stats_add(sent ? &s->stats->sent_messages : &s->stats->received_messages, 1);
    rpc_stats_add(sent ? &s->stats->sent_bytes : &s->stats->received_bytes, n_bytes);
}

bd_status rpc_stream_send(rpc_stream *s, bd_chain *msg, bd_err *err)
{
    return s->t->stream_send(s, msg, err);
}

void rpc_stream_finish(rpc_stream *s)
{
    s->t->stream_finish(s);
}

void rpc_stream_cancel(rpc_stream *s)
{
    s->t->stream_cancel(s);
}

bool rpc_stream_may(const rpc_stream *s, const char *method)
{
    return s->scope >= rpc_scope_of_method(method);
}

rpc_stream *rpc_stream_ref(rpc_stream *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rpc_stream_unref(rpc_stream *s)
{
    if (s != NULL && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        s->t->stream_destroy(s);
    }
}

/* ---- servers ---- */

bd_status rpc_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out, bd_err *err)
{
    if (!rpc_security_serves_tls(env->security) && !opt->allow_insecure &&
        !rpc_target_is_local(opt->listen)) {
        return bd_err_set(err, BD_E_DENIED,
                          "listen on %s: plain text is allowed on loopback and unix sockets only: "
                          "set tls_cert and tls_key, or the option that allows insecure "
                          "connections",
                          opt->listen);
    }
    rpc_gate_register_metrics();
    rpc_security_register_metrics();
    rpc_peers_register_metrics();
    rpc_stats_register();
    return env->t->server_new(env, opt, out, err);
}

bd_status rpc_server_init(rpc_server *s, rpc_env *env, const rpc_limits *limits)
{
    s->t = env->t;
    s->env = env;
    bd_status rc = rpc_peers_new(limits, &s->peers);
    rc = rc == BD_OK ? rpc_health_new(s, &s->health) : rc;
    return rc == BD_OK ? rpc_reflection_register(s) : rc;
}

void rpc_server_deinit(rpc_server *s)
{
    rpc_health_free(s->health);
    rpc_peers_free(s->peers);
    for (size_t i = 0; i < s->n_methods; i++) {
        bd_free(s->methods[i].path);
    }
    bd_free(s->methods);
}

static bd_status add_method(rpc_server *s, const rpc_method *m, const char *path)
{
    if (s->started) {
        return BD_E_STATE;
    }
    for (size_t i = 0; i < s->n_methods; i++) {
        if (strcmp(s->methods[i].path, path) == 0) {
            return BD_E_EXISTS;
        }
    }
    void *items = s->methods;
    if (!bd_grow(&items, &s->cap_methods, s->n_methods + 1, sizeof *s->methods)) {
        return BD_E_NOMEM;
    }
    s->methods = items;
    char *copy = bd_strdup(path);
    if (copy == NULL) {
        return BD_E_NOMEM;
    }
    rpc_method *slot = &s->methods[s->n_methods++];
    *slot = *m;
    slot->path = copy;
    slot->scope = rpc_scope_of_method(path);
    slot->stats = rpc_stats_of(RPC_SERVER_SIDE, path);
    return BD_OK;
}

bd_status rpc_server_set_scope(rpc_server *s, const char *method, rpc_scope scope)
{
    if (s->started) {
        return BD_E_STATE;
    }
    for (size_t i = 0; i < s->n_methods; i++) {
        if (strcmp(s->methods[i].path, method) == 0) {
            s->methods[i].scope = scope;
            return BD_OK;
        }
    }
    return BD_E_NOT_FOUND;
}

bd_status rpc_server_register(rpc_server *s, const char *method, rpc_handler_fn fn, void *user)
{
    return add_method(s, &(rpc_method){.fn = fn, .user = user}, method);
}

bd_status rpc_server_register_inline(rpc_server *s, const char *method, rpc_handler_fn fn,
                                     void *user)
{
    return add_method(s, &(rpc_method){.fn = fn, .user = user, .is_inline = true}, method);
}

bd_status rpc_server_register_stream(rpc_server *s, const char *method, rpc_stream_handler_fn fn,
                                     void *user)
{
    return add_method(s, &(rpc_method){.stream_fn = fn, .user = user}, method);
}

bd_status rpc_server_start(rpc_server *s, bd_err *err)
{
    if (s->started) {
        return bd_err_set(err, BD_E_STATE, "the server has been started before");
    }
    s->started = true;
    return s->t->server_start(s, err);
}

int rpc_server_port(const rpc_server *s)
{
    return s->t->server_port(s);
}

void rpc_server_set_serving(rpc_server *s, bool serving)
{
    rpc_health_set(s->health, serving);
}

bd_status rpc_server_set_service(rpc_server *s, const char *name, bool serving)
{
    return rpc_health_set_named(s->health, name, serving);
}

void rpc_server_stop(rpc_server *s, int64_t grace_ms)
{
    rpc_health_set(s->health, false);
    s->t->server_stop(s, grace_ms);
}

void rpc_server_free(rpc_server *s)
{
    if (s != NULL) {
        rpc_server_stop(s, 0);
        s->t->server_destroy(s);
    }
}

/* ---- requests ---- */

void rpc_req_count(rpc_req *req, rpc_server *s, const rpc_method *m, size_t n_bytes, rpc_peer *peer)
{
    req->server = s;
    req->stats = m != NULL ? m->stats : rpc_stats_of(RPC_SERVER_SIDE, NULL);
    req->start_ns = s->t->now_ns(s->env);
    req->peer = peer;
    req->n_charged = n_bytes;
    rpc_stats_add(&req->stats->received_bytes, n_bytes);
}

void rpc_req_count_end(rpc_req *req, bd_status rc, size_t n_bytes)
{
    rpc_server *s = req->server;
    if (s == NULL) {
        return;
    }
    if (req->peer != NULL) {
        rpc_peers_leave(s->peers, req->peer, req->n_charged);
    }
    rpc_stats_add(&req->stats->sent_bytes, n_bytes);
    rpc_stats_call(req->stats, rc, s->t->now_ns(s->env) - req->start_ns);
    req->server = NULL;
}

void rpc_req_run(rpc_req *req)
{
    req->method->fn(req->method->user, req);
}

bool rpc_req_may(const rpc_req *req, const char *method)
{
    return req->scope >= rpc_scope_of_method(method);
}

bd_chain *rpc_req_body(rpc_req *req)
{
    return &req->body;
}

bool rpc_req_cancelled(rpc_req *req)
{
    return req->t->req_cancelled(req);
}

int64_t rpc_req_ms_left(rpc_req *req)
{
    return req->t->req_ms_left(req);
}

static void end_once(rpc_req *req)
{
    bool before = atomic_exchange_explicit(&req->ended, true, memory_order_relaxed);
    BD_ASSERT(!before);
}

void rpc_req_reply(rpc_req *req, bd_chain *reply)
{
    end_once(req);
    bd_chain_deinit(&req->body); /* received slices go back before the answer leaves */
    rpc_req_count_end(req, BD_OK, reply->n_bytes);
    req->t->req_reply(req, reply);
}

void rpc_req_fail(rpc_req *req, const bd_err *err)
{
    end_once(req);
    bd_chain_deinit(&req->body);
    bd_status code = err->code < 0 ? err->code : BD_E_INTERNAL;
    rpc_req_count_end(req, code, 0);
    req->t->req_fail(req, code, bd_err_text(err));
}
