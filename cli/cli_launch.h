/* cli/cli_launch.h - one run on this host: servers and workers as processes, until all have ended.
 *
 * Layer:     cli; libuv. The decisions are cli_sup's, the processes cli_proc's; this file ties them
 *            to a loop, a terminal and log files.
 * Threads:   the caller's; cli_launch blocks until the last process is gone.
 * Ownership: options are borrowed during the call; the result's text is the caller's.
 * Output:    every line of a child goes to its log and, behind its name, to io->err; rank 0's
 *            RESULT is kept back for the caller.
 * Signals:   SIGINT, SIGTERM, SIGHUP stop everything in order, a second one kills.
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "base/err.h"

#include "cli/cli_job.h"

#include <stdio.h>

typedef struct cli_io {
    FILE *out, *err;
    bool colour; /* err is a terminal */
} cli_io;

typedef struct cli_launch_options {
    char *guard; /* path of braid (cli_proc.h), NULL: children may outlive us */
    const char *ps_bin, *worker_bin;
    const char *run_dir;
    const char *data_dir;     /* where the servers' folders are; NULL: run_dir */
    const char *job_path;     /* NULL: from sets alone */
    const cli_args *sets;     /* key=value for every worker */
    const cli_args *extra;    /* more arguments of every worker */
    int n_servers, n_workers; /* processes to start */
    int world;                /* what the workers are told */
    int threads;              /* of each worker's compute */
    const char *store;        /* of all processes; "": server 0 keeps the cluster's state */
    int port;                 /* server i listens on port + i; 0: the system picks */
    bool restart_servers;
    int max_restarts;
    int64_t ready_timeout_ms;
    bool verbose;    /* log lines of level INFO and DEBUG on the terminal too */
    bool raw_stdout; /* rank 0's stdout goes to io->out as it is */
} cli_launch_options;

typedef struct cli_launch_result {
    int exit_code;
    char *result; /* owned: what follows "RESULT " of rank 0, NULL: it said nothing */
} cli_launch_result;

/* An error only when nothing could be started at all; else result.exit_code tells, and a failure
 * has been explained on io->err. */
bd_status cli_launch(const cli_launch_options *opt, const cli_io *io, cli_launch_result *out,
                     bd_err *err) BD_MUST_CHECK;

#endif
