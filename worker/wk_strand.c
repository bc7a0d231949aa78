/* Rows of a step in its context. */
#include "worker/wk_strand.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

struct wk_strand_call {
    wk_lookup *lookup; /* borrowed */
    size_t n_tables;
    bool waited;
    bool *given;  /* owned [n_tables]: its gradient has left */
    float **sums; /* owned [n_tables], each NULL until a gradient came to be kept */
    wk_strand_call *next;
};

static const cl_table_rows *table_of(const wk_strand *s, const wk_strand_call *c, size_t idx)
{
    return s->sparse->ops->rows(c->lookup, idx);
}

static size_t elems_of(const cl_table_rows *t)
{
    return t->n_rows * t->dim;
}

static bd_status no_memory(const wk_strand *s, bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "gradients of rows in step %llu",
                      (unsigned long long)s->step);
}

/* Work of the strand itself went wrong: the context has failed. */
static bd_status failed(wk_strand *s, bd_status rc, const bd_err *own, bd_err *err)
{
    bd_err named;
    (void)bd_err_set(&named, rc, "Error on node %s: %s", s->base.name, bd_err_text(own));
    rpc_ag_fail(s->ctx, &named);
    if (err != NULL) {
        *err = *own;
        err->code = rc;
    }
    return rc;
}

/* ---- the context's side ---- */

static bd_status keep_sum(wk_strand *s, wk_strand_call *c, size_t idx, const float *grad, size_t n,
                          bd_err *err)
{
    if (c->sums[idx] == NULL) {
        c->sums[idx] = bd_calloc(n + 1, sizeof *c->sums[idx]);
        if (c->sums[idx] == NULL) {
            return no_memory(s, err);
        }
    }
    float *sum = c->sums[idx];
    for (size_t i = 0; i < n; i++) {
        sum[i] += grad[i];
    }
    return BD_OK;
}

static bd_status on_backward(rpc_ag_strand *base, void *call, size_t idx, const float *grad,
                             size_t n_elems, bd_err *err)
{
    wk_strand *s = (wk_strand *)base;
    wk_strand_call *c = call;
    if (idx >= c->n_tables || n_elems != elems_of(table_of(s, c, idx))) {
        return bd_err_set(err, BD_E_INVALID, "gradient of table %zu does not fit its lookup", idx);
    }
    if (s->state == WK_STRAND_OPEN) {
        return keep_sum(s, c, idx, grad, n_elems, err);
    }
    if (s->state != WK_STRAND_STREAM || c->given[idx]) {
        return bd_err_set(err, BD_E_STATE, "a second gradient of table %zu after the last pass",
                          idx);
    }
    c->given[idx] = true;
    return s->sparse->ops->push_table(s->sparse, idx, grad, err);
}

static bd_status on_decide(rpc_ag_strand *base, bool commit, double lr_scale, bd_err *err)
{
    wk_strand *s = (wk_strand *)base;
    bool has_pushed = s->state == WK_STRAND_PUSHED;
    if (commit && !has_pushed) {
        return bd_err_set(err, BD_E_STATE, "step %llu: its gradients were not pushed",
                          (unsigned long long)s->step);
    }
    if (!has_pushed && s->state == WK_STRAND_STREAM) { /* half a push cannot be decided upon */
        return s->sparse->ops->drop(s->sparse, s->sync && !s->voted ? s->step : 0, err);
    }
    return s->sync && has_pushed
               ? s->sparse->ops->commit_start(s->sparse, s->step, commit, lr_scale, err)
               : BD_OK;
}

static bd_status on_settle(rpc_ag_strand *base, bd_err *err)
{
    wk_strand *s = (wk_strand *)base;
    return s->sync && s->state == WK_STRAND_PUSHED ? s->sparse->ops->commit_wait(s->sparse, err)
                                                   : BD_OK;
}

static void on_drop(rpc_ag_strand *base)
{
    wk_strand *s = (wk_strand *)base;
    bd_err why = BD_ERR_INIT; /* the context's own failure is the one to tell */
    if (s->state != WK_STRAND_STREAM && s->state != WK_STRAND_PUSHED) {
        return;
    }
    if (s->sparse->ops->drop(s->sparse, s->sync && !s->voted ? s->step : 0, &why) != BD_OK) {
        BD_LOG(WARN, "a failed step is not out of the transport", "step", s->step, "why",
               bd_err_text(&why));
    }
}

static const rpc_ag_strand_ops strand_ops = {on_backward, on_decide, on_settle, on_drop};

/* ---- lookups ---- */

bd_status wk_strand_open(wk_strand *s, rpc_ag *ag, wk_sparse *sparse, uint64_t step, bool sync,
                         bd_err *err)
{
    memset(s, 0, sizeof *s);
    bd_status rc = rpc_ag_begin(ag, &s->ctx, err);
    if (rc == BD_OK) {
        s->base = (rpc_ag_strand){&strand_ops, "parameter servers"};
        s->sparse = sparse;
        s->step = step;
        s->sync = sync;
        s->state = WK_STRAND_OPEN;
    }
    return rc;
}

static void call_free(wk_strand_call *c)
{
    for (size_t i = 0; c->sums != NULL && i < c->n_tables; i++) {
        bd_free(c->sums[i]);
    }
    bd_free(c->sums);
    bd_free(c->given);
    bd_free(c);
}

static wk_strand_call *call_new(wk_lookup *l, size_t n_tables)
{
    wk_strand_call *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->lookup = l;
    c->n_tables = n_tables;
    c->sums = bd_calloc(n_tables + 1, sizeof *c->sums);
    c->given = bd_calloc(n_tables + 1, sizeof *c->given);
    if (c->sums == NULL || c->given == NULL) {
        call_free(c);
        return NULL;
    }
    return c;
}

bd_status wk_strand_lookup(wk_strand *s, wk_lookup *l, size_t n_tables, uint64_t after_step,
                           rpc_ag_msg **rows, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    if (s->state != WK_STRAND_OPEN) {
        return bd_err_set(err, BD_E_STATE, "step %llu: a lookup after the last pass",
                          (unsigned long long)s->step);
    }
    wk_strand_call *c = call_new(l, n_tables);
    bd_status rc = c != NULL ? BD_OK : no_memory(s, err);
    if (rc == BD_OK) {
        rc = rpc_ag_recv(s->ctx, &s->base, c, rows, err);
    }
    if (rc != BD_OK) {
        if (c != NULL) {
            call_free(c);
        }
        return rc;
    }
    wk_strand_call **at = &s->calls;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = c;
    rc = s->sparse->ops->fetch(s->sparse, l, after_step, &own);
    return rc == BD_OK ? BD_OK : failed(s, rc, &own, err);
}

bd_status wk_strand_wait(wk_strand *s, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(s->ctx, err);
    if (rc != BD_OK) {
        return rc;
    }
    for (wk_strand_call *c = s->calls; c != NULL && rc == BD_OK; c = c->next) {
        rc = c->waited ? BD_OK : s->sparse->ops->wait(s->sparse, c->lookup, &own);
        c->waited = true;
    }
    return rc == BD_OK ? BD_OK : failed(s, rc, &own, err);
}

/* ---- gradients ---- */

static bool holds_sums(const wk_strand *s)
{
    for (const wk_strand_call *c = s->calls; c != NULL; c = c->next) {
        for (size_t i = 0; i < c->n_tables; i++) {
            if (c->sums[i] != NULL) {
                return true;
            }
        }
    }
    return false;
}

bd_status wk_strand_backward(wk_strand *s, bool last, double lr_scale, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(s->ctx, err);
    if (rc == BD_OK && s->state != WK_STRAND_OPEN) {
        rc = bd_err_set(err, BD_E_STATE, "step %llu: backward after its last pass",
                        (unsigned long long)s->step);
    }
    if (rc != BD_OK) {
        return rc;
    }
    s->lr_scale = lr_scale;
    bool alone = s->calls != NULL && s->calls->next == NULL;
    if (!last || !alone || holds_sums(s)) {
        return BD_OK;
    }
    rc = s->sparse->ops->push_begin(s->sparse, s->step, s->calls->lookup, lr_scale, &own);
    if (rc != BD_OK) {
        return failed(s, rc, &own, err);
    }
    s->state = WK_STRAND_STREAM;
    return BD_OK;
}

/* Zeros for n elements, kept until the strand is closed. */
static bd_status zeros(wk_strand *s, size_t n, const float **out, bd_err *err)
{
    float *mem = bd_calloc(n + 1, sizeof *mem);
    void *items = s->zeros;
    if (mem == NULL || !bd_grow(&items, &s->cap_zeros, s->n_zeros + 1, sizeof *s->zeros)) {
        bd_free(mem);
        return no_memory(s, err);
    }
    s->zeros = items;
    s->zeros[s->n_zeros++] = mem;
    *out = mem;
    return BD_OK;
}

/* The tables of the one lookup that have not left: their sum, or zeros. Every table is pushed. */
static bd_status push_the_rest(wk_strand *s, wk_strand_call *c, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < c->n_tables && rc == BD_OK; i++) {
        const float *grad = c->sums[i];
        if (c->given[i]) {
            continue;
        }
        if (grad == NULL) {
            rc = zeros(s, elems_of(table_of(s, c, i)), &grad, err);
        }
        if (rc == BD_OK) {
            c->given[i] = true;
            rc = s->sparse->ops->push_table(s->sparse, i, grad, err);
        }
    }
    return rc;
}

/* ---- several lookups: one gradient for each key of all of them ---- */

/* Keys of every lookup's part of one table, to be made distinct. */
typedef struct merge {
    cl_ids *ids; /* owned, with their arrays [n] */
    size_t n, cap;
} merge;

static cl_ids *merge_table(merge *m, const cl_table_rows *t)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->ids[i].table_id == t->table_id) {
            return &m->ids[i];
        }
    }
    void *items = m->ids;
    if (!bd_grow(&items, &m->cap, m->n + 1, sizeof *m->ids)) {
        return NULL;
    }
    m->ids = items;
    m->ids[m->n] = (cl_ids){.table_id = t->table_id, .dim = t->dim};
    return &m->ids[m->n++];
}

static bool merge_add(merge *m, const cl_table_rows *t)
{
    cl_ids *ids = merge_table(m, t);
    uint64_t *all = ids != NULL ? bd_alloc((ids->n_ids + t->n_unique + 1) * sizeof *all) : NULL;
    if (all == NULL) {
        return false;
    }
    if (ids->n_ids > 0) {
        memcpy(all, ids->ids, ids->n_ids * sizeof *all);
    }
    if (t->n_unique > 0) {
        memcpy(all + ids->n_ids, t->keys, t->n_unique * sizeof *all);
    }
    union {
        const uint64_t *in;
        void *out;
    } old = {.in = ids->ids};
    bd_free(old.out);
    ids->ids = all;
    ids->n_ids += t->n_unique;
    return true;
}

static void merge_deinit(merge *m)
{
    for (size_t i = 0; i < m->n; i++) {
        union {
            const uint64_t *in;
            void *out;
        } u = {.in = m->ids[i].ids};
        bd_free(u.out);
    }
    bd_free(m->ids);
}

/* into[index[r]] += rows of one lookup, each of `dim`. */
static void add_rows(float *into, const uint32_t *index, const float *rows, size_t n, size_t dim)
{
    for (size_t r = 0; r < n; r++) {
        float *to = into + (size_t)index[r] * dim;
        for (size_t d = 0; d < dim; d++) {
            to[d] += rows[r * dim + d];
        }
    }
}

/* Adds the sums of all lookups to the merged gradients of table m_idx; index runs over the keys in
 * the order in which merge_add saw them. scratch: room for the gradients of one lookup. */
static void merge_sums(wk_strand *s, size_t m_idx, float *scratch)
{
    const cl_table_rows *all = s->sparse->ops->rows(s->merged, m_idx);
    size_t at = 0;
    for (const wk_strand_call *c = s->calls; c != NULL; c = c->next) {
        for (size_t i = 0; i < c->n_tables; i++) {
            const cl_table_rows *t = table_of(s, c, i);
            if (t->table_id != all->table_id) {
                continue;
            }
            const float *sums = c->sums[i];
            if (sums != NULL && t->offsets != NULL) { /* of bags */
                cl_table_rows_expand(t, sums, scratch);
                sums = scratch;
            }
            if (sums != NULL) {
                add_rows(s->merged_grads[m_idx], all->index + at, sums, t->n_unique, all->dim);
            }
            at += t->n_unique;
        }
    }
}

static bd_status merge_all(wk_strand *s, bd_err *err)
{
    merge m = {0};
    bool ok = true;
    bd_status rc = BD_OK;
    for (const wk_strand_call *c = s->calls; c != NULL; c = c->next) {
        for (size_t i = 0; i < c->n_tables && ok; i++) {
            ok = merge_add(&m, table_of(s, c, i));
        }
    }
    if (ok) {
        rc = s->sparse->ops->prepare(s->sparse, m.ids, m.n, &s->merged, err);
        s->merged_grads = rc == BD_OK ? bd_calloc(m.n + 1, sizeof *s->merged_grads) : NULL;
        s->n_merged = s->merged_grads != NULL ? m.n : 0;
        ok = rc != BD_OK || s->merged_grads != NULL;
    }
    for (size_t i = 0; i < s->n_merged && ok; i++) {
        const cl_table_rows *t = s->sparse->ops->rows(s->merged, i);
        float *scratch =
            bd_alloc((elems_of(t) + 1) * sizeof *scratch); /* no lookup has more keys */
        s->merged_grads[i] = bd_calloc(elems_of(t) + 1, sizeof(float));
        ok = s->merged_grads[i] != NULL && scratch != NULL;
        if (ok) {
            merge_sums(s, i, scratch);
        }
        bd_free(scratch);
    }
    merge_deinit(&m);
    return ok ? rc : no_memory(s, err);
}

static bd_status push_merged(wk_strand *s, bd_err *err)
{
    bd_status rc = merge_all(s, err);
    if (rc == BD_OK) {
        rc = s->sparse->ops->push_begin(s->sparse, s->step, s->merged, s->lr_scale, err);
    }
    if (rc == BD_OK) {
        s->state = WK_STRAND_STREAM;
    }
    for (size_t i = 0; i < s->n_merged && rc == BD_OK; i++) {
        rc = s->sparse->ops->push_table(s->sparse, i, s->merged_grads[i], err);
    }
    return rc;
}

static bd_status push_kept(wk_strand *s, bd_err *err)
{
    bd_status rc =
        s->sparse->ops->push_begin(s->sparse, s->step, s->calls->lookup, s->lr_scale, err);
    if (rc == BD_OK) {
        s->state = WK_STRAND_STREAM;
        rc = push_the_rest(s, s->calls, err);
    }
    return rc;
}

bd_status wk_strand_push(wk_strand *s, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(s->ctx, err);
    if (rc == BD_OK && (s->state == WK_STRAND_PUSHED || s->calls == NULL)) {
        rc = bd_err_set(err, BD_E_STATE, "step %llu: nothing to push", (unsigned long long)s->step);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (s->state == WK_STRAND_STREAM) {
        rc = push_the_rest(s, s->calls, &own);
    } else {
        rc = s->calls->next == NULL ? push_kept(s, &own) : push_merged(s, &own);
    }
    if (rc == BD_OK) {
        rc = s->sparse->ops->push_end(s->sparse, &own);
    }
    if (rc != BD_OK) {
        return failed(s, rc, &own, err);
    }
    s->state = WK_STRAND_PUSHED;
    return BD_OK;
}

bd_status wk_strand_push_wait(wk_strand *s, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(s->ctx, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = s->sync ? s->sparse->ops->push_wait(s->sparse, &own) : BD_OK;
    if (rc != BD_OK) {
        return failed(s, rc, &own, err);
    }
    return rpc_ag_check(s->ctx, err); /* what failed elsewhere meanwhile */
}

/* ---- end ---- */

void wk_strand_fail(wk_strand *s, const bd_err *why)
{
    if (s->state != WK_STRAND_CLOSED) {
        rpc_ag_fail(s->ctx, why);
    }
}

bd_status wk_strand_close(wk_strand *s, bd_err *err)
{
    if (s->state == WK_STRAND_CLOSED) {
        return BD_OK;
    }
    bd_status rc = rpc_ag_end(s->ctx, err);
    while (s->calls != NULL) {
        wk_strand_call *c = s->calls;
        s->calls = c->next;
        call_free(c);
    }
    for (size_t i = 0; i < s->n_zeros; i++) {
        bd_free(s->zeros[i]);
    }
    for (size_t i = 0; i < s->n_merged; i++) {
        bd_free(s->merged_grads[i]);
    }
    if (s->merged != NULL) {
        s->sparse->ops->lookup_free(s->merged);
    }
    bd_free(s->zeros);
    bd_free(s->merged_grads);
    memset(s, 0, sizeof *s);
    return rc;
}
