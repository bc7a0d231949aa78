/* base/num/vec.h - sums, checks and hashes over f32 vectors.
 *
 * Layer:   base/num. Pure: any thread, no allocation.
 * Promise: each sum has a fixed order (element i belongs to lane i % 8, lanes added as a tree), so
 *          the SIMD version equals the reference bit for bit on every machine.
 */
#ifndef NUM_VEC_H
#define NUM_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sum of squares and sum, taken in double. */
double num_sumsq(const float *x, size_t n);
double num_sumsq_ref(const float *x, size_t n);
double num_sum(const float *x, size_t n);
double num_sum_ref(const float *x, size_t n);
/* True when no element is NaN or infinite. */
bool num_all_finite(const float *x, size_t n);
/* Index of the first element that is NaN or infinite; n when there is none. */
size_t num_first_not_finite(const float *x, size_t n);
/* y[i] += a * x[i], two roundings. x and y do not overlap. */
void num_axpy(float *y, float a, const float *x, size_t n);
void num_axpy_ref(float *y, float a, const float *x, size_t n);
/* Hash of the bits: 0.0 and -0.0 differ. A pure function of (x, n, seed). */
uint64_t num_hash(const float *x, size_t n, uint64_t seed);

#endif
