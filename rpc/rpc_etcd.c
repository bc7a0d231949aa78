/* The store in etcd, v3: what it asks for, and what becomes of repeats.
 *
 *   /<prefix>/kv/<key>     the keys of bd_kv
 *   /<prefix>/op/<16 hex>  result of an add or compare_set, in the same transaction as its change:
 *                          when a reply was lost, the repeat finds it. Goes with a lease of an
 * hour.
 *
 * Waiting is watching: read, then a Watch from the next revision on (rpc_etcd_io.c), so nothing
 * between the two is missed. A watch that breaks begins again with reading.
 */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_etcd_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OP_TTL_S = 3600, MAX_KEY_BYTES = 1024 };

static etcd *of_store(rpc_store *s)
{
    return (etcd *)(void *)s;
}

/* The generated structs want bytes they may change, but packing only reads. */
static ProtobufCBinaryData bytes(const void *data, size_t n)
{
    union {
        const void *in;
        uint8_t *out;
    } u = {.in = data};
    return (ProtobufCBinaryData){.len = n, .data = u.out};
}

static ProtobufCBinaryData text(const char *s)
{
    return bytes(s, s == NULL ? 0 : strlen(s));
}

/* "/<prefix>/<area>/<key>". NULL: no memory, or no such key: *err tells. Owned. */
static char *full_key(const etcd *e, const char *area, const char *key, bd_err *err)
{
    size_t n = strlen(key);
    bool ok = n > 0 && n <= MAX_KEY_BYTES;
    for (size_t i = 0; ok && i < n; i++) {
        ok = key[i] > ' ' - 1 && key[i] < 127;
    }
    char *full = ok ? bd_strfmt("/%s/%s/%s", e->prefix, area, key) : NULL;
    if (!ok) {
        (void)bd_err_set(err, BD_E_INVALID, "a key is 1..%d bytes of printable ASCII",
                         MAX_KEY_BYTES);
    } else if (full == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "kv %s", key);
    }
    return full;
}

static bd_status code_of(const bd_err *err)
{
    return err->code;
}

/* ---- reading ---- */
/* A value as of `revision`. val NULL: absent. */
typedef struct found {
    char *val; /* owned, terminated */
    size_t n_bytes;
    int64_t mod_revision, revision;
} found;

static bd_status copy_kv(const Etcdserverpb__KeyValue *kv, found *out, bd_err *err)
{
    out->val = bd_alloc(kv->value.len + 1);
    if (out->val == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "etcd: value");
    }
    if (kv->value.len > 0) {
        memcpy(out->val, kv->value.data, kv->value.len);
    }
    out->val[kv->value.len] = '\0';
    out->n_bytes = kv->value.len;
    out->mod_revision = kv->mod_revision;
    return BD_OK;
}

static bd_status copy_range(const Etcdserverpb__RangeResponse *r, found *out, bd_err *err)
{
    *out = (found){.revision = r->header != NULL ? r->header->revision : 0};
    return r->n_kvs > 0 ? copy_kv(r->kvs[0], out, err) : BD_OK;
}

static bd_status read_key(etcd *e, const char *full, found *out, bd_err *err)
{
    Etcdserverpb__RangeRequest req;
    ProtobufCMessage *msg = NULL;
    etcdserverpb__range_request__init(&req);
    req.key = text(full);
    bd_status rc =
        etcd_ask(e, "KV/Range", &req.base, &etcdserverpb__range_response__descriptor, &msg, err);
    if (rc == BD_OK) {
        rc = copy_range((const void *)msg, out, err);
    }
    px_unpacked_free(msg);
    return rc;
}

/* ---- waiting ---- */
static bd_status number_of(const char *key, const found *f, int64_t *out, bd_err *err)
{
    char *end = NULL;
    *out = 0;
    if (f->val == NULL) {
        return BD_OK;
    }
    errno = 0;
    *out = strtoll(f->val, &end, 10);
    bool ok = errno == 0 && end != f->val && end == f->val + f->n_bytes;
    return ok ? BD_OK : bd_err_set(err, BD_E_STATE, "the value of key \"%s\" is not a number", key);
}

static bd_status is_over(const rpc_store_wait *w, const found *f, bool *over, bd_err *err)
{
    int64_t number = 0;
    bd_status rc = BD_OK;
    if (w->what == RPC_STORE_NUMBER) {
        rc = number_of(w->key, f, &number, err);
        *over = number >= w->at_least;
    } else if (w->what == RPC_STORE_OTHER) {
        bool same =
            w->known == NULL ? f->val == NULL : f->val != NULL && strcmp(f->val, w->known) == 0;
        *over = !same;
    } else {
        *over = f->val != NULL;
    }
    return rc;
}

/* Reads, and watches until the wait is over: *out (owned value) is what ended it. BD_E_TIMEOUT: it
 * is not, after timeout_ms. */
static bd_status wait_for(etcd *e, const rpc_store_wait *w, int64_t timeout_ms, found *out,
                          bd_err *err)
{
    const int64_t year_ms = 365LL * 24 * 3600 * 1000;
    int64_t end_ns = bd_mono_ns() + (timeout_ms < year_ms ? timeout_ms : year_ms) * BD_NS_PER_MS;
    bool over = false;
    char *full = full_key(e, "kv", w->key, err);
    bd_status rc = full == NULL ? code_of(err) : BD_OK;
    while (rc == BD_OK && !over) {
        rc = read_key(e, full, out, err);
        if (rc == BD_OK) {
            rc = is_over(w, out, &over, err);
        }
        if (rc == BD_OK && over) {
            break;
        }
        bd_free(out->val);
        int64_t revision = out->revision, left_ms = (end_ns - bd_mono_ns()) / BD_NS_PER_MS;
        *out = (found){0};
        if (rc == BD_OK && left_ms <= 0) {
            rc = BD_E_TIMEOUT;
        } else if (rc == BD_OK) {
            etcd_watch(e, full, revision + 1, left_ms); /* whatever it saw: read again */
        }
    }
    bd_free(full);
    return rc;
}

/* ---- keys and values ---- */
static bd_status put(etcd *e, const char *key, const void *val, size_t n_bytes, int64_t lease,
                     bd_err *err)
{
    Etcdserverpb__PutRequest req;
    ProtobufCMessage *msg = NULL;
    char *full = full_key(e, "kv", key, err);
    if (full == NULL) {
        return code_of(err);
    }
    etcdserverpb__put_request__init(&req);
    req.key = text(full);
    req.value = bytes(val, n_bytes);
    req.lease = lease;
    bd_status rc =
        etcd_ask(e, "KV/Put", &req.base, &etcdserverpb__put_response__descriptor, &msg, err);
    px_unpacked_free(msg);
    bd_free(full);
    return rc;
}

static bd_status etcd_set(rpc_store *s, const char *key, const void *val, size_t n_bytes,
                          bd_err *err)
{
    return put(of_store(s), key, val, n_bytes, 0, err);
}

static bd_status etcd_wait(rpc_store *s, const rpc_store_wait *w, int64_t timeout_ms,
                           rpc_store_value *out, bd_err *err)
{
    found f = {0};
    bd_status rc = wait_for(of_store(s), w, timeout_ms, &f, err);
    *out = (rpc_store_value){.val = f.val, .n_bytes = f.n_bytes};
    return rc;
}

static bd_status etcd_del(rpc_store *s, const char *key, bd_err *err)
{
    etcd *e = of_store(s);
    Etcdserverpb__DeleteRangeRequest req;
    ProtobufCMessage *msg = NULL;
    char *full = full_key(e, "kv", key, err);
    if (full == NULL) {
        return code_of(err);
    }
    etcdserverpb__delete_range_request__init(&req);
    req.key = text(full);
    bd_status rc = etcd_ask(e, "KV/DeleteRange", &req.base,
                            &etcdserverpb__delete_range_response__descriptor, &msg, err);
    px_unpacked_free(msg);
    bd_free(full);
    return rc;
}

/* ---- transactions that remember their op id ---- */
typedef struct change {
    const char *op_key; /* full */
    Etcdserverpb__Compare guard;
    const char *key; /* full */
    const char *val;
    const char *result; /* stored under op_key */
    int64_t lease;
} change;

/* *applied: by this try or an earlier one; *result (owned) then is the first answer; else NULL. */
static bd_status txn(etcd *e, const change *ch, bool *applied, char **result, bd_err *err)
{
    Etcdserverpb__TxnRequest req;
    Etcdserverpb__Compare fresh;
    Etcdserverpb__PutRequest puts[2];
    Etcdserverpb__RangeRequest look;
    Etcdserverpb__RequestOp ops[3], *success[2] = {&ops[0], &ops[1]}, *failure[1] = {&ops[2]};
    Etcdserverpb__Compare guard = ch->guard, *compares[2] = {&guard, &fresh};
    ProtobufCMessage *msg = NULL;
    etcdserverpb__txn_request__init(&req);
    etcdserverpb__compare__init(&fresh);
    etcdserverpb__range_request__init(&look);
    for (int i = 0; i < 3; i++) {
        etcdserverpb__request_op__init(&ops[i]);
    }
    for (int i = 0; i < 2; i++) {
        etcdserverpb__put_request__init(&puts[i]);
        ops[i].request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
        ops[i].request_put = &puts[i];
    }
    fresh.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__CREATE;
    fresh.key = text(ch->op_key);
    fresh.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_CREATE_REVISION;
    puts[0].key = text(ch->key);
    puts[0].value = text(ch->val);
    puts[1].key = text(ch->op_key);
    puts[1].value = text(ch->result);
    puts[1].lease = ch->lease;
    look.key = text(ch->op_key);
    ops[2].request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    ops[2].request_range = &look;
    req.n_compare = 2;
    req.compare = compares;
    req.n_success = 2;
    req.success = success;
    req.n_failure = 1;
    req.failure = failure;
    bd_status rc =
        etcd_ask(e, "KV/Txn", &req.base, &etcdserverpb__txn_response__descriptor, &msg, err);
    const Etcdserverpb__TxnResponse *r = (const void *)msg;
    found before = {0};
    if (rc == BD_OK && !r->succeeded && r->n_responses == 1 &&
        r->responses[0]->response_case == ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE) {
        rc = copy_range(r->responses[0]->response_range, &before, err);
    }
    if (rc == BD_OK) {
        *applied = r->succeeded || before.val != NULL;
        *result = before.val != NULL ? before.val : r->succeeded ? bd_strdup(ch->result) : NULL;
        if (r->succeeded && *result == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "etcd: transaction");
        }
    }
    px_unpacked_free(msg);
    return rc;
}

static char *op_key_of(const etcd *e, uint64_t op_id, bd_err *err)
{
    char hex[32];
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, op_id);
    return full_key(e, "op", hex, err);
}

/* One round of an add: read, and change if nobody else did. */
static bd_status try_add(etcd *e, change *ch, const char *key, int64_t by, bool *done,
                         int64_t *after, bd_err *err)
{
    found f = {0};
    char number[32], *result = NULL;
    int64_t now = 0;
    bd_status rc = read_key(e, ch->key, &f, err);
    if (rc == BD_OK) {
        rc = number_of(key, &f, &now, err);
    }
    bd_free(f.val);
    if (rc == BD_OK && by == 0) {
        *after = now;
        *done = true;
        return rc;
    }
    if (rc == BD_OK && __builtin_add_overflow(now, by, after)) {
        rc = bd_err_set(err, BD_E_INVALID, "key \"%s\": %" PRId64 " + %" PRId64 " overflows", key,
                        now, by);
    }
    if (rc != BD_OK) {
        return rc;
    }
    (void)snprintf(number, sizeof number, "%" PRId64, *after);
    etcdserverpb__compare__init(&ch->guard);
    ch->guard.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__MOD;
    ch->guard.key = text(ch->key);
    ch->guard.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_MOD_REVISION;
    ch->guard.mod_revision = f.mod_revision; /* 0: absent */
    ch->val = number;
    ch->result = number;
    rc = txn(e, ch, done, &result, err);
    if (rc == BD_OK && *done && result != NULL) {
        *after = strtoll(result, NULL, 10);
    }
    ch->val = NULL; /* of this round */
    ch->result = NULL;
    bd_free(result);
    return rc;
}

/* The parts of a change that an op id and a key give. */
static bd_status change_init(etcd *e, uint64_t op_id, const char *key, change *ch, char **owned,
                             bd_err *err)
{
    owned[0] = full_key(e, "kv", key, err);
    owned[1] = owned[0] == NULL ? NULL : op_key_of(e, op_id, err);
    *ch = (change){.key = owned[0], .op_key = owned[1]};
    return owned[1] == NULL ? code_of(err) : etcd_op_lease(e, OP_TTL_S, &ch->lease, err);
}

static bd_status etcd_add(rpc_store *s, uint64_t op_id, const char *key, int64_t by, int64_t *after,
                          bd_err *err)
{
    etcd *e = of_store(s);
    change ch;
    char *owned[2] = {NULL, NULL};
    bool done = false;
    int64_t value = 0;
    bd_err local = BD_ERR_INIT;
    err = err != NULL ? err : &local;
    bd_status rc = change_init(e, op_id, key, &ch, owned, err);
    while (rc == BD_OK && !done) {
        rc = try_add(e, &ch, key, by, &done, &value, err);
    }
    if (rc == BD_OK && after != NULL) {
        *after = value;
    }
    bd_free(owned[0]);
    bd_free(owned[1]);
    return rc;
}

static bd_status etcd_swap(rpc_store *s, uint64_t op_id, const char *key, const char *expected,
                           const char *desired, bool *swapped, bd_err *err)
{
    etcd *e = of_store(s);
    change ch;
    char *owned[2] = {NULL, NULL}, *result = NULL;
    bd_err local = BD_ERR_INIT;
    err = err != NULL ? err : &local;
    bd_status rc = change_init(e, op_id, key, &ch, owned, err);
    if (rc == BD_OK) {
        etcdserverpb__compare__init(&ch.guard);
        ch.guard.key = text(ch.key);
        ch.guard.target = expected == NULL ? ETCDSERVERPB__COMPARE__COMPARE_TARGET__CREATE
                                           : ETCDSERVERPB__COMPARE__COMPARE_TARGET__VALUE;
        ch.guard.target_union_case = expected == NULL
                                         ? ETCDSERVERPB__COMPARE__TARGET_UNION_CREATE_REVISION
                                         : ETCDSERVERPB__COMPARE__TARGET_UNION_VALUE;
        if (expected != NULL) {
            ch.guard.value = text(expected);
        }
        ch.val = desired;
        ch.result = "1";
        rc = txn(e, &ch, swapped, &result, err);
    }
    bd_free(result);
    bd_free(owned[0]);
    bd_free(owned[1]);
    return rc;
}

/* ---- signs of life ---- */
static bd_status etcd_set_for(rpc_store *s, const char *key, const char *val, int64_t ttl_ms,
                              bd_err *err)
{
    etcd *e = of_store(s);
    int64_t lease = 0;
    bool again = false;
    bd_status rc = etcd_key_lease(e, key, val, (ttl_ms + 999) / 1000, &lease, &again, err);
    if (rc != BD_OK || again) {
        return rc;
    }
    rc = put(e, key, val, strlen(val), lease, err);
    if (rc == BD_OK) {
        etcd_key_was_set(e, key, val);
    }
    return rc;
}

/* ---- life ---- */
bd_status rpc_etcd_new(rpc_env *env, const char *url, const rpc_store_options *opt, rpc_store **out,
                       bd_err *err)
{
    static const rpc_store_ops ops = {
        .set = etcd_set, .set_for = etcd_set_for, .del = etcd_del, .wait = etcd_wait};
    etcd *e = NULL;
    bd_status rc = etcd_io_new(env, url, opt, &e, err);
    if (rc != BD_OK) {
        return rc;
    }
    rpc_store *s = &e->base.store;
    rpc_store_base_init(&e->base, &ops);
    s->add_once = etcd_add;
    s->swap_once = etcd_swap;
    rpc_store_over_kv(s);
    *out = s;
    return BD_OK;
}
