#include "base/num/dtype.h"

#include "base/num/dtype_int.h"

#include <string.h>

size_t num_dtype_bytes(int dtype)
{
    static const uint8_t bytes[] = {
#define BD_X(name, num, size, text) [num] = (size),
        NUM_DTYPE_MAP(BD_X)
#undef BD_X
    };
    return dtype >= 0 && (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

const char *num_dtype_name(int dtype)
{
    switch (dtype) {
#define BD_X(name, num, size, text) \
    case (num):                     \
        return (text);
        NUM_DTYPE_MAP(BD_X)
#undef BD_X
    default:
        return "?";
    }
}

int num_dtype_parse(const char *name)
{
#define BD_X(dtype, num, size, text) \
    if (strcmp(name, text) == 0) {   \
        return (num);                \
    }
    NUM_DTYPE_MAP(BD_X)
#undef BD_X
    return 0;
}

float num_f16_to_f32(uint16_t h)
{
    return num_f16_widen(h);
}

uint16_t num_f32_to_f16(float f)
{
    return num_f16_narrow(f);
}

float num_bf16_to_f32(uint16_t h)
{
    return num_bf16_widen(h);
}

uint16_t num_f32_to_bf16(float f)
{
    return num_bf16_narrow(f);
}
