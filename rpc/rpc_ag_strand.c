/* Strands of a context, and the end of it: step, abort, end. */
#include "base/mem.h"

#include "rpc/rpc_ag_call_int.h"

#include <string.h>

/* ---- records ---- */

/* The context's note of a strand; made when it is new. NULL: out of memory. */
static ag_strand *note_of(rpc_ag_ctx *ctx, rpc_ag_strand *strand)
{
    ag_strand *s = ctx->strands;
    while (s != NULL && s->strand != strand) {
        s = s->next;
    }
    if (s == NULL) {
        s = bd_calloc(1, sizeof *s);
        if (s != NULL) {
            s->strand = strand;
            s->next = ctx->strands;
            ctx->strands = s;
        }
    }
    return s;
}

bd_status rpc_ag_recv(rpc_ag_ctx *ctx, rpc_ag_strand *strand, void *call, rpc_ag_msg **out,
                      bd_err *err)
{
    bd_status rc = rpc_ag_check(ctx, err);
    if (rc != BD_OK) {
        return rc;
    }
    const ag_strand *note = note_of(ctx, strand);
    rpc_ag_msg *msg = note != NULL ? bd_calloc(1, sizeof *msg) : NULL;
    if (msg == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "autograd context: out of memory");
    }
    if (note->decided) {
        bd_free(msg);
        return bd_err_set(err, BD_E_STATE, "autograd context: a call after its step");
    }
    msg->ctx = ctx;
    msg->strand = strand;
    msg->strand_call = call;
    msg->message_id = ag_next_id(ctx->ag);
    ag_msg_keep(ctx, msg);
    *out = msg;
    return BD_OK;
}

uint64_t rpc_ag_msg_id(const rpc_ag_msg *msg)
{
    return msg->message_id;
}

rpc_ag_ctx *rpc_ag_msg_ctx(const rpc_ag_msg *msg)
{
    return msg->ctx;
}

/* Something went wrong on a strand: the context has failed. The caller sees the strand's own text,
 * the context keeps it with the node in front. */
static bd_status strand_failed(rpc_ag_ctx *ctx, const rpc_ag_strand *strand, bd_status rc,
                               bd_err *own, bd_err *err)
{
    bd_err named = *own;
    named.code = rc;
    ag_err_on_node(&named, strand->name);
    ag_ctx_fail(ctx, &named);
    if (err != NULL) {
        *err = *own;
        err->code = rc;
    }
    return rc;
}

bd_status rpc_ag_recv_backward(rpc_ag_msg *msg, size_t out_idx, const float *grad, size_t n_elems,
                               bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    rpc_ag_strand *s = msg->strand;
    bd_status rc = rpc_ag_check(msg->ctx, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (s == NULL) {
        return bd_err_set(err, BD_E_INVALID, "backward: not a strand's record");
    }
    rc = s->ops->backward(s, msg->strand_call, out_idx, grad, n_elems, &own);
    return rc == BD_OK ? BD_OK : strand_failed(msg->ctx, s, rc, &own, err);
}

/* ---- decisions ---- */

static bd_status decide(rpc_ag_ctx *ctx, bool commit, double lr_scale, bd_err *err)
{
    bd_status rc = BD_OK;
    for (ag_strand *s = ctx->strands; s != NULL && rc == BD_OK; s = s->next) {
        bd_err own = BD_ERR_INIT;
        if (s->decided) {
            return bd_err_set(err, BD_E_STATE, "autograd context: a second decision");
        }
        s->decided = true;
        rc = s->strand->ops->decide(s->strand, commit, lr_scale, &own);
        if (rc != BD_OK) {
            rc = strand_failed(ctx, s->strand, rc, &own, err);
        }
    }
    return rc;
}

bd_status rpc_ag_step_start(rpc_ag_ctx *ctx, double lr_scale, bd_err *err)
{
    bd_err own = BD_ERR_INIT;
    bd_status rc = rpc_ag_check(ctx, err);
    if (rc == BD_OK) {
        /* First: a strand's commit is under way while peers are asked. */
        rc = decide(ctx, true, lr_scale, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    rc = ag_begin_step(ctx, ag_next_id(ctx->ag), ctx->ag->client_id, lr_scale, &own);
    if (rc != BD_OK) {
        own.code = rc;
        ag_ctx_fail(ctx, &own);
        ag_err_on_node(&own, ctx->ag->name);
        if (err != NULL) {
            *err = own;
        }
    }
    return rc;
}

bd_status rpc_ag_abort_start(rpc_ag_ctx *ctx, bd_err *err)
{
    bd_status rc = rpc_ag_check(ctx, err);
    return rc == BD_OK ? decide(ctx, false, 0, err) : rc;
}

bd_status rpc_ag_settle(rpc_ag_ctx *ctx, bd_err *err)
{
    bd_status rc = BD_OK;
    for (ag_strand *s = ctx->strands; s != NULL && rc == BD_OK; s = s->next) {
        bd_err own = BD_ERR_INIT;
        if (!s->decided || s->settled) {
            continue;
        }
        rc = s->strand->ops->settle(s->strand, &own);
        if (rc == BD_OK) {
            s->settled = true;
        } else {
            rc = strand_failed(ctx, s->strand, rc, &own, err);
        }
    }
    return rc;
}

bd_status rpc_ag_step(rpc_ag_ctx *ctx, double lr_scale, bd_err *err)
{
    bd_status rc = rpc_ag_step_start(ctx, lr_scale, err);
    return rc == BD_OK ? rpc_ag_settle(ctx, err) : rc;
}

/* ---- end ---- */

static bd_status strands_end(rpc_ag_ctx *ctx, bd_err *err)
{
    bd_status rc = BD_OK;
    bool undecided = false;
    for (const ag_strand *s = ctx->strands; s != NULL; s = s->next) {
        undecided = undecided || !s->decided;
    }
    if (undecided && rpc_ag_check(ctx, NULL) == BD_OK) {
        rc = rpc_ag_abort_start(ctx, err);
    }
    if (rc == BD_OK && rpc_ag_check(ctx, NULL) == BD_OK) {
        rc = rpc_ag_settle(ctx, err);
    }
    for (ag_strand *s = ctx->strands; s != NULL; s = s->next) {
        if (!s->decided || !s->settled) {
            s->strand->ops->drop(s->strand);
        }
        s->decided = s->settled = true;
    }
    return rc;
}

/* References of this context that are still being made need it. */
static void wait_for_making(rpc_ag_ctx *ctx)
{
    rpc_wait made;
    rpc_wait_init(&made);
    (void)pthread_mutex_lock(&ctx->lock);
    bool wait = ctx->n_making > 0;
    ctx->made = wait ? &made : NULL;
    (void)pthread_mutex_unlock(&ctx->lock);
    if (wait) {
        ctx->ag->env->t->block(ctx->ag->env, &made);
        (void)pthread_mutex_lock(&ctx->lock); /* the poster still held it */
        (void)pthread_mutex_unlock(&ctx->lock);
    }
    rpc_wait_deinit(&made);
}

bd_status rpc_ag_end(rpc_ag_ctx *ctx, bd_err *err)
{
    wait_for_making(ctx);
    bd_status rc = strands_end(ctx, err);
    /* Out of the map first: a node that answers with a cleanup of its own finds nothing to do. */
    rpc_ag_ctx *mine = ag_ctx_take(ctx->ag, ctx->client_id, ctx->number);
    bd_status ended = ag_fan_cleanup(ctx, rc == BD_OK ? err : NULL);
    ag_ctx_unref(mine);
    ag_ctx_unref(ctx);
    return rc == BD_OK ? ended : rc;
}
