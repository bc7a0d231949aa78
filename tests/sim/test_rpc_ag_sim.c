/* Distributed autograd in a network that loses, repeats and reorders messages, and kills nodes: in
 * virtual time, by a seed. Whatever arrives how often, the trained numbers are those of a quiet
 * run. */
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_autograd.h"
#include "rpc/rpc_mem.h"

#include "tests/util/ag_modules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ADDR_A "127.0.0.1:1"
#define ADDR_B "127.0.0.1:2"
#define N_IN   3
#define N_OUT  2

typedef struct node {
    rpc_env *env;
    rpc_ag *ag;
    rpc_server *server;
} node;

typedef struct world {
    rpc_mem_net *net;
    node trainer, a, b;
    rpc_channel *to_a, *a_to_b;
    rpc_ag_peer *peer_a;
    rpc_module *far; /* on b */
    am_relay relay;  /* on a, passes to b */
} world;

static void start_node(world *w, node *n, const char *name, uint64_t id, const char *address)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_options opt = {.name = name, .client_id = id, .deadline_ms = 20000};
    rpc_server_options sopt = {.listen = address};
    assert_int_equal(rpc_mem_env_new(w->net, name, &n->env, &err), BD_OK);
    assert_int_equal(rpc_ag_new(n->env, &opt, &n->ag, &err), BD_OK);
    if (address != NULL) {
        assert_int_equal(rpc_server_new(n->env, &sopt, &n->server, &err), BD_OK);
        assert_int_equal(rpc_ag_serve(n->ag, n->server), BD_OK);
        assert_int_equal(rpc_server_start(n->server, &err), BD_OK);
    }
}

static world *world_new(uint64_t seed)
{
    world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    rpc_ag_peer *peer_b = NULL;
    rpc_mem_options opt = {.seed = seed, .delay_min_ns = 1000, .delay_max_ns = BD_NS_PER_MS};
    rpc_linear_spec spec = {
        .name = "far", .n_in = N_IN, .n_out = N_OUT, .bias = true, .optim = {"adagrad", 0.1}};
    assert_int_equal(rpc_mem_net_new(&opt, &w->net, &err), BD_OK);
    assert_int_equal(rpc_linear_new(&spec, &w->far, &err), BD_OK);
    bd_rand_uniform(1, 1, 1, -1, 1, w->far->params[0].value, (size_t)N_IN * N_OUT);
    start_node(w, &w->trainer, "trainer", 1, NULL);
    start_node(w, &w->a, "a", 10, ADDR_A);
    start_node(w, &w->b, "b", 11, ADDR_B);
    assert_int_equal(rpc_ag_register(w->b.ag, w->far, &err), BD_OK);
    assert_int_equal(rpc_channel_new(w->trainer.env, ADDR_A, NULL, &w->to_a, &err), BD_OK);
    assert_int_equal(rpc_channel_new(w->a.env, ADDR_B, NULL, &w->a_to_b, &err), BD_OK);
    assert_int_equal(rpc_ag_peer_new(w->trainer.ag, "a", w->to_a, &w->peer_a), BD_OK);
    assert_int_equal(rpc_ag_peer_new(w->a.ag, "b", w->a_to_b, &peer_b), BD_OK);
    am_relay_init(&w->relay, "relay", peer_b, "far");
    assert_int_equal(rpc_ag_register(w->a.ag, &w->relay.module, &err), BD_OK);
    return w;
}

static void node_stop(node *n)
{
    rpc_server_free(n->server);
    rpc_ag_free(n->ag);
    rpc_env_free(n->env);
}

static void world_free(world *w)
{
    rpc_channel_free(w->to_a);
    rpc_channel_free(w->a_to_b);
    node_stop(&w->trainer);
    node_stop(&w->a);
    node_stop(&w->b);
    rpc_module_free(w->far);
    rpc_mem_net_free(w->net);
    bd_free(w);
}

/* One step through both nodes; the loss is the sum of the outputs. */
static bd_status train(world *w, uint64_t step, bd_err *err)
{
    const size_t dims[2] = {4, N_IN}, out_dims[2] = {4, N_OUT};
    const bool fused = step % 2 == 0;
    const rpc_ag_fused last = {.step = true, .cleanup = true};
    rpc_tensor x = {0}, g = {0}, gx = {0};
    rpc_ag_ctx *ctx = NULL;
    rpc_ag_result r = {.n_out = 0};
    assert_int_equal(rpc_tensor_new(NUM_F32, 2, dims, &x), BD_OK);
    assert_int_equal(rpc_tensor_new(NUM_F32, 2, out_dims, &g), BD_OK);
    bd_rand_uniform(2, 2, step, -1, 1, rpc_tensor_f32(&x), x.n_elems);
    bd_rand_uniform(3, 3, step, -1, 1, rpc_tensor_f32(&g), g.n_elems);
    x.requires_grad = true;
    assert_int_equal(rpc_ag_begin(w->trainer.ag, &ctx, err), BD_OK);
    bd_status rc = rpc_ag_call(ctx, w->peer_a, "relay", &x, 1, &r, err);
    if (rc == BD_OK) {
        rc = rpc_ag_backward(r.msg, &g, 1, &gx, 1, fused ? &last : NULL, err);
    }
    if (rc == BD_OK && !fused) {
        rc = rpc_ag_step(ctx, 0, err);
    }
    (void)rpc_ag_end(ctx, NULL); /* best effort under loss: see the lease below */
    rpc_tensor_free(&x);
    rpc_ag_result_free(&r);
    rpc_tensor_free(&g);
    rpc_tensor_free(&gx);
    return rc;
}

typedef struct outcome {
    float w[N_IN * N_OUT], b[N_OUT];
    int n_failed;
} outcome;

static outcome run(uint64_t seed, double loss, double repeat, int n_steps)
{
    world *w = world_new(seed);
    outcome o = {.n_failed = 0};
    rpc_mem_net_set_faults(w->net, loss, repeat);
    for (int i = 0; i < n_steps; i++) {
        bd_err err = BD_ERR_INIT;
        if (train(w, (uint64_t)i, &err) != BD_OK) {
            o.n_failed++;
            printf("seed %d step %d %s\n", (int)seed, i, err.text);
        }
    }
    rpc_mem_net_set_faults(w->net, 0, 0);
    rpc_mem_net_run_until(w->net, bd_now_ns(rpc_mem_net_clock(w->net)) + 60 * BD_NS_PER_S);
    memcpy(o.w, w->far->params[0].value, sizeof o.w);
    memcpy(o.b, w->far->params[1].value, sizeof o.b);
    assert_int_equal(rpc_ag_n_contexts(w->trainer.ag), 0);
    rpc_ag_drop_client(w->a.ag, 1); /* what a lost cleanup has left */
    rpc_ag_drop_client(w->b.ag, 1);
    assert_int_equal(rpc_ag_n_contexts(w->a.ag), 0);
    assert_int_equal(rpc_ag_n_contexts(w->b.ag), 0);
    world_free(w);
    return o;
}

/* Bit for bit, for every seed: no gradient and no step is lost or counted twice. */
static void loss_and_repeats_do_not_change_the_result(void **state)
{
    (void)state;
    const outcome quiet = run(1, 0, 0, 30);
    assert_int_equal(quiet.n_failed, 0);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const outcome rough = run(seed, 0.15, 0.15, 30);
        assert_int_equal(rough.n_failed, 0);
        assert_memory_equal(quiet.w, rough.w, sizeof quiet.w);
        assert_memory_equal(quiet.b, rough.b, sizeof quiet.b);
    }
}

/* b dies between forward and backward: the context fails on both other nodes, naming b, and the
 * count returns to zero. */
static void a_killed_node_fails_the_context_by_name(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        world *w = world_new(seed);
        bd_err err = BD_ERR_INIT;
        const float zeros[8] = {0};
        const size_t dims[2] = {1, N_IN}, out_dims[2] = {1, N_OUT};
        rpc_tensor x = {0}, g = {0}, gx = {0};
        rpc_ag_ctx *ctx = NULL;
        rpc_ag_result r = {.n_out = 0};
        assert_int_equal(rpc_tensor_copy_of(NUM_F32, 2, dims, zeros, &x), BD_OK);
        assert_int_equal(rpc_tensor_copy_of(NUM_F32, 2, out_dims, zeros, &g), BD_OK);
        assert_int_equal(rpc_ag_begin(w->trainer.ag, &ctx, &err), BD_OK);
        assert_int_equal(rpc_ag_call(ctx, w->peer_a, "relay", &x, 1, &r, &err), BD_OK);
        rpc_mem_env_kill(w->b.env);
        assert_int_not_equal(rpc_ag_backward(r.msg, &g, 1, &gx, 1, NULL, &err), BD_OK);
        assert_non_null(strstr(err.text, "Error on node "));
        bd_err again = BD_ERR_INIT;
        assert_int_not_equal(rpc_ag_check(ctx, &again), BD_OK);
        assert_string_equal(again.text, err.text);
        (void)rpc_ag_end(ctx, NULL);
        assert_int_equal(rpc_ag_n_contexts(w->trainer.ag), 0);
        assert_int_equal(rpc_ag_n_contexts(w->a.ag), 0);
        rpc_tensor_free(&x);
        rpc_ag_result_free(&r);
        rpc_tensor_free(&g);
        rpc_tensor_free(&gx);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_repeats_do_not_change_the_result),
        cmocka_unit_test(a_killed_node_fails_the_context_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
