/* rpc/rpc_security_int.h - the loaded certificates and tokens of one env.
 *
 * Layer:   rpc, private.
 *
 * Thread model of rpc_security
 *   threads    any; whoever finds that a second has passed looks at the files
 *   field            written by         read by        protected by
 *   certs, tokens,   rpc_security_poll  calls,         lock (pointers; snapshots are refcounted)
 *   own                                 handshakes
 *   next_look_ns     rpc_security_poll  calls          _Atomic, relaxed; one winner each time
 *   generation       rpc_security_poll  channels       _Atomic, release/acquire
 *   blocking   reads files of at most 1 MiB, when they have changed
 */
#ifndef RPC_SECURITY_INT_H
#define RPC_SECURITY_INT_H

#include "rpc/rpc_security.h"
#include "rpc/rpc_tokens.h"
#include "rpc/rpc_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* What the PEM files held at one time. Members are NULL where the option is not set. */
typedef struct rpc_certs {
    _Atomic int refs;
    char *ca, *cert, *key; /* owned */
    int64_t not_after_s;
} rpc_certs;

/* "Bearer <token>" for the metadata. */
typedef struct rpc_own_token {
    _Atomic int refs;
    size_t n;
    char text[];
} rpc_own_token;

typedef struct rpc_security {
    bool has_ca, has_cert, has_own, has_tokens; /* fixed */
    bool is_etcds;                              /* fixed: the `etcd` of another one */
    bool require_client_cert, allow_insecure;
    char *server_name; /* owned, NULL: none */
    /* Fixed. etcd: certificates for channels to it, NULL: these here; has no user of its own. */
    struct rpc_security *etcd;
    char *etcd_user, *etcd_password_file; /* owned, NULL: none */
    _Atomic int64_t next_look_ns;
    int64_t look_every_ns;
    _Atomic uint64_t generation; /* of certs; from 1 */
    pthread_mutex_t look;        /* one looks at a time; guards the watches */
    rpc_watch pem_watch, own_watch, tokens_watch;
    pthread_mutex_t lock; /* guards the pointers below */
    rpc_certs *certs;
    rpc_own_token *own;
    rpc_tokens *tokens;
} rpc_security;

/* opt NULL or all empty: *out is NULL, which every function below takes for "no security". */
bd_status rpc_security_new(const rpc_security_options *opt, rpc_security **out,
                           bd_err *err) BD_MUST_CHECK;
void rpc_security_free(rpc_security *s);
/* Once, when the first server is made or the first files are loaded. */
void rpc_security_register_metrics(void);
/* Loads what has changed, at most once a second of now_ns's clock. */
void rpc_security_poll(rpc_security *s, int64_t now_ns);

static inline bool rpc_security_serves_tls(const rpc_security *s)
{
    return s != NULL && s->has_cert;
}
static inline bool rpc_security_calls_tls(const rpc_security *s)
{
    return s != NULL && s->has_ca;
}
/* Snapshots, released with their unref; NULL where there is none. */
rpc_certs *rpc_security_certs(rpc_security *s);
void rpc_certs_unref(rpc_certs *c);
rpc_own_token *rpc_security_own(rpc_security *s);
void rpc_own_token_unref(rpc_own_token *t);
rpc_tokens *rpc_security_tokens(rpc_security *s);

#endif
