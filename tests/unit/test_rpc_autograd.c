/* Distributed autograd over real gRPC on loopback: one caller, two nodes with modules. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#include "proto/px_pack.h"

#include "tests/util/ag_pair.h"
#include "tests/util/tu_mem.h"

#include <braid/v1/autograd.pb-c.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- tests ---- */

static void gradients_stay_in_the_context_until_the_step(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const float before[6] = {1, 2, 3, 4, -5, -6}, dx[2] = {31, 42};
    const float dw[6] = {1, 1, 10, 10, 0, 0}, after[6] = {0.5f, 1.5f, -2, -1, -5, -6};
    rpc_ag_ctx *ctx = ap_begin(w);
    (void)ap_one_backward(ctx, w->a, "linear", dx, NULL);
    ap_expect_param(w->node_a.ag, "linear", before, 6);
    rpc_ag_grads g = ap_gradients(ctx, w->a);
    assert_int_equal(g.n, 1);
    assert_string_equal(g.items[0].module, "linear");
    assert_string_equal(g.items[0].param, "weight");
    assert_int_equal(g.items[0].n_values, 6);
    ap_expect_floats(g.items[0].values, dw, 6);
    rpc_ag_grads_free(&g);
    assert_int_equal(rpc_ag_step(ctx, 0, &err), BD_OK);
    ap_expect_param(w->node_a.ag, "linear", after, 6);
    ap_end(ctx);
}

static void several_calls_and_backwards_add_up(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const float dx[2] = {31, 42}, dw[6] = {3, 3, 30, 30, 0, 0};
    rpc_tensor g = ap_matrix(1, 3, ap_gy), gx = {0};
    rpc_ag_ctx *ctx = ap_begin(w);
    rpc_ag_msg *msg = ap_one_backward(ctx, w->a, "linear", dx, NULL);
    (void)ap_one_backward(ctx, w->a, "linear", dx, NULL);
    assert_int_equal(rpc_ag_backward(msg, &g, 1, &gx, 1, NULL, &err), BD_OK);
    rpc_ag_grads got = ap_gradients(ctx, w->a);
    ap_expect_floats(got.items[0].values, dw, 6);
    rpc_ag_grads_free(&got);
    rpc_tensor_free(&g);
    rpc_tensor_free(&gx);
    ap_end(ctx);
}

/* Two contexts do not see each other's gradients. */
static void contexts_are_apart(void **state)
{
    ap_world *w = *state;
    const float dx[2] = {31, 42};
    rpc_ag_ctx *one = ap_begin(w), *two = ap_begin(w);
    rpc_tensor x = ap_matrix(1, 2, ap_x11), y;
    (void)ap_one_backward(one, w->a, "linear", dx, NULL);
    (void)ap_forward(two, w->a, "linear", &x, 1, &y);
    rpc_ag_grads g = ap_gradients(two, w->a);
    assert_int_equal(g.n, 0);
    rpc_ag_grads_free(&g);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 2);
    rpc_tensor_free(&x);
    rpc_tensor_free(&y);
    ap_end(two);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 1);
    ap_end(one);
}

/* Bags {1, 3, 1} and {}: row 1 is in twice. */
static void a_bag_gives_gradients_by_row(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const int64_t id_list[3] = {1, 3, 1}, offset_list[2] = {0, 3};
    const float want[4] = {5, 50, 0, 0}, g_list[4] = {1, 2, 9, 9};
    rpc_tensor in[2] = {ap_ints(3, id_list), ap_ints(2, offset_list)}, y,
               g = ap_matrix(2, 2, g_list);
    rpc_tensor gx[2] = {{0}};
    rpc_ag_ctx *ctx = ap_begin(w);
    rpc_ag_msg *msg = ap_forward(ctx, w->a, "bag", in, 2, &y);
    ap_expect_floats(rpc_tensor_f32(&y), want, 4);
    assert_int_equal(rpc_ag_backward(msg, &g, 1, gx, 2, NULL, &err), BD_OK);
    assert_null(gx[0].buf);
    assert_null(gx[1].buf);
    rpc_ag_grads got = ap_gradients(ctx, w->a);
    assert_int_equal(got.n, 1);
    assert_true(got.items[0].sparse);
    assert_int_equal(got.items[0].n_rows, 2);
    assert_int_equal(got.items[0].rows[0], 1);
    assert_int_equal(got.items[0].rows[1], 3);
    ap_expect_floats(got.items[0].values, (const float[4]){2, 4, 1, 2}, 4);
    rpc_ag_grads_free(&got);
    rpc_tensors_free(in, 2);
    rpc_tensor_free(&y);
    rpc_tensor_free(&g);
    ap_end(ctx);
}

/* Two steps on one row share its Adagrad state: the second moves less. */
static void a_row_has_one_optimiser_state(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const int64_t id_list[1] = {2}, offset_list[1] = {0};
    const float g_list[2] = {1, 1};
    float moved[2];
    for (int k = 0; k < 2; k++) {
        rpc_tensor in[2] = {ap_ints(1, id_list), ap_ints(1, offset_list)}, y,
                   g = ap_matrix(1, 2, g_list);
        rpc_tensor gx[2] = {{0}};
        rpc_ag_ctx *ctx = ap_begin(w);
        rpc_ag_msg *msg = ap_forward(ctx, w->a, "bag", in, 2, &y);
        float before[10], after[10];
        assert_int_equal(rpc_ag_read_param(w->node_a.ag, "bag", 0, before, &err), BD_OK);
        assert_int_equal(rpc_ag_backward(msg, &g, 1, gx, 2, NULL, &err), BD_OK);
        assert_int_equal(rpc_ag_step(ctx, 1.0, &err), BD_OK);
        assert_int_equal(rpc_ag_read_param(w->node_a.ag, "bag", 0, after, &err), BD_OK);
        moved[k] = before[4] - after[4];
        rpc_tensors_free(in, 2);
        rpc_tensor_free(&y);
        rpc_tensor_free(&g);
        ap_end(ctx);
    }
    assert_true(moved[0] > 0 && moved[1] > 0 && moved[1] < 0.8f * moved[0]);
}

static void a_fused_backward_steps_and_ends_in_one_call(void **state)
{
    ap_world *w = *state;
    const float dx[2] = {31, 42}, after[6] = {0.5f, 1.5f, -2, -1, -5, -6};
    const rpc_ag_fused fused = {.step = true, .cleanup = true};
    rpc_ag_ctx *ctx = ap_begin(w);
    (void)ap_one_backward(ctx, w->a, "linear", dx, &fused);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 0);
    ap_expect_param(w->node_a.ag, "linear", after, 6);
    ap_end(ctx);
}

static void a_call_whose_result_is_unused_holds_nothing_up(void **state)
{
    ap_world *w = *state;
    const float dx[2] = {31, 42};
    rpc_tensor x = ap_matrix(1, 2, ap_x11), y;
    rpc_ag_ctx *ctx = ap_begin(w);
    (void)ap_forward(ctx, w->b, "boom", &x, 1, &y); /* its backward would fail */
    (void)ap_one_backward(ctx, w->a, "linear", dx, NULL);
    rpc_tensor_free(&x);
    rpc_tensor_free(&y);
    ap_end(ctx);
}

/* trainer -> relay on a -> far_linear on b: gradients, step and cleanup reach b through a. */
static void a_nested_call_is_part_of_the_context(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const float dx[2] = {1 + 30 - 500, 2 + 40 - 600};
    const float after[6] = {0.5f, 1.5f, -2, -1, -55, -56};
    rpc_ag_ctx *ctx = ap_begin(w);
    (void)ap_one_backward(ctx, w->a, "relay", dx, NULL);
    assert_int_equal(rpc_ag_n_contexts(w->node_b.ag), 1);
    assert_int_equal(rpc_ag_step(ctx, 0, &err), BD_OK);
    ap_expect_param(w->node_b.ag, "far_linear", after, 6);
    ap_end(ctx);
    assert_int_equal(rpc_ag_n_contexts(w->node_b.ag), 0);
}

/* b fails in backward: the error names it, and a, which b knows nothing of, fails too. */
static void a_failure_on_one_node_fails_the_context_everywhere(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    static const char text[] = "Error on node b: simulated error on backward pass";
    const float dx[2] = {31, 42};
    rpc_tensor x = ap_matrix(1, 2, ap_x11), y, gx = {0};
    rpc_ag_ctx *ctx = ap_begin(w);
    rpc_ag_msg *on_a = ap_one_backward(ctx, w->a, "linear", dx, NULL);
    rpc_ag_msg *on_b = ap_forward(ctx, w->b, "boom", &x, 1, &y);
    assert_int_equal(rpc_ag_backward(on_b, &y, 1, &gx, 1, NULL, &err), BD_E_NUMERIC);
    assert_string_equal(err.text, text);
    assert_int_equal(rpc_ag_check(ctx, &err), BD_E_NUMERIC);
    /* Ask a behind the caller's back, until the notice has come. */
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradStepRequest r = BRAID__V1__AUTOGRAD_STEP_REQUEST__INIT;
    id.client_id = AP_TRAINER;
    id.number = rpc_ag_ctx_number(ctx);
    r.context = &id;
    bd_status rc = BD_OK;
    for (int i = 0; i < 5000 && rc != BD_E_NUMERIC; i++) {
        bd_chain body = {0}, reply = {0};
        assert_int_equal(px_pack(&r.base, &body, &err), BD_OK);
        rc = rpc_call_sync(w->to_a, "/braid.v1.Autograd/Step", &body,
                           &(rpc_call_options){.deadline_ms = 5000}, &reply, &err);
        bd_chain_deinit(&reply);
        bd_sleep_ms(rc != BD_E_NUMERIC ? 1 : 0);
    }
    assert_int_equal(rc, BD_E_NUMERIC);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(rpc_ag_backward(on_a, &gx, 1, &gx, 1, NULL, &err), BD_E_NUMERIC);
    rpc_tensor_free(&x);
    rpc_tensor_free(&y);
    ap_end(ctx);
}

static void a_node_that_is_gone_is_named(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_tensor x = ap_matrix(1, 2, ap_x11);
    rpc_ag_result r = {.n_out = 0};
    rpc_ag *hasty = NULL;
    rpc_ag_peer *b = NULL;
    rpc_ag_ctx *ctx = NULL;
    rpc_ag_options opt = {.name = "hasty", .client_id = 9, .deadline_ms = 200};
    assert_int_equal(rpc_ag_new(w->env, &opt, &hasty, &err), BD_OK);
    assert_int_equal(rpc_ag_peer_new(hasty, "b", w->to_b, &b), BD_OK);
    rpc_server_stop(w->node_b.server, 0);
    assert_int_equal(rpc_ag_begin(hasty, &ctx, &err), BD_OK);
    assert_int_equal(rpc_ag_call(ctx, b, "boom", &x, 1, &r, &err), BD_E_UNAVAILABLE);
    assert_int_equal(strncmp(err.text, "Error on node b: ", 17), 0);
    assert_int_equal(rpc_ag_end(ctx, NULL), BD_E_UNAVAILABLE); /* gone here all the same */
    assert_int_equal(rpc_ag_n_contexts(hasty), 0);
    rpc_ag_free(hasty);
    rpc_tensor_free(&x);
}

static void bad_calls_are_named(void **state)
{
    ap_world *w = *state;
    const int64_t id_list[1] = {5}, offset_list[1] = {0};
    static const float x3[3] = {1, 2, 3};
    rpc_tensor wide = ap_matrix(1, 3, x3);
    rpc_tensor outside[2] = {ap_ints(1, id_list), ap_ints(1, offset_list)};
    const struct {
        const char *module;
        const rpc_tensor *in;
        size_t n_in;
        bd_status rc;
        const char *text;
    } cases[] = {
        {"nope", &wide, 1, BD_E_NOT_FOUND, "Error on node a: no module named \"nope\""},
        {"linear", &wide, 1, BD_E_INVALID,
         "Error on node a: linear: takes one f32 matrix of 2 columns"},
        {"bag", outside, 2, BD_E_INVALID, "Error on node a: bag: id 5 at 0, there are 5 rows"},
        {"bag", outside, 1, BD_E_INVALID,
         "Error on node a: bag: takes ids i64[m] and offsets i64[n]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_err err = BD_ERR_INIT;
        rpc_ag_result r = {.n_out = 0};
        rpc_ag_ctx *ctx = ap_begin(w);
        assert_int_equal(
            rpc_ag_call(ctx, w->a, cases[i].module, cases[i].in, cases[i].n_in, &r, &err),
            cases[i].rc);
        assert_string_equal(err.text, cases[i].text);
        ap_end(ctx);
    }
    rpc_tensor_free(&wide);
    rpc_tensors_free(outside, 2);
}

typedef struct trainer_arg {
    ap_world *w;
    int n_steps;
} trainer_arg;

static void *hogwild(void *arg)
{
    trainer_arg *t = arg;
    const float g_list[2] = {0, 0};
    const int64_t id_list[1] = {2}, offset_list[1] = {0};
    for (int i = 0; i < t->n_steps; i++) {
        bd_err err = BD_ERR_INIT;
        const rpc_ag_fused fused = {.step = true, .cleanup = true};
        rpc_tensor in[2] = {ap_ints(1, id_list), ap_ints(1, offset_list)}, y,
                   g = ap_matrix(1, 2, g_list);
        rpc_tensor gx[2] = {{0}};
        rpc_ag_ctx *ctx = ap_begin(t->w);
        rpc_ag_msg *msg = ap_forward(ctx, t->w->a, "bag", in, 2, &y);
        assert_int_equal(rpc_ag_backward(msg, &g, 1, gx, 2, &fused, &err), BD_OK);
        rpc_tensors_free(in, 2);
        rpc_tensor_free(&y);
        rpc_tensor_free(&g);
        ap_end(ctx);
    }
    return NULL;
}

static void many_threads_share_a_node(void **state)
{
    ap_world *w = *state;
    pthread_t threads[4];
    trainer_arg arg = {w, 50};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hogwild, &arg), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

/* Whichever allocation fails, on the caller or on a node: an error or success, and no context or
 * block stays. */
static void a_step_survives_every_allocation_failure(void **state)
{
    ap_world *w = *state;
    const float dx[2] = {31, 42};
    rpc_ag_ctx *first = ap_begin(w);
    (void)ap_one_backward(first, w->a, "linear", dx, NULL);
    ap_end(first);
    bd_status rc = BD_E_NOMEM;
    long before = -1;
    /* One step makes some 80 allocations; the first round warms what stays (the timer's heap). */
    for (long k = 0; k < 240; k++) {
        const long nth = k % 120;
        before = k == 120 ? tu_settled_blocks() : before;
        bd_err err = BD_ERR_INIT;
        rpc_ag_ctx *ctx = NULL;
        rpc_ag_result r = {.n_out = 0};
        rpc_ag_grads grads = {0};
        rpc_tensor x = ap_matrix(1, 2, ap_x11), g = ap_matrix(1, 3, ap_gy), gx = {0};
        bd_fault_fail_alloc(nth);
        rc = rpc_ag_begin(w->trainer, &ctx, &err);
        if (rc == BD_OK) {
            rc = rpc_ag_call(ctx, w->a, "linear", &x, 1, &r, &err);
        }
        if (rc == BD_OK) {
            rc = rpc_ag_backward(r.msg, &g, 1, &gx, 1, NULL, &err);
        }
        if (rc == BD_OK) {
            rc = rpc_ag_gradients(ctx, w->a, NULL, &grads, &err);
        }
        bd_fault_fail_alloc(-1);
        if (ctx != NULL) {
            (void)rpc_ag_end(ctx, NULL);
        }
        assert_int_equal(rpc_ag_n_contexts(w->trainer), 0);
        assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 0);
        rpc_ag_grads_free(&grads);
        rpc_tensor_free(&x);
        rpc_tensor_free(&g);
        rpc_ag_result_free(&r);
        rpc_tensor_free(&gx);
        int64_t until = bd_mono_ns() + 10 * BD_NS_PER_S;
        while (k >= 120 && bd_mem_live_blocks() != before && bd_mono_ns() < until) {
            bd_sleep_ms(1); /* the nodes' last events */
        }
        assert_true(k < 120 || bd_mem_live_blocks() == before);
    }
    assert_int_equal(rc, BD_OK);
}

#define T(f) cmocka_unit_test_setup_teardown(f, ap_set_up, ap_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(gradients_stay_in_the_context_until_the_step),
        T(several_calls_and_backwards_add_up),
        T(contexts_are_apart),
        T(a_bag_gives_gradients_by_row),
        T(a_row_has_one_optimiser_state),
        T(a_fused_backward_steps_and_ends_in_one_call),
        T(a_call_whose_result_is_unused_holds_nothing_up),
        T(a_nested_call_is_part_of_the_context),
        T(a_failure_on_one_node_fails_the_context_everywhere),
        T(a_node_that_is_gone_is_named),
        T(bad_calls_are_named),
        T(many_threads_share_a_node),
        T(a_step_survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
