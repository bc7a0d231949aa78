#include "rpc/rpc_worker.h"

#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIND_MS       30000
#define LOOK_AGAIN_MS 20
#define SERVICE       "/braid.worker.Functions/"

enum { METHOD_BYTES = 160, KEY_BYTES = 256 };

/* Another worker that has been called. */
typedef struct peer {
    struct peer *next;
    char *name; /* owned */
    rpc_channel *ch;
} peer;

struct rpc_worker {
    rpc_env *env;
    rpc_server *server;
    bd_kv *kv;
    char *name, *group; /* owned */
    int world;
    int64_t find_ms;
    bool allow_insecure;
    pthread_mutex_t lock; /* guards peers */
    peer *peers;
};

static bool method_of(const char *function, char out[METHOD_BYTES])
{
    return snprintf(out, METHOD_BYTES, SERVICE "%s", function) < METHOD_BYTES;
}

static void key_of(const rpc_worker *w, const char *what, const char *name, char out[KEY_BYTES])
{
    (void)snprintf(out, KEY_BYTES, "%s/rpc/%s/%s", w->group, what, name);
}

bd_status rpc_worker_new(rpc_env *env, rpc_server *server, bd_kv *kv, const rpc_worker_options *opt,
                         rpc_worker **out, bd_err *err)
{
    if (strlen(opt->name) > 100 || strlen(opt->group) > 100 || opt->world < 1) {
        return bd_err_set(err, BD_E_INVALID,
                          "worker: name and group have at most 100 bytes, world is at least 1");
    }
    rpc_worker *w = bd_calloc(1, sizeof *w);
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "worker %s: out of memory", opt->name);
    }
    (void)pthread_mutex_init(&w->lock, NULL);
    w->env = env;
    w->server = server;
    w->kv = kv;
    w->world = opt->world;
    w->find_ms = opt->find_ms > 0 ? opt->find_ms : FIND_MS;
    w->allow_insecure = opt->allow_insecure;
    w->name = bd_strdup(opt->name);
    w->group = bd_strdup(opt->group);
    if (w->name == NULL || w->group == NULL) {
        rpc_worker_free(w);
        return bd_err_set(err, BD_E_NOMEM, "worker %s: out of memory", opt->name);
    }
    *out = w;
    return BD_OK;
}

void rpc_worker_free(rpc_worker *w)
{
    if (w == NULL) {
        return;
    }
    while (w->peers != NULL) {
        peer *p = w->peers;
        w->peers = p->next;
        rpc_channel_free(p->ch);
        bd_free(p->name);
        bd_free(p);
    }
    (void)pthread_mutex_destroy(&w->lock);
    bd_free(w->name);
    bd_free(w->group);
    bd_free(w);
}

bd_status rpc_worker_register(rpc_worker *w, const char *function, rpc_handler_fn fn, void *user)
{
    char method[METHOD_BYTES];
    if (!method_of(function, method)) {
        return BD_E_INVALID;
    }
    bd_status rc = rpc_server_register(w->server, method, fn, user);
    return rc == BD_OK ? rpc_server_set_scope(w->server, method, RPC_SCOPE_TRAIN) : rc;
}

bd_status rpc_worker_join(rpc_worker *w, const char *address, bd_err *err)
{
    char key[KEY_BYTES];
    bool first = false;
    key_of(w, "worker", w->name, key);
    bd_status rc = w->kv->compare_set(w->kv, key, NULL, address, &first, err);
    if (rc == BD_OK && !first) {
        rc = bd_err_set(err, BD_E_EXISTS, "a worker called %s has joined already", w->name);
    }
    return rc;
}

/* ---- calls ---- */

static rpc_channel *known_locked(const rpc_worker *w, const char *name)
{
    for (const peer *p = w->peers; p != NULL; p = p->next) {
        if (strcmp(p->name, name) == 0) {
            return p->ch;
        }
    }
    return NULL;
}

/* Two threads may have looked it up: the first one's channel stays. */
static bd_status keep(rpc_worker *w, const char *name, rpc_channel *fresh, rpc_channel **out)
{
    peer *p = bd_calloc(1, sizeof *p);
    char *copy = bd_strdup(name);
    if (p == NULL || copy == NULL) {
        bd_free(p);
        bd_free(copy);
        rpc_channel_free(fresh);
        return BD_E_NOMEM;
    }
    *p = (peer){.name = copy, .ch = fresh};
    (void)pthread_mutex_lock(&w->lock);
    *out = known_locked(w, name);
    bool is_new = *out == NULL;
    if (is_new) {
        p->next = w->peers;
        w->peers = p;
        *out = fresh;
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (!is_new) {
        rpc_channel_free(fresh);
        bd_free(copy);
        bd_free(p);
    }
    return BD_OK;
}

static bd_status find(rpc_worker *w, const char *name, rpc_channel **out, bd_err *err)
{
    char key[KEY_BYTES];
    char *address = NULL;
    size_t n = 0;
    rpc_channel *fresh = NULL;
    (void)pthread_mutex_lock(&w->lock);
    *out = known_locked(w, name);
    (void)pthread_mutex_unlock(&w->lock);
    if (*out != NULL) {
        return BD_OK;
    }
    key_of(w, "worker", name, key);
    rpc_blocking_begin();
    bd_status rc = w->kv->get(w->kv, key, w->find_ms, &address, &n, err);
    rpc_blocking_end();
    if (rc != BD_OK) {
        return bd_err_wrap(err, "worker %s has not joined", name);
    }
    const rpc_channel_options opt = {.name = name, .allow_insecure = w->allow_insecure};
    rc = rpc_channel_new(w->env, address, &opt, &fresh, err);
    bd_free(address);
    if (rc == BD_OK) {
        rc = keep(w, name, fresh, out);
        rc = rc == BD_OK ? BD_OK : bd_err_set(err, rc, "worker %s: out of memory", name);
    }
    return rc;
}

bd_status rpc_worker_call(rpc_worker *w, const char *to, const char *function, bd_chain *request,
                          const rpc_call_options *opt, rpc_future **out, bd_err *err)
{
    char method[METHOD_BYTES];
    rpc_channel *ch = NULL;
    if (!method_of(function, method)) {
        return bd_err_set(err, BD_E_INVALID, "%s: the function's name is too long", to);
    }
    bd_status rc = find(w, to, &ch, err);
    return rc == BD_OK ? rpc_future_call(ch, method, request, opt, out, err) : rc;
}

/* ---- the end ---- */

static void on_time(void *user)
{
    rpc_wait_post(user);
}

/* Lets the env go on serving for a moment (memory: virtual time passes). */
static bd_status pause_ms(const rpc_worker *w, int64_t ms)
{
    rpc_wait wait;
    rpc_wait_init(&wait);
    bd_status rc = w->env->t->after(w->env, ms * BD_NS_PER_MS, on_time, &wait);
    if (rc == BD_OK) {
        w->env->t->block(w->env, &wait);
        /* The poster still holds its lock while it posts. */
        (void)pthread_mutex_lock(&wait.lock);
        (void)pthread_mutex_unlock(&wait.lock);
    }
    rpc_wait_deinit(&wait);
    return rc;
}

bd_status rpc_worker_leave(rpc_worker *w, int64_t timeout_ms, bd_err *err)
{
    char key[KEY_BYTES];
    int64_t n_left = 0;
    const int64_t until = w->env->t->now_ns(w->env) + timeout_ms * BD_NS_PER_MS;
    key_of(w, "left", "n", key);
    bd_status rc = w->kv->add(w->kv, key, 1, &n_left, err);
    while (rc == BD_OK && n_left < w->world) {
        if (w->env->t->now_ns(w->env) >= until) {
            return bd_err_set(err, BD_E_TIMEOUT,
                              "worker %s: %" PRId64 " of %d workers have not finished", w->name,
                              w->world - n_left, w->world);
        }
        rc = pause_ms(w, LOOK_AGAIN_MS);
        rc = rc == BD_OK ? w->kv->add(w->kv, key, 0, &n_left, err)
                         : bd_err_set(err, rc, "worker %s: out of memory", w->name);
    }
    return rc;
}
