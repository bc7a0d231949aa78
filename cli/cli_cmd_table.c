/* `braid table ...`: tables of running servers, or (--data-dir) of stopped ones. */
#include "cli/cli_cmd_table.h"

#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_offline.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(field)  offsetof(table_flags, field)
#define SEC(field) offsetof(table_flags, security.field)

static const bd_opt table[] = {
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL, "host:port of server 0."},
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,
     "Folder of a run of `braid run` on this host, instead of --coordinator."},
    {"data_dir", BD_OPT_LIST, AT(data_dir), "", 0, 0, NULL,
     "Data folders of stopped servers, separated by commas, or folders of such: works without "
     "servers."},
    {"timeout", BD_OPT_DURATION_MS, AT(timeout_ms), "30s", 100, 600000, NULL,
     "How long one question may take."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json", "What is printed; also -o."},
    {"output", BD_OPT_STR, AT(output), "", 0, 0, NULL,
     "export: the file; .tsv, or .npy, which makes FILE.keys.npy, FILE.rows.npy and so on."},
    {"input", BD_OPT_STR, AT(input), "", 0, 0, NULL, "import: such a file."},
    {"with_state", BD_OPT_BOOL, AT(with_state), "false", 0, 0, NULL,
     "get, export, import: optimiser state beside the weights."},
    {"top", BD_OPT_I64, AT(top), "20", 1, 10000, NULL, "hot: how many keys."},
    {"ps_bin", BD_OPT_STR, AT(ps_bin), "", 0, 0, NULL,
     "With --data-dir: path of braid-ps, which does the work; empty: beside braid."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
};

/* ---- shared by the verbs ---- */
bd_status cli_table_print_json(FILE *out, bd_json *j, bd_err *err)
{
    const char *text = bd_json_text(j);
    if (text == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table: no memory");
    }
    (void)fprintf(out, "%s\n", text);
    return BD_OK;
}

bd_status cli_table_parse_key(const char *text, uint64_t *key, bd_err *err)
{
    char *end = NULL;
    errno = 0;
    *key = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0
               ? BD_OK
               : bd_err_set(err, BD_E_USAGE, "a key is a decimal number of 64 bits, not \"%.64s\"",
                            text);
}

bd_status cli_table_list_get(table_call *c, table_list *l, bd_err *err)
{
    Braid__V1__ListTablesRequest req;
    bd_status rc = BD_OK;
    braid__v1__list_tables_request__init(&req);
    *l = (table_list){.n_servers = c->admin.n_servers};
    l->replies = bd_calloc(l->n_servers + 1, sizeof(void *));
    if (l->replies == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table: no memory");
    }
    for (size_t i = 0; rc == BD_OK && i < l->n_servers; i++) {
        ProtobufCMessage *reply = NULL;
        rc = cli_admin_ask(&c->admin, i, "/braid.v1.ParameterServer/ListTables", &req.base,
                           &braid__v1__list_tables_reply__descriptor, &reply, err);
        l->replies[i] = (void *)reply;
    }
    return rc;
}

void cli_table_list_free(table_list *l)
{
    for (size_t i = 0; l->replies != NULL && i < l->n_servers; i++) {
        px_unpacked_free((void *)l->replies[i]);
    }
    bd_free(l->replies);
}

uint64_t cli_table_rows(const table_list *l, uint32_t table_id)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < l->n_servers; i++) {
        for (size_t k = 0; k < l->replies[i]->n_tables; k++) {
            const Braid__V1__TableInfo *t = l->replies[i]->tables[k];
            rows += t->table_id == table_id ? t->n_rows : 0;
        }
    }
    return rows;
}

/* What the servers count of one table. */
typedef struct table_counts {
    uint64_t bad, bad_key; /* of the first server that has a bad one */
    uint64_t filtered, evicted;
} table_counts;

static table_counts counts_of(const table_list *l, uint32_t table_id)
{
    table_counts c = {0};
    for (size_t i = 0; i < l->n_servers; i++) {
        for (size_t k = 0; k < l->replies[i]->n_tables; k++) {
            const Braid__V1__TableInfo *t = l->replies[i]->tables[k];
            if (t->table_id != table_id) {
                continue;
            }
            c.bad_key = c.bad == 0 ? t->last_bad_key : c.bad_key;
            c.bad += t->bad_gradients;
            c.filtered += t->filtered_gradients;
            c.evicted += t->evicted_rows;
        }
    }
    return c;
}

/* Every table is on every server, so server 0 knows the names. */
bd_status cli_table_find(const table_list *l, const char *name, const Braid__V1__TableInfo **out,
                         bd_err *err)
{
    const Braid__V1__ListTablesReply *r = l->replies[0];
    const char **names = bd_calloc(r->n_tables + 1, sizeof *names);
    for (size_t k = 0; k < r->n_tables; k++) {
        if (strcmp(r->tables[k]->spec->name, name) == 0) {
            *out = r->tables[k];
            bd_free(names);
            return BD_OK;
        }
        if (names != NULL) {
            names[k] = r->tables[k]->spec->name;
        }
    }
    const char *near = names == NULL ? NULL : bd_nearest(name, names, r->n_tables);
    (void)bd_err_set(err, BD_E_NOT_FOUND, "no table \"%.128s\"%s%s%s", name,
                     near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                     near != NULL ? "\"?" : "");
    bd_free(names);
    return BD_E_NOT_FOUND;
}

/* ---- list, describe ---- */
static void put_params(bd_json *j, const char *key, Braid__V1__Param *const *params, size_t n)
{
    bd_json_key(j, key);
    bd_json_obj(j);
    for (size_t i = 0; i < n; i++) {
        bd_json_put_f64(j, params[i]->name, params[i]->value);
    }
    bd_json_obj_end(j);
}

static const char *dtype_text(const Braid__V1__TableInfo *t)
{
    static const char *const texts[] = {"f32", "f32", "f16", "bf16", "i8"};
    size_t i = (size_t)t->spec->dtype;
    return i < sizeof texts / sizeof texts[0] ? texts[i] : "?";
}

static const char *policy_text(const Braid__V1__TableInfo *t)
{
    static const char *const texts[] = {"reject", "reject", "drop_row", "clip", "halt"};
    size_t i = (size_t)t->spec->bad_gradient;
    return i < sizeof texts / sizeof texts[0] ? texts[i] : "?";
}

/* Rules as job files say them; "none" and, for admission, "all" where there are none. */
static const char *rules_text(Braid__V1__Rule *const *rules, size_t n, char *out, size_t out_bytes)
{
    if (n == 0 || rules[0] == NULL) {
        return n == 0 ? "none" : "all";
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const Braid__V1__Rule *r = rules[i];
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%s", i == 0 ? "" : "; ", r->name);
        for (size_t k = 0; k < r->n_params && at < out_bytes; k++) {
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%s=%.17g%s", k == 0 ? "(" : ", ",
                                   r->params[k]->name, r->params[k]->value,
                                   k + 1 == r->n_params ? ")" : "");
        }
        if (at >= out_bytes) {
            break;
        }
    }
    return out;
}

static void put_table(bd_json *j, const table_list *l, const Braid__V1__TableInfo *t, bool all)
{
    bd_json_obj(j);
    bd_json_put_str(j, "table", t->spec->name);
    bd_json_put_i64(j, "dim", t->spec->dim);
    bd_json_put_u64(j, "rows", cli_table_rows(l, t->table_id));
    bd_json_put_str(j, "optimizer", t->spec->optimizer);
    bd_json_put_str(j, "initializer", t->spec->initializer);
    if (all) {
        char text[1024];
        const table_counts n = counts_of(l, t->table_id);
        bd_json_put_str(j, "dtype", dtype_text(t));
        bd_json_put_u64(j, "state_elems", t->state_elems);
        bd_json_put_u64(j, "seed", t->spec->seed);
        put_params(j, "optimizer_params", t->spec->opt_params, t->spec->n_opt_params);
        put_params(j, "initializer_params", t->spec->init_params, t->spec->n_init_params);
        bd_json_put_f64(j, "max_gradient_norm", t->spec->max_gradient_norm);
        bd_json_put_str(j, "bad_gradient", policy_text(t));
        bd_json_put_str(j, "admission", rules_text(&t->spec->admission, 1, text, sizeof text));
        bd_json_put_u64(j, "filtered_gradients", n.filtered);
        bd_json_put_str(j, "eviction",
                        rules_text(t->spec->evictions, t->spec->n_evictions, text, sizeof text));
        bd_json_put_u64(j, "evicted_rows", n.evicted);
        bd_json_put_u64(j, "bad_gradients", n.bad);
        if (n.bad > 0) {
            bd_json_put_u64(j, "last_bad_key", n.bad_key);
        }
    }
    bd_json_obj_end(j);
}

static bd_status list(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__ListTablesReply *r = l->replies[0];
    bd_json j;
    bd_json_init(&j);
    bd_json_arr(&j);
    if (!c->json) {
        (void)fprintf(c->out, "%-32s %6s %10s %-16s\n", "table", "dim", "rows", "optimizer");
    }
    for (size_t k = 0; k < r->n_tables; k++) {
        const Braid__V1__TableInfo *t = r->tables[k];
        if (c->json) {
            put_table(&j, l, t, false);
        } else {
            (void)fprintf(c->out, "%-32s %6" PRIu32 " %10" PRIu64 " %-16s\n", t->spec->name,
                          t->spec->dim, cli_table_rows(l, t->table_id), t->spec->optimizer);
        }
    }
    bd_json_arr_end(&j);
    bd_status rc = c->json ? cli_table_print_json(c->out, &j, err) : BD_OK;
    bd_json_deinit(&j);
    return rc;
}

static void print_params(FILE *out, Braid__V1__Param *const *params, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(out, "%s%s %g", i == 0 ? " (" : ", ", params[i]->name, params[i]->value);
    }
    (void)fprintf(out, n > 0 ? ")\n" : "\n");
}

static void print_policies(table_call *c, const table_list *l, const Braid__V1__TableInfo *t)
{
    const table_counts n = counts_of(l, t->table_id);
    (void)fprintf(c->out, "state        %" PRIu64 " numbers a row\nbad grads    %s", t->state_elems,
                  policy_text(t));
    if (t->spec->max_gradient_norm > 0) {
        (void)fprintf(c->out, ", norm above %g", t->spec->max_gradient_norm);
    }
    (void)fprintf(c->out, "; %" PRIu64 " so far", n.bad);
    if (n.bad > 0) {
        (void)fprintf(c->out, ", the last of key %" PRIu64, n.bad_key);
    }
    char text[1024];
    (void)fprintf(c->out, "\nadmission    %s; %" PRIu64 " gradients filtered\n",
                  rules_text(&t->spec->admission, 1, text, sizeof text), n.filtered);
    (void)fprintf(c->out, "eviction     %s; %" PRIu64 " rows evicted\n",
                  rules_text(t->spec->evictions, t->spec->n_evictions, text, sizeof text),
                  n.evicted);
}

static bd_status describe(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__TableInfo *t = NULL;
    bd_json j;
    bd_status rc = cli_table_find(l, c->words[0], &t, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (c->json) {
        bd_json_init(&j);
        put_table(&j, l, t, true);
        rc = cli_table_print_json(c->out, &j, err);
        bd_json_deinit(&j);
        return rc;
    }
    (void)fprintf(c->out,
                  "table        %s\ndim          %" PRIu32 "\nrows         %" PRIu64
                  " on %zu servers\ndtype        %s\nseed         %" PRIu64 "\ninitializer  %s",
                  t->spec->name, t->spec->dim, cli_table_rows(l, t->table_id), l->n_servers,
                  dtype_text(t), t->spec->seed, t->spec->initializer);
    print_params(c->out, t->spec->init_params, t->spec->n_init_params);
    (void)fprintf(c->out, "optimizer    %s", t->spec->optimizer);
    print_params(c->out, t->spec->opt_params, t->spec->n_opt_params);
    print_policies(c, l, t);
    return BD_OK;
}

/* ---- the command ---- */
typedef struct table_verb {
    const char *name, *words;
    int least, most;
    bd_status (*fn)(table_call *c, const table_list *l, bd_err *err);
} table_verb;

static const table_verb verbs[] = {
    {"list", "nothing", 0, 0, list},
    {"describe", "TABLE", 1, 1, describe},
    {"get", "TABLE KEY [KEY ...]", 2, 4096, cli_table_get},
    {"set", "TABLE KEY WEIGHT [WEIGHT ...]", 3, 1 << 20, cli_table_set},
    {"hot", "TABLE", 1, 1, cli_table_hot},
    {"hot-keys", "TABLE", 1, 1, cli_table_hot},
    {"export", "TABLE", 1, 1, cli_table_export},
    {"import", "TABLE", 1, 1, cli_table_import},
};

static bd_status find_verb(int argc, char **argv, const table_verb **out, bd_err *err)
{
    const char *word = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, word) == 0) {
            *out = &verbs[i];
            return argc - 2 >= verbs[i].least && argc - 2 <= verbs[i].most
                       ? BD_OK
                       : bd_err_set(err, BD_E_USAGE, "table %s takes %s; `braid help table`", word,
                                    verbs[i].words);
        }
    }
    return bd_err_set(err, BD_E_USAGE, "table: \"%.64s\" is unknown; `braid help table` lists them",
                      word);
}

static bd_status ask_servers(table_call *c, const table_verb *verb, bd_err *err)
{
    char address[512];
    table_list l = {0};
    const table_flags *f = c->flags;
    bd_status rc = cli_admin_find(f->coordinator, f->run_dir, address, sizeof address, err);
    if (rc != BD_OK) {
        return rc;
    }
    c->coordinator = address;
    rc = cli_admin_open(&c->admin, address, f->timeout_ms, &f->security, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_table_list_get(c, &l, err);
    if (rc == BD_OK) {
        rc = verb->fn(c, &l, err);
    }
    cli_table_list_free(&l);
    cli_admin_close(&c->admin);
    return rc;
}

static bd_status become_offline(const table_flags *f, int argc, char **argv, bd_err *err)
{
    cli_args args = {0};
    cli_args_add(&args, "table");
    for (int i = 1; i < argc; i++) {
        cli_args_add(&args, "%s", argv[i]);
    }
    for (size_t i = 0; i < f->data_dir.n; i++) {
        cli_args_add(&args, "--data-dir");
        cli_args_add(&args, "%s", f->data_dir.items[i]);
    }
    cli_args_add(&args, "--format=%s", f->format);
    cli_args_add(&args, "--output=%s", f->output);
    cli_args_add(&args, "--top=%" PRId64, f->top);
    cli_args_add(&args, "--with-state=%s", f->with_state ? "true" : "false");
    bd_status rc = cli_offline_become(f->ps_bin, &args, err);
    cli_args_deinit(&args);
    return rc;
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    table_flags f = {0};
    table_call c = {.flags = &f, .out = io->out};
    const table_verb *verb = NULL;
    bd_options o;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = bd_options_load_env(&o, err);
    if (rc == BD_OK) {
        rc = bd_options_load_args(&o, &argc, argv, err);
    }
    if (rc == BD_OK && f.data_dir.n > 0) {
        rc = become_offline(&f, argc, argv, err);
    } else if (rc == BD_OK) {
        rc = find_verb(argc, argv, &verb, err);
        c.n_words = argc - 2;
        c.words = argv + 2;
        c.json = strcmp(f.format, "json") == 0;
        rc = rc == BD_OK ? ask_servers(&c, verb, err) : rc;
    }
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_cmd_table = {
    .name = "table",
    .usage =
        "list --coordinator HOST:PORT | --run-dir DIR | --data-dir DIR[,DIR...] [-o table|json]\n"
        "       braid table describe TABLE ...\n"
        "       braid table get TABLE KEY [KEY ...] [--with-state] ...\n"
        "       braid table set TABLE KEY WEIGHT [WEIGHT ...] ...\n"
        "       braid table hot|hot-keys TABLE [--top N] ...\n"
        "       braid table export TABLE --output FILE.tsv|FILE.npy [--with-state] ...\n"
        "       braid table import TABLE --input FILE.tsv|FILE.npy [--with-state] ...",
    .help = "Tables and their rows, of running servers or of stopped ones.",
    CLI_OPTIONS(table),
    .verbs = "list|describe|get|set|hot-keys|hot|export|import",
    .words = "file",
    .run = run};
