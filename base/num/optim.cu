/* Optimiser steps on the device: num_dense_one (base/num/optim_dense_int.h) over a vector;
 * reference num_optim_apply_ref. */
extern "C" {
#include "base/num/optim_cuda.h"
#include "base/num/optim_dense_int.h"
}
#include "base/num/launch_cuda_int.h"

static __global__ void step_kernel(num_dense_step s, float *w, float *state, const float *g,
                                   size_t dim)
{
    for (size_t i = NUM_CUDA_FIRST; i < dim; i += NUM_CUDA_STRIDE) {
        num_dense_one(&s, &w[i], &state[i], &state[dim + i], g[i]);
    }
    if (s.has_count && NUM_CUDA_FIRST == 0) {
        state[2 * dim] = s.count;
    }
}

extern "C" bd_status num_optim_step_cuda(const num_optim *opt, const float *hyper, float *w,
                                         float *state, const float *g, size_t dim, uint64_t step_no,
                                         cudaStream_t stream, bd_err *err)
{
    num_dense_step s;
    bd_status rc = num_dense_plan(opt, hyper, step_no, &s, err);
    if (rc != BD_OK || dim == 0) {
        return rc;
    }
    step_kernel<<<num_cuda_grid(dim), NUM_CUDA_BLOCK, 0, stream>>>(s, w, state, g, dim);
    return num_cuda_launched(opt->name, err);
}
