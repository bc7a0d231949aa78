/* DDP and distributed autograd together: the cases test_ddp_*, which compare gradients in a context
 * with those of a plain backward, in every world of tests/util/ddp_world.h.
 */
#include "base/rand.h"

#include "tape/local_table.h"
#include "tape/ops.h"
#include "worker/wk_remote.h"

#include "tests/util/ddp_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- comparisons: the same numbers by plain backward and in a context ---- */

/* linear(2, 3) in DDP over one input of this rank's seed. */
static bd_status linear_step(dw_trainer *tr, float *x)
{
    tp_tensor *in = NULL, *out = NULL, *loss = NULL;
    tp_tape_reset(tr->tape);
    bd_status rc = tp_tape_wrap(tr->tape, 2, (const size_t[]){1, 2}, x, false, NULL, &in, &tr->err);
    if (rc == BD_OK) {
        rc = tp_linear(tr->tape, in, tr->params[0], tr->params[1], TP_ACT_NONE, &out, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_sum(tr->tape, out, &loss, &tr->err);
    }
    return rc == BD_OK ? dw_backward(tr, loss) : rc;
}

static bd_status linear_start(dw_trainer *tr, rank_test *t)
{
    bd_status rc = dw_trainer_start(tr, t);
    if (rc == BD_OK) {
        rc = dw_add_param(tr, "weight", 3, 2);
    }
    if (rc == BD_OK) {
        rc = tp_param_new(tr->dev, "bias", 1, (const size_t[]){3}, &tr->params[tr->n_params++],
                          &tr->err);
    }
    if (rc == BD_OK) {
        dw_fill_whole(tp_f32(tr->params[0]), 6, 1, 0);
        rc = dw_wrap_ddp(tr, 0);
    }
    return rc;
}

/* Both ways for one input; the gradients must be equal numbers and not trivial. */
static void compare_step(rank_test *t, dw_trainer *tr, float *x)
{
    float plain[6 + 3];
    rpc_ag_ctx *ctx = NULL;
    RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
    RANK_OK(t, linear_step(tr, x), &tr->err);
    memcpy(plain, dw_grad_of(tr, 0), 6 * sizeof *plain);
    memcpy(plain + 6, dw_grad_of(tr, 1), 3 * sizeof *plain);
    RANK_OK(t, rpc_ag_begin(tr->ag, &ctx, &tr->err), &tr->err);
    RANK_OK(t, dw_bind_grads(tr, ctx), &tr->err);
    RANK_OK(t, linear_step(tr, x), &tr->err);
    RANK_CHECK(t, dw_equal(plain, dw_grad_of(tr, 0), 6));
    RANK_CHECK(t, dw_equal(plain + 6, dw_grad_of(tr, 1), 3));
    RANK_CHECK(t, !dw_all_zero(plain, 6) && !dw_all_zero(plain + 6, 3));
    RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
    RANK_OK(t, rpc_ag_end(ctx, &tr->err), &tr->err);
}

static void comparison_rank(rank_test *t)
{
    dw_trainer tr;
    float x[2];
    bd_rand_uniform((uint64_t)t->rank, 7, 0, -1, 1, x, 2);
    if (linear_start(&tr, t) == BD_OK) {
        compare_step(t, &tr, x);
    } else {
        rank_failed(t, __FILE__, __LINE__, "start", &tr.err);
    }
    dw_trainer_stop(&tr);
}

static void test_ddp_comparison(void **state)
{
    (void)state;
    dw_run(comparison_rank);
}

/* Each input is two synchronised steps (plain, context), so two join rounds. */
static void run_comparison_uneven(rank_test *t, dw_trainer *tr)
{
    const int n_mine = t->rank % 2 == 0 ? 3 : 1;
    RANK_OK(t, linear_start(tr, t), &tr->err);
    for (int i = 0;; i++) {
        int n_active = 0;
        float x[2], plain[6];
        bd_rand_uniform((uint64_t)t->rank, 7, (uint64_t)i, -1, 1, x, 2);
        RANK_OK(t, ring_reducer_join_step(tr->reducer, i < n_mine, &n_active, &tr->err), &tr->err);
        if (n_active == 0) {
            return;
        }
        if (i < n_mine) {
            RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
            RANK_OK(t, linear_step(tr, x), &tr->err);
            memcpy(plain, dw_grad_of(tr, 0), sizeof plain);
        }
        RANK_OK(t, ring_reducer_join_step(tr->reducer, i < n_mine, &n_active, &tr->err), &tr->err);
        if (i < n_mine) {
            rpc_ag_ctx *ctx = NULL;
            RANK_OK(t, rpc_ag_begin(tr->ag, &ctx, &tr->err), &tr->err);
            RANK_OK(t, dw_bind_grads(tr, ctx), &tr->err);
            RANK_OK(t, linear_step(tr, x), &tr->err);
            RANK_CHECK(t, dw_equal(plain, dw_grad_of(tr, 0), 6));
            RANK_CHECK(t, !dw_all_zero(plain, 6));
            RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
            RANK_OK(t, rpc_ag_end(ctx, &tr->err), &tr->err);
        }
    }
}

static void comparison_uneven_rank(rank_test *t)
{
    dw_trainer tr;
    run_comparison_uneven(t, &tr);
    dw_trainer_stop(&tr);
}

static void test_ddp_comparison_uneven_inputs(void **state)
{
    (void)state;
    dw_run(comparison_uneven_rank);
}

/* ---- sparse gradients ---- */

/* The sparse gradient of a local embedding table for the same bags, as 10 x 3 dense numbers. */
static bd_status local_bag(dw_trainer *tr, const uint64_t *ids, const uint32_t *offsets,
                           float *dense)
{
    tp_table_config cfg = {
        .name = "bag", .dim = 3, .init_low = -1, .init_high = 1, .optim = num_optim_find("sgd")};
    tp_table_bags bags = {.ids = ids, .offsets = offsets, .n = 2, .mode = TP_BAG_SUM};
    tp_table *table = NULL;
    tp_table_rows rows = {0};
    tp_tensor *out = NULL, *loss = NULL;
    tp_tape_reset(tr->tape);
    bd_status rc = tp_table_new(tr->dev, &cfg, &table, &tr->err);
    if (rc == BD_OK) {
        rc = tp_table_bag(table, tr->tape, &bags, &rows, &out, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_sum(tr->tape, out, &loss, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_backward(tr->tape, loss, NULL, &tr->err);
    }
    memset(dense, 0, 30 * sizeof *dense);
    for (size_t i = 0; rc == BD_OK && i < rows.n_unique; i++) {
        memcpy(dense + rows.keys[i] * 3, tp_f32(rows.rows->grad) + i * 3, 3 * sizeof *dense);
    }
    tp_table_free(table);
    return rc;
}

/* The same through the module, in a context. */
static bd_status context_bag(dw_trainer *tr, const dw_self *s, const int64_t *ids,
                             const int64_t *offsets, float *dense, size_t *n_grads)
{
    wk_remote bag = {tr->tape, NULL, s->peer, "bag"};
    tp_tensor *out = NULL, *loss = NULL;
    rpc_ag_grads g = {0};
    tp_tape_reset(tr->tape);
    bd_status rc = rpc_ag_begin(tr->ag, &bag.ctx, &tr->err);
    if (rc == BD_OK) {
        rc = wk_remote_bag(&bag, ids, 8, offsets, 2, &out, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_sum(tr->tape, out, &loss, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_backward(tr->tape, loss, NULL, &tr->err);
    }
    if (rc == BD_OK) {
        rc = rpc_ag_gradients(bag.ctx, NULL, NULL, &g, &tr->err);
    }
    *n_grads = g.n;
    memset(dense, 0, 30 * sizeof *dense);
    for (size_t i = 0; rc == BD_OK && g.n == 1 && i < g.items[0].n_rows; i++) {
        memcpy(dense + g.items[0].rows[i] * 3, g.items[0].values + i * 3, 3 * sizeof *dense);
    }
    rpc_ag_grads_free(&g);
    if (bag.ctx != NULL) {
        bd_status end = rpc_ag_end(bag.ctx, &tr->err);
        rc = rc == BD_OK ? end : rc;
    }
    return rc;
}

/* The average over the ranks, as DDP makes it. */
static bd_status average(rank_test *t, float *v, size_t n, bd_err *err)
{
    num_scale(v, n, NUM_F32, 1.0 / t->world);
    return ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "average", NULL, err);
}

static void run_sparse(rank_test *t, dw_trainer *tr, dw_self *self, rpc_module **module)
{
    int64_t ids[8], offsets[2] = {0, 4};
    uint64_t keys[8];
    const uint32_t bounds[3] = {0, 4, 8};
    float local[30], remote[30];
    size_t n_grads = 0;
    rpc_bag_spec spec = {.name = "bag", .n_rows = 10, .dim = 3};
    RANK_OK(t, dw_trainer_start(tr, t), &tr->err);
    RANK_OK(t, rpc_bag_new(&spec, module, &tr->err), &tr->err);
    RANK_OK(t, dw_self_start(tr, self, *module), &tr->err);
    for (size_t i = 0; i < 8; i++) {
        keys[i] = bd_rand_u64((uint64_t)t->rank, 3, i) % 10;
        ids[i] = (int64_t)keys[i];
    }
    RANK_OK(t, local_bag(tr, keys, bounds, local), &tr->err);
    RANK_OK(t, context_bag(tr, self, ids, offsets, remote, &n_grads), &tr->err);
    RANK_CHECK(t, n_grads == 1);
    RANK_CHECK(t, !dw_all_zero(local, 30));
    RANK_CHECK(t, dw_equal(local, remote, 30));
    RANK_OK(t, average(t, local, 30, &tr->err), &tr->err);
    RANK_OK(t, average(t, remote, 30, &tr->err), &tr->err);
    RANK_CHECK(t, dw_equal(local, remote, 30));
    RANK_CHECK(t, rpc_ag_n_contexts(tr->ag) == 0);
}

static void sparse_rank(rank_test *t)
{
    dw_trainer tr;
    dw_self self = {0};
    rpc_module *module = NULL;
    run_sparse(t, &tr, &self, &module);
    dw_self_stop(&self);
    dw_trainer_stop(&tr);
    rpc_module_free(module);
}

static void test_ddp_dist_autograd_sparse_grads(void **state)
{
    (void)state;
    dw_run(sparse_rank);
}

/* ---- local against remote ---- */

/* x[6 x 10] -> layer1 (10, 5), here or remote -> DDP of layer2 (5, 1); loss = sum. layer1 NULL: by
 * `remote`. */
static bd_status two_layers(dw_trainer *tr, float *x, tp_tensor *layer1, const wk_remote *remote)
{
    tp_tensor *in = NULL, *hid = NULL, *out = NULL, *loss = NULL;
    bd_status rc =
        tp_tape_wrap(tr->tape, 2, (const size_t[]){6, 10}, x, false, NULL, &in, &tr->err);
    if (rc == BD_OK && layer1 != NULL) {
        rc = tp_linear(tr->tape, in, layer1, NULL, TP_ACT_NONE, &hid, &tr->err);
    } else if (rc == BD_OK) {
        rc = wk_remote_call(remote, in, &hid, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_linear(tr->tape, hid, tr->params[0], NULL, TP_ACT_NONE, &out, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_sum(tr->tape, out, &loss, &tr->err);
    }
    return rc == BD_OK ? dw_backward(tr, loss) : rc;
}

/* All local first: its gradients are what the remote run must give. */
static bd_status local_run(dw_trainer *tr, float *x, float *grad1, float *grad2)
{
    tp_tensor *layer1 = NULL;
    bd_status rc = tp_param_new(tr->dev, "layer1", 2, (const size_t[]){5, 10}, &layer1, &tr->err);
    if (rc == BD_OK) {
        dw_fill_whole(tp_f32(layer1), 50, 5, 1);
        tp_tape_reset(tr->tape);
        rc = dw_bind_grads(tr, NULL);
    }
    if (rc == BD_OK) {
        rc = two_layers(tr, x, layer1, NULL);
    }
    if (rc == BD_OK) {
        memcpy(grad1, tp_f32(layer1->grad), 50 * sizeof *grad1);
        memcpy(grad2, dw_grad_of(tr, 0), 5 * sizeof *grad2);
    }
    tp_tape_reset(tr->tape);
    tp_tensor_free(layer1);
    return rc;
}

static void compare_remote(rank_test *t, dw_trainer *tr, rpc_ag_peer *peer, float *x,
                           const float *grad1, const float *grad2)
{
    wk_remote layer1 = {tr->tape, NULL, peer, "layer1"};
    rpc_ag_grads g = {0};
    tp_tape_reset(tr->tape);
    RANK_OK(t, rpc_ag_begin(tr->ag, &layer1.ctx, &tr->err), &tr->err);
    RANK_OK(t, dw_bind_grads(tr, layer1.ctx), &tr->err);
    RANK_OK(t, two_layers(tr, x, NULL, &layer1), &tr->err);
    RANK_OK(t, ring_barrier(t->comm, "done", &tr->err), &tr->err);
    RANK_CHECK(t, dw_equal(grad2, dw_grad_of(tr, 0), 5));
    RANK_OK(t, rpc_ag_gradients(layer1.ctx, peer, NULL, &g, &tr->err), &tr->err);
    bool same = g.n == 1 && g.items[0].n_values == 50 && dw_equal(g.items[0].values, grad1, 50);
    rpc_ag_grads_free(&g);
    RANK_CHECK(t, same);
    RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
    RANK_OK(t, rpc_ag_end(layer1.ctx, &tr->err), &tr->err);
}

static void run_local_vs_remote(rank_test *t, dw_trainer *tr, dw_self *self, rpc_module **module)
{
    float x[60], grad1[50], grad2[5];
    rpc_linear_spec spec = {.name = "layer1", .n_in = 10, .n_out = 5};
    dw_fill_whole(x, 60, (uint64_t)t->rank, 2);
    RANK_OK(t, dw_trainer_start(tr, t), &tr->err);
    RANK_OK(t, dw_add_param(tr, "layer2", 1, 5), &tr->err);
    dw_fill_whole(tp_f32(tr->params[0]), 5, 5, 3);
    RANK_OK(t, dw_wrap_ddp(tr, 0), &tr->err);
    RANK_OK(t, rpc_linear_new(&spec, module, &tr->err), &tr->err);
    dw_fill_whole((*module)->params[0].value, 50, 5, 1);
    RANK_OK(t, dw_self_start(tr, self, *module), &tr->err);
    RANK_OK(t, local_run(tr, x, grad1, grad2), &tr->err);
    RANK_CHECK(t, !dw_all_zero(grad1, 50) && !dw_all_zero(grad2, 5));
    compare_remote(t, tr, tr->peer, x, grad1, grad2);   /* on worker0 */
    compare_remote(t, tr, self->peer, x, grad1, grad2); /* on the own node */
}

static void local_vs_remote_rank(rank_test *t)
{
    dw_trainer tr;
    dw_self self = {0};
    rpc_module *module = NULL;
    run_local_vs_remote(t, &tr, &self, &module);
    dw_self_stop(&self);
    dw_trainer_stop(&tr);
    rpc_module_free(module);
}

static void test_ddp_dist_autograd_local_vs_remote(void **state)
{
    (void)state;
    dw_run(local_vs_remote_rank);
}

/* ---- contexts and the reducer ---- */

/* weight alone is in the graph: bias is unused on every rank, in a context. */
static bd_status bias_unused_step(dw_trainer *tr, float *x)
{
    tp_tensor *in = NULL, *out = NULL, *loss = NULL;
    tp_tape_reset(tr->tape);
    bd_status rc = tp_tape_wrap(tr->tape, 2, (const size_t[]){1, 2}, x, false, NULL, &in, &tr->err);
    if (rc == BD_OK) {
        rc = tp_linear(tr->tape, in, tr->params[0], NULL, TP_ACT_NONE, &out, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_sum(tr->tape, out, &loss, &tr->err);
    }
    return rc == BD_OK ? dw_backward(tr, loss) : rc;
}

static void run_unused(rank_test *t, dw_trainer *tr)
{
    float x[2] = {1, (float)t->rank};
    rpc_ag_ctx *ctx = NULL;
    RANK_OK(t, dw_trainer_start(tr, t), &tr->err);
    RANK_OK(t, dw_add_param(tr, "weight", 3, 2), &tr->err);
    RANK_OK(t, dw_add_param(tr, "bias", 1, 3), &tr->err);
    tr->find_unused = true;
    RANK_OK(t, dw_wrap_ddp(tr, 0), &tr->err);
    for (int i = 0; i < 3; i++) {
        RANK_OK(t, rpc_ag_begin(tr->ag, &ctx, &tr->err), &tr->err);
        RANK_OK(t, dw_bind_grads(tr, ctx), &tr->err);
        RANK_OK(t, bias_unused_step(tr, x), &tr->err);
        for (size_t k = 0; k < 6; k++) { /* averages of 1 and of 0, 1, 2, 3 */
            RANK_CHECK(t, dw_grad_of(tr, 0)[k] == (k % 2 == 0 ? 1.0f : 1.5f));
        }
        RANK_CHECK(t, dw_all_zero(dw_grad_of(tr, 1), 3));
        RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
        RANK_OK(t, rpc_ag_end(ctx, &tr->err), &tr->err);
    }
}

static void unused_rank(rank_test *t)
{
    dw_trainer tr;
    run_unused(t, &tr);
    dw_trainer_stop(&tr);
}

static void ddp_find_unused_in_context(void **state)
{
    (void)state;
    dw_run(unused_rank);
}

/* Two contexts take turns with one reducer: each has its own averages, and both stay whole. A
 * second backward while one is open is refused, and the open one is not hurt. */
static void run_two_contexts(rank_test *t, dw_trainer *tr)
{
    float x[2][2] = {{1, 2}, {3, 5}};
    rpc_ag_ctx *ctx[2] = {NULL, NULL};
    float *grad[2];
    bd_err err = BD_ERR_INIT;
    RANK_OK(t, linear_start(tr, t), &tr->err);
    for (int i = 0; i < 2; i++) {
        RANK_OK(t, rpc_ag_begin(tr->ag, &ctx[i], &tr->err), &tr->err);
    }
    for (int i = 1; i >= 0; i--) {
        RANK_OK(t, dw_bind_grads(tr, ctx[i]), &tr->err);
        RANK_OK(t, linear_step(tr, x[i]), &tr->err);
    }
    for (size_t i = 0; i < 2; i++) {
        RANK_OK(t, rpc_ag_local_grad(ctx[i], 0, 6, &grad[i], &tr->err), &tr->err);
        for (size_t k = 0; k < 6; k++) {
            RANK_CHECK(t, grad[i][k] == x[i][k % 2]);
        }
    }
    RANK_OK(t, ring_reducer_prepare(tr->reducer, true, &tr->err), &tr->err);
    RANK_CHECK(t, ring_reducer_prepare(tr->reducer, true, &err) == BD_E_STATE);
    RANK_OK(t, ring_reducer_ready(tr->reducer, 0, &tr->err), &tr->err);
    RANK_OK(t, ring_reducer_ready(tr->reducer, 1, &tr->err), &tr->err);
    RANK_OK(t, ring_reducer_finish(tr->reducer, &tr->err), &tr->err);
    RANK_OK(t, dw_bind_grads(tr, NULL), &tr->err);
    for (int i = 0; i < 2; i++) {
        RANK_OK(t, rpc_ag_end(ctx[i], &tr->err), &tr->err);
    }
}

static void two_contexts_rank(rank_test *t)
{
    dw_trainer tr;
    run_two_contexts(t, &tr);
    dw_trainer_stop(&tr);
}

static void two_contexts_one_ddp(void **state)
{
    (void)state;
    dw_run(two_contexts_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ddp_comparison),
        cmocka_unit_test(test_ddp_comparison_uneven_inputs),
        cmocka_unit_test(test_ddp_dist_autograd_sparse_grads),
        cmocka_unit_test(test_ddp_dist_autograd_local_vs_remote),
        cmocka_unit_test(ddp_find_unused_in_context),
        cmocka_unit_test(two_contexts_one_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
