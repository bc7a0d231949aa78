/* tape/kernels.h - the table of kernels a device offers. Private to tape/.
 *
 * Layer:   tape. One table per device kind (cpu_device.c; a CUDA one has the same rows).
 * Kernels: only enqueue, return nothing, read nothing on the host; failures stick to the device.
 *          n is samples, c columns; matrices are row-major and tight unless a leading dimension is
 *          given. `beta` is 0 (overwrite the output) or 1 (add to it). Pointers are device memory
 *          and do not overlap unless a line says so.
 */
#ifndef TP_KERNELS_H
#define TP_KERNELS_H

#include "tape/ops.h"

/* c[m x n] = alpha * op(a) * op(b) + beta * c; op transposes where the flag says so. */
typedef struct tp_gemm_args {
    bool trans_a, trans_b;
    size_t m, n, k;
    float alpha;
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb;
    float beta;
    float *c;
    size_t ldc;
} tp_gemm_args;

typedef struct tp_bag_args {
    size_t n, dim, n_rows;
    const uint32_t *index;   /* [offsets[n]] */
    const uint32_t *offsets; /* [n + 1] */
    tp_bag_mode mode;
} tp_bag_args;

typedef struct tp_bn_args {
    size_t n, c;
    float momentum, eps;
    double *work; /* device memory, [2 * c] */
} tp_bn_args;

/* Backward of batch norm; dgamma, dbeta (added to) and dx may be NULL. */
typedef struct tp_bn_grad_args {
    const float *x, *dy, *mean, *inv_std, *gamma;
    float *dgamma, *dbeta, *dx;
    float dx_beta;
    bool through_stats; /* training: mean and variance depend on x */
} tp_bn_grad_args;

typedef struct tp_ops {
    const char *name;
    /* memory and order */
    void *(*alloc)(tp_device *dev, size_t n_bytes);
    void (*free)(tp_device *dev, void *p);
    void (*copy)(tp_device *dev, void *dst, const void *src, size_t n_bytes);
    void (*zero)(tp_device *dev, void *dst, size_t n_bytes);
    bd_status (*wait)(tp_device *dev, bd_err *err);
    tp_event (*record)(tp_device *dev);
    bool (*event_done)(tp_device *dev, tp_event ev);
    bd_status (*host_view)(tp_device *dev, const void *p, size_t n_bytes, const void **host,
                           bd_err *err);
    void (*destroy)(tp_device *dev);

    /* matrix products and what surrounds them */
    void (*gemm)(tp_device *dev, const tp_gemm_args *g);
    /* y[i][j] = act(y[i][j] + b[j]); b may be NULL */
    void (*bias_act)(tp_device *dev, float *y, const float *b, size_t n, size_t c, tp_act act);
    /* g becomes g * act'(y) in place; db[j] += sum over i of the new g[i][j] when db != NULL */
    void (*bias_act_grad)(tp_device *dev, float *g, const float *y, float *db, size_t n, size_t c,
                          tp_act act);

    /* element by element, n elements */
    void (*act)(tp_device *dev, const float *x, float *y, size_t n, tp_act act);
    void (*act_grad)(tp_device *dev, const float *dy, const float *y, float *dx, float beta,
                     size_t n, tp_act act);
    /* y = factor * x + beta * y */
    void (*axpby)(tp_device *dev, float factor, const float *x, float beta, float *y, size_t n);
    /* y = a * b + beta * y */
    void (*mul)(tp_device *dev, const float *a, const float *b, float beta, float *y, size_t n);
    /* y = value + beta * y */
    void (*fill)(tp_device *dev, float value, float beta, float *y, size_t n);
    /* y = factor * scalar[0] + beta * y: spreads a device scalar */
    void (*fill_from)(tp_device *dev, const float *scalar, float factor, float beta, float *y,
                      size_t n);
    /* out[0] = factor * sum(x), in double */
    void (*sum)(tp_device *dev, const float *x, size_t n, float factor, float *out);
    /* dst[i][j] = src[i][j] + beta * dst[i][j], i < n, j < c, with leading dimensions */
    void (*copy2d)(tp_device *dev, const float *src, size_t lds, float beta, float *dst, size_t ldd,
                   size_t n, size_t c);

    /* y = x0 * z + x: the end of a cross layer */
    void (*cross)(tp_device *dev, const float *x0, const float *z, const float *x, float *y,
                  size_t n);

    /* feats: n_feats device pointers (host array). dfeats[i] NULL: not wanted; betas [n_feats] */
    void (*dot_interact)(tp_device *dev, const float *const *feats, size_t n_feats, size_t n,
                         size_t d, float *y);
    void (*dot_interact_grad)(tp_device *dev, const float *const *feats, const float *dy,
                              float *const *dfeats, const float *betas, size_t n_feats, size_t n,
                              size_t d);
    /* sums [n x d] keeps the sum of the vectors for the gradient */
    void (*fm2)(tp_device *dev, const float *const *feats, size_t n_feats, size_t n, size_t d,
                float *sums, float *y);
    void (*fm2_grad)(tp_device *dev, const float *feat, const float *sums, const float *dy,
                     float beta, float *dfeat, size_t n, size_t d);

    /* y = x * mask(key) + beta * y, mask is 0 or 1 / (1 - p): forward and backward */
    void (*dropout)(tp_device *dev, const float *x, float p, const tp_dropout_key *key, float beta,
                    float *y, size_t n, size_t c);

    /* mean, inv_std [c]: written in training, made from the running ones in evaluation */
    void (*bn_stats)(tp_device *dev, const tp_bn_args *a, const float *x, float *running_mean,
                     float *running_var, float *mean, float *inv_std);
    void (*bn_eval_stats)(tp_device *dev, const tp_bn_args *a, const float *running_mean,
                          const float *running_var, float *mean, float *inv_std);
    void (*bn_apply)(tp_device *dev, const tp_bn_args *a, const float *x, const float *mean,
                     const float *inv_std, const float *gamma, const float *beta, float *y);
    void (*bn_grad)(tp_device *dev, const tp_bn_args *a, const tp_bn_grad_args *g);

    void (*bag)(tp_device *dev, const tp_bag_args *a, const float *rows, float *y);
    /* drows is zeroed first when beta is 0; rows: the forward's, read for a maximum */
    void (*bag_grad)(tp_device *dev, const tp_bag_args *a, const float *rows, const float *dy,
                     float beta, float *drows);

    /* dx_unit[i] = d loss_i / d x_i; loss_sum in double; loss = factor * loss_sum */
    void (*bce)(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum);
    void (*mse)(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum);
    /* dx = unit * (factor * scalar[0]) + beta * dx */
    void (*loss_grad)(tp_device *dev, const float *unit, const float *scalar, float factor,
                      float beta, float *dx, size_t n);
} tp_ops;

struct tp_device {
    const tp_ops *ops;
    int n_threads;
    void *workspace; /* owned */
    size_t workspace_bytes;
    bd_err sticky; /* first failure of a kernel */
    void *impl;    /* of the device kind */
};

/* Records a failure of a kernel; the first one stays. */
void tp_device_fail(tp_device *dev, bd_status code, const char *text);

#endif
