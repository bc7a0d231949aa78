/* base/num/optim_cuda.h - optimiser steps over flat vectors on device memory, one kernel a step.
 * Built where CUDA is (BRAID_HAVE_CUDA).
 *
 * Layer:   base/num. No CUDA header is needed to include this one.
 * Threads: any; the calling thread's current device must own stream and buffers.
 * Promise: what num_optim_apply_ref gives, bit for bit (built without contraction).
 */
#ifndef NUM_OPTIM_CUDA_H
#define NUM_OPTIM_CUDA_H

#include "base/num/optim.h"

struct CUstream_st; /* a cudaStream_t is a pointer to it */

/* num_optim_step_cuda - one step of sgd, momentum, adagrad, rmsprop, adam or adamw, with clip_value
 * and weight_decay.
 *
 *   hyper    host memory, [NUM_OPTIM_MAX_HYPER], read during the call
 *   w, g     device memory, [dim]; g is not changed
 *   state    device memory, laid out as by num_optim_state_elems; NULL where there is none
 *   step_no  number of this step of this vector, from 1; Adam's count is written from it
 *
 * BD_E_UNSUPPORTED: another optimiser, clip_norm or max_norm. BD_E_IO: the launch failed. Does not
 * block: the step is on the stream when the call returns.
 */
/* NOLINTNEXTLINE(readability-function-size): num_optim_apply's arguments, and where to run */
bd_status num_optim_step_cuda(const num_optim *opt, const float *hyper, float *w, float *state,
                              const float *g, size_t dim, uint64_t step_no,
                              struct CUstream_st *stream, bd_err *err) BD_MUST_CHECK;

#endif
