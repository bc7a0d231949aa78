/* base/kv.h - the small key-value store behind every rendezvous: an interface with fakes.
 *
 * Layer:     base. Implementations: bd_kv_mem (one process, below), rpc/rpc_store (the coordinator
 *            of a cluster: in server 0, or etcd).
 * Threads:   all calls from any thread; waiting calls block only their caller.
 * Ownership: values returned are owned by the caller (bd_free).
 * Semantics: those of c10d's Store, without its traps: every change wakes the waiters, and
 *            compare_set tells "absent" from "equal".
 */
#ifndef BD_KV_H
#define BD_KV_H

#include "base/err.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bd_kv bd_kv;
struct bd_kv {
    /* Overwrites. Keys are up to 1024 bytes of printable ASCII, values up to 1 MiB. */
    bd_status (*set)(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err);
    /* Waits until the key exists. timeout_ms 0: no wait (BD_E_NOT_FOUND when absent).
     * BD_E_TIMEOUT names the key. *val gets a terminating zero beyond n_bytes. */
    bd_status (*get)(bd_kv *kv, const char *key, int64_t timeout_ms, char **val, size_t *n_bytes,
                     bd_err *err);
    /* Atomic add to a decimal number (absent = 0); *after gets the new value. by 0 reads. With a
     * retry-safe op id in the implementation: a repeated message adds once. */
    bd_status (*add)(bd_kv *kv, const char *key, int64_t by, int64_t *after, bd_err *err);
    /* Sets to `desired` iff the current value equals `expected` (NULL: iff absent). *swapped tells.
     */
    bd_status (*compare_set)(bd_kv *kv, const char *key, const char *expected, const char *desired,
                             bool *swapped, bd_err *err);
    /* Removing an absent key is BD_OK. */
    bd_status (*del)(bd_kv *kv, const char *key, bd_err *err);
    /* Waits until the decimal number at key is >= at_least (absent = 0). */
    bd_status (*wait_at_least)(bd_kv *kv, const char *key, int64_t at_least, int64_t timeout_ms,
                               bd_err *err);
    /* A sign of life: sets, and the key goes by itself ttl_ms (>= 1000) after the last set_for of
     * it. While the store is away no time passes, and one term more is given afterwards. */
    bd_status (*set_for)(bd_kv *kv, const char *key, const char *val, int64_t ttl_ms, bd_err *err);
    /* Waits until the value is another than `known` (NULL: absent). *val: owned; NULL: the key is
     * absent now. BD_E_TIMEOUT after timeout_ms; 0: at once. */
    bd_status (*get_other)(bd_kv *kv, const char *key, const char *known, int64_t timeout_ms,
                           char **val, bd_err *err);
};

/* An in-memory store for one process; shared by threads. NULL: no memory. */
bd_kv *bd_kv_mem_new(void);
void bd_kv_mem_free(bd_kv *kv);

/* bd_kv_barrier - returns when `world` callers have arrived at `name`. Each name serves once.
 * BD_E_TIMEOUT says how many are missing. */
bd_status bd_kv_barrier(bd_kv *kv, const char *name, int world, int64_t timeout_ms,
                        bd_err *err) BD_MUST_CHECK;

#endif
