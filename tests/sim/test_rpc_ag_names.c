/* What dist_autograd_test.py checks, by its names, as far as it makes sense without Python: each
 * case in every world of tests/util/ag_world.h. References: test_rpc_rref.c; tests of DDP:
 * test_ddp_dist_autograd.c; the table of all names: docs/CONFORMANCE.md.
 */
#include "base/mem.h"

#include "rpc/rpc_ag_call_int.h"

#include "tests/util/ag_modules.h"
#include "tests/util/ag_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* One call of module and one backward: the value, both gradients. */
static void call_and_back(aw_world *w, const char *module, bool at_b)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    float y[AW_N], gx[AW_N], want[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, module, 1, aw_x1, &r, &err), BD_OK);
    aw_times(aw_x1, true, y);
    assert_memory_equal(rpc_tensor_f32(&r.out[0]), y, sizeof y);
    assert_int_equal(aw_back(r.msg, 1, aw_g1, gx, &err), BD_OK);
    aw_times(aw_g1, false, want);
    assert_memory_equal(gx, want, sizeof gx);
    rpc_ag_peer *where = w->to_a;
    if (!at_b) {
        aw_expect_layer_grad(ctx, where, aw_x1, aw_g1, 1);
    }
    assert_int_equal(rpc_ag_step(ctx, 0, &err), BD_OK);
    float now[AW_N * AW_N];
    assert_int_equal(rpc_ag_read_param((at_b ? w->b.ag : w->a.ag), "layer", 0, now, &err), BD_OK);
    for (size_t i = 0; i < (size_t)AW_N * AW_N; i++) { /* applied once, on the node that owns it */
        assert_true(now[i] == aw_w0[i] - aw_g1[i / AW_N] * aw_x1[i % AW_N]);
    }
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

/* ---- the cases ---- */

static void context_creation(aw_world *w)
{
    rpc_ag_ctx *one = aw_begin(w), *two = aw_begin(w);
    assert_true(rpc_ag_ctx_number(two) > rpc_ag_ctx_number(one));
    assert_int_equal(rpc_ag_n_contexts(w->trainer.ag), 2);
    aw_end(one);
    assert_int_equal(rpc_ag_check(two, NULL), BD_OK);
    aw_end(two);
}

static void backward_simple(aw_world *w)
{
    call_and_back(w, "layer", false);
}

static void backward_nested(aw_world *w)
{
    call_and_back(w, "hop", true);
}

static void nested_call_itself(aw_world *w)
{
    call_and_back(w, "loop", false);
}

static void backward_multiple_round_trips(aw_world *w)
{
    call_and_back(w, "trips", false);
}

static void context_cleanup_without_backward(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "trips", 1, aw_x1, &r, &err), BD_OK);
    assert_int_equal(rpc_ag_n_contexts(w->a.ag), 1);
    assert_int_equal(rpc_ag_n_contexts(w->b.ag), 1);
    rpc_ag_result_free(&r);
    aw_end(ctx); /* also where it went by way of another node: aw_stop() counts */
}

static void backward_accumulate_grads(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    float gx[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &r, &err), BD_OK);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(aw_back(r.msg, 1, aw_g1, gx, &err), BD_OK);
        aw_expect_layer_grad(ctx, w->to_a, aw_x1, aw_g1, (float)i);
    }
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

/* Two losses on one context, one through each node. */
static void backward_multiple_roots(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result a, b;
    float gx[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &a, &err), BD_OK);
    assert_int_equal(aw_ask(ctx, w->to_b, "layer", 1, aw_g1, &b, &err), BD_OK);
    assert_int_equal(aw_back(b.msg, 1, aw_x1, gx, &err), BD_OK);
    assert_int_equal(aw_back(a.msg, 1, aw_g1, gx, &err), BD_OK);
    aw_expect_layer_grad(ctx, w->to_a, aw_x1, aw_g1, 1);
    aw_expect_layer_grad(ctx, w->to_b, aw_g1, aw_x1, 1);
    rpc_ag_result_free(&a);
    rpc_ag_result_free(&b);
    aw_end(ctx);
}

static void backward_different_tensor_dims(aw_world *w)
{
    static const float x[3 * AW_N] = {1, 0, 0, 1, 2, 2}, g[3 * AW_N] = {1, 1, 0, 2, -1, 0};
    bd_err err = BD_ERR_INIT;
    rpc_ag_result one, three;
    float gx[3 * AW_N], want[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 3, x, &three, &err), BD_OK);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &one, &err), BD_OK);
    assert_int_equal(aw_back(three.msg, 3, g, gx, &err), BD_OK);
    for (size_t i = 0; i < 3; i++) {
        aw_times(g + i * AW_N, false, want);
        assert_memory_equal(gx + i * AW_N, want, sizeof want);
    }
    assert_int_equal(aw_back(one.msg, 1, aw_g1, gx, &err), BD_OK);
    rpc_ag_result_free(&one);
    rpc_ag_result_free(&three);
    aw_end(ctx);
}

/* ids are i64 and never differentiable, rows f32; their gradients come by row. */
static void backward_different_dtypes(aw_world *w)
{
    const int64_t ids[] = {3, 1, 3}, offsets[] = {0, 2};
    static const float g[2 * AW_N] = {1, 2, 4, 8};
    const size_t three = 3, two = 2;
    bd_err err = BD_ERR_INIT;
    rpc_tensor in[2], grad = aw_rows(2, g), none[2] = {{0}};
    rpc_ag_result r = {.n_out = 0};
    rpc_ag_grads held = {0};
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(rpc_tensor_copy_of(NUM_I64, 1, &three, ids, &in[0]), BD_OK);
    assert_int_equal(rpc_tensor_copy_of(NUM_I64, 1, &two, offsets, &in[1]), BD_OK);
    assert_int_equal(rpc_ag_call(ctx, w->to_a, "bag", in, 2, &r, &err), BD_OK);
    assert_int_equal(rpc_ag_backward(r.msg, &grad, 1, none, 2, NULL, &err), BD_OK);
    assert_null(none[0].buf);
    assert_int_equal(rpc_ag_gradients(ctx, w->to_a, "bag", &held, &err), BD_OK);
    assert_true(held.items[0].sparse && held.items[0].n_rows == 2);
    assert_true(held.items[0].rows[0] == 3 && held.items[0].values[0] == 5);
    assert_true(held.items[0].rows[1] == 1 && held.items[0].values[AW_N] == 1);
    rpc_ag_grads_free(&held);
    rpc_tensor_free(&grad);
    rpc_tensors_free(in, 2);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

/* Upstream's FAST mode hangs here. */
static void backward_unused_send_function(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result used, unused;
    float gx[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &used, &err), BD_OK);
    assert_int_equal(aw_ask(ctx, w->to_a, "trips", 1, aw_x1, &unused, &err), BD_OK);
    assert_int_equal(aw_back(used.msg, 1, aw_g1, gx, &err), BD_OK);
    aw_expect_layer_grad(ctx, w->to_a, aw_x1, aw_g1, 1);
    assert_int_equal(rpc_ag_step(ctx, 0, &err), BD_OK);
    rpc_ag_result_free(&used);
    rpc_ag_result_free(&unused);
    aw_end(ctx);
}

/* An output without a gradient (zeros). */
static void backward_unused_tensors(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    rpc_tensor none = {0}, gx = {0};
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &r, &err), BD_OK);
    assert_int_equal(rpc_ag_backward(r.msg, &none, 1, &gx, 1, NULL, &err), BD_OK);
    if (gx.buf != NULL) {
        assert_true(rpc_tensor_f32(&gx)[0] == 0 && rpc_tensor_f32(&gx)[1] == 0);
    }
    rpc_tensor_free(&gx);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void mixed_requires_grad(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_tensor in = aw_rows(1, aw_x1), grad = aw_rows(1, aw_g1), gx = {0};
    rpc_ag_result r = {.n_out = 0};
    rpc_ag_ctx *ctx = aw_begin(w);
    in.requires_grad = false; /* the layer's own gradient is wanted all the same */
    assert_int_equal(rpc_ag_call(ctx, w->to_a, "hop", &in, 1, &r, &err), BD_OK);
    assert_int_equal(rpc_ag_backward(r.msg, &grad, 1, &gx, 1, NULL, &err), BD_OK);
    assert_null(gx.buf);
    rpc_tensor_free(&in);
    rpc_tensor_free(&grad);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void backward_autograd_engine_error(aw_world *w)
{
    bd_err err = BD_ERR_INIT, again = BD_ERR_INIT;
    rpc_ag_result ok, bad;
    float gx[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "hop", 1, aw_x1, &ok, &err), BD_OK);
    assert_int_equal(aw_ask(ctx, w->to_a, "boom", 1, aw_x1, &bad, &err), BD_OK);
    assert_int_equal(aw_back(bad.msg, 1, aw_g1, gx, &err), BD_E_NUMERIC);
    assert_string_equal(err.text, "Error on node a: simulated error on backward pass");
    /* multiple_backward_with_errors: the context stays failed, and says the same. */
    assert_int_equal(aw_back(ok.msg, 1, aw_g1, gx, &again), BD_E_NUMERIC);
    assert_string_equal(again.text, err.text);
    assert_int_equal(rpc_ag_step(ctx, 0, &again), BD_E_NUMERIC);
    float now[AW_N * AW_N];
    assert_int_equal(rpc_ag_read_param(w->b.ag, "layer", 0, now, NULL), BD_OK);
    assert_memory_equal(now, aw_w0, sizeof now);
    rpc_ag_result_free(&ok);
    rpc_ag_result_free(&bad);
    aw_end(ctx);
    call_and_back(w, "layer", false); /* error_in_context: the next one is whole */
}

static void backward_invalid_args(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    rpc_tensor two = aw_rows(2, (const float[]){1, 2, 3, 4}), gx[2] = {{0}};
    rpc_ag_ctx *ctx = aw_begin(w);
    assert_int_equal(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &r, &err), BD_OK);
    assert_int_equal(rpc_ag_backward(r.msg, &two, 1, gx, 1, NULL, &err), BD_E_INVALID);
    assert_int_equal(rpc_ag_backward(r.msg, &two, 1, gx, 2, NULL, &err), BD_E_INVALID);
    assert_int_equal(aw_back(r.msg, 1, aw_g1, (float[AW_N]){0}, &err),
                     BD_OK); /* nothing was sent before */
    rpc_tensor_free(&two);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void async_dist_autograd(aw_world *w)
{
    enum { N_CALLS = 5 };
    bd_err err = BD_ERR_INIT;
    rpc_ag_pending *p[N_CALLS] = {NULL};
    float gx[AW_N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_tensor in = aw_rows(1, aw_x1);
    for (int i = 0; i < N_CALLS; i++) {
        rpc_ag_peer *peer = i % 2 == 0 ? w->to_a : w->to_b;
        assert_int_equal(rpc_ag_call_start(ctx, peer, "layer", &in, 1, &p[i], &err), BD_OK);
    }
    for (int i = N_CALLS - 1; i >= 0; i--) { /* in another order than they were asked */
        rpc_ag_result r = {.n_out = 0};
        assert_int_equal(rpc_ag_call_wait(p[i], &r, &err), BD_OK);
        if (aw_back(r.msg, 1, aw_g1, gx, &err) != BD_OK) {
            fail_msg("%s", err.text);
        }
        rpc_ag_result_free(&r);
    }
    aw_expect_layer_grad(ctx, w->to_a, aw_x1, aw_g1, 3);
    aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 2);
    rpc_tensor_free(&in);
    aw_end(ctx);
}

/* Two contexts at once do not see each other's gradients; the second step starts from the first's.
 */
static void two_contexts(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r1, r2;
    float gx[AW_N];
    rpc_ag_ctx *one = aw_begin(w), *two = aw_begin(w);
    assert_int_equal(aw_ask(one, w->to_a, "layer", 1, aw_x1, &r1, &err), BD_OK);
    assert_int_equal(aw_ask(two, w->to_a, "layer", 1, aw_g1, &r2, &err), BD_OK);
    assert_int_equal(aw_back(r2.msg, 1, aw_g1, gx, &err), BD_OK);
    assert_int_equal(aw_back(r1.msg, 1, aw_g1, gx, &err), BD_OK);
    aw_expect_layer_grad(one, w->to_a, aw_x1, aw_g1, 1);
    aw_expect_layer_grad(two, w->to_a, aw_g1, aw_g1, 1);
    assert_int_equal(rpc_ag_step(one, 0, &err), BD_OK);
    assert_int_equal(rpc_ag_step(two, 0, &err), BD_OK);
    float now[AW_N * AW_N];
    assert_int_equal(rpc_ag_read_param(w->a.ag, "layer", 0, now, &err), BD_OK);
    for (size_t i = 0; i < (size_t)AW_N * AW_N; i++) {
        float first = aw_w0[i] - aw_g1[i / AW_N] * aw_x1[i % AW_N];
        assert_true(now[i] == first - aw_g1[i / AW_N] * aw_g1[i % AW_N]);
    }
    rpc_ag_result_free(&r1);
    rpc_ag_result_free(&r2);
    aw_end(one);
    aw_end(two);
}

/* What is recorded where: sends on the callee, receives on the caller, the nodes that were reached.
 */
static size_t n_nodes(rpc_ag_ctx *ctx)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&ctx->lock);
    for (const ag_node *k = ctx->nodes; k != NULL; k = k->next) {
        n++;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return n;
}

static size_t n_msgs(rpc_ag_ctx *ctx)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&ctx->lock);
    for (const rpc_ag_msg *m = ctx->msgs; m != NULL; m = m->next) {
        n++;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return n;
}

/* The one node that ctx called; "": none. */
static const char *reached(rpc_ag_ctx *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    assert_true(ctx->n_reached <= 1);
    const char *name = ctx->n_reached == 1 ? ctx->reached[0].peer->name : "";
    (void)pthread_mutex_unlock(&ctx->lock);
    return name;
}

static void autograd_functions(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    rpc_ag_ctx *ctx = aw_begin(w), *part = NULL;
    aw_must(aw_ask(ctx, w->to_a, "hop", 1, aw_x1, &r, &err), &err);
    assert_int_equal(n_msgs(ctx), 1);
    assert_int_equal(n_nodes(ctx), 0);
    assert_string_equal(reached(ctx), "a");
    aw_must(ag_ctx_get(w->a.ag, AW_TRAINER, rpc_ag_ctx_number(ctx), false, &part, NULL), NULL);
    assert_int_equal(n_msgs(part), 1); /* the nested call's */
    assert_int_equal(n_nodes(part), 1);
    assert_string_equal(reached(part), "b");
    ag_ctx_unref(part);
    aw_must(ag_ctx_get(w->b.ag, AW_TRAINER, rpc_ag_ctx_number(ctx), false, &part, NULL), NULL);
    assert_int_equal(n_msgs(part), 0);
    assert_int_equal(n_nodes(part), 1);
    assert_string_equal(reached(part), "");
    ag_ctx_unref(part);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void no_graph_with_tensors_not_require_grad(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r = {.n_out = 0};
    rpc_ag_ctx *ctx = aw_begin(w);
    aw_must(aw_ask(ctx, w->to_a, "echo", 1, aw_x1, &r, &err), &err);
    assert_memory_equal(rpc_tensor_f32(&r.out[0]), aw_x1, sizeof aw_x1);
    assert_null(r.msg); /* no backward can follow */
    assert_int_equal(n_msgs(ctx), 0);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void context_cleanup_no_tensors(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r = {.n_out = 0};
    rpc_ag_ctx *ctx = aw_begin(w);
    aw_must(rpc_ag_call(ctx, w->to_a, "echo", NULL, 0, &r, &err), &err);
    assert_int_equal(r.n_out, 0);
    assert_int_equal(rpc_ag_n_contexts(w->a.ag), 1);
    rpc_ag_result_free(&r);
    aw_end(ctx);
}

static void backward_udf_error(aw_world *w)
{
    bd_err err = BD_ERR_INIT, again = BD_ERR_INIT;
    rpc_ag_result r;
    rpc_ag_ctx *ctx = aw_begin(w);
    const float three[3] = {1, 2, 3};
    const size_t dims[] = {1, 3};
    rpc_tensor in;
    aw_must(rpc_tensor_copy_of(NUM_F32, 2, dims, three, &in), NULL);
    assert_int_equal(rpc_ag_call(ctx, w->to_a, "hop", &in, 1, &r, &err), BD_E_INVALID);
    assert_non_null(strstr(err.text, "Error on node b: ")); /* two nodes away */
    assert_int_equal(aw_ask(ctx, w->to_b, "layer", 1, aw_x1, &r, &again), BD_E_INVALID);
    assert_string_equal(again.text, err.text);
    rpc_tensor_free(&in);
    aw_end(ctx);
}

/* A Cleanup that comes while the backward of the same context runs. */
typedef struct cleaner {
    rpc_module module;
    rpc_ag_ctx *ctx; /* the trainer's */
} cleaner;

static bd_status cleaner_backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                                  rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink,
                                  bd_err *err)
{
    (void)saved;
    (void)grad_out;
    (void)n_out;
    (void)grad_in;
    (void)n_in;
    (void)sink;
    cleaner *c = self;
    return ag_fan_cleanup(c->ctx, err);
}

static void clean_context_during_backward(aw_world *w)
{
    cleaner *c = bd_calloc(1, sizeof *c);
    assert_non_null(c);
    w->user = c;
    c->module = am_boom("cleaner"); /* its forward */
    c->module.self = c;
    c->module.backward = cleaner_backward;
    c->ctx = aw_begin(w);
    aw_must(rpc_ag_register(w->a.ag, &c->module, NULL), NULL); /* from here on a thread reads c */
    rpc_ag_result r;
    bd_err err = BD_ERR_INIT;
    float gx[AW_N];
    aw_must(aw_ask(c->ctx, w->to_a, "cleaner", 1, aw_x1, &r, &err), &err);
    rpc_tensor grad = aw_rows(1, aw_g1), in = {0};
    bd_status rc = rpc_ag_backward(r.msg, &grad, 1, &in, 1, NULL, &err);
    assert_true(rc == BD_OK || rc == BD_E_STATE); /* STATE: the answer was lost, its repeat late */
    assert_int_equal(rpc_ag_n_contexts(w->a.ag), 0);
    if (rc == BD_OK) {
        assert_int_equal(aw_back(r.msg, 1, aw_g1, gx, &err), BD_E_STATE);
    }
    assert_non_null(strstr(err.text, "Error on node a"));
    rpc_tensor_free(&grad);
    rpc_tensor_free(&in);
    rpc_ag_result_free(&r);
    aw_end(c->ctx);
}

/* A Forward of a context that has ended does not bring it back. */
static void late_rpc_after_cleanup(aw_world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_ag_result r;
    bd_chain body = {0}, reply = {0};
    const rpc_call_options opt = {.deadline_ms = 20000, .idempotent = true};
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_tensor in = aw_rows(1, aw_x1);
    aw_must(aw_ask(ctx, w->to_a, "layer", 1, aw_x1, &r, &err), &err);
    aw_must(ag_pack_forward(r.msg, "layer", &in, 0, &body, &err), &err);
    rpc_tensor_free(&in);
    rpc_ag_result_free(&r);
    if (rpc_ag_end(ctx, &err) == BD_OK) {
        assert_int_equal(rpc_call_sync(w->ch[0], AG_SERVICE "Forward", &body, &opt, &reply, &err),
                         BD_E_STATE);
        assert_non_null(strstr(err.text, "has ended"));
        assert_int_equal(rpc_ag_n_contexts(w->a.ag), 0);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
}

/* Two trainers, each in a context of its own, on one parameter of a server: neither sees the
 * other's gradients, both steps count. */
static void trainer_ps(aw_world *w)
{
    const rpc_ag_options opt = {.name = "trainer-2", .client_id = AW_TRAINER + 1};
    rpc_ag *second = NULL;
    rpc_ag_peer *to_a = NULL;
    bd_err err = BD_ERR_INIT;
    rpc_ag_ctx *one = aw_begin(w), *two = NULL;
    rpc_ag_result r1, r2;
    float gx[AW_N], now[AW_N * AW_N];
    aw_must(rpc_ag_new(w->trainer.env, &opt, &second, &err), &err);
    aw_must(rpc_ag_peer_new(second, "a", w->ch[0], &to_a), NULL);
    aw_must(rpc_ag_begin(second, &two, &err), &err);
    aw_must(aw_ask(one, w->to_a, "layer", 1, aw_x1, &r1, &err), &err);
    aw_must(aw_ask(two, to_a, "layer", 1, aw_g1, &r2, &err), &err);
    aw_must(aw_back(r1.msg, 1, aw_g1, gx, &err), &err);
    aw_must(aw_back(r2.msg, 1, aw_g1, gx, &err), &err);
    aw_expect_layer_grad(one, w->to_a, aw_x1, aw_g1, 1);
    aw_expect_layer_grad(two, to_a, aw_g1, aw_g1, 1);
    aw_must(rpc_ag_step(two, 0, &err), &err);
    aw_must(rpc_ag_step(one, 0, &err), &err);
    aw_must(rpc_ag_read_param(w->a.ag, "layer", 0, now, &err), &err);
    for (size_t i = 0; i < (size_t)AW_N * AW_N; i++) {
        float first = aw_w0[i] - aw_g1[i / AW_N] * aw_g1[i % AW_N];
        assert_true(now[i] == first - aw_g1[i / AW_N] * aw_x1[i % AW_N]);
    }
    rpc_ag_result_free(&r1);
    rpc_ag_result_free(&r2);
    aw_end(one);
    aw_end(two);
    rpc_ag_free(second);
}

/* ---- every case in every world ---- */

#define CASES(X)                              \
    X(context_creation)                       \
    X(backward_simple)                        \
    X(backward_nested)                        \
    X(nested_call_itself)                     \
    X(backward_multiple_round_trips)          \
    X(context_cleanup_without_backward)       \
    X(backward_accumulate_grads)              \
    X(backward_multiple_roots)                \
    X(backward_different_tensor_dims)         \
    X(backward_different_dtypes)              \
    X(backward_unused_send_function)          \
    X(backward_unused_tensors)                \
    X(mixed_requires_grad)                    \
    X(backward_autograd_engine_error)         \
    X(backward_invalid_args)                  \
    X(async_dist_autograd)                    \
    X(two_contexts)                           \
    X(autograd_functions)                     \
    X(no_graph_with_tensors_not_require_grad) \
    X(context_cleanup_no_tensors)             \
    X(backward_udf_error)                     \
    X(clean_context_during_backward)          \
    X(late_rpc_after_cleanup)                 \
    X(trainer_ps)

/* ---- killed clients ---- */

/* A client that calls five times in contexts of its own and is gone without a word. */
static void come_and_vanish(aw_world *w, uint64_t client_id)
{
    const rpc_ag_options opt = {.name = "short-lived", .client_id = client_id};
    rpc_ag *ag = NULL;
    rpc_ag_peer *to_a = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_ag_new(w->trainer.env, &opt, &ag, &err), BD_OK);
    assert_int_equal(rpc_ag_peer_new(ag, "a", w->ch[0], &to_a), BD_OK);
    for (int i = 0; i < 5; i++) {
        rpc_ag_ctx *ctx = NULL;
        rpc_ag_result r;
        assert_int_equal(rpc_ag_begin(ag, &ctx, &err), BD_OK);
        assert_int_equal(aw_ask(ctx, to_a, "layer", 1, aw_x1, &r, &err), BD_OK);
        rpc_ag_result_free(&r);
        ag_ctx_unref(ctx); /* the handle, without the end of it */
    }
    rpc_ag_free(ag);
}

static void contexts_of_killed_clients_go_with_their_lease(void **state)
{
    (void)state;
    enum { N_CLIENTS = 2000, FIRST = 100 };
    const rpc_mem_options opt = {.seed = 1, .delay_min_ns = 1000, .delay_max_ns = 2000};
    aw_world w = {.loss = 0};
    assert_int_equal(rpc_mem_net_new(&opt, &w.net, NULL), BD_OK);
    aw_start(&w);
    come_and_vanish(&w, FIRST); /* what is made once, is made */
    long before = bd_mem_live_blocks();
    for (uint64_t id = FIRST + 1; id < FIRST + N_CLIENTS; id++) {
        come_and_vanish(&w, id);
    }
    assert_int_equal(rpc_ag_n_contexts(w.a.ag), 5 * N_CLIENTS);
    /* Long enough for the deadlines of their calls as well. */
    rpc_mem_net_run_until(w.net, bd_now_ns(rpc_mem_net_clock(w.net)) + 120 * BD_NS_PER_S);
    assert_int_equal(rpc_ag_sweep(w.a.ag, AW_LEASE_MS), N_CLIENTS);
    assert_int_equal(rpc_ag_n_contexts(w.a.ag), 0);
    assert_true(bd_mem_live_blocks() <= before); /* the list of expired ids is one block */
    aw_stop(&w);
    rpc_mem_net_free(w.net);
}

#define BD_X(name)                        \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        aw_run(name);                     \
    }
CASES(BD_X)
#undef BD_X

int main(void)
{
    const struct CMUnitTest tests[] = {
#define BD_X(name) cmocka_unit_test(test_##name),
        CASES(BD_X)
#undef BD_X
            cmocka_unit_test(contexts_of_killed_clients_go_with_their_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
