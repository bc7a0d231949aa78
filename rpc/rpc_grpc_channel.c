/* Channels, single tries of unary calls, and statuses on the wire. */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_grpc_int.h"
#include "rpc/rpc_status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct gr_core {
    _Atomic int refs;
    uint64_t generation; /* of the certificates it was made with */
    grpc_channel *channel;
};

typedef struct gr_channel {
    rpc_channel base;
    char *target; /* owned */
    size_t max_message_bytes;
    int64_t connect_timeout_ms;
    pthread_mutex_t core_lock;
    gr_core *core; /* under core_lock; shared */
} gr_channel;

static grpc_arg int_arg(const char *key, int value)
{
    /* gRPC copies the key; its struct only lacks the const. */
    union {
        const char *in;
        char *out;
    } k = {.in = key};
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = k.out, .value.integer = value};
}

static int int_bytes(size_t n)
{
    return n > (size_t)INT32_MAX ? INT32_MAX : (int)n;
}

static grpc_arg text_arg(const char *key, char *value)
{
    grpc_arg a = int_arg(key, 0);
    a.type = GRPC_ARG_STRING;
    a.value.string = value;
    return a;
}

static grpc_channel *core_channel_new(const gr_channel *ch, const rpc_certs *certs)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0), /* rpc_call.c retries; gRPC's would keep our buffers */
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, int_bytes(ch->max_message_bytes)),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, int_bytes(RPC_CLIENT_MAX_BYTES)),
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, GR_FRAME_BYTES),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, int_bytes((size_t)ch->connect_timeout_ms)),
        int_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000),
        int_arg(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, GR_DNS_WAIT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, GR_KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, GR_KEEPALIVE_WAIT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* a connection of its own */
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),         /* a cluster's peers are not behind one */
        {0},                                            /* room for the server's name */
    };
    size_t n = sizeof args / sizeof args[0] - 1;
    const rpc_security *sec = ch->base.security;
    if (certs != NULL && certs->ca != NULL && sec->server_name != NULL && !ch->base.to_etcd) {
        args[n++] = text_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, sec->server_name);
    }
    grpc_channel_args list = {n, args};
    grpc_channel_credentials *creds = gr_channel_creds(certs);
    grpc_channel *core = grpc_channel_create(ch->target, creds, &list);
    grpc_channel_credentials_release(creds);
    return core;
}

void gr_core_unref(gr_core *core)
{
    if (core != NULL && atomic_fetch_sub_explicit(&core->refs, 1, memory_order_acq_rel) == 1) {
        grpc_channel_destroy(core->channel);
        bd_free(core);
    }
}

static gr_core *core_new(const gr_channel *ch)
{
    rpc_security *sec = ch->base.security;
    gr_core *core = bd_calloc(1, sizeof *core);
    if (core == NULL) {
        return NULL;
    }
    /* Read before the certificates: at worst they are newer, and another one is made. */
    core->generation =
        sec != NULL ? atomic_load_explicit(&sec->generation, memory_order_acquire) : 0;
    rpc_certs *certs = sec != NULL ? rpc_security_certs(sec) : NULL;
    atomic_init(&core->refs, 1);
    core->channel = core_channel_new(ch, certs);
    rpc_certs_unref(certs);
    return core;
}

/* The core for the next call, made anew when the certificates have changed; the old one lives as
 * long as its calls. */
static gr_core *core_now(gr_channel *ch)
{
    rpc_security *sec = ch->base.security;
    rpc_security_poll(sec, bd_mono_ns());
    (void)pthread_mutex_lock(&ch->core_lock);
    gr_core *old = NULL;
    if (ch->core->generation != atomic_load_explicit(&sec->generation, memory_order_acquire)) {
        gr_core *fresh = core_new(ch);
        if (fresh != NULL) { /* else the next call tries again */
            old = ch->core;
            ch->core = fresh;
        }
    }
    gr_core *core = ch->core;
    atomic_fetch_add_explicit(&core->refs, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&ch->core_lock);
    gr_core_unref(old);
    return core;
}

static void channel_free(gr_channel *ch)
{
    gr_core_unref(ch->core);
    (void)pthread_mutex_destroy(&ch->core_lock);
    bd_free(ch->target);
    bd_free(ch);
}

bd_status gr_channel_new(rpc_env *env, const char *target, const rpc_channel_options *opt,
                         rpc_channel **out, bd_err *err)
{
    gr_channel *ch = bd_calloc(1, sizeof *ch);
    if (ch == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "channel to %s: out of memory", target);
    }
    (void)pthread_mutex_init(&ch->core_lock, NULL);
    ch->max_message_bytes =
        opt->max_message_bytes > 0 ? opt->max_message_bytes : RPC_CLIENT_MAX_BYTES;
    ch->connect_timeout_ms =
        opt->connect_timeout_ms > 0 ? opt->connect_timeout_ms : RPC_CONNECT_TIMEOUT_MS;
    ch->target = bd_strdup(target);
    bd_status rc = ch->target == NULL ? BD_E_NOMEM : rpc_channel_init(&ch->base, env, target, opt);
    if (rc == BD_OK) {
        ch->core = core_new(ch);
        if (ch->core == NULL) {
            rpc_channel_deinit(&ch->base);
            rc = BD_E_NOMEM;
        }
    }
    if (rc != BD_OK) {
        channel_free(ch);
        return bd_err_set(err, rc, "channel to %s: out of memory", target);
    }
    gr_env_enter((gr_env *)env);
    *out = &ch->base;
    return BD_OK;
}

void gr_channel_destroy(rpc_channel *base)
{
    gr_channel *ch = (gr_channel *)base;
    gr_env *env = (gr_env *)base->env;
    rpc_channel_deinit(base);
    channel_free(ch);
    gr_env_leave(env);
}

grpc_call *gr_channel_call(rpc_channel *base, const char *method, gpr_timespec deadline,
                           gr_core **core)
{
    gr_channel *ch = (gr_channel *)base;
    *core = rpc_security_calls_tls(base->security) ? core_now(ch) : NULL;
    grpc_slice path = grpc_slice_from_copied_string(method);
    grpc_call *call = grpc_channel_create_call(
        (*core != NULL ? *core : ch->core)->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
        gr_env_queue((gr_env *)base->env), path, NULL, deadline, NULL);
    grpc_slice_unref(path);
    return call;
}

/* ---- statuses ---- */

bd_status gr_status_read(grpc_status_code code, grpc_slice details,
                         const grpc_metadata_array *trailing, bool own_cancel, bd_err *err)
{
    if (code == GRPC_STATUS_OK) {
        return BD_OK;
    }
    char text[BD_ERR_TEXT_BYTES];
    rpc_escape(text, sizeof text, GRPC_SLICE_START_PTR(details), GRPC_SLICE_LENGTH(details));
    const grpc_metadata *m = gr_metadata_find(trailing, RPC_STATUS_TRAILER);
    bd_status rc;
    if (m != NULL) {
        const grpc_slice *v = &m->value;
        rc = rpc_status_parse((const char *)GRPC_SLICE_START_PTR(*v), GRPC_SLICE_LENGTH(*v));
    } else if (code == GRPC_STATUS_CANCELLED && !own_cancel) {
        rc = BD_E_UNAVAILABLE; /* the peer went away with our call */
    } else {
        rc = rpc_status_from_grpc((int)code);
    }
    return bd_err_set(err, rc, "%s", text[0] != '\0' ? text : bd_status_text(rc));
}

void gr_failure_init(gr_failure *f, bd_status code, const char *text)
{
    char number[16];
    *f = (gr_failure){0};
    (void)snprintf(number, sizeof number, "%d", (int)code);
    f->code = (grpc_status_code)rpc_status_to_grpc(code);
    f->details = grpc_slice_from_copied_string(text);
    f->trailer.key = grpc_slice_from_static_string(RPC_STATUS_TRAILER);
    f->trailer.value = grpc_slice_from_copied_string(number);
}

void gr_failure_deinit(gr_failure *f)
{
    if (f->code != GRPC_STATUS_OK) {
        grpc_slice_unref(f->details);
        grpc_slice_unref(f->trailer.key);
        grpc_slice_unref(f->trailer.value);
        f->code = GRPC_STATUS_OK;
    }
}

void gr_op_status(grpc_op *op, gr_failure *f)
{
    op->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    op->data.send_status_from_server.status = GRPC_STATUS_OK;
    if (f != NULL) {
        op->data.send_status_from_server.status = f->code;
        op->data.send_status_from_server.status_details = &f->details;
        op->data.send_status_from_server.trailing_metadata = &f->trailer;
        op->data.send_status_from_server.trailing_metadata_count = 1;
    }
}

/* ---- one try ---- */

static void try_release(gr_try *t, grpc_call *call)
{
    grpc_byte_buffer_destroy(t->send);
    grpc_byte_buffer_destroy(t->recv);
    grpc_metadata_array_destroy(&t->initial);
    grpc_metadata_array_destroy(&t->trailing);
    grpc_slice_unref(t->details);
    grpc_call_unref(call);
    gr_auth_release(&t->auth, t->n_auth);
    gr_core_unref(t->core);
}

static void on_try_event(gr_tag *tag, bool ok)
{
    (void)ok; /* RECV_STATUS always "succeeds": the status tells */
    gr_try *t = (gr_try *)tag;
    rpc_call *c = t->owner;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};

    (void)pthread_mutex_lock(&c->lock);
    grpc_call *call = t->call;
    t->call = NULL; /* from here a cancel comes too late */
    bool own_cancel = c->cancelled;
    (void)pthread_mutex_unlock(&c->lock);

    bd_status rc = gr_status_read(t->status, t->details, &t->trailing, own_cancel, &err);
    if (rc == BD_OK && t->recv == NULL) {
        rc = bd_err_set(&err, BD_E_INTERNAL, "the peer answered without a message");
    } else if (rc == BD_OK) {
        rc = gr_bytes_to_chain(t->recv, &reply);
        if (rc != BD_OK) {
            (void)bd_err_set(&err, rc, "receive: %s", bd_status_text(rc));
        }
    }
    try_release(t, call);
    rpc_call_try_done(c, rc, &reply, &err);
}

static gpr_timespec deadline_of(const rpc_call *c)
{
    int64_t left_ns = c->deadline_ns - bd_mono_ns();
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos(left_ns > 0 ? left_ns : 0, GPR_TIMESPAN));
}

static void fill_ops(gr_try *t, grpc_op *ops)
{
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.metadata = &t->auth;
    ops[0].data.send_initial_metadata.count = t->n_auth;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = t->send;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &t->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &t->recv;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &t->trailing;
    ops[5].data.recv_status_on_client.status = &t->status;
    ops[5].data.recv_status_on_client.status_details = &t->details;
}

bd_status gr_try_start(rpc_call *c, bd_err *err)
{
    gr_try *t = (gr_try *)(void *)c->try_space;
    grpc_op ops[6];
    memset(ops, 0, sizeof ops); /* garbage in flags or reserved is refused */
    memset(t, 0, sizeof *t);
    t->tag.fn = on_try_event;
    t->owner = c;
    t->send = gr_bytes_from_chain(&c->request);
    if (t->send == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    grpc_metadata_array_init(&t->initial);
    grpc_metadata_array_init(&t->trailing);
    t->details = grpc_empty_slice();
    grpc_call *call = gr_channel_call(c->ch, c->method, deadline_of(c), &t->core);
    t->n_auth = gr_auth_fill(c->ch, &t->auth);
    t->call = call;
    fill_ops(t, ops);
    gr_tag_publish(&t->tag);
    grpc_call_error e = grpc_call_start_batch(call, ops, 6, &t->tag, NULL);
    if (e != GRPC_CALL_OK) { /* no event will come */
        t->call = NULL;
        try_release(t, call);
        return bd_err_set(err, BD_E_INTERNAL, "start: %s", grpc_call_error_to_string(e));
    }
    return BD_OK;
}

void gr_try_cancel(rpc_call *c)
{
    gr_try *t = (gr_try *)(void *)c->try_space;
    if (t->call != NULL) {
        (void)grpc_call_cancel(t->call, NULL);
    }
}
