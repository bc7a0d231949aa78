#include "tape/tape_int.h"

static bd_status bag_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    tp_bag_args *c = node->ctx;
    float *drows, beta;
    bd_status rc = tp_grad_slot(tape, node->in[0], &drows, &beta, err);
    if (rc == BD_OK && drows != NULL) {
        tp_k(tape)->bag_grad(tape->dev, c, tp_f32(node->in[0]), tp_f32(node->out[0]->grad), beta,
                             drows);
    }
    return rc;
}

bd_status tp_embedding_bag(tp_tape *tape, tp_tensor *rows, const uint32_t *index,
                           const uint32_t *offsets, size_t n, tp_bag_mode mode, tp_tensor **out,
                           bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = tp_need_matrix("embedding_bag", rows, err);
    if (rc == BD_OK) {
        rc = tp_out_matrix(tape, n, tp_cols(rows), &y, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "embedding_bag",
                    .backward = bag_backward,
                    .in = &rows,
                    .n_in = 1,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(tp_bag_args)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    tp_bag_args args = {.n = n,
                        .dim = tp_cols(rows),
                        .n_rows = tp_rows(rows),
                        .index = index,
                        .offsets = offsets,
                        .mode = mode};
    if (ctx != NULL) {
        *(tp_bag_args *)ctx = args;
    }
    tp_k(tape)->bag(tape->dev, &args, tp_f32(rows), tp_f32(y));
    *out = y;
    return BD_OK;
}
