/* ring/ring_nccl.h - collectives on device memory, by NCCL, that end in a typed error, not a hang.
 *
 * Layer:     ring. No CUDA header is needed to include this one; built where CUDA and NCCL are.
 * Threads:   one thread at a time issues operations on a communicator; everything about a work,
 *            ring_nccl_failure and ring_nccl_abort from any. A watchdog thread of the communicator
 *            polls NCCL and the key-value store. Calls leave `device` as their thread's current
 * one. Order:     operations run one after the other on the communicator's own stream. Each waits
 * for what its caller names in ring_nccl_how, and compute waits for it by its event: the host
 *            blocks nowhere on the way.
 * Agreement: every rank issues the same operations in the same order. With a control communicator
 *            (tcp or shm; one round of it for each operation) ranks compare kind, dtype, count,
 * root, reduce op and name before anything reaches the device: BD_E_MISMATCH on all ranks with both
 * sides. Without one nothing is paid, and the check comes when an operation is stuck until its time
 * limit: a different operation is BD_E_MISMATCH then, but NCCL may have reduced different counts
 * without a word. Failure:   the first failure ends the communicator on all ranks with one text,
 * which names operation, sequence number and ranks; it travels through the key-value store. NCCL is
 *            revoked (where it can be) or aborted on every rank. Then only abort, wait, release and
 *            free are legal; a new epoch makes a new communicator.
 * Results:   equal bits on all ranks. Otherwise NCCL's own: f16 and bf16 are rounded at each hop, a
 *            NaN may lose against a number in min and max, sums of integers wrap. There is no band
 *            and bor (BD_E_UNSUPPORTED).
 */
#ifndef RING_NCCL_H
#define RING_NCCL_H

#include "base/err.h"
#include "base/kv.h"
#include "base/num/dtype.h"
#include "base/num/reduce.h"

#include "ring/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ring_nccl ring_nccl;
typedef struct ring_nccl_work ring_nccl_work;
typedef struct CUstream_st *ring_nccl_stream; /* a cudaStream_t */
typedef struct CUevent_st *ring_nccl_event;   /* a cudaEvent_t */

typedef struct ring_nccl_options {
    const char *group; /* names the group in keys and errors; unique per epoch; NULL: "default" */
    uint64_t epoch;
    int device;         /* CUDA device of this rank; no two ranks share one */
    int64_t timeout_ms; /* of an operation, the wait for compute included, and of init; 0: 60,000 */
    int64_t poll_ms;    /* how often the watchdog looks, 0: 100 */
    int64_t stop_ms;    /* how long NCCL may take to stop after a failure, 0: 10,000 */
    ring_comm *control; /* borrowed until ring_nccl_free, used by nothing else; NULL: see above */
} ring_nccl_options;

/* Collective: all ranks call it. kv is borrowed until ring_nccl_free; keys are below
 * "ring/<group>/<epoch>/nccl/". BD_E_TIMEOUT names the absent ranks, BD_E_EXISTS a rank that joined
 * twice, BD_E_MISMATCH another world or NCCL version, BD_E_UNAVAILABLE a device that is not there.
 * Every rank gets the error of the first that fails. */
bd_status ring_nccl_new(bd_kv *kv, int rank, int world, const ring_nccl_options *opt,
                        ring_nccl **out, bd_err *err) BD_MUST_CHECK;
/* A communicator of ring.h over this (ring_new with RING_NCCL). */
bd_status ring_nccl_comm_new(bd_kv *kv, int rank, int world, const ring_options *opt,
                             ring_comm **out, bd_err *err) BD_MUST_CHECK;
/* Ends open operations with BD_E_ABORTED on all ranks. Blocks until they have ended here. */
void ring_nccl_abort(ring_nccl *n, const bd_err *why);
/* Works have been waited for or released. Open operations end as by ring_nccl_abort. */
void ring_nccl_free(ring_nccl *n);

int ring_nccl_rank(const ring_nccl *n);
int ring_nccl_world(const ring_nccl *n);
/* BD_OK, or the failure of the group, as far as this rank knows. Cheap; never blocks. */
bd_status ring_nccl_failure(ring_nccl *n, bd_err *err);

/* What an operation waits for, and how its end is known. All may be zero. */
typedef struct ring_nccl_how {
    const char *name;            /* for agreement and errors */
    ring_nccl_stream after;      /* what was issued to this stream until now comes first */
    ring_nccl_event after_event; /* and what this event stands for */
    ring_nccl_work **work;       /* gets the work; NULL: the call blocks until the end */
} ring_nccl_how;

/* The collectives of ring/ring.h on device memory, which belongs to the operation until its end.
 * how NULL: all zero. Counts are elements and may be 0. */
bd_status ring_nccl_allreduce(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype,
                              num_reduce_op op, const ring_nccl_how *how,
                              bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_reduce_scatter(ring_nccl *n, const void *in, void *out, size_t n_elems_out,
                                   num_dtype dtype, num_reduce_op op, const ring_nccl_how *how,
                                   bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_all_gather(ring_nccl *n, const void *in, void *out, size_t n_elems_in,
                               num_dtype dtype, const ring_nccl_how *how,
                               bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_broadcast(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype, int root,
                              const ring_nccl_how *how, bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_reduce(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype,
                           num_reduce_op op, int root, const ring_nccl_how *how,
                           bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_gather(ring_nccl *n, const void *in, void *out, size_t n_elems_in,
                           num_dtype dtype, int root, const ring_nccl_how *how,
                           bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_scatter(ring_nccl *n, const void *in, void *out, size_t n_elems_out,
                            num_dtype dtype, int root, const ring_nccl_how *how,
                            bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_all_to_all(ring_nccl *n, const void *in, void *out, size_t n_elems,
                               num_dtype dtype, const ring_nccl_how *how,
                               bd_err *err) BD_MUST_CHECK;
/* The counts are host memory, read during the call. A control communicator compares them. */
bd_status ring_nccl_all_to_all_v(ring_nccl *n, const void *in, const size_t *send_counts, void *out,
                                 const size_t *recv_counts, num_dtype dtype,
                                 const ring_nccl_how *how, bd_err *err) BD_MUST_CHECK;
/* Blocks until all ranks are here and all operations before it have ended. */
bd_status ring_nccl_barrier(ring_nccl *n, const char *name, bd_err *err) BD_MUST_CHECK;

/* Borrowed until the work is waited for or released; happens when the operation has run. After a
 * failure it may happen with undefined results: ring_nccl_failure tells. */
ring_nccl_event ring_nccl_work_event(const ring_nccl_work *w);
/* What is issued to stream from now on runs after the operation. Does not block. */
bd_status ring_nccl_work_order(ring_nccl_work *w, ring_nccl_stream stream,
                               bd_err *err) BD_MUST_CHECK;
bool ring_nccl_work_done(ring_nccl_work *w); /* ended, well or not */
/* Blocks the host until the end; gives back the work; returns the operation's result. */
bd_status ring_nccl_work_wait(ring_nccl_work *w, bd_err *err);
/* Gives back the work without waiting. */
void ring_nccl_work_release(ring_nccl_work *w);

#endif
