/* The field tables: one line a field, numbers as in braid/v1/parameter_server.proto. */
#include "proto/px_int.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FIELD(number, type, kind, member)                          \
    {                                                              \
#member, (number), (kind), offsetof(type, member), 0, NULL \
    }
#define LIST(number, type, member, desc)                                                        \
    {                                                                                           \
#member, (number), PX_LIST, offsetof(type, member), offsetof(type, n_##member), &(desc) \
    }
#define ONE(number, type, member, desc)                               \
    {                                                                 \
#member, (number), PX_ONE, offsetof(type, member), 0, &(desc) \
    }

static const px_field table_keys_fields[] = {
    FIELD(1, px_table_keys, PX_U32, table_id),  FIELD(2, px_table_keys, PX_BULK8, keys),
    FIELD(3, px_table_keys, PX_U32, n_bags),    FIELD(4, px_table_keys, PX_BULKU4, entries),
    FIELD(5, px_table_keys, PX_BULK4, weights),
};
static const px_desc table_keys = {"TableKeys", sizeof(px_table_keys), table_keys_fields,
                                   COUNT(table_keys_fields)};

static const px_field table_rows_fields[] = {
    FIELD(1, px_table_rows, PX_U32, table_id),     FIELD(2, px_table_rows, PX_U32, dim),
    FIELD(3, px_table_rows, PX_BULK4, rows),       FIELD(16, px_table_rows, PX_ENUM, dtype),
    FIELD(17, px_table_rows, PX_ENUM, codec),      FIELD(18, px_table_rows, PX_BYTES, packed),
    FIELD(19, px_table_rows, PX_U32, packed_rows),
};
static const px_desc table_rows = {"TableRows", sizeof(px_table_rows), table_rows_fields,
                                   COUNT(table_rows_fields)};

static const px_field table_grads_fields[] = {
    FIELD(1, px_table_grads, PX_U32, table_id),     FIELD(2, px_table_grads, PX_U32, dim),
    FIELD(3, px_table_grads, PX_BULK8, keys),       FIELD(4, px_table_grads, PX_BULK4, grads),
    FIELD(5, px_table_grads, PX_U32, n_bags),       FIELD(6, px_table_grads, PX_BULKU4, entries),
    FIELD(7, px_table_grads, PX_BULK4, weights),    FIELD(16, px_table_grads, PX_ENUM, dtype),
    FIELD(17, px_table_grads, PX_ENUM, codec),      FIELD(18, px_table_grads, PX_BYTES, packed),
    FIELD(19, px_table_grads, PX_U32, packed_rows),
};
static const px_desc table_grads = {"TableGrads", sizeof(px_table_grads), table_grads_fields,
                                    COUNT(table_grads_fields)};

static const px_field lookup_request_fields[] = {
    FIELD(1, px_lookup_request, PX_U64, job_epoch),
    FIELD(2, px_lookup_request, PX_U64, after_step),
    FIELD(3, px_lookup_request, PX_U64, map_epoch),
    FIELD(4, px_lookup_request, PX_U32, rank),
    LIST(5, px_lookup_request, tables, table_keys),
    FIELD(16, px_lookup_request, PX_ENUM, row_dtype),
    FIELD(17, px_lookup_request, PX_ENUM, row_codec),
};
static const px_field lookup_reply_fields[] = {
    FIELD(1, px_lookup_reply, PX_U64, step),
    LIST(2, px_lookup_reply, tables, table_rows),
};
static const px_field push_request_fields[] = {
    FIELD(1, px_push_request, PX_U64, job_epoch),   FIELD(2, px_push_request, PX_U64, step),
    FIELD(3, px_push_request, PX_U64, map_epoch),   FIELD(4, px_push_request, PX_U32, rank),
    FIELD(5, px_push_request, PX_U32, part),        FIELD(6, px_push_request, PX_U32, n_parts),
    FIELD(7, px_push_request, PX_U64, client_id),   FIELD(8, px_push_request, PX_U64, sequence),
    FIELD(9, px_push_request, PX_DOUBLE, lr_scale), LIST(10, px_push_request, tables, table_grads),
};
static const px_field push_reply_fields[] = {
    FIELD(1, px_push_reply, PX_BOOL, duplicate),
};
static const px_field commit_request_fields[] = {
    FIELD(1, px_commit_request, PX_U64, job_epoch),
    FIELD(2, px_commit_request, PX_U64, step),
    FIELD(3, px_commit_request, PX_U32, rank),
    FIELD(4, px_commit_request, PX_ENUM, decision),
    FIELD(5, px_commit_request, PX_DOUBLE, lr_scale),
};
static const px_field commit_reply_fields[] = {
    FIELD(1, px_commit_reply, PX_U64, step),
    FIELD(2, px_commit_reply, PX_BOOL, duplicate),
};
static const px_field stream_request_fields[] = {
    FIELD(1, px_stream_request, PX_U64, id),
    ONE(2, px_stream_request, lookup, px_desc_lookup_request),
    ONE(3, px_stream_request, push, px_desc_push_request),
    ONE(4, px_stream_request, commit, px_desc_commit_request),
};
static const px_field stream_reply_fields[] = {
    FIELD(1, px_stream_reply, PX_U64, id),
    FIELD(2, px_stream_reply, PX_S32, status),
    FIELD(3, px_stream_reply, PX_TEXT, text),
    ONE(4, px_stream_reply, lookup, px_desc_lookup_reply),
    ONE(5, px_stream_reply, push, px_desc_push_reply),
    ONE(6, px_stream_reply, commit, px_desc_commit_reply),
};
static const px_field assign_request_fields[] = {
    FIELD(1, px_assign_request, PX_U32, table_id),
    FIELD(2, px_assign_request, PX_BULK8, keys),
    FIELD(3, px_assign_request, PX_BULK4, rows),
    FIELD(4, px_assign_request, PX_BULK4, state),
};
static const px_field export_request_fields[] = {
    FIELD(1, px_export_request, PX_U32, table_id),
    FIELD(2, px_export_request, PX_FIX64, from_key),
    FIELD(3, px_export_request, PX_U32, max_rows),
    FIELD(4, px_export_request, PX_BOOL, with_state),
};
static const px_field export_reply_fields[] = {
    FIELD(1, px_export_reply, PX_BULK8, keys),     FIELD(2, px_export_reply, PX_BULK4, rows),
    FIELD(3, px_export_reply, PX_BULK4, state),    FIELD(4, px_export_reply, PX_BOOL, done),
    FIELD(5, px_export_reply, PX_FIX64, next_key),
};

#define BD_X(name, proto_name)                                                               \
    const px_desc px_desc_##name = {#proto_name, sizeof(px_##name), name##_fields,           \
                                    COUNT(name##_fields)};                                   \
    bd_status px_encode_##name(const px_##name *m, bd_chain *out, bd_err *err)               \
    {                                                                                        \
        return px_encode(&px_desc_##name, m, out, err);                                      \
    }                                                                                        \
    bd_status px_decode_##name(const bd_chain *in, const px_limits *limits, bd_arena *arena, \
                               px_##name *out, bd_err *err)                                  \
    {                                                                                        \
        return px_decode(&px_desc_##name, in, limits, arena, out, err);                      \
    }
PX_MESSAGE_MAP(BD_X)
#undef BD_X
