/* DLRM (Naumov et al. 2019): the dense columns go through `bottom` to a vector of the embeddings'
 * width; all pairs of vectors are multiplied; `top` reads that vector and the products. Without
 * dense columns the first field's embedding takes its place. */
#include "worker/models/wk_block.h"

static bd_status build(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    const wk_model_config *c = &m->cfg;
    size_t n_feats = in->n_fields + (in->n_dense > 0 ? 1 : 0);
    if (in->n_dense > 0 && (c->n_bottom == 0 || c->bottom[c->n_bottom - 1] != c->dim)) {
        return bd_err_set(err, BD_E_INVALID, "dlrm: the last width of bottom must be dim (%zu)",
                          c->dim);
    }
    bd_status rc = wk_add_embeddings(m, in, err);
    if (rc == BD_OK && in->n_dense > 0) {
        rc = wk_add_mlp(m, "bottom", in->n_dense, c->bottom, c->n_bottom, false, &m->bottom, err);
    }
    return rc == BD_OK ? wk_add_top(m, c->dim + n_feats * (n_feats - 1) / 2, 0, err) : rc;
}

static bd_status forward(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err)
{
    tp_tensor *x = NULL;
    size_t n_feats = 0;
    bd_status rc = wk_run_dense(m, f, &x, err);
    if (rc == BD_OK && x != NULL) {
        rc = wk_run_mlp(m, f, &m->bottom, x, &x, err);
    }
    if (rc == BD_OK) {
        rc = wk_run_feats(m, f, x, TP_BAG_SUM, &n_feats, err);
    }
    if (rc == BD_OK) {
        rc = tp_dot_interact(f->tape, m->feats, n_feats, &x, err);
    }
    if (rc == BD_OK) {
        rc = wk_run_mlp(m, f, &m->top, x, &x, err);
    }
    return rc == BD_OK ? wk_run_linear(f, &m->head, x, TP_ACT_NONE, logits, err) : rc;
}

const wk_model_kind wk_model_dlrm = {
    .name = "dlrm",
    .help = "dense columns through bottom, dots of all pairs of embeddings, top over both",
    .build = build,
    .forward = forward,
};
