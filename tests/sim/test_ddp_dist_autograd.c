/* DDP and distributed autograd together: the cases test_backward_* that the combination is measured
 * by, with our tape, reducer and remote modules, in every world of tests/util/ddp_world.h. The
 * others are in test_ddp_comparison.c.
 *
 *   ids -> [emb] ++ (dense -> fc1) -> [net: relu(linear)] -> fc2 -> out;  loss = sum(out * value)
 *
 * [..] is remote. All rows are 0.5, all weights 1 but w[0][0] = -1, features are +-1, and every
 * example has a twin with the opposite value on another trainer: each local gradient is an exact
 * number and not zero, and their average over the trainers is exactly zero.
 */
#include "tape/ops.h"
#include "worker/wk_remote.h"

#include "tests/util/ddp_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { PER_TRAINER = 4, N_STEPS = 3 };

/* ---- the hybrid model ---- */

typedef struct example {
    float dense[D_DENSE];
    int64_t id;
    float value;
} example;

/* The 16 training examples, four for each trainer in this order. */
static void make_examples(example out[DW_TRAINERS * PER_TRAINER])
{
    int n = 0;
    for (int v = -1; v <= 1; v += 2) {
        for (int x = 0; x < 2; x++) {
            for (int y = 0; y < 2; y++) {
                for (int64_t z = 0; z < 2; z++) {
                    out[n++] = (example){
                        {(float)(x == 0 ? -v : v), (float)(y == 0 ? v : -v)}, z, (float)v};
                }
            }
        }
    }
}

typedef struct batch {
    float dense[PER_TRAINER * D_DENSE], value[PER_TRAINER];
    int64_t ids[PER_TRAINER], offsets[PER_TRAINER];
    size_t n;
} batch;

/* n examples of this trainer: first, first + stride, ... */
static void make_batch(batch *b, int rank, size_t first, size_t stride, size_t n)
{
    example all[DW_TRAINERS * PER_TRAINER];
    make_examples(all);
    b->n = n;
    for (size_t i = 0; i < n; i++) {
        const example *e = &all[(size_t)rank * PER_TRAINER + first + i * stride];
        memcpy(b->dense + i * D_DENSE, e->dense, sizeof e->dense);
        b->value[i] = e->value;
        b->ids[i] = e->id;
        b->offsets[i] = (int64_t)i;
    }
}

static bd_status hybrid_start(dw_trainer *tr)
{
    bd_status rc = dw_add_param(tr, "fc1", D_DENSE, D_DENSE);
    if (rc == BD_OK) {
        rc = dw_add_param(tr, "fc2", D_OUT, D_HID);
    }
    for (size_t i = 0; rc == BD_OK && i < 2; i++) {
        dw_fill_weights(tp_f32(tr->params[i]), tr->params[i]->n_elems);
    }
    return rc;
}

/* sum(out * value). */
static bd_status weighted_sum(dw_trainer *tr, tp_tensor *out, float *value, tp_tensor **loss)
{
    tp_tensor *v = NULL, *prod = NULL;
    bd_status rc = tp_tape_wrap(tr->tape, out->n_dims, out->dims, value, false, NULL, &v, &tr->err);
    if (rc == BD_OK) {
        rc = tp_mul(tr->tape, out, v, &prod, &tr->err);
    }
    return rc == BD_OK ? tp_sum(tr->tape, prod, loss, &tr->err) : rc;
}

static bd_status hybrid_loss(dw_trainer *tr, rpc_ag_ctx *ctx, batch *b, tp_tensor **loss)
{
    wk_remote emb = {tr->tape, ctx, tr->peer, "emb"}, net = {tr->tape, ctx, tr->peer, "net"};
    tp_tensor *sparse = NULL, *x = NULL, *dense = NULL, *both = NULL, *hid = NULL, *out = NULL;
    bd_status rc = wk_remote_bag(&emb, b->ids, b->n, b->offsets, b->n, &sparse, &tr->err);
    if (rc == BD_OK) {
        rc = tp_tape_wrap(tr->tape, 2, (const size_t[]){b->n, D_DENSE}, b->dense, false, NULL, &x,
                          &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_linear(tr->tape, x, tr->params[0], NULL, TP_ACT_NONE, &dense, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_concat(tr->tape, (tp_tensor *[]){dense, sparse}, 2, &both, &tr->err);
    }
    if (rc == BD_OK) {
        rc = wk_remote_call(&net, both, &hid, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_linear(tr->tape, hid, tr->params[1], NULL, TP_ACT_NONE, &out, &tr->err);
    }
    return rc == BD_OK ? weighted_sum(tr, out, b->value, loss) : rc;
}

/* One forward and backward in a fresh context, which the caller ends. */
static bd_status hybrid_step(dw_trainer *tr, batch *b, rpc_ag_ctx **ctx)
{
    tp_tensor *loss = NULL;
    tp_tape_reset(tr->tape);
    bd_status rc = rpc_ag_begin(tr->ag, ctx, &tr->err);
    if (rc == BD_OK) {
        rc = dw_bind_grads(tr, *ctx);
    }
    if (rc == BD_OK) {
        rc = hybrid_loss(tr, *ctx, b, &loss);
    }
    return rc == BD_OK ? dw_backward(tr, loss) : rc;
}

/* The gradients that a context holds on worker0; false: not exactly one of that module. */
static bool remote_grad(dw_trainer *tr, rpc_ag_ctx *ctx, const char *module, rpc_ag_grads *out)
{
    bool ok = rpc_ag_gradients(ctx, tr->peer, module, out, &tr->err) == BD_OK && out->n == 1;
    return ok && strcmp(out->items[0].module, module) == 0;
}

typedef enum ddp_mode { DDP_NONE, DDP_OUTSIDE, DDP_INSIDE } ddp_mode;

/* Averaged gradients are exactly zero; local and remote ones are not. */
static void check_step(rank_test *t, dw_trainer *tr, rpc_ag_ctx *ctx, ddp_mode mode)
{
    rpc_ag_grads net = {0}, emb = {0};
    const size_t first_ddp = mode == DDP_NONE ? 2 : mode == DDP_OUTSIDE ? 0 : 1;
    for (size_t i = 0; i < 2; i++) {
        RANK_CHECK(t, dw_all_zero(dw_grad_of(tr, i), tr->params[i]->n_elems) == (i >= first_ddp));
    }
    bool found = remote_grad(tr, ctx, "net", &net) && remote_grad(tr, ctx, "emb", &emb);
    bool moving = found && !dw_all_zero(net.items[0].values, net.items[0].n_values) &&
                  emb.items[0].sparse && emb.items[0].n_rows == NUM_EM_ROW;
    rpc_ag_grads_free(&net);
    rpc_ag_grads_free(&emb);
    RANK_CHECK(t, moving);
}

static void run_hybrid(rank_test *t, dw_trainer *tr, ddp_mode mode)
{
    batch b;
    RANK_OK(t, dw_trainer_start(tr, t), &tr->err);
    RANK_OK(t, hybrid_start(tr), &tr->err);
    if (mode != DDP_NONE) {
        RANK_OK(t, dw_wrap_ddp(tr, mode == DDP_OUTSIDE ? 0 : 1), &tr->err);
    }
    make_batch(&b, t->rank, 0, 1, PER_TRAINER);
    for (int i = 0; i < N_STEPS; i++) {
        rpc_ag_ctx *ctx = NULL;
        RANK_OK(t, hybrid_step(tr, &b, &ctx), &tr->err);
        check_step(t, tr, ctx, mode);
        RANK_OK(t, rpc_ag_end(ctx, &tr->err), &tr->err);
    }
}

static void hybrid_rank(rank_test *t, ddp_mode mode)
{
    dw_trainer tr;
    run_hybrid(t, &tr, mode);
    dw_trainer_stop(&tr);
}

static void no_ddp_rank(rank_test *t)
{
    hybrid_rank(t, DDP_NONE);
}

static void ddp_outside_rank(rank_test *t)
{
    hybrid_rank(t, DDP_OUTSIDE);
}

static void ddp_inside_rank(rank_test *t)
{
    hybrid_rank(t, DDP_INSIDE);
}

static void test_backward_no_ddp(void **state)
{
    (void)state;
    dw_run(no_ddp_rank);
}

static void test_backward_ddp_outside(void **state)
{
    (void)state;
    dw_run(ddp_outside_rank);
}

static void test_backward_ddp_inside(void **state)
{
    (void)state;
    dw_run(ddp_inside_rank);
}

/* Micro-batches of two examples; the first two trainers have one, the others two. */
static void run_uneven(rank_test *t, dw_trainer *tr)
{
    const size_t n_mine = t->rank < DW_TRAINERS / 2 ? 1 : 2;
    size_t n_done = 0, n_shadow = 0;
    int n_active = t->world;
    RANK_OK(t, dw_trainer_start(tr, t), &tr->err);
    RANK_OK(t, hybrid_start(tr), &tr->err);
    RANK_OK(t, dw_wrap_ddp(tr, 0), &tr->err);
    for (;;) {
        const bool has_data = n_done < n_mine;
        rpc_ag_ctx *ctx = NULL;
        batch b;
        RANK_OK(t, ring_reducer_join_step(tr->reducer, has_data, &n_active, &tr->err), &tr->err);
        if (!has_data && n_active == 0) {
            break;
        }
        if (!has_data) {
            n_shadow++;
            continue;
        }
        make_batch(&b, t->rank, n_done++, 2, 2);
        RANK_OK(t, hybrid_step(tr, &b, &ctx), &tr->err);
        rpc_ag_grads net = {0};
        bool moving = remote_grad(tr, ctx, "net", &net) &&
                      !dw_all_zero(net.items[0].values, net.items[0].n_values);
        rpc_ag_grads_free(&net);
        RANK_CHECK(t, moving);
        dw_bind_grads(tr, NULL); /* the shadow steps must not write into a context that has ended */
        RANK_OK(t, rpc_ag_end(ctx, &tr->err), &tr->err);
    }
    RANK_CHECK(t, n_done == n_mine && n_shadow == 2 - n_mine);
}

static void uneven_rank(rank_test *t)
{
    dw_trainer tr;
    run_uneven(t, &tr);
    dw_trainer_stop(&tr);
}

static void test_backward_ddp_outside_uneven_inputs(void **state)
{
    (void)state;
    dw_run(uneven_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backward_no_ddp),
        cmocka_unit_test(test_backward_ddp_outside),
        cmocka_unit_test(test_backward_ddp_outside_uneven_inputs),
        cmocka_unit_test(test_backward_ddp_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
