/* Ranks as real processes: SIGKILL and SIGSTOP in the middle of allreduces over tcp, through shared
 * memory and over both. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_comm_int.h"

#include "tests/util/shared_kv.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WORLD   3
#define VICTIM  1
#define JOIN_MS 20000 /* a busy machine starts processes late */

/* Between the processes of one test. */
typedef struct shared {
    _Atomic int64_t victim_steps; /* allreduces the victim has completed */
    _Atomic int64_t hit_ns;       /* when the signal was sent */
} shared;

static shared *shared_new(void)
{
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    return s;
}

typedef struct hit {
    int sig;
    bd_status want;
    const char *want_text;
    int64_t timeout_ms;
    ring_backend_kind backend; /* RING_AUTO: ranks 0 and 1 on one host, 2 on another */
} hit;

static const ring_backend_kind g_backends[] = {RING_TCP, RING_SHM, RING_AUTO};

/* A child: allreduces until one fails. Exit 0: failed as it should. */
static int child(shared *s, bd_kv *kv, int rank, const hit *h)
{
    const ring_options opt = {.group = "processes",
                              .epoch = 1,
                              .timeout_ms = JOIN_MS,
                              .backend = h->backend,
                              .host = rank < 2 ? "a" : "b"};
    const size_t n = (size_t)1 << 18;
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL;
    bd_status rc = ring_new(kv, rank, WORLD, &opt, &c, &err);
    if (rc == BD_OK) {
        ring_test_limit(c, h->timeout_ms);
    }
    /* one in place, one through the stages */
    float *shared_v = rc == BD_OK ? ring_alloc(c, n * sizeof *shared_v) : NULL;
    float *v = bd_calloc(n, sizeof *v);
    rc = rc == BD_OK && (v == NULL || shared_v == NULL) ? BD_E_NOMEM : rc;
    while (rc == BD_OK) {
        rc = ring_allreduce(c, v, n, NUM_F32, NUM_SUM, "step", NULL, &err);
        if (rc == BD_OK) {
            rc = ring_allreduce(c, shared_v, n, NUM_F32, NUM_SUM, "step", NULL, &err);
        }
        if (rank == VICTIM) {
            s->victim_steps++;
        }
    }
    int64_t took_ns = bd_mono_ns() - s->hit_ns;
    if (c != NULL) {
        ring_mem_release(c, shared_v);
    }
    ring_free(c);
    bd_free(v);
    bool ok = rc == h->want && strstr(err.text, h->want_text) != NULL;
    /* killed: long before the time limit; stopped: it, and the questions. Machines are busy. */
    ok = ok && took_ns < (h->want == BD_E_PEER_LOST ? 15000 : h->timeout_ms + 20000) * BD_NS_PER_MS;
    if (!ok) {
        (void)fprintf(stderr, "backend %d, rank %d after %lld ms: %s: %s\n", (int)h->backend, rank,
                      (long long)(took_ns / BD_NS_PER_MS), bd_status_name((int)rc),
                      bd_err_text(&err));
    }
    return ok ? 0 : 1;
}

static void hit_one(const hit *h)
{
    shared *s = shared_new();
    bd_kv *kv = shared_kv_new(8 * WORLD);
    pid_t pids[WORLD];
    for (int r = 0; r < WORLD; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            _exit(child(s, kv, r, h));
        }
        assert_true(pids[r] > 0);
    }
    int64_t until = bd_mono_ns() + 60 * BD_NS_PER_S;
    while (s->victim_steps < 20 && bd_mono_ns() < until) {
        bd_sleep_ms(1); /* the condition is in another process */
    }
    assert_true(s->victim_steps >= 20);
    s->hit_ns = bd_mono_ns();
    assert_int_equal(kill(pids[VICTIM], h->sig), 0);
    int status[WORLD] = {0};
    for (int r = 0; r < WORLD; r++) {
        if (r != VICTIM) {
            assert_int_equal(waitpid(pids[r], &status[r], 0), pids[r]);
        }
    }
    /* nobody is left behind, whatever the survivors said */
    (void)kill(pids[VICTIM], SIGKILL);
    assert_int_equal(waitpid(pids[VICTIM], NULL, 0), pids[VICTIM]);
    (void)munmap(s, sizeof *s);
    shared_kv_free(kv);
    for (int r = 0; r < WORLD; r++) {
        if (r != VICTIM) {
            assert_true(WIFEXITED(status[r])); /* SIGPIPE, for one, is not an end */
            assert_int_equal(WEXITSTATUS(status[r]), 0);
        }
    }
}

static void a_killed_process_is_named_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        hit_one(&(hit){SIGKILL, BD_E_PEER_LOST, "rank 1 lost", 20000, g_backends[i % 3]});
    }
}

static void a_stopped_process_is_named_at_the_time_limit(void **state)
{
    (void)state;
    /* Long enough that a busy machine keeps no healthy rank from the processor for that time. */
    for (int i = 0; i < 3; i++) {
        hit_one(
            &(hit){SIGSTOP, BD_E_TIMEOUT, ": rank 1 did not take part for", 2000, g_backends[i]});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_is_named_at_once),
        cmocka_unit_test(a_stopped_process_is_named_at_the_time_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
