/* base/num/dtype_int.h - the half-precision conversions as inline bodies, so that a kernel built
 * for another instruction set gets its own copy. Layer: base/num, private. Pure.
 */
#ifndef NUM_DTYPE_INT_H
#define NUM_DTYPE_INT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* kernels use the same bodies, so they round alike */
#define NUM_INLINE static inline __host__ __device__ __attribute__((always_inline, unused))
#else
#define NUM_INLINE static inline __attribute__((always_inline, unused))
#endif

NUM_INLINE uint32_t num_bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

NUM_INLINE float num_float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

NUM_INLINE float num_bf16_widen(uint16_t h)
{
    return num_float_of((uint32_t)h << 16);
}

/* No branch, so that loops over it are vectorised. A NaN keeps its upper payload and gets quiet. */
NUM_INLINE uint16_t num_bf16_narrow(float f)
{
    uint32_t u = num_bits_of(f);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

NUM_INLINE float num_f16_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = (uint32_t)(h & 0x7fffu);
    if (mag >= 0x7c00u) { /* infinity or NaN; a NaN gets quiet, as the hardware does it */
        uint32_t quiet = mag > 0x7c00u ? 0x400000u : 0u;
        return num_float_of(sign | 0x7f800000u | (mag & 0x3ffu) << 13 | quiet);
    }
    if (mag < 0x400u) { /* zero or subnormal: mag * 2^-24 is exact in f32 */
        return num_float_of(sign | num_bits_of((float)mag * 0x1p-24f));
    }
    return num_float_of(sign | ((mag << 13) + (112u << 23)));
}

NUM_INLINE uint16_t num_f16_narrow(float f)
{
    uint32_t u = num_bits_of(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    }
    if (mag >= 0x47800000u) { /* 2^16 and above; [65520, 65536) rounds up to infinity below */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (mag <
        0x38800000u) { /* below 2^-14: adding 0.5 lets the adder round to multiples of 2^-24 */
        return (uint16_t)(sign | (num_bits_of(num_float_of(mag) + 0.5f) - num_bits_of(0.5f)));
    }
    return (uint16_t)(sign | ((mag - (112u << 23) + 0xfffu + ((mag >> 13) & 1u)) >> 13));
}

#endif
