#include "tape/tape.h"

#include "base/mem.h"

#include "tape/tape_int.h"

#include <stdio.h>

bd_status tp_tape_new(tp_device *dev, tp_tape **out, bd_err *err)
{
    tp_tape *t = bd_calloc(1, sizeof(*t));
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "tape: out of memory");
    }
    t->dev = dev;
    t->grad_on = true;
    bd_arena_init(&t->arena);
    bd_status rc = tp_pool_new(dev, &t->pool, err);
    if (rc != BD_OK) {
        tp_tape_free(t);
        return rc;
    }
    *out = t;
    return BD_OK;
}

void tp_tape_free(tp_tape *tape)
{
    if (tape == NULL) {
        return;
    }
    tp_pool_free(tape->pool);
    bd_arena_deinit(&tape->arena);
    bd_free(tape->nodes);
    bd_free(tape->free_grads);
    bd_free(tape);
}

tp_device *tp_tape_device(const tp_tape *tape)
{
    return tape->dev;
}

void tp_tape_reset(tp_tape *tape)
{
    tape->n_nodes = 0;
    tape->n_free_grads = 0;
    tape->mark = 0;
    bd_arena_reset(&tape->arena);
    tp_pool_reset(tape->pool);
}

bool tp_tape_set_grad(tp_tape *tape, bool enabled)
{
    bool old = tape->grad_on;
    tape->grad_on = enabled;
    return old;
}

size_t tp_tape_n_nodes(const tp_tape *tape)
{
    return tape->n_nodes;
}

/* ---- tensors ---- */

bd_status tp_head_new(tp_tape *tape, num_dtype dtype, int n_dims, const size_t *dims,
                      tp_tensor **out, bd_err *err)
{
    if (n_dims < 1 || n_dims > TP_MAX_DIMS) {
        return bd_err_set(err, BD_E_INVALID, "tensor: %d dimensions", n_dims);
    }
    tp_tensor *t = bd_arena_calloc(&tape->arena, 1, sizeof(*t));
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "tape: out of memory");
    }
    t->dev = tape->dev;
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->n_elems = 1;
    for (int i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        if (!bd_mul_size(t->n_elems, dims[i], &t->n_elems)) {
            return bd_err_set(err, BD_E_INVALID, "tensor: too many elements");
        }
    }
    *out = t;
    return BD_OK;
}

static bd_status pool_alloc(tp_tape *tape, size_t n, size_t elem_bytes, void **out, bd_err *err)
{
    size_t n_bytes;
    void *p = bd_mul_size(n, elem_bytes, &n_bytes) ? tp_pool_alloc(tape->pool, n_bytes) : NULL;
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "tape: out of memory for %zu elements", n);
    }
    *out = p;
    return BD_OK;
}

bd_status tp_scratch(tp_tape *tape, size_t n_floats, float **out, bd_err *err)
{
    void *p = NULL;
    bd_status rc = pool_alloc(tape, n_floats, sizeof(float), &p, err);
    if (rc == BD_OK) {
        *out = p;
    }
    return rc;
}

bd_status tp_out_dtype(tp_tape *tape, num_dtype dtype, int n_dims, const size_t *dims,
                       tp_tensor **out, bd_err *err)
{
    tp_tensor *t = NULL;
    bd_status rc = tp_head_new(tape, dtype, n_dims, dims, &t, err);
    if (rc == BD_OK) {
        rc = pool_alloc(tape, t->n_elems, num_dtype_bytes((int)dtype), &t->data, err);
    }
    if (rc == BD_OK) {
        *out = t;
    }
    return rc;
}

bd_status tp_out(tp_tape *tape, int n_dims, const size_t *dims, tp_tensor **out, bd_err *err)
{
    return tp_out_dtype(tape, NUM_F32, n_dims, dims, out, err);
}

bd_status tp_out_like(tp_tape *tape, const tp_tensor *x, tp_tensor **out, bd_err *err)
{
    return tp_out(tape, x->n_dims, x->dims, out, err);
}

bd_status tp_out_matrix(tp_tape *tape, size_t n, size_t c, tp_tensor **out, bd_err *err)
{
    return tp_out(tape, 2, (const size_t[]){n, c}, out, err);
}

bd_status tp_tape_tensor(tp_tape *tape, int n_dims, const size_t *dims, bool requires_grad,
                         tp_tensor **out, bd_err *err)
{
    bd_status rc = tp_out(tape, n_dims, dims, out, err);
    if (rc == BD_OK) {
        (*out)->requires_grad = requires_grad;
    }
    return rc;
}

bd_status tp_tape_wrap(tp_tape *tape, int n_dims, const size_t *dims, float *data,
                       bool requires_grad, float *grad, tp_tensor **out, bd_err *err)
{
    tp_tensor *t = NULL;
    bd_status rc = tp_head_new(tape, NUM_F32, n_dims, dims, &t, err);
    if (rc != BD_OK || t == NULL) {
        return rc;
    }
    t->data = data;
    t->requires_grad = requires_grad;
    t->grad_mem = grad;
    *out = t;
    return BD_OK;
}

/* ---- recording ---- */

static bool wants_grad(tp_tensor *const *in, size_t n_in)
{
    for (size_t i = 0; i < n_in; i++) {
        if (in[i] != NULL && in[i]->requires_grad) {
            return true;
        }
    }
    return false;
}

static bd_status record(tp_tape *tape, const tp_op *op, void **ctx, bd_err *err)
{
    tp_node *node = bd_arena_calloc(&tape->arena, 1, sizeof(*node));
    tp_tensor **links = bd_arena_calloc(&tape->arena, op->n_in + op->n_out, sizeof(tp_tensor *));
    void *c = bd_arena_calloc(&tape->arena, 1, op->ctx_bytes);
    if (node == NULL || links == NULL || c == NULL ||
        !bd_grow(&tape->nodes, &tape->cap_nodes, tape->n_nodes + 1, sizeof(tp_node *)) ||
        tape->nodes == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", op->name);
    }
    *node = (tp_node){.name = op->name,
                      .backward = op->backward,
                      .in = links,
                      .out = links + op->n_in,
                      .n_out = op->n_out,
                      .ctx = c};
    tape->nodes[tape->n_nodes++] = node;
    for (size_t i = 0; i < op->n_in; i++) {
        if (op->in[i] != NULL) {
            node->in[node->n_in++] = op->in[i];
        }
    }
    for (size_t i = 0; i < op->n_out; i++) {
        node->out[i] = op->out[i];
        op->out[i]->node = node;
        op->out[i]->requires_grad = true;
    }
    *ctx = c;
    return BD_OK;
}

bd_status tp_record(tp_tape *tape, const tp_op *op, void **ctx, bd_err *err)
{
    *ctx = NULL;
    bd_status rc = tp_device_check(tape->dev, err);
    if (rc != BD_OK || !tape->grad_on || !wants_grad(op->in, op->n_in)) {
        return rc;
    }
    return record(tape, op, ctx, err);
}

typedef struct custom_ctx {
    tp_custom_fn fn;
    void *user;
} custom_ctx;

static bd_status custom_backward(tp_tape *tape, tp_node *node, bd_err *err)
{
    custom_ctx *c = node->ctx;
    bd_status rc = c->fn(c->user, tape, node->in, node->n_in, node->out, node->n_out, err);
    return rc == BD_OK ? rc : bd_err_wrap(err, "%s", node->name);
}

bd_status tp_custom(tp_tape *tape, const tp_custom_node *n, bd_err *err)
{
    void *ctx = NULL;
    tp_op op = {.name = n->name,
                .backward = custom_backward,
                .in = n->in,
                .n_in = n->n_in,
                .out = n->out,
                .n_out = n->n_out,
                .ctx_bytes = sizeof(custom_ctx)};
    if (!tape->grad_on || (n->n_in > 0 && !wants_grad(n->in, n->n_in))) {
        return BD_OK;
    }
    for (size_t i = 0; i < n->n_out; i++) {
        if (n->out[i]->node != NULL || n->out[i]->is_param) {
            return bd_err_set(err, BD_E_STATE, "%s: output %zu belongs to another node", n->name,
                              i);
        }
    }
    bd_status rc = record(tape, &op, &ctx, err);
    if (ctx != NULL) {
        *(custom_ctx *)ctx = (custom_ctx){.fn = n->backward, .user = n->user};
    }
    return rc;
}

/* ---- errors of ops ---- */

static void shape_text(const tp_tensor *t, char *text, size_t n_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < t->n_dims && used < n_bytes; i++) {
        int n = snprintf(text + used, n_bytes - used, "%s%zu", i == 0 ? "" : " x ", t->dims[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

bd_status tp_shape_error(bd_err *err, const char *op, const char *a_name, const tp_tensor *a,
                         const char *b_name, const tp_tensor *b)
{
    char ta[96], tb[96];
    shape_text(a, ta, sizeof(ta));
    shape_text(b, tb, sizeof(tb));
    return bd_err_set(err, BD_E_INVALID, "%s: %s [%s] does not fit %s [%s]", op, a_name, ta, b_name,
                      tb);
}

bd_status tp_need_matrix(const char *op, const tp_tensor *x, bd_err *err)
{
    char text[96];
    if (x->n_dims == 2 && x->dtype == NUM_F32) {
        return BD_OK;
    }
    shape_text(x, text, sizeof(text));
    return bd_err_set(err, BD_E_INVALID, "%s: [%s] of %s is not an f32 matrix", op, text,
                      num_dtype_name((int)x->dtype));
}
