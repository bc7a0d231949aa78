/* The folder of a run: fresh or latest, locked, never overwritten. */
#include "base/fault.h"
#include "base/mem.h"

#include "cli/cli_rundir.h"

#include <limits.h>
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

static char start[PATH_MAX];
static char folder[] = "/tmp/test_cli_rundir_XXXXXX";

static bd_status open_it(cli_rundir *d, const char *exact, bool resume, bool must_exist)
{
    bd_err err = BD_ERR_INIT;
    cli_rundir_request req = {
        .parent = "runs/a", .exact = exact, .resume = resume, .must_exist = must_exist};
    return cli_rundir_open(d, &req, &err);
}

static void give_servers(const cli_rundir *d, int n)
{
    for (int i = 0; i < n; i++) {
        char *path = bd_strfmt("%s/ps-%d", d->path, i);
        assert_int_equal(mkdir(path, 0777), 0);
        bd_free(path);
    }
}

static void resume_finds_the_latest_run(void **state)
{
    (void)state;
    cli_rundir first, second;
    assert_int_equal(open_it(&first, NULL, true, true), BD_E_NOT_FOUND);
    assert_int_equal(open_it(&first, NULL, true, false),
                     BD_OK); /* auto: none yet, so a fresh one */
    assert_true(first.fresh);
    give_servers(&first, 3);
    char *path = bd_strdup(first.path);
    cli_rundir_deinit(&first);
    assert_int_equal(open_it(&second, NULL, true, true), BD_OK);
    assert_string_equal(second.path, path);
    assert_int_equal(second.n_servers, 3);
    assert_false(second.fresh);
    bd_free(path);
    cli_rundir_deinit(&second);
}

static void a_run_is_not_overwritten_and_not_shared(void **state)
{
    (void)state;
    cli_rundir d, other;
    assert_int_equal(open_it(&d, "mine/x", false, false), BD_OK);
    assert_int_equal(open_it(&other, "mine/x", true, false), BD_E_USAGE); /* in use */
    give_servers(&d, 1);
    cli_rundir_deinit(&d);
    assert_int_equal(open_it(&other, "mine/x", false, false), BD_E_USAGE);
    assert_int_equal(open_it(&other, "mine/x", true, true), BD_OK);
    cli_rundir_deinit(&other);
}

static void out_of_memory_frees_all(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks(), nth = 0;
    bd_status rc;
    do {
        cli_rundir d;
        bd_fault_fail_alloc(nth++);
        rc = open_it(&d, NULL, true, false);
        bd_fault_fail_alloc(-1);
        if (rc == BD_OK) {
            cli_rundir_deinit(&d);
        }
        assert_int_equal(bd_mem_live_blocks(), before);
    } while (rc != BD_OK && nth < 50);
    assert_int_equal(rc, BD_OK);
}

static int enter(void **state)
{
    (void)state;
    return getcwd(start, sizeof start) == NULL || mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int leave(void **state)
{
    (void)state;
    char *command = bd_strfmt("rm -rf %s", folder);
    int rc = system(command); /* NOLINT(cert-env33-c): our own folder's name */
    bd_free(command);
    return rc != 0 || chdir(start) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_finds_the_latest_run),
        cmocka_unit_test(a_run_is_not_overwritten_and_not_shared),
        cmocka_unit_test(out_of_memory_frees_all),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
