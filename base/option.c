#include "base/option.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/option_int.h"

#include <stdlib.h>
#include <string.h>

void *bd_opt_field(const bd_options *o, const bd_opt *row)
{
    return (char *)o->target + row->offset;
}

int bd_opt_find(const bd_options *o, const char *key)
{
    for (size_t i = 0; i < o->n; i++) {
        if (strcmp(o->table[i].key, key) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static size_t field_bytes(bd_opt_type type)
{
    switch (type) {
    case BD_OPT_BOOL:
        return sizeof(bool);
    case BD_OPT_LIST:
        return sizeof(bd_str_list);
    default:
        return sizeof(int64_t); /* also a double or a pointer */
    }
}

bd_status bd_options_init(bd_options *o, const bd_opt *table, size_t n, void *target, bd_err *err)
{
    _Static_assert(sizeof(double) == sizeof(int64_t) && sizeof(char *) == sizeof(int64_t),
                   "one size for scalar fields");
    *o = (bd_options){.table = table, .n = n, .target = target};
    bd_arena_init(&o->arena);
    o->sources = bd_arena_calloc(&o->arena, n, sizeof *o->sources);
    if (o->sources == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "options");
    }
    for (size_t i = 0; i < n; i++) {
        const bd_opt *row = &table[i];
        BD_ASSERT(strlen(row->key) < BD_OPT_KEY_BYTES);
        BD_ASSERT(bd_opt_find(o, row->key) == (int)i); /* each key once */
        memset(bd_opt_field(o, row), 0, field_bytes(row->type));
        o->sources[i].rank = BD_OPT_UNSET;
        if (row->def != NULL) {
            bd_status rc = bd_opt_put(o, i, row->def, BD_OPT_FROM_DEFAULT, "default", err);
            if (rc != BD_OK) {
                return rc;
            }
        }
    }
    return BD_OK;
}

void bd_options_deinit(bd_options *o)
{
    bd_arena_deinit(&o->arena);
    *o = (bd_options){0};
}

static bool accepts(const struct bd_opt_source *have, bd_opt_rank rank)
{
    return have->rank == BD_OPT_UNSET || rank >= have->rank;
}

/* Notes where the value came from. The field is written only after this, so that a failure leaves
 * it as it was. */
static bd_status note_source(bd_options *o, size_t i, const char *text, bd_opt_rank rank,
                             const char *where)
{
    char *text_copy = bd_arena_strdup(&o->arena, text);
    char *where_copy = bd_arena_strdup(&o->arena, where);
    if (text_copy == NULL || where_copy == NULL) {
        return BD_E_NOMEM;
    }
    o->sources[i].rank = rank;
    o->sources[i].text = text_copy;
    o->sources[i].where = where_copy;
    return BD_OK;
}

bd_status bd_opt_put(bd_options *o, size_t i, const char *text, bd_opt_rank rank, const char *where,
                     bd_err *err)
{
    const bd_opt *row = &o->table[i];
    char why[BD_OPT_WHY_BYTES] = "";
    union {
        int64_t i;
        double f;
        bool b;
        const char *s;
        bd_str_list list;
    } value = {0};
    bd_status rc = bd_opt_parse(row, text, &o->arena, &value, why);
    if (rc == BD_E_USAGE) {
        return bd_err_set(err, rc, "%s: %s: \"%s\" %s (%s)", where, row->key, text, why, row->help);
    }
    if (rc == BD_OK && accepts(&o->sources[i], rank)) {
        rc = note_source(o, i, text, rank, where);
        if (rc == BD_OK) {
            memcpy(bd_opt_field(o, row), &value, field_bytes(row->type));
        }
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "%s: %s", where, row->key);
}

bd_status bd_opt_put_list(bd_options *o, size_t i, const char *const *items, size_t n,
                          bd_opt_rank rank, const char *where, bd_err *err)
{
    const bd_opt *row = &o->table[i];
    if (!accepts(&o->sources[i], rank)) {
        return BD_OK;
    }
    size_t joined_bytes = 1;
    for (size_t k = 0; k < n; k++) {
        joined_bytes += strlen(items[k]) + 2;
    }
    char *joined = bd_arena_alloc(&o->arena, joined_bytes);
    const char **copies = bd_arena_calloc(&o->arena, n, sizeof *copies);
    if (joined == NULL || copies == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: %s", where, row->key);
    }
    size_t at = 0;
    joined[0] = '\0';
    for (size_t k = 0; k < n; k++) {
        copies[k] = bd_arena_strdup(&o->arena, items[k]);
        if (copies[k] == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "%s: %s", where, row->key);
        }
        at +=
            (size_t)snprintf(joined + at, joined_bytes - at, "%s%s", k == 0 ? "" : ", ", items[k]);
    }
    bd_status rc = note_source(o, i, joined, rank, where);
    if (rc == BD_OK) {
        *(bd_str_list *)bd_opt_field(o, row) = (bd_str_list){.items = copies, .n = n};
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "%s: %s", where, row->key);
}

/* A key that ends in ".word": what was meant when the section was left out. */
static const char *with_section(const bd_options *o, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i < o->n; i++) {
        size_t n = strlen(o->table[i].key);
        if (n > len + 1 && o->table[i].key[n - len - 1] == '.' &&
            strcmp(o->table[i].key + n - len, word) == 0) {
            return o->table[i].key;
        }
    }
    return NULL;
}

static bool is_section(const bd_options *o, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i < o->n; i++) {
        if (strncmp(o->table[i].key, key, len) == 0 && o->table[i].key[len] == '.') {
            return true;
        }
    }
    return false;
}

bd_status bd_opt_unknown(const bd_options *o, const char *where, const char *key, bd_err *err)
{
    if (is_section(o, key)) {
        return bd_err_set(err, BD_E_USAGE, "%s: %s: is a section, not a value", where, key);
    }
    const char *meant = with_section(o, key);
    if (meant == NULL) {
        const char **keys = bd_calloc(o->n, sizeof *keys);
        if (keys != NULL) {
            for (size_t i = 0; i < o->n; i++) {
                keys[i] = o->table[i].key;
            }
            meant = bd_nearest(key, keys, o->n);
        }
        bd_free(keys);
    }
    return meant == NULL ? bd_err_set(err, BD_E_USAGE, "%s: %s: unknown key", where, key)
                         : bd_err_set(err, BD_E_USAGE, "%s: %s: unknown key, did you mean %s?",
                                      where, key, meant);
}

bd_status bd_options_set(bd_options *o, const char *key, const char *value, const char *where,
                         bd_err *err)
{
    int i = bd_opt_find(o, key);
    return i < 0 ? bd_opt_unknown(o, where, key, err)
                 : bd_opt_put(o, (size_t)i, value, BD_OPT_FROM_FLAG, where, err);
}

bd_status bd_options_set_env(bd_options *o, const char *key, const char *value, const char *where,
                             bd_err *err)
{
    int i = bd_opt_find(o, key);
    return i < 0 ? bd_opt_unknown(o, where, key, err)
                 : bd_opt_put(o, (size_t)i, value, BD_OPT_FROM_ENV, where, err);
}

/* "BRAID_TRAIN_BATCH" for "train.batch". */
static void env_name(const char *key, char name[BD_OPT_KEY_BYTES + 8])
{
    (void)snprintf(name, BD_OPT_KEY_BYTES + 8, "BRAID_%s", key);
    for (char *c = name; *c != '\0'; c++) {
        if (*c >= 'a' && *c <= 'z') {
            *c = (char)(*c - 'a' + 'A');
        } else if (*c == '.') {
            *c = '_';
        }
    }
}

bd_status bd_options_load_env(bd_options *o, bd_err *err)
{
    for (size_t i = 0; i < o->n; i++) {
        char name[BD_OPT_KEY_BYTES + 8], where[BD_OPT_KEY_BYTES + 32];
        env_name(o->table[i].key, name);
        const char *value = getenv(name); // NOLINT(concurrency-mt-unsafe): at start, one thread
        if (value == NULL) {
            continue;
        }
        (void)snprintf(where, sizeof where, "environment %s", name);
        bd_status rc = bd_opt_put(o, i, value, BD_OPT_FROM_ENV, where, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    return BD_OK;
}

/* `key=value` behind --set. */
static bd_status set_pair(bd_options *o, const char *pair, bd_err *err)
{
    const char *eq = strchr(pair, '=');
    char key[BD_OPT_KEY_BYTES];
    if (eq == NULL || eq == pair || (size_t)(eq - pair) >= sizeof key) {
        return bd_err_set(err, BD_E_USAGE, "--set: \"%s\" is not key=value", pair);
    }
    memcpy(key, pair, (size_t)(eq - pair));
    key[eq - pair] = '\0';
    return bd_options_set(o, key, eq + 1, "--set", err);
}

/* One flag. next: the argument behind it or NULL; *n_taken: how many arguments it used. */
static bd_status take_flag(bd_options *o, const char *arg, const char *next, int *n_taken,
                           bd_err *err)
{
    char key[BD_OPT_KEY_BYTES] = "", where[BD_OPT_KEY_BYTES + 2];
    size_t n = strcspn(arg, "=");
    const char *value = arg[n] == '=' ? arg + n + 1 : NULL;
    if (strncmp(arg, "--", 2) != 0 || n - 2 >= sizeof key) {
        return bd_err_set(err, BD_E_USAGE, "%s: unknown flag", arg);
    }
    for (size_t i = 2; i < n; i++) {
        key[i - 2] = arg[i] == '-' ? '_' : arg[i];
    }
    key[n - 2] = '\0';
    (void)snprintf(where, sizeof where, "%.*s", (int)n, arg);
    bool is_set = strcmp(key, "set") == 0;
    int row = bd_opt_find(o, key);
    *n_taken = 1;
    if (!is_set && row < 0) {
        return bd_opt_unknown(o, where, key, err);
    }
    if (!is_set && value == NULL && o->table[row].type == BD_OPT_BOOL) {
        value = "true";
    }
    if (value == NULL) {
        if (next == NULL) {
            return bd_err_set(err, BD_E_USAGE, "%s: needs a value", where);
        }
        value = next;
        *n_taken = 2;
    }
    return is_set ? set_pair(o, value, err)
                  : bd_opt_put(o, (size_t)row, value, BD_OPT_FROM_FLAG, where, err);
}

bd_status bd_options_load_args(bd_options *o, int *argc, char **argv, bd_err *err)
{
    int kept = *argc > 0 ? 1 : 0;
    int i = kept;
    while (i < *argc) {
        const char *arg = argv[i];
        if (strcmp(arg, "--") == 0) {
            i++;
            break;
        }
        if (arg[0] != '-' || arg[1] == '\0') { /* "-" alone names standard input */
            argv[kept++] = argv[i++];
            continue;
        }
        int n_taken = 0;
        bd_status rc = take_flag(o, arg, i + 1 < *argc ? argv[i + 1] : NULL, &n_taken, err);
        if (rc != BD_OK) {
            return rc;
        }
        i += n_taken;
    }
    while (i < *argc) {
        argv[kept++] = argv[i++];
    }
    *argc = kept;
    argv[kept] = NULL;
    return BD_OK;
}

bd_status bd_options_check(const bd_options *o, bd_err *err)
{
    for (size_t i = 0; i < o->n; i++) {
        if (o->sources[i].rank == BD_OPT_UNSET) {
            return bd_err_set(err, BD_E_USAGE, "%s: is required (%s)", o->table[i].key,
                              o->table[i].help);
        }
    }
    return BD_OK;
}

enum { MAX_WORD = 127 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Insertions, deletions, replacements and swaps of neighbours. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][MAX_WORD + 1]; /* of b: two back, previous, current */
    size_t *back = rows[0], *prev = rows[1], *cur = rows[2];
    for (size_t j = 0; j <= nb; j++) {
        prev[j] = j;
    }
    memcpy(back, prev, sizeof rows[0]);
    for (size_t i = 1; i <= na; i++) {
        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t replace = prev[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            cur[j] = min3(prev[j] + 1, cur[j - 1] + 1, replace);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                back[j - 2] + 1 < cur[j]) {
                cur[j] = back[j - 2] + 1;
            }
        }
        size_t *oldest = back;
        back = prev;
        prev = cur;
        cur = oldest;
    }
    return prev[nb];
}

const char *bd_nearest(const char *word, const char *const *candidates, size_t n)
{
    size_t len = strlen(word);
    size_t limit = len / 3 > 2 ? len / 3 : 2;
    const char *best = NULL;
    if (len > MAX_WORD) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        size_t n_cand = strlen(candidates[i]);
        if (n_cand > MAX_WORD) {
            continue;
        }
        size_t d = edit_distance(word, len, candidates[i], n_cand);
        if (d <= limit && d < len) {
            best = candidates[i];
            limit = d == 0 ? 0 : d - 1; /* only a nearer one replaces it */
            if (d == 0) {
                break;
            }
        }
    }
    return best;
}
