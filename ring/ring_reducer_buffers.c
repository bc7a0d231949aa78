/* Buffers: what a model keeps beside parameters is rank 0's before every forward. All of them
 * travel as one vector of bytes. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_reducer_int.h"

#include <string.h>

static size_t buffer_bytes(const ring_buffer *b)
{
    return b->n_elems * num_dtype_bytes((int)b->dtype);
}

bd_status ring_reducer_set_buffers(ring_reducer *r, const ring_buffer *buffers, size_t n_buffers,
                                   bd_err *err)
{
    size_t total = 0;
    if (r->has_stepped || r->buffers != NULL) {
        return bd_err_set(err, BD_E_STATE, "reducer: buffers are set once, before the first step");
    }
    for (size_t i = 0; i < n_buffers; i++) {
        size_t n_bytes = num_dtype_bytes((int)buffers[i].dtype);
        if (buffers[i].name == NULL || n_bytes == 0 ||
            !bd_mul_size(n_bytes, buffers[i].n_elems, &n_bytes) ||
            !bd_add_size(total, n_bytes, &total)) {
            return bd_err_set(err, BD_E_INVALID, "reducer: buffer %zu has no valid size", i);
        }
    }
    ring_buffer *own = bd_calloc(n_buffers + 1, sizeof *own);
    uint8_t *bytes = bd_alloc(total);
    if (own == NULL || bytes == NULL) {
        bd_free(own);
        bd_free(bytes);
        return bd_err_set(err, BD_E_NOMEM, "reducer: buffers of %zu bytes", total);
    }
    if (n_buffers > 0) {
        memcpy(own, buffers, n_buffers * sizeof *own);
    }
    r->buffers = own;
    r->n_buffers = n_buffers;
    r->buffer_bytes = bytes;
    r->n_buffer_bytes = total;
    return ring_reducer_check_manifest(r, err);
}

static void pack(const ring_reducer *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->n_buffers; i++) {
        size_t n = buffer_bytes(&r->buffers[i]);
        if (n > 0) {
            memcpy(r->buffer_bytes + at, r->buffers[i].data, n);
        }
        at += n;
    }
}

static void unpack(const ring_reducer *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->n_buffers; i++) {
        size_t n = buffer_bytes(&r->buffers[i]);
        if (n > 0) {
            memcpy(r->buffers[i].data, r->buffer_bytes + at, n);
        }
        at += n;
    }
}

bd_status ring_reducer_send_buffers(ring_reducer *r, bd_err *err)
{
    int root = r->has_joined_ranks ? r->last_rank : 0;
    bool is_root = ring_rank(r->comm) == root;
    if (is_root) {
        pack(r);
    }
    bd_status rc = ring_broadcast(r->comm, r->buffer_bytes, r->n_buffer_bytes, NUM_U8, root,
                                  "reducer.buffers", NULL, err);
    if (rc == BD_OK && !is_root) {
        unpack(r);
    }
    return rc;
}

bd_status ring_reducer_forward(ring_reducer *r, bool sync, bd_err *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = BD_OK;
    if (r->in_backward) {
        rc = bd_err_set(&e, BD_E_STATE, "reducer: a forward while a backward is open");
    } else if (r->n_buffers > 0 && r->in_forward && sync) {
        rc = bd_err_set(&e, BD_E_STATE,
                        "reducer: a second forward before backward: it would change %zu buffers "
                        "(%s, ..) under the first one",
                        r->n_buffers, r->buffers[0].name);
    }
    if (rc != BD_OK) {
        return ring_reducer_keep(r, &e, err);
    }
    r->times.forward_ns = bd_mono_ns();
    if (r->n_buffers == 0) {
        return BD_OK;
    }
    r->in_forward = true;
    r->forward_sync = sync;
    rc = r->has_joined_ranks && !r->has_told ? ring_reducer_tell_joined(r, sync, err) : BD_OK;
    return rc == BD_OK && sync ? ring_reducer_send_buffers(r, err) : rc;
}

void ring_reducer_reset(ring_reducer *r)
{
    r->in_forward = false;
}
