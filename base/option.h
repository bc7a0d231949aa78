/* base/option.h - options as one table: YAML keys, flags, environment, bounds, help and docs.
 *
 * Layer:   base.
 * Threads: parse at start, on one thread; the filled struct is read-only afterwards.
 * Source order: default < YAML file < environment (BRAID_<KEY>, dots as underscores, upper case) <
 *          flags (`--data.train=x`, `--data.train x`, or `--set data.train=x`), whatever order they
 *          are loaded in; of two values of one kind the later wins. bd_options_print says for each
 *          key where its value came from.
 * YAML:    nested mappings join with dots. A key twice in one file, a key that is not in the table
 *          and a list of mappings are errors.
 * Errors:  BD_E_USAGE with one line: file:line, the key, the row's help, and for an unknown key the
 *          nearest right one.
 *
 * Types and their text forms:
 *   I64 (k, m, g suffixes = 10^3..), F64, BOOL (true/false/yes/no/on/off), STR, ENUM (one of
 * `choices`), BYTES (needs a unit: 64KiB, 1MiB, 2GiB, 512B), DURATION_MS (needs a unit: 500ms, 10s,
 * 5m, 1h), LIST of strings (YAML sequence, or comma-separated text).
 */
#ifndef BD_OPTION_H
#define BD_OPTION_H

#include "base/arena.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum bd_opt_type {
    BD_OPT_I64,
    BD_OPT_F64,
    BD_OPT_BOOL,
    BD_OPT_STR,
    BD_OPT_ENUM,
    BD_OPT_BYTES,
    BD_OPT_DURATION_MS,
    BD_OPT_LIST
} bd_opt_type;

typedef struct bd_str_list {
    const char **items; /* owned by the options' arena */
    size_t n;
} bd_str_list;

/* One row. The value lands at `offset` of the caller's struct: int64_t, double, bool, const char *
 * (STR, ENUM), int64_t (BYTES, DURATION_MS), bd_str_list. */
typedef struct bd_opt {
    const char *key; /* "train.batch" */
    bd_opt_type type;
    size_t offset;
    const char *def;     /* as a user would write it; NULL: required */
    double min, max;     /* numbers, bytes, ms; min == max == 0: no bounds */
    const char *choices; /* ENUM: "a|b|c" */
    const char *help;    /* one sentence, with unit */
} bd_opt;

typedef struct bd_options {
    const bd_opt *table;
    size_t n;
    void *target;                  /* borrowed: the caller's struct */
    bd_arena arena;                /* owns the strings of the values */
    struct bd_opt_source *sources; /* [n] where each value came from */
} bd_options;

/* Sets every default. The table and the target are borrowed until deinit. */
bd_status bd_options_init(bd_options *o, const bd_opt *table, size_t n, void *target,
                          bd_err *err) BD_MUST_CHECK;
void bd_options_deinit(bd_options *o);
bd_status bd_options_load_yaml(bd_options *o, const char *path, bd_err *err) BD_MUST_CHECK;
bd_status bd_options_load_env(bd_options *o, bd_err *err) BD_MUST_CHECK;
/* One `key=value`. where: for errors and bd_options_print, e.g. "--set". */
bd_status bd_options_set(bd_options *o, const char *key, const char *value, const char *where,
                         bd_err *err) BD_MUST_CHECK;
/* The same with the weight of an environment variable, before bd_options_load_env: BRAID_<KEY> wins
 * over it. For variables of other names. */
bd_status bd_options_set_env(bd_options *o, const char *key, const char *value, const char *where,
                             bd_err *err) BD_MUST_CHECK;
/* Takes `--key value`, `--key=value`, `--flag` (BOOL) and `--set key=value` out of argv (dashes in
 * a flag stand for underscores); what is left (positional arguments) stays in argv, *argc adjusted.
 * A `--` ends the flags. An unknown flag is an error with the nearest right one. */
bd_status bd_options_load_args(bd_options *o, int *argc, char **argv, bd_err *err) BD_MUST_CHECK;
/* Required keys that no source has set: an error naming the first. */
bd_status bd_options_check(const bd_options *o, bd_err *err) BD_MUST_CHECK;

/* key: value  # source */
void bd_options_print(const bd_options *o, FILE *out);
/* One JSON object with nested keys; owned text (bd_free). NULL: no memory. */
char *bd_options_json(const bd_options *o);
/* As one of the two, for --print-config. */
bd_status bd_options_show(const bd_options *o, bool json, FILE *out, bd_err *err) BD_MUST_CHECK;
/* Flags with defaults, bounds and help. */
void bd_options_help(const bd_opt *table, size_t n, FILE *out);
/* A Markdown table of the options (docs/JOBS.md is made of it). */
void bd_options_markdown(const bd_opt *table, size_t n, FILE *out);

/* The candidate with the smallest edit distance to word, NULL when none is near (> a third of the
 * length and > 2). */
const char *bd_nearest(const char *word, const char *const *candidates, size_t n);

#endif
