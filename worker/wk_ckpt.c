/* Checkpoints: files, choice of the newest, distribution to the ranks. */
#include "worker/wk_ckpt.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_file.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANIFEST_FORMAT "braid-checkpoint-1"

void wk_ckpt_deinit(wk_ckpt *c)
{
    bd_free(c->layout);
    if (c->dense != NULL) {
        bd_buf_unref(c->dense);
    }
    c->layout = NULL;
    c->dense = NULL;
}

static char *path_of(const char *run_dir, const char *name, const char *file)
{
    return bd_strfmt("%s/checkpoints/%s%s%s", run_dir, name, file[0] != '\0' ? "/" : "", file);
}

/* ---- saving ---- */

static char *manifest_text(const wk_ckpt *c, const wk_trainer *t)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_put_str(&j, "format", MANIFEST_FORMAT);
    bd_json_put_str(&j, "job", t->job->name);
    bd_json_put_u64(&j, "step", c->step);
    bd_json_put_u64(&j, "committed", c->committed);
    bd_json_put_u64(&j, "skipped", c->n_skipped);
    bd_json_put_u64(&j, "job_epoch", c->job_epoch);
    bd_json_put_u64(&j, "epoch", c->step / t->steps_per_epoch);
    bd_json_put_i64(&j, "batch", t->job->train.batch);
    bd_json_put_i64(&j, "seed", t->job->seed);
    bd_json_put_i64(&j, "workers", t->job->workers);
    bd_json_put_i64(&j, "servers", t->job->servers);
    if (isfinite(c->best)) {
        bd_json_put_f64(&j, "best", c->best);
    }
    bd_json_put_i64(&j, "evaluations_without_gain", c->n_worse);
    bd_json_put_u64(&j, "dense_bytes", c->dense->n_bytes);
    bd_json_put_hex64(&j, "dense_hash", bd_hash64(c->dense->bytes, c->dense->n_bytes, 0));
    bd_json_put_str(&j, "bucket_layout", c->layout);
    bd_json_obj_end(&j);
    char *text = bd_json_take(&j);
    bd_json_deinit(&j);
    return text;
}

static bd_status write_files(const wk_ckpt *c, const wk_trainer *t, const char *run_dir,
                             bd_err *err)
{
    char *dense = path_of(run_dir, c->name, "dense.bin");
    char *manifest = path_of(run_dir, c->name, "manifest.json");
    char *text = manifest_text(c, t);
    bd_status rc = BD_OK;
    if (dense == NULL || manifest == NULL || text == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "checkpoint %s", c->name);
    }
    if (rc == BD_OK) {
        rc = wk_write_bytes(dense, c->dense->bytes, c->dense->n_bytes, err);
    }
    if (rc == BD_OK) {
        rc = wk_write_bytes(manifest, text, strlen(text), err);
    }
    bd_free(dense);
    bd_free(manifest);
    bd_free(text);
    return rc;
}

static bd_status remove_one(const wk_trainer *t, const char *run_dir, uint64_t step, bd_err *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "step-%llu", (unsigned long long)step);
    char *dir = path_of(run_dir, name, "");
    char *manifest = path_of(run_dir, name, "manifest.json");
    bd_status rc = dir != NULL && manifest != NULL
                       ? wk_remove_file(manifest, err) /* first: from here on it is none */
                       : bd_err_set(err, BD_E_NOMEM, "checkpoint %s", name);
    if (rc == BD_OK) {
        rc = t->sparse->ops->checkpoint_delete(t->sparse, name, err);
    }
    if (rc == BD_OK || rc == BD_E_NOT_FOUND) {
        rc = wk_remove_dir(dir, err);
    }
    bd_free(dir);
    bd_free(manifest);
    return rc;
}

bd_status wk_ckpt_begin(wk_ckpt *c, const wk_trainer *t, const char *run_dir, bd_err *err)
{
    const wk_sparse_ops *ops = t->sparse->ops;
    wk_ckpt_deinit(c);
    (void)snprintf(c->name, sizeof c->name, "step-%llu", (unsigned long long)c->step);
    char *dir = path_of(run_dir, c->name, "");
    bd_status rc = dir != NULL ? wk_make_dirs(dir, err) : bd_err_set(err, BD_E_NOMEM, "checkpoint");
    if (rc == BD_OK) {
        rc = ops->checkpoint_cut != NULL
                 ? ops->checkpoint_cut(t->sparse, c->name, c->committed, err)
                 : ops->checkpoint(t->sparse, c->name, c->committed, err);
    }
    if (rc == BD_OK) {
        rc = wk_dense_optim_save(t->optim, &c->dense, err);
    }
    if (rc == BD_OK) {
        rc = ring_reducer_layout_save(t->reducer, &c->layout, err);
    }
    bd_free(dir);
    if (rc != BD_OK) {
        wk_ckpt_deinit(c);
        return bd_err_wrap(err, "checkpoint %s", c->name);
    }
    return BD_OK;
}

bd_status wk_ckpt_finish(wk_ckpt *c, const wk_trainer *t, const char *run_dir, bool wait,
                         bool *done, bd_err *err)
{
    const wk_sparse_ops *ops = t->sparse->ops;
    bd_status rc = BD_OK;
    *done = true;
    if (ops->checkpoint_cut != NULL) {
        rc = ops->checkpoint_poll(t->sparse, c->name, c->committed, wait, done, err);
    }
    if (rc == BD_OK && !*done) {
        return BD_OK;
    }
    if (rc == BD_OK) {
        rc = write_files(c, t, run_dir, err);
    } else if (rc == BD_E_NOT_FOUND) {
        bd_err ignored; /* the next one is pruned like any other; this one may stay in parts */
        (void)remove_one(t, run_dir, c->step, &ignored);
    }
    wk_ckpt_deinit(c);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "checkpoint %s", c->name);
}

/* ---- listing ---- */

typedef struct step_list {
    uint64_t *steps; /* owned, newest first */
    size_t n;
} step_list;

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y ? 1 : 0;
}

static bool step_of(const char *name, uint64_t *step)
{
    char *end = NULL;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
        return false;
    }
    errno = 0;
    *step = strtoull(name + 5, &end, 10);
    return errno == 0 && *end == '\0';
}

static int is_step(const struct dirent *e)
{
    uint64_t step = 0;
    return step_of(e->d_name, &step) ? 1 : 0;
}

static bd_status list_steps(const char *run_dir, step_list *out, bd_err *err)
{
    char *path = bd_strfmt("%s/checkpoints", run_dir);
    struct dirent **names = NULL;
    bd_status rc = BD_OK;
    int n = path != NULL ? scandir(path, &names, is_step, NULL) : 0;
    *out = (step_list){0};
    if (n < 0 && errno != ENOENT) {
        rc = bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    }
    out->steps = bd_calloc(n > 0 ? (size_t)n : 1, sizeof *out->steps);
    if (path == NULL || out->steps == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "checkpoints");
    }
    for (int i = 0; i < n; i++) {
        if (rc == BD_OK && step_of(names[i]->d_name, &out->steps[out->n])) {
            out->n++;
        }
        free(names[i]);
    }
    free(names);
    bd_free(path);
    if (rc == BD_OK) {
        qsort(out->steps, out->n, sizeof *out->steps, newest_first);
    }
    return rc;
}

bd_status wk_ckpt_prune(const wk_trainer *t, const char *run_dir, size_t keep, bd_err *err)
{
    step_list list = {0};
    bd_status rc = list_steps(run_dir, &list, err);
    for (size_t i = keep; i < list.n && rc == BD_OK; i++) {
        rc = remove_one(t, run_dir, list.steps[i], err);
    }
    bd_free(list.steps);
    return rc;
}

/* ---- finding ---- */

static bd_status read_manifest(const char *path, const bd_json_doc *doc, wk_ckpt *c,
                               uint64_t *n_bytes, uint64_t *hash, bd_err *err)
{
    const char *format = "", *layout = "";
    int64_t step = -1, committed = -1, skipped = 0, bytes = -1, job_epoch = 0;
    bool ok =
        bd_json_get_str(doc, "format", &format) && strcmp(format, MANIFEST_FORMAT) == 0 &&
        bd_json_get_i64(doc, "step", &step) && bd_json_get_i64(doc, "committed", &committed) &&
        bd_json_get_i64(doc, "dense_bytes", &bytes) && bd_json_get_hex64(doc, "dense_hash", hash) &&
        bd_json_get_str(doc, "bucket_layout", &layout);
    if (!ok || step < 0 || committed < 0 || bytes < 0) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: not a whole %s manifest", path, MANIFEST_FORMAT);
    }
    c->best = (double)NAN;
    (void)bd_json_get_f64(doc, "best", &c->best);
    (void)bd_json_get_i64(doc, "evaluations_without_gain", &c->n_worse);
    (void)bd_json_get_i64(doc, "skipped", &skipped);
    (void)bd_json_get_i64(doc, "job_epoch", &job_epoch); /* younger than the format */
    c->step = (uint64_t)step;
    c->committed = (uint64_t)committed;
    c->n_skipped = (uint64_t)skipped;
    c->job_epoch = job_epoch > 0 ? (uint64_t)job_epoch : 0;
    *n_bytes = (uint64_t)bytes;
    c->layout = bd_strdup(layout);
    return c->layout != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "%s", path);
}

static bd_status read_dense(const char *path, uint64_t n_bytes, uint64_t hash, wk_ckpt *c,
                            bd_err *err)
{
    wk_blob b;
    bd_status rc = wk_read_bytes(&b, path, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (b.n_bytes != n_bytes || bd_hash64(b.bytes, b.n_bytes, 0) != hash) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%s: not the bytes its manifest names", path);
    } else {
        c->dense = bd_buf_copy(b.bytes, b.n_bytes);
        rc = c->dense != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "%s", path);
    }
    wk_blob_deinit(&b);
    return rc;
}

static bd_status load_one(const char *run_dir, const char *name, wk_ckpt *c, bd_err *err)
{
    bd_json_doc *doc = NULL;
    uint64_t n_bytes = 0, hash = 0;
    char *dense = path_of(run_dir, name, "dense.bin");
    char *manifest = path_of(run_dir, name, "manifest.json");
    bd_status rc = dense != NULL && manifest != NULL ? bd_json_load(manifest, &doc, err)
                                                     : bd_err_set(err, BD_E_NOMEM, "checkpoint");
    if (rc == BD_OK) {
        rc = read_manifest(manifest, doc, c, &n_bytes, &hash, err);
    }
    if (rc == BD_OK) {
        rc = read_dense(dense, n_bytes, hash, c, err);
    }
    if (rc == BD_OK) {
        (void)snprintf(c->name, sizeof c->name, "%s", name);
    } else {
        wk_ckpt_deinit(c);
    }
    bd_json_free(doc);
    bd_free(dense);
    bd_free(manifest);
    return rc;
}

static void warn_broken(const char *name, const bd_err *why)
{
    BD_LOG(WARN, "checkpoint is not whole; trying an older one", "name", name, "reason",
           bd_err_text(why));
}

/* The newest whole one. */
static bd_status find_newest(const char *run_dir, wk_ckpt *c, bool *found, bd_err *err)
{
    step_list list = {0};
    bd_status rc = list_steps(run_dir, &list, err);
    for (size_t i = 0; i < list.n && rc == BD_OK && !*found; i++) {
        char name[64];
        bd_err why = BD_ERR_INIT;
        (void)snprintf(name, sizeof name, "step-%llu", (unsigned long long)list.steps[i]);
        *found = load_one(run_dir, name, c, &why) == BD_OK;
        if (!*found) {
            warn_broken(name, &why);
        }
    }
    bd_free(list.steps);
    return rc;
}

bd_status wk_ckpt_find(const char *run_dir, const char *which, wk_ckpt *c, bool *found, bd_err *err)
{
    memset(c, 0, sizeof *c);
    *found = false;
    if (strcmp(which, "auto") == 0) {
        return find_newest(run_dir, c, found, err);
    }
    bd_status rc = load_one(run_dir, which, c, err);
    *found = rc == BD_OK;
    return rc;
}

/* ---- from rank 0 to all ---- */

typedef struct head {
    uint64_t step, committed, n_skipped, layout_bytes, dense_bytes;
    int64_t n_worse;
    double best;
    char name[104];
} head;

bd_status wk_ckpt_broadcast(wk_ckpt *c, ring_comm *ring, bd_err *err)
{
    head h = {0};
    bool root = ring_rank(ring) == 0;
    if (root) {
        h = (head){c->step,           c->committed, c->n_skipped, strlen(c->layout),
                   c->dense->n_bytes, c->n_worse,   c->best,      ""};
        memcpy(h.name, c->name, sizeof h.name);
    }
    bd_status rc = ring_broadcast(ring, &h, sizeof h, NUM_U8, 0, "checkpoint.head", NULL, err);
    if (rc == BD_OK && !root) {
        c->step = h.step;
        c->committed = h.committed;
        c->n_skipped = h.n_skipped;
        c->n_worse = h.n_worse;
        c->best = h.best;
        memcpy(c->name, h.name, sizeof c->name);
        c->layout = bd_calloc(h.layout_bytes + 1, 1);
        c->dense = bd_buf_new(h.dense_bytes);
        if (c->layout == NULL || c->dense == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "checkpoint %s", c->name);
        }
    }
    if (rc == BD_OK) {
        rc = ring_broadcast(ring, c->layout, h.layout_bytes, NUM_U8, 0, "checkpoint.layout", NULL,
                            err);
    }
    if (rc == BD_OK) {
        rc = ring_broadcast(ring, c->dense->bytes, h.dense_bytes, NUM_U8, 0, "checkpoint.dense",
                            NULL, err);
    }
    return rc;
}

bd_status wk_ckpt_apply(const wk_ckpt *c, wk_trainer *t, bd_err *err)
{
    bd_status rc = wk_dense_optim_restore(t->optim, c->dense->bytes, c->dense->n_bytes, err);
    if (rc == BD_OK && c->layout[0] != '\0') {
        rc = ring_reducer_layout_load(t->reducer, c->layout, err);
    }
    t->n_skipped = c->n_skipped;
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "checkpoint %s", c->name);
}
