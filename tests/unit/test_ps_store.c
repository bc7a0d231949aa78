/* The rows on disk: large writes as files by several builders, small ones as batches, and a gate
 * that says no. */
#include "base/clock.h"
#include "base/file_hash.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_store.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VALUE_BYTES  40u
#define MERGE_ROUNDS 2000 /* a merge begins with the 24th file or so, on a thread of its own */
#define MERGE_FILES  24u  /* so many are merged, and no later one comes between (ps_store.c) */
#define WAIT_POLLS   6000 /* of 5 ms */
#define ENTRY_BYTES  (PS_ENTRY_KEY_BYTES + VALUE_BYTES)

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/test_ps_store.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    bd_err err;
    (void)state;
    return ps_dir_remove(dir, &err) != BD_OK;
}

/* n rows of a table, keys all over the 64 bits and in no order; every fifth one is a tombstone. */
static ps_entries entries_of(uint32_t table_id, size_t n)
{
    ps_entries e = {.table_id = table_id, .value_bytes = VALUE_BYTES, .n = n};
    e.bytes = bd_calloc(n, ENTRY_BYTES);
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = e.bytes + i * ENTRY_BYTES;
        uint64_t key = i == 0 ? 0 : i == 1 ? UINT64_MAX : bd_mix64(i * 7 + table_id);
        ps_put_be32(at, table_id);
        ps_put_be64(at + 4, key);
        ps_put_le32(at + PS_ENTRY_KEY_BYTES, i % 5 == 4 ? PS_ENTRY_DEAD : 1u);
        ps_put_le64(at + PS_ENTRY_KEY_BYTES + PS_ENTRY_META_BYTES, key ^ table_id);
    }
    return e;
}

typedef struct seen {
    uint8_t last[PS_ENTRY_KEY_BYTES];
    size_t n, n_dead;
} seen;

static bd_status see(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                     size_t value_bytes, bd_err *err)
{
    seen *s = user;
    (void)err;
    assert_int_equal(key_bytes, PS_ENTRY_KEY_BYTES);
    assert_true(s->n == 0 || memcmp(s->last, key, key_bytes) < 0);
    memcpy(s->last, key, key_bytes);
    if (value_bytes == PS_ENTRY_META_BYTES) {
        s->n_dead++;
    } else {
        assert_int_equal(value_bytes, VALUE_BYTES);
        assert_true(ps_get_le64(value + PS_ENTRY_META_BYTES) ==
                    (ps_get_be64(key + 4) ^ ps_get_be32(key)));
    }
    s->n++;
    return BD_OK;
}

static size_t count_files(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        n += strstr(e->d_name, ".sst") != NULL;
    }
    (void)closedir(d);
    return n;
}

static void write_rows(ps_store *s, const ps_entries *e)
{
    bd_err err;
    assert_int_equal(ps_store_write(s, e, 1, false, NULL, NULL, &err), BD_OK);
    assert_int_equal(ps_store_flush(s, &err), BD_OK);
}

/* Tombstones of old records leave with a merge, others stay, and a row that came after one, too. */
static void merges_leave_old_tombstones_out(void **state)
{
    char path[128];
    ps_store *s = NULL;
    bd_err err;
    seen all = {.n = 0};
    (void)state;
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
    ps_entries e = entries_of(9, 1000); /* 200 tombstones */
    for (size_t i = 0; i < e.n; i++) {
        ps_put_le64(e.bytes + i * ENTRY_BYTES + PS_ENTRY_KEY_BYTES + 8, i);
    }
    write_rows(s, &e);
    ps_entries back = e; /* one of the dead is pushed again */
    back.n = 1;
    back.bytes = e.bytes + (size_t)4 * ENTRY_BYTES;
    ps_put_le32(back.bytes + PS_ENTRY_KEY_BYTES, 1u);
    write_rows(s, &back);
    ps_store_forget_dead(s, 499);
    ps_entries other = entries_of(10, 1000); /* what RocksDB merges it with */
    for (int i = 0; i < MERGE_ROUNDS && (i == 0 || all.n_dead > 100); i++) {
        write_rows(s, &other);
        all = (seen){.n = 0};
        assert_int_equal(ps_store_range(s, 9, 0, see, &all, &err), BD_OK);
    }
    assert_int_equal(all.n_dead, 100);
    assert_int_equal(all.n, 901);
    ps_store_close(s);
    ps_entries_deinit(&e);
    ps_entries_deinit(&other);
}

static void next_keys(ps_entries *e)
{
    for (size_t i = 0; i < e->n; i++) {
        uint8_t *key = e->bytes + i * ENTRY_BYTES + 4;
        ps_put_be64(key, ps_get_be64(key) + 1);
    }
}

/* Rows that the memtable has from before and from after files that RocksDB has merged meanwhile: the
 * next flush must still be taken. */
static void batches_around_files_are_flushed(void **state)
{
    char path[128];
    ps_store *s = NULL;
    bd_err err;
    (void)state;
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
    ps_store_set_builders(s, 1);
    ps_entries few = entries_of(1, 100); /* a batch; the others: a file each */
    ps_entries base = entries_of(2, 500000), big = entries_of(2, 400000),
               many = entries_of(2, 16400);
    for (size_t i = 0; i < MERGE_FILES; i++) {
        /* Files that lie over each other fill the levels from the last one up. The base is large
         * enough to be left alone, and the big one to end what is merged: another file of level 0. */
        const ps_entries *e = i == 0 ? &base : i == 8 ? &big : &many;
        assert_int_equal(ps_store_write(s, &few, 1, false, NULL, NULL, &err), BD_OK);
        assert_int_equal(ps_store_write(s, e, 1, true, NULL, NULL, &err), BD_OK);
        next_keys(&many);
        next_keys(&few);
    }
    for (int i = 0; i < WAIT_POLLS && count_files(path) >= MERGE_FILES; i++) {
        bd_sleep_ms(5);
    }
    assert_true(count_files(path) < MERGE_FILES);
    assert_int_equal(ps_store_write(s, &few, 1, false, NULL, NULL, &err), BD_OK);
    assert_int_equal(ps_store_flush(s, &err), BD_OK);
    ps_store_close(s);
    ps_entries_deinit(&few);
    ps_entries_deinit(&base);
    ps_entries_deinit(&big);
    ps_entries_deinit(&many);
}

static size_t n_gates;

static bd_status gate(void *user, bd_err *err)
{
    n_gates++;
    return *(const bool *)user ? BD_OK : bd_err_set(err, BD_E_IO, "the gate is shut");
}

/* Whatever the number of builders, every row is there once, in order, with its own value. */
static void builders_write_what_one_writes(void **state)
{
    (void)state;
    const size_t rows[] = {100, 40000, 120000}; /* batches, one file, several */
    const bool open = true;
    for (size_t builders = 1; builders <= 5; builders += 2) {
        bd_err err;
        ps_store *s = NULL;
        seen got = {.n = 0};
        char path[96];
        size_t n = 0;
        (void)snprintf(path, sizeof path, "%s/rows-%zu", dir, builders);
        assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
        ps_store_set_builders(s, builders);
        n_gates = 0;
        for (uint32_t i = 0; i < 3; i++) {
            ps_entries e[2] = {entries_of(2 * i + 1, rows[i]), entries_of(2 * i + 2, rows[i])};
            assert_int_equal(ps_store_write(s, e, 2, false, gate, bd_unconst(&open), &err), BD_OK);
            assert_int_equal(n_gates, i + 1);
            n += 2 * rows[i];
            ps_entries_deinit(&e[0]);
            ps_entries_deinit(&e[1]);
        }
        assert_int_equal(ps_store_each(s, see, &got, &err), BD_OK);
        assert_int_equal(got.n, n);
        assert_int_equal(got.n_dead, n / 5);
        ps_store_close(s);
    }
}

/* Keys that share most of their bits, in two tables that alternate: order as if they were random. */
static void close_keys_are_sorted(void **state)
{
    (void)state;
    const size_t n = 50000;
    bd_err err;
    ps_store *s = NULL;
    seen got = {.n = 0};
    char path[96];
    ps_entries e[4] = {entries_of(1, n), entries_of(70000, n), entries_of(1, n),
                       entries_of(70000, n)};
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < n; k++) {
            uint64_t half = i / 2, key = (k * 7919 % n) * 2 + half; /* from 0 on, none twice */
            key = k % 3 == 0 ? key | (uint64_t)1 << 63 : key;
            uint8_t *at = e[i].bytes + k * ENTRY_BYTES;
            ps_put_be64(at + 4, key);
            ps_put_le64(at + PS_ENTRY_KEY_BYTES + PS_ENTRY_META_BYTES, key ^ e[i].table_id);
        }
    }
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
    assert_int_equal(ps_store_write(s, e, 4, false, NULL, NULL, &err), BD_OK);
    assert_int_equal(ps_store_each(s, see, &got, &err), BD_OK);
    assert_int_equal(got.n, 4 * n);
    ps_store_close(s);
    for (size_t i = 0; i < 4; i++) {
        ps_entries_deinit(&e[i]);
    }
}

static bd_status same_hash(void *user, const char *folder, const char *name, bd_err *err)
{
    char path[256];
    uint64_t bytes[2] = {0, 0}, hash[2] = {0, 1};
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(bd_file_hash64(path, &bytes[0], &hash[0], err), BD_OK);
    assert_int_equal(ps_store_hash_file(user, path, &bytes[1], &hash[1], err), BD_OK);
    assert_int_equal(bytes[0], bytes[1]);
    assert_int_equal(hash[0], hash[1]);
    return BD_OK;
}

/* Files that were hashed while they were written: RocksDB notes a number in those it takes over
 * older rows, and the hash is of what is there in the end. */
static void hashes_are_of_what_is_there(void **state)
{
    (void)state;
    bd_err err;
    ps_store *s = NULL;
    char path[96], frozen[96];
    ps_entries e = entries_of(3, 400000); /* files of several pieces */
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    (void)snprintf(frozen, sizeof frozen, "%s/frozen", dir);
    assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
    ps_store_set_builders(s, 2);
    for (int i = 0; i < 2; i++) {
        write_rows(s, &e);
    }
    assert_int_equal(ps_store_flush(s, &err), BD_OK);
    assert_int_equal(ps_store_freeze(s, frozen, &err), BD_OK);
    assert_int_equal(ps_dir_each(frozen, same_hash, s, &err), BD_OK);
    ps_store_close(s);
    ps_entries_deinit(&e);
}

/* A gate that does not open: no row is in the store, large write or small. */
static void nothing_passes_a_shut_gate(void **state)
{
    (void)state;
    const size_t rows[] = {100, 60000};
    const bool open = false;
    bd_err err;
    ps_store *s = NULL;
    seen got = {.n = 0};
    char path[96];
    (void)snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(ps_store_open(path, NULL, &s, &err), BD_OK);
    ps_store_set_builders(s, 3);
    for (size_t i = 0; i < 2; i++) {
        ps_entries e = entries_of(1, rows[i]);
        assert_int_equal(ps_store_write(s, &e, 1, false, gate, bd_unconst(&open), &err), BD_E_IO);
        assert_non_null(strstr(bd_err_text(&err), "gate"));
        ps_entries_deinit(&e);
    }
    assert_int_equal(ps_store_each(s, see, &got, &err), BD_OK);
    assert_int_equal(got.n, 0);
    ps_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(builders_write_what_one_writes, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(merges_leave_old_tombstones_out, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(batches_around_files_are_flushed, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(close_keys_are_sorted, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(hashes_are_of_what_is_there, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(nothing_passes_a_shut_gate, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
