/* base/num/reduce_int.h - the reduction loops as one list, built once per instruction set.
 *
 * Layer: base/num, private to reduce*.c. Every build compiles the same C expressions without
 * contraction or reassociation, so the builds agree bit for bit. Only f16 and bf16 have
 * hand-written AVX2 versions: the compiler does not find the conversions by itself.
 */
#ifndef NUM_REDUCE_INT_H
#define NUM_REDUCE_INT_H

#include "base/num/dtype_int.h"
#include "base/num/reduce.h"

typedef void (*num_reduce_fn)(void *acc, const void *x, size_t n);

enum { NUM_N_DTYPES = 9, NUM_N_OPS = 8 }; /* tables are indexed by the wire numbers, 0 unused */

typedef struct num_reduce_table {
    num_reduce_fn fn[NUM_N_DTYPES][NUM_N_OPS]; /* NULL: not supported */
    num_reduce_fn f32acc[NUM_N_DTYPES];
} num_reduce_table;

extern const num_reduce_table num_reduce_portable;
extern const num_reduce_table num_reduce_avx2; /* x86-64 only */

/* The combinations. NaN wins: a NaN on the left passes the test, one on the right fails it. */
#define NUM_OP_SUM(a, b)  ((a) + (b))
#define NUM_OP_PROD(a, b) ((a) * (b))
#define NUM_OP_MIN(a, b)  ((((a) < (b)) | ((a) != (a))) ? (a) : (b))
#define NUM_OP_MAX(a, b)  ((((a) > (b)) | ((a) != (a))) ? (a) : (b))
#define NUM_OP_BAND(a, b) ((a) & (b))
#define NUM_OP_BOR(a, b)  ((a) | (b))
#define NUM_SAME(v)       (v)

/* A type cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses) */
/* One loop: elements of `type`, widened to `wide`, combined, narrowed. */
#define NUM_LOOP(attr, name, type, wide, widen, narrow, op)               \
    attr static void name(void *acc_bytes, const void *x_bytes, size_t n) \
    {                                                                     \
        type *restrict acc = acc_bytes;                                   \
        const type *restrict x = x_bytes;                                 \
        for (size_t i = 0; i < n; i++) {                                  \
            wide a = (wide)widen(acc[i]), b = (wide)widen(x[i]);          \
            acc[i] = (type)narrow(op(a, b));                              \
        }                                                                 \
    }

#define NUM_FLOAT_LOOPS(attr, tag, name, type, wide, widen, narrow)           \
    NUM_LOOP(attr, name##_sum_##tag, type, wide, widen, narrow, NUM_OP_SUM)   \
    NUM_LOOP(attr, name##_prod_##tag, type, wide, widen, narrow, NUM_OP_PROD) \
    NUM_LOOP(attr, name##_min_##tag, type, wide, widen, narrow, NUM_OP_MIN)   \
    NUM_LOOP(attr, name##_max_##tag, type, wide, widen, narrow, NUM_OP_MAX)

/* Sums and products of integers wrap: taken in the unsigned type. */
#define NUM_INT_LOOPS(attr, tag, name, type, uns)                                 \
    NUM_LOOP(attr, name##_sum_##tag, type, uns, NUM_SAME, NUM_SAME, NUM_OP_SUM)   \
    NUM_LOOP(attr, name##_prod_##tag, type, uns, NUM_SAME, NUM_SAME, NUM_OP_PROD) \
    NUM_LOOP(attr, name##_min_##tag, type, type, NUM_SAME, NUM_SAME, NUM_OP_MIN)  \
    NUM_LOOP(attr, name##_max_##tag, type, type, NUM_SAME, NUM_SAME, NUM_OP_MAX)  \
    NUM_LOOP(attr, name##_band_##tag, type, uns, NUM_SAME, NUM_SAME, NUM_OP_BAND) \
    NUM_LOOP(attr, name##_bor_##tag, type, uns, NUM_SAME, NUM_SAME, NUM_OP_BOR)

#define NUM_F32ACC_LOOP(attr, name, type, widen)                          \
    attr static void name(void *acc_bytes, const void *x_bytes, size_t n) \
    {                                                                     \
        float *restrict acc = acc_bytes;                                  \
        const type *restrict x = x_bytes;                                 \
        for (size_t i = 0; i < n; i++) {                                  \
            acc[i] += widen(x[i]);                                        \
        }                                                                 \
    }

/* NOLINTEND(bugprone-macro-parentheses) */

/* Everything but f16 and bf16. */
#define NUM_ALL_LOOPS(attr, tag)                                        \
    NUM_FLOAT_LOOPS(attr, tag, f32, float, float, NUM_SAME, NUM_SAME)   \
    NUM_FLOAT_LOOPS(attr, tag, f64, double, double, NUM_SAME, NUM_SAME) \
    NUM_INT_LOOPS(attr, tag, i32, int32_t, uint32_t)                    \
    NUM_INT_LOOPS(attr, tag, i64, int64_t, uint64_t)                    \
    NUM_INT_LOOPS(attr, tag, u8, uint8_t, uint8_t)                      \
    NUM_INT_LOOPS(attr, tag, i8, int8_t, uint8_t)                       \
    NUM_F32ACC_LOOP(attr, f32acc_f32_##tag, float, NUM_SAME)

#define NUM_FLOAT_ROW(tag, name)                                                                  \
    {                                                                                             \
        [NUM_SUM] = name##_sum_##tag, [NUM_AVG] = name##_sum_##tag, [NUM_MIN] = name##_min_##tag, \
        [NUM_MAX] = name##_max_##tag, [NUM_PROD] = name##_prod_##tag                              \
    }
#define NUM_INT_ROW(tag, name)                                                                    \
    {                                                                                             \
        [NUM_SUM] = name##_sum_##tag, [NUM_AVG] = name##_sum_##tag, [NUM_MIN] = name##_min_##tag, \
        [NUM_MAX] = name##_max_##tag, [NUM_PROD] = name##_prod_##tag,                             \
        [NUM_BAND] = name##_band_##tag, [NUM_BOR] = name##_bor_##tag                              \
    }
#define NUM_TABLE(tag)                                                                     \
    {                                                                                      \
        .fn = {[NUM_F32] = NUM_FLOAT_ROW(tag, f32),   [NUM_F16] = NUM_FLOAT_ROW(tag, f16), \
               [NUM_BF16] = NUM_FLOAT_ROW(tag, bf16), [NUM_F64] = NUM_FLOAT_ROW(tag, f64), \
               [NUM_I32] = NUM_INT_ROW(tag, i32),     [NUM_I64] = NUM_INT_ROW(tag, i64),   \
               [NUM_U8] = NUM_INT_ROW(tag, u8),       [NUM_I8] = NUM_INT_ROW(tag, i8)},    \
        .f32acc = {                                                                        \
            [NUM_F32] = f32acc_f32_##tag,                                                  \
            [NUM_F16] = f32acc_f16_##tag,                                                  \
            [NUM_BF16] = f32acc_bf16_##tag                                                 \
        }                                                                                  \
    }

#endif
