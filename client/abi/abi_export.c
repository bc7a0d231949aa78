/* All rows of a table, page by page, server by server. */
#include "base/mem.h"

#include "client/abi/abi_int.h"
#include "client/cl_int.h"

#include <string.h>

struct braid_export {
    const braid_table *table;
    bool with_state;
    size_t server_idx; /* being read; n_servers: done */
    uint64_t from_key;
    uint64_t *keys;      /* owned, [cap] */
    float *rows, *state; /* owned */
    size_t n, cap;
};

/* Takes the copies of one page. */
static bd_status take_page(braid_export *x, const px_export_reply *r, bd_err *err)
{
    size_t n = px_bulk_count(&r->keys), dim = x->table->dim;
    size_t state_elems = x->with_state ? x->table->state_elems : 0;
    if (px_bulk_count(&r->rows) != n * dim || px_bulk_count(&r->state) != n * state_elems) {
        return bd_err_set(err, BD_E_CORRUPT, "export: %zu row and %zu state numbers for %zu keys",
                          px_bulk_count(&r->rows), px_bulk_count(&r->state), n);
    }
    if (n > x->cap) {
        bd_free(x->keys);
        bd_free(x->rows);
        bd_free(x->state);
        x->cap = 0;
        x->keys = bd_calloc(n, sizeof *x->keys);
        x->rows = bd_calloc(n * dim, sizeof *x->rows);
        x->state = bd_calloc(n * state_elems, sizeof *x->state);
        if (x->keys == NULL || x->rows == NULL || x->state == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "export: page of %zu rows", n);
        }
        x->cap = n;
    }
    px_bulk_copy(&r->keys, 0, n, x->keys);
    px_bulk_copy(&r->rows, 0, n * dim, x->rows);
    px_bulk_copy(&r->state, 0, n * state_elems, x->state);
    x->n = n;
    return BD_OK;
}

static bd_status on_page(void *user, cl_call *call, bd_err *err)
{
    braid_export *x = user;
    px_export_reply r;
    bd_arena arena;
    bd_arena_init(&arena);
    bd_status rc = px_decode_export_reply(&call->reply, NULL, &arena, &r, err);
    if (rc == BD_OK) {
        rc = take_page(x, &r, err);
    }
    if (rc == BD_OK) {
        x->from_key = r.next_key;
        x->server_idx += r.done ? 1u : 0u;
        x->from_key = r.done ? 0 : r.next_key;
    }
    bd_arena_deinit(&arena);
    return rc == BD_OK ? rc : bd_err_wrap(err, "%s", call->link->name);
}

static bd_status read_page(braid_export *x, bd_err *err)
{
    cl_batch b = {0};
    px_export_request req = {
        .table_id = x->table->id, .from_key = x->from_key, .with_state = x->with_state};
    bd_status rc = cl_batch_init(&b, x->table->c->cl, 1, err);
    if (rc == BD_OK) {
        b.calls[0].kind = CL_CONTROL;
        b.calls[0].method = CL_SERVICE "Export";
        b.calls[0].server_idx = x->server_idx;
        rc = px_encode_export_request(&req, &b.calls[0].bytes, err);
    }
    if (rc == BD_OK) {
        cl_call_send(&b.calls[0]);
        rc = cl_batch_wait(&b, on_page, x, err);
    }
    cl_batch_deinit(&b);
    return rc;
}

int braid_export_open(braid_table *table, int with_state, braid_export **cursor, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_export *x = bd_calloc(1, sizeof *x);
    if (x == NULL) {
        (void)bd_err_set(&e, BD_E_NOMEM, "export");
        return abi_done(BD_E_NOMEM, &e, err);
    }
    x->table = table;
    x->with_state = with_state != 0;
    (void)pthread_mutex_lock(&table->c->lock);
    bd_status rc = abi_wait(table->c, &e);
    (void)pthread_mutex_unlock(&table->c->lock);
    if (rc == BD_OK) {
        *cursor = x;
    } else {
        braid_export_close(x);
    }
    return abi_done(rc, &e, err);
}

int braid_export_next(braid_export *cursor, const uint64_t **keys, const float **rows,
                      const float **state, size_t *n, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_client *c = cursor->table->c;
    bd_status rc = BD_OK;
    cursor->n = 0;
    (void)pthread_mutex_lock(&c->lock);
    while (rc == BD_OK && cursor->n == 0 && cursor->server_idx < cl_client_n_servers(c->cl)) {
        rc = read_page(cursor, &e);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (rc == BD_OK) {
        *keys = cursor->keys;
        *rows = cursor->rows;
        *n = cursor->n;
        if (state != NULL) {
            *state = cursor->with_state ? cursor->state : NULL;
        }
    } else {
        (void)bd_err_wrap(&e, "export of table \"%s\"", cursor->table->name);
    }
    return abi_done(rc, &e, err);
}

void braid_export_close(braid_export *cursor)
{
    if (cursor != NULL) {
        bd_free(cursor->keys);
        bd_free(cursor->rows);
        bd_free(cursor->state);
        bd_free(cursor);
    }
}
