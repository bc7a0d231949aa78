/* NCCL, the device and the store fail, which only the fakes can be made to do: on those of two
 * versions of NCCL. Every failure ends in one typed error on all ranks, and nothing is left. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#include "tests/nccl/nccl_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* NCCL hangs; the check comes with the time limit. */
static void a_mismatch_without_control_is_found_when_stuck(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = 3, .limit_ms = 1000}, nccl_disagree, nodes);
    nccl_one_cause(nodes, 3, BD_E_MISMATCH, "allreduce \"b\" (seq 0, f32 x 5, sum)");
    assert_non_null(strstr(nodes[0].err.text, "allreduce \"a\" (seq 0, f32 x 8, sum)"));
}

static void peer_is_gone(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    if (t->rank == 0) {
        assert_true(bd_fault_arm("fake.async", "fail", 4));
        const ring_nccl_how how = {.name = "w"};
        t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &t->err);
    } else {
        while (ring_nccl_failure(t->n, &t->err) == BD_OK) {
            bd_sleep_ms(1);
        }
        t->rc = t->err.code;
    }
    (void)cudaFree(buf);
}

static void an_async_error_ends_all_ranks(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = 2}, peer_is_gone, nodes);
    bd_fault_disarm_all();
    nccl_one_cause(nodes, 2, BD_E_PEER_LOST, "remote error: a peer closed its connection");
}

static void nccl_that_never_connects_is_a_timeout(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    assert_true(bd_fault_arm("fake.hang.init", "fail", 0));
    nccl_run(&(setup){.world = 2, .timeout_ms = 2000, .tolerant = true}, nccl_once, nodes);
    bd_fault_disarm_all();
    nccl_one_cause(nodes, 2, BD_E_TIMEOUT, "all 2 ranks have joined, but NCCL did not connect");
}

static void versions_must_agree(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    assert_true(bd_fault_arm("fake.other_version", "fail", 1));
    nccl_run(&(setup){.world = 2, .tolerant = true}, nccl_once, nodes);
    bd_fault_disarm_all();
    nccl_one_cause(nodes, 2, BD_E_MISMATCH, "21800 2");
}

static void device_breaks(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    ring_nccl_work *work = NULL;
    const ring_nccl_how how = {.name = "w", .work = &work};
    if (t->rank == 0) {
        OK(t, ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &err));
        fake_gpu_break(1);
        t->rc = ring_nccl_work_wait(work, &t->err);
        fake_gpu_break(0);
    } else {
        while (ring_nccl_failure(t->n, &t->err) == BD_OK) {
            bd_sleep_ms(1);
        }
        t->rc = t->err.code;
    }
    (void)cudaFree(buf);
}

static void an_error_of_the_device_ends_all_ranks(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = 2}, device_breaks, nodes);
    nccl_one_cause(nodes, 2, BD_E_IO,
                   "rank 0: allreduce \"w\" (seq 0, f32 x 8, sum): the device: an illegal");
}

static void all_kinds(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 64, NUM_F32);
    bd_err *err = &t->err;
    t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, NULL, err);
    t->rc = t->rc != BD_OK ? t->rc : ring_nccl_reduce(t->n, buf, 8, NUM_F32, NUM_SUM, 0, NULL, err);
    t->rc = t->rc != BD_OK
                ? t->rc
                : ring_nccl_reduce_scatter(t->n, buf, buf + 32, 8, NUM_F32, NUM_SUM, NULL, err);
    t->rc =
        t->rc != BD_OK ? t->rc : ring_nccl_all_gather(t->n, buf, buf + 32, 8, NUM_F32, NULL, err);
    t->rc = t->rc != BD_OK ? t->rc : ring_nccl_broadcast(t->n, buf, 8, NUM_F32, 0, NULL, err);
    t->rc =
        t->rc != BD_OK ? t->rc : ring_nccl_all_to_all(t->n, buf, buf + 32, 8, NUM_F32, NULL, err);
    (void)cudaFree(buf);
}

/* Each foreign call fails nccl_once, on some rank: all ranks end, with one cause, and nothing is
 * left.
 */
static void every_foreign_call_may_fail(void **state)
{
    (void)state;
    static const char *const points[] = {
        "cudaSetDevice",
        "cudaStreamCreateWithFlags",
        "cudaEventCreateWithFlags",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaEventQuery",
        "ncclGetVersion",
        "ncclGetUniqueId",
        "ncclCommInitRankConfig",
        "ncclAllReduce",
        "ncclReduce",
        "ncclReduceScatter",
        "ncclAllGather",
        "ncclBroadcast",
        "ncclSend",
        "ncclRecv",
        "ncclGroupStart",
        "ncclGroupEnd",
        "ncclCommFinalize",
        "ncclCommGetAsyncError",
        "ncclCommRevoke",
        "ncclCommAbort",
    };
    node nodes[MAX_WORLD];
    long blocks = bd_mem_live_blocks();
    for (size_t i = 0; i < N_OF(points); i++) {
        for (long nth = 0; nth < 3; nth++) {
            char name[64];
            (void)snprintf(name, sizeof name, "fake.%s", points[i]);
            assert_true(bd_fault_arm(name, "fail", nth));
            nccl_run(&(setup){.world = 2, .tolerant = true}, all_kinds, nodes);
            bd_fault_disarm_all();
            if (nodes[0].rc != BD_OK || nodes[1].rc != BD_OK) {
                nccl_one_cause(nodes, 2, nodes[0].rc, "");
                assert_true(nodes[0].rc < 0);
            }
            assert_int_equal(bd_mem_live_blocks(), blocks);
            assert_int_equal(fake_gpu_live(), 0);
        }
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    bd_kv *kv = bd_kv_mem_new();
    int n_failed = 0;
    for (long nth = 0; nth < 40; nth++) {
        ring_nccl *n = NULL;
        bd_err err = BD_ERR_INIT;
        const ring_nccl_options opt = {
            .group = "alloc", .epoch = 5000 + (uint64_t)nth, .poll_ms = 5, .timeout_ms = 20000};
        float *buf = nccl_filled(0, 0, 8, NUM_F32);
        bd_fault_fail_alloc(nth);
        bd_status rc = ring_nccl_new(kv, 0, 1, &opt, &n, &err);
        rc = rc != BD_OK ? rc : ring_nccl_allreduce(n, buf, 8, NUM_F32, NUM_SUM, NULL, &err);
        bd_fault_fail_alloc(-1);
        ring_nccl_free(n);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        n_failed += rc != BD_OK;
        (void)cudaFree(buf);
        assert_int_equal(fake_gpu_live(), 0);
    }
    assert_in_range(n_failed, 5, 39);
    bd_kv_mem_free(kv);
    nccl_run(&(setup){.world = 1}, nccl_once, nodes);
}

/* A call that is stuck inside NCCL holds the lock; the watchdog goes past it. */
static void call_is_stuck(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, NULL, &t->err);
    (void)cudaFree(buf);
}

static void a_call_that_does_not_return_is_aborted(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    assert_true(bd_fault_arm("fake.hang.call", "fail", 0));
    nccl_run(&(setup){.world = 2, .limit_ms = 1000}, call_is_stuck, nodes);
    bd_fault_disarm_all();
    nccl_one_cause(nodes, 2, BD_E_TIMEOUT, "timed out after 1000 ms");
    assert_int_equal(fake_gpu_live(), 0);
}

/* NCCL's abort does not come back: the caller gets its error, and the free does not wait for ever;
 * what stays behind is freed if NCCL comes back after all. */
static void an_abort_that_does_not_return_is_left_behind(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    long blocks = bd_mem_live_blocks();
    bd_kv *kv = bd_kv_mem_new();
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    assert_true(bd_fault_arm("fake.hang.abort", "fail", 0));
    assert_true(bd_fault_arm("fake.ncclCommRevoke", "fail", 0));
    nccl_run(&(setup){.world = 1, .timeout_ms = 100, .stop_ms = 100, .kv = kv, .arg = &g},
             nccl_compute_hangs, nodes);
    bd_fault_disarm_all();
    nccl_one_cause(nodes, 1, BD_E_TIMEOUT, "NCCL did not stop in 100 ms");
    assert_true(fake_gpu_live() > 1); /* more than g.kept */
    fake_nccl_let_go();
    for (int i = 0; fake_gpu_live() > 1 && i < 20000; i++) {
        bd_sleep_ms(1);
    }
    (void)cudaFree(g.kept);
    assert_int_equal(fake_gpu_live(), 0);
    bd_kv_mem_free(kv);
    for (int i = 0; bd_mem_live_blocks() != blocks && i < 20000; i++) {
        bd_sleep_ms(1);
    }
    assert_int_equal(bd_mem_live_blocks(), blocks);
}

/* A store that can be cut off. */
typedef struct cut_kv {
    bd_kv kv;
    bd_kv *inner;
    _Atomic bool is_cut;
} cut_kv;

static bd_status cut_set(bd_kv *kv, const char *key, const void *val, size_t n, bd_err *err)
{
    cut_kv *c = (cut_kv *)kv;
    return c->is_cut ? bd_err_set(err, BD_E_UNAVAILABLE, "cut")
                     : c->inner->set(c->inner, key, val, n, err);
}

static bd_status cut_get(bd_kv *kv, const char *key, int64_t ms, char **val, size_t *n, bd_err *err)
{
    cut_kv *c = (cut_kv *)kv;
    return c->is_cut ? bd_err_set(err, BD_E_UNAVAILABLE, "cut")
                     : c->inner->get(c->inner, key, ms, val, n, err);
}

static bd_status cut_compare_set(bd_kv *kv, const char *key, const char *expected,
                                 const char *desired, bool *swapped, bd_err *err)
{
    cut_kv *c = (cut_kv *)kv;
    return c->is_cut ? bd_err_set(err, BD_E_UNAVAILABLE, "cut")
                     : c->inner->compare_set(c->inner, key, expected, desired, swapped, err);
}

static void store_is_cut(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    const ring_nccl_how how = {.name = "w"};
    (void)pthread_barrier_wait(t->meet);
    ((cut_kv *)t->kv)->is_cut = true;
    if (t->rank == 0) {
        t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &t->err);
    }
    (void)pthread_barrier_wait(t->meet);
    (void)cudaFree(buf);
}

/* Without the store a rank is on its own, but its time limit holds. */
static void the_time_limit_holds_without_the_store(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    cut_kv c = {.kv = {.set = cut_set, .get = cut_get, .compare_set = cut_compare_set},
                .inner = bd_kv_mem_new()};
    nccl_run(&(setup){.world = 2, .limit_ms = 1000, .kv = &c.kv}, store_is_cut, nodes);
    assert_int_equal(nodes[0].rc, BD_E_TIMEOUT);
    assert_non_null(strstr(nodes[0].err.text, "(seq 0, f32 x 8, sum): timed out after 1000 ms"));
    assert_non_null(strstr(nodes[0].err.text, "no word of rank 1"));
    bd_kv_mem_free(c.inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mismatch_without_control_is_found_when_stuck),
        cmocka_unit_test(an_async_error_ends_all_ranks),
        cmocka_unit_test(nccl_that_never_connects_is_a_timeout),
        cmocka_unit_test(versions_must_agree),
        cmocka_unit_test(an_error_of_the_device_ends_all_ranks),
        cmocka_unit_test(every_foreign_call_may_fail),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_call_that_does_not_return_is_aborted),
        cmocka_unit_test(an_abort_that_does_not_return_is_left_behind),
        cmocka_unit_test(the_time_limit_holds_without_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
