/* Pushes of bags whose keys come again change rows as those of distinct keys do, bit for bit: by one
 * server after the other, over a restart, for optimisers with and without state; and a client whose
 * ids stay as they are trains as one that pools by itself. */
#include "base/mem.h"
#include "base/num/vec.h"
#include "base/rand.h"

#include "client/cl_bags.h"
#include "client/cl_part.h"
#include "client/client.h"
#include "proto/px.h"

#include "tests/util/ps_cluster.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define DIM        ((size_t)5)
#define N_IDS      ((size_t)4500)
#define N_BAGS     ((size_t)300)
#define VOCABULARY 60000u /* 4 of 100 ids are repeated */
#define STEPS      ((uint64_t)4)

typedef struct trainer {
    ps_cluster cluster;
    rpc_env *env;
    cl_client *client;
    uint32_t table;
} trainer;

static void open_trainer(trainer *t, size_t n_servers, const char *optimizer, cl_pooling pooling)
{
    bd_err err;
    cl_param lr = {"learning_rate", 0.1};
    memset(t, 0, sizeof *t);
    ps_cluster_start(&t->cluster, n_servers);
    cl_options opt = {.coordinator = t->cluster.address[0],
                      .name = "trainer",
                      .ps_wait_ms = 20000,
                      .pooling = pooling};
    must(rpc_env_new(&(rpc_env_options){0}, &t->env, &err), &err);
    must(cl_client_new(t->env, &opt, &t->client, &err), &err);
    cl_job job = {.world = 1, .consistency = CL_ASYNC};
    cl_table_spec spec = {.name = "t",
                          .dim = DIM,
                          .initializer = "normal",
                          .optimizer = optimizer,
                          .opt_params = &lr,
                          .n_opt_params = 1};
    must(cl_job_next_epoch(t->client, &job.epoch, &err), &err);
    must(cl_table_create(t->client, &spec, &t->table, &err), &err);
    must(cl_job_open(t->client, &job, NULL, 1, &err), &err);
    cl_job_join(t->client, &job);
}

static void close_trainer(trainer *t)
{
    cl_client_free(t->client);
    rpc_env_free(t->env);
    ps_cluster_stop(&t->cluster);
}

typedef struct batch {
    uint64_t ids[N_IDS];
    uint32_t offsets[N_BAGS + 1];
    float weights[N_IDS];
    float grads[N_BAGS * DIM];
    cl_ids asked;
} batch;

/* Bags of 15 ids; weights of a mean, or any. */
static void make_batch(batch *b, uint32_t table, uint64_t step, bool weighted)
{
    for (size_t i = 0; i < N_IDS; i++) {
        b->ids[i] = bd_rand_u64(3, step, i) % VOCABULARY;
        b->weights[i] = step % 2 == 0 ? 1.0f / 15 : (float)(bd_rand_u64(4, step, i) % 9) - 4;
    }
    for (size_t i = 0; i <= N_BAGS; i++) {
        b->offsets[i] = (uint32_t)(i * 15);
    }
    for (size_t i = 0; i < N_BAGS * DIM; i++) {
        b->grads[i] = (float)(bd_rand_u64(6, step, i) % 1000) * 0.001f - 0.5f;
    }
    b->asked = (cl_ids){.table_id = table,
                        .dim = DIM,
                        .ids = b->ids,
                        .n_ids = N_IDS,
                        .offsets = b->offsets,
                        .n_bags = N_BAGS,
                        .weights = weighted ? b->weights : NULL};
}

/* ---- one request in two forms ---- */
static void send(trainer *t, const px_push_request *req)
{
    bd_err err;
    bd_chain out = {0}, in = {0};
    rpc_channel *channel = NULL;
    const rpc_call_options opt = {.deadline_ms = 20000};
    must(rpc_channel_new(t->env, t->cluster.address[0], &(rpc_channel_options){.name = "raw"},
                         &channel, &err),
         &err);
    must(px_encode_push_request(req, &out, &err), &err);
    must(rpc_call_sync(channel, "/braid.v1.ParameterServer/Push", &out, &opt, &in, &err), &err);
    bd_chain_deinit(&out);
    bd_chain_deinit(&in);
    rpc_channel_free(channel);
}

/* The step's push with its ids as they are, or with distinct keys. */
static void push(trainer *t, uint64_t step, bool weighted, bool as_they_are)
{
    static batch b;
    static const char *const addresses[] = {"a:1"};
    static const uint32_t owner[CL_N_SLOTS];
    bd_err err;
    cl_map *map = NULL;
    cl_uniques u;
    cl_bags bags;
    make_batch(&b, t->table, step, weighted);
    must(cl_map_new(1, addresses, 1, owner, CL_N_SLOTS, &map, &err), &err);
    must(cl_uniques_init(&u, map, b.ids, N_IDS, as_they_are, &err), &err);
    assert_int_equal(u.as_they_are, as_they_are);
    assert_true((u.n_unique < N_IDS) == !as_they_are);
    must(cl_bags_init(&bags, &b.asked, &u, 1, &err), &err);
    bd_buf *grads = bd_buf_copy(b.grads, sizeof b.grads);
    px_table_grads g = {.table_id = t->table,
                        .dim = DIM,
                        .keys = px_bulk_of(u.keys, 0, u.n_unique, sizeof(uint64_t)),
                        .grads = px_bulk_of(grads, 0, N_BAGS * DIM, sizeof(float)),
                        .n_bags = N_BAGS,
                        .entries = px_bulk_of(bags.entries, 0, N_IDS, sizeof(uint32_t))};
    if (weighted) {
        g.weights = px_bulk_of(bags.weights, 0, N_IDS, sizeof(float));
    }
    const px_push_request req = {.job_epoch = 1,
                                 .step = step,
                                 .n_parts = 1,
                                 .client_id = cl_client_id(t->client),
                                 .sequence = step,
                                 .tables = &g,
                                 .n_tables = 1};
    send(t, &req);
    if (step == 2) {
        send(t, &req); /* a repeat is not applied again */
    }
    bd_buf_unref(grads);
    cl_bags_deinit(&bags);
    cl_uniques_deinit(&u);
    cl_map_unref(map);
}

static uint64_t hash_after(const char *optimizer, bool weighted, bool as_they_are)
{
    trainer t;
    bd_err err;
    uint64_t hash = 0, rows = 0, again = 0;
    open_trainer(&t, 1, optimizer, CL_POOL_SERVER);
    for (uint64_t step = 1; step <= STEPS; step++) {
        push(&t, step, weighted, as_they_are);
    }
    must(cl_param_hash(t.client, &hash, &rows, &err), &err);
    ps_cluster_stop_server(&t.cluster, 0); /* the journal's records say the same */
    ps_cluster_start_server(&t.cluster, 0);
    must(cl_param_hash(t.client, &again, &rows, &err), &err);
    assert_true(hash == again);
    close_trainer(&t);
    return hash;
}

static void repeated_keys_are_summed_before_the_update(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"sgd", "adagrad", "adam"};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            assert_true(hash_after(optimizers[i], weighted != 0, true) ==
                        hash_after(optimizers[i], weighted != 0, false));
        }
    }
}

/* ---- through the client ---- */
#define BAG_ELEMS (N_BAGS * DIM)

static void bags_of_rows(const batch *b, const cl_table_rows *r, float *out)
{
    memset(out, 0, N_BAGS * DIM * sizeof *out);
    for (size_t i = 0; i < N_IDS; i++) {
        float w = b->asked.weights == NULL ? 1 : b->weights[i];
        num_axpy(out + i / 15 * DIM, w, r->rows + (size_t)r->index[i] * DIM, DIM);
    }
}

/* Every step asks for bags of rows that the steps before have changed. */
static void train(size_t n_servers, cl_pooling pooling, float bags[STEPS * BAG_ELEMS])
{
    static batch b;
    trainer t;
    bd_err err;
    open_trainer(&t, n_servers, "adagrad", pooling);
    for (uint64_t step = 1; step <= STEPS; step++) {
        cl_rows *r = NULL;
        make_batch(&b, t.table, 1 + (step - 1) / 2, step % 2 == 0); /* each batch twice */
        must(cl_rows_prepare(t.client, &b.asked, 1, &r, &err), &err);
        must(cl_rows_fetch(r, 0, &err), &err);
        must(cl_rows_wait(r, &err), &err);
        const cl_table_rows *rows = cl_rows_table(r, 0);
        float *by_key = bd_calloc(rows->n_unique * DIM, sizeof *by_key), *grads[1] = {b.grads};
        if (rows->offsets != NULL) {
            assert_int_equal(rows->n_unique, N_IDS); /* as they are */
            memcpy(bags + (step - 1) * BAG_ELEMS, rows->rows, BAG_ELEMS * sizeof *bags);
        } else {
            cl_table_rows as_bags = *rows;
            as_bags.offsets = b.offsets;
            as_bags.n_rows = N_BAGS;
            as_bags.weights = b.asked.weights;
            cl_table_rows_expand(&as_bags, b.grads, by_key);
            bags_of_rows(&b, rows, bags + (step - 1) * BAG_ELEMS);
            grads[0] = by_key;
        }
        must(cl_push_start(t.client, step, r, grads, &err), &err);
        must(cl_push_wait(t.client, &err), &err);
        bd_free(by_key);
        cl_rows_free(r);
        if (step == 2) {
            ps_cluster_stop_server(&t.cluster, n_servers - 1);
            ps_cluster_start_server(&t.cluster, n_servers - 1);
        }
    }
    close_trainer(&t);
}

static void ids_as_they_are_train_as_distinct_ones(void **state)
{
    (void)state;
    static float here[STEPS * BAG_ELEMS], there[STEPS * BAG_ELEMS];
    train(1, CL_POOL_CLIENT, here);
    for (size_t n = 1; n <= 2; n++) {
        train(n, CL_POOL_SERVER, there);
        for (size_t i = 0; i < STEPS * BAG_ELEMS; i++) {
            float a = here[i], b = there[i];
            if (!(fabsf(a - b) <= 1e-4f * (1 + fabsf(a)))) {
                fail_msg("element %zu: %.9g and %.9g", i, (double)a, (double)b);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_keys_are_summed_before_the_update),
        cmocka_unit_test(ids_as_they_are_train_as_distinct_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
