/* rpc/rpc_store_int.h - what the kinds of stores share.
 *
 * Layer: rpc, private.
 */
#ifndef RPC_STORE_INT_H
#define RPC_STORE_INT_H

#include "rpc/rpc_store.h"

/* Fills client_id, register_server and shard_map with ones that need nothing but s->kv: keys
 * "braid/clients" and "braid/map" (`epoch n_servers address,address...`, "-": not registered). */
void rpc_store_over_kv(rpc_store *s);

/* One thing to ask, tried again while the store is away. */
typedef struct rpc_store_trouble {
    int64_t since_ns, told_ns; /* 0: none */
    unsigned n_failures;
} rpc_store_trouble;
/* After a failed try: true: waited a little, try again. False: *err is final, with who and for how
 * long when that was the reason. */
bool rpc_store_again(rpc_store_trouble *t, const char *who, int64_t wait_ms, bd_err *err);

bd_status rpc_store_coord_new(rpc_env *env, const char *address, const rpc_store_options *opt,
                              rpc_store **out, bd_err *err) BD_MUST_CHECK;
bd_status rpc_etcd_new(rpc_env *env, const char *url, const rpc_store_options *opt, rpc_store **out,
                       bd_err *err) BD_MUST_CHECK;

#endif
