/* Row-wise Adam: a mean gradient for each element, but one mean square for the whole row, hence
 * half the state of Adam. State: m[dim], v, count. */
#include "base/num/optim_int.h"

enum { BETA1 = 2, BETA2, EPS };
enum { LANES = 8 };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.001),
    NUM_HYPER_L2,
    {"beta1", 0.9, 0, 0.9999999, "decay of the mean gradient"},
    {"beta2", 0.999, 0, 0.9999999, "decay of the row's mean squared gradient"},
    {"eps", 1e-8, 1e-30, 1, "added to the root, against division by zero"},
};

static size_t state_elems(size_t dim)
{
    return dim + 2;
}

static void init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, state_elems(dim));
}

/* Takes the lanes of the squares in (their order is part of the result); returns the row's rate. */
static float finish(const float *hyper, float *state, const double lane[LANES], size_t dim)
{
    double sum =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    float *v = &state[dim], mean = dim == 0 ? 0 : (float)(sum / (double)dim);
    *v = num_blend(hyper[BETA2], *v, mean);
    uint32_t t = num_count_step(&state[dim + 1]);
    double root = sqrt((double)*v / num_correction(hyper[BETA2], t));
    double rate = (double)hyper[NUM_LR] / num_correction(hyper[BETA1], t);
    return (float)(rate / (root + (double)hyper[EPS]));
}

NUM_INLINE void take(const float *hyper, const float *w, float *m, const float *g, double *lane)
{
    float d = *g + hyper[NUM_L2] * *w;
    *m = num_blend(hyper[BETA1], *m, d);
    *lane += (double)d * (double)d;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    double lane[LANES] = {0};
    for (size_t i = 0; i < dim; i++) {
        take(hyper, &w[i], &state[i], &g[i], &lane[i % LANES]);
    }
    float rate = finish(hyper, state, lane, dim);
    for (size_t i = 0; i < dim; i++) {
        w[i] -= rate * state[i];
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]);
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        __m256 d = num_v_decayed(g + i, _mm256_loadu_ps(w + i), l2);
        __m256 m = num_v_blend(hyper[BETA1], _mm256_loadu_ps(state + i), d);
        _mm256_storeu_ps(state + i, m);
        num_v_add_squares(&lo, &hi, d);
    }
    double lane[LANES];
    _mm256_storeu_pd(lane, lo);
    _mm256_storeu_pd(lane + 4, hi);
    for (; i < dim; i++) {
        take(hyper, &w[i], &state[i], &g[i], &lane[i % LANES]);
    }
    float rate = finish(hyper, state, lane, dim);
    __m256 vrate = _mm256_set1_ps(rate);
    for (i = 0; i + LANES <= dim; i += LANES) {
        __m256 by = _mm256_mul_ps(vrate, _mm256_loadu_ps(state + i));
        _mm256_storeu_ps(w + i, _mm256_sub_ps(_mm256_loadu_ps(w + i), by));
    }
    for (; i < dim; i++) {
        w[i] -= rate * state[i];
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_rowwise_adam = {
    .name = "rowwise_adam",
    .help = "m = decayed mean of d = g + l2 * w, v = of mean(d^2) over the row; w -= learning_rate "
            "* m' / (sqrt(v') + eps), both corrected for the row's step count",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
