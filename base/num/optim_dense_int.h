/* base/num/optim_dense_int.h - a step of an optimiser over a flat vector as one pure function of
 * one element, so that kernels fuse clipping, decay and step, and a test without a GPU can run what
 * they run. Layer: base/num, private to optim.cu, optim_dense.c and their tests. Pure.
 *
 * Equal bits with num_optim_apply_ref: the same operations in the same order.
 */
#ifndef NUM_OPTIM_DENSE_INT_H
#define NUM_OPTIM_DENSE_INT_H

#include "base/num/dtype_int.h"
#include "base/num/optim.h"

#include <math.h>

/* The optimisers that need nothing but the element itself. */
typedef enum num_dense_kind {
    NUM_DENSE_SGD,
    NUM_DENSE_MOMENTUM,
    NUM_DENSE_ADAGRAD,
    NUM_DENSE_RMSPROP,
    NUM_DENSE_ADAM
} num_dense_kind;

/* All that is the same for every element of a step. */
typedef struct num_dense_step {
    num_dense_kind kind;
    float clip;  /* 0: off */
    float keep;  /* decoupled decay; weights are multiplied by it */
    bool decays; /* whether they are */
    float lr;    /* Adam: over the first correction */
    float l2;
    float first;  /* momentum, beta1, rho */
    float second; /* beta2 */
    float eps;
    float root2; /* Adam: root of the second correction */
    bool nesterov;
    bool has_count; /* state[2 * dim] = count */
    float count;
} num_dense_step;

/* step_no: the number of this step of this vector, from 1. BD_E_UNSUPPORTED: the optimiser, or a
 * norm over the vector (clip_norm, max_norm), which one element does not know. */
bd_status num_dense_plan(const num_optim *opt, const float *hyper, uint64_t step_no,
                         num_dense_step *out, bd_err *err) BD_MUST_CHECK;

/* s0, s1: the element's state, state[i] and state[dim + i]; where the optimiser has none they are
 * not touched. */
NUM_INLINE void num_dense_one(const num_dense_step *s, float *w, float *s0, float *s1, float g)
{
    if (s->clip > 0) {
        g = g > s->clip ? s->clip : g < -s->clip ? -s->clip : g;
    }
    float x = s->decays ? s->keep * *w : *w;
    float d = g + s->l2 * x;
    switch (s->kind) {
    case NUM_DENSE_SGD:
        *w = x - s->lr * d;
        break;
    case NUM_DENSE_MOMENTUM: {
        float next = s->first * *s0 + d;
        *s0 = next;
        *w = x - s->lr * (s->nesterov ? d + s->first * next : next);
        break;
    }
    case NUM_DENSE_ADAGRAD: {
        float next = *s0 + d * d;
        *s0 = next;
        *w = x - s->lr * d / (sqrtf(next) + s->eps);
        break;
    }
    case NUM_DENSE_RMSPROP: {
        float v = s->first * *s0 + (1.0f - s->first) * (d * d);
        *s0 = v;
        *w = x - s->lr * d / (sqrtf(v) + s->eps);
        break;
    }
    case NUM_DENSE_ADAM: {
        float m = s->first * *s0 + (1.0f - s->first) * d;
        float v = s->second * *s1 + (1.0f - s->second) * (d * d);
        *s0 = m;
        *s1 = v;
        *w = x - s->lr * (m / (sqrtf(v) / s->root2 + s->eps));
        break;
    }
    }
}

#endif
