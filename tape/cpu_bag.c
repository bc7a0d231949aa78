/* Pooling of embedding rows. Both directions go through samples and ids in order, so each sum has
 * one order whatever the SIMD width. */
#include "base/assert.h"

#include "tape/cpu_int.h"

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

/* The usual widths are compiled with a constant trip count. */
TP_SIMD void tp_cpu_bag(tp_device *dev, const tp_bag_args *a, const float *rows, float *y)
{
    (void)dev;
    if (a->dim == 16) {
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

TP_SIMD void tp_cpu_bag_grad(tp_device *dev, const tp_bag_args *a, const float *dy, float beta,
                             float *drows)
{
    (void)dev;
    if (beta == 0) {
        memset(drows, 0, a->n_rows * a->dim * sizeof(float));
    }
    if (a->dim == 16) {
        bag_grad_dim(a, dy, drows, 16);
    } else {
        bag_grad_dim(a, dy, drows, a->dim);
    }
}
