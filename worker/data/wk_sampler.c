/* Index arithmetic of the samplers. */
#include "worker/data/wk_sampler.h"

#include "base/mem.h"

#include <string.h>

enum { MT_N = 624, MT_M = 397 };

void wk_mt19937_seed(wk_mt19937 *g, uint32_t seed)
{
    g->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++) {
        uint32_t prev = g->state[i - 1];
        g->state[i] = 1812433253u * (prev ^ (prev >> 30)) + i;
    }
    g->next = MT_N;
}

static void mt_refill(wk_mt19937 *g)
{
    for (size_t i = 0; i < MT_N; i++) {
        uint32_t y = (g->state[i] & 0x80000000u) | (g->state[(i + 1) % MT_N] & 0x7fffffffu);
        uint32_t mag = (y & 1u) != 0 ? 0x9908b0dfu : 0u;
        g->state[i] = g->state[(i + MT_M) % MT_N] ^ (y >> 1) ^ mag;
    }
    g->next = 0;
}

uint32_t wk_mt19937_next(wk_mt19937 *g)
{
    if (g->next == MT_N) {
        mt_refill(g);
    }
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static void identity(size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint32_t)i;
    }
}

void wk_randperm(uint32_t seed, size_t n, uint32_t *out)
{
    wk_mt19937 g;
    wk_mt19937_seed(&g, seed);
    identity(n, out);
    for (size_t i = 0; i + 1 < n; i++) {
        size_t z = wk_mt19937_next(&g) % (n - i);
        uint32_t t = out[i];
        out[i] = out[i + z];
        out[i + z] = t;
    }
}

void wk_share(size_t total, size_t rank, size_t world, size_t *first, size_t *n)
{
    size_t base = total / world, longer = total % world;
    *first = rank * base + (rank < longer ? rank : longer);
    *n = base + (rank < longer ? 1 : 0);
}

size_t wk_distributed_len(size_t n, size_t world, bool drop_last)
{
    if (drop_last && n % world != 0) {
        return n < world ? 0 : (n - world + world - 1) / world;
    }
    return (n + world - 1) / world;
}

void wk_distributed_indices(const uint32_t *perm, size_t n, size_t rank, size_t world,
                            bool drop_last, uint32_t *out)
{
    size_t len = wk_distributed_len(n, world, drop_last);
    for (size_t i = 0; i < len; i++) {
        out[i] = perm[(rank + i * world) % n]; /* padding wraps round to the head */
    }
}

bd_status wk_sampler_init(wk_sampler *s, const wk_sampler_config *cfg, bd_err *err)
{
    size_t n = cfg->n;
    memset(s, 0, sizeof *s);
    if (n == 0 || cfg->batch == 0 || cfg->world == 0 || cfg->rank >= cfg->world ||
        n > WK_SAMPLER_MAX_ROWS) {
        return bd_err_set(err, BD_E_INVALID,
                          "sampler: %zu rows (1 to %u), batch %zu, rank %zu of %zu", n,
                          WK_SAMPLER_MAX_ROWS, cfg->batch, cfg->rank, cfg->world);
    }
    s->cfg = *cfg;
    s->epoch = UINT64_MAX;
    s->perm = bd_alloc(n * sizeof *s->perm);
    s->mine = bd_alloc(wk_distributed_len(n, cfg->world, false) * sizeof *s->mine);
    if (s->perm == NULL || s->mine == NULL) {
        wk_sampler_deinit(s);
        return bd_err_set(err, BD_E_NOMEM, "sampler of %zu rows", n);
    }
    return BD_OK;
}

void wk_sampler_deinit(wk_sampler *s)
{
    bd_free(s->perm);
    bd_free(s->mine);
    s->perm = NULL;
    s->mine = NULL;
}

static size_t batch_of_rank(const wk_sampler *s)
{
    size_t b = s->cfg.batch / s->cfg.world;
    return b > 0 ? b : 1;
}

size_t wk_sampler_steps_per_epoch(const wk_sampler *s)
{
    size_t n = s->cfg.distributed ? wk_distributed_len(s->cfg.n, s->cfg.world, false) : s->cfg.n;
    size_t batch = s->cfg.distributed ? batch_of_rank(s) : s->cfg.batch;
    return (n + batch - 1) / batch;
}

static void enter_epoch(wk_sampler *s, uint64_t epoch)
{
    if (s->epoch == epoch) {
        return;
    }
    if (s->cfg.shuffle) {
        wk_randperm((uint32_t)(s->cfg.seed + epoch), s->cfg.n, s->perm);
    } else {
        identity(s->cfg.n, s->perm);
    }
    if (s->cfg.distributed) {
        wk_distributed_indices(s->perm, s->cfg.n, s->cfg.rank, s->cfg.world, false, s->mine);
    }
    s->epoch = epoch;
}

void wk_sampler_at(wk_sampler *s, uint64_t step, wk_sample *out)
{
    size_t per_epoch = wk_sampler_steps_per_epoch(s);
    out->epoch = step / per_epoch;
    out->step_in_epoch = step % per_epoch;
    enter_epoch(s, out->epoch);
    if (s->cfg.distributed) {
        size_t len = wk_distributed_len(s->cfg.n, s->cfg.world, false), b = batch_of_rank(s);
        size_t first = (size_t)out->step_in_epoch * b;
        out->n = len - first < b ? len - first : b;
        out->n_global = out->n * s->cfg.world;
        out->rows = s->mine + first;
        return;
    }
    size_t first = (size_t)out->step_in_epoch * s->cfg.batch, mine = 0;
    out->n_global = s->cfg.n - first < s->cfg.batch ? s->cfg.n - first : s->cfg.batch;
    wk_share(out->n_global, s->cfg.rank, s->cfg.world, &mine, &out->n);
    out->rows = s->perm + first + mine;
}
