/* DCN-v2 (Wang et al. 2021), parallel form: WK_MAX_CROSS cross layers x' = x0 * (W x + b) + x and
 * `top`, both over dense columns and embeddings; the head reads both results. */
#include "worker/models/wk_block.h"

#include <stdio.h>

static bd_status build(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    size_t width = wk_concat_width(m);
    bd_status rc = wk_add_embeddings(m, in, err);
    for (size_t i = 0; rc == BD_OK && i < WK_MAX_CROSS; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "cross.%zu", i);
        rc = wk_add_linear(m, name, width, width, true, &m->cross[i], err);
    }
    return rc == BD_OK ? wk_add_top(m, width, width, err) : rc;
}

static bd_status forward(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err)
{
    tp_tensor *x0 = NULL, *x = NULL, *deep = NULL;
    size_t first_emb;
    bd_status rc = wk_run_concat(m, f, &first_emb, &x0, err);
    x = x0;
    for (size_t i = 0; rc == BD_OK && i < WK_MAX_CROSS; i++) {
        rc = tp_cross(f->tape, x0, x, m->cross[i].w, m->cross[i].b, &x, err);
    }
    if (rc == BD_OK) {
        rc = wk_run_mlp(m, f, &m->top, x0, &deep, err);
    }
    if (rc == BD_OK) {
        rc = tp_concat(f->tape, (tp_tensor *[]){deep, x}, 2, &x, err);
    }
    return rc == BD_OK ? wk_run_linear(f, &m->head, x, TP_ACT_NONE, logits, err) : rc;
}

const wk_model_kind wk_model_dcn_v2 = {
    .name = "dcn_v2",
    .help = "three cross layers beside top, over dense columns and embeddings",
    .build = build,
    .forward = forward,
};
