/* bd_kv over what a kind of store can ask: one table for all kinds that live elsewhere. */
#include "base/mem.h"

#include "rpc/rpc_store_int.h"

#include <inttypes.h>
#include <stddef.h>

static rpc_store_base *of(bd_kv *kv)
{
    return (rpc_store_base *)(void *)((char *)kv - offsetof(rpc_store_base, kv));
}

static bd_status kv_set(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    return of(kv)->ops->set(&of(kv)->store, key, val, n_bytes, err != NULL ? err : &local);
}

static bd_status kv_set_for(bd_kv *kv, const char *key, const char *val, int64_t ttl_ms,
                            bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    return of(kv)->ops->set_for(&of(kv)->store, key, val, ttl_ms, err != NULL ? err : &local);
}

static bd_status kv_del(bd_kv *kv, const char *key, bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    return of(kv)->ops->del(&of(kv)->store, key, err != NULL ? err : &local);
}

static bd_status kv_add(bd_kv *kv, const char *key, int64_t by, int64_t *after, bd_err *err)
{
    rpc_store *s = &of(kv)->store;
    return s->add_once(s, rpc_store_op_id(), key, by, after, err);
}

static bd_status kv_compare_set(bd_kv *kv, const char *key, const char *expected,
                                const char *desired, bool *swapped, bd_err *err)
{
    rpc_store *s = &of(kv)->store;
    return s->swap_once(s, rpc_store_op_id(), key, expected, desired, swapped, err);
}

static bd_status kv_get(bd_kv *kv, const char *key, int64_t timeout_ms, char **val, size_t *n_bytes,
                        bd_err *err)
{
    rpc_store_value v = {0};
    bd_err local = BD_ERR_INIT;
    const rpc_store_wait w = {.key = key, .what = RPC_STORE_EXISTS};
    bd_status rc =
        of(kv)->ops->wait(&of(kv)->store, &w, timeout_ms, &v, err != NULL ? err : &local);
    if (rc == BD_E_TIMEOUT) {
        return timeout_ms == 0
                   ? bd_err_set(err, BD_E_NOT_FOUND, "kv get %s: no such key", key)
                   : bd_err_set(err, BD_E_TIMEOUT, "kv get %s: not set within %" PRId64 " ms", key,
                                timeout_ms);
    }
    if (rc == BD_OK) {
        *val = v.val;
        if (n_bytes != NULL) {
            *n_bytes = v.n_bytes;
        }
    }
    return rc;
}

static bd_status kv_get_other(bd_kv *kv, const char *key, const char *known, int64_t timeout_ms,
                              char **val, bd_err *err)
{
    rpc_store_value v = {0};
    bd_err local = BD_ERR_INIT;
    const rpc_store_wait w = {.key = key, .what = RPC_STORE_OTHER, .known = known};
    bd_status rc =
        of(kv)->ops->wait(&of(kv)->store, &w, timeout_ms, &v, err != NULL ? err : &local);
    if (rc == BD_E_TIMEOUT) {
        return bd_err_set(err, rc, "kv get %s: the same after %" PRId64 " ms", key, timeout_ms);
    }
    if (rc == BD_OK) {
        *val = v.val;
    }
    return rc;
}

static bd_status kv_wait_at_least(bd_kv *kv, const char *key, int64_t at_least, int64_t timeout_ms,
                                  bd_err *err)
{
    rpc_store_value v = {0};
    bd_err local = BD_ERR_INIT;
    const rpc_store_wait w = {.key = key, .what = RPC_STORE_NUMBER, .at_least = at_least};
    bd_status rc =
        of(kv)->ops->wait(&of(kv)->store, &w, timeout_ms, &v, err != NULL ? err : &local);
    bd_free(v.val);
    return rc != BD_E_TIMEOUT
               ? rc
               : bd_err_set(err, rc, "kv wait %s: not %" PRId64 " within %" PRId64 " ms", key,
                            at_least, timeout_ms);
}

void rpc_store_base_init(rpc_store_base *b, const rpc_store_ops *ops)
{
    b->ops = ops;
    b->kv = (bd_kv){.set = kv_set,
                    .get = kv_get,
                    .add = kv_add,
                    .compare_set = kv_compare_set,
                    .del = kv_del,
                    .wait_at_least = kv_wait_at_least,
                    .set_for = kv_set_for,
                    .get_other = kv_get_other};
    b->store.kv = &b->kv;
}
