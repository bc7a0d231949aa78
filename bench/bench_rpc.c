/* What one call costs: depth-1 round trips over loopback, client and server in this process.
 * usage: bench_rpc [calls per case [core|wrapper]]; prints medians of 5 rounds. Each case runs on a
 * fresh env. The peer is an echo on bare gRPC C core: one thread serves, the caller takes its own
 * events; its rounds alternate with those of the wrapper's unary call. With "core" or "wrapper"
 * only that one runs, once, for callgrind. */
#include "base/buf.h"
#include "base/clock.h"

#include "rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 5

typedef struct world {
    rpc_env *env;
    rpc_server *server;
    rpc_channel *ch;
    rpc_stream *there;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int n_here;
} world;

static void on_echo(void *user, rpc_req *req)
{
    (void)user;
    bd_chain reply = {0};
    bd_chain_move(&reply, rpc_req_body(req));
    rpc_req_reply(req, &reply);
}

static void there_message(void *user, bd_chain *msg)
{
    bd_chain reply = {0};
    bd_chain_move(&reply, msg);
    (void)!rpc_stream_send(((world *)user)->there, &reply, NULL);
    bd_chain_deinit(&reply);
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
    (void)pthread_cond_signal(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
}

static bd_status world_start(world *w, int spin_us, bd_err *err)
{
    char target[64];
    rpc_env_options eopt = {.n_queues = 1, .n_threads = 2, .spin_us = spin_us};
    rpc_server_options sopt = {.listen = "127.0.0.1:0"};
    *w = (world){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    bd_status rc = rpc_env_new(&eopt, &w->env, err);
    rc = rc != BD_OK ? rc : rpc_server_new(w->env, &sopt, &w->server, err);
    rc = rc != BD_OK ? rc : rpc_server_register_inline(w->server, "/b.B/Inline", on_echo, w);
    rc = rc != BD_OK ? rc : rpc_server_register(w->server, "/b.B/Pool", on_echo, w);
    rc = rc != BD_OK ? rc : rpc_server_register_stream(w->server, "/b.B/Stream", there_open, w);
    rc = rc != BD_OK ? rc : rpc_server_start(w->server, err);
    if (rc == BD_OK) {
        (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(w->server));
        rc = rpc_channel_new(w->env, target, NULL, &w->ch, err);
    }
    return rc;
}

static void world_stop(world *w)
{
    rpc_channel_free(w->ch);
    rpc_server_free(w->server);
    rpc_stream_unref(w->there);
    rpc_env_free(w->env);
}

static bd_status unary(world *w, const char *method, bd_buf *payload, int n, bd_err *err)
{
    const rpc_call_options opt = {.deadline_ms = 10000};
    bd_status rc = BD_OK;
    for (int i = 0; i < n && rc == BD_OK; i++) {
        bd_chain body = {0}, reply = {0};
        rc = bd_chain_add(&body, payload, 0, payload->n_bytes);
        rc = rc != BD_OK ? rc : rpc_call_sync(w->ch, method, &body, &opt, &reply, err);
        bd_chain_deinit(&body);
        bd_chain_deinit(&reply);
    }
    return rc;
}

static bd_status stream(world *w, const char *method, bd_buf *payload, int n, bd_err *err)
{
    rpc_stream *s = NULL;
    rpc_stream_events ev = {.on_message = here_message, .user = w};
    bd_status rc = rpc_stream_open(w->ch, method, &ev, &s, err);
    w->n_here = 0;
    for (int i = 0; i < n && rc == BD_OK; i++) {
        bd_chain msg = {0};
        rc = bd_chain_add(&msg, payload, 0, payload->n_bytes);
        rc = rc != BD_OK ? rc : rpc_stream_send(s, &msg, err);
        bd_chain_deinit(&msg);
        (void)pthread_mutex_lock(&w->lock);
        while (rc == BD_OK && w->n_here <= i) {
            (void)pthread_cond_wait(&w->cond, &w->lock);
        }
        (void)pthread_mutex_unlock(&w->lock);
    }
    if (s != NULL) {
        rpc_stream_cancel(s);
        rpc_stream_unref(s);
    }
    return rc;
}

/* ---- the peer: an echo on the bare C core ---- */

typedef struct core_world {
    grpc_completion_queue *server_queue, *client_queue;
    grpc_server *server;
    grpc_channel *ch;
    void *method;
    pthread_t thread;
} core_world;

/* One call at a time: request, answer, and the next. */
static void *core_serve(void *arg)
{
    core_world *w = arg;
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC), deadline;
    for (;;) {
        grpc_call *call = NULL;
        grpc_metadata_array metadata;
        grpc_byte_buffer *payload = NULL;
        grpc_op ops[4];
        int cancelled = 0;
        grpc_metadata_array_init(&metadata);
        (void)grpc_server_request_registered_call(w->server, w->method, &call, &deadline, &metadata,
                                                  &payload, w->server_queue, w->server_queue,
                                                  &call);
        grpc_event ev = grpc_completion_queue_next(w->server_queue, forever, NULL);
        if (ev.success == 0) {
            grpc_metadata_array_destroy(&metadata);
            return NULL;
        }
        memset(ops, 0, sizeof ops);
        ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
        ops[1].op = GRPC_OP_SEND_MESSAGE;
        ops[1].data.send_message.send_message = payload;
        ops[2].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[3].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
        ops[3].data.recv_close_on_server.cancelled = &cancelled;
        (void)grpc_call_start_batch(call, ops, 4, &payload, NULL);
        (void)grpc_completion_queue_next(w->server_queue, forever, NULL);
        grpc_byte_buffer_destroy(payload);
        grpc_metadata_array_destroy(&metadata);
        grpc_call_unref(call);
    }
}

static void core_start(core_world *w)
{
    char target[64];
    grpc_init();
    grpc_server_credentials *there = grpc_insecure_server_credentials_create();
    grpc_channel_credentials *here = grpc_insecure_credentials_create();
    w->server_queue = grpc_completion_queue_create_for_next(NULL);
    w->client_queue = grpc_completion_queue_create_for_next(NULL);
    w->server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(w->server, w->server_queue, NULL);
    w->method = grpc_server_register_method(w->server, "/b.B/Core", NULL,
                                            GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
    int port = grpc_server_add_http2_port(w->server, "127.0.0.1:0", there);
    grpc_server_start(w->server);
    (void)pthread_create(&w->thread, NULL, core_serve, w);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", port);
    w->ch = grpc_channel_create(target, here, NULL);
    grpc_server_credentials_release(there);
    grpc_channel_credentials_release(here);
}

static void core_stop(core_world *w)
{
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_channel_destroy(w->ch);
    grpc_server_shutdown_and_notify(w->server, w->client_queue, w);
    (void)pthread_join(w->thread, NULL); /* its request_call comes back failed */
    (void)grpc_completion_queue_next(w->client_queue, forever, NULL);
    grpc_server_destroy(w->server);
    grpc_completion_queue *queues[2] = {w->server_queue, w->client_queue};
    for (int i = 0; i < 2; i++) {
        grpc_completion_queue_shutdown(queues[i]);
        while (grpc_completion_queue_next(queues[i], forever, NULL).type != GRPC_QUEUE_SHUTDOWN) {
        }
        grpc_completion_queue_destroy(queues[i]);
    }
    grpc_shutdown();
}

static bool core_call(core_world *w, grpc_slice path, const uint8_t *bytes, size_t n)
{
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(10, GPR_TIMESPAN));
    grpc_call *call = grpc_channel_create_call(w->ch, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               w->client_queue, path, NULL, deadline, NULL);
    grpc_slice s = grpc_slice_from_copied_buffer((const char *)bytes, n), details;
    grpc_byte_buffer *send = grpc_raw_byte_buffer_create(&s, 1), *recv = NULL;
    grpc_metadata_array initial, trailing;
    grpc_status_code status = GRPC_STATUS_UNKNOWN;
    grpc_op ops[6];
    grpc_slice_unref(s);
    details = grpc_empty_slice();
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = send;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &recv;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &trailing;
    ops[5].data.recv_status_on_client.status = &status;
    ops[5].data.recv_status_on_client.status_details = &details;
    (void)grpc_call_start_batch(call, ops, 6, call, NULL);
    (void)grpc_completion_queue_next(w->client_queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    bool ok = status == GRPC_STATUS_OK && recv != NULL && grpc_byte_buffer_length(recv) == n;
    grpc_byte_buffer_destroy(send);
    grpc_byte_buffer_destroy(recv);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_slice_unref(details);
    grpc_call_unref(call);
    return ok;
}

static bd_status core_unary(core_world *w, int n, bd_err *err)
{
    static const uint8_t bytes[64] = {1};
    grpc_slice path = grpc_slice_from_static_string("/b.B/Core");
    for (int i = 0; i < n; i++) {
        if (!core_call(w, path, bytes, sizeof bytes)) {
            return bd_err_set(err, BD_E_INTERNAL, "the bare core's call failed");
        }
    }
    return BD_OK;
}

typedef struct bench_case {
    const char *name, *method;
    bd_status (*run)(world *w, const char *method, bd_buf *payload, int n, bd_err *err);
    size_t n_bytes;
    int spin_us;
} bench_case;

static int64_t cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * BD_NS_PER_S + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bd_status run_case(const bench_case *c, int n, bd_err *err)
{
    world w;
    double us[ROUNDS], cpu[ROUNDS];
    bd_buf *payload = bd_buf_new(c->n_bytes);
    if (payload == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    memset(payload->bytes, 1, c->n_bytes);
    bd_status rc = world_start(&w, c->spin_us, err);
    rc = rc != BD_OK ? rc : c->run(&w, c->method, payload, n / 10 + 1, err); /* warm up */
    for (int r = 0; r < ROUNDS && rc == BD_OK; r++) {
        int64_t start = bd_mono_ns(), start_cpu = cpu_ns();
        rc = c->run(&w, c->method, payload, n, err);
        us[r] = (double)(bd_mono_ns() - start) / n / 1e3;
        cpu[r] = (double)(cpu_ns() - start_cpu) / n / 1e3;
    }
    world_stop(&w);
    bd_buf_unref(payload);
    if (rc == BD_OK) {
        qsort(us, ROUNDS, sizeof *us, by_value);
        qsort(cpu, ROUNDS, sizeof *cpu, by_value);
        (void)printf("%-28s %8zu B  %8.1f us/call  %8.1f us cpu/call (both sides)\n", c->name,
                     c->n_bytes, us[ROUNDS / 2], cpu[ROUNDS / 2]);
    }
    return rc;
}

/* Rounds of the bare core and of the wrapper alternate, so that both meet the same machine. */
static bd_status compare(int n, bd_err *err)
{
    enum { PAIRS = 41 };
    n = n / 8 + 1; /* many short rounds: where the kernel puts the threads changes now and then */
    world w;
    core_world core = {0};
    double bare[PAIRS], wrapped[PAIRS];
    bd_buf *payload = bd_buf_new(64);
    if (payload == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    memset(payload->bytes, 1, payload->n_bytes);
    core_start(&core);
    bd_status rc = world_start(&w, 0, err);
    rc = rc != BD_OK ? rc : unary(&w, "/b.B/Inline", payload, n / 2 + 1, err);
    rc = rc != BD_OK ? rc : core_unary(&core, n / 2 + 1, err);
    for (int r = 0; r < PAIRS && rc == BD_OK; r++) {
        int64_t t0 = bd_mono_ns();
        rc = core_unary(&core, n, err);
        int64_t t1 = bd_mono_ns();
        rc = rc != BD_OK ? rc : unary(&w, "/b.B/Inline", payload, n, err);
        bare[r] = (double)(t1 - t0) / n / 1e3;
        wrapped[r] = (double)(bd_mono_ns() - t1) / n / 1e3;
    }
    world_stop(&w);
    core_stop(&core);
    bd_buf_unref(payload);
    if (rc == BD_OK) {
        qsort(bare, PAIRS, sizeof *bare, by_value);
        qsort(wrapped, PAIRS, sizeof *wrapped, by_value);
        (void)printf(
            "64 B unary, concurrency 1: bare C core %.1f us, wrapper %.1f us, ratio %.2f\n",
            bare[PAIRS / 2], wrapped[PAIRS / 2], wrapped[PAIRS / 2] / bare[PAIRS / 2]);
    }
    return rc;
}

/* n calls of one kind, for counting instructions. */
static bd_status only(const char *kind, int n, bd_err *err)
{
    bd_status rc;
    if (strcmp(kind, "core") == 0) {
        core_world core = {0};
        core_start(&core);
        rc = core_unary(&core, n, err);
        core_stop(&core);
        return rc;
    }
    world w;
    bd_buf *payload = bd_buf_new(64);
    if (payload == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    memset(payload->bytes, 1, payload->n_bytes);
    rc = world_start(&w, 0, err);
    rc = rc != BD_OK ? rc : unary(&w, "/b.B/Inline", payload, n, err);
    world_stop(&w);
    bd_buf_unref(payload);
    return rc;
}

int main(int argc, char **argv)
{
    static const bench_case cases[] = {
        {"unary, inline handler", "/b.B/Inline", unary, 64, 0},
        {"unary, pool handler", "/b.B/Pool", unary, 64, 0},
        {"unary, inline, spin 50 us", "/b.B/Inline", unary, 64, 50},
        {"stream message", "/b.B/Stream", stream, 64, 0},
        {"unary, inline handler", "/b.B/Inline", unary, 1 << 20, 0},
        {"stream message", "/b.B/Stream", stream, 1 << 20, 0},
    };
    int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2000;
    bd_err first = BD_ERR_INIT;
    bd_status rc = argc > 2 ? only(argv[2], n, &first) : compare(n, &first);
    if (rc != BD_OK || argc > 2) {
        if (rc != BD_OK) {
            (void)fprintf(stderr, "error: %s\n", bd_err_text(&first));
        }
        return rc == BD_OK ? 0 : 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_err err = BD_ERR_INIT;
        int n_case = cases[i].n_bytes > 4096 ? n / 10 + 1 : n;
        if (run_case(&cases[i], n_case > 0 ? n_case : 1, &err) != BD_OK) {
            (void)fprintf(stderr, "error: %s: %s\n", cases[i].name, bd_err_text(&err));
            return 1;
        }
    }
    return 0;
}
