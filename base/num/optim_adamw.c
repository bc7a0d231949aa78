/* AdamW (Loshchilov and Hutter 2019): Adam with decoupled weight decay on by default. A row decays
 * at its own steps only, as everything about it. */
#include "base/num/optim_int.h"

enum { DECAY = 5 }; /* the first five are Adam's */
static const num_hyper hypers[] = {
    NUM_HYPER_LR(0.001),
    NUM_HYPER_L2,
    {"beta1", 0.9, 0, 0.9999999, "decay of the mean gradient"},
    {"beta2", 0.999, 0, 0.9999999, "decay of the mean squared gradient"},
    {"eps", 1e-8, 1e-30, 1, "added to the root, against division by zero"},
    {"weight_decay", 0.01, 0, 1e6, "each step first shrinks weights by learning_rate * it"},
};

static size_t state_elems(size_t dim)
{
    return num_optim_adam.state_elems(dim);
}

static void init(const float *hyper, float *state, size_t dim)
{
    num_optim_adam.init(hyper, state, dim);
}

/* One rounding an element, so the compiler's vectors need no twin. */
static void decay(const float *hyper, float *w, size_t dim)
{
    float keep = num_optim_keep(hyper[NUM_LR], hyper[DECAY]);
    for (size_t i = 0; i < dim; i++) {
        w[i] *= keep;
    }
}

static void step_ref(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    decay(hyper, w, dim);
    num_optim_adam.step_ref(hyper, w, state, g, dim);
}

static void step(const float *hyper, float *w, float *state, const float *g, size_t dim)
{
    decay(hyper, w, dim);
    num_optim_adam.step(hyper, w, state, g, dim);
}

const num_optim num_optim_adamw = {
    .name = "adamw",
    .help = "w *= 1 - learning_rate * weight_decay; then a step of adam",
    .hypers = hypers,
    .n_hypers = sizeof hypers / sizeof hypers[0],
    .state_elems = state_elems,
    .init = init,
    .step_ref = step_ref,
    .step = step,
};
