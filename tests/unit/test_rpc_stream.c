/* Streams over real gRPC on loopback: order, both ends' endings, the bound of the send queue. */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_S 20

typedef struct world {
    rpc_env *env;
    rpc_server *server;
    rpc_channel *ch;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t cond;
    /* the server's side of the one stream under test */
    rpc_stream *there; /* shared */
    bool hold_back;    /* on_peer_finish does not end it */
    int n_there, n_there_closed, n_unary;
    bd_status there_rc;
    /* the client's side */
    int n_here, n_closed;
    bool in_order;
    bd_status rc;
    bd_err err;
    rpc_stream *here[4]; /* owned, so that a case that fails does not hold up the teardown */
    size_t n_opened;
} world;

static void wait_for(world *w, const int *counter, int n)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&w->lock);
    int e = 0;
    while (*counter < n && e == 0) {
        e = pthread_cond_timedwait(&w->cond, &w->lock, &until);
    }
    int got = *counter;
    (void)pthread_mutex_unlock(&w->lock);
    assert_int_equal(got, n);
}

/* Sends msg, waiting while the queue is full. */
static bd_status send_patiently(rpc_stream *s, bd_chain *msg)
{
    bd_status rc = rpc_stream_send(s, msg, NULL);
    while (rc == BD_E_EXHAUSTED) {
        bd_sleep_ms(1);
        rc = rpc_stream_send(s, msg, NULL);
    }
    return rc;
}

/* ---- server side: answers each message with itself ---- */

static void there_message(void *user, bd_chain *msg)
{
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->n_there++;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
    bd_chain reply = {0};
    bd_chain_move(&reply, msg);
    if (rpc_stream_send(w->there, &reply, NULL) != BD_OK) {
        bd_chain_deinit(&reply);
    }
}

static void there_half_closed(void *user)
{
    world *w = user;
    if (!w->hold_back) {
        rpc_stream_finish(w->there);
    }
}

static void there_close(void *user, bd_status rc, const bd_err *err)
{
    (void)err;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->there_rc = rc;
    w->n_there_closed++;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
}

static bd_status there_open(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    (void)err;
    world *w = user;
    w->there = rpc_stream_ref(s);
    *ev = (rpc_stream_events){there_message, there_close, w, there_half_closed};
    return BD_OK;
}

/* Echoes too, but leaves the ending to the transport. */
static bd_status there_open_auto(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    bd_status rc = there_open(user, s, ev, err);
    ev->on_peer_finish = NULL;
    return rc;
}

static bd_status there_refuse(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    (void)user;
    (void)s;
    (void)ev;
    return bd_err_set(err, BD_E_FENCED, "job epoch 3 is over");
}

static void unary(void *user, rpc_req *req)
{
    world *w = user;
    bd_chain reply = {0};
    (void)pthread_mutex_lock(&w->lock);
    w->n_unary++;
    (void)pthread_mutex_unlock(&w->lock);
    rpc_req_reply(req, &reply);
}

/* ---- client side: messages are consecutive numbers ---- */

static void here_message(void *user, bd_chain *msg)
{
    world *w = user;
    uint32_t number = 0;
    bool read = bd_chain_read(msg, 0, &number, sizeof number);
    (void)pthread_mutex_lock(&w->lock);
    w->in_order = w->in_order && read && number == (uint32_t)w->n_here;
    w->n_here++;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
}

static void here_close(void *user, bd_status rc, const bd_err *err)
{
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->rc = rc;
    w->err = *err;
    w->n_closed++;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
}

static rpc_stream *open_stream(world *w, const char *method)
{
    bd_err err = BD_ERR_INIT;
    rpc_stream *s = NULL;
    rpc_stream_events ev = {.on_message = here_message, .on_close = here_close, .user = w};
    assert_int_equal(rpc_stream_open(w->ch, method, &ev, &s, &err), BD_OK);
    assert_true(w->n_opened < sizeof w->here / sizeof *w->here);
    w->here[w->n_opened++] = s;
    return s;
}

static void send_number(rpc_stream *s, uint32_t number, size_t n_bytes)
{
    bd_chain msg = {0};
    bd_buf *b = bd_buf_new(n_bytes);
    memset(b->bytes, 0, n_bytes);
    memcpy(b->bytes, &number, sizeof number);
    assert_int_equal(bd_chain_add_moved(&msg, b), BD_OK);
    assert_int_equal(send_patiently(s, &msg), BD_OK);
}

static int set_up(void **state)
{
    world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    char target[64];
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->cond, NULL);
    w->in_order = true;
    assert_int_equal(rpc_env_new(NULL, &w->env, &err), BD_OK);
    rpc_server_options opt = {.listen = "127.0.0.1:0"};
    assert_int_equal(rpc_server_new(w->env, &opt, &w->server, &err), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/Unary", unary, w), BD_OK);
    assert_int_equal(rpc_server_register_stream(w->server, "/t.T/Echo", there_open, w), BD_OK);
    assert_int_equal(rpc_server_register_stream(w->server, "/t.T/Auto", there_open_auto, w), BD_OK);
    assert_int_equal(rpc_server_register_stream(w->server, "/t.T/No", there_refuse, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(w->server));
    rpc_channel_options chopt = {.name = "ps-1"};
    assert_int_equal(rpc_channel_new(w->env, target, &chopt, &w->ch, &err), BD_OK);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    rpc_channel_free(w->ch);
    rpc_server_free(w->server);
    rpc_stream_unref(w->there);
    while (w->n_opened > 0) {
        rpc_stream_unref(w->here[--w->n_opened]);
    }
    rpc_env_free(w->env);
    (void)pthread_cond_destroy(&w->cond);
    (void)pthread_mutex_destroy(&w->lock);
    bd_free(w);
    return 0;
}

static void ten_thousand_messages_keep_their_order(void **state)
{
    world *w = *state;
    const int n = 10000;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    for (int i = 0; i < n; i++) {
        send_number(s, (uint32_t)i, 16 + (size_t)(i % 1000));
    }
    rpc_stream_finish(s);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_OK);
    assert_int_equal(w->n_here, n);
    assert_true(w->in_order);
    wait_for(w, &w->n_there_closed, 1);
    assert_int_equal(w->there_rc, BD_OK);
    bd_chain late = {0};
    assert_int_equal(rpc_stream_send(s, &late, NULL), BD_E_STATE);
}

/* Without on_peer_finish the server's side ends by itself, after what was queued. */
static void a_stream_without_an_end_handler_ends_by_itself(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Auto");
    for (int i = 0; i < 100; i++) {
        send_number(s, (uint32_t)i, 4);
    }
    rpc_stream_finish(s);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_OK);
    assert_int_equal(w->n_here, 100);
    assert_true(w->in_order);
}

static void a_refused_stream_closes_with_the_reason(void **state)
{
    world *w = *state;
    (void)open_stream(w, "/t.T/No");
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_FENCED);
    assert_string_equal(w->err.text, "ps-1: job epoch 3 is over");
}

static void an_unknown_stream_is_unsupported(void **state)
{
    world *w = *state;
    (void)open_stream(w, "/t.T/Nope");
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_UNSUPPORTED);
}

/* What a call that was cancelled before its message was sent looks like to a server: no handler
 * runs with an empty request that nobody made. An empty message is one. */
static void a_call_without_a_message_runs_no_handler(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Unary");
    rpc_stream_finish(s);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_INVALID);
    assert_string_equal(w->err.text, "ps-1: a call without a request message");
    assert_int_equal(w->n_unary, 0);
    bd_chain empty = {0};
    s = open_stream(w, "/t.T/Unary");
    assert_int_equal(rpc_stream_send(s, &empty, NULL), BD_OK);
    rpc_stream_finish(s);
    wait_for(w, &w->n_closed, 2);
    assert_int_equal(w->rc, BD_OK);
    assert_int_equal(w->n_unary, 1);
}

static void cancel_by_the_client_reaches_the_server(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    send_number(s, 0, 4);
    wait_for(w, &w->n_here, 1);
    rpc_stream_cancel(s);
    rpc_stream_cancel(s);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_CANCELLED);
    wait_for(w, &w->n_there_closed, 1);
    assert_int_equal(w->there_rc, BD_E_PEER_LOST);
}

static void cancel_by_the_server_is_unavailable_at_the_client(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    send_number(s, 0, 4);
    wait_for(w, &w->n_here, 1);
    rpc_stream_cancel(w->there);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_UNAVAILABLE);
    wait_for(w, &w->n_there_closed, 1);
    assert_int_equal(w->there_rc, BD_E_CANCELLED);
}

/* The server says its last word first: the client's stream is over, cleanly. */
static void the_server_may_end_first(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    send_number(s, 0, 4);
    wait_for(w, &w->n_here, 1);
    rpc_stream_finish(w->there);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_OK);
}

static void a_stopped_server_breaks_idle_streams_without_waiting_for_the_grace(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    send_number(s, 0, 4);
    wait_for(w, &w->n_here, 1);
    int64_t start = bd_mono_ns();
    rpc_server_stop(w->server, 60000);
    assert_true(bd_mono_ns() - start < 30 * BD_NS_PER_S);
    wait_for(w, &w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_UNAVAILABLE);
}

/* Nothing listens any more: the stream fails, and the queue accepts no more than its bound. */
static void the_send_queue_is_bounded(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    w->hold_back = true;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    bd_buf *mib = bd_buf_new((size_t)1 << 20);
    memset(mib->bytes, 0, mib->n_bytes);
    bd_status rc = BD_OK;
    for (int i = 0; i < 100000 && rc == BD_OK; i++) {
        bd_chain msg = {0};
        assert_int_equal(bd_chain_add(&msg, mib, 0, mib->n_bytes), BD_OK);
        rc = rpc_stream_send(s, &msg, &err);
        bd_chain_deinit(&msg);
    }
    assert_int_equal(rc, BD_E_EXHAUSTED);
    rpc_stream_cancel(s);
    wait_for(w, &w->n_closed, 1);
    bd_buf_unref(mib);
}

static void closing_the_channel_closes_its_streams(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    send_number(s, 0, 4);
    wait_for(w, &w->n_here, 1);
    rpc_channel_free(w->ch);
    w->ch = NULL;
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(w->rc, BD_E_CANCELLED);
}

/* A watcher hears the state at once and every change. */
static void health_watch_tells_every_change(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/grpc.health.v1.Health/Watch");
    bd_chain ask = {0};
    assert_int_equal(rpc_stream_send(s, &ask, NULL), BD_OK);
    rpc_stream_finish(s);
    wait_for(w, &w->n_here, 1);
    rpc_server_set_serving(w->server, true);
    rpc_server_set_serving(w->server, true);
    wait_for(w, &w->n_here, 2);
    rpc_server_set_serving(w->server, false);
    wait_for(w, &w->n_here, 3);
    assert_int_equal(w->n_closed, 0);
    rpc_stream_cancel(s);
    wait_for(w, &w->n_closed, 1);
}

/* The largest SO_RCVLOWAT that was asked for: all of this process's calls come by here. */
static _Atomic int most_low_water;

__attribute__((visibility("default"))) int setsockopt(int fd, int level, int name,
                                                      const void *value, socklen_t n_bytes)
{
    int n = 0;
    if (level == SOL_SOCKET && name == SO_RCVLOWAT && n_bytes == sizeof n) {
        memcpy(&n, value, sizeof n);
        if (n > atomic_load(&most_low_water)) {
            atomic_store(&most_low_water, n);
        }
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, n_bytes);
}

/* After rpc_tune_process: in the midst of a message its reader waits for more than a few bytes. */
static void a_reader_sleeps_until_much_of_a_message_is_in(void **state)
{
    world *w = *state;
    rpc_stream *s = open_stream(w, "/t.T/Echo");
    for (uint32_t i = 0; atomic_load(&most_low_water) < 1 << 16 && i < 200;
         i++) { /* the first few */
        send_number(s, i, 1 << 20);
    }
    rpc_stream_finish(s);
    wait_for(w, &w->n_closed, 1);
    assert_true(atomic_load(&most_low_water) >= 1 << 16);
    assert_int_equal(w->rc, BD_OK);
    assert_true(w->in_order);
    wait_for(w, &w->n_there_closed, 1);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    rpc_tune_process();
    const struct CMUnitTest tests[] = {
        T(ten_thousand_messages_keep_their_order),
        T(a_reader_sleeps_until_much_of_a_message_is_in),
        T(a_stream_without_an_end_handler_ends_by_itself),
        T(a_refused_stream_closes_with_the_reason),
        T(an_unknown_stream_is_unsupported),
        T(a_call_without_a_message_runs_no_handler),
        T(cancel_by_the_client_reaches_the_server),
        T(cancel_by_the_server_is_unavailable_at_the_client),
        T(the_server_may_end_first),
        T(a_stopped_server_breaks_idle_streams_without_waiting_for_the_grace),
        T(the_send_queue_is_bounded),
        T(closing_the_channel_closes_its_streams),
        T(health_watch_tells_every_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
