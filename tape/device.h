/* tape/device.h - where tensors live and kernels run.
 *
 * Layer:     tape. Includes base/ only.
 * Threads:   a device belongs to the thread that runs the tape; it may use n_threads of its own.
 * Model:     kernels only enqueue: they never read a result on the host and return nothing. A
 *            failure (a launch, a device fault) sticks to the device and comes back from
 *            tp_device_check, tp_read, tp_backward and every op. On the CPU everything is done when
 *            the kernel returns, so waiting is free and events are always done.
 * Numbers:   a kernel's result depends on its inputs and, for gemm, on the BLAS and n_threads; all
 *            other sums run in a fixed order (samples, then columns).
 * Read next: tape/kernels.h (the table of kernels), tape/cpu_device.c.
 */
#ifndef TP_DEVICE_H
#define TP_DEVICE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tp_device tp_device;
typedef struct tp_pool tp_pool;

/* A point in the device's queue. Plain value. */
typedef struct tp_event {
    uint64_t seq;
} tp_event;

/* The CPU device. n_threads >= 1 is what BLAS may use (cores / processes of this host); BLAS has
 * one setting per process, so the last device created wins. */
bd_status tp_device_new_cpu(int n_threads, tp_device **out, bd_err *err) BD_MUST_CHECK;
/* All tensors and tapes on it must be gone. */
void tp_device_free(tp_device *dev);
const char *tp_device_name(const tp_device *dev); /* "cpu" */
int tp_device_threads(const tp_device *dev);

/* BD_OK, or the first failure of any kernel since the device was created. */
bd_status tp_device_check(tp_device *dev, bd_err *err) BD_MUST_CHECK;
/* Waits until everything enqueued so far is done. */
bd_status tp_device_wait(tp_device *dev, bd_err *err) BD_MUST_CHECK;
tp_event tp_device_record(tp_device *dev);
bd_status tp_event_wait(tp_device *dev, tp_event ev, bd_err *err) BD_MUST_CHECK;
bool tp_event_is_done(tp_device *dev, tp_event ev);

/* Device memory. NULL when out of memory. 64-byte aligned. */
void *tp_device_alloc(tp_device *dev, size_t n_bytes);
void tp_device_mem_free(tp_device *dev, void *p);
/* Scratch of at least n_bytes that the next caller may overwrite; lives as long as the device. */
void *tp_device_workspace(tp_device *dev, size_t n_bytes);

/* Step memory: bump allocation, freed all at once; a steady loop allocates nothing. */
bd_status tp_pool_new(tp_device *dev, tp_pool **out, bd_err *err) BD_MUST_CHECK;
void tp_pool_free(tp_pool *p);
void *tp_pool_alloc(tp_pool *p, size_t n_bytes);
void tp_pool_reset(tp_pool *p);

#endif
