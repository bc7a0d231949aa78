/* tests/util/ring_model.h - a model of a few parameters whose gradients are small whole numbers, so
 * that sums are exact in any order; for tests of the reducer. */
#ifndef TESTS_RING_MODEL_H
#define TESTS_RING_MODEL_H

#include "ring/ring_reducer.h"

#include "tests/util/ring_ranks.h"

enum { N_PARAMS = 7 };

typedef struct model {
    float *own[N_PARAMS];   /* owned */
    float *grads[N_PARAMS]; /* where they are now */
    ring_param params[N_PARAMS];
} model;

extern const size_t model_sizes[N_PARAMS];
extern const char *const model_names[N_PARAMS];
/* First bucket 100 bytes, then 20000: three buckets. */
extern const ring_reducer_options model_buckets;

void model_init(model *m);
void model_deinit(model *m);
/* A ring_bind_fn; user is the model. */
void model_bind(void *user, size_t i, void *grad);
float model_grad(int rank, int step, size_t i, size_t k);
void model_fill(model *m, int rank, int step, size_t i);
/* grads[i] is the sum of the step's gradients of all ranks. */
bool model_is_sum(const model *m, int world, int step, size_t i);
void model_shuffle(size_t *order, size_t n, uint64_t seed);
/* A whole synchronised step in this order (NULL: last parameter first); false: failed, reported. */
bool model_step(ring_reducer *r, model *m, rank_test *t, int step, const size_t *order);

/* Initialises m and makes a reducer of it; false: failed, reported. */
bool model_new_reducer(rank_test *t, model *m, const ring_reducer_options *opt, ring_reducer **r);
/* All of them are. */
bool model_all_sums(const model *m, int world, int step);

/* fn on one world over every backend (over the other one alone where it is set, ring_ranks.h); on
 * worlds 1, 2, 3, 4, 5 and 8. */
void ring_on_every_backend(int world, rank_fn fn, void *arg);
void ring_everywhere(rank_fn fn, void *arg);

#endif
