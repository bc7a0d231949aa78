/* tests/util/tape_check.h - gradients of a tape against central differences. */
#ifndef TAPE_CHECK_H
#define TAPE_CHECK_H

#include "tape/ops.h"

#define TC_MAX_INPUTS 12

/* Builds the tested expression from the inputs. */
typedef bd_status (*tc_build_fn)(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                 tp_tensor **out, bd_err *err);

/* One input: a parameter of this shape, filled with uniform numbers in [-1, 1] that stay `gap` away
 * from 0 (for kinks). */
typedef struct tc_input {
    int n_dims;
    size_t dims[TP_MAX_DIMS];
    float gap;
} tc_input;

/* Asserts for every element of every input that d(sum(r * out))/d(element), r random, equals the
 * central difference within tolerance * (1 + |value|). */
void tc_check(const char *what, tc_build_fn build, const void *arg, const tc_input *inputs,
              size_t n_inputs, double tolerance);

/* Random parameter, for tests that need tensors; fails the test when out of memory. */
tp_tensor *tc_param(tp_device *dev, const char *name, int n_dims, const size_t *dims,
                    uint64_t seed);
const float *tc_read(const tp_tensor *t);

#endif
