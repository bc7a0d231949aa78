/* Named workers and futures: over memory with virtual time, and over real gRPC on loopback. */
#include "base/clock.h"
#include "base/kv.h"
#include "base/mem.h"

#include "rpc/rpc_mem.h"
#include "rpc/rpc_worker.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3, ANSWER_MS = 20000 };

typedef struct node {
    struct world *world;
    char name[32];
    rpc_env *env;
    rpc_server *server;
    rpc_worker *worker;
    rpc_req *held;
    _Atomic int n_calls;
} node;

typedef struct world {
    bool real;
    rpc_mem_net *net;
    bd_kv *kv;
    node nodes[WORLD];
} world;

static const rpc_call_options plain = {.deadline_ms = ANSWER_MS};

static void on_double(void *user, rpc_req *req)
{
    node *n = user;
    uint32_t v = 0;
    bd_chain reply = {0};
    assert_true(bd_chain_read(rpc_req_body(req), 0, &v, sizeof v));
    v *= 2;
    n->n_calls++;
    assert_int_equal(bd_chain_add_copy(&reply, &v, sizeof v), BD_OK);
    rpc_req_reply(req, &reply);
}

static void on_hold(void *user, rpc_req *req)
{
    ((node *)user)->held = req;
    ((node *)user)->n_calls++;
}

static bd_status ask(node *n, const char *to, const char *function, uint32_t *v, bd_err *err)
{
    bd_chain body = {0}, reply = {0};
    rpc_future *f = NULL;
    assert_int_equal(bd_chain_add_copy(&body, v, sizeof *v), BD_OK);
    bd_status rc = rpc_worker_call(n->worker, to, function, &body, &plain, &f, err);
    rc = rc == BD_OK ? rpc_future_wait(f, &reply, err) : rc;
    if (rc == BD_OK) {
        assert_true(bd_chain_read(&reply, 0, v, sizeof *v));
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    rpc_future_unref(f);
    return rc;
}

/* The body is the depth that is left: asks the next worker, which asks the next, and so on. */
static void on_nest(void *user, rpc_req *req)
{
    node *n = user;
    uint32_t v = 0;
    bd_err err = BD_ERR_INIT;
    bd_chain reply = {0};
    assert_true(bd_chain_read(rpc_req_body(req), 0, &v, sizeof v));
    bd_status rc = BD_OK;
    if (v > 0) {
        v--;
        size_t next = ((size_t)(n - n->world->nodes) + 1) % WORLD;
        rc = ask(n, n->world->nodes[next].name, "nest", &v, &err);
        v++;
    }
    if (rc == BD_OK) {
        assert_int_equal(bd_chain_add_copy(&reply, &v, sizeof v), BD_OK);
        rpc_req_reply(req, &reply);
    } else {
        rpc_req_fail(req, &err);
    }
}

static void node_start(world *w, int i)
{
    node *n = &w->nodes[i];
    char address[64];
    bd_err err = BD_ERR_INIT;
    rpc_env_options eo = {.n_queues = 1, .n_workers = 1};
    n->world = w;
    (void)snprintf(n->name, sizeof n->name, "worker-%d", i);
    if (w->real) {
        assert_int_equal(rpc_env_new(&eo, &n->env, &err), BD_OK);
    } else {
        assert_int_equal(rpc_mem_env_new(w->net, n->name, &n->env, &err), BD_OK);
    }
    rpc_server_options so = {.listen = w->real ? "127.0.0.1:0" : "node:0", .allow_insecure = true};
    rpc_worker_options wo = {.name = n->name,
                             .group = "job-1",
                             .world = WORLD,
                             .find_ms = w->real ? ANSWER_MS : 1,
                             .allow_insecure = true};
    assert_int_equal(rpc_server_new(n->env, &so, &n->server, &err), BD_OK);
    assert_int_equal(rpc_worker_new(n->env, n->server, w->kv, &wo, &n->worker, &err), BD_OK);
    assert_int_equal(rpc_worker_register(n->worker, "double", on_double, n), BD_OK);
    assert_int_equal(rpc_worker_register(n->worker, "double", on_double, n), BD_E_EXISTS);
    assert_int_equal(rpc_worker_register(n->worker, "hold", on_hold, n), BD_OK);
    assert_int_equal(rpc_worker_register(n->worker, "nest", on_nest, n), BD_OK);
    assert_int_equal(rpc_server_start(n->server, &err), BD_OK);
    (void)snprintf(address, sizeof address, w->real ? "127.0.0.1:%d" : "node:%d",
                   rpc_server_port(n->server));
    assert_int_equal(rpc_worker_join(n->worker, address, &err), BD_OK);
    assert_int_equal(rpc_worker_join(n->worker, address, &err), BD_E_EXISTS);
}

static world *world_new_seed(bool real, uint64_t seed)
{
    world *w = bd_calloc(1, sizeof *w);
    bd_err err = BD_ERR_INIT;
    rpc_mem_options mo = {.seed = seed, .delay_min_ns = 1000, .delay_max_ns = BD_NS_PER_MS};
    w->real = real;
    w->kv = bd_kv_mem_new();
    if (!real) {
        assert_int_equal(rpc_mem_net_new(&mo, &w->net, &err), BD_OK);
    }
    for (int i = 0; i < WORLD; i++) {
        node_start(w, i);
    }
    return w;
}

static world *world_new(bool real)
{
    return world_new_seed(real, 3);
}

static void world_free(world *w)
{
    for (int i = 0; i < WORLD; i++) {
        rpc_worker_free(w->nodes[i].worker);
    }
    for (int i = 0; i < WORLD; i++) {
        rpc_server_free(w->nodes[i].server);
    }
    for (int i = 0; i < WORLD; i++) {
        rpc_env_free(w->nodes[i].env);
    }
    if (w->net != NULL) {
        rpc_mem_net_free(w->net);
    }
    bd_kv_mem_free(w->kv);
    bd_free(w);
}

/* Until *n is at least wanted. */
static void until(world *w, const _Atomic int *n, int wanted)
{
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    while (*n < wanted) {
        assert_true(bd_mono_ns() < end_ns);
        if (w->net != NULL) {
            assert_true(rpc_mem_net_step(w->net));
        } else {
            bd_sleep_ms(1);
        }
    }
}

static void calls_by_name(world *w)
{
    bd_err err = BD_ERR_INIT;
    for (int i = 0; i < WORLD; i++) {
        for (int k = 0; k < WORLD; k++) { /* itself, too */
            uint32_t v = 21;
            assert_int_equal(ask(&w->nodes[i], w->nodes[k].name, "double", &v, &err), BD_OK);
            assert_int_equal(v, 42);
        }
    }
    uint32_t depth = 12; /* with one pool thread a worker */
    assert_int_equal(ask(&w->nodes[0], "worker-1", "nest", &depth, &err), BD_OK);
    assert_int_equal(depth, 12);
    uint32_t v = 1;
    assert_int_equal(ask(&w->nodes[0], "worker-1", "triple", &v, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "worker-1"));
}

typedef struct seen {
    _Atomic int n;
    bd_status rc;
    uint32_t value;
} seen;

static void on_answer(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)err;
    seen *s = user;
    s->rc = rc;
    if (rc == BD_OK) {
        assert_true(bd_chain_read(reply, 0, &s->value, sizeof s->value));
    }
    s->n++;
}

static void continuations_and_cancel(world *w)
{
    bd_err err = BD_ERR_INIT;
    rpc_future *f = NULL;
    bd_chain body = {0}, reply = {0};
    uint32_t v = 5;
    seen s = {.n = 0}, late = {.n = 0}, cancelled = {.n = 0};
    assert_int_equal(bd_chain_add_copy(&body, &v, sizeof v), BD_OK);
    assert_int_equal(
        rpc_worker_call(w->nodes[0].worker, "worker-2", "double", &body, &plain, &f, &err), BD_OK);
    rpc_future_then(f, on_answer, &s);
    assert_int_equal(rpc_future_wait(f, &reply, &err), BD_OK);
    assert_int_equal(s.n, 1); /* it has run before the wait ended */
    assert_int_equal(s.value, 10);
    assert_int_equal(reply.n_bytes, sizeof v); /* and left the answer there */
    bd_chain_deinit(&reply);
    rpc_future_unref(f);

    assert_int_equal(bd_chain_add_copy(&body, &v, sizeof v), BD_OK);
    assert_int_equal(
        rpc_worker_call(w->nodes[0].worker, "worker-2", "double", &body, &plain, &f, &err), BD_OK);
    assert_int_equal(rpc_future_wait(f, NULL, &err), BD_OK);
    assert_true(rpc_future_is_done(f));
    rpc_future_then(f, on_answer, &late); /* at once */
    assert_int_equal(late.n, 1);
    rpc_future_unref(f);

    assert_int_equal(bd_chain_add_copy(&body, &v, sizeof v), BD_OK);
    assert_int_equal(
        rpc_worker_call(w->nodes[0].worker, "worker-1", "hold", &body, &plain, &f, &err), BD_OK);
    rpc_future_then(f, on_answer, &cancelled);
    until(w, &w->nodes[1].n_calls, 1);
    assert_false(rpc_future_is_done(f));
    rpc_future_cancel(f);
    assert_int_equal(rpc_future_wait(f, NULL, &err), BD_E_CANCELLED);
    assert_int_equal(cancelled.rc, BD_E_CANCELLED);
    rpc_future_unref(f);
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    while (!rpc_req_cancelled(w->nodes[1].held)) { /* the server hears of it */
        assert_true(bd_mono_ns() < end_ns);
        bd_sleep_ms(1);
    }
    bd_chain none = {0};
    rpc_req_reply(w->nodes[1].held, &none);
}

static void workers_call_each_other_in_memory(void **state)
{
    (void)state;
    world *w = world_new(false);
    calls_by_name(w);
    world_free(w);
}

static void workers_call_each_other_over_grpc(void **state)
{
    (void)state;
    world *w = world_new(true);
    calls_by_name(w);
    world_free(w);
}

static void futures_in_memory(void **state)
{
    (void)state;
    world *w = world_new(false);
    continuations_and_cancel(w);
    world_free(w);
}

static void futures_over_grpc(void **state)
{
    (void)state;
    world *w = world_new(true);
    continuations_and_cancel(w);
    world_free(w);
}

static void a_worker_that_never_joins_is_named(void **state)
{
    (void)state;
    world *w = world_new(false);
    bd_err err = BD_ERR_INIT;
    uint32_t v = 1;
    assert_int_equal(ask(&w->nodes[0], "worker-9", "double", &v, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "worker worker-9 has not joined"));
    world_free(w);
}

/* ---- the end ---- */

static void *leave_main(void *arg)
{
    node *n = arg;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_worker_leave(n->worker, ANSWER_MS, &err), BD_OK);
    return NULL;
}

/* Two finish early; the slow third one still finds them. */
static void early_finishers_serve_until_the_last(void **state)
{
    (void)state;
    world *w = world_new(true);
    bd_err err = BD_ERR_INIT;
    pthread_t ids[WORLD];
    for (int i = 0; i < WORLD - 1; i++) {
        assert_int_equal(pthread_create(&ids[i], NULL, leave_main, &w->nodes[i]), 0);
    }
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t v = i;
        assert_int_equal(
            ask(&w->nodes[2], i % 2 == 0 ? "worker-0" : "worker-1", "double", &v, &err), BD_OK);
        assert_int_equal(v, 2 * i);
    }
    assert_int_equal(rpc_worker_leave(w->nodes[2].worker, ANSWER_MS, &err), BD_OK);
    for (int i = 0; i < WORLD - 1; i++) {
        (void)pthread_join(ids[i], NULL);
    }
    world_free(w);
}

static void leaving_alone_times_out_in_virtual_time(void **state)
{
    (void)state;
    world *w = world_new(false);
    bd_err err = BD_ERR_INIT;
    int64_t start = bd_now_ns(rpc_mem_net_clock(w->net));
    assert_int_equal(rpc_worker_leave(w->nodes[0].worker, 3600000, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "2 of 3 workers have not finished"));
    assert_true(bd_now_ns(rpc_mem_net_clock(w->net)) - start >= 3600 * BD_NS_PER_S);
    assert_int_equal(rpc_worker_leave(w->nodes[1].worker, 1000, &err), BD_E_TIMEOUT);
    assert_int_equal(rpc_worker_leave(w->nodes[2].worker, 1000, &err), BD_OK);
    world_free(w);
}

/* ---- a bad network ---- */

/* Every answer is right, and what may arrive twice was said to be repeatable: with it every call
 * comes through; without it a lost call says so, and its function has run once at most. */
static void functions_under_loss_and_reorder(void **state)
{
    (void)state;
    static const rpc_call_options again = {.deadline_ms = ANSWER_MS, .idempotent = true};
    enum { N = 64 };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world *w = world_new_seed(false, seed);
        bd_err err = BD_ERR_INIT;
        rpc_future *f[N];
        bd_chain body = {0}, reply = {0};
        uint32_t v = 0;
        rpc_mem_net_set_faults(w->net, 0.2, 0.2);
        for (uint32_t i = 0; i < N; i++) { /* all at once: they overtake each other */
            assert_int_equal(bd_chain_add_copy(&body, &i, sizeof i), BD_OK);
            assert_int_equal(rpc_worker_call(w->nodes[0].worker,
                                             i % 2 == 0 ? "worker-1" : "worker-2", "double", &body,
                                             &again, &f[i], &err),
                             BD_OK);
        }
        for (uint32_t i = N; i-- > 0;) {
            assert_int_equal(rpc_future_wait(f[i], &reply, &err), BD_OK);
            assert_true(bd_chain_read(&reply, 0, &v, sizeof v));
            assert_int_equal(v, 2 * i);
            bd_chain_deinit(&reply);
            rpc_future_unref(f[i]);
        }
        world_free(w);
    }
}

static void retry_only_control(void **state)
{
    (void)state;
    enum { N = 40 };
    int n_lost = 0, n_answered = 0, n_ran = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world *w = world_new_seed(false, seed);
        bd_err err = BD_ERR_INIT;
        rpc_mem_net_set_faults(w->net, 0.2, 0.2);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t v = i;
            int before = w->nodes[1].n_calls;
            bd_status rc = ask(&w->nodes[0], "worker-1", "double", &v, &err);
            assert_true(rc == BD_OK || rc == BD_E_UNAVAILABLE);
            int ran = w->nodes[1].n_calls - before;
            assert_true(ran <= 1 && (rc != BD_OK || ran == 1));
            n_answered += rc == BD_OK ? 1 : 0;
            n_lost += rc != BD_OK ? 1 : 0;
            n_ran += ran;
        }
        world_free(w);
    }
    assert_true(n_lost > 0 && n_answered > 0 && n_ran > n_answered); /* some answers were lost */
}

/* A worker whose name is taken goes away again, without harm to the others, and at once. */
static void shutdown_after_failed_init_in(bool real)
{
    world *w = world_new(real);
    bd_err err = BD_ERR_INIT;
    const rpc_server_options so = {.listen = real ? "127.0.0.1:0" : "node:0",
                                   .allow_insecure = true};
    const rpc_worker_options wo = {
        .name = "worker-1", .group = "job-1", .world = WORLD, .allow_insecure = true};
    rpc_server *server = NULL;
    rpc_worker *late = NULL;
    assert_int_equal(rpc_server_new(w->nodes[0].env, &so, &server, &err), BD_OK);
    assert_int_equal(rpc_worker_new(w->nodes[0].env, server, w->kv, &wo, &late, &err), BD_OK);
    assert_int_equal(rpc_server_start(server, &err), BD_OK);
    assert_int_equal(rpc_worker_join(late, "127.0.0.1:1", &err), BD_E_EXISTS);
    assert_non_null(strstr(err.text, "worker-1"));
    rpc_worker_free(late);
    rpc_server_free(server);
    assert_int_equal(rpc_worker_new(w->nodes[0].env, w->nodes[0].server, w->kv, &wo, &late, &err),
                     BD_OK);
    rpc_worker_free(late); /* never joined, its server serves on */
    calls_by_name(w);
    world_free(w);
}

static void shutdown_after_failed_init(void **state)
{
    (void)state;
    shutdown_after_failed_init_in(false);
    shutdown_after_failed_init_in(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_call_each_other_in_memory),
        cmocka_unit_test(workers_call_each_other_over_grpc),
        cmocka_unit_test(futures_in_memory),
        cmocka_unit_test(futures_over_grpc),
        cmocka_unit_test(a_worker_that_never_joins_is_named),
        cmocka_unit_test(early_finishers_serve_until_the_last),
        cmocka_unit_test(leaving_alone_times_out_in_virtual_time),
        cmocka_unit_test(functions_under_loss_and_reorder),
        cmocka_unit_test(retry_only_control),
        cmocka_unit_test(shutdown_after_failed_init),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
