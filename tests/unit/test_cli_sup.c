/* The supervisor's rules, without a process: events in, effects out, in virtual time. */
#include "base/exit_code.h"
#include "base/fault.h"
#include "base/mem.h"

#include "cli/cli_sup.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A run of 2 servers (0, 1) and 2 workers (2, 3), and what it did as text. */
typedef struct bench {
    cli_sup sup;
    int64_t now_ms;
    char trace[512];
} bench;

static const sup_config defaults = {.n_servers = 2,
                                    .n_workers = 2,
                                    .restart_servers = true,
                                    .max_restarts = 20,
                                    .max_unready_restarts = 2,
                                    .ready_timeout_ms = 1000,
                                    .backoff_min_ms = 100,
                                    .backoff_max_ms = 300,
                                    .stop_grace_ms = 5000,
                                    .fail_grace_ms = 500};

static void step(bench *b, sup_event ev)
{
    sup_step(&b->sup, &ev, b->now_ms);
    b->trace[0] = '\0';
    for (size_t i = 0; i < b->sup.n_effects; i++) {
        const sup_effect *fx = &b->sup.effects[i];
        char one[64];
        if (fx->kind == SUP_FX_KILL) {
            (void)snprintf(one, sizeof one, "kill%d:%d ", fx->signo, fx->proc);
        } else {
            (void)snprintf(one, sizeof one, "%s:%d ", fx->kind == SUP_FX_SPAWN ? "spawn" : "again",
                           fx->proc);
        }
        (void)strncat(b->trace, one, sizeof b->trace - strlen(b->trace) - 1);
    }
}

#define EXPECT(b, text) assert_string_equal((b)->trace, text)

static void start(bench *b, const sup_config *cfg)
{
    *b = (bench){.now_ms = 10};
    assert_int_equal(sup_init(&b->sup, cfg), BD_OK);
    step(b, (sup_event){.kind = SUP_EV_START});
}

static void ready(bench *b, int proc)
{
    step(b, (sup_event){.kind = SUP_EV_READY, .proc = proc});
}

static void ended(bench *b, int proc, int exit_code, int signo)
{
    step(b, (sup_event){.kind = SUP_EV_EXIT, .proc = proc, .exit_code = exit_code, .signo = signo});
}

static void user_signal(bench *b, int signo)
{
    step(b, (sup_event){.kind = SUP_EV_SIGNAL, .signo = signo});
}

static void time_goes_to(bench *b, int64_t now_ms)
{
    b->now_ms = now_ms;
    step(b, (sup_event){.kind = SUP_EV_TIME});
}

static void start_all(bench *b, const sup_config *cfg)
{
    start(b, cfg);
    ready(b, 0);
    ready(b, 1);
    assert_int_equal(b->sup.phase, SUP_PHASE_WORK);
}

static void servers_come_first_and_stop_last(void **state)
{
    (void)state;
    bench b;
    start(&b, &defaults);
    EXPECT(&b, "spawn:0 ");
    ready(&b, 0);
    EXPECT(&b, "spawn:1 ");
    ready(&b, 1);
    EXPECT(&b, "spawn:2 spawn:3 ");
    ended(&b, 3, 0, 0);
    EXPECT(&b, "");
    ended(&b, 2, 0, 0);
    EXPECT(&b, "kill15:0 kill15:1 ");
    ended(&b, 0, 0, 0);
    ended(&b, 1, 0, 0);
    assert_int_equal(b.sup.phase, SUP_PHASE_DONE);
    assert_int_equal(sup_exit_code(&b.sup), 0);
    sup_deinit(&b.sup);
}

static void a_server_that_dies_is_started_again_with_growing_pauses(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    static const int64_t pauses_ms[] = {100, 200, 300, 300};
    for (size_t i = 0; i < 4; i++) {
        ended(&b, 1, 0, SIGKILL);
        EXPECT(&b, "again:1 ");
        int64_t at = b.now_ms + pauses_ms[i];
        assert_int_equal(sup_next_deadline_ms(&b.sup), at);
        time_goes_to(&b, at - 1);
        EXPECT(&b, "");
        time_goes_to(&b, at);
        EXPECT(&b, "spawn:1 ");
        ready(&b, 1);
        EXPECT(&b, ""); /* the workers run already */
    }
    sup_deinit(&b.sup);
}

static void restarts_are_bounded(void **state)
{
    (void)state;
    bench b;
    sup_config cfg = defaults;
    cfg.max_restarts = 1;
    start_all(&b, &cfg);
    ended(&b, 0, 0, SIGKILL);
    time_goes_to(&b, sup_next_deadline_ms(&b.sup));
    ready(&b, 0);
    ended(&b, 1, 0, SIGSEGV);
    EXPECT(&b, "kill15:2 kill15:3 ");
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_RESTARTS);
    assert_int_equal(sup_exit_code(&b.sup), 128 + SIGSEGV);
    sup_deinit(&b.sup);
}

static void a_server_that_cannot_come_back_is_given_up(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    ended(&b, 1, 0, SIGKILL);
    for (int i = 0; i < defaults.max_unready_restarts; i++) {
        time_goes_to(&b, sup_next_deadline_ms(&b.sup));
        EXPECT(&b, "spawn:1 ");
        ended(&b, 1, 1, 0);
        EXPECT(&b, "again:1 ");
    }
    time_goes_to(&b, sup_next_deadline_ms(&b.sup));
    ended(&b, 1, 1, 0);
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_RESTARTS);
    assert_int_equal(sup_exit_code(&b.sup), 1);
    sup_deinit(&b.sup);
}

static void with_policy_fail_a_dead_server_ends_the_run(void **state)
{
    (void)state;
    bench b;
    sup_config cfg = defaults;
    cfg.restart_servers = false;
    start_all(&b, &cfg);
    ended(&b, 0, 0, SIGKILL);
    EXPECT(&b, "kill15:2 kill15:3 ");
    ended(&b, 2, BD_EXIT_PEER, 0);
    ended(&b, 3, BD_EXIT_PEER, 0);
    EXPECT(&b, "kill15:1 ");
    ended(&b, 1, 0, 0);
    assert_int_equal(b.sup.phase, SUP_PHASE_DONE);
    assert_int_equal(b.sup.root.proc, 0);
    assert_int_equal(sup_exit_code(&b.sup), 128 + SIGKILL);
    sup_deinit(&b.sup);
}

static void a_server_that_ends_before_it_served_fails_at_once(void **state)
{
    (void)state;
    bench b;
    start(&b, &defaults);
    ended(&b, 0, BD_EXIT_FAILURE, 0);
    assert_int_equal(b.sup.phase, SUP_PHASE_DONE);
    assert_int_equal(sup_exit_code(&b.sup), BD_EXIT_FAILURE);
    sup_deinit(&b.sup);
}

static void a_server_that_never_comes_up_times_out(void **state)
{
    (void)state;
    bench b;
    start(&b, &defaults);
    ready(&b, 0);
    time_goes_to(&b, sup_next_deadline_ms(&b.sup));
    EXPECT(&b, "kill15:0 kill15:1 ");
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_READY_TIMEOUT);
    assert_int_equal(b.sup.root.proc, 1);
    ended(&b, 0, 0, 0);
    time_goes_to(&b, sup_next_deadline_ms(&b.sup));
    EXPECT(&b, "kill9:1 ");
    ended(&b, 1, 0, SIGKILL);
    assert_int_equal(b.sup.phase, SUP_PHASE_DONE);
    assert_int_equal(sup_exit_code(&b.sup), BD_EXIT_PEER);
    sup_deinit(&b.sup);
}

static void the_first_failure_is_the_root_cause(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    ended(&b, 3, BD_EXIT_DATA, 0);
    EXPECT(&b, "kill15:2 ");
    ended(&b, 2, BD_EXIT_NUMERIC, 0);
    EXPECT(&b, "kill15:0 kill15:1 ");
    ended(&b, 0, 0, SIGTERM);
    ended(&b, 1, 128 + SIGTERM, 0);
    assert_int_equal(b.sup.root.proc, 3);
    assert_int_equal(sup_exit_code(&b.sup), BD_EXIT_DATA);
    sup_deinit(&b.sup);
}

static void a_lost_peer_is_an_echo_of_the_real_cause(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    ended(&b, 2, BD_EXIT_PEER, 0); /* rank 0 saw rank 1 vanish before we did */
    ended(&b, 3, 0, SIGKILL);
    assert_int_equal(b.sup.root.proc, 3);
    assert_int_equal(sup_exit_code(&b.sup), 128 + SIGKILL);
    sup_deinit(&b.sup);

    start_all(&b, &defaults);
    ended(&b, 2, BD_EXIT_PEER, 0);
    ended(&b, 3, 0, SIGTERM); /* that is our own signal */
    assert_int_equal(b.sup.root.proc, 2);
    assert_int_equal(sup_exit_code(&b.sup), BD_EXIT_PEER);
    sup_deinit(&b.sup);
}

static void the_first_signal_stops_in_order_and_the_second_kills(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    user_signal(&b, SIGINT);
    EXPECT(&b, "kill15:2 kill15:3 ");
    ended(&b, 2, 0, 0);
    EXPECT(&b, "");
    user_signal(&b, SIGINT);
    EXPECT(&b, "kill9:3 kill9:0 kill9:1 ");
    ended(&b, 0, 0, SIGKILL);
    ended(&b, 1, 0, SIGKILL);
    ended(&b, 3, 0, SIGKILL);
    assert_int_equal(b.sup.phase, SUP_PHASE_DONE);
    assert_int_equal(sup_exit_code(&b.sup), 128 + SIGINT);
    sup_deinit(&b.sup);
}

static void who_ignores_the_signal_is_killed_after_the_grace(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    user_signal(&b, SIGTERM);
    time_goes_to(&b, b.now_ms + defaults.stop_grace_ms);
    EXPECT(&b, "kill9:2 kill9:3 ");
    ended(&b, 2, 0, SIGKILL);
    ended(&b, 3, 0, SIGKILL);
    EXPECT(&b, "kill15:0 kill15:1 ");
    ended(&b, 0, 0, 0);
    ended(&b, 1, 0, 0);
    assert_int_equal(sup_exit_code(&b.sup), 128 + SIGTERM);
    sup_deinit(&b.sup);
}

static void a_good_run_with_a_server_that_stops_badly_is_no_success(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    ended(&b, 2, 0, 0);
    ended(&b, 3, 0, 0);
    ended(&b, 0, 1, 0); /* could not write its rows back */
    ended(&b, 1, 0, 0);
    assert_int_equal(b.sup.root.proc, 0);
    assert_int_equal(sup_exit_code(&b.sup), 1);
    sup_deinit(&b.sup);

    start_all(&b, &defaults);
    ended(&b, 2, 0, 0);
    ended(&b, 3, 0, 0);
    time_goes_to(&b, sup_next_deadline_ms(&b.sup));
    EXPECT(&b, "kill9:0 kill9:1 ");
    ended(&b, 0, 0, SIGKILL);
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_STOP_TIMEOUT);
    assert_int_equal(sup_exit_code(&b.sup), BD_EXIT_FAILURE);
    sup_deinit(&b.sup);
}

static void a_program_that_cannot_be_started_ends_the_run(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    step(&b, (sup_event){.kind = SUP_EV_SPAWN_FAILED, .proc = 2});
    EXPECT(&b, "kill15:3 ");
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_SPAWN);
    sup_deinit(&b.sup);
}

static void events_that_come_late_change_nothing(void **state)
{
    (void)state;
    bench b;
    start_all(&b, &defaults);
    ready(&b, 1);
    EXPECT(&b, "");
    ended(&b, 2, 0, 0);
    ended(&b, 2, 3, 0); /* told twice */
    EXPECT(&b, "");
    assert_int_equal(b.sup.root.cause, SUP_CAUSE_NONE);
    sup_deinit(&b.sup);
}

static void out_of_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    for (long nth = 0; nth < 2; nth++) {
        long before = bd_mem_live_blocks();
        cli_sup s;
        bd_fault_fail_alloc(nth);
        assert_int_equal(sup_init(&s, &defaults), BD_E_NOMEM);
        bd_fault_fail_alloc(-1);
        sup_deinit(&s);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_come_first_and_stop_last),
        cmocka_unit_test(a_server_that_dies_is_started_again_with_growing_pauses),
        cmocka_unit_test(restarts_are_bounded),
        cmocka_unit_test(a_server_that_cannot_come_back_is_given_up),
        cmocka_unit_test(with_policy_fail_a_dead_server_ends_the_run),
        cmocka_unit_test(a_server_that_ends_before_it_served_fails_at_once),
        cmocka_unit_test(a_server_that_never_comes_up_times_out),
        cmocka_unit_test(the_first_failure_is_the_root_cause),
        cmocka_unit_test(a_lost_peer_is_an_echo_of_the_real_cause),
        cmocka_unit_test(the_first_signal_stops_in_order_and_the_second_kills),
        cmocka_unit_test(who_ignores_the_signal_is_killed_after_the_grace),
        cmocka_unit_test(a_good_run_with_a_server_that_stops_badly_is_no_success),
        cmocka_unit_test(a_program_that_cannot_be_started_ends_the_run),
        cmocka_unit_test(events_that_come_late_change_nothing),
        cmocka_unit_test(out_of_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
