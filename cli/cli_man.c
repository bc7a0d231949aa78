/* braid(1), made of the commands' tables. */
#include "base/man.h"
#include "base/mem.h"

#include "cli/cli_cmd.h"

static void print_options_of(const cli_cmd *cmd, FILE *out)
{
    if (cmd->n_options > 0) {
        bd_man_options(cmd->options, cmd->n_options, out);
    }
}

static void print_command(const char *prefix, const cli_cmd *cmd, FILE *out)
{
    char *title = bd_strfmt("%s %s", prefix, cmd->name);
    char *usage = title == NULL ? NULL : bd_strfmt("%s %s", title, cmd->usage);
    if (usage != NULL) {
        bd_man_subsection(title, out);
        bd_man_lines(usage, out);
        (void)fputs(".PP\n", out);
        bd_man_text(cmd->help, out);
        print_options_of(cmd, out);
    }
    for (size_t i = 0; usage != NULL && cmd->subs != NULL && cmd->subs[i] != NULL; i++) {
        print_command(title, cmd->subs[i], out);
    }
    bd_free(usage);
    bd_free(title);
}

void cli_man_print(FILE *out)
{
    static const bd_man page = {
        .name = "braid",
        .section = "1",
        .summary = "trains recommender models: launcher, administration, benchmarks",
        .synopsis = "braid COMMAND [OPTIONS] ...\n"
                    "braid help [COMMAND]",
        .description =
            "Starts training jobs on one host (run) or many (launch), and looks at parameter\n"
            "servers, tables and checkpoints, running or stopped. Results go to stdout, as a\n"
            "table or with -o json; logs and errors go to stderr.",
        .environment =
            "Options can be given as BRAID_<OPTION>, in upper case and with underscores for\n"
            "dashes; flags win. launch takes PET_<OPTION> instead, as torchrun does.",
        .see_also = "braid-worker(1), braid-ps(8)"};
    bd_man_head(&page, out);
    bd_man_section("COMMANDS", out);
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        print_command("braid", cli_cmd_at(i), out);
    }
    bd_man_foot(&page, out);
}
