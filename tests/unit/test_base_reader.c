/* Reading lines: the same lines from plain, gzip and zstd files; cuts and damage name file:line. */
#include "base/fault.h"
#include "base/gzip.h"
#include "base/mem.h"
#include "base/reader.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

enum { N_FORMATS = 3 };

static char path[64];

static int make_path(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/braid_test_reader_XXXXXX");
    int fd = mkstemp(path);
    return fd >= 0 ? close(fd) : -1;
}

static int drop_path(void **state)
{
    (void)state;
    return unlink(path);
}

static void put_file(const void *bytes, size_t n, bool append)
{
    FILE *f = fopen(path, append ? "ab" : "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t gzip(const void *text, size_t n, uint8_t *out, size_t cap)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = bd_unconst(text);
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(deflateEnd(&z), Z_OK);
    return z.total_out;
}

/* Writes the text as one member or frame of the format. */
static void put_text(int format, const char *text, size_t n, bool append)
{
    size_t cap = n + n / 2 + 1024;
    uint8_t *packed = malloc(cap);
    if (format == 0) {
        put_file(text, n, append);
    } else if (format == 1) {
        put_file(packed, gzip(text, n, packed, cap), append);
    } else {
        size_t done = ZSTD_compress(packed, cap, text, n, 3);
        assert_false(ZSTD_isError(done));
        put_file(packed, done, append);
    }
    free(packed);
}

static bd_reader *opened(void)
{
    bd_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    bd_status rc = bd_reader_open(path, &r, &err);
    if (rc != BD_OK) {
        print_error("%s\n", err.text);
    }
    assert_int_equal(rc, BD_OK);
    return r;
}

static void expect_line(bd_reader *r, const char *want, uint64_t line_no)
{
    char *line = NULL;
    size_t n = 99;
    assert_int_equal(bd_reader_line(r, &line, &n, NULL), BD_OK);
    if (want == NULL) {
        assert_null(line);
        assert_int_equal(n, 0);
        return;
    }
    assert_non_null(line);
    assert_string_equal(line, want);
    assert_int_equal(n, strlen(want));
    assert_int_equal(bd_reader_line_no(r), line_no);
}

static void all_formats_give_the_same_lines(void **state)
{
    (void)state;
    static const char text[] = "one\r\n\ntwo words\r\n\r\rlast";
    for (int format = 0; format < N_FORMATS; format++) {
        put_text(format, text, sizeof text - 1, false);
        bd_reader *r = opened();
        assert_int_equal(bd_reader_line_no(r), 0);
        for (int round = 0; round < 2; round++) {
            expect_line(r, "one", 1);
            expect_line(r, "", 2);
            expect_line(r, "two words", 3);
            expect_line(r, "\r\rlast", 4);
            expect_line(r, NULL, 4);
            expect_line(r, NULL, 4);
            assert_int_equal(bd_reader_rewind(r, NULL), BD_OK);
        }
        assert_string_equal(bd_reader_path(r), path);
        bd_reader_close(r);
    }
}

static void members_one_after_the_other_are_one_file(void **state)
{
    (void)state;
    for (int format = 0; format < N_FORMATS; format++) {
        put_text(format, "a\nb", 3, false);
        put_text(format, "", 0, true);
        put_text(format, "c\nd\n", 4, true);
        bd_reader *r = opened();
        expect_line(r, "a", 1);
        expect_line(r, "bc", 2);
        expect_line(r, "d", 3);
        expect_line(r, NULL, 3);
        bd_reader_close(r);
    }
}

static void what_base_compresses_it_reads(void **state)
{
    (void)state;
    static char text[200000];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = i % 100 == 99 ? '\n' : (char)('a' + i % 7 + i / 100 % 17);
    }
    bd_buf *member = bd_gzip_member(text, sizeof text);
    assert_non_null(member);
    assert_true(member->n_bytes < sizeof text / 4);
    put_file(member->bytes, member->n_bytes, false);
    bd_reader *r = opened();
    for (size_t i = 0; i < sizeof text / 100; i++) {
        char *line;
        size_t n;
        assert_int_equal(bd_reader_line(r, &line, &n, NULL), BD_OK);
        assert_int_equal(n, 99);
        assert_memory_equal(line, text + i * 100, 99);
    }
    expect_line(r, NULL, sizeof text / 100);
    bd_reader_close(r);
    bd_buf_unref(member);
}

static void empty_files_and_marks(void **state)
{
    (void)state;
    for (int format = 0; format < N_FORMATS; format++) {
        put_text(format, "", 0, false);
        bd_reader *r = opened();
        expect_line(r, NULL, 0);
        bd_reader_close(r);
        put_text(format,
                 "\xef\xbb\xbf"
                 "a,b\n",
                 7, false);
        r = opened();
        expect_line(r, "a,b", 1);
        expect_line(r, NULL, 1);
        bd_reader_close(r);
    }
    put_file("\n", 1, false);
    bd_reader *r = opened();
    expect_line(r, "", 1);
    expect_line(r, NULL, 1);
    bd_reader_close(r);
}

/* Lines around every boundary of the 64 KiB chunks. */
static void long_lines_cross_the_chunks(void **state)
{
    (void)state;
    static const size_t lengths[] = {65533, 65534, 65535, 65536, 65537, 1, 300000, 0, 131071};
    enum { N = sizeof lengths / sizeof lengths[0] };
    char *text = malloc(1 << 20);
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        memset(text + n, 'a' + (int)i, lengths[i]);
        n += lengths[i];
        text[n++] = '\n';
    }
    for (int format = 0; format < N_FORMATS; format++) {
        put_text(format, text, n, false);
        bd_reader *r = opened();
        for (size_t i = 0; i < N; i++) {
            char *line;
            size_t len;
            assert_int_equal(bd_reader_line(r, &line, &len, NULL), BD_OK);
            assert_non_null(line);
            assert_int_equal(len, lengths[i]);
            for (size_t k = 0; k < len; k += 997) {
                assert_int_equal(line[k], 'a' + (int)i);
            }
        }
        expect_line(r, NULL, N);
        bd_reader_close(r);
    }
    free(text);
}

static void a_line_without_end_is_bounded(void **state)
{
    (void)state;
    size_t n = (size_t)BD_READER_MAX_LINE_BYTES + 100;
    char *text = malloc(n);
    memset(text, 'x', n);
    text[1] = '\n';
    put_text(1, text, n, false);
    bd_reader *r = opened();
    expect_line(r, "x", 1);
    char *line;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_reader_line(r, &line, &n, &err), BD_E_DATA);
    char want[128];
    (void)snprintf(want, sizeof want, "%s:2: line is longer than 16 MiB", path);
    assert_string_equal(err.text, want);
    assert_int_equal(bd_reader_line(r, &line, &n, &err), BD_E_STATE);
    bd_reader_close(r);
    free(text);
}

static bd_status read_to_end(bd_err *err)
{
    bd_reader *r = NULL;
    bd_status rc = bd_reader_open(path, &r, err);
    char *line = NULL;
    size_t n;
    while (rc == BD_OK) {
        rc = bd_reader_line(r, &line, &n, err);
        if (rc == BD_OK && line == NULL) {
            break;
        }
    }
    bd_reader_close(r);
    return rc;
}

/* Every cut of a compressed file is found, wherever it falls (the bare magic apart). */
static void cut_files_are_corrupt(void **state)
{
    (void)state;
    static const char text[] = "first line\nsecond line\nthird\n";
    for (int format = 1; format < N_FORMATS; format++) {
        put_text(format, text, sizeof text - 1, false);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        for (off_t keep = 4; keep < st.st_size; keep++) {
            put_text(format, text, sizeof text - 1, false);
            assert_int_equal(truncate(path, keep), 0);
            bd_err err = BD_ERR_INIT;
            assert_int_equal(read_to_end(&err), BD_E_CORRUPT);
            assert_int_equal(strncmp(err.text, path, strlen(path)), 0);
            assert_non_null(strstr(err.text, "cut short"));
        }
    }
}

static void damaged_files_are_corrupt(void **state)
{
    (void)state;
    static const char text[] = "first line\nsecond line\nthird\n";
    put_text(1, text, sizeof text - 1, false);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "\xff\xff\xff", 3, 12), 3);
    assert_int_equal(close(fd), 0);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(read_to_end(&err), BD_E_CORRUPT);
    assert_non_null(strstr(err.text, "damaged gzip data"));
    put_text(1, text, sizeof text - 1, false);
    put_file("trailing", 8, true);
    assert_int_equal(read_to_end(&err), BD_E_CORRUPT);
}

static void missing_and_unreadable_files_are_named(void **state)
{
    (void)state;
    bd_reader *r = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_reader_open("/nonexistent/x.tsv", &r, &err), BD_E_NOT_FOUND);
    assert_string_equal(err.text, "open /nonexistent/x.tsv: No such file or directory");
    assert_int_equal(bd_reader_open("/tmp", &r, &err), BD_E_IO);
    put_text(0, "a\nb\n", 4, false);
    assert_true(bd_fault_arm("base.reader.read", "fail", 1));
    assert_int_equal(read_to_end(&err), BD_E_IO);
    assert_non_null(strstr(err.text, ":3: read: Input/output error"));
    bd_fault_disarm_all();
    assert_null(r);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int format = 0; format < N_FORMATS; format++) {
        put_text(format, "a\nb\n", 4, false);
        long before = bd_mem_live_blocks();
        bd_status rc = BD_E_NOMEM;
        for (long nth = 0; rc != BD_OK; nth++) {
            bd_fault_fail_alloc(nth);
            rc = read_to_end(NULL);
            bd_fault_fail_alloc(-1);
            assert_true(rc == BD_OK || rc == BD_E_NOMEM);
            assert_int_equal(bd_mem_live_blocks(), before);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_formats_give_the_same_lines),
        cmocka_unit_test(members_one_after_the_other_are_one_file),
        cmocka_unit_test(what_base_compresses_it_reads),
        cmocka_unit_test(empty_files_and_marks),
        cmocka_unit_test(long_lines_cross_the_chunks),
        cmocka_unit_test(a_line_without_end_is_bounded),
        cmocka_unit_test(cut_files_are_corrupt),
        cmocka_unit_test(damaged_files_are_corrupt),
        cmocka_unit_test(missing_and_unreadable_files_are_named),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
