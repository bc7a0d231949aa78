#include "cli/cli_agent.h"

#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_crew.h"
#include "cli/cli_rundir.h"
#include "cli/cli_text.h"

#include <uv.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static const int signos[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { N_SIGNALS = sizeof signos / sizeof signos[0], N_ENDING = 4 };

/* One rank of this host. */
typedef struct seat {
    FILE *files[2]; /* owned; stdout, stderr; NULL: not kept */
    char *paths[2]; /* owned */
    cli_args env;   /* of the last start */
    int last_pid;
    cli_tail tail;
} seat;

/* What the rendezvous thread tells the loop, one at a time. */
typedef enum news { NEWS_NONE, NEWS_PLAN, NEWS_END, NEWS_GONE } news;

typedef struct agent {
    const cli_agent_options *opt;
    const cli_io *io;
    uv_loop_t loop;
    uv_signal_t signals[N_SIGNALS];
    uv_async_t wake;
    cli_rdzv *rdzv;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    news latest;   /* under lock */
    bool taken;    /* under lock: the loop has dealt with it */
    cli_plan plan; /* the thread's, while the loop deals with PLAN .. END */
    cli_end end;   /* as plan */
    bd_status rc;  /* of the rendezvous; as plan */
    bd_err err;
    cli_crew *crew; /* owned; NULL: no ranks now */
    bool crew_done, has_end;
    bool posting;
    uv_work_t post;
    int post_code; /* what is being posted: 0: done */
    bool post_retry;
    char post_text[CLI_RDZV_TEXT_BYTES];
    seat *seats; /* owned, [n_ranks] */
    int n_ranks;
    _Atomic int signo; /* the user's first */
    int exit_code;
} agent;

static void say(const agent *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const agent *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)fprintf(a->io->err, "[braid] %s\n", text);
}

/* ---- the ranks' environment ---- */
static int world_of(const agent *a)
{
    return a->opt->world > 0 ? a->opt->world : a->plan.world;
}

static int rank_of(const agent *a, int local)
{
    return local + (a->opt->world > 0 ? a->opt->first_rank : a->plan.nodes[a->plan.me].first_rank);
}

/* "NAME=" of an entry stands in env already. */
static bool has_name(const cli_args *env, const char *entry)
{
    size_t n = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < env->n; i++) {
        if (strncmp(env->items[i], entry, n) == 0) {
            return true;
        }
    }
    return false;
}

static void fill_env(const agent *a, int local, cli_args *env)
{
    const cli_agent_options *o = a->opt;
    const cli_node *first = &a->plan.nodes[0];
    int rank = rank_of(a, local), world = world_of(a);
    bool fixed = o->world > 0;
    cli_args_add(env, "RANK=%d", rank);
    cli_args_add(env, "LOCAL_RANK=%d", local);
    cli_args_add(env, "WORLD_SIZE=%d", world);
    cli_args_add(env, "LOCAL_WORLD_SIZE=%d", a->n_ranks);
    cli_args_add(env, "GROUP_RANK=%d", fixed ? o->group_rank : a->plan.me);
    cli_args_add(env, "GROUP_WORLD_SIZE=%d", fixed ? o->n_groups : a->plan.n_nodes);
    cli_args_add(env, "ROLE_RANK=%d", rank);
    cli_args_add(env, "ROLE_WORLD_SIZE=%d", world);
    cli_args_add(env, "ROLE_NAME=%s", o->role);
    cli_args_add(env, "MASTER_ADDR=%s", o->address0[0] != '\0' ? o->address0 : first->address);
    cli_args_add(env, "MASTER_PORT=%d", o->port0 > 0 ? o->port0 : first->port);
    cli_args_add(env, "TORCHELASTIC_RUN_ID=%s", o->rdzv.id);
    cli_args_add(env, "TORCHELASTIC_RESTART_COUNT=%d", a->plan.n_restarts);
    cli_args_add(env, "TORCHELASTIC_MAX_RESTARTS=%d", o->rdzv.max_restarts);
    cli_args_add(env, "TORCHELASTIC_USE_AGENT_STORE=False");
    if (a->n_ranks > 1 && getenv("OMP_NUM_THREADS") == NULL) { // NOLINT(concurrency-mt-unsafe)
        cli_args_add(env, "OMP_NUM_THREADS=1"); /* as torchrun: else each takes all cores */
    }
    for (size_t i = 0; i < o->env->n; i++) {
        cli_args_add(env, "%s", o->env->items[i]);
    }
    for (char **e = environ; *e != NULL; e++) {
        if (!has_name(env, *e)) {
            cli_args_add(env, "%s", *e);
        }
    }
}

/* ---- files ---- */
static bd_status open_files(agent *a, int local, bd_err *err)
{
    static const char *const names[] = {"stdout", "stderr"};
    const cli_agent_options *o = a->opt;
    seat *s = &a->seats[local];
    int kept = o->redirects[local] | o->tee[local];
    char *dir = bd_strfmt("%s/%s/attempt_%d/%d", o->log_dir, o->rdzv.id, a->plan.n_restarts,
                          rank_of(a, local));
    bd_status rc = dir == NULL ? bd_err_set(err, BD_E_NOMEM, "log files") : BD_OK;
    if (rc == BD_OK && kept != 0) {
        rc = cli_mkdirs(dir, err);
    }
    for (int i = 0; rc == BD_OK && i < 2; i++) {
        if ((kept & (1 << i)) == 0) {
            continue;
        }
        s->paths[i] = bd_strfmt("%s/%s.log", dir, names[i]);
        s->files[i] = s->paths[i] == NULL ? NULL : fopen(s->paths[i], "ae");
        if (s->files[i] == NULL) {
            rc = bd_err_errno(err, BD_E_IO, errno, "open %s/%s.log", dir, names[i]);
        }
    }
    bd_free(dir);
    return rc;
}

static void close_files(agent *a)
{
    for (int i = 0; i < a->n_ranks; i++) {
        seat *s = &a->seats[i];
        for (int k = 0; k < 2; k++) {
            if (s->files[k] != NULL) {
                (void)fclose(s->files[k]);
            }
            bd_free(s->paths[k]);
        }
        cli_args_deinit(&s->env);
        *s = (seat){0};
    }
}

/* ---- events of the crew ---- */
static void on_start(void *user, int proc, cli_args *argv, char *const **env)
{
    agent *a = user;
    seat *s = &a->seats[proc];
    for (size_t i = 0; i < a->opt->argv->n; i++) {
        cli_args_add(argv, "%s", a->opt->argv->items[i]);
    }
    cli_args_deinit(&s->env);
    fill_env(a, proc, &s->env);
    argv->failed = argv->failed || s->env.failed;
    *env = s->env.items;
}

static void on_started(void *user, int proc, int pid)
{
    ((agent *)user)->seats[proc].last_pid = pid;
}

static void on_line(void *user, int proc, const char *line, size_t n_bytes, bool from_stderr)
{
    const agent *a = user;
    seat *s = &a->seats[proc];
    int bit = from_stderr ? CLI_STD_ERR : CLI_STD_OUT;
    cli_tail_add(&s->tail, line, n_bytes);
    if (s->files[from_stderr] != NULL) {
        (void)fprintf(s->files[from_stderr], "%s\n", line);
    }
    if ((a->opt->redirects[proc] & ~a->opt->tee[proc] & bit) != 0 || !a->opt->show[proc]) {
        return;
    }
    FILE *to = from_stderr ? a->io->err : a->io->out;
    if ((a->opt->tee[proc] & bit) != 0) {
        (void)fprintf(to, "[rank %d]: ", rank_of(a, proc));
    }
    (void)fprintf(to, "%s\n", line);
    (void)fflush(to);
}

/* ---- a round's end here ---- */
static int code_of(int exit_code, int signo)
{
    return signo != 0 ? 128 + signo : exit_code;
}

/* The first failure of this host in a line, for all hosts. */
static void describe(const agent *a, const sup_root *root, char *text, size_t n_text)
{
    const seat *s = &a->seats[root->proc];
    const char *said = cli_tail_error(&s->tail);
    size_t n_lines = cli_tail_count(&s->tail);
    char how[256];
    if (root->cause == SUP_CAUSE_SPAWN) {
        (void)snprintf(how, sizeof how, "%s",
                       bd_err_text(cli_crew_spawn_error(a->crew, root->proc)));
    } else if (root->signo != 0) {
        (void)snprintf(how, sizeof how, "ended by signal %d (%s)", root->signo,
                       sigdescr_np(root->signo));
    } else {
        (void)snprintf(how, sizeof how, "exit code %d", root->exit_code);
    }
    said = said == NULL && n_lines > 0 ? cli_tail_at(&s->tail, n_lines - 1) : said;
    (void)snprintf(text, n_text, "rank %d (local rank %d, process %d on %s): %s%s%.200s",
                   rank_of(a, root->proc), root->proc, s->last_pid, a->opt->rdzv.host, how,
                   said != NULL ? ": " : "", said != NULL ? said : "");
}

/* What only this host knows of its own failure. */
static void explain_local(const agent *a, const sup_root *root)
{
    const seat *s = &a->seats[root->proc];
    FILE *f = a->io->err;
    for (int i = 0; i < 2; i++) {
        if (s->paths[i] != NULL) {
            (void)fprintf(f, "  log      %s\n", s->paths[i]);
        }
    }
    for (size_t i = 0; i < cli_tail_count(&s->tail); i++) {
        (void)fprintf(f, "  %s %s\n", i == 0 ? "last    " : "        ", cli_tail_at(&s->tail, i));
    }
}

static void on_post_work(uv_work_t *w)
{
    agent *a = w->data;
    bd_err ignored = BD_ERR_INIT; /* the waiting thread hears of a lost store as well */
    if (a->post_code == 0) {
        (void)!cli_rdzv_done(a->rdzv, &a->plan, &ignored);
    } else {
        (void)!cli_rdzv_post(a->rdzv, &a->plan, a->post_code, a->post_retry, a->post_text,
                             &ignored);
    }
}

static void round_over(agent *a);

static void on_post_done(uv_work_t *w, int status)
{
    agent *a = w->data;
    (void)status;
    a->posting = false;
    round_over(a);
}

/* Worth another try: not what the same command would only do again. */
static bool may_retry(const agent *a, const sup_root *root)
{
    bool same_again = root->exit_code == BD_EXIT_USAGE || root->exit_code == BD_EXIT_DATA ||
                      root->exit_code == BD_EXIT_NUMERIC;
    return root->cause != SUP_CAUSE_SPAWN && !(a->opt->is_worker && root->signo == 0 && same_again);
}

static void on_crew_done(void *user)
{
    agent *a = user;
    const cli_sup *sup = cli_crew_sup(a->crew);
    const sup_root *root = &sup->root;
    a->crew_done = true;
    if (a->has_end) { /* ended elsewhere, and we were told to stop */
        round_over(a);
        return;
    }
    a->post_code = 0;
    if (a->signo != 0) {
        a->post_code = 128 + a->signo;
        a->post_retry = true;
        (void)snprintf(a->post_text, sizeof a->post_text,
                       "the launcher on %s was ended by signal %d", a->opt->rdzv.host, a->signo);
    } else if (root->cause != SUP_CAUSE_NONE) {
        int code = code_of(root->exit_code, root->signo);
        a->post_code = code != 0 ? code : BD_EXIT_FAILURE;
        a->post_retry = may_retry(a, root);
        describe(a, root, a->post_text, sizeof a->post_text);
    }
    a->posting = true;
    a->post.data = a;
    (void)uv_queue_work(&a->loop, &a->post, on_post_work, on_post_done);
}

static bd_status start_crew(agent *a, bd_err *err)
{
    const sup_config cfg = {.n_workers = a->n_ranks,
                            .ready_timeout_ms = 1000,
                            .backoff_min_ms = 1000,
                            .backoff_max_ms = 1000,
                            .stop_grace_ms = 30000,
                            .fail_grace_ms = 5000};
    const cli_crew_events events = {.on_start = on_start,
                                    .on_started = on_started,
                                    .on_line = on_line,
                                    .on_done = on_crew_done,
                                    .user = a};
    bd_status rc = BD_OK;
    for (int i = 0; rc == BD_OK && i < a->n_ranks; i++) {
        rc = open_files(a, i, err);
    }
    if (rc == BD_OK) {
        rc = cli_crew_new(&a->loop, &cfg, a->opt->guard, &events, &a->crew, err);
    }
    if (rc == BD_OK) {
        cli_crew_start(a->crew);
    }
    return rc;
}

/* ---- the rendezvous thread ---- */
/* Tells the loop and waits until it has dealt with that. */
static void tell(agent *a, news what)
{
    (void)pthread_mutex_lock(&a->lock);
    a->latest = what;
    a->taken = false;
    (void)uv_async_send(&a->wake);
    while (!a->taken) {
        (void)pthread_cond_wait(&a->changed, &a->lock);
    }
    (void)pthread_mutex_unlock(&a->lock);
}

static void taken(agent *a)
{
    (void)pthread_mutex_lock(&a->lock);
    a->taken = true;
    a->latest = NEWS_NONE;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
}

static void *rdzv_main(void *arg)
{
    agent *a = arg;
    bool more = true;
    while (more) {
        cli_plan_deinit(&a->plan);
        a->rc = cli_rdzv_join(a->rdzv, &a->plan, &a->err);
        if (a->rc != BD_OK) {
            break;
        }
        tell(a, NEWS_PLAN);
        a->rc = cli_rdzv_wait_end(a->rdzv, &a->plan, &a->end, &a->err);
        tell(a, NEWS_END);
        more = a->rc == BD_OK && a->signo == 0 &&
               (a->end.kind == CLI_END_RETRY || a->end.kind == CLI_END_AGAIN);
    }
    if (a->rc == BD_OK) {
        cli_rdzv_leave(a->rdzv, &a->plan, a->opt->serves);
    }
    tell(a, NEWS_GONE);
    return NULL;
}

/* ---- what the loop makes of it ---- */
static void begin_round(agent *a)
{
    bd_err err = BD_ERR_INIT;
    a->crew_done = false;
    a->has_end = false;
    if (a->plan.n_nodes > 1 || a->plan.n_restarts > 0) {
        say(a, "round %" PRId64 ": %d hosts, %d ranks, here %d to %d; restarts so far: %d",
            a->plan.round, a->plan.n_nodes, world_of(a), rank_of(a, 0), rank_of(a, a->n_ranks - 1),
            a->plan.n_restarts);
    }
    if (start_crew(a, &err) != BD_OK) {
        a->crew_done = true;
        a->posting = true;
        a->post_code = BD_EXIT_FAILURE;
        a->post_retry = false;
        (void)snprintf(a->post_text, sizeof a->post_text, "%s: %s", a->opt->rdzv.host,
                       bd_err_text(&err));
        a->post.data = a;
        (void)uv_queue_work(&a->loop, &a->post, on_post_work, on_post_done);
    }
}

static void explain_end(agent *a)
{
    const sup_root *root = a->crew != NULL ? &cli_crew_sup(a->crew)->root : NULL;
    bool failed = a->end.kind == CLI_END_FINAL || a->end.kind == CLI_END_RETRY;
    if (a->rc == BD_E_CANCELLED) {
        return;
    }
    if (a->rc != BD_OK) {
        a->exit_code = BD_EXIT_PEER;
        (void)fprintf(a->io->err, "error: %s\n", bd_err_text(&a->err));
        return;
    }
    if (failed) {
        bool again = a->end.kind == CLI_END_RETRY && a->signo == 0;
        (void)fprintf(a->io->err, "%s: %s\n", again ? "warning" : "error", a->end.text);
        if (root != NULL && root->cause != SUP_CAUSE_NONE &&
            strcmp(a->end.text, a->post_text) == 0) {
            explain_local(a, root);
        }
        a->exit_code = again ? 0 : a->end.exit_code;
    }
    if (a->end.kind == CLI_END_RETRY && a->signo == 0) {
        say(a, "all ranks are started again (restart %d of at most %d)", a->end.n_restarts,
            a->opt->rdzv.max_restarts);
    } else if (a->end.kind == CLI_END_AGAIN) {
        say(a, "%s: another round", a->end.text);
    }
}

/* Both the ranks of this host are gone and the end is known: the thread may go on. */
static void round_over(agent *a)
{
    if (!a->has_end || !a->crew_done || a->posting) {
        return;
    }
    explain_end(a);
    cli_crew_free(a->crew);
    a->crew = NULL;
    close_files(a);
    a->post_text[0] = '\0';
    a->has_end = false;
    taken(a);
}

static void on_end(agent *a)
{
    a->has_end = true;
    if (!a->crew_done && a->crew != NULL && !a->posting) {
        cli_crew_stop(a->crew, SIGTERM);
    }
    round_over(a);
}

static void on_closed(uv_handle_t *h)
{
    (void)h;
}

static void finish(agent *a)
{
    if (a->rc != BD_OK && a->rc != BD_E_CANCELLED && a->exit_code == 0) {
        (void)fprintf(a->io->err, "error: %s\n", bd_err_text(&a->err));
        a->exit_code = a->rc == BD_E_EXISTS || a->rc == BD_E_USAGE ? BD_EXIT_USAGE : BD_EXIT_PEER;
    }
    for (int i = 0; i < N_SIGNALS; i++) {
        uv_close((uv_handle_t *)&a->signals[i], on_closed);
    }
    uv_close((uv_handle_t *)&a->wake, on_closed);
    taken(a);
}

static void on_wake(uv_async_t *w)
{
    agent *a = w->data;
    (void)pthread_mutex_lock(&a->lock);
    news what = a->taken ? NEWS_NONE : a->latest;
    a->latest = NEWS_NONE;
    (void)pthread_mutex_unlock(&a->lock);
    switch (what) {
    case NEWS_NONE:
        break;
    case NEWS_PLAN:
        begin_round(a);
        taken(a);
        break;
    case NEWS_END:
        on_end(a);
        break;
    case NEWS_GONE:
        finish(a);
        break;
    }
}

static void on_signal(uv_signal_t *h, int signo)
{
    agent *a = h->data;
    bool ends = false;
    for (int i = 0; i < N_ENDING; i++) {
        ends = ends || signos[i] == signo;
    }
    if (!ends) {
        if (a->crew != NULL) {
            cli_crew_forward(a->crew, signo);
        }
        return;
    }
    say(a, a->signo != 0 ? "signal %d again: killing the ranks" : "signal %d: stopping", signo);
    a->exit_code = 128 + signo;
    a->signo = a->signo != 0 ? a->signo : signo;
    if (a->crew != NULL && !a->crew_done) {
        cli_rdzv_hurry(a->rdzv);
        cli_crew_set_stop_signal(a->crew, signo);
        cli_crew_stop(a->crew, signo);
    } else {
        cli_rdzv_stop(a->rdzv);
    }
}

/* ---- life ---- */
static bd_status agent_init(agent *a, bd_err *err)
{
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->changed, NULL);
    a->plan.me = -1;
    a->taken = true;
    a->n_ranks = a->opt->rdzv.n_ranks;
    a->seats = bd_calloc((size_t)a->n_ranks, sizeof *a->seats);
    if (a->seats == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "launch");
    }
    bd_status rc = cli_rdzv_new(a->opt->store, &a->opt->rdzv, &a->rdzv, err);
    if (rc == BD_OK && uv_loop_init(&a->loop) != 0) {
        rc = bd_err_set(err, BD_E_IO, "launch: no event loop");
    }
    return rc;
}

static bd_status agent_loop(agent *a, bd_err *err)
{
    (void)uv_async_init(&a->loop, &a->wake, on_wake);
    a->wake.data = a;
    for (int i = 0; i < N_SIGNALS; i++) {
        (void)uv_signal_init(&a->loop, &a->signals[i]);
        a->signals[i].data = a;
        (void)uv_signal_start(&a->signals[i], on_signal, signos[i]);
    }
    int e = pthread_create(&a->thread, NULL, rdzv_main, a);
    if (e != 0) {
        a->rc = bd_err_errno(err, BD_E_EXHAUSTED, e, "start threads");
        finish(a);
    }
    (void)uv_run(&a->loop, UV_RUN_DEFAULT);
    if (e == 0) {
        (void)pthread_join(a->thread, NULL);
    }
    (void)uv_loop_close(&a->loop);
    return e == 0 ? BD_OK : a->rc;
}

bd_status cli_agent_run(const cli_agent_options *opt, const cli_io *io, int *exit_code, bd_err *err)
{
    agent *a = bd_calloc(1, sizeof *a);
    if (a == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "launch");
    }
    a->opt = opt;
    a->io = io;
    bd_status rc = agent_init(a, err);
    if (rc == BD_OK) {
        rc = agent_loop(a, err);
    }
    *exit_code = a->exit_code;
    cli_plan_deinit(&a->plan);
    cli_rdzv_free(a->rdzv);
    bd_free(a->seats);
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    bd_free(a);
    return rc;
}
