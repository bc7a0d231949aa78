/* relu, sigmoid and scale: one input, one output of the same shape. */
#include "tape/tape_int.h"

typedef struct act_ctx {
    tp_act act;
    float factor;
} act_ctx;

static bd_status act_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    act_ctx *c = node->ctx;
    tp_tensor *x = node->in[0], *y = node->out[0];
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, x, &dx, &beta, err);
    if (rc == BD_OK && dx != NULL) {
        tp_k(tape)->act_grad(tape->dev, tp_f32(y->grad), tp_f32(y), dx, beta, y->n_elems, c->act);
    }
    return rc;
}

static bd_status act(tp_tape *tape, const char *name, tp_tensor *x, tp_act kind, tp_tensor **out,
                     bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = tp_out_like(tape, x, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = name,
                    .backward = act_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(act_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        ((act_ctx *)ctx)->act = kind;
    }
    tp_k(tape)->act(tape->dev, tp_f32(x), tp_f32(y), x->n_elems, kind);
    *out = y;
    return BD_OK;
}

bd_status tp_relu(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err)
{
    return act(tape, "relu", x, TP_ACT_RELU, out, err);
}

bd_status tp_sigmoid(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err)
{
    return act(tape, "sigmoid", x, TP_ACT_SIGMOID, out, err);
}

static bd_status scale_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    act_ctx *c = node->ctx;
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, node->in[0], &dx, &beta, err);
    if (rc == BD_OK && dx != NULL) {
        tp_k(tape)->axpby(tape->dev, c->factor, tp_f32(node->out[0]->grad), beta, dx,
                          node->out[0]->n_elems);
    }
    return rc;
}

bd_status tp_scale(tp_tape *tape, tp_tensor *x, float factor, tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = tp_out_like(tape, x, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = "scale",
                    .backward = scale_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(act_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        ((act_ctx *)ctx)->factor = factor;
    }
    tp_k(tape)->axpby(tape->dev, factor, tp_f32(x), 0, tp_f32(y), x->n_elems);
    *out = y;
    return BD_OK;
}
