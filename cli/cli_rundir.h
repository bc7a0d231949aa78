/* cli/cli_rundir.h - the folder of one run: found or made, locked, and remembered as the latest.
 *
 * Layer:     cli.
 * Threads:   one owner thread.
 * Ownership: cli_rundir_deinit frees the path and gives up the lock; the files stay.
 *
 *   runs/<name>/<UTC time>-<pid>/    ps-<i>/ (server data), ps-<i>.log, worker-<r>.log,
 * config.json, metrics.jsonl, checkpoints/<name>/ runs/<name>/latest               symbolic link to
 * the newest of them
 */
#ifndef CLI_RUNDIR_H
#define CLI_RUNDIR_H

#include "base/err.h"

#include <stdbool.h>

typedef struct cli_rundir {
    char *path;    /* owned */
    int lock_fd;   /* -1: none */
    int n_servers; /* whose data it holds */
    bool fresh;    /* made by this call, or empty */
} cli_rundir;

typedef struct cli_rundir_request {
    const char *parent; /* "runs/<name>": a fresh folder below it, or its latest; NULL: see exact */
    const char *exact;  /* a folder of the user's choice, NULL: none */
    bool resume;        /* go on in the latest one */
    bool must_exist;    /* resume of a named checkpoint: a fresh folder is an error */
} cli_rundir_request;

/* BD_E_USAGE: the folder is in use by another `braid`, or holds a run and resume is not wanted;
 * BD_E_NOT_FOUND: must_exist and there is no run; BD_E_IO. */
bd_status cli_rundir_open(cli_rundir *d, const cli_rundir_request *req, bd_err *err) BD_MUST_CHECK;
void cli_rundir_deinit(cli_rundir *d);
/* mkdir -p */
bd_status cli_mkdirs(const char *path, bd_err *err) BD_MUST_CHECK;

#endif
