/* Model, tables and tape as one. */
#include "worker/wk_net.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num/hyper.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rows scored at once in evaluation: large enough to fill the matrix products. */
enum { SCORE_BATCH = 4096 };

/* ---- from the job to the model's configuration ---- */

static bd_status parse_widths(const char *key, const bd_str_list *list, size_t *out, size_t *n,
                              bd_err *err)
{
    if (list->n > WK_MODEL_MAX_LAYERS) {
        return bd_err_set(err, BD_E_USAGE, "%s: %zu layers, at most %d", key, list->n,
                          WK_MODEL_MAX_LAYERS);
    }
    for (size_t i = 0; i < list->n; i++) {
        char *end = NULL;
        long v = strtol(list->items[i], &end, 10);
        if (end == list->items[i] || *end != '\0' || v < 1 || v > 1000000) {
            return bd_err_set(err, BD_E_USAGE, "%s: \"%.32s\" is not a width (1 to 1000000)", key,
                              list->items[i]);
        }
        out[i] = (size_t)v;
    }
    *n = list->n;
    return BD_OK;
}

static bd_status model_config(const wk_job *job, wk_model_config *c, bd_err *err)
{
    *c = (wk_model_config){
        .kind = job->model.kind,
        .dim = (size_t)job->model.dim,
        .dropout = (float)job->model.dropout,
        .batch_norm = job->model.batch_norm,
        .embedding_init = (float)job->model.embedding_init,
        .combiners = job->model.combiner.items,
        .n_combiners = job->model.combiner.n,
        .seed = (uint64_t)job->seed,
    };
    bd_status rc = parse_widths("model.bottom", &job->model.bottom, c->bottom, &c->n_bottom, err);
    if (rc == BD_OK) {
        rc = parse_widths("model.top", &job->model.top, c->top, &c->n_top, err);
    }
    return rc;
}

bd_status wk_net_init(wk_net *net, const wk_job *job, const wk_data *data, wk_sparse *sparse,
                      tp_device *dev, bd_err *err)
{
    wk_model_config config;
    const wk_shape *s = data->shape;
    const wk_model_inputs inputs = {s->n_dense, s->n_fields, s->field_names, s->field_multi};
    memset(net, 0, sizeof *net);
    net->job = job;
    net->data = data;
    net->sparse = sparse;
    net->dev = dev;
    bd_status rc = model_config(job, &config, err);
    if (rc == BD_OK) {
        rc = wk_model_new(&config, &inputs, dev, &net->model, err);
    }
    if (rc == BD_OK) {
        rc = tp_tape_new(dev, &net->tape, err);
    }
    if (rc != BD_OK) {
        wk_net_deinit(net);
        return rc;
    }
    net->tables = wk_model_tables(net->model, &net->n_tables);
    net->params = wk_model_params(net->model, &net->n_params);
    net->table_ids = bd_calloc(net->n_tables + 1, sizeof *net->table_ids);
    net->rows = bd_calloc(net->n_tables + 1, sizeof *net->rows);
    if (net->table_ids == NULL || net->rows == NULL) {
        wk_net_deinit(net);
        return bd_err_set(err, BD_E_NOMEM, "model");
    }
    return BD_OK;
}

void wk_net_deinit(wk_net *net)
{
    bd_free(net->table_ids);
    bd_free(net->rows);
    if (net->tape != NULL) {
        tp_tape_free(net->tape);
    }
    if (net->model != NULL) {
        wk_model_free(net->model);
    }
    memset(net, 0, sizeof *net);
}

/* The file that the table begins with, in out; "": none. {table} in the job's text stands for the
 * table's name; such a file need not be there. */
static bd_status init_file_of(const char *text, const char *table, char out[PATH_MAX], bd_err *err)
{
    static const char mark[] = "{table}";
    const char *at = strstr(text, mark);
    int n = at == NULL ? snprintf(out, PATH_MAX, "%s", text)
                       : snprintf(out, PATH_MAX, "%.*s%s%s", (int)(at - text), text, table,
                                  at + strlen(mark));
    if (n < 0 || n >= PATH_MAX) {
        return bd_err_set(err, BD_E_USAGE, "embedding.init_file is too long");
    }
    if (at == NULL || out[0] == '\0') {
        return BD_OK;
    }
    size_t stem = (size_t)n > 4 && strcmp(out + n - 4, ".npy") == 0 ? (size_t)n - 4 : (size_t)n;
    char *probe = bd_strfmt("%.*s%s", (int)stem, out, stem < (size_t)n ? ".keys.npy" : "");
    if (probe == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "model");
    }
    if (access(probe, F_OK) != 0) {
        BD_LOG(INFO, "no rows to begin with", "table", table, "file", probe);
        out[0] = '\0';
    }
    bd_free(probe);
    return BD_OK;
}

static bd_status create_table(wk_net *net, size_t i, bd_err *err)
{
    const wk_model_table *t = &net->tables[i];
    const wk_job_rows *cfg = t->is_bias ? &net->job->bias : &net->job->embedding;
    bool constant = t->init_low == t->init_high;
    num_hyper_list more;
    cl_param opt[2 + NUM_HYPER_LIST_MAX] = {{"learning_rate", cfg->learning_rate}, {"l2", cfg->l2}};
    const cl_param uniform[] = {{"low", (double)t->init_low}, {"high", (double)t->init_high}};
    const cl_param value[] = {{"value", (double)t->init_low}};
    char init_file[PATH_MAX];
    bd_status rc = num_hyper_list_parse(cfg->hyper, &more, err);
    if (rc == BD_OK) {
        rc = init_file_of(cfg->init_file, t->name, init_file, err);
    }
    cl_bad_gradient bad = CL_BAD_REJECT;
    if (rc == BD_OK && !cl_bad_gradient_parse(cfg->bad_gradient, &bad)) {
        rc = bd_err_set(err, BD_E_INVALID, "bad_gradient \"%.32s\"", cfg->bad_gradient);
    }
    if (rc != BD_OK) {
        return rc;
    }
    for (size_t k = 0; k < more.n; k++) {
        opt[2 + k] = (cl_param){more.names[k], more.values[k]};
    }
    const cl_table_spec spec = {
        .name = t->name,
        .dim = (uint32_t)t->dim,
        .dtype = cfg->dtype,
        .initializer = constant ? "constant" : "uniform",
        .init_params = constant ? value : uniform,
        .n_init_params = constant ? 1 : 2,
        .init_file = init_file,
        .init_by_other = net->job->process.rank != 0,
        .seed = (uint64_t)net->job->seed,
        .optimizer = cfg->optimizer,
        .opt_params = opt,
        .n_opt_params = 2 + more.n,
        .bad_gradient = bad,
        .max_gradient_norm = cfg->max_gradient_norm,
        .admission = cfg->admission,
        .eviction = cfg->eviction,
        .durability = net->job->durability,
    };
    return net->sparse->ops->table(net->sparse, &spec, &net->table_ids[i], err);
}

bd_status wk_net_create_tables(wk_net *net, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < net->n_tables && rc == BD_OK; i++) {
        rc = create_table(net, i, err);
    }
    return rc;
}

/* ---- a batch ---- */

bd_status wk_net_prepare(const wk_net *net, const wk_batch *b, wk_lookup **out, bd_err *err)
{
    cl_ids *ids = bd_calloc(net->n_tables + 1, sizeof *ids);
    /* sync: sums have the order of samples, whatever the number of servers */
    bool may_pool = strcmp(net->job->consistency, "sync") != 0;
    if (ids == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lookup");
    }
    for (size_t i = 0; i < net->n_tables; i++) {
        const wk_field_ids *f = &b->fields[net->tables[i].field_idx];
        ids[i] = (cl_ids){.table_id = net->table_ids[i],
                          .dim = (uint32_t)net->tables[i].dim,
                          .ids = f->ids,
                          .n_ids = f->n_ids};
        if (may_pool && !net->tables[i].needs_rows &&
            net->data->shape->field_multi[net->tables[i].field_idx]) {
            ids[i].offsets = f->offsets;
            ids[i].n_bags = b->n;
        }
    }
    bd_status rc = net->sparse->ops->prepare(net->sparse, ids, net->n_tables, out, err);
    bd_free(ids);
    return rc;
}

bd_status wk_net_forward(wk_net *net, const wk_batch *b, const wk_lookup *l,
                         const wk_model_mode *mode, tp_ready_fn hook, void *const *hook_users,
                         tp_tensor **logits, bd_err *err)
{
    bd_status rc = BD_OK;
    tp_tape_reset(net->tape);
    (void)tp_tape_set_grad(net->tape, mode->train);
    for (size_t i = 0; i < net->n_tables && rc == BD_OK; i++) {
        const cl_table_rows *r = net->sparse->ops->rows(l, i);
        const size_t dims[] = {r->n_rows, r->dim};
        rc = tp_tape_wrap(net->tape, 2, dims, r->rows, mode->train, NULL, &net->rows[i].rows, err);
        net->rows[i].index = r->index;
        net->rows[i].pooled = r->offsets != NULL;
        if (rc == BD_OK && hook != NULL) {
            tp_set_ready_hook(net->rows[i].rows, hook, hook_users[i]);
        }
    }
    if (rc == BD_OK) {
        rc = wk_model_forward(net->model, net->tape, b, net->rows, mode, logits, err);
    }
    return rc;
}

/* Scores one batch that `lookup` belongs to. */
static bd_status score_batch(wk_net *net, const wk_batch *b, wk_lookup *lookup, uint64_t after_step,
                             float *scores, bd_err *err)
{
    const wk_model_mode mode = {.train = false};
    tp_tensor *logits = NULL;
    const void *host = NULL;
    const wk_sparse_ops *ops = net->sparse->ops;
    bd_status rc = ops->fetch(net->sparse, lookup, after_step, err);
    if (rc == BD_OK) {
        rc = ops->wait(net->sparse, lookup, err);
    }
    if (rc == BD_OK) {
        rc = wk_net_forward(net, b, lookup, &mode, NULL, NULL, &logits, err);
    }
    if (rc == BD_OK) {
        rc = tp_read(logits, &host, err);
    }
    if (rc == BD_OK) {
        memcpy(scores, host, b->n * sizeof *scores);
    }
    tp_tape_reset(net->tape);
    return rc;
}

bd_status wk_net_scores(wk_net *net, const wk_dataset *set, size_t first, size_t n,
                        uint64_t after_step, float *scores, bd_err *err)
{
    uint32_t rows[SCORE_BATCH];
    wk_batch b = {0};
    bd_status rc = BD_OK;
    bd_arena_init(&b.arena);
    for (size_t done = 0; done < n && rc == BD_OK;) {
        wk_lookup *lookup = NULL;
        size_t m = n - done < SCORE_BATCH ? n - done : SCORE_BATCH;
        for (size_t i = 0; i < m; i++) {
            rows[i] = (uint32_t)(first + done + i);
        }
        rc = wk_data_batch(net->data, set, rows, m, m, &b, err);
        if (rc == BD_OK) {
            rc = wk_net_prepare(net, &b, &lookup, err);
        }
        if (rc == BD_OK) {
            rc = score_batch(net, &b, lookup, after_step, scores + done, err);
            net->sparse->ops->lookup_free(lookup);
        }
        done += m;
    }
    bd_arena_deinit(&b.arena);
    return rc;
}

size_t wk_net_dense_elems(const wk_net *net)
{
    size_t n = 0;
    for (size_t i = 0; i < net->n_params; i++) {
        n += net->params[i].grad != NULL ? net->params[i].value->n_elems : 0;
    }
    return n;
}
