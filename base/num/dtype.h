/* base/num/dtype.h - element types of vectors. Layer: base/num. Pure. */
#ifndef NUM_DTYPE_H
#define NUM_DTYPE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* name, wire number, bytes, text */
#define NUM_DTYPE_MAP(X)  \
    X(F32, 1, 4, "f32")   \
    X(F16, 2, 2, "f16")   \
    X(BF16, 3, 2, "bf16") \
    X(F64, 4, 8, "f64")   \
    X(I32, 5, 4, "i32")   \
    X(I64, 6, 8, "i64")   \
    X(U8, 7, 1, "u8")     \
    X(I8, 8, 1, "i8")

typedef enum num_dtype {
#define BD_X(name, num, size, text) NUM_##name = (num),
    NUM_DTYPE_MAP(BD_X)
#undef BD_X
} num_dtype;

size_t num_dtype_bytes(int dtype);     /* 0 for a number that is not in the list */
const char *num_dtype_name(int dtype); /* "?" for a number that is not in the list */
int num_dtype_parse(const char *name); /* 0 for an unknown name */

/* IEEE half and bfloat16, round to nearest even; NaN stays NaN. */
float num_f16_to_f32(uint16_t h);
uint16_t num_f32_to_f16(float f);
float num_bf16_to_f32(uint16_t h);
uint16_t num_f32_to_bf16(float f);

#endif
