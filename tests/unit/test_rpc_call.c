/* Unary calls over real gRPC on loopback: answers, statuses, deadlines, cancel, retry, stop. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#include "rpc/rpc_int.h"

#include "tests/util/tu_host.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DEADLINE_MS 10000
#define PATIENT_MS  60000

typedef struct world {
    rpc_env *env;
    rpc_server *server;
    rpc_channel *ch;
    rpc_channel *self; /* the server's own way to itself, for nested calls */
    char target[64];
    pthread_mutex_t lock;
    rpc_req *held[64]; /* requests that a test answers by itself */
    int n_held;
    _Atomic int n_cancelled_seen;
} world;

static const rpc_call_options plain = {.deadline_ms = DEADLINE_MS};
static const rpc_call_options again = {.deadline_ms = DEADLINE_MS, .idempotent = true};

static void on_echo(void *user, rpc_req *req)
{
    (void)user;
    bd_chain reply = {0};
    bd_chain_move(&reply, rpc_req_body(req));
    rpc_req_reply(req, &reply);
}

/* The request is one int32, the status to fail with. */
static void on_fail(void *user, rpc_req *req)
{
    (void)user;
    int32_t code = 0;
    bd_err err = BD_ERR_INIT;
    assert_true(bd_chain_read(rpc_req_body(req), 0, &code, sizeof code));
    (void)bd_err_set(&err, (bd_status)code, "table 7: no row \xff for you");
    rpc_req_fail(req, &err);
}

static void on_hold(void *user, rpc_req *req)
{
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->held[w->n_held++] = req;
    (void)pthread_mutex_unlock(&w->lock);
}

/* Waits (bounded) until the caller has given up, then answers all the same. */
static void on_until_cancelled(void *user, rpc_req *req)
{
    world *w = user;
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    while (!rpc_req_cancelled(req) && bd_mono_ns() < until) {
        bd_sleep_ms(1);
    }
    w->n_cancelled_seen += rpc_req_cancelled(req) ? 1 : 0;
    bd_chain none = {0};
    rpc_req_reply(req, &none);
}

/* The request is one byte, the depth that is left: calls itself that often, synchronously. */
static void on_nest(void *user, rpc_req *req)
{
    world *w = user;
    uint8_t depth = 0;
    bd_err err = BD_ERR_INIT;
    bd_chain body = {0}, reply = {0};
    assert_true(bd_chain_read(rpc_req_body(req), 0, &depth, 1));
    if (depth == 0) {
        bd_chain_move(&reply, rpc_req_body(req));
        rpc_req_reply(req, &reply);
        return;
    }
    depth--;
    assert_int_equal(bd_chain_add_copy(&body, &depth, 1), BD_OK);
    if (rpc_call_sync(w->self, "/t.T/Nest", &body, &plain, &reply, &err) == BD_OK) {
        rpc_req_reply(req, &reply);
    } else {
        rpc_req_fail(req, &err);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
}

static void start_server(world *w, const char *listen)
{
    bd_err err = BD_ERR_INIT;
    rpc_server_options opt = {.listen = listen, .max_message_bytes = (size_t)64 << 20};
    assert_int_equal(rpc_server_new(w->env, &opt, &w->server, &err), BD_OK);
    assert_int_equal(rpc_server_register_inline(w->server, "/t.T/Echo", on_echo, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/PoolEcho", on_echo, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/Fail", on_fail, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/Hold", on_hold, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/Until", on_until_cancelled, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, "/t.T/Nest", on_nest, w), BD_OK);
    if (rpc_server_start(w->server, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
}

static int set_up(void **state)
{
    world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    rpc_env_options opt = {.n_queues = 2, .n_workers = 2};
    (void)pthread_mutex_init(&w->lock, NULL);
    assert_int_equal(rpc_env_new(&opt, &w->env, &err), BD_OK);
    start_server(w, tu_host_any_port());
    (void)snprintf(w->target, sizeof w->target, "%s:%d", tu_host(), rpc_server_port(w->server));
    rpc_channel_options chopt = {.name = "ps-1"};
    assert_int_equal(rpc_channel_new(w->env, w->target, &chopt, &w->ch, &err), BD_OK);
    assert_int_equal(rpc_channel_new(w->env, w->target, NULL, &w->self, &err), BD_OK);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    rpc_channel_free(w->ch);
    rpc_channel_free(w->self);
    rpc_server_free(w->server);
    rpc_env_free(w->env);
    (void)pthread_mutex_destroy(&w->lock);
    bd_free(w);
    return 0;
}

static bd_status call(world *w, const char *method, const void *bytes, size_t n,
                      const rpc_call_options *opt, bd_chain *reply, bd_err *err)
{
    bd_chain body = {0};
    assert_int_equal(bd_chain_add_copy(&body, bytes, n), BD_OK);
    bd_status rc = rpc_call_sync(w->ch, method, &body, opt, reply, err);
    bd_chain_deinit(&body);
    return rc;
}

static void a_request_comes_back_inline_and_from_the_pool(void **state)
{
    world *w = *state;
    static const char *const methods[] = {"/t.T/Echo", "/t.T/PoolEcho"};
    for (size_t i = 0; i < 2; i++) {
        bd_err err = BD_ERR_INIT;
        bd_chain reply = {0};
        char got[6] = "";
        assert_int_equal(call(w, methods[i], "hello", 6, &plain, &reply, &err), BD_OK);
        assert_int_equal(reply.n_bytes, 6);
        assert_true(bd_chain_read(&reply, 0, got, 6));
        assert_string_equal(got, "hello");
        bd_chain_deinit(&reply);
    }
}

static void an_empty_message_is_a_message(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain body = {0}, reply = {0};
    assert_int_equal(rpc_call_sync(w->ch, "/t.T/Echo", &body, &plain, &reply, &err), BD_OK);
    assert_int_equal(reply.n_bytes, 0);
}

/* Every failure code arrives as it was sent, with its text escaped to one line, naming the peer. */
static void every_status_survives_the_wire(void **state)
{
    world *w = *state;
    static const int codes[] = {
#define BD_X(name, num, text) (num),
        BD_STATUS_MAP(BD_X)
#undef BD_X
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        bd_err err = BD_ERR_INIT;
        bd_chain reply = {0};
        int32_t code = codes[i];
        bd_status rc = call(w, "/t.T/Fail", &code, sizeof code, &plain, &reply, &err);
        assert_int_equal(rc, code < 0 ? code : BD_E_INTERNAL);
        assert_int_equal(err.code, rc);
        assert_string_equal(err.text, "ps-1 /t.T/Fail: table 7: no row \\xff for you");
    }
}

static void an_unknown_method_is_unsupported_and_named(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    assert_int_equal(call(w, "/t.T/Nope", "x", 1, &plain, &reply, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no such method: /t.T/Nope"));
}

static void a_late_answer_is_a_timeout_and_the_server_learns_of_it(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    /* connected first, and long enough that the call has reached the server by then */
    rpc_call_options brief = {.deadline_ms = 1000};
    assert_int_equal(call(w, "/t.T/Echo", "x", 1, &plain, &reply, &err), BD_OK);
    bd_chain_deinit(&reply);
    assert_int_equal(call(w, "/t.T/Until", "x", 1, &brief, &reply, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "ps-1 /t.T/Until: no answer within 1000 ms"));
    assert_int_equal(reply.n_bytes, 0);
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    while (w->n_cancelled_seen == 0 && bd_mono_ns() < until) {
        bd_sleep_ms(1);
    }
    assert_int_equal(w->n_cancelled_seen, 1);
}

typedef struct result {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int n_done;
    bd_status rc;
    bd_err err;
} result;

static void on_done(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    result *r = user;
    (void)reply;
    (void)pthread_mutex_lock(&r->lock);
    r->n_done++;
    r->rc = rc;
    r->err = *err;
    (void)pthread_cond_signal(&r->cond);
    (void)pthread_mutex_unlock(&r->lock);
}

static void wait_done(result *r, int n)
{
    (void)pthread_mutex_lock(&r->lock);
    while (r->n_done < n) {
        (void)pthread_cond_wait(&r->cond, &r->lock);
    }
    (void)pthread_mutex_unlock(&r->lock);
}

#define RESULT_INIT                                                         \
    {                                                                       \
        .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER \
    }

static void start(world *w, const char *method, const rpc_call_options *opt, result *r,
                  rpc_call **out)
{
    bd_chain body = {0};
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_chain_add_copy(&body, "x", 1), BD_OK);
    assert_int_equal(rpc_call_start(w->ch, method, &body, opt, on_done, r, out, &err), BD_OK);
}

static void wait_held(world *w, int n)
{
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    int held = 0;
    while (held < n && bd_mono_ns() < until) {
        (void)pthread_mutex_lock(&w->lock);
        held = w->n_held;
        (void)pthread_mutex_unlock(&w->lock);
        bd_sleep_ms(1);
    }
    assert_int_equal(held, n);
}

static void cancel_ends_the_call_and_reaches_the_handler(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    rpc_call *c = NULL;
    start(w, "/t.T/Hold", &plain, &r, &c);
    wait_held(w, 1);
    rpc_call_cancel(c);
    rpc_call_cancel(c);
    wait_done(&r, 1);
    assert_int_equal(r.rc, BD_E_CANCELLED);
    assert_string_equal(r.err.text, "ps-1 /t.T/Hold: cancelled by the caller");
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    while (!rpc_req_cancelled(w->held[0]) && bd_mono_ns() < until) {
        bd_sleep_ms(1);
    }
    assert_true(rpc_req_cancelled(w->held[0]));
    bd_chain none = {0};
    rpc_req_reply(w->held[0], &none);
    rpc_call_unref(c);
}

static void closing_the_channel_cancels_its_calls(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    start(w, "/t.T/Hold", &again, &r, NULL);
    start(w, "/t.T/Hold", &again, &r, NULL);
    wait_held(w, 2);
    rpc_channel_free(w->ch); /* waits for both callbacks */
    w->ch = NULL;
    assert_int_equal(r.n_done, 2);
    assert_int_equal(r.rc, BD_E_CANCELLED);
    for (int i = 0; i < 2; i++) {
        bd_chain none = {0};
        rpc_req_reply(w->held[i], &none);
    }
}

/* 8 MiB arrive in many pieces and go back unchanged. */
static void a_large_message_comes_back_unchanged(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    const size_t n = (size_t)8 << 20;
    bd_buf *b = bd_buf_new(n);
    bd_chain body = {0}, reply = {0};
    for (size_t i = 0; i < n; i++) {
        b->bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    assert_int_equal(bd_chain_add(&body, b, 0, 1000), BD_OK);
    assert_int_equal(bd_chain_add(&body, b, 1000, 7), BD_OK);
    assert_int_equal(bd_chain_add(&body, b, 1007, n - 1007), BD_OK);
    assert_int_equal(rpc_call_sync(w->ch, "/t.T/PoolEcho", &body, &plain, &reply, &err), BD_OK);
    assert_int_equal(reply.n_bytes, n);
    assert_true(reply.n_pieces > 8);
    bd_buf *flat = bd_chain_flatten(&reply);
    assert_memory_equal(flat->bytes, b->bytes, n);
    bd_buf_unref(flat);
    bd_buf_unref(b);
    bd_chain_deinit(&reply);
}

static void a_message_over_the_limit_fails_that_call_only(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain body = {0}, reply = {0};
    assert_int_equal(bd_chain_add_moved(&body, bd_buf_new(((size_t)64 << 20) + 1)), BD_OK);
    memset(body.pieces[0].buf->bytes, 0, body.n_bytes);
    assert_int_equal(rpc_call_sync(w->ch, "/t.T/Echo", &body, &plain, &reply, &err),
                     BD_E_EXHAUSTED);
    assert_int_equal(call(w, "/t.T/Echo", "x", 1, &plain, &reply, &err), BD_OK);
    bd_chain_deinit(&reply);
}

/* A handler pool of two serves calls nested far deeper than two. */
static void nested_sync_calls_cannot_use_up_the_pool(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    uint8_t depth = 20;
    bd_status rc = call(w, "/t.T/Nest", &depth, 1, &plain, &reply, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(rc, BD_OK);
    bd_chain_deinit(&reply);
}

static void a_peer_that_is_not_there_is_unavailable_at_once(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    rpc_server_stop(w->server, 0);
    assert_int_equal(call(w, "/t.T/Echo", "x", 1, &plain, &reply, &err), BD_E_UNAVAILABLE);
    assert_int_equal(strncmp(err.text, "ps-1 /t.T/Echo: ", 16), 0);
    /* A last try may just have begun when the time is over. */
    rpc_call_options brief = {.deadline_ms = 300, .idempotent = true};
    bd_status rc = call(w, "/t.T/Echo", "x", 1, &brief, &reply, &err);
    assert_true(rc == BD_E_UNAVAILABLE || rc == BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, rc == BD_E_TIMEOUT ? " tries (before: " : "tries in 300 ms"));
}

/* Until the call, which meets a closed port, has made n tries and sits in the back-off after. */
static void wait_back_off(rpc_call *c, uint32_t n)
{
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    bool there = false;
    while (!there && bd_mono_ns() < until) {
        (void)pthread_mutex_lock(&c->lock);
        there = c->n_tries >= n && c->state == RPC_CALL_BACKOFF;
        (void)pthread_mutex_unlock(&c->lock);
        bd_sleep_ms(there ? 0 : 1);
    }
    assert_true(there);
}

static void an_idempotent_call_outlives_a_restart_on_the_same_port(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    rpc_call *c = NULL;
    assert_int_equal(call(w, "/t.T/Echo", "x", 1, &plain, &reply, &err), BD_OK);
    bd_chain_deinit(&reply);
    rpc_server_free(w->server);
    start(w, "/t.T/Echo", &again, &r, &c);
    wait_back_off(c, 2);
    start_server(w, w->target);
    wait_done(&r, 1);
    assert_string_equal(r.err.text, "");
    assert_int_equal(r.rc, BD_OK);
    assert_true(c->n_tries > 2);
    rpc_call_unref(c);
}

static void cancel_in_back_off_ends_the_call(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    rpc_call *c = NULL;
    rpc_server_stop(w->server, 0);
    start(w, "/t.T/Echo", &again, &r, &c);
    wait_back_off(c, 4); /* the back-off is 80 ms at least: still in it below */
    rpc_call_cancel(c);
    wait_done(&r, 1);
    assert_int_equal(r.rc, BD_E_CANCELLED);
    rpc_call_unref(c);
}

static void a_port_in_use_is_named(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_server *second = NULL;
    char expect[160];
    rpc_server_options opt = {.listen = w->target};
    assert_int_equal(rpc_server_new(w->env, &opt, &second, &err), BD_OK);
    assert_int_equal(rpc_server_start(second, &err), BD_E_IO);
    (void)snprintf(expect, sizeof expect, "cannot listen on %s: Address already in use", w->target);
    assert_string_equal(err.text, expect);
    rpc_server_free(second);
}

static void plain_text_stays_on_this_host(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_channel *ch = NULL;
    rpc_server *s = NULL;
    static const char *const far[] = {"10.0.0.1:5000", "ps-0.example:5000", "127.evil.example:1",
                                      "localhost.example:1"};
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        assert_int_equal(rpc_channel_new(w->env, far[i], NULL, &ch, &err), BD_E_DENIED);
    }
    rpc_server_options opt = {.listen = "0.0.0.0:0"};
    assert_int_equal(rpc_server_new(w->env, &opt, &s, &err), BD_E_DENIED);
    opt.allow_insecure = true;
    assert_int_equal(rpc_server_new(w->env, &opt, &s, &err), BD_OK);
    rpc_server_free(s); /* never started */
}

typedef struct stopper {
    rpc_server *server;
    int64_t grace_ms;
} stopper;

static void *stop_main(void *arg)
{
    stopper *s = arg;
    rpc_server_stop(s->server, s->grace_ms);
    return NULL;
}

/* Until the server stops; each request on the way there is served or refused. */
static void wait_refused(world *w)
{
    static const rpc_call_options brief = {.deadline_ms = DEADLINE_MS};
    int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
    bd_status rc = BD_OK;
    while (rc == BD_OK && bd_mono_ns() < until) {
        bd_err err = BD_ERR_INIT;
        bd_chain reply = {0};
        rc = call(w, "/t.T/Echo", "x", 1, &brief, &reply, &err);
        bd_chain_deinit(&reply);
    }
    assert_int_equal(rc, BD_E_UNAVAILABLE);
}

/* Within the grace an open request is answered; a new one is refused. */
static void stop_lets_open_requests_finish(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    pthread_t t;
    static const rpc_call_options patient = {.deadline_ms = PATIENT_MS};
    stopper s = {w->server, PATIENT_MS};
    start(w, "/t.T/Hold", &patient, &r, NULL);
    wait_held(w, 1);
    assert_int_equal(pthread_create(&t, NULL, stop_main, &s), 0);
    wait_refused(w);
    (void)pthread_mutex_lock(&r.lock);
    assert_int_equal(r.n_done, 0);
    (void)pthread_mutex_unlock(&r.lock);
    bd_chain reply = {0};
    assert_int_equal(bd_chain_add_copy(&reply, "late", 4), BD_OK);
    rpc_req_reply(w->held[0], &reply);
    wait_done(&r, 1);
    assert_int_equal(r.rc, BD_OK);
    assert_int_equal(pthread_join(t, NULL), 0);
}

/* After the grace the caller hears of it, and the handler's answer goes nowhere, safely. */
static void stop_cancels_what_outlives_the_grace(void **state)
{
    world *w = *state;
    result r = RESULT_INIT;
    pthread_t t;
    stopper s = {w->server, 30};
    start(w, "/t.T/Hold", &plain, &r, NULL);
    wait_held(w, 1);
    assert_int_equal(pthread_create(&t, NULL, stop_main, &s), 0);
    wait_done(&r, 1);
    assert_int_equal(r.rc, BD_E_UNAVAILABLE);
    bd_chain none = {0};
    rpc_req_reply(w->held[0], &none);
    assert_int_equal(pthread_join(t, NULL), 0);
}

/* More requests than max_requests: the rest wait in the transport, none is lost. */
static void requests_over_the_limit_wait(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    result r = RESULT_INIT;
    rpc_server *s = NULL;
    rpc_channel *ch = NULL;
    char target[64];
    rpc_server_options opt = {.listen = "127.0.0.1:0", .max_requests = 1};
    assert_int_equal(rpc_server_new(w->env, &opt, &s, &err), BD_OK);
    assert_int_equal(rpc_server_register(s, "/t.T/PoolEcho", on_echo, w), BD_OK);
    assert_int_equal(rpc_server_start(s, &err), BD_OK);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(s));
    assert_int_equal(rpc_channel_new(w->env, target, NULL, &ch, &err), BD_OK);
    for (int i = 0; i < 200; i++) {
        bd_chain body = {0};
        assert_int_equal(bd_chain_add_copy(&body, "x", 1), BD_OK);
        assert_int_equal(
            rpc_call_start(ch, "/t.T/PoolEcho", &body, &plain, on_done, &r, NULL, &err), BD_OK);
    }
    wait_done(&r, 200);
    assert_int_equal(r.rc, BD_OK);
    rpc_channel_free(ch);
    rpc_server_free(s);
}

/* Whichever allocation fails, the caller gets an error (or the answer), and nothing leaks. */
static void calls_survive_every_allocation_failure(void **state)
{
    world *w = *state;
    bd_chain reply = {0};
    bd_err err = BD_ERR_INIT;
    rpc_call_options brief = {.deadline_ms = 2000};
    long before = bd_mem_live_blocks();
    for (long nth = 0; nth < 12; nth++) {
        bd_chain body = {0};
        uint8_t bytes[600] = {7};
        assert_int_equal(bd_chain_add_copy(&body, bytes, sizeof bytes), BD_OK);
        bd_fault_fail_alloc(nth);
        (void)!rpc_call_sync(w->ch, "/t.T/PoolEcho", &body, &brief, &reply, &err);
        bd_fault_fail_alloc(-1);
        bd_chain_deinit(&body);
        bd_chain_deinit(&reply);
        int64_t until = bd_mono_ns() + DEADLINE_MS * BD_NS_PER_MS;
        while (bd_mem_live_blocks() != before && bd_mono_ns() < until) {
            bd_sleep_ms(1); /* the server's last events */
        }
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

static void health_follows_set_serving(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    static const char known[] = "\x0a\x03t.T", unknown[] = "\x0a\x04nope";
    for (int serving = 0; serving <= 1; serving++) {
        uint8_t got[2] = {0};
        bd_chain reply = {0};
        rpc_server_set_serving(w->server, serving != 0);
        assert_int_equal(call(w, "/grpc.health.v1.Health/Check", known, 5, &plain, &reply, &err),
                         BD_OK);
        assert_int_equal(reply.n_bytes, 2);
        assert_true(bd_chain_read(&reply, 0, got, 2));
        assert_int_equal(got[0], 0x08);
        assert_int_equal(got[1], serving ? 1 : 2);
        bd_chain_deinit(&reply);
    }
    bd_chain reply = {0};
    assert_int_equal(call(w, "/grpc.health.v1.Health/Check", unknown, 6, &plain, &reply, &err),
                     BD_E_NOT_FOUND);
    assert_int_equal(call(w, "/grpc.health.v1.Health/Check", "\xff\xff", 2, &plain, &reply, &err),
                     BD_E_CORRUPT);
}

/* Probes ask for names of their own, whose state is not the whole server's. */
static void named_services_have_their_own_health(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    static const char live[] = "\x0a\x04live";
    uint8_t got[2] = {0};
    char name[] = "name-0";
    assert_int_equal(call(w, "/grpc.health.v1.Health/Check", live, 6, &plain, &(bd_chain){0}, &err),
                     BD_E_NOT_FOUND);
    for (int serving = 0; serving <= 1; serving++) {
        bd_chain reply = {0};
        rpc_server_set_serving(w->server, serving == 0);
        assert_int_equal(rpc_server_set_service(w->server, "live", serving != 0), BD_OK);
        assert_int_equal(call(w, "/grpc.health.v1.Health/Check", live, 6, &plain, &reply, &err),
                         BD_OK);
        assert_true(bd_chain_read(&reply, 0, got, 2));
        assert_int_equal(got[1], serving ? 1 : 2);
        bd_chain_deinit(&reply);
    }
    bd_status rc = BD_OK;
    for (char c = '1'; c <= '9' && rc == BD_OK; c++) {
        name[5] = c;
        rc = rpc_server_set_service(w->server, name, true);
    }
    assert_int_equal(rc, BD_E_EXHAUSTED);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_comes_back_inline_and_from_the_pool),
        T(an_empty_message_is_a_message),
        T(every_status_survives_the_wire),
        T(an_unknown_method_is_unsupported_and_named),
        T(a_late_answer_is_a_timeout_and_the_server_learns_of_it),
        T(cancel_ends_the_call_and_reaches_the_handler),
        T(closing_the_channel_cancels_its_calls),
        T(a_large_message_comes_back_unchanged),
        T(a_message_over_the_limit_fails_that_call_only),
        T(nested_sync_calls_cannot_use_up_the_pool),
        T(a_peer_that_is_not_there_is_unavailable_at_once),
        T(an_idempotent_call_outlives_a_restart_on_the_same_port),
        T(cancel_in_back_off_ends_the_call),
        T(a_port_in_use_is_named),
        T(plain_text_stays_on_this_host),
        T(stop_lets_open_requests_finish),
        T(stop_cancels_what_outlives_the_grace),
        T(requests_over_the_limit_wait),
        T(calls_survive_every_allocation_failure),
        T(health_follows_set_serving),
        T(named_services_have_their_own_health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
