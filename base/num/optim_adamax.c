/* Adamax (Kingma and Ba 2015): Adam with a decayed maximum in place of the mean square. State:
 * m[dim], u[dim], count. */
#include "base/num/optim_int.h"

enum { BETA1 = 2, BETA2, EPS };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.002),
    NUM_HYPER_L2,
    {"beta1", 0.9, 0, 0.9999999, "decay of the mean gradient"},
    {"beta2", 0.999, 0, 0.9999999, "decay of the largest gradient"},
    {"eps", 1e-8, 1e-30, 1, "added to the gradient's size, against division by zero"},
};

static size_t state_elems(size_t dim)
{
    return 2 * dim + 1;
}

static void init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, state_elems(dim));
}

static float advance(const float *hyper, float *count)
{
    uint32_t t = num_count_step(count);
    return (float)((double)hyper[NUM_LR] / num_correction(hyper[BETA1], t));
}

NUM_INLINE void one(const float *hyper, float rate, float *w, float *m, float *u, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *m = num_blend(hyper[BETA1], *m, d);
    float old = hyper[BETA2] * *u, size = fabsf(d) + hyper[EPS];
    *u = old > size ? old : size; /* a NaN gradient wins, as with _mm256_max_ps(old, size) */
    *w -= rate * (*m / *u);
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    float rate = advance(hyper, &state[2 * dim]);
    for (size_t i = 0; i < dim; i++) {
        one(hyper, rate, &w[i], &state[i], &state[dim + i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    float rate = advance(hyper, &state[2 * dim]), *m = state, *u = state + dim;
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), eps = _mm256_set1_ps(hyper[EPS]);
    __m256 beta2 = _mm256_set1_ps(hyper[BETA2]), vrate = _mm256_set1_ps(rate);
    __m256 sign = _mm256_set1_ps(-0.0f);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 vm = num_v_blend(hyper[BETA1], _mm256_loadu_ps(m + i), d);
        __m256 size = _mm256_add_ps(_mm256_andnot_ps(sign, d), eps);
        __m256 vu = _mm256_max_ps(_mm256_mul_ps(beta2, _mm256_loadu_ps(u + i)), size);
        _mm256_storeu_ps(m + i, vm);
        _mm256_storeu_ps(u + i, vu);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(vrate, _mm256_div_ps(vm, vu))));
    }
    for (; i < dim; i++) {
        one(hyper, rate, &w[i], &m[i], &u[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_adamax = {
    .name = "adamax",
    .help = "d = g + l2 * w; m = decayed mean of d; u = max(beta2 * u, |d| + eps); w -= "
            "learning_rate * m' / u, m corrected for the row's step count",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
