#include "tape/tape_int.h"

typedef struct cross_ctx {
    tp_tensor *x0, *x, *w, *b;
    float *z; /* [n x d] x * w^T + b */
} cross_ctx;

typedef struct weight_slots {
    float *dw, *db; /* NULL: not wanted */
    float beta_w;
} weight_slots;

static void weight_grads(tp_tape *tape, const cross_ctx *c, float *dz, const weight_slots *s)
{
    size_t n = tp_rows(c->x), d = tp_cols(c->x);
    if (s->db != NULL) {
        tp_k(tape)->bias_act_grad(tape->dev, dz, NULL, s->db, n, d, TP_ACT_NONE);
    }
    if (s->dw != NULL) {
        tp_gemm_args args = {.trans_a = true,
                             .m = d,
                             .n = d,
                             .k = n,
                             .alpha = 1,
                             .a = dz,
                             .lda = d,
                             .b = tp_f32(c->x),
                             .ldb = d,
                             .beta = s->beta_w,
                             .c = s->dw,
                             .ldc = d};
        tp_k(tape)->gemm(tape->dev, &args);
    }
}

/* dx += dy + dz w */
static bd_status x_grad(tp_tape *tape, const cross_ctx *c, const float *dy, const float *dz,
                        bd_err *err)
{
    size_t d = tp_cols(c->x);
    float *dx, beta;
    bd_status rc = tp_grad_add(tape, c->x, dy, err);
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->x, &dx, &beta, err);
    }
    if (rc == BD_OK && dx != NULL) {
        tp_gemm_args args = {.m = tp_rows(c->x),
                             .n = d,
                             .k = d,
                             .alpha = 1,
                             .a = dz,
                             .lda = d,
                             .b = tp_f32(c->w),
                             .ldb = d,
                             .beta = beta,
                             .c = dx,
                             .ldc = d};
        tp_k(tape)->gemm(tape->dev, &args);
    }
    return rc;
}

static bd_status cross_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    cross_ctx *c = node->ctx;
    const float *dy = tp_f32(node->out[0]->grad);
    size_t n_elems = c->x->n_elems;
    float *dz = NULL, *dx0, beta_x0, beta_b;
    weight_slots w;
    bd_status rc = tp_scratch(tape, n_elems, &dz, err);
    if (rc == BD_OK) {
        tp_k(tape)->mul(tape->dev, dy, tp_f32(c->x0), 0, dz, n_elems);
        rc = tp_grad_slot(tape, c->x0, &dx0, &beta_x0, err);
    }
    if (rc == BD_OK && dx0 != NULL) {
        tp_k(tape)->mul(tape->dev, dy, c->z, beta_x0, dx0, n_elems);
    }
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->w, &w.dw, &w.beta_w, err);
    }
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->b, &w.db, &beta_b, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (w.db != NULL && beta_b == 0) {
        tp_k(tape)->fill(tape->dev, 0, 0, w.db, c->b->n_elems);
    }
    weight_grads(tape, c, dz, &w);
    return x_grad(tape, c, dy, dz, err);
}

static bd_status check(const tp_tensor *x0, const tp_tensor *x, const tp_tensor *w,
                       const tp_tensor *b, bd_err *err)
{
    bd_status rc = tp_need_matrix("cross", x0, err);
    if (rc == BD_OK) {
        rc = tp_need_matrix("cross", x, err);
    }
    if (rc == BD_OK) {
        rc = tp_need_matrix("cross", w, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    size_t d = tp_cols(x);
    if (tp_rows(x0) != tp_rows(x) || tp_cols(x0) != d) {
        return tp_shape_error(err, "cross", "x0", x0, "x", x);
    }
    if (w->dims[0] != d || w->dims[1] != d) {
        return tp_shape_error(err, "cross", "w", w, "x", x);
    }
    return b->n_elems == d ? BD_OK : tp_shape_error(err, "cross", "b", b, "x", x);
}

bd_status tp_cross(tp_tape *tape, tp_tensor *x0, tp_tensor *x, tp_tensor *w, tp_tensor *b,
                   tp_tensor **out, bd_err *err)
{
    tp_tensor *y = NULL;
    float *z = NULL;
    void *ctx = NULL;
    bd_status rc = check(x0, x, w, b, err);
    if (rc == BD_OK) {
        rc = tp_out_like(tape, x, &y, err);
    }
    if (rc == BD_OK) {
        rc = tp_scratch(tape, x->n_elems, &z, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "cross",
                    .backward = cross_backward,
                    .in = (tp_tensor *[]){x0, x, w, b},
                    .n_in = 4,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(cross_ctx)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(cross_ctx *)ctx = (cross_ctx){.x0 = x0, .x = x, .w = w, .b = b, .z = z};
    }
    size_t n = tp_rows(x), d = tp_cols(x);
    tp_gemm_args args = {.trans_b = true,
                         .m = n,
                         .n = d,
                         .k = d,
                         .alpha = 1,
                         .a = tp_f32(x),
                         .lda = d,
                         .b = tp_f32(w),
                         .ldb = d,
                         .c = z,
                         .ldc = d};
    tp_k(tape)->gemm(tape->dev, &args);
    tp_k(tape)->bias_act(tape->dev, z, tp_f32(b), n, d, TP_ACT_NONE);
    tp_k(tape)->cross(tape->dev, tp_f32(x0), z, tp_f32(x), tp_f32(y), x->n_elems);
    *out = y;
    return BD_OK;
}
