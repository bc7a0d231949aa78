/* LAMB (You et al. 2020): an Adam step scaled, for each row or dense parameter, to the size of its
 * weights. State: m[dim], v[dim], count. */
#include "base/num/optim_int.h"
#include "base/num/vec.h"

enum { BETA1 = 2, BETA2, EPS, DECAY };
enum { LANES = 8 };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.001),
    NUM_HYPER_L2,
    {"beta1", 0.9, 0, 0.9999999, "decay of the mean gradient"},
    {"beta2", 0.999, 0, 0.9999999, "decay of the mean squared gradient"},
    {"eps", 1e-6, 1e-30, 1, "added to the root, against division by zero"},
    {"weight_decay", 0.01, 0, 1e6, "this times the weight is part of the step before it is scaled"},
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
    float c1;    /* correction of the mean */
    float root2; /* root of the correction of the mean square */
} step_size;

static step_size advance(const float *hyper, float *count)
{
    uint32_t t = num_count_step(count);
    return (step_size){(float)num_correction(hyper[BETA1], t),
                       (float)sqrt(num_correction(hyper[BETA2], t))};
}

/* Learning rate times trust ratio. A row of zeros, or one that would not move, is not scaled. */
static float rate_of(const float *hyper, double sumsq_w, const double lane[LANES])
{
    double sum =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    double trust = sumsq_w > 0 && sum > 0 ? sqrt(sumsq_w) / sqrt(sum) : 1.0;
    return (float)((double)hyper[NUM_LR] * trust);
}

NUM_INLINE float direction(const float *hyper, step_size s, float w, float m, float v)
{
    return m / s.c1 / (sqrtf(v) / s.root2 + hyper[EPS]) + hyper[DECAY] * w;
}

NUM_INLINE void take(const float *hyper, step_size s, const float *w, float *m, float *v,
                     const float *g, double *lane)
{
    float d = *g + hyper[NUM_L2] * *w;
    *m = num_blend(hyper[BETA1], *m, d);
    *v = num_blend(hyper[BETA2], *v, d * d);
    double r = (double)direction(hyper, s, *w, *m, *v);
    *lane += r * r;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    step_size s = advance(hyper, &state[2 * dim]);
    double lane[LANES] = {0};
    float *m = state, *v = state + dim;
    for (size_t i = 0; i < dim; i++) {
        take(hyper, s, &w[i], &m[i], &v[i], &g[i], &lane[i % LANES]);
    }
    float rate = rate_of(hyper, num_sumsq_ref(w, dim), lane);
    for (size_t i = 0; i < dim; i++) {
        w[i] -= rate * direction(hyper, s, w[i], m[i], v[i]);
    }
}

#if NUM_X86
NUM_AVX2 static inline __m256 v_direction(const float *hyper, step_size s, __m256 w, __m256 m,
                                          __m256 v)
{
    __m256 root = _mm256_div_ps(_mm256_sqrt_ps(v), _mm256_set1_ps(s.root2));
    __m256 den = _mm256_add_ps(root, _mm256_set1_ps(hyper[EPS]));
    __m256 up = _mm256_div_ps(m, _mm256_set1_ps(s.c1));
    return _mm256_add_ps(_mm256_div_ps(up, den), _mm256_mul_ps(_mm256_set1_ps(hyper[DECAY]), w));
}

NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    step_size s = advance(hyper, &state[2 * dim]);
    float *m = state, *v = state + dim;
    __m256 l2 = _mm256_set1_ps(hyper[NUM_L2]);
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 vm = num_v_blend(hyper[BETA1], _mm256_loadu_ps(m + i), d);
        __m256 vv = num_v_blend(hyper[BETA2], _mm256_loadu_ps(v + i), _mm256_mul_ps(d, d));
        _mm256_storeu_ps(m + i, vm);
        _mm256_storeu_ps(v + i, vv);
        num_v_add_squares(&lo, &hi, v_direction(hyper, s, vw, vm, vv));
    }
    double lane[LANES];
    _mm256_storeu_pd(lane, lo);
    _mm256_storeu_pd(lane + 4, hi);
    for (; i < dim; i++) {
        take(hyper, s, &w[i], &m[i], &v[i], &g[i], &lane[i % LANES]);
    }
    float rate = rate_of(hyper, num_sumsq(w, dim), lane);
    for (i = 0; i + LANES <= dim; i += LANES) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 r = v_direction(hyper, s, vw, _mm256_loadu_ps(m + i), _mm256_loadu_ps(v + i));
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(_mm256_set1_ps(rate), r)));
    }
    for (; i < dim; i++) {
        w[i] -= rate * direction(hyper, s, w[i], m[i], v[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_lamb = {
    .name = "lamb",
    .help = "r = m' / (sqrt(v') + eps) + weight_decay * w with m', v' as in adam; w -= "
            "learning_rate * |w| / |r| * r, norms over the row",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
