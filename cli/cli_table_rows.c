/* `braid table get|set|export|import` on running servers. */
#include "base/mem.h"
#include "base/rand.h"
#include "base/rows_file.h"

#include "cli/cli_cmd_table.h"
#include "client/client.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "braid/v1/coordinator.pb-c.h"

#define IMPORT_BYTES ((size_t)4 << 20)
#define N_SLOTS      4096u

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "table: no memory");
    return BD_E_NOMEM;
}

/* ---- pages ---- */
static bd_status ask_page(table_call *c, size_t server, uint32_t table_id, uint64_t from,
                          uint32_t max_rows, bool with_state, Braid__V1__ExportReply **out,
                          bd_err *err)
{
    Braid__V1__ExportRequest req;
    ProtobufCMessage *reply = NULL;
    braid__v1__export_request__init(&req);
    req.table_id = table_id;
    req.from_key = from;
    req.max_rows = max_rows;
    req.with_state = with_state;
    bd_status rc = cli_admin_ask(&c->admin, server, "/braid.v1.ParameterServer/Export", &req.base,
                                 &braid__v1__export_reply__descriptor, &reply, err);
    *out = (void *)reply;
    return rc;
}

static bd_status check_page(const Braid__V1__ExportReply *r, const Braid__V1__TableInfo *t,
                            bool with_state, bd_err *err)
{
    size_t state = with_state ? (size_t)t->state_elems : 0;
    return r->n_rows == r->n_keys * t->spec->dim && r->n_state == r->n_keys * state
               ? BD_OK
               : bd_err_set(err, BD_E_CORRUPT, "table \"%s\": %zu keys came with %zu numbers",
                            t->spec->name, r->n_keys, r->n_rows + r->n_state);
}

/* ---- get ---- */
/* Which server has the key, by the map that cli_admin got. */
static size_t server_of(const table_call *c, uint64_t key)
{
    const rpc_shard_map *m = &c->admin.map;
    uint32_t slot = (uint32_t)(bd_mix64(key) >> 52);
    return slot < m->n_slots ? m->slot_owner[slot] : 0;
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

static void show_row(const table_call *c, const Braid__V1__ExportReply *r, bd_json *j)
{
    if (c->json) {
        char key[32]; /* JSON readers with doubles would round it */
        (void)snprintf(key, sizeof key, "%" PRIu64, r->keys[0]);
        bd_json_obj(j);
        bd_json_put_str(j, "key", key);
        put_floats(j, "weights", r->rows, r->n_rows);
        if (r->n_state > 0) {
            put_floats(j, "state", r->state, r->n_state);
        }
        bd_json_obj_end(j);
        return;
    }
    (void)fprintf(c->out, "key %" PRIu64 "\n  weights", r->keys[0]);
    for (size_t i = 0; i < r->n_rows; i++) {
        (void)fprintf(c->out, " %.9g", (double)r->rows[i]);
    }
    for (size_t i = 0; i < r->n_state; i++) {
        (void)fprintf(c->out, "%s %.9g", i == 0 ? "\n  state" : "", (double)r->state[i]);
    }
    (void)fputc('\n', c->out);
}

bd_status cli_table_get(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__TableInfo *t = NULL;
    bd_json j;
    bd_json_init(&j);
    bd_json_arr(&j);
    bd_status rc = cli_table_find(l, c->words[0], &t, err);
    for (int i = 1; i < c->n_words && rc == BD_OK; i++) {
        Braid__V1__ExportReply *r = NULL;
        uint64_t key = 0;
        rc = cli_table_parse_key(c->words[i], &key, err);
        if (rc == BD_OK) {
            rc = ask_page(c, server_of(c, key), t->table_id, key, 1, c->flags->with_state, &r, err);
        }
        if (rc == BD_OK) {
            rc = check_page(r, t, c->flags->with_state, err);
        }
        if (rc == BD_OK && (r->n_keys == 0 || r->keys[0] != key)) {
            rc = bd_err_set(err, BD_E_NOT_FOUND,
                            "table \"%s\" has no row of key %" PRIu64
                            " (a lookup reads its initial value)",
                            t->spec->name, key);
        }
        if (rc == BD_OK) {
            show_row(c, r, &j);
        }
        px_unpacked_free((void *)r);
    }
    bd_json_arr_end(&j);
    if (rc == BD_OK && c->json) {
        rc = cli_table_print_json(c->out, &j, err);
    }
    bd_json_deinit(&j);
    return rc;
}

/* ---- writing ---- */
static bd_status connect(table_call *c, cl_client **out, bd_err *err)
{
    cl_options opt = {.coordinator = c->coordinator,
                      .name = "braid-table",
                      .connect_wait_ms = c->flags->timeout_ms,
                      .ps_wait_ms = c->flags->timeout_ms};
    return cl_client_new(c->admin.env, &opt, out, err);
}

bd_status cli_table_set(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__TableInfo *t = NULL;
    cl_client *cl = NULL;
    uint64_t key = 0;
    bd_status rc = cli_table_find(l, c->words[0], &t, err);
    if (rc == BD_OK) {
        rc = cli_table_parse_key(c->words[1], &key, err);
    }
    if (rc == BD_OK && (size_t)c->n_words - 2 != t->spec->dim) {
        rc = bd_err_set(err, BD_E_USAGE, "table \"%s\" has dim %" PRIu32 ", not %d", t->spec->name,
                        t->spec->dim, c->n_words - 2);
    }
    float *row = rc == BD_OK ? bd_alloc(t->spec->dim * sizeof *row) : NULL;
    rc = rc == BD_OK && row == NULL ? no_memory(err) : rc;
    for (int i = 2; i < c->n_words && rc == BD_OK; i++) {
        char *end = NULL;
        row[i - 2] = strtof(c->words[i], &end);
        if (end == c->words[i] || *end != '\0') {
            rc = bd_err_set(err, BD_E_USAGE, "weight %d is not a number: \"%.64s\"", i - 2,
                            c->words[i]);
        }
    }
    if (rc == BD_OK) {
        rc = connect(c, &cl, err);
    }
    if (rc == BD_OK) {
        rc = cl_assign(cl, t->table_id, t->spec->dim, &key, row, NULL, 1, err);
    }
    if (rc == BD_OK) {
        (void)fprintf(c->out,
                      c->json ? "{\"rows\": 1}\n" : "1 row set; its optimiser state stays\n");
    }
    cl_client_free(cl);
    bd_free(row);
    return rc;
}

/* ---- export ---- */
static bd_status export_server(table_call *c, size_t server, const Braid__V1__TableInfo *t,
                               bd_rows_writer *w, uint64_t *n, bd_err *err)
{
    bd_status rc = BD_OK;
    uint64_t from = 0;
    for (bool done = false; !done && rc == BD_OK;) {
        Braid__V1__ExportReply *r = NULL;
        rc = ask_page(c, server, t->table_id, from, 0, c->flags->with_state, &r, err);
        if (rc == BD_OK) {
            rc = check_page(r, t, c->flags->with_state, err);
        }
        if (rc == BD_OK) {
            rc = bd_rows_writer_put(w, r->n_keys, r->keys, r->rows, r->state, err);
            *n += r->n_keys;
            done = r->done;
            from = r->next_key;
        }
        px_unpacked_free((void *)r);
    }
    return rc;
}

bd_status cli_table_export(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__TableInfo *t = NULL;
    bd_rows_writer *w = NULL;
    bd_err close_err = BD_ERR_INIT;
    uint64_t n = 0;
    if (c->flags->output[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "table export: --output FILE.tsv|FILE.npy is missing");
    }
    bd_status rc = cli_table_find(l, c->words[0], &t, err);
    if (rc == BD_OK) {
        rc = bd_rows_writer_open(c->flags->output, t->spec->dim,
                                 c->flags->with_state ? (size_t)t->state_elems : 0, &w, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    for (size_t i = 0; i < l->n_servers && rc == BD_OK; i++) {
        rc = export_server(c, i, t, w, &n, err);
    }
    bd_status closed = bd_rows_writer_close(w, rc == BD_OK, &close_err);
    if (rc == BD_OK && closed != BD_OK) {
        rc = closed;
        *err = close_err;
    }
    if (rc == BD_OK) {
        (void)fprintf(c->out, c->json ? "{\"rows\": %" PRIu64 "}\n" : "%" PRIu64 " rows\n", n);
    }
    return rc;
}

/* ---- import ---- */
typedef struct import {
    const Braid__V1__TableInfo *t;
    bd_rows_reader *from;
    cl_client *cl;
    size_t max; /* rows at a time */
    uint64_t *keys;
    float *rows, *state; /* state NULL: the table's own stays */
    uint64_t n;
} import;

static bd_status check_shape(const import *m, const char *path, bool with_state, bd_err *err)
{
    size_t dim = bd_rows_reader_dim(m->from), state = bd_rows_reader_state_elems(m->from);
    if (dim != m->t->spec->dim) {
        return bd_err_set(err, BD_E_DATA, "%s has rows of %zu numbers, table \"%s\" of %" PRIu32,
                          path, dim, m->t->spec->name, m->t->spec->dim);
    }
    if (with_state && state != m->t->state_elems) {
        return bd_err_set(err, BD_E_DATA,
                          "%s has %zu numbers of optimiser state a row, table \"%s\" %" PRIu64,
                          path, state, m->t->spec->name, m->t->state_elems);
    }
    return BD_OK;
}

static bd_status copy_rows(import *m, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t n = 1; n > 0 && rc == BD_OK;) {
        rc = bd_rows_reader_next(m->from, m->max, m->keys, m->rows, m->state, &n, err);
        if (rc == BD_OK && n > 0) {
            rc = cl_assign(m->cl, m->t->table_id, m->t->spec->dim, m->keys, m->rows, m->state, n,
                           err);
            m->n += n;
        }
    }
    return rc;
}

bd_status cli_table_import(table_call *c, const table_list *l, bd_err *err)
{
import m = {0 };
    const table_flags *f = c->flags;
    if (f->input[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "table import: --input FILE.tsv|FILE.npy is missing");
    }
    bd_status rc = cli_table_find(l, c->words[0], &m.t, err);
    if (rc == BD_OK) {
        rc = bd_rows_reader_open(f->input, &m.from, err);
    }
    if (rc == BD_OK) {
        rc = check_shape(&m, f->input, f->with_state, err);
    }
    if (rc == BD_OK) {
        size_t dim = m.t->spec->dim, state = f->with_state ? (size_t)m.t->state_elems : 0;
        m.max = IMPORT_BYTES / ((dim + state) * sizeof(float)) + 1;
        m.keys = bd_calloc(m.max, sizeof *m.keys);
        m.rows = bd_calloc(m.max * dim, sizeof *m.rows);
        m.state = state > 0 ? bd_calloc(m.max * state, sizeof *m.state) : NULL;
        rc = m.keys == NULL || m.rows == NULL || (state > 0 && m.state == NULL) ? no_memory(err)
                                                                                : BD_OK;
    }
    if (rc == BD_OK) {
        rc = connect(c, &m.cl, err);
    }
    if (rc == BD_OK) {
        rc = copy_rows(&m, err);
        if (rc != BD_OK) {
            (void)bd_err_wrap(err, "after %" PRIu64 " rows", m.n);
        }
    }
    if (rc == BD_OK) {
        (void)fprintf(c->out, c->json ? "{\"rows\": %" PRIu64 "}\n" : "%" PRIu64 " rows\n", m.n);
    }
    bd_rows_reader_close(m.from);
    cl_client_free(m.cl);
    bd_free(m.keys);
    bd_free(m.rows);
    bd_free(m.state);
    return rc;
}
