/* Pooling of embedding rows. Both directions go through samples and ids in order, so each sum has
 * one order whatever the SIMD width. */
#include "base/assert.h"

#include "tape/cpu_int.h"

#include <math.h>
#include <string.h>

#define PREFETCH_IDS ((size_t)8)

static inline __attribute__((always_inline)) void add_row(float *restrict y,
                                                          const float *restrict x, size_t dim)
{
    for (size_t k = 0; k < dim; k++) {
        y[k] += x[k];
    }
}

static inline __attribute__((always_inline)) void scale_row(float *restrict y, float factor,
                                                            size_t dim)
{
    for (size_t k = 0; k < dim; k++) {
        y[k] *= factor;
    }
}

static inline __attribute__((always_inline)) void
bag_dim(const tp_bag_args *a, const float *restrict rows, float *restrict y, size_t dim)
{
    const uint32_t n_ids = a->offsets[a->n];
    for (size_t i = 0; i < a->n; i++) {
        uint32_t first = a->offsets[i], end = a->offsets[i + 1];
        float *restrict out = y + i * dim;
        if (first == end) {
            memset(out, 0, dim * sizeof(float));
            continue;
        }
        if (end + PREFETCH_IDS < n_ids) {
            __builtin_prefetch(rows + (size_t)a->index[end + PREFETCH_IDS] * dim);
        }
        memcpy(out, rows + (size_t)a->index[first] * dim, dim * sizeof(float));
        for (uint32_t k = first + 1; k < end; k++) {
            add_row(out, rows + (size_t)a->index[k] * dim, dim);
        }
        if (a->mode == TP_BAG_MEAN && end - first > 1) {
            scale_row(out, 1.0f / (float)(end - first), dim);
        }
    }
}

/* Which id of [first, end) has the largest element j: the first of equals; a NaN is larger. */
static uint32_t largest(const tp_bag_args *a, const float *rows, uint32_t first, uint32_t end,
                        size_t j)
{
    uint32_t best = first;
    for (uint32_t k = first + 1; k < end; k++) {
        float x = rows[(size_t)a->index[k] * a->dim + j];
        float most = rows[(size_t)a->index[best] * a->dim + j];
        best = !isnan(most) && (isnan(x) || x > most) ? k : best;
    }
    return best;
}

static void bag_max(const tp_bag_args *a, const float *rows, float *y)
{
    for (size_t i = 0; i < a->n; i++) {
        uint32_t first = a->offsets[i], end = a->offsets[i + 1];
        for (size_t j = 0; j < a->dim; j++) {
            float *out = y + i * a->dim + j;
            *out = first == end
                       ? 0
                       : rows[(size_t)a->index[largest(a, rows, first, end, j)] * a->dim + j];
        }
    }
}

static void bag_max_grad(const tp_bag_args *a, const float *rows, const float *dy, float *drows)
{
    for (size_t i = 0; i < a->n; i++) {
        uint32_t first = a->offsets[i], end = a->offsets[i + 1];
        for (size_t j = 0; first < end && j < a->dim; j++) {
            uint32_t k = largest(a, rows, first, end, j);
            BD_DASSERT(a->index[k] < a->n_rows);
            drows[(size_t)a->index[k] * a->dim + j] += dy[i * a->dim + j];
        }
    }
}

/* The usual widths are compiled with a constant trip count. */
TP_SIMD void tp_cpu_bag(tp_device *dev, const tp_bag_args *a, const float *rows, float *y)
{
    (void)dev;
    if (a->mode == TP_BAG_MAX) {
        bag_max(a, rows, y);
    } else if (a->dim == 16) {
        bag_dim(a, rows, y, 16);
    } else {
        bag_dim(a, rows, y, a->dim);
    }
}

static inline __attribute__((always_inline)) void
bag_grad_dim(const tp_bag_args *a, const float *restrict dy, float *restrict drows, size_t dim)
{
    for (size_t i = 0; i < a->n; i++) {
        uint32_t first = a->offsets[i], end = a->offsets[i + 1];
        const float *restrict g = dy + i * dim;
        float factor = a->mode == TP_BAG_MEAN && end - first > 1 ? 1.0f / (float)(end - first) : 1;
        for (uint32_t k = first; k < end; k++) {
            BD_DASSERT(a->index[k] < a->n_rows);
            float *restrict row = drows + (size_t)a->index[k] * dim;
            for (size_t j = 0; j < dim; j++) {
                row[j] += factor * g[j];
            }
        }
    }
}

TP_SIMD void tp_cpu_bag_grad(tp_device *dev, const tp_bag_args *a, const float *rows,
                             const float *dy, float beta, float *drows)
{
    (void)dev;
    if (beta == 0) {
        memset(drows, 0, a->n_rows * a->dim * sizeof(float));
    }
    if (a->mode == TP_BAG_MAX) {
        bag_max_grad(a, rows, dy, drows);
    } else if (a->dim == 16) {
        bag_grad_dim(a, dy, drows, 16);
    } else {
        bag_grad_dim(a, dy, drows, a->dim);
    }
}
