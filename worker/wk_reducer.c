#include "worker/wk_reducer.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include "ring/ring_reducer_log.h"
#include "worker/wk_file.h"

#include <string.h>

/* The i-th parameter with a gradient, or without one. */
static const wk_model_param *nth(const wk_net *net, size_t i, bool with_grad)
{
    for (size_t k = 0; k < net->n_params; k++) {
        if ((net->params[k].grad != NULL) == with_grad && i-- == 0) {
            return &net->params[k];
        }
    }
    return NULL;
}

static size_t count(const wk_net *net, bool with_grad)
{
    size_t n = 0;
    for (size_t k = 0; k < net->n_params; k++) {
        n += (net->params[k].grad != NULL) == with_grad ? 1 : 0;
    }
    return n;
}

static void on_bind(void *user, size_t param_idx, void *grad)
{
    tp_param_bind_grad(nth(user, param_idx, true)->value, grad);
}

static ring_reducer_options options_of(const wk_job *job, wk_net *net)
{
    return (ring_reducer_options){
        .first_bucket_bytes = (size_t)job->ring_first_bucket_bytes,
        .bucket_bytes = (size_t)job->ring_bucket_bytes,
        .bind = job->ring_gradient_views ? on_bind : NULL,
        .bind_user = net,
        .static_graph = job->ring_static_graph,
        .deterministic = job->deterministic,
        .compress = job->ring_compress,
        .name = job->model.kind,
        .backend = job->servers == 0 ? "local" : job->ring_backend,
    };
}

/* Batch norm's running means and variances. */
static bd_status set_buffers(ring_reducer *r, const wk_net *net, bd_err *err)
{
    size_t n = count(net, false);
    if (n == 0) {
        return BD_OK;
    }
    ring_buffer *list = bd_calloc(n, sizeof *list);
    if (list == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "trainer");
    }
    for (size_t i = 0; i < n; i++) {
        const wk_model_param *p = nth(net, i, false);
        list[i] = (ring_buffer){p->name, p->value->data, p->value->n_elems, p->value->dtype};
    }
    bd_status rc = ring_reducer_set_buffers(r, list, n, err);
    bd_free(list);
    return rc;
}

bd_status wk_reducer_new(const wk_job *job, wk_net *net, ring_comm *ring, ring_reducer **out,
                         bd_err *err)
{
    const ring_reducer_options opt = options_of(job, net);
    size_t n = count(net, true);
    ring_reducer *r = NULL;
    ring_param *params = bd_calloc(n + 1, sizeof *params);
    if (params == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "trainer");
    }
    for (size_t i = 0; i < n; i++) {
        const wk_model_param *p = nth(net, i, true);
        params[i] = (ring_param){p->name, p->value->n_elems, NUM_F32, tp_f32(p->grad)};
    }
    bd_status rc = ring_reducer_new(ring, params, n, &opt, &r, err);
    bd_free(params);
    if (rc == BD_OK && job->ring_broadcast_buffers) {
        rc = set_buffers(r, net, err);
    }
    if (rc != BD_OK) {
        ring_reducer_free(r);
        return rc;
    }
    *out = r;
    return BD_OK;
}

void wk_reducer_log(const wk_job *job, ring_reducer *r, int rank, bool always)
{
    bd_err err = BD_ERR_INIT;
    bd_json j;
    if (!job->ring_log || (!ring_reducer_log_due(r) && !always)) {
        return;
    }
    bd_json_init(&j);
    ring_reducer_log(r, &j);
    const char *text = bd_json_text(&j);
    char *path = bd_strfmt("%s/reducer-rank%d.json", job->run_dir, rank);
    bd_status rc = BD_E_NOMEM;
    if (path != NULL && text != NULL) {
        rc = wk_make_dirs(job->run_dir, &err);
        rc = rc == BD_OK ? wk_write_bytes(path, text, strlen(text), &err) : rc;
    }
    if (rc != BD_OK) {
        BD_LOG(WARN, "the reducer's log was not written; `ring.log: false` does without", "why",
               bd_err_text(&err));
    }
    bd_free(path);
    bd_json_deinit(&j);
}
