/* What servers cost a client, as the metrics page tells it. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"

#include "client/cl_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool page_says(const char *line)
{
    char *text = bd_metrics_text();
    bool found = text != NULL && strstr(text, line) != NULL;
    bd_free(text);
    return found;
}

static void a_server_has_one_slot_under_its_name(void **state)
{
    (void)state;
    cl_stats *a = cl_stats_of("ps-1"), *b = cl_stats_of("ps-2");
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(cl_stats_of("ps-1"), a);
    assert_true(page_says("braid_client_outages_total{server=\"ps-1\"} 0\n"));
}

static void retries_are_told_by_reason(void **state)
{
    (void)state;
    cl_stats *s = cl_stats_of("ps-3");
    cl_stats_retry(s, BD_E_UNAVAILABLE);
    cl_stats_retry(s, BD_E_PEER_LOST);
    cl_stats_retry(s, BD_E_NEED_PARTS);
    assert_true(page_says("braid_client_retries_total{server=\"ps-3\",reason=\"down\"} 2\n"));
    assert_true(page_says("braid_client_retries_total{server=\"ps-3\",reason=\"lost_parts\"} 1\n"));
    assert_true(page_says("braid_client_retries_total{server=\"ps-3\",reason=\"busy\"} 0\n"));
}

static void an_outage_has_a_begin_and_seconds(void **state)
{
    (void)state;
    cl_stats *s = cl_stats_of("ps-4");
    cl_stats_down(s);
    assert_true(page_says("braid_client_server_down{server=\"ps-4\"} 1\n"));
    cl_stats_up(s, 2500 * BD_NS_PER_MS);
    assert_true(page_says("braid_client_server_down{server=\"ps-4\"} 0\n"));
    assert_true(page_says("braid_client_outages_total{server=\"ps-4\"} 1\n"));
    assert_true(page_says("braid_client_outage_seconds_total{server=\"ps-4\"} 2.5\n"));
}

static void more_servers_than_slots_are_counted_together(void **state)
{
    (void)state;
    char name[32];
    for (int i = 0; i < CL_STATS_SERVERS; i++) {
        (void)snprintf(name, sizeof name, "many-%d", i);
        (void)cl_stats_of(name);
    }
    cl_stats *late = cl_stats_of("late");
    assert_ptr_equal(late, cl_stats_of("later"));
    assert_ptr_not_equal(late, cl_stats_of("many-0"));
    assert_ptr_equal(cl_stats_of("a name that is longer than any name of a server may be"), late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_has_one_slot_under_its_name),
        cmocka_unit_test(retries_are_told_by_reason),
        cmocka_unit_test(an_outage_has_a_begin_and_seconds),
        cmocka_unit_test(more_servers_than_slots_are_counted_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
