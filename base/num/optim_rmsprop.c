/* RMSprop (Tieleman and Hinton 2012), and centred: the squared mean gradient is taken off the mean
 * square. Two optimisers, because the state's size may not depend on a hyperparameter. State:
 * v[dim], and m[dim] when centred. */
#include "base/num/optim_int.h"

enum { RHO = 2, EPS };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.01),
    NUM_HYPER_L2,
    {"rho", 0.99, 0, 0.9999999, "decay of the mean squared gradient (and of the mean gradient)"},
    {"eps", 1e-8, 1e-30, 1, "added to the root, against division by zero"},
};

#define N_HYPERS (sizeof hypers / sizeof hypers[0])

static size_t plain_elems(size_t dim)
{
    return dim;
}

static size_t centered_elems(size_t dim)
{
    return 2 * dim;
}

static void plain_init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, plain_elems(dim));
}

static void centered_init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, centered_elems(dim));
}

NUM_INLINE void plain_one(const float *hyper, float *w, float *v, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *v = num_blend(hyper[RHO], *v, d * d);
    *w -= hyper[NUM_LR] * d / (sqrtf(*v) + hyper[EPS]);
}

/* The variance is not negative but for rounding. A NaN passes. */
NUM_INLINE float not_negative(float x)
{
    return 0.0f > x ? 0.0f : x;
}

NUM_INLINE void centered_one(const float *hyper, float *w, float *v, float *m, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *v = num_blend(hyper[RHO], *v, d * d);
    *m = num_blend(hyper[RHO], *m, d);
    float root = sqrtf(not_negative(*v - *m * *m));
    *w -= hyper[NUM_LR] * d / (root + hyper[EPS]);
}

static void plain_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        plain_one(hyper, &w[i], &state[i], &g[i]);
    }
}

static void centered_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        centered_one(hyper, &w[i], &state[i], &state[dim + i], &g[i]);
    }
}

#if NUM_X86
/* w -= lr * d / (sqrt(square) + eps) */
NUM_AVX2 static inline void move(const float *hyper, float *w, __m256 vw, __m256 d, __m256 square)
{
    __m256 den = _mm256_add_ps(_mm256_sqrt_ps(square), _mm256_set1_ps(hyper[EPS]));
    __m256 by = _mm256_div_ps(_mm256_mul_ps(_mm256_set1_ps(hyper[NUM_LR]), d), den);
    _mm256_storeu_ps(w, _mm256_sub_ps(vw, by));
}

NUM_AVX2 static void plain_avx2(const float *hyper, float *w, float *state, const float *g,
                                size_t dim)
{
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 v = num_v_blend(hyper[RHO], _mm256_loadu_ps(state + i), _mm256_mul_ps(d, d));
        _mm256_storeu_ps(state + i, v);
        move(hyper, w + i, vw, d, v);
    }
    for (; i < dim; i++) {
        plain_one(hyper, &w[i], &state[i], &g[i]);
    }
}

NUM_AVX2 static void centered_avx2(const float *hyper, float *w, float *state, const float *g,
                                   size_t dim)
{
    float *v = state, *m = state + dim;
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), zero = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 vv = num_v_blend(hyper[RHO], _mm256_loadu_ps(v + i), _mm256_mul_ps(d, d));
        __m256 vm = num_v_blend(hyper[RHO], _mm256_loadu_ps(m + i), d);
        _mm256_storeu_ps(v + i, vv);
        _mm256_storeu_ps(m + i, vm);
        __m256 square = _mm256_sub_ps(vv, _mm256_mul_ps(vm, vm));
        move(hyper, w + i, vw, d, _mm256_max_ps(zero, square)); /* a NaN passes: it is second */
    }
    for (; i < dim; i++) {
        centered_one(hyper, &w[i], &v[i], &m[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(plain_step, plain_ref, plain_avx2)
NUM_PICK_STEP(centered_step, centered_ref, centered_avx2)

const num_optim num_optim_rmsprop = {
    .name = "rmsprop",
    .help = "d = g + l2 * w; v = decayed mean of d^2; w -= learning_rate * d / (sqrt(v) + eps)",
    .hypers = hypers,
    .n_hypers = N_HYPERS,
    .state_elems = plain_elems,
    .init = plain_init,
    .step_ref = plain_ref,
    .step = plain_step,
};

const num_optim num_optim_rmsprop_centered = {
    .name = "rmsprop_centered",
    .help = "v, m = decayed means of d^2 and of d = g + l2 * w; w -= learning_rate * d / (sqrt(v - "
            "m^2) + eps)",
    .hypers = hypers,
    .n_hypers = N_HYPERS,
    .state_elems = centered_elems,
    .init = centered_init,
    .step_ref = centered_ref,
    .step = centered_step,
};
