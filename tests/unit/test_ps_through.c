/* Files that go to the disk past the page cache: their bytes, their hash, a disk that is full. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_rocks.h"
#include "ps_server/ps_through.h"

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

#define STEP_BYTES  ((700u << 10) + 7) /* written at a time: no divisor of anything */
#define LOOSE_BYTES 100000u            /* of the end: may change */

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/test_ps_through.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    bd_err err;
    (void)state;
    return ps_dir_remove(dir, &err) != BD_OK;
}

/* Writes n bytes in pieces, of which the last LOOSE_BYTES may change; returns what close says. */
static bd_status write_through(const char *path, const uint8_t *bytes, size_t n,
                               bd_file_prefix **prefix, bd_err *err)
{
    ps_through *t = NULL;
    bd_status rc = ps_through_open(path, STEP_BYTES, &t, err);
    if (rc != BD_OK) {
        return rc;
    }
    for (size_t at = 0; at < n;) {
        size_t some = n - at < STEP_BYTES ? n - at : STEP_BYTES;
        uint8_t *room = ps_through_room(t, some);
        if (room == NULL) {
            break;
        }
        memcpy(room, bytes + at, some);
        ps_through_add(t, some, at + some + LOOSE_BYTES <= n);
        at += some;
        assert_int_equal(ps_through_bytes(t), at);
    }
    return ps_through_close(t, prefix, err);
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *bytes = bd_alloc(n + 8);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = bd_mix64(i);
        memcpy(bytes + i, &x, sizeof x);
    }
    return bytes;
}

/* Whatever the size, the file is what was written, and its hash that of a file that is read, also
 * when its last bytes change afterwards. */
static void the_file_is_what_was_written(void **state)
{
    (void)state;
    const size_t mib = 1u << 20,
                 sizes[] = {0, 1, 4096, 5 * mib, 4 * mib + 1, 12 * mib - 3, 70 * mib};
    uint8_t *bytes = random_bytes(70 * mib);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bd_err err;
        bd_file_prefix *prefix = NULL;
        char path[96];
        uint64_t got_bytes = 0, hash = 0;
        (void)snprintf(path, sizeof path, "%s/%zu", dir, i);
        assert_int_equal(write_through(path, bytes, sizes[i], &prefix, &err), BD_OK);
        assert_int_equal(bd_file_hash64(path, &got_bytes, &hash, &err), BD_OK);
        assert_int_equal(got_bytes, sizes[i]);
        assert_int_equal(hash, bd_hash64(bytes, sizes[i], 0));
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (sizes[i] > 0) { /* as RocksDB does when it takes the file */
            off_t at = (off_t)(sizes[i] < LOOSE_BYTES ? sizes[i] - 1 : sizes[i] - LOOSE_BYTES);
            assert_int_equal(pwrite(fd, "x", 1, at), 1);
        }
        (void)close(fd);
        uint64_t after = 0;
        assert_int_equal(bd_file_hash64(path, &got_bytes, &hash, &err), BD_OK);
        assert_int_equal(bd_file_hash64_after(path, &prefix, 1, &got_bytes, &after, &err), BD_OK);
        assert_int_equal(got_bytes, sizes[i]);
        assert_int_equal(after, hash);
        bd_file_prefix_free(prefix);
    }
    bd_free(bytes);
}

/* A prefix is of one file: neither another with the same bytes nor a later one of its name. */
static void a_prefix_is_of_one_file(void **state)
{
    (void)state;
    const size_t n = 12u << 20;
    bd_err err;
    bd_file_prefix *known[3] = {NULL, NULL, NULL};
    char path[96];
    uint64_t got_bytes = 0, hash = 0;
    uint8_t *bytes = random_bytes(n);
    (void)snprintf(path, sizeof path, "%s/file", dir);
    for (size_t i = 0; i < 3; i++) { /* each replaces the one before: its number may be the same */
        bytes[i] ^= 1u;
        assert_int_equal(unlink(path) == 0, i > 0);
        assert_int_equal(write_through(path, bytes, n, &known[i], &err), BD_OK);
        assert_int_equal(bd_file_hash64_after(path, known, i, &got_bytes, &hash, &err), BD_OK);
        assert_int_equal(hash, bd_hash64(bytes, n, 0));
        assert_int_equal(bd_file_hash64_after(path, known, i + 1, &got_bytes, &hash, &err), BD_OK);
        assert_int_equal(hash, bd_hash64(bytes, n, 0));
    }
    for (size_t i = 0; i < 3; i++) {
        bd_file_prefix_free(known[i]);
    }
    bd_free(bytes);
}

/* The writer is told soon, the caller which file. */
static void a_full_disk_is_told(void **state)
{
    (void)state;
    const size_t n = 70u << 20;
    bd_err err;
    bd_file_prefix *prefix = NULL;
    uint8_t *bytes = random_bytes(n);
    assert_int_equal(write_through("/dev/full", bytes, n, &prefix, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "/dev/full"));
    assert_null(prefix);
    ps_through *t = NULL;
    assert_int_equal(ps_through_open("/nowhere/file", 1, &t, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "/nowhere/file"));
    bd_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_file_is_what_was_written, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_prefix_is_of_one_file, make_dir, drop_dir),
        cmocka_unit_test(a_full_disk_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
