/* base/num/optim_int.h - the list of optimisers and what their files share. Layer: base/num,
 * private.
 *
 * A file defines the arithmetic of one element once, as an inline function: the reference loops
 * over it, and the AVX2 version uses it for the elements behind the last full vector. The vector
 * part repeats the same operations in the same order, each correctly rounded (no fma), hence equal
 * bits.
 */
#ifndef NUM_OPTIM_INT_H
#define NUM_OPTIM_INT_H

#include "base/num/cpu.h"
#include "base/num/dtype_int.h"
#include "base/num/optim.h"

#include <math.h>
#if NUM_X86
#include <immintrin.h>
#endif

/* One line for each optimiser; `name` is also the user's name. */
#define NUM_OPTIM_MAP(X) \
    X(sgd)               \
    X(momentum)          \
    X(nesterov)          \
    X(adagrad)           \
    X(rowwise_adagrad)   \
    X(adam)              \
    X(adamw)             \
    X(rowwise_adam)      \
    X(adamax)            \
    X(rmsprop)           \
    X(rmsprop_centered)  \
    X(adadelta)          \
    X(ftrl)              \
    X(lamb)              \
    X(lars)

#define BD_X(name) extern const num_optim num_optim_##name;
NUM_OPTIM_MAP(BD_X)
#undef BD_X

enum { NUM_LR, NUM_L2 }; /* indices that every optimiser shares */

#define NUM_HYPER_LR(def)                           \
    {                                               \
        "learning_rate", (def), 0, 1e6, "step size" \
    }
#define NUM_HYPER_L2                                                      \
    {                                                                     \
        "l2", 0, 0, 1e6, "this times the weight is added to the gradient" \
    }

/* Factor of decoupled weight decay. */
NUM_INLINE float num_optim_keep(float lr, float weight_decay)
{
    return 1.0f - lr * weight_decay;
}

NUM_INLINE void num_fill(float *x, float value, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

/* ---- decayed means, as in Adam ---- */

/* beta^n by squaring: the same bits with every C library. */
NUM_INLINE double num_power(double beta, uint32_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1) {
        if ((n & 1) != 0) {
            result *= beta;
        }
        beta *= beta;
    }
    return result;
}

/* Counts a row's step and returns it. The count is a float and stays at 2^24, where a correction
 * is 1. */
NUM_INLINE uint32_t num_count_step(float *count)
{
    *count += 1.0f;
    return *count < 0x1p24f && *count >= 1.0f ? (uint32_t)*count : 1u << 24;
}

/* 1 - beta^t: what a decayed mean that started at 0 is divided by. */
NUM_INLINE double num_correction(float beta, uint32_t t)
{
    return 1.0 - num_power((double)beta, t);
}

/* beta * old + (1 - beta) * x */
NUM_INLINE float num_blend(float beta, float old, float x)
{
    return beta * old + (1.0f - beta) * x;
}

/* Defines name(): the AVX2 version where the processor has it, else the reference. */
#if NUM_X86
#define NUM_PICK_STEP(name, ref, avx2)                                                       \
    static void name(const float *hyper, float *w, float *state, const float *g, size_t dim) \
    {                                                                                        \
        (num_cpu_has_avx2() ? (avx2) : (ref))(hyper, w, state, g, dim);                      \
    }
#else
#define NUM_PICK_STEP(name, ref, avx2)                                                       \
    static void name(const float *hyper, float *w, float *state, const float *g, size_t dim) \
    {                                                                                        \
        (ref)(hyper, w, state, g, dim);                                                      \
    }
#endif

#if NUM_X86
/* g + l2 * w */
NUM_AVX2 static inline __m256 num_v_decayed(const float *g, __m256 w, __m256 l2)
{
    return _mm256_add_ps(_mm256_loadu_ps(g), _mm256_mul_ps(l2, w));
}

/* Adds the squares of eight elements to the eight lanes of a sum in double. */
NUM_AVX2 static inline void num_v_add_squares(__m256d *lo, __m256d *hi, __m256 x)
{
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    *lo = _mm256_add_pd(*lo, _mm256_mul_pd(a, a));
    *hi = _mm256_add_pd(*hi, _mm256_mul_pd(b, b));
}

/* As num_blend. */
NUM_AVX2 static inline __m256 num_v_blend(float beta, __m256 old, __m256 x)
{
    return _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(beta), old),
                         _mm256_mul_ps(_mm256_set1_ps(1.0f - beta), x));
}
#endif

#endif
