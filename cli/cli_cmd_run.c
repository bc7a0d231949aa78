/* `braid run` and `braid predict`: a job on this host, from its file to its result. */
#include "base/cgroup.h"
#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_cmd.h"
#include "cli/cli_datagen.h"
#include "cli/cli_offline.h"
#include "cli/cli_rundir.h"
#include "cli/cli_scratch.h"

#include <uv.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_flags {
    int64_t workers, servers, threads, port, max_restarts;
    int64_t ready_timeout_ms;
    const char *resume, *run_dir, *ps_bin, *worker_bin, *store;
    const char *format; /* run; NULL: predict */
    bool dry_run, verbose;
    const char *input, *output; /* predict */
} run_flags;

#define AT(field) offsetof(run_flags, field)

/* What both commands have. clang-format would put each field on a line of its own. */
/* clang-format off */
#define COMMON_ROWS                                                                             \
    {"servers", BD_OPT_I64, AT(servers), "-1", -1, 1024, NULL,                                  \
     "Parameter servers; -1: what the job says, or what the resumed run had."},                 \
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,                                        \
     "Folder of logs, data and checkpoints; empty: the job's run_dir, else a fresh one under "  \
     "runs/<name>."},                                                                           \
    {"threads", BD_OPT_I64, AT(threads), "0", 0, 1024, NULL,                                    \
     "Threads of each worker's compute; 0: this host's cores divided by the workers."},         \
    {"port", BD_OPT_I64, AT(port), "0", 0, 65000, NULL,                                         \
     "Server i listens on port + i of the loopback; 0: free ports."},                           \
    {"store", BD_OPT_STR, AT(store), "", 0, 0, NULL,                                            \
     "Where the cluster keeps its state: etcd://HOST:PORT[,HOST:PORT...][/PREFIX]; empty: in "  \
     "server 0."},                                                                              \
    {"ready_timeout", BD_OPT_DURATION_MS, AT(ready_timeout_ms), "30s", 100, 3600000, NULL,      \
     "How long a server may take to come up."},                                                 \
    {"max_restarts", BD_OPT_I64, AT(max_restarts), "20", 0, 1000000, NULL,                      \
     "How often servers that die are started again (on_server_exit: restart)."},                \
    {"verbose", BD_OPT_BOOL, AT(verbose), "false", 0, 0, NULL,                                  \
     "Log lines of level info and debug on the terminal too; the log files hold them anyway."}, \
    {"ps_bin", BD_OPT_STR, AT(ps_bin), "", 0, 0, NULL,                                          \
     "Server program; empty: braid-ps beside this one."},                                       \
    {"worker_bin", BD_OPT_STR, AT(worker_bin), "", 0, 0, NULL,                                  \
     "Worker program; empty: braid-worker beside this one."}
/* clang-format on */

static const bd_opt run_rows[] = {
    {"workers", BD_OPT_I64, AT(workers), "0", 0, 1024, NULL, "Workers; 0: what the job says."},
    {"resume", BD_OPT_STR, AT(resume), "none", 0, 0, NULL,
     "none; auto: go on in the latest run from its newest checkpoint, if there is one; or a "
     "checkpoint's name."},
    {"dry_run", BD_OPT_BOOL, AT(dry_run), "false", 0, 0, NULL,
     "Checks the job, reads the data, runs one batch without servers, and ends."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json",
     "How the result is printed; also -o. table: a line RESULT {...}; json: the object alone."},
    COMMON_ROWS,
};

static const bd_opt predict_rows[] = {
    {"input", BD_OPT_STR, AT(input), NULL, 0, 0, NULL,
     "File to score, in the format of the job's data."},
    {"output", BD_OPT_STR, AT(output), "-", 0, 0, NULL,
     "File of one probability a line; -: stdout."},
    {"resume", BD_OPT_STR, AT(resume), "auto", 0, 0, NULL,
     "The latest run's newest checkpoint (auto), or a checkpoint's name."},
    COMMON_ROWS,
};

/* Everything one command builds up; all owned. */
typedef struct plan {
    run_flags flags;
    bool predict;
    const char *job_path; /* borrowed */
    cli_args sets, extra;
    char *guard, *ps_bin, *worker_bin;
    cli_job job;
    cli_rundir dir;
    char *train_path, *test_path; /* of generated data, NULL: the job's own */
    char *scratch;                /* predict: the servers' folders, gone afterwards */
    const cli_io *io;
} plan;

static void plan_deinit(plan *p)
{
    bd_err err = BD_ERR_INIT;
    if (cli_scratch_remove(p->scratch, &err) != BD_OK) {
        (void)fprintf(p->io->err, "[braid] warning: %s\n", bd_err_text(&err));
    }
    cli_args_deinit(&p->sets);
    cli_args_deinit(&p->extra);
    bd_free(p->guard);
    bd_free(p->ps_bin);
    bd_free(p->worker_bin);
    cli_job_deinit(&p->job);
    cli_rundir_deinit(&p->dir);
    bd_free(p->train_path);
    bd_free(p->test_path);
}

/* ---- programs ---- */
static bd_status find_worker_program(plan *p, bd_err *err)
{
    char own[PATH_MAX];
    size_t n = sizeof own;
    if (uv_exepath(own, &n) != 0 || strchr(own, '/') == NULL) {
        return bd_err_set(err, BD_E_IO, "cannot tell where this program is");
    }
    p->guard = bd_strdup(own);
    if (p->guard == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "start");
    }
    return cli_find_program("braid-worker", p->flags.worker_bin, &p->worker_bin, err);
}

static bd_status find_server_program(plan *p, bd_err *err)
{
    if (p->flags.dry_run || cli_job_i64(&p->job, "servers", 1) == 0) {
        return BD_OK;
    }
    return cli_find_program("braid-ps", p->flags.ps_bin, &p->ps_bin, err);
}

/* ---- generated data ---- */
static void on_progress(void *user, int64_t done, int64_t all)
{
    const plan *p = user;
    (void)fprintf(p->io->err, "[datagen] %" PRId64 " of %" PRId64 " rows\n", done, all);
}

/* The job's own paths, or data/gen-<fingerprint>/. */
static bd_status choose_data_paths(plan *p, cli_datagen_options *opt, bd_err *err)
{
    const char *train = cli_job_str(&p->job, "data/train", "");
    const char *test = cli_job_str(&p->job, "data/test", "");
    uint64_t print = cli_datagen_fingerprint(opt);
    p->train_path =
        train[0] != '\0' ? bd_strdup(train) : bd_strfmt("data/gen-%016" PRIx64 "/train.tsv", print);
    p->test_path =
        test[0] != '\0' ? bd_strdup(test) : bd_strfmt("data/gen-%016" PRIx64 "/test.tsv", print);
    if (p->train_path == NULL || p->test_path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "generated data");
    }
    opt->train_path = p->train_path;
    opt->test_path = p->test_path;
    return BD_OK;
}

static bd_status make_parent(const char *path, bd_err *err)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path) {
        return BD_OK;
    }
    char *parent = bd_strfmt("%.*s", (int)(slash - path), path);
    bd_status rc =
        parent == NULL ? bd_err_set(err, BD_E_NOMEM, "generated data") : cli_mkdirs(parent, err);
    bd_free(parent);
    return rc;
}

/* True when the files are there and are what these options give. A file of somebody else is not
 * overwritten. */
static bd_status find_generated(const cli_datagen_options *opt, bool *found, bd_err *err)
{
    cli_datagen_result r;
    bd_status rc = cli_datagen_meta(opt->train_path, &r, NULL);
    bool there = access(opt->train_path, F_OK) == 0;
    *found = rc == BD_OK && there && r.fingerprint == cli_datagen_fingerprint(opt) &&
             (opt->test_rows == 0 || access(opt->test_path, F_OK) == 0);
    if (there && rc != BD_OK) {
        return bd_err_set(err, BD_E_USAGE,
                          "%s: exists and was not generated here (no %s.meta.json): remove it, or "
                          "set data.generate.rows to 0",
                          opt->train_path, opt->train_path);
    }
    return BD_OK;
}

static bd_status generate_data(plan *p, bd_err *err)
{
    cli_datagen_options opt = {.spec = cli_job_gen_spec(&p->job),
                               .rows = cli_job_i64(&p->job, "data/generate/rows", 0),
                               .test_rows = cli_job_i64(&p->job, "data/generate/test_rows", 0),
                               .threads = bd_cpus(),
                               .on_progress = on_progress,
                               .user = p};
    cli_datagen_result r;
    bool found = false;
    if (opt.rows == 0) {
        return BD_OK;
    }
    bd_status rc = choose_data_paths(p, &opt, err);
    if (rc == BD_OK) {
        rc = find_generated(&opt, &found, err);
    }
    if (rc == BD_OK && !found) {
        rc = make_parent(p->train_path, err);
        rc = rc == BD_OK ? make_parent(p->test_path, err) : rc;
        rc = rc == BD_OK ? cli_datagen(&opt, &r, err) : rc;
    }
    if (rc == BD_OK) {
        cli_args_add(&p->sets, "data.train=%s", p->train_path);
        if (opt.test_rows > 0) {
            cli_args_add(&p->sets, "data.test=%s", p->test_path);
        }
    }
    return rc;
}

/* ---- the run's folder ---- */
static bool is_resume(const plan *p)
{
    return strcmp(p->flags.resume, "none") != 0;
}

/* The job's run_dir when its author chose one: the worker resolves an empty one to runs/<name>. */
static const char *chosen_run_dir(const plan *p, const char *parent)
{
    const char *of_job = cli_job_str(&p->job, "run_dir", "");
    if (p->flags.run_dir[0] != '\0') {
        return p->flags.run_dir;
    }
    return of_job[0] != '\0' && strcmp(of_job, parent) != 0 ? of_job : NULL;
}

static bd_status save_config(const plan *p, bd_err *err)
{
    bd_status rc = BD_OK;
    char *path = bd_strfmt("%s/config.json", p->dir.path);
    FILE *f = path == NULL ? NULL : fopen(path, "we");
    if (f == NULL || fputs(p->job.text, f) < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s/config.json", p->dir.path);
    }
    if (f != NULL && fclose(f) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
    }
    bd_free(path);
    return rc;
}

static bd_status open_run_dir(plan *p, bd_err *err)
{
    char *parent = bd_strfmt("runs/%s", cli_job_str(&p->job, "name", "job"));
    char *dry = parent == NULL ? NULL : bd_strfmt("%s/dry-run", parent);
    if (dry == NULL) {
        bd_free(parent);
        return bd_err_set(err, BD_E_NOMEM, "run folder");
    }
    cli_rundir_request req = {.parent = parent,
                              .exact = chosen_run_dir(p, parent),
                              .resume = is_resume(p),
                              .must_exist = p->predict ||
                                            (is_resume(p) && strcmp(p->flags.resume, "auto") != 0)};
    if (p->flags.dry_run) {
        req = (cli_rundir_request){.parent = parent, .exact = dry, .resume = true};
    }
    bd_status rc = cli_rundir_open(&p->dir, &req, err);
    if (rc == BD_OK && !p->predict) { /* which leaves the run as it is */
        rc = save_config(p, err);
    }
    bd_free(parent);
    bd_free(dry);
    return rc;
}

/* A run goes on with as many servers as it has folders, or as the user says: a checkpoint is
 * restored onto any number of them. Only rows that workers hold themselves (no servers) stay there.
 */
static bd_status settle_servers(const plan *p, int64_t *n_servers, bd_err *err)
{
    *n_servers = cli_job_i64(&p->job, "servers", 1);
    if (p->dir.n_servers == 0 || p->flags.dry_run) {
        return BD_OK;
    }
    if (p->flags.servers == 0) {
        return bd_err_set(err, BD_E_USAGE, "--servers 0: the rows of %s are on %d servers",
                          p->dir.path, p->dir.n_servers);
    }
    *n_servers = p->flags.servers > 0 ? p->flags.servers : p->dir.n_servers;
    return BD_OK;
}

static void worker_extras(plan *p)
{
    const run_flags *f = &p->flags;
    if (f->dry_run) {
        cli_args_add(&p->extra, "--dry-run");
        return;
    }
    if (p->predict) {
        cli_args_add(&p->extra, "--predict");
        cli_args_add(&p->extra, "%s", f->input);
        cli_args_add(&p->extra, "--output");
        cli_args_add(&p->extra, "%s", f->output);
    }
    if (is_resume(p)) {
        cli_args_add(&p->extra, "--resume");
        cli_args_add(&p->extra, "%s", f->resume);
    }
}

static int threads_of(const plan *p, int64_t workers)
{
    int64_t cores = bd_cpus();
    int64_t share = p->flags.threads > 0 ? p->flags.threads : cores / workers;
    return share < 1 ? 1 : (int)share;
}

static bd_status launch(plan *p, int *exit_code, bd_err *err)
{
    int64_t n_servers = 0, world = p->predict ? 1 : cli_job_i64(&p->job, "workers", 1);
    bd_status rc = settle_servers(p, &n_servers, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (p->predict) {
        rc = cli_scratch_make(p->dir.path, (int)n_servers, &p->scratch, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    cli_args_add(&p->sets, "servers=%" PRId64, n_servers);
    worker_extras(p);
    if (p->sets.failed || p->extra.failed) {
        return bd_err_set(err, BD_E_NOMEM, "command lines");
    }
    cli_launch_options opt = {
        .guard = p->guard,
        .ps_bin = p->ps_bin,
        .worker_bin = p->worker_bin,
        .run_dir = p->dir.path,
        .data_dir = p->scratch,
        .job_path = p->job_path,
        .sets = &p->sets,
        .extra = &p->extra,
        .n_servers = p->flags.dry_run ? 0 : (int)n_servers,
        .n_workers = p->flags.dry_run ? 1 : (int)world,
        .world = (int)world,
        .threads = threads_of(p, world),
        .store = p->flags.store,
        .port = (int)p->flags.port,
        .restart_servers =
            strcmp(cli_job_str(&p->job, "on_server_exit", "restart"), "restart") == 0,
        .max_restarts = (int)p->flags.max_restarts,
        .ready_timeout_ms = p->flags.ready_timeout_ms,
        .verbose = p->flags.verbose,
        .raw_stdout = p->predict && strcmp(p->flags.output, "-") == 0,
    };
    cli_launch_result result = {0};
    (void)fprintf(p->io->err, "[braid] %d servers, %d workers; logs in %s\n", opt.n_servers,
                  opt.n_workers, opt.run_dir);
    rc = cli_launch(&opt, p->io, &result, err);
    if (rc == BD_OK) {
        *exit_code = result.exit_code;
    }
    if (rc == BD_OK && result.exit_code == BD_EXIT_OK && result.result != NULL) {
        cli_cmd_print_result(p->io, p->flags.format, result.result);
    } else if (rc == BD_OK && result.exit_code == BD_EXIT_OK && !p->predict && !p->flags.dry_run) {
        rc = bd_err_set(err, BD_E_INTERNAL, "worker-0 ended well, but without a RESULT: see %s",
                        opt.run_dir);
    }
    bd_free(result.result);
    return rc;
}

/* Flags that stand for keys of the job. */
static bd_status add_sets(plan *p, bd_err *err)
{
    if (p->flags.workers > 0) {
        cli_args_add(&p->sets, "workers=%" PRId64, p->flags.workers);
    }
    if (p->predict) {
        cli_args_add(&p->sets, "workers=1");
    }
    if (p->flags.servers >= 0) {
        cli_args_add(&p->sets, "servers=%" PRId64, p->flags.servers);
    }
    return p->sets.failed ? bd_err_set(err, BD_E_NOMEM, "command line") : BD_OK;
}

static bd_status run_plan(plan *p, int *exit_code, bd_err *err)
{
    bd_status rc = find_worker_program(p, err);
    if (rc == BD_OK) {
        rc = add_sets(p, err);
    }
    if (rc == BD_OK) {
        rc = cli_job_load(&p->job, p->worker_bin, p->job_path, &p->sets, exit_code, err);
    }
    if (rc == BD_OK) {
        rc = find_server_program(p, err);
    }
    if (rc == BD_OK) {
        rc = generate_data(p, err);
    }
    if (rc == BD_OK) {
        rc = open_run_dir(p, err);
    }
    return rc == BD_OK ? launch(p, exit_code, err) : rc;
}

static bd_status run_table_of(bool predict, int argc, char **argv, const cli_io *io, int *exit_code,
                              bd_err *err)
{
    plan p = {.predict = predict, .io = io, .dir = {.lock_fd = -1}};
    bd_options o;
    const cli_cmd *cmd = predict ? &cli_cmd_predict : &cli_cmd_run;
    bd_status rc = bd_options_init(&o, cmd->options, cmd->n_options, &p.flags, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_args_take_sets(&p.sets, &argc, argv, err);
    if (rc == BD_OK) {
        rc = cli_cmd_parse(&o, &argc, argv, "JOB.yaml", &p.job_path, err);
    }
    if (rc == BD_OK) {
        rc = run_plan(&p, exit_code, err);
    }
    plan_deinit(&p);
    bd_options_deinit(&o);
    return rc;
}

static bd_status run_run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    return run_table_of(false, argc, argv, io, exit_code, err);
}

static bd_status run_predict(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    return run_table_of(true, argc, argv, io, exit_code, err);
}

const cli_cmd cli_cmd_run = {
    .name = "run",
    .usage = "JOB.yaml [--workers N] [--servers M] [--set key=value]... [--resume auto|NAME] ...",
    .help = "Trains a job on this host: starts servers and workers, and ends with its RESULT.",
    CLI_OPTIONS(run_rows),
    .words = "file",
    .run = run_run};

const cli_cmd cli_cmd_predict = {
    .name = "predict",
    .usage = "JOB.yaml --input FILE [--output FILE] [--resume auto|NAME] ...",
    .help = "Scores a file with a checkpoint of a job's run.",
    CLI_OPTIONS(predict_rows),
    .words = "file",
    .run = run_predict};
