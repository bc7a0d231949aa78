/* `braid table list|describe|get|hot|export --data-dir DIR`: the tables of stopped servers. */
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rows_file.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_hot.h"
#include "ps_server/ps_offline.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_still.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct servers {
    ps_still **items; /* owned [n] */
    size_t n, cap;
} servers;

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "table: no memory");
    return BD_E_NOMEM;
}

/* ---- opening ---- */
static bd_status open_one(servers *s, const char *dir, bd_err *err)
{
    if (!bd_grow(&s->items, &s->cap, s->n + 1, sizeof *s->items)) {
        return no_memory(err);
    }
    bd_status rc = ps_still_open(dir, &s->items[s->n], err);
    s->n += rc == BD_OK;
    return rc;
}

static bool is_data_dir(const char *dir)
{
    char *path = bd_strfmt("%s/journal", dir);
    bool is = path != NULL && access(path, F_OK) == 0;
    bd_free(path);
    return is;
}

static bd_status open_below(void *user, const char *dir, const char *name, bd_err *err)
{
    char *path = name[0] == '.' ? NULL : bd_strfmt("%s/%s", dir, name);
    bd_status rc = path != NULL && is_data_dir(path) ? open_one(user, path, err) : BD_OK;
    bd_free(path);
    return rc;
}

/* A server of each part of the key space, once. */
static bd_status check_set(const servers *s, bd_err *err)
{
    uint32_t of = 0, first = 0, index = 0;
    for (size_t i = 0; i < s->n; i++) {
        ps_still_identity(s->items[i], &index, &of);
        if (i == 0) {
            first = of;
        } else if (of != first) {
            return bd_err_set(err, BD_E_MISMATCH,
                              "one folder is of a cluster of %u servers, another of %u", first, of);
        }
    }
    if (s->n == 0) {
        (void)bd_err_set(err, BD_E_NOT_FOUND, "no data folder of a server is there");
        return BD_E_NOT_FOUND;
    }
    if (s->n != first) {
        (void)fprintf(stderr,
                      "note: folders of %zu of %u servers: the rest of the rows is elsewhere\n",
                      s->n, first);
    }
    return BD_OK;
}

static bd_status open_all(servers *s, const ps_offline *o, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < o->n_folders && rc == BD_OK; i++) {
        rc = is_data_dir(o->folders[i]) ? open_one(s, o->folders[i], err)
                                        : ps_dir_each(o->folders[i], open_below, s, err);
    }
    return rc == BD_OK ? check_set(s, err) : rc;
}

static void close_all(servers *s)
{
    for (size_t i = 0; i < s->n; i++) {
        ps_still_close(s->items[i]);
    }
    bd_free(s->items);
}

static const ps_spec *spec_of(const ps_still *s, const char *name)
{
    const ps_table *t = ps_tables_find(ps_still_tables(s), ps_table_id(name));
    return t == NULL ? NULL : ps_table_spec(t);
}

static bd_status find_spec(const servers *s, const char *name, const ps_spec **out, bd_err *err)
{
    *out = s->items == NULL ? NULL : spec_of(s->items[0], name);
    return *out != NULL ? BD_OK : bd_err_set(err, BD_E_NOT_FOUND, "no table \"%.128s\"", name);
}

static bd_status print_json(ps_offline *o, bd_json *j, bd_err *err)
{
    const char *text = bd_json_text(j);
    if (text == NULL) {
        return no_memory(err);
    }
    (void)fprintf(o->out, "%s\n", text);
    return BD_OK;
}

/* Every row of the table on all servers. */
static bd_status each_row(const servers *s, const char *table, ps_still_fn fn, void *user,
                          bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < s->n && rc == BD_OK; i++) {
        const ps_spec *spec = spec_of(s->items[i], table);
        rc = spec == NULL ? BD_OK : ps_still_each(s->items[i], spec, fn, user, err);
    }
    return rc;
}

/* ---- list, describe ---- */
static bd_status count_row(void *user, const ps_still_row *row, bd_err *err)
{
    (void)row;
    (void)err;
    ++*(uint64_t *)user;
    return BD_OK;
}

static void put_spec(bd_json *j, const ps_spec *spec, uint64_t rows)
{
    bd_json_put_str(j, "table", spec->name);
    bd_json_put_u64(j, "dim", spec->dim);
    bd_json_put_u64(j, "rows", rows);
    bd_json_put_str(j, "optimizer", spec->opt->name);
    bd_json_put_str(j, "initializer", spec->init->name);
    bd_json_put_str(j, "dtype", num_dtype_name(spec->dtype));
    bd_json_put_u64(j, "state_elems", spec->state_elems);
    bd_json_put_u64(j, "seed", spec->seed);
}

static bd_status list(ps_offline *o, servers *s, bd_err *err)
{
    bd_json j;
    const ps_tables *ts = ps_still_tables(s->items[0]);
    bd_status rc = BD_OK;
    bd_json_init(&j);
    bd_json_arr(&j);
    if (!o->json) {
        (void)fprintf(o->out, "%-32s %6s %10s %-16s\n", "table", "dim", "rows", "optimizer");
    }
    for (size_t i = 0; i < ts->n && rc == BD_OK; i++) {
        const ps_spec *spec = ps_table_spec(ts->items[i]);
        uint64_t rows = 0;
        if (spec->hidden != PS_NOT_HIDDEN) {
            continue;
        }
        rc = each_row(s, spec->name, count_row, &rows, err);
        if (rc == BD_OK && o->json) {
            bd_json_obj(&j);
            put_spec(&j, spec, rows);
            bd_json_obj_end(&j);
        } else if (rc == BD_OK) {
            (void)fprintf(o->out, "%-32s %6u %10" PRIu64 " %-16s\n", spec->name, spec->dim, rows,
                          spec->opt->name);
        }
    }
    bd_json_arr_end(&j);
    if (rc == BD_OK && o->json) {
        rc = print_json(o, &j, err);
    }
    bd_json_deinit(&j);
    return rc;
}

static bd_status describe(ps_offline *o, servers *s, bd_err *err)
{
    const ps_spec *spec = NULL;
    uint64_t rows = 0;
    bd_json j;
    bd_status rc = find_spec(s, o->words[0], &spec, err);
    if (rc == BD_OK) {
        rc = each_row(s, spec->name, count_row, &rows, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (!o->json) {
        (void)fprintf(o->out,
                      "table        %s\ndim          %u\nrows         %" PRIu64
                      "\ndtype        %s\ninitializer  %s\nseed         %" PRIu64
                      "\noptimizer    %s\nstate        %zu numbers a row\n",
                      spec->name, spec->dim, rows, num_dtype_name(spec->dtype), spec->init->name,
                      spec->seed, spec->opt->name, spec->state_elems);
        return BD_OK;
    }
    bd_json_init(&j);
    bd_json_obj(&j);
    put_spec(&j, spec, rows);
    bd_json_obj_end(&j);
    rc = print_json(o, &j, err);
    bd_json_deinit(&j);
    return rc;
}

/* ---- get ---- */
typedef struct row_writer {
    ps_offline *o;
    const ps_spec *spec;
    bd_json *j;
    bool with_state;
    float *weights; /* owned [dim] */
    float *state;   /* owned [state_elems + 1] */
} row_writer;

static bd_status row_writer_init(row_writer *w, ps_offline *o, const ps_spec *spec, bd_err *err)
{
    *w = (row_writer){.o = o, .spec = spec, .with_state = o->opt.with_state};
    w->weights = bd_alloc(spec->dim * sizeof(float));
    w->state = bd_alloc((spec->state_elems + 1) * sizeof(float));
    return w->weights != NULL && w->state != NULL ? BD_OK : no_memory(err);
}

static void row_writer_deinit(row_writer *w)
{
    bd_free(w->weights);
    bd_free(w->state);
}

static void decode(row_writer *w, const ps_still_row *row)
{
    num_row_decode(w->spec->dtype, row->weights, w->spec->dim, w->weights);
    memcpy(w->state, row->state, w->spec->state_elems * sizeof(float));
}

static void put_floats(bd_json *j, const char *key, const float *v, size_t n)
{
    bd_json_key(j, key);
    bd_json_arr(j);
    for (size_t i = 0; i < n; i++) {
        bd_json_f64(j, (double)v[i]);
    }
    bd_json_arr_end(j);
}

static bd_status print_row(void *user, const ps_still_row *row, bd_err *err)
{
    row_writer *w = user;
    char key[32];
    (void)err;
    decode(w, row);
    if (w->j != NULL) {
        (void)snprintf(key, sizeof key, "%" PRIu64, row->key);
        bd_json_obj(w->j);
        bd_json_put_str(w->j, "key", key);
        bd_json_put_bool(w->j, "stored", true);
        bd_json_put_u64(w->j, "frequency", row->freq);
        bd_json_put_u64(w->j, "last_step", row->last_step);
        put_floats(w->j, "weights", w->weights, w->spec->dim);
        if (w->with_state) {
            put_floats(w->j, "state", w->state, w->spec->state_elems);
        }
        bd_json_obj_end(w->j);
        return BD_OK;
    }
    (void)fprintf(w->o->out, "key %" PRIu64 "  frequency %u  last step %" PRIu64 "\n  weights",
                  row->key, row->freq, row->last_step);
    for (size_t i = 0; i < w->spec->dim; i++) {
        (void)fprintf(w->o->out, " %.9g", (double)w->weights[i]);
    }
    for (size_t i = 0; w->with_state && i < w->spec->state_elems; i++) {
        (void)fprintf(w->o->out, "%s %.9g", i == 0 ? "\n  state" : "", (double)w->state[i]);
    }
    (void)fputc('\n', w->o->out);
    return BD_OK;
}

static bd_status parse_key(const char *text, uint64_t *key, bd_err *err)
{
    char *end = NULL;
    errno = 0;
    *key = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0
               ? BD_OK
               : bd_err_set(err, BD_E_USAGE, "a key is a decimal number of 64 bits, not \"%.64s\"",
                            text);
}

static bd_status get_one(servers *s, row_writer *w, uint64_t key, bd_err *err)
{
    bool found = false;
    bd_status rc = BD_OK;
    for (size_t i = 0; i < s->n && rc == BD_OK && !found; i++) {
        const ps_spec *spec = spec_of(s->items[i], w->spec->name);
        rc = spec == NULL ? BD_OK : ps_still_get(s->items[i], spec, key, &found, print_row, w, err);
    }
    if (rc == BD_OK && !found) {
        rc = bd_err_set(err, BD_E_NOT_FOUND, "table \"%s\" has no row of key %" PRIu64,
                        w->spec->name, key);
    }
    return rc;
}

static bd_status get(ps_offline *o, servers *s, bd_err *err)
{
    const ps_spec *spec = NULL;
    row_writer w = {0};
    bd_json j;
    bd_json_init(&j);
    bd_json_arr(&j);
    bd_status rc = find_spec(s, o->words[0], &spec, err);
    if (rc == BD_OK) {
        rc = row_writer_init(&w, o, spec, err);
        w.j = o->json ? &j : NULL;
    }
    for (int i = 1; i < o->n_words && rc == BD_OK; i++) {
        uint64_t key = 0;
        rc = parse_key(o->words[i], &key, err);
        if (rc == BD_OK) {
            rc = get_one(s, &w, key, err);
        }
    }
    bd_json_arr_end(&j);
    if (rc == BD_OK && o->json) {
        rc = print_json(o, &j, err);
    }
    bd_json_deinit(&j);
    row_writer_deinit(&w);
    return rc;
}

/* ---- hot ---- */
static bd_status offer(void *user, const ps_still_row *row, bd_err *err)
{
    (void)err;
    ps_hot_offer(user, &(ps_hot_key){row->key, row->last_step, row->freq});
    return BD_OK;
}

static bd_status hot(ps_offline *o, servers *s, bd_err *err)
{
    const ps_spec *spec = NULL;
    bd_json j;
    ps_hot h;
    bd_status rc = !ps_hot_init(&h, (size_t)o->opt.top) ? no_memory(err)
                                                        : find_spec(s, o->words[0], &spec, err);
    if (rc == BD_OK) {
        rc = each_row(s, spec->name, offer, &h, err);
    }
    ps_hot_sort(&h);
    bd_json_init(&j);
    bd_json_arr(&j);
    for (size_t i = 0; i < h.n && rc == BD_OK; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%" PRIu64, h.items[i].key);
        if (o->json) {
            bd_json_obj(&j);
            bd_json_put_str(&j, "key", key);
            bd_json_put_u64(&j, "frequency", h.items[i].freq);
            bd_json_obj_end(&j);
        } else {
            (void)fprintf(o->out, "%-22s %10u\n", key, h.items[i].freq);
        }
    }
    bd_json_arr_end(&j);
    if (rc == BD_OK && o->json) {
        rc = print_json(o, &j, err);
    }
    bd_json_deinit(&j);
    ps_hot_deinit(&h);
    return rc;
}

/* ---- export ---- */
typedef struct exporter {
    row_writer row;
    bd_rows_writer *to;
    uint64_t n;
} exporter;

static bd_status export_row(void *user, const ps_still_row *row, bd_err *err)
{
    exporter *e = user;
    decode(&e->row, row);
    e->n++;
    return bd_rows_writer_put(e->to, 1, &row->key, e->row.weights, e->row.state, err);
}

static bd_status export_table(ps_offline *o, servers *s, bd_err *err)
{
    const ps_spec *spec = NULL;
    exporter e = {0};
    if (o->opt.output[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "table export: --output FILE is missing");
    }
    bd_status rc = find_spec(s, o->words[0], &spec, err);
    if (rc == BD_OK) {
        rc = row_writer_init(&e.row, o, spec, err);
    }
    if (rc == BD_OK) {
        rc = bd_rows_writer_open(o->opt.output, spec->dim,
                                 o->opt.with_state ? spec->state_elems : 0, &e.to, err);
    }
    if (rc == BD_OK) {
        rc = each_row(s, spec->name, export_row, &e, err);
        bd_err close_err = BD_ERR_INIT;
        bd_status closed = bd_rows_writer_close(e.to, rc == BD_OK, &close_err);
        if (rc == BD_OK && closed != BD_OK) {
            rc = closed;
            *err = close_err;
        }
    }
    if (rc == BD_OK) {
        (void)fprintf(o->out, o->json ? "{\"rows\": %" PRIu64 "}\n" : "%" PRIu64 " rows\n", e.n);
    }
    row_writer_deinit(&e.row);
    return rc;
}

bd_status ps_offline_table(ps_offline *o, const char *verb, bd_err *err)
{
    static const struct {
        const char *name, *words;
        int least, most;
        bd_status (*fn)(ps_offline *o, servers *s, bd_err *err);
    } verbs[] = {{"list", "nothing", 0, 0, list},
                 {"describe", "TABLE", 1, 1, describe},
                 {"get", "TABLE KEY [KEY ...]", 2, 1 << 20, get},
                 {"hot", "TABLE", 1, 1, hot},
                 {"hot-keys", "TABLE", 1, 1, hot},
                 {"export", "TABLE", 1, 1, export_table}};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        servers s = {0};
        if (strcmp(verbs[i].name, verb) != 0) {
            continue;
        }
        if (o->n_words < verbs[i].least || o->n_words > verbs[i].most) {
            return bd_err_set(err, BD_E_USAGE, "table %s takes %s", verb, verbs[i].words);
        }
        bd_status rc = open_all(&s, o, err);
        if (rc == BD_OK) {
            rc = verbs[i].fn(o, &s, err);
        }
        close_all(&s);
        return rc;
    }
    return bd_err_set(err, BD_E_USAGE,
                      "table: \"%.64s\" is unknown on stopped servers; there are list, describe, "
                      "get, hot, export",
                      verb);
}
