#include "tape/tape_int.h"

typedef struct dropout_ctx {
    float p;
    tp_dropout_key key;
} dropout_ctx;

static bd_status dropout_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    dropout_ctx *c = node->ctx;
    tp_tensor *x = node->in[0];
    float *dx, beta;
    bd_status rc = tp_grad_slot(tape, x, &dx, &beta, err);
    if (rc == BD_OK && dx != NULL) {
        tp_k(tape)->dropout(tape->dev, tp_f32(node->out[0]->grad), c->p, &c->key, beta, dx,
                            tp_rows(x), tp_cols(x));
    }
    return rc;
}

bd_status tp_dropout(tp_tape *tape, tp_tensor *x, float p, const tp_dropout_key *key,
                     tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    if (!(p >= 0 && p < 1)) {
        return bd_err_set(err, BD_E_INVALID, "dropout: p %g is not in [0, 1)", (double)p);
    }
    if (p == 0) {
        *out = x;
        return BD_OK;
    }
    bd_status rc = tp_out_like(tape, x, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = "dropout",
                    .backward = dropout_backward,
                    .in = &x,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(dropout_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(dropout_ctx *)ctx = (dropout_ctx){.p = p, .key = *key};
    }
    tp_k(tape)->dropout(tape->dev, tp_f32(x), p, key, 0, tp_f32(y), tp_rows(x), tp_cols(x));
    *out = y;
    return BD_OK;
}
