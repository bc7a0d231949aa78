/* Reads of rows that may be away, for callers that wait. */
#include "base/mem.h"

#include "ps_server/ps_shard_int.h"

/* One try: *again when the tables were replaced while rows were fetched. */
static bd_status read_once(ps_shard *s, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                           size_t n, float *out, uint32_t *missing, bool *again, bd_err *err)
{
    ps_fetch *f = NULL;
    bd_status rc = BD_OK;
    *again = false;
    const ps_tables *ts = ps_shard_lock_tables(s);
    ps_table *t = ps_tables_find(ts, table_id);
    size_t n_missing = 0;
    if (t == NULL || ps_table_spec(t)->dim != dim) {
        rc = bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u and dim %u", table_id, dim);
    } else {
        n_missing = ps_table_read(t, keys, n, out, missing);
    }
    if (n_missing > 0) {
        f = ps_fetch_new(table_id, ps_table_value_bytes(t), keys, missing, n_missing);
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
        ps_table_finish(ps_tables_find(ts, table_id), keys, missing, n_missing, &found, out);
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
    while (rc == BD_OK && again) {
        rc = read_once(s, table_id, dim, keys, n, out, missing, &again, err);
    }
    bd_free(missing);
    return rc;
}
