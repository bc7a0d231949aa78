/* Making references and using them. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

/* ---- values of this node ---- */

bd_status rpc_rref_new(rpc_ag *ag, const rpc_tensor *t, size_t n, rpc_rref **out, bd_err *err)
{
    rpc_tensor copy[RPC_MODULE_MAX_IO] = {{0}};
    ag_value *v = NULL;
    bool whole = n >= 1 && n <= RPC_MODULE_MAX_IO;
    for (size_t i = 0; whole && i < n; i++) {
        whole = t[i].buf != NULL;
    }
    if (!whole) {
        return bd_err_set(err, BD_E_INVALID, "reference: %zu tensors, with their elements", n);
    }
    memcpy(copy, t, n * sizeof *t);
    for (size_t i = 0; i < n; i++) {
        copy[i].requires_grad = t[i].requires_grad && t[i].dtype == NUM_F32;
        (void)bd_buf_ref(copy[i].buf);
    }
    bd_status rc = ag_value_new(ag, ag->client_id, ag_next_id(ag), copy, n, &v);
    if (rc != BD_OK) {
        rpc_tensors_free(copy, n);
        return bd_err_set(err, rc, "reference: %s", bd_status_text(rc));
    }
    rpc_rref *r = ag_rref_new(ag, v->creator_id, v->number, NULL, v);
    if (r == NULL) {
        ag_value_unref(ag, v);
        return bd_err_set(err, BD_E_NOMEM, "reference: out of memory");
    }
    *out = r;
    return BD_OK;
}

/* ---- made elsewhere ---- */

/* A reference in the making: Forward, then Fork. Holds one of its handles, a reference to the
 * context, and those of the arguments. */
typedef struct making {
    rpc_ag_ctx *ctx;
    rpc_ag_peer *peer;
    rpc_rref *r;
    rpc_rref *held[RPC_MODULE_MAX_IO];
} making;

/* Without the handle's reference: the one whom the caller gets. */
static void making_free(making *m)
{
    for (size_t i = 0; i < RPC_MODULE_MAX_IO; i++) {
        rpc_rref_unref(m->held[i]);
    }
    bd_free(m);
}

/* Made, or not: whoever waits goes on. */
static void making_end(making *m, bd_err *failure)
{
    rpc_ag_ctx *ctx = m->ctx;
    rpc_ag *ag = ctx->ag;
    if (failure != NULL) {
        (void)ag_peer_failed(ctx, m->peer, failure->code, failure);
    }
    ag_rref_made(m->r, failure == NULL ? RREF_READY : RREF_FAILED, failure);
    rpc_rref_unref(m->r);
    making_free(m);
    (void)pthread_mutex_lock(&ctx->lock);
    if (--ctx->n_making == 0 && ctx->made != NULL) {
        rpc_wait_post(ctx->made);
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    ag_ctx_unref(ctx);
    ag_notice_end(ag);
}

static void on_forked(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)reply;
    bd_err failure = rc != BD_OK ? *err : (bd_err)BD_ERR_INIT;
    failure.code = rc;
    making_end(user, rc != BD_OK ? &failure : NULL);
}

/* The owner's name is what its peers call it: else nobody would find it by the reference. */
static bd_status check_made(making *m, const bd_chain *reply, bd_err *err)
{
    ProtobufCMessage *raw = NULL;
    bd_status rc =
        px_unpack(&braid__v1__autograd_forward_reply__descriptor, reply, AG_MAX_BYTES, &raw, err);
    if (rc != BD_OK) {
        return rc;
    }
    const Braid__V1__AutogradForwardReply *r = (const void *)raw;
    if (strcmp(r->node, m->peer->name) != 0) {
        rc = bd_err_set(err, BD_E_MISMATCH,
                        "a peer that keeps references is called %s here and %.*s there",
                        m->peer->name, AG_NAME_MAX_BYTES, r->node);
    }
    if (!r->recorded) {
        (void)pthread_mutex_lock(&m->ctx->lock);
        m->r->msg = NULL; /* the record stays with its context */
        (void)pthread_mutex_unlock(&m->ctx->lock);
    }
    px_unpacked_free(raw);
    return rc;
}

static void on_made(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    making *m = user;
    rpc_call_options opt = {.deadline_ms = m->ctx->ag->deadline_ms, .idempotent = true};
    bd_err own = rc != BD_OK ? *err : (bd_err)BD_ERR_INIT;
    bd_chain body = {0};
    if (rc == BD_OK) {
        rc = check_made(m, reply, &own);
    }
    if (rc == BD_OK) {
        rc = ag_rref_pack_fork(m->r, &body, &own);
    }
    if (rc == BD_OK) {
        rc = rpc_call_start(m->peer->ch, AG_SERVICE "Fork", &body, &opt, on_forked, m, NULL, &own);
    }
    bd_chain_deinit(&body);
    if (rc != BD_OK) {
        own.code = rc;
        making_end(m, &own);
    }
}

/* Starts the forward; the context counts it. The caller's handle is another reference. */
static bd_status make_start(making *m, rpc_ag_msg *msg, const char *module, const rpc_tensor *in,
                            bd_err *err)
{
    rpc_ag_ctx *ctx = m->ctx;
    rpc_call_options opt = {.deadline_ms = ctx->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0};
    bd_status rc = ag_pack_forward(msg, module, in, m->r->number, &body, err);
    if (rc == BD_OK && !ag_notice_begin(ctx->ag)) {
        rc = bd_err_set(err, BD_E_STATE, "the node ends");
    }
    if (rc != BD_OK) {
        bd_chain_deinit(&body);
        return rc;
    }
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->n_making++;
    (void)pthread_mutex_unlock(&ctx->lock);
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    (void)rpc_rref_ref(m->r);
    rc = rpc_call_start(m->peer->ch, AG_SERVICE "Forward", &body, &opt, on_made, m, NULL, err);
    bd_chain_deinit(&body);
    if (rc != BD_OK) {
        bd_err own = BD_ERR_INIT;
        (void)bd_err_set(&own, rc, "%s", bd_err_text(err));
        making_end(m, &own); /* the reference says why */
    }
    return BD_OK;
}

bd_status rpc_rref_remote(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                          const rpc_tensor *in, size_t n_in, rpc_rref **out, bd_err *err)
{
    rpc_ag *ag = ctx->ag;
    rpc_ag_msg *msg = ag_msg_new(ctx, peer);
    making *m = bd_calloc(1, sizeof *m);
    bd_status rc = msg == NULL || m == NULL ? BD_E_NOMEM : BD_OK;
    if (rc != BD_OK) {
        bd_free(msg);
        bd_free(m);
        return bd_err_set(err, rc, "reference: out of memory");
    }
    rc = ag_args_check(msg, module, in, n_in, err);
    rc = rc == BD_OK ? ag_ctx_reach(ctx, peer, err) : rc;
    if (rc == BD_OK) {
        m->r = ag_rref_new(ag, ag->client_id, ag_next_id(ag), peer, NULL);
        rc = m->r != NULL ? BD_OK : BD_E_NOMEM;
    }
    if (rc != BD_OK || m->r == NULL) {
        rc = rc == BD_E_NOMEM ? bd_err_set(err, rc, "reference: out of memory") : rc;
        bd_free(msg);
        bd_free(m);
        return rc;
    }
    rpc_rref *r = m->r;
    m->ctx = ctx;
    m->peer = peer;
    for (size_t i = 0; i < n_in; i++) {
        m->held[i] = in[i].rref != NULL ? rpc_rref_ref(in[i].rref) : NULL;
    }
    msg->remote = true;
    r->msg = msg;
    ag_msg_keep(ctx, msg);
    rc = make_start(m, msg, module, in, err);
    if (rc != BD_OK) {
        r->msg = NULL;
        rpc_rref_unref(r);
        making_free(m);
        return rc;
    }
    *out = r;
    return BD_OK;
}

rpc_ag_msg *rpc_rref_msg(rpc_rref *r)
{
    return rpc_rref_wait(r, NULL) == BD_OK ? r->msg : NULL;
}

/* ---- using ---- */

/* The outputs share the value's buffers. */
static void outputs_of(const ag_value *v, rpc_ag_result *out)
{
    out->n_out = v->n;
    out->msg = NULL;
    for (size_t i = 0; i < v->n; i++) {
        out->out[i] = v->t[i];
        (void)bd_buf_ref(out->out[i].buf);
    }
}

bd_status ag_rref_use_here(rpc_ag_ctx *ctx, ag_value *value, rpc_ag_result *out, bd_err *err)
{
    rpc_ag_result got;
    ag_flow *flow = NULL;
    outputs_of(value, &got);
    bd_status rc = ag_flow_get(ctx, value, NULL, &flow, err);
    rpc_ag_msg *msg = rc == BD_OK && ag_flow_wants_grad(flow) ? ag_msg_new(ctx, NULL) : NULL;
    if (rc == BD_OK && msg == NULL && ag_flow_wants_grad(flow)) {
        rc = bd_err_set(err, BD_E_NOMEM, "reference: out of memory");
    }
    if (rc != BD_OK) {
        rpc_ag_result_free(&got);
        return rc;
    }
    if (msg != NULL) {
        msg->flow = flow;
        msg->shared = true;
        msg->n_out = got.n_out;
        for (size_t i = 0; i < got.n_out; i++) {
            msg->out[i] = rpc_tensor_shape(&got.out[i]);
        }
        ag_msg_keep(ctx, msg);
        got.msg = msg;
    }
    *out = got;
    return BD_OK;
}

bd_status rpc_rref_local_value(rpc_ag_ctx *ctx, rpc_rref *r, rpc_ag_result *out, bd_err *err)
{
    if (r->owner != NULL) {
        return bd_err_set(err, BD_E_STATE, "local_value: the reference's owner is %s",
                          r->owner_name);
    }
    if (ctx == NULL) {
        outputs_of(r->value, out);
        return BD_OK;
    }
    Braid__V1__AutogradRRef w;
    ag_rref_to_wire(r, &w);
    bd_status rc = rpc_ag_check(ctx, err);
    return rc == BD_OK ? ag_rref_use_here(ctx, ag_value_get(r->ag, &w), out, err) : rc;
}

/* Whose answer is out; msg NULL: only the value. */
static bd_status fetch(rpc_rref *r, rpc_ag_ctx *ctx, rpc_ag_msg **msg, rpc_ag_result *out,
                       bd_err *err)
{
    Braid__V1__AutogradFetchRequest q = BRAID__V1__AUTOGRAD_FETCH_REQUEST__INIT;
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradRRef w;
    rpc_call_options opt = {.deadline_ms = r->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0}, reply = {0};
    ag_rref_to_wire(r, &w);
    q.rref = &w;
    q.caller_id = r->ag->client_id;
    if (ctx != NULL) {
        id = ag_id_of(ctx);
        q.context = &id;
        q.message_id = (*msg)->message_id;
    }
    bd_status rc = px_pack(&q.base, &body, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(r->owner->ch, AG_SERVICE "Fetch", &body, &opt, &reply, err);
    }
    if (rc == BD_OK) {
        rc = ag_read_forward(msg, &reply, out, err);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    if (rc != BD_OK && err != NULL) {
        ag_err_on_node(err, r->owner_name);
    }
    return rc;
}

static bd_status fetch_in_context(rpc_rref *r, rpc_ag_ctx *ctx, rpc_ag_result *out, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    rpc_ag_msg *msg = ag_msg_new(ctx, r->owner);
    if (msg == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "reference: out of memory");
        return BD_E_NOMEM;
    }
    bd_status rc = ag_ctx_reach(ctx, r->owner, err);
    if (rc == BD_OK) {
        rc = fetch(r, ctx, &msg, out, &own);
        if (rc != BD_OK) {
            (void)ag_peer_failed(ctx, r->owner, rc, &own);
            if (err != NULL) {
                *err = own;
            }
        }
    }
    ag_msg_free(msg);
    return rc;
}

bd_status rpc_rref_to_here(rpc_ag_ctx *ctx, rpc_rref *r, rpc_ag_result *out, bd_err *err)
{
    bd_status rc = rpc_rref_wait(r, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (r->owner == NULL) {
        return rpc_rref_local_value(ctx, r, out, err);
    }
    if (ctx != NULL) {
        return fetch_in_context(r, ctx, out, err);
    }
    /* Nothing is recorded: a stand-in takes the record's place. */
    rpc_ag_ctx nowhere = {.ag = r->ag};
    rpc_ag_msg none = {.ctx = &nowhere};
    rpc_ag_msg *msg = &none;
    return fetch(r, NULL, &msg, out, err);
}
