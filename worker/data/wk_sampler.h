/* worker/data/wk_sampler.h - which rows a rank takes at a step: pure functions of
 * (seed, epoch, step, rank, world).
 *
 * Layer:     worker/data. Pure; no state besides the permutation the caller keeps.
 * Exact:     the epoch's permutation is cut into global batches, a batch into one contiguous share
 *            per rank whose sizes differ by at most one. No row is repeated or left out; the set
 * and the order of a global batch do not depend on world. The last batch of an epoch may be short.
 * Distributed: PyTorch's DistributedSampler (drop_last false or true): index i of rank r is
 *            perm[r + i * world], padded from the head of the permutation to equal length.
 * Shuffle:   torch.randperm on the CPU: MT19937, seeded with the low 32 bits of seed + epoch. n up
 * to 2^32 / 20, as there. Resume:    the reader position is the step number; nothing else is kept.
 */
#ifndef WK_SAMPLER_H
#define WK_SAMPLER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WK_SAMPLER_MAX_ROWS (UINT32_MAX / 20)

/* out[n] = torch.randperm(n, generator seeded with seed). */
void wk_randperm(uint32_t seed, size_t n, uint32_t *out);
/* The standard MT19937 generator, for tests against golden values. */
typedef struct wk_mt19937 {
    uint32_t state[624];
    size_t next;
} wk_mt19937;
void wk_mt19937_seed(wk_mt19937 *g, uint32_t seed);
uint32_t wk_mt19937_next(wk_mt19937 *g);

/* [*first, *first + *n) of total, as rank's contiguous share. */
void wk_share(size_t total, size_t rank, size_t world, size_t *first, size_t *n);

/* Length of a rank's index list in distributed mode. */
size_t wk_distributed_len(size_t n, size_t world, bool drop_last);
/* out[wk_distributed_len]: the rank's row indices of the epoch; perm[n] is the epoch's permutation
 * (or the identity). */
void wk_distributed_indices(const uint32_t *perm, size_t n, size_t rank, size_t world,
                            bool drop_last, uint32_t *out);

typedef struct wk_sampler_config {
    size_t n;     /* rows, 1 to WK_SAMPLER_MAX_ROWS */
    size_t batch; /* global */
    size_t rank, world;
    uint64_t seed;
    bool shuffle, distributed;
} wk_sampler_config;

typedef struct wk_sampler {
    wk_sampler_config cfg;
    uint32_t *perm; /* owned [n]: of epoch `epoch` */
    uint32_t *mine; /* owned: distributed mode's list of this rank */
    uint64_t epoch; /* UINT64_MAX: none yet */
} wk_sampler;

/* One step's part. rows are borrowed until the next call. */
typedef struct wk_sample {
    const uint32_t *rows;
    size_t n, n_global;
    uint64_t epoch;         /* from 0 */
    uint64_t step_in_epoch; /* from 0 */
} wk_sample;

/* BD_E_INVALID, BD_E_NOMEM. */
bd_status wk_sampler_init(wk_sampler *s, const wk_sampler_config *cfg, bd_err *err) BD_MUST_CHECK;
void wk_sampler_deinit(wk_sampler *s);
size_t wk_sampler_steps_per_epoch(const wk_sampler *s);
/* step counts from 0 over all epochs. */
void wk_sampler_at(wk_sampler *s, uint64_t step, wk_sample *out);

#endif
