/* Modules that take, keep and give references. */
#include "tests/util/ag_rref_kit.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = AW_N };

/* What forward saves: the records of its uses. */
typedef struct saved {
    rpc_ag_msg *msg[2];
    size_t n_msg;
    rpc_rref *far; /* give_far's */
} saved;

static size_t index_of(const rk_module *m)
{
    return (size_t)(m->node - &m->kit->w->a);
}

static bd_status keep_saved(void **out, rpc_ag_msg *one, rpc_ag_msg *two, rpc_rref *far)
{
    saved *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return BD_E_NOMEM;
    }
    *s = (saved){.msg = {one, two}, .n_msg = two != NULL ? 2 : one != NULL ? 1 : 0, .far = far};
    *out = s;
    return BD_OK;
}

static void free_saved(void *self, void *p)
{
    (void)self;
    saved *s = p;
    rpc_rref_unref(s->far);
    bd_free(s);
}

/* Moves the one output of a use. */
static bd_status answer_with(rpc_ag_result *y, rpc_tensor *out, size_t *n_out, void **sv,
                             rpc_ag_msg *second)
{
    *out = y->out[0];
    out->requires_grad = y->msg != NULL;
    *n_out = 1;
    return y->msg != NULL ? keep_saved(sv, y->msg, second, NULL) : BD_OK;
}

static bd_status use_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                             rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    const rk_module *m = self;
    rpc_ag_result y = {.n_out = 0};
    if (n_in != 1 || in[0].rref == NULL) {
        return bd_err_set(err, BD_E_INVALID, "%s: wants a reference", m->module.name);
    }
    bd_status rc = strcmp(m->module.name, "use_local") == 0
                       ? rpc_rref_local_value(ctx, in[0].rref, &y, err)
                       : rpc_rref_to_here(ctx, in[0].rref, &y, err);
    return rc == BD_OK ? answer_with(&y, out, n_out, sv, NULL) : rc;
}

/* Gradients go to the first n_msg uses. */
static bd_status use_backward(void *self, void *sv, const rpc_tensor *grad_out, size_t n_out,
                              rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)grad_in;
    (void)n_in;
    (void)sink;
    rk_module *m = self;
    const saved *s = sv;
    bd_status rc = BD_OK;
    m->n_backward++;
    for (size_t i = 0; i < s->n_msg && rc == BD_OK; i++) {
        rc = rpc_ag_backward(s->msg[i], grad_out, n_out, NULL, 0, NULL, err);
    }
    return rc;
}

static bd_status twice_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                               rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    const rk_module *m = self;
    const bool lazy = strcmp(m->module.name, "lazy") == 0;
    rpc_ag_result one = {.n_out = 0}, two = {.n_out = 0};
    if (n_in != 1 || in[0].rref == NULL) {
        return bd_err_set(err, BD_E_INVALID, "%s: wants a reference", m->module.name);
    }
    bd_status rc = rpc_rref_to_here(ctx, in[0].rref, &one, err);
    rc = rc == BD_OK ? rpc_rref_to_here(ctx, in[0].rref, &two, err) : rc;
    if (rc != BD_OK) {
        rpc_ag_result_free(&one);
        return rc;
    }
    rpc_tensor sum;
    rc = rpc_tensor_copy_of(NUM_F32, 2, one.out[0].dims, rpc_tensor_f32(&one.out[0]), &sum);
    for (size_t i = 0; rc == BD_OK && !lazy && i < sum.n_elems; i++) {
        rpc_tensor_f32(&sum)[i] += rpc_tensor_f32(&two.out[0])[i];
    }
    rpc_ag_result_free(&one);
    rpc_ag_result_free(&two);
    one.out[0] = sum;
    return rc == BD_OK ? answer_with(&one, out, n_out, sv, lazy ? NULL : two.msg) : rc;
}

static bd_status pass_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                              rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    const rk_module *m = self;
    const aw_world *w = m->kit->w;
    rpc_ag_peer *c = m->node == &w->a ? w->a_to_c : w->b_to_c;
    rpc_ag_result y = {.n_out = 0};
    bd_status rc = rpc_ag_call(ctx, c, "use", in, n_in, &y, err);
    return rc == BD_OK ? answer_with(&y, out, n_out, sv, NULL) : rc;
}

/* The nested call had one input, a reference: no gradient. */
static bd_status pass_backward(void *self, void *sv, const rpc_tensor *grad_out, size_t n_out,
                               rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)self;
    (void)sink;
    const saved *s = sv;
    return rpc_ag_backward(s->msg[0], grad_out, n_out, grad_in, n_in, NULL, err);
}

static bd_status hold_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                              rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    (void)n_in;
    const rk_module *m = self;
    rpc_rref **held = &m->kit->held[index_of(m)];
    *n_out = 0;
    if (strcmp(m->module.name, "hold") == 0) {
        *held = rpc_rref_ref(in[0].rref);
        return BD_OK;
    }
    if (strcmp(m->module.name, "drop") == 0) {
        rpc_rref_unref(*held);
        *held = NULL;
        return BD_OK;
    }
    rpc_ag_result y = {.n_out = 0};
    bd_status rc = rpc_rref_to_here(ctx, *held, &y, err);
    return rc == BD_OK ? answer_with(&y, out, n_out, sv, NULL) : rc;
}

static bd_status give_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                              rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    const rk_module *m = self;
    rpc_rref *r = NULL;
    bd_status rc;
    *n_out = 1;
    if (strcmp(m->module.name, "same") == 0) {
        out->rref = rpc_rref_ref(in[0].rref);
        return BD_OK;
    }
    if (strcmp(m->module.name, "give") == 0) {
        return rpc_rref_new(m->node->ag, in, n_in, &out->rref, err);
    }
    rc = rpc_rref_remote(ctx, m->kit->w->a_to_b, "layer", in, n_in, &r, err);
    if (rc == BD_OK) {
        out->rref = rpc_rref_ref(r);
        rc = keep_saved(sv, NULL, NULL, r);
    }
    return rc;
}

/* The gradient of the far layer's input: its users have been. */
static bd_status give_backward(void *self, void *sv, const rpc_tensor *grad_out, size_t n_out,
                               rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)self;
    (void)grad_out;
    (void)n_out;
    (void)sink;
    const saved *s = sv;
    return rpc_ag_backward(rpc_rref_msg(s->far), NULL, 0, grad_in, n_in, NULL, err);
}

static bd_status bad_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                             rpc_tensor *out, size_t *n_out, void **sv, bd_err *err)
{
    (void)self;
    (void)ctx;
    (void)n_in;
    (void)err;
    *out = in[0];
    (void)bd_buf_ref(out->buf);
    out->requires_grad = true;
    *n_out = 1;
    return keep_saved(sv, NULL, NULL, NULL);
}

static bd_status bad_backward(void *self, void *sv, const rpc_tensor *grad_out, size_t n_out,
                              rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)self;
    (void)sv;
    (void)grad_out;
    (void)n_out;
    (void)grad_in;
    (void)n_in;
    (void)sink;
    return bd_err_set(err, BD_E_NUMERIC, "simulated error on backward pass");
}

static const struct {
    const char *name;
    bd_status (*forward)(void *, rpc_ag_ctx *, const rpc_tensor *, size_t, rpc_tensor *, size_t *,
                         void **, bd_err *);
    bd_status (*backward)(void *, void *, const rpc_tensor *, size_t, rpc_tensor *, size_t,
                          rpc_grad_sink *, bd_err *);
} kinds[RK_N_MODULES] = {
    {"use", use_forward, use_backward},        {"use_local", use_forward, use_backward},
    {"both", twice_forward, use_backward},     {"lazy", twice_forward, use_backward},
    {"mul", twice_forward, use_backward},      {"pass", pass_forward, pass_backward},
    {"hold", hold_forward, use_backward},      {"held", hold_forward, use_backward},
    {"drop", hold_forward, use_backward},      {"give", give_forward, give_backward},
    {"give_far", give_forward, give_backward}, {"same", give_forward, give_backward},
    {"bad", bad_forward, bad_backward},
};

/* The world frees it, after its nodes. */
void rk_start(aw_world *w)
{
    aw_node *nodes[RK_N_NODES] = {&w->a, &w->b, &w->c};
    rk_kit *k = bd_calloc(1, sizeof *k);
    assert_non_null(k);
    k->w = w;
    w->user = k;
    for (size_t n = 0; n < RK_N_NODES; n++) {
        for (size_t i = 0; i < RK_N_MODULES; i++) {
            rk_module *m = &k->mods[n][i];
            m->kit = k;
            m->node = nodes[n];
            m->module = (rpc_module){.name = kinds[i].name,
                                     .self = m,
                                     .forward = kinds[i].forward,
                                     .backward = kinds[i].backward,
                                     .saved_free = free_saved};
            aw_must(rpc_ag_register(nodes[n]->ag, &m->module, NULL), NULL);
        }
    }
}

int rk_runs_of(const rk_kit *k, size_t node, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < RK_N_MODULES; i++) {
        n += strcmp(kinds[i].name, name) == 0 ? k->mods[node][i].n_backward : 0;
    }
    return n;
}

rpc_rref *rk_make(rpc_ag_ctx *ctx, rpc_ag_peer *on, const char *module, const float *x)
{
    rpc_tensor in = aw_rows(1, x);
    rpc_rref *r = NULL;
    bd_err err = BD_ERR_INIT;
    aw_must(rpc_rref_remote(ctx, on, module, &in, 1, &r, &err), &err);
    rpc_tensor_free(&in);
    return r;
}

/* module(reference), which must work. */
rpc_ag_result rk_ask_with(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, rpc_rref *r)
{
    rpc_tensor in = {.rref = rpc_rref_ref(r)};
    rpc_ag_result y = {.n_out = 0};
    bd_err err = BD_ERR_INIT;
    aw_must(rpc_ag_call(ctx, peer, module, &in, 1, &y, &err), &err);
    rpc_tensor_free(&in);
    return y;
}

void rk_expect_row(const rpc_tensor *t, const float *want, float factor)
{
    for (size_t i = 0; i < N; i++) {
        assert_true(rpc_tensor_f32(t)[i] == factor * want[i]);
    }
}

void rk_expect_holds(rpc_rref *r, const float *want)
{
    rpc_ag_result y = {.n_out = 0};
    bd_err err = BD_ERR_INIT;
    aw_must(rpc_rref_to_here(NULL, r, &y, &err), &err);
    assert_null(y.msg);
    rk_expect_row(&y.out[0], want, 1);
    rpc_ag_result_free(&y);
}

rpc_rref_counts rk_counts(const aw_node *n)
{
    rpc_rref_counts c;
    rpc_rref_count(n->ag, &c);
    return c;
}
