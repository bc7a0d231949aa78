/* tape/tape_int.h - how an operation records itself. Private to tape/.
 *
 * Pattern of an op (see op_linear.c): check shapes; tp_out for every result; tp_record for the node
 * (*ctx NULL: nothing to record); fill ctx; enqueue the forward kernels. Allocation comes first, so
 * a failure leaves no half-recorded node behind: a node without a consumer is never reached.
 */
#ifndef TP_TAPE_INT_H
#define TP_TAPE_INT_H

#include "base/arena.h"

#include "tape/kernels.h"

typedef struct tp_node tp_node;
typedef bd_status (*tp_backward_fn)(tp_tape *tape, tp_node *node, bd_err *err);

struct tp_node {
    const char *name;
    tp_backward_fn backward;
    tp_tensor **in;
    size_t n_in;
    tp_tensor **out;
    size_t n_out;
    void *ctx; /* tape memory, of the op */
    uint64_t mark;
    uint64_t told; /* inputs, as bits, that tp_grad_final has dealt with */
};

/* Memory of a gradient that has served, for the next one. */
typedef struct tp_free_grad {
    float *mem;
    size_t n_floats;
} tp_free_grad;

struct tp_tape {
    tp_device *dev;
    bd_arena arena; /* nodes, tensor heads, contexts */
    tp_pool *pool;  /* tensor data */
    tp_node **nodes;
    size_t n_nodes, cap_nodes;
    tp_free_grad *free_grads;
    size_t n_free_grads, cap_free_grads;
    uint64_t mark; /* of the last reach or backward */
    bool grad_on;
};

/* Tensor without data, in tape memory. */
bd_status tp_head_new(tp_tape *tape, num_dtype dtype, int n_dims, const size_t *dims,
                      tp_tensor **out, bd_err *err);
/* New result tensor, uninitialised. */
bd_status tp_out(tp_tape *tape, int n_dims, const size_t *dims, tp_tensor **out, bd_err *err);
bd_status tp_out_dtype(tp_tape *tape, num_dtype dtype, int n_dims, const size_t *dims,
                       tp_tensor **out, bd_err *err);
/* Same shape as x. */
bd_status tp_out_like(tp_tape *tape, const tp_tensor *x, tp_tensor **out, bd_err *err);
bd_status tp_out_matrix(tp_tape *tape, size_t n, size_t c, tp_tensor **out, bd_err *err);
/* Device memory until reset, n floats. */
bd_status tp_scratch(tp_tape *tape, size_t n_floats, float **out, bd_err *err);
/* What an op tells tp_record. NULL inputs are skipped; the lists are copied. */
typedef struct tp_op {
    const char *name;
    tp_backward_fn backward;
    tp_tensor *const *in;
    size_t n_in;
    tp_tensor *const *out;
    size_t n_out;
    size_t ctx_bytes;
} tp_op;

/* Records in -> out when an input requires a gradient; then *ctx is zeroed tape memory of
 * ctx_bytes, else NULL. */
bd_status tp_record(tp_tape *tape, const tp_op *op, void **ctx, bd_err *err);

/* Within a node's backward: this node adds nothing more to the gradient of its input t, so if
 * nobody else does, its ready hook runs now and not after the whole node. Without the call it runs
 * then. */
bd_status tp_grad_final(tp_tape *tape, tp_node *node, tp_tensor *t, bd_err *err);

/* Into parts of how many elements this node, whose only input t this is and which adds all that is
 * still to come to its gradient, shall cut it; 0: as a whole is fine. */
size_t tp_grad_part_elems(const tp_node *node, const tp_tensor *t);
/* Then: the first n_elems of it are written. */
bd_status tp_grad_part(tp_tape *tape, tp_tensor *t, size_t n_elems, bd_err *err);

static inline const tp_ops *tp_k(const tp_tape *tape)
{
    return tape->dev->ops;
}

/* "linear: x [3 x 4] does not fit w [2 x 5]" */
bd_status tp_shape_error(bd_err *err, const char *op, const char *a_name, const tp_tensor *a,
                         const char *b_name, const tp_tensor *b);
/* BD_OK when x is an f32 matrix; else an error naming op. */
bd_status tp_need_matrix(const char *op, const tp_tensor *x, bd_err *err);

#endif
