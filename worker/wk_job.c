/* A job from its sources (file, environment, flags), and the values that follow from others. The table is in
 * wk_job_table.c, the checks are in wk_job_check.c. */
#include "worker/wk_job.h"

#include "base/mem.h"

#include "worker/wk_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_MARGIN_MS 15000 /* a server's last answer, and the way to the other ranks */

static char *arena_join(bd_arena *a, const char *x, const char *y)
{
    size_t n_bytes = strlen(x) + strlen(y) + 1;
    char *s = bd_arena_alloc(a, n_bytes);
    if (s != NULL) {
        (void)snprintf(s, n_bytes, "%s%s", x, y);
    }
    return s;
}

/* Values that follow from others. */
static bd_status resolve(wk_job *job, bd_err *err)
{
    bd_arena *a = &job->options.arena;
    if (job->run_dir[0] == '\0') {
        job->run_dir = arena_join(a, "runs/", job->name);
    }
    if (job->run_dir != NULL && job->metrics_file[0] == '\0') {
        job->metrics_file = arena_join(a, job->run_dir, "/metrics.jsonl");
    }
    if (job->run_dir == NULL || job->metrics_file == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "job options");
    }
    if (job->embedding.optimizer[0] == '\0') {
        job->embedding.optimizer = job->train.optimizer;
    }
    if (job->bias.optimizer[0] == '\0') {
        job->bias.optimizer = job->embedding.optimizer;
        job->bias.hyper = job->bias.hyper[0] == '\0' ? job->embedding.hyper : job->bias.hyper;
    }
    job->bias.dtype = "f32";
    if (job->embedding.learning_rate < 0) {
        job->embedding.learning_rate = job->train.learning_rate;
    }
    if (job->bias.learning_rate < 0) {
        job->bias.learning_rate = job->embedding.learning_rate;
    }
    if (job->bias.l2 < 0) {
        job->bias.l2 = job->embedding.l2;
    }
    job->bias.bad_gradient = job->embedding.bad_gradient;
    job->bias.admission = job->embedding.admission;
    job->bias.eviction = job->embedding.eviction;
    job->bias.init_file = "";
    if (job->bias.max_gradient_norm < 0) {
        job->bias.max_gradient_norm = job->embedding.max_gradient_norm;
    }
    return BD_OK;
}

static bool has_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static const char *from_environ(void *user, const char *name)
{
    (void)user;
    return getenv(name); // NOLINT(concurrency-mt-unsafe): at start, one thread
}

/* What other launchers say of rank, world and coordinator (wk_env.h). */
static bd_status load_launcher_env(wk_job *job, bd_err *err)
{
    wk_env env;
    bd_status rc = wk_env_read(from_environ, NULL, &env, err);
    const struct {
        const char *key;
        const wk_env_value *value;
    } rows[] = {{"rank", &env.rank}, {"world", &env.world}, {"coordinator", &env.coordinator}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == BD_OK; i++) {
        if (rows[i].value->from != NULL) {
            rc = bd_options_set_env(&job->options, rows[i].key, rows[i].value->text,
                                    rows[i].value->from, err);
        }
    }
    return rc;
}

/* Flags win over the file, so they are taken out of a copy of argv first to find the file's name;
 * the real pass comes after the file. */
static bd_status load_all(wk_job *job, int argc, char **argv, bd_err *err)
{
    int n_left = argc;
    bd_status rc = BD_E_NOMEM;
    char **copy = bd_calloc((size_t)argc + 1, sizeof *copy);
    if (copy == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "job options");
    }
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    rc = bd_options_load_args(&job->options, &n_left, copy, err);
    if (rc == BD_OK && n_left > 2) {
        rc = bd_err_set(err, BD_E_USAGE, "more than one job file: %s", copy[2]);
    }
    if (rc == BD_OK && n_left == 2) {
        rc = bd_options_load_yaml(&job->options, copy[1], err);
    }
    if (rc == BD_OK) {
        rc = load_launcher_env(job, err);
    }
    if (rc == BD_OK) {
        rc = bd_options_load_env(&job->options, err);
    }
    if (rc == BD_OK) {
        n_left = argc;
        memcpy(copy, argv, (size_t)argc * sizeof *copy);
        rc = bd_options_load_args(&job->options, &n_left, copy, err);
    }
    bd_free(copy);
    return rc;
}

static bd_status init(wk_job *job, bd_err *err)
{
    size_t n = 0;
    const bd_opt *table = wk_job_all_options(&n);
    memset(job, 0, sizeof *job);
    return bd_options_init(&job->options, table, n, job, err);
}

bd_status wk_job_load(wk_job *job, int argc, char **argv, bool *help_wanted, bd_err *err)
{
    bd_status rc = init(job, err);
    *help_wanted = has_help(argc, argv);
    if (rc != BD_OK || *help_wanted) {
        return rc;
    }
    rc = load_all(job, argc, argv, err);
    if (rc == BD_OK) {
        rc = bd_options_check(&job->options, err);
    }
    return rc == BD_OK ? resolve(job, err) : rc;
}

bd_status wk_job_load_file(wk_job *job, const char *path, bd_err *err)
{
    bd_status rc = init(job, err);
    if (rc == BD_OK && path != NULL) {
        rc = bd_options_load_yaml(&job->options, path, err);
    }
    return rc == BD_OK ? resolve(job, err) : rc;
}

int64_t wk_job_ring_timeout_ms(const wk_job *job)
{
    int64_t least = job->servers > 0 ? job->ps_wait_ms + RING_MARGIN_MS : 0;
    return job->ring_timeout_ms > least ? job->ring_timeout_ms : least;
}

void wk_job_deinit(wk_job *job)
{
    bd_options_deinit(&job->options);
}
