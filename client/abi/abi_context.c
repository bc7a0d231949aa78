/* A context: row gradients on their way to one step. One record a batch; at the step, records of
 * the same table are merged key by key, in the order in which their first backward came. */
#include "base/mem.h"

#include "client/abi/abi_int.h"
#include "client/cl_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct record {
    braid_batch *batch; /* owned reference */
    float **grads;      /* owned, [n_groups] of [n_unique x dim]; NULL entries: none */
} record;

struct braid_context {
    braid_client *c;
    pthread_mutex_t lock; /* of the array; a record's gradients belong to its backward */
    record **records;     /* owned, [n_records] */
    size_t n_records, cap_records;
};

/* What one step pushes. */
typedef struct outgoing {
    cl_rows *rows;       /* of a record, or merged */
    float *const *grads; /* [n_tables] */
    size_t n_tables;
    cl_rows *merged;            /* owned; NULL: nothing was merged */
    cl_ids *ids;                /* owned, with their arrays */
    float **merged_grads;       /* owned, with their arrays */
    const braid_table **tables; /* owned, [n_tables] */
} outgoing;

static void record_free(record *r)
{
    for (size_t g = 0; r != NULL && r->grads != NULL && g < r->batch->n_groups; g++) {
        bd_free(r->grads[g]);
    }
    if (r != NULL) {
        bd_free(r->grads);
        braid_batch_free(r->batch);
        bd_free(r);
    }
}

static braid_context *context_new(braid_client *c)
{
    braid_context *x = bd_calloc(1, sizeof *x);
    if (x != NULL) {
        x->c = c;
        (void)pthread_mutex_init(&x->lock, NULL);
    }
    return x;
}

int braid_context_new(braid_client *client, braid_context **context, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_context *x = context_new(client);
    if (x == NULL) {
        (void)bd_err_set(&e, BD_E_NOMEM, "context");
        return abi_done(BD_E_NOMEM, &e, err);
    }
    *context = x;
    return abi_done(BD_OK, &e, err);
}

void braid_context_clear(braid_context *context)
{
    (void)pthread_mutex_lock(&context->lock);
    for (size_t i = 0; i < context->n_records; i++) {
        record_free(context->records[i]);
    }
    context->n_records = 0;
    (void)pthread_mutex_unlock(&context->lock);
}

void braid_context_free(braid_context *context)
{
    if (context != NULL) {
        braid_context_clear(context);
        bd_free(context->records);
        (void)pthread_mutex_destroy(&context->lock);
        bd_free(context);
    }
}

/* ---- backward ---- */
/* The batch's record, made when it is the first time; lock held. NULL: no memory. */
static record *record_of(braid_context *x, braid_batch *b)
{
    for (size_t i = 0; i < x->n_records; i++) {
        if (x->records[i]->batch == b) {
            return x->records[i];
        }
    }
    void *records = x->records;
    if (!bd_grow(&records, &x->cap_records, x->n_records + 1, sizeof(record *))) {
        return NULL;
    }
    x->records = records;
    record *r = bd_calloc(1, sizeof *r);
    float **grads = bd_calloc(b->n_groups, sizeof *grads);
    if (r == NULL || grads == NULL) {
        bd_free(r);
        bd_free(grads);
        return NULL;
    }
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    *r = (record){b, grads};
    x->records[x->n_records++] = r;
    return r;
}

static bool has_gradient(const braid_batch *b, size_t group_idx, const float *const *grad_out)
{
    for (size_t k = 0; k < b->n_features; k++) {
        if (b->features[k].group_idx == group_idx && grad_out[k] != NULL) {
            return true;
        }
    }
    return false;
}

bd_status abi_backward(braid_context *x, braid_batch *b, const float *const *grad_out, bd_err *err)
{
    if (b->c != x->c) {
        return bd_err_set(err, BD_E_INVALID, "backward: batch and context are of two clients");
    }
    (void)pthread_mutex_lock(&x->lock);
    record *r = record_of(x, b);
    (void)pthread_mutex_unlock(&x->lock);
    if (r == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "backward");
        return BD_E_NOMEM;
    }
    atomic_store(&b->in_a_backward, true);
    for (size_t g = 0; g < b->n_groups; g++) {
        const cl_table_rows *t = cl_rows_table(b->rows, g);
        if (!has_gradient(b, g, grad_out)) {
            continue;
        }
        if (r->grads[g] == NULL) {
            r->grads[g] = bd_calloc(t->n_rows * t->dim, sizeof(float));
        }
        if (r->grads[g] == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "backward of table %s", b->groups[g].table->name);
        }
        abi_pool_backward(b, g, grad_out, x->c->grad_scale, r->grads[g]);
    }
    return BD_OK;
}

int braid_backward(braid_context *context, braid_batch *batch, const float *const *grad_out,
                   braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = abi_backward(context, batch, grad_out, &e);
    return abi_done(rc, &e, err);
}

static bd_status add(braid_context *x, braid_table *table, const uint64_t *keys, size_t n,
                     const float *grads, bd_err *err)
{
    braid_batch *b = NULL;
    braid_feature f = {.table = table, .ids = keys, .n_ids = n, .n_bags = n};
    bd_status rc = abi_batch_new(table->c, &f, 1, &b, err);
    if (rc == BD_OK) {
        rc = abi_backward(x, b, &grads, err);
    }
    braid_batch_free(b);
    return rc;
}

int braid_context_add(braid_context *context, braid_table *table, const uint64_t *keys, size_t n,
                      const float *grads, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = add(context, table, keys, n, grads, &e);
    return abi_done(rc, &e, err);
}

/* ---- merging ---- */
static void outgoing_deinit(outgoing *o)
{
    cl_rows_free(o->merged);
    for (size_t t = 0; t < o->n_tables; t++) {
        if (o->ids != NULL) {
            bd_free(bd_unconst(o->ids[t].ids));
        }
        if (o->merged_grads != NULL) {
            bd_free(o->merged_grads[t]);
        }
    }
    bd_free(o->ids);
    bd_free(o->merged_grads);
    bd_free(o->tables);
}

/* Index of the table in o, added when new; room for all groups is there. */
static size_t table_of(outgoing *o, const braid_table *table)
{
    size_t t = 0;
    while (t < o->n_tables && o->tables[t] != table) {
        t++;
    }
    if (t == o->n_tables) {
        o->tables[o->n_tables++] = table;
        o->ids[t] = (cl_ids){.table_id = table->id, .dim = table->dim};
    }
    return t;
}

/* Calls fn for every gradient in the context, in order. */
typedef bd_status (*visit_fn)(outgoing *o, const cl_table_rows *rows, size_t table_idx,
                              const float *grads, size_t *at);
static bd_status visit(const braid_context *x, outgoing *o, visit_fn fn, size_t *at)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < x->n_records; i++) {
        const record *r = x->records[i];
        for (size_t g = 0; rc == BD_OK && g < r->batch->n_groups; g++) {
            if (r->grads[g] != NULL) {
                size_t t = table_of(o, r->batch->groups[g].table);
                rc = fn(o, cl_rows_table(r->batch->rows, g), t, r->grads[g], at);
            }
        }
    }
    return rc;
}

static bd_status count_keys(outgoing *o, const cl_table_rows *rows, size_t t, const float *grads,
                            size_t *at)
{
    (void)grads;
    at[t] += rows->n_unique;
    o->ids[t].n_ids = at[t];
    return BD_OK;
}

static bd_status copy_keys(outgoing *o, const cl_table_rows *rows, size_t t, const float *grads,
                           size_t *at)
{
    (void)grads;
    if (o->ids[t].ids == NULL) {
        o->ids[t].ids = bd_calloc(o->ids[t].n_ids, sizeof(uint64_t));
    }
    uint64_t *to = bd_unconst(o->ids[t].ids);
    if (to == NULL) {
        return BD_E_NOMEM;
    }
    if (rows->n_unique > 0) {
        memcpy(to + at[t], rows->keys, rows->n_unique * sizeof *to);
    }
    at[t] += rows->n_unique;
    return BD_OK;
}

static bd_status sum_grads(outgoing *o, const cl_table_rows *rows, size_t t, const float *grads,
                           size_t *at)
{
    const cl_table_rows *m = cl_rows_table(o->merged, t);
    if (o->merged_grads[t] == NULL) {
        o->merged_grads[t] = bd_calloc(m->n_unique * m->dim, sizeof(float));
    }
    if (o->merged_grads[t] == NULL) {
        return BD_E_NOMEM;
    }
    float *by_key = NULL; /* of bags that the servers have pooled */
    if (rows->offsets != NULL) {
        by_key = bd_alloc((rows->n_unique * rows->dim + 1) * sizeof *by_key);
        if (by_key == NULL) {
            return BD_E_NOMEM;
        }
        cl_table_rows_expand(rows, grads, by_key);
        grads = by_key;
    }
    for (size_t i = 0; i < rows->n_unique; i++) {
        float *to = o->merged_grads[t] + (size_t)m->index[at[t] + i] * m->dim;
        const float *from = grads + i * m->dim;
        for (size_t d = 0; d < m->dim; d++) {
            to[d] += from[d];
        }
    }
    bd_free(by_key);
    at[t] += rows->n_unique;
    return BD_OK;
}

static size_t n_groups_of(const braid_context *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_records; i++) {
        n += x->records[i]->batch->n_groups;
    }
    return n;
}

static bd_status merge(const braid_context *x, outgoing *o, bd_err *err)
{
    size_t n = n_groups_of(x);
    bd_status rc = BD_E_NOMEM;
    size_t *at = bd_calloc(3 * n + 1, sizeof *at);
    o->ids = bd_calloc(n, sizeof *o->ids);
    o->merged_grads = bd_calloc(n, sizeof *o->merged_grads);
    o->tables = bd_calloc(n, sizeof(braid_table *));
    if (at != NULL && o->ids != NULL && o->merged_grads != NULL && o->tables != NULL) {
        rc = visit(x, o, count_keys, at);
    }
    if (rc == BD_OK) {
        rc = visit(x, o, copy_keys, at + n);
    }
    if (rc == BD_OK) {
        rc = cl_rows_prepare(x->c->cl, o->ids, o->n_tables, &o->merged, err);
    }
    if (rc == BD_OK) {
        rc = visit(x, o, sum_grads, at + 2 * n);
        o->rows = o->merged;
        o->grads = o->merged_grads;
    }
    bd_free(at);
    return rc == BD_E_NOMEM ? bd_err_set(err, rc, "step") : rc;
}

static bool is_whole(const record *r)
{
    size_t g = 0;
    while (g < r->batch->n_groups && r->grads[g] != NULL) {
        g++;
    }
    return g == r->batch->n_groups;
}

/* A single record with all its gradients goes as it is; everything else is merged. */
static bd_status collect(const braid_context *x, outgoing *o, bd_err *err)
{
    if (x->n_records != 1 || !is_whole(x->records[0])) {
        return merge(x, o, err);
    }
    const record *only = x->records[0];
    size_t n = only->batch->n_groups;
    o->tables = bd_calloc(n, sizeof(braid_table *));
    if (o->tables == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "step");
    }
    for (size_t g = 0; g < n; g++) {
        o->tables[g] = only->batch->groups[g].table;
    }
    o->n_tables = n;
    o->rows = only->batch->rows;
    o->grads = only->grads;
    return BD_OK;
}

static bool is_finite_row(const float *grad, uint32_t dim)
{
    float sum = 0; /* of zeros, unless something is not finite */
    for (size_t d = 0; d < dim; d++) {
        sum += grad[d] * 0.0f;
    }
    return isfinite(sum);
}

/* A key whose gradient row i is, or is part of; NULL: of none (a bag without ids). */
static const uint64_t *key_of_row(const cl_table_rows *rows, size_t i)
{
    if (rows->offsets == NULL) {
        return &rows->keys[i];
    }
    bool is_empty = rows->offsets[i] == rows->offsets[i + 1];
    return is_empty ? NULL : &rows->keys[rows->index[rows->offsets[i]]];
}

static bd_status check_finite(const outgoing *o, bd_err *err)
{
    for (size_t t = 0; t < o->n_tables; t++) {
        const cl_table_rows *rows = cl_rows_table(o->rows, t);
        for (size_t i = 0; i < rows->n_rows; i++) {
            const uint64_t *key = key_of_row(rows, i);
            if (key != NULL && !is_finite_row(o->grads[t] + i * rows->dim, rows->dim)) {
                return bd_err_set(err, BD_E_NUMERIC,
                                  "table \"%s\": the gradient of key %" PRIu64 " is not finite",
                                  o->tables[t]->name, *key);
            }
        }
    }
    return BD_OK;
}

/* ---- the step; client lock held ---- */
/* Some servers may have applied it: it is not sent again. */
static void give_up_push(braid_client *c, bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    cl_push_deinit(c->cl);
    if (cl_borrows_wait(c->cl->borrows, &local) != BD_OK) {
        (void)bd_err_wrap(err, "%s; then", bd_err_text(&local));
    }
    c->is_stuck = c->job.consistency == CL_BOUNDED && c->job.world > 1;
}

/* async and bounded */
static bd_status step_async(braid_client *c, const outgoing *o, double lr_scale, bd_err *err)
{
    if (o->n_tables == 0 && c->job.consistency == CL_ASYNC) {
        return BD_OK;
    }
    cl_set_lr_scale(c->cl, lr_scale);
    bd_status rc = cl_push_start(c->cl, c->next_step, o->rows, o->grads, err);
    if (rc == BD_OK && !c->is_ahead) {
        rc = cl_push_wait(c->cl, err);
    }
    if (rc != BD_OK) {
        give_up_push(c, err);
    }
    return rc;
}

bd_status abi_wait(braid_client *c, bd_err *err)
{
    bd_status rc = c->is_ahead ? cl_push_wait(c->cl, err) : BD_OK;
    if (rc != BD_OK) {
        give_up_push(c, err);
    }
    return rc;
}

int braid_wait(braid_client *client, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = abi_wait(client, &e);
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

/* Alone, a failed step is aborted and the next one may come; with others nobody can know. */
static bd_status step_sync(braid_client *c, const outgoing *o, double lr_scale, bd_err *err)
{
    bd_status rc = cl_push_start(c->cl, c->next_step, o->rows, o->grads, err);
    if (rc == BD_OK) {
        rc = cl_push_wait(c->cl, err);
    }
    if (rc != BD_OK && c->job.world == 1 && rc != BD_E_UNAVAILABLE) {
        bd_err local = BD_ERR_INIT;
        c->is_stuck = cl_commit(c->cl, c->next_step, false, lr_scale, &local) != BD_OK;
        c->next_step += c->is_stuck ? 0u : 1u;
        return rc;
    }
    if (rc == BD_OK) {
        rc = cl_commit(c->cl, c->next_step, true, lr_scale, err);
    }
    c->is_stuck = rc != BD_OK;
    return rc;
}

static bd_status send(braid_client *c, const outgoing *o, double lr_scale, bd_err *err)
{
    (void)pthread_mutex_lock(&c->lock);
    bd_status rc =
        c->is_stuck ? bd_err_set(err, BD_E_STATE,
                                 "step %" PRIu64 " has failed half-way: connect again and restore",
                                 c->next_step)
                    : abi_enter_job(c, err);
    if (rc == BD_OK) {
        rc = c->job.consistency == CL_SYNC ? step_sync(c, o, lr_scale, err)
                                           : step_async(c, o, lr_scale, err);
        c->next_step += rc == BD_OK ? 1u : 0u;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

bd_status abi_step(braid_context *x, double lr_scale, bd_err *err)
{
    outgoing o = {0};
    double scale = lr_scale == 0.0 ? 1.0 : lr_scale;
    if (!isfinite(scale) || scale < 0.0) {
        return bd_err_set(err, BD_E_INVALID, "step: lr_scale %f", lr_scale);
    }
    bd_status rc = collect(x, &o, err);
    if (rc == BD_OK) {
        rc = check_finite(&o, err);
    }
    if (rc == BD_OK) {
        rc = send(x->c, &o, scale, err);
        braid_context_clear(x);
    }
    outgoing_deinit(&o);
    return rc;
}

int braid_step(braid_context *context, double lr_scale, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = abi_step(context, lr_scale, &e);
    return abi_done(rc, &e, err);
}

int braid_push(braid_table *table, const uint64_t *keys, size_t n, const float *grads,
               double lr_scale, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_context *x = context_new(table->c);
    if (x == NULL) {
        (void)bd_err_set(&e, BD_E_NOMEM, "push");
        return abi_done(BD_E_NOMEM, &e, err);
    }
    bd_status rc = add(x, table, keys, n, grads, &e);
    if (rc == BD_OK) {
        rc = abi_step(x, lr_scale, &e);
    }
    braid_context_free(x);
    return abi_done(rc, &e, err);
}
