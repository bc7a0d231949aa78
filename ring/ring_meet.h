/* ring/ring_meet.h - rendezvous: every rank gets connected sockets to every other rank.
 *
 * Layer:   ring. Threads: the caller's; blocking, with one deadline.
 * Keys:    ring/<group>/<epoch>/<rank|shm>/<r> holds where rank r listens.
 * Errors:  BD_E_TIMEOUT names the absent ranks, BD_E_EXISTS a rank that joined twice, BD_E_MISMATCH
 *          another world.
 */
#ifndef RING_MEET_H
#define RING_MEET_H

#include "ring/ring_comm_int.h"

typedef struct ring_meet_how {
    bool is_unix; /* unix sockets in the abstract namespace; only processes of the same user */
    int n_conns;  /* connections between two ranks, >= 1 */
} ring_meet_how;

/* fds: world * n_conns, those to rank r from r * n_conns on, -1 for the own rank; on failure all
 * are closed and -1. */
bd_status ring_meet(bd_kv *kv, const ring_comm *c, const ring_options *opt,
                    const ring_meet_how *how, int *fds, bd_err *err) BD_MUST_CHECK;
/* Waits until fd has one of `events` (poll) or ms have passed: BD_E_TIMEOUT. */
bd_status ring_meet_wait(int fd, short events, int64_t ms, bd_err *err) BD_MUST_CHECK;

#endif
