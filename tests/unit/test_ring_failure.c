/* What happens when ranks disagree, die or stop: typed errors that name the
 * culprit on every survivor, in bounded time, and nothing leaked. Over memory, over tcp and through
 * shared memory. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_mem_int.h"
#include "ring/ring_shm_int.h"
#include "ring/ring_tcp_int.h"

#include "tests/util/ring_ranks.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct fault_case {
    ranks_backend backend;
    const char *what;
} fault_case;

/* Of operations that end by it. A healthy rank answers within that and the grace after it, or is
 * named, too: long enough for a busy machine. */
enum { LIMIT_MS = 600 };

static const int WORLDS[] = {2, 3, 4, 5, 8};
#define N_WORLDS (sizeof WORLDS / sizeof WORLDS[0])

static void on_all(int world, rank_fn fn, const char *what)
{
    for (int b = RANKS_MEM; b <= RANKS_SHM; b++) {
        fault_case c = {(ranks_backend)b, what};
        ring_ranks_run((ranks_backend)b, world, NULL, fn, &c);
    }
}

/* Mismatches: what rank 1 does instead of allreduce "grad" of 20000 f32. */
static bd_status wrong_call(rank_test *t, const char *what, float *v, bd_err *err)
{
    if (strcmp(what, "count") == 0) {
        return ring_allreduce(t->comm, v, 20001, NUM_F32, NUM_SUM, "grad", NULL, err);
    }
    if (strcmp(what, "dtype") == 0) {
        return ring_allreduce(t->comm, v, 20000, NUM_I32, NUM_SUM, "grad", NULL, err);
    }
    if (strcmp(what, "reduce") == 0) {
        return ring_allreduce(t->comm, v, 20000, NUM_F32, NUM_MAX, "grad", NULL, err);
    }
    if (strcmp(what, "name") == 0) {
        return ring_allreduce(t->comm, v, 20000, NUM_F32, NUM_SUM, "other", NULL, err);
    }
    if (strcmp(what, "root") == 0) {
        return ring_broadcast(t->comm, v, 20000, NUM_F32, 1, "grad", NULL, err);
    }
    if (strcmp(what, "barrier") == 0) {
        return ring_barrier(t->comm, "grad", err);
    }
    return ring_all_gather(t->comm, v, v + 2000, 2000, NUM_F32, "grad", NULL, err);
}

static void disagree(rank_test *t)
{
    const fault_case *c = t->arg;
    bd_err err = BD_ERR_INIT;
    float *v = bd_calloc(20001, sizeof *v);
    bd_status rc = BD_OK;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank == 1) {
        rc = wrong_call(t, c->what, v, &err);
    } else if (strcmp(c->what, "root") == 0) {
        rc = ring_broadcast(t->comm, v, 20000, NUM_F32, 0, "grad", NULL, &err);
    } else {
        rc = ring_allreduce(t->comm, v, 20000, NUM_F32, NUM_SUM, "grad", NULL, &err);
    }
    bd_free(v);
    if (rc != BD_E_MISMATCH) {
        rank_failed(t, __FILE__, __LINE__, c->what, &err);
        return;
    }
    RANK_CHECK(t, strstr(err.text, "rank 1 ") != NULL && strstr(err.text, "but rank") != NULL);
    RANK_CHECK(t, strstr(err.text, "\"grad\" (seq 1") != NULL);
    /* the group has ended, and says why again */
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_MISMATCH);
}

static void header_mismatch(void **state)
{
    (void)state;
    static const char *const cases[] = {"count", "dtype",   "reduce",    "name",
                                        "root",  "barrier", "all_gather"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t w = 0; w < N_WORLDS; w++) {
            on_all(WORLDS[w], disagree, cases[i]);
        }
    }
}

/* Rank 0 does one operation more than the others (hvd#2107). */
static void one_more(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 1;
    bd_status rc = BD_OK;
    if (t->rank == 0) {
        rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "extra", NULL, &err);
    }
    if (rc == BD_OK) {
        rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "loss", NULL, &err);
    }
    RANK_CHECK(t, rc == BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "extra") != NULL && strstr(err.text, "loss") != NULL);
}

static void extra_operation_is_a_mismatch(void **state)
{
    (void)state;
    on_all(3, one_more, "");
}

static void kill_comm(ranks_backend backend, ring_comm *c)
{
    if (backend == RANKS_MEM) {
        ring_mem_test_kill(c);
    } else if (backend == RANKS_TCP) {
        ring_tcp_test_kill(c);
    } else {
        ring_shm_test_kill(c);
    }
}

/* The victim dies while the others are in the middle of a large allreduce. */
static void victim_dies(rank_test *t)
{
    const fault_case *c = t->arg;
    bd_err err = BD_ERR_INIT;
    size_t n = (size_t)1 << 20;
    float *v = bd_calloc(n, sizeof *v);
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    rank_meet(t);
    if (t->rank == 1) {
        kill_comm(c->backend, t->comm);
        rank_meet(t);
    } else {
        bd_status rc = ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "big", NULL, &err);
        rank_meet(t);
        if (rc != BD_E_PEER_LOST || /* the time limit would be BD_E_TIMEOUT */
            strstr(err.text, "rank 1 lost") == NULL) {
            rank_failed(t, __FILE__, __LINE__, "peer lost", &err);
        }
        RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_PEER_LOST);
    }
    bd_free(v);
}

static void kill_rank(void **state)
{
    (void)state;
    for (size_t w = 0; w < N_WORLDS; w++) {
        on_all(WORLDS[w], victim_dies, "");
    }
}

/* The victim stops answering, but its connections stay. */
static void victim_stops(rank_test *t)
{
    const fault_case *c = t->arg;
    bd_err err = BD_ERR_INIT;
    size_t n = strcmp(c->what, "large") == 0 ? (size_t)2 << 20 : 10;
    float *v = bd_calloc(n, sizeof *v);
    rank_limit(t, LIMIT_MS);
    if (t->rank == 1) {
        if (c->backend == RANKS_MEM) {
            ring_mem_test_stop(t->comm);
        } else if (c->backend == RANKS_TCP) {
            ring_tcp_test_stop(t->comm);
        } /* in shared memory nobody acts for a rank that does not call */
        rank_meet(t);
        rank_meet(t);
    } else {
        rank_meet(t);
        bd_status rc = ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "big", NULL, &err);
        rank_meet(t);
        if (rc != BD_E_TIMEOUT || strstr(err.text, "rank 1 did not take part") == NULL ||
            strstr(err.text, "allreduce \"big\" (seq 1, f32 x ") == NULL ||
            strstr(err.text, c->backend == RANKS_SHM ? "have begun it" : "bytes received") ==
                NULL) {
            rank_failed(t, __FILE__, __LINE__, "timeout", &err);
        }
    }
    bd_free(v);
}

static void stop_rank(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world *= 2) {
        on_all(world, victim_stops, "small");
    }
    on_all(3, victim_stops, "large");
}

/* Rank 2 lives but never calls: it is named, too (pt#137268). */
static void idler(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    rank_limit(t, LIMIT_MS);
    if (t->rank != 2) {
        bd_status rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "step", NULL, &err);
        if (rc != BD_E_TIMEOUT || strstr(err.text, "rank 2 did not take part") == NULL) {
            rank_failed(t, __FILE__, __LINE__, "idler", &err);
        }
    }
    rank_meet(t);
}

static void a_rank_that_does_not_call_is_named(void **state)
{
    (void)state;
    on_all(4, idler, "");
}

/* A lost frame is not silence of a rank: the text says from whom it was due. */
static void frame_lost(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    rank_limit(t, LIMIT_MS);
    if (t->rank == 0) {
        ring_mem_test_drop(t->comm, 0);
    }
    bd_status rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err);
    rank_meet(t);
    RANK_CHECK(t, rc == (t->rank == 0 ? BD_OK : BD_E_TIMEOUT));
    RANK_CHECK(t,
               t->rank == 0 || strstr(err.text, "rank 0 sent nothing more, though alive") != NULL);
}

/* The same with three: ranks 0 and 1 go on to the next operation and wait for rank 2 there. Rank 2
 * holds their frames, so it cannot hear them; still nobody but the sender of the lost frame, rank
 * 1, is named, on all ranks. */
static void frame_lost_and_others_ahead(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    rank_limit(t, LIMIT_MS);
    if (t->rank == 1) {
        ring_mem_test_drop(t->comm, 0); /* to rank 2 */
    }
    bd_status rc = BD_OK;
    for (int step = 0; rc == BD_OK && step < 2; step++) {
        rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err);
    }
    rank_meet(t);
    if (rc != BD_E_TIMEOUT ||
        strstr(err.text, "rank 2: allreduce \"s\" (seq 1, f32 x 1, sum): rank 1 sent") == NULL) {
        rank_failed(t, __FILE__, __LINE__, "who is named", &err);
    }
}

static void a_dropped_frame_is_a_timeout(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_MEM, 3, NULL, frame_lost_and_others_ahead, NULL);
    ring_ranks_run(RANKS_MEM, 2, NULL, frame_lost, NULL);
}

/* Rank 0 aborts while the others wait for it. */
static void aborts(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    rank_meet(t); /* an abort could overtake the last frames of the barrier */
    if (t->rank == 0) {
        bd_err why = BD_ERR_INIT;
        (void)bd_err_set(&why, BD_E_DATA, "bad line 7");
        ring_abort(t->comm, &why);
        ring_abort(t->comm, NULL); /* idempotent: the first reason stays */
    }
    RANK_CHECK(t,
               ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err) == BD_E_ABORTED);
    RANK_CHECK(t, strstr(err.text, "rank 0 aborted: bad line 7") != NULL);
    rank_meet(t);
}

static void abort_reaches_everybody(void **state)
{
    (void)state;
    on_all(2, aborts, "");
    on_all(4, aborts, "");
}

/* Handles that are dropped into ring_free end, and can still be waited for. */
static void freed_with_open_work(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x[2] = {0};
    ring_work *w[2] = {NULL, NULL};
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    rank_meet(t);
    if (t->rank == 0) {
        for (int k = 0; k < 2; k++) {
            RANK_OK(t, ring_allreduce(t->comm, &x[k], 1, NUM_F32, NUM_SUM, "s", &w[k], &err), &err);
        }
        ring_free(t->comm);
        t->keep_comm = true;
        for (int k = 0; k < 2; k++) {
            RANK_CHECK(t, ring_work_done(w[k]));
            RANK_CHECK(t, ring_work_wait(w[k], &err) == BD_E_ABORTED);
        }
    }
    rank_meet(t);
}

static void free_ends_open_operations(void **state)
{
    (void)state;
    on_all(2, freed_with_open_work, "");
    on_all(3, freed_with_open_work, "");
}

/* A rank that leaves in order is lost only for what comes after. */
static void leaves_early(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = 100000;
    float *v = bd_calloc(n, sizeof *v);
    bd_status rc = ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "last", NULL, &err);
    bd_free(v);
    RANK_OK(t, rc, &err);
    if (t->rank == 0) {
        ring_free(t->comm);
        t->keep_comm = true;
        return;
    }
    RANK_CHECK(t, ring_barrier(t->comm, "more", &err) == BD_E_PEER_LOST);
    RANK_CHECK(t, strstr(err.text, "rank 0 left the group after 1 operations") != NULL);
}

static void orderly_leaving_is_no_error(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        on_all(3, leaves_early, "");
    }
}

/* Nothing grows over 100 groups. */

static int count_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    (void)closedir(d);
    return n;
}

static int count_lines(const char *path)
{
    int n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int ch = fgetc(f); ch != EOF; ch = fgetc(f)) {
        n += ch == '\n';
    }
    (void)fclose(f);
    return n;
}

/* A joined thread may stay in /proc for a moment: the count that has not changed for 50 ms. */
static int count_threads(void)
{
    int last = count_entries("/proc/self/task");
    for (int same = 0, polls = 0; same < 50 && polls < 5000; polls++) {
        bd_sleep_ms(1);
        int now = count_entries("/proc/self/task");
        same = now == last ? same + 1 : 0;
        last = now;
    }
    return last;
}

static void one_small_sum(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 1;
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err), &err);
    RANK_CHECK(t, (int)x == t->world);
}

static void a_hundred_groups_leave_nothing(void **state)
{
    (void)state;
    on_all(3, one_small_sum, ""); /* what is set up once */
    long blocks = bd_mem_live_blocks();
    int fds = count_entries("/proc/self/fd");
    int threads = count_threads();
    int mappings = count_lines("/proc/self/maps");
    for (int i = 0; i < 100; i++) {
        on_all(3, i % 10 == 9 ? aborts : one_small_sum, "");
    }
    assert_int_equal(bd_mem_live_blocks(), blocks);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    assert_int_equal(count_threads(), threads);
    assert_true(count_lines("/proc/self/maps") < mappings + 50); /* the heap's may vary */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_mismatch),
        cmocka_unit_test(extra_operation_is_a_mismatch),
        cmocka_unit_test(kill_rank),
        cmocka_unit_test(stop_rank),
        cmocka_unit_test(a_rank_that_does_not_call_is_named),
        cmocka_unit_test(a_dropped_frame_is_a_timeout),
        cmocka_unit_test(abort_reaches_everybody),
        cmocka_unit_test(free_ends_open_operations),
        cmocka_unit_test(orderly_leaving_is_no_error),
        cmocka_unit_test(a_hundred_groups_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
