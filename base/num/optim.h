/* base/num/optim.h - optimiser steps over rows (sparse) and over flat vectors (dense).
 *
 * Layer:   base/num. Pure: no allocation, any thread.
 * Promise: the SIMD step equals the scalar reference bit for bit; a row's result depends only on
 * that row, its gradient and the hyperparameters. Adding one: one file base/num/optim_<name>.c that
 * defines a num_optim and one line in NUM_OPTIM_MAP (base/num/optim_int.h), plus its formula and
 * rows in tests/unit/test_num_optim.c; docs/OPTIMIZERS.md is made from the tables (`make docs`).
 *
 * Row layout: w[dim] weights, then state[num_optim_state_elems(opt, dim)] f32 (e.g. Adagrad: dim
 * sums of squares; rowwise_adagrad: 1; adam: 2*dim + 1 with the row's own step count last).
 */
#ifndef NUM_OPTIM_H
#define NUM_OPTIM_H

#include "base/err.h"
#include "base/num/hyper.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* hyper[]: an optimiser's own, then the ones that all take. */
#define NUM_OPTIM_MAX_OWN   12
#define NUM_OPTIM_MAX_HYPER 16
enum {
    NUM_OPTIM_WEIGHT_DECAY = NUM_OPTIM_MAX_OWN,
    NUM_OPTIM_CLIP_VALUE,
    NUM_OPTIM_CLIP_NORM,
    NUM_OPTIM_MAX_NORM
};

typedef struct num_optim num_optim;
struct num_optim {
    const char *name;
    const char *help;        /* one line, with the update formula */
    const num_hyper *hypers; /* [n_hypers]; index 0 is learning_rate, 1 is l2 (added to gradient) */
    size_t n_hypers;
    size_t (*state_elems)(size_t dim);
    /* Writes the initial state of a new row. */
    void (*init)(const float *hyper, float *state, size_t dim);
    /* The weights are computed anew from the state at each step, so that a change to them does not
     * last: weight_decay and max_norm are refused. */
    bool derived;
    /* One update of one row in place, without the common hyperparameters. hyper[n_hypers] in f32,
     * learning rate already scheduled. g is not changed. */
    void (*step_ref)(const float *hyper, float *w, float *state, const float *g, size_t dim);
    void (*step)(const float *hyper, float *w, float *state, const float *g, size_t dim); /* SIMD */
};

/* NULL for an unknown name; bd_nearest (base/option.h) finds what was meant. */
const num_optim *num_optim_find(const char *name);
/* i-th optimiser, NULL past the end: for help and tests. */
const num_optim *num_optim_at(size_t i);

/* Hyperparameter i of opt, the common ones behind its own, and its place in hyper[]; NULL past the
 * end. One of its own hides a common one of the same name (adamw's weight_decay). */
const num_hyper *num_optim_hyper_at(const num_optim *opt, size_t i, size_t *place);
/* Place in hyper[] of a name, NUM_OPTIM_MAX_HYPER when opt has none such. */
size_t num_optim_place(const num_optim *opt, const char *name);

/* Fills hyper[NUM_OPTIM_MAX_HYPER] from names and values, defaults for the rest. BD_E_INVALID names
 * the unknown or out-of-bounds one. */
bd_status num_optim_hyper(const num_optim *opt, const char *const *names, const double *values,
                          size_t n, float *hyper, bd_err *err) BD_MUST_CHECK;

/* num_optim_apply - one update of one row, the common hyperparameters included: the gradient is
 * clipped by clip_value, then by clip_norm; weights decay by 1 - learning_rate * weight_decay; the
 * step; weights are scaled down to max_norm. What is not finite stays so.
 *
 *   hyper    [NUM_OPTIM_MAX_HYPER]; one that is 0 is off and costs nothing
 *   g        [dim], unchanged
 *   scratch  [dim], overwritten; may be g itself when that may be overwritten
 */
void num_optim_apply(const num_optim *opt, const float *hyper, float *w, float *state,
                     const float *g, size_t dim, float *scratch);
void num_optim_apply_ref(const num_optim *opt, const float *hyper, float *w, float *state,
                         const float *g, size_t dim, float *scratch);

#endif
