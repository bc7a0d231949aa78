#include "cli/cli_launch.h"

#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_crew.h"
#include "cli/cli_proc.h"
#include "cli/cli_text.h"

#include <uv.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { N_SIGNALS = 3 };

typedef struct launch launch;

/* A seat: the process of one role and index, started once or again. */
typedef struct seat {
    launch *run;
    int idx; /* in cli_sup.procs */
    char name[24];
    char *log_path; /* owned */
    FILE *log;      /* owned */
    char *address;  /* owned: host:port once a server is ready */
    int last_pid;
    cli_tail tail;
} seat;

struct launch {
    const cli_launch_options *opt;
    const cli_io *io;
    uv_loop_t loop;
    uv_signal_t signals[N_SIGNALS];
    cli_crew *crew;     /* owned */
    const cli_sup *sup; /* the crew's */
    seat *seats;        /* owned, [sup->n_procs] */
    char *result;       /* owned */
};

/* ---- terminal ---- */
static const char *colour_of(const launch *run, const seat *s)
{
    static const char *const codes[] = {"\033[36m", "\033[32m", "\033[33m", "\033[35m", "\033[34m"};
    return run->io->colour ? codes[s->idx % 5] : "";
}

static void show(const seat *s, const char *line)
{
    const launch *run = s->run;
    (void)fprintf(run->io->err, "%s[%s]%s %s\n", colour_of(run, s), s->name,
                  run->io->colour ? "\033[0m" : "", line);
}

static void say(const launch *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const launch *run, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)fprintf(run->io->err, "[braid] %s\n", text);
}

/* A log line (base/log.h) that nobody waits for: "<time>Z INFO ..." or DEBUG. */
static bool is_chatter(const char *line)
{
    const char *level = strchr(line, ' ');
    return level != NULL && level > line && level[-1] == 'Z' &&
           (strncmp(level, " INFO ", 6) == 0 || strncmp(level, " DEBUG ", 7) == 0);
}

static bool is_worker(const seat *s)
{
    return s->run->sup->procs[s->idx].role == SUP_WORKER;
}

static bool is_rank0(const seat *s)
{
    return is_worker(s) && s->run->sup->procs[s->idx].index == 0;
}

/* ---- command lines ---- */
static bool has_store(const cli_launch_options *o)
{
    return o->store != NULL && o->store[0] != '\0';
}

static void server_args(const launch *run, const seat *s, cli_args *a)
{
    const cli_launch_options *o = run->opt;
    int i = run->sup->procs[s->idx].index;
    cli_args_add(a, "%s", o->ps_bin);
    cli_args_add(a, "--index");
    cli_args_add(a, "%d", i);
    cli_args_add(a, "--servers");
    cli_args_add(a, "%d", o->n_servers);
    cli_args_add(a, "--listen");
    if (s->address != NULL) { /* started again: where the others know it */
        cli_args_add(a, "%s", s->address);
    } else {
        cli_args_add(a, "127.0.0.1:%d", o->port == 0 ? 0 : o->port + i);
    }
    cli_args_add(a, "--data-dir");
    cli_args_add(a, "%s/ps-%d", o->data_dir != NULL ? o->data_dir : o->run_dir, i);
    cli_args_add(a, "--restore-from"); /* the parts of a checkpoint of another number of servers */
    cli_args_add(a, "%s", o->run_dir);
    cli_args_add(a, "--ready-fd");
    cli_args_add(a, "%d", CLI_PROC_READY_FD);
    if (has_store(o)) {
        cli_args_add(a, "--store");
        cli_args_add(a, "%s", o->store);
    } else if (i > 0) {
        cli_args_add(a, "--coordinator");
        cli_args_add(a, "%s", run->seats[0].address);
    }
}

static void worker_args(const launch *run, const seat *s, cli_args *a)
{
    const cli_launch_options *o = run->opt;
    cli_args_add(a, "%s", o->worker_bin);
    if (o->job_path != NULL) {
        cli_args_add(a, "%s", o->job_path);
    }
    for (size_t i = 0; i < o->sets->n; i++) {
        cli_args_add(a, "--set");
        cli_args_add(a, "%s", o->sets->items[i]);
    }
    cli_args_add(a, "--rank");
    cli_args_add(a, "%d", run->sup->procs[s->idx].index);
    cli_args_add(a, "--world");
    cli_args_add(a, "%d", o->world);
    cli_args_add(a, "--threads");
    cli_args_add(a, "%d", o->threads);
    cli_args_add(a, "--run-dir");
    cli_args_add(a, "%s", o->run_dir);
    if (o->n_servers > 0) {
        cli_args_add(a, has_store(o) ? "--store" : "--coordinator");
        cli_args_add(a, "%s", has_store(o) ? o->store : run->seats[0].address);
    }
    for (size_t i = 0; i < o->extra->n; i++) {
        cli_args_add(a, "%s", o->extra->items[i]);
    }
}

/* ---- events of the crew ---- */
static void on_start(void *user, int proc, cli_args *argv, char *const **env)
{
    launch *run = user;
    const seat *s = &run->seats[proc];
    (void)env;
    if (is_worker(s)) {
        worker_args(run, s, argv);
    } else {
        server_args(run, s, argv);
    }
}

static void on_started(void *user, int proc, int pid)
{
    seat *s = &((launch *)user)->seats[proc];
    s->last_pid = pid;
    (void)fprintf(s->log, "[braid] started as process %d\n", pid);
}

static void on_line(void *user, int proc, const char *line, size_t n_bytes, bool from_stderr)
{
    launch *run = user;
    seat *s = &run->seats[proc];
    (void)fprintf(s->log, "%s\n", line);
    if (is_rank0(s) && !from_stderr && strncmp(line, "RESULT ", 7) == 0) {
        bd_free(run->result);
        run->result = bd_strdup(line + 7);
        return;
    }
    if (is_rank0(s) && !from_stderr && run->opt->raw_stdout) {
        (void)fprintf(run->io->out, "%s\n", line);
        return;
    }
    cli_tail_add(&s->tail, line, n_bytes);
    if (run->opt->verbose || !is_chatter(line)) {
        show(s, line);
    }
}

/* For `braid ps status --run-dir`; nothing in the run depends on it. */
static void publish_coordinator(const launch *run)
{
    char *path = bd_strfmt("%s/coordinator", run->opt->run_dir);
    FILE *f = path == NULL ? NULL : fopen(path, "we");
    if (f == NULL || fprintf(f, "%s\n", run->seats[0].address) < 0) {
        say(run, "warning: cannot write %s/coordinator", run->opt->run_dir);
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    bd_free(path);
}

static bool on_ready(void *user, int proc, const char *text)
{
    launch *run = user;
    seat *s = &run->seats[proc];
    if (s->address == NULL) {
        s->address = bd_strdup(text);
        if (s->idx == 0 && s->address != NULL) {
            publish_coordinator(run);
        }
    }
    return s->address != NULL;
}

static void on_gone(void *user, int proc)
{
    (void)fflush(((launch *)user)->seats[proc].log);
}

static void on_restarting(void *user, int proc, int64_t delay_ms)
{
    const launch *run = user;
    say(run, "%s ended unasked; starting it again in %" PRId64 " ms (restart %d of at most %d)",
        run->seats[proc].name, delay_ms, run->sup->n_restarts, run->opt->max_restarts);
}

static void on_done(void *user)
{
    launch *run = user;
    for (int i = 0; i < N_SIGNALS; i++) {
        uv_close((uv_handle_t *)&run->signals[i], NULL);
    }
}

static void on_signal(uv_signal_t *h, int signo)
{
    launch *run = h->data;
    bool again = run->sup->user_signo != 0;
    say(run, again ? "signal %d again: killing everything" : "signal %d: stopping", signo);
    cli_crew_stop(run->crew, signo);
}

/* ---- the end ---- */
static const char *exit_text(int code)
{
    switch (code) {
    case BD_EXIT_OK:
        return "nobody asked it to end";
    case BD_EXIT_USAGE:
        return "wrong usage";
    case BD_EXIT_DATA:
        return "bad input data";
    case BD_EXIT_PEER:
        return "a peer was lost or never came";
    case BD_EXIT_NUMERIC:
        return "not a finite number";
    default:
        return "failure";
    }
}

static void describe_end(const launch *run, char *text, size_t n_text)
{
    const sup_root *root = &run->sup->root;
    if (root->cause == SUP_CAUSE_READY_TIMEOUT) {
        (void)snprintf(text, n_text, "did not become ready within %.1f s",
                       (double)run->opt->ready_timeout_ms / 1000.0);
    } else if (root->cause == SUP_CAUSE_SPAWN) {
        (void)snprintf(text, n_text, "%s",
                       bd_err_text(cli_crew_spawn_error(run->crew, root->proc)));
    } else if (root->cause == SUP_CAUSE_STOP_TIMEOUT) {
        (void)snprintf(text, n_text, "%s", sup_cause_text(root->cause));
    } else if (root->signo != 0) {
        (void)snprintf(text, n_text, "ended by signal %d (%s)", root->signo,
                       sigdescr_np(root->signo));
    } else {
        (void)snprintf(text, n_text, "exit code %d (%s)", root->exit_code,
                       exit_text(root->exit_code));
    }
}

/* The block a user reads first, and mostly alone: what failed, where, and why. */
static void explain(const launch *run)
{
    const sup_root *root = &run->sup->root;
    const seat *s = &run->seats[root->proc];
    const sup_proc *p = &run->sup->procs[root->proc];
    const char *said = cli_tail_error(&s->tail);
    char how[640], host[256] = "?";
    size_t n_host = sizeof host;
    FILE *f = run->io->err;
    (void)uv_os_gethostname(host, &n_host);
    describe_end(run, how, sizeof how);
    (void)fprintf(f, "error: %s %s%s%s\n", s->name, how, said != NULL ? ": " : "",
                  said != NULL ? said : "");
    (void)fprintf(f, "  role     %s, %s %d, process %d on %s\n",
                  p->role == SUP_WORKER ? "worker" : "server",
                  p->role == SUP_WORKER ? "rank" : "index", p->index, s->last_pid, host);
    if (root->cause == SUP_CAUSE_RESTARTS) {
        (void)fprintf(f, "  restarts %d, %s\n", run->sup->n_restarts,
                      sup_cause_text(SUP_CAUSE_RESTARTS));
    }
    (void)fprintf(f, "  log      %s\n", s->log_path);
    for (size_t i = 0; i < cli_tail_count(&s->tail); i++) {
        (void)fprintf(f, "  %s %s\n", i == 0 ? "last    " : "        ", cli_tail_at(&s->tail, i));
    }
}

/* ---- set-up ---- */
static bd_status seat_init(launch *run, int i, bd_err *err)
{
    seat *s = &run->seats[i];
    const sup_proc *p = &run->sup->procs[i];
    s->run = run;
    s->idx = i;
    (void)snprintf(s->name, sizeof s->name, "%s-%d", p->role == SUP_WORKER ? "worker" : "ps",
                   p->index);
    s->log_path = bd_strfmt("%s/%s.log", run->opt->run_dir, s->name);
    if (s->log_path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "log of %s", s->name);
    }
    s->log = fopen(s->log_path, "ae");
    if (s->log == NULL) {
        return bd_err_errno(err, BD_E_IO, errno, "open %s", s->log_path);
    }
    (void)setvbuf(s->log, NULL, _IOLBF, BUFSIZ); /* somebody may be reading it */
    return BD_OK;
}

static bd_status seats_init(launch *run, bd_err *err)
{
    bd_status rc = BD_OK;
    run->seats = bd_calloc((size_t)run->sup->n_procs, sizeof *run->seats);
    if (run->seats == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "launch");
    }
    for (int i = 0; rc == BD_OK && i < run->sup->n_procs; i++) {
        rc = seat_init(run, i, err);
    }
    return rc;
}

static void seats_deinit(launch *run)
{
    for (int i = 0; run->seats != NULL && i < run->sup->n_procs; i++) {
        seat *s = &run->seats[i];
        if (s->log != NULL) {
            (void)fclose(s->log);
        }
        bd_free(s->log_path);
        bd_free(s->address);
    }
    bd_free(run->seats);
}

static sup_config config_of(const cli_launch_options *o)
{
    return (sup_config){.n_servers = o->n_servers,
                        .n_workers = o->n_workers,
                        .restart_servers = o->restart_servers,
                        .max_restarts = o->max_restarts,
                        .max_unready_restarts = 4,
                        .ready_timeout_ms = o->ready_timeout_ms,
                        .backoff_min_ms = 200,
                        .backoff_max_ms = 5000,
                        .stop_grace_ms = 30000,
                        .fail_grace_ms = 3000};
}

static void run_loop(launch *run)
{
    static const int signos[N_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < N_SIGNALS; i++) {
        (void)uv_signal_init(&run->loop, &run->signals[i]);
        run->signals[i].data = run;
        (void)uv_signal_start(&run->signals[i], on_signal, signos[i]);
    }
    cli_crew_start(run->crew);
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
}

bd_status cli_launch(const cli_launch_options *opt, const cli_io *io, cli_launch_result *out,
                     bd_err *err)
{
    sup_config cfg = config_of(opt);
    launch *run = bd_calloc(1, sizeof *run);
    if (run == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "launch");
    }
    run->opt = opt;
    run->io = io;
    const cli_crew_events events = {.on_start = on_start,
                                    .on_started = on_started,
                                    .on_line = on_line,
                                    .on_ready = on_ready,
                                    .on_gone = on_gone,
                                    .on_restarting = on_restarting,
                                    .on_done = on_done,
                                    .user = run};
    bd_status rc = cli_crew_new(&run->loop, &cfg, opt->guard, &events, &run->crew, err);
    if (rc == BD_OK) {
        run->sup = cli_crew_sup(run->crew);
        rc = seats_init(run, err);
    }
    if (rc == BD_OK && uv_loop_init(&run->loop) != 0) {
        rc = bd_err_set(err, BD_E_IO, "launch: no event loop");
    }
    if (rc != BD_OK) {
        goto out;
    }
    run_loop(run);
    (void)uv_loop_close(&run->loop);
    if (run->sup->root.cause != SUP_CAUSE_NONE) {
        explain(run);
    }
    *out = (cli_launch_result){.exit_code = sup_exit_code(run->sup), .result = run->result};
    run->result = NULL;
out:
    seats_deinit(run);
    cli_crew_free(run->crew);
    bd_free(run->result);
    bd_free(run);
    return rc;
}
