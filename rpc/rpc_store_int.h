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

/* When a wait on a key is over: it exists, it is another than `known`, its number is large enough.
 */
typedef struct rpc_store_wait {
    enum { RPC_STORE_EXISTS, RPC_STORE_OTHER, RPC_STORE_NUMBER } what;
    const char *key;
    const char *known; /* OTHER; NULL: absent */
    int64_t at_least;  /* NUMBER; an absent key is 0 */
} rpc_store_wait;

typedef struct rpc_store_value {
    char *val; /* owned, terminated; NULL: absent */
    size_t n_bytes;
} rpc_store_value;

/* What a store elsewhere is asked, besides add_once and swap_once. err is never NULL. */
typedef struct rpc_store_ops {
    bd_status (*set)(rpc_store *s, const char *key, const void *val, size_t n_bytes, bd_err *err);
    bd_status (*set_for)(rpc_store *s, const char *key, const char *val, int64_t ttl_ms,
                         bd_err *err);
    bd_status (*del)(rpc_store *s, const char *key, bd_err *err);
    /* *out (zeroed by the caller): what ended it, but for NUMBER. BD_E_TIMEOUT: it is not over. */
    bd_status (*wait)(rpc_store *s, const rpc_store_wait *w, int64_t timeout_ms,
                      rpc_store_value *out, bd_err *err);
} rpc_store_ops;

/* The beginning of such a store. */
typedef struct rpc_store_base {
    rpc_store store; /* first: the pointers are the same */
    bd_kv kv;
    const rpc_store_ops *ops; /* static */
} rpc_store_base;

/* Makes store.kv, over ops and the store's add_once and swap_once. */
void rpc_store_base_init(rpc_store_base *b, const rpc_store_ops *ops);

bd_status rpc_store_coord_new(rpc_env *env, const char *address, const rpc_store_options *opt,
                              rpc_store **out, bd_err *err) BD_MUST_CHECK;
bd_status rpc_etcd_new(rpc_env *env, const char *url, const rpc_store_options *opt, rpc_store **out,
                       bd_err *err) BD_MUST_CHECK;

#endif
