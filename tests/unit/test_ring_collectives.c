/* The collectives over memory and tcp, and what all backends share. */
#include "base/mem.h"

#include "ring/ring.h"

#include "tests/util/ring_matrix.h"
#include "tests/util/ring_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void matrix_small_mem(void **state)
{
    (void)state;
    ring_matrix_small(RANKS_MEM);
}

static void matrix_large_mem(void **state)
{
    (void)state;
    ring_matrix_large(RANKS_MEM);
}

static void matrix_small_tcp(void **state)
{
    (void)state;
    ring_matrix_small(RANKS_TCP);
}

static void matrix_large_tcp(void **state)
{
    (void)state;
    ring_matrix_large(RANKS_TCP);
}

static void bitwise_ranks_and_runs_equal_mem(void **state)
{
    (void)state;
    ring_matrix_bitwise(RANKS_MEM);
}

static void bitwise_ranks_and_runs_equal_tcp(void **state)
{
    (void)state;
    ring_matrix_bitwise(RANKS_TCP);
}

/* One NaN on one rank, at every rank: all ranks see NaN in sum, min and max, large and small. */
static void one_nan(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    static const num_reduce_op ops[] = {NUM_SUM, NUM_MIN, NUM_MAX};
    static const size_t counts[] = {3, 20000};
    for (int who = 0; who < t->world; who++) {
        for (size_t k = 0; k < 6; k++) {
            size_t n = counts[k / 3];
            float *v = bd_alloc_aligned(64, n * sizeof *v);
            for (size_t i = 0; i < n; i++) {
                v[i] = 1.0f;
            }
            v[n - 1] = who == t->rank ? NAN : 1.0f;
            RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_F32, ops[k % 3], "nan", NULL, &err), &err);
            RANK_CHECK(t, isnan(v[n - 1]) && !isnan(v[0]));
            bd_free(v);
        }
    }
}

static void nan_wins_wherever_it_is(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        ring_ranks_run(RANKS_MEM, world, NULL, one_nan, NULL);
        ring_ranks_run(RANKS_SHM, world, NULL, one_nan, NULL);
    }
}

/* 2049 + 15 halves: in plain f16 every 1 after 2048 is lost. */
static void half_sums_keep_f32(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    uint16_t v = num_f32_to_f16(t->rank == 0 ? 2048.0f : 1.0f);
    RANK_OK(t, ring_allreduce(t->comm, &v, 1, NUM_F16, NUM_SUM, "h", NULL, &err), &err);
    RANK_CHECK(t, num_f16_to_f32(v) == 2056.0f);
}

static void f16_sum_rounds_once(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_MEM, 8 + 1, NULL, half_sums_keep_f32, NULL);
    ring_ranks_run(RANKS_SHM, 8 + 1, NULL, half_sums_keep_f32, NULL);
}

/* Operations that were issued and not waited for run in order, also when waited for backwards. */
static void many_in_flight(rank_test *t)
{
    enum { N = 20 };
    bd_err err = BD_ERR_INIT;
    float *v[N];
    ring_work *w[N];
    for (size_t k = 0; k < N; k++) {
        size_t n = 1 + k * 4001;
        v[k] = ring_matrix_filled(t->rank, k, n, NUM_F32);
        RANK_OK(t, ring_allreduce(t->comm, v[k], n, NUM_F32, NUM_SUM, "k", &w[k], &err), &err);
    }
    for (size_t k = N; k > 0; k--) {
        RANK_OK(t, ring_work_wait(w[k - 1], &err), &err);
        size_t last = (k - 1) * 4001;
        RANK_CHECK(t, (double)v[k - 1][last] ==
                          ring_matrix_reduced_at(k - 1 + last, t->world, NUM_SUM, NUM_F32));
        bd_free(v[k - 1]);
    }
}

static void async_operations_run_in_order(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        ring_ranks_run(RANKS_MEM, world, NULL, many_in_flight, NULL);
        ring_ranks_run(RANKS_TCP, world, NULL, many_in_flight, NULL);
        ring_ranks_run(RANKS_SHM, world, NULL, many_in_flight, NULL);
        ring_ranks_run(RANKS_HIER, world, NULL, many_in_flight, NULL);
    }
}

/* reduce_scatter and all_gather in place, and the promised volume of a ring allreduce. */
static void in_place_and_volume(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = 50000, p = (size_t)t->world;
    float *v = ring_matrix_filled(t->rank, 0, n * p, NUM_F32);
    float *own = v + (size_t)t->rank * n;
    RANK_OK(t, ring_reduce_scatter(t->comm, v, own, n, NUM_F32, NUM_SUM, "", NULL, &err), &err);
    RANK_OK(t, ring_all_gather(t->comm, own, v, n, NUM_F32, NULL, NULL, &err), &err);
    for (size_t i = 0; i < n * p; i++) {
        RANK_CHECK(t, (double)v[i] == ring_matrix_reduced_at(i, t->world, NUM_SUM, NUM_F32));
    }
    uint64_t before = ring_bytes_sent(t->comm);
    RANK_OK(t, ring_allreduce(t->comm, v, n * p, NUM_F32, NUM_SUM, "", NULL, &err), &err);
    uint64_t sent = ring_bytes_sent(t->comm) - before;
    uint64_t ideal = 2 * (p - 1) * n * sizeof *v;
    RANK_CHECK(t, sent >= ideal && (double)sent <= 1.01 * (double)ideal + 512);
    bd_free(v);
}

static void in_place_works_and_volume_is_optimal(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        ring_ranks_run(RANKS_MEM, world, NULL, in_place_and_volume, NULL);
    }
}

/* Chunks far larger than a socket's buffers: writes are cut anywhere and go on later. */
static void larger_than_sockets(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t n = (size_t)3 << 20;
    float *v = bd_calloc(n, sizeof *v);
    for (int round = 0; round < 8; round++) {
        v[0] = v[n - 1] = v[n / 2] = 1.0f;
        RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "big", NULL, &err), &err);
        RANK_CHECK(t, (int)v[0] == t->world && (int)v[n - 1] == t->world && v[1] == 0.0f);
        RANK_OK(t, ring_broadcast(t->comm, v, n, NUM_F32, round % t->world, "b", NULL, &err), &err);
        RANK_CHECK(t, (int)v[n / 2] == t->world);
    }
    bd_free(v);
}

static void full_sockets_lose_nothing(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_TCP, 2, NULL, larger_than_sockets, NULL);
    ring_ranks_run(RANKS_TCP, 4, NULL, larger_than_sockets, NULL);
}

static void bad_arguments_are_typed(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 1;
    RANK_CHECK(t, ring_allreduce(t->comm, &x, 1, (num_dtype)77, NUM_SUM, "a", NULL, &err) ==
                      BD_E_INVALID);
    RANK_CHECK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_BOR, "a", NULL, &err) ==
                      BD_E_UNSUPPORTED);
    RANK_CHECK(t, ring_allreduce(t->comm, &x, SIZE_MAX, NUM_F32, NUM_SUM, "a", NULL, &err) ==
                      BD_E_INVALID);
    RANK_CHECK(t,
               ring_allreduce(t->comm, NULL, 1, NUM_F32, NUM_SUM, "a", NULL, &err) == BD_E_INVALID);
    RANK_CHECK(t,
               ring_broadcast(t->comm, &x, 1, NUM_F32, t->world, "a", NULL, &err) == BD_E_INVALID);
    /* none of them reached the others: the group still works */
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "a", NULL, &err), &err);
    RANK_CHECK(t, (int)x == t->world);
}

static void invalid_calls_leave_the_group_usable(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_MEM, 1, NULL, bad_arguments_are_typed, NULL);
    ring_ranks_run(RANKS_MEM, 3, NULL, bad_arguments_are_typed, NULL);
    ring_ranks_run(RANKS_SHM, 3, NULL, bad_arguments_are_typed, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_small_mem),
        cmocka_unit_test(matrix_large_mem),
        cmocka_unit_test(matrix_small_tcp),
        cmocka_unit_test(matrix_large_tcp),
        cmocka_unit_test(bitwise_ranks_and_runs_equal_mem),
        cmocka_unit_test(bitwise_ranks_and_runs_equal_tcp),
        cmocka_unit_test(nan_wins_wherever_it_is),
        cmocka_unit_test(f16_sum_rounds_once),
        cmocka_unit_test(async_operations_run_in_order),
        cmocka_unit_test(in_place_works_and_volume_is_optimal),
        cmocka_unit_test(full_sockets_lose_nothing),
        cmocka_unit_test(invalid_calls_leave_the_group_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
