/* rpc/rpc_coordinator.h - the methods of braid.v1.Coordinator: names, scopes and who serves them.
 *
 * Layer:   rpc, public. Served by server 0's own (ps_server/ps_service_coord.c) or from any store
 *          (rpc_store_serve); asked by rpc_store_coord.c.
 * Threads: before rpc_server_start.
 */
#ifndef RPC_COORDINATOR_H
#define RPC_COORDINATOR_H

#include "rpc/rpc.h"

#define RPC_COORDINATOR "/braid.v1.Coordinator/"

/* Handler, method, scope that its caller's token must have. */
#define RPC_COORDINATOR_METHODS(X)              \
    X(set, "KvSet", TRAIN)                      \
    X(get, "KvGet", READ)                       \
    X(add, "KvAdd", TRAIN)                      \
    X(compare_set, "KvCompareSet", TRAIN)       \
    X(del, "KvDelete", TRAIN)                   \
    X(wait, "KvWait", READ)                     \
    X(register_client, "RegisterClient", READ)  \
    X(register_server, "RegisterServer", ADMIN) \
    X(shard_map, "GetShardMap", READ)

/* One handler for each method. */
typedef struct rpc_coordinator {
#define FIELD(handler, method, scope) rpc_handler_fn handler;
    RPC_COORDINATOR_METHODS(FIELD)
#undef FIELD
} rpc_coordinator;

/* Registers all of them with `user`. Asserts that none is missing. As rpc_server_register; *err
 * names the method. */
bd_status rpc_coordinator_register(rpc_server *server, const rpc_coordinator *c, void *user,
                                   bd_err *err) BD_MUST_CHECK;

#endif
