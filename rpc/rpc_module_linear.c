/* The linear layer as a remote module. Plain loops in a fixed order: the result does not depend on
 * the machine. */
#include "base/mem.h"

#include "rpc/rpc_module_int.h"

#include <string.h>

typedef struct linear {
    rpc_module module; /* first: rpc_module_free frees the whole */
    rpc_param params[2];
    size_t n_in, n_out;
    bool relu;
    float *w, *b; /* owned; b NULL: no bias */
} linear;

/* Of one call: the input, and the output where relu needs to know its sign. */
typedef struct saved_linear {
    rpc_tensor x, y;
} saved_linear;

static void saved_free(void *self, void *saved)
{
    (void)self;
    saved_linear *s = saved;
    rpc_tensor_free(&s->x);
    rpc_tensor_free(&s->y);
    bd_free(s);
}

static void rows_forward(const linear *l, const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t o = 0; o < l->n_out; o++) {
            float sum = l->b != NULL ? l->b[o] : 0.0f;
            for (size_t k = 0; k < l->n_in; k++) {
                sum += x[i * l->n_in + k] * l->w[o * l->n_in + k];
            }
            y[i * l->n_out + o] = l->relu && sum < 0.0f ? 0.0f : sum;
        }
    }
}

static bd_status forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    (void)ctx;
    const linear *l = self;
    if (n_in != 1 || in[0].dtype != NUM_F32 || in[0].n_dims != 2 || in[0].dims[1] != l->n_in) {
        return bd_err_set(err, BD_E_INVALID, "%s: takes one f32 matrix of %zu columns",
                          l->module.name, l->n_in);
    }
    const size_t dims[2] = {in[0].dims[0], l->n_out};
    saved_linear *s = bd_calloc(1, sizeof *s);
    if (s == NULL || rpc_tensor_new(NUM_F32, 2, dims, out) != BD_OK) {
        bd_free(s);
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", l->module.name);
    }
    rows_forward(l, rpc_tensor_f32(&in[0]), dims[0], rpc_tensor_f32(out));
    out->requires_grad = true;
    s->x = in[0];
    bd_buf_ref(s->x.buf);
    s->y = *out;
    bd_buf_ref(s->y.buf);
    *n_out = 1;
    *saved = s;
    return BD_OK;
}

static void add_scaled(float *acc, float g, const float *v, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        acc[k] += g * v[k];
    }
}

/* g of the pre-activation; then dw += g^T x, db += g, dx += g w. */
static void rows_backward(const linear *l, const saved_linear *s, const float *gy, float *dw,
                          float *db, float *dx)
{
    const float *x = rpc_tensor_f32(&s->x), *y = rpc_tensor_f32(&s->y);
    for (size_t i = 0; i < s->x.dims[0]; i++) {
        for (size_t o = 0; o < l->n_out; o++) {
            float g = gy[i * l->n_out + o];
            if (l->relu && y[i * l->n_out + o] <= 0.0f) {
                g = 0.0f;
            }
            db[o] += g;
            add_scaled(dw + o * l->n_in, g, x + i * l->n_in, l->n_in);
            if (dx != NULL) {
                add_scaled(dx + i * l->n_in, g, l->w + o * l->n_in, l->n_in);
            }
        }
    }
}

static bd_status backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)n_out;
    (void)n_in;
    linear *l = self;
    const saved_linear *s = saved;
    if (grad_out[0].buf == NULL) {
        return BD_OK; /* zeros */
    }
    const size_t n_w = l->n_in * l->n_out;
    float *dw = bd_calloc(n_w + l->n_out, sizeof *dw);
    float *dx = NULL;
    bd_status rc = dw == NULL ? BD_E_NOMEM : BD_OK;
    if (rc == BD_OK && s->x.requires_grad) {
        rc = rpc_tensor_new(NUM_F32, 2, s->x.dims, &grad_in[0]);
        dx = rc == BD_OK ? rpc_tensor_f32(&grad_in[0]) : NULL;
    }
    if (rc != BD_OK) {
        bd_free(dw);
        return bd_err_set(err, rc, "%s: out of memory", l->module.name);
    }
    if (dx != NULL) {
        memset(dx, 0, s->x.n_elems * sizeof *dx);
    }
    rows_backward(l, s, rpc_tensor_f32(&grad_out[0]), dw, dw + n_w, dx);
    rc = rpc_grad_add(sink, 0, dw, err);
    if (rc == BD_OK && l->b != NULL) {
        rc = rpc_grad_add(sink, 1, dw + n_w, err);
    }
    bd_free(dw);
    return rc;
}

bd_status rpc_module_set_optim(rpc_module *m, const rpc_optim_spec *spec, bd_err *err)
{
    if (spec->name == NULL) {
        return BD_OK;
    }
    static const char *const names[] = {"learning_rate"};
    m->optim = num_optim_find(spec->name);
    if (m->optim == NULL) {
        return bd_err_set(err, BD_E_INVALID, "%s: no such optimiser: %s", m->name, spec->name);
    }
    return num_optim_hyper(m->optim, names, &spec->learning_rate, 1, m->hyper, err);
}

void rpc_module_free(rpc_module *m)
{
    if (m != NULL) {
        for (size_t i = 0; i < m->n_params; i++) {
            bd_free(m->params[i].value);
        }
        bd_free(m); /* the head of the block it lives in */
    }
}

bd_status rpc_linear_new(const rpc_linear_spec *spec, rpc_module **out, bd_err *err)
{
    linear *l = bd_calloc(1, sizeof *l);
    size_t n_w;
    if (l == NULL || !bd_mul_size(spec->n_in, spec->n_out, &n_w)) {
        bd_free(l);
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", spec->name);
    }
    l->n_in = spec->n_in;
    l->n_out = spec->n_out;
    l->relu = spec->relu;
    l->w = bd_calloc(n_w, sizeof *l->w);
    l->b = spec->bias ? bd_calloc(spec->n_out, sizeof *l->b) : NULL;
    l->params[0] = (rpc_param){.name = "weight", .n_rows = 1, .dim = n_w, .value = l->w};
    l->params[1] = (rpc_param){.name = "bias", .n_rows = 1, .dim = spec->n_out, .value = l->b};
    l->module = (rpc_module){.name = spec->name,
                             .self = l,
                             .params = l->params,
                             .n_params = spec->bias ? 2 : 1,
                             .forward = forward,
                             .backward = backward,
                             .saved_free = saved_free};
    bd_status rc = BD_OK;
    if (l->w == NULL || (spec->bias && l->b == NULL)) {
        rc = bd_err_set(err, BD_E_NOMEM, "%s: out of memory", spec->name);
    } else {
        rc = rpc_module_set_optim(&l->module, &spec->optim, err);
    }
    if (rc != BD_OK) {
        rpc_module_free(&l->module);
        return rc;
    }
    *out = &l->module;
    return BD_OK;
}
