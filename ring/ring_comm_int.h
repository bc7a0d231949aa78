/* ring/ring_comm_int.h - the inside of a communicator, for its backends and the reducer.
 *
 * Two kinds of backends. Framed ones (memory, tcp) move frames for the engine on the communicator's
 * own thread. Direct ones (shm, hierarchical) run a whole operation on the thread that calls run:
 * the caller of a blocking one, the waiter of one that nobody has begun, else the communicator's
 * own.
 *
 * Thread model of ring_comm
 *   threads    callers (any, one at a time issues), the communicator's own thread (one; a direct
 *              backend has it from the first asynchronous operation on)
 *   field            written by   read by     protected by
 *   engine, running  the driver   the driver  who drives: the driver; world 1 the caller; direct
 *                                             backends who is busy
 *   queue, abort,    callers      the driver  lock; then backend->wake
 *   stop
 *   failure          the driver   callers     lock
 *   driver, is_busy  who runs     all         lock
 *   driver     the own thread, or a caller that makes the progress of its blocking operation itself
 *              (tcp); world 1: the caller
 *   blocking   callers drive, or wait on the work's own condition; a work outlives its communicator
 *   lock order lock, then a work's lock; none held across the engine or run
 *   shutdown   ring_free: stop flag, wake, join; open works end with BD_E_ABORTED
 */
#ifndef RING_COMM_INT_H
#define RING_COMM_INT_H

#include "ring/ring.h"
#include "ring/ring_engine.h"

#include <pthread.h>

/* What a backend adds to the transport. */
typedef struct ring_backend ring_backend;
struct ring_backend {
    ring_transport transport;
    /* Framed backends whose callers make the progress themselves; NULL: the own thread does. The
     * caller is comm.driver. Returns when w is done, or early when ring_free was called. */
    void (*drive)(ring_backend *b, const ring_work *w);
    /* Any thread: the own thread must call ring_comm_pump soon. Direct: NULL. */
    void (*wake)(ring_backend *b);
    /* ring_free: ends the own thread (which sees ring_comm_must_stop) and frees the backend.
     * Direct: no operation runs any more. */
    void (*stop)(ring_backend *b);
    /* Direct backends: runs one operation to its end on this thread. An error ends the group: it is
     * the one that all ranks report. NULL: a framed backend. */
    bd_status (*run)(ring_backend *b, const ring_op *op, bd_err *err);
    /* Direct backends, any thread: ends what runs now or later with this error, on all ranks; the
     * first one wins. */
    void (*fail)(ring_backend *b, const bd_err *why);
    /* Direct backends: who does send and recv. */
    ring_comm *p2p;
    /* Where p2p cannot reach op's memory: *host is a block that it can, with what is to be sent
     * (NULL: op's own will do). Given back when the operation has ended, well or not. NULL: it
     * always can. */
    bd_status (*lend)(ring_backend *b, const ring_op *op, void **host, bd_err *err);
    bd_status (*give_back)(ring_backend *b, const ring_op *op, void *host, bool is_well,
                           bd_err *err);
    /* ring_alloc and ring_mem_release; NULL: plain memory. release: false when p is not ours. */
    void *(*alloc)(ring_backend *b, size_t n_bytes);
    bool (*release)(ring_backend *b, void *p);
};

struct ring_work {
    ring_op op;
    ring_p2p p2p; /* when op is a send or recv */
    ring_work *next;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    _Atomic bool is_done;
    ring_comm *comm; /* direct backends: whose queue it is in, or who runs it; under lock, NULL once
                        it has ended */
    bd_status rc;
    bd_err err;
    int64_t done_ns;
    ring_backend *lender; /* of a send or recv through lent memory, which op.in is; else NULL */
    void *own_memory;     /* the caller's */
};

typedef enum ring_driver { RING_DRIVER_NONE, RING_DRIVER_CALLER, RING_DRIVER_THREAD } ring_driver;

struct ring_comm {
    ring_engine engine;
    ring_backend *backend; /* owned; NULL when world == 1 */
    char *group;           /* owned */
    ring_options options;  /* as it was made, for groups of its ranks; owned texts */
    uint64_t n_splits;     /* so far */
    pthread_mutex_t lock;
    ring_work *head; /* queued */
    ring_work *tail;
    bd_err failure;
    bd_err abort_why; /* code BD_OK: not asked */
    bool must_stop;
    ring_work *running;
    /* Backends with drive. Under lock; who is the driver owns engine, running and the sockets. */
    ring_driver driver;
    bool is_watched; /* the own thread sleeps on the sockets: wake it when becoming the driver */
    int64_t left_ns; /* when a driver last ended an operation */
    /* Framed backends: told once, by the driver, that the group has failed, and at which
     * operation of the larger group (ring_engine's outer_at). Under lock. */
    void (*on_failed)(void *user, const bd_err *why, uint64_t outer_at);
    void *failed_user;
    /* Direct backends. */
    bool is_busy;
    bool has_thread;
    pthread_t thread;
    pthread_cond_t changed; /* queue, is_busy, must_stop */
};

/* A communicator without a backend yet. Checks rank, world and options; group NULL is "default". */
bd_status ring_comm_new(int rank, int world, const ring_options *opt, ring_comm **out,
                        bd_err *err) BD_MUST_CHECK;
/* Queues op (copied). work NULL: waits for it. */
bd_status ring_comm_submit(ring_comm *c, const ring_op *op, ring_work **work,
                           bd_err *err) BD_MUST_CHECK;
/* Own thread, after every event: starts queued operations, acts on ring_abort. */
void ring_comm_pump(ring_comm *c);
/* Own thread, when it is to end: says GOODBYE, or why the group has failed. */
void ring_comm_goodbye(ring_comm *c);
/* Own thread: ring_free has been called. */
bool ring_comm_must_stop(ring_comm *c);
/* Own thread, at its end: no operation stays open. */
void ring_comm_close(ring_comm *c);

/* Framed groups inside another one: started and done count the operations of that one. */
void ring_comm_set_outer(ring_comm *c, const _Atomic uint64_t *started,
                         const _Atomic uint64_t *done);
/* fn hears of the end of c (at once, when it has ended already) until ring_comm_unwatch returns or
 * c's thread has ended. */
void ring_comm_watch(ring_comm *c, void (*fn)(void *user, const bd_err *why, uint64_t outer_at),
                     void *user);
void ring_comm_unwatch(ring_comm *c);

/* Ends the group with exactly this error on all ranks (ring_abort says who aborted). Any thread. */
void ring_comm_fail(ring_comm *c, const bd_err *why);

int64_t ring_options_timeout_ms(const ring_options *opt);

/* Tests: the time limit of later operations of this rank, which need not be that of the rendezvous.
 * None runs now. */
void ring_test_limit(ring_comm *c, int64_t limit_ms);

/* ring_work_wait that tells when the operation was complete (bd_mono_ns). */
bd_status ring_work_wait_timed(ring_work *w, int64_t *done_ns, bd_err *err) BD_MUST_CHECK;

#endif
