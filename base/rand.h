/* base/rand.h - hashes, and random numbers that are pure functions of a counter.
 *
 * Layer:   base. Threads: pure functions, any thread.
 * Promise: values are part of the model (row initialisers, dropout, sampling): the functions below
 *          never change their output. Golden values stand in tests/unit/test_base_rand.c.
 *
 * Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
 *            128 bits of output for a 128-bit counter and a 64-bit key; no state, no order.
 */
#ifndef BD_RAND_H
#define BD_RAND_H

#include <stddef.h>
#include <stdint.h>

/* The splitmix64 finaliser: a bijection of 64-bit numbers that mixes every bit (Stafford's mix13).
 */
static inline uint64_t bd_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Its inverse: bd_unmix64(bd_mix64(x)) == x. */
static inline uint64_t bd_unmix64(uint64_t x)
{
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3u;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089u;
    return (x ^ (x >> 30) ^ (x >> 60)) - 0x9e3779b97f4a7c15u;
}

/* XXH3-64 of bytes with a seed. */
uint64_t bd_hash64(const void *bytes, size_t n_bytes, uint64_t seed);
/* The same of all pieces one after the other. */
struct iovec;
uint64_t bd_hash64_pieces(const struct iovec *pieces, size_t n, uint64_t seed);
/* FNV-1a-64: the hash of published data splits; not for tables. */
uint64_t bd_fnv1a64(const void *bytes, size_t n_bytes);

/* Philox4x32-10: out[4] for counter (c0, c1 as two 64-bit halves) and key. */
void bd_philox(uint64_t key, uint64_t c0, uint64_t c1, uint32_t out[4]);

/* Uniform in [0, 1) with 24 random bits, from one 32-bit word. */
static inline float bd_unit_f32(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}
/* Uniform in [0, 1) with 53 random bits. */
static inline double bd_unit_f64(uint64_t word)
{
    return (double)(word >> 11) * 0x1p-53;
}
/* Fills out[n]: element i is a pure function of (key, stream, index, i). stream names the use (a
 * table id, a layer), index the object (a row key, a sample). */
void bd_rand_uniform(uint64_t key, uint64_t stream, uint64_t index, float lo, float hi, float *out,
                     size_t n);
/* Normal by Box-Muller in double, rounded once. */
void bd_rand_normal(uint64_t key, uint64_t stream, uint64_t index, float mean, float stddev,
                    float *out, size_t n);
/* 64 random bits, a pure function of the three numbers. */
uint64_t bd_rand_u64(uint64_t key, uint64_t stream, uint64_t index);

#endif
