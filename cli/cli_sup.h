/* cli/cli_sup.h - the supervisor's decisions: who starts next, and what to do when somebody ends.
 *
 * Layer:     cli (pure part): no processes, no clock, no output. Events go in, effects come out;
 *            cli_run.c turns effects into processes and signals.
 * Threads:   one owner thread.
 * Ownership: sup_init allocates, sup_deinit frees. Effects are read from s->effects after each
 *            sup_step and are valid until the next one.
 * Order:     server 0, then the other servers (all at once), then the workers. At the end, and on
 *            any failure or signal: workers first, then servers (they keep what workers sent).
 *
 *   phase SERVERS --all ready--> WORK --last worker ended well--> STOP_SERVERS --all gone--> DONE
 *         any of them --failure or signal--> STOP_WORKERS --workers gone--> STOP_SERVERS
 *
 * Read next: cli_run.c (the edge), tests/unit/test_cli_sup.c (the rules as examples).
 */
#ifndef CLI_SUP_H
#define CLI_SUP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, text for people */
#define SUP_CAUSE_MAP(X)                                      \
    X(NONE, "nothing failed")                                 \
    X(EXIT, "ended")                                          \
    X(SPAWN, "could not be started")                          \
    X(READY_TIMEOUT, "did not become ready in time")          \
    X(RESTARTS, "ended again after the last allowed restart") \
    X(STOP_TIMEOUT, "did not stop when asked and was killed")

typedef enum sup_cause {
#define BD_X(name, text) SUP_CAUSE_##name,
    SUP_CAUSE_MAP(BD_X)
#undef BD_X
} sup_cause;

typedef enum sup_role { SUP_SERVER, SUP_WORKER } sup_role;
typedef enum sup_phase {
    SUP_PHASE_SERVERS,
    SUP_PHASE_WORK,
    SUP_PHASE_STOP_WORKERS,
    SUP_PHASE_STOP_SERVERS,
    SUP_PHASE_DONE
} sup_phase;
typedef enum sup_state {
    SUP_IDLE,     /* not started yet */
    SUP_STARTING, /* a server that has not said READY */
    SUP_UP,
    SUP_BACKOFF, /* a server that waits for its restart */
    SUP_GONE
} sup_state;

typedef struct sup_config {
    int n_servers, n_workers; /* >= 0; not both 0 */
    bool restart_servers;
    int max_restarts;         /* of all servers together */
    int max_unready_restarts; /* in a row, of one server that never becomes ready again */
    int64_t ready_timeout_ms;
    int64_t backoff_min_ms, backoff_max_ms; /* doubles from min to max */
    int64_t stop_grace_ms;                  /* SIGTERM to SIGKILL after a good end or a signal */
    int64_t fail_grace_ms;                  /* the same after a failure */
} sup_config;

typedef struct sup_proc {
    sup_role role;
    int index; /* rank of a worker, index of a server */
    sup_state state;
    int64_t deadline_ms; /* STARTING: ready by; BACKOFF: start at; else 0 */
    int n_unready;       /* ends in a row before READY */
    int64_t backoff_ms;
    bool was_ready;
    bool asked_to_stop; /* we sent SIGTERM */
    bool killed;        /* we sent SIGKILL */
} sup_proc;

typedef enum sup_event_kind {
    SUP_EV_START,
    SUP_EV_READY,        /* server proc serves */
    SUP_EV_EXIT,         /* proc ended: exit_code, or signo != 0 */
    SUP_EV_SPAWN_FAILED, /* the effect SPAWN of proc did not work */
    SUP_EV_SIGNAL,       /* the user sent signo to the launcher */
    SUP_EV_TIME          /* nothing but the clock */
} sup_event_kind;

typedef struct sup_event {
    sup_event_kind kind;
    int proc;
    int exit_code;
    int signo;
} sup_event;

typedef enum sup_effect_kind { SUP_FX_SPAWN, SUP_FX_KILL, SUP_FX_RESTARTING } sup_effect_kind;
typedef struct sup_effect {
    sup_effect_kind kind;
    int proc;
    int signo;        /* KILL */
    int64_t delay_ms; /* RESTARTING: for the user; a SPAWN follows later */
} sup_effect;

typedef struct sup_root {
    sup_cause cause;
    int proc;
    int exit_code; /* EXIT and RESTARTS */
    int signo;
} sup_root;

typedef struct cli_sup {
    sup_config cfg;
    sup_phase phase;
    sup_proc *procs; /* owned; servers 0..n_servers-1, then workers */
    int n_procs;
    int n_restarts;
    int user_signo;           /* first signal of the user, 0: none */
    int64_t stop_deadline_ms; /* when the present stop phase turns to SIGKILL, 0: none */
    sup_root root;            /* first failure */
    sup_effect *effects;      /* owned */
    size_t n_effects;
} cli_sup;

bd_status sup_init(cli_sup *s, const sup_config *cfg) BD_MUST_CHECK;
void sup_deinit(cli_sup *s);

/* sup_step - takes one event at time now_ms (monotonic) and fills s->effects. Never fails: an event
 * that makes no sense in the present state changes nothing. */
void sup_step(cli_sup *s, const sup_event *ev, int64_t now_ms);
/* When SUP_EV_TIME is wanted next, on now_ms's clock; -1: not at all. */
int64_t sup_next_deadline_ms(const cli_sup *s);
/* The launcher's exit code once phase is DONE (base/exit_code.h). */
int sup_exit_code(const cli_sup *s);
const char *sup_cause_text(sup_cause c);

#endif
