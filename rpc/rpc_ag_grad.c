/* Gradients of a context on one node, and their way into the parameters. */
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

void ag_grads_free(ag_grad *g)
{
    while (g != NULL) {
        ag_grad *next = g->next;
        bd_free(g->values);
        bd_free(g->rows);
        bd_free(g->index);
        bd_free(g);
        g = next;
    }
}

static const rpc_param *param_of(const ag_grad *g)
{
    return &g->module->m->params[g->param_idx];
}

static bd_status out_of_memory(const rpc_grad_sink *sink, bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "%s: out of memory for gradients", sink->module->m->name);
}

/* The context's gradient of a parameter; made on first use, at the end of the list, so that reading
 * gives them in the order they came. */
static ag_grad *get_locked(rpc_grad_sink *sink, size_t param_idx)
{
    ag_grad **p = &sink->ctx->grads;
    while (*p != NULL && ((*p)->module != sink->module || (*p)->param_idx != param_idx)) {
        p = &(*p)->next;
    }
    if (*p == NULL) {
        const rpc_param *param = &sink->module->m->params[param_idx];
        ag_grad *g = bd_calloc(1, sizeof *g);
        if (g == NULL) {
            return NULL;
        }
        g->module = sink->module;
        g->param_idx = param_idx;
        if (!param->sparse) {
            g->values = bd_calloc(param->n_rows * param->dim + 1, sizeof *g->values);
            if (g->values == NULL) {
                bd_free(g);
                return NULL;
            }
        }
        *p = g;
    }
    return *p;
}

static bd_status check_locked(const rpc_grad_sink *sink, bd_err *err)
{
    if (sink->ctx->stepping) {
        return bd_err_set(err, BD_E_STATE, "%s: a gradient arrived during the step",
                          sink->module->m->name);
    }
    return ag_ctx_check_locked(sink->ctx, err);
}

bd_status rpc_grad_tag(rpc_grad_sink *sink, size_t param_idx, uint64_t tag, bd_err *err)
{
    (void)pthread_mutex_lock(&sink->ctx->lock);
    bd_status rc = check_locked(sink, err);
    ag_grad *g = rc == BD_OK ? get_locked(sink, param_idx) : NULL;
    if (rc == BD_OK && g == NULL) {
        rc = out_of_memory(sink, err);
    } else if (g != NULL && g->tagged && g->tag != tag) {
        rc =
            bd_err_set(err, BD_E_FENCED,
                       "%s: the context's gradients are of epoch %" PRIu64 ", this one of %" PRIu64,
                       sink->module->m->name, g->tag, tag);
    } else if (g != NULL) {
        g->tag = tag;
        g->tagged = true;
    }
    (void)pthread_mutex_unlock(&sink->ctx->lock);
    return rc;
}

bd_status rpc_grad_add(rpc_grad_sink *sink, size_t param_idx, const float *grad, bd_err *err)
{
    const rpc_param *p = &sink->module->m->params[param_idx];
    (void)pthread_mutex_lock(&sink->ctx->lock);
    bd_status rc = check_locked(sink, err);
    ag_grad *g = rc == BD_OK ? get_locked(sink, param_idx) : NULL;
    if (rc == BD_OK && g == NULL) {
        rc = out_of_memory(sink, err);
    }
    for (size_t i = 0; g != NULL && i < p->n_rows * p->dim; i++) {
        g->values[i] += grad[i];
    }
    (void)pthread_mutex_unlock(&sink->ctx->lock);
    return rc;
}

/* ---- sparse ---- */

static uint32_t *slot_of(const ag_grad *g, uint64_t row)
{
    size_t i = (size_t)bd_mix64(row) & (g->n_index - 1);
    while (g->index[i] != 0 && g->rows[g->index[i] - 1] != row) {
        i = (i + 1) & (g->n_index - 1);
    }
    return &g->index[i];
}

static bool grow_index(ag_grad *g)
{
    if (2 * (g->n_rows + 1) <= g->n_index) {
        return true;
    }
    size_t n = g->n_index == 0 ? 64 : 2 * g->n_index;
    uint32_t *bigger = bd_calloc(n, sizeof *bigger);
    if (bigger == NULL || g->n_rows >= UINT32_MAX / 4) {
        bd_free(bigger);
        return false;
    }
    bd_free(g->index);
    g->index = bigger;
    g->n_index = n;
    for (size_t r = 0; r < g->n_rows; r++) {
        *slot_of(g, g->rows[r]) = (uint32_t)(r + 1);
    }
    return true;
}

/* Where the gradient of row lies; zeroed when new. NULL: out of memory. */
static float *row_of(ag_grad *g, uint64_t row, size_t dim)
{
    if (!grow_index(g)) {
        return NULL;
    }
    uint32_t *slot = slot_of(g, row);
    if (*slot == 0) {
        void *rows = g->rows, *values = g->values;
        bool ok = bd_grow(&rows, &g->cap_rows, g->n_rows + 1, sizeof *g->rows);
        g->rows = rows;
        ok = ok && bd_grow(&values, &g->cap_values, (g->n_rows + 1) * dim, sizeof *g->values);
        g->values = values;
        if (!ok) {
            return NULL;
        }
        memset(g->values + g->n_rows * dim, 0, dim * sizeof *g->values);
        g->rows[g->n_rows++] = row;
        *slot = (uint32_t)g->n_rows;
    }
    return g->values + (size_t)(*slot - 1) * dim;
}

bd_status rpc_grad_add_rows(rpc_grad_sink *sink, size_t param_idx, const uint64_t *rows,
                            const float *grads, size_t n, bd_err *err)
{
    const rpc_param *p = &sink->module->m->params[param_idx];
    (void)pthread_mutex_lock(&sink->ctx->lock);
    bd_status rc = check_locked(sink, err);
    ag_grad *g = rc == BD_OK ? get_locked(sink, param_idx) : NULL;
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        bool is_row = p->any_row || rows[i] < p->n_rows;
        float *into = g != NULL && is_row ? row_of(g, rows[i], p->dim) : NULL;
        if (into == NULL) {
            rc = is_row ? out_of_memory(sink, err)
                        : bd_err_set(err, BD_E_INVALID, "%s.%s: no row %" PRIu64,
                                     sink->module->m->name, p->name, rows[i]);
            break;
        }
        for (size_t d = 0; d < p->dim; d++) {
            into[d] += grads[i * p->dim + d];
        }
    }
    (void)pthread_mutex_unlock(&sink->ctx->lock);
    return rc;
}

/* ---- step ---- */

static void apply(const ag_grad *g, const float *hyper)
{
    const rpc_module *m = g->module->m;
    const rpc_param *p = param_of(g);
    float *state = g->module->state[g->param_idx];
    size_t per_row = m->optim->state_elems(p->dim);
    size_t n = p->sparse ? g->n_rows : p->n_rows;
    for (size_t i = 0; i < n; i++) {
        size_t r = p->sparse ? (size_t)g->rows[i] : i;
        m->optim->step(hyper, p->value + r * p->dim, state + r * per_row, g->values + i * p->dim,
                       p->dim);
    }
}

static bd_status check_optims(const ag_grad *g, bd_err *err)
{
    for (; g != NULL; g = g->next) {
        if (g->module->m->optim == NULL && !g->module->stored) {
            return bd_err_set(err, BD_E_STATE, "module %s has no optimiser", g->module->m->name);
        }
    }
    return BD_OK;
}

/* The store's part of the step, as one. */
static bd_status step_store(rpc_ag_ctx *ctx, double lr_scale, bd_err *err)
{
    const rpc_ag_store *store = ctx->ag->store;
    size_t n = 0, k = 0;
    if (store == NULL) {
        return BD_OK;
    }
    for (const ag_grad *g = ctx->grads; g != NULL; g = g->next) {
        n += g->module->stored && g->n_rows > 0 ? 1 : 0;
    }
    if (n == 0 && !ctx->votes) {
        return BD_OK;
    }
    rpc_step_grad *list = bd_calloc(n + 1, sizeof *list);
    if (list == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "step: out of memory");
    }
    for (const ag_grad *g = ctx->grads; g != NULL; g = g->next) {
        if (g->module->stored && g->n_rows > 0) {
            list[k++] = (rpc_step_grad){.module = g->module->m,
                                        .param_idx = g->param_idx,
                                        .dim = param_of(g)->dim,
                                        .n_rows = g->n_rows,
                                        .tag = g->tag,
                                        .rows = g->rows,
                                        .values = g->values};
        }
    }
    const rpc_ag_step_id id = {
        .client_id = ctx->client_id, .number = ctx->number, .vote = ctx->votes ? &ctx->vote : NULL};
    bd_status rc = store->step(store->user, &id, lr_scale != 0 ? lr_scale : 1.0, list, n, err);
    bd_free(list);
    return rc;
}

static void apply_all(const rpc_ag_ctx *ctx, double lr_scale)
{
    for (const ag_grad *g = ctx->grads; g != NULL; g = g->next) {
        float hyper[NUM_OPTIM_MAX_HYPER];
        if (g->module->stored) {
            continue;
        }
        memcpy(hyper, g->module->m->hyper, sizeof hyper);
        hyper[0] *= lr_scale != 0 ? (float)lr_scale : 1.0f; /* hyper 0 is the learning rate */
        (void)pthread_rwlock_wrlock(&g->module->lock);
        apply(g, hyper);
        (void)pthread_rwlock_unlock(&g->module->lock);
    }
}

bd_status ag_step_local(rpc_ag_ctx *ctx, uint64_t sequence, uint64_t caller, double lr_scale,
                        bool *again, bd_err *err)
{
    (void)pthread_mutex_lock(&ctx->lock);
    uint64_t before = ctx->step_sequence;
    bd_status rc = ag_ctx_check_locked(ctx, err);
    *again = rc == BD_OK && sequence <= ctx->step_sequence;
    if (*again && ctx->step_open && ctx->step_caller == caller) {
        /* A retry by the same node must not hear "done" before it is, here and behind here: it
         * would end the context under the step. */
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "the step still runs");
    }
    if (rc == BD_OK && !*again) {
        rc = check_optims(ctx->grads, err);
        rc = rc == BD_OK ? ag_flows_check_locked(ctx, err) : rc;
    }
    if (rc == BD_OK && !*again) {
        ctx->step_sequence = sequence;
        ctx->step_caller = caller;
        ctx->step_open = true;
        ctx->stepping = true; /* no gradient comes in: the list may be read without the lock */
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    if (rc != BD_OK || *again) {
        return rc;
    }
    rc = step_store(ctx, lr_scale, err); /* first: it alone can fail */
    if (rc == BD_OK) {
        apply_all(ctx, lr_scale);
    }
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->stepping = false;
    if (rc != BD_OK) { /* nothing was done: a retry does it */
        ctx->step_open = false;
        ctx->step_sequence = before;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}
