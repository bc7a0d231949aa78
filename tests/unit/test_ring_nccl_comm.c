/* ring.h over NCCL (RING_NCCL), on the fakes: the conformance matrix, groups of
 * groups, failures. What ring_nccl itself promises: test_ring_nccl.c. The reducer over it: the
 * tests of the reducer, built once more (test_ring_reducer_nccl and others). */
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_nccl.h"

#include "tests/fakes/fake_gpu.h"
#include "tests/util/ring_groups.h"
#include "tests/util/ring_matrix.h"
#include "tests/util/ring_ranks.h"

#include <cuda_runtime_api.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void matrix_small_nccl(void **state)
{
    (void)state;
    ring_matrix_small(RANKS_OTHER);
}

static void matrix_large_nccl(void **state)
{
    (void)state;
    ring_matrix_large(RANKS_OTHER);
}

/* Device memory is taken as it is. */
static void on_devices(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x[3] = {1, 2, (float)t->rank};
    void *dev = NULL;
    RANK_CHECK(t, cudaSetDevice(t->rank) == cudaSuccess);
    RANK_CHECK(t, cudaMalloc(&dev, sizeof x) == cudaSuccess);
    RANK_CHECK(t, cudaMemcpy(dev, x, sizeof x, cudaMemcpyHostToDevice) == cudaSuccess);
    RANK_OK(t, ring_allreduce(t->comm, dev, 3, NUM_F32, NUM_SUM, "d", NULL, &err), &err);
    RANK_CHECK(t, cudaMemcpy(x, dev, sizeof x, cudaMemcpyDeviceToHost) == cudaSuccess);
    RANK_CHECK(t, (int)x[1] == 2 * t->world && (int)x[2] == t->world * (t->world - 1) / 2);
    (void)cudaFree(dev);
}

static void device_memory_is_not_copied(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_OTHER, 3, NULL, on_devices, NULL);
}

/* Asynchronous operations and messages between ranks, in any order of waiting.
 */
static void messages(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_work *w = NULL;
    ring_work *s = NULL;
    int32_t sum = 1, got = -1, sent = t->rank;
    RANK_OK(t, ring_allreduce(t->comm, &sum, 1, NUM_I32, NUM_SUM, "a", &w, &err), &err);
    RANK_OK(t, ring_send(t->comm, &sent, 1, NUM_I32, (t->rank + 1) % t->world, 7, "p", &s, &err),
            &err);
    RANK_OK(t,
            ring_recv(t->comm, &got, 1, NUM_I32, (t->rank + t->world - 1) % t->world, 7, "p", NULL,
                      &err),
            &err);
    RANK_OK(t, ring_work_wait(s, &err), &err);
    RANK_OK(t, ring_work_wait(w, &err), &err);
    RANK_CHECK(t, sum == t->world && got == (t->rank + t->world - 1) % t->world);
}

/* From device memory to device memory, and to host memory; two tags, received in the other order.
 */
static void device_messages(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    enum { N = 1000 };
    int32_t x[N], *dev[2] = {NULL, NULL};
    ring_work *w[4];
    int next = (t->rank + 1) % t->world, before = (t->rank + t->world - 1) % t->world;
    RANK_CHECK(t, cudaSetDevice(t->rank) == cudaSuccess);
    for (int i = 0; i < N; i++) {
        x[i] = t->rank * N + i;
    }
    for (int k = 0; k < 2; k++) {
        RANK_CHECK(t, cudaMalloc((void **)&dev[k], sizeof x) == cudaSuccess);
    }
    RANK_CHECK(t, cudaMemcpy(dev[0], x, sizeof x, cudaMemcpyHostToDevice) == cudaSuccess);
    RANK_OK(t, ring_send(t->comm, dev[0], N, NUM_I32, next, 1, "a", &w[0], &err), &err);
    RANK_OK(t, ring_send(t->comm, dev[0], N, NUM_I32, next, 2, "b", &w[1], &err), &err);
    RANK_OK(t, ring_recv(t->comm, x, N, NUM_I32, before, 2, "b", &w[2], &err), &err);
    RANK_OK(t, ring_recv(t->comm, dev[1], N, NUM_I32, before, 1, "a", &w[3], &err), &err);
    for (int k = 3; k >= 0; k--) {
        RANK_OK(t, ring_work_wait(w[k], &err), &err);
    }
    RANK_CHECK(t, x[0] == before * N && x[N - 1] == before * N + N - 1);
    memset(x, 0, sizeof x);
    RANK_CHECK(t, cudaMemcpy(x, dev[1], sizeof x, cudaMemcpyDeviceToHost) == cudaSuccess);
    RANK_CHECK(t, x[0] == before * N && x[N - 1] == before * N + N - 1);
    (void)cudaFree(dev[0]);
    (void)cudaFree(dev[1]);
    RANK_OK(t, ring_barrier(t->comm, "end", &err), &err);
}

static void send_and_recv_on_devices(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_OTHER, 2, NULL, device_messages, NULL);
    ring_ranks_run(RANKS_OTHER, 4, NULL, device_messages, NULL);
}

static void send_and_recv_beside_operations(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_OTHER, 2, NULL, messages, NULL);
    ring_ranks_run(RANKS_OTHER, 5, NULL, messages, NULL);
}

static void only_members_make_a_group_nccl(void **state)
{
    (void)state;
    ring_groups_check(RANKS_OTHER);
}

static void disagrees(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x[8] = {0};
    size_t n = t->rank == 1 ? 8 : 7;
    RANK_CHECK(t, ring_allreduce(t->comm, x, n, NUM_F32, NUM_SUM, "grad", NULL, &err) ==
                      BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "f32 x 8") != NULL && strstr(err.text, "f32 x 7") != NULL);
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_MISMATCH);
    rank_meet(t);
}

static void aborts(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    bd_err why = BD_ERR_INIT;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    rank_meet(t);
    if (t->rank == 1) {
        (void)bd_err_set(&why, BD_E_NUMERIC, "loss is NaN");
        ring_abort(t->comm, &why);
    }
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_ABORTED);
    RANK_CHECK(t, strstr(err.text, "rank 1 aborted: loss is NaN") != NULL);
    rank_meet(t);
}

static void wrong_message(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    int32_t x[2] = {0, 0};
    bd_status rc = t->rank == 0 ? ring_recv(t->comm, x, 2, NUM_I32, 1, 0, "p", NULL, &err)
                                : ring_send(t->comm, x, 1, NUM_I32, 0, 0, "p", NULL, &err);
    RANK_CHECK(t, t->rank == 1 || rc == BD_E_MISMATCH);
    rank_meet(t);
    while (ring_barrier(t->comm, "later", &err) == BD_OK) { /* ends as soon as both know */
    }
    RANK_CHECK(t, err.code == BD_E_MISMATCH);
    rank_meet(t);
}

static void a_failure_ends_all_ranks(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_OTHER, 3, NULL, disagrees, NULL);
    ring_ranks_run(RANKS_OTHER, 3, NULL, aborts, NULL);
    ring_ranks_run(RANKS_OTHER, 2, NULL, wrong_message, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_small_nccl),
        cmocka_unit_test(matrix_large_nccl),
        cmocka_unit_test(device_memory_is_not_copied),
        cmocka_unit_test(send_and_recv_on_devices),
        cmocka_unit_test(send_and_recv_beside_operations),
        cmocka_unit_test(only_members_make_a_group_nccl),
        cmocka_unit_test(a_failure_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
