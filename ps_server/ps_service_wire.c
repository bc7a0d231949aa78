/* Rows and gradients that travel packed (proto/px_rows.h): unpacked before anything looks at them,
 * packed after all is done, so that nothing else in the server knows of it. */
#include "base/mem.h"

#include "proto/px_rows.h"
#include "ps_server/ps_service_int.h"

#include <inttypes.h>

#define MAX_UNPACKED_BYTES (64ull << 20) /* of one table's gradients */

static bool is_plain(int32_t dtype, int32_t codec)
{
    return px_dtype_num(dtype) == NUM_F32 && codec == NUM_CODEC_NONE;
}

bd_status ps_wire_check_lookup(const px_lookup_request *r, bd_err *err)
{
    if (px_dtype_num(r->row_dtype) < 0) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "lookup: dtype %d is not known", r->row_dtype);
    }
    if (num_codec_name(r->row_codec)[0] == '?') {
        return bd_err_set(err, BD_E_UNSUPPORTED, "lookup: codec %d is not known", r->row_codec);
    }
    return BD_OK;
}

void ps_wire_drop(ps_call *c)
{
    for (size_t i = 0; i < c->n_wire; i++) {
        bd_buf_unref(c->wire[i]);
    }
    c->n_wire = 0;
}

/* Room for the buffers of n tables. */
static bd_status keep(ps_call *c, size_t n, bd_err *err)
{
    if (c->n_wire == 0) {
        c->wire = bd_arena_calloc(&c->arena, n, sizeof(void *));
        if (c->wire == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "no memory for packed rows");
        }
        c->n_wire = n;
    }
    return BD_OK;
}

bd_status ps_wire_pack_reply(ps_call *c, px_lookup_reply *r, bd_err *err)
{
    int32_t dtype = c->lookup.row_dtype, codec = c->lookup.row_codec;
    bd_status rc = is_plain(dtype, codec) ? BD_OK : keep(c, r->n_tables, err);
    for (size_t i = 0; rc == BD_OK && i < r->n_tables && !is_plain(dtype, codec); i++) {
        px_table_rows *t = &r->tables[i];
        size_t n = px_bulk_count(&t->rows);
        if (n == 0) {
            continue;
        }
        t->packed_rows = (uint32_t)(n / t->dim);
        rc = px_rows_pack(dtype, codec, px_bulk_ptr(&t->rows, 0, n), t->packed_rows, t->dim,
                          &c->wire[i], err);
        if (rc == BD_OK) {
            t->dtype = dtype;
            t->codec = codec;
            t->packed = px_bulk_of(c->wire[i], 0, c->wire[i]->n_bytes, 1);
            t->rows = (px_bulk){0};
        }
    }
    return rc;
}

static bd_status unpack(px_table_grads *t, bd_buf **out, bd_err *err)
{
    size_t elems = 0;
    if (!bd_mul_size(t->packed_rows, t->dim, &elems) ||
        elems > MAX_UNPACKED_BYTES / sizeof(float)) {
        return bd_err_set(err, BD_E_INVALID,
                          "table %u: %u packed rows of dim %u are more than %llu bytes: push parts",
                          t->table_id, t->packed_rows, t->dim, MAX_UNPACKED_BYTES);
    }
    bd_buf *buf = bd_buf_new(elems * sizeof(float));
    if (buf == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "push: no memory for %zu numbers", elems);
    }
    bd_status rc = px_rows_unpack(&t->packed, t->dtype, t->codec, t->packed_rows, t->dim,
                                  (float *)(void *)buf->bytes, err);
    if (rc != BD_OK) {
        bd_buf_unref(buf);
        return bd_err_wrap(err, "table %u", t->table_id);
    }
    t->grads = px_bulk_of(buf, 0, elems, sizeof(float));
    t->packed = (px_bulk){0};
    *out = buf;
    return BD_OK;
}

bd_status ps_wire_unpack_push(ps_call *c, const px_push_request *r, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < r->n_tables; i++) {
        if (r->tables[i].packed.n_bytes > 0) {
            rc = keep(c, r->n_tables, err);
            rc = rc == BD_OK ? unpack(&r->tables[i], &c->wire[i], err) : rc;
        }
    }
    return rc == BD_OK ? rc : bd_err_wrap(err, "push of rank %u step %" PRIu64, r->rank, r->step);
}
