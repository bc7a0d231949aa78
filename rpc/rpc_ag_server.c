/* The Autograd service: what other nodes ask of this one. Handlers run on the env's pool and may
 * call further nodes. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_ag_work_int.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

bd_status ag_work_begin(ag_work *w, void *user, rpc_req *req,
                        const ProtobufCMessageDescriptor *type)
{
    *w = (ag_work){.ag = user, .err = BD_ERR_INIT};
    if (rpc_req_cancelled(req)) {
        return bd_err_set(&w->err, BD_E_CANCELLED, "the caller has given up");
    }
    return px_unpack(type, rpc_req_body(req), AG_MAX_BYTES, &w->msg, &w->err);
}

bd_status ag_work_context(ag_work *w, const Braid__V1__AutogradContextId *id, bool create)
{
    if (id == NULL || id->client_id == 0 || id->number == 0) {
        return bd_err_set(&w->err, BD_E_INVALID, "the request names no context");
    }
    bd_status rc = ag_ctx_get(w->ag, id->client_id, id->number, create, &w->ctx, &w->err);
    return rc == BD_OK ? rpc_ag_check(w->ctx, &w->err) : rc;
}

void ag_work_heard(ag_work *w, uint64_t caller_id)
{
    if (w->ctx != NULL && w->ctx->client_id != caller_id) { /* its client was heard with it */
        ag_client_hear(w->ag, caller_id);
    }
}

void ag_work_end(ag_work *w, rpc_req *req, bd_status rc)
{
    ag_ctx_unref(w->ctx);
    px_unpacked_free(w->msg);
    if (rc == BD_OK) {
        rpc_req_reply(req, &w->reply);
    } else {
        w->err.code = rc;
        ag_err_on_node(&w->err, w->ag->name);
        rpc_req_fail(req, &w->err);
    }
    bd_chain_deinit(&w->reply);
}

bd_status ag_work_failed(ag_work *w, bd_status rc)
{
    w->err.code = rc;
    ag_err_on_node(&w->err, w->ag->name);
    ag_ctx_fail(w->ctx, &w->err);
    return rc;
}

/* ---- forward ---- */

static bool reaches_values(const rpc_ag_ctx *ctx, const ag_node *node)
{
    for (const rpc_ag_msg *m = ctx->msgs; m != NULL; m = m->next) {
        if (m->parent == node && m->shared) {
            return true;
        }
    }
    return false;
}

static bd_status pack_forward(ag_work *w, ag_node *node, const rpc_tensor *out, size_t n_out,
                              bool recorded)
{
    Braid__V1__AutogradForwardReply reply;
    ag_wire_tensors t;
    braid__v1__autograd_forward_reply__init(&reply);
    if (node->kept) {
        reply.node = w->ag->name;
    } else {
        ag_wire_fill(&t, out, n_out);
        reply.n_outputs = n_out;
        reply.outputs = t.list;
    }
    (void)pthread_mutex_lock(&w->ctx->lock);
    node->shared = reaches_values(w->ctx, node);
    (void)pthread_mutex_unlock(&w->ctx->lock);
    reply.recorded = recorded;
    reply.shared = node->shared;
    reply.instance = w->ag->instance;
    return px_pack(&reply.base, &w->reply, &w->err);
}

/* Fills the record: from here a backward may come. saved moved on BD_OK. */
static bd_status record(ag_work *w, ag_node *node, size_t n_in, const rpc_tensor *out, size_t n_out,
                        void *saved)
{
    (void)pthread_mutex_lock(&w->ctx->lock);
    bd_status rc = ag_ctx_check_locked(w->ctx, &w->err);
    if (rc == BD_OK) {
        rc = bd_chain_add_chain(&node->forward_reply, &w->reply);
    }
    if (rc == BD_OK) {
        node->saved = saved;
        node->n_in = n_in;
        node->n_out = n_out;
        for (size_t i = 0; i < n_out; i++) {
            node->out[i] = rpc_tensor_shape(&out[i]);
            node->held[i] = out[i].rref != NULL ? rpc_rref_ref(out[i].rref) : NULL;
        }
        node->busy = false;
    }
    (void)pthread_mutex_unlock(&w->ctx->lock);
    return rc;
}

/* The outputs become a value; the shapes stay in out. */
static bd_status keep_outputs(ag_work *w, const Braid__V1__AutogradForwardRequest *r, ag_node *node,
                              rpc_tensor *out, size_t n_out)
{
    ag_value *v = NULL;
    rpc_tensor moved[RPC_MODULE_MAX_IO] = {{0}};
    for (size_t i = 0; i < n_out; i++) {
        if (out[i].buf == NULL) {
            return bd_err_set(&w->err, BD_E_INVALID, "%s: an output that stays here is no tensor",
                              node->module->m->name);
        }
        moved[i] = out[i];
        out[i] = rpc_tensor_shape(&out[i]);
    }
    bd_status rc = ag_value_new(w->ag, r->caller_id, r->keep, moved, n_out, &v);
    if (rc != BD_OK) {
        rpc_tensors_free(moved, n_out);
        return bd_err_set(&w->err, rc, "reference %" PRIu64 "/%" PRIu64 ": %s", r->caller_id,
                          r->keep, bd_status_text(rc));
    }
    rc = ag_flow_get(w->ctx, v, node, &node->flow, &w->err);
    node->kept = rc == BD_OK;
    return rc;
}

static bd_status forward_once(ag_work *w, const Braid__V1__AutogradForwardRequest *r, ag_node *node)
{
    rpc_tensor in[RPC_MODULE_MAX_IO] = {{0}}, out[RPC_MODULE_MAX_IO] = {{0}};
    size_t n_in = 0, n_out = 0;
    void *saved = NULL;
    const rpc_module *m = node->module->m;
    bd_status rc = ag_tensors_from_wire(r->inputs, r->n_inputs, "inputs", in, &w->err);
    if (rc == BD_OK) {
        n_in = r->n_inputs;
        rc = ag_rrefs_import(w->ag, r->inputs, n_in, in, &w->err);
    }
    if (rc == BD_OK) {
        rc = ag_run_forward(w->ctx, node, in, n_in, out, &n_out, &saved, &w->err);
    }
    if (rc == BD_OK && r->keep != 0) {
        rc = keep_outputs(w, r, node, out, n_out);
    }
    for (size_t i = 0; rc == BD_OK && i < n_out; i++) {
        rc = out[i].rref != NULL ? rpc_rref_wait(out[i].rref, &w->err) : BD_OK;
    }
    if (rc == BD_OK) {
        rc = pack_forward(w, node, out, n_out, saved != NULL);
    }
    if (rc == BD_OK) {
        rc = record(w, node, n_in, out, n_out, saved);
    }
    if (rc != BD_OK && saved != NULL) {
        m->saved_free(m->self, saved);
    }
    rpc_tensors_free(in, n_in);
    rpc_tensors_free(out, n_out);
    return rc;
}

static bd_status forward_in_context(ag_work *w, const Braid__V1__AutogradForwardRequest *r)
{
    ag_node *node = NULL;
    ag_module *module = ag_module_find(w->ag, r->module);
    if (module == NULL) {
        return bd_err_set(&w->err, BD_E_NOT_FOUND, "no module named \"%.*s\"", AG_NAME_MAX_BYTES,
                          r->module);
    }
    bd_status rc = ag_node_claim(w->ctx, r->caller_id, r->message_id, &node, &w->reply, &w->err);
    if (rc != BD_OK || node == NULL) {
        w->late = rc == BD_E_STATE;
        return rc;
    }
    node->module = module;
    rc = forward_once(w, r, node);
    if (rc != BD_OK) {
        bd_chain_deinit(&w->reply);
        ag_node_drop(w->ctx, node);
    }
    return rc;
}

/* New, unless it was stepped by the process before this one: then its client needs nothing of it.
 */
static bd_status open_context(ag_work *w, const Braid__V1__AutogradContextId *id)
{
    bd_status rc = ag_work_context(w, id, false);
    if (rc != BD_E_NOT_FOUND || w->ctx != NULL) { /* one that is here may have failed with it */
        return rc;
    }
    if (ag_vote_stepped(w->ag, id, NULL)) {
        return bd_err_set(&w->err, BD_E_STATE, "context %" PRIu64 "/%" PRIu64 ": has been stepped",
                          id->client_id, id->number);
    }
    return ag_work_context(w, id, true);
}

/* A step that meant the process before this one: what it had is gone. */
static bd_status check_instance(ag_work *w, uint64_t instance)
{
    if (instance == 0 || instance == w->ag->instance) {
        return BD_OK;
    }
    return bd_err_set(&w->err, BD_E_NOT_FOUND,
                      "the node has started anew, and lost its part of the context");
}

static void on_forward(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_forward_request__descriptor);
    const Braid__V1__AutogradForwardRequest *r = (const void *)w.msg;
    if (rc == BD_OK) {
        rc = open_context(&w, r->context);
    }
    if (rc == BD_OK) {
        ag_work_heard(&w, r->caller_id);
        rc = forward_in_context(&w, r);
        rc = rc == BD_OK || rc == BD_E_UNAVAILABLE || w.late ? rc : ag_work_failed(&w, rc);
    }
    ag_work_end(&w, req, rc);
}

/* ---- backward ---- */

static bd_status check_claim(ag_work *w, const Braid__V1__AutogradBackwardRequest *r,
                             const ag_node *node)
{
    size_t n_grads = node == NULL || node->kept ? 0 : node->n_out;
    if (node == NULL) {
        return bd_err_set(&w->err, BD_E_NOT_FOUND,
                          "no forward with message %" PRIu64 " of node %" PRIu64, r->message_id,
                          r->caller_id);
    }
    if (node->busy) {
        return bd_err_set(&w->err, BD_E_UNAVAILABLE, "this message is still being worked on");
    }
    if (node->saved == NULL && (node->flow == NULL || node->kept)) {
        return bd_err_set(&w->err, BD_E_STATE, "nothing was recorded for this message");
    }
    if (r->sequence > node->last_sequence && r->n_grad_outputs != n_grads) {
        return bd_err_set(&w->err, BD_E_INVALID, "%zu gradients for %zu outputs", r->n_grad_outputs,
                          n_grads);
    }
    if (node->kept && r->sequence > node->last_sequence && node->flow->waiting > 0) {
        return bd_err_set(&w->err, BD_E_STATE,
                          "%zu users of the value, announced by a wave, have not gone backward",
                          node->flow->waiting);
    }
    return BD_OK;
}

/* The record, marked busy; or *done with the reply of the same backward that ran before. */
static bd_status claim_node(ag_work *w, const Braid__V1__AutogradBackwardRequest *r, ag_node **out,
                            bool *done)
{
    rpc_rref *held[RPC_MODULE_MAX_IO] = {NULL};
    (void)pthread_mutex_lock(&w->ctx->lock);
    ag_node *node = ag_node_find_locked(w->ctx, r->caller_id, r->message_id);
    bd_status rc = check_claim(w, r, node);
    *done = rc == BD_OK && r->sequence <= node->last_sequence;
    if (*done) {
        rc = bd_chain_add_chain(&w->reply, &node->last_reply);
    } else if (rc == BD_OK) {
        node->busy = true;
        bd_chain_deinit(&node->forward_reply); /* the caller has it, and forks of what it names */
        memcpy(held, node->held, sizeof held);
        memset(node->held, 0, sizeof node->held);
        *out = node;
    }
    (void)pthread_mutex_unlock(&w->ctx->lock);
    for (size_t i = 0; i < RPC_MODULE_MAX_IO; i++) {
        rpc_rref_unref(held[i]);
    }
    return rc;
}

static bd_status check_grads(ag_work *w, const ag_node *node, const rpc_tensor *grad_out)
{
    for (size_t i = 0; i < node->n_out; i++) {
        if (grad_out[i].buf != NULL && !ag_same_shape(&grad_out[i], &node->out[i])) {
            return bd_err_set(&w->err, BD_E_INVALID, "gradient %zu has not its output's shape", i);
        }
    }
    return BD_OK;
}

static bd_status pack_backward(ag_work *w, const rpc_tensor *grad_in, size_t n_in)
{
    Braid__V1__AutogradBackwardReply reply = BRAID__V1__AUTOGRAD_BACKWARD_REPLY__INIT;
    ag_wire_tensors t;
    ag_wire_fill(&t, grad_in, n_in);
    reply.n_grad_inputs = n_in;
    reply.grad_inputs = t.list;
    return px_pack(&reply.base, &w->reply, &w->err);
}

/* What a backward of this record is: its module's; a user's gradients of a value; or the maker's
 * question for what the users brought. grad_in moved to the caller. */
static bd_status go_backward(ag_work *w, ag_node *node, const rpc_tensor *grad_out,
                             rpc_tensor *grad_in)
{
    if (node->kept) { /* busy: nobody else looks */
        memcpy(grad_in, node->collect, sizeof node->collect);
        memset(node->collect, 0, sizeof node->collect);
        return BD_OK;
    }
    if (node->module != NULL) {
        return ag_run_backward(w->ctx, node, grad_out, grad_in, &w->err);
    }
    bd_status rc = ag_flow_feed(w->ctx, node->flow, grad_out, node->n_out,
                                node->announced ? node->wave : 0, &w->err);
    node->announced = node->announced && rc == BD_E_UNAVAILABLE; /* then it comes again */
    return rc;
}

static bd_status run_backward(ag_work *w, const Braid__V1__AutogradBackwardRequest *r,
                              ag_node *node)
{
    rpc_tensor grad_out[RPC_MODULE_MAX_IO] = {{0}}, grad_in[RPC_MODULE_MAX_IO] = {{0}};
    bd_status rc =
        ag_tensors_from_wire(r->grad_outputs, r->n_grad_outputs, "gradients", grad_out, &w->err);
    if (rc == BD_OK) {
        rc = check_grads(w, node, grad_out);
    }
    if (rc == BD_OK) {
        rc = go_backward(w, node, grad_out, grad_in);
    }
    if (rc == BD_OK) {
        rc = pack_backward(w, grad_in, node->n_in);
    }
    rpc_tensors_free(grad_out, RPC_MODULE_MAX_IO);
    rpc_tensors_free(grad_in, RPC_MODULE_MAX_IO);
    return rc;
}

static bd_status backward_in_context(ag_work *w, const Braid__V1__AutogradBackwardRequest *r)
{
    ag_node *node = NULL;
    bool done = false;
    bd_status rc = claim_node(w, r, &node, &done);
    if (node == NULL || done) {
        return rc;
    }
    rc = run_backward(w, r, node);
    (void)pthread_mutex_lock(&w->ctx->lock);
    node->busy = false;
    if (rc == BD_OK) {
        node->last_sequence = r->sequence;
        bd_chain_deinit(&node->last_reply);
        rc = bd_chain_add_chain(&node->last_reply, &w->reply);
    }
    (void)pthread_mutex_unlock(&w->ctx->lock);
    return rc;
}

/* Ends the context on this node and on those it reached from here. */
static bd_status end_here(rpc_ag *ag, uint64_t client_id, uint64_t number, bd_err *err)
{
    rpc_ag_ctx *ctx = ag_ctx_take(ag, client_id, number);
    if (ctx == NULL) {
        return BD_OK;
    }
    bd_status rc = ag_fan_cleanup(ctx, err);
    ag_ctx_unref(ctx);
    return rc;
}

static bd_status fused(ag_work *w, const Braid__V1__AutogradBackwardRequest *r)
{
    rpc_ag_ctx *ctx = w->ctx;
    bd_status rc = BD_OK;
    if ((r->step || r->cleanup) && r->caller_id != ctx->client_id) {
        return bd_err_set(&w->err, BD_E_INVALID, "only the context's client may step or end it");
    }
    if (r->step) {
        ag_vote_note(ctx, r->vote);
        rc = ag_begin_step(ctx, r->sequence, r->caller_id, r->lr_scale, &w->err);
    }
    if (rc == BD_OK && r->cleanup) {
        ag_reply_keep(w->ag, ctx->client_id, ctx->number, r->sequence, &w->reply);
        (void)end_here(w->ag, ctx->client_id, ctx->number,
                       NULL); /* best effort: leases do the rest */
    }
    return rc;
}

/* A retry of a fused call whose answer was lost: its context has ended. */
static bool answered_before(ag_work *w, const Braid__V1__AutogradBackwardRequest *r)
{
    return r->cleanup && r->context != NULL &&
           ag_reply_find(w->ag, r->context->client_id, r->context->number, r->sequence, &w->reply);
}

static bd_status applied_before(ag_work *w, const Braid__V1__AutogradBackwardRequest *r)
{
    Braid__V1__AutogradBackwardReply reply = BRAID__V1__AUTOGRAD_BACKWARD_REPLY__INIT;
    if (r->cleanup) {
        ag_ctx_unref(ag_ctx_take(w->ag, r->context->client_id, r->context->number));
    }
    reply.applied = true;
    return px_pack(&reply.base, &w->reply, &w->err);
}

static void on_backward(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_backward_request__descriptor);
    const Braid__V1__AutogradBackwardRequest *r = (const void *)w.msg;
    if (rc == BD_OK && !answered_before(&w, r)) {
        rc = ag_work_context(&w, r->context, false);
        rc = rc == BD_OK ? check_instance(&w, r->instance) : rc;
        if (rc == BD_OK) {
            ag_work_heard(&w, r->caller_id);
            rc = backward_in_context(&w, r);
            rc = rc == BD_OK ? fused(&w, r) : rc;
            rc = rc == BD_OK || rc == BD_E_UNAVAILABLE || rc == BD_E_NOT_FOUND
                     ? rc
                     : ag_work_failed(&w, rc);
        } else if (rc == BD_E_NOT_FOUND && r->step && ag_vote_stepped(w.ag, r->context, r->vote)) {
            rc = applied_before(&w, r); /* the answer was lost, with the process that gave it */
        }
    }
    ag_work_end(&w, req, rc);
}

/* ---- the rest ---- */

bd_status ag_begin_step(rpc_ag_ctx *ctx, uint64_t sequence, uint64_t caller, double lr_scale,
                        bd_err *err)
{
    bool again = false;
    bd_status rc = ag_step_local(ctx, sequence, caller, lr_scale, &again, err);
    if (rc != BD_OK || again) {
        return rc;
    }
    rc = ag_fan_step(ctx, sequence, lr_scale, err);
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->step_open = false;
    (void)pthread_mutex_unlock(&ctx->lock);
    return rc;
}

static void on_step(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_step_request__descriptor);
    const Braid__V1__AutogradStepRequest *r = (const void *)w.msg;
    if (rc == BD_OK) {
        rc = ag_work_context(&w, r->context, false);
        rc = rc == BD_OK ? check_instance(&w, r->instance) : rc;
        if (rc == BD_E_NOT_FOUND && ag_vote_stepped(w.ag, r->context, r->vote)) {
            ag_work_end(&w, req, BD_OK); /* the answer was lost, with the process that gave it */
            return;
        }
        if (rc == BD_E_NOT_FOUND && w.ctx == NULL && r->vote != NULL && r->instance == 0) {
            rc = ag_work_context(&w, r->context, true); /* a vote without gradients */
        }
    }
    if (rc == BD_OK) {
        ag_work_heard(&w, r->caller_id);
        ag_vote_note(w.ctx, r->vote);
        rc = ag_begin_step(w.ctx, r->sequence, r->caller_id, r->lr_scale, &w.err);
        rc = rc == BD_OK || rc == BD_E_UNAVAILABLE ? rc : ag_work_failed(&w, rc);
    }
    ag_work_end(&w, req, rc); /* the reply has no fields: no bytes */
}

static void on_cleanup(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_cleanup_request__descriptor);
    const Braid__V1__AutogradCleanupRequest *r = (const void *)w.msg;
    if (rc == BD_OK && r->context == NULL) {
        rc = bd_err_set(&w.err, BD_E_INVALID, "the request names no context");
    } else if (rc == BD_OK) {
        rc = end_here(w.ag, r->context->client_id, r->context->number, &w.err);
    }
    ag_work_end(&w, req, rc);
}

static void on_fail(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_fail_request__descriptor);
    const Braid__V1__AutogradFailRequest *r = (const void *)w.msg;
    bd_err none = BD_ERR_INIT;
    if (rc == BD_OK && r->context != NULL &&
        ag_ctx_get(w.ag, r->context->client_id, r->context->number, false, &w.ctx, &none) ==
            BD_OK) {
        bd_err why = BD_ERR_INIT;
        bd_status code = bd_status_known(r->status);
        (void)bd_err_set(&why, code < 0 ? code : BD_E_ABORTED, "%s", r->text);
        ag_ctx_fail(w.ctx, &why);
    }
    ag_work_end(&w, req, rc);
}

static void on_gradients(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc = ag_work_begin(&w, user, req, &braid__v1__autograd_gradients_request__descriptor);
    const Braid__V1__AutogradGradientsRequest *r = (const void *)w.msg;
    if (rc == BD_OK) {
        rc = ag_work_context(&w, r->context, false);
    }
    if (rc == BD_OK) {
        rc = ag_gradients_pack(w.ctx, r->module, &w.reply, &w.err);
    }
    ag_work_end(&w, req, rc);
}

static void on_keep_alive(void *user, rpc_req *req)
{
    ag_work w;
    bd_status rc =
        ag_work_begin(&w, user, req, &braid__v1__autograd_keep_alive_request__descriptor);
    const Braid__V1__AutogradKeepAliveRequest *r = (const void *)w.msg;
    if (rc == BD_OK) {
        rc = ag_client_touch(w.ag, r->client_id, &w.err);
    }
    ag_work_end(&w, req, rc);
}

bd_status rpc_ag_serve(rpc_ag *ag, rpc_server *server)
{
    static const struct {
        const char *method;
        rpc_handler_fn fn;
    } methods[] = {
        {AG_SERVICE "Forward", on_forward},
        {AG_SERVICE "Backward", on_backward},
        {AG_SERVICE "Step", on_step},
        {AG_SERVICE "Cleanup", on_cleanup},
        {AG_SERVICE "Fail", on_fail},
        {AG_SERVICE "Gradients", on_gradients},
        {AG_SERVICE "KeepAlive", on_keep_alive},
    };
    bd_status rc = BD_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && rc == BD_OK; i++) {
        rc = rpc_server_register(server, methods[i].method, methods[i].fn, ag);
    }
    return rc == BD_OK ? ag_rref_serve(ag, server) : rc;
}
