#include "cli/cli_torch.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_BYTES = 32, NAME_BYTES = 64 };

static const struct {
    const char *brief, *full;
} briefs[] = {{"-r", "--redirects"}, {"-t", "--tee"}, {"-m", "--module"}};

/* Options of torchrun's that are no options of ours. */
static const struct {
    const char *key;
    bool is_flag;
    const char *fine; /* "a|b": asks for what is so anyway */
    const char *why;
} foreign[] = {
    {"start_method", false, "spawn|fork|forkserver", "ranks are programs of their own"},
    {"event_log_handler", false, "null", "events are in the log"},
    {"logs_specs", false, "default", "log_dir, redirects and tee say where output goes"},
    {"signals_to_handle", false, "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     "SIGTERM, SIGINT, SIGHUP and SIGQUIT are handed on"},
    {"numa_binding", false, "", "start the launcher under numactl"},
    {"duplicate_stdout_filters", false, "", "local_ranks_filter chooses what is shown"},
    {"duplicate_stderr_filters", false, "", "local_ranks_filter chooses what is shown"},
    {"run_path", true, "", "a script runs in a python3 of its own"},
    {"virtual_local_rank", true, "", "every rank sees all devices of its host"},
};
enum { N_FOREIGN = sizeof foreign / sizeof foreign[0] };

/* Keys of rdzv_conf. */
static const struct {
    const char *name, *key;
} conf[] = {
    {"join_timeout", "join_timeout"},
    {"timeout", "join_timeout"},
    {"last_call_timeout", "last_call"},
    {"keep_alive_interval", "monitor_interval"},
    {"rank", "node_rank"},
    {"cacert", "tls_ca"},
    {"cert", "tls_cert"},
    {"key", "tls_key"},
};

/* ---- words ---- */
/* The flag's text up to its end or "=" is key, with dashes for underscores. */
static bool is_key(const char *flag, const char *key)
{
    size_t n = strcspn(flag, "=");
    bool same = strlen(key) == n;
    for (size_t k = 0; same && k < n; k++) {
        same = key[k] == (flag[k] == '-' ? '_' : flag[k]);
    }
    return same;
}

static const bd_opt *row_of(const bd_options *o, const char *flag)
{
    for (size_t i = 0; i < o->n; i++) {
        if (is_key(flag, o->table[i].key)) {
            return &o->table[i];
        }
    }
    return NULL;
}

static size_t foreign_of(const char *flag)
{
    size_t i = 0;
    while (i < N_FOREIGN && !is_key(flag, foreign[i].key)) {
        i++;
    }
    return i;
}

/* The flag without its dashes; "" for what is none. */
static const char *flag_of(const char *word)
{
    for (size_t b = 0; b < sizeof briefs / sizeof briefs[0]; b++) {
        if (strcmp(word, briefs[b].brief) == 0) {
            return briefs[b].full + 2;
        }
    }
    return strncmp(word, "--", 2) == 0 ? word + 2 : "";
}

/* torchrun's -m says that the program is a module; ours names it. The next word tells them apart. */
static bool is_module_flag(const char *flag, const char *next)
{
    return strcmp(flag, "module") == 0 && (next == NULL || next[0] == '-');
}

static bool has_value(const bd_options *o, const char *flag, const char *next)
{
    const bd_opt *row = row_of(o, flag);
    size_t f = foreign_of(flag);
    return strchr(flag, '=') == NULL && !is_module_flag(flag, next) &&
           (row != NULL ? row->type != BD_OPT_BOOL : f < N_FOREIGN && !foreign[f].is_flag);
}

int cli_torch_count_own(const bd_options *o, int argc, char **argv)
{
    int i = 1;
    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0) {
        bool value = has_value(o, flag_of(argv[i]), i + 1 < argc ? argv[i + 1] : NULL);
        bool module = value && strcmp(argv[i], "-m") == 0;
        i += value ? 2 : 1;
        if (module) {
            break;
        }
    }
    return i < argc ? i : argc;
}

/* ---- values ---- */
/* A number without a unit is in seconds, and no shorter than the row's least. */
static const char *in_our_form(const bd_opt *row, const char *value, char *room)
{
    char *end = NULL;
    double s = strtod(value, &end);
    if (row->type != BD_OPT_DURATION_MS || end == value || *end != '\0' || !isfinite(s) || s < 0 ||
        s > 1e9) {
        return value;
    }
    long long ms = llround(s * 1000);
    (void)snprintf(room, VALUE_BYTES, "%lldms",
                   ms < (long long)row->min ? (long long)row->min : ms);
    return room;
}

/* Of torchrun's options one is a time. */
static bool takes_seconds(const bd_opt *row)
{
    return strcmp(row->key, "monitor_interval") == 0;
}

static bd_status check_foreign(size_t f, const char *value, bd_err *err)
{
    size_t n = strlen(value);
    for (const char *c = foreign[f].fine; *c != '\0' && n > 0;) {
        size_t k = strcspn(c, "|");
        if (k == n && strncmp(c, value, n) == 0) {
            return BD_OK;
        }
        c += k + (c[k] == '|');
    }
    return bd_err_set(err, BD_E_USAGE, "%s%s%.64s has no meaning here: %s", foreign[f].key,
                      n > 0 ? " " : "", value, foreign[f].why);
}

/* ---- variables ---- */
static const char *variable(const char *prefix, const char *key, char *name)
{
    size_t n = (size_t)snprintf(name, NAME_BYTES, "%s%s", prefix, key);
    for (size_t k = 0; k < n && k < NAME_BYTES; k++) {
        bool lower = name[k] >= 'a' && name[k] <= 'z';
        name[k] = (char)(lower ? name[k] - 'a' + 'A' : name[k]);
    }
    const char *v = getenv(name); // NOLINT(concurrency-mt-unsafe): before any thread
    return v != NULL && v[0] != '\0' ? v : NULL;
}

static bd_status load_variable(bd_options *o, const char *prefix, const bd_opt *row,
                               bool *module_next, bd_err *err)
{
    char name[NAME_BYTES], room[VALUE_BYTES];
    const char *v = variable(prefix, row->key, name);
    if (v == NULL) {
        return BD_OK;
    }
    if (strcmp(row->key, "module") == 0 && (strcmp(v, "0") == 0 || strcmp(v, "1") == 0)) {
        *module_next = v[0] == '1'; /* torchrun's flag */
        return BD_OK;
    }
    v = takes_seconds(row) ? in_our_form(row, v, room) : v;
    return bd_options_set_env(o, row->key, v, name, err);
}

static bd_status load_env(bd_options *o, bool *module_next, bd_err *err)
{
    char name[NAME_BYTES];
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < o->n; i++) {
        const char *key = o->table[i].key;
        bool secret = strncmp(key, "tls_", 4) == 0 || strncmp(key, "token", 5) == 0;
        rc = load_variable(o, "PET_", &o->table[i], module_next, err);
        if (rc == BD_OK && secret) {
            rc = load_variable(o, "BRAID_", &o->table[i], module_next, err);
        }
    }
    for (size_t f = 0; rc == BD_OK && f < N_FOREIGN; f++) {
        const char *v = variable("PET_", foreign[f].key, name);
        bool off = v == NULL || (foreign[f].is_flag && strcmp(v, "0") == 0);
        rc = off ? BD_OK : check_foreign(f, v, err);
    }
    return rc;
}

/* ---- rdzv_conf ---- */
static bd_status set_conf(bd_options *o, const char *word, size_t n, bd_err *err)
{
    char room[VALUE_BYTES], value[256];
    const char *equal = memchr(word, '=', n);
    size_t n_name = equal != NULL ? (size_t)(equal - word) : 0, n_value = n - n_name;
    if (n_name == 0 || n_value < 2 || n_value > sizeof value) {
        return bd_err_set(err, BD_E_USAGE, "rdzv_conf: \"%.*s\" is not KEY=VALUE",
                          (int)(n < 64 ? n : 64), word);
    }
    memcpy(value, equal + 1, n_value - 1);
    value[n_value - 1] = '\0';
    for (size_t i = 0; i < sizeof conf / sizeof conf[0]; i++) {
        if (strlen(conf[i].name) == n_name && strncmp(conf[i].name, word, n_name) == 0) {
            const bd_opt *row = row_of(o, conf[i].key);
            if (row != NULL) {
                return bd_options_set_env(o, row->key, in_our_form(row, value, room), "rdzv_conf",
                                          err);
            }
        }
    }
    return bd_err_set(
        err, BD_E_USAGE,
        "rdzv_conf: \"%.*s\" has no meaning here; there are join_timeout (also timeout), "
        "last_call_timeout, keep_alive_interval, rank, cacert, cert, key",
        (int)(n_name < 64 ? n_name : 64), word);
}

static bd_status load_conf(bd_options *o, bd_err *err)
{
    const bd_opt *row = row_of(o, "rdzv_conf");
    bd_status rc = BD_OK;
    if (row == NULL) {
        return BD_OK;
    }
    const char *at = *(const char *const *)(const void *)((const char *)o->target + row->offset);
    while (rc == BD_OK && *at != '\0') {
        size_t n = strcspn(at, ",");
        rc = set_conf(o, at, n, err);
        at += n + (at[n] == ',');
    }
    return rc;
}

/* ---- flags ---- */
/* Takes what is torchrun's way out of own [*n]; the rest stays for the options. */
static bd_status take_words(bd_options *o, int *n, char **own, bool *module_next, bd_err *err)
{
    bd_status rc = BD_OK;
    int kept = 1;
    for (int i = 1; rc == BD_OK && i < *n;) {
        char room[VALUE_BYTES];
        const char *flag = flag_of(own[i]), *next = i + 1 < *n ? own[i + 1] : NULL;
        const char *equal = strchr(flag, '=');
        const bd_opt *row = row_of(o, flag);
        size_t f = foreign_of(flag);
        bool apart = has_value(o, flag, next);
        const char *value = equal != NULL ? equal + 1 : apart ? next : NULL;
        int words = apart && next != NULL ? 2 : 1;
        if (is_module_flag(flag, next)) {
            *module_next = true;
        } else if (f < N_FOREIGN) {
            rc = check_foreign(f, value != NULL ? value : "", err);
        } else if (row != NULL && takes_seconds(row) && value != NULL) {
            rc = bd_options_set(o, row->key, in_our_form(row, value, room), own[i], err);
        } else {
            union { /* argv is not written to */
                const char *in;
                char *out;
            } full = {.in = own[i]};
            for (size_t b = 0; b < sizeof briefs / sizeof briefs[0]; b++) {
                full.in = strcmp(own[i], briefs[b].brief) == 0 ? briefs[b].full : full.in;
            }
            own[kept++] = full.out;
            for (int k = 1; k < words; k++) {
                own[kept++] = own[i + k];
            }
        }
        i += words;
    }
    *n = kept;
    return rc;
}

bd_status cli_torch_load(bd_options *o, int n_own, char **argv, bool *module_next, bd_err *err)
{
    *module_next = false;
    bd_status rc = load_env(o, module_next, err);
    char **own = bd_calloc((size_t)n_own + 1, sizeof *own); /* what is parsed is moved about */
    if (own == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "command line");
    }
    memcpy(own, argv, (size_t)n_own * sizeof *own);
    rc = rc == BD_OK ? take_words(o, &n_own, own, module_next, err) : rc;
    rc = rc == BD_OK ? bd_options_load_args(o, &n_own, own, err) : rc;
    rc = rc == BD_OK ? load_conf(o, err) : rc;
    rc = rc == BD_OK ? bd_options_check(o, err) : rc;
    if (rc == BD_OK && n_own > 1) {
        rc = bd_err_set(err, BD_E_USAGE, "launch: what is \"%.200s\" for?", own[1]);
    }
    bd_free(own);
    return rc;
}
