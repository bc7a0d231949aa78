/* concat and slice of columns. */
#include "tape/tape_int.h"

static bd_status concat_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    tp_tensor *y = node->out[0];
    size_t n_cols = tp_cols(y), at = 0;
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < node->n_in; i++) {
        size_t c = tp_cols(node->in[i]);
        float *dx, beta;
        rc = tp_grad_slot(tape, node->in[i], &dx, &beta, err);
        if (rc == BD_OK && dx != NULL) {
            tp_k(tape)->copy2d(tape->dev, tp_f32(y->grad) + at, n_cols, beta, dx, c, tp_rows(y), c);
        }
        at += c;
    }
    return rc;
}

bd_status tp_concat(tp_tape *tape, tp_tensor *const *xs, size_t n_xs, tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    size_t n_cols = 0, at = 0;
    bd_status rc = n_xs > 0 ? BD_OK : bd_err_set(err, BD_E_INVALID, "concat: no inputs");
    for (size_t i = 0; rc == BD_OK && i < n_xs; i++) {
        rc = tp_need_matrix("concat", xs[i], err);
        if (rc == BD_OK && tp_rows(xs[i]) != tp_rows(xs[0])) {
            rc = tp_shape_error(err, "concat", "the first input", xs[0], "another", xs[i]);
        }
        n_cols += tp_cols(xs[i]);
    }
    if (rc == BD_OK) {
        rc = tp_out_matrix(tape, tp_rows(xs[0]), n_cols, &y, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "concat",
                    .backward = concat_backward,
                    .in = xs,
                    .n_in = n_xs,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = 0};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    for (size_t i = 0; i < n_xs; i++) {
        size_t c = tp_cols(xs[i]);
        tp_k(tape)->copy2d(tape->dev, tp_f32(xs[i]), c, 0, tp_f32(y) + at, n_cols, tp_rows(y), c);
        at += c;
    }
    *out = y;
    return BD_OK;
}

typedef struct slice_ctx {
    size_t first_col;
} slice_ctx;

static bd_status slice_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    slice_ctx *c = node->ctx;
    tp_tensor *x = node->in[0], *y = node->out[0];
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, x, &dx, &beta, err);
    if (rc != BD_OK || dx == NULL) {
        return rc;
    }
    if (beta == 0) {
        tp_k(tape)->fill(tape->dev, 0, 0, dx, x->n_elems);
    }
    tp_k(tape)->copy2d(tape->dev, tp_f32(y->grad), tp_cols(y), 1, dx + c->first_col, tp_cols(x),
                       tp_rows(x), tp_cols(y));
    return BD_OK;
}

bd_status tp_slice(tp_tape *tape, tp_tensor *x, size_t first_col, size_t n_cols, tp_tensor **out,
                   bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = tp_need_matrix("slice", x, err);
    if (rc == BD_OK && (first_col > tp_cols(x) || n_cols > tp_cols(x) - first_col)) {
        rc = bd_err_set(err, BD_E_INVALID, "slice: columns %zu to %zu of %zu", first_col,
                        first_col + n_cols, tp_cols(x));
    }
    if (rc == BD_OK) {
        rc = tp_out_matrix(tape, tp_rows(x), n_cols, &y, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "slice",
                    .backward = slice_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(slice_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        ((slice_ctx *)ctx)->first_col = first_col;
    }
    tp_k(tape)->copy2d(tape->dev, tp_f32(x) + first_col, tp_cols(x), 0, tp_f32(y), n_cols,
                       tp_rows(x), n_cols);
    *out = y;
    return BD_OK;
}
