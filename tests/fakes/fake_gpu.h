/* tests/fakes/fake_gpu.h - what tests, and the fakes among themselves, know beyond CUDA and NCCL.
 */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <cuda_runtime_api.h>

#define FAKE_GPU_DEVICES 8

/* Device blocks, streams, events and NCCL communicators that exist. */
long fake_gpu_live(void);
void fake_gpu_count(int by);
/* Puts run(arg) at the end of the stream's queue. */
void fake_gpu_push(cudaStream_t s, void (*run)(void *arg), void *arg);
/* The device has failed: every later query of an event says so, until called with false. */
void fake_gpu_break(int broken);
/* With the fault point "fake.hang.abort" armed, ncclCommAbort blocks until this is called. */
void fake_nccl_let_go(void);

#endif
