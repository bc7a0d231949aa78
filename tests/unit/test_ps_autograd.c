/* Tables as modules of the Autograd service: whole servers in this process, called over loopback.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"
#include "proto/px_pack.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_server.h"
#include "rpc/rpc_autograd.h"

#include "tests/util/tu_host.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

enum { DIM = 4, MAX_SERVERS = 2 };

typedef struct world {
    char dir[64];
    size_t n;
    int64_t lease_ms;
    char address[MAX_SERVERS][64];
    ps_server *servers[MAX_SERVERS];
    rpc_env *env;
    cl_client *client;
    cl_job job;
    uint32_t table[2]; /* "user" sgd 1, "item" adagrad 1 */
    rpc_ag *ag;
    rpc_channel *ch[MAX_SERVERS];
    rpc_ag_peer *peer[MAX_SERVERS];
} world;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(err));
    }
}

static void start_server(world *w, size_t i)
{
    char dir[96];
    bd_err err = BD_ERR_INIT;
    (void)snprintf(dir, sizeof dir, "%s/ps-%zu", w->dir, i);
    ps_options opt = {.index = (int64_t)i,
                      .servers = (int64_t)w->n,
                      .coordinator = w->address[0],
                      .listen = w->address[i][0] == '\0' ? tu_host_any_port() : w->address[i],
                      .advertise = "",
                      .data_dir = dir,
                      .ready_fd = -1,
                      .journal_cap = 64 << 20,
                      .staged_limit = 64 << 20,
                      .register_wait = 10000,
                      .autograd_lease = w->lease_ms,
                      .metrics_listen = "",
                      .health_listen = ""};
    must(ps_server_start(&opt, &w->servers[i], &err), &err);
    (void)snprintf(w->address[i], sizeof w->address[i], "%s", ps_server_address(w->servers[i]));
}

static void stop_server(world *w, size_t i)
{
    bd_err err = BD_ERR_INIT;
    must(ps_server_stop(w->servers[i], &err), &err);
}

static void open_job(world *w, cl_consistency consistency)
{
    bd_err err = BD_ERR_INIT;
    w->job = (cl_job){.rank = 0, .world = 1, .consistency = consistency};
    must(cl_job_next_epoch(w->client, &w->job.epoch, &err), &err);
    must(cl_job_open(w->client, &w->job, NULL, 1, &err), &err);
    cl_job_join(w->client, &w->job);
}

static void make_tables(world *w)
{
    const cl_param init[] = {{"low", -1}, {"high", 1}}, rate[] = {{"learning_rate", 1}};
    bd_err err = BD_ERR_INIT;
    for (int i = 0; i < 2; i++) {
        cl_table_spec spec = {.name = i == 0 ? "user" : "item",
                              .dim = DIM,
                              .initializer = "uniform",
                              .init_params = init,
                              .n_init_params = 2,
                              .seed = 3,
                              .optimizer = i == 0 ? "sgd" : "adagrad",
                              .opt_params = rate,
                              .n_opt_params = 1};
        must(cl_table_create(w->client, &spec, &w->table[i], &err), &err);
    }
}

static void start(world *w, size_t n, int64_t lease_ms)
{
    bd_err err = BD_ERR_INIT;
    memset(w, 0, sizeof *w);
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/test_ps_autograd.XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->n = n;
    w->lease_ms = lease_ms;
    for (size_t i = 0; i < n; i++) {
        start_server(w, i);
    }
    const cl_options opt = {.coordinator = w->address[0], .name = "trainer", .ps_wait_ms = 20000};
    must(rpc_env_new(NULL, &w->env, &err), &err);
    must(cl_client_new(w->env, &opt, &w->client, &err), &err);
    make_tables(w);
    open_job(w, CL_ASYNC);
    const rpc_ag_options node = {
        .name = "trainer", .client_id = cl_client_id(w->client), .deadline_ms = 10000};
    must(rpc_ag_new(w->env, &node, &w->ag, &err), &err);
    for (size_t i = 0; i < n; i++) {
        char name[16];
        const rpc_channel_options chopt = {.name = name};
        (void)snprintf(name, sizeof name, "ps-%zu", i);
        must(rpc_channel_new(w->env, w->address[i], &chopt, &w->ch[i], &err), &err);
        assert_int_equal(rpc_ag_peer_new(w->ag, name, w->ch[i], &w->peer[i]), BD_OK);
    }
}

static double stat_of(world *w, const char *name)
{
    Braid__V1__StatsRequest req = BRAID__V1__STATS_REQUEST__INIT;
    rpc_call_options opt = {.deadline_ms = 5000, .idempotent = true};
    bd_chain body = {0}, reply = {0};
    ProtobufCMessage *raw = NULL;
    bd_err err = BD_ERR_INIT;
    double v = NAN;
    must(px_pack(&req.base, &body, &err), &err);
    must(rpc_call_sync(w->ch[0], "/braid.v1.ParameterServer/Stats", &body, &opt, &reply, &err),
         &err);
    must(px_unpack(&braid__v1__stats_reply__descriptor, &reply, 0, &raw, &err), &err);
    const Braid__V1__StatsReply *r = (const void *)raw;
    for (size_t i = 0; i < r->n_stats; i++) {
        v = strcmp(r->stats[i]->name, name) == 0 ? r->stats[i]->value : v;
    }
    px_unpacked_free(raw);
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return v;
}

static void stop(world *w)
{
    bd_err err = BD_ERR_INIT;
    assert_true(stat_of(w, "braid_ps_contexts") == 0);
    for (size_t i = 0; i < w->n; i++) {
        rpc_channel_free(w->ch[i]);
    }
    rpc_ag_free(w->ag);
    cl_client_free(w->client);
    rpc_env_free(w->env);
    for (size_t i = w->n; i-- > 0;) {
        stop_server(w, i);
    }
    must(ps_dir_remove(w->dir, &err), &err);
}

/* What a lookup answers. */
static void row_of(world *w, int table, uint64_t key, float *out)
{
    cl_rows *r = NULL;
    bd_err err = BD_ERR_INIT;
    const cl_ids ids = {.table_id = w->table[table], .dim = DIM, .ids = &key, .n_ids = 1};
    must(cl_rows_prepare(w->client, &ids, 1, &r, &err), &err);
    must(cl_rows_fetch(r, 0, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    memcpy(out, cl_rows_table(r, 0)->rows, DIM * sizeof *out);
    cl_rows_free(r);
}

/* NOLINTNEXTLINE(readability-function-size): what a call is made of */
static bd_status call(world *w, rpc_ag_ctx *ctx, size_t server, const char *module,
                      const int64_t *ids, size_t n_ids, const int64_t *offsets, size_t n_bags,
                      rpc_ag_result *out, bd_err *err)
{
    rpc_tensor in[2] = {{0}};
    size_t n_in = offsets != NULL ? 2 : 1;
    memset(out, 0, sizeof *out);
    assert_int_equal(rpc_tensor_copy_of(NUM_I64, 1, &n_ids, ids, &in[0]), BD_OK);
    if (offsets != NULL) {
        assert_int_equal(rpc_tensor_copy_of(NUM_I64, 1, &n_bags, offsets, &in[1]), BD_OK);
    }
    bd_status rc = rpc_ag_call(ctx, w->peer[server], module, in, n_in, out, err);
    rpc_tensors_free(in, n_in);
    return rc;
}

/* Every element of the gradient is g. */
static bd_status backward(const rpc_ag_result *r, float g, const rpc_ag_fused *fused, bd_err *err)
{
    rpc_tensor grad = {0}, grad_in[2] = {{0}};
    size_t n_in = rpc_ag_msg_n_in(r->msg);
    assert_int_equal(rpc_tensor_new(NUM_F32, r->out[0].n_dims, r->out[0].dims, &grad), BD_OK);
    for (size_t i = 0; i < grad.n_elems; i++) {
        rpc_tensor_f32(&grad)[i] = g;
    }
    bd_status rc = rpc_ag_backward(r->msg, &grad, 1, grad_in, n_in, fused, err);
    rpc_tensor_free(&grad);
    rpc_tensors_free(grad_in, n_in);
    return rc;
}

static rpc_ag_ctx *begin(world *w)
{
    rpc_ag_ctx *ctx = NULL;
    bd_err err = BD_ERR_INIT;
    must(rpc_ag_begin(w->ag, &ctx, &err), &err);
    return ctx;
}

static void pooled_rows_are_the_lookup_s(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    float row[3][DIM];
    const int64_t ids[] = {5, -1, 9, 5}, offsets[] = {0, 3, 3}; /* three ids, none, one */
    start(&w, 1, 0);
    row_of(&w, 0, 5, row[0]);
    row_of(&w, 0, UINT64_MAX, row[1]); /* -1: any 64 bits are a key */
    row_of(&w, 0, 9, row[2]);
    rpc_ag_ctx *ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", ids, 4, offsets, 3, &r, &err), &err);
    for (size_t d = 0; d < DIM; d++) {
        float sum = 0.0f + row[0][d] + row[1][d] + row[2][d];
        assert_true(rpc_tensor_f32(&r.out[0])[d] == sum);
        assert_true(rpc_tensor_f32(&r.out[0])[DIM + d] == 0);
        assert_true(rpc_tensor_f32(&r.out[0])[(size_t)2 * DIM + d] == row[0][d]);
    }
    rpc_ag_result_free(&r);
    must(call(&w, ctx, 0, "embedding_bag_mean:user", ids, 4, offsets, 3, &r, &err), &err);
    for (size_t d = 0; d < DIM; d++) {
        float sum = 0.0f + row[0][d] + row[1][d] + row[2][d];
        assert_true(rpc_tensor_f32(&r.out[0])[d] == sum / 3);
    }
    rpc_ag_result_free(&r);
    must(call(&w, ctx, 0, "embedding:user", ids, 4, NULL, 0, &r, &err), &err);
    assert_memory_equal(rpc_tensor_f32(&r.out[0]) + DIM, row[1], sizeof row[1]);
    rpc_ag_result_free(&r);
    assert_true(stat_of(&w, "braid_ps_contexts") == 1);
    assert_true(stat_of(&w, "braid_ps_rows") == 0); /* forward creates nothing */
    must(rpc_ag_end(ctx, &err), &err);
    stop(&w);
}

/* sqrtn: over the root of the ids. max: the first id that has it gets the gradient, others zeros.
 */
static void sqrtn_and_max_are_the_client_s(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result root, most;
    rpc_ag_grads held = {0};
    float a[DIM], b[DIM];
    const int64_t ids[] = {5, 9, 9, 5}, offsets[] = {0, 4}; /* four ids, none */
    start(&w, 1, 0);
    row_of(&w, 0, 5, a);
    row_of(&w, 0, 9, b);
    rpc_ag_ctx *ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag_sqrtn:user", ids, 4, offsets, 2, &root, &err), &err);
    must(call(&w, ctx, 0, "embedding_bag_max:user", ids, 4, offsets, 2, &most, &err), &err);
    must(backward(&root, 3, NULL, &err), &err);
    must(backward(&most, 3, NULL, &err), &err);
    must(rpc_ag_gradients(ctx, w.peer[0], NULL, &held, &err), &err);
    assert_true(held.n == 2 && held.items[0].n_rows == 2 && held.items[1].n_rows == 2);
    size_t s = strcmp(held.items[0].module, "embedding_bag_sqrtn:user") == 0 ? 0 : 1;
    const float *gs = held.items[s].values, *gm = held.items[1 - s].values;
    for (size_t d = 0; d < DIM; d++) {
        assert_true(rpc_tensor_f32(&root.out[0])[d] == (a[d] + b[d] + b[d] + a[d]) / 2);
        assert_true(rpc_tensor_f32(&most.out[0])[d] == fmaxf(a[d], b[d]));
        assert_true(rpc_tensor_f32(&most.out[0])[DIM + d] == 0);
        assert_true(gs[d] == 3 && gs[DIM + d] == 3); /* twice 3 / 2 */
        assert_true(gm[d] == (a[d] >= b[d] ? 3.0f : 0.0f) && gm[DIM + d] == 3 - gm[d]);
    }
    rpc_ag_grads_free(&held);
    rpc_ag_result_free(&root);
    rpc_ag_result_free(&most);
    must(rpc_ag_end(ctx, &err), &err);
    stop(&w);
}

/* Two tables, two kinds of module of one table, two backwards: one gradient a key, applied once. */
static void gradients_sum_in_the_context_and_step_once(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result a, b, c;
    rpc_ag_grads held = {0};
    float before[DIM], after[DIM], item[DIM], item_after[DIM];
    const int64_t ids[] = {7, 8, 7}, offsets[] = {0, 2}, one[] = {7};
    start(&w, 1, 0);
    row_of(&w, 0, 7, before);
    row_of(&w, 1, 7, item);
    rpc_ag_ctx *ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", ids, 3, offsets, 2, &a, &err), &err);
    must(call(&w, ctx, 0, "embedding:user", one, 1, NULL, 0, &b, &err), &err);
    must(call(&w, ctx, 0, "embedding_bag_mean:item", ids, 3, offsets, 2, &c, &err), &err);
    must(backward(&a, 0.5f, NULL, &err), &err); /* key 7 twice: 1.0 */
    must(backward(&a, 0.5f, NULL, &err), &err); /* again: 2.0 */
    must(backward(&b, 4, NULL, &err), &err);    /* 6.0 */
    must(backward(&c, 1, NULL, &err), &err);    /* 1/2 + 1 */
    must(rpc_ag_gradients(ctx, w.peer[0], NULL, &held, &err), &err);
    assert_int_equal(held.n, 3);
    assert_string_equal(held.items[0].module, "embedding_bag:user");
    assert_true(held.items[0].n_rows == 2 && held.items[0].rows[0] == 7 &&
                held.items[0].values[0] == 2.0f);
    rpc_ag_grads_free(&held);
    row_of(&w, 0, 7, after);
    assert_memory_equal(after, before, sizeof before); /* they live in the context */
    must(rpc_ag_step(ctx, 1, &err), &err);
    row_of(&w, 0, 7, after);
    row_of(&w, 1, 7, item_after);
    for (size_t d = 0; d < DIM; d++) {
        assert_true(after[d] == before[d] - 6.0f);
        assert_true(item_after[d] < item[d] - 0.9f); /* adagrad's first step: the rate */
    }
    assert_true(stat_of(&w, "braid_ps_pushes_total") == 1); /* one record for all tables */
    must(rpc_ag_end(ctx, &err), &err);
    rpc_ag_result_free(&a);
    rpc_ag_result_free(&b);
    rpc_ag_result_free(&c);
    stop(&w);
}

static void one_message_does_backward_step_and_cleanup(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    float before[DIM], after[DIM];
    const int64_t id[] = {1}, offset[] = {0};
    const rpc_ag_fused all = {.step = true, .lr_scale = 0.5, .cleanup = true};
    start(&w, 1, 0);
    row_of(&w, 0, 1, before);
    for (int i = 1; i <= 3; i++) {
        rpc_ag_result r;
        rpc_ag_ctx *ctx = begin(&w);
        must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
        must(backward(&r, 2, &all, &err), &err);
        assert_true(stat_of(&w, "braid_ps_contexts") == 0);
        rpc_ag_result_free(&r);
        must(rpc_ag_end(ctx, &err), &err);
    }
    row_of(&w, 0, 1, after);
    assert_true(after[0] == before[0] - 1.0f - 1.0f - 1.0f);
    stop(&w);
}

/* The answer of a step is lost with its server: the next one knows that it was applied. */
static void a_step_counts_once_over_a_restart(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r, late;
    float before[DIM], after[DIM];
    const int64_t id[] = {1}, offset[] = {0};
    start(&w, 1, 0);
    row_of(&w, 0, 1, before);
    rpc_ag_ctx *ctx = begin(&w), *other = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
    must(call(&w, other, 0, "embedding_bag:user", id, 1, offset, 1, &late, &err), &err);
    must(backward(&r, 1, NULL, &err), &err);
    must(backward(&late, 1, NULL, &err), &err);
    must(rpc_ag_step(ctx, 1, &err), &err);
    stop_server(&w, 0);
    start_server(&w, 0);
    must(rpc_ag_step(ctx, 1, &err), &err); /* asked again: it has been done */
    row_of(&w, 0, 1, after);
    assert_true(after[0] == before[0] - 1.0f);
    must(rpc_ag_step(other, 1, &err), &err); /* that one is lost: its messages are sent again */
    row_of(&w, 0, 1, after);
    assert_true(after[0] == before[0] - 2.0f);
    rpc_ag_result_free(&r);
    rpc_ag_result_free(&late);
    must(rpc_ag_end(ctx, &err), &err);
    must(rpc_ag_end(other, &err), &err);
    stop(&w);
}

/* The server dies at every place of a context's life, and starts anew: a lookup before it,
 * gradients before it, both, the answer of the fused call. Each context counts once, with all its
 * gradients. */
static void a_fused_call_counts_once_over_a_restart(void **state)
{
    (void)state;
    const int64_t id[] = {1}, two[] = {2}, offset[] = {0};
    const rpc_ag_fused all = {.step = true, .cleanup = true};
    enum { AFTER_FORWARD, BETWEEN_CALLS, AFTER_BACKWARD, AFTER_THE_END, N_PLACES };
    world w;
    bd_err err = BD_ERR_INIT;
    float before[2][DIM], after[2][DIM];
    start(&w, 1, 0);
    for (int place = 0; place < N_PLACES; place++) {
        rpc_ag_result r[2];
        rpc_ag_ctx *ctx = begin(&w);
        row_of(&w, 0, 1, before[0]);
        row_of(&w, 0, 2, before[1]);
        must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r[0], &err), &err);
        if (place == BETWEEN_CALLS) {
            must(backward(&r[0], 1, NULL, &err), &err);
            stop_server(&w, 0);
            start_server(&w, 0);
        }
        must(call(&w, ctx, 0, "embedding_bag:user", two, 1, offset, 1, &r[1], &err), &err);
        if (place != BETWEEN_CALLS && place != AFTER_FORWARD) {
            must(backward(&r[0], 1, NULL, &err), &err);
        }
        if (place == AFTER_FORWARD || place == AFTER_BACKWARD) {
            stop_server(&w, 0);
            start_server(&w, 0);
        }
        if (place == AFTER_FORWARD) {
            must(backward(&r[0], 1, NULL, &err), &err);
        }
        must(backward(&r[1], 1, &all, &err), &err);
        if (place == AFTER_THE_END) {
            stop_server(&w, 0);
            start_server(&w, 0);
            must(backward(&r[1], 1, &all, &err), &err); /* as if its answer had been lost */
        }
        row_of(&w, 0, 1, after[0]);
        row_of(&w, 0, 2, after[1]);
        assert_true(after[0][0] == before[0][0] - 1.0f);
        assert_true(after[1][0] == before[1][0] - 1.0f);
        rpc_ag_result_free(&r[0]);
        rpc_ag_result_free(&r[1]);
        must(rpc_ag_end(ctx, &err), &err);
        assert_true(stat_of(&w, "braid_ps_contexts") == 0);
    }
    stop(&w);
}

static void jobs_fence_contexts(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    float before[DIM], after[DIM];
    const int64_t id[] = {1}, offset[] = {0};
    start(&w, 1, 0);
    row_of(&w, 0, 1, before);
    rpc_ag_ctx *ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
    must(backward(&r, 1, NULL, &err), &err);
    rpc_ag_result_free(&r);
    open_job(&w, CL_SYNC);
    assert_int_equal(rpc_ag_step(ctx, 1, &err), BD_E_FENCED);
    assert_non_null(strstr(bd_err_text(&err), "Error on node ps-0"));
    must(rpc_ag_end(ctx, &err), &err);
    ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
    must(backward(&r, 1, NULL, &err), &err);
    assert_int_equal(rpc_ag_step(ctx, 1, &err), BD_E_STATE); /* a sync job commits steps */
    assert_non_null(strstr(bd_err_text(&err), "sync"));
    must(rpc_ag_end(ctx, &err), &err);
    rpc_ag_result_free(&r);
    row_of(&w, 0, 1, after);
    assert_memory_equal(after, before, sizeof before);
    stop(&w);
}

/* The n-th key of a server, of two. */
static int64_t key_of(uint32_t server, int n)
{
    int64_t key = 0;
    for (;; key++) {
        if (bd_mix64((uint64_t)key) >> 63 == server && n-- == 0) {
            return key;
        }
    }
}

static void bad_calls_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *module;
        int64_t offsets[2];
        bool has_offsets;
        bd_status rc;
        const char *says;
    } bad[] = {
        {"embedding_bag:nobody", {0, 1}, true, BD_E_NOT_FOUND, "embedding_bag:nobody"},
        {"softmax:user", {0, 1}, true, BD_E_NOT_FOUND, "softmax:user"},
        {"embedding_bag:user", {0, 1}, false, BD_E_INVALID, "offsets"},
        {"embedding_bag:user", {1, 1}, true, BD_E_INVALID, "offset 1 at 0"},
        {"embedding_bag:user", {0, 3}, true, BD_E_INVALID, "offset 3 at 1"},
        {"embedding:user", {0, 1}, true, BD_E_INVALID, "takes ids"},
    };
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    const int64_t near[2] = {key_of(0, 0), key_of(0, 1)}, far = key_of(1, 0), offset[] = {0};
    start(&w, 2, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rpc_ag_ctx *ctx = begin(&w);
        bd_status rc = call(&w, ctx, 0, bad[i].module, near, 2,
                            bad[i].has_offsets ? bad[i].offsets : NULL, 2, &r, &err);
        assert_int_equal(rc, bad[i].rc);
        assert_non_null(strstr(bd_err_text(&err), "Error on node ps-0"));
        assert_non_null(strstr(bd_err_text(&err), bad[i].says));
        must(rpc_ag_end(ctx, &err), &err);
    }
    rpc_ag_ctx *ctx = begin(&w);
    assert_int_equal(call(&w, ctx, 0, "embedding_bag:user", &far, 1, offset, 1, &r, &err),
                     BD_E_MOVED);
    assert_non_null(strstr(bd_err_text(&err), "is not on server 0"));
    must(rpc_ag_end(ctx, &err), &err);
    ctx = begin(&w);
    must(call(&w, ctx, 1, "embedding_bag:user", &far, 1, offset, 1, &r, &err), &err);
    assert_int_equal(backward(&r, INFINITY, NULL, &err), BD_E_NUMERIC);
    assert_non_null(strstr(bd_err_text(&err), "Error on node ps-1"));
    rpc_ag_result_free(&r);
    must(rpc_ag_end(ctx, &err), &err);
    stop(&w);
}

static void nap(void)
{
    const struct timespec ts = {.tv_nsec = 20000000};
    (void)nanosleep(&ts, NULL);
}

static void a_silent_client_loses_its_contexts(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    const int64_t id[] = {1}, offset[] = {0};
    rpc_ag_ctx *ctx[21];
    start(&w, 1, 2000); /* 20 calls take less, on a busy machine too */
    for (int i = 0; i < 20; i++) {
        ctx[i] = begin(&w);
        must(call(&w, ctx[i], 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
        rpc_ag_result_free(&r); /* and says nothing of the context any more */
    }
    assert_true(stat_of(&w, "braid_ps_contexts") == 20);
    int64_t end_ns = bd_mono_ns() + 10 * BD_NS_PER_S;
    while (stat_of(&w, "braid_ps_contexts") > 0 && bd_mono_ns() < end_ns) {
        nap();
    }
    assert_true(stat_of(&w, "braid_ps_contexts") == 0);
    assert_true(stat_of(&w, "braid_ps_clients_expired_total") == 1);
    ctx[20] = begin(&w);
    assert_int_equal(call(&w, ctx[20], 0, "embedding_bag:user", id, 1, offset, 1, &r, &err),
                     BD_E_CLIENT_EXPIRED); /* never a fresh start under its old id */
    assert_int_equal(rpc_ag_keep_alive(w.ag, &err), BD_E_CLIENT_EXPIRED);
    for (int i = 0; i < 21; i++) {
        (void)rpc_ag_end(ctx[i], NULL); /* here; there is nothing left over there */
    }
    stop(&w);
}

static void a_client_that_says_it_lives_keeps_them(void **state)
{
    (void)state;
    world w;
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    const int64_t id[] = {1}, offset[] = {0};
    start(&w, 1, 2000);
    rpc_ag_ctx *ctx = begin(&w);
    must(call(&w, ctx, 0, "embedding_bag:user", id, 1, offset, 1, &r, &err), &err);
    for (int64_t end_ns = bd_mono_ns() + 3 * BD_NS_PER_S; bd_mono_ns() < end_ns; nap()) {
        must(rpc_ag_keep_alive(w.ag, &err), &err);
    }
    must(backward(&r, 1, NULL, &err), &err);
    must(rpc_ag_step(ctx, 1, &err), &err);
    rpc_ag_result_free(&r);
    must(rpc_ag_end(ctx, &err), &err);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooled_rows_are_the_lookup_s),
        cmocka_unit_test(sqrtn_and_max_are_the_client_s),
        cmocka_unit_test(gradients_sum_in_the_context_and_step_once),
        cmocka_unit_test(one_message_does_backward_step_and_cleanup),
        cmocka_unit_test(a_step_counts_once_over_a_restart),
        cmocka_unit_test(a_fused_call_counts_once_over_a_restart),
        cmocka_unit_test(jobs_fence_contexts),
        cmocka_unit_test(bad_calls_are_named),
        cmocka_unit_test(a_silent_client_loses_its_contexts),
        cmocka_unit_test(a_client_that_says_it_lives_keeps_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
