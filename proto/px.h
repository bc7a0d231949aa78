/* proto/px.h - the bulk messages of braid/v1/parameter_server.proto, without copying the bulk.
 *
 * Layer:     proto (base only).
 * Threads:   pure functions on the caller's objects; any thread.
 * Format:    plain protobuf. Keys, rows and gradients are packed fields: tag, length, raw
 *            little-endian bytes; so the encoder sends the caller's buffers as they are, and the
 *            decoder only notes where the bytes lie in the received slices.
 * Accepted:  everything a protobuf reader must: packed, unpacked and split runs, fields in any
 *            order, unknown fields (groups too), elements that straddle slices, last scalar wins,
 *            repeated sub-messages of a oneof merge.
 * Ownership: one struct a message, for both directions.
 *            Encoding: structs and arrays are borrowed during the call; the buffers behind px_bulk
 *            gain references in the chain and must not change until the chain is gone.
 *            Decoding: arrays live in the caller's arena, bytes in the caller's chain: both must
 *            outlive the struct. A struct has nothing to free.
 * Errors:    BD_E_CORRUPT names message, field and reason ("PushRequest.tables[2]:
 *            TableGrads.keys: ..."); BD_E_NOMEM. What the numbers mean (dims, counts that must
 *            agree) is the reader's business.
 * Cost:      encoding allocates one header buffer; decoding O(slices + fields), bulk not touched.
 * Read next: px_pack.h (small messages), px_int.h (the field tables).
 */
#ifndef PX_H
#define PX_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- bulk fields ---- */
/* Contiguous bytes of a bulk field; elements may straddle spans. */
typedef struct px_span {
    bd_buf *buf; /* borrowed: the chain (decoding) or the caller (encoding) holds it */
    const uint8_t *bytes;
    size_t n_bytes;
    size_t at_bytes; /* where it begins in the field */
} px_span;

/* A repeated fixed64, fixed32 or float field. All zero: empty. */
typedef struct px_bulk {
    px_span one;       /* the span when n_spans == 1 */
    px_span *spans;    /* all spans when n_spans > 1 */
    size_t n_spans;    /* read them through px_bulk_span */
    size_t cap_spans;  /* decoder's */
    size_t n_bytes;    /* sum over the spans */
    size_t elem_bytes; /* 8 or 4; 0 in an empty one */
} px_bulk;

/* A bulk to encode: n_elems elements from byte offset_bytes of buf (borrowed until encoded; NULL
 * only with n_elems 0). elem_bytes: 8 (keys), 4 (floats, fixed32) or 1 (bytes). */
px_bulk px_bulk_of(bd_buf *buf, size_t offset_bytes, size_t n_elems, size_t elem_bytes);
size_t px_bulk_count(const px_bulk *b); /* elements */
/* Span i in [0, n_spans). */
const px_span *px_bulk_span(const px_bulk *b, size_t i);
/* Copies elements [first, first + n) to dst (any alignment). The range must lie inside. */
void px_bulk_copy(const px_bulk *b, size_t first, size_t n, void *dst);
/* The elements [first, first + n) where they lie, if they are contiguous and aligned for their
 * type; else NULL. n == 0 gives some non-NULL pointer. The range must lie inside. */
const void *px_bulk_ptr(const px_bulk *b, size_t first, size_t n);

/* Reads a bulk from front to back, a few elements (a row) at a time. */
typedef struct px_walk {
    const px_bulk *bulk;
    size_t span_idx;
    size_t in_span_bytes;
} px_walk;
void px_walk_init(px_walk *w, const px_bulk *b);
/* The next n elements: in place where contiguous and aligned, else copied to scratch[n]. There must
 * be n left. */
const void *px_walk_next(px_walk *w, size_t n, void *scratch);

/* ---- messages: parameter_server.proto says what the fields mean ---- */
typedef struct px_table_keys {
    uint32_t table_id;
    px_bulk keys;    /* fixed64 */
    uint32_t n_bags; /* 0: no pooling */
    px_bulk entries; /* fixed32 */
    px_bulk weights; /* float */
} px_table_keys;

typedef struct px_lookup_request {
    uint64_t job_epoch, after_step, map_epoch;
    uint32_t rank;
    px_table_keys *tables; /* [n_tables] */
    size_t n_tables;
    int32_t row_dtype, row_codec; /* how rows shall travel */
} px_lookup_request;

typedef struct px_table_rows {
    uint32_t table_id, dim;
    px_bulk rows;         /* float */
    int32_t dtype, codec; /* of packed: px_rows.h */
    px_bulk packed;       /* bytes, instead of rows */
    uint32_t packed_rows;
} px_table_rows;

typedef struct px_lookup_reply {
    uint64_t step;
    px_table_rows *tables; /* [n_tables] */
    size_t n_tables;
} px_lookup_reply;

typedef struct px_table_grads {
    uint32_t table_id, dim;
    px_bulk keys;  /* fixed64 */
    px_bulk grads; /* float */
    uint32_t n_bags;
    px_bulk entries;      /* fixed32 */
    px_bulk weights;      /* float */
    int32_t dtype, codec; /* of packed: px_rows.h */
    px_bulk packed;       /* bytes, instead of grads */
    uint32_t packed_rows;
} px_table_grads;

typedef struct px_push_request {
    uint64_t job_epoch, step, map_epoch;
    uint32_t rank, part, n_parts;
    uint64_t client_id, sequence;
    double lr_scale;
    px_table_grads *tables; /* [n_tables] */
    size_t n_tables;
} px_push_request;

typedef struct px_push_reply {
    bool duplicate;
} px_push_reply;

typedef struct px_commit_request {
    uint64_t job_epoch, step;
    uint32_t rank;
    int32_t decision; /* BRAID__V1__DECISION__... */
    double lr_scale;
} px_commit_request;

typedef struct px_commit_reply {
    uint64_t step;
    bool duplicate;
} px_commit_reply;

/* Of the body at most one is not NULL. */
typedef struct px_stream_request {
    uint64_t id;
    px_lookup_request *lookup;
    px_push_request *push;
    px_commit_request *commit;
} px_stream_request;

typedef struct px_stream_reply {
    uint64_t id;
    int32_t status;   /* as sent: pass it through bd_status_known */
    const char *text; /* NULL: empty; decoded: terminated, cut at a zero byte */
    px_lookup_reply *lookup;
    px_push_reply *push;
    px_commit_reply *commit;
} px_stream_reply;

typedef struct px_assign_request {
    uint32_t table_id;
    px_bulk keys;  /* fixed64 */
    px_bulk rows;  /* float */
    px_bulk state; /* float */
} px_assign_request;

typedef struct px_export_request {
    uint32_t table_id;
    uint64_t from_key;
    uint32_t max_rows;
    bool with_state;
} px_export_request;

typedef struct px_export_reply {
    px_bulk keys;  /* fixed64 */
    px_bulk rows;  /* float */
    px_bulk state; /* float */
    bool done;
    uint64_t next_key;
} px_export_reply;

/* What a decoder accepts. NULL where a function takes it: PX_LIMITS_DEFAULT. */
typedef struct px_limits {
    size_t max_bytes;  /* of the whole message */
    size_t max_tables; /* entries of a `tables` field */
    size_t max_text_bytes;
} px_limits;
#define PX_LIMITS_DEFAULT ((px_limits){(size_t)64 << 20, 4096, 4096})

/* struct, name in the .proto */
#define PX_MESSAGE_MAP(X)            \
    X(lookup_request, LookupRequest) \
    X(lookup_reply, LookupReply)     \
    X(push_request, PushRequest)     \
    X(push_reply, PushReply)         \
    X(commit_request, CommitRequest) \
    X(commit_reply, CommitReply)     \
    X(stream_request, StreamRequest) \
    X(stream_reply, StreamReply)     \
    X(assign_request, AssignRequest) \
    X(export_request, ExportRequest) \
    X(export_reply, ExportReply)

/* px_encode_<message>(message, out, err): out must be empty; untouched on failure (BD_E_NOMEM,
 *     BD_E_INVALID for a message over 2 GiB).
 * px_decode_<message>(in, limits, arena, out, err): out is overwritten on BD_OK, untouched
 *     otherwise. */
#define BD_X(name, proto_name)                                                                \
    bd_status px_encode_##name(const px_##name *m, bd_chain *out, bd_err *err) BD_MUST_CHECK; \
    bd_status px_decode_##name(const bd_chain *in, const px_limits *limits, bd_arena *arena,  \
                               px_##name *out, bd_err *err) BD_MUST_CHECK;
PX_MESSAGE_MAP(BD_X)
#undef BD_X

#endif
