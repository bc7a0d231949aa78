/* tape/tape.h - the define-by-run tape: operations record themselves, backward runs them in
 * reverse.
 *
 * Layer:     tape.
 * Threads:   a tape belongs to one thread; tapes on different threads are independent as long as
 *            they share no tensors.
 * Ownership: results, nodes and gradients of non-parameters belong to the tape and die at
 *            tp_tape_reset, which keeps the memory: a steady loop does not touch the heap.
 * Errors:    a failed op or backward leaves the tape usable: nothing is half recorded; after a
 *            failed backward the gradients are undefined (zero them, reset and go on).
 * Order:     nodes run in reverse order of recording, so gradients of a leaf are summed in one
 * fixed order, and leaves become final in a fixed order. Read next: tape/ops.h (the operations),
 * tape/tape_int.h (writing one).
 */
#ifndef TP_TAPE_H
#define TP_TAPE_H

#include "tape/tensor.h"

typedef struct tp_tape tp_tape;

bd_status tp_tape_new(tp_device *dev, tp_tape **out, bd_err *err) BD_MUST_CHECK;
void tp_tape_free(tp_tape *tape);
tp_device *tp_tape_device(const tp_tape *tape);
/* Forgets all nodes and tensors; parameters keep values and gradients. */
void tp_tape_reset(tp_tape *tape);
/* false: ops compute but record nothing (evaluation). Returns the old setting. */
bool tp_tape_set_grad(tp_tape *tape, bool enabled);
size_t tp_tape_n_nodes(const tp_tape *tape);

/* Uninitialised f32 tensor in the tape's memory: a constant, or a leaf when requires_grad. */
bd_status tp_tape_tensor(tp_tape *tape, int n_dims, const size_t *dims, bool requires_grad,
                         tp_tensor **out, bd_err *err) BD_MUST_CHECK;
/* The same around data (borrowed until reset; device-addressable). grad: where its gradient shall
 * be written (borrowed, n_elems floats), or NULL for tape memory. */
bd_status tp_tape_wrap(tp_tape *tape, int n_dims, const size_t *dims, float *data,
                       bool requires_grad, float *grad, tp_tensor **out, bd_err *err) BD_MUST_CHECK;

/* ---- backward ---- */

/* tp_backward - adds d(sum(seed * root))/d(leaf) to every leaf that root depends on.
 *
 *   seed_grad  n_elems of root (device memory), or NULL: ones
 *
 * May be called several times on one tape (leaf gradients accumulate), and on several roots at
 * once with tp_backward_roots, where each hook still fires once. A root that needs no gradient is
 * BD_E_STATE. Errors of hooks, custom nodes and the device come back. */
bd_status tp_backward(tp_tape *tape, tp_tensor *root, const float *seed_grad,
                      bd_err *err) BD_MUST_CHECK;
bd_status tp_backward_roots(tp_tape *tape, tp_tensor *const *roots, const float *const *seed_grads,
                            size_t n_roots, bd_err *err) BD_MUST_CHECK;

/* tp_reach - marks everything the roots depend on; tp_is_reached then answers for a leaf or the
 * output of a node, until the next reach or backward on this tape. Runs nothing. */
void tp_reach(tp_tape *tape, tp_tensor *const *roots, size_t n_roots);
bool tp_is_reached(const tp_tape *tape, const tp_tensor *t);

/* ---- user nodes ---- */

/* Runs when all gradients of the outputs are there: out[i]->grad is NULL when nothing depended on
 * out[i]. Gives gradients of inputs by tp_grad_add or tp_grad_slot; inputs that do not require one
 * are skipped by tp_grad_add. */
typedef bd_status (*tp_custom_fn)(void *user, tp_tape *tape, tp_tensor *const *in, size_t n_in,
                                  tp_tensor *const *out, size_t n_out, bd_err *err);

typedef struct tp_custom_node {
    const char *name;     /* for error texts, borrowed */
    tp_tensor *const *in; /* [n_in] copied */
    size_t n_in;
    tp_tensor *const *out; /* [n_out] copied */
    size_t n_out;
    tp_custom_fn backward;
    void *user; /* borrowed until reset */
} tp_custom_node;

/* tp_custom - makes `out` (fresh tensors of this tape that nothing has used yet) depend on `in`.
 *
 * The caller has computed or received their values already. With n_in 0 the node still runs in
 * backward (a receive whose gradient goes elsewhere). BD_E_STATE when an output is not fresh. */
bd_status tp_custom(tp_tape *tape, const tp_custom_node *node, bd_err *err) BD_MUST_CHECK;

/* Enqueues grad(t) += g for n_elems floats; no-op when t needs no gradient. Only in a backward
 * function. */
bd_status tp_grad_add(tp_tape *tape, tp_tensor *t, const float *g, bd_err *err) BD_MUST_CHECK;
/* Where the gradient of t goes: *beta 0: overwrite it, 1: add to it. *mem NULL: not wanted. After
 * BD_OK the caller must write it. */
bd_status tp_grad_slot(tp_tape *tape, tp_tensor *t, float **mem, float *beta,
                       bd_err *err) BD_MUST_CHECK;

#endif
