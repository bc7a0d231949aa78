/* rpc/rpc_stats.h - calls, latency and bytes of each method, on both sides, for the metrics page.
 *
 * Layer:   rpc, private.
 * Threads: any. Counters are relaxed atomics; a method's slot is made once and never freed.
 * Cost:    finding a slot hashes the method's name (a client does it for each call; a server keeps
 *          the pointer in rpc_method); counting a call is a handful of relaxed additions.
 * Bound:   RPC_STATS_SLOTS methods a side; what does not fit, and what a server does not know, is
 *          counted under the method "other".
 */
#ifndef RPC_STATS_H
#define RPC_STATS_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { RPC_STATS_SLOTS = 128, RPC_STATS_CODES = 17, RPC_STATS_BUCKETS = 16 };

typedef enum rpc_side { RPC_CLIENT_SIDE = 0, RPC_SERVER_SIDE = 1 } rpc_side;

typedef struct rpc_stats {
    _Atomic uint32_t state; /* 0 free, 1 being made, 2 there */
    uint32_t hash;
    char method[92];                         /* "braid.v1.ParameterServer/Lookup" */
    _Atomic uint64_t calls[RPC_STATS_CODES]; /* by gRPC's code */
    _Atomic uint64_t buckets[RPC_STATS_BUCKETS];
    _Atomic uint64_t total_ns;
    _Atomic uint64_t received_bytes, sent_bytes;
    _Atomic uint64_t received_messages, sent_messages; /* of streams */
} rpc_stats;

/* path: "/package.Service/Method"; NULL: the slot "other". Never NULL. */
rpc_stats *rpc_stats_of(rpc_side side, const char *path);
/* A call is over. */
void rpc_stats_call(rpc_stats *s, bd_status rc, int64_t took_ns);
static inline void rpc_stats_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
/* Puts the families on the metrics page; once is enough. */
void rpc_stats_register(void);

#endif
