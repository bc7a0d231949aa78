/* tape/cpu_int.h - the CPU kernels, and how they are compiled. Private to tape/.
 *
 * Speed:   a kernel is plain C whose inner loops vectorise; TP_SIMD compiles it for AVX-512, AVX2
 *          and the base instruction set and picks one at load time. Loops never reorder a sum, and
 *          contraction to fma is off, so all versions give the same bits. Under a sanitizer there
 *          is one version: resolvers run before the sanitizer does.
 */
#ifndef TP_CPU_INT_H
#define TP_CPU_INT_H

#include "tape/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(BRAID_SANITIZED)
#define TP_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TP_SIMD
#endif

/* 16 floats; lowered to what the instruction set has. */
typedef float tp_v16 __attribute__((vector_size(64)));
#define TP_V16 ((size_t)16)

void tp_cpu_gemm(tp_device *dev, const tp_gemm_args *g);
void tp_cpu_blas_threads(int n_threads);

void tp_cpu_bias_act(tp_device *dev, float *y, const float *b, size_t n, size_t c, tp_act act);
void tp_cpu_bias_act_grad(tp_device *dev, float *g, const float *y, float *db, size_t n, size_t c,
                          tp_act act);
void tp_cpu_act(tp_device *dev, const float *x, float *y, size_t n, tp_act act);
void tp_cpu_act_grad(tp_device *dev, const float *dy, const float *y, float *dx, float beta,
                     size_t n, tp_act act);
void tp_cpu_axpby(tp_device *dev, float factor, const float *x, float beta, float *y, size_t n);
void tp_cpu_mul(tp_device *dev, const float *a, const float *b, float beta, float *y, size_t n);
void tp_cpu_fill(tp_device *dev, float value, float beta, float *y, size_t n);
void tp_cpu_fill_from(tp_device *dev, const float *scalar, float factor, float beta, float *y,
                      size_t n);
void tp_cpu_sum(tp_device *dev, const float *x, size_t n, float factor, float *out);
void tp_cpu_copy2d(tp_device *dev, const float *src, size_t lds, float beta, float *dst, size_t ldd,
                   size_t n, size_t c);
void tp_cpu_cross(tp_device *dev, const float *x0, const float *z, const float *x, float *y,
                  size_t n);

void tp_cpu_dot_interact(tp_device *dev, const float *const *feats, size_t n_feats, size_t n,
                         size_t d, float *y);
void tp_cpu_dot_interact_grad(tp_device *dev, const float *const *feats, const float *dy,
                              float *const *dfeats, const float *betas, size_t n_feats, size_t n,
                              size_t d);
void tp_cpu_fm2(tp_device *dev, const float *const *feats, size_t n_feats, size_t n, size_t d,
                float *sums, float *y);
void tp_cpu_fm2_grad(tp_device *dev, const float *feat, const float *sums, const float *dy,
                     float beta, float *dfeat, size_t n, size_t d);
void tp_cpu_dropout(tp_device *dev, const float *x, float p, const tp_dropout_key *key, float beta,
                    float *y, size_t n, size_t c);

void tp_cpu_bn_stats(tp_device *dev, const tp_bn_args *a, const float *x, float *running_mean,
                     float *running_var, float *mean, float *inv_std);
void tp_cpu_bn_eval_stats(tp_device *dev, const tp_bn_args *a, const float *running_mean,
                          const float *running_var, float *mean, float *inv_std);
void tp_cpu_bn_apply(tp_device *dev, const tp_bn_args *a, const float *x, const float *mean,
                     const float *inv_std, const float *gamma, const float *beta, float *y);
void tp_cpu_bn_grad(tp_device *dev, const tp_bn_args *a, const tp_bn_grad_args *g);

void tp_cpu_bag(tp_device *dev, const tp_bag_args *a, const float *rows, float *y);
void tp_cpu_bag_grad(tp_device *dev, const tp_bag_args *a, const float *rows, const float *dy,
                     float beta, float *drows);

void tp_cpu_bce(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum);
void tp_cpu_mse(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum);
void tp_cpu_loss_grad(tp_device *dev, const float *unit, const float *scalar, float factor,
                      float beta, float *dx, size_t n);

#endif
