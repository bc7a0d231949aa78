/* A server that takes a rank's vote and never answers: the step ends with its deadline, in
 * BD_E_TIMEOUT that names this server, and the context has failed. Over memory in virtual time,
 * quiet and lossy, and over gRPC. What a server says whose other ranks never vote:
 * tests/unit/test_ps_votes.c. */
#include "base/mem.h"

#include "rpc/rpc_autograd.h"
#include "rpc/rpc_mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_SERVERS = 3, SILENT = 1, MAX_HELD = 16, N_SEEDS = 40, MEM_MS = 60000, GRPC_MS = 3000 };

typedef struct voter {
    rpc_env *env;
    rpc_ag *ag; /* NULL: the silent one */
    rpc_server *server;
    char target[64];
    rpc_ag_store store;
    _Atomic int n_votes;
    pthread_mutex_t lock;
    rpc_req *held[MAX_HELD]; /* under lock */
    size_t n_held;           /* under lock */
    bool is_over;            /* under lock: nobody waits for an answer any more */
} voter;

typedef struct world {
    rpc_mem_net *net; /* NULL: gRPC */
    rpc_env *env;
    rpc_ag *trainer;
    voter voters[N_SERVERS];
    rpc_channel *ch[N_SERVERS];
    rpc_ag_peer *peers[N_SERVERS];
} world;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(err));
    }
}

/* ---- servers ---- */
static const rpc_module *no_module(void *user, const char *name)
{
    (void)user;
    (void)name;
    return NULL;
}

static bd_status take_vote(void *user, const rpc_ag_step_id *id, double lr_scale,
                           const rpc_step_grad *grads, size_t n, bd_err *err)
{
    voter *v = user;
    (void)lr_scale;
    (void)grads;
    (void)err;
    assert_true(n == 0 && id->vote != NULL && id->vote->step == 5);
    v->n_votes++;
    return BD_OK;
}

static bool not_stepped(void *user, const rpc_ag_step_id *id)
{
    (void)user;
    (void)id;
    return false;
}

static void on_other(void *user, rpc_req *req)
{
    bd_chain none = {0};
    (void)user;
    rpc_req_reply(req, &none);
}

static void on_step(void *user, rpc_req *req)
{
    voter *v = user;
    (void)pthread_mutex_lock(&v->lock);
    assert_true(v->n_held < MAX_HELD);
    bool late = v->is_over;
    if (!late) {
        v->held[v->n_held++] = req;
    }
    (void)pthread_mutex_unlock(&v->lock);
    if (late) {
        on_other(NULL, req);
    }
}

static size_t held_by(voter *v)
{
    (void)pthread_mutex_lock(&v->lock);
    size_t n = v->n_held;
    (void)pthread_mutex_unlock(&v->lock);
    return n;
}

/* Too late. */
static void let_go(voter *v)
{
    (void)pthread_mutex_lock(&v->lock);
    v->is_over = true;
    for (size_t k = 0; k < v->n_held; k++) {
        on_other(NULL, v->held[k]);
    }
    (void)pthread_mutex_unlock(&v->lock);
}

static void env_new(world *w, const char *name, rpc_env **out)
{
    bd_err err = BD_ERR_INIT;
    must(w->net != NULL ? rpc_mem_env_new(w->net, name, out, &err) : rpc_env_new(NULL, out, &err),
         &err);
}

static void serve_silence(voter *v)
{
    assert_int_equal(rpc_server_register(v->server, "/braid.v1.Autograd/Step", on_step, v), BD_OK);
    assert_int_equal(rpc_server_register(v->server, "/braid.v1.Autograd/Fail", on_other, v), BD_OK);
    assert_int_equal(rpc_server_register(v->server, "/braid.v1.Autograd/Cleanup", on_other, v),
                     BD_OK);
}

static void serve_votes(voter *v, const char *name, uint64_t id)
{
    bd_err err = BD_ERR_INIT;
    const rpc_ag_options opt = {.name = name, .client_id = id};
    must(rpc_ag_new(v->env, &opt, &v->ag, &err), &err);
    v->store =
        (rpc_ag_store){.user = v, .find = no_module, .step = take_vote, .stepped = not_stepped};
    rpc_ag_set_store(v->ag, &v->store);
    assert_int_equal(rpc_ag_serve(v->ag, v->server), BD_OK);
}

static void voter_start(world *w, uint32_t i)
{
    voter *v = &w->voters[i];
    bd_err err = BD_ERR_INIT;
    char name[16];
    (void)snprintf(name, sizeof name, "ps-%u", i);
    (void)pthread_mutex_init(&v->lock, NULL);
    env_new(w, name, &v->env);
    (void)snprintf(v->target, sizeof v->target, "127.0.0.1:%u", w->net != NULL ? i + 1 : 0);
    const rpc_server_options opt = {.listen = v->target};
    must(rpc_server_new(v->env, &opt, &v->server, &err), &err);
    if (i == SILENT) {
        serve_silence(v);
    } else {
        serve_votes(v, name, 100 + i);
    }
    must(rpc_server_start(v->server, &err), &err);
    (void)snprintf(v->target, sizeof v->target, "127.0.0.1:%d", rpc_server_port(v->server));
    const rpc_channel_options chopt = {.name = name};
    must(rpc_channel_new(w->env, v->target, &chopt, &w->ch[i], &err), &err);
    must(rpc_ag_peer_new(w->trainer, name, w->ch[i], &w->peers[i]), &err);
}

static void start(world *w)
{
    bd_err err = BD_ERR_INIT;
    const rpc_ag_options opt = {
        .name = "trainer", .client_id = 1, .deadline_ms = w->net != NULL ? MEM_MS : GRPC_MS};
    env_new(w, "trainer", &w->env);
    must(rpc_ag_new(w->env, &opt, &w->trainer, &err), &err);
    for (uint32_t i = 0; i < N_SERVERS; i++) {
        voter_start(w, i);
    }
}

static void stop(world *w)
{
    for (size_t i = 0; i < N_SERVERS; i++) {
        rpc_channel_free(w->ch[i]);
        let_go(&w->voters[i]);
    }
    rpc_ag_free(w->trainer);
    for (size_t i = 0; i < N_SERVERS; i++) {
        voter *v = &w->voters[i];
        rpc_server_free(v->server);
        rpc_ag_free(v->ag);
        rpc_env_free(v->env);
        (void)pthread_mutex_destroy(&v->lock);
    }
    rpc_env_free(w->env);
}

/* ---- the case ---- */
static void vote(world *w, bool lossy)
{
    const rpc_ag_vote fifth = {.job_epoch = 3, .step = 5, .rank = 0};
    bd_err err = BD_ERR_INIT, again = BD_ERR_INIT;
    rpc_ag_ctx *ctx = NULL;
    must(rpc_ag_begin(w->trainer, &ctx, &err), &err);
    must(rpc_ag_set_vote(ctx, &fifth, w->peers, N_SERVERS, &err), &err);
    assert_int_equal(rpc_ag_step(ctx, 1, &err), BD_E_TIMEOUT);
    assert_int_equal(err.code, BD_E_TIMEOUT);
    assert_int_equal(strncmp(err.text, "Error on node ps-1: ", 20), 0);
    assert_non_null(strstr(err.text, "/braid.v1.Autograd/Step: no answer within "));
    assert_int_equal(rpc_ag_check(ctx, &again), BD_E_TIMEOUT); /* the context is lost */
    assert_string_equal(again.text, err.text);
    assert_int_equal(rpc_ag_step(ctx, 1, &again), BD_E_TIMEOUT);
    bd_status ended = rpc_ag_end(ctx, &err);
    assert_true(ended == BD_OK || lossy);
    for (size_t i = 0; i < N_SERVERS; i++) {
        assert_int_equal(w->voters[i].n_votes, i == SILENT ? 0 : 1);
        assert_true(i == SILENT || lossy || rpc_ag_n_contexts(w->voters[i].ag) == 0);
    }
    assert_true(held_by(&w->voters[SILENT]) >= 1);
}

/* Time is virtual: the step takes its deadline, and nothing else takes any. */
static void run_seed(uint64_t seed, double loss)
{
    const rpc_mem_options opt = {
        .seed = seed, .delay_min_ns = 1000, .delay_max_ns = BD_NS_PER_MS, .repeat = loss};
    long before = bd_mem_live_blocks();
    world w = {.net = NULL};
    assert_int_equal(rpc_mem_net_new(&opt, &w.net, NULL), BD_OK);
    start(&w);
    rpc_mem_net_set_faults(w.net, loss, loss);
    int64_t began = bd_now_ns(rpc_mem_net_clock(w.net));
    vote(&w, loss > 0);
    int64_t took_ms = (bd_now_ns(rpc_mem_net_clock(w.net)) - began) / BD_NS_PER_MS;
    assert_true(took_ms >= MEM_MS && took_ms < MEM_MS + 10000);
    stop(&w);
    rpc_mem_net_free(w.net);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void in_virtual_time(void **state)
{
    (void)state;
    run_seed(0, 0);
}

static void with_losses(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        run_seed(seed, 0.15);
    }
}

static void over_grpc(void **state)
{
    (void)state;
    world w = {.net = NULL};
    start(&w);
    vote(&w, false);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_virtual_time),
        cmocka_unit_test(with_losses),
        cmocka_unit_test(over_grpc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
