/* LARS (You et al. 2017): momentum whose step is scaled, for each row or dense parameter, to the
 * size of its weights. State: v[dim]. */
#include "base/num/optim_int.h"
#include "base/num/vec.h"

enum { MU = 2, TRUST, EPS };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.1),
    NUM_HYPER_L2,
    {"momentum", 0.9, 0, 1, "share of the last step that is kept"},
    {"trust", 0.001, 0, 1e6, "step size for a row whose weights and gradient are of equal size"},
    {"eps", 1e-8, 1e-30, 1, "added to the gradient's norm, against division by zero"},
};

static size_t state_elems(size_t dim)
{
    return dim;
}

static void init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    num_fill(state, 0, dim);
}

/* A row of zeros, or one without a gradient, is not scaled. */
static float rate_of(const float *hyper, double sumsq_w, double sumsq_g)
{
    double w = sqrt(sumsq_w), g = sqrt(sumsq_g), local = 1;
    if (w > 0 && g > 0) {
        local = (double)hyper[TRUST] * w / (g + (double)hyper[NUM_L2] * w + (double)hyper[EPS]);
    }
    return (float)((double)hyper[NUM_LR] * local);
}

NUM_INLINE void one(const float *hyper, float rate, float *w, float *v, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    *v = hyper[MU] * *v + rate * d;
    *w -= *v;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    float rate = rate_of(hyper, num_sumsq_ref(w, dim), num_sumsq_ref(g, dim));
    for (size_t i = 0; i < dim; i++) {
        one(hyper, rate, &w[i], &state[i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    float rate = rate_of(hyper, num_sumsq(w, dim), num_sumsq(g, dim));
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]), mu = _mm256_set1_ps(hyper[MU]);
    __m256 vrate = _mm256_set1_ps(rate);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 kept = _mm256_mul_ps(mu, _mm256_loadu_ps(state + i));
        __m256 v = _mm256_add_ps(kept, _mm256_mul_ps(vrate, d));
        _mm256_storeu_ps(state + i, v);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, v));
    }
    for (; i < dim; i++) {
        one(hyper, rate, &w[i], &state[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_lars = {
    .name = "lars",
    .help = "r = learning_rate * trust * |w| / (|g| + l2 * |w| + eps); v = momentum * v + r * (g + "
            "l2 * w); w -= v, norms over the row",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
