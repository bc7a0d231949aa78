/* Pooling of rows into bags, and its gradient: the two inner loops of an embedding bag. Ids are
 * summed in their order, so that a result depends on the batch only. */
#include "client/abi/abi_int.h"

#include <math.h>
#include <string.h>

static size_t bag_first(const abi_feature *f, size_t bag)
{
    return f->offsets == NULL ? bag : f->offsets[bag];
}

/* What the sum of a bag of n ids is divided by. */
static float divisor(const abi_feature *f, size_t n)
{
    if (n == 0 || (f->mode != BRAID_MEAN && f->mode != BRAID_SQRTN)) {
        return 1.0f;
    }
    return f->mode == BRAID_MEAN ? (float)n : sqrtf((float)n);
}

static float weight(const abi_feature *f, size_t i)
{
    return f->weights == NULL ? 1.0f : f->weights[i];
}

static const float *row_of(const abi_feature *f, const cl_table_rows *t, size_t i)
{
    return t->rows + (size_t)t->index[f->first_id + i] * t->dim;
}

/* Which id of [first, end) has the largest element d: the first of equals; a NaN is larger. */
static size_t largest(const abi_feature *f, const cl_table_rows *t, size_t first, size_t end,
                      size_t d)
{
    size_t best = first;
    for (size_t i = first + 1; i < end; i++) {
        float x = row_of(f, t, i)[d], most = row_of(f, t, best)[d];
        best = !isnan(most) && (isnan(x) || x > most) ? i : best;
    }
    return best;
}

static void add_scaled(float *acc, const float *x, float by, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        acc[i] += by * x[i];
    }
}

/* Once, as PyTorch does. */
static void divide(float *x, float by, size_t n)
{
    for (size_t i = 0; by != 1.0f && i < n; i++) {
        x[i] /= by;
    }
}

static void pool_bag(const abi_feature *f, const cl_table_rows *t, size_t bag, float *out)
{
    size_t first = bag_first(f, bag), end = bag_first(f, bag + 1), dim = t->dim;
    memset(out, 0, dim * sizeof *out);
    for (size_t d = 0; f->mode == BRAID_MAX && end > first && d < dim; d++) {
        out[d] = row_of(f, t, largest(f, t, first, end, d))[d];
    }
    for (size_t i = first; f->mode != BRAID_MAX && i < end; i++) {
        add_scaled(out, row_of(f, t, i), weight(f, i), dim);
    }
    divide(out, divisor(f, end - first), dim);
}

/* One row a bag: a copy. */
static void gather(const abi_feature *f, const cl_table_rows *t, float *out)
{
    for (size_t i = 0; i < f->n_ids; i++) {
        memcpy(out + i * t->dim, t->rows + (size_t)t->index[f->first_id + i] * t->dim,
               t->dim * sizeof *out);
    }
}

/* Bags that the servers have summed. */
static void copy_bags(const abi_feature *f, const cl_table_rows *t, float *out)
{
    size_t dim = t->dim;
    memcpy(out, t->rows + f->first_bag * dim, f->n_bags * dim * sizeof *out);
    for (size_t bag = 0; bag < f->n_bags; bag++) {
        divide(out + bag * dim, divisor(f, bag_first(f, bag + 1) - bag_first(f, bag)), dim);
    }
}

void abi_pool_forward(const braid_batch *b, float *const *out)
{
    for (size_t i = 0; i < b->n_features; i++) {
        const abi_feature *f = &b->features[i];
        const cl_table_rows *t = cl_rows_table(b->rows, f->group_idx);
        if (t->offsets != NULL) {
            copy_bags(f, t, out[i]);
            continue;
        }
        if (f->offsets == NULL && f->weights == NULL) {
            gather(f, t, out[i]);
            continue;
        }
        for (size_t bag = 0; bag < f->n_bags; bag++) {
            pool_bag(f, t, bag, out[i] + bag * t->dim);
        }
    }
}

/* The gradient of a bag goes to its ids. */
static void unpool_bag(const abi_feature *f, const cl_table_rows *t, size_t bag, const float *g,
                       float scale, float *grads)
{
    size_t first = bag_first(f, bag), end = bag_first(f, bag + 1), dim = t->dim;
    for (size_t d = 0; f->mode == BRAID_MAX && end > first && d < dim; d++) {
        size_t i = largest(f, t, first, end, d);
        grads[(size_t)t->index[f->first_id + i] * dim + d] += scale * g[d];
    }
    for (size_t i = first; f->mode != BRAID_MAX && i < end; i++) {
        float by = f->weights == NULL ? 1.0f / divisor(f, end - first) : weight(f, i);
        add_scaled(grads + (size_t)t->index[f->first_id + i] * dim, g, scale * by, dim);
    }
}

void abi_pool_backward(const braid_batch *b, size_t group_idx, const float *const *grad_out,
                       float scale, float *grads)
{
    const cl_table_rows *t = cl_rows_table(b->rows, group_idx);
    for (size_t k = 0; k < b->n_features; k++) {
        const abi_feature *f = &b->features[k];
        if (f->group_idx != group_idx || grad_out[k] == NULL) {
            continue;
        }
        for (size_t bag = 0; bag < f->n_bags; bag++) {
            const float *g = grad_out[k] + bag * t->dim;
            if (t->offsets != NULL) { /* the servers know the ids and their weights */
                size_t n = bag_first(f, bag + 1) - bag_first(f, bag);
                float by = 1.0f / divisor(f, n);
                add_scaled(grads + (f->first_bag + bag) * t->dim, g, scale * by, t->dim);
            } else {
                unpool_bag(f, t, bag, g, scale, grads);
            }
        }
    }
}
