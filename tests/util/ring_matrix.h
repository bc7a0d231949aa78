/* tests/util/ring_matrix.h - every collective x dtype x op x awkward count x world x where buffers
 * lie, against a reference computed in place; equal bits on all ranks and in two runs. */
#ifndef TESTS_RING_MATRIX_H
#define TESTS_RING_MATRIX_H

#include "ring/ring.h"

#include "tests/util/ring_ranks.h"

/* Worlds 1, 2, 3, 4, 5, 8. */
void ring_matrix_small(ranks_backend backend);
void ring_matrix_large(ranks_backend backend);
/* Random floats, whose sum depends on the order of adding. */
void ring_matrix_bitwise(ranks_backend backend);

/* Elements [first, first + n) of rank's input; freed with bd_free. */
void *ring_matrix_filled(int rank, size_t first, size_t n, num_dtype d);
/* Element i of the inputs of all ranks together. */
double ring_matrix_reduced_at(size_t i, int world, num_reduce_op op, num_dtype d);

#endif
