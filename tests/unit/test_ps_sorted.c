/* Files of rows that are made without RocksDB: it takes them and reads every row, it knows their
 * blocks' checksums, they are hashed up to where it writes, and a full disk is told. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_sorted.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FLIPS     16
#define END_BYTES 960 /* of the file: in the index, before properties and footer */

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/test_ps_sorted.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    bd_err err;
    (void)state;
    return ps_dir_remove(dir, &err) != BD_OK;
}

/* Rows of two tables with values of any length from least_bytes to most_bytes, in no order; the
 * first keys are the smallest and the largest there are, and neighbours. */
typedef struct rows {
    uint8_t *bytes; /* owned */
    ps_ref *refs;   /* owned, in order */
    size_t n;
} rows;

static int by_key(const void *a, const void *b)
{
    const ps_ref *x = a, *y = b;
    if (x->table_id != y->table_id) {
        return x->table_id < y->table_id ? -1 : 1;
    }
    return x->key < y->key ? -1 : x->key > y->key;
}

static rows make_rows(size_t n, size_t least_bytes, size_t most_bytes)
{
    static const uint64_t edges[] = {0, UINT64_MAX, 1, 255, 256, UINT64_MAX - 1, 1ull << 63};
    size_t stride = PS_ENTRY_KEY_BYTES + most_bytes, n_edges = sizeof edges / sizeof *edges;
    rows r = {.n = n, .bytes = bd_calloc(n, stride), .refs = bd_calloc(n, sizeof *r.refs)};
    assert_true(r.bytes != NULL && r.refs != NULL);
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = r.bytes + i * stride;
        uint32_t table = i % 3 == 0 ? 7 : 0x01020304;
        uint64_t key = i / 3 < n_edges ? edges[i / 3] + i % 3 * 16 : bd_mix64(i);
        size_t bytes = least_bytes + bd_mix64(i + 1) % (most_bytes - least_bytes + 1);
        ps_put_be32(at, table);
        ps_put_be64(at + 4, key);
        for (size_t b = 0; b < bytes; b++) {
            at[PS_ENTRY_KEY_BYTES + b] = (uint8_t)bd_mix64(i * 31 + b);
        }
        r.refs[i] = (ps_ref){key, table, (uint32_t)bytes, at};
    }
    qsort(r.refs, n, sizeof *r.refs, by_key);
    return r;
}

static void drop_rows(rows *r)
{
    bd_free(r->bytes);
    bd_free(r->refs);
}

static void ok(char *text)
{
    if (text != NULL) {
        fail_msg("%s", text);
    }
}

/* A store that has taken the file at the path. */
static void take(ps_rocks *to, const char *store, const char *path)
{
    bd_err err;
    char *text = NULL;
    assert_int_equal(ps_rocks_open(to, store, false, &err), BD_OK);
    rocksdb_ingestexternalfileoptions_t *o = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(o, 1);
    rocksdb_ingest_external_file(to->db, &path, 1, o, &text);
    rocksdb_ingestexternalfileoptions_destroy(o);
    ok(text);
}

/* Walked, and asked for one by one: each row is what it was, and there is no other. */
static void expect_rows(const ps_rocks *from, const rows *r)
{
    char *text = NULL;
    size_t i = 0;
    rocksdb_readoptions_t *how = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(how, 1);
    rocksdb_iterator_t *it = rocksdb_create_iterator(from->db, how);
    for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it), i++) {
        size_t nk = 0, nv = 0;
        const char *k = rocksdb_iter_key(it, &nk), *v = rocksdb_iter_value(it, &nv);
        assert_true(i < r->n);
        assert_int_equal(nk, PS_ENTRY_KEY_BYTES);
        assert_int_equal(nv, r->refs[i].value_bytes);
        assert_memory_equal(k, r->refs[i].at, nk);
        assert_memory_equal(v, r->refs[i].at + nk, nv);
    }
    rocksdb_iter_get_error(it, &text);
    ok(text);
    assert_int_equal(i, r->n);
    for (i = 0; i < r->n; i += r->n / 1000 + 1) {
        size_t nv = 0;
        char *v =
            rocksdb_get(from->db, how, (const char *)r->refs[i].at, PS_ENTRY_KEY_BYTES, &nv, &text);
        ok(text);
        assert_non_null(v);
        assert_int_equal(nv, r->refs[i].value_bytes);
        assert_memory_equal(v, r->refs[i].at + PS_ENTRY_KEY_BYTES, nv);
        rocksdb_free(v);
    }
    rocksdb_iter_seek_for_prev(it, "\xff", 1); /* backwards: the starts of a block are used */
    for (i = r->n; rocksdb_iter_valid(it) && i > 0; rocksdb_iter_prev(it)) {
        size_t nk = 0;
        assert_memory_equal(rocksdb_iter_key(it, &nk), r->refs[--i].at, PS_ENTRY_KEY_BYTES);
    }
    assert_int_equal(i, 0);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(how);
}

/* Reads the rows from the file, from a merge of it with another (of half of the rows, which are the
 * same), and after a restart. */
static void check(unsigned no, size_t n, size_t least_bytes, size_t most_bytes)
{
    bd_err err;
    char *text = NULL, path[2][96], store[96];
    bd_file_prefix *prefix[2] = {NULL, NULL};
    ps_rocks rocks;
    rows r = make_rows(n, least_bytes, most_bytes);
    (void)snprintf(path[0], sizeof path[0], "%s/%u.rows", dir, no);
    (void)snprintf(path[1], sizeof path[1], "%s/%u.half", dir, no);
    (void)snprintf(store, sizeof store, "%s/store-%u", dir, no);
    assert_int_equal(ps_sorted_write(path[0], r.refs, r.n, &prefix[0], &err), BD_OK);
    assert_int_equal(ps_sorted_write(path[1], r.refs, (r.n + 1) / 2, &prefix[1], &err), BD_OK);
    take(&rocks, store, path[0]);
    expect_rows(&rocks, &r);
    const char *again = path[1];
    rocksdb_ingestexternalfileoptions_t *o = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingest_external_file(rocks.db, &again, 1, o, &text);
    rocksdb_ingestexternalfileoptions_destroy(o);
    ok(text);
    expect_rows(&rocks, &r);
    rocksdb_compact_range(rocks.db, NULL, 0, NULL, 0);
    expect_rows(&rocks, &r);
    ps_rocks_close(&rocks);
    assert_int_equal(ps_rocks_open(&rocks, store, false, &err), BD_OK);
    expect_rows(&rocks, &r);
    ps_rocks_close(&rocks);
    assert_int_equal(ps_dir_remove(store, &err), BD_OK);
    bd_file_prefix_free(prefix[0]);
    bd_file_prefix_free(prefix[1]);
    drop_rows(&r);
}

/* One row, one block, many of them; tombstones, rows of one float, rows larger than a block and
 * than what is written at a time. */
static void rocksdb_reads_what_was_written(void **state)
{
    static const struct {
        size_t n, least_bytes, most_bytes;
    } cases[] = {{1, 24, 24},      {3, 24, 300},     {100, 24, 300},   {40000, 24, 24},
                 {40000, 28, 28},  {20000, 24, 300}, {30, 24, 300000}, {5, 1u << 20, 1u << 20},
                 {2, 24, 3u << 20}};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        check(i, cases[i].n, cases[i].least_bytes, cases[i].most_bytes);
    }
}

/* Three rows make a block of a little less than 64 KiB, of just as much, of a little more. */
static void blocks_end_anywhere(void **state)
{
    (void)state;
    for (unsigned bytes = 21810; bytes < 21835; bytes++) {
        check(bytes, 10, bytes, bytes);
    }
}

/* The hash of what was written holds for what RocksDB made of the file: it writes behind it only. */
static void a_file_is_hashed_once(void **state)
{
    bd_err err;
    char path[2][96], store[96];
    bd_file_prefix *prefix[2] = {NULL, NULL};
    ps_rocks rocks;
    uint64_t n = 0, hash = 0, before = 0;
    rows r = make_rows(20000, 24, 300);
    (void)state;
    (void)snprintf(path[0], sizeof path[0], "%s/rows", dir);
    (void)snprintf(path[1], sizeof path[1], "%s/link", dir);
    (void)snprintf(store, sizeof store, "%s/store", dir);
    for (int i = 0; i < 2; i++) { /* taken twice, so that the second one gets a number */
        assert_int_equal(ps_sorted_write(path[0], r.refs, r.n, &prefix[i], &err), BD_OK);
        (void)unlink(path[1]);
        assert_int_equal(link(path[0], path[1]), 0);
        assert_int_equal(bd_file_hash64(path[1], &n, &before, &err), BD_OK);
        take(&rocks, store, path[0]);
        ps_rocks_close(&rocks);
    }
    assert_int_equal(bd_file_hash64(path[1], &n, &hash, &err), BD_OK);
    assert_int_not_equal(hash, before);
    before = 0;
    assert_int_equal(bd_file_hash64_after(path[1], &prefix[1], 1, &n, &before, &err), BD_OK);
    assert_int_equal(hash, before);
    bd_file_prefix_free(prefix[0]);
    bd_file_prefix_free(prefix[1]);
    drop_rows(&r);
}

/* A bit that the disk has turned is noticed wherever in the rows or their index it is. */
static void a_turned_bit_is_noticed(void **state)
{
    rows r = make_rows(2000, 24, 300);
    (void)state;
    for (unsigned k = 0; k <= FLIPS; k++) {
        bd_err err;
        char path[96], link_path[96], store[96], *text = NULL;
        bd_file_prefix *prefix = NULL;
        ps_rocks rocks;
        uint8_t byte = 0;
        (void)snprintf(path, sizeof path, "%s/%u.rows", dir, k);
        (void)snprintf(link_path, sizeof link_path, "%s/%u.link", dir, k);
        (void)snprintf(store, sizeof store, "%s/store-%u", dir, k);
        assert_int_equal(ps_sorted_write(path, r.refs, r.n, &prefix, &err), BD_OK);
        bd_file_prefix_free(prefix);
        assert_int_equal(link(path, link_path), 0);
        take(&rocks, store, path);
        ps_rocks_close(&rocks);
        int fd = open(link_path, O_RDWR | O_CLOEXEC);
        off_t last = lseek(fd, 0, SEEK_END) - END_BYTES; /* the index */
        off_t at = last * (off_t)k / FLIPS;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1u << k % 8);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        (void)close(fd);
        bd_status rc = ps_rocks_open(&rocks, store, false, &err);
        if (rc != BD_OK) { /* the index is read at once */
            assert_int_equal(rc, BD_E_CORRUPT);
            continue;
        }
        rocksdb_iterator_t *it = rocksdb_create_iterator(rocks.db, rocks.read);
        for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        }
        rocksdb_iter_get_error(it, &text);
        rocksdb_iter_destroy(it);
        assert_non_null(text);
        assert_non_null(strstr(text, "checksum"));
        rocksdb_free(text);
        ps_rocks_close(&rocks);
    }
    drop_rows(&r);
}

/* Rows out of order make no file that somebody could trust; a full disk says which file it was. */
static void what_cannot_be_written_is_told(void **state)
{
    bd_err err;
    char path[96];
    bd_file_prefix *prefix = NULL;
    rows r = make_rows(20000, 24, 300);
    (void)state;
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(ps_sorted_write("/dev/full", r.refs, r.n, &prefix, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "/dev/full"));
    ps_ref first = r.refs[7000];
    r.refs[7000] = r.refs[7001];
    assert_int_equal(ps_sorted_write(path, r.refs, r.n, &prefix, &err), BD_E_STATE);
    r.refs[7001] = first;
    r.refs[7000] = first; /* twice */
    assert_int_equal(ps_sorted_write(path, r.refs, r.n, &prefix, &err), BD_E_STATE);
    assert_null(prefix);
    drop_rows(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rocksdb_reads_what_was_written, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(blocks_end_anywhere, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_file_is_hashed_once, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_turned_bit_is_noticed, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_is_told, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
