/* Limits of peers, and what the metrics page says of calls: over memory with virtual time, and over
 * real gRPC on loopback. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"

#include "rpc/rpc.h"
#include "rpc/rpc_mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { ANSWER_MS = 20000, HELD = 64 };

typedef struct world {
    rpc_mem_net *net; /* NULL: real */
    rpc_env *env, *client;
    rpc_server *server;
    rpc_channel *ch;
    char target[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    rpc_req *held[HELD];
    int n_held;
    rpc_stream *there;
    int n_there, n_here, n_closed; /* messages that arrived at either end */
    bool answers;                  /* the stream's server side */
} world;

static const rpc_call_options plain = {.deadline_ms = ANSWER_MS};

static void on_echo(void *user, rpc_req *req)
{
    (void)user;
    bd_chain reply = {0};
    bd_chain_move(&reply, rpc_req_body(req));
    rpc_req_reply(req, &reply);
}

static void on_hold(void *user, rpc_req *req)
{
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    assert_true(w->n_held < HELD);
    w->held[w->n_held++] = req;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void there_message(void *user, bd_chain *msg)
{
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->n_there++;
    bool answers = w->answers;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    if (answers) {
        bd_chain reply = {0};
        bd_chain_move(&reply, msg);
        (void)!rpc_stream_send(w->there, &reply, NULL);
        bd_chain_deinit(&reply);
    }
}

static bd_status there_open(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    (void)err;
    world *w = user;
    w->there = rpc_stream_ref(s);
    *ev = (rpc_stream_events){.on_message = there_message, .user = w};
    return BD_OK;
}

static void here_message(void *user, bd_chain *msg)
{
    (void)msg;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->n_here++;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void here_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->n_closed++;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static world *world_new(bool real, const rpc_limits *limits)
{
    world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    rpc_mem_options mo = {.seed = 1};
    rpc_env_options eo = {.n_queues = 1};
    rpc_server_options so = {.listen = real ? "127.0.0.1:0" : "ps:1",
                             .allow_insecure = true,
                             .max_message_bytes = 1 << 20,
                             .limits = *limits};
    rpc_channel_options co = {.allow_insecure = true};
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    if (real) {
        assert_int_equal(rpc_env_new(&eo, &w->env, &err), BD_OK);
        w->client = w->env;
    } else {
        assert_int_equal(rpc_mem_net_new(&mo, &w->net, &err), BD_OK);
        assert_int_equal(rpc_mem_env_new(w->net, "ps", &w->env, &err), BD_OK);
        assert_int_equal(rpc_mem_env_new(w->net, "trainer", &w->client, &err), BD_OK);
    }
    assert_int_equal(rpc_server_new(w->env, &so, &w->server, &err), BD_OK);
    assert_int_equal(rpc_server_register_inline(w->server, "/t.T/Echo", on_echo, w), BD_OK);
    assert_int_equal(rpc_server_register_inline(w->server, "/t.T/Hold", on_hold, w), BD_OK);
    assert_int_equal(rpc_server_register_stream(w->server, "/t.T/Stream", there_open, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    (void)snprintf(w->target, sizeof w->target, real ? "127.0.0.1:%d" : "ps:%d",
                   rpc_server_port(w->server));
    assert_int_equal(rpc_channel_new(w->client, w->target, &co, &w->ch, &err), BD_OK);
    return w;
}

static void world_free(world *w)
{
    rpc_channel_free(w->ch);
    rpc_server_free(w->server);
    rpc_stream_unref(w->there);
    if (w->net != NULL) {
        rpc_env_free(w->client);
    }
    rpc_env_free(w->env);
    if (w->net != NULL) {
        rpc_mem_net_free(w->net);
    }
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    bd_free(w);
}

static bd_status call(world *w, const char *method, size_t n_bytes, bd_err *err)
{
    bd_chain body = {0}, reply = {0};
    bd_buf *b = bd_buf_new(n_bytes);
    memset(b->bytes, 7, n_bytes);
    assert_int_equal(bd_chain_add_moved(&body, b), BD_OK);
    bd_status rc = rpc_call_sync(w->ch, method, &body, &plain, &reply, err);
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return rc;
}

/* The value of a series on the metrics page; 0: not there. */
static double metric(const char *series)
{
    char *page = bd_metrics_text();
    size_t n = strlen(series);
    double v = 0;
    for (const char *at = strstr(page, series); at != NULL; at = strstr(at + 1, series)) {
        if (at[n] == ' ' && (at == page || at[-1] == '\n')) {
            v = strtod(at + n, NULL);
        }
    }
    bd_free(page);
    return v;
}

/* ---- rate ---- */

static void a_peer_gets_its_requests_a_second(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    world *w = world_new(false, &(rpc_limits){.max_requests_per_s = 10});
    double before = metric("braid_rpc_limited_requests_total");
    for (int second = 0; second < 3; second++) {
        int n_ok = 0;
        bd_status rc = BD_OK;
        while ((rc = call(w, "/t.T/Echo", 100, &err)) == BD_OK) {
            n_ok++;
        }
        assert_int_equal(rc, BD_E_EXHAUSTED);
        assert_non_null(strstr(err.text, "trainer asks for more than 10 requests a second"));
        assert_int_equal(n_ok, 10);
        rpc_mem_net_run_until(w->net,
                              bd_now_ns(rpc_mem_net_clock(w->net)) + BD_NS_PER_S + BD_NS_PER_MS);
    }
    assert_true(metric("braid_rpc_limited_requests_total") - before == 3);
    bd_chain none = {0}, reply = {0};
    for (int i = 0; i < 30; i++) { /* probes are not counted */
        assert_int_equal(
            rpc_call_sync(w->ch, "/grpc.health.v1.Health/Check", &none, &plain, &reply, &err),
            BD_OK);
        bd_chain_deinit(&reply);
    }
    world_free(w);
}

static void the_rate_holds_over_grpc(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    world *w = world_new(true, &(rpc_limits){.max_requests_per_s = 0.5}); /* one now, none soon */
    assert_int_equal(call(w, "/t.T/Echo", 100, &err), BD_OK);
    assert_int_equal(call(w, "/t.T/Echo", 100, &err), BD_E_EXHAUSTED);
    assert_non_null(strstr(err.text, "max_requests_per_second"));
    world_free(w);
}

/* ---- bytes ---- */

static void on_held_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)reply;
    (void)err;
    world *w = user;
    assert_int_equal(rc, BD_OK);
    (void)pthread_mutex_lock(&w->lock);
    w->n_here++;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void until(world *w, const int *n, int wanted)
{
    if (w->net != NULL) {
        while (*n < wanted) {
            assert_true(rpc_mem_net_step(w->net));
        }
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    while (*n < wanted) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

static void bytes_limit(bool real)
{
    bd_err err = BD_ERR_INIT;
    world *w = world_new(real, &(rpc_limits){.max_bytes = 100000});
    double before = metric("braid_rpc_limited_bytes_total");
    for (int i = 0; i < 2; i++) {
        bd_chain body = {0};
        bd_buf *b = bd_buf_new(45000);
        memset(b->bytes, 7, b->n_bytes);
        assert_int_equal(bd_chain_add_moved(&body, b), BD_OK);
        assert_int_equal(
            rpc_call_start(w->ch, "/t.T/Hold", &body, &plain, on_held_done, w, NULL, &err), BD_OK);
    }
    until(w, &w->n_held, 2);
    assert_int_equal(call(w, "/t.T/Echo", 20000, &err), BD_E_EXHAUSTED);
    assert_non_null(strstr(err.text, "90000 bytes"));
    assert_int_equal(call(w, "/t.T/Echo", 10000, &err), BD_OK); /* fits beside them */
    assert_true(metric("braid_rpc_limited_bytes_total") - before == 1);
    for (int i = 0; i < 2; i++) {
        bd_chain none = {0};
        rpc_req_reply(w->held[i], &none);
    }
    until(w, &w->n_here, 2);
    assert_int_equal(call(w, "/t.T/Echo", 100000, &err), BD_OK);
    assert_int_equal(call(w, "/t.T/Echo", 500000, &err), BD_OK); /* one alone always fits */
    world_free(w);
}

static void bytes_in_flight_are_bounded_in_memory(void **state)
{
    (void)state;
    bytes_limit(false);
}

static void bytes_in_flight_are_bounded_over_grpc(void **state)
{
    (void)state;
    bytes_limit(true);
}

static void a_server_that_stops_gives_back_what_is_held(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    world *w = world_new(false, &(rpc_limits){.max_bytes = 1000});
    bd_chain body = {0};
    rpc_call_options shortly = {.deadline_ms = 10};
    assert_int_equal(bd_chain_add_copy(&body, "held", 4), BD_OK);
    bd_chain reply = {0};
    assert_int_equal(rpc_call_sync(w->ch, "/t.T/Hold", &body, &shortly, &reply, &err),
                     BD_E_TIMEOUT);
    rpc_server_stop(w->server, 0);
    bd_chain none = {0};
    rpc_req_reply(w->held[0], &none);
    bd_chain_deinit(&body);
    world_free(w);
}

/* A stream whose messages are not answered is not read on beyond the limit. */
static void a_stream_is_held_up_until_answers_go_out(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    world *w = world_new(true, &(rpc_limits){.max_bytes = 100000});
    rpc_stream_events ev = {.on_message = here_message, .on_close = here_close, .user = w};
    rpc_stream *s = NULL;
    double before = metric("braid_rpc_limited_bytes_total");
    assert_int_equal(rpc_stream_open(w->ch, "/t.T/Stream", &ev, &s, &err), BD_OK);
    for (int i = 0; i < 8; i++) {
        bd_chain msg = {0};
        bd_buf *b = bd_buf_new(45000);
        memset(b->bytes, i, b->n_bytes);
        assert_int_equal(bd_chain_add_moved(&msg, b), BD_OK);
        assert_int_equal(rpc_stream_send(s, &msg, &err), BD_OK);
    }
    until(w, &w->n_there, 3); /* 135000 bytes: over the limit with the third */
    bd_sleep_ms(50);          /* no condition to wait for: nothing may happen */
    assert_int_equal(w->n_there, 3);
    assert_true(metric("braid_rpc_limited_bytes_total") - before >= 1);
    (void)pthread_mutex_lock(&w->lock);
    w->answers = true;
    (void)pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < 3; i++) {
        bd_chain msg = {0};
        assert_int_equal(bd_chain_add_copy(&msg, "done", 4), BD_OK);
        assert_int_equal(rpc_stream_send(w->there, &msg, &err), BD_OK);
    }
    until(w, &w->n_here, 8);
    rpc_stream_finish(s);
    until(w, &w->n_closed, 1);
    rpc_stream_unref(s);
    world_free(w);
}

/* ---- connections ---- */

static void the_newest_connections_of_a_greedy_peer_are_closed(void **state)
{
    (void)state;
    enum { N = 200, MAX = 40 };
    bd_err err = BD_ERR_INIT;
    world *w = world_new(true, &(rpc_limits){.max_connections = MAX});
    assert_int_equal(call(w, "/t.T/Echo", 10, &err), BD_OK); /* an old friend */
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    while (metric("braid_rpc_connections") < 1 && bd_mono_ns() < end_ns) {
        bd_sleep_ms(5);
    }
    double before = metric("braid_rpc_limited_connections_total");
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)rpc_server_port(w->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&to, sizeof to), 0);
    }
    while (metric("braid_rpc_limited_connections_total") - before < N + 1 - MAX &&
           bd_mono_ns() < end_ns) {
        bd_sleep_ms(5);
    }
    assert_true(metric("braid_rpc_limited_connections_total") - before == N + 1 - MAX);
    int n_closed = 0;
    for (int i = 0; i < N; i++) {
        char c[64];
        ssize_t n = 1;
        while (n > 0) { /* the server's greeting, and then the end */
            n = recv(fds[i], c, sizeof c, MSG_DONTWAIT);
        }
        n_closed += n == 0 ? 1 : 0;
    }
    assert_in_range(n_closed, 1, N + 1 - MAX);
    assert_int_equal(call(w, "/t.T/Echo", 10, &err), BD_OK);
    for (int i = 0; i < N; i++) {
        (void)close(fds[i]);
    }
    world_free(w);
}

/* ---- metrics ---- */

static void methods_are_counted_by_code(bool real)
{
    bd_err err = BD_ERR_INIT;
    static const char ok[] = "braid_rpc_server_calls_total{method=\"t.T/Echo\",code=\"OK\"}";
    static const char mine[] = "braid_rpc_client_calls_total{method=\"t.T/Echo\",code=\"OK\"}";
    static const char in[] =
        "braid_rpc_server_bytes_total{method=\"t.T/Echo\",direction=\"received\"}";
    static const char seconds[] = "braid_rpc_server_call_seconds_count{method=\"t.T/Echo\"}";
    static const char unknown[] =
        "braid_rpc_server_calls_total{method=\"other\",code=\"UNIMPLEMENTED\"}";
    static const char large[] =
        "braid_rpc_client_calls_total{method=\"t.T/Echo\",code=\"RESOURCE_EXHAUSTED\"}";
    static const char refused[] =
        "braid_rpc_server_calls_total{method=\"t.T/Echo\",code=\"RESOURCE_EXHAUSTED\"}";
    world *w = world_new(real, &(rpc_limits){0});
    double n_refused = metric(refused);
    double n_ok = metric(ok), n_mine = metric(mine), n_in = metric(in), n_seconds = metric(seconds),
           n_unknown = metric(unknown), n_large = metric(large);
    assert_int_equal(call(w, "/t.T/Echo", 1000, &err), BD_OK);
    assert_int_equal(call(w, "/t.T/Nothing", 1000, &err), BD_E_UNSUPPORTED);
    assert_int_equal(call(w, "/t.T/Echo", 3 << 19, &err), BD_E_EXHAUSTED); /* over 1 MiB */
    assert_int_equal(call(w, "/t.T/Echo", 1000, &err), BD_OK);             /* unharmed */
    assert_true(metric(ok) - n_ok == 2);
    assert_true(metric(mine) - n_mine == 2);
    assert_true(metric(in) - n_in == 2000 + (real ? 3 << 19 : 0));
    assert_true(metric(seconds) - n_seconds >= 2);
    assert_true(metric(unknown) - n_unknown == (real ? 1 : 0));
    assert_true(metric(large) - n_large == 1);
    assert_true(metric(refused) - n_refused == (real ? 1 : 0));
    assert_int_equal(call(w, "/t.T/Echo", 9 << 20, &err), BD_E_EXHAUSTED); /* by gRPC itself */
    assert_int_equal(call(w, "/t.T/Echo", 1000, &err), BD_OK);
    world_free(w);
}

static void methods_are_counted_in_memory(void **state)
{
    (void)state;
    methods_are_counted_by_code(false);
}

static void methods_are_counted_over_grpc(void **state)
{
    (void)state;
    methods_are_counted_by_code(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_gets_its_requests_a_second),
        cmocka_unit_test(the_rate_holds_over_grpc),
        cmocka_unit_test(bytes_in_flight_are_bounded_in_memory),
        cmocka_unit_test(bytes_in_flight_are_bounded_over_grpc),
        cmocka_unit_test(a_server_that_stops_gives_back_what_is_held),
        cmocka_unit_test(a_stream_is_held_up_until_answers_go_out),
        cmocka_unit_test(the_newest_connections_of_a_greedy_peer_are_closed),
        cmocka_unit_test(methods_are_counted_in_memory),
        cmocka_unit_test(methods_are_counted_over_grpc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
