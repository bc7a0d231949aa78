/* Reads of rows that may be away, for callers that wait. */
#include "base/mem.h"

#include "ps_server/ps_shard_int.h"

/* A read: which rows, where they go, and room for the indexes of those that are away. */
typedef struct row_read {
    ps_shard *shard;
    uint32_t table_id, dim;
    const uint64_t *keys;
    size_t n;
    float *out;
    uint32_t *missing;
} row_read;

bd_status ps_shard_read_start(ps_shard *s, ps_table *t, const uint64_t *keys, size_t n, float *out,
                              uint32_t *missing, ps_fetch **fetch, bd_err *err)
{
    uint64_t as_of = atomic_load_explicit(&s->applied_n, memory_order_acquire); /* first */
    size_t n_missing = ps_table_read(t, keys, n, out, missing);
    *fetch = NULL;
    if (n_missing == 0) {
        return BD_OK;
    }
    ps_fetch *f =
        ps_fetch_new(ps_table_spec(t)->id, ps_table_value_bytes(t), keys, missing, n_missing);
    if (f == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read: no memory for %zu rows", n_missing);
    }
    f->as_of = as_of;
    f->turn = ps_fetch_pool_turn(s->fetch);
    *fetch = f;
    return BD_OK;
}

void ps_shard_read_put(ps_shard *s, const ps_fetch *f, size_t first, size_t n, const uint64_t *keys,
                       float *out)
{
    const ps_tables *ts = ps_shard_lock_tables(s);
    if (f->turn == ps_fetch_pool_turn(s->fetch)) {
        const ps_found found = ps_fetch_found(f, first);
        ps_table_finish(ps_tables_find(ts, f->table_id), keys, f->picks + first, n, &found, out);
    }
    ps_shard_unlock_tables(s);
}

bd_status ps_shard_read_end(ps_shard *s, const ps_fetch *f, bd_err *err)
{
    if (f->turn != ps_fetch_pool_turn(s->fetch)) {
        return BD_AGAIN;
    }
    if (f->rc != BD_OK) {
        *err = f->err;
    }
    return f->rc;
}

static void on_put(ps_fetch *f, size_t first, size_t n)
{
    const row_read *r = f->user;
    ps_shard_read_put(r->shard, f, first, n, r->keys, r->out);
}

/* One try. BD_AGAIN: the tables were replaced while rows were fetched. */
static bd_status read_once(row_read *r, bd_err *err)
{
    ps_shard *s = r->shard;
    ps_fetch *f = NULL;
    const ps_tables *ts = ps_shard_lock_tables(s);
    ps_table *t = ps_tables_find(ts, r->table_id);
    bd_status rc =
        t == NULL || ps_table_spec(t)->dim != r->dim
            ? bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u and dim %u", r->table_id, r->dim)
            : ps_shard_read_start(s, t, r->keys, r->n, r->out, r->missing, &f, err);
    ps_shard_unlock_tables(s);
    if (f == NULL) {
        return rc;
    }
    f->put = on_put;
    f->user = r;
    (void)ps_fetch_wait(s->fetch, f); /* the end looks at what came of it */
    (void)ps_shard_lock_tables(s);
    rc = ps_shard_read_end(s, f, err);
    ps_shard_unlock_tables(s);
    ps_fetch_free(f);
    return rc;
}

bd_status ps_shard_read(ps_shard *s, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                        size_t n, float *out, bd_err *err)
{
    bd_status rc = BD_AGAIN;
    uint32_t *missing = bd_alloc((n + 1) * sizeof *missing);
    if (missing == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read: no memory for %zu keys", n);
    }
    row_read r = {.shard = s, .table_id = table_id, .dim = dim, .keys = keys, .n = n};
    r.out = out;
    r.missing = missing;
    while (rc == BD_AGAIN) {
        rc = read_once(&r, err);
    }
    bd_free(missing);
    return rc;
}
