/* Row-wise Adagrad: one sum for the whole row, of the mean squared gradient of each step. */
#include "base/num/optim_int.h"

enum { EPS = 2, INITIAL };
enum { LANES = 8 };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.01),
    NUM_HYPER_L2,
    {"eps", 1e-10, 1e-30, 1, "added to the root, against division by zero"},
    {"initial_accumulator", 0, 0, 1e6, "mean of squares that a new row starts with"},
};

static size_t state_elems(size_t dim)
{
    (void)dim;
    return 1;
}

static void init(const float *hyper, float *state, size_t dim)
{
    (void)dim;
    state[0] = hyper[INITIAL];
}

/* The order of the sum is part of the result: element i belongs to lane i % 8, and the lanes are
 * added as a tree. Returns the row's step size. */
static float finish(const float *hyper, float *state, const float lane[LANES], size_t dim)
{
    float sum =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    state[0] += dim == 0 ? 0 : sum / (float)dim;
    return hyper[NUM_LR] / (sqrtf(state[0]) + hyper[EPS]);
}

NUM_INLINE float decayed(float l2, float w, float g)
{
    return g + l2 * w;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < dim; i++) {
        float d = decayed(hyper[NUM_L2], w[i], g[i]);
        lane[i % LANES] += d * d;
    }
    float rate = finish(hyper, state, lane, dim);
    for (size_t i = 0; i < dim; i++) {
        w[i] -= rate * decayed(hyper[NUM_L2], w[i], g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), sums = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        __m256 d = num_v_decayed(g + i, _mm256_loadu_ps(w + i), l2);
        sums = _mm256_add_ps(sums, _mm256_mul_ps(d, d));
    }
    float lane[LANES];
    _mm256_storeu_ps(lane, sums);
    for (; i < dim; i++) {
        float d = decayed(hyper[NUM_L2], w[i], g[i]);
        lane[i % LANES] += d * d;
    }
    float rate = finish(hyper, state, lane, dim);
    __m256 vrate = _mm256_set1_ps(rate);
    for (i = 0; i + LANES <= dim; i += LANES) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(vrate, d)));
    }
    for (; i < dim; i++) {
        w[i] -= rate * decayed(hyper[NUM_L2], w[i], g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_rowwise_adagrad = {
    .name = "rowwise_adagrad",
    .help = "s += mean((g + l2 * w)^2); w -= learning_rate / (sqrt(s) + eps) * (g + l2 * w)",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
