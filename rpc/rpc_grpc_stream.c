/* Bidirectional streams, client and server side: one send and one receive in flight, the rest of
 * the messages wait in a bounded queue.
 *
 * Events of one stream: receive (a chain of its own), send, and end (status on the client, close on
 * the server). The stream is over when none of the three is in flight any more; the thread that
 * takes the last one runs on_close.
 */
#include "base/mem.h"

#include "rpc/rpc_grpc_int.h"

#include <string.h>

typedef struct gr_msg {
    struct gr_msg *next;
    grpc_byte_buffer *bytes; /* owned */
    size_t n_bytes;
} gr_msg;

typedef struct gr_stream {
    rpc_stream base;
    rpc_stream_events ev;
    gr_server *srv; /* server side, else NULL */
    grpc_call *call;
    gr_core *core; /* client side: shared, NULL without TLS */
    grpc_metadata auth;
    size_t n_auth;
    gr_tag recv_tag, send_tag, end_tag;
    grpc_byte_buffer *recv;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    int end_cancelled;
    rpc_peer *peer;     /* server side, where limits count it; else NULL */
    gr_failure refusal; /* server side: why it was refused */
    bd_status refused;

    pthread_mutex_t lock; /* guards the fields below and send batches */
    gr_msg *first, **last;
    gr_msg *in_flight;
    size_t queued_bytes;
    size_t charged_bytes; /* to peer: of n_charged messages that have no answer yet */
    size_t n_charged;
    int n_ops; /* events that are still to come */
    bool sending, finish_wanted, finish_sent;
    bool cancelled; /* by this side */
    bool broken;    /* nothing can be sent any more */
} gr_stream;

#define OF_TAG(tag, member) ((gr_stream *)(void *)((char *)(tag)-offsetof(gr_stream, member)))

static void msg_free(gr_msg *m)
{
    if (m != NULL) {
        grpc_byte_buffer_destroy(m->bytes);
        bd_free(m);
    }
}

static void drop_queue_locked(gr_stream *s)
{
    while (s->first != NULL) {
        gr_msg *m = s->first;
        s->first = m->next;
        msg_free(m);
    }
    s->last = &s->first;
    s->queued_bytes = 0;
}

void gr_stream_destroy(rpc_stream *base)
{
    gr_stream *s = (gr_stream *)base;
    rpc_channel *ch = base->ch;
    drop_queue_locked(s);
    grpc_metadata_array_destroy(&s->initial);
    grpc_metadata_array_destroy(&s->trailing);
    grpc_slice_unref(s->details);
    gr_failure_deinit(&s->refusal);
    gr_auth_release(&s->auth, s->n_auth);
    (void)pthread_mutex_destroy(&s->lock);
    bd_free(s);
    if (ch != NULL) {
        rpc_channel_unref(ch);
    }
}

/* ---- the end ---- */

static bd_status end_of_server(const gr_stream *s, bd_err *err)
{
    if (s->cancelled) {
        return bd_err_set(err, BD_E_CANCELLED, "cancelled by the server");
    }
    if (s->end_cancelled != 0) {
        return bd_err_set(err, BD_E_PEER_LOST, "the client broke the stream or went away");
    }
    return BD_OK;
}

static bd_status end_of_client(const gr_stream *s, bd_err *err)
{
    if (s->cancelled) {
        return bd_err_set(err, BD_E_CANCELLED, "%s: cancelled by the caller", s->base.ch->name);
    }
    bd_status rc = gr_status_read(s->status, s->details, &s->trailing, false, err);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "%s", s->base.ch->name);
    }
    return rc;
}

static void stream_over(gr_stream *s)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = s->srv != NULL ? end_of_server(s, &err) : end_of_client(s, &err);
    bd_status counted = s->refusal.code != GRPC_STATUS_OK ? s->refused : rc;
    rpc_stats_call(s->base.stats, counted, bd_mono_ns() - s->base.start_ns);
    if (s->peer != NULL) {
        rpc_peers_leave(gr_server_peers(s->srv), s->peer, s->charged_bytes);
    }
    if (s->ev.on_close != NULL) {
        s->ev.on_close(s->ev.user, rc, &err);
    }
    (void)pthread_mutex_lock(&s->lock);
    grpc_call *call = s->call;
    s->call = NULL; /* a cancel comes too late now */
    s->broken = true;
    (void)pthread_mutex_unlock(&s->lock);
    grpc_call_unref(call);
    gr_core_unref(s->core);
    if (s->srv != NULL) {
        gr_server_leave_stream(s->srv, &s->base);
    } else {
        rpc_channel_leave_stream(s->base.ch, &s->base);
    }
    rpc_stream_unref(&s->base);
}

/* One event has been taken. s is gone afterwards if it was the last. */
static void op_done(gr_stream *s)
{
    (void)pthread_mutex_lock(&s->lock);
    bool over = --s->n_ops == 0;
    (void)pthread_mutex_unlock(&s->lock);
    if (over) {
        stream_over(s);
    }
}

/* ---- sending ---- */

static bool start_send_locked(gr_stream *s, const grpc_op *ops, size_t n_ops)
{
    gr_tag_publish(&s->send_tag);
    if (grpc_call_start_batch(s->call, ops, n_ops, &s->send_tag, NULL) != GRPC_CALL_OK) {
        s->broken = true;
        drop_queue_locked(s);
        (void)grpc_call_cancel(s->call, NULL);
        return false;
    }
    s->sending = true;
    s->n_ops++;
    return true;
}

/* Starts what is next, if nothing is in flight. */
static void pump_locked(gr_stream *s)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    if (s->sending || s->broken || s->call == NULL) {
        return;
    }
    if (s->first != NULL) {
        gr_msg *m = s->first;
        s->first = m->next;
        if (s->first == NULL) {
            s->last = &s->first;
        }
        s->in_flight = m;
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = m->bytes;
        (void)start_send_locked(s, &op, 1);
    } else if (s->finish_wanted && !s->finish_sent) {
        s->finish_sent = true;
        if (s->srv != NULL) {
            gr_op_status(&op, NULL);
        } else {
            op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        }
        (void)start_send_locked(s, &op, 1);
    }
}

static void on_send_event(gr_tag *tag, bool ok)
{
    gr_stream *s = OF_TAG(tag, send_tag);
    (void)pthread_mutex_lock(&s->lock);
    gr_msg *sent = s->in_flight;
    s->in_flight = NULL;
    s->sending = false;
    if (sent != NULL) {
        s->queued_bytes -= sent->n_bytes;
    }
    if (!ok) {
        s->broken = true;
        drop_queue_locked(s);
    }
    pump_locked(s);
    (void)pthread_mutex_unlock(&s->lock);
    msg_free(sent);
    op_done(s);
}

/* One answer for one of the messages that have none yet: their mean is given back. */
static void uncharge_locked(gr_stream *s)
{
    if (s->peer != NULL && s->n_charged > 0) {
        size_t n = s->charged_bytes / s->n_charged--;
        s->charged_bytes -= n;
        rpc_peers_uncharge(gr_server_peers(s->srv), s->peer, n);
    }
}

bd_status gr_stream_send(rpc_stream *base, bd_chain *msg, bd_err *err)
{
    gr_stream *s = (gr_stream *)base;
    gr_msg *m = bd_alloc(sizeof *m);
    grpc_byte_buffer *bytes = m != NULL ? gr_bytes_from_chain(msg) : NULL;
    if (bytes == NULL) {
        bd_free(m);
        return bd_err_set(err, BD_E_NOMEM, "stream: out of memory");
    }
    *m = (gr_msg){.bytes = bytes, .n_bytes = msg->n_bytes};
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&s->lock);
    if (s->broken || s->finish_wanted || s->cancelled) {
        rc = bd_err_set(err, BD_E_STATE, "the stream is closed");
    } else if (s->queued_bytes > 0 && s->queued_bytes + m->n_bytes > RPC_SEND_QUEUE_BYTES) {
        rc = bd_err_set(err, BD_E_EXHAUSTED, "%zu bytes wait to be sent on the stream, slow down",
                        s->queued_bytes);
    } else {
        s->queued_bytes += m->n_bytes;
        *s->last = m;
        s->last = &m->next;
        uncharge_locked(s);
        rpc_stream_count_message(base, m->n_bytes, true);
        pump_locked(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (rc != BD_OK) {
        msg_free(m);
        return rc;
    }
    bd_chain_deinit(msg);
    return BD_OK;
}

void gr_stream_finish(rpc_stream *base)
{
    gr_stream *s = (gr_stream *)base;
    (void)pthread_mutex_lock(&s->lock);
    s->finish_wanted = true;
    pump_locked(s);
    (void)pthread_mutex_unlock(&s->lock);
}

void gr_stream_cancel(rpc_stream *base)
{
    gr_stream *s = (gr_stream *)base;
    (void)pthread_mutex_lock(&s->lock);
    if (s->call != NULL && !s->cancelled) {
        s->cancelled = true;
        s->broken = true;
        drop_queue_locked(s);
        (void)grpc_call_cancel(s->call, NULL);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

bool gr_stream_is_busy(rpc_stream *base)
{
    gr_stream *s = (gr_stream *)base;
    (void)pthread_mutex_lock(&s->lock);
    bool busy = !s->broken && (s->sending || s->first != NULL);
    (void)pthread_mutex_unlock(&s->lock);
    return busy;
}

/* ---- receiving ---- */

/* False: no event will come. Receives are started by one thread at a time: the chain of events. */
static bool start_recv(gr_stream *s, bool first_of_client)
{
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_MESSAGE;
    ops[0].data.recv_message.recv_message = &s->recv;
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &s->initial;
    grpc_call *call = s->call; /* read before the publish: the event may end the stream at once */
    gr_tag_publish(&s->recv_tag);
    return grpc_call_start_batch(call, ops, first_of_client ? 2 : 1, &s->recv_tag, NULL) ==
           GRPC_CALL_OK;
}

static void end_of_messages(gr_stream *s)
{
    if (s->srv == NULL) {
        return; /* the status follows */
    }
    if (s->ev.on_peer_finish != NULL) {
        s->ev.on_peer_finish(s->ev.user);
    } else {
        gr_stream_finish(&s->base);
    }
}

/* The next message, once the peer's limits allow it; it waits in the transport meanwhile. */
static void read_on(void *user)
{
    gr_stream *s = user;
    if (s->peer != NULL) {
        gr_env *env = gr_server_env(s->srv);
        int64_t wait_ns = rpc_peers_wait_ns(gr_server_peers(s->srv), s->peer, bd_mono_ns());
        if (wait_ns > 0 && rpc_timer_add(env->timer, wait_ns, read_on, s) == BD_OK) {
            return; /* the receive still counts in n_ops, so s stays */
        }
    }
    if (!start_recv(s, false)) {
        op_done(s);
    }
}

static void charge(gr_stream *s, size_t n_bytes)
{
    (void)pthread_mutex_lock(&s->lock);
    s->charged_bytes += n_bytes;
    s->n_charged++;
    (void)pthread_mutex_unlock(&s->lock);
    (void)rpc_peers_charge(gr_server_peers(s->srv), s->peer, n_bytes, bd_mono_ns());
}

static void on_recv_event(gr_tag *tag, bool ok)
{
    gr_stream *s = OF_TAG(tag, recv_tag);
    bd_chain msg = {0};
    if (!ok || s->recv == NULL) {
        end_of_messages(s);
        op_done(s);
        return;
    }
    bd_status rc = gr_bytes_to_chain(s->recv, &msg);
    grpc_byte_buffer_destroy(s->recv);
    s->recv = NULL;
    if (rc == BD_OK) {
        rpc_stream_count_message(&s->base, msg.n_bytes, false);
        if (s->peer != NULL) {
            charge(s, msg.n_bytes);
        }
        s->ev.on_message(s->ev.user, &msg);
        bd_chain_deinit(&msg);
    } else {
        gr_stream_cancel(&s->base); /* a lost message must not go unnoticed */
    }
    read_on(s);
}

static void on_end_event(gr_tag *tag, bool ok)
{
    (void)ok;
    gr_stream *s = OF_TAG(tag, end_tag);
    (void)pthread_mutex_lock(&s->lock);
    s->broken = true;
    drop_queue_locked(s);
    (void)pthread_mutex_unlock(&s->lock);
    op_done(s);
}

/* ---- opening ---- */

static gr_stream *stream_new(void)
{
    gr_stream *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->base.t = &gr_transport;
    atomic_init(&s->base.refs, 1); /* its progress, until stream_over */
    s->recv_tag.fn = on_recv_event;
    s->send_tag.fn = on_send_event;
    s->end_tag.fn = on_end_event;
    s->last = &s->first;
    s->details = grpc_empty_slice();
    grpc_metadata_array_init(&s->initial);
    grpc_metadata_array_init(&s->trailing);
    (void)pthread_mutex_init(&s->lock, NULL);
    return s;
}

/* Starts the three chains of events; a batch that cannot start counts as one that has ended. */
static void start_all(gr_stream *s, grpc_op *end_op)
{
    grpc_op first;
    memset(&first, 0, sizeof first);
    first.op = GRPC_OP_SEND_INITIAL_METADATA;
    first.data.send_initial_metadata.metadata = &s->auth;
    first.data.send_initial_metadata.count = s->n_auth;
    (void)pthread_mutex_lock(&s->lock);
    s->n_ops = 2; /* the end's and the first receive's */
    (void)start_send_locked(s, &first, 1);
    gr_tag_publish(&s->end_tag);
    bool end = grpc_call_start_batch(s->call, end_op, 1, &s->end_tag, NULL) == GRPC_CALL_OK;
    bool recv = start_recv(s, s->srv == NULL);
    (void)pthread_mutex_unlock(&s->lock);
    if (!recv) {
        op_done(s);
    }
    if (!end) {
        op_done(s);
    }
}

bd_status gr_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                         rpc_stream **out, bd_err *err)
{
    gr_stream *s = stream_new();
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    s->ev = *ev;
    s->base.ch = ch;
    rpc_stream_count_start(&s->base, RPC_CLIENT_SIDE, method, bd_mono_ns());
    atomic_fetch_add_explicit(&ch->refs, 1, memory_order_relaxed);
    s->call = gr_channel_call(ch, method, gpr_inf_future(GPR_CLOCK_MONOTONIC), &s->core);
    s->n_auth = gr_auth_fill(ch, &s->auth);
    if (!rpc_channel_enter_stream(ch, &s->base)) {
        grpc_call_unref(s->call);
        gr_core_unref(s->core);
        rpc_stream_unref(&s->base);
        return bd_err_set(err, BD_E_STATE, "the channel is closed");
    }
    *out = rpc_stream_ref(&s->base);
    grpc_op end;
    memset(&end, 0, sizeof end);
    end.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    end.data.recv_status_on_client.trailing_metadata = &s->trailing;
    end.data.recv_status_on_client.status = &s->status;
    end.data.recv_status_on_client.status_details = &s->details;
    start_all(s, &end);
    return BD_OK;
}

static void fill_close(gr_stream *s, grpc_op *op)
{
    memset(op, 0, sizeof *op);
    op->op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op->data.recv_close_on_server.cancelled = &s->end_cancelled;
}

/* Answers with the reason and no message; no events for the handler. */
static void refuse(gr_stream *s, bd_status rc, const bd_err *why)
{
    grpc_op ops[2], end;
    memset(ops, 0, sizeof ops);
    fill_close(s, &end);
    s->ev = (rpc_stream_events){0};
    s->refused = rc < 0 ? rc : BD_E_INTERNAL;
    gr_failure_init(&s->refusal, s->refused, bd_err_text(why));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    gr_op_status(&ops[1], &s->refusal);
    (void)pthread_mutex_lock(&s->lock);
    drop_queue_locked(s);
    s->finish_wanted = true;
    s->finish_sent = true;
    s->n_ops = 1;
    (void)start_send_locked(s, ops, 2);
    gr_tag_publish(&s->end_tag);
    bool started = grpc_call_start_batch(s->call, &end, 1, &s->end_tag, NULL) == GRPC_CALL_OK;
    (void)pthread_mutex_unlock(&s->lock);
    if (!started) {
        op_done(s);
    }
}

void gr_stream_accept(gr_server *srv, const rpc_method *m, grpc_call *call, gr_visit *visit)
{
    bd_status rc = visit->refusal.code;
    const bd_err *why = &visit->refusal;
    gr_stream *s = stream_new();
    if (s == NULL) {
        (void)grpc_call_cancel(call, NULL);
        grpc_call_unref(call);
        if (visit->peer != NULL) {
            rpc_peers_leave(gr_server_peers(srv), visit->peer, 0);
        }
        gr_server_leave_stream(srv, NULL);
        return;
    }
    s->srv = srv;
    s->call = call;
    s->base.scope = visit->scope;
    s->peer = visit->peer;
    rpc_stream_count_start(&s->base, RPC_SERVER_SIDE, m->path, bd_mono_ns());
    gr_server_enter_stream(srv, &s->base);
    bd_err err = BD_ERR_INIT;
    s->sending = true; /* the handler may send already: it waits for the initial metadata */
    if (rc == BD_OK) {
        rc = m->stream_fn(m->user, &s->base, &s->ev, &err);
        why = &err;
    }
    if (rc != BD_OK) {
        refuse(s, rc, why);
        return;
    }
    grpc_op end;
    fill_close(s, &end);
    start_all(s, &end);
}
