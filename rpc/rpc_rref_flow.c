/* Gradients of values that several nodes use, and the wave that says whose will come.
 *
 * A value's users give their gradients to its flow. What made the value goes backward with their
 * sum: with a wave once, when the last announced user has come; without one for each user, which
 * adds up to the same. Nobody blocks until another user comes, so nothing can wait for ever. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

/* ---- flows ---- */

bd_status ag_flow_get(rpc_ag_ctx *ctx, ag_value *value, ag_node *producer, ag_flow **out,
                      bd_err *err)
{
    bd_status rc = BD_OK;
    bool taken = false;
    (void)pthread_mutex_lock(&ctx->lock);
    ag_flow *f = ctx->flows;
    while (f != NULL && f->value != value) {
        f = f->next;
    }
    if (f == NULL) {
        f = bd_calloc(1, sizeof *f);
        if (f != NULL) {
            taken = true;
            f->value = value;
            f->producer = producer;
            f->next = ctx->flows;
            ctx->flows = f;
        } else {
            rc = bd_err_set(err, BD_E_NOMEM, "reference: out of memory");
        }
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    if (!taken) {
        ag_value_unref(ctx->ag, value);
    }
    *out = f;
    return rc;
}

void ag_flows_free(rpc_ag *ag, ag_flow *f)
{
    while (f != NULL) {
        ag_flow *next = f->next;
        rpc_tensors_free(f->grad, RPC_MODULE_MAX_IO);
        ag_value_unref(ag, f->value);
        bd_free(f);
        f = next;
    }
}

/* One whose maker recorded nothing takes none. */
bool ag_flow_wants_grad(const ag_flow *f)
{
    bool wants = false;
    for (size_t i = 0; i < f->value->n; i++) {
        wants = wants || f->value->t[i].requires_grad;
    }
    return wants && (f->producer == NULL || f->producer->saved != NULL);
}

bd_status ag_flows_check_locked(const rpc_ag_ctx *ctx, bd_err *err)
{
    for (const ag_flow *f = ctx->flows; f != NULL; f = f->next) {
        bool left = false;
        for (size_t i = 0; f->producer != NULL && i < f->producer->n_in; i++) {
            left = left || f->producer->collect[i].buf != NULL;
        }
        if (f->waiting > 0 || left) {
            return bd_err_set(
                err, BD_E_STATE,
                "reference %" PRIu64 "/%" PRIu64 ": %zu announced users have not gone backward%s",
                f->value->creator_id, f->value->number, f->waiting,
                left ? "; its maker has not asked for the gradients of its inputs" : "");
        }
    }
    return BD_OK;
}

/* into += t, or becomes a copy of it. */
static bd_status add_tensor(rpc_tensor *into, const rpc_tensor *t)
{
    if (t->buf == NULL) {
        return BD_OK;
    }
    if (into->buf == NULL) {
        return rpc_tensor_copy_of(t->dtype, t->n_dims, t->dims, rpc_tensor_f32(t), into);
    }
    for (size_t i = 0; i < t->n_elems; i++) {
        rpc_tensor_f32(into)[i] += rpc_tensor_f32(t)[i];
    }
    return BD_OK;
}

static bd_status add_all(rpc_tensor *into, const rpc_tensor *t, size_t n, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        rc = add_tensor(&into[i], &t[i]);
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "reference: out of memory for gradients");
}

/* Adds one user's part. *run: the maker goes backward now, with *sum (moved). */
static bd_status feed_locked(rpc_ag_ctx *ctx, ag_flow *f, const rpc_tensor *grad, size_t n,
                             uint64_t wave, rpc_tensor *sum, bool *run, bd_err *err)
{
    const bool counted = wave != 0 && wave == f->wave && f->waiting > 0;
    ag_node *p = f->producer;
    bd_status rc = ag_ctx_check_locked(ctx, err);
    *run = p != NULL && p->saved != NULL && f->waiting == (counted ? 1 : 0);
    if (rc == BD_OK && ctx->stepping) {
        rc = bd_err_set(err, BD_E_STATE, "a gradient of a value arrived during the step");
    }
    if (rc == BD_OK && *run && p->busy) {
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "what made the value is being worked on");
    }
    if (rc == BD_OK) {
        rc = add_all(f->grad, grad, n, err);
    }
    if (rc != BD_OK) {
        *run = false;
        return rc;
    }
    f->waiting -= counted ? 1 : 0;
    if (*run) {
        p->busy = true;
        memcpy(sum, f->grad, sizeof f->grad);
        memset(f->grad, 0, sizeof f->grad);
    }
    return BD_OK;
}

bd_status ag_flow_feed(rpc_ag_ctx *ctx, ag_flow *f, const rpc_tensor *grad, size_t n, uint64_t wave,
                       bd_err *err)
{
    rpc_tensor sum[RPC_MODULE_MAX_IO] = {{0}}, grad_in[RPC_MODULE_MAX_IO] = {{0}};
    bool run = false;
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = feed_locked(ctx, f, grad, n, wave, sum, &run, err);
    (void)pthread_mutex_unlock(&ctx->lock);
    if (!run) {
        return rc;
    }
    ag_node *p = f->producer;
    rc = ag_run_backward(ctx, p, sum, grad_in, err);
    (void)pthread_mutex_lock(&ctx->lock);
    p->busy = false;
    if (rc == BD_OK) {
        rc = add_all(p->collect, grad_in, p->n_in, err);
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    rpc_tensors_free(sum, RPC_MODULE_MAX_IO);
    rpc_tensors_free(grad_in, RPC_MODULE_MAX_IO);
    return rc;
}

/* ---- the wave ---- */

/* Records of calls to other nodes that the wave has newly come to. */
typedef struct reach {
    rpc_ag_msg **msgs; /* owned */
    size_t n, cap;
    bool no_memory;
} reach;

static void visit_flow(rpc_ag_ctx *ctx, ag_flow *f, uint64_t wave, reach *out);

static void visit_msg(rpc_ag_ctx *ctx, rpc_ag_msg *m, uint64_t wave, reach *out)
{
    if (!m->shared || m->remote || m->wave >= wave) {
        return;
    }
    m->wave = wave;
    m->announced = true;
    if (m->flow != NULL) {
        visit_flow(ctx, m->flow, wave, out);
        return;
    }
    void *items = out->msgs;
    out->no_memory =
        out->no_memory || !bd_grow(&items, &out->cap, out->n + 1, sizeof(rpc_ag_msg *));
    out->msgs = items;
    if (!out->no_memory) {
        out->msgs[out->n++] = m;
    }
}

/* What node's module called will go backward with it. */
static void visit_node(rpc_ag_ctx *ctx, ag_node *node, uint64_t wave, reach *out)
{
    if (node->wave >= wave) {
        return;
    }
    node->wave = wave;
    for (rpc_ag_msg *m = ctx->msgs; m != NULL; m = m->next) {
        if (m->parent == node) {
            visit_msg(ctx, m, wave, out);
        }
    }
}

/* One more user of the value will go backward. */
static void visit_flow(rpc_ag_ctx *ctx, ag_flow *f, uint64_t wave, reach *out)
{
    if (f->wave < wave) {
        f->wave = wave;
        f->waiting = 0;
    }
    f->waiting++;
    if (f->producer != NULL) {
        visit_node(ctx, f->producer, wave, out);
    }
}

static void visit_received(rpc_ag_ctx *ctx, ag_node *node, uint64_t wave, reach *out)
{
    if (node->flow == NULL || node->kept) {
        visit_node(ctx, node, wave, out);
    } else if (node->wave < wave) {
        node->wave = wave;
        node->announced = true;
        visit_flow(ctx, node->flow, wave, out);
    }
}

static bd_status pack_reach(const rpc_ag_ctx *ctx, uint64_t wave, uint64_t *ids, size_t n,
                            bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradContextId id = ag_id_of(ctx);
    Braid__V1__AutogradReachRequest q = BRAID__V1__AUTOGRAD_REACH_REQUEST__INIT;
    q.context = &id;
    q.caller_id = ctx->ag->client_id;
    q.wave = wave;
    q.sequence = ag_next_id(ctx->ag);
    q.n_message_ids = n;
    q.message_ids = ids;
    return px_pack(&q.base, out, err);
}

/* Takes the message ids of msgs[from..] that go to the same node as msgs[from]. Returns how many.
 */
static size_t take_same_peer(rpc_ag_msg **msgs, size_t from, size_t n, uint64_t *ids)
{
    size_t k = 0;
    const rpc_ag_peer *peer = msgs[from]->peer;
    for (size_t j = from; j < n; j++) {
        if (msgs[j] != NULL && msgs[j]->peer == peer) {
            ids[k++] = msgs[j]->message_id;
            msgs[j] = NULL;
        }
    }
    return k;
}

static bd_status pass_on_with(rpc_ag_ctx *ctx, uint64_t wave, rpc_ag_msg **msgs, size_t n,
                              rpc_ag_peer **peers, bd_chain *bodies, uint64_t *ids, bd_err *err)
{
    size_t n_peers = 0;
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        if (msgs[i] != NULL) {
            peers[n_peers] = msgs[i]->peer;
            size_t k = take_same_peer(msgs, i, n, ids);
            rc = pack_reach(ctx, wave, ids, k, &bodies[n_peers++], err);
        }
    }
    if (rc == BD_OK) {
        rc = ag_fan_out(ctx->ag, AG_SERVICE "Reach", peers, n_peers, bodies, n_peers,
                        ctx->ag->deadline_ms, err);
    }
    for (size_t i = 0; i < n_peers; i++) {
        bd_chain_deinit(&bodies[i]);
    }
    return rc;
}

/* One message for each node; msgs is used up. */
static bd_status pass_on(rpc_ag_ctx *ctx, uint64_t wave, rpc_ag_msg **msgs, size_t n, bd_err *err)
{
    rpc_ag_peer **peers = bd_calloc(n + 1, sizeof(rpc_ag_peer *));
    bd_chain *bodies = bd_calloc(n + 1, sizeof *bodies);
    uint64_t *ids = bd_calloc(n + 1, sizeof *ids);
    bd_status rc = BD_E_NOMEM;
    if (peers != NULL && bodies != NULL && ids != NULL) {
        rc = pass_on_with(ctx, wave, msgs, n, peers, bodies, ids, err);
    } else {
        (void)bd_err_set(err, rc, "reach: out of memory");
    }
    bd_free(ids);
    bd_free(bodies);
    bd_free(peers);
    return rc;
}

static bool in_progress(const rpc_ag_ctx *ctx, const ag_reaching *me)
{
    for (const ag_reaching *r = ctx->reaching; r != NULL; r = r->next) {
        if (r->caller_id == me->caller_id && r->sequence == me->sequence) {
            return true;
        }
    }
    return false;
}

static bd_status reach_locked(rpc_ag_ctx *ctx, ag_reaching *me,
                              const Braid__V1__AutogradReachRequest *r, reach *out, bd_err *err)
{
    bd_status rc = ag_ctx_check_locked(ctx, err);
    if (rc == BD_OK && in_progress(ctx, me)) {
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "the wave is still under way");
    }
    for (size_t i = 0; rc == BD_OK && i < r->n_message_ids; i++) {
        ag_node *node = ag_node_find_locked(ctx, r->caller_id, r->message_ids[i]);
        if (node == NULL) {
            rc = bd_err_set(err, BD_E_NOT_FOUND, "no forward with message %" PRIu64,
                            r->message_ids[i]);
        } else {
            visit_received(ctx, node, r->wave, out);
        }
    }
    if (rc == BD_OK && out->no_memory) {
        rc = bd_err_set(err, BD_E_NOMEM, "reach: out of memory");
    }
    if (rc == BD_OK) {
        me->next = ctx->reaching;
        ctx->reaching = me;
    }
    return rc;
}

static void reach_done(rpc_ag_ctx *ctx, const ag_reaching *me)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ag_reaching **p = &ctx->reaching;
    while (*p != me) {
        p = &(*p)->next;
    }
    *p = me->next;
    (void)pthread_mutex_unlock(&ctx->lock);
}

bd_status ag_reach_here(rpc_ag_ctx *ctx, const Braid__V1__AutogradReachRequest *r, bd_err *err)
{
    const uint64_t wave = r->wave;
    ag_reaching me = {.caller_id = r->caller_id, .sequence = r->sequence};
    reach out = {0};
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = reach_locked(ctx, &me, r, &out, err);
    (void)pthread_mutex_unlock(&ctx->lock);
    if (rc == BD_OK) {
        bd_err own = BD_ERR_INIT;
        rc = pass_on(ctx, wave, out.msgs, out.n, &own);
        reach_done(ctx, &me);
        if (rc != BD_OK) { /* here, for a repeat finds everything marked */
            own.code = rc;
            ag_ctx_fail(ctx, &own);
            (void)bd_err_set(err, rc, "%s", own.text);
        }
    }
    bd_free(out.msgs);
    return rc;
}

bd_status rpc_ag_reach(rpc_ag_ctx *ctx, rpc_ag_msg *const *live, size_t n, bd_err *err)
{
    reach out = {0};
    bd_err own = BD_ERR_INIT;
    const uint64_t wave = ag_next_id(ctx->ag);
    (void)pthread_mutex_lock(&ctx->lock);
    bd_status rc = ag_ctx_check_locked(ctx, &own);
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        visit_msg(ctx, live[i], wave, &out);
    }
    if (rc == BD_OK && out.no_memory) {
        rc = bd_err_set(&own, BD_E_NOMEM, "reach: out of memory");
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    if (rc == BD_OK) {
        rc = pass_on(ctx, wave, out.msgs, out.n, &own);
    }
    bd_free(out.msgs);
    if (rc != BD_OK) {
        own.code = rc;
        ag_ctx_fail(ctx, &own);
        if (err != NULL) {
            *err = own;
        }
    }
    return rc;
}

/* ---- what a module did not ask for ---- */

static rpc_ag_msg *next_unasked(rpc_ag_ctx *ctx, const ag_node *node)
{
    (void)pthread_mutex_lock(&ctx->lock);
    rpc_ag_msg *m = ctx->msgs;
    while (m != NULL && (m->parent != node || !m->announced)) {
        m = m->next;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return m;
}

bd_status ag_reach_release(rpc_ag_ctx *ctx, const ag_node *node, bd_err *err)
{
    bd_status rc = BD_OK;
    for (rpc_ag_msg *m = next_unasked(ctx, node); m != NULL && rc == BD_OK;
         m = next_unasked(ctx, node)) {
        rpc_tensor none[RPC_MODULE_MAX_IO] = {{0}}, grad_in[RPC_MODULE_MAX_IO] = {{0}};
        rc = rpc_ag_backward(m, none, m->n_out, grad_in, m->n_in, NULL, err);
        rpc_tensors_free(grad_in, m->n_in);
    }
    return rc;
}
