/* tests/util/tu_ctr.h - a small reference trainer for click data: logistic regression (dim 0) and
 * factorisation machine (dim > 0), Adagrad, one sample at a time, plain float loops.
 *
 * Threads: one owner thread. Ownership: tu_ctr_init allocates, tu_ctr_deinit frees.
 * Use:     says how good another implementation must be on the same rows.
 */
#ifndef TU_CTR_H
#define TU_CTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tu_ctr {
    size_t n_dense, n_fields, ids_per_field, dim;
    float lr;
    float *dense;   /* [n_dense] weights, then as many accumulators */
    float *bias;    /* [n_fields x ids_per_field], then as many accumulators */
    float *factors; /* [n_fields x ids_per_field x dim], then as many accumulators */
    float intercept[2];
} tu_ctr;

/* False: no memory. */
bool tu_ctr_init(tu_ctr *m, size_t n_dense, size_t n_fields, size_t ids_per_field, size_t dim,
                 float lr, uint64_t seed);
void tu_ctr_deinit(tu_ctr *m);
/* dense[n_dense], ids[n_fields] with ids[f] in [0, ids_per_field). */
double tu_ctr_score(const tu_ctr *m, const float *dense, const uint32_t *ids);
void tu_ctr_learn(tu_ctr *m, const float *dense, const uint32_t *ids, bool label);

#endif
