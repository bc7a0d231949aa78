/* cli/cli_cmd_drain.h - the verbs of `braid ps` that make a server ready for its restart.
 *
 * Layer: cli. Threads: the main thread; blocks until every server has answered.
 */
#ifndef CLI_CMD_DRAIN_H
#define CLI_CMD_DRAIN_H

#include "cli/cli_cmd.h"

/* drain, undrain or health? */
/* For help: drain, undrain, health. */
extern const cli_cmd cli_cmd_drain;
bool cli_drain_has(const char *word);
/* argv[0] is "ps", as in cli_cmd.run. Exit code 4: a server does not answer, or (health) drains. */
bd_status cli_drain_run(int argc, char **argv, const cli_io *io, int *exit_code,
                        bd_err *err) BD_MUST_CHECK;

#endif
