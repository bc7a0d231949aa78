/* Adadelta (Zeiler 2012): steps in the weights' own unit, from the decayed mean squares of
 * gradients and of steps. State: v[dim], a[dim]. */
#include "base/num/optim_int.h"

enum { RHO = 2, EPS };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(1),
    NUM_HYPER_L2,
    {"rho", 0.9, 0, 0.9999999, "decay of both mean squares"},
    {"eps", 1e-6, 1e-30, 1, "added under both roots: the size of the first steps"},
};

static size_t state_elems(size_t dim)
{
    return 2 * dim;
}

static void init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, state_elems(dim));
}

NUM_INLINE void one(const float *hyper, float *w, float *v, float *a, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *v = num_blend(hyper[RHO], *v, d * d);
    float by = sqrtf(*a + hyper[EPS]) / sqrtf(*v + hyper[EPS]) * d;
    *a = num_blend(hyper[RHO], *a, by * by);
    *w -= hyper[NUM_LR] * by;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        one(hyper, &w[i], &state[i], &state[dim + i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    float *v = state, *a = state + dim;
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), eps = _mm256_set1_ps(hyper[EPS]);
    __m256 lr = _mm256_set1_ps(hyper[NUM_LR]);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i), va = _mm256_loadu_ps(a + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 vv = num_v_blend(hyper[RHO], _mm256_loadu_ps(v + i), _mm256_mul_ps(d, d));
        __m256 up = _mm256_sqrt_ps(_mm256_add_ps(va, eps));
        __m256 down = _mm256_sqrt_ps(_mm256_add_ps(vv, eps));
        __m256 by = _mm256_mul_ps(_mm256_div_ps(up, down), d);
        _mm256_storeu_ps(v + i, vv);
        _mm256_storeu_ps(a + i, num_v_blend(hyper[RHO], va, _mm256_mul_ps(by, by)));
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(lr, by)));
    }
    for (; i < dim; i++) {
        one(hyper, &w[i], &v[i], &a[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_adadelta = {
    .name = "adadelta",
    .help = "v = decayed mean of d^2, d = g + l2 * w; s = d * sqrt(a + eps) / sqrt(v + eps); a = "
            "decayed mean of s^2; w -= learning_rate * s",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
