#include "proto/px_rows.h"

#include "base/mem.h"
#include "base/num/dtype.h"

#include <braid/v1/parameter_server.pb-c.h>

static const struct {
    int32_t wire;
    int num;
} dtypes[] = {{BRAID__V1__DTYPE__DTYPE_F32, NUM_F32},
              {BRAID__V1__DTYPE__DTYPE_UNSPECIFIED, NUM_F32},
              {BRAID__V1__DTYPE__DTYPE_F16, NUM_F16},
              {BRAID__V1__DTYPE__DTYPE_BF16, NUM_BF16},
              {BRAID__V1__DTYPE__DTYPE_I8, NUM_I8}};

int32_t px_dtype_wire(int dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].num == dtype) {
            return dtypes[i].wire;
        }
    }
    return -1;
}

int px_dtype_num(int32_t wire)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].wire == wire) {
            return dtypes[i].num;
        }
    }
    return -1;
}

static bd_status known_dtype(int32_t wire, bd_err *err)
{
    return px_dtype_num(wire) >= 0
               ? BD_OK
               : bd_err_set(err, BD_E_UNSUPPORTED, "dtype %d is not known", wire);
}

static void free_bytes(void *bytes)
{
    bd_free(bytes);
}

bd_status px_rows_pack(int32_t wire_dtype, int32_t codec, const float *x, size_t n_rows, size_t dim,
                       bd_buf **out, bd_err *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    bd_status rc = known_dtype(wire_dtype, err);
    if (rc == BD_OK) {
        rc = num_rows_pack(px_dtype_num(wire_dtype), codec, x, n_rows, dim, &bytes, &n, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    *out = bd_buf_wrap(bytes, n, free_bytes, bytes);
    if (*out == NULL) {
        bd_free(bytes);
        return bd_err_set(err, BD_E_NOMEM, "pack %zu rows", n_rows);
    }
    return BD_OK;
}

bd_status px_rows_unpack(const px_bulk *packed, int32_t wire_dtype, int32_t codec, size_t n_rows,
                         size_t dim, float *x, bd_err *err)
{
    bd_status rc = known_dtype(wire_dtype, err);
    if (rc != BD_OK) {
        return rc;
    }
    uint8_t *bytes = bd_alloc(packed->n_bytes); /* spans may straddle rows and be unaligned */
    if (bytes == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "unpack %zu rows", n_rows);
    }
    px_bulk_copy(packed, 0, packed->n_bytes, bytes);
    rc = num_rows_unpack(px_dtype_num(wire_dtype), codec, bytes, packed->n_bytes, n_rows, dim, x,
                         err);
    bd_free(bytes);
    return rc;
}
