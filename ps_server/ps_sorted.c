#include "ps_server/ps_sorted.h"

#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_through.h"

#include <inttypes.h>
#include <string.h>

#define BLOCK_BYTES      ((size_t)64 << 10)
#define START_EVERY      16u
#define MAX_VARINT_BYTES 10u
#define HEAD_BYTES       15u /* three varints of 32 bits */
#define TRAILER_BYTES    5u
#define SEQ_BYTES        8u
#define A_VALUE          1u /* number 0 << 8 | RocksDB's type of a value */
#define MAX_STARTS       (BLOCK_BYTES / PS_ENTRY_META_BYTES / START_EVERY + 1)
#define CHECKSUM_XXH3    4u
#define FOOTER_BYTES     53u
#define PLACES_END       41u
#define FORMAT_VERSION   5u
#define MAGIC            0x88e241b785f4cff7ull
/* Entries lie in the order of their changes: each is a miss, unless it is asked for ahead. */
#define AHEAD          12u
#define PREFETCH_BYTES 512u

/* A block that is no data: small, in memory of its own. */
typedef struct block {
    uint8_t *bytes; /* owned */
    size_t n, cap;
    uint32_t *starts; /* owned */
    size_t n_starts, cap_starts;
    bool no_memory;
} block;

/* Where a block is in the file. */
typedef struct place {
    uint64_t at, n_bytes;
} place;

typedef struct sorted {
    ps_through *to;
    size_t piece_bytes;
    block index;
    uint64_t n_blocks, key_bytes, value_bytes;
} sorted;

static uint8_t *put_varint(uint8_t *p, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) {
        *p++ = (uint8_t)(v | 0x80);
    }
    *p++ = (uint8_t)v;
    return p;
}

/* What follows a block of n bytes. */
static void put_trailer(uint8_t *block_bytes, size_t n)
{
    block_bytes[n] = 0;
    ps_put_le32(block_bytes + n + 1, (uint32_t)bd_hash64(block_bytes, n, 0));
}

/* ---- blocks besides the data ---- */
static void block_deinit(block *b)
{
    bd_free(b->bytes);
    bd_free(b->starts);
    *b = (block){0};
}

static void block_put(block *b, const void *key, size_t key_bytes, const void *value,
                      size_t value_bytes, bool is_start)
{
    if (!bd_grow(&b->bytes, &b->cap, b->n + HEAD_BYTES + key_bytes + value_bytes, 1) ||
        !bd_grow(&b->starts, &b->cap_starts, b->n_starts + 1, sizeof *b->starts)) {
        b->no_memory = true;
        return;
    }
    if (is_start || b->n_starts == 0) {
        b->starts[b->n_starts++] = (uint32_t)b->n;
    }
    uint8_t *p = put_varint(b->bytes + b->n, 0);
    p = put_varint(p, key_bytes);
    p = put_varint(p, value_bytes);
    memcpy(p, key, key_bytes);
    memcpy(p + key_bytes, value, value_bytes);
    b->n = (size_t)(p - b->bytes) + key_bytes + value_bytes;
}

static size_t put_place(uint8_t *to, place at)
{
    return (size_t)(put_varint(put_varint(to, at.at), at.n_bytes) - to);
}

static bool add_bytes(sorted *s, const uint8_t *bytes, size_t n, bool lasting)
{
    for (size_t at = 0; at < n;) {
        size_t some = n - at < s->piece_bytes ? n - at : s->piece_bytes;
        uint8_t *room = ps_through_room(s->to, some);
        if (room == NULL) {
            return false;
        }
        memcpy(room, bytes + at, some);
        ps_through_add(s->to, some, lasting);
        at += some;
    }
    return true;
}

/* False: no memory (b->no_memory), or writing has failed. */
static bool add_block(sorted *s, block *b, bool lasting, place *where)
{
    size_t more = (b->n_starts + 1) * sizeof *b->starts + TRAILER_BYTES;
    if (b->no_memory || !bd_grow(&b->bytes, &b->cap, b->n + more, 1)) {
        b->no_memory = true;
        return false;
    }
    for (size_t i = 0; i < b->n_starts; i++) {
        ps_put_le32(b->bytes + b->n, b->starts[i]);
        b->n += 4;
    }
    ps_put_le32(b->bytes + b->n, (uint32_t)b->n_starts);
    b->n += 4;
    put_trailer(b->bytes, b->n);
    *where = (place){ps_through_bytes(s->to), b->n};
    return add_bytes(s, b->bytes, b->n + TRAILER_BYTES, lasting);
}

/* ---- data ---- */
static void prefetch_entry(const ps_ref *refs, size_t i, size_t n)
{
    if (i + AHEAD < n) {
        const char *p = (const char *)refs[i + AHEAD].at;
        size_t bytes = PS_ENTRY_KEY_BYTES + (size_t)refs[i + AHEAD].value_bytes;
        for (size_t b = 0; b < bytes && b < PREFETCH_BYTES; b += BD_CACHE_LINE_BYTES) {
            __builtin_prefetch(p + b);
        }
    }
}

/* Bytes the keys of two refs share, in front; r comes after `before`. */
static size_t shared_bytes(const ps_ref *before, const ps_ref *r)
{
    return before->table_id != r->table_id
               ? 0
               : 4 + (unsigned)__builtin_clzll(before->key ^ r->key) / 8u;
}

static uint8_t *put_entry(uint8_t *p, const ps_ref *r, size_t shared)
{
    size_t rest = PS_ENTRY_KEY_BYTES - shared;
    *p++ = (uint8_t)shared;
    *p++ = (uint8_t)(rest + SEQ_BYTES);
    p = put_varint(p, r->value_bytes);
    memcpy(p, r->at + shared, rest);
    ps_put_le64(p + rest, A_VALUE);
    memcpy(p + rest + SEQ_BYTES, r->at + PS_ENTRY_KEY_BYTES, r->value_bytes);
    return p + rest + SEQ_BYTES + r->value_bytes;
}

static bool ascends(const ps_ref *before, const ps_ref *r)
{
    return before->table_id != r->table_id ? before->table_id < r->table_id : before->key < r->key;
}

/* One block, from refs[from] on; returns where the next one begins, `from`: not ascending. */
static size_t fill_block(sorted *s, uint8_t *room, const ps_ref *refs, size_t from, size_t n,
                         size_t *n_bytes)
{
    uint32_t starts[MAX_STARTS], n_starts = 0;
    uint8_t *p = room;
    size_t i = from;
    for (; i < n && (size_t)(p - room) < BLOCK_BYTES; i++) {
        size_t shared = 0;
        prefetch_entry(refs, i, n);
        if (i > 0 && !ascends(&refs[i - 1], &refs[i])) {
            return from;
        }
        if ((i - from) % START_EVERY == 0) {
            starts[n_starts++] = (uint32_t)(p - room);
        } else {
            shared = shared_bytes(&refs[i - 1], &refs[i]);
        }
        p = put_entry(p, &refs[i], shared);
        s->value_bytes += refs[i].value_bytes;
    }
    for (uint32_t k = 0; k < n_starts; k++, p += 4) {
        ps_put_le32(p, starts[k]);
    }
    ps_put_le32(p, n_starts);
    *n_bytes = (size_t)(p + 4 - room);
    s->key_bytes += (i - from) * (PS_ENTRY_KEY_BYTES + SEQ_BYTES);
    return i;
}

static bd_status add_rows(sorted *s, const ps_ref *refs, size_t n, bd_err *err)
{
    for (size_t i = 0; i < n;) {
        uint8_t handle[2 * MAX_VARINT_BYTES];
        size_t n_bytes = 0, from = i;
        uint8_t *room = ps_through_room(s->to, s->piece_bytes);
        if (room == NULL) {
            return BD_OK; /* close says how */
        }
        i = fill_block(s, room, refs, from, n, &n_bytes);
        if (i == from) {
            return bd_err_set(err, BD_E_STATE, "write rows: not in order");
        }
        put_trailer(room, n_bytes);
        const place at = {ps_through_bytes(s->to), n_bytes};
        ps_through_add(s->to, n_bytes + TRAILER_BYTES, true);
        block_put(&s->index, refs[i - 1].at, PS_ENTRY_KEY_BYTES, handle, put_place(handle, at),
                  true);
        s->n_blocks++;
    }
    return BD_OK;
}

/* ---- the end of the file ---- */
static void put_text(block *b, const char *name, const char *text)
{
    block_put(b, name, strlen(name), text, strlen(text), false);
}

static void put_number(block *b, const char *name, uint64_t v)
{
    uint8_t bytes[MAX_VARINT_BYTES];
    block_put(b, name, strlen(name), bytes, (size_t)(put_varint(bytes, v) - bytes), false);
}

static void put_fixed(block *b, const char *name, uint64_t v, size_t n)
{
    uint8_t bytes[8];
    ps_put_le64(bytes, v);
    block_put(b, name, strlen(name), bytes, n, false);
}

/* In the order of their names. */
static void put_properties(const sorted *s, size_t n, uint64_t data_bytes, uint64_t index_bytes,
                           block *b)
{
    put_fixed(b, "rocksdb.block.based.table.index.type", 0, 4); /* binary search */
    put_text(b, "rocksdb.block.based.table.prefix.filtering", "0");
    put_text(b, "rocksdb.block.based.table.whole.key.filtering", "0");
    put_text(b, "rocksdb.comparator", "leveldb.BytewiseComparator");
    put_text(b, "rocksdb.compression", "NoCompression");
    put_number(b, "rocksdb.data.size", data_bytes);
    put_number(b, "rocksdb.deleted.keys", 0);
    put_fixed(b, "rocksdb.external_sst_file.global_seqno", 0, 8);
    put_fixed(b, "rocksdb.external_sst_file.version", 2, 4);
    put_number(b, "rocksdb.filter.size", 0);
    put_number(b, "rocksdb.fixed.key.length", 0);
    put_number(b, "rocksdb.format.version", 0);
    put_number(b, "rocksdb.index.key.is.user.key", 1);
    put_number(b, "rocksdb.index.size", index_bytes);
    put_number(b, "rocksdb.index.value.is.delta.encoded", 0);
    put_number(b, "rocksdb.merge.operands", 0);
    put_text(b, "rocksdb.merge.operator", "nullptr");
    put_number(b, "rocksdb.num.data.blocks", s->n_blocks);
    put_number(b, "rocksdb.num.entries", n);
    put_number(b, "rocksdb.num.range-deletions", 0);
    put_text(b, "rocksdb.prefix.extractor.name", "nullptr");
    put_text(b, "rocksdb.property.collectors", "[]");
    put_number(b, "rocksdb.raw.key.size", s->key_bytes);
    put_number(b, "rocksdb.raw.value.size", s->value_bytes);
}

static void add_footer(sorted *s, place metaindex, place index)
{
    uint8_t footer[FOOTER_BYTES] = {CHECKSUM_XXH3};
    size_t used = 1 + put_place(footer + 1, metaindex);
    (void)put_place(footer + used, index);
    ps_put_le32(footer + PLACES_END, FORMAT_VERSION);
    ps_put_le64(footer + PLACES_END + 4, MAGIC);
    (void)add_bytes(s, footer, sizeof footer, false); /* close says how it failed */
}

static bd_status add_end(sorted *s, size_t n, bd_err *err)
{
    block properties = {0}, metaindex = {0};
    place index_at = {0, 0}, properties_at = {0, 0}, metaindex_at = {0, 0};
    uint8_t handle[2 * MAX_VARINT_BYTES];
    uint64_t data_bytes = ps_through_bytes(s->to);
    bool ok = add_block(s, &s->index, true, &index_at);
    if (ok) {
        put_properties(s, n, data_bytes, index_at.n_bytes + TRAILER_BYTES, &properties);
        ok = add_block(s, &properties, false, &properties_at);
    }
    if (ok) {
        static const char name[] = "rocksdb.properties";
        block_put(&metaindex, name, strlen(name), handle, put_place(handle, properties_at), true);
        ok = add_block(s, &metaindex, false, &metaindex_at);
    }
    if (ok) {
        add_footer(s, metaindex_at, index_at);
    }
    bool no_memory = s->index.no_memory || properties.no_memory || metaindex.no_memory;
    block_deinit(&properties);
    block_deinit(&metaindex);
    return no_memory ? bd_err_set(err, BD_E_NOMEM, "write rows: no memory") : BD_OK;
}

bd_status ps_sorted_write(const char *path, const ps_ref *refs, size_t n, bd_file_prefix **prefix,
                          bd_err *err)
{
    sorted s = {0};
    bd_err second = BD_ERR_INIT;
    size_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        largest = refs[i].value_bytes > largest ? refs[i].value_bytes : largest;
    }
    s.piece_bytes = BLOCK_BYTES + HEAD_BYTES + PS_ENTRY_KEY_BYTES + SEQ_BYTES + largest +
                    (MAX_STARTS + 1) * sizeof(uint32_t) + TRAILER_BYTES;
    *prefix = NULL;
    bd_status rc = ps_through_open(path, s.piece_bytes, &s.to, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = add_rows(&s, refs, n, err);
    if (rc == BD_OK) {
        rc = add_end(&s, n, err);
    }
    block_deinit(&s.index);
    bd_status closed = ps_through_close(s.to, prefix, &second);
    if (rc == BD_OK && closed != BD_OK) {
        *err = second;
        rc = closed;
    }
    if (rc != BD_OK) {
        bd_file_prefix_free(*prefix);
        *prefix = NULL;
    }
    return rc;
}
