#include "base/num/vec.h"

#include "base/num/cpu.h"
#include "base/num/dtype_int.h"
#include "base/rand.h"

#if NUM_X86
#include <immintrin.h>
#endif

enum { LANES = 8 };

static double add_lanes(const double lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double num_sumsq_ref(const float *x, size_t n)
{
    double lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        lane[i % LANES] += (double)x[i] * (double)x[i];
    }
    return add_lanes(lane);
}

double num_sum_ref(const float *x, size_t n)
{
    double lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        lane[i % LANES] += (double)x[i];
    }
    return add_lanes(lane);
}

#if NUM_X86
NUM_AVX2 static double sumsq_avx2(const float *x, size_t n)
{
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + i));
        __m256d b = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        lo = _mm256_add_pd(lo, _mm256_mul_pd(a, a));
        hi = _mm256_add_pd(hi, _mm256_mul_pd(b, b));
    }
    double lane[LANES];
    _mm256_storeu_pd(lane, lo);
    _mm256_storeu_pd(lane + 4, hi);
    for (; i < n; i++) {
        lane[i % LANES] += (double)x[i] * (double)x[i];
    }
    return add_lanes(lane);
}

NUM_AVX2 static double sum_avx2(const float *x, size_t n)
{
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lo = _mm256_add_pd(lo, _mm256_cvtps_pd(_mm_loadu_ps(x + i)));
        hi = _mm256_add_pd(hi, _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)));
    }
    double lane[LANES];
    _mm256_storeu_pd(lane, lo);
    _mm256_storeu_pd(lane + 4, hi);
    for (; i < n; i++) {
        lane[i % LANES] += (double)x[i];
    }
    return add_lanes(lane);
}
#endif

double num_sumsq(const float *x, size_t n)
{
#if NUM_X86
    if (num_cpu_has_avx2()) {
        return sumsq_avx2(x, n);
    }
#endif
    return num_sumsq_ref(x, n);
}

double num_sum(const float *x, size_t n)
{
#if NUM_X86
    if (num_cpu_has_avx2()) {
        return sum_avx2(x, n);
    }
#endif
    return num_sum_ref(x, n);
}

NUM_INLINE bool is_finite(float f)
{
    return (num_bits_of(f) & 0x7f800000u) != 0x7f800000u;
}

/* In blocks without a branch inside, so that the compiler vectorises them. */
bool num_all_finite(const float *x, size_t n)
{
    enum { BLOCK = 1024 };
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t end = n - start < BLOCK ? n : start + BLOCK;
        uint32_t n_bad = 0;
        for (size_t i = start; i < end; i++) {
            n_bad += is_finite(x[i]) ? 0 : 1;
        }
        if (n_bad != 0) {
            return false;
        }
    }
    return true;
}

size_t num_first_not_finite(const float *x, size_t n)
{
    size_t i = 0;
    while (i < n && is_finite(x[i])) {
        i++;
    }
    return i;
}

void num_axpy_ref(float *y, float a, const float *x, size_t n)
{
    float *restrict out = y;
    for (size_t i = 0; i < n; i++) {
        out[i] += a * x[i];
    }
}

#if NUM_X86
NUM_AVX2 static void axpy_avx2(float *y, float a, const float *x, size_t n)
{
    __m256 va = _mm256_set1_ps(a);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 p = _mm256_mul_ps(va, _mm256_loadu_ps(x + i));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), p));
    }
    for (; i < n; i++) {
        y[i] += a * x[i];
    }
}
#endif

void num_axpy(float *y, float a, const float *x, size_t n)
{
#if NUM_X86
    if (num_cpu_has_avx2()) {
        axpy_avx2(y, a, x, n);
        return;
    }
#endif
    num_axpy_ref(y, a, x, n);
}

uint64_t num_hash(const float *x, size_t n, uint64_t seed)
{
    return bd_hash64(x, n * sizeof *x, seed);
}
