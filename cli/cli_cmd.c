#include "cli/cli_cmd.h"

#include "base/build_info.h"
#include "base/exit_code.h"
#include "base/json.h"

#include "cli/cli_proc.h"

#include <string.h>

static bd_status run_help(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err);
static bd_status run_version(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err);

static const cli_cmd cmd_help = {.name = "help",
                                 .usage = "[COMMAND]",
                                 .help = "Shows the commands, or one command's options.",
                                 .run = run_help};
typedef struct version_flags {
    const char *format;
} version_flags;

static const bd_opt version_table[] = {
    {"format", BD_OPT_ENUM, offsetof(version_flags, format), "table", 0, 0, "table|json",
     "What is printed; also -o."},
};
enum { N_VERSION = sizeof version_table / sizeof version_table[0] };

static const cli_cmd cmd_version = {.name = "version",
                                    .usage = "[-o table|json]",
                                    .help = "Shows the version, commit and features.",
                                    CLI_OPTIONS(version_table),
                                    .run = run_version};

const cli_cmd *cli_cmd_at(size_t i)
{
    static const cli_cmd *const all[] = {&cli_cmd_run,     &cli_cmd_launch, &cli_cmd_predict,
                                         &cli_cmd_datagen, &cli_cmd_ps,     &cli_cmd_table,
                                         &cli_cmd_ckpt,    &cli_cmd_bench,  &cli_cmd_completion,
                                         &cli_cmd_doctor,  &cmd_version,    &cmd_help};
    return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

static const cli_cmd *find(const char *name)
{
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        if (strcmp(cli_cmd_at(i)->name, name) == 0) {
            return cli_cmd_at(i);
        }
    }
    return NULL;
}

static bd_status unknown_command(const char *name, bd_err *err)
{
    const char *names[16];
    size_t n = 0;
    for (; n < 16 && cli_cmd_at(n) != NULL; n++) {
        names[n] = cli_cmd_at(n)->name;
    }
    const char *near = bd_nearest(name, names, n);
    return bd_err_set(err, BD_E_USAGE, "unknown command \"%.64s\"%s%s%s", name,
                      near != NULL ? "; did you mean \"" : "; `braid help` lists them",
                      near != NULL ? near : "", near != NULL ? "\"?" : "");
}

static void help_all(FILE *out)
{
    (void)fprintf(out, "braid - trains recommender models: ring allreduce and parameter servers\n\n"
                       "usage: braid COMMAND ...\n\n");
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        (void)fprintf(out, "  %-10s %s\n", cli_cmd_at(i)->name, cli_cmd_at(i)->help);
    }
    (void)fprintf(out,
                  "\n`braid help COMMAND` shows its options. A job's keys are in docs/JOBS.md.\n"
                  "Exit codes: 0 done, 2 usage, 3 data, 4 peer lost, 5 numeric, 1 other "
                  "failure, 128+n signal n (docs/OPERATIONS.md).\n");
}

static void help_options(const cli_cmd *cmd, FILE *out)
{
    if (cmd->n_options > 0) {
        (void)fprintf(out, "\n");
        bd_options_help(cmd->options, cmd->n_options, out);
    }
}

static void help_one(const cli_cmd *cmd, FILE *out)
{
    (void)fprintf(out, "usage: braid %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->help);
    help_options(cmd, out);
    for (size_t i = 0; cmd->subs != NULL && cmd->subs[i] != NULL; i++) {
        const cli_cmd *sub = cmd->subs[i];
        (void)fprintf(out, "\nbraid %s %s %s\n%s\n", cmd->name, sub->name, sub->usage, sub->help);
        help_options(sub, out);
    }
}

static bd_status run_help(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    *exit_code = BD_EXIT_OK;
    if (argc < 2) {
        help_all(io->out);
        return BD_OK;
    }
    const cli_cmd *cmd = find(argv[1]);
    if (cmd == NULL) {
        return unknown_command(argv[1], err);
    }
    help_one(cmd, io->out);
    return BD_OK;
}

static bd_status run_version(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    version_flags f = {0};
    bd_options o;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, version_table, N_VERSION, &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, NULL, NULL, err);
    if (rc == BD_OK && strcmp(f.format, "json") == 0) {
        bd_json j;
        bd_json_init(&j);
        bd_json_obj(&j);
        bd_json_put_str(&j, "version", BRAID_VERSION);
        bd_json_put_str(&j, "features", bd_build_features());
        bd_json_put_str(&j, "line", bd_build_line("braid"));
        bd_json_obj_end(&j);
        const char *text = bd_json_text(&j);
        rc = text != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "version");
        if (rc == BD_OK) {
            (void)fprintf(io->out, "%s\n", text);
        }
        bd_json_deinit(&j);
    } else if (rc == BD_OK) {
        (void)fprintf(io->out, "%s\n", bd_build_line("braid"));
    }
    bd_options_deinit(&o);
    return rc;
}

bd_status cli_cmd_parse(bd_options *o, int *argc, char **argv, const char *what,
                        const char **positional, bd_err *err)
{
    bd_status rc = bd_options_load_env(o, err);
    if (rc == BD_OK) {
        rc = bd_options_load_args(o, argc, argv, err);
    }
    if (rc == BD_OK) {
        rc = bd_options_check(o, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    int want = what != NULL ? 2 : 1;
    if (*argc < want) {
        return bd_err_set(err, BD_E_USAGE, "%s: %s is missing; `braid help %s`", argv[0], what,
                          argv[0]);
    }
    if (*argc > want) {
        return bd_err_set(err, BD_E_USAGE, "%s: what is \"%.200s\" for? `braid help %s`", argv[0],
                          argv[want], argv[0]);
    }
    if (what != NULL) {
        *positional = argv[1];
    }
    return BD_OK;
}

void cli_cmd_print_result(const cli_io *io, const char *format, const char *result)
{
    bool is_json = format != NULL && strcmp(format, "json") == 0;
    (void)fprintf(io->out, "%s%s\n", is_json ? "" : "RESULT ", result);
}

static bool wants_help(const cli_cmd *cmd, int argc, char **argv)
{
    int end = cmd->passes_on && argc > 3 ? 3 : argc;
    for (int i = 0; i < end; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static char long_format[] = "--format";

static bd_status dispatch(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    if (argc < 2) {
        help_all(io->err);
        *exit_code = BD_EXIT_USAGE;
        return BD_OK;
    }
    if (strcmp(argv[1], "__man") == 0) { /* docs/man/braid.1 */
        cli_man_print(io->out);
        return BD_OK;
    }
    if (strcmp(argv[1], "__child") == 0) {
        *exit_code = cli_proc_child_main(argc, argv, err);
        return err->code;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)fprintf(io->out, "%s\n", bd_build_line("braid"));
        return BD_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        help_all(io->out);
        return BD_OK;
    }
    const cli_cmd *cmd = find(argv[1]);
    if (cmd == NULL) {
        return unknown_command(argv[1], err);
    }
    if (wants_help(cmd, argc, argv)) {
        help_one(cmd, io->out);
        return BD_OK;
    }
    for (int i = 2; i < argc && !cmd->passes_on;
         i++) { /* the short form that kubectl and others have */
        if (strcmp(argv[i], "-o") == 0) {
            argv[i] = long_format;
        }
    }
    return cmd->run(argc - 1, argv + 1, io, exit_code, err);
}

int cli_main(int argc, char **argv, const cli_io *io)
{
    bd_err err = BD_ERR_INIT;
    int exit_code = BD_EXIT_OK;
    bd_status rc = dispatch(argc, argv, io, &exit_code, &err);
    if (rc != BD_OK) {
        (void)fprintf(io->err, "error: %s\n", bd_err_text(&err));
        exit_code = exit_code != 0 ? exit_code : bd_exit_code(rc);
    }
    if (fflush(io->out) != 0 && exit_code == BD_EXIT_OK) {
        (void)fprintf(io->err, "error: write to stdout failed\n");
        exit_code = BD_EXIT_FAILURE;
    }
    return exit_code;
}
