/* The header's bytes are a format: they may not change without a new version. */
#include "ring/ring_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const ring_frame sample = {.kind = RING_FRAME_DATA,
                                  .op = RING_OP_ALLREDUCE,
                                  .dtype = 1,
                                  .reduce = 2,
                                  .root = -1,
                                  .group = 0x1122334455667788u,
                                  .epoch = 5,
                                  .seq = 0x0102030405u,
                                  .count = (uint64_t)1 << 40,
                                  .name_hash = 0xaabbccddeeff0011u,
                                  .step = 3,
                                  .segment = 4,
                                  .payload_bytes = ((uint64_t)1 << 33) + 1,
                                  .rank = 6,
                                  .world = 8,
                                  .name = "fc1.w"};

static void bytes_are_as_documented(void **state)
{
    (void)state;
    static const uint8_t want[RING_FRAME_BYTES] = {
        'B',  'R',  'N',  'G',  1,    0,    1,    1,    /* magic, version, kind, op */
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* group */
        5,    0,    0,    0,    0,    0,    0,    0,    /* epoch */
        5,    4,    3,    2,    1,    0,    0,    0,    /* seq */
        1,    2,    0,    0,    0xff, 0xff, 0xff, 0xff, /* dtype, reduce, 0, root */
        0,    0,    0,    0,    0,    1,    0,    0,    /* count */
        0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, /* name hash */
        3,    0,    0,    0,    4,    0,    0,    0,    /* step, segment */
        1,    0,    0,    0,    2,    0,    0,    0,    /* payload */
        6,    0,    0,    0,    8,    0,    0,    0,    /* rank, world */
        'f',  'c',  '1',  '.',  'w'};
    uint8_t got[RING_FRAME_BYTES];
    ring_frame_encode(&sample, got);
    assert_memory_equal(got, want, sizeof want);
}

static void decode_gives_back_what_was_encoded(void **state)
{
    (void)state;
    uint8_t bytes[RING_FRAME_BYTES];
    ring_frame f;
    bd_err err = BD_ERR_INIT;
    ring_frame_encode(&sample, bytes);
    assert_int_equal(ring_frame_decode(bytes, &f, &err), BD_OK);
    assert_int_equal(f.root, -1);
    assert_int_equal(f.count, sample.count);
    assert_int_equal(f.payload_bytes, sample.payload_bytes);
    assert_int_equal(f.name_hash, sample.name_hash);
    assert_int_equal(f.rank, 6);
    assert_string_equal(f.name, "fc1.w");
    uint8_t again[RING_FRAME_BYTES];
    ring_frame_encode(&f, again);
    assert_memory_equal(again, bytes, sizeof bytes);
}

static void corrupt_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t byte;
        const char *text;
    } cases[] = {{0, 'X', "magic"},
                 {4, 2, "version"},
                 {6, 0, "kind"},
                 {6, 200, "kind"},
                 {RING_FRAME_BYTES - 1, 'x', "name"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[RING_FRAME_BYTES];
        ring_frame f = {.rank = 77};
        bd_err err = BD_ERR_INIT;
        ring_frame_encode(&sample, bytes);
        bytes[cases[i].at] = cases[i].byte;
        assert_int_equal(ring_frame_decode(bytes, &f, &err), BD_E_CORRUPT);
        assert_non_null(strstr(err.text, cases[i].text));
        assert_int_equal(f.rank, 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_documented),
        cmocka_unit_test(decode_gives_back_what_was_encoded),
        cmocka_unit_test(corrupt_headers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
