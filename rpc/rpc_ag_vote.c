/* Steps that are votes of a sync job. */
#include "rpc/rpc_ag_call_int.h"

bd_status rpc_ag_set_vote(rpc_ag_ctx *ctx, const rpc_ag_vote *vote, rpc_ag_peer *const *servers,
                          size_t n, bd_err *err)
{
    bd_status rc = BD_OK;
    if (vote->job_epoch == 0 || vote->step == 0) {
        return bd_err_set(err, BD_E_INVALID, "vote: job epochs and steps begin at 1");
    }
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        rc = ag_ctx_reach(ctx, servers[i], err);
    }
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&ctx->lock);
        ctx->vote = *vote;
        ctx->votes = true;
        (void)pthread_mutex_unlock(&ctx->lock);
    }
    return rc;
}

/* A node that passes the step on does not vote once more. */
Braid__V1__AutogradVote *ag_vote_to_wire(rpc_ag_ctx *ctx, Braid__V1__AutogradVote *w)
{
    braid__v1__autograd_vote__init(w);
    if (!ctx->votes || ctx->client_id != ctx->ag->client_id) {
        return NULL;
    }
    w->job_epoch = ctx->vote.job_epoch;
    w->step = ctx->vote.step;
    w->rank = ctx->vote.rank;
    return w;
}

void ag_vote_note(rpc_ag_ctx *ctx, const Braid__V1__AutogradVote *w)
{
    if (w != NULL) {
        (void)pthread_mutex_lock(&ctx->lock);
        ctx->vote = (rpc_ag_vote){.job_epoch = w->job_epoch, .step = w->step, .rank = w->rank};
        ctx->votes = true;
        (void)pthread_mutex_unlock(&ctx->lock);
    }
}

bool ag_vote_stepped(const rpc_ag *ag, const Braid__V1__AutogradContextId *id,
                     const Braid__V1__AutogradVote *w)
{
    const rpc_ag_store *store = ag->store;
    rpc_ag_vote vote = {0};
    rpc_ag_step_id step = {.client_id = id->client_id, .number = id->number};
    if (w != NULL) {
        vote = (rpc_ag_vote){.job_epoch = w->job_epoch, .step = w->step, .rank = w->rank};
        step.vote = &vote;
    }
    return store != NULL && store->stepped(store->user, &step);
}
