/* The node: its modules and peers, the clients it knows, and the map of contexts. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- life ---- */

/* Another one in each process, and for each node of one. */
static uint64_t new_instance(void)
{
    static _Atomic uint64_t n;
    uint64_t id = (uint64_t)bd_wall_ns() ^ ((uint64_t)getpid() << 32) ^ ((n++) << 56);
    return bd_mix64(id) | 1;
}

bd_status rpc_ag_new(rpc_env *env, const rpc_ag_options *opt, rpc_ag **out, bd_err *err)
{
    if (opt->client_id == 0 || strlen(opt->name) > AG_NAME_MAX_BYTES) {
        return bd_err_set(err, BD_E_INVALID, "autograd node: needs a client id and a short name");
    }
    rpc_ag *ag = bd_calloc(1, sizeof *ag);
    char *name = bd_strdup(opt->name);
    if (ag == NULL || name == NULL) {
        bd_free(ag);
        bd_free(name);
        return bd_err_set(err, BD_E_NOMEM, "autograd node: out of memory");
    }
    ag->env = env;
    ag->name = name;
    ag->client_id = opt->client_id;
    ag->instance = new_instance();
    ag->deadline_ms = opt->deadline_ms > 0 ? opt->deadline_ms : AG_DEADLINE_MS;
    atomic_init(&ag->next_id, 1);
    ag->next_number = 1;
    (void)pthread_mutex_init(&ag->lock, NULL);
    *out = ag;
    return BD_OK;
}

static void module_free(ag_module *m)
{
    for (size_t i = 0; m->state != NULL && i < m->m->n_params; i++) {
        bd_free(m->state[i]);
    }
    bd_free(m->state);
    (void)pthread_rwlock_destroy(&m->lock);
    bd_free(m);
}

static void peer_free(rpc_ag_peer *p)
{
    bd_free(p->name);
    bd_free(p);
}

bool ag_notice_begin(rpc_ag *ag)
{
    (void)pthread_mutex_lock(&ag->lock);
    bool begun = !ag->closing;
    ag->n_notices += begun ? 1 : 0;
    (void)pthread_mutex_unlock(&ag->lock);
    return begun;
}

void ag_notice_end(rpc_ag *ag)
{
    (void)pthread_mutex_lock(&ag->lock);
    if (--ag->n_notices == 0 && ag->quiet != NULL) {
        rpc_wait_post(ag->quiet);
    }
    (void)pthread_mutex_unlock(&ag->lock);
}

/* Notices still need the node; none begins any more. */
static void wait_for_notices(rpc_ag *ag)
{
    rpc_wait quiet;
    rpc_wait_init(&quiet);
    (void)pthread_mutex_lock(&ag->lock);
    ag->closing = true;
    bool wait = ag->n_notices > 0;
    ag->quiet = wait ? &quiet : NULL;
    (void)pthread_mutex_unlock(&ag->lock);
    if (wait) {
        ag->env->t->block(ag->env, &quiet);
        (void)pthread_mutex_lock(&ag->lock); /* the poster still held it */
        (void)pthread_mutex_unlock(&ag->lock);
    }
    rpc_wait_deinit(&quiet);
}

void rpc_ag_free(rpc_ag *ag)
{
    if (ag == NULL) {
        return;
    }
    for (size_t h = 0; h < AG_CONTEXT_SLOTS; h++) {
        while (ag->map[h] != NULL) {
            rpc_ag_ctx *ctx = ag->map[h];
            ag->map[h] = ctx->map_next;
            ag_ctx_unref(ctx);
        }
    }
    wait_for_notices(ag); /* also those of references that the contexts held */
    ag_values_free(ag);
    while (ag->clients != NULL) {
        ag_client *c = ag->clients;
        ag->clients = c->next;
        ag_client_free(c);
    }
    while (ag->modules != NULL) {
        ag_module *m = ag->modules;
        ag->modules = m->next;
        module_free(m);
    }
    while (ag->peers != NULL) {
        rpc_ag_peer *p = ag->peers;
        ag->peers = p->next;
        peer_free(p);
    }
    (void)pthread_mutex_destroy(&ag->lock);
    bd_free(ag->expired);
    bd_free(ag->name);
    bd_free(ag);
}

bd_status rpc_ag_peer_new(rpc_ag *ag, const char *name, rpc_channel *ch, rpc_ag_peer **out)
{
    rpc_ag_peer *p = bd_calloc(1, sizeof *p);
    char *copy = bd_strdup(name);
    if (p == NULL || copy == NULL) {
        bd_free(p);
        bd_free(copy);
        return BD_E_NOMEM;
    }
    p->ag = ag;
    p->name = copy;
    p->ch = ch;
    (void)pthread_mutex_lock(&ag->lock);
    p->next = ag->peers;
    ag->peers = p;
    (void)pthread_mutex_unlock(&ag->lock);
    *out = p;
    return BD_OK;
}

rpc_ag_peer *ag_peer_find_locked(rpc_ag *ag, const char *name)
{
    rpc_ag_peer *p = ag->peers;
    while (p != NULL && strcmp(p->name, name) != 0) {
        p = p->next;
    }
    return p;
}

/* ---- modules ---- */

static ag_module *module_find_locked(rpc_ag *ag, const char *name)
{
    for (ag_module *m = ag->modules; m != NULL; m = m->next) {
        if (strcmp(m->m->name, name) == 0) {
            return m;
        }
    }
    return NULL;
}

static bd_status ag_register(rpc_ag *ag, const rpc_module *module, bool stored, bd_err *err);

static ag_module *registered(rpc_ag *ag, const char *name)
{
    (void)pthread_mutex_lock(&ag->lock);
    ag_module *m = module_find_locked(ag, name);
    (void)pthread_mutex_unlock(&ag->lock);
    return m;
}

/* Two at once may bring the same one: the second registration does nothing. */
ag_module *ag_module_find(rpc_ag *ag, const char *name)
{
    ag_module *m = registered(ag, name);
    const rpc_module *of_store =
        m == NULL && ag->store != NULL ? ag->store->find(ag->store->user, name) : NULL;
    if (of_store != NULL) {
        bd_err err = BD_ERR_INIT;
        bd_status rc = ag_register(ag, of_store, true, &err);
        m = rc == BD_OK || rc == BD_E_EXISTS ? registered(ag, name) : NULL;
    }
    return m;
}

void rpc_ag_set_store(rpc_ag *ag, const rpc_ag_store *store)
{
    ag->store = store;
}

/* One state per row, so that trainers who touch the same row share it. */
static float *state_new(const rpc_module *m, const rpc_param *p)
{
    size_t per_row = m->optim->state_elems(p->dim), n;
    if (!bd_mul_size(per_row, p->n_rows, &n)) {
        return NULL;
    }
    float *state = bd_calloc(n + 1, sizeof *state);
    for (size_t r = 0; state != NULL && r < p->n_rows; r++) {
        m->optim->init(m->hyper, state + r * per_row, p->dim);
    }
    return state;
}

static bd_status make_states(ag_module *a)
{
    const rpc_module *m = a->m;
    if (m->optim == NULL) {
        return BD_OK;
    }
    a->state = bd_calloc(m->n_params + 1, sizeof *a->state);
    for (size_t i = 0; a->state != NULL && i < m->n_params; i++) {
        a->state[i] = state_new(m, &m->params[i]);
        if (a->state[i] == NULL) {
            return BD_E_NOMEM;
        }
    }
    return a->state != NULL ? BD_OK : BD_E_NOMEM;
}

static bd_status ag_register(rpc_ag *ag, const rpc_module *module, bool stored, bd_err *err)
{
    ag_module *a = bd_calloc(1, sizeof *a);
    if (a == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "module %s: out of memory", module->name);
    }
    a->m = module;
    a->stored = stored;
    (void)pthread_rwlock_init(&a->lock, NULL);
    bd_status rc = make_states(a);
    (void)pthread_mutex_lock(&ag->lock);
    if (rc == BD_OK && module_find_locked(ag, module->name) != NULL) {
        rc = BD_E_EXISTS;
    }
    if (rc == BD_OK) {
        a->next = ag->modules;
        ag->modules = a;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (rc != BD_OK) {
        module_free(a);
        return bd_err_set(err, rc, "module %s: %s", module->name, bd_status_text(rc));
    }
    return BD_OK;
}

bd_status rpc_ag_register(rpc_ag *ag, const rpc_module *module, bd_err *err)
{
    return ag_register(ag, module, false, err);
}

bd_status rpc_ag_read_param(rpc_ag *ag, const char *module, size_t param_idx, float *out,
                            bd_err *err)
{
    ag_module *a = ag_module_find(ag, module);
    if (a == NULL || param_idx >= a->m->n_params || a->m->params[param_idx].value == NULL) {
        return bd_err_set(err, BD_E_NOT_FOUND, "no parameter %zu of a module \"%s\"", param_idx,
                          module);
    }
    const rpc_param *p = &a->m->params[param_idx];
    (void)pthread_rwlock_rdlock(&a->lock);
    memcpy(out, p->value, p->n_rows * p->dim * sizeof *out);
    (void)pthread_rwlock_unlock(&a->lock);
    return BD_OK;
}

/* ---- the map ---- */

static rpc_ag_ctx **head_of(rpc_ag *ag, uint64_t client_id, uint64_t number)
{
    return &ag->map[bd_mix64(bd_mix64(client_id) ^ number) % AG_CONTEXT_SLOTS];
}

static rpc_ag_ctx **find_locked(rpc_ag *ag, uint64_t client_id, uint64_t number)
{
    rpc_ag_ctx **p = head_of(ag, client_id, number);
    while (*p != NULL && ((*p)->client_id != client_id || (*p)->number != number)) {
        p = &(*p)->map_next;
    }
    return p;
}

static bd_status insert_locked(rpc_ag *ag, uint64_t client_id, uint64_t number, rpc_ag_ctx **out)
{
    rpc_ag_ctx *ctx = ag_ctx_new(ag, client_id, number);
    if (ctx == NULL) {
        return BD_E_NOMEM;
    }
    rpc_ag_ctx **head = head_of(ag, client_id, number);
    ctx->map_next = *head;
    *head = ctx;
    ag->n_contexts++;
    *out = ctx;
    return BD_OK;
}

static bd_status get_locked(rpc_ag *ag, uint64_t client_id, uint64_t number, bool create,
                            rpc_ag_ctx **out)
{
    if (ag_client_is_expired_locked(ag, client_id)) {
        return BD_E_CLIENT_EXPIRED;
    }
    ag_client *c = ag_client_get_locked(ag, client_id);
    if (c == NULL) {
        return BD_E_NOMEM;
    }
    *out = *find_locked(ag, client_id, number);
    if (*out != NULL) {
        return BD_OK;
    }
    if (ag_client_has_ended(c, number)) {
        return BD_E_STATE;
    }
    bd_status rc = create ? insert_locked(ag, client_id, number, out) : BD_E_NOT_FOUND;
    c->n_live += rc == BD_OK ? 1 : 0;
    return rc;
}

bd_status ag_ctx_get(rpc_ag *ag, uint64_t client_id, uint64_t number, bool create, rpc_ag_ctx **out,
                     bd_err *err)
{
    rpc_ag_ctx *ctx = NULL;
    (void)pthread_mutex_lock(&ag->lock);
    bd_status rc = get_locked(ag, client_id, number, create, &ctx);
    if (rc == BD_OK) {
        atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (rc != BD_OK) {
        return bd_err_set(err, rc, "context %" PRIu64 "/%" PRIu64 ": %s", client_id, number,
                          rc == BD_E_STATE ? "has ended" : bd_status_text(rc));
    }
    *out = ctx;
    return BD_OK;
}

rpc_ag_ctx *ag_ctx_take(rpc_ag *ag, uint64_t client_id, uint64_t number)
{
    (void)pthread_mutex_lock(&ag->lock);
    ag_client *c =
        ag_client_is_expired_locked(ag, client_id) ? NULL : ag_client_get_locked(ag, client_id);
    rpc_ag_ctx **p = find_locked(ag, client_id, number);
    rpc_ag_ctx *ctx = *p;
    if (ctx != NULL) {
        *p = ctx->map_next;
        ag->n_contexts--;
    }
    if (c != NULL) {
        c->n_live -= ctx != NULL ? 1 : 0;
        ag_client_note_ended(c, number);
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (ctx != NULL) {
        (void)pthread_mutex_lock(&ctx->lock);
        ctx->ended = true;
        (void)pthread_mutex_unlock(&ctx->lock);
    }
    return ctx;
}

bd_status rpc_ag_begin(rpc_ag *ag, rpc_ag_ctx **out, bd_err *err)
{
    (void)pthread_mutex_lock(&ag->lock);
    uint64_t number = ag->next_number++;
    (void)pthread_mutex_unlock(&ag->lock);
    return ag_ctx_get(ag, ag->client_id, number, true, out, err);
}

size_t rpc_ag_n_contexts(rpc_ag *ag)
{
    (void)pthread_mutex_lock(&ag->lock);
    size_t n = ag->n_contexts;
    (void)pthread_mutex_unlock(&ag->lock);
    return n;
}
