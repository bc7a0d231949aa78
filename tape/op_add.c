/* Sums of tensors: add, add_n, add_bias. */
#include "tape/tape_int.h"

static bool same_shape(const tp_tensor *a, const tp_tensor *b)
{
    bool same = a->n_dims == b->n_dims;
    for (int i = 0; same && i < a->n_dims; i++) {
        same = a->dims[i] == b->dims[i];
    }
    return same;
}

static bd_status add_n_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < node->n_in; i++) {
        rc = tp_grad_add(tape, node->in[i], tp_f32(node->out[0]->grad), err);
    }
    return rc;
}

static bd_status add_n(tp_tape *tape, const char *name, tp_tensor *const *xs, size_t n_xs,
                       tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    if (n_xs == 0) {
        return bd_err_set(err, BD_E_INVALID, "%s: no inputs", name);
    }
    for (size_t i = 1; i < n_xs; i++) {
        if (!same_shape(xs[0], xs[i])) {
            return tp_shape_error(err, name, "the first input", xs[0], "another", xs[i]);
        }
    }
    bd_status rc = tp_out_like(tape, xs[0], &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = name,
                    .backward = add_n_backward,
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
        tp_k(tape)->axpby(tape->dev, 1, tp_f32(xs[i]), i == 0 ? 0.0f : 1.0f, tp_f32(y), y->n_elems);
    }
    *out = y;
    return BD_OK;
}

bd_status tp_add_n(tp_tape *tape, tp_tensor *const *xs, size_t n_xs, tp_tensor **out, bd_err *err)
{
    return add_n(tape, "add_n", xs, n_xs, out, err);
}

bd_status tp_add(tp_tape *tape, tp_tensor *a, tp_tensor *b, tp_tensor **out, bd_err *err)
{
    return add_n(tape, "add", (tp_tensor *[]){a, b}, 2, out, err);
}

typedef struct bias_ctx {
    tp_tensor *x, *bias;
} bias_ctx;

static bd_status bias_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    bias_ctx *c = node->ctx;
    float *g = tp_f32(node->out[0]->grad), *db, beta;
    bd_status rc = tp_grad_add(tape, c->x, g, err);
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->bias, &db, &beta, err);
    }
    if (rc == BD_OK && db != NULL) {
        if (beta == 0) {
            tp_k(tape)->fill(tape->dev, 0, 0, db, c->bias->n_elems);
        }
        tp_k(tape)->bias_act_grad(tape->dev, g, NULL, db, tp_rows(c->x), tp_cols(c->x),
                                  TP_ACT_NONE);
    }
    return rc;
}

bd_status tp_add_bias(tp_tape *tape, tp_tensor *x, tp_tensor *bias, tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    if (bias->n_elems != tp_cols(x)) {
        return tp_shape_error(err, "add_bias", "bias", bias, "x", x);
    }
    bd_status rc = tp_out_like(tape, x, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = "add_bias",
                    .backward = bias_backward,
                    .in = (tp_tensor *[]){x, bias},
                    .n_in = 2,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(bias_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(bias_ctx *)ctx = (bias_ctx){.x = x, .bias = bias};
    }
    tp_k(tape)->axpby(tape->dev, 1, tp_f32(x), 0, tp_f32(y), x->n_elems);
    tp_k(tape)->bias_act(tape->dev, tp_f32(y), tp_f32(bias), tp_rows(x), tp_cols(x), TP_ACT_NONE);
    *out = y;
    return BD_OK;
}
