#include "tests/util/tu_ctr.h"

#include "base/rand.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_DIM = 32 };

bool tu_ctr_init(tu_ctr *m, size_t n_dense, size_t n_fields, size_t ids_per_field, size_t dim,
                 float lr, uint64_t seed)
{
    size_t n_ids = n_fields * ids_per_field;
    *m = (tu_ctr){.n_dense = n_dense,
                  .n_fields = n_fields,
                  .ids_per_field = ids_per_field,
                  .dim = dim < MAX_DIM ? dim : MAX_DIM,
                  .lr = lr};
    m->dense = calloc(2 * n_dense + 1, sizeof *m->dense);
    m->bias = calloc(2 * n_ids + 1, sizeof *m->bias);
    m->factors = calloc(2 * n_ids * m->dim + 1, sizeof *m->factors);
    if (m->dense == NULL || m->bias == NULL || m->factors == NULL) {
        tu_ctr_deinit(m);
        return false;
    }
    if (m->dim > 0) {
        bd_rand_normal(seed, 1, 0, 0.0f, 0.03f, m->factors, n_ids * m->dim);
    }
    return true;
}

void tu_ctr_deinit(tu_ctr *m)
{
    free(m->dense);
    free(m->bias);
    free(m->factors);
    *m = (tu_ctr){0};
}

/* sums[k] = sum over fields of factor k. */
static double score_and_sums(const tu_ctr *m, const float *dense, const uint32_t *ids, float *sums)
{
    double s = (double)m->intercept[0];
    float squares = 0.0f;
    for (size_t k = 0; k < m->dim; k++) {
        sums[k] = 0.0f;
    }
    for (size_t j = 0; j < m->n_dense; j++) {
        s += (double)(m->dense[j] * dense[j]);
    }
    for (size_t f = 0; f < m->n_fields; f++) {
        size_t at = f * m->ids_per_field + ids[f];
        const float *v = m->factors + at * m->dim;
        s += (double)m->bias[at];
        for (size_t k = 0; k < m->dim; k++) {
            sums[k] += v[k];
            squares += v[k] * v[k];
        }
    }
    for (size_t k = 0; k < m->dim; k++) {
        s += 0.5 * (double)(sums[k] * sums[k]);
    }
    return s - 0.5 * (double)squares;
}

double tu_ctr_score(const tu_ctr *m, const float *dense, const uint32_t *ids)
{
    float sums[MAX_DIM];
    return score_and_sums(m, dense, ids, sums);
}

static void adagrad(float *w, float *acc, float g, float lr)
{
    *acc += g * g;
    *w -= lr * g / (sqrtf(*acc) + 1e-3f);
}

void tu_ctr_learn(tu_ctr *m, const float *dense, const uint32_t *ids, bool label)
{
    float sums[MAX_DIM];
    double s = score_and_sums(m, dense, ids, sums);
    float g = (float)(1.0 / (1.0 + exp(-s)) - (label ? 1.0 : 0.0));
    size_t n_ids = m->n_fields * m->ids_per_field;
    adagrad(&m->intercept[0], &m->intercept[1], g, m->lr);
    for (size_t j = 0; j < m->n_dense; j++) {
        adagrad(&m->dense[j], &m->dense[m->n_dense + j], g * dense[j], m->lr);
    }
    for (size_t f = 0; f < m->n_fields; f++) {
        size_t at = f * m->ids_per_field + ids[f];
        adagrad(&m->bias[at], &m->bias[n_ids + at], g, m->lr);
        float *v = m->factors + at * m->dim;
        float *acc = m->factors + (n_ids + at) * m->dim;
        for (size_t k = 0; k < m->dim; k++) {
            adagrad(&v[k], &acc[k], g * (sums[k] - v[k]), m->lr);
        }
    }
}
