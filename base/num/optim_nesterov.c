/* Nesterov momentum by its own name: momentum with nesterov=1. */
#include "base/num/optim_int.h"

enum { MU = 2, NESTEROV };
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.01),
    NUM_HYPER_L2,
    {"momentum", 0.9, 0, 1, "share of the last step's direction that is kept"},
};

static size_t state_elems(size_t dim)
{
    return num_optim_momentum.state_elems(dim);
}

static void init(const float *hyper, float *state, size_t dim)
{
    num_optim_momentum.init(hyper, state, dim);
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    const float ahead[] = {hyper[NUM_LR], hyper[NUM_L2], hyper[MU], [NESTEROV] = 1};
    num_optim_momentum.step_ref(ahead, w, state, g, dim);
}

static void step(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    const float ahead[] = {hyper[NUM_LR], hyper[NUM_L2], hyper[MU], [NESTEROV] = 1};
    num_optim_momentum.step(ahead, w, state, g, dim);
}

const num_optim num_optim_nesterov = {
    .name = "nesterov",
    .help = "d = g + l2 * w; v = momentum * v + d; w -= learning_rate * (d + momentum * v)",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
