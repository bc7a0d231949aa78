/* Folders for servers that only read a run: checkpoints are there, the run stays as it is. */
#include "base/mem.h"

#include "cli/cli_rundir.h"
#include "cli/cli_scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char run_dir[] = "/tmp/test_cli_scratch_XXXXXX";

static char *below(const char *parent, const char *name)
{
    char *path = bd_strfmt("%s/%s", parent, name);
    assert_non_null(path);
    return path;
}

static bool has(const char *parent, const char *name)
{
    char *path = below(parent, name);
    bool there = access(path, F_OK) == 0;
    bd_free(path);
    return there;
}

static void put(const char *parent, const char *name, const char *text)
{
    char *path = below(parent, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    bd_free(path);
}

static void make(const char *parent, const char *name)
{
    char *path = below(parent, name);
    assert_int_equal(cli_mkdirs(path, NULL), BD_OK);
    bd_free(path);
}

static void checkpoints_are_seen_and_survive_the_removal(void **state)
{
    (void)state;
    char *scratch = NULL;
    long before = bd_mem_live_blocks();
    make(run_dir, "ps-0/checkpoints/step-10/rows");
    make(run_dir, "ps-0/checkpoints/.step-20.tmp"); /* was being written */
    make(run_dir, "ps-0/journal");
    make(run_dir, "ps-1");
    put(run_dir, "ps-0/checkpoints/step-10/MANIFEST", "whole");
    assert_int_equal(cli_scratch_make(run_dir, 2, &scratch, NULL), BD_OK);
    assert_true(has(scratch, "ps-0/checkpoints/step-10/MANIFEST"));
    assert_true(has(scratch, "ps-1/checkpoints"));
    assert_false(has(scratch, "ps-0/checkpoints/.step-20.tmp"));
    assert_false(has(scratch, "ps-0/journal"));
    make(scratch, "ps-0/rows-1"); /* what a server writes */
    put(scratch, "ps-0/rows-1/000001.sst", "rows");
    char *copy = bd_strdup(scratch);
    assert_int_equal(cli_scratch_remove(scratch, NULL), BD_OK);
    assert_int_not_equal(access(copy, F_OK), 0);
    assert_true(has(run_dir, "ps-0/checkpoints/step-10/MANIFEST"));
    bd_free(copy);
    assert_int_equal(cli_scratch_remove(NULL, NULL), BD_OK);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void what_a_killed_process_left_is_cleared(void **state)
{
    (void)state;
    char *scratch = NULL;
    make(run_dir, ".predict-1/ps-0/rows-1");
    assert_int_equal(cli_scratch_make(run_dir, 1, &scratch, NULL), BD_OK);
    assert_false(has(run_dir, ".predict-1"));
    assert_int_equal(cli_scratch_remove(scratch, NULL), BD_OK);
}

static void a_run_that_is_not_there_is_named(void **state)
{
    (void)state;
    char *scratch = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cli_scratch_make("/nonexistent/run", 1, &scratch, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "/nonexistent/run"));
    assert_null(scratch);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(run_dir) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return cli_scratch_remove(bd_strdup(run_dir), NULL) == BD_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_seen_and_survive_the_removal),
        cmocka_unit_test(what_a_killed_process_left_is_cleared),
        cmocka_unit_test(a_run_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
