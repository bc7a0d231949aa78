/* What other nodes ask about references: Fetch, Fork, DeleteFork, Reach. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_ag_work_int.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

/* ---- fetch ---- */

static bd_status pack_value(ag_work *w, const ag_value *v, bool recorded)
{
    Braid__V1__AutogradForwardReply reply;
    ag_wire_tensors t;
    braid__v1__autograd_forward_reply__init(&reply);
    ag_wire_fill(&t, v->t, v->n);
    reply.n_outputs = v->n;
    reply.outputs = t.list;
    reply.recorded = recorded;
    reply.shared = recorded;
    return px_pack(&reply.base, &w->reply, &w->err);
}

/* Fills the claimed record. */
static bd_status record_fetch(ag_work *w, ag_node *node, ag_flow *flow)
{
    const ag_value *v = flow->value;
    bd_status rc = pack_value(w, v, ag_flow_wants_grad(flow));
    (void)pthread_mutex_lock(&w->ctx->lock);
    rc = rc == BD_OK ? ag_ctx_check_locked(w->ctx, &w->err) : rc;
    rc = rc == BD_OK ? bd_chain_add_chain(&node->forward_reply, &w->reply) : rc;
    if (rc == BD_OK) {
        node->flow = ag_flow_wants_grad(flow) ? flow : NULL;
        node->n_out = v->n;
        for (size_t i = 0; i < v->n; i++) {
            node->out[i] = rpc_tensor_shape(&v->t[i]);
        }
        node->busy = false;
    }
    (void)pthread_mutex_unlock(&w->ctx->lock);
    return rc;
}

/* v's reference is taken. */
static bd_status fetch_in_context(ag_work *w, const Braid__V1__AutogradFetchRequest *r, ag_value *v)
{
    ag_node *node = NULL;
    ag_flow *flow = NULL;
    bd_status rc = ag_node_claim(w->ctx, r->caller_id, r->message_id, &node, &w->reply, &w->err);
    if (rc != BD_OK || node == NULL) {
        w->late = rc == BD_E_STATE;
        ag_value_unref(w->ag, v);
        return rc;
    }
    rc = ag_flow_get(w->ctx, v, NULL, &flow, &w->err);
    rc = rc == BD_OK ? record_fetch(w, node, flow) : rc;
    if (rc != BD_OK) {
        bd_chain_deinit(&w->reply);
        ag_node_drop(w->ctx, node);
    }
    return rc;
}

static bd_status fetch(ag_work *w, const Braid__V1__AutogradFetchRequest *r)
{
    if (r->rref == NULL) {
        return bd_err_set(&w->err, BD_E_INVALID, "the request names no reference");
    }
    ag_value *v = ag_value_get(w->ag, r->rref);
    if (v == NULL) {
        return bd_err_set(&w->err, BD_E_NOT_FOUND, "no value of reference %" PRIu64 "/%" PRIu64,
                          r->rref->creator_id, r->rref->number);
    }
    if (w->ctx != NULL) {
        return fetch_in_context(w, r, v);
    }
    bd_status rc = pack_value(w, v, false);
    ag_value_unref(w->ag, v);
    return rc;
}

static void on_fetch(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_fetch_request__descriptor);
    const Braid__V1__AutogradFetchRequest *r = (const void *)w.msg;
    if (rc == BD_OK && r->context != NULL) {
        rc = ag_work_context(&w, r->context, true);
        ag_work_heard(&w, r->caller_id);
    } else if (rc == BD_OK) { /* without a context the caller's own lease decides */
        rc = ag_client_touch(w.ag, r->caller_id, &w.err);
    }
    if (rc == BD_OK) {
        rc = fetch(&w, r);
        rc = rc == BD_OK || rc == BD_E_UNAVAILABLE || w.late || w.ctx == NULL
                 ? rc
                 : ag_work_failed(&w, rc);
    }
    ag_work_end(&w, req, rc);
}

/* ---- forks ---- */

static void fork_or_delete(void *user, rpc_req *req,
                           bd_status (*fn)(rpc_ag *, const Braid__V1__AutogradForkRequest *,
                                           bd_err *))
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_fork_request__descriptor);
    const Braid__V1__AutogradForkRequest *r = (const void *)w.msg;
    if (rc == BD_OK && (r->rref == NULL || r->client_id == 0 || r->fork == 0)) {
        rc = bd_err_set(&w.err, BD_E_INVALID, "the request names no reference, node or fork");
    }
    if (rc == BD_OK) {
        rc = fn(w.ag, r, &w.err);
    }
    ag_work_end(&w, req, rc);
}

static void on_fork(void *user, rpc_req *req)
{
    fork_or_delete(user, req, ag_value_fork);
}

static void on_delete_fork(void *user, rpc_req *req)
{
    fork_or_delete(user, req, ag_value_delete_fork);
}

/* ---- the wave ---- */

static void on_reach(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_reach_request__descriptor);
    const Braid__V1__AutogradReachRequest *r = (const void *)w.msg;
    if (rc == BD_OK) {
        rc = ag_work_context(&w, r->context, false);
    }
    if (rc == BD_OK) {
        ag_work_heard(&w, r->caller_id);
        rc = ag_reach_here(w.ctx, r, &w.err);
        rc = rc == BD_OK || rc == BD_E_UNAVAILABLE ? rc : ag_work_failed(&w, rc);
    }
    ag_work_end(&w, req, rc);
}

bd_status ag_rref_serve(rpc_ag *ag, rpc_server *server)
{
    static const struct {
        const char *method;
        rpc_handler_fn fn;
    } methods[] = {
        {AG_SERVICE "Fetch", on_fetch},
        {AG_SERVICE "Fork", on_fork},
        {AG_SERVICE "DeleteFork", on_delete_fork},
        {AG_SERVICE "Reach", on_reach},
    };
    bd_status rc = BD_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && rc == BD_OK; i++) {
        rc = rpc_server_register(server, methods[i].method, methods[i].fn, ag);
    }
    return rc;
}
