#include "tape/tape_int.h"

typedef struct sum_ctx {
    float factor;
} sum_ctx;

static bd_status sum_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    sum_ctx *c = node->ctx;
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, node->in[0], &dx, &beta, err);
    if (rc == BD_OK && dx != NULL) {
        tp_k(tape)->fill_from(tape->dev, tp_f32(node->out[0]->grad), c->factor, beta, dx,
                              node->in[0]->n_elems);
    }
    return rc;
}

static bd_status sum(tp_tape *tape, const char *name, tp_tensor *x, float factor, tp_tensor **out,
                     bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = tp_out(tape, 1, (const size_t[]){1}, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = name,
                    .backward = sum_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(sum_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        ((sum_ctx *)ctx)->factor = factor;
    }
    tp_k(tape)->sum(tape->dev, tp_f32(x), x->n_elems, factor, tp_f32(y));
    *out = y;
    return BD_OK;
}

bd_status tp_sum(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err)
{
    return sum(tape, "sum", x, 1.0f, out, err);
}

bd_status tp_mean(tp_tape *tape, tp_tensor *x, tp_tensor **out, bd_err *err)
{
    float factor = x->n_elems == 0 ? 0.0f : (float)(1.0 / (double)x->n_elems);
    return sum(tape, "mean", x, factor, out, err);
}
