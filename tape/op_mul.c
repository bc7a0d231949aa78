#include "tape/tape_int.h"

static bd_status mul_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < 2; i++) {
        float *dx, beta;
        rc = tp_grad_slot(tape, node->in[i], &dx, &beta, err);
        if (rc == BD_OK && dx != NULL) {
            tp_k(tape)->mul(tape->dev, tp_f32(node->out[0]->grad), tp_f32(node->in[1 - i]), beta,
                            dx, node->out[0]->n_elems);
        }
    }
    return rc;
}

bd_status tp_mul(tp_tape *tape, tp_tensor *a, tp_tensor *b, tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    if (a->n_elems != b->n_elems || tp_rows(a) != tp_rows(b)) {
        return tp_shape_error(err, "mul", "a", a, "b", b);
    }
    bd_status rc = tp_out_like(tape, a, &y, err);
    if (rc == BD_OK) {
        tp_op op = {.name = "mul",
                    .backward = mul_backward,
                    .in = (tp_tensor *[]){a, b},
                    .n_in = 2,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = 0};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    tp_k(tape)->mul(tape->dev, tp_f32(a), tp_f32(b), 0, tp_f32(y), a->n_elems);
    *out = y;
    return BD_OK;
}
