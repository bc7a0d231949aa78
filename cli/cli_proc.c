#include "cli/cli_proc.h"

#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_text.h"

#include <uv.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* How long output is waited for after the end of a process: a grandchild may hold the pipe. */
#define DRAIN_MS 300

enum { PIPE_OUT, PIPE_ERR, PIPE_READY, N_PIPES };

typedef struct proc_pipe {
    uv_pipe_t uv;
    cli_proc *proc;
    cli_lines lines;
    bool open;
} proc_pipe;

struct cli_proc {
    uv_process_t uv;
    uv_timer_t drain;
    proc_pipe pipes[N_PIPES];
    cli_proc_events events;
    char chunk[65536]; /* of the pipe being read: libuv reads and delivers in turn */
    int n_open;        /* handles not closed yet */
    bool exited;
    int exit_code, signo;
};

/* ---- output ---- */
static void on_out_line(void *user, const char *line, size_t n_bytes)
{
    cli_proc *p = user;
    p->events.on_line(p->events.user, line, n_bytes, false);
}

static void on_err_line(void *user, const char *line, size_t n_bytes)
{
    cli_proc *p = user;
    p->events.on_line(p->events.user, line, n_bytes, true);
}

static void on_ready_line(void *user, const char *line, size_t n_bytes)
{
    cli_proc *p = user;
    (void)n_bytes;
    if (strncmp(line, "READY ", 6) == 0 && p->events.on_ready != NULL) {
        p->events.on_ready(p->events.user, line + 6);
    }
}

static void on_closed(uv_handle_t *h)
{
    cli_proc *p = h->data;
    if (--p->n_open > 0) {
        return;
    }
    p->events.on_exit(p->events.user, p->exit_code, p->signo);
    bd_free(p);
}

static void close_handle(uv_handle_t *h)
{
    if (!uv_is_closing(h)) {
        uv_close(h, on_closed);
    }
}

static void close_pipe(proc_pipe *pipe)
{
    if (pipe->open) {
        pipe->open = false;
        cli_lines_end(&pipe->lines);
        close_handle((uv_handle_t *)&pipe->uv);
    }
}

/* The end is told when the process is gone and nothing more can come out of its pipes. */
static void finish_if_drained(cli_proc *p, bool give_up)
{
    bool drained = !p->pipes[PIPE_OUT].open && !p->pipes[PIPE_ERR].open;
    if (!p->exited || !(drained || give_up)) {
        return;
    }
    for (int i = 0; i < N_PIPES; i++) {
        close_pipe(&p->pipes[i]);
    }
    close_handle((uv_handle_t *)&p->drain);
    close_handle((uv_handle_t *)&p->uv);
}

static void on_drain_timeout(uv_timer_t *t)
{
    finish_if_drained(t->data, true);
}

static void on_process_exit(uv_process_t *uv, int64_t exit_code, int signo)
{
    cli_proc *p = uv->data;
    p->exited = true;
    if (exit_code != 0 || signo != 0) { /* nothing of it goes on without it */
        (void)uv_kill(-uv_process_get_pid(uv), SIGKILL);
    }
    p->exit_code = signo == 0 ? (int)exit_code : 0;
    p->signo = signo;
    (void)uv_timer_start(&p->drain, on_drain_timeout, DRAIN_MS, 0);
    finish_if_drained(p, false);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    cli_proc *p = h->data;
    (void)suggested;
    *buf = uv_buf_init(p->chunk, sizeof p->chunk);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    cli_proc *p = s->data;
    for (int i = 0; i < N_PIPES; i++) {
        proc_pipe *pipe = &p->pipes[i];
        if ((uv_stream_t *)&pipe->uv != s) {
            continue;
        }
        if (n > 0) {
            cli_lines_feed(&pipe->lines, buf->base, (size_t)n);
        } else if (n < 0) {
            close_pipe(pipe);
        }
    }
    finish_if_drained(p, false);
}

/* ---- start ---- */
/* [guard, __child, pid,] program, args; NULL: no memory. Owned, the strings borrowed. */
static char **guarded_argv(const cli_proc_spec *spec, char *pid_text)
{
    static char word[] = "__child";
    size_t n = 0, at = 0;
    while (spec->argv[n] != NULL) {
        n++;
    }
    char **argv = bd_calloc(n + 4, sizeof *argv);
    if (argv != NULL && spec->guard != NULL) {
        argv[at++] = spec->guard;
        argv[at++] = word;
        argv[at++] = pid_text;
    }
    for (size_t i = 0; argv != NULL && i < n; i++) {
        argv[at++] = spec->argv[i];
    }
    return argv;
}

static void init_handles(cli_proc *p, uv_loop_t *loop)
{
    static void (*const on_line[N_PIPES])(void *, const char *, size_t) = {on_out_line, on_err_line,
                                                                           on_ready_line};
    (void)uv_timer_init(loop, &p->drain);
    p->drain.data = p;
    for (int i = 0; i < N_PIPES; i++) {
        (void)uv_pipe_init(loop, &p->pipes[i].uv, 0);
        p->pipes[i].uv.data = p;
        p->pipes[i].proc = p;
        p->pipes[i].open = true;
        cli_lines_init(&p->pipes[i].lines, on_line[i], p);
    }
    p->n_open = N_PIPES + 2;
}

static void on_exit_of_unstarted(void *user, int exit_code, int signo)
{
    (void)user;
    (void)exit_code;
    (void)signo;
}

bd_status cli_proc_start(uv_loop_t *loop, const cli_proc_spec *spec, const cli_proc_events *events,
                         cli_proc **out, bd_err *err)
{
    bd_status rc = BD_OK;
    char pid_text[32];
    (void)snprintf(pid_text, sizeof pid_text, "%ld", (long)getpid());
    char **argv = guarded_argv(spec, pid_text);
    cli_proc *p = bd_calloc(1, sizeof *p);
    if (p == NULL || argv == NULL) {
        bd_free(p);
        rc = bd_err_set(err, BD_E_NOMEM, "start %s", spec->argv[0]);
        goto out;
    }
    p->events = *events;
    init_handles(p, loop);
    uv_stdio_container_t stdio[4] = {{.flags = UV_IGNORE}};
    for (int i = 0; i < N_PIPES; i++) {
        stdio[1 + i].flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE;
        stdio[1 + i].data.stream = (uv_stream_t *)&p->pipes[i].uv;
    }
    uv_process_options_t opt = {.exit_cb = on_process_exit,
                                .file = argv[0],
                                .args = argv,
                                .flags = UV_PROCESS_DETACHED,
                                .stdio_count = spec->want_ready ? 4 : 3,
                                .stdio = stdio};
    union { /* libuv reads it */
        char *const *in;
        char **out;
    } env = {.in = spec->env};
    opt.env = env.out;
    p->uv.data = p;
    int failed = uv_spawn(loop, &p->uv, &opt);
    p->uv.data = p;
    if (failed != 0) {
        rc = bd_err_set(err, BD_E_IO, "start %s: %s", spec->argv[0], uv_strerror(failed));
        p->events.on_exit = on_exit_of_unstarted;
        p->exited = true;
        finish_if_drained(p, true); /* frees p once the loop has closed the handles */
        goto out;
    }
    for (int i = 0; i < N_PIPES; i++) {
        if (i == PIPE_READY && !spec->want_ready) {
            close_pipe(&p->pipes[i]);
        } else {
            (void)uv_read_start((uv_stream_t *)&p->pipes[i].uv, on_alloc, on_read);
        }
    }
    *out = p;
out:
    bd_free(argv);
    return rc;
}

void cli_proc_kill(cli_proc *p, int signo)
{
    if (!p->exited) {
        (void)uv_kill(-uv_process_get_pid(&p->uv), signo); /* its session, so what it started too */
    }
}

int cli_proc_pid(const cli_proc *p)
{
    return uv_process_get_pid(&p->uv);
}

int cli_proc_child_main(int argc, char **argv, bd_err *err)
{
    if (argc < 4) {
        (void)bd_err_set(err, BD_E_USAGE, "__child: for the launcher's own use");
        return BD_EXIT_USAGE;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)strtol(argv[2], NULL, 10)) {
        return 128 + SIGKILL; /* the launcher died before the line above */
    }
    (void)execv(argv[3], argv + 3);
    (void)bd_err_errno(err, BD_E_IO, errno, "cannot run %s", argv[3]);
    return BD_EXIT_USAGE;
}
