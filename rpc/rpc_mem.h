/* rpc/rpc_mem.h - the same rpc.h over memory and virtual time, for tests: a network of nodes that
 * delays, loses, repeats and reorders messages by a seed.
 *
 * Layer:     rpc.
 * Threads:   one. Everything on a network runs on the thread that steps it; handlers run inside
 *            rpc_mem_net_step, and a blocking call (rpc_call_sync, rpc_server_stop) steps until it
 *            has its answer. So a run is a pure function of the seed and the calls made.
 * Time:      virtual; it moves only from event to event.
 * Loss:      as TCP shows it: a lost request or answer is a broken connection, BD_E_UNAVAILABLE
 * after the delay; the handler may have run. Repeats happen to idempotent calls only. Unary
 *            messages overtake each other; messages of one stream never do, a loss breaks it.
 * Addresses: the `listen` and `target` strings must be equal; port 0 gets a number.
 */
#ifndef RPC_MEM_H
#define RPC_MEM_H

#include "base/clock.h"

#include "rpc/rpc.h"

typedef struct rpc_mem_net rpc_mem_net;

typedef struct rpc_mem_options {
    uint64_t seed;
    int64_t delay_min_ns, delay_max_ns; /* of each message; 0, 0: 1 us */
    double loss;                        /* share of messages lost, [0, 1) */
    double repeat;                      /* share of idempotent requests that arrive twice */
    /* Each event as one line, e.g. for comparing runs; may be NULL. */
    void (*trace)(void *user, const char *line);
    void *trace_user;
} rpc_mem_options;

bd_status rpc_mem_net_new(const rpc_mem_options *opt, rpc_mem_net **out, bd_err *err) BD_MUST_CHECK;
/* After all its envs. */
void rpc_mem_net_free(rpc_mem_net *net);
/* Another node. rpc_env_free frees it. name is for traces; copied. */
bd_status rpc_mem_env_new(rpc_mem_net *net, const char *name, rpc_env **out,
                          bd_err *err) BD_MUST_CHECK;
/* Before its first channel or server: tokens, as rpc_env_options.security (memory has no TLS). */
bd_status rpc_mem_env_secure(rpc_env *env, const rpc_security_options *opt,
                             bd_err *err) BD_MUST_CHECK;

const bd_clock *rpc_mem_net_clock(const rpc_mem_net *net);
/* The next event; false: nothing is left to happen. */
bool rpc_mem_net_step(rpc_mem_net *net);
/* All events up to and including t_ns; time is t_ns afterwards. */
void rpc_mem_net_run_until(rpc_mem_net *net, int64_t t_ns);
/* Other trouble from now on. */
void rpc_mem_net_set_faults(rpc_mem_net *net, double loss, double repeat);

/* kill -9 of a node: what it serves is gone, nothing it sent or was about to answer arrives, its
 * own calls end with BD_E_UNAVAILABLE. Its objects are still freed in the usual way. */
void rpc_mem_env_kill(rpc_env *env);
/* No message passes between two nodes while cut. */
void rpc_mem_env_cut(rpc_env *a, rpc_env *b, bool cut);

#endif
