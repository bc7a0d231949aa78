#include "tests/util/ag_world.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

const float aw_w0[AW_N * AW_N] = {1, 2, 3, -1}, aw_x1[AW_N] = {2, 5}, aw_g1[AW_N] = {1, -3};

/* ---- modules ---- */

static bd_status echo_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                              rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    (void)self;
    (void)ctx;
    (void)saved;
    (void)err;
    for (size_t i = 0; i < n_in; i++) {
        out[i] = in[i];
        (void)bd_buf_ref(out[i].buf);
    }
    *n_out = n_in;
    return BD_OK;
}

/* ---- worlds ---- */

static void start_node(aw_world *w, aw_node *n, const char *name, uint64_t id, int port)
{
    bd_err err = BD_ERR_INIT;
    const rpc_ag_options opt = {.name = name, .client_id = id, .deadline_ms = 20000};
    if (w->net != NULL) {
        assert_int_equal(rpc_mem_env_new(w->net, name, &n->env, &err), BD_OK);
    } else {
        assert_int_equal(rpc_env_new(NULL, &n->env, &err), BD_OK);
    }
    n->name = name;
    assert_int_equal(rpc_ag_new(n->env, &opt, &n->ag, &err), BD_OK);
    if (port == 0) {
        return;
    }
    (void)snprintf(n->target, sizeof n->target, "127.0.0.1:%d", w->net != NULL ? port : 0);
    const rpc_server_options sopt = {.listen = n->target};
    assert_int_equal(rpc_server_new(n->env, &sopt, &n->server, &err), BD_OK);
    assert_int_equal(rpc_ag_serve(n->ag, n->server), BD_OK);
    assert_int_equal(rpc_server_start(n->server, &err), BD_OK);
    if (w->net == NULL) {
        (void)snprintf(n->target, sizeof n->target, "127.0.0.1:%d", rpc_server_port(n->server));
    }
    const rpc_linear_spec spec = {
        .name = "layer", .n_in = AW_N, .n_out = AW_N, .optim = {"sgd", 1}};
    assert_int_equal(rpc_linear_new(&spec, &n->layer, &err), BD_OK);
    memcpy(n->layer->params[0].value, aw_w0, sizeof aw_w0);
    assert_int_equal(rpc_ag_register(n->ag, n->layer, &err), BD_OK);
    n->echo = (rpc_module){.name = "echo", .self = n, .forward = echo_forward};
    assert_int_equal(rpc_ag_register(n->ag, &n->echo, &err), BD_OK);
}

rpc_ag_peer *aw_peer(aw_world *w, const aw_node *from, const aw_node *to)
{
    rpc_ag_peer *p = NULL;
    assert_true(w->n_ch < AW_MAX_CHANNELS);
    rpc_channel **ch = &w->ch[w->n_ch++];
    assert_int_equal(rpc_channel_new(from->env, to->target, NULL, ch, NULL), BD_OK);
    assert_int_equal(rpc_ag_peer_new(from->ag, to->name, *ch, &p), BD_OK);
    return p;
}

static void add_relay(const aw_node *on, am_relay *r, const char *name, rpc_ag_peer *peer,
                      const char *asks)
{
    am_relay_init(r, name, peer, asks);
    assert_int_equal(rpc_ag_register(on->ag, &r->module, NULL), BD_OK);
}

void aw_start(aw_world *w)
{
    const rpc_bag_spec bag = {.name = "bag", .n_rows = 4, .dim = AW_N, .optim = {"sgd", 1}};
    start_node(w, &w->trainer, "trainer", AW_TRAINER, 0);
    start_node(w, &w->a, "a", 10, 1);
    start_node(w, &w->b, "b", 11, 2);
    start_node(w, &w->c, "c", 12, 3);
    w->to_a = aw_peer(w, &w->trainer, &w->a);
    w->to_b = aw_peer(w, &w->trainer, &w->b);
    w->to_c = aw_peer(w, &w->trainer, &w->c);
    w->a_to_b = aw_peer(w, &w->a, &w->b);
    w->a_to_c = aw_peer(w, &w->a, &w->c);
    w->b_to_a = aw_peer(w, &w->b, &w->a);
    w->b_to_c = aw_peer(w, &w->b, &w->c);
    (void)aw_peer(w, &w->c, &w->a);
    (void)aw_peer(w, &w->c, &w->b);
    rpc_ag_peer *a_to_a = aw_peer(w, &w->a, &w->a);
    assert_int_equal(rpc_bag_new(&bag, &w->bag, NULL), BD_OK);
    assert_int_equal(rpc_ag_register(w->a.ag, w->bag, NULL), BD_OK);
    w->boom = am_boom("boom");
    assert_int_equal(rpc_ag_register(w->a.ag, &w->boom, NULL), BD_OK);
    add_relay(&w->a, &w->hop, "hop", w->a_to_b, "layer");
    add_relay(&w->a, &w->trips, "trips", w->a_to_b, "back");
    add_relay(&w->b, &w->back, "back", w->b_to_a, "layer");
    add_relay(&w->a, &w->loop, "loop", a_to_a, "layer");
    if (w->net != NULL) {
        rpc_mem_net_set_faults(w->net, w->loss, w->loss);
    }
}

void aw_pass_ms(aw_world *w, int64_t ms)
{
    if (w->net != NULL) {
        int64_t now = bd_now_ns(rpc_mem_net_clock(w->net));
        rpc_mem_net_run_until(w->net, now + ms * BD_NS_PER_MS);
    }
}

static rpc_rref_counts counts_of(const aw_node *n)
{
    rpc_rref_counts c;
    rpc_rref_count(n->ag, &c);
    return c;
}

/* Deletes are on their way; over gRPC a moment is enough, so it is looked again until they came. */
static void expect_nothing_left(const aw_world *w, const aw_node *n)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    rpc_rref_counts c = counts_of(n);
    assert_int_equal(c.handles, 0);
    for (int i = 0; w->net == NULL && c.values + c.forks > 0 && i < 10000; i++) {
        (void)nanosleep(&moment, NULL);
        c = counts_of(n);
    }
    assert_int_equal(c.values, 0);
    assert_int_equal(c.forks, 0);
    assert_int_equal(rpc_ag_n_contexts(n->ag), 0);
}

void aw_stop(aw_world *w)
{
    const aw_node *nodes[] = {&w->trainer, &w->a, &w->b, &w->c};
    if (w->net != NULL) {
        rpc_mem_net_set_faults(w->net, 0, 0);
        aw_pass_ms(w, 3 * (int64_t)AW_LEASE_MS);
    }
    for (size_t i = 0; i < 4; i++) { /* each node is a client, when it calls or holds references */
        assert_true((w->loss > 0 ? rpc_ag_sweep(nodes[i]->ag, AW_LEASE_MS) : 0) <= 4);
    }
    for (size_t i = 0; i < 4; i++) {
        expect_nothing_left(w, nodes[i]);
    }
    for (size_t i = 0; i < 4; i++) { /* notices of the nodes still need the channels */
        rpc_server_free(nodes[i]->server);
    }
    for (size_t i = 0; i < 4; i++) {
        rpc_ag_free(nodes[i]->ag);
    }
    for (size_t i = 0; i < w->n_ch; i++) {
        rpc_channel_free(w->ch[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        rpc_module_free(nodes[i]->layer);
        rpc_env_free(nodes[i]->env);
    }
    rpc_module_free(w->bag);
    bd_free(w->user);
}

/* ---- what cases are made of ---- */

rpc_ag_ctx *aw_begin(aw_world *w)
{
    rpc_ag_ctx *ctx = NULL;
    assert_int_equal(rpc_ag_begin(w->trainer.ag, &ctx, NULL), BD_OK);
    return ctx;
}

void aw_end(rpc_ag_ctx *ctx)
{
    (void)rpc_ag_end(ctx, NULL); /* best effort under loss; stop() checks */
}

rpc_tensor aw_rows(size_t n, const float *v)
{
    rpc_tensor t;
    assert_int_equal(rpc_tensor_copy_of(NUM_F32, 2, (const size_t[]){n, AW_N}, v, &t), BD_OK);
    t.requires_grad = true;
    return t;
}

bd_status aw_ask(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, size_t n, const float *x,
                 rpc_ag_result *out, bd_err *err)
{
    rpc_tensor in = aw_rows(n, x);
    memset(out, 0, sizeof *out);
    bd_status rc = rpc_ag_call(ctx, peer, module, &in, 1, out, err);
    rpc_tensor_free(&in);
    return rc;
}

bd_status aw_back(rpc_ag_msg *msg, size_t n, const float *g, float *gx, bd_err *err)
{
    rpc_tensor grad = aw_rows(n, g), in = {0};
    bd_status rc = rpc_ag_backward(msg, &grad, 1, &in, gx != NULL ? 1 : 0, NULL, err);
    if (rc == BD_OK && gx != NULL) {
        memcpy(gx, rpc_tensor_f32(&in), n * AW_N * sizeof *gx);
    }
    rpc_tensor_free(&grad);
    rpc_tensor_free(&in);
    return rc;
}

/* y = x w^T, or x w: forward and the input's gradient. */
void aw_times(const float *x, bool transposed, float *y)
{
    for (size_t o = 0; o < AW_N; o++) {
        y[o] = 0;
        for (size_t i = 0; i < AW_N; i++) {
            y[o] += x[i] * aw_w0[transposed ? o * AW_N + i : i * AW_N + o];
        }
    }
}

/* The gradient of `layer` that the context holds on a node is g^T x, times `factor`. */
void aw_expect_layer_grad(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const float *x, const float *g,
                          float factor)
{
    rpc_ag_grads held = {0};
    bd_err err = BD_ERR_INIT;
    if (rpc_ag_gradients(ctx, peer, "layer", &held, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(held.n, 1);
    for (size_t o = 0; o < AW_N; o++) {
        for (size_t i = 0; i < AW_N; i++) {
            assert_true(held.items[0].values[o * AW_N + i] == factor * g[o] * x[i]);
        }
    }
    rpc_ag_grads_free(&held);
}

void aw_must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(err));
    }
}

/* ---- every case in every world ---- */

static void run_world(void (*fn)(aw_world *w), aw_world *w)
{
    long before = bd_mem_live_blocks();
    aw_start(w);
    fn(w);
    aw_stop(w);
    if (w->net == NULL) {
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

void aw_run_seed(void (*fn)(aw_world *w), uint64_t seed, double loss)
{
    const rpc_mem_options opt = {.seed = seed, .delay_min_ns = 1000, .delay_max_ns = BD_NS_PER_MS};
    long before = bd_mem_live_blocks();
    aw_world w = {.loss = loss, .seed = seed};
    assert_int_equal(rpc_mem_net_new(&opt, &w.net, NULL), BD_OK);
    run_world(fn, &w);
    rpc_mem_net_free(w.net);
    assert_int_equal(bd_mem_live_blocks(), before);
}

void aw_run(void (*fn)(aw_world *w))
{
    for (uint64_t seed = 0; seed < AW_SEEDS; seed++) {
        aw_run_seed(fn, seed, seed == 0 ? 0 : 0.15);
    }
    aw_world real = {.net = NULL};
    run_world(fn, &real);
}
