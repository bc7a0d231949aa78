/* base/num/launch_cuda_int.h - how kernels over flat vectors are launched. Layer: base/num, private
 * to the .cu files. */
#ifndef NUM_LAUNCH_CUDA_INT_H
#define NUM_LAUNCH_CUDA_INT_H

#include <cuda_runtime_api.h>

#include <stddef.h>

enum { NUM_CUDA_BLOCK = 256, NUM_CUDA_MAX_GRID = 4096 };

/* n > 0: a launch of no blocks is an error. Kernels loop with the grid's stride, so any n fits. */
static inline unsigned num_cuda_grid(size_t n)
{
    size_t want = (n + NUM_CUDA_BLOCK - 1) / NUM_CUDA_BLOCK;
    return want < NUM_CUDA_MAX_GRID ? (unsigned)want : (unsigned)NUM_CUDA_MAX_GRID;
}

/* for (size_t i = NUM_CUDA_FIRST; i < n; i += NUM_CUDA_STRIDE): 64 bits, n may exceed 2^31. */
#define NUM_CUDA_FIRST  ((size_t)blockIdx.x * blockDim.x + threadIdx.x)
#define NUM_CUDA_STRIDE ((size_t)gridDim.x * blockDim.x)

/* After a launch. */
static inline bd_status num_cuda_launched(const char *what, bd_err *err)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? BD_OK
                            : bd_err_set(err, BD_E_IO, "%s: %s", what, cudaGetErrorString(e));
}

#endif
