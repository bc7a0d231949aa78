#include "cli/cli_bench_servers.h"

#include "base/clock.h"
#include "base/mem.h"

#include "cli/cli_rundir.h"
#include "cli/cli_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_FD      3
#define READY_WAIT_MS 60000
#define STOP_WAIT_MS  120000
#define MAX_ARGS      64

static volatile sig_atomic_t asked_by; /* the first signal */

static void on_signal(int signo)
{
    asked_by = asked_by != 0 ? asked_by : signo;
}

/* What the parent has set to be ignored (nohup) stays so. */
static void set_action(void (*handler)(int))
{
    static const int signos[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = handler}, was; /* without SA_RESTART */
    (void)sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof signos / sizeof signos[0]; i++) {
        if (sigaction(signos[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) {
            (void)sigaction(signos[i], &a, NULL);
        }
    }
}

void cli_bench_signals_watch(void)
{
    set_action(on_signal);
}

void cli_bench_signals_default(void)
{
    set_action(SIG_DFL);
}

int cli_bench_signo(void)
{
    return asked_by;
}

/* braid-ps beside this program. */
static bd_status find_program(char *path, size_t cap, bd_err *err)
{
    ssize_t n = readlink("/proc/self/exe", path, cap - 1);
    char *slash = n > 0 ? (path[n] = '\0', strrchr(path, '/')) : NULL;
    if (slash == NULL || (size_t)(slash - path) + sizeof "/braid-ps" > cap) {
        return bd_err_set(err, BD_E_IO, "cannot tell where this program is");
    }
    memcpy(slash, "/braid-ps", sizeof "/braid-ps");
    return access(path, X_OK) == 0 ? BD_OK
                                   : bd_err_errno(err, BD_E_USAGE, errno, "program %s", path);
}

/* Never returns: becomes the server. */
static void become(char *const *argv, const char *log, int ready)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    cli_bench_signals_default();
    int out = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (out >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(out, STDERR_FILENO) >= 0 &&
        (ready == READY_FD ? fcntl(ready, F_SETFD, 0) : dup2(ready, READY_FD)) >= 0) {
        (void)execv(argv[0], argv);
    }
    _exit(127);
}

/* What follows READY on the pipe. */
static bd_status wait_ready(int fd, char *address, size_t cap, bd_err *err)
{
    char text[256];
    size_t n = 0;
    int64_t until = bd_mono_ns() + READY_WAIT_MS * BD_NS_PER_MS;
    while (n == 0 || text[n - 1] != '\n') {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = (until - bd_mono_ns()) / BD_NS_PER_MS;
        int got = poll(&p, 1, left > 0 ? (int)left : 0);
        if (got < 0 && errno == EINTR && asked_by == 0) {
            continue;
        }
        if (asked_by != 0) {
            return bd_err_set(err, BD_E_CANCELLED, "signal %d", (int)asked_by);
        }
        ssize_t r = got > 0 ? read(fd, text + n, sizeof text - 1 - n) : 0;
        if (r <= 0) {
            return bd_err_set(err, BD_E_IO, got == 0 ? "does not come up" : "ended at its start");
        }
        n += (size_t)r;
    }
    text[n - 1] = '\0';
    if (strncmp(text, "READY ", 6) != 0) {
        return bd_err_set(err, BD_E_IO, "said \"%s\" instead of READY", text);
    }
    (void)snprintf(address, cap, "%s", text + 6);
    return BD_OK;
}

/* The end of its log, so that the reason is in the error. */
static void add_log(const char *path, bd_err *err)
{
    char text[400];
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return;
    }
    (void)fseek(f, -(long)(sizeof text - 1), SEEK_END);
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    while (n > 0 && text[n - 1] == '\n') {
        n--;
    }
    text[n] = '\0';
    if (n > 0) {
        const char *last = strrchr(text, '\n');
        bd_err before = *err;
        (void)bd_err_set(err, before.code, "%s: %s", before.text, last != NULL ? last + 1 : text);
    }
}

/* Of one server. */
typedef struct launch {
    char index[16], servers[16], data[PATH_MAX], log[PATH_MAX];
    char *argv[MAX_ARGS]; /* strings borrowed */
} launch;

static bd_status fill_args(const cli_bench_servers *s, int i, int n, const char *program,
                           const bd_str_list *settings, launch *l, bd_err *err)
{
    static char set[] = "--set";
    size_t at = 0;
    (void)snprintf(l->index, sizeof l->index, "%d", i);
    (void)snprintf(l->servers, sizeof l->servers, "%d", n);
    (void)snprintf(l->data, sizeof l->data, "%s/ps-%d", s->dir, i);
    (void)snprintf(l->log, sizeof l->log, "%s/ps-%d.log", s->dir, i);
    const char *fixed[] = {program,       "--index",       l->index,      "--servers",
                           l->servers,    "--data-dir",    l->data,       "--listen",
                           "127.0.0.1:0", "--ready-fd",    "3",           "--log-level",
                           "warn",        "--coordinator", s->coordinator};
    for (; at < sizeof fixed / sizeof fixed[0]; at++) {
        l->argv[at] = bd_unconst(fixed[at]);
    }
    if (at + 2 * settings->n + 1 > MAX_ARGS) {
        return bd_err_set(err, BD_E_USAGE, "bench: %zu settings for the servers", settings->n);
    }
    for (size_t k = 0; k < settings->n; k++) {
        l->argv[at++] = set;
        l->argv[at++] = bd_unconst(settings->items[k]);
    }
    l->argv[at] = NULL;
    return BD_OK;
}

static bd_status start_one(cli_bench_servers *s, int i, int n, const char *program,
                           const bd_str_list *settings, bd_err *err)
{
    launch l;
    int fds[2];
    char address[sizeof s->coordinator];
    bd_status rc = fill_args(s, i, n, program, settings, &l, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "bench: pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        become(l.argv, l.log, fds[1]);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        rc = bd_err_errno(err, BD_E_EXHAUSTED, errno, "bench: server %d", i);
    } else {
        s->pids[s->n++] = pid;
        rc = wait_ready(fds[0], address, sizeof address, err);
        if (rc != BD_OK) {
            add_log(l.log, err);
            (void)bd_err_wrap(err, "bench: server %d", i);
        }
    }
    (void)close(fds[0]);
    if (rc == BD_OK && i == 0) {
        memcpy(s->coordinator, address, sizeof address);
    }
    return rc;
}

bd_status cli_bench_servers_start(cli_bench_servers *s, int n, const char *parent,
                                  const bd_str_list *settings, bd_err *err)
{
    char program[PATH_MAX];
    *s = (cli_bench_servers){0};
    bd_status rc = find_program(program, sizeof program, err);
    if (rc == BD_OK) {
        s->dir = bd_strfmt("%s/braid-bench-%ld", parent, (long)getpid());
        rc = s->dir != NULL ? cli_mkdirs(s->dir, err) : bd_err_set(err, BD_E_NOMEM, "bench");
    }
    for (int i = 0; rc == BD_OK && i < n; i++) {
        rc = start_one(s, i, n, program, settings, err);
    }
    if (rc != BD_OK) {
        (void)cli_bench_servers_stop(s, NULL);
    }
    return rc;
}

static uint64_t rss_of(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            kib = strtoull(line + 6, NULL, 10);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return (uint64_t)kib << 10;
}

uint64_t cli_bench_servers_rss_bytes(const cli_bench_servers *s)
{
    uint64_t sum = 0;
    for (int i = 0; i < s->n; i++) {
        sum += rss_of(s->pids[i]);
    }
    return sum;
}

/* True: it has ended; *status is its. */
static bool wait_end(pid_t pid, int64_t until_ns, int *status)
{
    while (waitpid(pid, status, WNOHANG) == 0) {
        if (bd_mono_ns() > until_ns) {
            return false;
        }
        bd_sleep_ms(5);
    }
    return true;
}

bd_status cli_bench_servers_stop(cli_bench_servers *s, bd_err *err)
{
    bd_status rc = BD_OK;
    for (int i = s->n - 1; i >= 0; i--) { /* the coordinator last */
        int status = 0;
        (void)kill(s->pids[i], asked_by == 0 ? SIGTERM : SIGKILL);
        if (!wait_end(s->pids[i], bd_mono_ns() + STOP_WAIT_MS * BD_NS_PER_MS, &status)) {
            (void)kill(s->pids[i], SIGKILL);
            (void)waitpid(s->pids[i], &status, 0);
        }
        if (rc == BD_OK && asked_by == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            rc = bd_err_set(err, BD_E_INTERNAL, "bench: server %d ended with %s %d", i,
                            WIFSIGNALED(status) ? "signal" : "code",
                            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
    }
    if (s->dir != NULL) {
        bd_status removed = cli_scratch_remove(s->dir, rc == BD_OK ? err : NULL);
        rc = rc == BD_OK ? removed : rc;
    }
    *s = (cli_bench_servers){0};
    return rc;
}
