/* The store in server 0, or in whatever serves braid.v1.Coordinator. Waiting calls ask again and
 * again: the server answers within 30 s. */
#include "base/clock.h"
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_coordinator.h"
#include "rpc/rpc_store_int.h"

#include <braid/v1/coordinator.pb-c.h>
#include <string.h>

#define TRY_MS   10000 /* for a call that does not wait */
#define SLICE_MS 20000 /* one waiting call; the server allows 30,000 */

typedef struct coord {
    rpc_store_base base; /* first: the pointers are the same */
    char *name;          /* owned; "coordinator (host:port)" */
    rpc_channel *channel;
} coord;

static coord *of_store(rpc_store *s)
{
    return (coord *)(void *)s;
}

/* The generated structs want char *, but packing only reads. */
static char *text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s};
    return u.out;
}

static ProtobufCBinaryData data(const void *bytes, size_t n)
{
    union {
        const void *in;
        uint8_t *out;
    } u = {.in = bytes};
    return (ProtobufCBinaryData){.len = n, .data = u.out};
}

typedef struct question {
    const char *method;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply_type;
    int64_t try_ms;      /* deadline of one try; 0: TRY_MS */
    bool late_is_answer; /* BD_E_TIMEOUT is returned, not tried again */
} question;

static bd_status ask_once(coord *c, const question *q, int64_t try_ms, ProtobufCMessage **reply,
                          bd_err *err)
{
    bd_chain out = {0}, in = {0};
    rpc_call_options opt = {.deadline_ms = try_ms};
    bd_status rc = px_pack(q->request, &out, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(c->channel, q->method, &out, &opt, &in, err);
    }
    if (rc == BD_OK) {
        rc = px_unpack(q->reply_type, &in, 0, reply, err);
    }
    bd_chain_deinit(&out);
    bd_chain_deinit(&in);
    return rc;
}

/* *reply: px_unpacked_free. */
static bd_status ask(coord *c, const question *q, ProtobufCMessage **reply, bd_err *err)
{
    rpc_store_trouble trouble = {0};
    bd_err local = BD_ERR_INIT;
    int64_t try_ms = q->try_ms > 0 ? q->try_ms : TRY_MS;
    if (!q->late_is_answer && c->base.store.wait_ms < try_ms) {
        try_ms = c->base.store.wait_ms;
    }
    for (;;) {
        bd_status rc = ask_once(c, q, try_ms, reply, &local);
        if (rc == BD_OK) {
            return rc;
        }
        if ((rc == BD_E_TIMEOUT && q->late_is_answer) ||
            !rpc_store_again(&trouble, c->name, c->base.store.wait_ms, &local)) {
            return bd_err_set(err, local.code, "%s", bd_err_text(&local));
        }
    }
}

/* A waiting call: in slices until an answer or the end of timeout_ms. wait_ms points into the
 * request. */
static bd_status ask_until(coord *c, question *q, uint32_t *wait_ms, int64_t timeout_ms,
                           ProtobufCMessage **reply, bd_err *err)
{
    q->late_is_answer = true;
    int64_t end_ns = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    for (;;) {
        int64_t left_ms = (end_ns - bd_mono_ns()) / BD_NS_PER_MS;
        left_ms = left_ms < 0 ? 0 : left_ms;
        *wait_ms = (uint32_t)(left_ms < SLICE_MS ? left_ms : SLICE_MS);
        q->try_ms = *wait_ms + TRY_MS;
        bd_status rc = ask(c, q, reply, err);
        bool again = rc == BD_E_TIMEOUT || (rc == BD_E_NOT_FOUND && timeout_ms > 0);
        if (!again || bd_mono_ns() >= end_ns) {
            return rc;
        }
    }
}

/* ---- keys and values ---- */
static bd_status set(rpc_store *s, const char *key, const void *val, size_t n_bytes, int64_t ttl_ms,
                     bd_err *err)
{
    Braid__V1__KvSetRequest req;
    ProtobufCMessage *reply = NULL;
    braid__v1__kv_set_request__init(&req);
    req.key = text(key);
    req.value = data(val, n_bytes);
    req.ttl_ms = (uint32_t)(ttl_ms < UINT32_MAX ? ttl_ms : UINT32_MAX);
    const question q = {.method = RPC_COORDINATOR "KvSet",
                        .request = &req.base,
                        .reply_type = &braid__v1__kv_set_reply__descriptor};
    bd_status rc = ask(of_store(s), &q, &reply, err);
    px_unpacked_free(reply);
    return rc;
}

static bd_status coord_set(rpc_store *s, const char *key, const void *val, size_t n_bytes,
                           bd_err *err)
{
    return set(s, key, val, n_bytes, 0, err);
}

static bd_status coord_set_for(rpc_store *s, const char *key, const char *val, int64_t ttl_ms,
                               bd_err *err)
{
    return set(s, key, val, strlen(val), ttl_ms, err);
}

static bd_status copy_value(const char *key, const ProtobufCBinaryData *from, rpc_store_value *out,
                            bd_err *err)
{
    char *copy = bd_alloc(from->len + 1);
    if (copy == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "kv get %s", key);
    }
    if (from->len > 0) {
        memcpy(copy, from->data, from->len);
    }
    copy[from->len] = '\0';
    *out = (rpc_store_value){.val = copy, .n_bytes = from->len};
    return BD_OK;
}

static bd_status wait_value(coord *c, const rpc_store_wait *w, int64_t timeout_ms,
                            rpc_store_value *out, bd_err *err)
{
    Braid__V1__KvGetRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__kv_get_request__init(&req);
    req.key = text(w->key);
    if (w->what == RPC_STORE_OTHER) {
        req.other = true;
        req.known_absent = w->known == NULL;
        req.known = w->known == NULL ? data(NULL, 0) : data(w->known, strlen(w->known));
    }
    question q = {.method = RPC_COORDINATOR "KvGet",
                  .request = &req.base,
                  .reply_type = &braid__v1__kv_get_reply__descriptor};
    bd_status rc = ask_until(c, &q, &req.wait_ms, timeout_ms, &msg, err);
    if (rc == BD_OK) {
        const Braid__V1__KvGetReply *r = (const void *)msg;
        const bool absent = w->what == RPC_STORE_OTHER && r->absent;
        rc = absent ? BD_OK : copy_value(w->key, &r->value, out, err);
    }
    px_unpacked_free(msg);
    return rc == BD_E_NOT_FOUND ? BD_E_TIMEOUT : rc;
}

static bd_status wait_number(coord *c, const rpc_store_wait *w, int64_t timeout_ms, bd_err *err)
{
    Braid__V1__KvWaitRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__kv_wait_request__init(&req);
    req.key = text(w->key);
    req.at_least = w->at_least;
    question q = {.method = RPC_COORDINATOR "KvWait",
                  .request = &req.base,
                  .reply_type = &braid__v1__kv_wait_reply__descriptor};
    bd_status rc = ask_until(c, &q, &req.wait_ms, timeout_ms, &msg, err);
    px_unpacked_free(msg);
    return rc;
}

static bd_status coord_wait(rpc_store *s, const rpc_store_wait *w, int64_t timeout_ms,
                            rpc_store_value *out, bd_err *err)
{
    return w->what == RPC_STORE_NUMBER ? wait_number(of_store(s), w, timeout_ms, err)
                                       : wait_value(of_store(s), w, timeout_ms, out, err);
}

static bd_status coord_add(rpc_store *s, uint64_t op_id, const char *key, int64_t by,
                           int64_t *after, bd_err *err)
{
    Braid__V1__KvAddRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__kv_add_request__init(&req);
    req.key = text(key);
    req.by = by;
    req.op_id = op_id;
    const question q = {.method = RPC_COORDINATOR "KvAdd",
                        .request = &req.base,
                        .reply_type = &braid__v1__kv_add_reply__descriptor};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    if (rc == BD_OK && after != NULL) {
        *after = ((const Braid__V1__KvAddReply *)(const void *)msg)->after;
    }
    px_unpacked_free(msg);
    return rc;
}

static bd_status coord_swap(rpc_store *s, uint64_t op_id, const char *key, const char *expected,
                            const char *desired, bool *swapped, bd_err *err)
{
    Braid__V1__KvCompareSetRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__kv_compare_set_request__init(&req);
    req.key = text(key);
    req.expect_absent = expected == NULL;
    req.expected = expected == NULL ? data(NULL, 0) : data(expected, strlen(expected));
    req.desired = data(desired, strlen(desired));
    req.op_id = op_id;
    const question q = {.method = RPC_COORDINATOR "KvCompareSet",
                        .request = &req.base,
                        .reply_type = &braid__v1__kv_compare_set_reply__descriptor};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    if (rc == BD_OK) {
        *swapped = ((const Braid__V1__KvCompareSetReply *)(const void *)msg)->swapped != 0;
    }
    px_unpacked_free(msg);
    return rc;
}

static bd_status coord_del(rpc_store *s, const char *key, bd_err *err)
{
    Braid__V1__KvDeleteRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__kv_delete_request__init(&req);
    req.key = text(key);
    const question q = {.method = RPC_COORDINATOR "KvDelete",
                        .request = &req.base,
                        .reply_type = &braid__v1__kv_delete_reply__descriptor};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    px_unpacked_free(msg);
    return rc;
}

/* ---- clients and servers ---- */
static bd_status coord_client_id(rpc_store *s, uint64_t op_id, const char *name, uint64_t *id,
                                 bd_err *err)
{
    Braid__V1__RegisterClientRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__register_client_request__init(&req);
    req.name = text(name);
    req.op_id = op_id;
    const question q = {.method = RPC_COORDINATOR "RegisterClient",
                        .request = &req.base,
                        .reply_type = &braid__v1__register_client_reply__descriptor,
                        .try_ms = TRY_MS / 2};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    if (rc == BD_OK) {
        *id = ((const Braid__V1__RegisterClientReply *)(const void *)msg)->client_id;
    }
    px_unpacked_free(msg);
    return rc;
}

static bd_status coord_register(rpc_store *s, const rpc_server_entry *e, uint64_t *epoch,
                                bd_err *err)
{
    Braid__V1__RegisterServerRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__register_server_request__init(&req);
    req.index = e->index;
    req.n_servers = e->n_servers;
    req.address = text(e->address);
    req.instance = text(e->instance);
    const question q = {.method = RPC_COORDINATOR "RegisterServer",
                        .request = &req.base,
                        .reply_type = &braid__v1__register_server_reply__descriptor};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    if (rc == BD_OK) {
        *epoch = ((const Braid__V1__RegisterServerReply *)(const void *)msg)->map_epoch;
    }
    px_unpacked_free(msg);
    return rc;
}

/* Takes what m holds: the strings and slots become out's. */
static bd_status take_map(const Braid__V1__ShardMap *m, rpc_shard_map *out, bd_err *err)
{
    *out =
        (rpc_shard_map){.epoch = m->epoch, .n_servers = m->n_servers, .n_slots = m->n_slot_owner};
    out->servers = bd_calloc(m->n_servers + 1, sizeof(char *));
    out->slot_owner = bd_calloc(m->n_slot_owner + 1, sizeof *out->slot_owner);
    bool ok = out->servers != NULL && out->slot_owner != NULL;
    for (size_t i = 0; ok && i < m->n_servers; i++) {
        out->servers[i] = bd_strdup(m->servers[i]);
        ok = out->servers[i] != NULL;
    }
    if (!ok) {
        rpc_shard_map_deinit(out);
        return bd_err_set(err, BD_E_NOMEM, "shard map");
    }
    if (m->n_slot_owner > 0) {
        memcpy(out->slot_owner, m->slot_owner, m->n_slot_owner * sizeof *out->slot_owner);
    }
    return BD_OK;
}

static bd_status coord_shard_map(rpc_store *s, uint64_t newer_than, int64_t timeout_ms,
                                 rpc_shard_map *out, bd_err *err)
{
    Braid__V1__GetShardMapRequest req;
    ProtobufCMessage *msg = NULL;
    braid__v1__get_shard_map_request__init(&req);
    req.newer_than = newer_than;
    req.wait_ms = (uint32_t)(timeout_ms < 30000 ? timeout_ms : 30000);
    const question q = {.method = RPC_COORDINATOR "GetShardMap",
                        .request = &req.base,
                        .reply_type = &braid__v1__shard_map__descriptor,
                        .try_ms = timeout_ms + TRY_MS,
                        .late_is_answer = true};
    bd_status rc = ask(of_store(s), &q, &msg, err);
    if (rc == BD_OK && msg != NULL) {
        rc = take_map((const void *)msg, out, err);
    }
    px_unpacked_free(msg);
    return rc;
}

/* ---- life ---- */
static void coord_free(rpc_store *s)
{
    coord *c = of_store(s);
    if (c->channel != NULL) {
        rpc_channel_free(c->channel);
    }
    bd_free(c->name);
    bd_free(c);
}

bd_status rpc_store_coord_new(rpc_env *env, const char *address, const rpc_store_options *opt,
                              rpc_store **out, bd_err *err)
{
    static const rpc_store_ops ops = {
        .set = coord_set, .set_for = coord_set_for, .del = coord_del, .wait = coord_wait};
    coord *c = bd_calloc(1, sizeof *c);
    char *name = c == NULL ? NULL : bd_strfmt("coordinator (%s)", address);
    if (name == NULL) {
        bd_free(c);
        return bd_err_set(err, BD_E_NOMEM, "store %s", address);
    }
    c->name = name;
    rpc_store *s = &c->base.store;
    rpc_store_base_init(&c->base, &ops);
    s->wait_ms = opt->wait_ms;
    s->add_once = coord_add;
    s->swap_once = coord_swap;
    s->client_id = coord_client_id;
    s->register_server = coord_register;
    s->shard_map = coord_shard_map;
    s->free = coord_free;
    const rpc_channel_options co = {.name = name, .allow_insecure = opt->allow_insecure};
    bd_status rc = rpc_channel_new(env, address, &co, &c->channel, err);
    if (rc != BD_OK) {
        coord_free(s);
        return rc;
    }
    *out = s;
    return BD_OK;
}
