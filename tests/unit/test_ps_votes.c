/* Contexts of trainers without Braid's ring in a sync job: each step is a rank's vote, and a server
 * applies it when all ranks have voted. Whole servers in this process, over loopback. */
#include "base/mem.h"

#include "client/client.h"
#include "rpc/rpc_autograd.h"

#include "tests/util/ps_cluster.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 4, N_SERVERS = 2, WORLD = 3, STEPS = 5, RESTART_AT = 3, FIRST_CLIENT = 1000 };

typedef struct world {
    ps_cluster cluster;
    rpc_env *env;
    cl_client *client;
    cl_job job;
    uint32_t table;
    int64_t key[N_SERVERS]; /* one of each server */
    int64_t odd;            /* another one of server 0, whose sum hangs on the order */
    pthread_barrier_t staged;
} world;

/* One rank: a node of its own, as another process would be. */
typedef struct rank {
    world *w;
    uint32_t rank;
    rpc_ag *ag;
    rpc_channel *ch[N_SERVERS];
    rpc_ag_peer *peer[N_SERVERS];
    pthread_t thread;
    bd_status rc;
    bd_err err;
    _Atomic bool voted;
} rank;

static void rank_start(rank *r, world *w, uint32_t number)
{
    bd_err err = BD_ERR_INIT;
    memset(r, 0, sizeof *r);
    r->w = w;
    r->rank = number;
    r->err = (bd_err)BD_ERR_INIT;
    const rpc_ag_options node = {
        .name = "trainer", .client_id = FIRST_CLIENT + number, .deadline_ms = 30000};
    must(rpc_ag_new(w->env, &node, &r->ag, &err), &err);
    for (size_t i = 0; i < N_SERVERS; i++) {
        char name[16];
        const rpc_channel_options opt = {.name = name};
        (void)snprintf(name, sizeof name, "ps-%zu", i);
        must(rpc_channel_new(w->env, w->cluster.address[i], &opt, &r->ch[i], &err), &err);
        must(rpc_ag_peer_new(r->ag, name, r->ch[i], &r->peer[i]), &err);
    }
}

static void rank_stop(rank *r)
{
    for (size_t i = 0; i < N_SERVERS; i++) {
        rpc_channel_free(r->ch[i]);
    }
    rpc_ag_free(r->ag);
}

/* Looks up one key on its server and gives it a gradient of `grad` in every element. */
static bd_status look_and_back(rank *r, rpc_ag_ctx *ctx, size_t server, int64_t key, float grad)
{
    const size_t one = 1;
    rpc_tensor in = {0}, g = {0}, none = {0};
    rpc_ag_result y = {.n_out = 0};
    bd_status rc = rpc_tensor_copy_of(NUM_I64, 1, &one, &key, &in);
    if (rc == BD_OK) {
        rc = rpc_ag_call(ctx, r->peer[server], "embedding:user", &in, 1, &y, &r->err);
    }
    rc = rc == BD_OK ? rpc_tensor_new(NUM_F32, 2, y.out[0].dims, &g) : rc;
    for (size_t i = 0; rc == BD_OK && i < g.n_elems; i++) {
        rpc_tensor_f32(&g)[i] = grad;
    }
    if (rc == BD_OK) {
        rc = rpc_ag_backward(y.msg, &g, 1, &none, 1, NULL, &r->err);
    }
    rpc_tensor_free(&in);
    rpc_tensor_free(&g);
    rpc_ag_result_free(&y);
    return rc;
}

static bd_status vote(rank *r, rpc_ag_ctx *ctx, uint64_t step)
{
    const rpc_ag_vote v = {.job_epoch = r->w->job.epoch, .step = step, .rank = r->rank};
    bd_status rc = rpc_ag_set_vote(ctx, &v, r->peer, N_SERVERS, &r->err);
    return rc == BD_OK ? rpc_ag_step(ctx, 1, &r->err) : rc;
}

/* Rank 1 has nothing for server 1: it votes there all the same. */
static bd_status gradients(rank *r, rpc_ag_ctx *ctx)
{
    static const float odd[WORLD] = {1e8f, 1, -1e8f}; /* in this order: 0; in any other: 1 */
    bd_status rc = look_and_back(r, ctx, 0, r->w->key[0], (float)r->rank + 1);
    rc = rc == BD_OK ? look_and_back(r, ctx, 0, r->w->odd, odd[r->rank]) : rc;
    if (rc == BD_OK && r->rank != 1) {
        rc = look_and_back(r, ctx, 1, r->w->key[1], 10 * ((float)r->rank + 1));
    }
    return rc;
}

static void *rank_main(void *arg)
{
    rank *r = arg;
    for (uint64_t step = 1; step <= STEPS; step++) {
        rpc_ag_ctx *ctx = NULL;
        bd_status rc = rpc_ag_begin(r->ag, &ctx, &r->err);
        rc = rc == BD_OK ? gradients(r, ctx) : rc;
        if (step == RESTART_AT) {
            (void)pthread_barrier_wait(&r->w->staged);
            (void)pthread_barrier_wait(&r->w->staged);
        }
        rc = rc == BD_OK ? vote(r, ctx, step) : rc;
        r->rc = r->rc == BD_OK ? rc : r->rc;
        if (ctx != NULL) {
            (void)rpc_ag_end(ctx, NULL);
        }
    }
    return NULL;
}

static void start(world *w, int ranks)
{
    const cl_param init[] = {{"value", 0.5}}, rate[] = {{"learning_rate", 1}};
    bd_err err = BD_ERR_INIT;
    memset(w, 0, sizeof *w);
    ps_cluster_start(&w->cluster, N_SERVERS);
    const cl_options opt = {.coordinator = w->cluster.address[0], .name = "t", .ps_wait_ms = 20000};
    must(rpc_env_new(NULL, &w->env, &err), &err);
    must(cl_client_new(w->env, &opt, &w->client, &err), &err);
    cl_table_spec spec = {.name = "user",
                          .dim = DIM,
                          .initializer = "constant",
                          .init_params = init,
                          .n_init_params = 1,
                          .optimizer = "sgd",
                          .opt_params = rate,
                          .n_opt_params = 1};
    must(cl_table_create(w->client, &spec, &w->table, &err), &err);
    w->job = (cl_job){.rank = 0, .world = ranks, .consistency = CL_SYNC};
    must(cl_job_next_epoch(w->client, &w->job.epoch, &err), &err);
    must(cl_job_open(w->client, &w->job, NULL, 1, &err), &err);
    cl_job_join(w->client, &w->job);
    assert_int_equal(pthread_barrier_init(&w->staged, NULL, WORLD + 1), 0);
}

static void stop(world *w)
{
    (void)pthread_barrier_destroy(&w->staged);
    cl_client_free(w->client);
    rpc_env_free(w->env);
    ps_cluster_stop(&w->cluster);
}

static float row_of(world *w, int64_t key)
{
    cl_rows *rows = NULL;
    bd_err err = BD_ERR_INIT;
    uint64_t id = (uint64_t)key;
    const cl_ids ids = {.table_id = w->table, .dim = DIM, .ids = &id, .n_ids = 1};
    must(cl_rows_prepare(w->client, &ids, 1, &rows, &err), &err);
    must(cl_rows_fetch(rows, 0, &err), &err);
    must(cl_rows_wait(rows, &err), &err);
    float v = cl_rows_table(rows, 0)->rows[0];
    cl_rows_free(rows);
    return v;
}

/* The first key from `from` on that this server has. */
static int64_t key_of_server(rank *r, size_t server, int64_t from)
{
    const size_t one = 1;
    for (int64_t key = from;; key++) {
        rpc_ag_ctx *ctx = NULL;
        rpc_tensor in = {0};
        rpc_ag_result y = {.n_out = 0};
        bd_err err = BD_ERR_INIT;
        must(rpc_ag_begin(r->ag, &ctx, &err), &err);
        must(rpc_tensor_copy_of(NUM_I64, 1, &one, &key, &in), NULL);
        bd_status rc = rpc_ag_call(ctx, r->peer[server], "embedding:user", &in, 1, &y, &err);
        rpc_tensor_free(&in);
        rpc_ag_result_free(&y);
        (void)rpc_ag_end(ctx, NULL);
        if (rc == BD_OK) {
            return key;
        }
        assert_int_equal(rc, BD_E_MOVED);
    }
}

static void find_keys(world *w, rank *r)
{
    w->key[0] = key_of_server(r, 0, 1);
    w->odd = key_of_server(r, 0, w->key[0] + 1);
    w->key[1] = key_of_server(r, 1, 1);
}

/* Five steps of three ranks; server 1 loses what it has of the third one and starts anew. */
static void a_step_is_applied_when_all_ranks_have_voted(void **state)
{
    (void)state;
    world w;
    rank ranks[WORLD];
    start(&w, WORLD);
    for (uint32_t i = 0; i < WORLD; i++) {
        rank_start(&ranks[i], &w, i);
    }
    find_keys(&w, &ranks[0]);
    for (uint32_t i = 0; i < WORLD; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    (void)pthread_barrier_wait(&w.staged);
    ps_cluster_stop_server(&w.cluster, 1);
    ps_cluster_start_server(&w.cluster, 1);
    (void)pthread_barrier_wait(&w.staged);
    for (uint32_t i = 0; i < WORLD; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        must(ranks[i].rc, &ranks[i].err);
    }
    assert_true(row_of(&w, w.key[0]) == 0.5f - STEPS * (1 + 2 + 3));
    assert_true(row_of(&w, w.key[1]) == 0.5f - STEPS * (10 + 30));
    assert_true(row_of(&w, w.odd) == 0.5f); /* the sum is in the order of the ranks */
    for (uint32_t i = 0; i < WORLD; i++) {
        rank_stop(&ranks[i]);
    }
    stop(&w);
}

static void *vote_first_step(void *arg)
{
    rank *r = arg;
    rpc_ag_ctx *ctx = NULL;
    r->rc = rpc_ag_begin(r->ag, &ctx, &r->err);
    r->rc = r->rc == BD_OK ? look_and_back(r, ctx, 0, r->w->key[0], (float)r->rank + 1) : r->rc;
    r->rc = r->rc == BD_OK ? vote(r, ctx, 1) : r->rc;
    r->voted = true;
    if (ctx != NULL) {
        (void)rpc_ag_end(ctx, NULL);
    }
    return NULL;
}

/* Nothing changes, and nobody is answered, before the last vote. */
static void a_vote_waits_for_the_others(void **state)
{
    (void)state;
    world w;
    rank ranks[2];
    start(&w, 2);
    rank_start(&ranks[0], &w, 0);
    rank_start(&ranks[1], &w, 1);
    w.key[0] = key_of_server(&ranks[0], 0, 1);
    assert_int_equal(pthread_create(&ranks[0].thread, NULL, vote_first_step, &ranks[0]), 0);
    for (int i = 0; i < 20; i++) { /* whenever it is looked at */
        assert_true(row_of(&w, w.key[0]) == 0.5f);
        assert_false(ranks[0].voted);
    }
    (void)vote_first_step(&ranks[1]);
    (void)pthread_join(ranks[0].thread, NULL);
    must(ranks[0].rc, &ranks[0].err);
    must(ranks[1].rc, &ranks[1].err);
    assert_true(row_of(&w, w.key[0]) == 0.5f - 3);
    rank_stop(&ranks[0]);
    rank_stop(&ranks[1]);
    stop(&w);
}

static void *vote_on_server_0_only(void *arg)
{
    rank *r = arg;
    rpc_ag_ctx *ctx = NULL;
    const rpc_ag_vote v = {.job_epoch = r->w->job.epoch, .step = 1, .rank = r->rank};
    r->rc = rpc_ag_begin(r->ag, &ctx, &r->err);
    r->rc = r->rc == BD_OK ? rpc_ag_set_vote(ctx, &v, r->peer, 1, &r->err) : r->rc;
    r->rc = r->rc == BD_OK ? rpc_ag_step(ctx, 1, &r->err) : r->rc;
    (void)rpc_ag_end(ctx, NULL);
    return NULL;
}

/* Rank 1 never votes on server 1: rank 0 hears it from there, and nothing is applied there. */
static void a_vote_that_never_comes_is_a_timeout_that_names_server_and_rank(void **state)
{
    (void)state;
    world w;
    rank ranks[2];
    start(&w, 2);
    w.cluster.autograd_lease_ms = 2000;
    ps_cluster_stop_server(&w.cluster, 1);
    ps_cluster_start_server(&w.cluster, 1);
    rank_start(&ranks[0], &w, 0);
    rank_start(&ranks[1], &w, 1);
    find_keys(&w, &ranks[0]);
    assert_int_equal(pthread_create(&ranks[1].thread, NULL, vote_on_server_0_only, &ranks[1]), 0);
    rpc_ag_ctx *ctx = NULL;
    must(rpc_ag_begin(ranks[0].ag, &ctx, NULL), NULL);
    must(look_and_back(&ranks[0], ctx, 0, w.key[0], 1), &ranks[0].err);
    must(look_and_back(&ranks[0], ctx, 1, w.key[1], 1), &ranks[0].err);
    assert_int_equal(vote(&ranks[0], ctx, 1), BD_E_TIMEOUT);
    assert_string_equal(ranks[0].err.text,
                        "Error on node ps-1: step 1: not all ranks have voted within 2000 ms: "
                        "missing at step 1: rank 1 of 2");
    assert_int_equal(rpc_ag_check(ctx, NULL), BD_E_TIMEOUT);
    (void)rpc_ag_end(ctx, NULL);
    (void)pthread_join(ranks[1].thread, NULL);
    must(ranks[1].rc, &ranks[1].err);
    assert_true(row_of(&w, w.key[1]) == 0.5f);
    rank_stop(&ranks[0]);
    rank_stop(&ranks[1]);
    stop(&w);
}

static void bad_votes_are_named(void **state)
{
    (void)state;
    world w;
    rank r;
    bd_err err = BD_ERR_INIT;
    rpc_ag_ctx *ctx = NULL;
    start(&w, 1);
    rank_start(&r, &w, 0);
    w.key[0] = key_of_server(&r, 0, 1);
    const rpc_ag_vote zero = {.job_epoch = w.job.epoch};
    must(rpc_ag_begin(r.ag, &ctx, &err), &err);
    assert_int_equal(rpc_ag_set_vote(ctx, &zero, r.peer, N_SERVERS, &err), BD_E_INVALID);
    must(look_and_back(&r, ctx, 0, w.key[0], 1), &r.err);
    assert_int_equal(rpc_ag_step(ctx, 1, &err), BD_E_STATE); /* no vote in a sync job */
    must(rpc_ag_end(ctx, &err), &err);
    r.rank = 7;
    must(rpc_ag_begin(r.ag, &ctx, &err), &err);
    assert_int_equal(vote(&r, ctx, 1), BD_E_INVALID);
    assert_non_null(strstr(r.err.text, "rank 7: the job has 1 ranks"));
    must(rpc_ag_end(ctx, &err), &err);
    r.rank = 0;
    must(rpc_ag_begin(r.ag, &ctx, &err), &err);
    must(vote(&r, ctx, 1), &r.err); /* nothing in it, on no server: the step is applied */
    must(rpc_ag_end(ctx, &err), &err);
    assert_true(row_of(&w, w.key[0]) == 0.5f);
    rank_stop(&r);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_applied_when_all_ranks_have_voted),
        cmocka_unit_test(a_vote_waits_for_the_others),
        cmocka_unit_test(a_vote_that_never_comes_is_a_timeout_that_names_server_and_rank),
        cmocka_unit_test(bad_votes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
