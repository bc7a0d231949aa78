/* proto/px_int.h - the field tables of the bulk messages, and the two walkers over them.
 *
 * Layer:   proto, private. A new field is one line in px_desc.c and one member in px.h.
 */
#ifndef PX_INT_H
#define PX_INT_H

#include "proto/px.h"

typedef enum px_kind {
    PX_U32,    /* uint32_t, varint */
    PX_U64,    /* uint64_t, varint */
    PX_BOOL,   /* bool, varint */
    PX_ENUM,   /* int32_t, varint, sign-extended */
    PX_S32,    /* int32_t, zigzag varint */
    PX_DOUBLE, /* double */
    PX_FIX64,  /* uint64_t, 8 bytes */
    PX_TEXT,   /* const char * */
    PX_BYTES,  /* px_bulk, bytes: not a list, the last one wins */
    PX_BULK4,  /* px_bulk, repeated float */
    PX_BULKU4, /* px_bulk, repeated fixed32 */
    PX_BULK8,  /* px_bulk, repeated fixed64 */
    PX_LIST,   /* array pointer + count, repeated message */
    PX_ONE,    /* pointer, member of the message's only oneof */
} px_kind;

enum {
    PX_WIRE_VARINT = 0,
    PX_WIRE_64 = 1,
    PX_WIRE_LEN = 2,
    PX_WIRE_GROUP = 3,
    PX_WIRE_END = 4,
    PX_WIRE_32 = 5
};

typedef struct px_desc px_desc;
typedef struct px_field {
    const char *name;
    uint32_t number;
    px_kind kind;
    size_t offset;       /* of the member */
    size_t count_offset; /* PX_LIST: of its size_t count */
    const px_desc *sub;  /* PX_LIST, PX_ONE */
} px_field;

struct px_desc {
    const char *name;
    size_t size_bytes;
    const px_field *fields; /* in the order of their numbers */
    size_t n_fields;
};

/* px_desc_lookup_request and so on */
#define BD_X(name, proto_name) extern const px_desc px_desc_##name;
PX_MESSAGE_MAP(BD_X)
#undef BD_X

bd_status px_encode(const px_desc *d, const void *msg, bd_chain *out, bd_err *err) BD_MUST_CHECK;
bd_status px_decode(const px_desc *d, const bd_chain *in, const px_limits *limits, bd_arena *arena,
                    void *out, bd_err *err) BD_MUST_CHECK;
/* Appends a span (joined with the last one where they touch). False: no memory. */
bool px_bulk_append(px_bulk *b, bd_arena *arena, bd_buf *buf, const uint8_t *bytes, size_t n_bytes);

#endif
