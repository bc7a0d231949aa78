#include "base/mem.h"

#include "tape/tape_int.h"

#include <stdatomic.h>

/* Marks are unique in the process, so a parameter that one tape marked never looks marked to
 * another. */
static _Atomic uint64_t next_mark = 1;

/* ---- reachability ---- */

/* Starts a new pass: leaves seen for the first time forget what an older pass left in them. */
static void touch_leaf(tp_tape *tape, tp_tensor *t)
{
    if (t->mark != tape->mark) {
        t->mark = tape->mark;
        t->n_pending = 0;
    }
}

static void mark_node(tp_tape *tape, tp_node *node)
{
    if (node->mark == tape->mark) {
        return;
    }
    node->mark = tape->mark;
    for (size_t i = 0; i < node->n_out; i++) {
        node->out[i]->has_grad = false;
        node->out[i]->grad = NULL;
    }
}

static void mark_tensor(tp_tape *tape, tp_tensor *t)
{
    if (t->node != NULL) {
        mark_node(tape, t->node);
    } else if (t->requires_grad) {
        touch_leaf(tape, t);
    }
}

void tp_reach(tp_tape *tape, tp_tensor *const *roots, size_t n_roots)
{
    tape->mark = atomic_fetch_add_explicit(&next_mark, 1, memory_order_relaxed);
    for (size_t i = 0; i < n_roots; i++) {
        mark_tensor(tape, roots[i]);
    }
    for (size_t i = tape->n_nodes; i-- > 0;) {
        tp_node *node = tape->nodes[i];
        for (size_t k = 0; node->mark == tape->mark && k < node->n_in; k++) {
            tp_tensor *t = node->in[k];
            mark_tensor(tape, t);
            t->n_pending += t->node == NULL && t->requires_grad;
        }
    }
}

bool tp_is_reached(const tp_tape *tape, const tp_tensor *t)
{
    uint64_t mark = t->node != NULL ? t->node->mark : t->mark;
    return tape->mark != 0 && mark == tape->mark;
}

/* ---- gradients ---- */

/* Gradients of results live from their first contribution until their node has run. Their memory is
 * handed on, so that backward works in a few blocks that stay in the cache. */
static bd_status grad_mem_take(tp_tape *tape, size_t n_floats, float **out, bd_err *err)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < tape->n_free_grads; i++) {
        size_t cap = tape->free_grads[i].n_floats;
        if (cap >= n_floats && (best == SIZE_MAX || cap < tape->free_grads[best].n_floats)) {
            best = i;
        }
    }
    if (best == SIZE_MAX) {
        return tp_scratch(tape, n_floats, out, err);
    }
    *out = tape->free_grads[best].mem;
    tape->free_grads[best] = tape->free_grads[--tape->n_free_grads];
    return BD_OK;
}

static void grad_mem_give(tp_tape *tape, tp_tensor *t)
{
    tp_tensor *g = t->grad;
    t->grad = NULL;
    if (g == NULL || t->grad_mem != NULL ||
        !bd_grow(&tape->free_grads, &tape->cap_free_grads, tape->n_free_grads + 1,
                 sizeof(*tape->free_grads))) {
        return; /* without room in the list the block is only not reused */
    }
    tape->free_grads[tape->n_free_grads++] =
        (tp_free_grad){.mem = tp_f32(g), .n_floats = g->n_elems};
}

static bd_status ensure_grad(tp_tape *tape, tp_tensor *t, bd_err *err)
{
    tp_tensor *g = t->grad;
    bd_status rc = BD_OK;
    if (g == NULL) {
        rc = tp_head_new(tape, NUM_F32, t->n_dims, t->dims, &g, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (g->data == NULL) {
        g->data = t->grad_mem;
    }
    if (g->data == NULL) {
        rc = grad_mem_take(tape, t->n_elems, (float **)&g->data, err);
    }
    if (rc == BD_OK) {
        t->grad = g;
    }
    return rc;
}

bd_status tp_grad_slot(tp_tape *tape, tp_tensor *t, float **mem, float *beta, bd_err *err)
{
    *mem = NULL;
    *beta = 0;
    if (t == NULL || !t->requires_grad) {
        return BD_OK;
    }
    bd_status rc = ensure_grad(tape, t, err);
    if (rc != BD_OK) {
        return rc;
    }
    *mem = tp_f32(t->grad);
    *beta = t->is_param || t->has_grad ? 1.0f : 0.0f;
    t->has_grad = true;
    return BD_OK;
}

bd_status tp_grad_add(tp_tape *tape, tp_tensor *t, const float *g, bd_err *err)
{
    float *mem, beta;
    bd_status rc = tp_grad_slot(tape, t, &mem, &beta, err);
    if (rc == BD_OK && mem != NULL) {
        tp_k(tape)->axpby(tape->dev, 1.0f, g, beta, mem, t->n_elems);
    }
    return rc;
}

/* ---- backward ---- */

static bd_status seed(tp_tape *tape, tp_tensor *root, const float *seed_grad, bd_err *err)
{
    if (seed_grad != NULL) {
        return tp_grad_add(tape, root, seed_grad, err);
    }
    float *mem, beta;
    bd_status rc = tp_grad_slot(tape, root, &mem, &beta, err);
    if (rc == BD_OK && mem != NULL) {
        tp_k(tape)->fill(tape->dev, 1.0f, beta, mem, root->n_elems);
    }
    return rc;
}

static bd_status leaf_ready(tp_tape *tape, tp_tensor *leaf, bd_err *err)
{
    if (leaf->on_ready == NULL) {
        return BD_OK;
    }
    return leaf->on_ready(leaf->on_ready_user, leaf, tp_device_record(tape->dev), err);
}

static bool is_leaf(const tp_tensor *t)
{
    return t->node == NULL && t->requires_grad;
}

bd_status tp_grad_final(tp_tape *tape, tp_node *node, tp_tensor *t, bd_err *err)
{
    for (size_t i = 0; t != NULL && i < node->n_in && i < 64; i++) {
        uint64_t bit = UINT64_C(1) << i;
        if (node->in[i] == t && is_leaf(t) && (node->told & bit) == 0) {
            node->told |= bit;
            return --t->n_pending == 0 ? leaf_ready(tape, t, err) : BD_OK;
        }
    }
    return BD_OK;
}

size_t tp_grad_part_elems(const tp_node *node, const tp_tensor *t)
{
    size_t n_uses = 0;
    for (size_t i = 0; i < node->n_in; i++) {
        n_uses += node->in[i] == t ? 1 : 0;
    }
    bool is_wanted = is_leaf(t) && t->on_part != NULL && t->n_pending == 1 && n_uses == 1;
    return is_wanted && t->part_elems > 0 && t->part_elems < t->n_elems ? t->part_elems : 0;
}

bd_status tp_grad_part(tp_tape *tape, tp_tensor *t, size_t n_elems, bd_err *err)
{
    return t->on_part(t->on_part_user, t, n_elems, tp_device_record(tape->dev), err);
}

static bool any_out_grad(const tp_node *node)
{
    for (size_t i = 0; i < node->n_out; i++) {
        if (node->out[i]->has_grad) {
            return true;
        }
    }
    return false;
}

static bd_status run_node(tp_tape *tape, tp_node *node, bd_err *err)
{
    bd_status rc = BD_OK;
    node->told = 0;
    if (any_out_grad(node)) {
        rc = node->backward(tape, node, err);
    }
    for (size_t i = 0; rc == BD_OK && i < node->n_in; i++) {
        tp_tensor *t = node->in[i];
        bool told = i < 64 && (node->told >> i & 1) != 0;
        if (!told && is_leaf(t) && --t->n_pending == 0) {
            rc = leaf_ready(tape, t, err);
        }
    }
    /* The gradients of the outputs have served; the next nodes may write theirs there. */
    for (size_t i = 0; i < node->n_out; i++) {
        grad_mem_give(tape, node->out[i]);
    }
    return rc;
}

bd_status tp_backward_roots(tp_tape *tape, tp_tensor *const *roots, const float *const *seed_grads,
                            size_t n_roots, bd_err *err)
{
    for (size_t i = 0; i < n_roots; i++) {
        if (!roots[i]->requires_grad) {
            return bd_err_set(err, BD_E_STATE, "backward: root %zu depends on no gradient", i);
        }
    }
    tp_reach(tape, roots, n_roots);
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < n_roots; i++) {
        rc = seed(tape, roots[i], seed_grads == NULL ? NULL : seed_grads[i], err);
    }
    /* A root that is itself a leaf and used by no other root is final already. */
    for (size_t i = 0; rc == BD_OK && i < n_roots; i++) {
        tp_tensor *t = roots[i];
        if (t->node == NULL && t->n_pending == 0) {
            t->n_pending = UINT32_MAX; /* not twice for a root given twice */
            rc = leaf_ready(tape, t, err);
        }
    }
    for (size_t i = tape->n_nodes; rc == BD_OK && i-- > 0;) {
        if (tape->nodes[i]->mark == tape->mark) {
            rc = run_node(tape, tape->nodes[i], err);
        }
    }
    return rc == BD_OK ? tp_device_check(tape->dev, err) : rc;
}

bd_status tp_backward(tp_tape *tape, tp_tensor *root, const float *seed_grad, bd_err *err)
{
    return tp_backward_roots(tape, &root, &seed_grad, 1, err);
}
