#include "base/rand.h"

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <math.h>
#include <sys/uio.h>
#include <xxhash.h>

uint64_t bd_hash64(const void *bytes, size_t n_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n_bytes, seed);
}

uint64_t bd_hash64_pieces(const struct iovec *pieces, size_t n, uint64_t seed)
{
    XXH3_state_t state;
    (void)XXH3_64bits_reset_withSeed(&state, seed);
    for (size_t i = 0; i < n; i++) {
        (void)XXH3_64bits_update(&state, pieces[i].iov_base, pieces[i].iov_len);
    }
    return XXH3_64bits_digest(&state);
}

uint64_t bd_fnv1a64(const void *bytes, size_t n_bytes)
{
    const uint8_t *p = bytes;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

void bd_philox(uint64_t key, uint64_t c0, uint64_t c1, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = (uint32_t)c0, x1 = (uint32_t)(c0 >> 32);
    uint32_t x2 = (uint32_t)c1, x3 = (uint32_t)(c1 >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* Counter layout: c0 = index, c1 = block number; the stream is mixed into the key. */
static uint64_t stream_key(uint64_t key, uint64_t stream)
{
    return bd_mix64(key ^ bd_mix64(stream));
}

void bd_rand_uniform(uint64_t key, uint64_t stream, uint64_t index, float lo, float hi, float *out,
                     size_t n)
{
    uint64_t k = stream_key(key, stream);
    float width = hi - lo;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t w[4];
        bd_philox(k, index, i / 4, w);
        for (size_t j = 0; j < 4 && i + j < n; j++) {
            out[i + j] = lo + width * bd_unit_f32(w[j]);
        }
    }
}

void bd_rand_normal(uint64_t key, uint64_t stream, uint64_t index, float mean, float stddev,
                    float *out, size_t n)
{
    const double two_pi = 6.283185307179586;
    uint64_t k = stream_key(key, stream);
    for (size_t i = 0; i < n; i += 2) {
        uint32_t w[4];
        bd_philox(k, index, i / 2, w);
        /* 1 - u is in (0, 1]: the logarithm is finite. */
        double u = 1.0 - bd_unit_f64((uint64_t)w[0] << 32 | w[1]);
        double angle = two_pi * bd_unit_f64((uint64_t)w[2] << 32 | w[3]);
        double radius = sqrt(-2.0 * log(u));
        out[i] = (float)(mean + stddev * radius * cos(angle));
        if (i + 1 < n) {
            out[i + 1] = (float)(mean + stddev * radius * sin(angle));
        }
    }
}

uint64_t bd_rand_u64(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t w[4];
    bd_philox(stream_key(key, stream), index, 0, w);
    return (uint64_t)w[0] << 32 | w[1];
}
