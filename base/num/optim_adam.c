/* Adam with bias correction by the row's own step count, so that a rare row is not corrected as if
 * it had been trained since the first step. State: m[dim], v[dim], count. */
#include "base/num/optim_int.h"

enum { BETA1 = 2, BETA2, EPS };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.001),
    NUM_HYPER_L2,
    {"beta1", 0.9, 0, 0.9999999, "decay of the mean gradient"},
    {"beta2", 0.999, 0, 0.9999999, "decay of the mean squared gradient"},
    {"eps", 1e-8, 1e-30, 1, "added to the root, against division by zero"},
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

typedef struct step_size {
    float rate;  /* learning rate over the first correction */
    float root2; /* root of the second correction */
} step_size;

static step_size advance(const float *hyper, float *count)
{
    uint32_t t = num_count_step(count);
    double c1 = num_correction(hyper[BETA1], t), c2 = num_correction(hyper[BETA2], t);
    return (step_size){(float)((double)hyper[NUM_LR] / c1), (float)sqrt(c2)};
}

NUM_INLINE void one(const float *hyper, step_size s, float *w, float *m, float *v, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *m = num_blend(hyper[BETA1], *m, d);
    *v = num_blend(hyper[BETA2], *v, d * d);
    *w -= s.rate * (*m / (sqrtf(*v) / s.root2 + hyper[EPS]));
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    step_size s = advance(hyper, &state[2 * dim]);
    for (size_t i = 0; i < dim; i++) {
        one(hyper, s, &w[i], &state[i], &state[dim + i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    step_size s = advance(hyper, &state[2 * dim]);
    float *m = state, *v = state + dim;
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), eps = _mm256_set1_ps(hyper[EPS]);
    __m256 rate = _mm256_set1_ps(s.rate), root2 = _mm256_set1_ps(s.root2);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 vm = num_v_blend(hyper[BETA1], _mm256_loadu_ps(m + i), d);
        __m256 vv = num_v_blend(hyper[BETA2], _mm256_loadu_ps(v + i), _mm256_mul_ps(d, d));
        _mm256_storeu_ps(m + i, vm);
        _mm256_storeu_ps(v + i, vv);
        __m256 den = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(vv), root2), eps);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(rate, _mm256_div_ps(vm, den))));
    }
    for (; i < dim; i++) {
        one(hyper, s, &w[i], &m[i], &v[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_adam = {
    .name = "adam",
    .help = "m, v = decayed means of d = g + l2 * w and d^2; w -= learning_rate * m' / "
            "(sqrt(v') + eps), both corrected for the row's step count",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
