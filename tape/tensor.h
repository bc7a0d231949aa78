/* tape/tensor.h - a dense block of numbers on a device, and its gradient.
 *
 * Layer:     tape.
 * Layout:    row-major, 1 to 4 dimensions; a dimension may be 0. Kernels take NUM_F32; other dtypes
 *            are storage (NUM_F64 for sums of losses).
 * Ownership: tensors from tp_tensor_new / tp_param_new are on the heap, live until tp_tensor_free
 *            and may be used by many steps; tensors from a tape (tape.h) die at tp_tape_reset.
 * Gradients: t->grad has t's shape. A parameter's is there for its whole life and backward adds to
 *            it (tp_tensor_zero_grad between steps); its memory may be moved (tp_param_bind_grad),
 *            e.g. into a reducer's bucket or to another autograd context. Any other tensor has
 *            t->grad NULL until a backward reaches it.
 * Threads:   a tensor belongs to the thread of the tape that uses it; one tape at a time.
 */
#ifndef TP_TENSOR_H
#define TP_TENSOR_H

#include "base/num/dtype.h"

#include "tape/device.h"

#define TP_MAX_DIMS 4

typedef struct tp_tensor tp_tensor;
struct tp_node;

/* leaf's gradient is final for this backward once `ready` is done. An error stops backward and is
 * returned by it. */
typedef bd_status (*tp_ready_fn)(void *user, tp_tensor *leaf, tp_event ready, bd_err *err);

/* The first n_elems of leaf's gradient are final once `ready` is done; more will be. */
typedef bd_status (*tp_part_fn)(void *user, tp_tensor *leaf, size_t n_elems, tp_event ready,
                                bd_err *err);

struct tp_tensor {
    tp_device *dev; /* borrowed */
    void *data;     /* device memory */
    num_dtype dtype;
    int n_dims;
    size_t dims[TP_MAX_DIMS];
    size_t n_elems;
    char *name;         /* owned copy for heap tensors; NULL in a tape: for error texts */
    bool requires_grad; /* a leaf that wants one, or computed from such */
    tp_tensor *grad;    /* same owner as this tensor */
    /* The rest is the tape's. */
    void *own_data;  /* owned block of a heap tensor; data may point elsewhere */
    float *grad_mem; /* where the caller wants a leaf's gradient, or NULL */
    bool is_param;
    struct tp_node *node; /* producer; NULL: leaf */
    uint64_t mark;        /* last reachability pass that saw this leaf */
    uint32_t n_pending;   /* uses not yet processed in the running backward */
    bool has_grad;        /* a contribution has been written in this backward */
    tp_ready_fn on_ready;
    void *on_ready_user;
    tp_part_fn on_part; /* NULL: the gradient is wanted as a whole */
    void *on_part_user;
    size_t part_elems;
};

/* Zeroed heap tensor without gradient (buffers, constants). name may be NULL. BD_E_NOMEM,
 * BD_E_INVALID for bad dims. */
bd_status tp_tensor_new(tp_device *dev, const char *name, num_dtype dtype, int n_dims,
                        const size_t *dims, tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* Zeroed f32 heap tensor with requires_grad and its own zeroed gradient memory. */
bd_status tp_param_new(tp_device *dev, const char *name, int n_dims, const size_t *dims,
                       tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* Heap tensors only; NULL is fine. */
void tp_tensor_free(tp_tensor *t);

/* Moves a parameter's gradient to mem (borrowed, n_elems floats; contents are not copied); NULL:
 * back to its own memory. */
void tp_param_bind_grad(tp_tensor *param, float *mem);
/* Enqueues grad = 0 (no-op without gradient). */
void tp_tensor_zero_grad(tp_tensor *t);

/* tp_set_ready_hook - fn is called once in every backward that reaches this leaf, as soon as its
 * gradient is final, while backward still runs. fn NULL removes it. Leaves only. */
void tp_set_ready_hook(tp_tensor *leaf, tp_ready_fn fn, void *user);
/* tp_set_part_hook - an operation that can will compute leaf's gradient in parts of part_elems or
 * more, from its first element on, and call fn after each but the last (then the ready hook comes),
 * in every backward whose last use of the leaf it is. fn NULL removes it. */
void tp_set_part_hook(tp_tensor *leaf, tp_part_fn fn, void *user, size_t part_elems);

/* tp_read - the one way for the host to see results: waits for what was enqueued, then gives the
 * elements (borrowed: until the tensor changes or dies). */
bd_status tp_read(const tp_tensor *t, const void **host, bd_err *err) BD_MUST_CHECK;
/* Copies n_elems elements from host memory into the tensor (all of it). */
bd_status tp_write(tp_tensor *t, const void *host, bd_err *err) BD_MUST_CHECK;

static inline float *tp_f32(const tp_tensor *t)
{
    return (float *)t->data;
}
/* Rows and columns of a tensor seen as a matrix: the first dimension by the product of the rest. */
static inline size_t tp_rows(const tp_tensor *t)
{
    return t->dims[0];
}
size_t tp_cols(const tp_tensor *t);

#endif
