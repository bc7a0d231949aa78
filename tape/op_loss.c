#include "tape/tape_int.h"

typedef void (*loss_kernel)(tp_device *dev, const float *x, const float *target, size_t n,
                            float factor, float *dx_unit, float *loss, double *loss_sum);

typedef struct loss_kind {
    const char *name;
    loss_kernel kernel;
} loss_kind;

typedef struct loss_ctx {
    float *unit; /* [n] d loss_i / d x_i */
    float factor;
} loss_ctx;

static bd_status loss_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    loss_ctx *c = node->ctx;
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, node->in[0], &dx, &beta, err);
    if (rc == BD_OK && dx != NULL) {
        tp_k(tape)->loss_grad(tape->dev, c->unit, tp_f32(node->out[0]->grad), c->factor, beta, dx,
                              node->in[0]->n_elems);
    }
    return rc;
}

static bd_status loss_op(tp_tape *tape, const loss_kind *kind, tp_tensor *x, const float *target,
                         float factor, tp_tensor **loss, tp_tensor **loss_sum, bd_err *err)
{
    tp_tensor *y = NULL, *total = NULL;
    float *unit = NULL;
    void *ctx = NULL;
    bd_status rc = BD_OK;
    if (tp_cols(x) != 1) {
        return bd_err_set(err, BD_E_INVALID, "%s: %zu columns, one value per sample is needed",
                          kind->name, tp_cols(x));
    }
    rc = tp_out(tape, 1, (const size_t[]){1}, &y, err);
    if (rc == BD_OK) {
        rc = tp_out_dtype(tape, NUM_F64, 1, (const size_t[]){1}, &total, err);
    }
    if (rc == BD_OK) {
        rc = tp_scratch(tape, x->n_elems, &unit, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = kind->name,
                    .backward = loss_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(loss_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(loss_ctx *)ctx = (loss_ctx){.unit = unit, .factor = factor};
    }
    kind->kernel(tape->dev, tp_f32(x), target, x->n_elems, factor, ctx == NULL ? NULL : unit,
                 tp_f32(y), (double *)total->data);
    *loss = y;
    if (loss_sum != NULL) {
        *loss_sum = total;
    }
    return BD_OK;
}

bd_status tp_bce_logits(tp_tape *tape, tp_tensor *x, const float *target, float factor,
                        tp_tensor **loss, tp_tensor **loss_sum, bd_err *err)
{
    const loss_kind kind = {.name = "bce_logits", .kernel = tp_k(tape)->bce};
    return loss_op(tape, &kind, x, target, factor, loss, loss_sum, err);
}

bd_status tp_mse(tp_tape *tape, tp_tensor *x, const float *target, float factor, tp_tensor **loss,
                 tp_tensor **loss_sum, bd_err *err)
{
    const loss_kind kind = {.name = "mse", .kernel = tp_k(tape)->mse};
    return loss_op(tape, &kind, x, target, factor, loss, loss_sum, err);
}
