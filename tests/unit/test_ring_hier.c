/* Several ranks on each of several (pretended) hosts: the collectives, and how errors cross hosts.
 */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"

#include "tests/util/ring_matrix.h"
#include "tests/util/ring_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void matrix_small_hier(void **state)
{
    (void)state;
    ring_matrix_small(RANKS_HIER);
}

static void matrix_large_hier(void **state)
{
    (void)state;
    ring_matrix_large(RANKS_HIER);
}

static void bitwise_ranks_and_runs_equal_hier(void **state)
{
    (void)state;
    ring_matrix_bitwise(RANKS_HIER);
}

/* Rank 1 calls something else: all ranks, of both hosts, say so with the same text. */
static void disagree(rank_test *t)
{
    const char *what = t->arg;
    bd_err err = BD_ERR_INIT;
    float v[8] = {0};
    bd_status rc = BD_OK;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank != 1) {
        rc = ring_allreduce(t->comm, v, 4, NUM_F32, NUM_SUM, "grad", NULL, &err);
    } else if (strcmp(what, "count") == 0) {
        rc = ring_allreduce(t->comm, v, 5, NUM_F32, NUM_SUM, "grad", NULL, &err);
    } else if (strcmp(what, "gather") == 0) {
        rc = ring_all_gather(t->comm, v, v, 1, NUM_F32, "grad", NULL, &err);
    } else {
        rc = ring_barrier(t->comm, "grad", &err);
    }
    RANK_CHECK(t, rc == BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "rank 1 ") != NULL && strstr(err.text, "grad") != NULL);
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_MISMATCH);
    rank_meet(t);
}

static void a_mismatch_reaches_all_hosts(void **state)
{
    (void)state;
    static char cases[][8] = {"count", "gather", "barrier"};
    for (size_t i = 0; i < 3; i++) {
        ring_ranks_run(RANKS_HIER, 4, NULL, disagree, cases[i]);
        ring_ranks_run(RANKS_HIER, 5, NULL, disagree, cases[i]);
    }
}

/* A whole host disagrees with the other. */
static void hosts_disagree(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v[8] = {0};
    bd_status rc = BD_OK;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank < t->world / 2) {
        rc = ring_allreduce(t->comm, v, 4, NUM_F32, NUM_SUM, "grad", NULL, &err);
    } else {
        rc = ring_all_to_all(t->comm, v, v + 4, 1, NUM_F32, "grad", NULL, &err);
    }
    RANK_CHECK(t, rc == BD_E_MISMATCH);
    rank_meet(t);
}

static void hosts_that_disagree_are_a_mismatch(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_HIER, 4, NULL, hosts_disagree, NULL);
}

/* Rank 2 lives but does not call: named by its own number, on the other host, too. */
static void idler(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    rank_limit(t, 1000);
    if (t->rank != 2) {
        bd_status rc = ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "step", NULL, &err);
        if (rc != BD_E_TIMEOUT || strstr(err.text, "rank 2 did not take part") == NULL) {
            rank_failed(t, __FILE__, __LINE__, "idler", &err);
        }
    }
    rank_meet(t);
}

static void a_rank_that_does_not_call_is_named_on_all_hosts(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_HIER, 4, NULL, idler, NULL);
}

static void aborts(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 0;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    rank_meet(t);
    if (t->rank == 3) {
        bd_err why = BD_ERR_INIT;
        (void)bd_err_set(&why, BD_E_DATA, "bad line 7");
        ring_abort(t->comm, &why);
    }
    RANK_CHECK(t,
               ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err) == BD_E_ABORTED);
    RANK_CHECK(t, strstr(err.text, "rank 3 aborted: bad line 7") != NULL);
    rank_meet(t);
}

static void abort_reaches_all_hosts(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_HIER, 4, NULL, aborts, NULL);
    ring_ranks_run(RANKS_HIER, 5, NULL, aborts, NULL);
}

static void one_sum(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = 1;
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err), &err);
    RANK_CHECK(t, (int)x == t->world);
}

static void groups_leave_no_memory(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_HIER, 4, NULL, one_sum, NULL);
    long blocks = bd_mem_live_blocks();
    for (int i = 0; i < 10; i++) {
        ring_ranks_run(RANKS_HIER, 4, NULL, i % 5 == 4 ? aborts : one_sum, NULL);
    }
    assert_int_equal(bd_mem_live_blocks(), blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_small_hier),
        cmocka_unit_test(matrix_large_hier),
        cmocka_unit_test(bitwise_ranks_and_runs_equal_hier),
        cmocka_unit_test(a_mismatch_reaches_all_hosts),
        cmocka_unit_test(hosts_that_disagree_are_a_mismatch),
        cmocka_unit_test(a_rank_that_does_not_call_is_named_on_all_hosts),
        cmocka_unit_test(abort_reaches_all_hosts),
        cmocka_unit_test(groups_leave_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
