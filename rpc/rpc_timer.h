/* rpc/rpc_timer.h - "run this later", one thread and a heap.
 *
 * Layer:    rpc, private. gRPC core offers C no timers.
 * Threads:  rpc_timer_add from any thread; the functions run on the timer's thread, must not block.
 * Shutdown: rpc_timer_free runs everything that is still waiting at once, then joins.
 */
#ifndef RPC_TIMER_H
#define RPC_TIMER_H

#include "base/err.h"

#include <stdint.h>

typedef struct rpc_timer rpc_timer;

/* on_thread_start runs first on the timer's thread; may be NULL. */
bd_status rpc_timer_new(void (*on_thread_start)(void *user), void *user, rpc_timer **out,
                        bd_err *err) BD_MUST_CHECK;
void rpc_timer_free(rpc_timer *t);
bd_status rpc_timer_add(rpc_timer *t, int64_t delay_ns, void (*fn)(void *user),
                        void *user) BD_MUST_CHECK;

#endif
