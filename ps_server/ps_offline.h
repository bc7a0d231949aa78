/* ps_server/ps_offline.h - `braid-ps --offline ...`: tools for what servers left on the disk.
 * `braid ckpt` and `braid table --data-dir` start it.
 *
 * Layer:   ps_server. One thread. Serves nothing; ps_offline_ckpt.c, ps_offline_table.c.
 * Output:  tables or JSON on standard output; exit codes: base/exit_code.h, and 3 for damage.
 */
#ifndef PS_OFFLINE_H
#define PS_OFFLINE_H

#include "base/option.h"

typedef struct ps_offline_options {
    bd_str_list data_dir; /* server folders */
    const char *run_dir;
    const char *format;
    const char *output;
    int64_t keep, top;
    bool yes, with_state;
} ps_offline_options;

typedef struct ps_offline {
    ps_offline_options opt;
    const char *const *folders; /* [n_folders] */
    size_t n_folders;
    int n_words;
    char *const *words; /* positional, after the verb */
    bool json;
    FILE *out;
    int exit_code; /* when the verb ends with BD_OK */
} ps_offline;

/* argv[1] is "--offline". Returns the exit code. */
int ps_offline_main(int argc, char **argv);

/* ---- verbs; BD_E_USAGE when the words do not fit ---- */
bd_status ps_offline_ckpt(ps_offline *o, const char *verb, bd_err *err) BD_MUST_CHECK;
bd_status ps_offline_table(ps_offline *o, const char *verb, bd_err *err) BD_MUST_CHECK;

#endif
