/* Tensors of module calls. */
#include "base/mem.h"

#include "rpc/rpc_rref.h"

#include <string.h>

bd_status rpc_tensor_new(num_dtype dtype, int n_dims, const size_t *dims, rpc_tensor *out)
{
    size_t n_elems = 1, n_bytes;
    if (n_dims < 1 || n_dims > RPC_TENSOR_MAX_DIMS || (dtype != NUM_F32 && dtype != NUM_I64)) {
        return BD_E_INVALID;
    }
    rpc_tensor t = {.dtype = dtype, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        t.dims[i] = dims[i];
        if (!bd_mul_size(n_elems, dims[i], &n_elems)) {
            return BD_E_INVALID;
        }
    }
    if (!bd_mul_size(n_elems, num_dtype_bytes((int)dtype), &n_bytes)) {
        return BD_E_INVALID;
    }
    t.n_elems = n_elems;
    t.buf = bd_buf_new(n_bytes);
    if (t.buf == NULL) {
        return BD_E_NOMEM;
    }
    *out = t;
    return BD_OK;
}

bd_status rpc_tensor_copy_of(num_dtype dtype, int n_dims, const size_t *dims, const void *elems,
                             rpc_tensor *out)
{
    bd_status rc = rpc_tensor_new(dtype, n_dims, dims, out);
    if (rc == BD_OK && out->buf->n_bytes > 0) {
        memcpy(out->buf->bytes, elems, out->buf->n_bytes);
    }
    return rc;
}

void rpc_tensor_free(rpc_tensor *t)
{
    bd_buf_unref(t->buf);
    rpc_rref_unref(t->rref);
    *t = (rpc_tensor){0};
}

void rpc_tensors_free(rpc_tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        rpc_tensor_free(&t[i]);
    }
}
