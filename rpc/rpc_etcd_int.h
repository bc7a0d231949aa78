/* rpc/rpc_etcd_int.h - calls to an etcd cluster: endpoints, streams, leases.
 *
 * Layer:   rpc, private. rpc_etcd.c makes a store of it.
 * Threads: any; the lock is held for a few instructions, never over a call.
 * Users:   rpc_etcd_auth.c. Where etcd asks for a user, a call that it refuses is sent once more
 *          after a login: refused calls changed nothing.
 */
#ifndef RPC_ETCD_INT_H
#define RPC_ETCD_INT_H

#include "proto/px_pack.h"
#include "rpc/rpc_int.h"
#include "rpc/rpc_store_int.h"

#include <etcd/etcd.pb-c.h>
#include <pthread.h>
#include <stdatomic.h>

/* A key that set_for keeps alive. */
typedef struct etcd_lease {
    struct etcd_lease *next;
    char *key, *val; /* owned; val: as last set, NULL: not yet under this lease */
    int64_t id, ttl_s;
} etcd_lease;

typedef struct etcd {
    rpc_store_base base;    /* first: the pointers are the same */
    char *prefix;           /* owned; without slashes at its ends */
    char *name;             /* owned; "etcd (host:port,...)" */
    rpc_channel **channels; /* owned, [n_channels] */
    size_t n_channels;
    _Atomic size_t current;     /* the one that answered last */
    char *user, *password_file; /* owned, NULL: none */
    pthread_mutex_t login;      /* held over a login: one at a time */
    _Atomic uint64_t n_logins;  /* so far; the channels have the last one's token */
    pthread_mutex_t lock;
    etcd_lease *leases;    /* under lock */
    int64_t op_lease;      /* under lock; 0: none */
    int64_t op_lease_till; /* under lock; bd_mono_ns: a new one then */
} etcd;

/* url: host:port[,host:port...][/prefix]. */
bd_status etcd_io_new(rpc_env *env, const char *url, const rpc_store_options *opt, etcd **out,
                      bd_err *err) BD_MUST_CHECK;
/* A unary call, once. */
bd_status etcd_ask_one(rpc_channel *ch, const char *method, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *type, int64_t try_ms,
                       ProtobufCMessage **reply, bd_err *err) BD_MUST_CHECK;
/* A unary call, of any endpoint, tried again while none answers. method: "KV/Range". */
bd_status etcd_ask(etcd *e, const char *method, const ProtobufCMessage *request,
                   const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **reply,
                   bd_err *err) BD_MUST_CHECK;
/* Makes sure that the calls on e's channels carry a token that is newer than that of login number
 * `seen` (0: any), asking endpoint `at`. Nothing to do without a user. BD_E_UNAUTHENTICATED: etcd
 * knows no such user with this password. */
bd_status etcd_login(etcd *e, size_t at, uint64_t seen, int64_t try_ms, bd_err *err) BD_MUST_CHECK;
/* A call ended with err because it carried no token that etcd takes. */
bool etcd_wants_login(const bd_err *err);
/* Says what to do about a refusal that another login does not help against. */
void etcd_explain(const etcd *e, bd_err *err);
/* Returns when the key has changed at start_revision or later, when the watch broke, or after
 * timeout_ms. */
void etcd_watch(etcd *e, const char *full_key, int64_t start_revision, int64_t timeout_ms);
/* The lease of op keys, with at least half its term left. */
bd_status etcd_op_lease(etcd *e, int64_t ttl_s, int64_t *id, bd_err *err) BD_MUST_CHECK;
/* The lease for `key`, kept alive or granted anew. *again: it lives and has this value under it;
 * else the caller sets it and says so with etcd_key_was_set. */
bd_status etcd_key_lease(etcd *e, const char *key, const char *val, int64_t ttl_s, int64_t *id,
                         bool *again, bd_err *err) BD_MUST_CHECK;
void etcd_key_was_set(etcd *e, const char *key, const char *val);

#endif
