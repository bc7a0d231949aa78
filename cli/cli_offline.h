/* cli/cli_offline.h - tools for the data of stopped servers: `braid-ps --offline` takes over.
 *
 * Layer:   cli. Only braid-ps knows how servers keep their rows, so this process becomes it.
 * Threads: the main thread.
 */
#ifndef CLI_OFFLINE_H
#define CLI_OFFLINE_H

#include "base/err.h"

#include "cli/cli_job.h"

/* The program `name` beside this one, or wish when it is not "". *out: owned. BD_E_USAGE names it
 * when it is not there. */
bd_status cli_find_program(const char *name, const char *wish, char **out,
                           bd_err *err) BD_MUST_CHECK;

/* Becomes `braid-ps --offline ARGS...`, whose output and exit code are then this program's. Returns
 * only when that fails. ps_bin: "" for the one beside this program. */
bd_status cli_offline_become(const char *ps_bin, const cli_args *args, bd_err *err) BD_MUST_CHECK;

#endif
