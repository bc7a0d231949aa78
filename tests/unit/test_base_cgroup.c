/* Limits of control groups, read from folders that look like a host's. */
#include "base/cgroup.h"
#include "base/mem.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char dir[] = "/tmp/test_base_cgroup_XXXXXX";

static void put(const char *host, const char *file, const char *text)
{
    char *path = bd_strfmt("%s/%s%s", dir, host, file);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(path, 0777);
        *p = '/';
    }
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    bd_free(path);
}

static size_t memory_of(const char *host)
{
    char *root = bd_strfmt("%s/%s", dir, host);
    size_t bytes = bd_cgroup_memory_bytes(root);
    bd_free(root);
    return bytes;
}

static int cpus_of(const char *host)
{
    char *root = bd_strfmt("%s/%s", dir, host);
    int n = bd_cgroup_cpus(root);
    bd_free(root);
    return n;
}

#define OWN "/proc/self/cgroup"
#define V2  "/sys/fs/cgroup"

static void the_tightest_of_nested_groups_counts(void **state)
{
    (void)state;
    put("v2", OWN, "0::/kubepods/pod1/c\n");
    assert_int_equal(memory_of("v2"), 0); /* no files at all */
    assert_int_equal(cpus_of("v2"), 0);
    put("v2", V2 "/kubepods/pod1/memory.max", "1073741824\n");
    put("v2", V2 "/kubepods/pod1/c/memory.max", "max\n");
    assert_int_equal(memory_of("v2"), 1u << 30);
    put("v2", V2 "/kubepods/memory.max", "1048576\n");
    assert_int_equal(memory_of("v2"), 1u << 20);
    put("v2", V2 "/kubepods/pod1/c/memory.max", "4096\n");
    assert_int_equal(memory_of("v2"), 4096);
    put("v2", V2 "/kubepods/pod1/c/cpu.max", "max 100000\n");
    assert_int_equal(cpus_of("v2"), 0);
    put("v2", V2 "/kubepods/pod1/cpu.max", "250000 100000\n");
    assert_int_equal(cpus_of("v2"), 3); /* two and a half */
    put("v2", V2 "/kubepods/cpu.max", "20000 100000\n");
    assert_int_equal(cpus_of("v2"), 1);
}

/* The mount shows the own group as its root, whatever path /proc says. */
static void inside_a_container_the_root_is_the_group(void **state)
{
    (void)state;
    put("in", OWN, "0::/\n");
    put("in", V2 "/memory.max", "4096\n");
    put("in", V2 "/cpu.max", "400000 100000\n");
    assert_int_equal(memory_of("in"), 4096);
    assert_int_equal(cpus_of("in"), 4);
    put("host", OWN, "0::/docker/0123\n");
    put("host", V2 "/memory.max", "8192\n");
    put("host", V2 "/cpu.max", "150000 100000\n");
    assert_int_equal(memory_of("host"), 8192);
    assert_int_equal(cpus_of("host"), 2);
}

static void version_1_is_read(void **state)
{
    (void)state;
    put("v1", OWN, "7:cpuset:/y\n5:cpu,cpuacct:/x\n3:memory:/docker/1\n0::/z\n");
    put("v1", V2 "/memory/memory.limit_in_bytes", "1048576\n");
    put("v1", V2 "/cpu/x/cpu.cfs_quota_us", "200000\n");
    put("v1", V2 "/cpu/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(memory_of("v1"), 1u << 20);
    assert_int_equal(cpus_of("v1"), 2);
    put("none", OWN, "3:memory:/a\n2:cpu:/a\n");
    put("none", V2 "/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    put("none", V2 "/cpu/a/cpu.cfs_quota_us", "-1\n");
    put("none", V2 "/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(memory_of("none"), 0);
    assert_int_equal(cpus_of("none"), 0);
}

static void what_makes_no_sense_limits_nothing(void **state)
{
    (void)state;
    static const char *const cpu[] = {"", "\n", "max", "0 100000", "100000", "100000 0", "x y"};
    assert_int_equal(memory_of("nowhere"), 0);
    assert_int_equal(cpus_of("nowhere"), 0);
    put("odd", OWN, "\nno colons\n0:\n0::/a\n");
    for (size_t i = 0; i < sizeof cpu / sizeof cpu[0]; i++) {
        put("odd", V2 "/a/cpu.max", cpu[i]);
        assert_int_equal(cpus_of("odd"), 0);
    }
    put("odd", V2 "/a/memory.max", "");
    assert_int_equal(memory_of("odd"), 0);
    put("odd", V2 "/a/cpu.max", "1152921504606846975 1");
    assert_int_equal(cpus_of("odd"), CPU_SETSIZE);
}

/* Threads follow the affinity, here as anywhere. */
static void this_process_has_cpus(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_true(bd_cpus() >= 1 && bd_cpus() <= CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(bd_cpus(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    (void)state;
    char *command = bd_strfmt("rm -rf %s", dir);
    int failed = system(command); // NOLINT(cert-env33-c)
    bd_free(command);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tightest_of_nested_groups_counts),
        cmocka_unit_test(inside_a_container_the_root_is_the_group),
        cmocka_unit_test(version_1_is_read),
        cmocka_unit_test(what_makes_no_sense_limits_nothing),
        cmocka_unit_test(this_process_has_cpus),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
