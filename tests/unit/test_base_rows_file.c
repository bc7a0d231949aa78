/* Rows as flat files: what is written is read back bit for bit, and what is not such a file is
 * refused by file and line. */
#include "base/mem.h"
#include "base/rand.h"
#include "base/rows_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DIM   3u
#define STATE 2u
#define N     1000u

static char dir[64], path[128];
static uint64_t keys[N];
static float rows[N * DIM], state[N * STATE];

static int setup(void **s)
{
    (void)s;
    (void)snprintf(dir, sizeof dir, "/tmp/test_rows_file.XXXXXX");
    for (size_t i = 0; i < N; i++) {
        keys[i] = bd_rand_u64(1, 0, i);
        bd_rand_normal(2, 0, i, 0.0f, 1.0f, rows + i * DIM, DIM);
        bd_rand_normal(3, 0, i, 0.0f, 1e-30f, state + i * STATE, STATE);
    }
    keys[0] = 0;
    keys[1] = UINT64_MAX;
    rows[0] = INFINITY;
    rows[1] = -INFINITY;
    rows[2] = -0.0f;
    rows[3] = NAN;
    rows[4] = 1.17549435e-38f;
    rows[5] = 1e-45f; /* the smallest one there is */
    return mkdtemp(dir) == NULL;
}

static int teardown(void **s)
{
    char cmd[160];
    (void)s;
    (void)snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd); // NOLINT: a folder of our own making
}

static void write_rows(const char *name, bool with_state)
{
    bd_rows_writer *w = NULL;
    bd_err err = BD_ERR_INIT;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(bd_rows_writer_open(path, DIM, with_state ? STATE : 0, &w, &err), BD_OK);
    for (size_t at = 0; at < N; at += 300) {
        size_t n = N - at < 300 ? N - at : 300;
        assert_int_equal(
            bd_rows_writer_put(w, n, keys + at, rows + at * DIM, state + at * STATE, &err), BD_OK);
    }
    assert_int_equal(bd_rows_writer_close(w, 1, &err), BD_OK);
}

static void read_rows(bool with_state)
{
    bd_rows_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    uint64_t k[64];
    float x[64 * DIM], s[64 * STATE];
    size_t n = 1, at = 0;
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_OK);
    assert_int_equal(bd_rows_reader_dim(r), DIM);
    assert_int_equal(bd_rows_reader_state_elems(r), with_state ? STATE : 0);
    while (n > 0) {
        assert_int_equal(bd_rows_reader_next(r, 64, k, x, s, &n, &err), BD_OK);
        assert_true(at + n <= N);
        for (size_t i = 0; i < n; i++, at++) {
            assert_int_equal(k[i], keys[at]);
            for (size_t d = 0; d < DIM; d++) { /* a NaN is a NaN, not its bits */
                float want = rows[at * DIM + d], got = x[i * DIM + d];
                assert_true(isnan(want) ? isnan(got)
                                        : want == got && signbit(want) == signbit(got));
            }
            if (with_state) {
                assert_memory_equal(s + i * STATE, state + at * STATE, STATE * sizeof *s);
            }
        }
    }
    assert_int_equal(at, N);
    bd_rows_reader_close(r);
}

static void rows_come_back_bit_for_bit(void **s)
{
    const char *const names[] = {"a.tsv", "a.npy"};
    long before = bd_mem_live_blocks();
    (void)s;
    for (size_t i = 0; i < 2; i++) {
        write_rows(names[i], true);
        read_rows(true);
    }
    for (size_t i = 0; i < 2; i++) {
        char other[16];
        (void)snprintf(other, sizeof other, "b%s", names[i]);
        write_rows(other, false);
        read_rows(false);
    }
    assert_int_equal(bd_mem_live_blocks(), before);
}

/* A writer that is given up leaves nothing. */
static void a_dropped_file_leaves_nothing(void **s)
{
    bd_rows_writer *w = NULL;
    bd_err err = BD_ERR_INIT;
    (void)s;
    (void)snprintf(path, sizeof path, "%s/c.tsv", dir);
    assert_int_equal(bd_rows_writer_open(path, DIM, 0, &w, &err), BD_OK);
    assert_int_equal(bd_rows_writer_put(w, 1, keys, rows, NULL, &err), BD_OK);
    assert_int_equal(bd_rows_writer_close(w, 0, &err), BD_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    (void)strncat(path, ".tmp", sizeof path - strlen(path) - 1);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(bd_rows_writer_open("/tmp/x.csv", DIM, 0, &w, &err), BD_E_USAGE);
    assert_int_equal(bd_rows_writer_open("/no/such/x.tsv", DIM, 0, &w, &err), BD_E_IO);
}

/* The text of a .tsv fails with this code and these words. */
static void refuse(const char *text, const char *words)
{
    bd_rows_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    uint64_t k[8];
    float x[8 * 8];
    size_t n = 1;
    (void)snprintf(path, sizeof path, "%s/bad.tsv", dir);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    bd_status rc = bd_rows_reader_open(path, &r, &err);
    while (rc == BD_OK && n > 0) {
        rc = bd_rows_reader_next(r, 8, k, x, NULL, &n, &err);
    }
    bd_rows_reader_close(r);
    assert_int_equal(rc, BD_E_DATA);
    if (strstr(bd_err_text(&err), words) == NULL) {
        fail_msg("\"%s\" says \"%s\", not \"%s\"", text, bd_err_text(&err), words);
    }
}

static void bad_text_is_named_by_line(void **s)
{
    (void)s;
    refuse("", "bad.tsv:1:");
    refuse("1\t2\t3\n", "bad.tsv:1:");
    refuse("key\tw0\tw2\n", "w2");
    refuse("key\ts0\tw0\n", "w0");
    refuse("key\ts0\n", "no column w0");
    refuse("key\tw0\n1\t0.5\nx\t1\n", "bad.tsv:3: a key is a decimal number");
    refuse("key\tw0\n18446744073709551616\t1\n", "does not fit 64 bits");
    refuse("key\tw0\n-1\t1\n", "bad.tsv:2:");
    refuse("key\tw0\tw1\n5\t1\n", "key 5 must have 2 numbers");
    refuse("key\tw0\n5\t1\t2\n", "key 5 must have 1 numbers");
    refuse("key\tw0\n5\tone\n", "one\"");
}

/* Cut off, or another shape: the array is named. */
static void bad_arrays_are_named(void **s)
{
    bd_rows_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    char file[160];
    static uint64_t k[N];
    static float x[N * DIM];
    size_t n = 0;
    (void)s;
    write_rows("d.npy", false);
    (void)snprintf(file, sizeof file, "%s/d.rows.npy", dir);
    assert_int_equal(truncate(file, 128 + 10 * DIM * 4), 0);
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_OK);
    assert_int_equal(bd_rows_reader_next(r, N, k, x, NULL, &n, &err), BD_E_DATA);
    assert_non_null(strstr(bd_err_text(&err), "d.rows.npy ends before"));
    bd_rows_reader_close(r);
    assert_int_equal(truncate(file, 50), 0);
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_E_DATA);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_E_NOT_FOUND);
    (void)snprintf(path, sizeof path, "%s/d.keys.npy", dir); /* keys where rows must be */
    assert_int_equal(rename(path, file), 0);
    write_rows("e.npy", false);
    (void)snprintf(path, sizeof path, "%s/e.rows.npy", dir);
    assert_int_equal(rename(file, path), 0);
    (void)snprintf(path, sizeof path, "%s/e.npy", dir);
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_E_DATA);
    assert_non_null(strstr(bd_err_text(&err), "e.rows.npy: must be '<f4'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_bit_for_bit),
        cmocka_unit_test(a_dropped_file_leaves_nothing),
        cmocka_unit_test(bad_text_is_named_by_line),
        cmocka_unit_test(bad_arrays_are_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
