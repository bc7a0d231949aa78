/* Dense columns and embeddings side by side, through `top`. */
#include "worker/models/wk_block.h"

static bd_status build(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    bd_status rc = wk_add_embeddings(m, in, err);
    return rc == BD_OK ? wk_add_top(m, wk_concat_width(m), 0, err) : rc;
}

static bd_status forward(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err)
{
    tp_tensor *x = NULL;
    size_t first_emb;
    bd_status rc = wk_run_concat(m, f, &first_emb, &x, err);
    if (rc == BD_OK) {
        rc = wk_run_mlp(m, f, &m->top, x, &x, err);
    }
    return rc == BD_OK ? wk_run_linear(f, &m->head, x, TP_ACT_NONE, logits, err) : rc;
}

const wk_model_kind wk_model_mlp = {
    .name = "mlp",
    .help = "dense columns and embeddings side by side through top",
    .build = build,
    .forward = forward,
};
