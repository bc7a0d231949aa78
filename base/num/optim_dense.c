/* What is the same for all elements of a step over a flat vector: computed once, on the host. */
#include "base/num/optim_dense_int.h"
#include "base/num/optim_int.h"

#include <string.h>

static const struct {
    const char *name;
    num_dense_kind kind;
} kinds[] = {{"sgd", NUM_DENSE_SGD},         {"momentum", NUM_DENSE_MOMENTUM},
             {"adagrad", NUM_DENSE_ADAGRAD}, {"rmsprop", NUM_DENSE_RMSPROP},
             {"adam", NUM_DENSE_ADAM},       {"adamw", NUM_DENSE_ADAM}};

/* The optimiser's hyperparameter of that name, 0 when it has none. */
static float value_of(const num_optim *opt, const float *hyper, const char *name)
{
    size_t place = num_optim_place(opt, name);
    return place < NUM_OPTIM_MAX_HYPER ? hyper[place] : 0;
}

static void plan_adam(const float *hyper, uint64_t step_no, num_dense_step *s)
{
    const uint64_t last = 1u << 24; /* as num_count_step: the count is a float and stays there */
    uint32_t t = (uint32_t)(step_no < last ? step_no : last);
    s->has_count = true;
    s->count = (float)t;
    s->lr = (float)((double)hyper[NUM_LR] / num_correction(s->first, t));
    s->root2 = (float)sqrt(num_correction(s->second, t));
}

bd_status num_dense_plan(const num_optim *opt, const float *hyper, uint64_t step_no,
                         num_dense_step *out, bd_err *err)
{
    size_t i = 0;
    num_dense_step s = {0};
    while (i < sizeof kinds / sizeof kinds[0] && strcmp(kinds[i].name, opt->name) != 0) {
        i++;
    }
    if (i == sizeof kinds / sizeof kinds[0]) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "%s: not on the device", opt->name);
    }
    if (hyper[NUM_OPTIM_CLIP_NORM] > 0 || hyper[NUM_OPTIM_MAX_NORM] > 0) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "%s: clip_norm and max_norm are not on the device",
                          opt->name);
    }
    if (step_no == 0) {
        return bd_err_set(err, BD_E_INVALID, "%s: steps are counted from 1", opt->name);
    }
    float decay = value_of(opt, hyper, "weight_decay");
    s.kind = kinds[i].kind;
    s.clip = hyper[NUM_OPTIM_CLIP_VALUE];
    s.decays = decay != 0;
    s.keep = num_optim_keep(hyper[NUM_LR], decay);
    s.lr = hyper[NUM_LR];
    s.l2 = hyper[NUM_L2];
    s.eps = value_of(opt, hyper, "eps");
    s.nesterov = value_of(opt, hyper, "nesterov") != 0;
    s.second = value_of(opt, hyper, "beta2");
    s.first = value_of(opt, hyper,
                       s.kind == NUM_DENSE_ADAM      ? "beta1"
                       : s.kind == NUM_DENSE_RMSPROP ? "rho"
                                                     : "momentum");
    if (s.kind == NUM_DENSE_ADAM) {
        plan_adam(hyper, step_no, &s);
    }
    *out = s;
    return BD_OK;
}
