/* One unary request on the server: from arrival to the events of its last batches. */
#include "base/mem.h"

#include "rpc/rpc_grpc_int.h"

#include <string.h>

/* References: one until the answer's event, one until the close event. */
typedef struct gr_req {
    rpc_req base;
    gr_server *srv;
    grpc_call *call;
    gpr_timespec deadline;
    rpc_job job;
    gr_tag close_tag, sent_tag;
    int close_cancelled;
    _Atomic bool cancelled;
    _Atomic int refs;
    grpc_byte_buffer *reply;
    gr_failure failure;
} gr_req;

static gr_req *of_tag(gr_tag *tag, size_t offset)
{
    return (gr_req *)(void *)((char *)tag - offset);
}

static void req_unref(gr_req *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    gr_server *srv = r->srv;
    grpc_byte_buffer_destroy(r->reply);
    gr_failure_deinit(&r->failure);
    bd_chain_deinit(&r->base.body);
    grpc_call_unref(r->call);
    bd_free(r);
    gr_server_req_gone(srv);
}

static void on_close_event(gr_tag *tag, bool ok)
{
    gr_req *r = of_tag(tag, offsetof(gr_req, close_tag));
    if (!ok || r->close_cancelled != 0) { /* deadline, cancel or a lost connection */
        atomic_store_explicit(&r->cancelled, true, memory_order_release);
    }
    req_unref(r);
}

static void on_sent_event(gr_tag *tag, bool ok)
{
    (void)ok; /* not delivered: the caller finds out by itself */
    req_unref(of_tag(tag, offsetof(gr_req, sent_tag)));
}

static void start_close(gr_req *r)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &r->close_cancelled;
    gr_tag_publish(&r->close_tag);
    if (grpc_call_start_batch(r->call, &op, 1, &r->close_tag, NULL) != GRPC_CALL_OK) {
        on_close_event(&r->close_tag, false);
    }
}

static void start_answer(gr_req *r, grpc_op *ops, size_t n_ops)
{
    gr_tag_publish(&r->sent_tag);
    if (grpc_call_start_batch(r->call, ops, n_ops, &r->sent_tag, NULL) != GRPC_CALL_OK) {
        (void)grpc_call_cancel(r->call, NULL);
        on_sent_event(&r->sent_tag, false);
    }
}

void gr_req_reply(rpc_req *base, bd_chain *reply)
{
    gr_req *r = (gr_req *)base;
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    r->reply = gr_bytes_from_chain(reply);
    bd_chain_deinit(reply);
    if (r->reply == NULL) {
        gr_req_fail(base, BD_E_NOMEM, "out of memory for the answer");
        return;
    }
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = r->reply;
    gr_op_status(&ops[2], NULL);
    start_answer(r, ops, 3);
}

void gr_req_fail(rpc_req *base, bd_status code, const char *text)
{
    gr_req *r = (gr_req *)base;
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    gr_failure_init(&r->failure, code, text);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    gr_op_status(&ops[1], &r->failure);
    start_answer(r, ops, 2);
}

bool gr_req_cancelled(rpc_req *base)
{
    return atomic_load_explicit(&((gr_req *)base)->cancelled, memory_order_acquire);
}

int64_t gr_req_ms_left(rpc_req *base)
{
    gpr_timespec left = gpr_time_sub(((gr_req *)base)->deadline, gpr_now(GPR_CLOCK_MONOTONIC));
    int32_t ms = gpr_time_to_millis(left);
    return ms > 0 ? ms : 0;
}

static void on_job(rpc_job *job)
{
    gr_req *r = (gr_req *)(void *)((char *)job - offsetof(gr_req, job));
    rpc_req_run(&r->base);
}

static void dispatch(gr_req *r)
{
    if (r->base.method->is_inline) {
        rpc_req_run(&r->base);
    } else {
        r->job.run = on_job;
        rpc_pool_submit(gr_server_env(r->srv)->pool, &r->job);
    }
}

void gr_req_begin(gr_server *srv, const rpc_method *m, grpc_call *call, gpr_timespec deadline,
                  grpc_byte_buffer *payload, const gr_visit *visit)
{
    const bd_err *refusal = &visit->refusal;
    gr_req *r = bd_calloc(1, sizeof *r);
    if (r == NULL) { /* the caller sees a broken call and tries again */
        grpc_byte_buffer_destroy(payload);
        (void)grpc_call_cancel(call, NULL);
        grpc_call_unref(call);
        if (visit->peer != NULL) {
            rpc_peers_leave(gr_server_peers(srv), visit->peer, visit->n_bytes);
        }
        gr_server_req_gone(srv);
        return;
    }
    r->base.t = &gr_transport;
    r->base.method = m;
    r->srv = srv;
    r->call = call;
    r->deadline = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
    r->close_tag.fn = on_close_event;
    r->sent_tag.fn = on_sent_event;
    atomic_init(&r->refs, 2);
    r->base.scope = visit->scope;
    rpc_req_count(&r->base, gr_server_base(srv), m, visit->n_bytes, visit->peer);
    bd_status rc = payload != NULL && refusal->code == BD_OK
                       ? gr_bytes_to_chain(payload, &r->base.body)
                       : BD_OK;
    grpc_byte_buffer_destroy(payload);
    start_close(r);
    if (refusal->code != BD_OK) {
        rpc_req_fail(&r->base, refusal);
    } else if (rc == BD_OK) {
        dispatch(r);
    } else {
        bd_err err = BD_ERR_INIT;
        (void)bd_err_set(&err, rc, "receive the request: %s", bd_status_text(rc));
        rpc_req_fail(&r->base, &err);
    }
}
