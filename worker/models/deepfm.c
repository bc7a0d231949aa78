/* DeepFM (Guo et al. 2017): linear part, factorisation machine and `top`, which share the
 * embeddings. Dense columns enter the linear part and top. The one bias is the head's. */
#include "worker/models/wk_block.h"

static bd_status build(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    bd_status rc = wk_add_wide(m, in, false, TP_BAG_SUM, err);
    if (rc == BD_OK) {
        rc = wk_add_embeddings(m, in, err);
    }
    return rc == BD_OK ? wk_add_top(m, wk_concat_width(m), 0, err) : rc;
}

static bd_status forward(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err)
{
    tp_tensor *x = NULL, *wide = NULL, *fm = NULL;
    size_t first_emb = 0;
    bd_status rc = wk_run_wide(m, f, &wide, err);
    if (rc == BD_OK) {
        rc = wk_run_concat(m, f, &first_emb, &x, err);
    }
    if (rc == BD_OK) {
        rc = tp_fm2(f->tape, m->feats + first_emb, m->n_fields, &fm, err);
    }
    if (rc == BD_OK) {
        rc = wk_run_mlp(m, f, &m->top, x, &x, err);
    }
    if (rc == BD_OK) {
        rc = wk_run_linear(f, &m->head, x, TP_ACT_NONE, &x, err);
    }
    return rc == BD_OK ? tp_add_n(f->tape, (tp_tensor *[]){wide, fm, x}, 3, logits, err) : rc;
}

const wk_model_kind wk_model_deepfm = {
    .name = "deepfm",
    .help = "linear part, factorisation machine and top over shared embeddings",
    .build = build,
    .forward = forward,
};
