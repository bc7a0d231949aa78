/* Calls to peers: forward, backward, and what goes to all nodes of a context. */
#include "base/assert.h"
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_rref_int.h"

#include <stdio.h>
#include <string.h>

#define ON_NODE "Error on node "

void ag_err_on_node(bd_err *err, const char *node)
{
    const char *said = strstr(err->text, ON_NODE);
    if (said == NULL) {
        (void)bd_err_wrap(err, ON_NODE "%s", node);
    } else if (said != err->text) { /* what stands before it is the way it came */
        memmove(err->text, said, strlen(said) + 1);
    }
}

Braid__V1__AutogradContextId ag_id_of(const rpc_ag_ctx *ctx)
{
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    id.client_id = ctx->client_id;
    id.number = ctx->number;
    return id;
}

uint64_t ag_next_id(rpc_ag *ag)
{
    return atomic_fetch_add_explicit(&ag->next_id, 1, memory_order_relaxed);
}

/* ---- failure ---- */

static void on_notice_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)rc; /* best effort: the node finds out by its next message, or by the lease */
    (void)reply;
    (void)err;
    ag_notice_end(user);
}

static void send_notice(rpc_ag_ctx *ctx, rpc_ag_peer *peer, bd_err *why)
{
    rpc_ag *ag = ctx->ag;
    Braid__V1__AutogradContextId id = ag_id_of(ctx);
    Braid__V1__AutogradFailRequest r;
    rpc_call_options opt = {.deadline_ms = AG_CONTROL_MS, .idempotent = true};
    bd_chain body = {0};
    braid__v1__autograd_fail_request__init(&r);
    r.context = &id;
    r.status = (int32_t)why->code;
    r.text = why->text;
    if (px_pack(&r.base, &body, NULL) != BD_OK || !ag_notice_begin(ag)) {
        bd_chain_deinit(&body);
        return;
    }
    bd_status rc =
        rpc_call_start(peer->ch, AG_SERVICE "Fail", &body, &opt, on_notice_done, ag, NULL, NULL);
    if (rc != BD_OK) {
        bd_chain none = {0};
        on_notice_done(ag, rc, &none, NULL);
    }
    bd_chain_deinit(&body);
}

void ag_ctx_fail(rpc_ag_ctx *ctx, const bd_err *why)
{
    bd_err failure = *why;
    ag_err_on_node(&failure, ctx->ag->name);
    (void)pthread_mutex_lock(&ctx->lock);
    bool first = !ctx->failed;
    if (first) {
        ctx->failed = true;
        ctx->failure = failure;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    size_t n = 0;
    rpc_ag_peer **peers = first ? ag_ctx_peers(ctx, &n) : NULL;
    for (size_t i = 0; peers != NULL && i < n; i++) {
        send_notice(ctx, peers[i], &failure);
    }
    bd_free(peers);
}

void rpc_ag_fail(rpc_ag_ctx *ctx, const bd_err *why)
{
    ag_ctx_fail(ctx, why);
}

bd_status ag_peer_failed(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, bd_status rc, bd_err *err)
{
    err->code = rc;
    ag_err_on_node(err, peer->name);
    ag_ctx_fail(ctx, err);
    return rc;
}

/* ---- forward ---- */

struct rpc_ag_pending {
    rpc_ag_ctx *ctx;
    rpc_ag_peer *peer;
    rpc_ag_msg *msg;                   /* owned until it belongs to the context */
    rpc_rref *held[RPC_MODULE_MAX_IO]; /* the arguments' */
    rpc_wait wait;
    bd_status rc;
    bd_chain reply;
    bd_err err;
};

static void on_pending_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    rpc_ag_pending *p = user;
    p->rc = rc;
    if (rc == BD_OK) {
        bd_chain_move(&p->reply, reply);
    } else {
        p->err = *err;
    }
    rpc_wait_post(&p->wait);
}

static void pending_free(rpc_ag_pending *p)
{
    for (size_t i = 0; i < RPC_MODULE_MAX_IO; i++) {
        rpc_rref_unref(p->held[i]);
    }
    bd_chain_deinit(&p->reply);
    rpc_wait_deinit(&p->wait);
    ag_msg_free(p->msg);
    bd_free(p);
}

static rpc_ag_pending *pending_new(rpc_ag_ctx *ctx, rpc_ag_peer *peer)
{
    rpc_ag_pending *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->ctx = ctx;
    p->peer = peer;
    rpc_wait_init(&p->wait);
    p->msg = ag_msg_new(ctx, peer);
    if (p->msg == NULL) {
        pending_free(p);
        return NULL;
    }
    return p;
}

rpc_ag_msg *ag_msg_new(rpc_ag_ctx *ctx, rpc_ag_peer *peer)
{
    rpc_ag_msg *msg = bd_calloc(1, sizeof *msg);
    if (msg != NULL) {
        msg->ctx = ctx;
        msg->peer = peer;
        msg->parent = ag_running();
        msg->message_id = ag_next_id(ctx->ag);
    }
    return msg;
}

bd_status ag_pack_forward(const rpc_ag_msg *msg, const char *module, const rpc_tensor *in,
                          uint64_t keep, bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradContextId id = ag_id_of(msg->ctx);
    Braid__V1__AutogradForwardRequest r;
    char name[AG_NAME_MAX_BYTES + 1];
    ag_wire_tensors t;
    (void)snprintf(name, sizeof name, "%s", module);
    braid__v1__autograd_forward_request__init(&r);
    ag_wire_fill(&t, in, msg->n_in);
    r.context = &id;
    r.caller_id = msg->ctx->ag->client_id;
    r.message_id = msg->message_id;
    r.module = name;
    r.n_inputs = msg->n_in;
    r.inputs = t.list;
    r.keep = keep;
    return px_pack(&r.base, out, err);
}

/* References go out when their owners know them; the record has the shapes. */
bd_status ag_args_check(rpc_ag_msg *msg, const char *module, const rpc_tensor *in, size_t n_in,
                        bd_err *err)
{
    bd_status rc = BD_OK;
    if (n_in > RPC_MODULE_MAX_IO || strlen(module) > AG_NAME_MAX_BYTES) {
        return bd_err_set(err, BD_E_INVALID, "call of %.*s: %zu inputs", AG_NAME_MAX_BYTES, module,
                          n_in);
    }
    msg->n_in = n_in;
    for (size_t i = 0; i < n_in && rc == BD_OK; i++) {
        msg->in[i] = rpc_tensor_shape(&in[i]);
        rc = in[i].rref != NULL ? rpc_rref_wait(in[i].rref, err) : BD_OK;
    }
    return rc;
}

bd_status rpc_ag_call_start(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                            const rpc_tensor *in, size_t n_in, rpc_ag_pending **pending,
                            bd_err *err)
{
    rpc_call_options opt = {.deadline_ms = ctx->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0};
    rpc_ag_pending *p = pending_new(ctx, peer);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "call of %s: out of memory", module);
    }
    bd_status rc = ag_args_check(p->msg, module, in, n_in, err);
    rc = rc == BD_OK ? ag_ctx_reach(ctx, peer, err) : rc;
    if (rc == BD_OK) {
        rc = ag_pack_forward(p->msg, module, in, 0, &body, err);
    }
    for (size_t i = 0; rc == BD_OK && i < n_in; i++) {
        p->held[i] = in[i].rref != NULL ? rpc_rref_ref(in[i].rref) : NULL;
    }
    if (rc == BD_OK) {
        ag_sent_keep(p->msg, AG_SERVICE "Forward", &body);
        rc = rpc_call_start(peer->ch, AG_SERVICE "Forward", &body, &opt, on_pending_done, p, NULL,
                            err);
    }
    bd_chain_deinit(&body);
    if (rc != BD_OK) {
        pending_free(p);
        return rc;
    }
    *pending = p;
    return BD_OK;
}

void ag_msg_keep(rpc_ag_ctx *ctx, rpc_ag_msg *msg)
{
    (void)pthread_mutex_lock(&ctx->lock);
    msg->next = ctx->msgs;
    ctx->msgs = msg;
    (void)pthread_mutex_unlock(&ctx->lock);
}

static bd_status take_outputs(rpc_ag *ag, const Braid__V1__AutogradForwardReply *r,
                              rpc_ag_result *got, bd_err *err)
{
    bd_status rc = ag_tensors_from_wire(r->outputs, r->n_outputs, "outputs", got->out, err);
    if (rc == BD_OK) {
        got->n_out = r->n_outputs;
        rc = ag_rrefs_import(ag, r->outputs, r->n_outputs, got->out, err);
    }
    if (rc != BD_OK) {
        rpc_ag_result_free(got);
    }
    return rc;
}

bd_status ag_read_forward(rpc_ag_msg **msg, const bd_chain *reply, rpc_ag_result *result,
                          bd_err *err)
{
    ProtobufCMessage *raw = NULL;
    rpc_ag_result got = {.n_out = 0};
    rpc_ag_msg *m = *msg;
    bd_status rc =
        px_unpack(&braid__v1__autograd_forward_reply__descriptor, reply, AG_MAX_BYTES, &raw, err);
    if (rc != BD_OK) {
        return rc;
    }
    const Braid__V1__AutogradForwardReply *r = (const void *)raw;
    if (m->message_id != 0) {
        ag_instance_note(m->ctx, m->peer, r->instance);
    }
    rc = take_outputs(m->ctx->ag, r, &got, err);
    if (rc == BD_OK && r->recorded && m->message_id != 0) {
        m->n_out = got.n_out;
        for (size_t i = 0; i < got.n_out; i++) {
            m->out[i] = rpc_tensor_shape(&got.out[i]);
        }
        m->shared = r->shared;
        ag_msg_keep(m->ctx, m);
        got.msg = m;
        *msg = NULL;
    }
    px_unpacked_free(raw);
    if (rc == BD_OK) {
        *result = got;
    }
    return rc;
}

void rpc_ag_result_free(rpc_ag_result *r)
{
    rpc_tensors_free(r->out, r->n_out);
    r->n_out = 0;
}

bd_status rpc_ag_call_wait(rpc_ag_pending *p, rpc_ag_result *result, bd_err *err)
{
    p->ctx->ag->env->t->block(p->ctx->ag->env, &p->wait);
    bd_status rc = p->rc;
    bd_err own = p->err;
    if (rc == BD_OK) {
        rc = ag_read_forward(&p->msg, &p->reply, result, &own);
    }
    if (rc != BD_OK) {
        (void)ag_peer_failed(p->ctx, p->peer, rc, &own);
        if (err != NULL) {
            *err = own;
        }
    }
    pending_free(p);
    return rc;
}

bd_status rpc_ag_call(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, const rpc_tensor *in,
                      size_t n_in, rpc_ag_result *result, bd_err *err)
{
    rpc_ag_pending *p = NULL;
    bd_status rc = rpc_ag_call_start(ctx, peer, module, in, n_in, &p, err);
    return p != NULL ? rpc_ag_call_wait(p, result, err) : rc;
}

/* ---- backward ---- */

size_t rpc_ag_msg_n_in(const rpc_ag_msg *msg)
{
    return msg->n_in;
}

static bd_status check_grads(const rpc_ag_msg *msg, const rpc_tensor *grad_out, size_t n_out,
                             size_t n_in, bd_err *err)
{
    if (n_out != msg->n_out || n_in != msg->n_in) {
        return bd_err_set(err, BD_E_INVALID, "backward: the call had %zu inputs and %zu outputs",
                          msg->n_in, msg->n_out);
    }
    for (size_t i = 0; i < n_out; i++) {
        if (grad_out[i].buf != NULL && !ag_same_shape(&grad_out[i], &msg->out[i])) {
            return bd_err_set(err, BD_E_INVALID,
                              "backward: gradient %zu has not its output's shape", i);
        }
    }
    return BD_OK;
}

static bd_status pack_backward(const rpc_ag_msg *msg, uint64_t sequence, const rpc_tensor *grad_out,
                               const rpc_ag_fused *fused, bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradContextId id = ag_id_of(msg->ctx);
    Braid__V1__AutogradVote vote;
    Braid__V1__AutogradBackwardRequest r = BRAID__V1__AUTOGRAD_BACKWARD_REQUEST__INIT;
    ag_wire_tensors t;
    ag_wire_fill(&t, grad_out, msg->n_out);
    r.context = &id;
    r.caller_id = msg->ctx->ag->client_id;
    r.message_id = msg->message_id;
    r.sequence = sequence;
    r.n_grad_outputs = msg->n_out;
    r.grad_outputs = t.list;
    if (fused != NULL) {
        r.step = fused->step;
        r.instance = fused->step ? ag_instance_of(msg->ctx, msg->peer) : 0;
        r.vote = fused->step ? ag_vote_to_wire(msg->ctx, &vote) : NULL;
        r.lr_scale = fused->lr_scale;
        r.cleanup = fused->cleanup;
    }
    return px_pack(&r.base, out, err);
}

/* A gradient must fit the input it belongs to: the tape adds it without looking again. */
static bd_status read_backward(const rpc_ag_msg *msg, const bd_chain *reply, rpc_tensor *grad_in,
                               bd_err *err)
{
    ProtobufCMessage *raw = NULL;
    bd_status rc =
        px_unpack(&braid__v1__autograd_backward_reply__descriptor, reply, AG_MAX_BYTES, &raw, err);
    const Braid__V1__AutogradBackwardReply *r = (const void *)raw;
    for (size_t i = 0; rc == BD_OK && r->applied && i < msg->n_in; i++) {
        if (msg->in[i].requires_grad) {
            rc = bd_err_set(err, BD_E_STATE,
                            "the step was applied, but the gradient of input %zu is lost", i);
        }
    }
    if (rc == BD_OK && r->applied) {
        px_unpacked_free(raw);
        return BD_OK;
    }
    if (rc == BD_OK && r->n_grad_inputs != msg->n_in) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%zu gradients for %zu inputs", r->n_grad_inputs,
                        msg->n_in);
    }
    if (rc == BD_OK) {
        rc = ag_tensors_from_wire(r->grad_inputs, msg->n_in, "gradients", grad_in, err);
    }
    for (size_t i = 0; rc == BD_OK && i < msg->n_in; i++) {
        if (grad_in[i].buf != NULL && !ag_same_shape(&grad_in[i], &msg->in[i])) {
            rpc_tensors_free(grad_in, msg->n_in);
            rc = bd_err_set(err, BD_E_CORRUPT, "gradient %zu has not its input's shape", i);
        }
    }
    px_unpacked_free(raw);
    return rc;
}

static void mark_ended(rpc_ag_ctx *ctx, const rpc_ag_peer *peer)
{
    (void)pthread_mutex_lock(&ctx->lock);
    for (size_t i = 0; i < ctx->n_reached; i++) {
        ctx->reached[i].ended = ctx->reached[i].ended || ctx->reached[i].peer == peer;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
}

/* A value of this node: no message. */
static bd_status backward_here(rpc_ag_msg *msg, const rpc_tensor *grad_out, size_t n_out,
                               uint64_t wave, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = ag_flow_feed(msg->ctx, msg->flow, grad_out, n_out, wave, &own);
    if (rc != BD_OK) {
        own.code = rc;
        ag_ctx_fail(msg->ctx, &own);
        if (err != NULL) {
            *err = own;
        }
    }
    return rc;
}

static bd_status try_backward(rpc_ag_msg *msg, uint64_t sequence, const rpc_tensor *grad_out,
                              const rpc_ag_fused *fused, bd_chain *reply, bd_err *err)
{
    rpc_call_options opt = {.deadline_ms = msg->ctx->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0}, copy = {0};
    bd_status rc = pack_backward(msg, sequence, grad_out, fused, &body, err);
    rc = rc == BD_OK ? bd_chain_add_chain(&copy, &body) : rc;
    if (rc == BD_OK) {
        rc = rpc_call_sync(msg->peer->ch, AG_SERVICE "Backward", &copy, &opt, reply, err);
    }
    if (rc == BD_OK && (fused == NULL || !fused->step)) { /* after it: a replay has it once */
        ag_sent_keep(msg, AG_SERVICE "Backward", &body);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&copy);
    return rc;
}

/* A node that has started anew is given its part of the context again, once. */
static bd_status ask_backward(rpc_ag_msg *msg, const rpc_tensor *grad_out,
                              const rpc_ag_fused *fused, bd_chain *reply, bd_err *err)
{
    const uint64_t sequence = ag_next_id(msg->ctx->ag);
    bd_status rc = try_backward(msg, sequence, grad_out, fused, reply, err);
    if (rc == BD_E_NOT_FOUND) {
        bd_err why = *err;
        rc = ag_replay(msg->ctx, msg->peer, err);
        rc = rc == BD_OK ? try_backward(msg, sequence, grad_out, fused, reply, err) : rc;
        *err = rc == BD_E_NOT_FOUND ? why : *err;
    }
    return rc;
}

bd_status rpc_ag_backward(rpc_ag_msg *msg, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, const rpc_ag_fused *fused, bd_err *err)
{
    rpc_ag_ctx *ctx = msg->ctx;
    bd_chain reply = {0};
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(ctx, err);
    if (rc == BD_OK && msg->strand != NULL) {
        rc = bd_err_set(err, BD_E_INVALID, "backward: a strand's record");
    }
    if (rc == BD_OK) {
        rc = check_grads(msg, grad_out, n_out, n_in, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    const uint64_t wave = msg->announced ? msg->wave : 0;
    msg->announced = false;
    if (msg->flow != NULL) {
        return backward_here(msg, grad_out, n_out, wave, err);
    }
    rc = ask_backward(msg, grad_out, fused, &reply, &own);
    if (rc == BD_OK) {
        rc = read_backward(msg, &reply, grad_in, &own);
    }
    bd_chain_deinit(&reply);
    if (rc != BD_OK) {
        (void)ag_peer_failed(ctx, msg->peer, rc, &own);
        if (err != NULL) {
            *err = own;
        }
    } else if (fused != NULL && fused->cleanup) {
        mark_ended(ctx, msg->peer);
    }
    return rc;
}
