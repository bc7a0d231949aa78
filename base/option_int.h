/* base/option_int.h - what the files of the option table share. Layer: base, private to option*.c.
 */
#ifndef BD_OPTION_INT_H
#define BD_OPTION_INT_H

#include "base/option.h"

typedef enum bd_opt_rank {
    BD_OPT_FROM_DEFAULT,
    BD_OPT_FROM_YAML,
    BD_OPT_FROM_ENV,
    BD_OPT_FROM_FLAG,
    BD_OPT_UNSET /* required and not given yet; below every other when compared (see accepts) */
} bd_opt_rank;

struct bd_opt_source {
    bd_opt_rank rank;
    const char *where; /* arena: "job.yaml:7", "environment BRAID_X", "--set", "default" */
    const char *text;  /* arena: the value as written; lists joined by ", " */
    int load_no;       /* which YAML load set it: two in one load are a duplicate */
};

enum { BD_OPT_KEY_BYTES = 128, BD_OPT_WHY_BYTES = 256 };

/* Parses text into the field. On failure `why` (BD_OPT_WHY_BYTES) says what is wrong with it. */
bd_status bd_opt_parse(const bd_opt *row, const char *text, bd_arena *arena, void *field,
                       char *why);
void *bd_opt_field(const bd_options *o, const bd_opt *row);

/* Row index of key, or -1. */
int bd_opt_find(const bd_options *o, const char *key);
/* BD_E_USAGE: unknown key, with the nearest right one. */
bd_status bd_opt_unknown(const bd_options *o, const char *where, const char *key, bd_err *err);
/* Sets row i from text if the rank lets it. */
bd_status bd_opt_put(bd_options *o, size_t i, const char *text, bd_opt_rank rank, const char *where,
                     bd_err *err);
/* The same for a LIST given item by item. */
bd_status bd_opt_put_list(bd_options *o, size_t i, const char *const *items, size_t n,
                          bd_opt_rank rank, const char *where, bd_err *err);

#endif
