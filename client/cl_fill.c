/* Rows from a file for a table that has none yet: the initialiser "from file". */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rows_file.h"

#include "client/cl_int.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)4 << 20)
#define WAIT_MS     1000

/* The coordinator remembers how far a table's file is: "filling <rows>", then "done". */
static void key_of(const cl_table_spec *spec, char out[192])
{
    (void)snprintf(out, 192, "braid/init/%.128s", spec->name);
}

/* Rows of the table on all servers. */
static bd_status count_rows(cl_client *c, uint32_t table_id, uint64_t *n_rows, bd_err *err)
{
    Braid__V1__ListTablesRequest req;
    ProtobufCMessage **replies = NULL;
    braid__v1__list_tables_request__init(&req);
    bd_status rc = cl_ask_each(c, CL_SERVICE "ListTables", &req.base,
                               &braid__v1__list_tables_reply__descriptor, &replies, err);
    *n_rows = 0;
    for (size_t i = 0; rc == BD_OK && i < cl_client_n_servers(c); i++) {
        const Braid__V1__ListTablesReply *r = (const void *)replies[i];
        for (size_t k = 0; k < r->n_tables; k++) {
            *n_rows += r->tables[k]->table_id == table_id ? r->tables[k]->n_rows : 0;
        }
    }
    cl_replies_free(c, replies);
    return rc;
}

/* What of a file is on its way. */
typedef struct filling {
    bd_rows_reader *from; /* owned */
    uint64_t *keys;       /* owned [max] */
    float *rows;          /* owned [max x dim] */
    size_t max;
    uint64_t n;
} filling;

static bd_status open_file(filling *f, const cl_table_spec *spec, bd_err *err)
{
    bd_status rc = bd_rows_reader_open(spec->init_file, &f->from, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (bd_rows_reader_dim(f->from) != spec->dim) {
        return bd_err_set(err, BD_E_MISMATCH, "%s has rows of %zu numbers, the table of %u",
                          spec->init_file, bd_rows_reader_dim(f->from), spec->dim);
    }
    f->max = CHUNK_BYTES / (spec->dim * sizeof(float)) + 1;
    f->keys = bd_calloc(f->max, sizeof *f->keys);
    f->rows = bd_calloc(f->max * spec->dim, sizeof *f->rows);
    return f->keys != NULL && f->rows != NULL ? BD_OK
                                              : bd_err_set(err, BD_E_NOMEM, "no memory for rows");
}

static bd_status fill(cl_client *c, const cl_table_spec *spec, uint32_t table_id, const char *key,
                      bd_err *err)
{
    filling f = {0};
    char text[64];
    size_t n = 1;
    bd_kv *kv = cl_client_kv(c);
    bd_status rc = open_file(&f, spec, err);
    while (rc == BD_OK && n > 0) {
        int len = snprintf(text, sizeof text, "filling %" PRIu64, f.n);
        rc = kv->set(kv, key, text, (size_t)len, err);
        if (rc == BD_OK) {
            rc = bd_rows_reader_next(f.from, f.max, f.keys, f.rows, NULL, &n, err);
        }
        if (rc == BD_OK && n > 0) {
            rc = cl_assign(c, table_id, spec->dim, f.keys, f.rows, NULL, n, err);
            f.n += n;
        }
    }
    if (rc == BD_OK) {
        BD_LOG(INFO, "table begins with the rows of a file", "table", spec->name, "file",
               spec->init_file, "rows", f.n);
    }
    bd_rows_reader_close(f.from);
    bd_free(f.keys);
    bd_free(f.rows);
    return rc;
}

static bd_status get(cl_client *c, const char *key, char **val, bd_err *err)
{
    size_t n = 0;
    bd_kv *kv = cl_client_kv(c);
    *val = NULL;
    bd_status rc = kv->get(kv, key, 0, val, &n, err);
    return rc == BD_E_NOT_FOUND ? BD_OK : rc;
}

/* Until the rank that fills it is done. Without progress for ps_wait it is an error. */
static bd_status wait_for_filler(cl_client *c, const cl_table_spec *spec, const char *key,
                                 bd_err *err)
{
    bd_kv *kv = cl_client_kv(c);
    char *seen = NULL, *now = NULL;
    int64_t moved_ns = bd_mono_ns();
    bd_status rc = get(c, key, &seen, err);
    while (rc == BD_OK && (seen == NULL || strcmp(seen, "done") != 0)) {
        rc = kv->get_other(kv, key, seen, WAIT_MS, &now, err);
        if (rc == BD_OK) {
            bd_free(seen);
            seen = now;
            moved_ns = bd_mono_ns();
        } else if (rc == BD_E_TIMEOUT && bd_mono_ns() - moved_ns < c->ps_wait_ms * BD_NS_PER_MS) {
            rc = BD_OK;
        } else if (rc == BD_E_TIMEOUT) {
            rc = bd_err_set(err, rc, "nobody fills it from %s: waited %" PRId64 " ms",
                            spec->init_file, c->ps_wait_ms);
        }
    }
    bd_free(seen);
    return rc;
}

bd_status cl_table_fill(cl_client *c, const cl_table_spec *spec, uint32_t table_id, bd_err *err)
{
    char key[192], *state = NULL;
    uint64_t n_rows = 0;
    bd_kv *kv = cl_client_kv(c);
    if (spec->init_file == NULL || spec->init_file[0] == '\0') {
        return BD_OK;
    }
    key_of(spec, key);
    bd_status rc =
        spec->init_by_other ? wait_for_filler(c, spec, key, err) : get(c, key, &state, err);
    if (rc == BD_OK && !spec->init_by_other) {
        rc = count_rows(c, table_id, &n_rows, err);
    }
    bool half_done = state != NULL && strncmp(state, "filling", strlen("filling")) == 0;
    if (rc == BD_OK && !spec->init_by_other && (half_done || n_rows == 0)) {
        rc = fill(c, spec, table_id, key, err);
    }
    if (rc == BD_OK && !spec->init_by_other) {
        rc = kv->set(kv, key, "done", strlen("done"), err);
    }
    bd_free(state);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "table \"%s\": rows from file", spec->name);
}
