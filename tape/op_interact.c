/* dot_interact and fm2: many vectors of one width. */
#include "tape/tape_int.h"

typedef struct interact_ctx {
    const float **data; /* [n_feats] */
    float **grads;      /* [n_feats] filled by backward */
    float *betas;       /* [n_feats] */
    float *sums;        /* fm2: [n x d] */
} interact_ctx;

static bd_status check(const char *op, tp_tensor *const *feats, size_t n_feats, bd_err *err)
{
    bd_status rc = n_feats > 0 ? BD_OK : bd_err_set(err, BD_E_INVALID, "%s: no inputs", op);
    for (size_t i = 0; rc == BD_OK && i < n_feats; i++) {
        rc = tp_need_matrix(op, feats[i], err);
        if (rc == BD_OK &&
            (tp_rows(feats[i]) != tp_rows(feats[0]) || tp_cols(feats[i]) != tp_cols(feats[0]))) {
            rc = tp_shape_error(err, op, "the first input", feats[0], "another", feats[i]);
        }
    }
    return rc;
}

/* Lists of pointers for the kernels, in tape memory. */
static bd_status make_lists(tp_tape *tape, tp_tensor *const *feats, size_t n_feats, interact_ctx *c,
                            bd_err *err)
{
    c->data = bd_arena_calloc(&tape->arena, n_feats, sizeof(float *));
    c->grads = bd_arena_calloc(&tape->arena, n_feats, sizeof(float *));
    c->betas = bd_arena_calloc(&tape->arena, n_feats, sizeof(float));
    if (c->data == NULL || c->grads == NULL || c->betas == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "interaction: out of memory");
    }
    for (size_t i = 0; i < n_feats; i++) {
        c->data[i] = tp_f32(feats[i]);
    }
    return BD_OK;
}

static bool comes_again(const tp_node *node, size_t i)
{
    for (size_t j = i + 1; j < node->n_in; j++) {
        if (node->in[j] == node->in[i]) {
            return true;
        }
    }
    return false;
}

static bd_status dot_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    interact_ctx *c = node->ctx;
    tp_tensor *x = node->in[0];
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < node->n_in; i++) {
        rc = tp_grad_slot(tape, node->in[i], &c->grads[i], &c->betas[i], err);
        /* The kernel goes sample by sample: an input given twice must start from zeros. */
        if (rc == BD_OK && c->grads[i] != NULL && c->betas[i] == 0 && comes_again(node, i)) {
            tp_k(tape)->fill(tape->dev, 0, 0, c->grads[i], x->n_elems);
            c->betas[i] = 1;
        }
    }
    if (rc == BD_OK) {
        tp_k(tape)->dot_interact_grad(tape->dev, c->data, tp_f32(node->out[0]->grad), c->grads,
                                      c->betas, node->n_in, tp_rows(x), tp_cols(x));
    }
    return rc;
}

bd_status tp_dot_interact(tp_tape *tape, tp_tensor *const *feats, size_t n_feats, tp_tensor **out,
                          bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    interact_ctx lists = {0};
    bd_status rc = check("dot_interact", feats, n_feats, err);
    if (rc == BD_OK) {
        size_t n_cols = tp_cols(feats[0]) + n_feats * (n_feats - 1) / 2;
        rc = tp_out_matrix(tape, tp_rows(feats[0]), n_cols, &y, err);
    }
    if (rc == BD_OK) {
        rc = make_lists(tape, feats, n_feats, &lists, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "dot_interact",
                    .backward = dot_backward,
                    .in = feats,
                    .n_in = n_feats,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(lists)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(interact_ctx *)ctx = lists;
    }
    tp_k(tape)->dot_interact(tape->dev, lists.data, n_feats, tp_rows(y), tp_cols(feats[0]),
                             tp_f32(y));
    *out = y;
    return BD_OK;
}

static bd_status fm2_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    interact_ctx *c = node->ctx;
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < node->n_in; i++) {
        tp_tensor *x = node->in[i];
        float *dx, beta;
        rc = tp_grad_slot(tape, x, &dx, &beta, err);
        if (rc == BD_OK && dx != NULL) {
            tp_k(tape)->fm2_grad(tape->dev, tp_f32(x), c->sums, tp_f32(node->out[0]->grad), beta,
                                 dx, tp_rows(x), tp_cols(x));
        }
    }
    return rc;
}

bd_status tp_fm2(tp_tape *tape, tp_tensor *const *feats, size_t n_feats, tp_tensor **out,
                 bd_err *err)
{
    tp_tensor *y = NULL;
    void *ctx = NULL;
    interact_ctx lists = {0};
    bd_status rc = check("fm2", feats, n_feats, err);
    if (rc == BD_OK) {
        rc = tp_out_matrix(tape, tp_rows(feats[0]), 1, &y, err);
    }
    if (rc == BD_OK) {
        rc = make_lists(tape, feats, n_feats, &lists, err);
    }
    if (rc == BD_OK) {
        rc = tp_scratch(tape, feats[0]->n_elems, &lists.sums, err);
    }
    if (rc == BD_OK) {
        tp_op op = {.name = "fm2",
                    .backward = fm2_backward,
                    .in = feats,
                    .n_in = n_feats,
                    .out = &y,
                    .n_out = 1,
                    .ctx_bytes = sizeof(lists)};
        rc = tp_record(tape, &op, &ctx, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (ctx != NULL) {
        *(interact_ctx *)ctx = lists;
    }
    tp_k(tape)->fm2(tape->dev, lists.data, n_feats, tp_rows(y), tp_cols(feats[0]), lists.sums,
                    tp_f32(y));
    *out = y;
    return BD_OK;
}
