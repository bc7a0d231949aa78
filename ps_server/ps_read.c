/* Reads of rows that may be away, for callers that wait. */
#include "base/mem.h"

#include "ps_server/ps_shard_int.h"

/* A read: which rows, where they go, and room for the indexes of those that are away. */
typedef struct row_read {
    uint32_t table_id, dim;
    const uint64_t *keys;
    size_t n;
    float *out;
    uint32_t *missing;
} row_read;

/* One try: *again when the tables were replaced while rows were fetched. */
static bd_status read_once(ps_shard *s, const row_read *r, bool *again, bd_err *err)
{
    ps_fetch *f = NULL;
    bd_status rc = BD_OK;
    *again = false;
    const ps_tables *ts = ps_shard_lock_tables(s);
    ps_table *t = ps_tables_find(ts, r->table_id);
    size_t n_missing = 0;
    if (t == NULL || ps_table_spec(t)->dim != r->dim) {
        rc = bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u and dim %u", r->table_id, r->dim);
    } else {
        n_missing = ps_table_read(t, r->keys, r->n, r->out, r->missing);
    }
    if (n_missing > 0) {
        f = ps_fetch_new(r->table_id, ps_table_value_bytes(t), r->keys, r->missing, n_missing);
        rc = f == NULL ? bd_err_set(err, BD_E_NOMEM, "read: no memory for %zu rows", n_missing)
                       : BD_OK;
    }
    if (f != NULL) {
        f->turn = ps_fetch_pool_turn(s->fetch);
    }
    ps_shard_unlock_tables(s);
    if (f == NULL) {
        return rc;
    }
    rc = ps_fetch_wait(s->fetch, f);
    if (rc != BD_OK) {
        *err = f->err;
    }
    ts = ps_shard_lock_tables(s);
    *again = f->turn != ps_fetch_pool_turn(s->fetch);
    if (rc == BD_OK && !*again) {
        const ps_found found = ps_fetch_found(f);
        ps_table_finish(ps_tables_find(ts, r->table_id), r->keys, r->missing, n_missing, &found,
                        r->out);
    }
    ps_shard_unlock_tables(s);
    ps_fetch_free(f);
    return rc;
}

bd_status ps_shard_read(ps_shard *s, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                        size_t n, float *out, bd_err *err)
{
    bool again = true;
    bd_status rc = BD_OK;
    uint32_t *missing = bd_alloc((n + 1) * sizeof *missing);
    if (missing == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read: no memory for %zu keys", n);
    }
    row_read r = {.table_id = table_id, .dim = dim, .keys = keys, .n = n};
    r.out = out;
    r.missing = missing;
    while (rc == BD_OK && again) {
        rc = read_once(s, &r, &again, err);
    }
    bd_free(missing);
    return rc;
}
