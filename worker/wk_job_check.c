/* The checks of a job that span rows of the table, or ask for a name that another part knows. */
#include "base/num/hyper.h"
#include "base/num/optim.h"

#include "worker/wk_job.h"
#include "worker/wk_model.h"

#include <stdio.h>
#include <string.h>

static bool is_name(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 100 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static bd_status unknown_word(bd_err *err, const char *key, const char *word,
                              const char *const *known, size_t n)
{
    const char *near = bd_nearest(word, known, n);
    return bd_err_set(err, BD_E_USAGE, "%s: unknown value \"%.64s\"%s%s%s", key, word,
                      near != NULL ? ", did you mean " : "", near != NULL ? near : "",
                      near != NULL ? "?" : "");
}

/* The list of `hyper` belongs to the optimiser; learning rate and l2 have keys of their own. */
static bd_status check_hyper(const char *key, const num_optim *opt, const char *hyper, bd_err *err)
{
    num_hyper_list list;
    float filled[NUM_OPTIM_MAX_HYPER];
    bd_err why = BD_ERR_INIT;
    bd_status rc = num_hyper_list_parse(hyper, &list, &why);
    for (size_t i = 0; rc == BD_OK && i < list.n; i++) {
        if (num_optim_place(opt, list.names[i]) < 2) {
            rc = bd_err_set(&why, BD_E_INVALID, "%s has a key of its own", list.names[i]);
        }
    }
    if (rc == BD_OK) {
        rc = num_optim_hyper(opt, list.names, list.values, list.n, filled, &why);
    }
    return rc == BD_OK ? BD_OK
                       : bd_err_set(err, BD_E_USAGE, "%s.hyper: %s", key, bd_err_text(&why));
}

/* key: "train", "embedding" or "bias". */
static bd_status check_optimizer(const char *key, const char *name, const char *hyper, bd_err *err)
{
    const char *known[32];
    char whole[64];
    size_t n = 0;
    if (num_optim_find(name) != NULL) {
        return check_hyper(key, num_optim_find(name), hyper, err);
    }
    for (; n < 32 && num_optim_at(n) != NULL; n++) {
        known[n] = num_optim_at(n)->name;
    }
    (void)snprintf(whole, sizeof whole, "%s.optimizer", key);
    return unknown_word(err, whole, name, known, n);
}

static bd_status check_model(const char *name, bd_err *err)
{
    const char *known[32];
    size_t n = 0;
    for (; n < 32 && wk_model_kind_name(n) != NULL; n++) {
        known[n] = wk_model_kind_name(n);
        if (strcmp(known[n], name) == 0) {
            return BD_OK;
        }
    }
    return unknown_word(err, "model.kind", name, known, n);
}

static bd_status check_data(const wk_job_data *d, bd_err *err)
{
    bool csv = strcmp(d->format, "csv") == 0;
    if (d->train[0] == '\0' && d->generate.rows == 0) {
        return bd_err_set(err, BD_E_USAGE, "data.train: not set");
    }
    if (csv && d->schema.n == 0) {
        return bd_err_set(err, BD_E_USAGE,
                          "data.schema: not set; csv needs one `name:kind` per column");
    }
    if (strcmp(d->split, "hash") == 0 && d->test[0] != '\0') {
        return bd_err_set(err, BD_E_USAGE,
                          "data.test: not used with data.split hash, which takes the test rows out "
                          "of data.train");
    }
    return BD_OK;
}

static bd_status check_world(wk_job *job, bd_err *err)
{
    wk_job_process *p = &job->process;
    if (p->world == 0) {
        p->world = job->workers;
    }
    job->workers = p->world;
    if (p->rank >= p->world) {
        return bd_err_set(err, BD_E_USAGE, "rank: %lld is not below world %lld", (long long)p->rank,
                          (long long)p->world);
    }
    if (job->servers == 0 && p->world > 1) {
        return bd_err_set(err, BD_E_USAGE,
                          "servers: 0 keeps the tables inside one worker, but workers is %lld",
                          (long long)p->world);
    }
    if (strcmp(job->train.sampler, "distributed") == 0 && job->train.batch % p->world != 0) {
        return bd_err_set(err, BD_E_USAGE,
                          "train.batch: %lld is not a multiple of workers %lld, which "
                          "train.sampler distributed needs",
                          (long long)job->train.batch, (long long)p->world);
    }
    return BD_OK;
}

/* What servers do with gradients: tables inside the worker have nobody who would. */
static bd_status check_rows(const wk_job *job, const char *kind, const wk_job_rows *r, bd_err *err)
{
    bool wanted = strcmp(r->bad_gradient, "reject") != 0 || r->max_gradient_norm > 0;
    if (job->servers == 0 && wanted) {
        return bd_err_set(
            err, BD_E_USAGE,
            "%s.bad_gradient and max_gradient_norm are the servers' work: servers is 0", kind);
    }
    if (job->servers == 0 && r->init_file[0] != '\0') {
        return bd_err_set(err, BD_E_USAGE, "%s.init_file is for servers: servers is 0", kind);
    }
    if (job->servers == 0 && (r->admission[0] != '\0' || r->eviction[0] != '\0')) {
        return bd_err_set(err, BD_E_USAGE,
                          "%s.admission and eviction are the servers' work: servers is 0", kind);
    }
    num_rules rules;
    bd_status rc = num_rules_parse(r->admission, &rules, err);
    if (rc == BD_OK && rules.n > 1) {
        rc = bd_err_set(err, BD_E_USAGE, "\"%.64s\": one rule at most", r->admission);
    }
    if (rc != BD_OK) {
        return bd_err_set(err, BD_E_USAGE, "%s.admission: %s", kind, bd_err_text(err));
    }
    rc = num_rules_parse(r->eviction, &rules, err);
    if (rc != BD_OK) {
        return bd_err_set(err, BD_E_USAGE, "%s.eviction: %s", kind, bd_err_text(err));
    }
    if (strcmp(r->bad_gradient, "clip") == 0 && !(r->max_gradient_norm > 0)) {
        return bd_err_set(err, BD_E_USAGE, "%s.bad_gradient: clip needs %s.max_gradient_norm", kind,
                          kind);
    }
    return BD_OK;
}

bd_status wk_job_check(wk_job *job, bd_err *err)
{
    bd_status rc;
    if (!is_name(job->name)) {
        return bd_err_set(err, BD_E_USAGE,
                          "name: \"%.64s\": 1 to 100 letters, digits, dots, dashes, underscores",
                          job->name);
    }
    rc = check_model(job->model.kind, err);
    if (rc == BD_OK) {
        rc = check_data(&job->data, err);
    }
    if (rc == BD_OK) {
        rc = check_world(job, err);
    }
    if (rc == BD_OK) {
        rc = check_optimizer("train", job->train.optimizer, job->train.hyper, err);
    }
    if (rc == BD_OK) {
        rc = check_optimizer("embedding", job->embedding.optimizer, job->embedding.hyper, err);
    }
    if (rc == BD_OK) {
        rc = check_optimizer("bias", job->bias.optimizer, job->bias.hyper, err);
    }
    if (rc == BD_OK) {
        rc = check_rows(job, "embedding", &job->embedding, err);
    }
    return rc == BD_OK ? check_rows(job, "bias", &job->bias, err) : rc;
}
