#include "worker/wk_model.h"

#include "base/mem.h"
#include "base/option.h"

#include "worker/models/wk_block.h"

#include <string.h>

static const wk_model_kind *const kinds[] = {
#define WK_X(name) &wk_model_##name,
    WK_MODEL_KINDS(WK_X)
#undef WK_X
};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

const char *wk_model_kind_name(size_t i)
{
    return i < N_KINDS ? kinds[i]->name : NULL;
}

const char *wk_model_kind_help(size_t i)
{
    return i < N_KINDS ? kinds[i]->help : NULL;
}

static bd_status find_kind(const char *name, const wk_model_kind **out, bd_err *err)
{
    const char *names[N_KINDS];
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i]->name, name) == 0) {
            *out = kinds[i];
            return BD_OK;
        }
        names[i] = kinds[i]->name;
    }
    const char *near = bd_nearest(name, names, N_KINDS);
    return bd_err_set(err, BD_E_INVALID, "unknown model %s%s%s%s", name,
                      near == NULL ? "" : ", did you mean ", near == NULL ? "" : near,
                      near == NULL ? "" : "?");
}

static bd_status check_config(const wk_model_config *cfg, bd_err *err)
{
    if (cfg->n_bottom > WK_MODEL_MAX_LAYERS || cfg->n_top > WK_MODEL_MAX_LAYERS) {
        return bd_err_set(err, BD_E_INVALID, "model: at most %d layers", WK_MODEL_MAX_LAYERS);
    }
    if (!(cfg->dropout >= 0 && cfg->dropout < 1)) {
        return bd_err_set(err, BD_E_INVALID, "model: dropout %g is not in [0, 1)",
                          (double)cfg->dropout);
    }
    if (!(cfg->embedding_init >= 0)) {
        return bd_err_set(err, BD_E_INVALID, "model: embedding_init %g is negative",
                          (double)cfg->embedding_init);
    }
    return BD_OK;
}

/* Room that does not depend on the kind. */
static bd_status alloc_shared(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    m->field_multi = bd_calloc(in->n_fields, sizeof(bool));
    m->feats = bd_calloc(in->n_fields + 1, sizeof(tp_tensor *));
    m->combiner = bd_calloc(in->n_fields, sizeof *m->combiner);
    if (m->field_multi == NULL || m->feats == NULL || m->combiner == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "model: out of memory");
    }
    for (size_t i = 0; i < in->n_fields; i++) {
        m->field_multi[i] = in->field_multi != NULL && in->field_multi[i];
    }
    return BD_OK;
}

/* ---- combiners ---- */
static bd_status combiner_named(const char *text, const char *name, wk_combiner *out, bd_err *err)
{
    static const char *const names[] = {"sum", "mean", "sqrtn", "max"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (wk_combiner)(WK_COMBINE_SUM + i);
            return BD_OK;
        }
    }
    return bd_err_set(err, BD_E_INVALID, "combiner \"%.64s\": say sum, mean, sqrtn or max%s", text,
                      strchr(text, ':') == NULL ? "" : " behind the colon");
}

/* The multi-valued field of that name. */
static bd_status field_named(const wk_model *m, const wk_model_inputs *in, const char *text,
                             size_t n_bytes, size_t *out, bd_err *err)
{
    for (size_t i = 0; i < in->n_fields; i++) {
        const char *name = in->field_names[i];
        if (strlen(name) != n_bytes || strncmp(name, text, n_bytes) != 0) {
            continue;
        }
        *out = i;
        return m->field_multi[i]
                   ? BD_OK
                   : bd_err_set(err, BD_E_INVALID,
                                "combiner \"%.64s\": field %s has one value a sample", text, name);
    }
    return bd_err_set(err, BD_E_INVALID, "combiner \"%.64s\": the data has no such field", text);
}

static bd_status set_combiners(wk_model *m, const wk_model_inputs *in, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < m->cfg.n_combiners && rc == BD_OK; i++) {
        const char *text = m->cfg.combiners[i], *colon = strrchr(text, ':');
        wk_combiner how = WK_COMBINE_KIND;
        size_t one = 0;
        rc = combiner_named(text, colon == NULL ? text : colon + 1, &how, err);
        if (rc == BD_OK && colon != NULL) {
            rc = field_named(m, in, text, (size_t)(colon - text), &one, err);
        }
        for (size_t k = 0; rc == BD_OK && k < m->n_fields; k++) {
            m->combiner[k] = colon == NULL || k == one ? how : m->combiner[k];
        }
    }
    m->cfg.combiners = NULL;
    m->cfg.n_combiners = 0;
    return rc;
}

bd_status wk_model_new(const wk_model_config *cfg, const wk_model_inputs *in, tp_device *dev,
                       wk_model **out, bd_err *err)
{
    const wk_model_kind *kind = NULL;
    bd_status rc = find_kind(cfg->kind, &kind, err);
    if (rc == BD_OK) {
        rc = check_config(cfg, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    wk_model *m = bd_calloc(1, sizeof(*m));
    if (m == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "model: out of memory");
    }
    m->kind = kind;
    m->cfg = *cfg;
    m->cfg.kind = kind->name;
    m->n_dense = in->n_dense;
    m->n_fields = in->n_fields;
    m->dev = dev;
    rc = alloc_shared(m, in, err);
    if (rc == BD_OK) {
        rc = set_combiners(m, in, err);
    }
    if (rc == BD_OK) {
        rc = kind->build(m, in, err);
    }
    if (rc != BD_OK) {
        wk_model_free(m);
        return rc;
    }
    *out = m;
    return BD_OK;
}

void wk_model_free(wk_model *m)
{
    if (m == NULL) {
        return;
    }
    for (size_t i = 0; i < m->n_params; i++) {
        tp_tensor_free(m->params[i].value);
    }
    bd_free(m->params);
    bd_free(m->tables);
    bd_free(m->field_multi);
    bd_free(m->combiner);
    bd_free(m->feats);
    bd_free(m);
}

const wk_model_table *wk_model_tables(const wk_model *m, size_t *n)
{
    *n = m->n_tables;
    return m->tables;
}

const wk_model_param *wk_model_params(const wk_model *m, size_t *n)
{
    *n = m->n_params;
    return m->params;
}

bd_status wk_model_forward(wk_model *m, tp_tape *tape, const wk_batch *b, const wk_model_rows *rows,
                           const wk_model_mode *mode, tp_tensor **logits, bd_err *err)
{
    wk_forward f = {.tape = tape, .batch = b, .rows = rows, .mode = mode};
    if (b->n_fields != m->n_fields || (b->n_dense != m->n_dense && b->n > 0)) {
        return bd_err_set(err, BD_E_INVALID,
                          "model %s: the batch has %zu dense columns and %zu fields, the model "
                          "takes %zu and %zu",
                          m->kind->name, b->n_dense, b->n_fields, m->n_dense, m->n_fields);
    }
    return m->kind->forward(m, &f, logits, err);
}
