/* Matrix factorisation: global bias, a bias per id and, with dim > 0, the products of all pairs of
 * factor vectors (two fields: the classic user times item). Multi-valued fields are averaged. */
#include "worker/models/wk_block.h"

static bd_status build(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    if (in->n_fields == 0) {
        return bd_err_set(err, BD_E_INVALID, "mf needs at least one categorical field");
    }
    bd_status rc = wk_add_wide(m, in, true, TP_BAG_MEAN, err);
    return rc == BD_OK && m->cfg.dim > 0 ? wk_add_embeddings(m, in, err) : rc;
}

static bd_status forward(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err)
{
    tp_tensor *wide = NULL, *fm = NULL;
    size_t n_feats = 0;
    bd_status rc = wk_run_wide(m, f, &wide, err);
    if (rc == BD_OK && m->cfg.dim > 0) {
        rc = wk_run_feats(m, f, NULL, TP_BAG_MEAN, &n_feats, err);
        if (rc == BD_OK) {
            rc = tp_fm2(f->tape, m->feats, n_feats, &fm, err);
        }
        if (rc == BD_OK) {
            rc = tp_add(f->tape, wide, fm, &wide, err);
        }
    }
    if (rc == BD_OK) {
        *logits = wide;
    }
    return rc;
}

const wk_model_kind wk_model_mf = {
    .name = "mf",
    .help = "biases of all ids and, with dim > 0, products of factor vectors",
    .build = build,
    .forward = forward,
};
