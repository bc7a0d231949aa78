/* ps_server/ps_record.h - one journal record: what changed rows, in the bytes it is kept in.
 *
 * Layer:     ps_server (pure). Includes base/.
 * Ownership: encode borrows; decode makes sections that point into the caller's buffer.
 *
 * Format, version 1, 2 when a section has bags, 3 when one has keys alone (little-endian; every
 * array starts at a multiple of 8):
 *
 *   record header, 96 bytes
 *      0  u32  magic "BRJ1"
 *      4  u16  version
 *      6  u16  kind: 1 step (sync), 2 push (async), 3 assign
 *      8  u64  bytes of the whole record
 *     16  u64  XXH3-64 of all sections, seeded with the XXH3-64 of this header with 0 here
 *     24  u32  generation (start of the server that wrote it)
 *     28  u32  number of sections
 *     32  u64  n: position in the journal
 *     40  u64  job epoch (0: outside any job)
 *     48  u64  step
 *     56  f64  lr_scale: factor on the learning rate
 *     64  u64  client id (async)        72  u64  sequence (async)
 *     80  u32  part (async)             84  u32  parts of this sequence (async)
 *     88  u64  n of the record before this one in the journal; 0: none was kept then
 *   sections in the order they are summed (rank, part, table), each
 *      0  u32  rank        4  u32  part        8  u32  table id     12  u32  dim
 *     16  u32  state elements a row (assign with state; else 0)
 *     20  u32  time the record was made, seconds since 1970; 0: unknown
 *     24  u64  n keys; bit 63: with bags (ps_bags.h); bit 62: keys alone, no values: gradients of
 *                these keys were filtered by admission; with bit 61 too: their rows are evicted
 *     with bags, before the keys: u32 n bags, u32 1 with weights else 0, u64 n entries
 *     32  u64  keys[n]
 *          f32  gradients[n x dim] (assign: weights; with bags: [bags x dim]), zero-padded to 8
 * bytes f32  state[n x state elements], zero-padded to 8 bytes with bags: u32 entries[], f32
 * weights[] if any, each zero-padded to 8 bytes
 */
#ifndef PS_RECORD_H
#define PS_RECORD_H

#include "base/err.h"

#include "ps_server/ps_types.h"

#include <sys/uio.h>

#define PS_RECORD_HEADER_BYTES  96u
#define PS_SECTION_HEADER_BYTES 32u

typedef enum ps_record_kind {
    PS_RECORD_STEP = 1,
    PS_RECORD_PUSH = 2,
    PS_RECORD_ASSIGN = 3
} ps_record_kind;

typedef enum ps_section_kind {
    PS_SECTION_VALUES,   /* gradients, or what is assigned */
    PS_SECTION_FILTERED, /* keys whose gradients admission dropped */
    PS_SECTION_EVICTED   /* keys whose rows go */
} ps_section_kind;

typedef struct ps_section {
    ps_section_kind kind;
    uint32_t rank, part;
    uint32_t table_id;
    uint32_t dim;
    uint32_t state_elems;
    uint32_t time_s;
    size_t n_keys;
    const uint64_t *keys;
    const float *values;     /* [n_keys x dim], with bags [n_bags x dim]; NULL: keys alone */
    const float *state;      /* [n_keys x state_elems]; NULL when state_elems is 0 */
    ps_bags bags;            /* n_bags 0: none */
    const uint32_t *guesses; /* not in the bytes: [n_keys] where rows may be; NULL: no idea */
} ps_section;

typedef struct ps_record {
    ps_record_kind kind;
    ps_seqno seq;
    uint64_t job_epoch;
    uint64_t step;
    double lr_scale;
    uint64_t client_id, sequence;
    uint32_t part, n_parts;
    uint64_t before_n; /* the record before it; 0: unknown */
    uint32_t time_s;   /* not in the header: what the sections get */
    size_t n_sections;
    ps_section *sections; /* owned after decode (bd_free) */
} ps_record;

/* Sizes of arrays that exist in memory: cannot overflow. */
size_t ps_record_bytes(const ps_record *r);

/* The bytes of a record where they lie, to be written without a copy. Zeroed: empty. */
typedef struct ps_pieces {
    struct iovec *items; /* owned array; the bytes: heads below, and the record's arrays */
    size_t n, cap;
    uint8_t *heads; /* owned */
    size_t n_heads, cap_heads;
    uint64_t hash; /* the record's checksum */
} ps_pieces;
/* ps_record_pieces - makes p those of r; r's arrays are borrowed as long as the pieces are used.
 * BD_E_NOMEM. Cost: one pass for the checksum. */
bd_status ps_record_pieces(const ps_record *r, ps_pieces *p) BD_MUST_CHECK;
void ps_pieces_deinit(ps_pieces *p);

/* BD_OK: whole and of a version this server reads; else BD_E_CORRUPT says what is wrong. */
bd_status ps_record_check(const uint8_t *bytes, size_t n_bytes, bd_err *err) BD_MUST_CHECK;
/* bytes: 8-byte aligned, alive as long as the sections are used. BD_E_CORRUPT says what is wrong
 * (and with which record), BD_E_NOMEM. */
bd_status ps_record_decode(const uint8_t *bytes, size_t n_bytes, ps_record *out,
                           bd_err *err) BD_MUST_CHECK;

#endif
