/* The arithmetic of one element stands once, without branches; the loops over it are compiled
 * twice, once for AVX2, and the compiler's vectors do the same operations. */
#include "base/num/row_codec.h"

#include "base/assert.h"
#include "base/num/cpu.h"
#include "base/num/dtype_int.h"
#include "base/rand.h"

#include <math.h>
#include <string.h>
#if NUM_X86
#include <immintrin.h>
#endif

#define INF_BITS 0x7f800000u
#define NAN_BITS 0x7fc00000u
#define I8_HEAD  4u /* bytes of the scale */
#define I8_TINY  0x1p-100f
#define SIGN(u)  ((u)&0x80000000u)
#define SIZE(u)  ((u)&0x7fffffffu)

static size_t padded(size_t n_bytes)
{
    return (n_bytes + 3) / 4 * 4;
}

static size_t used_bytes(int dtype, size_t dim)
{
    switch (dtype) {
    case NUM_F32:
        return dim * sizeof(float);
    case NUM_F16:
    case NUM_BF16:
        return dim * sizeof(uint16_t);
    case NUM_I8:
        return I8_HEAD + dim;
    default:
        return 0;
    }
}

size_t num_row_bytes(int dtype, size_t dim)
{
    return padded(used_bytes(dtype, dim));
}

uint64_t num_row_draw(uint64_t table_key, uint64_t key, uint64_t write)
{
    uint64_t draw = bd_mix64(bd_mix64(table_key ^ bd_mix64(key)) + write);
    return draw == NUM_ROW_NEAREST ? 1 : draw;
}

/* ---- random bits ---- */

/* Wellons' lowbias32. */
NUM_INLINE uint32_t mix32(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

NUM_INLINE uint32_t bits_at(uint64_t draw, uint32_t i)
{
    uint32_t lo = (uint32_t)draw, hi = (uint32_t)(draw >> 32);
    return mix32(mix32((i * 0x9e3779b9u) ^ lo) + hi);
}

/* What is added before the low `shift` bits of v are cut off. */
NUM_INLINE uint32_t round_up(uint32_t v, uint32_t shift, uint64_t draw, uint32_t i)
{
    uint32_t mask = (1u << shift) - 1, nearest = (mask >> 1) + ((v >> shift) & 1u);
    return draw == NUM_ROW_NEAREST ? nearest : bits_at(draw, i) & mask;
}

/* ---- one element ---- */

NUM_INLINE uint16_t bf16_of(float w, uint64_t draw, uint32_t i)
{
    uint32_t u = num_bits_of(w), size = SIZE(u);
    uint32_t top = size < INF_BITS ? 0x7f7fu : 0x7f80u;
    uint32_t h = (size + round_up(size, 16, draw, i)) >> 16;
    h = h < top ? h : top;
    h = size > INF_BITS ? (size >> 16) | 0x40u : h;
    return (uint16_t)(SIGN(u) >> 16 | h);
}

NUM_INLINE uint16_t f16_of(float w, uint64_t draw, uint32_t i)
{
    uint32_t u = num_bits_of(w), size = SIZE(u), e = size >> 23;
    uint32_t normal = e >= 113; /* 2^-14 and above: 13 bits go; below, units of 2^-24 are left */
    uint32_t v = normal ? size - (112u << 23) : (size & 0x7fffffu) | 0x800000u;
    uint32_t shift = normal ? 13u : e < 95 ? 31u : 126u - e;
    uint32_t h = (v + round_up(v, shift, draw, i)) >> shift;
    h = e < 95 ? 0 : h; /* below 2^-32 */
    h = h < 0x7bffu ? h : 0x7bffu;
    h = size == INF_BITS ? 0x7c00u : h;
    h = size > INF_BITS ? 0x7e00u | ((size >> 13) & 0x3ffu) : h;
    return (uint16_t)(SIGN(u) >> 16 | h);
}

/* Comparisons are of bits, because compilers do not make vectors of ones that may trap. */
NUM_INLINE int8_t i8_of(float w, float scale, uint32_t largest, uint64_t draw, uint32_t i)
{
    uint32_t u = num_bits_of(w), size = SIZE(u);
    uint32_t random = draw == NUM_ROW_NEAREST ? 0x8000u : bits_at(draw, i) & 0xffffu;
    int32_t q = (int32_t)(num_float_of(size) / scale + (float)(int32_t)random * 0x1p-16f);
    q = q > 127 ? 127 : q;
    int32_t is_largest =
        -(int32_t)(size == largest); /* it is 127, for the scale to be found again */
    q = (q & ~is_largest) | (127 & is_largest);
    int32_t minus = -(int32_t)(u >> 31);
    return (int8_t)((q ^ minus) - minus);
}

/* ---- loops ---- */

NUM_INLINE void bf16_loop(const float *w, size_t n, uint64_t draw, uint16_t *row)
{
    for (size_t i = 0; i < n; i++) {
        row[i] = bf16_of(w[i], draw, (uint32_t)i);
    }
}

NUM_INLINE void f16_loop(const float *w, size_t n, uint64_t draw, uint16_t *row)
{
    for (size_t i = 0; i < n; i++) {
        row[i] = f16_of(w[i], draw, (uint32_t)i);
    }
}

NUM_INLINE uint32_t largest_loop(const float *w, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t size = SIZE(num_bits_of(w[i]));
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Scale of a row from the size of its largest weight. 17 bits of significand: times 127 it still
 * fits 24. Rounded up, so that no weight is beyond 127 steps; down where up would make the largest
 * weight infinite. A row that is not finite has scale NaN: decoded, it is NaN everywhere. */
static float scale_of(uint32_t largest)
{
    const uint32_t low = 0x7fu;
    if (largest >= INF_BITS) {
        return num_float_of(NAN_BITS);
    }
    if (num_float_of(largest) < I8_TINY) {
        return 0;
    }
    uint32_t u = num_bits_of(num_float_of(largest) / 127.0f);
    float up = num_float_of((u + low) & ~low);
    return isfinite(127.0f * up) ? up : num_float_of(u & ~low);
}

NUM_INLINE float i8_loop(const float *w, size_t n, uint64_t draw, int8_t *q)
{
    uint32_t bits = largest_loop(w, n);
    float scale = scale_of(bits);
    if (!(scale > 0)) {
        memset(q, 0, n);
        return scale;
    }
    for (size_t i = 0; i < n; i++) {
        q[i] = i8_of(w[i], scale, bits, draw, (uint32_t)i);
    }
    return scale;
}

NUM_INLINE void encode_loop(int dtype, const float *w, size_t dim, uint64_t draw, void *row)
{
    uint8_t *bytes = row;
    if (dtype == NUM_BF16) {
        bf16_loop(w, dim, draw, row);
    } else if (dtype == NUM_F16) {
        f16_loop(w, dim, draw, row);
    } else if (dtype == NUM_I8) {
        float scale = i8_loop(w, dim, draw, (int8_t *)(bytes + I8_HEAD));
        memcpy(bytes, &scale, sizeof scale);
    } else {
        memcpy(row, w, dim * sizeof *w);
    }
}

NUM_INLINE void bf16_back(const uint16_t *row, size_t n, float *w)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = num_bf16_widen(row[i]);
    }
}

NUM_INLINE void i8_back(const uint8_t *row, size_t n, float *w)
{
    float scale;
    const int8_t *q = (const int8_t *)(row + I8_HEAD);
    memcpy(&scale, row, sizeof scale);
    for (size_t i = 0; i < n; i++) {
        w[i] = scale * (float)q[i];
    }
}

/* ---- both versions ---- */

static void pad(int dtype, size_t dim, void *row)
{
    size_t used = used_bytes(dtype, dim);
    BD_ASSERT(num_row_bytes(dtype, dim) > 0 || dim == 0);
    memset((uint8_t *)row + used, 0, padded(used) - used);
}

void num_row_encode_ref(int dtype, const float *w, size_t dim, uint64_t draw, void *row)
{
    pad(dtype, dim, row);
    encode_loop(dtype, w, dim, draw, row);
}

void num_row_decode_ref(int dtype, const void *row, size_t dim, float *w)
{
    const uint16_t *half = row;
    if (dtype == NUM_BF16) {
        bf16_back(half, dim, w);
    } else if (dtype == NUM_I8) {
        i8_back(row, dim, w);
    } else if (dtype == NUM_F16) {
        for (size_t i = 0; i < dim; i++) {
            w[i] = num_f16_widen(half[i]);
        }
    } else {
        memcpy(w, row, dim * sizeof *w);
    }
}

#if NUM_X86
NUM_AVX2 static void encode_avx2(int dtype, const float *w, size_t dim, uint64_t draw, void *row)
{
    encode_loop(dtype, w, dim, draw, row);
}

NUM_AVX2 static void f16_back_avx2(const uint16_t *row, size_t n, float *w)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(row + i));
        _mm256_storeu_ps(w + i, _mm256_cvtph_ps(half));
    }
    for (; i < n; i++) {
        w[i] = num_f16_widen(row[i]);
    }
}

NUM_AVX2 static void decode_avx2(int dtype, const void *row, size_t dim, float *w)
{
    if (dtype == NUM_BF16) {
        bf16_back(row, dim, w);
    } else if (dtype == NUM_I8) {
        i8_back(row, dim, w);
    } else if (dtype == NUM_F16) {
        f16_back_avx2(row, dim, w);
    } else {
        memcpy(w, row, dim * sizeof *w);
    }
}
#endif

void num_row_encode(int dtype, const float *w, size_t dim, uint64_t draw, void *row)
{
#if NUM_X86
    if (num_cpu_has_avx2()) {
        pad(dtype, dim, row);
        encode_avx2(dtype, w, dim, draw, row);
        return;
    }
#endif
    num_row_encode_ref(dtype, w, dim, draw, row);
}

void num_row_decode(int dtype, const void *row, size_t dim, float *w)
{
    if (dtype == NUM_F32) {
        memcpy(w, row, dim * sizeof *w);
        return;
    }
#if NUM_X86
    if (num_cpu_has_avx2()) {
        decode_avx2(dtype, row, dim, w);
        return;
    }
#endif
    num_row_decode_ref(dtype, row, dim, w);
}

/* ---- whole rows ---- */

void num_row_round(int dtype, float *w, size_t dim)
{
    uint32_t bits = dtype == NUM_I8 ? largest_loop(w, dim) : 0;
    float scale = scale_of(bits);
    for (size_t i = 0; i < dim && dtype != NUM_F32; i++) {
        if (dtype == NUM_BF16) {
            w[i] = num_bf16_widen(bf16_of(w[i], NUM_ROW_NEAREST, 0));
        } else if (dtype == NUM_F16) {
            w[i] = num_f16_widen(f16_of(w[i], NUM_ROW_NEAREST, 0));
        } else {
            int8_t q = scale > 0 ? i8_of(w[i], scale, bits, NUM_ROW_NEAREST, 0) : 0;
            w[i] = scale * (float)q;
        }
    }
}

void num_row_update(const num_row_form *f, const float *hyper, void *row, const float *g,
                    uint64_t draw, float *scratch)
{
    uint8_t *bytes = row;
    float *state = (float *)(void *)(bytes + num_row_bytes(f->dtype, f->dim));
    if (f->dtype == NUM_F32) {
        num_optim_apply(f->opt, hyper, row, state, g, f->dim, scratch);
        return;
    }
    float *w = scratch + f->dim;
    num_row_decode(f->dtype, row, f->dim, w);
    num_optim_apply(f->opt, hyper, w, state, g, f->dim, scratch);
    num_row_encode(f->dtype, w, f->dim, draw, row);
}
