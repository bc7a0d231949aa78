#include "tests/util/ag_pair.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- set-up ---- */

static void start_node(ap_world *w, ap_node *n, const char *name, uint64_t id)
{
    bd_err err = BD_ERR_INIT;
    rpc_server_options sopt = {.listen = "127.0.0.1:0"};
    rpc_ag_options opt = {.name = name, .client_id = id, .deadline_ms = 5000};
    assert_int_equal(rpc_ag_new(w->env, &opt, &n->ag, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &sopt, &n->server, &err), BD_OK);
    assert_int_equal(rpc_ag_serve(n->ag, n->server), BD_OK);
    assert_int_equal(rpc_server_start(n->server, &err), BD_OK);
    (void)snprintf(n->target, sizeof n->target, "127.0.0.1:%d", rpc_server_port(n->server));
}

static rpc_channel *channel_to(ap_world *w, const ap_node *n, const char *name)
{
    bd_err err = BD_ERR_INIT;
    rpc_channel *ch = NULL;
    rpc_channel_options opt = {.name = name};
    assert_int_equal(rpc_channel_new(w->env, n->target, &opt, &ch, &err), BD_OK);
    return ch;
}

/* far_linear and linear: w = [[1, 2], [3, 4], [-5, -6]], sgd 0.5. bag: rows r = (r, 10 r),
 * adagrad 1. */
static void make_modules(ap_world *w)
{
    bd_err err = BD_ERR_INIT;
    static const float weights[6] = {1, 2, 3, 4, -5, -6};
    rpc_linear_spec lin = {
        .name = "linear", .n_in = 2, .n_out = 3, .relu = true, .optim = {"sgd", 0.5}};
    assert_int_equal(rpc_linear_new(&lin, &w->linear, &err), BD_OK);
    memcpy(w->linear->params[0].value, weights, sizeof weights);
    lin.name = "far_linear";
    lin.relu = false;
    assert_int_equal(rpc_linear_new(&lin, &w->far_linear, &err), BD_OK);
    memcpy(w->far_linear->params[0].value, weights, sizeof weights);
    rpc_bag_spec bag = {.name = "bag", .n_rows = 5, .dim = 2, .optim = {"adagrad", 1.0}};
    assert_int_equal(rpc_bag_new(&bag, &w->bag, &err), BD_OK);
    for (size_t r = 0; r < 5; r++) {
        w->bag->params[0].value[2 * r] = (float)r;
        w->bag->params[0].value[2 * r + 1] = 10.0f * (float)r;
    }
    am_relay_init(&w->relay, "relay", NULL, "far_linear");
    w->boom = am_boom("boom");
}

int ap_set_up(void **state)
{
    ap_world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_env_new(NULL, &w->env, &err), BD_OK);
    make_modules(w);
    start_node(w, &w->node_a, "a", AP_NODE_A);
    start_node(w, &w->node_b, "b", AP_NODE_B);
    assert_int_equal(rpc_ag_register(w->node_a.ag, w->linear, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->node_a.ag, w->bag, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->node_a.ag, &w->relay.module, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->node_b.ag, w->far_linear, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->node_b.ag, &w->boom, &err), BD_OK);
    rpc_ag_options opt = {.name = "trainer", .client_id = AP_TRAINER, .deadline_ms = 5000};
    assert_int_equal(rpc_ag_new(w->env, &opt, &w->trainer, &err), BD_OK);
    w->to_a = channel_to(w, &w->node_a, "a");
    w->to_b = channel_to(w, &w->node_b, "b");
    w->node_a.ch = channel_to(w, &w->node_b, "b");
    assert_int_equal(rpc_ag_peer_new(w->trainer, "a", w->to_a, &w->a), BD_OK);
    assert_int_equal(rpc_ag_peer_new(w->trainer, "b", w->to_b, &w->b), BD_OK);
    assert_int_equal(rpc_ag_peer_new(w->node_a.ag, "b", w->node_a.ch, &w->relay.peer), BD_OK);
    *state = w;
    return 0;
}

int ap_tear_down(void **state)
{
    ap_world *w = *state;
    /* Every test ends its contexts; nothing may be left anywhere. */
    assert_int_equal(rpc_ag_n_contexts(w->trainer), 0);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 0);
    assert_int_equal(rpc_ag_n_contexts(w->node_b.ag), 0);
    rpc_channel_free(w->to_a);
    rpc_channel_free(w->to_b);
    rpc_channel_free(w->node_a.ch);
    rpc_server_free(w->node_a.server);
    rpc_server_free(w->node_b.server);
    rpc_ag_free(w->trainer);
    rpc_ag_free(w->node_a.ag);
    rpc_ag_free(w->node_b.ag);
    rpc_module_free(w->linear);
    rpc_module_free(w->bag);
    rpc_module_free(w->far_linear);
    rpc_env_free(w->env);
    bd_free(w);
    return 0;
}

/* ---- helpers ---- */

rpc_ag_ctx *ap_begin(ap_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_ctx *ctx = NULL;
    assert_int_equal(rpc_ag_begin(w->trainer, &ctx, &err), BD_OK);
    return ctx;
}

void ap_end(rpc_ag_ctx *ctx)
{
    bd_err err = BD_ERR_INIT;
    if (rpc_ag_end(ctx, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
}

rpc_tensor ap_matrix(size_t rows, size_t cols, const float *v)
{
    rpc_tensor t;
    const size_t dims[2] = {rows, cols};
    assert_int_equal(rpc_tensor_copy_of(NUM_F32, 2, dims, v, &t), BD_OK);
    t.requires_grad = true;
    return t;
}

rpc_tensor ap_ints(size_t n, const int64_t *v)
{
    rpc_tensor t;
    assert_int_equal(rpc_tensor_copy_of(NUM_I64, 1, &n, v, &t), BD_OK);
    return t;
}

rpc_ag_msg *ap_forward(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, const rpc_tensor *in,
                       size_t n_in, rpc_tensor *out)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r = {.n_out = 0};
    if (rpc_ag_call(ctx, peer, module, in, n_in, &r, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    assert_int_equal(r.n_out, 1);
    *out = r.out[0];
    return r.msg;
}

void ap_expect_floats(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_true(got[i] == want[i]);
    }
}

void ap_expect_param(rpc_ag *ag, const char *module, const float *want, size_t n)
{
    float got[16];
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_ag_read_param(ag, module, 0, got, &err), BD_OK);
    ap_expect_floats(got, want, n);
}

rpc_ag_grads ap_gradients(rpc_ag_ctx *ctx, rpc_ag_peer *peer)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_grads g = {0};
    if (rpc_ag_gradients(ctx, peer, NULL, &g, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    return g;
}

const float ap_x11[2] = {1, 1}, ap_gy[3] = {1, 10, 100};

rpc_ag_msg *ap_one_backward(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                            const float *want_dx, const rpc_ag_fused *fused)
{
    bd_err err = BD_ERR_INIT;
    rpc_tensor x = ap_matrix(1, 2, ap_x11), g = ap_matrix(1, 3, ap_gy), y, dx = {0};
    rpc_ag_msg *msg = ap_forward(ctx, peer, module, &x, 1, &y);
    assert_non_null(msg);
    if (rpc_ag_backward(msg, &g, 1, &dx, 1, fused, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    ap_expect_floats(rpc_tensor_f32(&dx), want_dx, 2);
    rpc_tensor_free(&x);
    rpc_tensor_free(&g);
    rpc_tensor_free(&y);
    rpc_tensor_free(&dx);
    return msg;
}
