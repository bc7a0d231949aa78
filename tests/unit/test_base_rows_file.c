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
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_E_DATA);
    assert_non_null(strstr(bd_err_text(&err), "d.rows.npy: 1000 rows of 12 bytes"));
    assert_int_equal(truncate(file, 128 + N * DIM * 4), 0); /* as it was, with zeros */
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_OK);
    assert_int_equal(truncate(file, 128 + 10 * DIM * 4), 0); /* while it is read */
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
    assert_non_null(strstr(bd_err_text(&err), "e.rows.npy: must be 'descr': '<f4'"));
}

static void put_file(const char *name, const char *header, size_t data_bytes)
{
    char file[160];
    (void)snprintf(file, sizeof file, "%s/%s", dir, name);
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    size_t n = strlen(header);
    const unsigned char head[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
    assert_int_equal(fwrite(head, sizeof head, 1, f), 1);
    assert_int_equal(fwrite(header, 1, n, f), n);
    for (size_t i = 0; i < data_bytes; i++) {
        assert_int_not_equal(fputc(0, f), EOF);
    }
    assert_int_equal(fclose(f), 0);
}

#define C_KEYS "{'descr': '<u8', 'fortran_order': False, 'shape': (4,), }\n"
#define C_ROWS "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }\n"

/* Headers as NumPy writes them, of arrays that are something else, and headers that lie: all are
 * found before a row is handed out, by the name of the array. */
static void headers_of_other_arrays_are_refused(void **s)
{
    static const struct {
        const char *what, *keys, *rows;
        size_t key_bytes, row_bytes;
        bd_status rc;
        const char *words;
    } cases[] = {
        {"good", C_KEYS, C_ROWS, 32, 48, BD_OK, ""},
        {"no rows", "{'descr': '<u8', 'fortran_order': False, 'shape': (0,), }\n",
         "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }\n", 0, 0, BD_OK, ""},
        {"Fortran order", C_KEYS, "{'descr': '<f4', 'fortran_order': True, 'shape': (4, 3), }\n",
         32, 48, BD_E_DATA,
         "h.rows.npy: must be 'descr': '<f4' in C order, is {'descr': '<f4', 'fo"},
        {"float64", C_KEYS, "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3), }\n", 32, 96,
         BD_E_DATA, "is {'descr': '<f8'"},
        {"big-endian", C_KEYS, "{'descr': '>f4', 'fortran_order': False, 'shape': (4, 3), }\n", 32,
         48, BD_E_DATA, "is {'descr': '>f4'"},
        {"a record of floats", C_KEYS,
         "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 3), }\n", 32, 48,
         BD_E_DATA, "h.rows.npy: must be"},
        {"signed keys", "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }\n", C_ROWS, 32,
         48, BD_E_DATA, "h.keys.npy: must be 'descr': '<u8'"},
        {"flat rows", C_KEYS, "{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }\n", 32,
         48, BD_E_DATA, "h.rows.npy: the shape must be (n, elements)"},
        {"a cube", C_KEYS, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3, 1), }\n", 32,
         48, BD_E_DATA, "h.rows.npy: the shape"},
        {"no columns", C_KEYS, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 0), }\n", 32,
         0, BD_E_DATA, "h.rows.npy: the shape"},
        {"keys of two columns", "{'descr': '<u8', 'fortran_order': False, 'shape': (4, 1), }\n",
         C_ROWS, 32, 48, BD_E_DATA, "h.keys.npy: the shape must be (n,)"},
        {"fewer rows than keys", C_KEYS,
         "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }\n", 32, 36, BD_E_DATA,
         "h.rows.npy has 3 rows"},
        {"a negative number", "{'descr': '<u8', 'fortran_order': False, 'shape': (-4,), }\n",
         C_ROWS, 32, 48, BD_E_DATA, "h.keys.npy: the shape"},
        {"over 64 bits",
         "{'descr': '<u8', 'fortran_order': False, 'shape': (36893488147419103236,), }\n", C_ROWS,
         32, 48, BD_E_DATA, "h.keys.npy: the shape"},
        {"bytes over 64 bits", C_KEYS,
         "{'descr': '<f4', 'fortran_order': False, 'shape': (6148914691236517209, 3), }\n", 32, 48,
         BD_E_DATA, "h.rows.npy: 6148914691236517209 rows"},
        {"says fewer than there are", "{'descr': '<u8', 'fortran_order': False, 'shape': (3,), }\n",
         "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }\n", 24, 48, BD_E_DATA,
         "h.rows.npy: 3 rows of 12 bytes by its header, but 48 bytes of data"},
        {"says more than there are", C_KEYS, C_ROWS, 32, 47, BD_E_DATA, "but 47 bytes of data"},
        {"no shape", C_KEYS, "{'descr': '<f4', 'fortran_order': False, }\n", 32, 48, BD_E_DATA,
         "h.rows.npy: the shape"},
        {"nothing", C_KEYS, "", 32, 0, BD_E_DATA, "h.rows.npy: must be"},
    };
    (void)s;
    (void)snprintf(path, sizeof path, "%s/h.npy", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_rows_reader *r = NULL;
        bd_err err = BD_ERR_INIT;
        put_file("h.keys.npy", cases[i].keys, cases[i].key_bytes);
        put_file("h.rows.npy", cases[i].rows, cases[i].row_bytes);
        bd_status rc = bd_rows_reader_open(path, &r, &err);
        const char *text = rc == BD_OK ? "" : bd_err_text(&err);
        if (rc != cases[i].rc || strstr(text, cases[i].words) == NULL ||
            strchr(text, '\n') != NULL) {
            fail_msg("%s: %s: \"%s\"", cases[i].what, bd_status_name(rc), text);
        }
        bd_rows_reader_close(r);
    }
}

/* State that is there but cannot be read is an error, not rows without state. */
static void state_that_cannot_be_read_is_named(void **s)
{
    bd_rows_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    char file[160];
    (void)s;
    write_rows("s.npy", false);
    (void)snprintf(file, sizeof file, "%s/s.state.npy", dir);
    assert_int_equal(symlink("s.state.npy", file), 0); /* to itself: ELOOP, for root too */
    assert_int_equal(bd_rows_reader_open(path, &r, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "s.state.npy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_bit_for_bit),
        cmocka_unit_test(a_dropped_file_leaves_nothing),
        cmocka_unit_test(bad_text_is_named_by_line),
        cmocka_unit_test(bad_arrays_are_named),
        cmocka_unit_test(headers_of_other_arrays_are_refused),
        cmocka_unit_test(state_that_cannot_be_read_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
