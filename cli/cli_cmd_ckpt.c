/* `braid ckpt list|verify|diff|prune`: checkpoints on this host's disks. */
#include "base/exit_code.h"

#include "cli/cli_cmd.h"
#include "cli/cli_offline.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

typedef struct ckpt_flags {
    const char *run_dir, *format, *ps_bin;
    bd_str_list data_dir;
    int64_t keep;
    bool yes;
} ckpt_flags;

#define AT(field) offsetof(ckpt_flags, field)

static const bd_opt table[] = {
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,
     "Folder of a run of `braid run`: its servers' checkpoints and the trainer's."},
    {"data_dir", BD_OPT_LIST, AT(data_dir), "", 0, 0, NULL,
     "Data folders of servers, separated by commas, or folders of such."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json", "What is printed; also -o."},
    {"keep", BD_OPT_I64, AT(keep), "3", 0, 1000000, NULL,
     "prune: how many of the newest whole checkpoints stay."},
    {"yes", BD_OPT_BOOL, AT(yes), "false", 0, 0, NULL,
     "prune: do it; without it, only what would go is shown."},
    {"ps_bin", BD_OPT_STR, AT(ps_bin), "", 0, 0, NULL,
     "Path of braid-ps, which does the work; empty: beside braid."},
};

static void add_folders(const ckpt_flags *f, cli_args *args)
{
    if (f->run_dir[0] != '\0') {
        cli_args_add(args, "--run-dir");
        cli_args_add(args, "%s", f->run_dir);
    }
    for (size_t i = 0; i < f->data_dir.n; i++) {
        cli_args_add(args, "--data-dir");
        cli_args_add(args, "%s", f->data_dir.items[i]);
    }
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    ckpt_flags f = {0};
    bd_options o;
    cli_args args = {0};
    (void)io;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = bd_options_load_env(&o, err);
    if (rc == BD_OK) {
        rc = bd_options_load_args(&o, &argc, argv, err);
    }
    if (rc == BD_OK && argc < 2) {
        rc = bd_err_set(err, BD_E_USAGE,
                        "ckpt: list, verify, diff or prune is missing; `braid help ckpt`");
    }
    if (rc == BD_OK) {
        cli_args_add(&args, "ckpt");
        for (int i = 1; i < argc; i++) {
            cli_args_add(&args, "%s", argv[i]);
        }
        add_folders(&f, &args);
        cli_args_add(&args, "--format");
        cli_args_add(&args, "%s", f.format);
        cli_args_add(&args, "--keep");
        cli_args_add(&args, "%" PRId64, f.keep);
        cli_args_add(&args, "--yes=%s", f.yes ? "true" : "false");
        rc = cli_offline_become(f.ps_bin, &args, err);
    }
    cli_args_deinit(&args);
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_cmd_ckpt = {
    .name = "ckpt",
    .usage = "list --run-dir DIR | --data-dir DIR[,DIR...] [-o table|json]\n"
             "       braid ckpt verify [NAME] ...    every checksum and every row; 3: damaged\n"
             "       braid ckpt diff NAME NAME ...   what changed, by table; 1: something did\n"
             "       braid ckpt prune --keep N [--yes] ...",
    .help = "Checkpoints on this host's disks: which there are, are they whole, what differs.",
    CLI_OPTIONS(table),
    .verbs = "list|verify|diff|prune",
    .words = "file",
    .run = run};
