#include "tape/tape_int.h"

typedef struct linear_ctx {
    tp_tensor *x, *w, *b, *y;
    tp_act act;
} linear_ctx;

static bd_status check(const tp_tensor *x, const tp_tensor *w, const tp_tensor *b, bd_err *err)
{
    bd_status rc = tp_need_matrix("linear", x, err);
    if (rc == BD_OK) {
        rc = tp_need_matrix("linear", w, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (x->dims[1] != w->dims[1]) {
        return tp_shape_error(err, "linear", "x", x, "w", w);
    }
    if (b != NULL && b->n_elems != w->dims[0]) {
        return tp_shape_error(err, "linear", "b", b, "w", w);
    }
    return BD_OK;
}

/* dw[out x in] += g^T x, in bands of rows where its parts are wanted early. Each band reads all of
 * x again, so each is twice the one before: while one is computed, that one travels. */
static bd_status weight_grad(tp_tape *tape, const tp_node *node, const linear_ctx *c, bd_err *err)
{
    size_t n = tp_rows(c->x), n_in = c->x->dims[1], n_out = c->w->dims[0];
    float *dw, beta;
    bd_status rc = tp_grad_slot(tape, c->w, &dw, &beta, err);
    if (rc != BD_OK || dw == NULL) {
        return rc;
    }
    size_t part = tp_grad_part_elems(node, c->w);
    size_t rows = part == 0 ? n_out : (part + n_in - 1) / n_in, band = 0;
    for (size_t row = 0; rc == BD_OK && row < n_out; row += band) {
        band = rows < (n_out - row) / 2 ? rows : n_out - row;
        rows *= 2;
        tp_gemm_args args = {.trans_a = true,
                             .m = band,
                             .n = n_in,
                             .k = n,
                             .alpha = 1,
                             .a = tp_f32(c->y->grad) + row,
                             .lda = n_out,
                             .b = tp_f32(c->x),
                             .ldb = n_in,
                             .beta = beta,
                             .c = dw + row * n_in,
                             .ldc = n_in};
        tp_k(tape)->gemm(tape->dev, &args);
        if (row + band < n_out) {
            rc = tp_grad_part(tape, c->w, (row + band) * n_in, err);
        }
    }
    return rc;
}

/* dw, db, and dx[n x in] = g w, skipped when x needs none (the first layer). */
static bd_status linear_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    linear_ctx *c = node->ctx;
    size_t n = tp_rows(c->x), n_in = c->x->dims[1], n_out = c->w->dims[0];
    float *g = tp_f32(c->y->grad), *db, *dx, beta_b, beta_x;
    bd_status rc = tp_grad_slot(tape, c->b, &db, &beta_b, err);
    if (rc == BD_OK && db != NULL && beta_b == 0) {
        tp_k(tape)->fill(tape->dev, 0, 0, db, n_out);
    }
    if (rc == BD_OK) {
        tp_k(tape)->bias_act_grad(tape->dev, g, tp_f32(c->y), db, n, n_out, c->act);
        rc = weight_grad(tape, node, c, err);
    }
    if (rc == BD_OK) { /* they leave while dx is computed */
        rc = tp_grad_final(tape, node, c->w, err);
    }
    if (rc == BD_OK) {
        rc = tp_grad_final(tape, node, c->b, err);
    }
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->x, &dx, &beta_x, err);
    }
    if (rc == BD_OK && dx != NULL) {
        tp_gemm_args dx_args = {.m = n,
                                .n = n_in,
                                .k = n_out,
                                .alpha = 1,
                                .a = g,
                                .lda = n_out,
                                .b = tp_f32(c->w),
                                .ldb = n_in,
                                .beta = beta_x,
                                .c = dx,
                                .ldc = n_in};
        tp_k(tape)->gemm(tape->dev, &dx_args);
    }
    return rc;
}

bd_status tp_linear(tp_tape *tape, tp_tensor *x, tp_tensor *w, tp_tensor *b, tp_act act,
                    tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bd_status rc = check(x, w, b, err);
    if (rc == BD_OK) {
        rc = tp_out_matrix(tape, tp_rows(x), w->dims[0], &y, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "linear",
                    .backward = linear_backward,
                    .in = (tp_tensor *[]){x, w, b},
                    .n_in = 3,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(linear_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(linear_ctx *)ctx = (linear_ctx){.x = x, .w = w, .b = b, .y = y, .act = act};
    }
    tp_gemm_args args = {.trans_b = true,
                         .m = tp_rows(x),
                         .n = w->dims[0],
                         .k = x->dims[1],
                         .alpha = 1,
                         .a = tp_f32(x),
                         .lda = x->dims[1],
                         .b = tp_f32(w),
                         .ldb = x->dims[1],
                         .c = tp_f32(y),
                         .ldc = w->dims[0]};
    tp_k(tape)->gemm(tape->dev, &args);
    tp_k(tape)->bias_act(tape->dev, tp_f32(y), b == NULL ? NULL : tp_f32(b), tp_rows(x), w->dims[0],
                         act);
    *out = y;
    return BD_OK;
}
