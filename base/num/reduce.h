/* base/num/reduce.h - acc[i] = op(acc[i], x[i]) for every dtype. Layer: base/num. Pure.
 *
 * SIMD versions are chosen at run time and equal the scalar reference bit for bit (a NaN is a NaN:
 * which payload survives when both sides are NaN is not promised). Buffers are aligned to their
 * element; any n_elems, 0 included.
 * f16/bf16: each call widens, combines in f32 and rounds once; num_reduce_f32acc keeps f32. NaN
 * wins in min and max, whichever side it is on. Integer sums wrap. avg is sum (the caller divides).
 */
#ifndef NUM_REDUCE_H
#define NUM_REDUCE_H

#include "base/num/dtype.h"

#define NUM_REDUCE_OP_MAP(X) \
    X(SUM, 1, "sum")         \
    X(AVG, 2, "avg")         \
    X(MIN, 3, "min")         \
    X(MAX, 4, "max")         \
    X(PROD, 5, "prod")       \
    X(BAND, 6, "band")       \
    X(BOR, 7, "bor")

typedef enum num_reduce_op {
#define BD_X(name, num, text) NUM_##name = (num),
    NUM_REDUCE_OP_MAP(BD_X)
#undef BD_X
} num_reduce_op;

const char *num_reduce_op_name(int op);
/* BD_E_UNSUPPORTED for band/bor on floats. Buffers may not overlap (acc == x is not allowed). */
bd_status num_reduce(void *acc, const void *x, size_t n_elems, num_dtype dtype,
                     num_reduce_op op) BD_MUST_CHECK;
/* The scalar reference of the same. */
bd_status num_reduce_ref(void *acc, const void *x, size_t n_elems, num_dtype dtype,
                         num_reduce_op op) BD_MUST_CHECK;
/* buf[i] *= factor. f32 and f64: the product is taken in double and rounded once; f16 and bf16: the
 * product is taken in f32. Integers: truncated towards zero, clamped to the type's range, NaN 0. */
void num_scale(void *buf, size_t n_elems, num_dtype dtype, double factor);
/* acc[i] += f32(x[i]) for x in f32, f16 or bf16. */
bd_status num_reduce_f32acc(float *acc, const void *x, size_t n_elems,
                            num_dtype dtype) BD_MUST_CHECK;

#endif
