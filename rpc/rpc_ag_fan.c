/* What goes to several nodes: steps, cleanups, signs of life; and reading a context's gradients. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_ag_call_int.h"

#include <stdio.h>
#include <string.h>

/* ---- one request to all reached nodes ---- */

typedef struct ag_fan ag_fan;

typedef struct ag_fan_call {
    ag_fan *fan;
    rpc_ag_peer *peer;
} ag_fan_call;

struct ag_fan {
    pthread_mutex_t lock; /* guards the two below */
    size_t n_left;
    bd_err first;
    rpc_wait wait;
};

static void fan_done(ag_fan_call *c, bd_status rc, const bd_err *err)
{
    ag_fan *f = c->fan;
    bd_err own = BD_ERR_INIT;
    if (rc != BD_OK) {
        own = *err;
        own.code = rc;
        ag_err_on_node(&own, c->peer->name);
    }
    (void)pthread_mutex_lock(&f->lock);
    bd_err_keep_first(&f->first, &own);
    bool last = --f->n_left == 0;
    (void)pthread_mutex_unlock(&f->lock);
    if (last) {
        rpc_wait_post(&f->wait);
    }
}

static void on_fan_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)reply;
    fan_done(user, rc, err);
}

static void fan_start(ag_fan_call *c, const char *method, const bd_chain *body, int64_t deadline_ms)
{
    rpc_call_options opt = {.deadline_ms = deadline_ms, .idempotent = true};
    bd_chain copy = {0};
    bd_err err = BD_ERR_INIT;
    bd_status rc = bd_chain_add_chain(&copy, body);
    if (rc != BD_OK) {
        (void)bd_err_set(&err, rc, "out of memory");
    } else {
        rc = rpc_call_start(c->peer->ch, method, &copy, &opt, on_fan_done, c, NULL, &err);
    }
    bd_chain_deinit(&copy);
    if (rc != BD_OK) {
        fan_done(c, rc, &err);
    }
}

bd_status ag_fan_out(rpc_ag *ag, const char *method, rpc_ag_peer *const *peers, size_t n,
                     const bd_chain *bodies, size_t n_bodies, int64_t deadline_ms, bd_err *err)
{
    ag_fan f = {.n_left = n, .first = BD_ERR_INIT};
    if (n == 0) {
        return BD_OK;
    }
    ag_fan_call *calls = bd_calloc(n, sizeof *calls);
    if (calls == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", method);
    }
    (void)pthread_mutex_init(&f.lock, NULL);
    rpc_wait_init(&f.wait);
    for (size_t i = 0; i < n; i++) {
        calls[i] = (ag_fan_call){&f, peers[i]};
        fan_start(&calls[i], method, &bodies[n_bodies == 1 ? 0 : i], deadline_ms);
    }
    ag->env->t->block(ag->env, &f.wait);
    rpc_wait_deinit(&f.wait);
    (void)pthread_mutex_destroy(&f.lock);
    bd_free(calls);
    if (f.first.code != BD_OK && err != NULL) {
        *err = f.first;
    }
    return f.first.code;
}

/* One request to all nodes that the context has reached. */
static bd_status fan_reached(rpc_ag_ctx *ctx, const char *method, const ProtobufCMessage *request,
                             int64_t deadline_ms, bd_err *err)
{
    size_t n = 0;
    bd_chain body = {0};
    rpc_ag_peer **peers = ag_ctx_peers(ctx, &n);
    if (n == 0) {
        bd_free(peers);
        return BD_OK;
    }
    if (peers == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "%s: out of memory", method);
        return BD_E_NOMEM;
    }
    bd_status rc = px_pack(request, &body, err);
    if (rc == BD_OK) {
        rc = ag_fan_out(ctx->ag, method, peers, n, &body, 1, deadline_ms, err);
    }
    bd_chain_deinit(&body);
    bd_free(peers);
    return rc;
}

static bd_status pack_step(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, uint64_t sequence,
                           double lr_scale, bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradContextId id = ag_id_of(ctx);
    Braid__V1__AutogradVote vote;
    Braid__V1__AutogradStepRequest r = BRAID__V1__AUTOGRAD_STEP_REQUEST__INIT;
    r.context = &id;
    r.sequence = sequence;
    r.lr_scale = lr_scale;
    r.caller_id = ctx->ag->client_id;
    r.instance = ag_instance_of(ctx, peer);
    r.vote = ag_vote_to_wire(ctx, &vote);
    return px_pack(&r.base, out, err);
}

/* To each node its own: the process that has the context is named. */
static bd_status fan_step(rpc_ag_ctx *ctx, uint64_t sequence, double lr_scale, bd_err *err)
{
    size_t n = 0;
    rpc_ag_peer **peers = ag_ctx_peers(ctx, &n);
    bd_chain *bodies = n > 0 ? bd_calloc(n, sizeof *bodies) : NULL;
    bd_status rc = BD_OK;
    if (peers == NULL || bodies == NULL) { /* also: none was reached */
        bd_free(bodies);
        bd_free(peers);
        rc = n > 0 ? BD_E_NOMEM : BD_OK;
        return rc == BD_OK ? rc : bd_err_set(err, rc, "step: out of memory");
    }
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        rc = pack_step(ctx, peers[i], sequence, lr_scale, &bodies[i], err);
    }
    if (rc == BD_OK) {
        rc = ag_fan_out(ctx->ag, AG_SERVICE "Step", peers, n, bodies, n, ctx->ag->deadline_ms, err);
    }
    for (size_t i = 0; bodies != NULL && i < n; i++) {
        bd_chain_deinit(&bodies[i]);
    }
    bd_free(bodies);
    bd_free(peers);
    return rc;
}

bd_status ag_fan_step(rpc_ag_ctx *ctx, uint64_t sequence, double lr_scale, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = fan_step(ctx, sequence, lr_scale, &own);
    if (rc ==
        BD_E_NOT_FOUND) { /* a node has started anew; the others know this step by its number */
        bd_err why = own;
        rc = ag_replay(ctx, NULL, &own);
        rc = rc == BD_OK ? fan_step(ctx, sequence, lr_scale, &own) : rc;
        own = rc == BD_E_NOT_FOUND ? why : own;
    }
    if (rc != BD_OK && err != NULL) {
        *err = own;
    }
    return rc;
}

bd_status ag_fan_cleanup(rpc_ag_ctx *ctx, bd_err *err)
{
    Braid__V1__AutogradContextId id = ag_id_of(ctx);
    Braid__V1__AutogradCleanupRequest r = BRAID__V1__AUTOGRAD_CLEANUP_REQUEST__INIT;
    r.context = &id;
    int64_t ms = ctx->ag->deadline_ms < AG_CONTROL_MS ? ctx->ag->deadline_ms : AG_CONTROL_MS;
    return fan_reached(ctx, AG_SERVICE "Cleanup", &r.base, ms, err);
}

static bd_status keep_alive(rpc_ag *ag, const rpc_ag_peer *peer, bd_err *err)
{
    Braid__V1__AutogradKeepAliveRequest r = BRAID__V1__AUTOGRAD_KEEP_ALIVE_REQUEST__INIT;
    rpc_call_options opt = {.deadline_ms = AG_CONTROL_MS, .idempotent = true};
    bd_chain body = {0}, reply = {0};
    r.client_id = ag->client_id;
    bd_status rc = px_pack(&r.base, &body, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(peer->ch, AG_SERVICE "KeepAlive", &body, &opt, &reply, err);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return rc;
}

bd_status rpc_ag_keep_alive(rpc_ag *ag, bd_err *err)
{
    bd_err first = BD_ERR_INIT;
    (void)pthread_mutex_lock(&ag->lock);
    const rpc_ag_peer *peer = ag->peers; /* grows at its head only */
    (void)pthread_mutex_unlock(&ag->lock);
    for (; peer != NULL; peer = peer->next) {
        bd_err own = BD_ERR_INIT;
        bd_status rc = keep_alive(ag, peer, &own);
        if (rc != BD_OK) {
            own.code = rc;
            ag_err_on_node(&own, peer->name);
            bd_err_keep_first(&first, &own);
        }
    }
    if (first.code != BD_OK && err != NULL) {
        *err = first;
    }
    return first.code;
}

bd_status rpc_ag_gradients(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                           rpc_ag_grads *out, bd_err *err)
{
    bd_chain reply = {0};
    bd_status rc;
    if (peer == NULL) {
        rc = ag_gradients_pack(ctx, module != NULL ? module : "", &reply, err);
    } else {
        Braid__V1__AutogradContextId id = ag_id_of(ctx);
        Braid__V1__AutogradGradientsRequest r;
        rpc_call_options opt = {.deadline_ms = ctx->ag->deadline_ms, .idempotent = true};
        char name[AG_NAME_MAX_BYTES + 1];
        bd_chain body = {0};
        (void)snprintf(name, sizeof name, "%s", module != NULL ? module : "");
        braid__v1__autograd_gradients_request__init(&r);
        r.context = &id;
        r.module = name;
        rc = px_pack(&r.base, &body, err);
        if (rc == BD_OK) {
            rc = rpc_call_sync(peer->ch, AG_SERVICE "Gradients", &body, &opt, &reply, err);
        }
        bd_chain_deinit(&body);
    }
    if (rc == BD_OK) {
        rc = ag_gradients_unpack(&reply, out, err);
    }
    bd_chain_deinit(&reply);
    return rc;
}
