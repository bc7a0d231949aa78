/* What one context holds on one node. */
#include "base/mem.h"

#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

rpc_ag_ctx *ag_ctx_new(rpc_ag *ag, uint64_t client_id, uint64_t number)
{
    rpc_ag_ctx *ctx = bd_calloc(1, sizeof *ctx);
    if (ctx != NULL) {
        ctx->ag = ag;
        ctx->client_id = client_id;
        ctx->number = number;
        atomic_init(&ctx->refs, 1);
        (void)pthread_mutex_init(&ctx->lock, NULL);
    }
    return ctx;
}

void ag_node_free(ag_node *node)
{
    if (node == NULL) {
        return;
    }
    if (node->saved != NULL) {
        const rpc_module *m = node->module->m;
        m->saved_free(m->self, node->saved);
    }
    for (size_t i = 0; i < RPC_MODULE_MAX_IO; i++) {
        rpc_rref_unref(node->held[i]);
    }
    bd_chain_deinit(&node->forward_reply);
    rpc_tensors_free(node->collect, RPC_MODULE_MAX_IO);
    bd_chain_deinit(&node->last_reply);
    bd_free(node);
}

void ag_ctx_destroy(rpc_ag_ctx *ctx)
{
    while (ctx->nodes != NULL) {
        ag_node *n = ctx->nodes;
        ctx->nodes = n->next;
        ag_node_free(n);
    }
    while (ctx->msgs != NULL) {
        rpc_ag_msg *m = ctx->msgs;
        ctx->msgs = m->next;
        ag_msg_free(m);
    }
    while (ctx->slots != NULL) {
        ag_slot *s = ctx->slots;
        ctx->slots = s->next;
        bd_free(s->grad);
        bd_free(s);
    }
    while (ctx->strands != NULL) {
        ag_strand *s = ctx->strands;
        ctx->strands = s->next;
        bd_free(s);
    }
    ag_flows_free(ctx->ag, ctx->flows);
    ag_grads_free(ctx->grads);
    bd_free(ctx->reached);
    (void)pthread_mutex_destroy(&ctx->lock);
    bd_free(ctx);
}

void ag_ctx_unref(rpc_ag_ctx *ctx)
{
    if (ctx != NULL && atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) == 1) {
        ag_ctx_destroy(ctx);
    }
}

uint64_t rpc_ag_ctx_number(const rpc_ag_ctx *ctx)
{
    return ctx->number;
}

bd_status ag_ctx_check_locked(const rpc_ag_ctx *ctx, bd_err *err)
{
    if (ctx->failed) {
        return bd_err_set(err, ctx->failure.code, "%s", ctx->failure.text);
    }
    if (ctx->ended) {
        return bd_err_set(err, BD_E_STATE, "context %" PRIu64 "/%" PRIu64 ": has ended",
                          ctx->client_id, ctx->number);
    }
    return BD_OK;
}

bd_status rpc_ag_check(rpc_ag_ctx *ctx, bd_err *err)
{
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, err);
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}

bd_status ag_ctx_reach(rpc_ag_ctx *ctx, rpc_ag_peer *peer, bd_err *err)
{
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, err);
    bool known = false;
    for (size_t i = 0; i < ctx->n_reached; i++) {
        known = known || ctx->reached[i].peer == peer;
    }
    if (rc == BD_OK && !known) {
        void *items = ctx->reached;
        if (bd_grow(&items, &ctx->cap_reached, ctx->n_reached + 1, sizeof *ctx->reached)) {
            ctx->reached = items;
            ctx->reached[ctx->n_reached++] = (ag_reached){.peer = peer};
        } else {
            rc = bd_err_set(err, BD_E_NOMEM, "autograd context: out of memory");
        }
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}

rpc_ag_peer **ag_ctx_peers(rpc_ag_ctx *ctx, size_t *n)
{
    (void)pthread_mutex_lock(&ctx->lock);
    size_t k = 0;
    rpc_ag_peer **list =
        ctx->n_reached > 0 ? bd_calloc(ctx->n_reached, sizeof(rpc_ag_peer *)) : NULL;
    for (size_t i = 0; i < ctx->n_reached; i++) {
        if (!ctx->reached[i].ended) {
            if (list != NULL) {
                list[k] = ctx->reached[i].peer;
            }
            k++;
        }
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    *n = k;
    return list;
}

ag_node *ag_node_find_locked(rpc_ag_ctx *ctx, uint64_t caller_id, uint64_t message_id)
{
    for (ag_node *n = ctx->nodes; n != NULL; n = n->next) {
        if (n->caller_id == caller_id && n->message_id == message_id) {
            return n;
        }
    }
    return NULL;
}

static bd_status answer_again_locked(const ag_node *node, bd_chain *reply, bd_err *err)
{
    if (node->busy && node->forward_reply.n_pieces == 0) {
        return bd_err_set(err, BD_E_UNAVAILABLE, "the forward of this message still runs");
    }
    if (node->forward_reply.n_pieces == 0) {
        return bd_err_set(err, BD_E_STATE, "forward came again after its backward");
    }
    return bd_chain_add_chain(reply, &node->forward_reply);
}

bd_status ag_node_claim(rpc_ag_ctx *ctx, uint64_t caller_id, uint64_t message_id, ag_node **out,
                        bd_chain *reply, bd_err *err)
{
    *out = NULL;
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, err);
    ag_node *node = ag_node_find_locked(ctx, caller_id, message_id);
    if (rc == BD_OK && node != NULL) {
        rc = answer_again_locked(node, reply, err);
    } else if (rc == BD_OK) {
        node = bd_calloc(1, sizeof *node);
        if (node == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "out of memory");
        } else {
            node->caller_id = caller_id;
            node->message_id = message_id;
            node->busy = true;
            node->next = ctx->nodes;
            ctx->nodes = node;
            *out = node;
        }
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}

void ag_node_drop(rpc_ag_ctx *ctx, ag_node *node)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ag_node **p = &ctx->nodes;
    while (*p != node) {
        p = &(*p)->next;
    }
    *p = node->next;
    for (ag_flow *f = ctx->flows; f != NULL; f = f->next) {
        f->producer = f->producer == node ? NULL : f->producer;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    ag_node_free(node);
}

/* NULL: out of memory. */
static const ag_slot *slot_get_locked(rpc_ag_ctx *ctx, size_t slot, size_t n_elems)
{
    for (const ag_slot *s = ctx->slots; s != NULL; s = s->next) {
        if (s->slot == slot) {
            return s;
        }
    }
    ag_slot *s = bd_calloc(1, sizeof *s);
    float *mem = bd_calloc(n_elems + 1, sizeof *mem);
    if (s == NULL || mem == NULL) {
        bd_free(s);
        bd_free(mem);
        return NULL;
    }
    *s = (ag_slot){slot, n_elems, mem, ctx->slots};
    ctx->slots = s;
    return s;
}

bd_status rpc_ag_local_grad(rpc_ag_ctx *ctx, size_t slot, size_t n_elems, float **grad, bd_err *err)
{
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, err);
    const ag_slot *s = rc == BD_OK ? slot_get_locked(ctx, slot, n_elems) : NULL;
    if (s != NULL && s->n_elems != n_elems) {
        rc = bd_err_set(err, BD_E_INVALID, "gradient slot %zu has %zu elements, not %zu", slot,
                        s->n_elems, n_elems);
    } else if (s != NULL) {
        *grad = s->grad;
    } else if (rc == BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "autograd context: out of memory");
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}
