/* FTRL-Proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm
 * 1), with alpha the learning rate. State: z[dim], n[dim].
 *
 * The paper starts at w = 0. Here a weight that has seen no gradient (z 0, n as it started) and is
 * not 0 first gets the z that gives it back, so that rows may start at random values; for w = 0
 * that is the paper's z = 0. */
#include "base/num/optim_int.h"

enum { L1 = 2, BETA, INITIAL };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.05),
    {"l2", 0, 0, 1e6, "squared penalty, inside the closed form (not added to the gradient)"},
    {"l1", 0, 0, 1e6, "weights whose |z| is at most this are exactly 0"},
    {"beta", 1, 0, 1e6, "slows the first steps"},
    {"initial_accumulator", 0, 0, 1e6, "sum of squares that a new row starts with"},
};

/* Below this the sums would overflow; a rate of 0 (a schedule's start) must change nothing. */
#define MIN_RATE 1e-20f

static size_t state_elems(size_t dim)
{
    return 2 * dim;
}

static void init(const float *hyper, float *state, size_t dim)
{
    num_fill(state, 0, dim);
    num_fill(state + dim, hyper[INITIAL], dim);
}

NUM_INLINE void one(const float *hyper, float *w, float *z, float *n, const float *g)
{
    float root = sqrtf(*n), next = *n + *g * *g, next_root = sqrtf(next);
    float sign = *w > 0 ? 1.0f : *w < 0 ? -1.0f : 0.0f;
    float back = -(*w * ((hyper[BETA] + root) / hyper[NUM_LR] + hyper[NUM_L2]) + sign * hyper[L1]);
    float from = *z == 0 && *n == hyper[INITIAL] ? back : *z;
    float sum = from + (*g - (next_root - root) / hyper[NUM_LR] * *w);
    float den = (hyper[BETA] + next_root) / hyper[NUM_LR] + hyper[NUM_L2];
    float side = sum > 0 ? hyper[L1] : -hyper[L1];
    *z = sum;
    *n = next;
    *w = fabsf(sum) <= hyper[L1] ? 0.0f : (side - sum) / den;
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim && hyper[NUM_LR] >= MIN_RATE; i++) {
        one(hyper, &w[i], &state[i], &state[dim + i], &g[i]);
    }
}

#if NUM_X86
typedef struct consts {
    __m256 lr, l1, l2, beta, initial;
} consts;

NUM_AVX2 static inline __m256 den_of(const consts *c, __m256 root)
{
    return _mm256_add_ps(_mm256_div_ps(_mm256_add_ps(c->beta, root), c->lr), c->l2);
}

/* z to go on from: the one that gives w back where there was no gradient yet. */
NUM_AVX2 static inline __m256 from_of(const consts *c, __m256 w, __m256 z, __m256 n, __m256 root)
{
    const __m256 zero = _mm256_setzero_ps(), minus = _mm256_set1_ps(-0.0f);
    __m256 signed_l1 = _mm256_or_ps(c->l1, _mm256_and_ps(w, minus));
    __m256 push = _mm256_and_ps(signed_l1, _mm256_cmp_ps(w, zero, _CMP_NEQ_OQ));
    __m256 back = _mm256_xor_ps(_mm256_add_ps(_mm256_mul_ps(w, den_of(c, root)), push), minus);
    __m256 fresh =
        _mm256_and_ps(_mm256_cmp_ps(z, zero, _CMP_EQ_OQ), _mm256_cmp_ps(n, c->initial, _CMP_EQ_OQ));
    return _mm256_blendv_ps(z, back, fresh);
}

NUM_AVX2 static inline __m256 weight_of(const consts *c, __m256 sum, __m256 den)
{
    const __m256 zero = _mm256_setzero_ps(), minus = _mm256_set1_ps(-0.0f);
    __m256 side =
        _mm256_blendv_ps(_mm256_xor_ps(c->l1, minus), c->l1, _mm256_cmp_ps(sum, zero, _CMP_GT_OQ));
    __m256 off = _mm256_cmp_ps(_mm256_andnot_ps(minus, sum), c->l1, _CMP_LE_OQ);
    return _mm256_andnot_ps(off, _mm256_div_ps(_mm256_sub_ps(side, sum), den));
}

NUM_AVX2 static void step_avx2(const float *hyper, float *w, float *state, const float *g,
                               size_t dim)
{
    float *z = state, *n = state + dim;
    const consts c = {_mm256_set1_ps(hyper[NUM_LR]), _mm256_set1_ps(hyper[L1]),
                      _mm256_set1_ps(hyper[NUM_L2]), _mm256_set1_ps(hyper[BETA]),
                      _mm256_set1_ps(hyper[INITIAL])};
    size_t i = 0;
    if (hyper[NUM_LR] < MIN_RATE) {
        return;
    }
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i), vn = _mm256_loadu_ps(n + i);
        __m256 vg = _mm256_loadu_ps(g + i), root = _mm256_sqrt_ps(vn);
        __m256 next = _mm256_add_ps(vn, _mm256_mul_ps(vg, vg)), next_root = _mm256_sqrt_ps(next);
        __m256 from = from_of(&c, vw, _mm256_loadu_ps(z + i), vn, root);
        __m256 pull = _mm256_mul_ps(_mm256_div_ps(_mm256_sub_ps(next_root, root), c.lr), vw);
        __m256 sum = _mm256_add_ps(from, _mm256_sub_ps(vg, pull));
        _mm256_storeu_ps(z + i, sum);
        _mm256_storeu_ps(n + i, next);
        _mm256_storeu_ps(w + i, weight_of(&c, sum, den_of(&c, next_root)));
    }
    for (; i < dim; i++) {
        one(hyper, &w[i], &z[i], &n[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(step, step_ref, step_avx2)

const num_optim num_optim_ftrl = {
    .name = "ftrl",
    .help = "z += g - (sqrt(n + g^2) - sqrt(n)) / learning_rate * w; n += g^2; w = |z| <= l1 ? 0 : "
            "(sign(z) * l1 - z) / ((beta + sqrt(n)) / learning_rate + l2)",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .derived = true,
    .step_ref = step_ref,
    .step = step,
};
