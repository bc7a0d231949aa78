/* A key is admitted at its n-th push, as a counting Bloom filter knows it: in bounded memory, and
 * never later than the n-th (but for aging); a few keys earlier, when others share their counters.
 *
 * Blocked (Putze, Sanders, Singler 2007): a key has four of the 256 counters of 8 bits of one
 * block, so that it costs one row. Its count is the least of them (count-min; Cormode,
 * Muthukrishnan 2005). Aging (TinyLFU; Einziger, Friedman, Manes 2017): after 8 counts for each
 * counter all are halved.
 *
 * A block: u32[0] counts since the last halving, u32[1..64] the counters, four a word. */
#include "ps_server/ps_admit.h"

#define COUNTERS    256u
#define HASHES      4u
#define BLOCK_WORDS (1u + COUNTERS / 4)
#define ROW_BYTES   320.0 /* with what the table keeps beside a row */
#define SLOT_BITS   12

enum { COUNT, BYTES };
static const num_hyper params[] = {
    {"count", 2, 1, 255, "the push that makes the row, counted from 1"},
    {"bytes", 16777216, 1310720, 1e12,
     "memory of the counters on all servers together; 4096 blocks of 320 bytes at least"},
};

/* Bits of a block's number: whole blocks of each slot, at most what `bytes` pays for. */
static int block_bits(const double *param)
{
    int bits = SLOT_BITS;
    while (bits < 40 && ROW_BYTES * (double)(2ull << bits) <= param[BYTES]) {
        bits++;
    }
    return bits;
}

static uint64_t filter_key(const double *param, uint64_t key)
{
    int shift = 64 - block_bits(param);
    return bd_unmix64(bd_mix64(key) >> shift << shift);
}

/* Where counter h of a key is. */
static uint32_t place(uint64_t key, uint32_t h)
{
    return (uint32_t)(bd_mix64(key ^ 0x5bd1e995u) >> (8 * h)) & (COUNTERS - 1);
}

static uint32_t get(const uint32_t *words, uint32_t at)
{
    return words[1 + at / 4] >> (8 * (at % 4)) & 255u;
}

/* Hashes of a key that share a counter count once. */
static void note(const double *param, uint32_t *words, uint64_t key)
{
    (void)param;
    uint32_t seen[HASHES];
    for (uint32_t h = 0; h < HASHES; h++) {
        uint32_t at = place(key, h);
        bool again = false;
        for (uint32_t k = 0; k < h; k++) {
            again = again || seen[k] == at;
        }
        seen[h] = at;
        if (!again && get(words, at) < 255u) {
            words[1 + at / 4] += 1u << (8 * (at % 4));
        }
    }
    words[0] += words[0] < UINT32_MAX;
}

static void age(const double *param, uint32_t *words)
{
    (void)param;
    if (words[0] < 8 * COUNTERS) {
        return;
    }
    words[0] /= 2;
    for (uint32_t w = 1; w < BLOCK_WORDS; w++) {
        words[w] = words[w] >> 1 & 0x7f7f7f7fu;
    }
}

static bool admit(const ps_admit_ask *ask)
{
    uint32_t least = 255;
    for (uint32_t h = 0; h < HASHES; h++) {
        uint32_t c = ask->words == NULL ? 0 : get(ask->words, place(ask->key, h));
        least = c < least ? c : least;
    }
    return (double)least + 1 >= ask->param[COUNT];
}

const ps_admit ps_admit_sketch = {
    .form = {.name = "sketch",
             .help = "from about the count-th push of a key on, counted in bounded memory",
             .params = params,
             .n_params = sizeof params / sizeof params[0]},
    .filter_words = BLOCK_WORDS,
    .filter_key = filter_key,
    .note = note,
    .age = age,
    .admit = admit,
};
