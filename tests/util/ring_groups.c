#include "tests/util/ring_groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bd_kv *g_kv;

static void some(rank_test *t)
{
    static const int members[] = {3, 1}; /* rank 3 is the group's rank 0 */
    bd_err err = BD_ERR_INIT;
    ring_comm *sub = NULL;
    float x = (float)t->rank;
    if (t->rank == 3 || t->rank == 1) {
        RANK_OK(t, ring_subgroup(g_kv, t->comm, members, 2, "odd", &sub, &err), &err);
        RANK_CHECK(t, ring_rank(sub) == (t->rank == 3 ? 0 : 1) && ring_world(sub) == 2);
        RANK_OK(t, ring_allreduce(sub, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err), &err);
        RANK_CHECK(t, x == 4.0f);
    } else {
        RANK_CHECK(t, ring_subgroup(g_kv, t->comm, members, 2, "odd", &sub, &err) == BD_E_INVALID);
    }
    x = 1;
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "all", NULL, &err), &err);
    RANK_CHECK(t, (int)x == t->world);
    ring_free(sub);
    static const int twice[] = {0, 1, 2, 3, 3};
    RANK_CHECK(t, ring_subgroup(g_kv, t->comm, twice, 5, "two", &sub, &err) == BD_E_INVALID);
}

static void split(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_comm *sub = NULL;
    for (int round = 0; round < 2; round++) {
        int64_t color = t->rank == 0 ? -1 : t->rank % 2;
        RANK_OK(t, ring_split(g_kv, t->comm, color, -t->rank, &sub, &err), &err);
        RANK_CHECK(t, (sub == NULL) == (t->rank == 0));
        float x = (float)t->rank;
        if (sub != NULL) { /* of 5: {3, 1} and {4, 2}, the higher rank first */
            RANK_CHECK(t, ring_world(sub) == 2 && ring_rank(sub) == (t->rank > 2 ? 0 : 1));
            RANK_OK(t, ring_allreduce(sub, &x, 1, NUM_F32, NUM_SUM, "s", NULL, &err), &err);
            RANK_CHECK(t, x == (t->rank % 2 == 1 ? 4.0f : 6.0f));
        }
        ring_free(sub);
        sub = NULL;
    }
}

void ring_groups_check(ranks_backend backend)
{
    g_kv = bd_kv_mem_new();
    assert_non_null(g_kv);
    ring_ranks_run(backend, 4, NULL, some, NULL);
    ring_ranks_run(backend, 5, NULL, split, NULL);
    bd_kv_mem_free(g_kv);
}
