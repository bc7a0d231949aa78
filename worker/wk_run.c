/* Wiring of a worker process. */
#include "worker/wk_run.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include "tape/blas.h"
#include "worker/wk_eval.h"
#include "worker/wk_rdzv.h"
#include "worker/wk_train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRY_RUN_ROWS = 10000 };

/* Everything a worker holds, in the order it is taken; freed in reverse. */
typedef struct parts {
    const wk_job *job;
    int lock_fd; /* -1: none */
    wk_data data;
    rpc_env *env;
    cl_client *client;
    rpc_ag *ag; /* this rank as a node of distributed autograd; NULL: no servers */
    ring_comm *ring;
    wk_sparse *sparse;
    tp_device *dev;
    wk_net net;
    wk_progress progress;
    wk_page *page;
    wk_ckpt from;
    bool resumed;
    uint64_t epoch;
    char *ckpt_dir; /* owned */
} parts;

static int rank_of(const wk_job *job)
{
    return (int)job->process.rank;
}

static int world_of(const wk_job *job)
{
    return (int)job->process.world;
}

static void parts_init(parts *p, const wk_job *job)
{
    memset(p, 0, sizeof *p);
    p->job = job;
    p->lock_fd = -1;
}

static void parts_deinit(parts *p)
{
    wk_ckpt_deinit(&p->from);
    wk_page_stop(p->page);
    wk_progress_deinit(&p->progress);
    wk_net_deinit(&p->net);
    if (p->dev != NULL) {
        tp_device_free(p->dev);
    }
    wk_sparse_free(p->sparse);
    if (p->ring != NULL) {
        ring_free(p->ring);
    }
    rpc_ag_free(p->ag);
    if (p->client != NULL) {
        cl_client_free(p->client);
    }
    if (p->env != NULL) {
        rpc_env_free(p->env);
    }
    wk_data_free(&p->data);
    bd_free(p->ckpt_dir);
    if (p->lock_fd >= 0) {
        (void)close(p->lock_fd);
    }
}

/* ---- network ---- */

static cl_pooling pooling_of(const wk_job *job)
{
    static const char *const names[] = {"auto", "client", "server"};
    int i = CL_POOL_SERVER;
    while (i > CL_POOL_AUTO && strcmp(names[i], job->ps_pooling) != 0) {
        i--;
    }
    return (cl_pooling)i;
}

static bd_status connect_servers(parts *p, bd_err *err)
{
    const wk_job *job = p->job;
    char name[32];
    const rpc_env_options env = {
        .n_queues = 1, .n_threads = 1, .n_workers = 1, .security = &job->process.security};
    const char *store =
        job->process.store[0] != '\0' ? job->process.store : job->process.coordinator;
    const cl_options opt = {.coordinator = store,
                            .name = name,
                            .connect_wait_ms = job->ps_connect_wait_ms,
                            .ps_wait_ms = job->ps_wait_ms,
                            .part_bytes = (size_t)job->ps_part_bytes,
                            .pooling = pooling_of(job),
                            .push_ahead = true,
                            .wire_rows = job->ps_wire_rows,
                            .wire_grads = job->ps_wire_grads,
                            .wire_codec = job->ps_wire_codec};
    (void)snprintf(name, sizeof name, "worker-%d", rank_of(job));
    if (store[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE,
                          "coordinator: not set; `braid run` starts the servers and "
                          "the workers, or pass --coordinator HOST:PORT");
    }
    bd_status rc = rpc_env_new(&env, &p->env, err);
    if (rc == BD_OK) {
        rc = cl_client_new(p->env, &opt, &p->client, err);
    }
    if (rc == BD_OK) {
        const rpc_ag_options node = {.name = name, .client_id = cl_client_id(p->client)};
        rc = rpc_ag_new(p->env, &node, &p->ag, err);
    }
    return rc == BD_OK ? wk_sparse_client_new(p->client, &p->sparse, err) : rc;
}

/* Which checkpoint rank 0 starts from, if any. */
static bd_status choose_checkpoint(parts *p, const char *which, bd_err *err)
{
    bd_status rc = BD_OK;
    if (strcmp(which, "none") != 0) {
        rc = wk_ckpt_find(p->job->run_dir, which, &p->from, &p->resumed, err);
    }
    return rc;
}

static cl_job job_of(const parts *p)
{
    cl_job j = {.epoch = p->epoch, .rank = rank_of(p->job), .world = world_of(p->job)};
    j.consistency = strcmp(p->job->consistency, "sync") == 0    ? CL_SYNC
                    : strcmp(p->job->consistency, "async") == 0 ? CL_ASYNC
                                                                : CL_BOUNDED;
    return j;
}

/* Rank 0: a new job epoch on all servers, rolled back to the checkpoint it starts from. */
static bd_status open_job(parts *p, bd_err *err)
{
    bd_status rc = cl_job_next_epoch(p->client, &p->epoch, err);
    if (rc == BD_OK) {
        cl_job j = job_of(p);
        j.restore_epoch = p->resumed ? p->from.job_epoch : 0;
        rc = cl_job_open(p->client, &j, p->resumed ? p->from.name : NULL,
                         p->resumed ? p->from.step + 1 : 1, err);
    }
    return rc;
}

static bd_status meet(parts *p, bd_err *err)
{
    const wk_job *job = p->job;
    bd_kv *kv = cl_client_kv(p->client);
    const wk_rdzv r = {job->name, rank_of(job), world_of(job), job->ring_timeout_ms};
    bd_status rc;
    if (rank_of(job) == 0) {
        char text[64];
        rc = open_job(p, err);
        (void)snprintf(text, sizeof text, "%" PRIu64 " %d", p->epoch, p->resumed ? 1 : 0);
        if (rc == BD_OK) {
            rc = wk_rdzv_lead(kv, &r, p->epoch, text, err);
        }
    } else {
        char *text = NULL, *end = NULL;
        rc = wk_rdzv_follow(kv, &r, &text, err);
        if (rc == BD_OK) {
            p->epoch = strtoull(text, &end, 10);
            p->resumed = strcmp(end, " 1") == 0;
        }
        bd_free(text);
    }
    if (rc == BD_OK) {
        cl_job j = job_of(p);
        cl_job_join(p->client, &j);
    }
    return rc;
}

static ring_backend_kind ring_backend_of(const wk_job *job)
{
    if (strcmp(job->ring_backend, "tcp") == 0) {
        return RING_TCP;
    }
    if (strcmp(job->ring_backend, "nccl") == 0) {
        return RING_NCCL;
    }
    return strcmp(job->ring_backend, "shm") == 0 ? RING_SHM : RING_AUTO;
}

static bd_status join_ring(parts *p, bd_err *err)
{
    const wk_job *job = p->job;
    const ring_options opt = {.group = job->name,
                              .epoch = p->epoch,
                              .bind_host = job->process.bind_host,
                              .interface = job->process.interface,
                              .n_connections = (int)job->ring_connections,
                              .backend = ring_backend_of(job),
                              .timeout_ms = wk_job_ring_timeout_ms(job)};
    return ring_new(cl_client_kv(p->client), rank_of(job), world_of(job), &opt, &p->ring, err);
}

/* servers: 0: tables, and a ring of one, in this process. */
static bd_status stay_local(parts *p, bd_err *err)
{
    const ring_options opt = {.group = p->job->name, .epoch = 1};
    p->ckpt_dir = bd_strfmt("%s/checkpoints", p->job->run_dir);
    bd_status rc = p->ckpt_dir != NULL ? wk_sparse_local_new(p->ckpt_dir, &p->sparse, err)
                                       : bd_err_set(err, BD_E_NOMEM, "worker");
    return rc == BD_OK ? ring_mem_new(1, &opt, &p->ring, err) : rc;
}

static bd_status connect_all(parts *p, bd_err *err)
{
    bd_status rc;
    if (p->job->servers == 0) {
        return stay_local(p, err);
    }
    rc = connect_servers(p, err);
    if (rc == BD_OK) {
        rc = meet(p, err);
    }
    return rc == BD_OK ? join_ring(p, err) : rc;
}

/* ---- model ---- */

static int compute_threads(const wk_job *job)
{
    int64_t cores = bd_cpus();
    if (job->process.threads > 0) {
        return (int)job->process.threads;
    }
    return cores > world_of(job) ? (int)(cores / world_of(job)) : 1;
}

static bd_status build_model(parts *p, bd_err *err)
{
    const int n_threads = compute_threads(p->job);
    bd_status rc = tp_device_new_cpu(n_threads, &p->dev, err);
    if (rc == BD_OK) {
        BD_LOG(INFO, "compute", "threads", n_threads, "matrix_kernels", tp_blas_kernels());
        rc = wk_net_init(&p->net, p->job, &p->data, p->sparse, p->dev, err);
    }
    return rc == BD_OK ? wk_net_create_tables(&p->net, err) : rc;
}

/* A fresh job must not start from another run's rows. */
static bd_status check_fresh(parts *p, bd_err *err)
{
    uint64_t hash = 0, n_rows = 0;
    if (p->resumed || rank_of(p->job) != 0) {
        return BD_OK;
    }
    bd_status rc = p->sparse->ops->param_hash(p->sparse, &hash, &n_rows, err);
    if (rc == BD_OK && n_rows > 0) {
        rc = bd_err_set(err, BD_E_STATE,
                        "the servers hold %" PRIu64 " rows of an earlier run; go on with --resume "
                        "auto, or start servers with empty data folders",
                        n_rows);
    }
    return rc;
}

/* ---- training ---- */

static void put_metrics(bd_json *j, const wk_metrics *m)
{
    if (m->n == 0) {
        return;
    }
    bd_json_put_f64(j, "auc", m->auc);
    bd_json_put_f64(j, "logloss", m->logloss);
    bd_json_put_f64(j, "accuracy", m->accuracy);
    bd_json_put_f64(j, "rmse", m->rmse);
    bd_json_put_f64(j, "norm_entropy", m->norm_entropy);
    bd_json_put_f64(j, "calibration", m->calibration);
}

/* What `braid datagen` knows about its data: the best AUC anyone can reach. */
static void put_bayes_auc(bd_json *j, const wk_job *job)
{
    bd_json_doc *doc = NULL;
    double bayes = 0;
    char *path = bd_strfmt("%s.meta.json", job->data.train);
    if (path != NULL && bd_json_load(path, &doc, NULL) == BD_OK &&
        bd_json_get_f64(doc, "bayes_auc", &bayes)) {
        bd_json_put_f64(j, "bayes_auc", bayes);
    }
    bd_json_free(doc);
    bd_free(path);
}

static char *result_text(const parts *p, const wk_train_result *r, double wall_s)
{
    bd_json j;
    const wk_job *job = p->job;
    double seconds = r->train_seconds > 0 ? r->train_seconds : 1;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_put_str(&j, "job", job->name);
    put_metrics(&j, &r->metrics);
    if (isfinite(r->best)) {
        bd_json_put_f64(&j, "best", r->best);
    }
    put_bayes_auc(&j, job);
    bd_json_put_f64(&j, "train_loss", r->last_loss);
    bd_json_put_f64(&j, "samples_per_s", round((double)r->n_samples / seconds));
    bd_json_put_u64(&j, "steps", r->steps);
    bd_json_put_u64(&j, "skipped_steps", r->n_skipped);
    bd_json_put_i64(&j, "workers", job->process.world);
    bd_json_put_i64(&j, "servers", p->client != NULL ? (int64_t)cl_client_n_servers(p->client) : 0);
    bd_json_put_u64(&j, "dense_params", r->n_dense);
    bd_json_put_u64(&j, "rows", r->n_rows);
    bd_json_put_u64(&j, "bad_lines", p->data.n_bad_lines);
    bd_json_put_hex64(&j, "param_hash", r->param_hash);
    bd_json_put_f64(&j, "train_s", r->train_seconds);
    bd_json_put_f64(&j, "wall_s", wall_s);
    bd_json_key(&j, "phase_s");
    bd_json_obj(&j);
    for (int i = 0; i < WK_N_PHASES; i++) {
        bd_json_put_f64(&j, wk_phase_name(i), round((double)r->phase_ns[i] * 1e-3) * 1e-6);
    }
    bd_json_obj_end(&j);
    bd_json_obj_end(&j);
    char *text = bd_json_take(&j);
    bd_json_deinit(&j);
    return text;
}

static bd_status prepare_train(parts *p, FILE *out, bd_err *err)
{
    const wk_job *job = p->job;
    bool quiet = rank_of(job) != 0;
    bd_status rc = wk_rank_lock(job->run_dir, rank_of(job), &p->lock_fd, err);
    if (rc == BD_OK) {
        rc = wk_progress_init(&p->progress, job, out, quiet, err);
    }
    if (rc == BD_OK) {
        rc = wk_page_start(job, &p->page, err);
    }
    if (rc == BD_OK) {
        rc = wk_data_load(job, &p->data, err);
    }
    if (rc == BD_OK && !quiet) {
        wk_progress_say(&p->progress,
                        "data  %zu train and %zu test rows, %" PRIu64 " bad lines, %.1f s",
                        p->data.train.n, p->data.test.n, p->data.n_bad_lines, p->data.seconds);
        rc = choose_checkpoint(p, job->process.resume, err);
    }
    if (rc == BD_OK) {
        rc = connect_all(p, err);
    }
    if (rc == BD_OK) { /* before a file's rows come in */
        rc = check_fresh(p, err);
    }
    if (rc == BD_OK) {
        rc = build_model(p, err);
    }
    if (rc == BD_OK && p->resumed && job->servers == 0) {
        rc = wk_sparse_local_restore(p->sparse, p->from.name, err);
    }
    return rc;
}

bd_status wk_run_train(const wk_run_options *opt, char **result, bool *stopped, bd_err *err)
{
    parts p;
    wk_train_result r;
    int64_t start = bd_mono_ns();
    parts_init(&p, opt->job);
    *result = NULL;
    *stopped = false;
    bd_status rc = prepare_train(&p, opt->out, err);
    if (rc == BD_OK) {
        const wk_train_env env = {.job = opt->job,
                                  .data = &p.data,
                                  .net = &p.net,
                                  .ring = p.ring,
                                  .ag = p.ag,
                                  .progress = &p.progress,
                                  .page = p.page,
                                  .stop = opt->stop,
                                  .resumed = p.resumed,
                                  .job_epoch = p.epoch,
                                  .from = &p.from};
        if (p.resumed && rank_of(opt->job) == 0) {
            wk_progress_say(&p.progress, "resumes after %s", p.from.name);
        }
        rc = wk_train(&env, &r, err);
    }
    if (rc == BD_OK) {
        *stopped = r.stopped;
    }
    if (rc == BD_OK && rank_of(opt->job) == 0) {
        *result = result_text(&p, &r, (double)(bd_mono_ns() - start) * 1e-9);
        rc = *result != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "result");
    } else if (rc != BD_OK && p.ring != NULL) {
        bd_err why = err != NULL ? *err : (bd_err){.code = rc};
        ring_abort(p.ring, &why); /* the others learn at once */
    }
    parts_deinit(&p);
    return rc;
}

/* ---- dry run ---- */

static void print_summary(const parts *p, const wk_trainer *t, const wk_step_result *s, FILE *out)
{
    const wk_shape *shape = p->data.shape;
    (void)fprintf(out, "data    %zu train rows, %zu test rows, %zu numeric columns, %zu fields\n",
                  p->data.train.n, p->data.test.n, shape->n_dense, shape->n_fields);
    (void)fprintf(out, "model   %s: %zu dense parameters in %zu tensors, %zu tables\n",
                  p->job->model.kind, wk_net_dense_elems(&p->net), p->net.n_params,
                  p->net.n_tables);
    for (size_t i = 0; i < p->net.n_tables; i++) {
        const wk_model_table *table = &p->net.tables[i];
        (void)fprintf(out, "table   %-24s field %-20s dim %zu%s\n", table->name,
                      shape->field_names[table->field_idx], table->dim,
                      table->is_bias ? " (bias)" : "");
    }
    (void)fprintf(out, "steps   %" PRIu64 " (%" PRIu64 " an epoch) over these rows\n",
                  t->total_steps, t->steps_per_epoch);
    (void)fprintf(out, "step 1  loss %.5f over %" PRIu64 " samples\n", s->loss, s->n);
}

static bd_status dry_step(parts *p, FILE *out, bd_err *err)
{
    wk_trainer t;
    wk_step_result s = {0};
    bool more = false;
    const wk_trainer_config config = {p->job, &p->data, &p->net, p->ring, NULL};
    bd_status rc = wk_trainer_init(&t, &config, err);
    if (rc == BD_OK) {
        t.total_steps = t.total_steps < 1 ? t.total_steps : 1;
        rc = wk_trainer_start(&t, 1, err);
    }
    if (rc == BD_OK) {
        rc = wk_trainer_step(&t, false, &s, &more, err);
    }
    if (rc == BD_OK) {
        t.total_steps = t.steps_per_epoch * (uint64_t)p->job->train.epochs;
        print_summary(p, &t, &s, out);
    }
    wk_trainer_deinit(&t);
    return rc;
}

bd_status wk_run_dry(const wk_run_options *opt, bd_err *err)
{
    parts p;
    wk_job job = *opt->job; /* shares its strings */
    if (job.data.max_rows == 0) {
        job.data.max_rows = DRY_RUN_ROWS;
    }
    job.process.world = 1;
    job.process.rank = 0;
    job.ring_log = false; /* nothing is written */
    job.trace = 0;
    parts_init(&p, &job);
    bd_status rc = wk_data_load(&job, &p.data, err);
    if (rc == BD_OK) {
        rc = stay_local(&p, err);
    }
    if (rc == BD_OK) {
        rc = build_model(&p, err);
    }
    if (rc == BD_OK) {
        rc = dry_step(&p, opt->out, err);
    }
    parts_deinit(&p);
    return rc;
}

/* ---- predict ---- */

static bd_status write_scores(const wk_job *job, const float *scores, size_t n, FILE *fallback,
                              bd_err *err)
{
    const char *path = job->process.output;
    bool binary = strcmp(job->train.loss, "bce") == 0, to_file = strcmp(path, "-") != 0;
    FILE *f = to_file ? fopen(path, "we") : fallback;
    if (f == NULL) {
        return bd_err_errno(err, BD_E_IO, errno, "output: open %s", path);
    }
    for (size_t i = 0; i < n; i++) {
        double z = (double)scores[i];
        (void)fprintf(f, "%.9g\n", binary ? 1 / (1 + exp(-z)) : z);
    }
    bool bad = fflush(f) != 0 || ferror(f) != 0;
    if (to_file) {
        bad = fclose(f) != 0 || bad;
    }
    return bad ? bd_err_errno(err, BD_E_IO, errno, "output: write %s", path) : BD_OK;
}

static bd_status load_dense(parts *p, bd_err *err)
{
    wk_dense_optim *optim = NULL;
    const wk_dense_optim_config cfg = {.optimizer = p->job->train.optimizer};
    bd_status rc = wk_dense_optim_new(p->net.params, p->net.n_params, &cfg, &optim, err);
    if (rc == BD_OK) {
        rc = wk_dense_optim_restore(optim, p->from.dense->bytes, p->from.dense->n_bytes, err);
        wk_dense_optim_free(optim);
    }
    return rc;
}

static bd_status score_all(parts *p, FILE *out, bd_err *err)
{
    size_t n = p->data.test.n;
    float *scores = bd_alloc((n + 1) * sizeof *scores);
    bd_status rc = scores != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "scores of %zu rows", n);
    if (rc == BD_OK) {
        rc = wk_net_scores(&p->net, &p->data.test, 0, n, 0, scores, err);
    }
    if (rc == BD_OK) {
        rc = write_scores(p->job, scores, n, out, err);
    }
    bd_free(scores);
    return rc;
}

bd_status wk_run_predict(const wk_run_options *opt, bd_err *err)
{
    parts p;
    wk_job job = *opt->job; /* shares its strings */
    const char *which = strcmp(job.process.resume, "none") == 0 ? "auto" : job.process.resume;
    job.process.world = 1;
    job.process.rank = 0;
    job.consistency = "sync";
    parts_init(&p, &job);
    bd_status rc = wk_data_load_only(&job, job.process.predict, &p.data, err);
    if (rc == BD_OK) {
        rc = choose_checkpoint(&p, which, err);
    }
    if (rc == BD_OK && !p.resumed) {
        rc = bd_err_set(err, BD_E_NOT_FOUND, "%s/checkpoints: no whole checkpoint", job.run_dir);
    }
    if (rc == BD_OK) {
        rc = job.servers == 0 ? stay_local(&p, err) : connect_servers(&p, err);
    }
    if (rc == BD_OK && job.servers > 0) {
        rc = meet(&p, err);
    }
    if (rc == BD_OK) {
        rc = build_model(&p, err);
    }
    if (rc == BD_OK && job.servers == 0) {
        rc = wk_sparse_local_restore(p.sparse, p.from.name, err);
    }
    if (rc == BD_OK) {
        rc = load_dense(&p, err);
    }
    if (rc == BD_OK) {
        rc = score_all(&p, opt->out, err);
    }
    parts_deinit(&p);
    return rc;
}
