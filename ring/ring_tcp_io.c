/* Frames over one connection.
 *
 * Headers are read through a small stage (one system call for a small frame); the rest of a large
 * payload is read straight to its place, together with the next header. Writes go out at once while
 * the socket takes them; what it does not take waits in a queue, so that it can still be dropped
 * when the group fails.
 */
#include "base/mem.h"

#include "ring/ring_tcp_int.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static ring_engine *engine_of(const ring_conn *c)
{
    return &c->owner->comm->engine;
}

/* The lead: see RING_TCP_LEAD_BYTES. In an even operation not all ranks can be held back at once,
 * since what one has sent more another has received; and who has received everything is free. */

static bool is_even_op(const ring_engine *e)
{
    return e->op != NULL && e->run.algo->is_even;
}

static void count_pace(ring_tcp *t, size_t out, size_t in)
{
    if (t->pace_seq != t->comm->engine.seq) {
        t->pace_seq = t->comm->engine.seq;
        t->pace_out = 0;
        t->pace_in = 0;
        t->is_unpaced = false;
    }
    t->pace_out += out;
    t->pace_in += in;
}

static size_t room(const ring_conn *c, const ring_out *o)
{
    const ring_tcp *t = c->owner;
    const ring_engine *e = &t->comm->engine;
    if (!o->is_paced || t->pace_seq != e->seq || t->is_unpaced || !is_even_op(e) ||
        e->run.n_received >= e->run.n_to_receive) {
        return SIZE_MAX;
    }
    uint64_t limit = t->pace_in + t->lead_bytes;
    return t->pace_out < limit ? (size_t)(limit - t->pace_out) : 0;
}

/* Writing. */

static ring_out *out_take(ring_conn *c)
{
    ring_out *o = c->spare;
    if (o != NULL) {
        c->spare = o->next;
    } else {
        o = bd_alloc(sizeof *o);
    }
    return o;
}

static void out_give(ring_conn *c, ring_out *o)
{
    o->next = c->spare;
    c->spare = o;
}

static ring_out *out_pop(ring_conn *c)
{
    ring_out *o = c->head;
    c->head = o->next;
    if (c->head == NULL) {
        c->tail = NULL;
    }
    return o;
}

/* At most `most` bytes of o's unsent rest, as up to two pieces. */
static size_t rest_of(ring_out *o, size_t most, struct iovec v[2])
{
    size_t n = 0;
    size_t skip = o->n_done;
    if (skip < RING_FRAME_BYTES) { /* the header always fits */
        v[n].iov_base = o->header + skip;
        v[n++].iov_len = RING_FRAME_BYTES - skip;
        skip = 0;
    } else {
        skip -= RING_FRAME_BYTES;
    }
    size_t left = o->n_bytes - skip;
    left = left < most ? left : most;
    if (left > 0) {
        v[n].iov_base = bd_unconst(o->payload + skip);
        v[n++].iov_len = left;
    }
    return n;
}

static bool is_out(const ring_out *o)
{
    return o->n_done == RING_FRAME_BYTES + o->n_bytes;
}

static size_t payload_done(const ring_out *o)
{
    return o->n_done > RING_FRAME_BYTES ? o->n_done - RING_FRAME_BYTES : 0;
}

/* One system call; adds to *moved. False: the connection is broken. */
static bool write_some(ring_conn *c, ring_out *o, size_t *moved)
{
    struct iovec v[2];
    size_t allowed = room(c, o);
    allowed = allowed < RING_TCP_TURN_BYTES ? allowed : RING_TCP_TURN_BYTES;
    struct msghdr m = {.msg_iov = v, .msg_iovlen = rest_of(o, allowed, v)};
    if (m.msg_iovlen == 0) {
        return true; /* held back */
    }
    ssize_t n = -1;
    do {
        n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        c->is_full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
        return c->is_full;
    }
    size_t asked = v[0].iov_len + (m.msg_iovlen > 1 ? v[1].iov_len : 0);
    c->is_full = (size_t)n < asked;
    size_t before = payload_done(o);
    o->n_done += (size_t)n;
    if (o->is_paced) { /* as the peer counts: payload, or the balance drifts by a header a frame */
        count_pace(c->owner, payload_done(o) - before, 0);
    }
    *moved += (size_t)n;
    return true;
}

/* A frame that is out; may end its operation. */
static void give_sent(ring_conn *c, ring_out *o)
{
    bool is_data = o->is_data;
    int op = o->op;
    out_give(c, o);
    if (is_data) {
        ring_engine_on_sent(engine_of(c), c->peer, op);
    }
}

static void give_all(ring_conn *c)
{
    while (c->head != NULL) {
        give_sent(c, out_pop(c));
    }
}

/* After a write error. Frames count as sent: whether the peer got them is what its reader tells;
 * a result that is complete here stays valid. */
static void break_conn(ring_conn *c)
{
    c->is_broken = true;
    give_all(c);
    if (c->is_held && !c->owner->is_closing) { /* nobody reads it: tell here */
        ring_conn_close(c);
        ring_engine_on_peer_lost(engine_of(c), c->peer, "connection broken");
    }
}

static void check_quiet(ring_tcp *t)
{
    for (int i = 0; i < t->n_conns; i++) {
        if (ring_conn_has_data_out(&t->conns[i])) {
            return;
        }
    }
    t->is_draining = false;
    ring_engine_on_quiet(&t->comm->engine);
}

/* Ends operations: never from inside ring_conn_send. */
bool ring_conn_write(ring_conn *c)
{
    size_t moved = 0;
    while (c->head != NULL && c->fd >= 0 && moved < RING_TCP_TURN_BYTES) {
        size_t before = moved;
        ring_out *o = c->head;
        if (!write_some(c, o, &moved)) {
            break_conn(c);
            moved++;
            break;
        }
        if (!is_out(o)) {
            if (c->is_full || moved == before) {
                break;
            }
            continue;
        }
        give_sent(c, out_pop(c));
    }
    if (c->owner->is_draining) {
        check_quiet(c->owner);
    }
    if (c->owner->is_closing) {
        ring_conn_shut(c);
    }
    return moved > 0;
}

/* Control frames, which answer or ask who is there, pass data that has not begun; what has begun
 * must not wait for others then. */
static void enqueue(ring_conn *c, ring_out *o)
{
    ring_out *before = c->tail;
    if (!o->is_data) {
        before = c->head != NULL && c->head->n_done > 0 ? c->head : NULL;
        while (before != NULL && before->next != NULL && !before->next->is_data) {
            before = before->next;
        }
        if (before != NULL) {
            c->head->is_paced = false;
        }
    }
    ring_out **link = before != NULL ? &before->next : &c->head;
    o->next = *link;
    *link = o;
    c->tail = o->next == NULL ? o : c->tail;
}

bd_status ring_conn_send(ring_conn *c, const ring_frame *f, const void *payload, bd_err *err)
{
    if (c->fd < 0 || c->is_broken || c->has_shut) {
        return BD_OK; /* lost: the reader has reported it, or will */
    }
    ring_out *o = out_take(c);
    if (o == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "frame to rank %d", c->peer);
    }
    size_t moved = 0;
    ring_frame_encode(f, o->header);
    o->next = NULL;
    o->is_data = f->kind == RING_FRAME_DATA;
    o->is_paced = c->is_local && o->is_data && f->op != RING_OP_SEND && is_even_op(engine_of(c));
    o->op = f->op;
    o->n_bytes = (size_t)f->payload_bytes;
    o->n_done = 0;
    o->payload = payload;
    if (!o->is_data && o->n_bytes > 0) {
        memcpy(o->text, payload, o->n_bytes);
        o->payload = o->text;
    }
    if (o->is_paced || !o->is_data) {
        count_pace(c->owner, 0, 0);
        c->owner->is_unpaced = c->owner->is_unpaced || !o->is_data;
    }
    if (c->head == NULL) {
        c->is_broken = !write_some(c, o, &moved);
        if (c->is_broken || is_out(o)) {
            out_give(c, o); /* out, or lost with the connection */
            return BD_OK;
        }
    }
    enqueue(c, o);
    return o->is_data ? BD_AGAIN : BD_OK;
}

bool ring_conn_has_data_out(const ring_conn *c)
{
    return c->fd >= 0 && c->head != NULL && c->head->is_data && c->head->n_done > 0;
}

bool ring_conn_quiesce(ring_conn *c)
{
    ring_out *kept = ring_conn_has_data_out(c) ? c->head : NULL;
    ring_out *o = kept != NULL ? kept->next : c->head;
    c->head = kept;
    c->tail = kept;
    if (kept != NULL) {
        kept->next = NULL;
        kept->is_paced = false;
    }
    while (o != NULL) {
        ring_out *next = o->next;
        out_give(c, o);
        o = next;
    }
    return kept == NULL;
}

/* Reading. */

static void hold(ring_conn *c)
{
    c->is_held = true;
    c->held_at = engine_of(c)->n_started;
}

static void take_header(ring_conn *c)
{
    ring_frame f;
    bd_err err = BD_ERR_INIT;
    void *dst = NULL;
    if (ring_frame_decode(c->stage + c->stage_at, &f, &err) != BD_OK) {
        (void)bd_err_wrap(&err, "rank %d got bytes from rank %d", engine_of(c)->rank, c->peer);
        ring_engine_fail(engine_of(c), &err);
        ring_conn_sink(c);
        return;
    }
    switch (ring_engine_on_header(engine_of(c), c->peer, c->lane, &f, &dst)) {
    case RING_HOLD:
        hold(c);
        break;
    case RING_STOP:
        ring_conn_sink(c);
        break;
    case RING_TAKE:
        c->stage_at += RING_FRAME_BYTES;
        c->mode = RING_READ_PAYLOAD;
        c->is_paced = f.kind == RING_FRAME_DATA && f.op != RING_OP_SEND;
        c->dst = dst;
        c->dst_left = (size_t)f.payload_bytes;
        break;
    }
}

static void payload_in(ring_conn *c, size_t n_bytes)
{
    if (n_bytes > 0) {
        c->dst += n_bytes;
        c->dst_left -= n_bytes;
        if (c->is_paced) {
            count_pace(c->owner, 0, n_bytes);
        }
    }
    if (c->dst_left == 0) {
        c->mode = RING_READ_HEADER;
        ring_engine_on_payload(engine_of(c), c->peer, c->lane);
    }
}

/* Works through the stage. */
static void parse(ring_conn *c)
{
    while (c->fd >= 0 && !c->is_held && c->mode != RING_READ_SINK) {
        size_t avail = c->stage_end - c->stage_at;
        if (c->mode == RING_READ_PAYLOAD) {
            size_t n = avail < c->dst_left ? avail : c->dst_left;
            if (n == 0 && c->dst_left > 0) {
                break;
            }
            if (n > 0) {
                memcpy(c->dst, c->stage + c->stage_at, n);
                c->stage_at += n;
            }
            payload_in(c, n);
        } else if (avail >= RING_FRAME_BYTES) {
            take_header(c);
        } else {
            break;
        }
    }
    if (c->stage_at > 0 && !c->is_held) {
        memmove(c->stage, c->stage + c->stage_at, c->stage_end - c->stage_at);
        c->stage_end -= c->stage_at;
        c->stage_at = 0;
    }
}

static size_t read_into(ring_conn *c, struct iovec v[2])
{
    switch (c->mode) {
    case RING_READ_SINK:
        v[0] = (struct iovec){c->owner->sink, sizeof c->owner->sink};
        return 1;
    case RING_READ_PAYLOAD: /* the stage is empty then */
        v[0] = (struct iovec){c->dst, c->dst_left};
        v[1] = (struct iovec){c->stage, RING_FRAME_BYTES};
        return 2;
    case RING_READ_HEADER:
        break;
    }
    v[0] = (struct iovec){c->stage + c->stage_end, sizeof c->stage - c->stage_end};
    return 1;
}

/* n_bytes are in. */
static void take_bytes(ring_conn *c, size_t n_bytes)
{
    if (c->mode == RING_READ_PAYLOAD) {
        size_t n = n_bytes < c->dst_left ? n_bytes : c->dst_left;
        c->stage_end = n_bytes - n;
        payload_in(c, n);
        parse(c);
    } else if (c->mode == RING_READ_HEADER) {
        c->stage_end += n_bytes;
        parse(c);
    }
}

/* What has not gone out counts as sent, as after a write error: an operation that lacks nothing else
 * is complete. */
static void end_of(ring_conn *c, const char *why)
{
    ring_conn_close(c);
    if (!c->owner->is_closing) {
        ring_engine_on_peer_lost(engine_of(c), c->peer, why);
    }
    give_all(c);
}

bool ring_conn_read(ring_conn *c)
{
    size_t moved = 0;
    while (c->fd >= 0 && !c->is_held && moved < RING_TCP_TURN_BYTES) {
        struct iovec v[2];
        struct msghdr m = {.msg_iov = v, .msg_iovlen = read_into(c, v)};
        size_t asked = v[0].iov_len + (m.msg_iovlen > 1 ? v[1].iov_len : 0);
        ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (n <= 0) {
            char text[128]; /* GNU strerror_r: returns the text, which may be elsewhere */
            end_of(c, n == 0 ? "connection closed" : strerror_r(errno, text, sizeof text));
            return true;
        }
        take_bytes(c, (size_t)n);
        moved += (size_t)n;
        if ((size_t)n < asked) {
            break; /* that was all */
        }
    }
    return moved > 0;
}

bool ring_conn_unhold(ring_conn *c)
{
    if (c->fd < 0 || !c->is_held || c->held_at == engine_of(c)->n_started) {
        return false;
    }
    c->is_held = false;
    parse(c);
    return true;
}

void ring_conn_sink(ring_conn *c)
{
    c->mode = RING_READ_SINK;
    c->is_held = false;
}

/* Life. */

short ring_conn_events(const ring_conn *c)
{
    if (c->fd < 0) {
        return 0;
    }
    bool can_write = c->head != NULL &&
                     (c->is_full || c->head->n_done < RING_FRAME_BYTES || room(c, c->head) > 0);
    return (short)((c->is_held ? 0 : POLLIN) | (can_write ? POLLOUT : 0));
}

void ring_conn_shut(ring_conn *c)
{
    if (c->fd < 0 || c->has_shut || c->head != NULL) {
        return;
    }
    c->has_shut = true;
    /* fails when the peer is gone already: its end of file closes the connection */
    (void)shutdown(c->fd, SHUT_WR);
}

void ring_conn_close(ring_conn *c)
{
    if (c->fd >= 0) {
        (void)close(c->fd);
        c->fd = -1;
    }
}

void ring_conn_deinit(ring_conn *c)
{
    ring_conn_close(c);
    while (c->head != NULL) {
        out_give(c, out_pop(c));
    }
    while (c->spare != NULL) {
        ring_out *next = c->spare->next;
        bd_free(c->spare);
        c->spare = next;
    }
}
