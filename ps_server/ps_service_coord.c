/* The RPCs of Coordinator: messages to ops of ps_coord and back. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "ps_server/ps_service_int.h"
#include "rpc/rpc_coordinator.h"
#include "rpc/rpc_store.h"

#include <string.h>

#include "braid/v1/coordinator.pb-c.h"

/* A call with the message its op borrows from. */
typedef struct coord_call {
    ps_coord_op op;
    ps_call *call;
    ProtobufCMessage *msg; /* owned */
} coord_call;

static coord_call *start(void *service, rpc_req *req, const ProtobufCMessageDescriptor *type)
{
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return NULL;
    }
    ProtobufCMessage *msg = ps_call_unpack(c, type);
    if (msg == NULL) {
        return NULL;
    }
    coord_call *cc = bd_calloc(1, sizeof *cc);
    if (cc == NULL) {
        bd_err err;
        px_unpacked_free(msg);
        (void)bd_err_set(&err, BD_E_NOMEM, "no memory for a request");
        ps_call_fail(c, &err);
        return NULL;
    }
    cc->call = c;
    cc->msg = msg;
    return cc;
}

static void post(coord_call *cc, ps_coord_kind kind, void (*done)(ps_coord_op *op))
{
    cc->op.kind = kind;
    cc->op.done = done;
    ps_coord_post(cc->call->service->coord, &cc->op);
}

/* Answers with msg, or with the op's error, and frees everything. */
static void end(ps_coord_op *op, const ProtobufCMessage *reply)
{
    coord_call *cc = (coord_call *)(void *)op;
    if (op->rc == BD_OK) {
        ps_call_reply_message(cc->call, reply);
    } else {
        ps_call_fail(cc->call, &op->err);
    }
    px_unpacked_free(cc->msg);
    bd_free(cc);
}

/* A bytes field that is absent is empty, not NULL. */
static const void *bytes_of(const ProtobufCBinaryData *b)
{
    return b->len == 0 ? (const void *)"" : b->data;
}

/* ---- store ---- */
static void set_done(ps_coord_op *op)
{
    Braid__V1__KvSetReply r;
    braid__v1__kv_set_reply__init(&r);
    end(op, &r.base);
}
static void on_set(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_set_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__KvSetRequest *m = (const Braid__V1__KvSetRequest *)(const void *)cc->msg;
        cc->op.key = m->key;
        cc->op.val = bytes_of(&m->value);
        cc->op.val_bytes = m->value.len;
        cc->op.ttl_ms = m->ttl_ms;
        post(cc, PS_COORD_SET, set_done);
    }
}

static void get_done(ps_coord_op *op)
{
    Braid__V1__KvGetReply r;
    braid__v1__kv_get_reply__init(&r);
    bd_buf *copy = NULL;
    r.absent = op->absent;
    if (op->rc == BD_OK && op->out_val_bytes != 0) { /* protobuf-c wants bytes it may write to */
        copy = bd_buf_copy(op->out_val, op->out_val_bytes);
        if (copy == NULL) {
            op->rc = bd_err_set(&op->err, BD_E_NOMEM, "key \"%s\": no memory", op->key);
        } else {
            r.value.data = copy->bytes;
            r.value.len = copy->n_bytes;
        }
    }
    end(op, &r.base);
    bd_buf_unref(copy);
}
static void on_get(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_get_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__KvGetRequest *m = (const Braid__V1__KvGetRequest *)(const void *)cc->msg;
        cc->op.key = m->key;
        cc->op.wait_ms = m->wait_ms;
        cc->op.other = m->other;
        cc->op.expect_absent = m->known_absent;
        cc->op.expected = bytes_of(&m->known);
        cc->op.expected_bytes = m->known.len;
        post(cc, PS_COORD_GET, get_done);
    }
}

static void add_done(ps_coord_op *op)
{
    Braid__V1__KvAddReply r;
    braid__v1__kv_add_reply__init(&r);
    r.after = op->number;
    end(op, &r.base);
}
static void on_add(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_add_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__KvAddRequest *m = (const Braid__V1__KvAddRequest *)(const void *)cc->msg;
        cc->op.key = m->key;
        cc->op.number = m->by;
        cc->op.op_id = m->op_id;
        post(cc, PS_COORD_ADD, add_done);
    }
}

static void swap_done(ps_coord_op *op)
{
    Braid__V1__KvCompareSetReply r;
    braid__v1__kv_compare_set_reply__init(&r);
    r.swapped = op->swapped;
    end(op, &r.base);
}
static void on_swap(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_compare_set_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__KvCompareSetRequest *m =
            (const Braid__V1__KvCompareSetRequest *)(const void *)cc->msg;
        cc->op.key = m->key;
        cc->op.expect_absent = m->expect_absent;
        cc->op.expected = bytes_of(&m->expected);
        cc->op.expected_bytes = m->expected.len;
        cc->op.val = bytes_of(&m->desired);
        cc->op.val_bytes = m->desired.len;
        cc->op.op_id = m->op_id;
        post(cc, PS_COORD_SWAP, swap_done);
    }
}

static void del_done(ps_coord_op *op)
{
    Braid__V1__KvDeleteReply r;
    braid__v1__kv_delete_reply__init(&r);
    end(op, &r.base);
}
static void on_del(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_delete_request__descriptor);
    if (cc != NULL) {
        cc->op.key = ((const Braid__V1__KvDeleteRequest *)(const void *)cc->msg)->key;
        post(cc, PS_COORD_DEL, del_done);
    }
}

static void wait_done(ps_coord_op *op)
{
    Braid__V1__KvWaitReply r;
    braid__v1__kv_wait_reply__init(&r);
    r.value = op->number;
    end(op, &r.base);
}
static void on_wait(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__kv_wait_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__KvWaitRequest *m = (const Braid__V1__KvWaitRequest *)(const void *)cc->msg;
        cc->op.key = m->key;
        cc->op.number = m->at_least;
        cc->op.wait_ms = m->wait_ms;
        post(cc, PS_COORD_WAIT, wait_done);
    }
}

/* ---- clients and servers ---- */
static void client_done(ps_coord_op *op)
{
    Braid__V1__RegisterClientReply r;
    braid__v1__register_client_reply__init(&r);
    r.client_id = op->id;
    end(op, &r.base);
}
static void on_client(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__register_client_request__descriptor);
    if (cc != NULL) {
        cc->op.op_id = ((const Braid__V1__RegisterClientRequest *)(const void *)cc->msg)->op_id;
        post(cc, PS_COORD_CLIENT, client_done);
    }
}

static void register_done(ps_coord_op *op)
{
    Braid__V1__RegisterServerReply r;
    braid__v1__register_server_reply__init(&r);
    r.map_epoch = op->id;
    end(op, &r.base);
}
static void on_register(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__register_server_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__RegisterServerRequest *m =
            (const Braid__V1__RegisterServerRequest *)(const void *)cc->msg;
        cc->op.index = m->index;
        cc->op.n_servers = m->n_servers;
        cc->op.address = m->address;
        post(cc, PS_COORD_REGISTER, register_done);
    }
}

static void map_done(ps_coord_op *op)
{
    Braid__V1__ShardMap r;
    bd_arena a;
    braid__v1__shard_map__init(&r);
    bd_arena_init(&a);
    if (op->rc == BD_OK) {
        r.epoch = op->id;
        r.n_servers = op->n_servers;
        r.servers = bd_arena_calloc(&a, op->n_servers, sizeof *r.servers);
        r.slot_owner = bd_arena_calloc(&a, PS_N_SLOTS, sizeof *r.slot_owner);
        bool ok = r.servers != NULL && r.slot_owner != NULL;
        for (uint32_t i = 0; i < op->n_servers && ok; i++) {
            r.servers[i] = bd_arena_strdup(&a, op->servers[i]);
            ok = r.servers[i] != NULL;
        }
        if (!ok) {
            op->rc = bd_err_set(&op->err, BD_E_NOMEM, "shard map: no memory");
        }
        r.n_slot_owner = PS_N_SLOTS;
        for (uint32_t i = 0; i < op->n_servers && ok; i++) { /* as ps_shard's init_fields does */
            uint32_t from = 0, to = 0;
            rpc_slots_of((uint32_t)i, (uint32_t)op->n_servers, &from, &to);
            for (uint32_t slot = from; slot < to; slot++) {
                r.slot_owner[slot] = i;
            }
        }
    }
    end(op, &r.base);
    bd_arena_deinit(&a);
}
static void on_map(void *service, rpc_req *req)
{
    coord_call *cc = start(service, req, &braid__v1__get_shard_map_request__descriptor);
    if (cc != NULL) {
        const Braid__V1__GetShardMapRequest *m =
            (const Braid__V1__GetShardMapRequest *)(const void *)cc->msg;
        cc->op.id = m->newer_than;
        cc->op.wait_ms = m->wait_ms;
        post(cc, PS_COORD_MAP, map_done);
    }
}

bd_status ps_register_coord(ps_service *v, rpc_server *server)
{
    const rpc_coordinator handlers = {.set = on_set,
                                      .get = on_get,
                                      .add = on_add,
                                      .compare_set = on_swap,
                                      .del = on_del,
                                      .wait = on_wait,
                                      .register_client = on_client,
                                      .register_server = on_register,
                                      .shard_map = on_map};
    return rpc_coordinator_register(server, &handlers, v, NULL);
}
