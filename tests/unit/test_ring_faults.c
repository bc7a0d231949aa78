/* Wires and stores that go wrong: half a frame, a flipped byte, a rank that is slow, two jobs in
 * one store, what an earlier job left there, 64 ranks at once. Each ends in a named error or in
 * success. More of these: test_ring_failure.c (ranks that disagree, die, stop), test_ring_process.c
 * (signals), test_ring_hosts.c (links). */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_comm_int.h"

#include "tests/util/cut_proxy.h"
#include "tests/util/ring_ranks.h"
#include "tests/util/shared_kv.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 4

/* A rank in its own thread, on any store. */
typedef struct member {
    bd_kv *kv;
    ring_options opt;
    int rank;
    int world;
    int steps;         /* allreduces it tries after joining */
    size_t n;          /* of this length */
    int64_t pause_ms;  /* before each */
    int64_t limit_ms;  /* of each, where it is not that of the rendezvous, too */
    bd_status join_rc; /* out */
    bd_status rc;      /* out: of the last allreduce */
    bd_err err;
    pthread_t thread;
} member;

static void *member_main(void *arg)
{
    member *m = arg;
    ring_comm *c = NULL;
    m->rc = ring_new(m->kv, m->rank, m->world, &m->opt, &c, &m->err);
    m->join_rc = m->rc;
    if (m->rc == BD_OK && m->limit_ms > 0) {
        ring_test_limit(c, m->limit_ms);
    }
    float *v = bd_calloc(m->n + 1, sizeof *v);
    for (int s = 0; m->rc == BD_OK && s < m->steps; s++) {
        bd_sleep_ms(m->pause_ms);
        v[0] = 1;
        m->rc = ring_allreduce(c, v, m->n, NUM_F32, NUM_SUM, "step", NULL, &m->err);
        if (m->rc == BD_OK && (int)v[0] != m->world) {
            m->rc = bd_err_set(&m->err, BD_E_INTERNAL, "wrong sum");
        }
    }
    bd_free(v);
    ring_free(c);
    return NULL;
}

static void start(member *m)
{
    assert_int_equal(pthread_create(&m->thread, NULL, member_main, m), 0);
}

static void join_all(member *m, int n)
{
    for (int r = 0; r < n; r++) {
        (void)pthread_join(m[r].thread, NULL);
    }
}

static void expect(const member *m, bd_status want, const char *text)
{
    if (m->rc != want || strstr(m->err.text, text) == NULL) {
        fail_msg("rank %d: %s: %s; expected %s: ...%s", m->rank, bd_status_name((int)m->rc),
                 bd_err_text(&m->err), bd_status_name((int)want), text);
    }
}

/* Rank 1's bytes to rank 0 end after n_bytes. limit_ms: of an operation; 0: timeout_ms. */
static void run_cut(member m[2], size_t n_bytes, cut_how how, int64_t timeout_ms, int64_t limit_ms)
{
    bd_kv *kv = bd_kv_mem_new();
    cut_proxy *p = cut_proxy_new(kv, "/rank/0", n_bytes, how);
    for (int r = 0; r < 2; r++) {
        m[r] = (member){.kv = cut_proxy_kv(p), .rank = r, .world = 2, .steps = 3, .n = 100000};
        m[r].limit_ms = limit_ms;
        m[r].opt = (ring_options){
            .group = "cut", .epoch = 1, .timeout_ms = timeout_ms, .backend = RING_TCP};
        start(&m[r]);
    }
    join_all(m, 2);
    cut_proxy_free(p);
    bd_kv_mem_free(kv);
}

/* A hello is 128 bytes, then comes an allreduce of 400 kB: 200 kB and a header of 128 bytes from
 * rank 1, then as much again. In the first payload, and in the header. */
static const size_t g_cuts[] = {128 + 128 + 70000, 128 + 64};

static void half_frame_then_silence(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        member m[2];
        run_cut(m, g_cuts[i], CUT_STALL, 20000, 400); /* ranks may start late */
        expect(&m[0], BD_E_TIMEOUT, "rank 1 did not take part for 400 ms");
        expect(&m[1], BD_E_TIMEOUT, "rank 0 did not take part for 400 ms");
        assert_non_null(strstr(m[0].err.text, "allreduce \"step\" (seq 0, f32 x 100000, sum)"));
    }
}

static void half_frame_then_the_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        member m[2];
        run_cut(m, g_cuts[i], CUT_CLOSE, 20000, 0);
        expect(&m[0], BD_E_PEER_LOST, "rank 1 lost");
        expect(&m[1], BD_E_PEER_LOST, "rank 0 lost");
    }
}

static void half_hello(void **state)
{
    (void)state;
    member m[2];
    run_cut(m, 50, CUT_STALL, 2000, 0);
    expect(&m[0], BD_E_TIMEOUT, "rank 1 did not connect within 2000 ms");
    assert_int_not_equal(m[1].join_rc, BD_OK);
    run_cut(m, 50, CUT_CLOSE, 2000, 0);
    /* not "connect" if rank 1 has given up, and taken its address back, before rank 0 looks for it */
    expect(&m[0], BD_E_TIMEOUT, "rank 1 did not ");
    assert_non_null(strstr(m[0].err.text, " within 2000 ms"));
    expect(&m[1], BD_E_UNAVAILABLE, "rank 0 at 127.0.0.1");
}

/* The first byte of a frame: no frame any more. Both ranks say who got it. */
static void a_flipped_byte_in_a_header_is_corrupt(void **state)
{
    (void)state;
    member m[2];
    run_cut(m, 128, CUT_FLIP, 20000, 0);
    expect(&m[0], BD_E_CORRUPT, "rank 0 got bytes from rank 1");
    expect(&m[1], BD_E_CORRUPT, "rank 0 got bytes from rank 1");
}

/* Late at every step, but within the time limit. */
static void a_slow_rank_only_slows(void **state)
{
    (void)state;
    static const ring_backend_kind kinds[] = {RING_TCP, RING_SHM, RING_AUTO};
    for (size_t k = 0; k < 3; k++) {
        bd_kv *kv = bd_kv_mem_new();
        member m[4];
        for (int r = 0; r < 4; r++) {
            m[r] = (member){.kv = kv, .rank = r, .world = 4, .steps = 2, .n = 20000};
            m[r].opt = (ring_options){
                .group = "slow", .epoch = 1, .timeout_ms = 20000, .backend = kinds[k]};
            m[r].opt.host = r < 2 ? "a" : "b";
            m[r].pause_ms = r == 2 ? 200 : 0;
            start(&m[r]);
        }
        join_all(m, 4);
        for (int r = 0; r < 4; r++) {
            expect(&m[r], BD_OK, "");
        }
        bd_kv_mem_free(kv);
    }
}

/* Two jobs in one store: other epochs, or groups, do not meet; the same one is refused. */
static void two_jobs_in_one_store(void **state)
{
    (void)state;
    static const ring_backend_kind kinds[] = {RING_TCP, RING_SHM};
    for (size_t k = 0; k < 2; k++) {
        bd_kv *kv = bd_kv_mem_new();
        member m[6];
        for (int i = 0; i < 6; i++) {
            m[i] = (member){.kv = kv, .rank = i % 2, .world = 2, .steps = 50, .n = 1000};
            m[i].opt = (ring_options){.group = i < 4 ? "job" : "other",
                                      .epoch = i < 2 ? 1 : 2,
                                      .timeout_ms = 20000,
                                      .backend = kinds[k]};
            start(&m[i]);
        }
        join_all(m, 6);
        for (int i = 0; i < 6; i++) {
            expect(&m[i], BD_OK, "");
        }
        member late[2];
        for (int i = 0; i < 2; i++) {
            late[i] = m[i];
            late[i].err = (bd_err)BD_ERR_INIT;
            start(&late[i]);
        }
        join_all(late, 2);
        expect(&late[0], BD_E_EXISTS, "rank 0 has already joined group job, epoch 1");
        expect(&late[1], BD_E_EXISTS, "rank 1 has already joined group job, epoch 1");
        bd_kv_mem_free(kv);
    }
}

/* A store that still holds the addresses of a job that was killed. */
static void stale_state_is_named(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    member m[2];
    assert_int_equal(kv->set(kv, "ring/job/1/rank/0", "127.0.0.1:1", 11, NULL), BD_OK);
    assert_int_equal(kv->set(kv, "ring/job/1/shm/0", "@braid-ring-gone", 16, NULL), BD_OK);
    for (int k = 0; k < 2; k++) {
        for (int r = 0; r < 2; r++) {
            m[r] = (member){.kv = kv, .rank = r, .world = 2, .n = 10, .steps = 1};
            m[r].opt = (ring_options){.group = "job", .epoch = 1, .timeout_ms = 2000};
            m[r].opt.backend = k == 0 ? RING_TCP : RING_SHM;
            start(&m[r]);
        }
        join_all(m, 2);
        expect(&m[0], BD_E_EXISTS, "rank 0 has already joined group job, epoch 1");
        expect(&m[1], BD_E_UNAVAILABLE,
               k == 0 ? "rank 0 at 127.0.0.1:1" : "rank 0 at @braid-ring-gone");
        for (int r = 0; r < 2; r++) { /* a new epoch does not look there */
            m[r].opt.epoch = 2;
            m[r].opt.timeout_ms = 20000;
            m[r].err = (bd_err)BD_ERR_INIT;
            start(&m[r]);
        }
        join_all(m, 2);
        expect(&m[0], BD_OK, "");
        expect(&m[1], BD_OK, "");
    }
    bd_kv_mem_free(kv);
}

/* The stale address leads to another job's rank by now: neither takes the other for its own. */
static void a_stale_address_of_another_job(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    char *at = NULL;
    member theirs[2];
    member ours = {.kv = kv, .rank = 1, .world = 2, .n = 10, .steps = 1};
    ours.opt = (ring_options){.group = "ours", .epoch = 1, .timeout_ms = 2000, .backend = RING_TCP};
    for (int r = 0; r < 2; r++) {
        theirs[r] = (member){.kv = kv, .rank = r, .world = 2, .n = 10, .steps = 1};
        theirs[r].opt =
            (ring_options){.group = "theirs", .epoch = 1, .timeout_ms = 20000, .backend = RING_TCP};
    }
    start(&theirs[0]);
    assert_int_equal(kv->get(kv, "ring/theirs/1/rank/0", 10000, &at, NULL, NULL), BD_OK);
    assert_int_equal(kv->set(kv, "ring/ours/1/rank/0", at, strlen(at), NULL), BD_OK);
    start(&ours);
    (void)pthread_join(ours.thread, NULL);
    *strchr(at, ' ') = '\0';
    expect(&ours, BD_E_TIMEOUT, at); /* it is waiting for its own rank 1 */
    start(&theirs[1]);
    join_all(theirs, 2);
    expect(&theirs[0], BD_OK, "");
    expect(&theirs[1], BD_OK, "");
    bd_free(at);
    bd_kv_mem_free(kv);
}

/* Two jobs of the same name in stores of their own, and one port: what the second job's rank 0 has
 * published leads to the first one's rank 0, which has the port. No rank joins the other job. */
static void two_jobs_on_one_port(void **state)
{
    (void)state;
    bd_kv *kv[2] = {bd_kv_mem_new(), bd_kv_mem_new()};
    char *at[2] = {NULL, NULL};
    char text[96];
    member m[4]; /* job i / 2 */
    for (int i = 0; i < 4; i++) {
        m[i] = (member){.kv = kv[i / 2], .rank = i % 2, .world = 2, .n = 10, .steps = 1};
        m[i].opt = (ring_options){.group = "job", .epoch = 1, .backend = RING_TCP};
        m[i].opt.timeout_ms = i < 2 ? 20000 : 1000;
    }
    for (int job = 0; job < 2; job++) {
        start(&m[job == 0 ? 0 : 2]);
        assert_int_equal(kv[job]->get(kv[job], "ring/job/1/rank/0", 10000, &at[job], NULL, NULL),
                         BD_OK);
    }
    *strchr(at[0], ' ') = '\0';
    (void)snprintf(text, sizeof text, "%s%s", at[0], strchr(at[1], ' '));
    assert_int_equal(kv[1]->set(kv[1], "ring/job/1/rank/0", text, strlen(text), NULL), BD_OK);
    start(&m[3]);
    join_all(&m[2], 2);
    /* "connect", or "join" if rank 1 has given up before rank 0 looks for its address */
    expect(&m[2], BD_E_TIMEOUT, "rank 1 did not ");
    assert_non_null(strstr(m[2].err.text, " within 1000 ms"));
    assert_int_not_equal(m[3].rc, BD_OK);
    expect(&m[3], m[3].rc, at[0]); /* closed by a stranger, or silent until the limit */
    start(&m[1]);
    join_all(m, 2);
    expect(&m[0], BD_OK, "");
    expect(&m[1], BD_OK, "");
    for (int job = 0; job < 2; job++) {
        bd_free(at[job]);
        bd_kv_mem_free(kv[job]);
    }
}

/* As processes, all at once: nobody is lost in a listener's queue. */
#ifdef BRAID_SANITIZED
#define MANY 16
#else
#define MANY 64
#endif

static int one_of_many(bd_kv *kv, int rank, ring_backend_kind kind)
{
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL;
    ring_options opt = {.group = "many", .epoch = 1, .timeout_ms = 60000, .backend = kind};
    float x[100];
    for (int i = 0; i < 100; i++) {
        x[i] = (float)(rank + i);
    }
    bd_status rc = ring_new(kv, rank, MANY, &opt, &c, &err);
    if (rc == BD_OK) {
        rc = ring_allreduce(c, x, 100, NUM_F32, NUM_SUM, "x", NULL, &err);
    }
    for (int i = 0; rc == BD_OK && i < 100; i++) {
        if ((int)x[i] != MANY * (MANY - 1) / 2 + MANY * i) {
            rc = bd_err_set(&err, BD_E_INTERNAL, "[%d] is %g", i, (double)x[i]);
        }
    }
    rc = rc == BD_OK ? ring_barrier(c, "end", &err) : rc;
    ring_free(c);
    if (rc != BD_OK) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, bd_err_text(&err));
    }
    return rc == BD_OK ? 0 : 1;
}

static void many_ranks_start_at_once(void **state)
{
    (void)state;
    static const ring_backend_kind kinds[] = {RING_TCP, RING_SHM};
    for (size_t k = 0; k < 2; k++) {
        bd_kv *kv = shared_kv_new(4 * MANY);
        pid_t pids[MANY];
        int n_bad = 0;
        for (int r = 0; r < MANY; r++) {
            pids[r] = fork();
            if (pids[r] == 0) {
                _exit(one_of_many(kv, r, kinds[k]));
            }
            assert_true(pids[r] > 0);
        }
        for (int r = 0; r < MANY; r++) {
            int status = 0;
            assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
            n_bad += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
        }
        shared_kv_free(kv);
        assert_int_equal(n_bad, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_ranks_start_at_once), /* first: it forks */
        cmocka_unit_test(half_frame_then_silence),
        cmocka_unit_test(half_frame_then_the_end),
        cmocka_unit_test(half_hello),
        cmocka_unit_test(a_flipped_byte_in_a_header_is_corrupt),
        cmocka_unit_test(a_slow_rank_only_slows),
        cmocka_unit_test(two_jobs_in_one_store),
        cmocka_unit_test(two_jobs_on_one_port),
        cmocka_unit_test(stale_state_is_named),
        cmocka_unit_test(a_stale_address_of_another_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
