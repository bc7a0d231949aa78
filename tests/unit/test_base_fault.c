/* Fault points fire at the hit they are armed for, once; clocks move as they are told. */
#include "base/clock.h"
#include "base/fault.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int disarm(void **state)
{
    (void)state;
    bd_fault_disarm_all();
    return 0;
}

/* First, before any other question of this process: the environment is read once. */
static void the_environment_arms_points(void **state)
{
    (void)state;
    assert_true(bd_fault_hit("test.env"));
    assert_false(bd_fault_hit("test.env"));
    assert_false(bd_fault_hit("test.later"));
    assert_true(bd_fault_hit("test.later"));
    assert_false(bd_fault_hit("test.bad"));
}

static void a_point_fires_once_at_its_hit(void **state)
{
    (void)state;
    assert_false(bd_fault_hit("test.a"));
    assert_true(bd_fault_arm("test.a", "fail", 2));
    assert_true(bd_fault_arm("test.b", "fail", 0));
    assert_false(bd_fault_hit("test.a"));
    assert_false(bd_fault_hit("test.a"));
    assert_true(bd_fault_hit("test.b"));
    assert_true(bd_fault_hit("test.a"));
    assert_false(bd_fault_hit("test.a"));
    assert_false(bd_fault_arm("test.a", "explode", 0));
    bd_fault_disarm_all();
    for (int i = 0; i < 32; i++) {
        assert_true(bd_fault_arm("test.c", "fail", i));
    }
    assert_false(bd_fault_arm("test.c", "fail", 0)); /* the table is full */
    for (int i = 0; i < 32; i++) {
        assert_true(bd_fault_hit("test.c"));
    }
    assert_false(bd_fault_hit("test.c"));
}

/* A share fires again and again, the same hits each time, about as often as asked. */
static void a_share_fires_again_and_again(void **state)
{
    (void)state;
    bool first[2000];
    int n = 0;
    for (int round = 0; round < 2; round++) {
        assert_true(bd_fault_arm("test.share", "share", 50));
        for (int i = 0; i < 2000; i++) {
            bool hit = bd_fault_hit("test.share");
            assert_true(round == 0 || hit == first[i]);
            first[i] = hit;
            n += hit;
        }
        bd_fault_disarm_all();
    }
    assert_true(n > 120 && n < 300); /* 200 of 4000 are expected */
}

static void kill_ends_the_process(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        (void)bd_fault_arm("test.kill", "kill", 1);
        (void)bd_fault_hit("test.kill");
        (void)bd_fault_hit("test.kill");
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void *pass(void *passed)
{
    *(bool *)passed = bd_fault_hit("test.hold");
    return NULL;
}

/* The third to come stays, the others pass, also while it is held. */
static void a_held_thread_goes_on_when_all_is_disarmed(void **state)
{
    (void)state;
    bool failed = true;
    pthread_t held;
    assert_true(bd_fault_arm("test.hold", "hold", 2));
    assert_false(bd_fault_hit("test.hold"));
    assert_false(bd_fault_hit("test.hold"));
    assert_int_equal(pthread_create(&held, NULL, pass, &failed), 0);
    bd_fault_await_hold("test.hold");
    assert_false(bd_fault_hit("test.hold"));
    assert_true(failed);
    bd_fault_disarm_all();
    assert_int_equal(pthread_join(held, NULL), 0);
    assert_false(failed);
}

static void clocks_move_as_they_are_told(void **state)
{
    (void)state;
    bd_clock_virtual v;
    bd_clock_virtual_init(&v, 1000);
    assert_int_equal(bd_now_ns(&v.clock), 1000);
    bd_clock_virtual_advance(&v, 5 * BD_NS_PER_MS);
    assert_int_equal(bd_now_ns(&v.clock), 5001000);
    int64_t a = bd_now_ns(bd_clock_real());
    bd_sleep_ms(1);
    int64_t b = bd_mono_ns();
    assert_true(b - a >= BD_NS_PER_MS);
    assert_true(bd_wall_ns() > 1600000000 * BD_NS_PER_S);
}

int main(void)
{
    (void)setenv("BRAID_FAULTS", "test.env=fail,test.later=fail:1,test.bad=explode,nonsense", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_environment_arms_points, disarm),
        cmocka_unit_test_teardown(a_point_fires_once_at_its_hit, disarm),
        cmocka_unit_test_teardown(a_share_fires_again_and_again, disarm),
        cmocka_unit_test_teardown(kill_ends_the_process, disarm),
        cmocka_unit_test_teardown(a_held_thread_goes_on_when_all_is_disarmed, disarm),
        cmocka_unit_test_teardown(clocks_move_as_they_are_told, disarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
