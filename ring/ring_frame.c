#include "ring/ring_frame.h"

#include <inttypes.h>
#include <string.h>

const char *ring_op_name(int op)
{
    switch (op) {
#define BD_X(name, num, text) \
    case num:                 \
        return text;
        RING_OP_MAP(BD_X)
#undef BD_X
    default:
        return "?";
    }
}

static void put(uint8_t *out, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) {
        out[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint64_t get(const uint8_t *in, int n_bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < n_bytes; i++) {
        v |= (uint64_t)in[i] << (8 * i);
    }
    return v;
}

void ring_frame_encode(const ring_frame *f, uint8_t out[RING_FRAME_BYTES])
{
    put(out, RING_FRAME_MAGIC, 4);
    put(out + 4, RING_FRAME_VERSION, 2);
    out[6] = f->kind;
    out[7] = f->op;
    put(out + 8, f->group, 8);
    put(out + 16, f->epoch, 8);
    put(out + 24, f->seq, 8);
    out[32] = f->dtype;
    out[33] = f->reduce;
    put(out + 34, 0, 2);
    put(out + 36, (uint32_t)f->root, 4);
    put(out + 40, f->count, 8);
    put(out + 48, f->name_hash, 8);
    put(out + 56, f->step, 4);
    put(out + 60, f->segment, 4);
    put(out + 64, f->payload_bytes, 8);
    put(out + 72, (uint32_t)f->rank, 4);
    put(out + 76, (uint32_t)f->world, 4);
    memcpy(out + 80, f->name, RING_NAME_BYTES);
}

bd_status ring_frame_decode(const uint8_t in[RING_FRAME_BYTES], ring_frame *out, bd_err *err)
{
    uint32_t magic = (uint32_t)get(in, 4);
    if (magic != RING_FRAME_MAGIC) {
        return bd_err_set(err, BD_E_CORRUPT, "frame magic is 0x%08" PRIx32, magic);
    }
    unsigned version = (unsigned)get(in + 4, 2);
    if (version != RING_FRAME_VERSION) {
        return bd_err_set(err, BD_E_CORRUPT, "frame version is %u, ours is %d", version,
                          RING_FRAME_VERSION);
    }
    if (in[6] < RING_FRAME_DATA || in[6] > RING_FRAME_HELLO) {
        return bd_err_set(err, BD_E_CORRUPT, "frame kind is %u", in[6]);
    }
    if (in[RING_FRAME_BYTES - 1] != 0) {
        return bd_err_set(err, BD_E_CORRUPT, "frame name is not terminated");
    }
    *out = (ring_frame){
        .kind = in[6],
        .op = in[7],
        .dtype = in[32],
        .reduce = in[33],
        .root = (int32_t)(uint32_t)get(in + 36, 4),
        .group = get(in + 8, 8),
        .epoch = get(in + 16, 8),
        .seq = get(in + 24, 8),
        .count = get(in + 40, 8),
        .name_hash = get(in + 48, 8),
        .step = (uint32_t)get(in + 56, 4),
        .segment = (uint32_t)get(in + 60, 4),
        .payload_bytes = get(in + 64, 8),
        .rank = (int32_t)(uint32_t)get(in + 72, 4),
        .world = (int32_t)(uint32_t)get(in + 76, 4),
    };
    memcpy(out->name, in + 80, RING_NAME_BYTES);
    return BD_OK;
}
