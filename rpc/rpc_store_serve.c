/* A store as a braid.v1.Coordinator: requests that wait block a thread of the pool, which then
 * grows. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_coordinator.h"
#include "rpc/rpc_store_int.h"

#include <braid/v1/coordinator.pb-c.h>
#include <string.h>

enum { MAX_WAIT_MS = 30000, MIN_TTL_MS = 1000 };

static void reply_with(rpc_req *req, const ProtobufCMessage *reply, bd_status rc, bd_err *err)
{
    bd_chain out = {0};
    if (rc == BD_OK) {
        rc = px_pack(reply, &out, err);
    }
    if (rc == BD_OK) {
        rpc_req_reply(req, &out);
    } else {
        rpc_req_fail(req, err);
    }
    bd_chain_deinit(&out);
}

/* NULL: answered already. */
static ProtobufCMessage *unpack(rpc_req *req, const ProtobufCMessageDescriptor *type)
{
    bd_err err = BD_ERR_INIT;
    ProtobufCMessage *msg = NULL;
    if (px_unpack(type, rpc_req_body(req), 0, &msg, &err) != BD_OK) {
        rpc_req_fail(req, &err);
        return NULL;
    }
    return msg;
}

static int64_t wait_of(uint32_t ms)
{
    return ms < MAX_WAIT_MS ? ms : MAX_WAIT_MS;
}

/* Keys and values as bd_kv promises them; a value with a zero byte in it is no text. */
static bd_status check(const char *key, const ProtobufCBinaryData *val, bd_err *err)
{
    size_t n = strlen(key);
    bool ok = n > 0 && n <= 1024 && (val == NULL || val->len <= 1u << 20);
    for (size_t i = 0; ok && i < n; i++) {
        ok = key[i] > ' ' - 1 && key[i] < 127;
    }
    return ok ? BD_OK
              : bd_err_set(err, BD_E_INVALID,
                           "a key is 1..1024 bytes of printable ASCII, a value up to 1 MiB");
}

static char *text_of(const ProtobufCBinaryData *d)
{
    return bd_strfmt("%.*s", (int)d->len, d->len == 0 ? "" : (const char *)d->data);
}

static void on_set(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvSetReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_set_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__KvSetRequest *m = (const void *)msg;
    braid__v1__kv_set_reply__init(&r);
    bd_status rc = check(m->key, &m->value, &err);
    if (rc == BD_OK && m->ttl_ms == 0) {
        rc = s->kv->set(s->kv, m->key, m->value.len == 0 ? (const void *)"" : m->value.data,
                        m->value.len, &err);
    } else if (rc == BD_OK) {
        char *val = text_of(&m->value);
        int64_t ttl_ms = m->ttl_ms > MIN_TTL_MS ? m->ttl_ms : MIN_TTL_MS;
        rc = val == NULL ? bd_err_set(&err, BD_E_NOMEM, "kv set %s", m->key)
                         : s->kv->set_for(s->kv, m->key, val, ttl_ms, &err);
        bd_free(val);
    }
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static bd_status get_other(rpc_store *s, const Braid__V1__KvGetRequest *m, char **val, bd_err *err)
{
    char *known = m->known_absent ? NULL : text_of(&m->known);
    bd_status rc = !m->known_absent && known == NULL
                       ? bd_err_set(err, BD_E_NOMEM, "kv get %s", m->key)
                       : s->kv->get_other(s->kv, m->key, known, wait_of(m->wait_ms), val, err);
    bd_free(known);
    return rc;
}

static void on_get(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvGetReply r;
    char *val = NULL;
    size_t n_bytes = 0;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_get_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__KvGetRequest *m = (const void *)msg;
    braid__v1__kv_get_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = check(m->key, NULL, &err);
    if (rc == BD_OK && m->other) {
        rc = get_other(s, m, &val, &err);
        r.absent = val == NULL;
        n_bytes = val == NULL ? 0 : strlen(val);
    } else if (rc == BD_OK) {
        rc = s->kv->get(s->kv, m->key, wait_of(m->wait_ms), &val, &n_bytes, &err);
    }
    rpc_blocking_end();
    r.value = (ProtobufCBinaryData){.len = n_bytes, .data = (uint8_t *)val};
    reply_with(req, &r.base, rc, &err);
    bd_free(val);
    px_unpacked_free(msg);
}

/* 0: the caller wants no protection against repeats. */
static uint64_t op_of(uint64_t op_id)
{
    return op_id != 0 ? op_id : rpc_store_op_id();
}

static void on_add(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvAddReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_add_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__KvAddRequest *m = (const void *)msg;
    braid__v1__kv_add_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = check(m->key, NULL, &err);
    if (rc == BD_OK) {
        rc = s->add_once(s, op_of(m->op_id), m->key, m->by, &r.after, &err);
    }
    rpc_blocking_end();
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static void on_swap(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvCompareSetReply r;
    bool swapped = false;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_compare_set_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__KvCompareSetRequest *m = (const void *)msg;
    char *expected = m->expect_absent ? NULL : text_of(&m->expected),
         *desired = text_of(&m->desired);
    braid__v1__kv_compare_set_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = check(m->key, &m->desired, &err);
    if (rc == BD_OK && (desired == NULL || (expected == NULL && !m->expect_absent))) {
        rc = bd_err_set(&err, BD_E_NOMEM, "kv compare_set %s", m->key);
    }
    if (rc == BD_OK) {
        rc = s->swap_once(s, op_of(m->op_id), m->key, expected, desired, &swapped, &err);
    }
    rpc_blocking_end();
    r.swapped = swapped;
    reply_with(req, &r.base, rc, &err);
    bd_free(expected);
    bd_free(desired);
    px_unpacked_free(msg);
}

static void on_del(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvDeleteReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_delete_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const char *key = ((const Braid__V1__KvDeleteRequest *)(const void *)msg)->key;
    braid__v1__kv_delete_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = check(key, NULL, &err);
    rc = rc == BD_OK ? s->kv->del(s->kv, key, &err) : rc;
    rpc_blocking_end();
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static void on_wait(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__KvWaitReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__kv_wait_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__KvWaitRequest *m = (const void *)msg;
    braid__v1__kv_wait_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = check(m->key, NULL, &err);
    if (rc == BD_OK) {
        rc = s->kv->wait_at_least(s->kv, m->key, m->at_least, wait_of(m->wait_ms), &err);
    }
    if (rc == BD_OK) {
        rc = s->kv->add(s->kv, m->key, 0, &r.value, &err);
    }
    rpc_blocking_end();
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static void on_client(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__RegisterClientReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__register_client_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__RegisterClientRequest *m = (const void *)msg;
    braid__v1__register_client_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = s->client_id(s, op_of(m->op_id), m->name, &r.client_id, &err);
    rpc_blocking_end();
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static void on_server(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__RegisterServerReply r;
    ProtobufCMessage *msg = unpack(req, &braid__v1__register_server_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__RegisterServerRequest *m = (const void *)msg;
    const rpc_server_entry e = {m->index, m->n_servers, m->address, m->instance};
    braid__v1__register_server_reply__init(&r);
    rpc_blocking_begin();
    bd_status rc = s->register_server(s, &e, &r.map_epoch, &err);
    rpc_blocking_end();
    reply_with(req, &r.base, rc, &err);
    px_unpacked_free(msg);
}

static void on_map(void *user, rpc_req *req)
{
    rpc_store *s = user;
    bd_err err = BD_ERR_INIT;
    Braid__V1__ShardMap r;
    rpc_shard_map map = {0};
    ProtobufCMessage *msg = unpack(req, &braid__v1__get_shard_map_request__descriptor);
    if (msg == NULL) {
        return;
    }
    const Braid__V1__GetShardMapRequest *m = (const void *)msg;
    braid__v1__shard_map__init(&r);
    rpc_blocking_begin();
    bd_status rc = s->shard_map(s, m->newer_than, wait_of(m->wait_ms), &map, &err);
    rpc_blocking_end();
    r.epoch = map.epoch;
    r.n_servers = map.n_servers;
    r.servers = map.servers;
    r.n_slot_owner = map.n_slots;
    r.slot_owner = map.slot_owner;
    reply_with(req, &r.base, rc, &err);
    rpc_shard_map_deinit(&map);
    px_unpacked_free(msg);
}

bd_status rpc_store_serve(rpc_server *server, rpc_store *s, bd_err *err)
{
    const rpc_coordinator handlers = {.set = on_set,
                                      .get = on_get,
                                      .add = on_add,
                                      .compare_set = on_swap,
                                      .del = on_del,
                                      .wait = on_wait,
                                      .register_client = on_client,
                                      .register_server = on_server,
                                      .shard_map = on_map};
    return rpc_coordinator_register(server, &handlers, s, err);
}
