#include "ring/ring_combine.h"

#include "ring/ring_algo.h"

#include <string.h>

/* Two blocks of f32 fit the first-level cache beside the sources' lines. */
#define BLOCK_ELEMS ((size_t)2048)

static const uint8_t *at(const void *p, size_t n_bytes)
{
    return (const uint8_t *)p + n_bytes;
}

static bd_status half_block(uint16_t *dst, const void *const *src, int n_src, size_t first,
                            size_t n, num_dtype dtype, int op)
{
    float acc[BLOCK_ELEMS];
    bd_status rc = BD_OK;

    const uint16_t *x = (const uint16_t *)src[0] + first;
    for (size_t i = 0; i < n; i++) { /* not 0 + x: that loses the sign of -0 */
        acc[i] = dtype == NUM_F16 ? num_f16_to_f32(x[i]) : num_bf16_to_f32(x[i]);
    }
    for (int r = 1; rc == BD_OK && r < n_src; r++) {
        rc = num_reduce_f32acc(acc, (const uint16_t *)src[r] + first, n, dtype);
    }
    if (op == NUM_AVG) {
        ring_divide(acc, n, NUM_F32, n_src);
    }
    for (size_t i = 0; i < n; i++) {
        dst[first + i] = dtype == NUM_F16 ? num_f32_to_f16(acc[i]) : num_f32_to_bf16(acc[i]);
    }
    return rc;
}

/* When dst is a later source, the partial result must not go there yet. */
static bd_status any_block(uint8_t *dst, const void *const *src, int n_src, size_t first_bytes,
                           size_t n, num_dtype dtype, int op)
{
    _Alignas(64) uint8_t tmp[BLOCK_ELEMS * 8];
    size_t n_bytes = n * num_dtype_bytes((int)dtype);
    bd_status rc = BD_OK;
    bool in_place = true;
    for (int r = 1; r < n_src; r++) {
        in_place = in_place && src[r] != (const void *)dst;
    }
    uint8_t *acc = in_place ? dst + first_bytes : tmp;
    if (acc != at(src[0], first_bytes)) {
        memcpy(acc, at(src[0], first_bytes), n_bytes);
    }
    for (int r = 1; rc == BD_OK && r < n_src; r++) {
        rc = num_reduce(acc, at(src[r], first_bytes), n, dtype, (num_reduce_op)op);
    }
    if (op == NUM_AVG) {
        ring_divide(acc, n, dtype, n_src);
    }
    if (!in_place) {
        memcpy(dst + first_bytes, tmp, n_bytes);
    }
    return rc;
}

bd_status ring_combine(void *dst, const void *const *src, int n_src, size_t n_elems,
                       num_dtype dtype, int op, bd_err *err)
{
    bool is_half = dtype == NUM_F16 || dtype == NUM_BF16;
    bool is_sum = op == NUM_SUM || op == NUM_AVG;
    size_t elem_bytes = num_dtype_bytes((int)dtype);
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < n_elems; i += BLOCK_ELEMS) {
        size_t n = n_elems - i < BLOCK_ELEMS ? n_elems - i : BLOCK_ELEMS;
        rc = is_half && is_sum ? half_block(dst, src, n_src, i, n, dtype, op)
                               : any_block(dst, src, n_src, i * elem_bytes, n, dtype, op);
    }
    return rc == BD_OK ? rc : bd_err_set(err, rc, "reduce %s", num_reduce_op_name(op));
}
