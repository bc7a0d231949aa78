/* tape/ops.h - the operations of the tape. One file tape/op_<name>.c each.
 *
 * Layer:     tape.
 * Common:    every op checks shapes (BD_E_INVALID names the op and both shapes), computes *out in
 *            the tape's memory, and records itself when an input requires a gradient and the tape
 *            records. n, the number of samples, is the first dimension and may be 0. On failure
 *            *out is untouched and nothing is recorded.
 *            Input arrays that are not tensors (ids, offsets, sample numbers) are borrowed until
 * the tape's reset and must be addressable by the device. Adding one: its kernels in tape/kernels.h
 * and tape/cpu_<name>.c, the op in tape/op_<name>.c, a row in tests/unit/test_tape_ops.c (finite
 * differences).
 */
#ifndef TP_OPS_H
#define TP_OPS_H

#include "tape/tape.h"

typedef enum tp_act {
    TP_ACT_NONE = 0,
    TP_ACT_RELU = 1,
    TP_ACT_SIGMOID = 2,
} tp_act;

/* y[n x out] = act(x[n x in] * w[out x in]^T + b[out]); b may be NULL. */
bd_status tp_linear(tp_tape *tape, tp_tensor *x, tp_tensor *w, tp_tensor *b, tp_act act,
                    tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* DCN-v2 cross layer: y = x0 * (x * w^T + b) + x; x0, x [n x d], w [d x d], b [d]. */
bd_status tp_cross(tp_tape *tape, tp_tensor *x0, tp_tensor *x, tp_tensor *w, tp_tensor *b,
                   tp_tensor **out, bd_err *err) BD_MUST_CHECK;

/* y = act(x), any shape. */
bd_status tp_relu(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err) BD_MUST_CHECK;
bd_status tp_sigmoid(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* y = factor * x. */
bd_status tp_scale(tp_tape *tape, tp_tensor *x, float factor, tp_tensor **out,
                   bd_err *err) BD_MUST_CHECK;
/* y = a * b, element by element, same shape. */
bd_status tp_mul(tp_tape *tape, tp_tensor *a, tp_tensor *b, tp_tensor **out,
                 bd_err *err) BD_MUST_CHECK;
/* y = a + b, same shape. */
bd_status tp_add(tp_tape *tape, tp_tensor *a, tp_tensor *b, tp_tensor **out,
                 bd_err *err) BD_MUST_CHECK;
/* y[n x c] = x[n x c] + bias[c]. */
bd_status tp_add_bias(tp_tape *tape, tp_tensor *x, tp_tensor *bias, tp_tensor **out,
                      bd_err *err) BD_MUST_CHECK;
/* y = xs[0] + xs[1] + ... in this order, same shapes, n_xs >= 1. */
bd_status tp_add_n(tp_tape *tape, tp_tensor *const *xs, size_t n_xs, tp_tensor **out,
                   bd_err *err) BD_MUST_CHECK;
/* y[1] = sum or mean of all elements (accumulated in double, rounded once); mean of none is 0. */
bd_status tp_sum(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err) BD_MUST_CHECK;
bd_status tp_mean(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err) BD_MUST_CHECK;

/* Matrices side by side: y[n x sum of columns]. */
bd_status tp_concat(tp_tape *tape, tp_tensor *const *xs, size_t n_xs, tp_tensor **out,
                    bd_err *err) BD_MUST_CHECK;
/* y[n x n_cols] = columns [first_col, first_col + n_cols) of x. */
bd_status tp_slice(tp_tape *tape, tp_tensor *x, size_t first_col, size_t n_cols, tp_tensor **out,
                   bd_err *err) BD_MUST_CHECK;

/* DLRM interaction of n_feats matrices [n x d]: y[n x (d + F(F-1)/2)] = feats[0], then the dots
 * <feats[i], feats[j]> for j < i in row order of the strictly lower triangle. */
bd_status tp_dot_interact(tp_tape *tape, tp_tensor *const *feats, size_t n_feats, tp_tensor **out,
                          bd_err *err) BD_MUST_CHECK;
/* FM second order: y[n x 1] = sum over i < j of <feats[i], feats[j]>, computed as
 * 0.5 * sum over d of ((sum v)^2 - sum v^2). */
bd_status tp_fm2(tp_tape *tape, tp_tensor *const *feats, size_t n_feats, tp_tensor **out,
                 bd_err *err) BD_MUST_CHECK;

/* Names the mask: it is a pure function of (seed, step, layer, sample_idx[i], column), so it does
 * not depend on how samples are spread over ranks. */
typedef struct tp_dropout_key {
    uint64_t seed, step;
    uint32_t layer;
    const uint64_t *sample_idx; /* [n] */
} tp_dropout_key;

/* y = x * mask / (1 - p), mask 0 with probability p in [0, 1); y = x when p is 0 (evaluation). */
bd_status tp_dropout(tp_tape *tape, tp_tensor *x, float p, const tp_dropout_key *key,
                     tp_tensor **out, bd_err *err) BD_MUST_CHECK;

typedef struct tp_batch_norm_args {
    tp_tensor *gamma, *beta;               /* parameters [c] */
    tp_tensor *running_mean, *running_var; /* buffers [c], updated in training */
    float momentum, eps;                   /* running = (1 - momentum) * running + momentum * x */
    bool train; /* statistics of the batch (biased variance); else the running ones */
} tp_batch_norm_args;

/* Per column over samples. In training the running variance takes the unbiased one, and both stay
 * as they are when n < 2. */
bd_status tp_batch_norm(tp_tape *tape, tp_tensor *x, const tp_batch_norm_args *args,
                        tp_tensor **out, bd_err *err) BD_MUST_CHECK;

typedef enum tp_bag_mode {
    TP_BAG_SUM = 0,
    TP_BAG_MEAN = 1, /* an empty bag gives zeros */
    TP_BAG_MAX = 2,  /* each element by itself, a NaN before all; zeros for an empty bag */
} tp_bag_mode;

/* y[n x dim]: sample i pools rows[index[k]] for k in [offsets[i], offsets[i + 1]), in order of k.
 * rows [n_rows x dim]; index < n_rows; offsets [n + 1] start at 0. Backward adds to each row in
 * sample order, so the sum does not depend on threads; that of a maximum goes to the first of equal
 * elements, and reads rows, which stay as they are until then. */
bd_status tp_embedding_bag(tp_tape *tape, tp_tensor *rows, const uint32_t *index,
                           const uint32_t *offsets, size_t n, tp_bag_mode mode, tp_tensor **out,
                           bd_err *err) BD_MUST_CHECK;

/* Losses. x [n x 1] or [n], target [n] (device memory, borrowed).
 *   loss      [1] f32 = factor * sum of the samples' losses; factor is 1 / (global count of valid
 *             samples of the step), so gradients need no further division
 *   loss_sum  [1] NUM_F64, the sum itself, no gradient; may be NULL
 * bce: binary cross entropy of sigmoid(x), stable for any x. mse: (x - target)^2. */
bd_status tp_bce_logits(tp_tape *tape, tp_tensor *x, const float *target, float factor,
                        tp_tensor **loss, tp_tensor **loss_sum, bd_err *err) BD_MUST_CHECK;
bd_status tp_mse(tp_tape *tape, tp_tensor *x, const float *target, float factor, tp_tensor **loss,
                 tp_tensor **loss_sum, bd_err *err) BD_MUST_CHECK;

#endif
