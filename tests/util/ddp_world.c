#include "tests/util/ddp_world.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void fill(float *w, size_t n, float v)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = v;
    }
}

/* All ones, but -1 in the corner. */
void dw_fill_weights(float *w, size_t n)
{
    fill(w, n, 1);
    w[0] = -1;
}

/* Small whole numbers: all sums are exact, whatever the order. */
void dw_fill_whole(float *w, size_t n, uint64_t seed, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = (float)(bd_rand_u64(seed, stream, i) % 9) - 4.0f;
    }
}

static void node_start(dw_node *w, uint64_t seed, double loss)
{
    bd_err err = BD_ERR_INIT;
    const rpc_mem_options mem = {.seed = seed, .delay_min_ns = 1000, .delay_max_ns = BD_NS_PER_MS};
    rpc_ag_options opt = {.name = "worker0", .client_id = 1000};
    rpc_server_options sopt = {.listen = seed > 0 ? "127.0.0.1:1" : "127.0.0.1:0"};
    rpc_bag_spec emb = {.name = "emb", .n_rows = NUM_EM_ROW, .dim = D_SPARSE};
    rpc_linear_spec net = {.name = "net", .n_in = D_DENSE + D_SPARSE, .n_out = D_HID, .relu = true};
    rpc_linear_spec layer1 = {.name = "layer1", .n_in = 10, .n_out = 5};
    if (seed > 0) {
        assert_int_equal(rpc_mem_net_new(&mem, &w->net, &err), BD_OK);
        assert_int_equal(rpc_mem_env_new(w->net, "worker0", &w->env, &err), BD_OK);
        rpc_mem_net_set_faults(w->net, loss, loss);
    } else {
        assert_int_equal(rpc_env_new(NULL, &w->env, &err), BD_OK);
    }
    assert_int_equal(rpc_ag_new(w->env, &opt, &w->ag, &err), BD_OK);
    assert_int_equal(rpc_bag_new(&emb, &w->emb, &err), BD_OK);
    fill(w->emb->params[0].value, (size_t)NUM_EM_ROW * D_SPARSE, 0.5f);
    assert_int_equal(rpc_linear_new(&net, &w->net_module, &err), BD_OK);
    dw_fill_weights(w->net_module->params[0].value, w->net_module->params[0].dim);
    assert_int_equal(rpc_linear_new(&layer1, &w->layer1, &err), BD_OK);
    dw_fill_whole(w->layer1->params[0].value, 50, 5, 1);
    assert_int_equal(rpc_ag_register(w->ag, w->emb, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->ag, w->net_module, &err), BD_OK);
    assert_int_equal(rpc_ag_register(w->ag, w->layer1, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &sopt, &w->server, &err), BD_OK);
    assert_int_equal(rpc_ag_serve(w->ag, w->server), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    (void)snprintf(w->target, sizeof w->target, "127.0.0.1:%d", rpc_server_port(w->server));
}

static void node_stop(dw_node *w)
{
    assert_int_equal(rpc_ag_n_contexts(w->ag), 0); /* every trainer has cleaned up */
    rpc_server_free(w->server);
    rpc_ag_free(w->ag);
    rpc_module_free(w->emb);
    rpc_module_free(w->net_module);
    rpc_module_free(w->layer1);
    rpc_env_free(w->env);
    if (w->net != NULL) {
        rpc_mem_net_free(w->net);
    }
}

/* seed 0: gRPC. */
static void run_world(void (*fn)(rank_test *t), uint64_t seed, double loss)
{
    const long before = bd_mem_live_blocks();
    dw_world w = {.n = seed > 0 ? DW_TRAINERS : 1};
    for (size_t i = 0; i < w.n; i++) {
        node_start(&w.nodes[i], seed > 0 ? seed * DW_TRAINERS + i : 0, loss);
    }
    ring_ranks_run(RANKS_MEM, DW_TRAINERS, NULL, fn, &w);
    for (size_t i = 0; i < w.n; i++) {
        node_stop(&w.nodes[i]);
    }
    assert_int_equal(bd_mem_live_blocks(), before);
}

void dw_run(void (*fn)(rank_test *t))
{
    enum { SEEDS = 10 };
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        run_world(fn, seed, seed > 1 ? 0.15 : 0);
    }
}

/* ---- a trainer ---- */

static dw_node *worker0_of(const rank_test *t)
{
    dw_world *w = t->arg;
    return &w->nodes[w->n > 1 ? t->rank : 0];
}

void dw_trainer_stop(dw_trainer *tr)
{
    ring_reducer_free(tr->reducer);
    for (size_t i = 0; i < tr->n_params; i++) {
        tp_tensor_free(tr->params[i]);
    }
    tp_tape_free(tr->tape);
    tp_device_free(tr->dev);
    rpc_channel_free(tr->ch);
    rpc_ag_free(tr->ag);
    if (tr->env != NULL && tr->env != worker0_of(tr->t)->env) {
        rpc_env_free(tr->env);
    }
}

bd_status dw_trainer_start(dw_trainer *tr, rank_test *t)
{
    dw_node *w = worker0_of(t);
    char name[32];
    *tr = (dw_trainer){.t = t, .env = w->env, .err = BD_ERR_INIT};
    (void)snprintf(name, sizeof name, "trainer%d", t->rank);
    rpc_ag_options opt = {.name = name, .client_id = (uint64_t)t->rank + 1};
    rpc_channel_options chopt = {.name = "worker0"};
    bd_status rc = w->net != NULL ? rpc_mem_env_new(w->net, name, &tr->env, &tr->err) : BD_OK;
    if (rc == BD_OK) {
        rc = rpc_ag_new(tr->env, &opt, &tr->ag, &tr->err);
    }
    if (rc == BD_OK) {
        rc = rpc_channel_new(tr->env, w->target, &chopt, &tr->ch, &tr->err);
    }
    if (rc == BD_OK) {
        rc = rpc_ag_peer_new(tr->ag, "worker0", tr->ch, &tr->peer);
    }
    if (rc == BD_OK) {
        rc = tp_device_new_cpu(1, &tr->dev, &tr->err);
    }
    return rc == BD_OK ? tp_tape_new(tr->dev, &tr->tape, &tr->err) : rc;
}

bd_status dw_add_param(dw_trainer *tr, const char *name, size_t rows, size_t cols)
{
    return tp_param_new(tr->dev, name, 2, (const size_t[]){rows, cols}, &tr->params[tr->n_params++],
                        &tr->err);
}

static bd_status on_ready(void *user, tp_tensor *leaf, tp_event ready, bd_err *err)
{
    dw_trainer *tr = user;
    bd_status rc = tp_event_wait(tr->dev, ready, err);
    for (size_t i = tr->first_ddp; rc == BD_OK && i < tr->n_params; i++) {
        if (tr->params[i] == leaf) {
            rc = ring_reducer_ready(tr->reducer, i - tr->first_ddp, err);
        }
    }
    return rc;
}

/* Wraps params[first..] in DDP: gradients are averaged over the trainers. */
bd_status dw_wrap_ddp(dw_trainer *tr, size_t first)
{
    ring_param list[2];
    size_t n = tr->n_params - first;
    ring_reducer_options opt = {.scale = 1.0f / (float)tr->t->world,
                                .find_unused = tr->find_unused};
    tr->first_ddp = first;
    for (size_t i = 0; i < n; i++) {
        tp_tensor *p = tr->params[first + i];
        list[i] = (ring_param){p->name, p->n_elems, NUM_F32, tp_f32(p->grad)};
        tp_set_ready_hook(p, on_ready, tr);
    }
    return ring_reducer_new(tr->t->comm, list, n, &opt, &tr->reducer, &tr->err);
}

/* Points parameters and reducer at the gradients of a context (NULL: the plain ones, zeroed). */
bd_status dw_bind_grads(dw_trainer *tr, rpc_ag_ctx *ctx)
{
    void *mem[2];
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < tr->n_params; i++) {
        float *grad = NULL;
        if (ctx != NULL) {
            rc = rpc_ag_local_grad(ctx, i, tr->params[i]->n_elems, &grad, &tr->err);
        }
        tp_param_bind_grad(tr->params[i], grad);
        if (ctx == NULL) {
            tp_tensor_zero_grad(tr->params[i]);
        }
        mem[i] = tp_f32(tr->params[i]->grad);
    }
    if (rc == BD_OK && tr->reducer != NULL) {
        ring_reducer_bind(tr->reducer, mem + tr->first_ddp);
    }
    return rc;
}

bd_status dw_backward(dw_trainer *tr, tp_tensor *loss)
{
    bd_status rc = BD_OK;
    if (tr->reducer != NULL) {
        rc = ring_reducer_prepare(tr->reducer, true, &tr->err);
    }
    if (rc == BD_OK) {
        rc = tp_backward(tr->tape, loss, NULL, &tr->err);
    }
    if (rc == BD_OK && tr->reducer != NULL) {
        rc = ring_reducer_finish(tr->reducer, &tr->err);
    }
    return rc;
}

const float *dw_grad_of(const dw_trainer *tr, size_t i)
{
    return tp_f32(tr->params[i]->grad);
}

bool dw_equal(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i] != b[i]) { /* numbers, not bits: BLAS may say -0 where a loop says 0 */
            return false;
        }
    }
    return true;
}

bool dw_all_zero(const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (v[i] != 0) {
            return false;
        }
    }
    return true;
}

bd_status dw_self_start(dw_trainer *tr, dw_self *s, rpc_module *module)
{
    const bool mem = worker0_of(tr->t)->net != NULL;
    char target[64];
    rpc_server_options opt = {.listen = mem ? "127.0.0.1:2" : "127.0.0.1:0"};
    s->module = module;
    bd_status rc = rpc_ag_register(tr->ag, s->module, &tr->err);
    if (rc == BD_OK) {
        rc = rpc_server_new(tr->env, &opt, &s->server, &tr->err);
    }
    if (rc == BD_OK) {
        rc = rpc_ag_serve(tr->ag, s->server);
    }
    if (rc == BD_OK) {
        rc = rpc_server_start(s->server, &tr->err);
    }
    if (rc == BD_OK) {
        (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(s->server));
        rc = rpc_channel_new(tr->env, target, NULL, &s->ch, &tr->err);
    }
    return rc == BD_OK ? rpc_ag_peer_new(tr->ag, "self", s->ch, &s->peer) : rc;
}

void dw_self_stop(dw_self *s)
{
    rpc_channel_free(s->ch);
    rpc_server_free(s->server);
}
