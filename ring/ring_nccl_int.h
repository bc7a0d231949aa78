/* ring/ring_nccl_int.h - the inside of a communicator over NCCL.
 *
 * Thread model of ring_nccl
 *   threads    the issuing one (one at a time), waiters (any), the watchdog (one)
 *   field           written by         read by  protected by
 *   comm            issuing, watchdog  both     call_lock, one NCCL call at a time; the watchdog
 *                                               goes past a lock that is held for too long (NCCL
 *                                               itself is stuck)
 *   works, seq,     all                all      lock
 *   history,
 *   wanted, failure
 *   blocking   waiters poll the device, and stop when the group has failed and NCCL is stopped
 *   lock order call_lock and lock are never held together
 *   shutdown   ring_nccl_free: open operations are aborted; the watchdog is joined, or left behind
 *              as the owner when NCCL does not stop within stop_ms (an error is logged)
 *
 * Keys below prefix, each set once for an epoch:
 *   rank/<r>   "<NCCL version> <world>": has joined
 *   id         the ncclUniqueId, of rank 0
 *   alarm      something is wrong: "<seq>" is stuck, or "-": the verdict is there already
 *   at/<r>     after alarm "<seq>": where rank r is, ring_nccl_report; or that it has left
 *   verdict    "<status number> <text>": the error of all ranks
 */
#ifndef RING_NCCL_INT_H
#define RING_NCCL_INT_H

#include "ring/ring_algo.h"
#include "ring/ring_engine_text.h"
#include "ring/ring_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <pthread.h>
#include <stdatomic.h>

#define RING_NCCL_HISTORY 64 /* operations that a rank can still tell about */

typedef enum ring_nccl_state {
    RING_NCCL_ISSUED,   /* NCCL does not have it yet: the events are not recorded */
    RING_NCCL_LAUNCHED, /* on the stream */
    RING_NCCL_ENDED,
    RING_NCCL_FAILED
} ring_nccl_state;

struct ring_nccl_work {
    ring_nccl *owner; /* borrowed */
    ring_nccl_work *next;
    cudaEvent_t ready; /* owned; what the operation waits for is over */
    cudaEvent_t done;  /* owned */
    ring_op op;
    uint64_t seq;
    int64_t issued_ns;
    ring_nccl_state state;
    bool is_held; /* the caller has it */
};

typedef struct ring_nccl_past {
    uint64_t seq;
    uint64_t digest;
    char text[RING_OP_TEXT_BYTES];
} ring_nccl_past;

struct ring_nccl {
    int rank;
    int world;
    int device;
    int64_t timeout_ns;
    int64_t poll_ms;
    int64_t stop_ms;
    bd_kv *kv;          /* borrowed */
    ring_comm *control; /* borrowed; NULL: none */
    char *prefix;       /* owned; of keys */
    char *group;        /* owned */

    pthread_mutex_t call_lock;
    _Atomic(ncclComm_t) comm; /* owned; NULL: not yet, or no more */
    _Atomic bool is_up;       /* init has ended well */
    cudaStream_t stream;      /* owned */
    cudaEvent_t fork;         /* owned; marks what a caller's stream has so far */
    void *token;              /* owned; 4 bytes of device memory for barriers */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    ring_nccl_work *head;   /* open operations in order */
    ring_nccl_work *tail;
    ring_nccl_work *spare; /* works with their events, to be used again */
    int n_held;
    uint64_t seq; /* of the next operation */
    ring_nccl_past history[RING_NCCL_HISTORY];
    bd_err wanted;  /* a failure that the watchdog shall tell to all */
    bd_err failure; /* the verdict */
    int64_t failed_ns;
    bool is_stopped; /* NCCL runs nothing any more, or was given up */
    bool must_stop;
    bool has_watchdog;
    bool watchdog_ended;
    bool is_orphan; /* ring_nccl_free has gone: the watchdog frees */
    pthread_t watchdog;
};

/* ring_nccl.c */
bd_status ring_nccl_cuda_err(bd_err *err, cudaError_t e, const char *what);
bd_status ring_nccl_err(bd_err *err, ncclResult_t r, ncclComm_t comm, const char *what);
/* A call said `first`: waits until NCCL has done it. BD_E_TIMEOUT at deadline_ns. */
bd_status ring_nccl_settle(ring_nccl *n, ncclResult_t first, const char *what, int64_t deadline_ns,
                           bd_err *err) BD_MUST_CHECK;
/* The watchdog has ended, or is the one that calls: the end of the communicator. */
void ring_nccl_dispose(ring_nccl *n);
/* The communicator, with call_lock held, or NULL and no lock. */
ncclComm_t ring_nccl_lock_comm(ring_nccl *n);
void ring_nccl_unlock_comm(ring_nccl *n);

/* ring_nccl_work.c */
bd_status ring_nccl_work_new(ring_nccl *n, const ring_op *op, ring_nccl_work **out,
                             bd_err *err) BD_MUST_CHECK;
void ring_nccl_works_free(ring_nccl *n);
/* Ends operations that have run. Locked. */
bd_status ring_nccl_retire(ring_nccl *n, bd_err *err) BD_MUST_CHECK;
/* The group has failed: all open operations end. Locked. */
void ring_nccl_end_all(ring_nccl *n);

/* ring_nccl_watch.c */
void *ring_nccl_watchdog(void *arg);
/* The group has failed, and NCCL has not stopped in time: operations end all the same. Locked. */
void ring_nccl_give_up(ring_nccl *n);
/* Tells all ranks, waits until the group has failed here; returns and writes the verdict. */
bd_status ring_nccl_fail(ring_nccl *n, const bd_err *why, bd_err *err);
/* Waits up to ms for the key below prefix. BD_AGAIN: not there. */
bd_status ring_nccl_key_wait(ring_nccl *n, const char *key, int64_t ms, char **val, size_t *n_bytes,
                             bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_key_set(ring_nccl *n, const char *key, const void *val, size_t n_bytes,
                            bd_err *err) BD_MUST_CHECK;
bd_status ring_nccl_key_claim(ring_nccl *n, const char *key, const char *val, bool *is_first,
                              bd_err *err) BD_MUST_CHECK;

/* ring_nccl_verdict.c: who is to blame, from what ranks say about operation seq. */
/* What this rank says; locked. */
void ring_nccl_report(ring_nccl *n, uint64_t seq, char *out, size_t out_bytes);
/* What this rank leaves behind when it ends in good order. */
void ring_nccl_farewell(const ring_nccl *n, char *out, size_t out_bytes);
/* reports[world]: NULL where a rank said nothing. err->code: BD_E_MISMATCH or BD_E_TIMEOUT. */
void ring_nccl_judge(const ring_nccl *n, uint64_t seq, const char *text, char *const *reports,
                     bd_err *err);

#endif
