/* worker/wk_model.h - models: from a batch and its embedding rows to logits.
 *
 * Layer:     worker. One model is one file worker/models/<name>.c that defines a wk_model_kind,
 *            plus its name in WK_MODEL_KINDS (models/wk_block.h) and its test.
 * Threads:   one model per training thread.
 * Ownership: dense parameters and their gradients belong to the model for its whole life (so
 *            that the reducer may point at them); tensors of a forward belong to the tape.
 */
#ifndef WK_MODEL_H
#define WK_MODEL_H

#include "base/err.h"

#include "tape/tape.h"
#include "worker/wk_batch.h"

#include <stdbool.h>

typedef struct wk_model wk_model;

/* What the model needs to know of the data. */
typedef struct wk_model_inputs {
    size_t n_dense;
    size_t n_fields;
    const char *const *field_names; /* [n_fields] */
    const bool *field_multi;        /* [n_fields] bags (multi-valued) */
} wk_model_inputs;

#define WK_MODEL_MAX_LAYERS 16

typedef struct wk_model_config {
    const char *kind; /* "dlrm", "wide_deep", "deepfm", "dcn_v2", "mlp", "mf" */
    size_t dim;       /* of the embeddings; mf: number of factors, 0: biases only */
    size_t bottom[WK_MODEL_MAX_LAYERS], n_bottom; /* dlrm: output widths; the last equals dim */
    size_t top[WK_MODEL_MAX_LAYERS], n_top; /* hidden widths; the output of width 1 is added */
    float dropout;                          /* in the hidden layers of top, [0, 1) */
    bool batch_norm;                        /* after each hidden linear of top */
    /* How embeddings of multi-valued fields are pooled: "sum", "mean", "sqrtn", "max" for all of
     * them, or "<field>:<how>"; later ones win, a field without one is pooled as the kind does.
     * Borrowed during wk_model_new. */
    const char **combiners;
    size_t n_combiners;
    float embedding_init; /* uniform in [-x, x] for tables, 0: 1/sqrt(dim) */
    uint64_t seed;
} wk_model_config;

/* One embedding table the model reads. */
typedef struct wk_model_table {
    char name[128];   /* "emb.<field>", "wide.<field>" */
    size_t field_idx; /* whose ids it is looked up with */
    size_t dim;
    float init_low, init_high; /* uniform; equal: constant */
    bool is_bias;              /* dim 1: takes the bias learning rate and l2 of the job */
    bool needs_rows;           /* sums over bags do not do: the model takes their maximum */
} wk_model_table;

/* One dense parameter (or buffer: no gradient, e.g. running mean). */
typedef struct wk_model_param {
    const char *name;
    tp_tensor *value;
    tp_tensor *grad; /* NULL for a buffer */
    bool decay;      /* weight decay applies (weights yes, biases no) */
} wk_model_param;

bd_status wk_model_new(const wk_model_config *cfg, const wk_model_inputs *in, tp_device *dev,
                       wk_model **out, bd_err *err) BD_MUST_CHECK;
void wk_model_free(wk_model *m);
const wk_model_table *wk_model_tables(const wk_model *m, size_t *n);
const wk_model_param *wk_model_params(const wk_model *m, size_t *n);

/* Rows of one table for this batch, as a leaf of the tape. */
typedef struct wk_model_rows {
    tp_tensor *rows;       /* [n_unique x dim], pooled [n x dim]; requires_grad in training */
    const uint32_t *index; /* [n_ids of the field] row of each id */
    bool pooled;           /* row i is the sum over sample i's ids already; not with needs_rows */
} wk_model_rows;

typedef struct wk_model_mode {
    bool train;    /* dropout on, batch norm from the batch */
    uint64_t step; /* keys the dropout masks, with seed and global sample index */
} wk_model_mode;

/* rows[i] belongs to table i. *logits: [n x 1]. */
bd_status wk_model_forward(wk_model *m, tp_tape *tape, const wk_batch *b, const wk_model_rows *rows,
                           const wk_model_mode *mode, tp_tensor **logits,
                           bd_err *err) BD_MUST_CHECK;

/* i-th kind's name and help line; NULL past the end. */
const char *wk_model_kind_name(size_t i);
const char *wk_model_kind_help(size_t i);

#endif
