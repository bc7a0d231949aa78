/* The bulk codec: every message survives every way to slice it, agrees with the generated
 * protobuf-c code byte for byte, and refuses what is not protobuf by naming the field. */
#include "base/fault.h"
#include "base/mem.h"

#include "proto/px_int.h"
#include "proto/px_pack.h"

#include "tests/util/px_maker.h"

#include <braid/v1/coordinator.pb-c.h>
#include <braid/v1/parameter_server.pb-c.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct kind_of_message {
    const char *name;
    const px_desc *desc;
    const ProtobufCMessageDescriptor *generated;
} kind_of_message;

static const kind_of_message all_messages[] = {
#define BD_X(name, proto_name) {#proto_name, &px_desc_##name, &braid__v1__##name##__descriptor},
    PX_MESSAGE_MAP(BD_X)
#undef BD_X
};
#define N_MESSAGES (sizeof all_messages / sizeof all_messages[0])

/* ---- bytes ---- */
static bd_buf *encode_flat(const px_desc *d, const void *msg)
{
    bd_chain chain = {0};
    bd_err err = BD_ERR_INIT;
    assert_int_equal(px_encode(d, msg, &chain, &err), BD_OK);
    bd_buf *own = bd_buf_new(chain.n_bytes);
    assert_non_null(own);
    assert_true(bd_chain_read(&chain, 0, own->bytes, chain.n_bytes));
    bd_chain_deinit(&chain);
    return own;
}

static bd_status decode_bytes(const px_desc *d, const void *bytes, size_t n, bd_arena *arena,
                              void *out, bd_chain *chain, bd_err *err)
{
    assert_int_equal(bd_chain_add_copy(chain, bytes, n), BD_OK);
    return px_decode(d, chain, NULL, arena, out, err);
}

static void assert_same_bytes(const bd_buf *a, const bd_buf *b)
{
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_memory_equal(a->bytes, b->bytes, a->n_bytes);
}

/* ---- properties ---- */
static void every_message_survives_every_slicing(void **state)
{
    (void)state;
    static const size_t max_slices[] = {1, 3, 17, 200, 100000};
    long before = bd_mem_live_blocks();
    for (uint64_t i = 0; i < 40 * N_MESSAGES; i++) {
        const kind_of_message *k = &all_messages[i % N_MESSAGES];
        pm_maker m;
        pm_init(&m, i);
        void *msg = bd_arena_calloc(&m.arena, 1, k->desc->size_bytes);
        void *back = bd_arena_calloc(&m.arena, 1, k->desc->size_bytes);
        pm_message(&m, k->desc, msg);
        bd_buf *bytes = encode_flat(k->desc, msg);
        bd_chain chain = {0};
        pm_slice(&m, bytes->bytes, bytes->n_bytes, max_slices[pm_draw(&m, 5)], &chain);
        bd_err err = BD_ERR_INIT;
        assert_int_equal(px_decode(k->desc, &chain, NULL, &m.arena, back, &err), BD_OK);
        bd_buf *again = encode_flat(k->desc, back);
        assert_same_bytes(bytes, again);
        bd_buf_unref(again);
        bd_buf_unref(bytes);
        bd_chain_deinit(&chain);
        pm_deinit(&m);
    }
    assert_int_equal(bd_mem_live_blocks(), before);
}

/* protobuf-c reads our bytes and writes the same ones. */
static void generated_code_reads_and_writes_the_same_bytes(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 40 * N_MESSAGES; i++) {
        const kind_of_message *k = &all_messages[i % N_MESSAGES];
        pm_maker m;
        pm_init(&m, 1000 + i);
        void *msg = bd_arena_calloc(&m.arena, 1, k->desc->size_bytes);
        pm_message(&m, k->desc, msg);
        bd_buf *bytes = encode_flat(k->desc, msg);
        ProtobufCMessage *theirs =
            protobuf_c_message_unpack(k->generated, NULL, bytes->n_bytes, bytes->bytes);
        assert_non_null(theirs);
        assert_int_equal(theirs->n_unknown_fields, 0);
        bd_buf *again = bd_buf_new(protobuf_c_message_get_packed_size(theirs));
        (void)protobuf_c_message_pack(theirs, again->bytes);
        assert_same_bytes(bytes, again);
        bd_buf_unref(again);
        protobuf_c_message_free_unpacked(theirs, NULL);
        bd_buf_unref(bytes);
        pm_deinit(&m);
    }
}

/* Google's own C++ code wrote these (protoc --encode); we read them and write the same bytes. */
static void bytes_written_by_protoc_are_read_and_written_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MESSAGES; i++) {
        char path[128];
        uint8_t bytes[512];
        uint64_t msg[64];
        (void)snprintf(path, sizeof path, "tests/fuzz/fuzz_px/%s", all_messages[i].name);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        size_t n = fread(bytes, 1, sizeof bytes, f);
        (void)fclose(f);
        assert_true(n > 2 && n < sizeof bytes); /* two bytes for the fuzzer, then the message */
        assert_true(all_messages[i].desc->size_bytes <= sizeof msg);
        bd_arena arena;
        bd_arena_init(&arena);
        bd_chain chain = {0};
        assert_int_equal(
            decode_bytes(all_messages[i].desc, bytes + 2, n - 2, &arena, msg, &chain, NULL), BD_OK);
        bd_buf *again = encode_flat(all_messages[i].desc, msg);
        assert_int_equal(again->n_bytes, n - 2);
        assert_memory_equal(again->bytes, bytes + 2, n - 2);
        bd_buf_unref(again);
        bd_chain_deinit(&chain);
        bd_arena_deinit(&arena);
    }
}

/* The tables of px_desc.c name each field as the .proto does, with its number; none is missing. */
static void field_tables_match_the_schema(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MESSAGES; i++) {
        const px_desc *d = all_messages[i].desc;
        const ProtobufCMessageDescriptor *g = all_messages[i].generated;
        assert_string_equal(d->name, g->short_name);
        assert_int_equal(d->n_fields, g->n_fields);
        for (size_t f = 0; f < d->n_fields; f++) {
            const ProtobufCFieldDescriptor *gf =
                protobuf_c_message_descriptor_get_field(g, d->fields[f].number);
            assert_non_null(gf);
            assert_string_equal(d->fields[f].name, gf->name);
        }
    }
}

/* A message of the generated code, read field by field. */
static void push_request_of_generated_code_arrives_field_for_field(void **state)
{
    (void)state;
    uint64_t keys[] = {0, 1, UINT64_MAX};
    float grads[] = {1.5f, -2.0f, 0.25f, 3.0f, -0.0f, 1e-30f};
    Braid__V1__TableGrads table, *tables[] = {&table};
    braid__v1__table_grads__init(&table);
    table.table_id = 7;
    table.dim = 2;
    table.n_keys = 3;
    table.keys = keys;
    table.n_grads = 6;
    table.grads = grads;
    Braid__V1__PushRequest req;
    braid__v1__push_request__init(&req);
    req.job_epoch = 3;
    req.step = 1234567890123;
    req.map_epoch = 5;
    req.rank = 2;
    req.part = 1;
    req.n_parts = 4;
    req.client_id = UINT64_MAX;
    req.sequence = 9;
    req.lr_scale = 0.5;
    req.n_tables = 1;
    req.tables = tables;
    bd_chain chain = {0};
    bd_err err = BD_ERR_INIT;
    assert_int_equal(px_pack(&req.base, &chain, &err), BD_OK);
    bd_arena arena;
    bd_arena_init(&arena);
    px_push_request got;
    assert_int_equal(px_decode_push_request(&chain, NULL, &arena, &got, &err), BD_OK);
    assert_int_equal(got.job_epoch, 3);
    assert_int_equal(got.step, 1234567890123);
    assert_int_equal(got.map_epoch, 5);
    assert_int_equal(got.rank, 2);
    assert_int_equal(got.part, 1);
    assert_int_equal(got.n_parts, 4);
    assert_true(got.client_id == UINT64_MAX);
    assert_int_equal(got.sequence, 9);
    assert_true(got.lr_scale == 0.5);
    assert_int_equal(got.n_tables, 1);
    assert_int_equal(got.tables[0].table_id, 7);
    assert_int_equal(got.tables[0].dim, 2);
    uint64_t keys_back[3];
    float grads_back[6];
    assert_int_equal(px_bulk_count(&got.tables[0].keys), 3);
    assert_int_equal(px_bulk_count(&got.tables[0].grads), 6);
    px_bulk_copy(&got.tables[0].keys, 0, 3, keys_back);
    px_bulk_copy(&got.tables[0].grads, 0, 6, grads_back);
    assert_memory_equal(keys_back, keys, sizeof keys);
    assert_memory_equal(grads_back, grads, sizeof grads);
    bd_arena_deinit(&arena);
    bd_chain_deinit(&chain);
}

/* Signed numbers: enums are sign-extended to ten bytes, sint32 is zigzag. */
static void signed_numbers_agree_with_generated_code(void **state)
{
    (void)state;
    Braid__V1__StreamReply reply;
    char text[] = "parts of rank 1";
    braid__v1__stream_reply__init(&reply);
    reply.status = BD_E_NEED_PARTS;
    reply.text = text;
    bd_chain chain = {0};
    bd_arena arena;
    bd_arena_init(&arena);
    px_stream_reply got;
    assert_int_equal(px_pack(&reply.base, &chain, NULL), BD_OK);
    assert_int_equal(px_decode_stream_reply(&chain, NULL, &arena, &got, NULL), BD_OK);
    assert_int_equal(got.status, BD_E_NEED_PARTS);
    assert_string_equal(got.text, "parts of rank 1");
    assert_null(got.lookup);
    bd_chain_deinit(&chain);
    bd_arena_deinit(&arena);
}

static void a_small_request_has_these_very_bytes(void **state)
{
    (void)state;
    uint64_t keys[2] = {1, 0x0102030405060708u};
    bd_buf *buf = bd_buf_copy(keys, sizeof keys);
    px_table_keys table = {.table_id = 300, .keys = px_bulk_of(buf, 0, 2, 8)};
    px_lookup_request req = {.job_epoch = 1, .rank = 2, .tables = &table, .n_tables = 1};
    static const uint8_t want[] = {0x08, 1, 0x20, 2, 0x2a, 21, 0x08, 0xac, 0x02, 0x12, 16, 1, 0, 0,
                                   0,    0, 0,    0, 0,    8,  7,    6,    5,    4,    3,  2, 1};
    bd_buf *got = encode_flat(&px_desc_lookup_request, &req);
    assert_int_equal(got->n_bytes, sizeof want);
    assert_memory_equal(got->bytes, want, sizeof want);
    bd_buf_unref(got);
    bd_buf_unref(buf);
}

static void encoding_sends_the_callers_own_memory(void **state)
{
    (void)state;
    bd_buf *buf = bd_buf_new(4096);
    memset(buf->bytes, 1, 4096);
    px_table_rows tables[2] = {{.table_id = 1, .dim = 16, .rows = px_bulk_of(buf, 64, 160, 4)},
                               {.table_id = 2, .dim = 16, .rows = px_bulk_of(buf, 1024, 320, 4)}};
    px_lookup_reply reply = {.step = 4, .tables = tables, .n_tables = 2};
    bd_chain chain = {0};
    assert_int_equal(px_encode_lookup_reply(&reply, &chain, NULL), BD_OK);
    assert_int_equal(chain.n_pieces, 4);
    assert_ptr_equal(bd_piece_bytes(&chain.pieces[1]), buf->bytes + 64);
    assert_ptr_equal(bd_piece_bytes(&chain.pieces[3]), buf->bytes + 1024);
    assert_int_equal(atomic_load(&buf->refs), 3);
    bd_chain_deinit(&chain);
    assert_int_equal(atomic_load(&buf->refs), 1);
    bd_buf_unref(buf);
}

/* Packed, unpacked and split runs of one field are one list; unknown fields and groups vanish. */
static void unpacked_and_split_runs_are_joined(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {
        0x12, 8,    1,    0,    0,    0,    0, 0, 0, 0, /* keys, packed: 1 */
        0x78, 99,                                       /* field 15, varint: unknown */
        0x11, 2,    0,    0,    0,    0,    0, 0, 0,    /* keys, unpacked: 2 */
        0x7b, 0x08, 1,    0x7b, 0x7c, 0x7c,             /* field 15, a group in a group: unknown */
        0x12, 0,                                        /* keys, packed: none */
        0x12, 16,   3,    0,    0,    0,    0, 0, 0, 0,
        4,    0,    0,    0,    0,    0,    0, 0, /* keys, packed: 3, 4 */
        0x08, 5,    0x08, 6,                      /* table_id twice: the last one counts */
        0x1d, 0,    0,    0x80, 0x3f,             /* rows, unpacked: 1.0f */
    };
    for (size_t max_slice = 1; max_slice <= sizeof bytes; max_slice++) {
        pm_maker m;
        pm_init(&m, max_slice);
        bd_chain chain = {0};
        pm_slice(&m, bytes, sizeof bytes, max_slice, &chain);
        px_assign_request got;
        bd_err err = BD_ERR_INIT;
        assert_int_equal(px_decode_assign_request(&chain, NULL, &m.arena, &got, &err), BD_OK);
        uint64_t keys[4] = {0};
        assert_int_equal(got.table_id, 6);
        assert_int_equal(px_bulk_count(&got.keys), 4);
        px_bulk_copy(&got.keys, 0, 4, keys);
        for (uint64_t i = 0; i < 4; i++) {
            assert_int_equal(keys[i], i + 1);
        }
        float row = 0;
        assert_int_equal(px_bulk_count(&got.rows), 1);
        px_bulk_copy(&got.rows, 0, 1, &row);
        assert_true(row == 1.0f);
        assert_int_equal(px_bulk_count(&got.state), 0);
        bd_chain_deinit(&chain);
        pm_deinit(&m);
    }
}

/* A oneof holds what came last; the same member twice is merged. */
static void the_last_member_of_a_oneof_wins(void **state)
{
    (void)state;
    bd_arena arena;
    bd_arena_init(&arena);
    px_stream_request got;
    bd_chain chain = {0};
    static const uint8_t bytes[] = {0x12, 2, 0x08, 9, 0x22, 2, 0x10, 4, 0x22, 2, 0x18, 3};
    assert_int_equal(
        decode_bytes(&px_desc_stream_request, bytes, sizeof bytes, &arena, &got, &chain, NULL),
        BD_OK);
    assert_null(got.lookup);
    assert_null(got.push);
    assert_int_equal(got.commit->step, 4);
    assert_int_equal(got.commit->rank, 3);
    bd_chain_deinit(&chain);
    bd_arena_deinit(&arena);
}

/* A message cut anywhere is refused, unless the cut lies between two fields: as protobuf-c says. */
static void a_cut_message_is_refused_where_generated_code_refuses_it(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 4 * N_MESSAGES; i++) {
        const kind_of_message *k = &all_messages[i % N_MESSAGES];
        pm_maker m;
        pm_init(&m, 5000 + i);
        void *msg = bd_arena_calloc(&m.arena, 1, k->desc->size_bytes);
        pm_message(&m, k->desc, msg);
        bd_buf *bytes = encode_flat(k->desc, msg);
        for (size_t cut = 0; cut < bytes->n_bytes; cut += 1 + (bytes->n_bytes >> 9)) {
            bd_chain chain = {0};
            bd_arena arena;
            bd_arena_init(&arena);
            pm_slice(&m, bytes->bytes, cut, 64, &chain);
            bd_err err = BD_ERR_INIT;
            bd_status rc = px_decode(k->desc, &chain, NULL, &arena, msg, &err);
            ProtobufCMessage *theirs =
                protobuf_c_message_unpack(k->generated, NULL, cut, bytes->bytes);
            assert_int_equal(rc, theirs != NULL ? BD_OK : BD_E_CORRUPT);
            if (theirs != NULL) {
                protobuf_c_message_free_unpacked(theirs, NULL);
            }
            bd_chain_deinit(&chain);
            bd_arena_deinit(&arena);
        }
        bd_buf_unref(bytes);
        pm_deinit(&m);
    }
}

/* Damaged bytes give a message or BD_E_CORRUPT; what was accepted can be sent on. */
static void damaged_bytes_never_break_the_decoder(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200 * N_MESSAGES; i++) {
        const kind_of_message *k = &all_messages[i % N_MESSAGES];
        pm_maker m;
        pm_init(&m, 9000 + i);
        void *msg = bd_arena_calloc(&m.arena, 1, k->desc->size_bytes);
        pm_message(&m, k->desc, msg);
        bd_buf *bytes = encode_flat(k->desc, msg);
        for (size_t hits = 1 + pm_draw(&m, 4); hits > 0 && bytes->n_bytes > 0; hits--) {
            bytes->bytes[pm_draw(&m, bytes->n_bytes)] = (uint8_t)pm_draw(&m, 256);
        }
        bd_chain chain = {0};
        pm_slice(&m, bytes->bytes, bytes->n_bytes, 64, &chain);
        bd_err err = BD_ERR_INIT;
        bd_status rc = px_decode(k->desc, &chain, NULL, &m.arena, msg, &err);
        if (rc == BD_OK) {
            bd_buf_unref(encode_flat(k->desc, msg));
        } else {
            assert_int_equal(rc, BD_E_CORRUPT);
            assert_int_equal(err.code, BD_E_CORRUPT);
        }
        bd_buf_unref(bytes);
        bd_chain_deinit(&chain);
        pm_deinit(&m);
    }
}

typedef struct bad_bytes {
    const char *text; /* part of the error */
    size_t n_bytes;
    uint8_t bytes[16];
} bad_bytes;

static void errors_name_message_field_and_reason(void **state)
{
    (void)state;
#define BAD(text, ...)                                \
    {                                                 \
        text, sizeof((const uint8_t[]){__VA_ARGS__}), \
        {                                             \
            __VA_ARGS__                               \
        }                                             \
    }
    static const bad_bytes cases[] = {
        BAD("PushRequest.tables[0]: TableGrads.keys: packed length is not a multiple of 8", 0x52, 5,
            0x1a, 3, 1, 2, 3),
        BAD("PushRequest.tables[1]: TableGrads.grads: packed length is not a multiple of 4", 0x52,
            0, 0x52, 4, 0x22, 2, 1, 2),
        BAD("PushRequest.tables[0]: TableGrads.keys: length exceeds the message (100)", 0x52, 2,
            0x1a, 100),
        BAD("PushRequest.tables[0]: TableGrads.keys: value cut off", 0x52, 2, 0x19, 1),
        BAD("PushRequest.tables: length exceeds the message (9)", 0x52, 9, 0),
        BAD("PushRequest.step: number cut off", 0x10, 0x80),
        BAD("PushRequest.step: number longer than 10 bytes", 0x10, 0x80, 0x80, 0x80, 0x80, 0x80,
            0x80, 0x80, 0x80, 0x80, 0x80, 0),
        BAD("PushRequest.lr_scale: value cut off, bytes left (3)", 0x49, 1, 2, 3),
        BAD("not a field tag (0)", 0),
        BAD("PushRequest.field 15: unexpected wire type (7)", 0x7f),
        BAD("PushRequest.field 15: group ended by the mark of field (14)", 0x7b, 0x74),
        BAD("PushRequest.field 15: unexpected wire type (4)", 0x7c),
    };
#undef BAD
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_arena arena;
        bd_chain chain = {0};
        bd_err err = BD_ERR_INIT;
        px_push_request got = {.step = 77};
        bd_arena_init(&arena);
        assert_int_equal(decode_bytes(&px_desc_push_request, cases[i].bytes, cases[i].n_bytes,
                                      &arena, &got, &chain, &err),
                         BD_E_CORRUPT);
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("got \"%s\", want \"%s\"", err.text, cases[i].text);
        }
        assert_int_equal(got.step, 77); /* untouched */
        bd_chain_deinit(&chain);
        bd_arena_deinit(&arena);
    }
}

static void limits_hold_before_memory_is_taken(void **state)
{
    (void)state;
    static const uint8_t tables[] = {0x2a, 0, 0x2a, 0, 0x2a, 0};
    px_limits limits = {.max_bytes = sizeof tables, .max_tables = 2, .max_text_bytes = 1};
    bd_chain chain = {0};
    bd_arena arena;
    bd_arena_init(&arena);
    px_lookup_request got;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_chain_add_copy(&chain, tables, sizeof tables), BD_OK);
    assert_int_equal(px_decode_lookup_request(&chain, &limits, &arena, &got, &err), BD_E_CORRUPT);
    assert_non_null(strstr(err.text, "LookupRequest.tables: too many entries, limit (2)"));
    limits.max_tables = 3;
    assert_int_equal(px_decode_lookup_request(&chain, &limits, &arena, &got, &err), BD_OK);
    assert_int_equal(got.n_tables, 3);
    limits.max_bytes = 5;
    assert_int_equal(px_decode_lookup_request(&chain, &limits, &arena, &got, &err), BD_E_CORRUPT);
    bd_chain_deinit(&chain);
    static const uint8_t text[] = {0x1a, 2, 'a', 'b'};
    px_stream_reply reply;
    assert_int_equal(bd_chain_add_copy(&chain, text, sizeof text), BD_OK);
    assert_int_equal(px_decode_stream_reply(&chain, &limits, &arena, &reply, &err), BD_E_CORRUPT);
    assert_non_null(strstr(err.text, "StreamReply.text: text too long"));
    bd_chain_deinit(&chain);
    /* Groups within groups would recurse as deep as the peer likes. */
    uint8_t deep[100];
    memset(deep, 0x7b, sizeof deep);
    assert_int_equal(bd_chain_add_copy(&chain, deep, sizeof deep), BD_OK);
    assert_int_equal(px_decode_lookup_request(&chain, NULL, &arena, &got, &err), BD_E_CORRUPT);
    assert_non_null(strstr(err.text, "groups nested too deep"));
    bd_chain_deinit(&chain);
    bd_arena_deinit(&arena);
}

/* Copy, walk and pointer see the same elements, wherever the slices are cut. */
static void every_reader_of_a_bulk_sees_the_same_elements(void **state)
{
    (void)state;
    enum { N = 240, DIM = 8 };
    float rows[N];
    for (int i = 0; i < N; i++) {
        rows[i] = (float)i + 0.5f;
    }
    bd_buf *buf = bd_buf_copy(rows, sizeof rows);
    px_table_rows table = {.table_id = 1, .dim = DIM, .rows = px_bulk_of(buf, 0, N, 4)};
    px_lookup_reply reply = {.tables = &table, .n_tables = 1};
    bd_buf *bytes = encode_flat(&px_desc_lookup_reply, &reply);
    for (size_t max_slice = 1; max_slice < 300; max_slice += 13) {
        pm_maker m;
        pm_init(&m, max_slice);
        bd_chain chain = {0};
        px_lookup_reply got;
        pm_slice(&m, bytes->bytes, bytes->n_bytes, max_slice, &chain);
        assert_int_equal(px_decode_lookup_reply(&chain, NULL, &m.arena, &got, NULL), BD_OK);
        const px_bulk *b = &got.tables[0].rows;
        px_walk walk;
        px_walk_init(&walk, b);
        for (size_t r = 0; r < N / DIM; r++) {
            float copied[DIM], scratch[DIM];
            px_bulk_copy(b, r * DIM, DIM, copied);
            assert_memory_equal(copied, rows + r * DIM, sizeof copied);
            assert_memory_equal(px_walk_next(&walk, DIM, scratch), copied, sizeof copied);
            const float *p = px_bulk_ptr(b, r * DIM, DIM);
            if (p != NULL) {
                assert_int_equal((uintptr_t)p % sizeof *p, 0);
                assert_memory_equal(p, copied, sizeof copied);
            }
        }
        float *all = bd_arena_alloc(&m.arena, sizeof rows);
        px_bulk_copy(b, 0, N, all);
        assert_memory_equal(all, rows, sizeof rows);
        px_bulk_copy(b, N, 0, all);
        bd_chain_deinit(&chain);
        pm_deinit(&m);
    }
    const float *whole = px_bulk_ptr(&table.rows, 8, 16); /* one aligned piece: no copy */
    assert_ptr_equal(whole, (float *)(void *)buf->bytes + 8);
    bd_buf_unref(bytes);
    bd_buf_unref(buf);
}

static void encoding_and_decoding_survive_every_allocation_failure(void **state)
{
    (void)state;
    pm_maker m;
    pm_init(&m, 31);
    void *msg = bd_arena_calloc(&m.arena, 1, sizeof(px_push_request));
    pm_message(&m, &px_desc_push_request, msg);
    assert_true(((px_push_request *)msg)->n_tables > 2);
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    bd_chain chain = {0};
    long nth = 0;
    for (; rc != BD_OK; nth++) {
        bd_fault_fail_alloc(nth);
        bd_err err = BD_ERR_INIT;
        rc = px_encode_push_request(msg, &chain, &err);
        bd_fault_fail_alloc(-1);
        if (rc != BD_OK) {
            assert_int_equal(rc, BD_E_NOMEM);
            assert_int_equal(bd_mem_live_blocks(), before);
            assert_int_equal(chain.n_pieces, 0);
        }
    }
    assert_true(nth > 2);
    bd_chain_deinit(&chain);
    bd_buf *bytes = encode_flat(&px_desc_push_request, msg);
    pm_slice(&m, bytes->bytes, bytes->n_bytes, 4, &chain);
    rc = BD_E_NOMEM;
    for (nth = 0; rc != BD_OK; nth++) {
        bd_arena arena;
        bd_arena_init(&arena);
        bd_fault_fail_alloc(nth);
        px_push_request got;
        rc = px_decode_push_request(&chain, NULL, &arena, &got, NULL);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        bd_arena_deinit(&arena);
    }
    assert_true(nth > 1);
    bd_buf_unref(bytes);
    bd_chain_deinit(&chain);
    pm_deinit(&m);
}

int main(void)
{
    (void)printf("seed %u\n", PM_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_survives_every_slicing),
        cmocka_unit_test(generated_code_reads_and_writes_the_same_bytes),
        cmocka_unit_test(bytes_written_by_protoc_are_read_and_written_alike),
        cmocka_unit_test(field_tables_match_the_schema),
        cmocka_unit_test(push_request_of_generated_code_arrives_field_for_field),
        cmocka_unit_test(signed_numbers_agree_with_generated_code),
        cmocka_unit_test(a_small_request_has_these_very_bytes),
        cmocka_unit_test(encoding_sends_the_callers_own_memory),
        cmocka_unit_test(unpacked_and_split_runs_are_joined),
        cmocka_unit_test(the_last_member_of_a_oneof_wins),
        cmocka_unit_test(a_cut_message_is_refused_where_generated_code_refuses_it),
        cmocka_unit_test(damaged_bytes_never_break_the_decoder),
        cmocka_unit_test(errors_name_message_field_and_reason),
        cmocka_unit_test(limits_hold_before_memory_is_taken),
        cmocka_unit_test(every_reader_of_a_bulk_sees_the_same_elements),
        cmocka_unit_test(encoding_and_decoding_survive_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
