/* The embedding bag (sum) as a remote module: gradients by row. */
#include "base/mem.h"

#include "rpc/rpc_module_int.h"

#include <inttypes.h>
#include <string.h>

typedef struct bag {
    rpc_module module; /* first: rpc_module_free frees the whole */
    rpc_param param;
    size_t n_rows, dim;
    float *rows; /* owned */
} bag;

/* Of one call: which row went into which bag. */
typedef struct saved_bag {
    size_t n_ids;
    uint64_t *row; /* [n_ids], owned: one block with of */
    size_t *of;    /* [n_ids] the bag */
} saved_bag;

static void saved_free(void *self, void *saved)
{
    (void)self;
    saved_bag *s = saved;
    bd_free(s->row);
    bd_free(s);
}

static bd_status check_inputs(const bag *b, const rpc_tensor *in, size_t n_in, bd_err *err)
{
    const char *name = b->module.name;
    if (n_in != 2 || in[0].dtype != NUM_I64 || in[1].dtype != NUM_I64 || in[0].n_dims != 1 ||
        in[1].n_dims != 1) {
        return bd_err_set(err, BD_E_INVALID, "%s: takes ids i64[m] and offsets i64[n]", name);
    }
    const int64_t *ids = rpc_tensor_i64(&in[0]), *offsets = rpc_tensor_i64(&in[1]);
    for (size_t i = 0; i < in[0].n_elems; i++) {
        if (ids[i] < 0 || (uint64_t)ids[i] >= b->n_rows) {
            return bd_err_set(err, BD_E_INVALID, "%s: id %" PRId64 " at %zu, there are %zu rows",
                              name, ids[i], i, b->n_rows);
        }
    }
    int64_t last = 0;
    for (size_t i = 0; i < in[1].n_elems; i++) {
        if (offsets[i] < last || (uint64_t)offsets[i] > in[0].n_elems || (i == 0 && offsets[0])) {
            return bd_err_set(err, BD_E_INVALID, "%s: offset %" PRId64 " at %zu", name, offsets[i],
                              i);
        }
        last = offsets[i];
    }
    if (in[1].n_elems == 0 && in[0].n_elems > 0) {
        return bd_err_set(err, BD_E_INVALID, "%s: ids without offsets", name);
    }
    return BD_OK;
}

static saved_bag *save(const rpc_tensor *ids, const rpc_tensor *offsets)
{
    saved_bag *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->n_ids = ids->n_elems;
    s->row = bd_calloc(ids->n_elems + 1, sizeof *s->row + sizeof *s->of);
    if (s->row == NULL) {
        bd_free(s);
        return NULL;
    }
    s->of = (size_t *)(void *)(s->row + ids->n_elems);
    for (size_t i = 0; i < offsets->n_elems; i++) {
        const int64_t *o = rpc_tensor_i64(offsets);
        size_t end = i + 1 < offsets->n_elems ? (size_t)o[i + 1] : ids->n_elems;
        for (size_t k = (size_t)o[i]; k < end; k++) {
            s->row[k] = (uint64_t)rpc_tensor_i64(ids)[k];
            s->of[k] = i;
        }
    }
    return s;
}

static bd_status forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    (void)ctx;
    const bag *b = self;
    bd_status rc = check_inputs(b, in, n_in, err);
    if (rc != BD_OK) {
        return rc;
    }
    const size_t dims[2] = {in[1].n_elems, b->dim};
    saved_bag *s = save(&in[0], &in[1]);
    if (s == NULL || rpc_tensor_new(NUM_F32, 2, dims, out) != BD_OK) {
        if (s != NULL) {
            saved_free(self, s);
        }
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", b->module.name);
    }
    float *y = rpc_tensor_f32(out);
    memset(y, 0, out->n_elems * sizeof *y);
    for (size_t k = 0; k < s->n_ids; k++) {
        for (size_t d = 0; d < b->dim; d++) {
            y[s->of[k] * b->dim + d] += b->rows[s->row[k] * b->dim + d];
        }
    }
    out->requires_grad = true;
    *n_out = 1;
    *saved = s;
    return BD_OK;
}

static bd_status backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)n_out;
    (void)grad_in; /* ids and offsets have no gradient */
    (void)n_in;
    const bag *b = self;
    const saved_bag *s = saved;
    bd_status rc = BD_OK;
    for (size_t k = 0; k < s->n_ids && rc == BD_OK && grad_out[0].buf != NULL; k++) {
        const float *g = rpc_tensor_f32(&grad_out[0]) + s->of[k] * b->dim;
        rc = rpc_grad_add_rows(sink, 0, &s->row[k], g, 1, err);
    }
    return rc;
}

bd_status rpc_bag_new(const rpc_bag_spec *spec, rpc_module **out, bd_err *err)
{
    bag *b = bd_calloc(1, sizeof *b);
    size_t n_elems;
    if (b == NULL || !bd_mul_size(spec->n_rows, spec->dim, &n_elems)) {
        bd_free(b);
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", spec->name);
    }
    b->n_rows = spec->n_rows;
    b->dim = spec->dim;
    b->rows = bd_calloc(n_elems, sizeof *b->rows);
    b->param = (rpc_param){.name = "weight",
                           .n_rows = spec->n_rows,
                           .dim = spec->dim,
                           .sparse = true,
                           .value = b->rows};
    b->module = (rpc_module){.name = spec->name,
                             .self = b,
                             .params = &b->param,
                             .n_params = 1,
                             .forward = forward,
                             .backward = backward,
                             .saved_free = saved_free};
    bd_status rc = b->rows == NULL ? bd_err_set(err, BD_E_NOMEM, "%s: out of memory", spec->name)
                                   : rpc_module_set_optim(&b->module, &spec->optim, err);
    if (rc != BD_OK) {
        rpc_module_free(&b->module);
        return rc;
    }
    *out = &b->module;
    return BD_OK;
}
