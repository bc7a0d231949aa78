/* base/num/reduce_cuda.h - base/num/reduce.h on device memory. Built where CUDA is
 * (BRAID_HAVE_CUDA).
 *
 * Layer:   base/num. No CUDA header is needed to include this one.
 * Threads: any; the calling thread's current device must own stream and buffers.
 * Promise: what the scalar references give, bit for bit (built without contraction; a NaN is a
 * NaN). Blocking: none; the work is on the stream when the call returns. Errors of the launch are
 * returned, those of the run show at the stream's next synchronisation.
 */
#ifndef NUM_REDUCE_CUDA_H
#define NUM_REDUCE_CUDA_H

#include "base/err.h"
#include "base/num/reduce.h"

struct CUstream_st; /* a cudaStream_t is a pointer to it */

/* acc[i] = op(acc[i], x[i]), as num_reduce. Any n_elems. BD_E_UNSUPPORTED: band and bor of floats;
 * BD_E_INVALID: an unknown dtype or op; BD_E_IO: the launch failed. */
bd_status num_reduce_cuda(void *acc, const void *x, size_t n_elems, num_dtype dtype,
                          num_reduce_op op, struct CUstream_st *stream, bd_err *err) BD_MUST_CHECK;
/* buf[i] *= factor, as num_scale. */
bd_status num_scale_cuda(void *buf, size_t n_elems, num_dtype dtype, double factor,
                         struct CUstream_st *stream, bd_err *err) BD_MUST_CHECK;

#endif
