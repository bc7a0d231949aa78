/* Plain gradient descent, without state, and with momentum (one f32 for each weight). They are two
 * optimisers, because the state's size may not depend on a hyperparameter and plain tables should
 * not pay for it. */
#include "base/num/optim_int.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* sgd ------------------------------------------------------------------------------------------ */
static const num_hyper sgd_hypers[] = {NUM_HYPER_LR(0.01), NUM_HYPER_L2};

static size_t sgd_state(size_t dim)
{
    (void)dim;
    return 0;
}

// NOLINTNEXTLINE(readability-non-const-parameter): the type of the table
static void sgd_init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    (void)state;
    (void)dim;
}

NUM_INLINE void sgd_one(float lr, float l2, float *w, const float *g)
{
    float d = *g + l2 * *w;
    *w -= lr * d;
}

// NOLINTNEXTLINE(readability-non-const-parameter): the type of the table
static void sgd_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    (void)state;
    for (size_t i = 0; i < dim; i++) {
        sgd_one(hyper[NUM_LR], hyper[NUM_L2], &w[i], &g[i]);
    }
}

#if NUM_X86
// NOLINTNEXTLINE(readability-non-const-parameter): the type of the table
NUM_AVX2 static void sgd_avx2(const float *hyper, float *w, float *state, const float *g, size_t n)
{
    (void)state;
    __m256 lr = _mm256_set1_ps(hyper[NUM_LR]), l2 = _mm256_set1_ps(hyper[NUM_L2]);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(lr, d)));
    }
    for (; i < n; i++) {
        sgd_one(hyper[NUM_LR], hyper[NUM_L2], &w[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(sgd_step, sgd_ref, sgd_avx2)

const num_optim num_optim_sgd = {
    .name = "sgd",
    .help = "w -= learning_rate * (g + l2 * w)",
    .hypers = sgd_hypers,
    .n_hypers = N_OF(sgd_hypers),
    .state_elems = sgd_state,
    .init = sgd_init,
    .step_ref = sgd_ref,
    .step = sgd_step,
};

/* momentum ------------------------------------------------------------------------------------- */
enum { MU = 2, NESTEROV };
static const num_hyper momentum_hypers[] = {
    NUM_HYPER_LR(0.01),
    NUM_HYPER_L2,
    {"momentum", 0.9, 0, 1, "share of the last step's direction that is kept"},
    {"nesterov", 0, 0, 1, "1: look ahead along the direction; 0: do not"},
};

static size_t momentum_state(size_t dim)
{
    return dim;
}

static void momentum_init(const float *hyper, float *state, size_t dim)
{
    (void)hyper;
    for (size_t i = 0; i < dim; i++) {
        state[i] = 0;
    }
}

NUM_INLINE void momentum_one(const float *hyper, float *w, float *v, const float *g)
{
    float d = *g + hyper[NUM_L2] * *w;
    float next = hyper[MU] * *v + d;
    *v = next;
    float dir = hyper[NESTEROV] != 0 ? d + hyper[MU] * next : next;
    *w -= hyper[NUM_LR] * dir;
}

static void momentum_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        momentum_one(hyper, &w[i], &state[i], &g[i]);
    }
}

#if NUM_X86
NUM_AVX2 static void momentum_avx2(const float *hyper, float *w, float *state, const float *g,
                                   size_t dim)
{
    __m256 lr = _mm256_set1_ps(hyper[NUM_LR]), l2 = _mm256_set1_ps(hyper[NUM_L2]);
    __m256 mu = _mm256_set1_ps(hyper[MU]);
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 vw = _mm256_loadu_ps(w + i);
        __m256 d = num_v_decayed(g + i, vw, l2);
        __m256 next = _mm256_add_ps(_mm256_mul_ps(mu, _mm256_loadu_ps(state + i)), d);
        _mm256_storeu_ps(state + i, next);
        __m256 dir = hyper[NESTEROV] != 0 ? _mm256_add_ps(d, _mm256_mul_ps(mu, next)) : next;
        _mm256_storeu_ps(w + i, _mm256_sub_ps(vw, _mm256_mul_ps(lr, dir)));
    }
    for (; i < dim; i++) {
        momentum_one(hyper, &w[i], &state[i], &g[i]);
    }
}
#endif
NUM_PICK_STEP(momentum_step, momentum_ref, momentum_avx2)

const num_optim num_optim_momentum = {
    .name = "momentum",
    .help = "v = momentum * v + g + l2 * w; w -= learning_rate * v",
    .hypers = momentum_hypers,
    .n_hypers = N_OF(momentum_hypers),
    .state_elems = momentum_state,
    .init = momentum_init,
    .step_ref = momentum_ref,
    .step = momentum_step,
};
