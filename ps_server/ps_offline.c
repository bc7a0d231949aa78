#include "ps_server/ps_offline.h"

#include "base/exit_code.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(ps_offline_options, field)

static const bd_opt table[] = {
    {"data_dir", BD_OPT_LIST, AT(data_dir), "", 0, 0, NULL,
     "Data folders of servers, separated by commas, or folders of such."},
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL, "Folder of a run of `braid run`."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json", "What is printed."},
    {"keep", BD_OPT_I64, AT(keep), "3", 0, 1000000, NULL,
     "prune: how many of the newest whole checkpoints stay."},
    {"yes", BD_OPT_BOOL, AT(yes), "false", 0, 0, NULL,
     "prune: do it; without it, only what would go is shown."},
    {"top", BD_OPT_I64, AT(top), "20", 1, 1000000, NULL, "hot: how many keys."},
    {"output", BD_OPT_STR, AT(output), "", 0, 0, NULL,
     "export: file to write; .tsv, or .npy for keys and rows apart."},
    {"with_state", BD_OPT_BOOL, AT(with_state), "false", 0, 0, NULL,
     "Optimiser state beside the weights."},
};

static int fail(const bd_err *err, int code)
{
    (void)fprintf(stderr, "error: %s\n", bd_err_text(err));
    return code != 0 ? code : err->code == BD_E_CORRUPT ? BD_EXIT_DATA : bd_exit_code(err->code);
}

static bd_status find_folders(ps_offline *o, const char **folders, bd_err *err)
{
    for (size_t i = 0; i < o->opt.data_dir.n; i++) {
        folders[o->n_folders++] = o->opt.data_dir.items[i];
    }
    if (o->opt.run_dir[0] != '\0') {
        folders[o->n_folders++] = o->opt.run_dir;
    }
    o->folders = folders;
    return o->n_folders > 0
               ? BD_OK
               : bd_err_set(err, BD_E_USAGE, "--run-dir DIR or --data-dir DIR[,DIR...] is missing");
}

static bd_status run(ps_offline *o, int argc, char **argv, bd_err *err)
{
    if (argc < 3) {
        return bd_err_set(err, BD_E_USAGE, "--offline ckpt|table VERB ...");
    }
    o->n_words = argc - 3;
    o->words = argv + 3;
    o->json = strcmp(o->opt.format, "json") == 0;
    if (strcmp(argv[1], "ckpt") == 0) {
        return ps_offline_ckpt(o, argv[2], err);
    }
    if (strcmp(argv[1], "table") == 0) {
        return ps_offline_table(o, argv[2], err);
    }
    return bd_err_set(err, BD_E_USAGE, "--offline \"%.64s\": ckpt or table", argv[1]);
}

int ps_offline_main(int argc, char **argv)
{
    ps_offline o = {.out = stdout};
    bd_options options;
    bd_err err = BD_ERR_INIT;
    const char **folders = NULL;
    bd_log_set_level(BD_LOG_ERROR);
    argv[1] = argv[0];
    argc--;
    argv++;
    bd_status rc = bd_options_init(&options, table, sizeof table / sizeof table[0], &o.opt, &err);
    if (rc == BD_OK) {
        rc = bd_options_load_args(&options, &argc, argv, &err);
    }
    if (rc == BD_OK) {
        folders = bd_calloc(o.opt.data_dir.n + 2, sizeof *folders);
        rc = folders == NULL ? bd_err_set(&err, BD_E_NOMEM, "no memory")
                             : find_folders(&o, folders, &err);
    }
    if (rc == BD_OK) {
        rc = run(&o, argc, argv, &err);
    }
    if (rc == BD_OK && fflush(stdout) != 0) {
        rc = bd_err_set(&err, BD_E_IO, "write to stdout failed");
    }
    bd_options_deinit(&options);
    bd_free(folders);
    return rc == BD_OK ? o.exit_code : fail(&err, o.exit_code);
}
