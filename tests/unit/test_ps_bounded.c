/* A bounded job over the network: two ranks, two servers. */
#include "base/log.h"
#include "base/mem.h"

#include "tests/util/tu_cluster.h"
#include "tests/util/tu_shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define DIM   4u
#define N_IDS ((size_t)50)
#define BOUND 1u

static uint32_t table;

static void open_ranks(tu_cluster *c, tu_rank ranks[2])
{
    bd_err err;
    cl_job job = {.epoch = 1, .world = 2, .consistency = CL_BOUNDED};
    cl_param lr = {"learning_rate", 0.5};
    cl_table_spec spec = {.name = "t",
                          .dim = DIM,
                          .initializer = "normal",
                          .seed = 3,
                          .optimizer = "sgd",
                          .opt_params = &lr,
                          .n_opt_params = 1};
    for (int r = 0; r < 2; r++) {
        tu_rank_open(&ranks[r], c, r == 0 ? "fast" : "slow", 20000);
    }
    tu_must(cl_job_open(ranks[0].client, &job, NULL, 1, &err), &err);
    for (job.rank = 0; job.rank < 2; job.rank++) {
        cl_job_join(ranks[job.rank].client, &job);
        tu_must(cl_table_create(ranks[job.rank].client, &spec, &table, &err), &err);
    }
}

static void fill_ids(uint64_t ids[N_IDS])
{
    for (size_t i = 0; i < N_IDS; i++) {
        ids[i] = i * 7;
    }
}

/* Sends the lookup of a step as the worker does. */
static cl_rows *look_up(tu_rank *r, uint64_t step, const uint64_t ids[N_IDS])
{
    bd_err err;
    cl_rows *rows = NULL;
    cl_ids asked = {.table_id = table, .dim = DIM, .ids = ids, .n_ids = N_IDS};
    tu_must(cl_rows_prepare(r->client, &asked, 1, &rows, &err), &err);
    tu_must(cl_rows_fetch(rows, step > BOUND + 1 ? step - BOUND - 1 : 0, &err), &err);
    return rows;
}

/* Pushes a gradient of 1 for every id: what each step of each rank takes off a row is known. */
static void push(tu_rank *r, uint64_t step, cl_rows *rows)
{
    bd_err err;
    float one[N_IDS * DIM], *grads = one;
    for (size_t i = 0; i < N_IDS * DIM; i++) {
        one[i] = 1.0f;
    }
    tu_must(cl_push_start(r->client, step, rows, &grads, &err), &err);
    tu_must(cl_push_wait(r->client, &err), &err);
    cl_rows_free(rows);
}

static void one_step(tu_rank *r, uint64_t step)
{
    uint64_t ids[N_IDS];
    bd_err err;
    fill_ids(ids);
    cl_rows *rows = look_up(r, step, ids);
    tu_must(cl_rows_wait(rows, &err), &err);
    push(r, step, rows);
}

/* The fast rank runs BOUND steps ahead, then waits on every server until the slow one has pushed,
 * also over a restart of a server, and then reads rows that hold that push. */
static void the_fast_rank_waits_for_the_slow_one(void **state)
{
    (void)state;
    tu_cluster c;
    tu_rank ranks[2];
    bd_err err;
    uint64_t ids[N_IDS];
    fill_ids(ids);
    tu_cluster_init(&c, 2);
    tu_cluster_start_all(&c);
    open_ranks(&c, ranks);
    cl_rows *first = look_up(&ranks[0], 1, ids);
    tu_must(cl_rows_wait(first, &err), &err);
    float before = cl_rows_table(first, 0)->rows[0];
    push(&ranks[0], 1, first);
    one_step(&ranks[0], 2);
    cl_rows *third = look_up(&ranks[0], 3, ids); /* wants step 1 of everybody */
    tu_stat_wait(&ranks[1], "braid_ps_parked_requests", 2);
    tu_cluster_stop(&c, 1);
    tu_cluster_start(&c, 1);
    one_step(&ranks[1], 1);
    tu_must(cl_rows_wait(third, &err), &err);
    float after = cl_rows_table(third, 0)->rows[0];
    assert_true(before - after > 1.49f && before - after < 1.51f); /* three pushes of 0.5 */
    push(&ranks[0], 3, third);
    one_step(&ranks[1], 2);
    one_step(&ranks[0], 4);
    assert_true(tu_stat(&ranks[0], "braid_ps_last_step") == 4.0); /* 2 on each server */
    tu_rank_close(&ranks[0]);
    tu_rank_close(&ranks[1]);
    tu_cluster_end(&c);
}

/* A rank that says nothing for bound_wait is named to who waits for it; the server goes on. */
static void a_silent_rank_is_named(void **state)
{
    (void)state;
    tu_cluster c;
    tu_rank ranks[2];
    bd_err err;
    uint64_t ids[N_IDS];
    fill_ids(ids);
    tu_cluster_init(&c, 1);
    c.opt.bound_wait = 200;
    tu_cluster_start_all(&c);
    open_ranks(&c, ranks);
    one_step(&ranks[0], 1);
    one_step(&ranks[0], 2);
    cl_rows *third = look_up(&ranks[0], 3, ids);
    assert_int_equal(cl_rows_wait(third, &err), BD_E_ABORTED);
    assert_non_null(strstr(bd_err_text(&err), "rank 1 has finished step 0"));
    cl_rows_free(third);
    one_step(&ranks[1], 1); /* it was only slow, and all goes on */
    one_step(&ranks[0], 3);
    tu_rank_close(&ranks[0]);
    tu_rank_close(&ranks[1]);
    tu_cluster_end(&c);
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fast_rank_waits_for_the_slow_one),
        cmocka_unit_test(a_silent_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
