/* worker/models/wk_block.h - the parts models are made of. Private to worker/models and wk_model.c.
 *
 * Layer:     worker.
 * Threads:   the training thread.
 * Ownership: parameters and tables belong to the model; blocks point at them. Results belong to the
 *            tape.
 * Names:     "<block>.<layer>.weight", ".bias", ".bn.weight", ".bn.bias", ".bn.mean", ".bn.var".
 * Start:     weights and biases of a linear layer are uniform in +-1/sqrt(fan_in), a pure function
 *            of (seed, parameter name): the same on every rank, whatever else the model holds.
 */
#ifndef WK_BLOCK_H
#define WK_BLOCK_H

#include "tape/ops.h"
#include "worker/wk_model.h"

typedef struct wk_linear {
    tp_tensor *w, *b; /* [out x in], [out] or NULL */
} wk_linear;

typedef struct wk_layer {
    wk_linear linear;
    tp_tensor *gamma, *beta, *mean, *var; /* batch norm, or NULL */
} wk_layer;

/* Layers with relu after each. */
typedef struct wk_mlp {
    wk_layer layers[WK_MODEL_MAX_LAYERS];
    size_t n_layers;
    size_t n_out;  /* width of the result; of the input when there is no layer */
    float dropout; /* after each layer */
} wk_mlp;

/* Linear part: one-element tables of all fields, a weight per dense column, a bias. */
typedef struct wk_wide {
    size_t first_table; /* n_fields tables from here */
    wk_linear dense;    /* w NULL: no dense columns */
    tp_tensor *bias;    /* [1] or NULL */
    tp_bag_mode multi;  /* pooling of multi-valued fields */
} wk_wide;

/* How the rows of a bag become one: sums, sums / n, sums / sqrt(n), the maximum of each element. An
 * empty bag gives zeros. */
typedef enum wk_combiner {
    WK_COMBINE_KIND, /* as the kind of model does */
    WK_COMBINE_SUM,
    WK_COMBINE_MEAN,
    WK_COMBINE_SQRTN,
    WK_COMBINE_MAX
} wk_combiner;

#define WK_MAX_CROSS 3

typedef struct wk_model_kind wk_model_kind;

struct wk_model {
    const wk_model_kind *kind;
    wk_model_config cfg;
    size_t n_dense, n_fields;
    bool *field_multi;     /* owned [n_fields] */
    wk_combiner *combiner; /* owned [n_fields]: of the embeddings of multi-valued fields */
    tp_device *dev;        /* borrowed */
    wk_model_table *tables;
    size_t n_tables, cap_tables;
    wk_model_param *params; /* owned; values owned too */
    size_t n_params, cap_params;
    /* What a kind uses of these is its business. */
    wk_mlp bottom, top;
    wk_wide wide;
    wk_linear head, cross[WK_MAX_CROSS];
    size_t first_emb;  /* n_fields tables from here, when the kind has embeddings */
    tp_tensor **feats; /* owned: [n_fields + 1], filled by wk_run_feats */
};

/* One forward in progress. */
typedef struct wk_forward {
    tp_tape *tape;
    const wk_batch *batch;
    const wk_model_rows *rows;
    const wk_model_mode *mode;
    uint32_t next_layer; /* numbers the dropout layers */
} wk_forward;

/* One kind of model: a file of this folder and a name in WK_MODEL_KINDS below. */
struct wk_model_kind {
    const char *name;
    const char *help;
    /* Declares tables and parameters. On failure the model is freed by the caller. */
    bd_status (*build)(wk_model *m, const wk_model_inputs *in, bd_err *err);
    bd_status (*forward)(wk_model *m, wk_forward *f, tp_tensor **logits, bd_err *err);
};

/* ---- building ---- */

/* One table per field, named "<prefix>.<field>", uniform in [-init, init]. */
bd_status wk_add_tables(wk_model *m, const wk_model_inputs *in, const char *prefix, size_t dim,
                        float init, bool is_bias, size_t *first_table, bd_err *err) BD_MUST_CHECK;
/* "emb.<field>" of the configured dim and start; sets m->first_emb. */
bd_status wk_add_embeddings(wk_model *m, const wk_model_inputs *in, bd_err *err) BD_MUST_CHECK;
/* "<name>.weight" and, with_bias, "<name>.bias". */
bd_status wk_add_linear(wk_model *m, const char *name, size_t n_in, size_t n_out, bool with_bias,
                        wk_linear *out, bd_err *err) BD_MUST_CHECK;
/* batch_norm: after each linear layer. Set out->dropout afterwards. */
bd_status wk_add_mlp(wk_model *m, const char *name, size_t n_in, const size_t *widths,
                     size_t n_layers, bool batch_norm, wk_mlp *out, bd_err *err) BD_MUST_CHECK;
/* The hidden layers cfg.top over n_in inputs, and the head of width 1 over them and n_more inputs.
 */
bd_status wk_add_top(wk_model *m, size_t n_in, size_t n_more, bd_err *err) BD_MUST_CHECK;
bd_status wk_add_wide(wk_model *m, const wk_model_inputs *in, bool with_bias, tp_bag_mode multi,
                      bd_err *err) BD_MUST_CHECK;

/* ---- running ---- */

/* Pooled rows of table table_idx: [n x dim]. */
bd_status wk_run_bag(wk_model *m, wk_forward *f, size_t table_idx, tp_bag_mode multi,
                     tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* m->feats = `first` when it is not NULL, then the pooled embeddings of all fields, those of
 * multi-valued ones as cfg.combiners say, else by `multi`; *n_feats of them. Valid until the next
 * call. */
bd_status wk_run_feats(wk_model *m, wk_forward *f, tp_tensor *first, tp_bag_mode multi,
                       size_t *n_feats, bd_err *err) BD_MUST_CHECK;
/* The batch's dense columns [n x n_dense]; NULL when there are none. */
bd_status wk_run_dense(wk_model *m, wk_forward *f, tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* Dense columns and pooled embeddings side by side: [n x wk_concat_width]. The embeddings stay in
 * m->feats after *first_emb entries. */
bd_status wk_run_concat(wk_model *m, wk_forward *f, size_t *first_emb, tp_tensor **out,
                        bd_err *err) BD_MUST_CHECK;
bd_status wk_run_mlp(wk_model *m, wk_forward *f, const wk_mlp *mlp, tp_tensor *x, tp_tensor **out,
                     bd_err *err) BD_MUST_CHECK;
bd_status wk_run_linear(wk_forward *f, const wk_linear *l, tp_tensor *x, tp_act act,
                        tp_tensor **out, bd_err *err) BD_MUST_CHECK;
bd_status wk_run_wide(wk_model *m, wk_forward *f, tp_tensor **out, bd_err *err) BD_MUST_CHECK;

/* Width of dense columns and embeddings side by side. */
size_t wk_concat_width(const wk_model *m);

#define WK_MODEL_KINDS(X) X(dlrm) X(wide_deep) X(deepfm) X(dcn_v2) X(mlp) X(mf)
#define WK_X(name)        extern const wk_model_kind wk_model_##name;
WK_MODEL_KINDS(WK_X)
#undef WK_X

#endif
