#include "tape/tape_int.h"

typedef struct bn_ctx {
    tp_tensor *x, *gamma, *beta;
    tp_bn_args args;
    float *mean, *inv_std;
    bool train;
} bn_ctx;

/* Where a vector's gradient is added to: started at zero when this is the first contribution. */
static bd_status sum_slot(tp_tape *tape, tp_tensor *t, float **mem, bd_err *err)
{
    float beta;
    bd_status rc = tp_grad_slot(tape, t, mem, &beta, err);
    if (rc == BD_OK && *mem != NULL && beta == 0) {
        tp_k(tape)->fill(tape->dev, 0, 0, *mem, t->n_elems);
    }
    return rc;
}

static bd_status bn_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    bn_ctx *c = node->ctx;
    tp_bn_grad_args g = {.x = tp_f32(c->x),
                         .dy = tp_f32(node->out[0]->grad),
                         .mean = c->mean,
                         .inv_std = c->inv_std,
                         .gamma = tp_f32(c->gamma),
                         .through_stats = c->train};
    bd_status rc = sum_slot(tape, c->gamma, &g.dgamma, err);
    if (rc == BD_OK) {
        rc = sum_slot(tape, c->beta, &g.dbeta, err);
    }
    if (rc == BD_OK) {
        rc = tp_grad_slot(tape, c->x, &g.dx, &g.dx_beta, err);
    }
    if (rc == BD_OK) {
        tp_k(tape)->bn_grad(tape->dev, &c->args, &g);
    }
    return rc;
}

static bd_status check(const tp_tensor *x, const tp_batch_norm_args *a, bd_err *err)
{
    const tp_tensor *vectors[] = {a->gamma, a->beta, a->running_mean, a->running_var};
    static const char *const names[] = {"gamma", "beta", "running_mean", "running_var"};
    bd_status rc = tp_need_matrix("batch_norm", x, err);
    for (size_t i = 0; rc == BD_OK && i < 4; i++) {
        if (vectors[i]->n_elems != tp_cols(x)) {
            rc = tp_shape_error(err, "batch_norm", names[i], vectors[i], "x", x);
        }
    }
    return rc;
}

static bd_status alloc_ctx(tp_tape *tape, bn_ctx *c, bd_err *err)
{
    float *work = NULL;
    bd_status rc = tp_scratch(tape, c->args.c, &c->mean, err);
    if (rc == BD_OK) {
        rc = tp_scratch(tape, c->args.c, &c->inv_std, err);
    }
    if (rc == BD_OK) {
        rc = tp_scratch(tape, 4 * c->args.c, &work, err); /* two doubles a column */
    }
    c->args.work = (double *)(void *)work;
    return rc;
}

bd_status tp_batch_norm(tp_tape *tape, tp_tensor *x, const tp_batch_norm_args *a, tp_tensor **out,
                        bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    bn_ctx c = {.x = x, .gamma = a->gamma, .beta = a->beta, .train = a->train};
    bd_status rc = check(x, a, err);
    if (rc == BD_OK) {
        c.args =
            (tp_bn_args){.n = tp_rows(x), .c = tp_cols(x), .momentum = a->momentum, .eps = a->eps};
        rc = alloc_ctx(tape, &c, err);
    }
    if (rc == BD_OK) {
        rc = tp_out_like(tape, x, &y, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "batch_norm",
                    .backward = bn_backward,
                    .in = (tp_tensor *[]){x, a->gamma, a->beta},
                    .n_in = 3,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(c)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(bn_ctx *)ctx = c;
    }
    if (a->train) {
        tp_k(tape)->bn_stats(tape->dev, &c.args, tp_f32(x), tp_f32(a->running_mean),
                             tp_f32(a->running_var), c.mean, c.inv_std);
    } else {
        tp_k(tape)->bn_eval_stats(tape->dev, &c.args, tp_f32(a->running_mean),
                                  tp_f32(a->running_var), c.mean, c.inv_std);
    }
    tp_k(tape)->bn_apply(tape->dev, &c.args, tp_f32(x), c.mean, c.inv_std, tp_f32(a->gamma),
                         tp_f32(a->beta), tp_f32(y));
    *out = y;
    return BD_OK;
}
