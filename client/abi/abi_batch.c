/* A batch: the ids of one forward pass, grouped by table, and the rows that come for them. */
#include "base/mem.h"

#include "client/abi/abi_int.h"

#include <string.h>

static void batch_unref(braid_batch *b)
{
    if (b == NULL || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    cl_rows_free(b->rows);
    for (size_t i = 0; b->features != NULL && i < b->n_features; i++) {
        bd_free(b->features[i].offsets);
        bd_free(b->features[i].weights);
    }
    for (size_t i = 0; b->groups != NULL && i < b->n_groups; i++) {
        bd_free(b->groups[i].ids);
        bd_free(b->groups[i].offsets);
        bd_free(b->groups[i].weights);
    }
    bd_free(b->features);
    bd_free(b->groups);
    bd_free(b);
}

/* ---- what the caller says ---- */
static size_t bags_of(const braid_feature *f)
{
    return f->offsets == NULL && f->n_bags == 0 ? f->n_ids : f->n_bags;
}

static bd_status check_offsets(const braid_feature *f, size_t i, bd_err *err)
{
    int64_t before = 0;
    if (f->n_bags == 0) {
        return f->n_ids == 0
                   ? BD_OK
                   : bd_err_set(err, BD_E_INVALID, "feature %zu: %zu ids in no bag", i, f->n_ids);
    }
    if (f->offsets[0] != 0) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: offsets[0] is %lld, not 0", i,
                          (long long)f->offsets[0]);
    }
    for (size_t b = 0; b < f->n_bags; b++) {
        if (f->offsets[b] < before || (uint64_t)f->offsets[b] > f->n_ids) {
            return bd_err_set(err, BD_E_INVALID,
                              "feature %zu: offsets[%zu] is %lld, after %lld and with %zu ids", i,
                              b, (long long)f->offsets[b], (long long)before, f->n_ids);
        }
        before = f->offsets[b];
    }
    return BD_OK;
}

static bd_status check_feature(const braid_client *c, const braid_feature *f, size_t i, bd_err *err)
{
    if (f->table == NULL || f->table->c != c) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: no table of this client", i);
    }
    if (f->ids == NULL && f->n_ids > 0) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: ids is NULL", i);
    }
    if (f->n_ids >= UINT32_MAX) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: %zu ids", i, f->n_ids);
    }
    if (f->mode < BRAID_SUM || f->mode > BRAID_MAX) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: mode %d", i, f->mode);
    }
    if (f->weights != NULL && f->mode != BRAID_SUM) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: weights go with BRAID_SUM only", i);
    }
    if (f->first_n < 0) {
        return bd_err_set(err, BD_E_INVALID, "feature %zu: first_n %d", i, f->first_n);
    }
    if (f->offsets == NULL) {
        return bags_of(f) == f->n_ids
                   ? BD_OK
                   : bd_err_set(err, BD_E_INVALID, "feature %zu: %zu bags of %zu ids, no offsets",
                                i, f->n_bags, f->n_ids);
    }
    return check_offsets(f, i, err);
}

/* ---- copies ---- */
/* The ids [*first, *first + result) of a bag are those that count. */
static size_t bag_ids(const braid_feature *f, size_t bag, size_t *first)
{
    if (f->offsets == NULL) {
        *first = bag;
        return 1;
    }
    size_t end = bag + 1 < f->n_bags ? (size_t)f->offsets[bag + 1] : f->n_ids;
    *first = (size_t)f->offsets[bag];
    size_t n = end - *first, most = (size_t)f->first_n;
    return most != 0 && n > most ? most : n;
}

static size_t count_ids(const braid_feature *f)
{
    size_t first = 0, n = 0;
    for (size_t bag = 0; bag < bags_of(f); bag++) {
        n += bag_ids(f, bag, &first);
    }
    return n;
}

static abi_group *group_of(braid_batch *b, const braid_table *table)
{
    for (size_t g = 0; g < b->n_groups; g++) {
        if (b->groups[g].table == table) {
            return &b->groups[g];
        }
    }
    b->groups[b->n_groups].table = table;
    return &b->groups[b->n_groups++];
}

static bd_status copy_feature(braid_batch *b, size_t i, const braid_feature *from, bd_err *err)
{
    abi_feature *f = &b->features[i];
    abi_group *g = group_of(b, from->table);
    *f = (abi_feature){.group_idx = (size_t)(g - b->groups),
                       .first_id = g->n_ids,
                       .first_bag = g->n_bags,
                       .n_ids = count_ids(from),
                       .n_bags = bags_of(from),
                       .mode = from->mode};
    g->n_ids += f->n_ids;
    g->n_bags += f->n_bags;
    g->may_pool = g->may_pool || (from->offsets != NULL && b->c->job.consistency != CL_SYNC);
    g->has_max = g->has_max || from->mode == BRAID_MAX; /* servers sum */
    if (from->offsets != NULL) {
        f->offsets = bd_calloc(f->n_bags + 1, sizeof *f->offsets);
    }
    if (from->weights != NULL) {
        f->weights = bd_calloc(f->n_ids + 1, sizeof *f->weights);
    }
    for (size_t k = 0, at = 0, first = 0; k < f->n_bags; k++) {
        size_t n = bag_ids(from, k, &first);
        if (f->weights != NULL && n > 0) {
            memcpy(f->weights + at, from->weights + first, n * sizeof *f->weights);
        }
        at += n;
        if (f->offsets != NULL) {
            f->offsets[k + 1] = at;
        }
    }
    bool ok = (from->offsets == NULL || f->offsets != NULL) &&
              (from->weights == NULL || f->weights != NULL);
    return ok ? BD_OK : bd_err_set(err, BD_E_NOMEM, "feature %zu", i);
}

static bd_status copy_ids(braid_batch *b, const braid_feature *from, bd_err *err)
{
    for (size_t g = 0; g < b->n_groups; g++) {
        b->groups[g].ids = bd_calloc(b->groups[g].n_ids, sizeof(uint64_t));
        if (b->groups[g].ids == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "batch of %zu ids", b->groups[g].n_ids);
        }
    }
    for (size_t i = 0; i < b->n_features; i++) {
        const abi_feature *f = &b->features[i];
        uint64_t *to = b->groups[f->group_idx].ids + f->first_id;
        for (size_t k = 0, first = 0; k < f->n_bags; k++) {
            size_t n = bag_ids(&from[i], k, &first);
            if (n > 0) {
                memcpy(to, from[i].ids + first, n * sizeof *to);
            }
            to += n;
        }
    }
    return BD_OK;
}

/* The bags of all features of a group as one list, for the servers to pool. */
static bd_status join_bags(braid_batch *b, size_t group_idx, bd_err *err)
{
    abi_group *g = &b->groups[group_idx];
    bool weighted = false;
    for (size_t i = 0; i < b->n_features; i++) {
        const abi_feature *f = &b->features[i];
        weighted = weighted || (f->group_idx == group_idx && f->weights != NULL);
    }
    if (!g->may_pool || g->has_max) {
        return BD_OK;
    }
    g->offsets = bd_calloc(g->n_bags + 1, sizeof *g->offsets);
    g->weights = weighted ? bd_calloc(g->n_ids, sizeof *g->weights) : NULL;
    if (g->offsets == NULL || (weighted && g->weights == NULL)) {
        return bd_err_set(err, BD_E_NOMEM, "batch of %zu ids", g->n_ids);
    }
    for (size_t i = 0; i < b->n_features; i++) {
        const abi_feature *f = &b->features[i];
        for (size_t k = 0; f->group_idx == group_idx && k <= f->n_bags; k++) {
            size_t first = f->offsets == NULL ? k : f->offsets[k];
            g->offsets[f->first_bag + k] = (uint32_t)(f->first_id + first);
        }
        for (size_t k = 0; weighted && f->group_idx == group_idx && k < f->n_ids; k++) {
            g->weights[f->first_id + k] = f->weights == NULL ? 1.0f : f->weights[k];
        }
    }
    return BD_OK;
}

static bd_status prepare(braid_batch *b, bd_err *err)
{
    cl_ids *ids = bd_calloc(b->n_groups, sizeof *ids);
    if (ids == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "batch of %zu tables", b->n_groups);
    }
    for (size_t g = 0; g < b->n_groups; g++) {
        const abi_group *group = &b->groups[g];
        ids[g] = (cl_ids){.table_id = group->table->id,
                          .dim = group->table->dim,
                          .ids = group->ids,
                          .n_ids = group->n_ids,
                          .offsets = group->offsets,
                          .n_bags = group->n_bags,
                          .weights = group->weights};
    }
    bd_status rc = cl_rows_prepare(b->c->cl, ids, b->n_groups, &b->rows, err);
    bd_free(ids);
    return rc;
}

bd_status abi_batch_new(braid_client *c, const braid_feature *features, size_t n, braid_batch **out,
                        bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n; i++) {
        rc = check_feature(c, &features[i], i, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    braid_batch *b = bd_calloc(1, sizeof *b);
    if (b == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "batch");
        return BD_E_NOMEM;
    }
    b->c = c;
    atomic_init(&b->refs, 1);
    b->features = bd_calloc(n, sizeof *b->features);
    b->groups = bd_calloc(n, sizeof *b->groups);
    if (b->features == NULL || b->groups == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "batch of %zu features", n);
        rc = BD_E_NOMEM;
    }
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        b->n_features = i + 1;
        rc = copy_feature(b, i, &features[i], err);
    }
    if (rc == BD_OK) {
        rc = copy_ids(b, features, err);
    }
    for (size_t g = 0; rc == BD_OK && g < b->n_groups; g++) {
        rc = join_bags(b, g, err);
    }
    if (rc == BD_OK) {
        rc = prepare(b, err);
    }
    if (rc != BD_OK) {
        batch_unref(b);
        return rc;
    }
    *out = b;
    return BD_OK;
}

int braid_batch_new(braid_client *client, const braid_feature *features, size_t n,
                    braid_batch **batch, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = abi_batch_new(client, features, n, batch, &e);
    return abi_done(rc, &e, err);
}

void braid_batch_free(braid_batch *batch)
{
    batch_unref(batch);
}

size_t braid_batch_unique(const braid_batch *batch)
{
    size_t n = 0;
    for (size_t g = 0; g < batch->n_groups; g++) {
        n += cl_rows_table(batch->rows, g)->n_unique;
    }
    return n;
}

/* ---- rows ---- */
static bd_status fetch(braid_batch *b, bd_err *err)
{
    if (atomic_load(&b->in_a_backward)) {
        return bd_err_set(err, BD_E_STATE, "the batch has been through backward: make a new one");
    }
    (void)pthread_mutex_lock(&b->c->lock);
    bool is_stale = b->c->job.consistency != CL_ASYNC && b->fetched_after != abi_last_step(b->c);
    bd_status rc = BD_OK;
    if (!b->is_fetched || is_stale) {
        b->is_fetched = false;
        b->fetched_after = abi_last_step(b->c);
        rc = cl_rows_fetch(b->rows, abi_after_step(b->c), err);
        b->is_fetched = rc == BD_OK;
    }
    (void)pthread_mutex_unlock(&b->c->lock);
    return rc;
}

int braid_batch_fetch(braid_batch *batch, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = fetch(batch, &e);
    return abi_done(rc, &e, err);
}

bd_status abi_forward(braid_batch *b, float *const *out, bd_err *err)
{
    bd_status rc = fetch(b, err);
    if (rc == BD_OK) {
        rc = cl_rows_wait(b->rows, err);
        b->is_fetched = false;
    }
    if (rc == BD_OK) {
        abi_pool_forward(b, out);
    }
    return rc;
}

int braid_forward(braid_batch *batch, float *const *out, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = abi_forward(batch, out, &e);
    return abi_done(rc, &e, err);
}

int braid_lookup(braid_table *table, const uint64_t *keys, size_t n, float *out, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_batch *b = NULL;
    braid_feature f = {.table = table, .ids = keys, .n_ids = n, .n_bags = n};
    bd_status rc = abi_batch_new(table->c, &f, 1, &b, &e);
    if (rc == BD_OK) {
        rc = abi_forward(b, &out, &e);
    }
    batch_unref(b);
    return abi_done(rc, &e, err);
}
