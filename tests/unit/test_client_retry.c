/* Retry decisions: which codes pass, for how long, and how the waits grow. */
#include "base/clock.h"
#include "base/rand.h"

#include "client/cl_retry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define START   (7 * BD_NS_PER_S)
#define WAIT_MS 10000

static void every_code_has_a_verdict(void **state)
{
    (void)state;
    static const int again[] = {BD_E_UNAVAILABLE, BD_E_PEER_LOST, BD_E_CANCELLED, BD_E_TIMEOUT,
                                BD_E_EXHAUSTED};
    static const int all[] = {
#define BD_X(name, num, text) (num),
        BD_STATUS_MAP(BD_X)
#undef BD_X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cl_verdict want = all[i] == BD_E_MOVED        ? CL_REFRESH
                          : all[i] == BD_E_NEED_PARTS ? CL_SEND_PARTS
                                                      : CL_FAIL;
        for (size_t k = 0; k < sizeof again / sizeof again[0]; k++) {
            want = all[i] == again[k] ? CL_AGAIN : want;
        }
        cl_trouble t = {0};
        assert_int_equal(cl_retry_decide(&t, (bd_status)all[i], START, WAIT_MS, 0), want);
    }
}

static void waits_double_within_bounds_until_the_time_is_over(void **state)
{
    (void)state;
    cl_trouble t = {0};
    int64_t now = START, full_ms = 10;
    for (uint64_t i = 0;; i++) {
        cl_verdict v = cl_retry_decide(&t, BD_E_UNAVAILABLE, now, WAIT_MS, bd_mix64(i));
        if (now - START >= WAIT_MS * BD_NS_PER_MS) {
            assert_int_equal(v, CL_GIVE_UP);
            break;
        }
        assert_int_equal(v, CL_AGAIN);
        int64_t wait_ns = t.next_try_ns - now;
        assert_true(wait_ns >= full_ms * BD_NS_PER_MS / 2 && wait_ns <= full_ms * BD_NS_PER_MS);
        full_ms = full_ms * 2 < 500 ? full_ms * 2 : 500;
        now = t.next_try_ns;
    }
    t = (cl_trouble){0}; /* an answer ends the trouble: the next one has all the time again */
    assert_int_equal(cl_retry_decide(&t, BD_E_UNAVAILABLE, now, WAIT_MS, 0), CL_AGAIN);
}

static void parts_and_maps_are_asked_for_at_once_then_with_pauses(void **state)
{
    (void)state;
    static const bd_status codes[] = {BD_E_MOVED, BD_E_NEED_PARTS};
    for (size_t i = 0; i < 2; i++) {
        cl_trouble t = {0};
        (void)cl_retry_decide(&t, codes[i], START, WAIT_MS, 3);
        assert_int_equal(t.next_try_ns, START);
        (void)cl_retry_decide(&t, codes[i], START, WAIT_MS, 3);
        assert_true(t.next_try_ns > START);
        assert_int_equal(cl_retry_decide(&t, codes[i], START + WAIT_MS * BD_NS_PER_MS, WAIT_MS, 3),
                         CL_GIVE_UP);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_verdict),
        cmocka_unit_test(waits_double_within_bounds_until_the_time_is_over),
        cmocka_unit_test(parts_and_maps_are_asked_for_at_once_then_with_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
