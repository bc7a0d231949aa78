/* cli/cli_scratch.h - folders for servers that only read a run: its checkpoints are there, and what
 * the servers write goes away with the folders.
 *
 * Layer:     cli.
 * Threads:   one owner thread.
 * Ownership: cli_scratch_remove takes the folder away and frees the path.
 *
 *   <run_dir>/.predict-<pid>/ps-<i>/checkpoints/<name>    symbolic links to
 * <run_dir>/ps-<i>/checkpoints/<name>
 *
 * A server restores a checkpoint by hard links and copies (ps_server/ps_ckpt.c), so the run's own
 * rows and journal, which may be further on than the checkpoint, stay as they are.
 */
#ifndef CLI_SCRATCH_H
#define CLI_SCRATCH_H

#include "base/err.h"

/* *out: owned; NULL on failure, and then nothing is left behind. A folder that a killed process
 * left is removed first. BD_E_IO, BD_E_NOMEM. */
bd_status cli_scratch_make(const char *run_dir, int n_servers, char **out,
                           bd_err *err) BD_MUST_CHECK;
/* NULL is fine. BD_E_IO names the file that stays. */
bd_status cli_scratch_remove(char *path, bd_err *err);

#endif
