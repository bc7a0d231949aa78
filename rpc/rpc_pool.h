/* rpc/rpc_pool.h - the threads that run server handlers.
 *
 * Layer:    rpc, private.
 * Threads:  all functions from any thread; rpc_pool_free from none of the pool's own.
 * Promise:  a job never waits for a thread that itself waits in a nested call: while w threads of
 *           the pool are blocked (rpc_blocking_begin), up to n_workers + w threads run; surplus
 * ones leave when they find nothing to do. So nesting of any depth ends, short of the system
 *           refusing threads (then it waits for one to come back, and says so in the log).
 * Shutdown: rpc_pool_free runs what is queued, then joins.
 */
#ifndef RPC_POOL_H
#define RPC_POOL_H

#include "base/err.h"

typedef struct rpc_pool rpc_pool;

/* Embedded in the object the job is about; the pool allocates nothing per job. */
typedef struct rpc_job {
    struct rpc_job *next;
    void (*run)(struct rpc_job *job);
} rpc_job;

bd_status rpc_pool_new(int n_workers, rpc_pool **out, bd_err *err) BD_MUST_CHECK;
void rpc_pool_free(rpc_pool *p);
void rpc_pool_submit(rpc_pool *p, rpc_job *job);
/* Threads alive now; for tests. */
int rpc_pool_n_threads(rpc_pool *p);

#endif
