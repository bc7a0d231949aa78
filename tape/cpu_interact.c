/* Pairwise dots and FM. d is small (8 to 128) and n_feats up to a few dozen, so each sample works
 * in a tile on the stack: TILE_FEATS vectors by 16 dimensions at a time. */
#include "tape/cpu_int.h"

#include <string.h>

#define TILE_FEATS ((size_t)64)

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Sums that grow side by side, so that one addition need not wait for the last. */
#define N_SIDE ((size_t)4)

static inline size_t row_at(size_t i)
{
    return i * (i - 1) / 2;
}

/* z[i..i + n_i)[j0..j0 + 16) of one sample and one tile of dimensions: xt[k][j] holds the tile
 * transposed, so that 16 dots grow at once and every dot is summed in order of k. n_i is a constant
 * where this is called. Row i has i columns. */
static inline __attribute__((always_inline)) void dots_block(const float (*xt)[TILE_FEATS],
                                                             size_t i, size_t n_i, size_t j0,
                                                             size_t n_k, bool add,
                                                             float *restrict z)
{
    tp_v16 acc[N_SIDE];
    for (size_t r = 0; r < n_i; r++) {
        acc[r] = (tp_v16){0};
        if (add) {
            memcpy(&acc[r], z + row_at(i + r) + j0, min_size(TP_V16, i + r - j0) * sizeof(float));
        }
    }
    for (size_t k = 0; k < n_k; k++) {
        tp_v16 x;
        memcpy(&x, &xt[k][j0], sizeof(x));
        for (size_t r = 0; r < n_i; r++) {
            acc[r] += xt[k][i + r] * x;
        }
    }
    for (size_t r = 0; r < n_i; r++) {
        float *out = z + row_at(i + r) + j0;
        if (i + r - j0 >= TP_V16) {
            memcpy(out, &acc[r], sizeof(acc[r]));
        } else {
            memcpy(out, &acc[r], (i + r - j0) * sizeof(float));
        }
    }
}

static inline __attribute__((always_inline)) void
dots_tile(const float (*xt)[TILE_FEATS], size_t n_feats, size_t n_k, bool add, float *restrict z)
{
    for (size_t j0 = 0; j0 + 1 < n_feats; j0 += TP_V16) {
        size_t i = j0 + 1;
        for (; i + N_SIDE <= n_feats; i += N_SIDE) {
            dots_block(xt, i, N_SIDE, j0, n_k, add, z);
        }
        for (; i < n_feats; i++) {
            dots_block(xt, i, 1, j0, n_k, add, z);
        }
    }
}

/* 16 dimensions from k0 of all vectors of sample s, transposed. */
static inline __attribute__((always_inline)) void load_transposed(const float *const *feats,
                                                                  size_t n_feats, size_t at,
                                                                  size_t n_k,
                                                                  float (*xt)[TILE_FEATS])
{
    for (size_t f = 0; f < n_feats; f++) {
        const float *x = feats[f] + at;
        for (size_t k = 0; k < n_k; k++) {
            xt[k][f] = x[k];
        }
    }
}

TP_SIMD static void dots_fast(const float *const *feats, size_t n_feats, size_t n, size_t d,
                              float *restrict y)
{
    _Alignas(64) float xt[TP_V16][TILE_FEATS];
    size_t n_out = d + n_feats * (n_feats - 1) / 2;
    memset(xt, 0, sizeof(xt));
    for (size_t s = 0; s < n; s++) {
        float *row = y + s * n_out;
        memcpy(row, feats[0] + s * d, d * sizeof(float));
        for (size_t k0 = 0; k0 < d; k0 += TP_V16) {
            size_t n_k = min_size(TP_V16, d - k0);
            load_transposed(feats, n_feats, s * d + k0, n_k, xt);
            dots_tile((const float(*)[TILE_FEATS])xt, n_feats, n_k, k0 > 0, row + d);
        }
    }
}

static float dot(const float *a, const float *b, size_t d)
{
    float acc = 0;
    for (size_t k = 0; k < d; k++) {
        acc += a[k] * b[k];
    }
    return acc;
}

/* Any number of vectors: the same sums, one dot at a time. */
static void dots_any(const float *const *feats, size_t n_feats, size_t n, size_t d, float *y)
{
    for (size_t s = 0; s < n; s++) {
        memcpy(y, feats[0] + s * d, d * sizeof(float));
        y += d;
        for (size_t i = 1; i < n_feats; i++) {
            for (size_t j = 0; j < i; j++) {
                *y++ = dot(feats[i] + s * d, feats[j] + s * d, d);
            }
        }
    }
}

void tp_cpu_dot_interact(tp_device *dev, const float *const *feats, size_t n_feats, size_t n,
                         size_t d, float *y)
{
    (void)dev;
    if (n_feats <= TILE_FEATS) {
        dots_fast(feats, n_feats, n, d, y);
    } else {
        dots_any(feats, n_feats, n, d, y);
    }
}

/* acc[r] += sum over j != i + r of g(i + r, j) * x[j], in order of j, for n_i rows side by side.
 * g(a, b) is the gradient of the dot of a and b: dz[row_at(max) + min]. */
static inline __attribute__((always_inline)) void grad_block(const float *restrict dz,
                                                             const float (*x)[TP_V16],
                                                             size_t n_feats, size_t i, size_t n_i,
                                                             tp_v16 *acc)
{
    tp_v16 sum[N_SIDE], v;
    for (size_t r = 0; r < n_i; r++) {
        sum[r] = acc[r];
    }
    for (size_t j = 0; j < i; j++) {
        memcpy(&v, x[j], sizeof(v));
        for (size_t r = 0; r < n_i; r++) {
            sum[r] += dz[row_at(i + r) + j] * v;
        }
    }
    for (size_t j = i; j < i + n_i; j++) {
        memcpy(&v, x[j], sizeof(v));
        for (size_t r = 0; r < n_i; r++) {
            if (i + r != j) {
                sum[r] += (i + r > j ? dz[row_at(i + r) + j] : dz[row_at(j) + i + r]) * v;
            }
        }
    }
    for (size_t j = i + n_i; j < n_feats; j++) {
        const float *g = dz + row_at(j) + i;
        memcpy(&v, x[j], sizeof(v));
        for (size_t r = 0; r < n_i; r++) {
            sum[r] += g[r] * v;
        }
    }
    for (size_t r = 0; r < n_i; r++) {
        acc[r] = sum[r];
    }
}

/* dx (+)= acc, n_bytes of it */
static inline __attribute__((always_inline)) void put_grad(float *dx, float beta, const tp_v16 *acc,
                                                           size_t n_bytes)
{
    tp_v16 out = *acc;
    if (beta != 0) {
        tp_v16 old = {0};
        memcpy(&old, dx, n_bytes);
        out = old + out;
    }
    if (n_bytes == sizeof(out)) {
        memcpy(dx, &out, sizeof(out));
    } else {
        memcpy(dx, &out, n_bytes);
    }
}

typedef struct dots_grad {
    const float *const *feats;
    const float *dy;
    float *const *dfeats;
    const float *betas;
    size_t n_feats, n, d;
} dots_grad;

/* Rows i.. i + n_i of one sample and tile: from the sums to the gradients that are wanted. */
static inline __attribute__((always_inline)) void
grad_rows(const dots_grad *a, const float (*x)[TP_V16], size_t s, size_t k0, size_t i, size_t n_i)
{
    const float *row = a->dy + s * (a->d + row_at(a->n_feats));
    size_t bytes = min_size(TP_V16, a->d - k0) * sizeof(float);
    tp_v16 acc[N_SIDE] = {{0}};
    if (i == 0) { /* the dense vector was also copied to the output */
        memcpy(&acc[0], row + k0, bytes);
    }
    grad_block(row + a->d, x, a->n_feats, i, n_i, acc);
    for (size_t r = 0; r < n_i; r++) {
        if (a->dfeats[i + r] != NULL) {
            put_grad(a->dfeats[i + r] + s * a->d + k0, a->betas[i + r], &acc[r], bytes);
        }
    }
}

static inline __attribute__((always_inline)) void
grad_tile(const dots_grad *a, float (*tile)[TP_V16], size_t s, size_t k0)
{
    size_t n_k = min_size(TP_V16, a->d - k0), i = 0;
    const float(*x)[TP_V16] = (const float(*)[TP_V16])tile;
    for (size_t f = 0; f < a->n_feats; f++) {
        memcpy(tile[f], a->feats[f] + s * a->d + k0, n_k * sizeof(float));
    }
    for (; i + N_SIDE <= a->n_feats; i += N_SIDE) {
        grad_rows(a, x, s, k0, i, N_SIDE);
    }
    for (; i < a->n_feats; i++) {
        grad_rows(a, x, s, k0, i, 1);
    }
}

TP_SIMD static void dots_grad_fast(const dots_grad *a)
{
    _Alignas(64) float tile[TILE_FEATS][TP_V16];
    memset(tile, 0, sizeof(tile));
    for (size_t s = 0; s < a->n; s++) {
        for (size_t k0 = 0; k0 < a->d; k0 += TP_V16) {
            grad_tile(a, tile, s, k0);
        }
    }
}

static float dz_at(const float *dz, size_t i, size_t j)
{
    return i > j ? dz[row_at(i) + j] : dz[row_at(j) + i];
}

/* dx_i[k] of sample s. */
static float grad_any(const dots_grad *a, size_t s, size_t i, size_t k)
{
    const float *row = a->dy + s * (a->d + row_at(a->n_feats));
    float acc = i == 0 ? row[k] : 0;
    for (size_t j = 0; j < a->n_feats; j++) {
        acc += i == j ? 0 : dz_at(row + a->d, i, j) * a->feats[j][s * a->d + k];
    }
    return acc;
}

static void dots_grad_any(const dots_grad *a)
{
    for (size_t i = 0; i < a->n_feats; i++) {
        for (size_t e = 0; a->dfeats[i] != NULL && e < a->n * a->d; e++) {
            float *dx = a->dfeats[i] + e;
            *dx = (a->betas[i] != 0 ? *dx : 0) + grad_any(a, e / a->d, i, e % a->d);
        }
    }
}

void tp_cpu_dot_interact_grad(tp_device *dev, const float *const *feats, const float *dy,
                              float *const *dfeats, const float *betas, size_t n_feats, size_t n,
                              size_t d)
{
    (void)dev;
    const dots_grad a = {.feats = feats,
                         .dy = dy,
                         .dfeats = dfeats,
                         .betas = betas,
                         .n_feats = n_feats,
                         .n = n,
                         .d = d};
    if (n_feats <= TILE_FEATS) {
        dots_grad_fast(&a);
    } else {
        dots_grad_any(&a);
    }
}

TP_SIMD static void fm2_sums(const float *const *feats, size_t n_feats, size_t n_elems,
                             float *restrict sums)
{
    memcpy(sums, feats[0], n_elems * sizeof(float));
    for (size_t f = 1; f < n_feats; f++) {
        const float *restrict x = feats[f];
        for (size_t i = 0; i < n_elems; i++) {
            sums[i] += x[i];
        }
    }
}

void tp_cpu_fm2(tp_device *dev, const float *const *feats, size_t n_feats, size_t n, size_t d,
                float *sums, float *y)
{
    (void)dev;
    if (n == 0) {
        return;
    }
    fm2_sums(feats, n_feats, n * d, sums);
    for (size_t s = 0; s < n; s++) {
        double total = 0;
        for (size_t k = 0; k < d; k++) {
            double v = (double)sums[s * d + k], squares = 0;
            for (size_t f = 0; f < n_feats; f++) {
                double x = (double)feats[f][s * d + k];
                squares += x * x;
            }
            total += v * v - squares;
        }
        y[s] = (float)(0.5 * total);
    }
}

TP_SIMD void tp_cpu_fm2_grad(tp_device *dev, const float *feat, const float *sums, const float *dy,
                             float beta, float *dfeat, size_t n, size_t d)
{
    (void)dev;
    for (size_t s = 0; s < n; s++) {
        for (size_t k = s * d; k < (s + 1) * d; k++) {
            float old = beta == 0 ? 0 : dfeat[k];
            dfeat[k] = old + dy[s] * (sums[k] - feat[k]);
        }
    }
}
