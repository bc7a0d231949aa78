/* cli/cli_cmd.h - the commands of `braid`.
 *
 * Layer:     cli.
 * Threads:   the main thread.
 * Ownership: everything is borrowed during the call.
 */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#include "base/option.h"

#include "cli/cli_launch.h"

typedef struct cli_cmd {
    const char *name;      /* one word */
    const char *usage;     /* its arguments, for help */
    const char *help;      /* one sentence */
    const char *verbs;     /* "a|b|c": its first word; NULL: none. For completion */
    const char *words;     /* what other words are: "file"; NULL: nothing to complete */
    const bd_opt *options; /* static; NULL with n_options 0: none */
    size_t n_options;
    const struct cli_cmd *const *subs; /* NULL, or commands of its own, NULL at the end: for help */
    bool passes_on; /* what follows the first word that is no option is another program's */
    /* argv[0] is the command's name. *exit_code starts as 0; on an error a code other than 0 in it
     * is the one to exit with, else that of the status (base/exit_code.h). */
    bd_status (*run)(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err);
} cli_cmd;

/* A cli_cmd's members options and n_options, of an array. */
#define CLI_OPTIONS(table) .options = (table), .n_options = sizeof(table) / sizeof((table)[0])

extern const cli_cmd cli_cmd_run, cli_cmd_predict, cli_cmd_datagen, cli_cmd_ps, cli_cmd_table;
extern const cli_cmd cli_cmd_bench, cli_cmd_doctor, cli_cmd_ckpt, cli_cmd_launch;

/* `braid completion bash|zsh|fish` and the manual page braid(1), from the commands' tables. */
extern const cli_cmd cli_cmd_completion;
void cli_man_print(FILE *out);
/* i-th command; NULL past the end. */
const cli_cmd *cli_cmd_at(size_t i);
/* All of `braid`: argv as main got it. Returns the exit code. */
int cli_main(int argc, char **argv, const cli_io *io);

/* Fills target from BRAID_* and argv; what is left must be one word (or none, when what is NULL),
 * which is *positional. what: names it in errors. */
bd_status cli_cmd_parse(bd_options *o, int *argc, char **argv, const char *what,
                        const char **positional, bd_err *err) BD_MUST_CHECK;

/* A command's result, a JSON object, as one line of stdout: alone where format is "json", else
 * (also NULL) behind the word RESULT. */
void cli_cmd_print_result(const cli_io *io, const char *format, const char *result);

#endif
