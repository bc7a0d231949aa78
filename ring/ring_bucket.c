#include "ring/ring_bucket.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define N_DTYPES 256

/* Buckets as linked lists over parameters while they are filled: one array each, no growing. */
typedef struct filling {
    size_t *bucket_of; /* by position in the order */
    size_t open[N_DTYPES];
    size_t open_bytes[N_DTYPES];
    size_t limit_idx[N_DTYPES];
    size_t first_seen[N_DTYPES]; /* rank of the dtype by first appearance, 0: not seen */
    size_t n_seen;
    size_t n_buckets; /* ids in emission order */
} filling;

typedef struct bucket_key {
    size_t id;
    size_t smallest;
} bucket_key;

#define NONE ((size_t)-1)

/* Ids are given at closing time, so positions of an open bucket carry a provisional mark: the
 * dtype's. emit turns the mark into the id. */
static void emit(filling *f, size_t upto, const ring_bucket_item *items, const size_t *order,
                 int dtype)
{
    for (size_t k = f->open[dtype]; k < upto; k++) {
        if (f->bucket_of[k] == NONE && items[order[k]].dtype == dtype) {
            f->bucket_of[k] = f->n_buckets;
        }
    }
    f->n_buckets++;
    f->open[dtype] = NONE;
    f->open_bytes[dtype] = 0;
}

static void fill(filling *f, const ring_bucket_item *items, size_t n, const size_t *order,
                 const size_t *limits, size_t n_limits)
{
    for (size_t k = 0; k < n; k++) {
        const ring_bucket_item *it = &items[order[k]];
        int d = it->dtype & (N_DTYPES - 1);
        if (it->is_sparse) {
            f->bucket_of[k] = f->n_buckets++;
            continue;
        }
        if (f->first_seen[d] == 0) {
            f->first_seen[d] = ++f->n_seen;
        }
        if (f->open[d] == NONE) {
            f->open[d] = k;
        }
        f->open_bytes[d] += it->n_bytes;
        if (f->open_bytes[d] >= limits[f->limit_idx[d]]) {
            emit(f, k + 1, items, order, d);
            if (f->limit_idx[d] + 1 < n_limits) {
                f->limit_idx[d]++;
            }
        }
    }
    for (size_t seen = 1; seen <= f->n_seen; seen++) {
        for (int d = 0; d < N_DTYPES; d++) {
            if (f->first_seen[d] == seen && f->open[d] != NONE) {
                emit(f, n, items, order, d);
            }
        }
    }
}

static int by_smallest(const void *a, const void *b)
{
    const bucket_key *x = a;
    const bucket_key *y = b;
    return x->smallest < y->smallest ? -1 : x->smallest > y->smallest ? 1 : 0;
}

/* place[id] = position of bucket id in the plan. */
static void place_buckets(const filling *f, size_t n, const size_t *order, bool sort,
                          bucket_key *keys, size_t *place)
{
    for (size_t b = 0; b < f->n_buckets; b++) {
        keys[b] = (bucket_key){.id = b, .smallest = NONE};
    }
    for (size_t k = 0; k < n; k++) {
        bucket_key *key = &keys[f->bucket_of[k]];
        key->smallest = order[k] < key->smallest ? order[k] : key->smallest;
    }
    if (sort) {
        qsort(keys, f->n_buckets, sizeof *keys, by_smallest);
    }
    for (size_t b = 0; b < f->n_buckets; b++) {
        place[keys[b].id] = b;
    }
}

static void write_plan(const filling *f, size_t n, const size_t *order, const size_t *place,
                       ring_bucket_plan *plan)
{
    plan->n_buckets = f->n_buckets;
    for (size_t k = 0; k < n; k++) {
        plan->starts[place[f->bucket_of[k]] + 1]++;
    }
    for (size_t b = 0; b < f->n_buckets; b++) {
        plan->starts[b + 1] += plan->starts[b];
    }
    for (size_t k = 0; k < n; k++) { /* starts as cursors ... */
        plan->params[plan->starts[place[f->bucket_of[k]]]++] = order[k];
    }
    for (size_t b = f->n_buckets; b > 0; b--) { /* ... and back */
        plan->starts[b] = plan->starts[b - 1];
    }
    plan->starts[0] = 0;
}

bd_status ring_bucket_assign(const ring_bucket_item *items, size_t n, const size_t *order,
                             const size_t *limits_bytes, size_t n_limits, ring_bucket_plan *out,
                             bd_err *err)
{
    bd_status rc = BD_OK;
    ring_bucket_plan plan = {0};
    filling *f = bd_calloc(1, sizeof *f);
    size_t *bucket_of = bd_alloc((n + 1) * sizeof *bucket_of);
    size_t *natural = bd_alloc((n + 1) * sizeof *natural);
    size_t *place = bd_alloc((n + 1) * sizeof *place);
    bucket_key *keys = bd_alloc((n + 1) * sizeof *keys);
    plan.starts = bd_calloc(n + 2, sizeof *plan.starts);
    plan.params = bd_calloc(n + 1, sizeof *plan.params);
    if (f == NULL || bucket_of == NULL || natural == NULL || place == NULL || keys == NULL ||
        plan.starts == NULL || plan.params == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "buckets of %zu parameters", n);
        goto out;
    }
    for (size_t k = 0; k < n; k++) {
        bucket_of[k] = NONE;
        natural[k] = k;
    }
    for (int d = 0; d < N_DTYPES; d++) {
        f->open[d] = NONE;
    }
    f->bucket_of = bucket_of;
    const size_t *in_order = order != NULL ? order : natural;
    fill(f, items, n, in_order, limits_bytes, n_limits);
    place_buckets(f, n, in_order, order == NULL, keys, place);
    write_plan(f, n, in_order, place, &plan);
    *out = plan;
    plan = (ring_bucket_plan){0};
out:
    ring_bucket_plan_deinit(&plan);
    bd_free(keys);
    bd_free(place);
    bd_free(natural);
    bd_free(bucket_of);
    bd_free(f);
    return rc;
}

void ring_bucket_plan_deinit(ring_bucket_plan *p)
{
    bd_free(p->starts);
    bd_free(p->params);
    *p = (ring_bucket_plan){0};
}
