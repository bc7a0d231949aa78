/* cli/cli_proc.h - one child process on a libuv loop: its output as lines, its READY, its end.
 *
 * Layer:     cli; libuv.
 * Threads:   the loop's thread.
 * Ownership: cli_proc_start gives a process that frees itself right after on_exit: the pointer is
 *            dead then. Strings in events are borrowed for the call.
 * Orphans:   with spec.guard (the path of `braid`) the child is started as `braid __child <our pid>
 *            program args...`, which asks the kernel for SIGKILL when we die (PR_SET_PDEATHSIG) and
 *            then becomes the program. Each child is its own session, so that Ctrl-C on the
 *            terminal reaches the launcher alone, which stops the others in order.
 */
#ifndef CLI_PROC_H
#define CLI_PROC_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct uv_loop_s;
typedef struct cli_proc cli_proc;

typedef struct cli_proc_events {
    void (*on_line)(void *user, const char *line, size_t n_bytes, bool from_stderr);
    void (*on_ready)(void *user, const char *text); /* what follows "READY " on the ready pipe */
    /* Last: the process has ended and its output has been delivered. */
    void (*on_exit)(void *user, int exit_code, int signo);
    void *user;
} cli_proc_events;

/* The child's descriptor of the ready pipe (--ready-fd). */
enum { CLI_PROC_READY_FD = 3 };

typedef struct cli_proc_spec {
    char *guard;       /* NULL: start the program itself */
    char *const *argv; /* argv[0]: the program's path; NULL at the end */
    char *const *env;  /* NULL: ours */
    bool want_ready;
} cli_proc_spec;

/* BD_E_IO with the program's name when it cannot be started; no event comes then. */
bd_status cli_proc_start(struct uv_loop_s *loop, const cli_proc_spec *spec,
                         const cli_proc_events *events, cli_proc **out, bd_err *err) BD_MUST_CHECK;
/* To the child and what it has started; to one that is ending: nothing. */
void cli_proc_kill(cli_proc *p, int signo);
int cli_proc_pid(const cli_proc *p);

/* The other half of spec.guard: `__child <parent pid> program args...`. Only returns on failure,
 * with the exit code to use. */
int cli_proc_child_main(int argc, char **argv, bd_err *err);

#endif
