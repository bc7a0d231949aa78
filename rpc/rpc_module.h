/* rpc/rpc_module.h - what can be called through distributed autograd: a table of functions beside
 * parameters.
 *
 * Layer:     rpc.
 * Threads:   forward and backward of one module run on several threads at once, under a shared lock
 *            that keeps Step out; they must not change the parameters.
 * Ownership: a module and its parameters are borrowed by the node it is registered with. What
 *            forward saves belongs to the context, which frees it with saved_free.
 */
#ifndef RPC_MODULE_H
#define RPC_MODULE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/num/dtype.h"
#include "base/num/optim.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_TENSOR_MAX_DIMS 4
#define RPC_MODULE_MAX_IO   16 /* inputs or outputs of one call */

typedef struct rpc_rref rpc_rref; /* rpc_rref.h */

/* Row-major numbers in a buffer, or a reference to what lies on another node. All zero: "no tensor"
 * (no gradient). */
typedef struct rpc_tensor {
    num_dtype dtype; /* NUM_F32 or NUM_I64 */
    int n_dims;
    size_t dims[RPC_TENSOR_MAX_DIMS];
    size_t n_elems;
    bool requires_grad;
    bd_buf *buf;    /* shared; n_elems elements from its first byte, aligned for the dtype */
    rpc_rref *rref; /* shared; then there is no buffer, and no gradient */
} rpc_tensor;

/* Uninitialised, with its own buffer. BD_E_NOMEM, BD_E_INVALID. */
bd_status rpc_tensor_new(num_dtype dtype, int n_dims, const size_t *dims,
                         rpc_tensor *out) BD_MUST_CHECK;
bd_status rpc_tensor_copy_of(num_dtype dtype, int n_dims, const size_t *dims, const void *elems,
                             rpc_tensor *out) BD_MUST_CHECK;
/* Its shape alone. */
static inline rpc_tensor rpc_tensor_shape(const rpc_tensor *t)
{
    rpc_tensor shape = *t;
    shape.buf = NULL;
    shape.rref = NULL;
    return shape;
}
/* Drops the reference to the buffer or the value; t is "no tensor" afterwards. */
void rpc_tensor_free(rpc_tensor *t);
void rpc_tensors_free(rpc_tensor *t, size_t n);
static inline float *rpc_tensor_f32(const rpc_tensor *t)
{
    return (float *)(void *)t->buf->bytes;
}
static inline int64_t *rpc_tensor_i64(const rpc_tensor *t)
{
    return (int64_t *)(void *)t->buf->bytes;
}

typedef struct rpc_param {
    const char *name;   /* "weight" */
    size_t n_rows, dim; /* dense: one row of all elements */
    bool sparse;        /* gradients come by row, and a step touches only those */
    float *value;       /* borrowed: n_rows x dim; NULL: see any_row */
    bool any_row;       /* rows are keys, any 64-bit number, and live in the node's store
                           (rpc_ag_set_store); sparse, n_rows 0 */
} rpc_param;

typedef struct rpc_ag_ctx rpc_ag_ctx;
typedef struct rpc_grad_sink rpc_grad_sink; /* where backward puts gradients of parameters */

/* Binds the context's gradients of a parameter to `tag` (the store's word, e.g. a job epoch),
 * before they are added. BD_E_FENCED: they are bound to another one. */
bd_status rpc_grad_tag(rpc_grad_sink *sink, size_t param_idx, uint64_t tag,
                       bd_err *err) BD_MUST_CHECK;
/* The context's gradient of parameter param_idx += grad. */
bd_status rpc_grad_add(rpc_grad_sink *sink, size_t param_idx, const float *grad,
                       bd_err *err) BD_MUST_CHECK;
/* Row rows[i] of the gradient += grads[i * dim ..], in this order; rows may repeat. */
bd_status rpc_grad_add_rows(rpc_grad_sink *sink, size_t param_idx, const uint64_t *rows,
                            const float *grads, size_t n, bd_err *err) BD_MUST_CHECK;

typedef struct rpc_module rpc_module;
struct rpc_module {
    const char *name; /* what callers ask for; unique on its node */
    void *self;
    const rpc_param *params;
    size_t n_params;
    const num_optim *optim; /* NULL: Step is an error */
    float hyper[NUM_OPTIM_MAX_HYPER];
    /* in -> out (cap RPC_MODULE_MAX_IO, *n_out filled; owned by the caller on BD_OK). ctx lets it
     * call other nodes. *saved: what backward needs; NULL: nothing is recorded. Inputs are checked
     * here: they come from the network. */
    bd_status (*forward)(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err);
    /* (Records of calls that forward made know their context.) grad_out[n_out] (buf NULL: zeros) ->
     * grad_in[n_in], zeroed before; fill where the input required one. Shapes of grad_out have been
     * checked against the outputs. */
    bd_status (*backward)(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err);
    void (*saved_free)(void *self, void *saved);
};

/* ---- modules that come with Braid ---- */
typedef struct rpc_optim_spec {
    const char *name; /* base/num/optim.h; NULL: none */
    double learning_rate;
} rpc_optim_spec;

/* y[n x out] = x[n x in] * w[out x in]^T (+ b[out]), then relu if wanted. Weights start at zero:
 * fill params[0].value (and params[1].value, the bias). */
typedef struct rpc_linear_spec {
    const char *name; /* borrowed */
    size_t n_in, n_out;
    bool bias, relu;
    rpc_optim_spec optim;
} rpc_linear_spec;
bd_status rpc_linear_new(const rpc_linear_spec *spec, rpc_module **out, bd_err *err) BD_MUST_CHECK;

/* Sum of rows: inputs ids i64[m], offsets i64[n] (bag i is ids[offsets[i]] up to the next offset or
 * the end); output f32[n x dim]. Sparse gradients. Rows start at zero: fill params[0].value. */
typedef struct rpc_bag_spec {
    const char *name; /* borrowed */
    size_t n_rows, dim;
    rpc_optim_spec optim;
} rpc_bag_spec;
bd_status rpc_bag_new(const rpc_bag_spec *spec, rpc_module **out, bd_err *err) BD_MUST_CHECK;

/* Of both. After the node is gone. */
void rpc_module_free(rpc_module *m);

#endif
