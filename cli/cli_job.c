#include "cli/cli_job.h"

#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_proc.h"
#include "cli/cli_text.h"

#include <uv.h>

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The worker only reads a file and prints. */
#define PRINT_TIMEOUT_MS 9000

/* ---- argv ---- */
static bool args_room(cli_args *a)
{
    void *items = a->items;
    if (!bd_grow(&items, &a->cap, a->n + 2, sizeof *a->items)) {
        a->failed = true;
    }
    a->items = items;
    return !a->failed;
}

void cli_args_add(cli_args *a, const char *fmt, ...)
{
    char text[8192];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *copy = n < 0 || (size_t)n >= sizeof text || !args_room(a) ? NULL : bd_strdup(text);
    if (copy == NULL) {
        a->failed = true;
        return;
    }
    a->items[a->n++] = copy;
    a->items[a->n] = NULL;
}

void cli_args_deinit(cli_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        bd_free(a->items[i]);
    }
    bd_free(a->items);
    *a = (cli_args){0};
}

bd_status cli_args_take_sets(cli_args *sets, int *argc, char **argv, bd_err *err)
{
    int kept = 0, n = *argc;
    for (int i = 0; i < n; i++) {
        const char *pair = NULL;
        if (strncmp(argv[i], "--set=", 6) == 0) {
            pair = argv[i] + 6;
        } else if (strcmp(argv[i], "--set") == 0) {
            pair = i + 1 < n ? argv[++i] : "";
        } else {
            argv[kept++] = argv[i];
            continue;
        }
        if (strchr(pair, '=') == NULL || pair[0] == '=') {
            return bd_err_set(err, BD_E_USAGE, "--set needs key=value, got \"%.200s\"", pair);
        }
        cli_args_add(sets, "%s", pair);
    }
    argv[kept] = NULL;
    *argc = kept;
    return sets->failed ? bd_err_set(err, BD_E_NOMEM, "--set") : BD_OK;
}

/* ---- the worker's answer ---- */
typedef struct answer {
    char *text; /* owned */
    size_t n_bytes, cap_bytes;
    cli_tail errors;
    int exit_code, signo;
    bool ended, no_memory;
    cli_proc *proc;
    uv_timer_t timer;
    bool timed_out;
} answer;

static void on_line(void *user, const char *line, size_t n_bytes, bool from_stderr)
{
    answer *a = user;
    if (from_stderr) {
        cli_tail_add(&a->errors, line, n_bytes);
        return;
    }
    void *text = a->text;
    if (!bd_grow(&text, &a->cap_bytes, a->n_bytes + n_bytes + 2, 1)) {
        a->no_memory = true;
        return;
    }
    a->text = text;
    memcpy(a->text + a->n_bytes, line, n_bytes);
    a->n_bytes += n_bytes;
    a->text[a->n_bytes++] = '\n';
    a->text[a->n_bytes] = '\0';
}

static void on_exit(void *user, int exit_code, int signo)
{
    answer *a = user;
    a->exit_code = exit_code;
    a->signo = signo;
    a->ended = true;
    uv_close((uv_handle_t *)&a->timer, NULL);
}

static void on_timeout(uv_timer_t *t)
{
    answer *a = t->data;
    a->timed_out = true;
    cli_proc_kill(a->proc, SIGKILL);
}

static bd_status ask(answer *a, char *const *argv, bd_err *err)
{
    uv_loop_t loop;
    if (uv_loop_init(&loop) != 0) {
        return bd_err_set(err, BD_E_IO, "start %s: no event loop", argv[0]);
    }
    cli_proc_spec spec = {.argv = argv};
    cli_proc_events events = {.on_line = on_line, .on_exit = on_exit, .user = a};
    (void)uv_timer_init(&loop, &a->timer);
    a->timer.data = a;
    (void)uv_timer_start(&a->timer, on_timeout, PRINT_TIMEOUT_MS, 0);
    bd_status rc = cli_proc_start(&loop, &spec, &events, &a->proc, err);
    if (rc != BD_OK) {
        uv_close((uv_handle_t *)&a->timer, NULL);
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return rc;
}

/* What the worker says, in the words it used. */
static bd_status judge(const answer *a, const char *worker_bin, int *exit_code, bd_err *err)
{
    const char *said = cli_tail_error(&a->errors);
    size_t n = cli_tail_count(&a->errors);
    if (a->timed_out) {
        *exit_code = BD_EXIT_PEER;
        return bd_err_set(err, BD_E_TIMEOUT, "%s --print-config: no answer after %d s", worker_bin,
                          PRINT_TIMEOUT_MS / 1000);
    }
    if (a->signo != 0) {
        *exit_code = 128 + a->signo;
        return bd_err_set(err, BD_E_INTERNAL, "%s --print-config: ended by signal %d", worker_bin,
                          a->signo);
    }
    *exit_code = a->exit_code;
    if (a->exit_code != 0) {
        return bd_err_set(err, BD_E_USAGE, "%s",
                          said != NULL ? said
                          : n > 0      ? cli_tail_at(&a->errors, n - 1)
                                       : "the worker refused the job without a word");
    }
    return BD_OK;
}

bd_status cli_job_load(cli_job *job, const char *worker_bin, const char *path, const cli_args *sets,
                       int *exit_code, bd_err *err)
{
    *job = (cli_job){0};
    *exit_code = BD_EXIT_FAILURE;
    cli_args args = {0};
    bd_status rc;
    answer *a = bd_calloc(1, sizeof *a);
    cli_args_add(&args, "%s", worker_bin);
    if (path != NULL) {
        cli_args_add(&args, "%s", path);
    }
    for (size_t i = 0; i < sets->n; i++) {
        cli_args_add(&args, "--set");
        cli_args_add(&args, "%s", sets->items[i]);
    }
    cli_args_add(&args, "--print-config");
    cli_args_add(&args, "json");
    if (a == NULL || args.failed) {
        rc = bd_err_set(err, BD_E_NOMEM, "read the job");
        goto out;
    }
    rc = ask(a, args.items, err);
    if (rc == BD_OK) {
        rc = judge(a, worker_bin, exit_code, err);
    }
    if (rc == BD_OK && (a->no_memory || a->text == NULL)) {
        rc = bd_err_set(err, BD_E_INTERNAL, "%s --print-config: no output", worker_bin);
    }
    if (rc == BD_OK) {
        rc = bd_json_parse(a->text, a->n_bytes, "--print-config", &job->doc, err);
    }
    if (rc == BD_OK) {
        job->text = a->text;
        a->text = NULL;
    }
out:
    if (a != NULL) {
        bd_free(a->text);
    }
    bd_free(a);
    cli_args_deinit(&args);
    return rc;
}

void cli_job_deinit(cli_job *job)
{
    bd_json_free(job->doc);
    bd_free(job->text);
    *job = (cli_job){0};
}

int64_t cli_job_i64(const cli_job *job, const char *path, int64_t fallback)
{
    int64_t v = fallback;
    (void)bd_json_get_i64(job->doc, path, &v);
    return v;
}

double cli_job_f64(const cli_job *job, const char *path, double fallback)
{
    double v = fallback;
    (void)bd_json_get_f64(job->doc, path, &v);
    return v;
}

const char *cli_job_str(const cli_job *job, const char *path, const char *fallback)
{
    const char *v = fallback;
    (void)bd_json_get_str(job->doc, path, &v);
    return v;
}

cli_gen_spec cli_job_gen_spec(const cli_job *job)
{
    return (cli_gen_spec){
        .seed = (uint64_t)cli_job_i64(job, "data/generate/seed", 1),
        .cardinality = cli_job_i64(job, "data/generate/cardinality", 100),
        .zipf = cli_job_f64(job, "data/generate/zipf", 1.05),
        .fields = cli_job_i64(job, "data/generate/fields", 4),
        .rank = cli_job_i64(job, "data/generate/rank", 2),
        .linear = cli_job_f64(job, "data/generate/linear", 0.8),
        .auc = cli_job_f64(job, "data/generate/auc", 0.82),
        .ctr = cli_job_f64(job, "data/generate/ctr", 0.25),
    };
}
