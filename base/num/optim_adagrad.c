/* Adagrad: each weight's step shrinks with the sum of its squared gradients. */
#include "base/num/optim_int.h"

enum { EPS = 2, INITIAL };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.01),
    NUM_HYPER_L2,
    {"eps", 1e-10, 1e-30, 1, "added to the root, against division by zero"},
    {"initial_accumulator", 0, 0, 1e6, "sum of squares that a new row starts with"},
};

static size_t state_elems(size_t dim)
{
    return dim;
}

static void init(const float *hyper, float *state, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        state[i] = hyper[INITIAL];
    }
}

NUM_INLINE void one(const float *hyper, float *w, float *sum, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    float next = *sum + d * d;
    *sum = next;
    *w -= hyper[NUM_LR] * d / (sqrtf(next) + hyper[EPS]);
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        one(hyper, &w[i], &state[i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    __m256 lr = _mm256_set1_ps(hyper[NUM_LR]), l2 = _mm256_set1_ps(hyper[NUM_L2]);
    __m256 eps = _mm256_set1_ps(hyper[EPS]);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 next = _mm256_add_ps(_mm256_loadu_ps(state + i), _mm256_mul_ps(d, d));
        _mm256_storeu_ps(state + i, next);
        __m256 den = _mm256_add_ps(_mm256_sqrt_ps(next), eps);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_div_ps(_mm256_mul_ps(lr, d), den)));
    }
    for (; i < dim; i++) {
        one(hyper, &w[i], &state[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_adagrad = {
    .name = "adagrad",
    .help = "s += (g + l2 * w)^2; w -= learning_rate * (g + l2 * w) / (sqrt(s) + eps)",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
