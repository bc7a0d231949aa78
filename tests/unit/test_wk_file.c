/* Durable files: whole or not there, checked when read, and a failed write leaves the old one. */
#include "base/fault.h"
#include "base/mem.h"

#include "worker/wk_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/braid_wk_file_XXXXXX";
static char path[64];
static const char magic[8] = "BRTEST1";

static bd_status save(uint64_t v, bd_err *err)
{
    wk_writer w;
    bd_status rc = wk_writer_open(&w, path, err);
    if (rc != BD_OK) {
        return rc;
    }
    wk_write(&w, magic, sizeof magic);
    wk_write_u64(&w, v);
    wk_write_u32(&w, 7);
    return wk_writer_close(&w, err);
}

static bd_status load(uint64_t *v, bd_err *err)
{
    wk_blob b;
    bd_status rc = wk_blob_load(&b, path, magic, err);
    if (rc == BD_OK) {
        *v = wk_blob_u64(&b);
        assert_int_equal(wk_blob_u32(&b), 7);
        assert_false(b.cut);
        assert_int_equal(wk_blob_u32(&b), 0); /* past the end */
        assert_true(b.cut);
        wk_blob_deinit(&b);
    }
    return rc;
}

static void what_was_written_comes_back(void **state)
{
    (void)state;
    uint64_t v = 0;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(save(0x0123456789abcdefu, &err), BD_OK);
    assert_int_equal(load(&v, &err), BD_OK);
    assert_true(v == 0x0123456789abcdefu);
}

static void every_changed_byte_is_found(void **state)
{
    (void)state;
    uint64_t v = 0;
    for (long at = 0; at < 28; at++) {
        assert_int_equal(save(1, NULL), BD_OK);
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_not_equal(fputc(c ^ 0x10, f), EOF);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(load(&v, NULL), BD_E_CORRUPT);
    }
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(load(&v, NULL), BD_E_CORRUPT);
    assert_int_equal(truncate(path, 3), 0);
    assert_int_equal(load(&v, NULL), BD_E_CORRUPT);
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    (void)state;
    uint64_t v = 0;
    bd_err err = BD_ERR_INIT;
    char tmp[80];
    assert_int_equal(save(5, &err), BD_OK);
    assert_true(bd_fault_arm("wk.file.write", "fail", 0));
    assert_int_equal(save(6, &err), BD_E_IO);
    bd_fault_disarm_all();
    assert_non_null(strstr(bd_err_text(&err), path));
    assert_int_equal(load(&v, &err), BD_OK);
    assert_int_equal(v, 5);
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", path);
    assert_int_not_equal(access(tmp, F_OK), 0);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    bd_status rc = BD_E_NOMEM;
    long before = bd_mem_live_blocks();
    for (long nth = 0; rc != BD_OK; nth++) {
        bd_fault_fail_alloc(nth);
        rc = save(9, NULL);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

static void folders_come_and_go(void **state)
{
    (void)state;
    char deep[96], file[128];
    bd_err err = BD_ERR_INIT;
    (void)snprintf(deep, sizeof deep, "%s/a/b", dir);
    (void)snprintf(file, sizeof file, "%s/f", deep);
    assert_int_equal(wk_make_dirs(deep, &err), BD_OK);
    assert_int_equal(wk_make_dirs(deep, &err), BD_OK); /* again */
    assert_int_equal(wk_write_bytes(file, "x", 1, &err), BD_OK);
    assert_int_equal(wk_remove_dir(deep, &err), BD_OK);
    assert_int_not_equal(access(deep, F_OK), 0);
    assert_int_equal(wk_remove_dir(deep, &err), BD_OK);
    assert_int_equal(wk_make_dirs("/dev/null/x", &err), BD_E_IO);
}

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int remove_dir(void **state)
{
    char cmd[96];
    (void)state;
    (void)snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_comes_back),
        cmocka_unit_test(every_changed_byte_is_found),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(folders_come_and_go),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
