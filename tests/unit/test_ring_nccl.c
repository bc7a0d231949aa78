/* Collectives on devices: each against values computed on the host, and every way to fail ends in
 * one typed error on all ranks. Ranks are threads. Built three times: on the fakes of tests/fakes,
 * on the fakes of an older NCCL, and on the real CUDA and NCCL (skipped without a GPU; one rank a
 * GPU). What only the fakes can do: test_ring_nccl_faults.c. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#include "tests/nccl/nccl_ranks.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SKIPPED 77

/* ---- values ---- */

static bool is_float(num_dtype d)
{
    return d == NUM_F32 || d == NUM_F16 || d == NUM_BF16 || d == NUM_F64;
}

static double load(const void *buf, size_t i, num_dtype d)
{
    switch (d) {
    case NUM_F32:
        return (double)((const float *)buf)[i];
    case NUM_F16:
        return (double)num_f16_to_f32(((const uint16_t *)buf)[i]);
    case NUM_BF16:
        return (double)num_bf16_to_f32(((const uint16_t *)buf)[i]);
    case NUM_F64:
        return ((const double *)buf)[i];
    case NUM_I32:
        return (double)((const int32_t *)buf)[i];
    case NUM_I64:
        return (double)((const int64_t *)buf)[i];
    default:
        return (double)((const uint8_t *)buf)[i];
    }
}

static double reduced_at(size_t i, int world, num_reduce_op op, num_dtype d)
{
    double v = nccl_input_at(0, i);
    for (int r = 1; r < world; r++) {
        double x = nccl_input_at(r, i);
        v = op == NUM_PROD  ? v * x
            : op == NUM_MIN ? fmin(v, x)
            : op == NUM_MAX ? fmax(v, x)
                            : v + x;
    }
    if (op == NUM_AVG) {
        v = is_float(d) ? v / world : trunc(v / world);
    }
    return v;
}

static bool is_near(double got, double want, num_dtype d)
{
    double eps = d == NUM_BF16 ? 0x1p-7 : d == NUM_F16 ? 0x1p-10 : d == NUM_F32 ? 1e-6 : 0;
    return fabs(got - want) <= 4 * eps * fabs(want) + (d == NUM_F64 ? 1e-12 : 0);
}

typedef struct want {
    num_dtype dtype;
    num_reduce_op op; /* 0: rank `who`'s input */
    int who;
    size_t first;
} want;

/* n elements from `at` on are as wanted. */
static void expect(node *t, int line, const void *dev, size_t at, size_t n, const want *w)
{
    size_t size = num_dtype_bytes((int)w->dtype);
    void *host = malloc(n * size + 1);
    if (host == NULL || cudaMemcpy(host, (const char *)dev + at * size, n * size,
                                   cudaMemcpyDeviceToHost) != cudaSuccess) {
        nccl_failed(t, line, "copy to the host", NULL);
    }
    for (size_t i = 0; host != NULL && i < n; i++) {
        double v = w->op != 0 ? reduced_at(w->first + i, t->world, w->op, w->dtype)
                              : nccl_input_at(w->who, w->first + i);
        double got = load(host, i, w->dtype);
        if (!is_near(got, v, w->dtype)) {
            bd_err err = BD_ERR_INIT;
            (void)bd_err_set(&err, BD_E_INTERNAL, "%s %s [%zu] of %zu = %g, want %g",
                             num_dtype_name((int)w->dtype), num_reduce_op_name((int)w->op), i, n,
                             got, v);
            nccl_failed(t, line, "value", &err);
            break;
        }
    }
    free(host);
}

/* ---- the matrix ---- */

static const num_dtype all_dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_F64,
                                       NUM_I32, NUM_I64, NUM_U8,   NUM_I8};
static const num_reduce_op all_ops[] = {NUM_SUM, NUM_AVG, NUM_MIN, NUM_MAX, NUM_PROD};

static void reductions(node *t, size_t count, num_dtype d, num_reduce_op op)
{
    const ring_nccl_how how = {.name = "matrix", .after = t->compute};
    size_t total = count * (size_t)t->world;
    want w = {.dtype = d, .op = op};
    void *buf = nccl_filled(t->rank, 0, count, d);
    OK(t, ring_nccl_allreduce(t->n, buf, count, d, op, &how, &err));
    expect(t, __LINE__, buf, 0, count, &w);
    (void)cudaFree(buf);
    for (int root = 0; root < t->world; root++) {
        buf = nccl_filled(t->rank, 0, count, d);
        OK(t, ring_nccl_reduce(t->n, buf, count, d, op, root, NULL, &err));
        if (root == t->rank) {
            expect(t, __LINE__, buf, 0, count, &w);
        }
        (void)cudaFree(buf);
    }
    void *in = nccl_filled(t->rank, 0, total, d);
    void *out = nccl_filled(t->rank, 0, count, d);
    OK(t, ring_nccl_reduce_scatter(t->n, in, out, count, d, op, NULL, &err));
    w.first = count * (size_t)t->rank;
    expect(t, __LINE__, out, 0, count, &w);
    (void)cudaFree(in);
    (void)cudaFree(out);
}

static void rooted(node *t, size_t count, num_dtype d, int root)
{
    size_t total = count * (size_t)t->world;
    void *one = nccl_filled(t->rank, 0, count, d);
    void *all = nccl_filled(t->rank, 0, total, d);
    OK(t, ring_nccl_gather(t->n, one, all, count, d, root, NULL, &err));
    for (int r = 0; t->rank == root && r < t->world; r++) {
        want w = {.dtype = d, .who = r};
        expect(t, __LINE__, all, (size_t)r * count, count, &w);
    }
    OK(t, ring_nccl_broadcast(t->n, one, count, d, root, NULL, &err));
    want w = {.dtype = d, .who = root};
    expect(t, __LINE__, one, 0, count, &w);
    (void)cudaFree(all);
    all = nccl_filled(t->rank, 0, total, d);
    OK(t, ring_nccl_scatter(t->n, all, one, count, d, root, NULL, &err));
    w.first = (size_t)t->rank * count;
    expect(t, __LINE__, one, 0, count, &w);
    (void)cudaFree(one);
    (void)cudaFree(all);
}

static void everywhere(node *t, size_t count, num_dtype d)
{
    size_t total = count * (size_t)t->world;
    void *in = nccl_filled(t->rank, 0, total, d);
    void *out = nccl_filled(t->rank, 0, total, d);
    OK(t, ring_nccl_all_gather(t->n, in, out, count, d, NULL, &err));
    for (int r = 0; r < t->world; r++) {
        want w = {.dtype = d, .who = r};
        expect(t, __LINE__, out, (size_t)r * count, count, &w);
    }
    OK(t, ring_nccl_all_to_all(t->n, in, out, count, d, NULL, &err));
    for (int r = 0; r < t->world; r++) {
        want w = {.dtype = d, .who = r, .first = (size_t)t->rank * count};
        expect(t, __LINE__, out, (size_t)r * count, count, &w);
    }
    (void)cudaFree(in);
    (void)cudaFree(out);
}

/* Rank r sends (r + p) % 3 elements to rank p. */
static void uneven(node *t)
{
    size_t sent[MAX_WORLD], got[MAX_WORLD], n_in = 0, n_out = 0;
    for (int r = 0; r < t->world; r++) {
        sent[r] = got[r] = (size_t)((t->rank + r) % 3);
        n_in += sent[r];
    }
    void *in = nccl_filled(t->rank, 0, n_in, NUM_I32);
    void *out = nccl_filled(t->rank, 0, n_in, NUM_I32);
    OK(t, ring_nccl_all_to_all_v(t->n, in, sent, out, got, NUM_I32, NULL, &err));
    for (int r = 0; r < t->world; r++) {
        want w = {.dtype = NUM_I32, .who = r};
        for (int p = 0; p < t->rank; p++) {
            w.first += (size_t)((r + p) % 3);
        }
        expect(t, __LINE__, out, n_out, got[r], &w);
        n_out += got[r];
    }
    (void)cudaFree(in);
    (void)cudaFree(out);
}

static void matrix(node *t)
{
    size_t p = (size_t)t->world;
    const size_t counts[] = {0, 1, p + 1, 1000};
    CUDA(t, cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking));
    for (size_t c = 0; c < N_OF(counts); c++) {
        for (size_t d = 0; d < N_OF(all_dtypes); d++) {
            for (size_t o = 0; o < N_OF(all_ops); o++) {
                reductions(t, counts[c], all_dtypes[d], all_ops[o]);
            }
            everywhere(t, counts[c], all_dtypes[d]);
            rooted(t, counts[c], all_dtypes[d], (int)(d % p));
        }
    }
    uneven(t);
    OK(t, ring_nccl_barrier(t->n, "end", &err));
    CHECK(t, ring_nccl_rank(t->n) == t->rank && ring_nccl_world(t->n) == t->world);
    CUDA(t, cudaStreamDestroy(t->compute));
}

/* Every collective, dtype and reduce op gives what the host computes, with and without agreement.
 */
static void collective_matrix(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    for (int world = 1; world <= nccl_top_world(); world++) {
        nccl_run(&(setup){.world = world, .control = world % 2 == 0}, matrix, nodes);
    }
}

static void bad_calls(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 4, NUM_F32);
    bd_err err = BD_ERR_INIT;
    CHECK(t, ring_nccl_allreduce(t->n, buf, 4, NUM_I32, NUM_BAND, NULL, &err) == BD_E_UNSUPPORTED);
    CHECK(t, strstr(err.text, "band") != NULL);
    CHECK(t,
          ring_nccl_allreduce(t->n, buf, 4, NUM_I32, (num_reduce_op)9, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_allreduce(t->n, buf, 4, (num_dtype)77, NUM_SUM, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_allreduce(t->n, NULL, 4, NUM_F32, NUM_SUM, NULL, &err) == BD_E_INVALID);
    CHECK(t,
          ring_nccl_allreduce(t->n, buf, SIZE_MAX, NUM_F32, NUM_SUM, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_broadcast(t->n, buf, 4, NUM_F32, t->world, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_broadcast(t->n, buf, 4, NUM_F32, -1, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_reduce(t->n, buf, 4, NUM_F32, NUM_SUM, -1, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_gather(t->n, buf, buf, 4, NUM_F32, -1, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_scatter(t->n, buf, buf, 4, NUM_F32, 99, NULL, &err) == BD_E_INVALID);
    const size_t huge[MAX_WORLD] = {SIZE_MAX, 1, 1, 1, 1};
    CHECK(t,
          ring_nccl_all_to_all_v(t->n, buf, huge, buf, huge, NUM_U8, NULL, &err) == BD_E_INVALID);
    CHECK(t, ring_nccl_allreduce(t->n, buf, 4, NUM_F32, NUM_SUM, NULL, &err) == BD_OK);
    (void)cudaFree(buf);
}

/* A bad argument is refused before anything happens: the group lives on. */
static void bad_arguments_are_refused(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    bd_err err = BD_ERR_INIT;
    ring_nccl *n = NULL;
    bd_kv *kv = bd_kv_mem_new();
    nccl_run(&(setup){.world = nccl_top_world() < 2 ? 1 : 2}, bad_calls, nodes);
    assert_int_equal(ring_nccl_new(kv, 2, 2, &(ring_nccl_options){0}, &n, &err), BD_E_INVALID);
    assert_int_equal(ring_nccl_new(kv, 0, 1, &(ring_nccl_options){.device = 999}, &n, &err),
                     BD_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "cudaSetDevice"));
    ring_nccl_free(NULL);
    bd_kv_mem_free(kv);
}

/* ---- order with compute ---- */

static void ordered(node *t)
{
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    float *buf = nccl_filled(0, 0, 64, NUM_F32), *fresh = nccl_filled(t->rank, 0, 64, NUM_F32);
    float *copy = nccl_filled(0, 0, 64, NUM_F32);
    cudaEvent_t late;
    ring_nccl_work *work = NULL;
    CUDA(t, cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking));
    CUDA(t, cudaEventCreateWithFlags(&late, cudaEventDisableTiming));
    CUDA(t, cudaLaunchHostFunc(t->compute, gate_pass, &g));
    CUDA(t, cudaMemcpyAsync(buf, fresh, 64 * sizeof(float), cudaMemcpyDeviceToDevice, t->compute));
    CUDA(t, cudaEventRecord(late, t->compute));
    const ring_nccl_how how = {.name = "ordered",
                               .after = t->rank == 0 ? t->compute : NULL,
                               .after_event = t->rank == 0 ? NULL : late,
                               .work = &work};
    OK(t, ring_nccl_allreduce(t->n, buf, 64, NUM_F32, NUM_SUM, &how, &err));
    OK(t, ring_nccl_work_order(work, t->compute, &err));
    CUDA(t, cudaMemcpyAsync(copy, buf, 64 * sizeof(float), cudaMemcpyDeviceToDevice, t->compute));
    CHECK(t, !ring_nccl_work_done(work)); /* its input is behind the gate */
    CHECK(t, cudaEventQuery(ring_nccl_work_event(work)) == cudaErrorNotReady);
    gate_open(&g);
    CUDA(t, cudaStreamSynchronize(t->compute));
    CHECK(t, ring_nccl_work_done(work));
    OK(t, ring_nccl_work_wait(work, &err));
    want w = {.dtype = NUM_F32, .op = NUM_SUM};
    expect(t, __LINE__, copy, 0, 64, &w);
    CUDA(t, cudaEventDestroy(late));
    CUDA(t, cudaStreamDestroy(t->compute));
    (void)cudaFree(buf);
    (void)cudaFree(fresh);
    (void)cudaFree(copy);
}

/* An operation starts after the compute it is told to wait for, and compute can wait for it: the
 * host blocks nowhere between the two. */
static void operations_are_ordered_with_compute(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = nccl_top_world() < 3 ? nccl_top_world() : 3}, ordered, nodes);
}

enum { IN_FLIGHT = 100 };

static void in_flight(node *t)
{
    ring_nccl_work *works[IN_FLIGHT];
    float *bufs[IN_FLIGHT];
    want w = {.dtype = NUM_F32, .op = NUM_SUM};
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        const ring_nccl_how how = {.name = "flight", .work = &works[i]};
        bufs[i] = nccl_filled(t->rank, 0, 10, NUM_F32);
        OK(t, ring_nccl_allreduce(t->n, bufs[i], 10, NUM_F32, NUM_SUM, &how, &err));
    }
    for (size_t i = IN_FLIGHT; i-- > 0;) { /* any order */
        if (i % 2 == 1) {
            OK(t, ring_nccl_work_wait(works[i], &err));
            expect(t, __LINE__, bufs[i], 0, 10, &w);
        } else {
            ring_nccl_work_release(works[i]);
        }
    }
    OK(t, ring_nccl_barrier(t->n, "all", &err));
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        expect(t, __LINE__, bufs[i], 0, 10, &w);
        (void)cudaFree(bufs[i]);
    }
}

static void many_operations_are_in_flight(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = nccl_top_world() < 2 ? 1 : 2, .control = true}, in_flight, nodes);
}

/* ---- failure: the ranks agree on the cause ---- */

/* Of what ends by it. A rank that is not to blame begins within it, or is named. */
enum { LIMIT_MS = 1000 };

/* The last rank never issues operation 1. */
static void one_is_missing(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    const ring_nccl_how how = {.name = "w"};
    OK(t, ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &err));
    (void)pthread_barrier_wait(t->meet); /* an abort stops what other devices still run */
    if (t->rank < t->world - 1) {
        t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &t->err);
    } else if (t->arg != NULL) { /* aborts */
        bd_err why = BD_ERR_INIT;
        (void)bd_err_set(&why, BD_E_NUMERIC, "loss is NaN");
        ring_nccl_abort(t->n, &why);
        t->rc = ring_nccl_failure(t->n, &t->err);
    } else {
        while (ring_nccl_failure(t->n, &t->err) == BD_OK) {
            bd_sleep_ms(1); /* bounded by the others' time limit */
        }
        t->rc = t->err.code;
    }
    bd_err again = BD_ERR_INIT;
    CHECK(t, ring_nccl_barrier(t->n, "after", &again) == t->rc);
    CHECK(t, strcmp(again.text, t->err.text) == 0);
    (void)cudaFree(buf);
}

static void an_abort_ends_all_ranks(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    int yes = 1;
    for (int world = 1; world <= nccl_top_world(); world += 2) {
        nccl_run(&(setup){.world = world, .arg = &yes}, one_is_missing, nodes);
        nccl_one_cause(nodes, world, BD_E_ABORTED, "aborted: loss is NaN");
    }
}

static void a_stuck_collective_ends_at_the_time_limit(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    int world = nccl_top_world() < 3 ? nccl_top_world() : 3;
    if (world < 2) {
        skip();
    }
    nccl_run(&(setup){.world = world, .limit_ms = LIMIT_MS}, one_is_missing, nodes);
    char part[200];
    (void)snprintf(part, sizeof part, "rank %d has not begun it (is at seq 1)", world - 1);
    nccl_one_cause(nodes, world, BD_E_TIMEOUT, part);
    assert_non_null(strstr(nodes[0].err.text,
                           "allreduce \"w\" (seq 1, f32 x 8, sum): timed out after 1000 ms"));
}

static void stuck_compute_is_named(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    int world = nccl_top_world() < 2 ? 1 : 2;
    nccl_run(&(setup){.world = world, .limit_ms = LIMIT_MS, .arg = &g}, nccl_compute_hangs, nodes);
    char part[100];
    (void)snprintf(part, sizeof part, "rank %d waits for earlier work of its device", world - 1);
    nccl_one_cause(nodes, world, BD_E_TIMEOUT, part);
}

static void freed_early(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    ring_nccl_work *work = NULL;
    const ring_nccl_how how = {.name = "w", .work = &work};
    if (t->rank == 0) {
        OK(t, ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &err));
        ring_nccl_work_release(work);
    } else {
        while (ring_nccl_failure(t->n, &t->err) == BD_OK) {
            bd_sleep_ms(1);
        }
        t->rc = t->err.code;
    }
    ring_nccl_free(t->n);
    t->n = NULL;
    (void)cudaFree(buf);
}

/* Freeing with an operation open is an abort, and the others hear of it. */
static void a_free_ends_open_operations(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    if (nccl_top_world() < 2) {
        skip();
    }
    nccl_run(&(setup){.world = 2}, freed_early, nodes);
    assert_int_equal(nodes[1].rc, BD_E_ABORTED);
    assert_non_null(strstr(nodes[1].err.text, "rank 0: the communicator was freed"));
}

static void one_has_left(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    const ring_nccl_how how = {.name = "w"};
    if (t->rank == 0) {
        t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &t->err);
    }
    (void)cudaFree(buf);
}

static void a_rank_that_has_left_is_named(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    if (nccl_top_world() < 2) {
        skip();
    }
    nccl_run(&(setup){.world = 2, .limit_ms = LIMIT_MS}, one_has_left, nodes);
    nccl_one_cause(nodes, 1, BD_E_TIMEOUT, "rank 1 has left before it (at seq 0)");
}

/* ---- agreement ---- */

static void a_mismatch_never_reaches_the_device(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    int world = nccl_top_world() < 3 ? nccl_top_world() : 3;
    if (world < 2) {
        skip();
    }
    nccl_run(&(setup){.world = world, .control = true}, nccl_disagree, nodes);
    nccl_one_cause(nodes, world, BD_E_MISMATCH, "f32 x 5");
    assert_non_null(strstr(nodes[0].err.text, "f32 x 8"));
}

static void disagree_on_counts(node *t)
{
    int32_t *buf = nccl_filled(t->rank, 0, 32, NUM_I32);
    const size_t counts[MAX_WORLD] = {3, 3, 3, 3, 3};
    const size_t wrong[MAX_WORLD] = {3, 4, 3, 3, 3};
    t->rc = ring_nccl_all_to_all_v(t->n, buf, counts, buf + 16, t->rank == 0 ? wrong : counts,
                                   NUM_I32, NULL, &t->err);
    if (t->rc == BD_OK) { /* heard after its own part was done */
        t->rc = ring_nccl_barrier(t->n, "next", &t->err);
    }
    (void)cudaFree(buf);
}

static void counts_of_pairs_must_agree(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    if (nccl_top_world() < 2) {
        skip();
    }
    nccl_run(&(setup){.world = 2, .control = true}, disagree_on_counts, nodes);
    nccl_one_cause(nodes, 2, BD_E_MISMATCH, "rank 1 sends 3 elements, rank 0 expects 4");
}

/* ---- rendezvous ---- */

static void absent_ranks_are_named(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = 4, .n_present = 1, .timeout_ms = 100, .tolerant = true}, bad_calls,
             nodes);
    nccl_one_cause(nodes, 1, BD_E_TIMEOUT, "absent after 100 ms: rank 1, 2, 3");
    if (nccl_top_world() < 2) {
        return;
    }
    nccl_run(&(setup){.world = 3, .n_present = 2, .timeout_ms = 1000, .tolerant = true}, bad_calls,
             nodes);
    nccl_one_cause(nodes, 2, BD_E_TIMEOUT, "absent after 1000 ms: rank 2");
}

static void join_twice(node *t)
{
    ring_nccl *second = NULL;
    ring_nccl_options opt = t->opt;
    bd_err err = BD_ERR_INIT;
    CHECK(t, ring_nccl_new(t->kv, t->rank, t->world, &opt, &second, &err) == BD_E_EXISTS);
    CHECK(t, ring_nccl_barrier(t->n, "the first goes on", &err) == BD_OK);
}

static void a_rank_joins_once(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    nccl_run(&(setup){.world = 1}, join_twice, nodes);
}

static void other_world(node *t)
{
    ring_nccl_options opt = t->opt;
    opt.group = "worlds";
    opt.epoch = 7;
    t->rc = ring_nccl_new(t->kv, t->rank, t->rank == 0 ? 2 : 3, &opt, &t->n, &t->err);
}

static void worlds_must_agree(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    if (nccl_top_world() < 2) {
        skip();
    }
    nccl_run(&(setup){.world = 2, .no_join = true}, other_world, nodes);
    nccl_one_cause(nodes, 2, BD_E_MISMATCH, "NCCL version and world");
}

/* ---- leaks ---- */

static int n_entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n;
}

static void a_hundred_rounds_leave_nothing(void **state)
{
    (void)state;
    node nodes[MAX_WORLD];
    int yes = 1, world = nccl_top_world() < 2 ? 1 : 2;
    nccl_run(&(setup){.world = world}, nccl_once, nodes); /* what is made once is there */
    long blocks = bd_mem_live_blocks();
    int fds = n_entries("/proc/self/fd"), threads = n_entries("/proc/self/task");
    for (int round = 0; round < 100; round++) {
        bool ends_ill = round % 4 == 3;
        nccl_run(&(setup){.world = world, .arg = ends_ill ? &yes : NULL},
                 ends_ill ? one_is_missing : nccl_once, nodes);
        assert_int_equal(nodes[0].rc, ends_ill ? BD_E_ABORTED : BD_OK);
    }
    assert_int_equal(bd_mem_live_blocks(), blocks);
    assert_int_equal(n_entries("/proc/self/fd"), fds);
    for (int i = 0; n_entries("/proc/self/task") > threads && i < 20000; i++) {
        bd_sleep_ms(1); /* a joined thread may stay in /proc for a moment */
    }
    assert_true(n_entries("/proc/self/task") <= threads);
}

int main(void)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)printf("SKIP: no GPU: %s\n", e != cudaSuccess ? cudaGetErrorString(e) : "0 devices");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collective_matrix),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(operations_are_ordered_with_compute),
        cmocka_unit_test(many_operations_are_in_flight),
        cmocka_unit_test(an_abort_ends_all_ranks),
        cmocka_unit_test(a_stuck_collective_ends_at_the_time_limit),
        cmocka_unit_test(stuck_compute_is_named),
        cmocka_unit_test(a_free_ends_open_operations),
        cmocka_unit_test(a_rank_that_has_left_is_named),
        cmocka_unit_test(a_mismatch_never_reaches_the_device),
        cmocka_unit_test(counts_of_pairs_must_agree),
        cmocka_unit_test(absent_ranks_are_named),
        cmocka_unit_test(a_rank_joins_once),
        cmocka_unit_test(worlds_must_agree),
        cmocka_unit_test(a_hundred_rounds_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
