/* Who is who in a round of launchers, and the texts they leave for each other. */
#include "base/mem.h"

#include "cli/cli_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static cli_plan plan_of(const cli_node *nodes, int n)
{
    cli_plan p = {.nodes = bd_calloc((size_t)n + 1, sizeof *p.nodes), .n_nodes = n};
    memcpy(p.nodes, nodes, (size_t)n * sizeof *nodes);
    return p;
}

static cli_node node(int arrival, int node_rank)
{
    return (cli_node){.arrival = arrival,
                      .n_ranks = arrival + 1,
                      .node_rank = node_rank,
                      .port = 1000 + arrival,
                      .address = "10.0.0.1",
                      .host = "h"};
}

/* want: arrivals in the order of ranks. */
static void expect_order(const cli_node *nodes, int n, int max, const int *want, int n_want)
{
    cli_plan p = plan_of(nodes, n);
    cli_plan_choose(&p, max);
    assert_int_equal(p.n_nodes, n_want);
    for (int i = 0; i < n_want; i++) {
        assert_int_equal(p.nodes[i].arrival, want[i]);
    }
    cli_plan_deinit(&p);
}

static void nodes_are_ordered_by_wish_then_arrival(void **state)
{
    (void)state;
    const cli_node free_ones[] = {node(0, -1), node(1, -1), node(2, -1)};
    const cli_node wishes[] = {node(0, 2), node(1, -1), node(2, 0)};
    const cli_node twice[] = {node(0, 1), node(1, 0),
                              node(2, 1)}; /* 0 is dead, its lease runs on */
    expect_order(free_ones, 3, 3, (const int[]){0, 1, 2}, 3);
    expect_order(free_ones, 3, 2, (const int[]){1, 2}, 2); /* the later ones live more surely */
    expect_order(wishes, 3, 3, (const int[]){2, 0, 1}, 3);
    expect_order(twice, 3, 3, (const int[]){1, 2}, 2);
    expect_order(free_ones, 0, 3, NULL, 0);
}

static void plans_come_back_as_they_were(void **state)
{
    (void)state;
    const cli_node nodes[] = {node(4, 0), node(1, -1)};
    cli_plan p = plan_of(nodes, 2), q;
    bd_err err = BD_ERR_INIT;
    p.n_restarts = 3;
    char *text = cli_plan_text(&p);
    assert_int_equal(cli_plan_parse(text, 9, 1, &q, &err), BD_OK);
    assert_true(q.round == 9 && q.n_restarts == 3 && q.n_nodes == 2 && q.me == 1 && q.world == 7);
    assert_int_equal(q.nodes[0].first_rank, 0);
    assert_int_equal(q.nodes[1].first_rank, 5);
    assert_int_equal(q.nodes[1].port, 1001);
    assert_string_equal(q.nodes[1].address, "10.0.0.1");
    cli_plan_deinit(&q);
    assert_int_equal(cli_plan_parse(text, 9, 2, &q, &err), BD_OK);
    assert_int_equal(q.me, -1); /* it was made without us */
    cli_plan_deinit(&q);
    for (size_t n = strlen(text); n > 0; n--) { /* nothing cut short is a plan of two */
        text[n - 1] = '\0';
        if (cli_plan_parse(text, 9, 1, &q, &err) == BD_OK) {
            assert_true(q.n_nodes < 2 || text[n - 2] == 'h');
            cli_plan_deinit(&q);
        }
    }
    bd_free(text);
    cli_plan_deinit(&p);
}

static void ends_come_back_as_they_were(void **state)
{
    (void)state;
    char text[CLI_RDZV_TEXT_BYTES + 64];
    bd_err err = BD_ERR_INIT;
    cli_end e = {.kind = CLI_END_RETRY,
                 .n_restarts = 2,
                 .exit_code = 137,
                 .text = "rank 1: signal 9"},
            f;
    cli_end_text(&e, text, sizeof text);
    assert_string_equal(text, "retry 2 137 rank 1: signal 9");
    assert_int_equal(cli_end_parse(text, &f, &err), BD_OK);
    assert_true(f.kind == CLI_END_RETRY && f.n_restarts == 2 && f.exit_code == 137);
    assert_string_equal(f.text, e.text);
    static const char *const bad[] = {"",     "ok",       "retr 1 2 x",
                                      "ok 1", "ok x 1 y", "ok 1 99999999 y"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(cli_end_parse(bad[i], &f, &err), BD_E_CORRUPT);
    }
}

static void garbage_is_no_node(void **state)
{
    (void)state;
    cli_node n;
    static const char *const bad[] = {
        "",           "1", "1 2 3 4", "1 2 3 4 a", "1 0 3 4 a b", "-1 2 3 4 a b", "1 2 3 4 a b c",
        "x 2 3 4 a b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(cli_node_parse(bad[i], &n));
    }
    assert_true(cli_node_parse("1 2 -1 4 a b", &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_ordered_by_wish_then_arrival),
        cmocka_unit_test(plans_come_back_as_they_were),
        cmocka_unit_test(ends_come_back_as_they_were),
        cmocka_unit_test(garbage_is_no_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
