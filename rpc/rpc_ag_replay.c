/* A node that starts anew has lost its part of a context: what was sent to it is sent again.
 *
 * Messages are kept until the context ends, at most AG_REPLAY_BYTES of them, and only of calls
 * whose meaning does not hang on the process: no input takes a gradient and none is a reference. So
 * it is with lookups in tables: their gradients depend on ids and gradients alone. Everything else
 * fails the context by name. Whether the step itself was applied before the process died, the
 * node's store knows; then nothing of this is needed. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc_ag_call_int.h"

#include <string.h>

static void drop_sent(rpc_ag_msg *msg)
{
    while (msg->sent != NULL) {
        ag_sent *s = msg->sent;
        msg->sent = s->next;
        bd_chain_deinit(&s->body);
        bd_free(s);
    }
    msg->sent_end = NULL;
}

void ag_msg_free(rpc_ag_msg *msg)
{
    if (msg != NULL) {
        drop_sent(msg);
        bd_free(msg);
    }
}

static bool may_keep(const rpc_ag_msg *msg)
{
    bool may = !msg->no_replay && !msg->shared && !msg->remote &&
               msg->ctx->client_id == msg->ctx->ag->client_id;
    for (size_t i = 0; may && i < msg->n_in; i++) {
        may = !msg->in[i].requires_grad && msg->in[i].n_dims > 0; /* a reference has none */
    }
    return may;
}

void ag_sent_keep(rpc_ag_msg *msg, const char *method, const bd_chain *body)
{
    rpc_ag_ctx *ctx = msg->ctx;
    (void)pthread_mutex_lock(&ctx->lock);
    bool room = ctx->sent_bytes + body->n_bytes <= AG_REPLAY_BYTES && may_keep(msg);
    ctx->sent_bytes += room ? body->n_bytes : 0;
    (void)pthread_mutex_unlock(&ctx->lock);
    ag_sent *s = room ? bd_calloc(1, sizeof *s) : NULL;
    if (s != NULL && bd_chain_add_chain(&s->body, body) != BD_OK) {
        bd_free(s);
        s = NULL;
    }
    if (s == NULL) {
        drop_sent(msg);
        msg->no_replay = true;
        return;
    }
    s->method = method;
    *(msg->sent_end != NULL ? msg->sent_end : &msg->sent) = s;
    msg->sent_end = &s->next;
}

/* ---- instances ---- */

static ag_reached *reached_locked(rpc_ag_ctx *ctx, const rpc_ag_peer *peer)
{
    for (size_t i = 0; i < ctx->n_reached; i++) {
        if (ctx->reached[i].peer == peer) {
            return &ctx->reached[i];
        }
    }
    return NULL;
}

void ag_instance_note(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, uint64_t instance)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ag_reached *r = reached_locked(ctx, peer);
    if (r != NULL && r->instance == 0) {
        r->instance = instance;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
}

uint64_t ag_instance_of(rpc_ag_ctx *ctx, const rpc_ag_peer *peer)
{
    (void)pthread_mutex_lock(&ctx->lock);
    const ag_reached *r = reached_locked(ctx, peer);
    uint64_t instance = r != NULL ? r->instance : 0;
    (void)pthread_mutex_unlock(&ctx->lock);
    return instance;
}

/* ---- once more ---- */

static bool is_of(const rpc_ag_msg *m, const rpc_ag_peer *peer)
{
    return m->peer != NULL && (peer == NULL || m->peer == peer);
}

/* The record with the smallest message id above `after`; NULL: none. */
static rpc_ag_msg *next_of(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, uint64_t after)
{
    rpc_ag_msg *found = NULL;
    (void)pthread_mutex_lock(&ctx->lock);
    for (rpc_ag_msg *m = ctx->msgs; m != NULL; m = m->next) {
        if (is_of(m, peer) && m->message_id > after &&
            (found == NULL || m->message_id < found->message_id)) {
            found = m;
        }
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return found;
}

static bd_status all_kept(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, bd_err *err)
{
    bool whole = ctx->client_id == ctx->ag->client_id;
    (void)pthread_mutex_lock(&ctx->lock);
    for (const rpc_ag_msg *m = ctx->msgs; m != NULL; m = m->next) {
        whole = whole && (!is_of(m, peer) || !m->no_replay);
    }
    for (size_t i = 0; whole && i < ctx->n_reached; i++) { /* they answer anew */
        ag_reached *r = &ctx->reached[i];
        r->instance = peer == NULL || r->peer == peer ? 0 : r->instance;
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    return whole ? BD_OK
                 : bd_err_set(err, BD_E_NOT_FOUND,
                              "the node has started anew, and lost its part of the context");
}

static void note_reply(rpc_ag_msg *m, const char *method, const bd_chain *reply)
{
    ProtobufCMessage *raw = NULL;
    if (strcmp(method, AG_SERVICE "Forward") == 0 &&
        px_unpack(&braid__v1__autograd_forward_reply__descriptor, reply, AG_MAX_BYTES, &raw,
                  NULL) == BD_OK) {
        const Braid__V1__AutogradForwardReply *r = (const void *)raw;
        ag_instance_note(m->ctx, m->peer, r->instance);
        px_unpacked_free(raw);
    }
}

static bd_status replay_one(rpc_ag_msg *m, const ag_sent *s, bd_err *err)
{
    rpc_call_options opt = {.deadline_ms = m->ctx->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0}, reply = {0};
    bd_status rc = bd_chain_add_chain(&body, &s->body);
    if (rc == BD_OK) {
        rc = rpc_call_sync(m->peer->ch, s->method, &body, &opt, &reply, err);
    }
    if (rc == BD_OK) {
        note_reply(m, s->method, &reply);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return rc;
}

/* A Forward that ends with BD_E_STATE: the node has this record still, or has stepped. */
static bd_status replay_msg(rpc_ag_msg *m, bd_err *err)
{
    bd_status rc = BD_OK;
    for (const ag_sent *s = m->sent; s != NULL && rc == BD_OK; s = s->next) {
        rc = replay_one(m, s, err);
    }
    return rc == BD_E_STATE ? BD_OK : rc;
}

bd_status ag_replay(rpc_ag_ctx *ctx, rpc_ag_peer *peer, bd_err *err)
{
    bd_status rc = all_kept(ctx, peer, err);
    uint64_t after = 0;
    for (rpc_ag_msg *m = next_of(ctx, peer, after); m != NULL && rc == BD_OK;
         m = next_of(ctx, peer, after)) {
        after = m->message_id;
        rc = replay_msg(m, err);
    }
    return rc;
}
