/* Drain and undrain: a server is made ready for its restart. */
#include "base/mem.h"

#include "ps_server/ps_service_int.h"

#include <stdio.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

static void answer(ps_call *c)
{
    ps_shard_stats st;
    char why[300] = "";
    Braid__V1__DrainReply r;
    braid__v1__drain_reply__init(&r);
    ps_shard_get_stats(c->service->shard, &st);
    r.draining = ps_health_is_draining(c->service->health);
    r.job_epoch = st.job_epoch;
    r.journal_bytes = st.journal_bytes;
    r.dirty_bytes = st.dirty_bytes;
    r.staged_bytes = st.staged_bytes;
    if (!ps_health_is_serving(c->service->health, why, sizeof why)) {
        r.not_ready = why;
    }
    ps_call_reply_message(c, &r.base);
}

static void on_flushed(ps_op *op)
{
    ps_call *c = (ps_call *)(void *)((char *)op - offsetof(ps_call, op));
    if (op->rc == BD_OK) {
        answer(c);
    } else {
        bd_err err = op->err;
        ps_call_fail(c, &err);
    }
}

/* Idempotent: a second drain writes back what has changed since. */
void ps_on_drain(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__DrainRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__drain_request__descriptor);
    if (m == NULL) {
        return;
    }
    bool draining = m->mode == BRAID__V1__DRAIN_MODE__DRAIN_MODE_DRAIN;
    bool asked_only = m->mode == BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY;
    px_unpacked_free(&m->base);
    if (!asked_only) {
        ps_health_set_draining(c->service->health, draining);
    }
    if (!draining) {
        answer(c);
        return;
    }
    c->op.kind = PS_OP_FLUSH;
    c->op.done = on_flushed;
    ps_shard_post(c->service->shard, &c->op);
}
