/* Clients of distributed autograd as processes that are killed: what they left on a server goes
 * with their lease, over real gRPC.
 *
 *   test_rpc_ag_process client TARGET ID N   makes N contexts with a call in each, holds N / 10
 *                                            references, says "ready", and waits to be killed
 */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_rref.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

enum { N_CLIENTS = 4, N_EACH = 2500, FIRST_ID = 100, LEASE_MS = 1500, LIMIT_MS = 60000 };

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        (void)fprintf(stderr, "%s: %s\n", bd_status_name(rc), bd_err_text(err));
        abort();
    }
}

/* ---- a client ---- */

static void one_context(rpc_ag *ag, rpc_ag_peer *peer, bool with_reference)
{
    static const float x[] = {1, 2};
    const size_t dims[] = {1, 2};
    rpc_tensor in;
    rpc_ag_ctx *ctx = NULL;
    rpc_ag_result y = {.n_out = 0};
    rpc_rref *r = NULL;
    bd_err err = BD_ERR_INIT;
    must(rpc_tensor_copy_of(NUM_F32, 2, dims, x, &in), NULL);
    must(rpc_ag_begin(ag, &ctx, &err), &err);
    must(rpc_ag_call(ctx, peer, "layer", &in, 1, &y, &err), &err);
    if (with_reference) {
        must(rpc_rref_remote(ctx, peer, "layer", &in, 1, &r, &err), &err);
        must(rpc_rref_wait(r, &err), &err);
    }
    rpc_ag_result_free(&y);
    rpc_tensor_free(&in);
}

static int client_main(const char *target, uint64_t id, int n)
{
    const rpc_ag_options opt = {.name = "client", .client_id = id};
    rpc_env *env = NULL;
    rpc_ag *ag = NULL;
    rpc_channel *ch = NULL;
    rpc_ag_peer *peer = NULL;
    bd_err err = BD_ERR_INIT;
    must(rpc_env_new(NULL, &env, &err), &err);
    must(rpc_ag_new(env, &opt, &ag, &err), &err);
    must(rpc_channel_new(env, target, NULL, &ch, &err), &err);
    must(rpc_ag_peer_new(ag, "server", ch, &peer), NULL);
    for (int i = 0; i < n; i++) {
        one_context(ag, peer, i % 10 == 0);
        if (i % 100 == 99) { /* the lease is short: old ones say that they live */
            must(rpc_ag_keep_alive(ag, &err), &err);
        }
    }
    if (write(STDOUT_FILENO, "r", 1) != 1) {
        return 1;
    }
    for (;;) {
        must(rpc_ag_keep_alive(ag, &err), &err); /* until it is killed */
        bd_sleep_ms(LEASE_MS / 10);
    }
}

/* ---- the server ---- */

typedef struct server {
    rpc_env *env;
    rpc_ag *ag;
    rpc_server *rpc;
    rpc_module *layer;
    char target[64];
} server;

static void server_start(server *s)
{
    const rpc_ag_options opt = {.name = "server", .client_id = 1};
    const rpc_server_options so = {.listen = "127.0.0.1:0"};
    const rpc_linear_spec spec = {.name = "layer", .n_in = 2, .n_out = 2, .optim = {"sgd", 1}};
    bd_err err = BD_ERR_INIT;
    must(rpc_env_new(NULL, &s->env, &err), &err);
    must(rpc_ag_new(s->env, &opt, &s->ag, &err), &err);
    must(rpc_linear_new(&spec, &s->layer, &err), &err);
    must(rpc_ag_register(s->ag, s->layer, &err), &err);
    must(rpc_server_new(s->env, &so, &s->rpc, &err), &err);
    must(rpc_ag_serve(s->ag, s->rpc), NULL);
    must(rpc_server_start(s->rpc, &err), &err);
    (void)snprintf(s->target, sizeof s->target, "127.0.0.1:%d", rpc_server_port(s->rpc));
}

static void server_stop(server *s)
{
    rpc_server_free(s->rpc);
    rpc_ag_free(s->ag);
    rpc_module_free(s->layer);
    rpc_env_free(s->env);
}

typedef struct client {
    pid_t pid;
    int out;
} client;

static client client_start(const server *s, int id, int n)
{
    char self[512], id_text[16], n_text[16], target[64];
    int p[2];
    client c;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = '\0';
    (void)snprintf(id_text, sizeof id_text, "%d", id);
    (void)snprintf(n_text, sizeof n_text, "%d", n);
    (void)snprintf(target, sizeof target, "%s", s->target);
    char role[] = "client";
    char *argv[] = {self, role, target, id_text, n_text, NULL};
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe(p), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, p[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn_file_actions_addclose(&actions, p[0]), 0);
    assert_int_equal(posix_spawn(&c.pid, self, &actions, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(p[1]);
    c.out = p[0];
    return c;
}

static void client_kill(const client *c)
{
    int status = 0;
    assert_int_equal(kill(c->pid, SIGKILL), 0);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    assert_true(WIFSIGNALED(status));
    (void)close(c->out);
}

static void client_wait_ready(const client *c)
{
    char byte = 0;
    assert_int_equal(read(c->out, &byte, 1), 1);
}

/* Sweeps, as a server does now and then, until nothing is left. Returns how long it took. */
static int64_t sweep_until_empty(const server *s, size_t *n_dropped)
{
    const int64_t start_ns = bd_mono_ns();
    rpc_rref_counts c;
    *n_dropped = 0;
    do {
        *n_dropped += rpc_ag_sweep(s->ag, LEASE_MS);
        rpc_rref_count(s->ag, &c);
        assert_true(bd_mono_ns() - start_ns < LIMIT_MS * BD_NS_PER_MS);
        bd_sleep_ms(10);
    } while (rpc_ag_n_contexts(s->ag) + c.values + c.forks > 0);
    return (bd_mono_ns() - start_ns) / BD_NS_PER_MS;
}

static void contexts_of_killed_processes_go_with_their_lease(void **state)
{
    (void)state;
    server s = {0};
    client clients[N_CLIENTS];
    rpc_rref_counts c;
    size_t n_dropped = 0;
    server_start(&s);
    client first = client_start(&s, FIRST_ID, 20); /* what is made once, is made */
    client_wait_ready(&first);
    client_kill(&first);
    (void)sweep_until_empty(&s, &n_dropped);
    assert_int_equal(n_dropped, 1);
    const long before = bd_mem_live_blocks();
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = client_start(&s, FIRST_ID + 1 + i, N_EACH);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        client_wait_ready(&clients[i]);
        assert_int_equal(rpc_ag_sweep(s.ag, LEASE_MS), 0); /* those that live keep theirs */
    }
    assert_int_equal(rpc_ag_n_contexts(s.ag), N_CLIENTS * N_EACH);
    rpc_rref_count(s.ag, &c);
    assert_int_equal(c.values, N_CLIENTS * N_EACH / 10);
    const long full = bd_mem_live_blocks();
    assert_true(full - before > (long)N_CLIENTS * N_EACH);
    for (int i = 0; i < N_CLIENTS; i++) {
        client_kill(&clients[i]);
    }
    int64_t ms = sweep_until_empty(&s, &n_dropped);
    assert_int_equal(n_dropped, N_CLIENTS);
    assert_true(bd_mem_live_blocks() <= before); /* the list of expired ids is one block */
    (void)printf("%d contexts, %ld blocks: gone %" PRId64 " ms after the kill, lease %d ms\n",
                 N_CLIENTS * N_EACH, full - before, ms, LEASE_MS);
    server_stop(&s);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "client") == 0) {
        return client_main(argv[2], strtoull(argv[3], NULL, 10), (int)strtol(argv[4], NULL, 10));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_of_killed_processes_go_with_their_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
