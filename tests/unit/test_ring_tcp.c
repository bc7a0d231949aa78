/* The tcp backend's own promises: several connections, addresses and interfaces, and who makes the
 * progress. What all backends promise is in test_ring_collectives.c and test_ring_failure.c. */
#include "base/clock.h"
#include "base/kv.h"
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_tcp_int.h"

#include "tests/util/ring_ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

/* Sums that depend on their order: the bits show whether it is the same. */
static float value_at(int rank, size_t i)
{
    return (float)(rank + 1) * 0.1f + 1.0f / (float)(i % 97 + 1);
}

static const size_t counts[] = {0, 1, 5, 20000, 300001, (1u << 20) + 3};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

typedef struct results {
    float *sum[N_COUNTS]; /* of rank 0 over one connection; owned */
} results;

static void sum_all(rank_test *t)
{
    results *want = t->arg;
    bd_err err = BD_ERR_INIT;
    for (size_t k = 0; k < N_COUNTS; k++) {
        size_t n = counts[k];
        float *v = bd_calloc(n + 1, sizeof *v);
        RANK_CHECK(t, v != NULL);
        for (size_t i = 0; i < n; i++) {
            v[i] = value_at(t->rank, i);
        }
        RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "sum", NULL, &err), &err);
        if (t->rank == 0 && want->sum[k] == NULL) {
            want->sum[k] = v;
            continue;
        }
        if (t->rank == 0) {
            RANK_CHECK(t, n == 0 || memcmp(v, want->sum[k], n * sizeof *v) == 0);
        }
        bd_free(v);
    }
}

/* Each rank's chunk, gathered again. */
static void scatter_and_gather(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = 200003;
    size_t world = (size_t)t->world;
    int32_t *v = bd_calloc(n * world, sizeof *v);
    RANK_CHECK(t, v != NULL);
    for (size_t i = 0; i < n * world; i++) {
        v[i] = t->rank + (int32_t)(i % 1000);
    }
    int32_t *own = v + (size_t)t->rank * n;
    RANK_OK(t, ring_reduce_scatter(t->comm, v, own, n, NUM_I32, NUM_SUM, "rs", NULL, &err), &err);
    RANK_OK(t, ring_all_gather(t->comm, own, v, n, NUM_I32, "ag", NULL, &err), &err);
    for (size_t i = 0; i < n * world; i++) {
        RANK_CHECK(t, v[i] == t->world * (t->world - 1) / 2 + t->world * (int32_t)(i % 1000));
    }
    bd_free(v);
}

static void several_connections_change_no_bit(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        results want = {{NULL}};
        for (int n = 1; n <= RING_MAX_LANES; n = n == 3 ? RING_MAX_LANES : n + 1) {
            const ring_options opt = {.group = "lanes",
                                      .epoch = (uint64_t)(100 * world + n),
                                      .timeout_ms = 20000,
                                      .n_connections = n};
            ring_ranks_run(RANKS_TCP, world, &opt, sum_all, &want);
            const ring_options again = {.group = "lanes again",
                                        .epoch = (uint64_t)(100 * world + n),
                                        .timeout_ms = 20000,
                                        .n_connections = n};
            ring_ranks_run(RANKS_TCP, world, &again, scatter_and_gather, NULL);
        }
        for (size_t k = 0; k < N_COUNTS; k++) {
            bd_free(want.sum[k]);
        }
    }
}

/* What a rank may send ahead is less than the headers of one operation: the balance of what went
 * out and came in must be exact, or ranks wait for one another for ever. */
static void sum_in_lockstep(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = ((size_t)1 << 20) + 3;
    int32_t *v = bd_calloc(n, sizeof *v);
    RANK_CHECK(t, v != NULL);
    ((ring_tcp *)(void *)t->comm->backend)->lead_bytes = 1500;
    v[0] = t->rank;
    v[n - 1] = 1;
    RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_I32, NUM_SUM, "step", NULL, &err), &err);
    RANK_CHECK(t, v[0] == t->world * (t->world - 1) / 2 && v[n - 1] == t->world);
    bd_free(v);
}

/* Rank 1 is stopped; what rank 2 holds back for its lead goes out when ranks are asked who is there,
 * all of it. A frame for each question would be progress each time, and put the end off. */
static void stopped_in_lockstep(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    const size_t n = (size_t)8 << 20; /* 43 frames to hold back */
    int32_t *v = bd_calloc(n, sizeof *v);
    RANK_CHECK(t, v != NULL);
    ((ring_tcp *)(void *)t->comm->backend)->lead_bytes = 1500;
    rank_limit(t, t->rank == 2 ? 60000 : 1000); /* so that rank 0 asks, each time */
    if (t->rank == 1) {
        ring_tcp_test_stop(t->comm);
    } else {
        int64_t start_ns = bd_mono_ns();
        bd_status rc = ring_allreduce(t->comm, v, n, NUM_I32, NUM_SUM, "step", NULL, &err);
        RANK_CHECK(t, rc == BD_E_TIMEOUT && strstr(err.text, "rank 1 did not take part") != NULL);
        RANK_CHECK(t, bd_mono_ns() - start_ns < 25 * BD_NS_PER_S); /* else 43 s */
    }
    rank_meet(t);
    bd_free(v);
}

static void a_stopped_rank_ends_a_paced_operation(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_TCP, 3, NULL, stopped_in_lockstep, NULL);
}

static void no_rank_need_be_ahead(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        for (int n = 1; n <= 3; n += 2) {
            const ring_options opt = {.group = "lockstep",
                                      .epoch = (uint64_t)(10 * world + n),
                                      .timeout_ms = 60000,
                                      .n_connections = n};
            ring_ranks_run(RANKS_TCP, world, &opt, sum_in_lockstep, NULL);
        }
    }
}

/* Both ranks start with other numbers of connections. */
typedef struct starter {
    bd_kv *kv;
    int rank;
    int n_connections;
    bd_status rc;
    bd_err err;
} starter;

static void *start_main(void *arg)
{
    starter *s = arg;
    const ring_options opt = {
        .group = "differ", .epoch = 1, .timeout_ms = 20000, .n_connections = s->n_connections};
    ring_comm *c = NULL;
    s->rc = ring_tcp_new(s->kv, s->rank, 2, &opt, &c, &s->err);
    ring_free(c);
    return NULL;
}

static void other_numbers_of_connections_are_refused(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        bd_kv *kv = bd_kv_mem_new();
        pthread_t threads[2];
        starter s[2];
        for (int r = 0; r < 2; r++) {
            s[r] = (starter){.kv = kv, .rank = r, .n_connections = r == more ? 3 : 2};
            assert_int_equal(pthread_create(&threads[r], NULL, start_main, &s[r]), 0);
        }
        for (int r = 0; r < 2; r++) {
            (void)pthread_join(threads[r], NULL);
            assert_int_equal(s[r].rc, BD_E_MISMATCH);
            assert_non_null(strstr(s[r].err.text, "connections"));
        }
        bd_kv_mem_free(kv);
    }
    ring_comm *c = NULL;
    bd_err err = BD_ERR_INIT;
    const ring_options opt = {.group = "many", .n_connections = RING_MAX_LANES + 1};
    assert_int_equal(ring_tcp_new(NULL, 0, 1, &opt, &c, &err), BD_E_INVALID);
}

/* One connection of several breaks: the rank behind it is named everywhere. */
static void break_one(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = (size_t)1 << 20;
    float *v = bd_calloc(n, sizeof *v);
    RANK_CHECK(t, v != NULL);
    RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "well", NULL, &err), &err);
    rank_meet(t);
    if (t->rank == 1) { /* its third connection to rank 2 */
        ring_tcp *tcp = (ring_tcp *)(void *)t->comm->backend;
        (void)shutdown(tcp->conns[2 * t->comm->engine.n_lanes + 2].fd, SHUT_RDWR);
    }
    bd_status rc = BD_OK;
    for (int i = 0; rc == BD_OK && i < 1000; i++) {
        rc = ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "broken", NULL, &err);
    }
    RANK_CHECK(t, rc == BD_E_PEER_LOST);
    RANK_CHECK(t,
               strstr(err.text, "rank 1 lost") != NULL || strstr(err.text, "rank 2 lost") != NULL);
    bd_free(v);
}

static void a_broken_connection_names_the_peer(void **state)
{
    (void)state;
    const ring_options opt = {
        .group = "break", .epoch = 1, .timeout_ms = 20000, .n_connections = 4};
    ring_ranks_run(RANKS_TCP, 3, &opt, break_one, NULL);
}

/* Addresses. */

static void add_ranks(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    int32_t v = t->rank;
    RANK_OK(t, ring_allreduce(t->comm, &v, 1, NUM_I32, NUM_SUM, "ranks", NULL, &err), &err);
    RANK_CHECK(t, v == t->world * (t->world - 1) / 2);
}

static bool has_ipv6(void)
{
    ring_comm *c = NULL;
    bd_kv *kv = bd_kv_mem_new();
    const ring_options opt = {.group = "v6", .bind_host = "::1", .timeout_ms = 1000};
    bd_status rc = ring_tcp_new(kv, 0, 1, &opt, &c, NULL);
    ring_free(c);
    bd_kv_mem_free(kv);
    return rc == BD_OK;
}

static void ranks_meet_at_any_kind_of_address(void **state)
{
    static const struct {
        const char *bind_host;
        const char *interface;
        bool is_v6;
    } ways[] = {{"127.0.0.1", NULL, false},   {"localhost", NULL, false},
                {"0.0.0.0", NULL, false},     {"::1", NULL, true},
                {"::", NULL, true},           {NULL, "lo", false},
                {NULL, "127.0.0.0/8", false}, {NULL, "127.0.0.1", false},
                {NULL, "::1/128", true},      {"ignored.invalid", "lo", false}};
    (void)state;
    bool v6 = has_ipv6();
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const ring_options opt = {.group = "where",
                                  .epoch = i,
                                  .timeout_ms = 20000,
                                  .bind_host = ways[i].bind_host,
                                  .interface = ways[i].interface};
        if (!ways[i].is_v6 || v6) {
            ring_ranks_run(RANKS_TCP, 3, &opt, add_ranks, NULL);
        } else {
            print_message("SKIP %s: no IPv6 here\n", ways[i].bind_host);
        }
    }
}

static void a_wrong_interface_is_named(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    ring_comm *c = NULL;
    bd_err err = BD_ERR_INIT;
    ring_options opt = {.group = "wrong", .timeout_ms = 1000, .interface = "nowhere0"};
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no interface nowhere0"));
    assert_non_null(strstr(err.text, "lo 127.0.0.1"));
    static const char *const bad[] = {"127.0.0.0/33", "127.0.0.0/", "lo/8", "::/129", "1.2.3.4/8x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        opt.interface = bad[i];
        err = (bd_err)BD_ERR_INIT;
        assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_E_INVALID);
        assert_non_null(strstr(err.text, bad[i]));
    }
    opt.interface = "203.0.113.0/24"; /* documentation range: not ours */
    err = (bd_err)BD_ERR_INIT;
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_E_NOT_FOUND);
    bd_kv_mem_free(kv);
}

static bool has_sent(const rank_test *t, uint64_t n_bytes)
{
    int64_t until_ns = bd_mono_ns() + 20 * BD_NS_PER_S;
    while (ring_bytes_sent(t->comm) < n_bytes && bd_mono_ns() < until_ns) {
        bd_sleep_ms(1);
    }
    return ring_bytes_sent(t->comm) >= n_bytes;
}

/* Rank 1 sends its part (nothing), reads no more and dies. What rank 0 has queued for it is more
 * than sockets hold, but rank 0 has all that it needs: its operation is complete, at once, and the
 * next one says who is lost. */
static void dies_before_it_has_read(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    const size_t n = (size_t)64 << 20, none[2] = {0, 0};
    const size_t counts_0[2] = {0, t->rank == 0 ? n : 0}, counts_1[2] = {n, 0};
    uint8_t *v = bd_calloc(n, 1);
    ring_work *w = NULL;
    RANK_CHECK(t, v != NULL);
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    uint64_t n_before = ring_bytes_sent(t->comm);
    rank_meet(t);
    if (t->rank == 1) {
        RANK_OK(t, ring_all_to_all_v(t->comm, NULL, none, v, counts_1, NUM_U8, "v", &w, &err),
                &err);
        RANK_CHECK(t, has_sent(t, n_before + RING_FRAME_BYTES));
        ring_tcp_test_stop(t->comm);
    }
    rank_meet(t);
    if (t->rank == 0) {
        RANK_OK(t, ring_all_to_all_v(t->comm, v, counts_0, NULL, none, NUM_U8, "v", &w, &err),
                &err);
        RANK_CHECK(t, has_sent(t, n_before + n / 2));
    }
    rank_meet(t);
    if (t->rank == 1) {
        ring_tcp_test_kill(t->comm);
        rank_meet(t);
        ring_free(t->comm);
        t->keep_comm = true;
        RANK_CHECK(t, ring_work_wait(w, &err) != BD_OK);
    } else {
        bd_status rc = ring_work_wait(w, &err);
        bd_status next = ring_barrier(t->comm, "next", &(bd_err)BD_ERR_INIT);
        rank_meet(t);
        RANK_OK(t, rc, &err);
        RANK_CHECK(t, next == BD_E_PEER_LOST);
    }
    bd_free(v);
}

static void frames_for_a_lost_peer_hold_nobody_up(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_TCP, 2, NULL, dies_before_it_has_read, NULL);
}

/* Who makes the progress. */

static bool is_watched(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool watched = c->is_watched;
    (void)pthread_mutex_unlock(&c->lock);
    return watched;
}

/* Blocking after the thread has begun to watch, after asynchronous operations, beside open ones. */
static void take_turns(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v[3][1000];
    memset(v, 0, sizeof v);
    for (int round = 0; round < 20; round++) {
        ring_work *w[2] = {NULL, NULL};
        if (round % 5 == 4) {
            int64_t until_ns = bd_mono_ns() + 20 * BD_NS_PER_S;
            while (!is_watched(t->comm) && bd_mono_ns() < until_ns) {
                bd_sleep_ms(1); /* until the own thread watches */
            }
            RANK_CHECK(t, is_watched(t->comm));
        }
        v[2][0] = 1;
        RANK_OK(t, ring_allreduce(t->comm, v[2], 1000, NUM_F32, NUM_SUM, "b", NULL, &err), &err);
        RANK_CHECK(t, v[2][0] == (float)t->world);
        for (int i = 0; i < 2; i++) {
            v[i][5] = 2;
            RANK_OK(t, ring_allreduce(t->comm, v[i], 1000, NUM_F32, NUM_SUM, "a", &w[i], &err),
                    &err);
        }
        RANK_OK(t, ring_barrier(t->comm, "beside", &err), &err);
        for (int i = 0; i < 2; i++) {
            RANK_OK(t, ring_work_wait(w[i], &err), &err);
            RANK_CHECK(t, v[i][5] == 2 * (float)t->world);
        }
    }
}

static void callers_and_the_thread_take_turns(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_TCP, 2, NULL, take_turns, NULL);
    ring_ranks_run(RANKS_TCP, 5, NULL, take_turns, NULL);
}

typedef struct lonely {
    ring_comm *comm;
    bd_status rc;
    bd_err err;
} lonely;

static void *wait_alone(void *arg)
{
    lonely *l = arg;
    float v[1000] = {0};
    l->rc = ring_allreduce(l->comm, v, 1000, NUM_F32, NUM_SUM, "alone", NULL, &l->err);
    return NULL;
}

static bool is_driven(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool driven = c->driver == RING_DRIVER_CALLER;
    (void)pthread_mutex_unlock(&c->lock);
    return driven;
}

/* Freed, or aborted, by another thread while a caller waits in an operation. */
static void end_under_caller(rank_test *t)
{
    pthread_t thread;
    bool must_free = *(const bool *)t->arg;
    lonely l = {.comm = t->comm, .err = BD_ERR_INIT};
    if (t->rank != 0) {
        rank_meet(t);
        return;
    }
    RANK_CHECK(t, pthread_create(&thread, NULL, wait_alone, &l) == 0);
    while (!is_driven(t->comm)) {
        bd_sleep_ms(1); /* until it waits in the operation */
    }
    if (must_free) {
        ring_free(t->comm);
        t->keep_comm = true;
    } else {
        ring_abort(t->comm, NULL);
    }
    (void)pthread_join(thread, NULL);
    rank_meet(t);
    RANK_CHECK(t, l.rc == BD_E_ABORTED);
}

static void an_operation_ends_when_its_communicator_does(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        bool must_free = i % 2 == 0;
        ring_ranks_run(RANKS_TCP, 2, NULL, end_under_caller, &must_free);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_connections_change_no_bit),
        cmocka_unit_test(no_rank_need_be_ahead),
        cmocka_unit_test(a_stopped_rank_ends_a_paced_operation),
        cmocka_unit_test(other_numbers_of_connections_are_refused),
        cmocka_unit_test(a_broken_connection_names_the_peer),
        cmocka_unit_test(frames_for_a_lost_peer_hold_nobody_up),
        cmocka_unit_test(ranks_meet_at_any_kind_of_address),
        cmocka_unit_test(a_wrong_interface_is_named),
        cmocka_unit_test(callers_and_the_thread_take_turns),
        cmocka_unit_test(an_operation_ends_when_its_communicator_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
