/* The reductions built for AVX2 and F16C. */
#include "base/num/cpu.h"
#include "base/num/reduce_int.h"

#if NUM_X86

#include <immintrin.h>

NUM_ALL_LOOPS(NUM_AVX2, avx2)

NUM_AVX2 static inline __m256 f16_widen8(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

NUM_AVX2 static inline void f16_narrow8(uint16_t *p, __m256 v)
{
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

NUM_AVX2 static inline __m256 bf16_widen8(const uint16_t *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

/* num_bf16_narrow, eight at a time. */
NUM_AVX2 static inline void bf16_narrow8(uint16_t *p, __m256 v)
{
    __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i h = _mm256_blendv_epi8(rounded, quiet, nan);
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(h));
}

NUM_AVX2 static inline __m256 v_sum(__m256 a, __m256 b)
{
    return _mm256_add_ps(a, b);
}

NUM_AVX2 static inline __m256 v_prod(__m256 a, __m256 b)
{
    return _mm256_mul_ps(a, b);
}

/* a where `better` or a is NaN, else b. */
NUM_AVX2 static inline __m256 pick(__m256 a, __m256 b, __m256 better)
{
    __m256 keep = _mm256_or_ps(better, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_ps(b, a, keep);
}

NUM_AVX2 static inline __m256 v_min(__m256 a, __m256 b)
{
    return pick(a, b, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

NUM_AVX2 static inline __m256 v_max(__m256 a, __m256 b)
{
    return pick(a, b, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

#define HALF_LOOP(type, name, v_op, op)                                                       \
    NUM_AVX2 static void type##_##name##_avx2(void *acc_bytes, const void *x_bytes, size_t n) \
    {                                                                                         \
        uint16_t *restrict acc = acc_bytes;                                                   \
        const uint16_t *restrict x = x_bytes;                                                 \
        size_t i = 0;                                                                         \
        for (; i + 8 <= n; i += 8) {                                                          \
            type##_narrow8(acc + i, v_op(type##_widen8(acc + i), type##_widen8(x + i)));      \
        }                                                                                     \
        for (; i < n; i++) {                                                                  \
            float a = num_##type##_widen(acc[i]), b = num_##type##_widen(x[i]);               \
            acc[i] = num_##type##_narrow(op(a, b));                                           \
        }                                                                                     \
    }

#define HALF_F32ACC_LOOP(type)                                                                \
    NUM_AVX2 static void f32acc_##type##_avx2(void *acc_bytes, const void *x_bytes, size_t n) \
    {                                                                                         \
        float *restrict acc = acc_bytes;                                                      \
        const uint16_t *restrict x = x_bytes;                                                 \
        size_t i = 0;                                                                         \
        for (; i + 8 <= n; i += 8) {                                                          \
            __m256 sum = _mm256_add_ps(_mm256_loadu_ps(acc + i), type##_widen8(x + i));       \
            _mm256_storeu_ps(acc + i, sum);                                                   \
        }                                                                                     \
        for (; i < n; i++) {                                                                  \
            acc[i] += num_##type##_widen(x[i]);                                               \
        }                                                                                     \
    }

#define HALF_LOOPS(type)                       \
    HALF_LOOP(type, sum, v_sum, NUM_OP_SUM)    \
    HALF_LOOP(type, prod, v_prod, NUM_OP_PROD) \
    HALF_LOOP(type, min, v_min, NUM_OP_MIN)    \
    HALF_LOOP(type, max, v_max, NUM_OP_MAX)    \
    HALF_F32ACC_LOOP(type)

HALF_LOOPS(f16)
HALF_LOOPS(bf16)

const num_reduce_table num_reduce_avx2 = NUM_TABLE(avx2);

#else

typedef int num_reduce_avx2_unused;

#endif
