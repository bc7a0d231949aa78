/* References by the owner/fork protocol: made, shared with every kind of node, kept, given back,
 * and gone backward through; each case in every world of tests/util/ag_world.h, which checks after
 * each that no value, fork, handle, context or block is left. The modules: ag_rref_kit.h.
 */
#include "base/fault.h"
#include "base/mem.h"

#include "tests/util/ag_rref_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = AW_N };

/* ---- the protocol ---- */

static void rref_create_and_fetch(aw_world *w)
{
    float y[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_a, "layer", aw_x1);
    aw_times(aw_x1, true, y);
    rk_expect_holds(r, y);
    assert_string_equal(rpc_rref_owner(r), "a");
    assert_false(rpc_rref_is_owner(r));
    assert_int_equal(rk_counts(&w->a).values, 1);
    assert_int_equal(rk_counts(&w->a).forks, 1);
    assert_int_equal(rk_counts(&w->trainer).handles, 1);
    aw_end(ctx);
    rk_expect_holds(r, y); /* it outlives the context that made it */
    rpc_rref_unref(r);
}

static void rref_of_own_value(aw_world *w)
{
    rpc_tensor t = aw_rows(1, aw_x1);
    rpc_rref *r = NULL;
    aw_must(rpc_rref_new(w->trainer.ag, &t, 1, &r, NULL), NULL);
    rpc_tensor_free(&t);
    assert_true(rpc_rref_is_owner(r));
    rk_expect_holds(r, aw_x1);
    assert_int_equal(rk_counts(&w->trainer).values, 1);
    rpc_rref_unref(rpc_rref_ref(r));
    rpc_rref_unref(r);
    assert_int_equal(rk_counts(&w->trainer).values, 0);
}

/* The owner gives it away: a user has it when the answer is there. */
static void rref_owner_to_user(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_ag_result y;
    bd_err err = BD_ERR_INIT;
    aw_must(aw_ask(ctx, w->to_a, "give", 1, aw_x1, &y, &err), &err);
    assert_non_null(y.out[0].rref);
    aw_end(ctx);
    rk_expect_holds(y.out[0].rref, aw_x1);
    rpc_ag_result_free(&y);
}

static void rref_user_to_owner(aw_world *w)
{
    float want[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_b, "use_local", r);
    aw_times(aw_x1, true, want);
    rk_expect_row(&y.out[0], want, 1);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
}

static void rref_user_to_user(aw_world *w)
{
    float want[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "use", r);
    aw_times(aw_x1, true, want);
    rk_expect_row(&y.out[0], want, 1);
    rpc_ag_result_free(&y);
    y = rk_ask_with(ctx, w->to_a, "pass", r); /* and on, to c */
    rk_expect_row(&y.out[0], want, 1);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* A user gives it away in its answer, and has let go before the answer is there. */
static void rref_returned_by_user(aw_world *w)
{
    float want[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_ag_result y;
    bd_err err = BD_ERR_INIT;
    aw_must(aw_ask(ctx, w->to_a, "give_far", 1, aw_x1, &y, &err), &err);
    assert_string_equal(rpc_rref_owner(y.out[0].rref), "b");
    rpc_ag_result z = rk_ask_with(ctx, w->to_c, "same", y.out[0].rref);
    assert_ptr_equal(z.out[0].rref, y.out[0].rref); /* one handle a node */
    rpc_ag_result_free(&z);
    aw_end(ctx);
    aw_times(aw_x1, true, want);
    rk_expect_holds(y.out[0].rref, want);
    rpc_ag_result_free(&y);
}

/* It lives as long as one user does, whoever that is. */
static void rref_kept_by_a_third_party(aw_world *w)
{
    float want[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "hold", r);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
    aw_pass_ms(w, AW_LEASE_MS / 2);
    ctx = aw_begin(w);
    bd_err err = BD_ERR_INIT;
    aw_must(aw_ask(ctx, w->to_a, "held", 1, aw_x1, &y, &err), &err);
    aw_times(aw_x1, true, want);
    rk_expect_row(&y.out[0], want, 1);
    assert_int_equal(rk_counts(&w->b).values, 1);
    rpc_ag_result_free(&y);
    aw_must(aw_ask(ctx, w->to_a, "drop", 1, aw_x1, &y, &err), &err);
    aw_end(ctx);
}

static void rref_creation_fails(aw_world *w)
{
    bd_err err = BD_ERR_INIT, same = BD_ERR_INIT;
    rpc_ag_result y;
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_a, "nothing", aw_x1);
    assert_int_equal(rpc_rref_to_here(ctx, r, &y, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "Error on node a"));
    assert_int_equal(rpc_ag_check(ctx, &same), BD_E_NOT_FOUND);
    rpc_tensor in = {.rref = r};
    assert_int_equal(rpc_ag_call(ctx, w->to_b, "use", &in, 1, &y, &err), BD_E_NOT_FOUND);
    assert_null(rpc_rref_msg(r));
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* ---- backward ---- */

/* One user on another node than the owner; the gradient of the input waits for its maker. */
static void backward_rref(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "use", r);
    rpc_tensor gx = {0}, none = {0};
    bd_err err = BD_ERR_INIT;
    float want[N];
    rpc_tensor g = aw_rows(1, aw_g1);
    aw_must(rpc_ag_reach(ctx, &y.msg, 1, &err), &err);
    aw_must(rpc_ag_backward(y.msg, &g, 1, &none, 1, NULL, &err), &err);
    aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 1);
    aw_must(rpc_ag_backward(rpc_rref_msg(r), NULL, 0, &gx, 1, NULL, &err), &err);
    aw_times(aw_g1, false, want);
    rk_expect_row(&gx, want, 1);
    aw_must(rpc_ag_step(ctx, 0, &err), &err);
    rpc_tensor_free(&gx);
    rpc_tensor_free(&g);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* Users on three nodes: their gradients add up; with the wave the layer goes backward once. */
static void multi(aw_world *w, bool wave)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y[4] = {rk_ask_with(ctx, w->to_a, "use", r), rk_ask_with(ctx, w->to_c, "both", r),
                          rk_ask_with(ctx, w->to_b, "use_local", r)};
    bd_err err = BD_ERR_INIT;
    rpc_tensor g = aw_rows(1, aw_g1), gx = {0}, none = {0};
    float want[N];
    aw_must(rpc_rref_to_here(ctx, r, &y[3], &err), &err);
    rpc_ag_msg *live[] = {y[0].msg, y[1].msg, y[2].msg, y[3].msg};
    if (wave) {
        aw_must(rpc_ag_reach(ctx, live, 4, &err), &err);
    }
    for (int i = 3; i >= 0; i--) {
        size_t n_in = i == 3 ? 0 : 1;
        aw_must(rpc_ag_backward(y[i].msg, &g, 1, &none, n_in, NULL, &err), &err);
        rpc_ag_result_free(&y[i]);
    }
    aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 5);
    aw_must(rpc_ag_backward(rpc_rref_msg(r), NULL, 0, &gx, 1, NULL, &err), &err);
    aw_times(aw_g1, false, want);
    rk_expect_row(&gx, want, 5);
    rpc_tensor_free(&gx);
    rpc_tensor_free(&g);
    rpc_rref_unref(r);
    aw_end(ctx);
}

static void backward_rref_multi(aw_world *w)
{
    multi(w, false);
    multi(w, true);
}

/* a asks c, which fetches from b; and a reference that a made on b and gave away. */
static void backward_rref_nested(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_ag_result far, y;
    bd_err err = BD_ERR_INIT;
    rpc_tensor g = aw_rows(1, aw_g1), gx = {0}, none = {0};
    float want[N];
    aw_must(aw_ask(ctx, w->to_a, "give_far", 1, aw_x1, &far, &err), &err);
    y = rk_ask_with(ctx, w->to_a, "pass", far.out[0].rref);
    aw_must(rpc_ag_reach(ctx, &y.msg, 1, &err), &err);
    aw_must(rpc_ag_backward(y.msg, &g, 1, &none, 1, NULL, &err), &err);
    aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 1);
    aw_must(rpc_ag_backward(far.msg, &none, 1, &gx, 1, NULL, &err), &err);
    aw_times(aw_g1, false, want);
    rk_expect_row(&gx, want, 1);
    rpc_tensor_free(&gx);
    rpc_tensor_free(&g);
    rpc_ag_result_free(&y);
    rpc_ag_result_free(&far);
    aw_end(ctx);
}

/* A value that no module made in this context keeps its gradient on its owner. */
static void backward_rref_leaf(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_ag_result r, y, z;
    rpc_ag_grads held = {0};
    bd_err err = BD_ERR_INIT;
    rpc_tensor none = {0}, g = aw_rows(1, aw_g1);
    aw_must(aw_ask(ctx, w->to_a, "give", 1, aw_x1, &r, &err), &err);
    y = rk_ask_with(ctx, w->to_b, "use", r.out[0].rref);
    z = rk_ask_with(ctx, w->to_a, "use_local", r.out[0].rref);
    aw_must(rpc_ag_backward(z.msg, &g, 1, &none, 1, NULL, &err), &err);
    aw_must(rpc_ag_backward(y.msg, &g, 1, &none, 1, NULL, &err), &err);
    aw_must(rpc_ag_gradients(ctx, w->to_a, "rref", &held, &err), &err);
    assert_int_equal(held.n, 1);
    for (size_t i = 0; i < N; i++) {
        assert_true(held.items[0].values[i] == 2 * aw_g1[i]);
    }
    rpc_ag_grads_free(&held);
    rpc_tensor_free(&g);
    rpc_ag_result_free(&r);
    rpc_ag_result_free(&y);
    rpc_ag_result_free(&z);
    aw_end(ctx);
}

/* Results that do not reach the loss: not announced by the trainer, and, in `lazy`, announced by
 * the wave but not asked by the module. Nothing waits, nothing is lost. */
static void unused_send_completes(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result unused = rk_ask_with(ctx, w->to_c, "pass", r);
    rpc_ag_result used = rk_ask_with(ctx, w->to_a, "lazy", r);
    bd_err err = BD_ERR_INIT;
    rpc_tensor none = {0}, g = aw_rows(1, aw_g1);
    aw_must(rpc_ag_reach(ctx, &used.msg, 1, &err), &err);
    aw_must(rpc_ag_backward(used.msg, &g, 1, &none, 1, NULL, &err), &err);
    aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 1);
    rpc_tensor_free(&g);
    rpc_tensor gx = {0};
    aw_must(rpc_ag_backward(rpc_rref_msg(r), NULL, 0, &gx, 1, NULL, &err), &err);
    rpc_tensor_free(&gx);
    aw_must(rpc_ag_step(ctx, 0, &err), &err);
    rpc_ag_result_free(&unused);
    rpc_ag_result_free(&used);
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* v1 = both(v0), v2 = both(v1), ...: without the wave 2^depth backwards reach the layer, with it
 * each value has one. */
static void a_chain_of_values_goes_backward_once(aw_world *w)
{
    enum { DEPTH = 5 };
    rk_kit *k = w->user;
    rpc_ag_peer *on[] = {w->to_a, w->to_c, w->to_b};
    bd_err err = BD_ERR_INIT;
    for (int wave = 0; wave < 2; wave++) {
        rpc_rref *r[DEPTH + 1];
        rpc_ag_ctx *ctx = aw_begin(w);
        rpc_ag_result y = {.n_out = 0};
        int before = 0, after = 0;
        r[0] = rk_make(ctx, w->to_b, "layer", aw_x1);
        for (size_t i = 0; i < DEPTH; i++) {
            rpc_tensor in = {.rref = r[i]};
            aw_must(rpc_rref_remote(ctx, on[i % 3], "mul", &in, 1, &r[i + 1], &err), &err);
        }
        aw_must(rpc_rref_to_here(ctx, r[DEPTH], &y, &err), &err);
        for (size_t n = 0; n < RK_N_NODES; n++) {
            before += rk_runs_of(k, n, "mul");
        }
        if (wave == 1) {
            aw_must(rpc_ag_reach(ctx, &y.msg, 1, &err), &err);
        }
        aw_must(aw_back(y.msg, 1, aw_g1, NULL, &err), &err);
        for (size_t n = 0; n < RK_N_NODES; n++) {
            after += rk_runs_of(k, n, "mul");
        }
        assert_int_equal(after - before, wave == 1 ? DEPTH : (1 << DEPTH) - 1);
        aw_expect_layer_grad(ctx, w->to_b, aw_x1, aw_g1, 1 << DEPTH);
        rpc_ag_result_free(&y);
        for (size_t i = 0; i <= DEPTH; i++) {
            rpc_rref_unref(r[i]);
        }
        aw_end(ctx);
    }
}

/* Announced and never asked: the step says so instead of losing a gradient. */
static void a_broken_promise_is_named(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "use", r), z = {.n_out = 0};
    bd_err err = BD_ERR_INIT;
    float now[N * N];
    aw_must(rpc_rref_to_here(ctx, r, &z, &err), &err);
    rpc_ag_msg *live[] = {y.msg, z.msg};
    aw_must(rpc_ag_reach(ctx, live, 2, &err), &err);
    aw_must(aw_back(z.msg, 1, aw_g1, NULL, &err), &err);
    assert_int_equal(rpc_ag_step(ctx, 0, &err), BD_E_STATE);
    assert_non_null(strstr(err.text, "1 announced users have not gone backward"));
    assert_non_null(strstr(err.text, "Error on node b"));
    aw_must(rpc_ag_read_param(w->b.ag, "layer", 0, now, NULL), NULL);
    assert_memory_equal(now, aw_w0, sizeof now);
    rpc_ag_result_free(&y);
    rpc_ag_result_free(&z);
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* What made the value fails in backward: by name, at everybody. */
static void node_failure_propagates(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "bad", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "pass", r);
    bd_err err = BD_ERR_INIT, again = BD_ERR_INIT;
    rpc_tensor none = {0}, g = aw_rows(1, aw_g1);
    assert_int_equal(rpc_ag_backward(y.msg, &g, 1, &none, 1, NULL, &err), BD_E_NUMERIC);
    assert_string_equal(err.text, "Error on node b: simulated error on backward pass");
    rpc_tensor_free(&g);
    rpc_ag_result_free(&y);
    assert_int_equal(rpc_ag_step(ctx, 0, &again), BD_E_NUMERIC);
    assert_string_equal(again.text, err.text);
    const aw_node *nodes[] = {&w->a, &w->b, &w->c};
    for (size_t i = 0; i < 3 && w->loss == 0; i++) { /* a notice may be lost */
        rpc_ag_ctx *part = NULL;
        aw_pass_ms(w, 100);
        if (ag_ctx_get(nodes[i]->ag, AW_TRAINER, rpc_ag_ctx_number(ctx), false, &part, NULL) ==
            BD_OK) {
            assert_int_equal(rpc_ag_check(part, &again), BD_E_NUMERIC);
            ag_ctx_unref(part);
        }
    }
    rpc_rref_unref(r);
    aw_end(ctx);
}

/* ---- in every world ---- */

#define CASES(X)                            \
    X(rref_create_and_fetch)                \
    X(rref_of_own_value)                    \
    X(rref_owner_to_user)                   \
    X(rref_user_to_owner)                   \
    X(rref_user_to_user)                    \
    X(rref_returned_by_user)                \
    X(rref_kept_by_a_third_party)           \
    X(rref_creation_fails)                  \
    X(backward_rref)                        \
    X(backward_rref_multi)                  \
    X(backward_rref_nested)                 \
    X(backward_rref_leaf)                   \
    X(unused_send_completes)                \
    X(a_chain_of_values_goes_backward_once) \
    X(a_broken_promise_is_named)            \
    X(node_failure_propagates)

#define BD_X(name)                         \
    static void in_kit_##name(aw_world *w) \
    {                                      \
        rk_start(w);                       \
        name(w);                           \
    }                                      \
    static void test_##name(void **state)  \
    {                                      \
        (void)state;                       \
        aw_run(in_kit_##name);             \
    }
CASES(BD_X)
#undef BD_X

/* ---- by hand ---- */

static bd_status say(aw_world *w, const rpc_rref *r, bool fork, uint64_t number)
{
    Braid__V1__AutogradForkRequest q = BRAID__V1__AUTOGRAD_FORK_REQUEST__INIT;
    Braid__V1__AutogradRRef name;
    ag_rref_to_wire(r, &name);
    q.client_id = 99;
    q.fork = number;
    q.rref = &name;
    return fork ? ag_value_fork(w->a.ag, &q, NULL) : ag_value_delete_fork(w->a.ag, &q, NULL);
}

/* Fork 1, DeleteFork 1, Fork 2, DeleteFork 2, each twice, in any order: when everything has come,
 * nothing lives; while only Fork 2 and what came before it are there, it does. */
static void forks_in_any_order(aw_world *w)
{
    static const struct {
        bool fork;
        uint64_t number;
    } words[] = {{true, 1}, {false, 1}, {true, 2}, {false, 2}};
    uint64_t random = w->seed * 2654435761u + 1;
    for (int round = 0; round < 200; round++) {
        rpc_tensor t = aw_rows(1, aw_x1);
        rpc_rref *r = NULL;
        size_t order[8] = {0};
        bool deleted_2 = false, forked_2 = false;
        aw_must(rpc_rref_new(w->a.ag, &t, 1, &r, NULL), NULL);
        rpc_tensor_free(&t);
        for (size_t i = 0; i < 8; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t j = (size_t)(random >> 33) % (i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (size_t i = 0; i < 8; i++) {
            size_t k = order[i] % 4;
            bd_status rc = say(w, r, words[k].fork, words[k].number);
            deleted_2 = deleted_2 || k == 3;
            forked_2 = forked_2 || k == 2;
            if (forked_2 || deleted_2) {
                assert_int_equal(rk_counts(&w->a).forks, forked_2 && !deleted_2 ? 1 : 0);
            }
            assert_true(k != 2 || rc == (deleted_2 ? BD_E_STATE : BD_OK));
        }
        assert_int_equal(rk_counts(&w->a).values, 1); /* this node's own handle */
        rpc_rref_unref(r);
        assert_int_equal(rk_counts(&w->a).values, 0);
    }
}

/* The network is gone when the reference is given back, and comes again: the delete gets there by
 * itself, without the lease. */
static void a_delete_is_repeated(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    aw_must(rpc_rref_wait(r, NULL), NULL);
    aw_end(ctx);
    rpc_mem_env_cut(w->trainer.env, w->b.env, true);
    rpc_rref_unref(r);
    aw_pass_ms(w, 20000);
    assert_int_equal(rk_counts(&w->b).values, 1);
    rpc_mem_env_cut(w->trainer.env, w->b.env, false);
    aw_pass_ms(w, 10000);
    assert_int_equal(rk_counts(&w->b).values, 0);
}

/* Whichever allocation fails while it is under way, here or at the owner: it gets there, too. */
static void a_delete_survives_every_allocation_failure(aw_world *w)
{
    for (long nth = 0; nth < 40; nth++) {
        rpc_ag_ctx *ctx = aw_begin(w);
        rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
        aw_must(rpc_rref_wait(r, NULL), NULL);
        aw_end(ctx);
        assert_int_equal(rk_counts(&w->b).values, 1);
        bd_fault_fail_alloc(nth);
        rpc_rref_unref(r);
        aw_pass_ms(w, 5000);
        bd_fault_fail_alloc(-1);
        assert_int_equal(rk_counts(&w->b).values, 0);
    }
}

/* What a dead node held goes with its lease, not before. */
static void forks_of_a_killed_node_go_with_its_lease(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_c, "hold", r);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
    aw_pass_ms(w, 1000);
    rpc_mem_env_kill(w->c.env);
    aw_pass_ms(w, AW_LEASE_MS - 2000);
    assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 0);
    assert_int_equal(rk_counts(&w->b).values, 1);
    aw_pass_ms(w, 3000);
    assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 1);
    assert_int_equal(rk_counts(&w->b).values, 0);
    rk_kit *k = w->user;
    rpc_rref_unref(k->held[2]);
    k->held[2] = NULL;
}

/* A node that says it lives keeps what it holds. */
static void a_node_that_says_it_lives_keeps_its_forks(aw_world *w)
{
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    aw_must(rpc_rref_wait(r, NULL), NULL);
    aw_end(ctx);
    for (int i = 0; i < 5; i++) {
        aw_pass_ms(w, AW_LEASE_MS / 2);
        aw_must(rpc_ag_keep_alive(w->trainer.ag, NULL), NULL);
        assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 0);
    }
    assert_int_equal(rk_counts(&w->b).values, 1);
    rpc_rref_unref(r);
}

/* A fetch without a context is a word of its caller, too, until the lease is over. */
static void a_node_that_fetches_keeps_its_forks(aw_world *w)
{
    float want[N];
    rpc_ag_result y;
    bd_err err = BD_ERR_INIT;
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    aw_must(rpc_rref_wait(r, NULL), NULL);
    aw_end(ctx);
    aw_times(aw_x1, true, want);
    for (int i = 0; i < 5; i++) {
        aw_pass_ms(w, AW_LEASE_MS / 2);
        rk_expect_holds(r, want);
        assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 0);
    }
    assert_int_equal(rk_counts(&w->b).values, 1);
    aw_pass_ms(w, AW_LEASE_MS + 1000);
    assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 1);
    assert_int_equal(rk_counts(&w->b).values, 0);
    assert_int_equal(rpc_rref_to_here(NULL, r, &y, &err), BD_E_CLIENT_EXPIRED);
    rpc_rref_unref(r);
}

/* So is what a node asks in another's context: a holds a value of b's, and calls b for the trainer.
 */
static void a_node_that_calls_for_another_keeps_its_forks(aw_world *w)
{
    float want[N];
    rpc_ag_ctx *ctx = aw_begin(w);
    rpc_rref *r = rk_make(ctx, w->to_b, "layer", aw_x1);
    rpc_ag_result y = rk_ask_with(ctx, w->to_a, "hold", r);
    rpc_ag_result_free(&y);
    rpc_rref_unref(r);
    aw_end(ctx);
    aw_times(aw_x1, true, want);
    for (int i = 0; i < 5; i++) {
        bd_err err = BD_ERR_INIT;
        aw_pass_ms(w, AW_LEASE_MS / 2);
        ctx = aw_begin(w);
        aw_must(aw_ask(ctx, w->to_a, "held", 1, aw_x1, &y, &err), &err); /* fetches from b */
        rk_expect_row(&y.out[0], want, 1);
        rpc_ag_result_free(&y);
        aw_end(ctx);
        assert_int_equal(rpc_ag_sweep(w->b.ag, AW_LEASE_MS), 0);
    }
    assert_int_equal(rk_counts(&w->b).values, 1);
    ctx = aw_begin(w);
    bd_err err = BD_ERR_INIT;
    aw_must(aw_ask(ctx, w->to_a, "drop", 1, aw_x1, &y, &err), &err);
    aw_end(ctx);
}

#define BY_HAND(X)                                \
    X(forks_in_any_order)                         \
    X(a_delete_is_repeated)                       \
    X(a_delete_survives_every_allocation_failure) \
    X(forks_of_a_killed_node_go_with_its_lease)   \
    X(a_node_that_says_it_lives_keeps_its_forks)  \
    X(a_node_that_fetches_keeps_its_forks)        \
    X(a_node_that_calls_for_another_keeps_its_forks)

#define BD_X(name)                         \
    static void in_kit_##name(aw_world *w) \
    {                                      \
        rk_start(w);                       \
        name(w);                           \
    }                                      \
    static void test_##name(void **state)  \
    {                                      \
        (void)state;                       \
        aw_run_seed(in_kit_##name, 1, 0);  \
    }
BY_HAND(BD_X)
#undef BD_X

int main(void)
{
    const struct CMUnitTest tests[] = {
#define BD_X(name) cmocka_unit_test(test_##name),
        CASES(BD_X) BY_HAND(BD_X)
#undef BD_X
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
