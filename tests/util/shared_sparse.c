#include "tests/util/shared_sparse.h"

#include "base/assert.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TABLES = 64, MAX_RANKS = 8 };

typedef struct part { /* one rank's gradients of one table, borrowed until the commit */
    const cl_table_rows *rows;
    const float *grads;
} part;

typedef struct handle {
    wk_sparse base;
    shared_sparse *group;
    int rank;
    wk_lookup *pushed;
} handle;

struct shared_sparse {
    pthread_mutex_t lock;
    wk_sparse *home; /* owned: the tables */
    int world;
    uint32_t table_ids[MAX_TABLES];
    char names[MAX_TABLES][128];
    size_t n_tables, n_in_step;
    part parts[MAX_RANKS][MAX_TABLES];
    uint64_t applied; /* last step decided */
};

static shared_sparse *group_of(wk_sparse *s)
{
    return ((handle *)s)->group;
}

static bd_status table(wk_sparse *s, const cl_table_spec *spec, uint32_t *id, bd_err *err)
{
    shared_sparse *g = group_of(s);
    bd_status rc = BD_OK;
    size_t i = 0;
    (void)pthread_mutex_lock(&g->lock);
    while (i < g->n_tables && strcmp(g->names[i], spec->name) != 0) {
        i++;
    }
    if (i == g->n_tables) {
        BD_ASSERT(i < MAX_TABLES);
        rc = g->home->ops->table(g->home, spec, &g->table_ids[i], err);
        (void)snprintf(g->names[i], sizeof g->names[i], "%s", spec->name);
        g->n_tables++;
    }
    *id = g->table_ids[i];
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

static bd_status prepare(wk_sparse *s, const cl_ids *ids, size_t n, wk_lookup **out, bd_err *err)
{
    wk_sparse *home = group_of(s)->home;
    return home->ops->prepare(home, ids, n, out, err);
}

static bd_status fetch(wk_sparse *s, wk_lookup *l, uint64_t after_step, bd_err *err)
{
    shared_sparse *g = group_of(s);
    (void)pthread_mutex_lock(&g->lock);
    BD_ASSERT(g->applied >= after_step);
    bd_status rc = g->home->ops->fetch(g->home, l, after_step, err);
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

static bd_status nothing(wk_sparse *s, wk_lookup *l, bd_err *err)
{
    (void)s;
    (void)l;
    (void)err;
    return BD_OK;
}

/* The local home's, whose lookups are what we hand out; a lookup does not say whose it is. */
static const wk_sparse_ops *local_ops;

static void find_local_ops(void)
{
    wk_sparse *any = NULL;
    BD_ASSERT(wk_sparse_local_new(NULL, &any, NULL) == BD_OK);
    local_ops = any->ops;
    wk_sparse_free(any);
}

static const wk_sparse_ops *home_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* every rank's thread asks */
    (void)pthread_once(&once, find_local_ops);
    return local_ops;
}

static const cl_table_rows *rows(const wk_lookup *l, size_t i)
{
    return home_ops()->rows(l, i);
}

static void lookup_free(wk_lookup *l)
{
    home_ops()->lookup_free(l);
}

static bd_status push_begin(wk_sparse *s, uint64_t step, wk_lookup *l, double lr_scale, bd_err *err)
{
    (void)step;
    (void)lr_scale;
    (void)err;
    ((handle *)s)->pushed = l;
    return BD_OK;
}

static bd_status push_table(wk_sparse *s, size_t idx, const float *grads, bd_err *err)
{
    handle *h = (handle *)s;
    (void)err;
    (void)pthread_mutex_lock(&h->group->lock);
    h->group->parts[h->rank][idx] = (part){rows(h->pushed, idx), grads};
    h->group->n_in_step = idx + 1 > h->group->n_in_step ? idx + 1 : h->group->n_in_step;
    (void)pthread_mutex_unlock(&h->group->lock);
    return BD_OK;
}

static bd_status done(wk_sparse *s, bd_err *err)
{
    (void)s;
    (void)err;
    return BD_OK;
}

/* All ranks' keys of table i, one rank after the other. */
static cl_ids all_ids(shared_sparse *g, size_t i)
{
    size_t n = 0;
    for (int r = 0; r < g->world; r++) {
        n += g->parts[r][i].rows->n_unique;
    }
    uint64_t *ids = malloc((n + 1) * sizeof *ids);
    BD_ASSERT(ids != NULL);
    n = 0;
    for (int r = 0; r < g->world; r++) {
        const cl_table_rows *p = g->parts[r][i].rows;
        memcpy(ids + n, p->keys, p->n_unique * sizeof *ids);
        n += p->n_unique;
    }
    return (cl_ids){.table_id = g->parts[0][i].rows->table_id,
                    .dim = g->parts[0][i].rows->dim,
                    .ids = ids,
                    .n_ids = n};
}

static float *sum_in_rank_order(shared_sparse *g, size_t i, const cl_table_rows *u)
{
    float *sum = calloc(u->n_unique * (size_t)u->dim + 1, sizeof *sum);
    size_t k = 0;
    BD_ASSERT(sum != NULL);
    for (int r = 0; r < g->world; r++) {
        const part *p = &g->parts[r][i];
        for (size_t j = 0; j < p->rows->n_unique; j++, k++) {
            for (size_t d = 0; d < u->dim; d++) {
                sum[(size_t)u->index[k] * u->dim + d] += p->grads[j * u->dim + d];
            }
        }
    }
    return sum;
}

static bd_status apply(shared_sparse *g, uint64_t step, double lr_scale, bd_err *err)
{
    const wk_sparse_ops *ops = g->home->ops;
    cl_ids ids[MAX_TABLES];
    float *sums[MAX_TABLES];
    wk_lookup *l = NULL;
    for (size_t i = 0; i < g->n_in_step; i++) {
        ids[i] = all_ids(g, i);
    }
    bd_status rc = ops->prepare(g->home, ids, g->n_in_step, &l, err);
    BD_ASSERT(rc == BD_OK && ops->push_begin(g->home, step, l, lr_scale, err) == BD_OK);
    for (size_t i = 0; i < g->n_in_step; i++) {
        sums[i] = sum_in_rank_order(g, i, ops->rows(l, i));
        BD_ASSERT(ops->push_table(g->home, i, sums[i], err) == BD_OK);
    }
    rc = ops->commit_start(g->home, step, true, lr_scale, err);
    for (size_t i = 0; i < g->n_in_step; i++) {
        union {
            const uint64_t *c;
            uint64_t *m;
        } u = {ids[i].ids};
        free(u.m);
        free(sums[i]);
    }
    ops->lookup_free(l);
    return rc;
}

static bd_status commit_start(wk_sparse *s, uint64_t step, bool commit, double lr_scale,
                              bd_err *err)
{
    shared_sparse *g = group_of(s);
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&g->lock);
    if (g->applied < step) { /* the first one acts */
        rc = commit ? apply(g, step, lr_scale, err) : BD_OK;
        g->applied = step;
    }
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

static bd_status drop(wk_sparse *s, uint64_t abort_step, bd_err *err)
{
    (void)s;
    (void)abort_step;
    (void)err;
    return BD_OK;
}

static bd_status param_hash(wk_sparse *s, uint64_t *hash, uint64_t *n_rows, bd_err *err)
{
    shared_sparse *g = group_of(s);
    (void)pthread_mutex_lock(&g->lock);
    bd_status rc = g->home->ops->param_hash(g->home, hash, n_rows, err);
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

static bd_status no_checkpoint(wk_sparse *s, const char *name, uint64_t step, bd_err *err)
{
    (void)s;
    (void)name;
    (void)step;
    (void)err;
    return BD_OK;
}

static bd_status no_delete(wk_sparse *s, const char *name, bd_err *err)
{
    return no_checkpoint(s, name, 0, err);
}

static void handle_free(wk_sparse *s)
{
    bd_free(s);
}

static const wk_sparse_ops shared_ops = {
    .table = table,
    .prepare = prepare,
    .fetch = fetch,
    .wait = nothing,
    .rows = rows,
    .lookup_free = lookup_free,
    .push_begin = push_begin,
    .push_table = push_table,
    .push_end = done,
    .push_wait = done,
    .commit_start = commit_start,
    .commit_wait = done,
    .drop = drop,
    .param_hash = param_hash,
    .checkpoint = no_checkpoint,
    .checkpoint_delete = no_delete,
    .free = handle_free,
};

shared_sparse *shared_sparse_new(int world, wk_sparse **out)
{
    shared_sparse *g = bd_calloc(1, sizeof *g);
    BD_ASSERT(g != NULL && world <= MAX_RANKS);
    (void)pthread_mutex_init(&g->lock, NULL);
    BD_ASSERT(wk_sparse_local_new(NULL, &g->home, NULL) == BD_OK);
    g->world = world;
    for (int r = 0; r < world; r++) {
        handle *h = bd_calloc(1, sizeof *h);
        BD_ASSERT(h != NULL);
        *h = (handle){{&shared_ops}, g, r, NULL};
        out[r] = &h->base;
    }
    return g;
}

void shared_sparse_free(shared_sparse *g)
{
    wk_sparse_free(g->home);
    (void)pthread_mutex_destroy(&g->lock);
    bd_free(g);
}
