#include "base/num/reduce.h"

#include "base/num/cpu.h"
#include "base/num/reduce_int.h"

#include <math.h>

NUM_ALL_LOOPS(, portable)
NUM_FLOAT_LOOPS(, portable, f16, uint16_t, float, num_f16_widen, num_f16_narrow)
NUM_FLOAT_LOOPS(, portable, bf16, uint16_t, float, num_bf16_widen, num_bf16_narrow)
NUM_F32ACC_LOOP(, f32acc_f16_portable, uint16_t, num_f16_widen)
NUM_F32ACC_LOOP(, f32acc_bf16_portable, uint16_t, num_bf16_widen)

const num_reduce_table num_reduce_portable = NUM_TABLE(portable);

static const num_reduce_table *best_table(void)
{
#if NUM_X86
    return num_cpu_has_avx2() ? &num_reduce_avx2 : &num_reduce_portable;
#else
    return &num_reduce_portable;
#endif
}

const char *num_reduce_op_name(int op)
{
    switch (op) {
#define BD_X(name, num, text) \
    case (num):               \
        return (text);
        NUM_REDUCE_OP_MAP(BD_X)
#undef BD_X
    default:
        return "?";
    }
}

static bd_status run(const num_reduce_table *table, void *acc, const void *x, size_t n_elems,
                     int dtype, int op)
{
    if (dtype < 1 || dtype >= NUM_N_DTYPES || op < 1 || op >= NUM_N_OPS) {
        return BD_E_INVALID; /* both may come from a peer's frame */
    }
    num_reduce_fn fn = table->fn[dtype][op];
    if (fn == NULL) {
        return BD_E_UNSUPPORTED;
    }
    fn(acc, x, n_elems);
    return BD_OK;
}

bd_status num_reduce(void *acc, const void *x, size_t n_elems, num_dtype dtype, num_reduce_op op)
{
    return run(best_table(), acc, x, n_elems, (int)dtype, (int)op);
}

bd_status num_reduce_ref(void *acc, const void *x, size_t n_elems, num_dtype dtype,
                         num_reduce_op op)
{
    return run(&num_reduce_portable, acc, x, n_elems, (int)dtype, (int)op);
}

bd_status num_reduce_f32acc(float *acc, const void *x, size_t n_elems, num_dtype dtype)
{
    int d = (int)dtype;
    if (d < 1 || d >= NUM_N_DTYPES) {
        return BD_E_INVALID;
    }
    num_reduce_fn fn = best_table()->f32acc[d];
    if (fn == NULL) {
        return BD_E_UNSUPPORTED;
    }
    fn(acc, x, n_elems);
    return BD_OK;
}

/* v truncated into [lo, hi]; NaN gives 0. hi_excl is the first double above the range, since the
 * largest int64 is no double. */
static int64_t clamp_i64(double v, int64_t lo, int64_t hi, double hi_excl)
{
    if (isnan(v)) {
        return 0;
    }
    if (v >= hi_excl) {
        return hi;
    }
    return v <= (double)lo ? lo : (int64_t)v;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define SCALE_INTS(type, lo, hi, hi_excl)                                   \
    do {                                                                    \
        type *b = buf;                                                      \
        for (size_t i = 0; i < n_elems; i++) {                              \
            b[i] = (type)clamp_i64((double)b[i] * factor, lo, hi, hi_excl); \
        }                                                                   \
    } while (0)

/* NOLINTEND(bugprone-macro-parentheses) */

static void scale_ints(void *buf, size_t n_elems, num_dtype dtype, double factor)
{
    switch (dtype) {
    case NUM_I32:
        SCALE_INTS(int32_t, INT32_MIN, INT32_MAX, 0x1p31);
        break;
    case NUM_I64:
        SCALE_INTS(int64_t, INT64_MIN, INT64_MAX, 0x1p63);
        break;
    case NUM_U8:
        SCALE_INTS(uint8_t, 0, UINT8_MAX, 256.0);
        break;
    case NUM_I8:
        SCALE_INTS(int8_t, INT8_MIN, INT8_MAX, 128.0);
        break;
    default:
        break;
    }
}

static void scale_f32(float *b, size_t n_elems, double factor)
{
    for (size_t i = 0; i < n_elems; i++) {
        b[i] = (float)((double)b[i] * factor);
    }
}

static void scale_f64(double *b, size_t n_elems, double factor)
{
    for (size_t i = 0; i < n_elems; i++) {
        b[i] *= factor;
    }
}

static void scale_f16(uint16_t *b, size_t n_elems, float factor)
{
    for (size_t i = 0; i < n_elems; i++) {
        b[i] = num_f16_narrow(num_f16_widen(b[i]) * factor);
    }
}

static void scale_bf16(uint16_t *b, size_t n_elems, float factor)
{
    for (size_t i = 0; i < n_elems; i++) {
        b[i] = num_bf16_narrow(num_bf16_widen(b[i]) * factor);
    }
}

void num_scale(void *buf, size_t n_elems, num_dtype dtype, double factor)
{
    switch (dtype) {
    case NUM_F32:
        scale_f32(buf, n_elems, factor);
        break;
    case NUM_F64:
        scale_f64(buf, n_elems, factor);
        break;
    case NUM_F16:
        scale_f16(buf, n_elems, (float)factor);
        break;
    case NUM_BF16:
        scale_bf16(buf, n_elems, (float)factor);
        break;
    default:
        scale_ints(buf, n_elems, dtype, factor);
        break;
    }
}
