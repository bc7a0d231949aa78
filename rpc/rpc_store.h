/* rpc/rpc_store.h - what a cluster agrees on, behind one interface: key-value store, client ids,
 * shard map.
 *
 * Layer:     rpc, public.
 * Kinds:     "HOST:PORT": the Coordinator service of server 0, durable in its journal
 *            (rpc_store_coord.c); "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]": etcd, v3
 *            (rpc_etcd.c); one process's memory (rpc_store_mem). rpc_store_serve gives any of them
 *            to others as a Coordinator service.
 * Threads:   all functions from any thread; they block their caller, so not from env queue threads.
 * Away:      a store that does not answer is asked again for up to wait_ms, then BD_E_UNAVAILABLE
 *            names it. What changes state is done once however often it had to be sent.
 * Repeats:   kv's own add and compare_set draw an op id for each call.
 * Map:       slots are dealt out evenly by server index (rpc_slots_of).
 */
#ifndef RPC_STORE_H
#define RPC_STORE_H

#include "base/kv.h"

#include "rpc/rpc.h"

enum { RPC_N_SLOTS = 4096 };

/* All owned; rpc_shard_map_deinit. */
typedef struct rpc_shard_map {
    uint64_t epoch;
    size_t n_servers;
    char **servers; /* [n_servers] addresses */
    size_t n_slots;
    uint32_t *slot_owner; /* [n_slots] server indices */
} rpc_shard_map;

void rpc_shard_map_deinit(rpc_shard_map *m);
/* The slots [*first, *end) of server `index` of `servers`. */
void rpc_slots_of(uint32_t index, uint32_t servers, uint32_t *first, uint32_t *end);

typedef struct rpc_server_entry {
    uint32_t index, n_servers;
    const char *address;  /* host:port where clients reach it */
    const char *instance; /* random per start */
} rpc_server_entry;

typedef struct rpc_store rpc_store;
struct rpc_store {
    bd_kv *kv;               /* owned: dies with the store */
    _Atomic int64_t wait_ms; /* may be changed; calls that wait heed it, too */
    /* As kv's add and compare_set, for an operation that may come again with the same random op_id
     * (not 0): it is done once, and answered the same. */
    bd_status (*add_once)(rpc_store *s, uint64_t op_id, const char *key, int64_t by, int64_t *after,
                          bd_err *err);
    bd_status (*swap_once)(rpc_store *s, uint64_t op_id, const char *key, const char *expected,
                           const char *desired, bool *swapped, bd_err *err);
    /* Never issued twice; the same for the same op_id. */
    bd_status (*client_id)(rpc_store *s, uint64_t op_id, const char *name, uint64_t *id,
                           bd_err *err);
    /* *epoch: of the map with this address in it. BD_E_MISMATCH: another number of servers;
     * (not on server 0) BD_E_UNAVAILABLE while server 0 has not said that number. */
    bd_status (*register_server)(rpc_store *s, const rpc_server_entry *e, uint64_t *epoch,
                                 bd_err *err);
    /* Waits up to timeout_ms for a whole map with a larger epoch: BD_E_TIMEOUT says who is missing.
     */
    bd_status (*shard_map)(rpc_store *s, uint64_t newer_than, int64_t timeout_ms,
                           rpc_shard_map *out, bd_err *err);
    void (*free)(rpc_store *s);
};

typedef struct rpc_store_options {
    int64_t wait_ms;     /* 0: 120,000 */
    bool allow_insecure; /* without TLS: plain text to another host */
} rpc_store_options;

/* Connects at the first call. BD_E_USAGE: no such kind of store, or no address in it. env is
 * borrowed. */
bd_status rpc_store_open(rpc_env *env, const char *url, const rpc_store_options *opt,
                         rpc_store **out, bd_err *err) BD_MUST_CHECK;
/* Of this process; dies with it. NULL: no memory. */
rpc_store *rpc_store_mem(void);
void rpc_store_free(rpc_store *s); /* NULL is fine; nobody may be in a call */
/* The url names etcd, so no server hosts a coordinator of its own. */
bool rpc_store_is_etcd(const char *url);
/* Random and never 0: an op id. */
uint64_t rpc_store_op_id(void);
/* Serves braid.v1.Coordinator from this store (borrowed). Before rpc_server_start. */
bd_status rpc_store_serve(rpc_server *server, rpc_store *s, bd_err *err) BD_MUST_CHECK;

#endif
