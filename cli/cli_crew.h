/* cli/cli_crew.h - cli_sup's decisions carried out on a libuv loop: processes, signals, deadlines.
 *
 * Layer:     cli; libuv. What to start, and what to show, is the user's.
 * Threads:   the loop's thread.
 * Ownership: cli_crew_new gives it, cli_crew_free ends it: after on_done (also inside it), or
 * before cli_crew_start.
 */
#ifndef CLI_CREW_H
#define CLI_CREW_H

#include "base/err.h"

#include "cli/cli_job.h"
#include "cli/cli_sup.h"

struct uv_loop_s;
typedef struct cli_crew cli_crew;

typedef struct cli_crew_events {
    /* The command line of a process that is to start (argv[0]: its path), and its environment
     * (borrowed until the start; *env NULL at first: ours). */
    void (*on_start)(void *user, int proc, cli_args *argv, char *const **env);
    void (*on_started)(void *user, int proc, int pid);
    void (*on_line)(void *user, int proc, const char *line, size_t n_bytes, bool from_stderr);
    /* False: it cannot be used. NULL: nobody is asked for one. */
    bool (*on_ready)(void *user, int proc, const char *text);
    void (*on_gone)(void *user, int proc);                         /* may be NULL */
    void (*on_restarting)(void *user, int proc, int64_t delay_ms); /* may be NULL */
    void (*on_done)(void *user);                                   /* once, last: all are gone */
    void *user;
} cli_crew_events;

/* guard: cli_proc.h; borrowed. BD_E_NOMEM, BD_E_INVALID (cfg). */
bd_status cli_crew_new(struct uv_loop_s *loop, const sup_config *cfg, char *guard,
                       const cli_crew_events *events, cli_crew **out, bd_err *err) BD_MUST_CHECK;
void cli_crew_start(cli_crew *c);
/* Stops everything in order; a second one kills. */
void cli_crew_stop(cli_crew *c, int signo);
/* What processes that are asked to stop get from now on, instead of SIGTERM. */
void cli_crew_set_stop_signal(cli_crew *c, int signo);
void cli_crew_forward(cli_crew *c, int signo); /* to all that run; nothing else changes */
const cli_sup *cli_crew_sup(const cli_crew *c);
const bd_err *cli_crew_spawn_error(const cli_crew *c, int proc);
void cli_crew_free(cli_crew *c); /* NULL is fine */

#endif
