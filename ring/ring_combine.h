/* ring/ring_combine.h - the vectors of several ranks into one, in rank order.
 *
 * Layer: ring (pure part). Threads: pure. Rounding: f16 and bf16 sums and averages are taken in f32
 * over all sources and rounded once. Works block by block, so that partial results stay in the
 * first-level cache.
 */
#ifndef RING_COMBINE_H
#define RING_COMBINE_H

#include "base/err.h"
#include "base/num/dtype.h"
#include "base/num/reduce.h"

#include <stddef.h>

/* dst[i] = src[0][i] op src[1][i] op ..., divided by n_src for NUM_AVG. dst may be one of the
 * sources (the same address), else they do not overlap. */
bd_status ring_combine(void *dst, const void *const *src, int n_src, size_t n_elems,
                       num_dtype dtype, int op, bd_err *err) BD_MUST_CHECK;

#endif
