/* client/cl_retry.h - what to do about a failed try: a pure decision.
 *
 * Layer:   client, private, pure part. Threads: any.
 * Read next: cl_call.h, which acts on it.
 */
#ifndef CL_RETRY_H
#define CL_RETRY_H

#include "base/status.h"

#include <stdint.h>

typedef enum cl_verdict {
    CL_FAIL = 1,   /* for good: the caller gets the error */
    CL_GIVE_UP,    /* might have passed, but the time is over */
    CL_AGAIN,      /* same request, at trouble.next_try_ns */
    CL_REFRESH,    /* get a newer shard map, then again */
    CL_SEND_PARTS, /* send the step's parts to this server, then again */
} cl_verdict;

/* History of one request since it last went well. All zero at the start. */
typedef struct cl_trouble {
    int64_t since_ns;    /* first failure; 0: none yet */
    int64_t next_try_ns; /* not before */
    unsigned n_failures;
} cl_trouble;

/* Decides after a try ended with rc < 0 at now_ns (> 0). wait_ms: for how long trouble is borne.
 * jitter: any random number. Waits double from 10 ms to 500 ms, each between half and whole; the
 * first answer to MOVED or NEED_PARTS is at once. */
cl_verdict cl_retry_decide(cl_trouble *t, bd_status rc, int64_t now_ns, int64_t wait_ms,
                           uint64_t jitter);

#endif
