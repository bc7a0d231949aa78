#include "worker/models/wk_block.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- building ---- */

bd_status wk_add_tables(wk_model *m, const wk_model_inputs *in, const char *prefix, size_t dim,
                        float init, bool is_bias, size_t *first_table, bd_err *err)
{
    if (!bd_grow(&m->tables, &m->cap_tables, m->n_tables + in->n_fields, sizeof(*m->tables))) {
        return bd_err_set(err, BD_E_NOMEM, "model: out of memory");
    }
    for (size_t i = 0; i < in->n_fields; i++) {
        wk_model_table t = {
            .field_idx = i, .dim = dim, .init_low = -init, .init_high = init, .is_bias = is_bias};
        int n = snprintf(t.name, sizeof(t.name), "%s.%s", prefix, in->field_names[i]);
        if (n < 0 || (size_t)n >= sizeof(t.name)) {
            return bd_err_set(err, BD_E_INVALID, "field name %.40s... is longer than %zu bytes",
                              in->field_names[i], sizeof(t.name) - strlen(prefix) - 2);
        }
        m->tables[m->n_tables + i] = t;
    }
    *first_table = m->n_tables;
    m->n_tables += in->n_fields;
    return BD_OK;
}

bd_status wk_add_embeddings(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    float init = m->cfg.embedding_init;
    if (m->cfg.dim == 0) {
        return bd_err_set(err, BD_E_INVALID, "model %s needs a dim of at least 1", m->kind->name);
    }
    if (in->n_fields == 0) {
        return bd_err_set(err, BD_E_INVALID, "model %s needs at least one categorical field",
                          m->kind->name);
    }
    if (init == 0) {
        init = (float)(1.0 / sqrt((double)m->cfg.dim));
    }
    bd_status rc = wk_add_tables(m, in, "emb", m->cfg.dim, init, false, &m->first_emb, err);
    for (size_t i = 0; rc == BD_OK && i < in->n_fields; i++) {
        m->tables[m->first_emb + i].needs_rows = m->combiner[i] == WK_COMBINE_MAX;
    }
    return rc;
}

/* What a parameter or buffer starts with. */
typedef struct start {
    float value; /* of all elements, when bound is 0 */
    float bound; /* uniform in [-bound, bound] */
    bool buffer; /* no gradient */
    bool decay;
} start;

static bd_status fill(wk_model *m, tp_tensor *t, const start *s, bd_err *err)
{
    float *host = bd_alloc(t->n_elems * sizeof(float));
    if (host == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "model: out of memory for %s", t->name);
    }
    for (size_t i = 0; i < t->n_elems; i++) {
        host[i] = s->value;
    }
    if (s->bound > 0) {
        uint64_t stream = bd_hash64(t->name, strlen(t->name), 0);
        bd_rand_uniform(m->cfg.seed, stream, 0, -s->bound, s->bound, host, t->n_elems);
    }
    bd_status rc = tp_write(t, host, err);
    bd_free(host);
    return rc;
}

/* Declares "<name>.<part>". */
static bd_status add(wk_model *m, const char *name, const char *part, int n_dims,
                     const size_t *dims, const start *s, tp_tensor **out, bd_err *err)
{
    tp_tensor *t = NULL;
    char full[160];
    (void)snprintf(full, sizeof(full), "%s.%s", name, part);
    bd_status rc = s->buffer ? tp_tensor_new(m->dev, full, NUM_F32, n_dims, dims, &t, err)
                             : tp_param_new(m->dev, full, n_dims, dims, &t, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = fill(m, t, s, err);
    if (rc == BD_OK && !bd_grow(&m->params, &m->cap_params, m->n_params + 1, sizeof(*m->params))) {
        rc = bd_err_set(err, BD_E_NOMEM, "model: out of memory");
    }
    if (rc != BD_OK) {
        tp_tensor_free(t);
        return rc;
    }
    m->params[m->n_params++] =
        (wk_model_param){.name = t->name, .value = t, .grad = t->grad, .decay = s->decay};
    *out = t;
    return BD_OK;
}

bd_status wk_add_linear(wk_model *m, const char *name, size_t n_in, size_t n_out, bool with_bias,
                        wk_linear *out, bd_err *err)
{
    float bound = (float)(1.0 / sqrt(n_in > 0 ? (double)n_in : 1.0));
    wk_linear l = {0};
    if (n_out == 0) {
        return bd_err_set(err, BD_E_INVALID, "%s: a layer of width 0", name);
    }
    bd_status rc = add(m, name, "weight", 2, (const size_t[]){n_out, n_in},
                       &(start){.bound = bound, .decay = true}, &l.w, err);
    if (rc == BD_OK && with_bias) {
        rc = add(m, name, "bias", 1, &n_out, &(start){.bound = bound}, &l.b, err);
    }
    if (rc == BD_OK) {
        *out = l;
    }
    return rc;
}

static bd_status add_batch_norm(wk_model *m, const char *name, size_t n, wk_layer *layer,
                                bd_err *err)
{
    bd_status rc = add(m, name, "bn.weight", 1, &n, &(start){.value = 1}, &layer->gamma, err);
    if (rc == BD_OK) {
        rc = add(m, name, "bn.bias", 1, &n, &(start){0}, &layer->beta, err);
    }
    if (rc == BD_OK) {
        rc = add(m, name, "bn.mean", 1, &n, &(start){.buffer = true}, &layer->mean, err);
    }
    if (rc == BD_OK) {
        rc = add(m, name, "bn.var", 1, &n, &(start){.value = 1, .buffer = true}, &layer->var, err);
    }
    return rc;
}

bd_status wk_add_mlp(wk_model *m, const char *name, size_t n_in, const size_t *widths,
                     size_t n_layers, bool batch_norm, wk_mlp *out, bd_err *err)
{
    wk_mlp mlp = {.n_layers = n_layers, .n_out = n_in};
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < n_layers; i++) {
        char layer[64];
        (void)snprintf(layer, sizeof(layer), "%s.%zu", name, i);
        rc = wk_add_linear(m, layer, mlp.n_out, widths[i], true, &mlp.layers[i].linear, err);
        if (rc == BD_OK && batch_norm) {
            rc = add_batch_norm(m, layer, widths[i], &mlp.layers[i], err);
        }
        mlp.n_out = widths[i];
    }
    if (rc == BD_OK) {
        *out = mlp;
    }
    return rc;
}

bd_status wk_add_top(wk_model *m, size_t n_in, size_t n_more, bd_err *err)
{
    const wk_model_config *c = &m->cfg;
    bd_status rc = wk_add_mlp(m, "top", n_in, c->top, c->n_top, c->batch_norm, &m->top, err);
    m->top.dropout = c->dropout;
    return rc == BD_OK ? wk_add_linear(m, "head", m->top.n_out + n_more, 1, true, &m->head, err)
                       : rc;
}

bd_status wk_add_wide(wk_model *m, const wk_model_inputs *in, bool with_bias, tp_bag_mode multi,
                      bd_err *err)
{
    m->wide = (wk_wide){.multi = multi};
    bd_status rc = wk_add_tables(m, in, "wide", 1, 0, true, &m->wide.first_table, err);
    if (rc == BD_OK && in->n_dense > 0) {
        rc = wk_add_linear(m, "wide.dense", in->n_dense, 1, false, &m->wide.dense, err);
    }
    if (rc == BD_OK && with_bias) {
        rc = add(m, "wide", "bias", 1, (const size_t[]){1}, &(start){0}, &m->wide.bias, err);
    }
    return rc;
}

size_t wk_concat_width(const wk_model *m)
{
    return m->n_dense + m->n_fields * m->cfg.dim;
}

/* ---- running ---- */

/* From sums of bags to means, or to sums / sqrt(length). */
static bd_status divide_by_length(wk_forward *f, size_t field_idx, wk_combiner how, tp_tensor *sums,
                                  tp_tensor **out, bd_err *err)
{
    const uint32_t *offsets = f->batch->fields[field_idx].offsets;
    size_t dim = tp_cols(sums), n = f->batch->n;
    tp_tensor *by = NULL;
    float *host = bd_alloc((n * dim + 1) * sizeof *host);
    if (host == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "model: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t length = offsets[i + 1] - offsets[i];
        float by_what = (float)(length > 0 ? length : 1);
        by_what = how == WK_COMBINE_SQRTN ? sqrtf(by_what) : by_what;
        for (size_t d = 0; d < dim; d++) {
            host[i * dim + d] = 1.0f / by_what;
        }
    }
    bd_status rc = tp_tape_tensor(f->tape, sums->n_dims, sums->dims, false, &by, err);
    if (rc == BD_OK) {
        rc = tp_write(by, host, err);
    }
    bd_free(host);
    return rc == BD_OK ? tp_mul(f->tape, sums, by, out, err) : rc;
}

static bd_status combine(wk_model *m, wk_forward *f, size_t table_idx, wk_combiner how,
                         tp_tensor **out, bd_err *err)
{
    const wk_model_table *t = &m->tables[table_idx];
    const wk_model_rows *r = &f->rows[table_idx];
    bd_status rc = BD_OK;
    how = m->field_multi[t->field_idx] ? how : WK_COMBINE_SUM;
    if (tp_cols(r->rows) != t->dim) {
        return bd_err_set(err, BD_E_INVALID, "table %s: rows of %zu elements, dim is %zu", t->name,
                          tp_cols(r->rows), t->dim);
    }
    BD_ASSERT(!r->pooled || how != WK_COMBINE_MAX);
    if (r->pooled) {
        *out = r->rows;
    } else {
        tp_bag_mode mode = how == WK_COMBINE_MEAN  ? TP_BAG_MEAN
                           : how == WK_COMBINE_MAX ? TP_BAG_MAX
                                                   : TP_BAG_SUM;
        rc = tp_embedding_bag(f->tape, r->rows, r->index, f->batch->fields[t->field_idx].offsets,
                              f->batch->n, mode, out, err);
    }
    bool are_sums = how == WK_COMBINE_SQRTN || (how == WK_COMBINE_MEAN && r->pooled);
    return rc == BD_OK && are_sums ? divide_by_length(f, t->field_idx, how, *out, out, err) : rc;
}

static wk_combiner combiner_of(tp_bag_mode mode)
{
    return mode == TP_BAG_MEAN ? WK_COMBINE_MEAN : WK_COMBINE_SUM;
}

bd_status wk_run_bag(wk_model *m, wk_forward *f, size_t table_idx, tp_bag_mode multi,
                     tp_tensor **out, bd_err *err)
{
    return combine(m, f, table_idx, combiner_of(multi), out, err);
}

bd_status wk_run_feats(wk_model *m, wk_forward *f, tp_tensor *first, tp_bag_mode multi,
                       size_t *n_feats, bd_err *err)
{
    size_t n = 0;
    bd_status rc = BD_OK;
    if (first != NULL) {
        m->feats[n++] = first;
    }
    for (size_t i = 0; rc == BD_OK && i < m->n_fields; i++) {
        bool own = m->combiner[i] != WK_COMBINE_KIND;
        rc = combine(m, f, m->first_emb + i, own ? m->combiner[i] : combiner_of(multi),
                     &m->feats[n++], err);
    }
    *n_feats = n;
    return rc;
}

bd_status wk_run_dense(wk_model *m, wk_forward *f, tp_tensor **out, bd_err *err)
{
    if (m->n_dense == 0) {
        *out = NULL;
        return BD_OK;
    }
    return tp_tape_wrap(f->tape, 2, (const size_t[]){f->batch->n, m->n_dense}, f->batch->dense,
                        false, NULL, out, err);
}

bd_status wk_run_concat(wk_model *m, wk_forward *f, size_t *first_emb, tp_tensor **out, bd_err *err)
{
    tp_tensor *dense = NULL;
    size_t n_feats = 0;
    bd_status rc = wk_run_dense(m, f, &dense, err);
    if (rc == BD_OK) {
        rc = wk_run_feats(m, f, dense, TP_BAG_SUM, &n_feats, err);
    }
    *first_emb = dense == NULL ? 0 : 1;
    return rc == BD_OK ? tp_concat(f->tape, m->feats, n_feats, out, err) : rc;
}

bd_status wk_run_linear(wk_forward *f, const wk_linear *l, tp_tensor *x, tp_act act,
                        tp_tensor **out, bd_err *err)
{
    return tp_linear(f->tape, x, l->w, l->b, act, out, err);
}

static bd_status run_layer(wk_forward *f, const wk_layer *l, tp_tensor *x, tp_tensor **out,
                           bd_err *err)
{
    tp_tensor *y = NULL;
    if (l->gamma == NULL) {
        return wk_run_linear(f, &l->linear, x, TP_ACT_RELU, out, err);
    }
    tp_batch_norm_args args = {.gamma = l->gamma,
                               .beta = l->beta,
                               .running_mean = l->mean,
                               .running_var = l->var,
                               .momentum = 0.1f,
                               .eps = 1e-5f,
                               .train = f->mode->train};
    bd_status rc = wk_run_linear(f, &l->linear, x, TP_ACT_NONE, &y, err);
    if (rc == BD_OK) {
        rc = tp_batch_norm(f->tape, y, &args, &y, err);
    }
    return rc == BD_OK ? tp_relu(f->tape, y, out, err) : rc;
}

bd_status wk_run_mlp(wk_model *m, wk_forward *f, const wk_mlp *mlp, tp_tensor *x, tp_tensor **out,
                     bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < mlp->n_layers; i++) {
        rc = run_layer(f, &mlp->layers[i], x, &x, err);
        tp_dropout_key key = {.seed = m->cfg.seed,
                              .step = f->mode->step,
                              .layer = f->next_layer++,
                              .sample_idx = f->batch->sample_idx};
        if (rc == BD_OK) {
            rc = tp_dropout(f->tape, x, f->mode->train ? mlp->dropout : 0, &key, &x, err);
        }
    }
    if (rc == BD_OK) {
        *out = x;
    }
    return rc;
}

bd_status wk_run_wide(wk_model *m, wk_forward *f, tp_tensor **out, bd_err *err)
{
    tp_tensor *dense = NULL, *sum = NULL;
    size_t n = 0;
    bd_status rc = wk_run_dense(m, f, &dense, err);
    if (rc == BD_OK && dense != NULL) {
        rc = wk_run_linear(f, &m->wide.dense, dense, TP_ACT_NONE, &m->feats[n++], err);
    }
    for (size_t i = 0; rc == BD_OK && i < m->n_fields; i++) {
        rc = wk_run_bag(m, f, m->wide.first_table + i, m->wide.multi, &m->feats[n++], err);
    }
    if (rc == BD_OK) {
        rc = tp_add_n(f->tape, m->feats, n, &sum, err);
    }
    if (rc == BD_OK && m->wide.bias != NULL) {
        rc = tp_add_bias(f->tape, sum, m->wide.bias, &sum, err);
    }
    if (rc == BD_OK) {
        *out = sum;
    }
    return rc;
}
