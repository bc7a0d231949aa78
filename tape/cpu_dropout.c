#include "base/rand.h"

#include "tape/cpu_int.h"

/* Four columns share one Philox block: counter (sample, layer and block), key (seed, step). */
void tp_cpu_dropout(tp_device *dev, const float *x, float p, const tp_dropout_key *key, float beta,
                    float *y, size_t n, size_t c)
{
    (void)dev;
    uint64_t k = bd_mix64(bd_mix64(key->seed) ^ key->step);
    float keep = 1.0f / (1.0f - p);
    for (size_t i = 0; i < n; i++) {
        for (size_t j0 = 0; j0 < c; j0 += 4) {
            uint32_t words[4];
            bd_philox(k, key->sample_idx[i], (uint64_t)key->layer << 32 | (j0 / 4), words);
            for (size_t j = j0; j < c && j < j0 + 4; j++) {
                float mask = bd_unit_f32(words[j - j0]) >= p ? keep : 0;
                float old = beta == 0 ? 0 : y[i * c + j];
                y[i * c + j] = old + x[i * c + j] * mask;
            }
        }
    }
}
