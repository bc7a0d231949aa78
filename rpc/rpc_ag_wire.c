/* Tensors and gradients as messages (proto/braid/v1/autograd.proto). */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AG_RREF_NAME_BYTES 64

void ag_tensor_to_wire(const rpc_tensor *t, Braid__V1__AutogradTensor *w, uint64_t *dims)
{
    braid__v1__autograd_tensor__init(w);
    if (t->buf == NULL) {
        w->absent = true;
        return;
    }
    for (int i = 0; i < t->n_dims; i++) {
        dims[i] = t->dims[i];
    }
    w->dtype = t->dtype == NUM_I64 ? BRAID__V1__AUTOGRAD_DTYPE__AUTOGRAD_DTYPE_I64
                                   : BRAID__V1__AUTOGRAD_DTYPE__AUTOGRAD_DTYPE_F32;
    w->n_dims = (size_t)t->n_dims;
    w->dims = dims;
    w->data.data = t->buf->bytes;
    w->data.len = t->n_elems * num_dtype_bytes((int)t->dtype);
    w->requires_grad = t->requires_grad;
}

void ag_wire_fill(ag_wire_tensors *w, const rpc_tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ag_tensor_to_wire(&t[i], &w->items[i], w->dims[i]);
        if (t[i].rref != NULL) {
            ag_rref_to_wire(t[i].rref, &w->rrefs[i]);
            w->items[i].rref = &w->rrefs[i];
        }
        w->list[i] = &w->items[i];
    }
}

static bool dtype_from_wire(int wire, num_dtype *out)
{
    switch (wire) {
    case BRAID__V1__AUTOGRAD_DTYPE__AUTOGRAD_DTYPE_UNSPECIFIED:
    case BRAID__V1__AUTOGRAD_DTYPE__AUTOGRAD_DTYPE_F32:
        *out = NUM_F32;
        return true;
    case BRAID__V1__AUTOGRAD_DTYPE__AUTOGRAD_DTYPE_I64:
        *out = NUM_I64;
        return true;
    default:
        return false;
    }
}

bd_status ag_tensor_from_wire(const Braid__V1__AutogradTensor *w, const char *what, rpc_tensor *out,
                              bd_err *err)
{
    num_dtype dtype;
    size_t dims[RPC_TENSOR_MAX_DIMS], n_bytes = 0;
    if (w->absent) {
        *out = (rpc_tensor){0};
        return BD_OK;
    }
    if (!dtype_from_wire((int)w->dtype, &dtype)) {
        return bd_err_set(err, BD_E_INVALID, "%s: unknown element type %d", what, (int)w->dtype);
    }
    if (w->n_dims < 1 || w->n_dims > RPC_TENSOR_MAX_DIMS) {
        return bd_err_set(err, BD_E_INVALID, "%s: %zu dimensions", what, w->n_dims);
    }
    bool fits = true;
    n_bytes = num_dtype_bytes((int)dtype);
    for (size_t i = 0; i < w->n_dims; i++) {
        dims[i] = (size_t)w->dims[i];
        fits = fits && bd_mul_size(n_bytes, dims[i], &n_bytes);
    }
    if (!fits || n_bytes != w->data.len) { /* before anything is allocated for it */
        return bd_err_set(err, BD_E_INVALID, "%s: %zu bytes do not fill its shape", what,
                          w->data.len);
    }
    bd_status rc = rpc_tensor_copy_of(dtype, (int)w->n_dims, dims, w->data.data, out);
    if (rc != BD_OK) {
        return bd_err_set(err, rc, "%s: %s", what, bd_status_text(rc));
    }
    out->requires_grad = w->requires_grad && dtype == NUM_F32;
    return BD_OK;
}

bd_status ag_tensors_from_wire(Braid__V1__AutogradTensor *const *w, size_t n, const char *what,
                               rpc_tensor *out, bd_err *err)
{
    if (n > RPC_MODULE_MAX_IO) {
        return bd_err_set(err, BD_E_INVALID, "%zu %s, at most %d", n, what, RPC_MODULE_MAX_IO);
    }
    for (size_t i = 0; i < n; i++) {
        bd_status rc = ag_tensor_from_wire(w[i], what, &out[i], err);
        if (rc != BD_OK) {
            rpc_tensors_free(out, i);
            return rc;
        }
    }
    return BD_OK;
}

bool ag_same_shape(const rpc_tensor *a, const rpc_tensor *b)
{
    bool same = a->dtype == b->dtype && a->n_dims == b->n_dims;
    for (int i = 0; same && i < a->n_dims; i++) {
        same = a->dims[i] == b->dims[i];
    }
    return same;
}

/* ---- gradients ---- */

/* protobuf-c has no const strings. */
static char *unconst(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s};
    return u.out;
}

static void grad_to_wire(const ag_grad *g, Braid__V1__AutogradGradient *w)
{
    const rpc_param *p = &g->module->m->params[g->param_idx];
    braid__v1__autograd_gradient__init(w);
    w->module = unconst(g->module->m->name);
    w->parameter = unconst(p->name);
    w->sparse = p->sparse;
    w->dim = p->sparse ? (uint32_t)p->dim : 0;
    w->n_rows = p->sparse ? g->n_rows : 0;
    w->rows = g->rows;
    w->n_values = p->sparse ? g->n_rows * p->dim : p->n_rows * p->dim;
    w->values = g->values;
}

/* The list of a reply while it is made. */
typedef struct grad_list {
    const char *module;                 /* asked for; "": all */
    Braid__V1__AutogradGradient *items; /* owned */
    Braid__V1__AutogradGradient **list; /* owned */
    char (*names)[AG_RREF_NAME_BYTES];  /* owned: of values */
    size_t n;
} grad_list;

static void list_free(grad_list *l)
{
    bd_free(l->items);
    bd_free(l->list);
    bd_free(l->names);
}

static bool is_wanted(const grad_list *l, const char *module)
{
    return l->module[0] == '\0' || strcmp(l->module, module) == 0;
}

/* Gradients of a value that was not made in this context. */
static void add_flow(grad_list *l, ag_flow *f)
{
    for (size_t i = 0; i < f->value->n && f->producer == NULL; i++) {
        if (f->grad[i].buf == NULL || !is_wanted(l, "rref")) {
            continue;
        }
        Braid__V1__AutogradGradient *w = &l->items[l->n];
        braid__v1__autograd_gradient__init(w);
        (void)snprintf(l->names[l->n], sizeof l->names[0], "%" PRIu64 "/%" PRIu64 "/%zu",
                       f->value->creator_id, f->value->number, i);
        w->module = unconst("rref");
        w->parameter = l->names[l->n];
        w->n_values = f->grad[i].n_elems;
        w->values = rpc_tensor_f32(&f->grad[i]);
        l->list[l->n++] = w;
    }
}

static bd_status list_locked(const rpc_ag_ctx *ctx, grad_list *l)
{
    size_t n = 1;
    for (const ag_grad *g = ctx->grads; g != NULL; g = g->next) {
        n++;
    }
    for (const ag_flow *f = ctx->flows; f != NULL; f = f->next) {
        n += f->value->n;
    }
    l->items = bd_calloc(n, sizeof *l->items);
    l->list = bd_calloc(n, sizeof(Braid__V1__AutogradGradient *));
    l->names = bd_calloc(n, sizeof *l->names);
    if (l->items == NULL || l->list == NULL || l->names == NULL) {
        return BD_E_NOMEM;
    }
    for (const ag_grad *g = ctx->grads; g != NULL; g = g->next) {
        if (is_wanted(l, g->module->m->name)) {
            grad_to_wire(g, &l->items[l->n]);
            l->list[l->n] = &l->items[l->n];
            l->n++;
        }
    }
    for (ag_flow *f = ctx->flows; f != NULL; f = f->next) {
        add_flow(l, f);
    }
    return BD_OK;
}

bd_status ag_gradients_pack(rpc_ag_ctx *ctx, const char *module, bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradGradientsReply reply = BRAID__V1__AUTOGRAD_GRADIENTS_REPLY__INIT;
    grad_list l = {.module = module};
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, err);
    if (rc == BD_OK && list_locked(ctx, &l) != BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "gradients: out of memory");
    }
    if (rc == BD_OK) {
        reply.n_gradients = l.n;
        reply.gradients = l.list;
        rc = px_pack(&reply.base, out, err); /* under the lock: it reads the gradients */
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    list_free(&l);
    return rc;
}

static bd_status grad_from_wire(const Braid__V1__AutogradGradient *w, rpc_ag_grad *g)
{
    g->module = bd_strdup(w->module);
    g->param = bd_strdup(w->parameter);
    g->sparse = w->sparse;
    g->dim = w->dim;
    g->n_rows = w->n_rows;
    g->n_values = w->n_values;
    g->rows = bd_calloc(w->n_rows + 1, sizeof *g->rows);
    g->values = bd_calloc(w->n_values + 1, sizeof *g->values);
    if (g->module == NULL || g->param == NULL || g->rows == NULL || g->values == NULL) {
        return BD_E_NOMEM;
    }
    if (w->n_rows > 0) {
        memcpy(g->rows, w->rows, w->n_rows * sizeof *g->rows);
    }
    if (w->n_values > 0) {
        memcpy(g->values, w->values, w->n_values * sizeof *g->values);
    }
    return BD_OK;
}

bd_status ag_gradients_unpack(const bd_chain *in, rpc_ag_grads *out, bd_err *err)
{
    ProtobufCMessage *msg = NULL;
    rpc_ag_grads got = {0};
    bd_status rc =
        px_unpack(&braid__v1__autograd_gradients_reply__descriptor, in, AG_MAX_BYTES, &msg, err);
    if (rc != BD_OK) {
        return rc;
    }
    const Braid__V1__AutogradGradientsReply *w = (const void *)msg;
    got.items = bd_calloc(w->n_gradients + 1, sizeof *got.items);
    rc = got.items == NULL ? BD_E_NOMEM : BD_OK;
    for (size_t i = 0; rc == BD_OK && i < w->n_gradients; i++) {
        got.n++;
        rc = grad_from_wire(w->gradients[i], &got.items[i]);
        if (rc == BD_OK && w->gradients[i]->sparse &&
            got.items[i].n_rows * got.items[i].dim != got.items[i].n_values) {
            rc = BD_E_CORRUPT;
        }
    }
    px_unpacked_free(msg);
    if (rc != BD_OK) {
        rpc_ag_grads_free(&got);
        return bd_err_set(err, rc, "gradients: %s", bd_status_text(rc));
    }
    *out = got;
    return BD_OK;
}

void rpc_ag_grads_free(rpc_ag_grads *g)
{
    for (size_t i = 0; i < g->n; i++) {
        bd_free(g->items[i].module);
        bd_free(g->items[i].param);
        bd_free(g->items[i].rows);
        bd_free(g->items[i].values);
    }
    bd_free(g->items);
    *g = (rpc_ag_grads){0};
}
