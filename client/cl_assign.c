/* Rows written as they are: grouped by server, copied into parts, sent as unary calls. */
#include "base/mem.h"

#include "client/cl_int.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <string.h>

typedef struct assign {
    cl_client *c;
    uint32_t table_id;
    size_t dim, state_elems; /* of a row; 0: no state given */
    const uint64_t *keys;
    const float *rows, *state;
} assign;

/* Copies the rows at order[0..n) into the request of one part. */
static bd_status fill(const assign *a, const size_t *order, size_t n, cl_call *call, bd_err *err)
{
    bd_buf *keys = bd_buf_new(n * sizeof(uint64_t));
    bd_buf *rows = bd_buf_new(n * a->dim * sizeof(float));
    bd_buf *state = bd_buf_new(n * a->state_elems * sizeof(float));
    bd_status rc = BD_E_NOMEM;
    if (keys == NULL || rows == NULL || state == NULL) {
        (void)bd_err_set(err, rc, "assign of %zu rows", n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(keys->bytes + i * sizeof(uint64_t), &a->keys[order[i]], sizeof(uint64_t));
        memcpy(rows->bytes + i * a->dim * sizeof(float), a->rows + order[i] * a->dim,
               a->dim * sizeof(float));
        if (a->state_elems > 0) {
            memcpy(state->bytes + i * a->state_elems * sizeof(float),
                   a->state + order[i] * a->state_elems, a->state_elems * sizeof(float));
        }
    }
    px_assign_request req = {
        .table_id = a->table_id,
        .keys = px_bulk_of(keys, 0, n, sizeof(uint64_t)),
        .rows = px_bulk_of(rows, 0, n * a->dim, sizeof(float)),
        .state = px_bulk_of(state, 0, n * a->state_elems, sizeof(float)),
    };
    rc = px_encode_assign_request(&req, &call->bytes, err);
out:
    bd_buf_unref(keys);
    bd_buf_unref(rows);
    bd_buf_unref(state);
    return rc;
}

/* order[] = positions of the keys, grouped by server; first[s] = where server s begins. */
static void group(const cl_map *map, const uint64_t *keys, size_t n, size_t *order, size_t *first)
{
    for (size_t i = 0; i < n; i++) {
        first[map->owner[cl_slot_of(keys[i])] + 1]++;
    }
    for (size_t s = 0; s < map->n_servers; s++) {
        first[s + 1] += first[s];
    }
    for (size_t i = 0; i < n; i++) {
        order[first[map->owner[cl_slot_of(keys[i])]]++] = i;
    }
    memmove(first + 1, first, map->n_servers * sizeof *first);
    first[0] = 0;
}

static size_t n_parts_of(const size_t *first, size_t n_servers, size_t rows_per_part)
{
    size_t n = 0;
    for (size_t s = 0; s < n_servers; s++) {
        n += (first[s + 1] - first[s] + rows_per_part - 1) / rows_per_part;
    }
    return n;
}

static bd_status send(const assign *a, const cl_map *map, const size_t *order, const size_t *first,
                      bd_err *err)
{
    size_t row_bytes = sizeof(uint64_t) + (a->dim + a->state_elems) * sizeof(float);
    size_t per_part = a->c->part_bytes / row_bytes > 0 ? a->c->part_bytes / row_bytes : 1;
    cl_batch b = {0};
    bd_status rc = cl_batch_init(&b, a->c, n_parts_of(first, map->n_servers, per_part), err);
    size_t used = 0;
    for (size_t s = 0; rc == BD_OK && s < map->n_servers; s++) {
        for (size_t at = first[s]; rc == BD_OK && at < first[s + 1]; at += per_part) {
            size_t left = first[s + 1] - at;
            cl_call *call = &b.calls[used++];
            call->kind = CL_CONTROL;
            call->method = CL_SERVICE "Assign";
            call->server_idx = s;
            rc = fill(a, order + at, left < per_part ? left : per_part, call, err);
            if (rc == BD_OK) {
                cl_call_send(call);
            }
        }
    }
    if (rc == BD_OK) {
        rc = cl_batch_wait(&b, NULL, NULL, err);
    }
    cl_batch_deinit(&b);
    return rc;
}

/* Elements of optimiser state beside each row of the table, as server 0 says. */
static bd_status find_state_elems(assign *a, bd_err *err)
{
    Braid__V1__ListTablesRequest req;
    size_t n = cl_client_n_servers(a->c);
    ProtobufCMessage **replies = bd_calloc(n, sizeof(void *));
    if (replies == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "assign");
    }
    braid__v1__list_tables_request__init(&req);
    bd_status rc = cl_ask_all(a->c, CL_SERVICE "ListTables", &req.base,
                              &braid__v1__list_tables_reply__descriptor, replies, err);
    if (rc == BD_OK) {
        const Braid__V1__ListTablesReply *list = (const void *)replies[0];
        rc = BD_E_NOT_FOUND;
        for (size_t i = 0; i < list->n_tables; i++) {
            if (list->tables[i]->table_id == a->table_id) {
                a->state_elems = list->tables[i]->state_elems;
                rc = BD_OK;
            }
        }
        if (rc != BD_OK) {
            (void)bd_err_set(err, rc, "assign: no table %u", a->table_id);
        }
    }
    for (size_t i = 0; i < n; i++) {
        px_unpacked_free(replies[i]);
    }
    bd_free(replies);
    return rc;
}

bd_status cl_assign(cl_client *c, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                    const float *rows, const float *state, size_t n, bd_err *err)
{
    assign a = {c, table_id, dim, 0, keys, rows, state};
    cl_map *map = NULL;
    size_t *order = NULL, *first = NULL;
    bd_status rc = state != NULL ? find_state_elems(&a, err) : BD_OK;
    if (rc != BD_OK || n == 0) {
        return rc;
    }
    map = cl_client_map(c);
    order = bd_calloc(n, sizeof *order);
    first = bd_calloc(map->n_servers + 1, sizeof *first);
    if (order != NULL && first != NULL) {
        group(map, keys, n, order, first);
        rc = send(&a, map, order, first, err);
    } else {
        rc = bd_err_set(err, BD_E_NOMEM, "assign of %zu rows", n);
    }
    bd_free(order);
    bd_free(first);
    cl_map_unref(map);
    return rc;
}
