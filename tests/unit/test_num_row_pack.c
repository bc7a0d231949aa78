/* Rows that travel packed read as num_row_round says, whatever the codec; bytes that are not rows
 * are a typed error and never more. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/num/row_codec.h"
#include "base/num/row_pack.h"
#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ELEMS = 70000 };

static const int dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_I8};
static const int codecs[] = {NUM_CODEC_NONE, NUM_CODEC_LZ4, NUM_CODEC_ZSTD};
static float x[MAX_ELEMS], want[MAX_ELEMS], got[MAX_ELEMS];

static void draw(size_t n, uint64_t seed)
{
    bd_rand_normal(1, seed, 0, 0, 0.1f, x, n);
    for (size_t i = 0; i < n; i += 97) {
        x[i] = i % 2 == 0 ? 0.0f : -3e38f; /* beyond f16: its largest number */
    }
}

static void round_trip(int dtype, int codec, size_t n_rows, size_t dim)
{
    bd_err err = BD_ERR_INIT;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    draw(n_rows * dim, n_rows + dim);
    memcpy(want, x, n_rows * dim * sizeof(float));
    for (size_t i = 0; i < n_rows; i++) {
        num_row_round(dtype, want + i * dim, dim);
    }
    assert_int_equal(num_rows_pack(dtype, codec, x, n_rows, dim, &bytes, &n_bytes, &err), BD_OK);
    if (codec == NUM_CODEC_NONE) {
        assert_int_equal(n_bytes, n_rows * num_row_bytes(dtype, dim));
    }
    memset(got, 0xff, n_rows * dim * sizeof(float));
    assert_int_equal(num_rows_unpack(dtype, codec, bytes, n_bytes, n_rows, dim, got, &err), BD_OK);
    assert_memory_equal(got, want, n_rows * dim * sizeof(float));
    /* one row more, one byte less: not what was said */
    assert_int_equal(num_rows_unpack(dtype, codec, bytes, n_bytes, n_rows + 1, dim, got, &err),
                     BD_E_CORRUPT);
    if (n_bytes > 0) {
        assert_int_equal(num_rows_unpack(dtype, codec, bytes, n_bytes - 1, n_rows, dim, got, &err),
                         BD_E_CORRUPT);
    }
    bd_free(bytes);
}

static void every_form_reads_as_rounded_rows(void **state)
{
    (void)state;
    static const size_t dims[] = {1, 3, 16, 65}, rows[] = {1, 7, 1000};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
            for (size_t i = 0; i < 4; i++) {
                for (size_t r = 0; r < 3; r++) {
                    round_trip(dtypes[d], codecs[c], rows[r], dims[i]);
                }
            }
        }
    }
}

/* Weights of one size: the plane of exponents shrinks, so that a codec is worth having. */
static void codecs_shrink_weights(void **state)
{
    (void)state;
    for (int c = NUM_CODEC_LZ4; c <= NUM_CODEC_ZSTD; c++) {
        uint8_t *bytes = NULL;
        size_t n = 0;
        bd_rand_uniform(1, 2, 3, 0.5f, 1.0f, x, 64000);
        assert_int_equal(num_rows_pack(NUM_F32, c, x, 1000, 64, &bytes, &n, NULL), BD_OK);
        assert_true(n < 64000 * sizeof(float) * 9 / 10);
        bd_free(bytes);
    }
}

static void what_is_not_known_is_named(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    uint8_t *bytes = NULL, some[64] = {0};
    size_t n = 0;
    assert_int_equal(num_rows_pack(NUM_F32, 9, x, 1, 4, &bytes, &n, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "codec 9"));
    assert_int_equal(num_rows_unpack(NUM_F64, 0, some, 8, 1, 1, got, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "f64"));
    assert_int_equal(num_rows_unpack(NUM_F32, 1, some, 8, SIZE_MAX / 8, 64, got, &err),
                     BD_E_INVALID);
    assert_int_equal(num_codec_parse("gzip"), -1);
    assert_int_equal(num_codec_parse("zstd"), NUM_CODEC_ZSTD);
    assert_string_equal(num_codec_name(NUM_CODEC_LZ4), "lz4");
}

/* Any bytes: an error or some rows, never a read or write outside (ASan watches). */
static void garbage_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[300];
    for (uint64_t seed = 0; seed < 2000; seed++) {
        size_t n = (size_t)(bd_rand_u64(seed, 0, 0) % sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (uint8_t)bd_rand_u64(seed, 1, i);
        }
        for (int c = NUM_CODEC_LZ4; c <= NUM_CODEC_ZSTD; c++) {
            bd_err err = BD_ERR_INIT;
            bd_status rc = num_rows_unpack(NUM_BF16, c, bytes, n, 5, 8, got, &err);
            assert_true(rc == BD_OK || rc == BD_E_CORRUPT);
        }
    }
}

static void no_memory_is_an_error_without_a_leak(void **state)
{
    (void)state;
    uint8_t *bytes = NULL;
    size_t n = 0;
    draw(640, 1);
    long before = bd_mem_live_blocks();
    for (long fail = 0; fail < 3; fail++) {
        bd_fault_fail_alloc(fail);
        assert_int_equal(num_rows_pack(NUM_F16, NUM_CODEC_LZ4, x, 10, 64, &bytes, &n, NULL),
                         BD_E_NOMEM);
        bd_fault_fail_alloc(-1);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_reads_as_rounded_rows),
        cmocka_unit_test(codecs_shrink_weights),
        cmocka_unit_test(what_is_not_known_is_named),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(no_memory_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
