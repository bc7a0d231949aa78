/* Streams of the in-memory network: two ends, and letters between them in order.
 *
 * A letter is an event that holds a reference of the end it goes to. An end is over when its
 * closing letter has come (or it was broken); on_close runs then, once.
 */
#include "base/mem.h"

#include "rpc/rpc_mem_int.h"

#include <string.h>

typedef enum letter_kind { LETTER_OPEN, LETTER_MESSAGE, LETTER_FINISH, LETTER_END } letter_kind;

struct mem_stream {
    rpc_stream base;
    rpc_mem_net *net;
    mem_env *env; /* the node it is on */
    rpc_stream_events ev;
    mem_stream *peer;   /* shared; NULL before it is accepted and after the end */
    mem_server *server; /* server side */
    bool is_client;
    bool open;             /* on_close has not run */
    bool finished;         /* no more sends from here */
    int64_t arrive_ns;     /* no letter from here arrives before this */
    size_t queued_bytes;   /* on their way */
    char *target, *method; /* owned; client side */
};

typedef struct letter {
    letter_kind kind;
    mem_stream *from; /* shared */
    mem_stream *to;   /* shared; NULL for LETTER_OPEN */
    bd_chain msg;
    bd_err why; /* LETTER_END */
} letter;

static void letter_free(letter *l)
{
    bd_chain_deinit(&l->msg);
    rpc_stream_unref(&l->from->base);
    if (l->to != NULL) {
        rpc_stream_unref(&l->to->base);
    }
    bd_free(l);
}

/* ---- ends ---- */

static mem_stream *stream_new(mem_env *env)
{
    mem_stream *s = bd_calloc(1, sizeof *s);
    if (s != NULL) {
        s->base.t = &mem_transport;
        atomic_init(&s->base.refs, 1); /* its being open */
        s->net = env->net;
        s->env = env;
        s->open = true;
    }
    return s;
}

void mem_stream_destroy(rpc_stream *base)
{
    mem_stream *s = (mem_stream *)base;
    rpc_channel *ch = base->ch;
    bd_free(s->target);
    bd_free(s->method);
    bd_free(s);
    if (ch != NULL) {
        rpc_channel_unref(ch);
    }
}

static void leave_server(mem_stream *s)
{
    if (s->base.prev != NULL) {
        s->base.prev->next = s->base.next;
    } else {
        s->server->streams = (mem_stream *)s->base.next;
    }
    if (s->base.next != NULL) {
        s->base.next->prev = s->base.prev;
    }
    s->server = NULL;
}

static void end_here(mem_stream *s, bd_status rc, const char *text)
{
    bd_err err = BD_ERR_INIT;
    if (!s->open) {
        return;
    }
    s->open = false;
    if (s->base.stats != NULL) {
        rpc_stats_call(s->base.stats, rc, mem_now(s->net) - s->base.start_ns);
    }
    if (rc != BD_OK) {
        (void)bd_err_set(&err, rc, "%s", text);
    }
    if (rc != BD_OK && s->is_client) {
        (void)bd_err_wrap(&err, "%s", s->base.ch->name);
    }
    if (s->server != NULL) {
        leave_server(s);
    }
    if (s->ev.on_close != NULL) {
        s->ev.on_close(s->ev.user, rc, &err);
    }
    if (s->is_client) {
        rpc_channel_leave_stream(s->base.ch, &s->base);
    }
    if (s->peer != NULL) {
        rpc_stream_unref(&s->peer->base);
        s->peer = NULL;
    }
    rpc_stream_unref(&s->base);
}

/* ---- letters ---- */

static void deliver(void *user);

static bd_status post(mem_stream *from, mem_stream *to, letter_kind kind, bd_chain *msg,
                      bd_status rc, const char *text)
{
    letter *l = bd_calloc(1, sizeof *l);
    int64_t at = mem_now(from->net) + mem_delay_ns(from->net);
    if (l == NULL) {
        return BD_E_NOMEM;
    }
    l->kind = kind;
    l->from = from;
    (void)rpc_stream_ref(&from->base);
    l->to = to;
    if (to != NULL) {
        (void)rpc_stream_ref(&to->base);
    }
    if (kind == LETTER_END) {
        (void)bd_err_set(&l->why, rc, "%s", text);
    }
    from->arrive_ns = at > from->arrive_ns ? at : from->arrive_ns;
    if (mem_at(from->net, from->arrive_ns, deliver, l) != BD_OK) {
        letter_free(l);
        return BD_E_NOMEM;
    }
    if (msg != NULL) {
        bd_chain_move(&l->msg, msg);
        from->queued_bytes += l->msg.n_bytes;
    }
    return BD_OK;
}

/* Both ends, now: as when the connection is reset. */
static void break_both(mem_stream *s, bd_status here, const char *text)
{
    mem_stream *peer = s->peer;
    if (peer != NULL) {
        (void)rpc_stream_ref(&peer->base);
        bd_status there = peer->is_client ? BD_E_UNAVAILABLE : BD_E_PEER_LOST;
        (void)post(s, peer, LETTER_END, NULL, there, "connection broken");
        rpc_stream_unref(&peer->base);
    }
    end_here(s, here, text);
}

void mem_stream_break(mem_stream *s)
{
    break_both(s, BD_E_PEER_LOST, "connection broken");
}

static void accept_stream(letter *l)
{
    mem_stream *client = l->from;
    mem_server *srv = mem_server_find(client->net, client->target);
    if (srv == NULL || !mem_can_talk(client->env, mem_env_of(srv->base.env))) {
        end_here(client, BD_E_UNAVAILABLE, "connection refused");
        return;
    }
    const rpc_method *m = NULL;
    for (size_t i = 0; i < srv->base.n_methods; i++) {
        if (strcmp(srv->base.methods[i].path, client->method) == 0) {
            m = &srv->base.methods[i];
        }
    }
    mem_stream *s =
        m != NULL && m->stream_fn != NULL ? stream_new(mem_env_of(srv->base.env)) : NULL;
    if (s == NULL) {
        end_here(client, m == NULL ? BD_E_UNSUPPORTED : BD_E_UNAVAILABLE, "no such stream");
        return;
    }
    mem_trace(client->net, "stream", client->env->name, s->env->name, client->method);
    bd_err err = BD_ERR_INIT;
    s->peer = client;
    (void)rpc_stream_ref(&client->base);
    client->peer = s;
    (void)rpc_stream_ref(&s->base);
    s->server = srv;
    rpc_stream_count_start(&s->base, RPC_SERVER_SIDE, client->method, mem_now(client->net));
    s->base.next = srv->streams != NULL ? &srv->streams->base : NULL;
    if (s->base.next != NULL) {
        s->base.next->prev = &s->base;
    }
    srv->streams = s;
    bd_status rc = mem_authenticate(client->env, srv, m, &s->base.scope, &err);
    rc = rc == BD_OK ? m->stream_fn(m->user, &s->base, &s->ev, &err) : rc;
    if (rc != BD_OK) {
        s->ev = (rpc_stream_events){0};
        (void)post(s, client, LETTER_END, NULL, rc, bd_err_text(&err));
        end_here(s, BD_OK, "");
    }
}

static void deliver(void *user)
{
    letter *l = user;
    mem_stream *from = l->from;
    mem_stream *to = l->to != NULL ? l->to : from->peer; /* sent before it was accepted */
    from->queued_bytes -= l->msg.n_bytes;
    if (l->kind == LETTER_OPEN) {
        if (from->open) {
            accept_stream(l);
        }
    } else if (to != NULL && to->open && l->kind != LETTER_END &&
               !mem_can_talk(from->env, to->env)) {
        break_both(to, to->is_client ? BD_E_UNAVAILABLE : BD_E_PEER_LOST, "connection broken");
    } else if (to != NULL && to->open && l->kind == LETTER_MESSAGE) {
        rpc_stream_count_message(&to->base, l->msg.n_bytes, false);
        to->ev.on_message(to->ev.user, &l->msg);
    } else if (to != NULL && to->open && l->kind == LETTER_FINISH) {
        if (to->is_client) {
            end_here(to, BD_OK, "");
        } else if (to->ev.on_peer_finish != NULL) {
            to->ev.on_peer_finish(to->ev.user);
        } else {
            mem_stream_finish(&to->base);
        }
    } else if (to != NULL && l->kind == LETTER_END) {
        end_here(to, l->why.code, l->why.text);
    }
    letter_free(l);
}

/* ---- the table's functions ---- */

bd_status mem_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                          rpc_stream **out, bd_err *err)
{
    mem_stream *s = stream_new(mem_env_of(ch->env));
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    s->is_client = true;
    s->ev = *ev;
    s->base.ch = ch;
    atomic_fetch_add_explicit(&ch->refs, 1, memory_order_relaxed);
    rpc_stream_count_start(&s->base, RPC_CLIENT_SIDE, method, mem_now(s->net));
    s->target = bd_strdup(((mem_channel *)ch)->target);
    s->method = bd_strdup(method);
    bd_status rc = s->target == NULL || s->method == NULL ? BD_E_NOMEM : BD_OK;
    if (rc == BD_OK && !rpc_channel_enter_stream(ch, &s->base)) {
        rc = BD_E_STATE;
    } else if (rc == BD_OK) {
        rc = post(s, NULL, LETTER_OPEN, NULL, BD_OK, "");
        if (rc != BD_OK) {
            rpc_channel_leave_stream(ch, &s->base);
        }
    }
    if (rc != BD_OK) {
        rpc_stream_unref(&s->base);
        return bd_err_set(err, rc, "%s",
                          rc == BD_E_STATE ? "the channel is closed" : "out of memory");
    }
    *out = rpc_stream_ref(&s->base);
    return BD_OK;
}

bd_status mem_stream_send(rpc_stream *base, bd_chain *msg, bd_err *err)
{
    mem_stream *s = (mem_stream *)base;
    if (!s->open || s->finished) {
        return bd_err_set(err, BD_E_STATE, "the stream is closed");
    }
    if (s->queued_bytes > 0 && s->queued_bytes + msg->n_bytes > RPC_SEND_QUEUE_BYTES) {
        return bd_err_set(err, BD_E_EXHAUSTED, "%zu bytes wait to be sent on the stream, slow down",
                          s->queued_bytes);
    }
    if (mem_draw(s->net, s->net->opt.loss)) {
        bd_chain_deinit(msg);
        mem_trace(s->net, "stream lost", s->env->name, "-", "-");
        mem_stream_cancel(base);
        return BD_OK; /* the sender hears of it by on_close */
    }
    size_t n_bytes = msg->n_bytes;
    bd_status rc = post(s, s->peer, LETTER_MESSAGE, msg, BD_OK, "");
    if (rc == BD_OK) {
        rpc_stream_count_message(base, n_bytes, true);
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "stream: out of memory");
}

void mem_stream_finish(rpc_stream *base)
{
    mem_stream *s = (mem_stream *)base;
    if (!s->open || s->finished) {
        return;
    }
    s->finished = true;
    (void)post(s, s->peer, LETTER_FINISH, NULL, BD_OK, "");
    if (!s->is_client) {
        /* The server's last word: its end closes by an event, not inside the caller. */
        (void)post(s, s, LETTER_END, NULL, BD_OK, "");
    }
}

/* The own end closes by an event, never inside the caller's function. */
void mem_stream_cancel(rpc_stream *base)
{
    mem_stream *s = (mem_stream *)base;
    if (!s->open) {
        return;
    }
    s->finished = true;
    if (s->peer != NULL) {
        bd_status there = s->peer->is_client ? BD_E_UNAVAILABLE : BD_E_PEER_LOST;
        (void)post(s, s->peer, LETTER_END, NULL, there, "connection broken");
    }
    (void)post(s, s, LETTER_END, NULL, BD_E_CANCELLED,
               s->is_client ? "cancelled by the caller" : "cancelled by the server");
}
