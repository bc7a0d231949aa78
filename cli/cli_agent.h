/* cli/cli_agent.h - `braid launch` on one host: its ranks as processes, round after round, in step
 * with the launchers of the other hosts.
 *
 * Layer:     cli; libuv. Rounds are cli_rdzv's, processes cli_crew's; this file ties them to a
 * loop, a terminal and log files. Threads:   the caller's runs the loop; one more sits in cli_rdzv;
 * posts to the store go through libuv's pool. Ownership: options are borrowed during the call.
 * Output:    stdout and stderr of ranks go to ours as they are; with tee behind "[rank N]: " and to
 *            their files, with redirects to their files alone.
 * Signals:   SIGINT, SIGTERM, SIGHUP, SIGQUIT are handed on and end this launcher (30 s later
 *            SIGKILL; a second one: at once); SIGUSR1 and SIGUSR2 are handed on.
 */
#ifndef CLI_AGENT_H
#define CLI_AGENT_H

#include "cli/cli_launch.h"
#include "cli/cli_rdzv.h"

enum { CLI_AGENT_MAX_RANKS = 256, CLI_STD_OUT = 1, CLI_STD_ERR = 2 };

typedef struct cli_agent_options {
    char *guard;          /* path of braid (cli_proc.h) */
    const cli_args *argv; /* the program and its arguments; argv[0]: its path */
    cli_rdzv_options rdzv;
    rpc_store *store;
    bool serves;          /* this launcher serves the store to the others */
    const char *address0; /* MASTER_ADDR, MASTER_PORT: of rank 0's host; "" and 0: as it says */
    int port0;
    int first_rank, world; /* world > 0: fixed, whatever the round's plan says (static) */
    int group_rank, n_groups;
    const char *role;
    const cli_args *env;  /* NAME=value for the ranks, besides ours and those of launchers */
    bool is_worker;       /* braid-worker: wrong usage and bad data are not tried again */
    const char *log_dir;  /* "": none */
    const int *redirects; /* [n_ranks] CLI_STD_*: to files alone */
    const int *tee;       /* [n_ranks] CLI_STD_*: to files too */
    const bool *show;     /* [n_ranks] on the terminal at all */
} cli_agent_options;

/* *exit_code: 0, or that of the first failure of the whole job, which has been explained on
 * io->err; 128 + n after signal n. An error only when nothing could be started. */
bd_status cli_agent_run(const cli_agent_options *opt, const cli_io *io, int *exit_code,
                        bd_err *err) BD_MUST_CHECK;

#endif
