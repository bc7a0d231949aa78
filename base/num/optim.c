#include "base/num/optim.h"

#include "base/num/optim_int.h"
#include "base/num/vec.h"
#include "base/option.h"

#include <string.h>

static const num_optim *const all[] = {
#define BD_X(name) &num_optim_##name,
    NUM_OPTIM_MAP(BD_X)
#undef BD_X
};
enum { N_ALL = sizeof all / sizeof all[0] };

const num_optim *num_optim_at(size_t i)
{
    return i < N_ALL ? all[i] : NULL;
}

const num_optim *num_optim_find(const char *name)
{
    for (size_t i = 0; i < N_ALL; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}

/* In the order of their places. */
static const num_hyper common[] = {
    {"weight_decay", 0, 0, 1e6, "decoupled: each step first shrinks weights by learning_rate * it"},
    {"clip_value", 0, 0, 1e30, "elements of a gradient are cut to this size; 0: never"},
    {"clip_norm", 0, 0, 1e30, "a row's gradient is scaled down to this L2 norm; 0: never"},
    {"max_norm", 0, 0, 1e30, "a row's weights are scaled down to this L2 norm; 0: never"},
};
enum { N_COMMON = sizeof common / sizeof common[0] };
_Static_assert((int)NUM_OPTIM_MAX_OWN + N_COMMON == (int)NUM_OPTIM_MAX_HYPER, "places in hyper[]");

static bool has_own(const num_optim *opt, const char *name)
{
    for (size_t i = 0; i < opt->n_hypers; i++) {
        if (strcmp(opt->hypers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static bool takes(const num_optim *opt, size_t common_idx)
{
    size_t place = NUM_OPTIM_MAX_OWN + common_idx;
    bool touches_weights = place == NUM_OPTIM_WEIGHT_DECAY || place == NUM_OPTIM_MAX_NORM;
    return !(opt->derived && touches_weights) && !has_own(opt, common[common_idx].name);
}

const num_hyper *num_optim_hyper_at(const num_optim *opt, size_t i, size_t *place)
{
    if (i < opt->n_hypers) {
        *place = i;
        return &opt->hypers[i];
    }
    size_t left = i - opt->n_hypers;
    for (size_t k = 0; k < N_COMMON; k++) {
        if (takes(opt, k) && left-- == 0) {
            *place = NUM_OPTIM_MAX_OWN + k;
            return &common[k];
        }
    }
    return NULL;
}

size_t num_optim_place(const num_optim *opt, const char *name)
{
    size_t place = 0;
    const num_hyper *h = NULL;
    for (size_t i = 0; (h = num_optim_hyper_at(opt, i, &place)) != NULL; i++) {
        if (strcmp(h->name, name) == 0) {
            return place;
        }
    }
    return NUM_OPTIM_MAX_HYPER;
}

static bd_status unknown(const num_optim *opt, const char *name, bd_err *err)
{
    const char *names[NUM_OPTIM_MAX_HYPER];
    const num_hyper *h = NULL;
    size_t n = 0, place = 0;
    for (; (h = num_optim_hyper_at(opt, n, &place)) != NULL; n++) {
        names[n] = h->name;
    }
    const char *meant = bd_nearest(name, names, n);
    return bd_err_set(err, BD_E_INVALID, "%s: unknown hyperparameter %s%s%s%s", opt->name, name,
                      meant == NULL ? "" : ", did you mean ", meant == NULL ? "" : meant,
                      meant == NULL ? "" : "?");
}

static bd_status put(const num_optim *opt, const char *name, double value, float *hyper,
                     bd_err *err)
{
    const num_hyper *h = NULL;
    size_t place = 0;
    for (size_t i = 0; (h = num_optim_hyper_at(opt, i, &place)) != NULL; i++) {
        if (strcmp(h->name, name) != 0) {
            continue;
        }
        if (!(value >= h->min && value <= h->max)) { /* a NaN is refused too */
            return bd_err_set(err, BD_E_INVALID, "%s: %s=%g must be from %g to %g", opt->name, name,
                              value, h->min, h->max);
        }
        hyper[place] = (float)value;
        return BD_OK;
    }
    return unknown(opt, name, err);
}

bd_status num_optim_hyper(const num_optim *opt, const char *const *names, const double *values,
                          size_t n, float *hyper, bd_err *err)
{
    float filled[NUM_OPTIM_MAX_HYPER] = {0};
    const num_hyper *h = NULL;
    size_t place = 0;
    for (size_t i = 0; (h = num_optim_hyper_at(opt, i, &place)) != NULL; i++) {
        filled[place] = (float)h->def;
    }
    for (size_t i = 0; i < n; i++) {
        bd_status rc = put(opt, names[i], values[i], filled, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    memcpy(hyper, filled, sizeof filled);
    return BD_OK;
}

/* ---- one update with all of them ---- */

typedef double sumsq_fn(const float *x, size_t n);
typedef void step_fn(const float *hyper, float *w, float *state, const float *g, size_t dim);

/* y = f * x; they may be the same. */
static void scale(float *y, const float *x, float f, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = f * x[i];
    }
}

/* Factor that brings x down to the norm, 1 when it is there. A norm of infinity gives 0, and 0
 * times infinity is NaN: a broken row stays visible. */
static float shrink(const float *x, size_t n, float norm, sumsq_fn *sumsq)
{
    double sum = norm > 0 ? sumsq(x, n) : 0;
    return sum > (double)norm * (double)norm ? (float)((double)norm / sqrt(sum)) : 1.0f;
}

/* The gradient to step with: g, or its clipped copy in scratch. */
static const float *clipped(const float *hyper, const float *g, size_t dim, float *scratch,
                            sumsq_fn *sumsq)
{
    float top = hyper[NUM_OPTIM_CLIP_VALUE];
    if (top > 0) {
        for (size_t i = 0; i < dim; i++) {
            scratch[i] = g[i] > top ? top : g[i] < -top ? -top : g[i];
        }
        g = scratch;
    }
    float f = shrink(g, dim, hyper[NUM_OPTIM_CLIP_NORM], sumsq);
    if (f != 1.0f) {
        scale(scratch, g, f, dim);
        g = scratch;
    }
    return g;
}

static void apply(const num_optim *opt, const float *hyper, float *w, float *state, const float *g,
                  size_t dim, float *scratch, bool simd)
{
    step_fn *step = simd ? opt->step : opt->step_ref;
    sumsq_fn *sumsq = simd ? num_sumsq : num_sumsq_ref;
    const float *h = hyper + NUM_OPTIM_MAX_OWN;
    if (h[0] == 0 && h[1] == 0 && h[2] == 0 && h[3] == 0) { /* as nearly all tables */
        step(hyper, w, state, g, dim);
        return;
    }
    g = clipped(hyper, g, dim, scratch, sumsq);
    if (hyper[NUM_OPTIM_WEIGHT_DECAY] != 0) {
        scale(w, w, num_optim_keep(hyper[NUM_LR], hyper[NUM_OPTIM_WEIGHT_DECAY]), dim);
    }
    step(hyper, w, state, g, dim);
    float f = shrink(w, dim, hyper[NUM_OPTIM_MAX_NORM], sumsq);
    if (f != 1.0f) {
        scale(w, w, f, dim);
    }
}

void num_optim_apply(const num_optim *opt, const float *hyper, float *w, float *state,
                     const float *g, size_t dim, float *scratch)
{
    apply(opt, hyper, w, state, g, dim, scratch, true);
}

void num_optim_apply_ref(const num_optim *opt, const float *hyper, float *w, float *state,
                         const float *g, size_t dim, float *scratch)
{
    apply(opt, hyper, w, state, g, dim, scratch, false);
}
