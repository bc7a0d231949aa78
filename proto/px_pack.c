#include "proto/px_pack.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stdbool.h>

#define MEMORY_PER_BYTE  64
#define MEMORY_ALLOWANCE ((size_t)64 << 10)

typedef struct budget {
    ProtobufCAllocator allocator;
    size_t left_bytes;
    bool ran_out;
} budget;

static void *on_alloc(void *user, size_t n_bytes)
{
    budget *b = user;
    void *p = n_bytes <= b->left_bytes ? bd_alloc(n_bytes) : NULL;
    if (p == NULL) {
        b->ran_out = true;
    } else {
        b->left_bytes -= n_bytes;
    }
    return p;
}

static void on_free(void *user, void *p)
{
    (void)user;
    bd_free(p);
}

bd_status px_pack(const ProtobufCMessage *msg, bd_chain *out, bd_err *err)
{
    BD_ASSERT(out->n_pieces == 0);
    bd_buf *buf = bd_buf_new(protobuf_c_message_get_packed_size(msg));
    if (buf == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "encode %s", msg->descriptor->short_name);
    }
    (void)protobuf_c_message_pack(msg, buf->bytes);
    bd_status rc = bd_chain_add_moved(out, buf);
    return rc == BD_OK ? rc : bd_err_set(err, rc, "encode %s", msg->descriptor->short_name);
}

bd_status px_unpack(const ProtobufCMessageDescriptor *type, const bd_chain *in, size_t max_bytes,
                    ProtobufCMessage **out, bd_err *err)
{
    bd_status rc = BD_OK;
    bd_buf *flat = NULL;
    budget b = {.allocator = {on_alloc, on_free, &b}};
    size_t limit = max_bytes == 0 ? PX_UNPACK_MAX_BYTES : max_bytes;
    if (in->n_bytes > limit) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: %zu bytes, the limit is %zu", type->short_name,
                          in->n_bytes, limit);
    }
    flat = bd_chain_flatten(in);
    if (flat == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "decode %s", type->short_name);
    }
    b.left_bytes = in->n_bytes * MEMORY_PER_BYTE + MEMORY_ALLOWANCE;
    ProtobufCMessage *msg = protobuf_c_message_unpack(type, &b.allocator, in->n_bytes, flat->bytes);
    if (msg != NULL) {
        *out = msg;
    } else if (b.ran_out) {
        rc = bd_err_set(err, BD_E_NOMEM, "decode %s", type->short_name);
    } else {
        rc = bd_err_set(err, BD_E_CORRUPT, "%s: not a valid message (%zu bytes)", type->short_name,
                        in->n_bytes);
    }
    bd_buf_unref(flat);
    return rc;
}

void px_unpacked_free(ProtobufCMessage *msg)
{
    ProtobufCAllocator plain = {on_alloc, on_free, NULL};
    if (msg != NULL) {
        protobuf_c_message_free_unpacked(msg, &plain);
    }
}
