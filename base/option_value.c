/* The text forms of option values. */
#include "base/option_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit;

static const unit count_units[] = {{"", 1}, {"k", 1000}, {"m", 1000000}, {"g", 1000000000}};
static const unit byte_units[] = {{"B", 1},
                                  {"KiB", (int64_t)1 << 10},
                                  {"MiB", (int64_t)1 << 20},
                                  {"GiB", (int64_t)1 << 30},
                                  {"TiB", (int64_t)1 << 40}};
static const unit time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

static bd_status fail(char *why, const char *text)
{
    (void)snprintf(why, BD_OPT_WHY_BYTES, "%s", text);
    return BD_E_USAGE;
}

static bd_status check_bounds(const bd_opt *row, double v, char *why)
{
    if (row->min == 0 && row->max == 0) {
        return BD_OK;
    }
    if (v < row->min || v > row->max) {
        (void)snprintf(why, BD_OPT_WHY_BYTES, "must be from %.15g to %.15g", row->min, row->max);
        return BD_E_USAGE;
    }
    return BD_OK;
}

/* A whole number with one of the units; a bare 0 needs none. */
static bd_status parse_whole(const bd_opt *row, const char *text, const unit *units, size_t n_units,
                             const char *form, int64_t *out, char *why)
{
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || isspace((unsigned char)*text)) {
        return fail(why, form);
    }
    if (errno == ERANGE) {
        return fail(why, "is too large");
    }
    int64_t factor = v == 0 && *end == '\0' ? 1 : 0;
    for (size_t i = 0; i < n_units; i++) {
        if (strcmp(end, units[i].name) == 0) {
            factor = units[i].factor;
        }
    }
    if (factor == 0) {
        return fail(why, form);
    }
    int64_t scaled;
    if (__builtin_mul_overflow((int64_t)v, factor, &scaled)) {
        return fail(why, "is too large");
    }
    bd_status rc = check_bounds(row, (double)scaled, why);
    if (rc == BD_OK) {
        *out = scaled;
    }
    return rc;
}

static bd_status parse_f64(const bd_opt *row, const char *text, double *out, char *why)
{
    char *end = NULL;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || isspace((unsigned char)*text) || !isfinite(v)) {
        return fail(why, "is not a number");
    }
    bd_status rc = check_bounds(row, v, why);
    if (rc == BD_OK) {
        *out = v;
    }
    return rc;
}

static bd_status parse_bool(const char *text, bool *out, char *why)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"true", true},   {"yes", true}, {"on", true},   {"1", true},
                 {"false", false}, {"no", false}, {"off", false}, {"0", false}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].word) == 0) {
            *out = words[i].value;
            return BD_OK;
        }
    }
    return fail(why, "is neither true nor false");
}

static bd_status parse_enum(const bd_opt *row, const char *text, bd_arena *arena, const char **out,
                            char *why)
{
    size_t len = strlen(text);
    for (const char *c = row->choices; *c != '\0';) {
        size_t n = strcspn(c, "|");
        if (n == len && strncmp(c, text, n) == 0) {
            const char *copy = bd_arena_strdup(arena, text);
            if (copy == NULL) {
                return BD_E_NOMEM;
            }
            *out = copy;
            return BD_OK;
        }
        c += n + (c[n] == '|' ? 1 : 0);
    }
    (void)snprintf(why, BD_OPT_WHY_BYTES, "is not one of %s", row->choices);
    return BD_E_USAGE;
}

/* Comma-separated, blanks around items dropped; empty text is an empty list. */
static bd_status parse_list(const char *text, bd_arena *arena, bd_str_list *out)
{
    size_t n = 1;
    for (const char *c = text; *c != '\0'; c++) {
        n += *c == ',' ? 1 : 0;
    }
    char *copy = bd_arena_strdup(arena, text);
    const char **items = bd_arena_calloc(arena, n, sizeof *items);
    if (copy == NULL || items == NULL) {
        return BD_E_NOMEM;
    }
    bd_str_list list = {.items = items, .n = 0};
    char *rest = copy;
    for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ",")) {
        item += strspn(item, " \t");
        for (size_t len = strlen(item); len > 0 && strchr(" \t", item[len - 1]) != NULL;) {
            item[--len] = '\0';
        }
        if (*item != '\0') {
            items[list.n++] = item;
        }
    }
    *out = list;
    return BD_OK;
}

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

bd_status bd_opt_parse(const bd_opt *row, const char *text, bd_arena *arena, void *field, char *why)
{
    switch (row->type) {
    case BD_OPT_I64:
        return parse_whole(row, text, count_units, N_OF(count_units), "is not a whole number",
                           field, why);
    case BD_OPT_BYTES:
        return parse_whole(row, text, byte_units, N_OF(byte_units),
                           "is not a size with its unit, such as 512B, 64KiB, 1MiB or 2GiB", field,
                           why);
    case BD_OPT_DURATION_MS:
        return parse_whole(row, text, time_units, N_OF(time_units),
                           "is not a duration with its unit, such as 500ms, 10s, 5m or 1h", field,
                           why);
    case BD_OPT_F64:
        return parse_f64(row, text, field, why);
    case BD_OPT_BOOL:
        return parse_bool(text, field, why);
    case BD_OPT_ENUM:
        return parse_enum(row, text, arena, field, why);
    case BD_OPT_LIST:
        return parse_list(text, arena, field);
    case BD_OPT_STR: {
        const char *copy = bd_arena_strdup(arena, text);
        if (copy == NULL) {
            return BD_E_NOMEM;
        }
        *(const char **)field = copy;
        return BD_OK;
    }
    default:
        return fail(why, "has a type that does not exist");
    }
}
