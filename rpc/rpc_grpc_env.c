/* The gRPC transport's table, its queues and their threads. */
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"

#include "rpc/rpc_grpc_int.h"

#include <grpc/support/log.h>

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local bool tls_env_thread; /* runs callbacks: must not block */

static void mark_env_thread(void *user)
{
    (void)user;
    tls_env_thread = true;
}

static bool on_env_thread(const rpc_env *env)
{
    (void)env;
    return tls_env_thread;
}

/* With spinning: asks without sleeping until spin_ns have passed since the last event. */
static grpc_event next_event(const gr_env *env, grpc_completion_queue *q)
{
    if (env->spin_ns > 0) {
        int64_t until = bd_mono_ns() + env->spin_ns;
        do {
            grpc_event ev = grpc_completion_queue_next(q, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
            if (ev.type != GRPC_QUEUE_TIMEOUT) {
                return ev;
            }
        } while (bd_mono_ns() < until);
    }
    return grpc_completion_queue_next(q, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

static void *queue_main(void *arg)
{
    const gr_queue *q = arg;
    tls_env_thread = true;
    for (;;) {
        grpc_event ev = next_event(q->env, q->core);
        if (ev.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (ev.type == GRPC_OP_COMPLETE) {
            gr_tag *tag = ev.tag;
            (void)atomic_load_explicit(&tag->published, memory_order_acquire);
            tag->fn(tag, ev.success != 0);
        }
    }
}

static bd_status start_thread(gr_queue *q, bd_err *err)
{
    int e = pthread_create(&q->threads[q->n_started], NULL, queue_main, q);
    if (e != 0) {
        return bd_err_errno(err, BD_E_NOMEM, e, "rpc queue: start a thread");
    }
    q->n_started++;
    return BD_OK;
}

static void queue_destroy(gr_queue *q)
{
    const gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_completion_queue_shutdown(q->core);
    while (q->n_started == 0) { /* start-up failed half way: drain it here */
        if (grpc_completion_queue_next(q->core, forever, NULL).type == GRPC_QUEUE_SHUTDOWN) {
            break;
        }
    }
    for (int i = 0; i < q->n_started; i++) {
        (void)pthread_join(q->threads[i], NULL);
    }
    grpc_completion_queue_destroy(q->core);
}

/* Shuts the queues, lets the threads drain them, joins. */
static void env_destroy(gr_env *env)
{
    rpc_pool_free(env->pool);
    rpc_timer_free(env->timer);
    for (int i = 0; i < env->n_queues && env->queues[i].core != NULL; i++) {
        queue_destroy(&env->queues[i]);
    }
    (void)pthread_cond_destroy(&env->none_left);
    (void)pthread_mutex_destroy(&env->lock);
    grpc_shutdown();
    rpc_security_free(env->base.security);
    bd_free(env);
}

static void env_free(rpc_env *base)
{
    gr_env *env = (gr_env *)base;
    (void)pthread_mutex_lock(&env->lock);
    while (env->n_live > 0) { /* the last events of calls that were cancelled */
        (void)pthread_cond_wait(&env->none_left, &env->lock);
    }
    (void)pthread_mutex_unlock(&env->lock);
    env_destroy(env);
}

void gr_env_enter(gr_env *env)
{
    (void)pthread_mutex_lock(&env->lock);
    env->n_live++;
    (void)pthread_mutex_unlock(&env->lock);
}

void gr_env_leave(gr_env *env)
{
    (void)pthread_mutex_lock(&env->lock);
    if (--env->n_live == 0) {
        (void)pthread_cond_broadcast(&env->none_left);
    }
    (void)pthread_mutex_unlock(&env->lock);
}

grpc_completion_queue *gr_env_queue(gr_env *env)
{
    uint32_t i = atomic_fetch_add_explicit(&env->next_queue, 1, memory_order_relaxed);
    return env->queues[i % (uint32_t)env->n_queues].core;
}

static int64_t env_now_ns(const rpc_env *env)
{
    (void)env;
    return bd_mono_ns();
}

static bd_status env_after(rpc_env *base, int64_t delay_ns, void (*fn)(void *user), void *user)
{
    return rpc_timer_add(((gr_env *)base)->timer, delay_ns, fn, user);
}

static void env_block(rpc_env *env, rpc_wait *w)
{
    (void)env;
    rpc_wait_block(w);
}

static int clamp(long v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : (int)v;
}

static bd_status start_all(gr_env *env, int n_workers, bd_err *err)
{
    bd_status rc = rpc_pool_new(n_workers, &env->pool, err);
    if (rc == BD_OK) {
        rc = rpc_timer_new(mark_env_thread, NULL, &env->timer, err);
    }
    for (int q = 0; q < env->n_queues && rc == BD_OK; q++) {
        env->queues[q].env = env;
        env->queues[q].core = grpc_completion_queue_create_for_next(NULL);
        for (int i = 0; i < env->n_threads && rc == BD_OK; i++) {
            rc = start_thread(&env->queues[q], err);
        }
    }
    return rc;
}

static bd_metric m_handshakes = BD_METRIC_COUNTER(
    "braid_rpc_handshake_failures_total", "connections",
    "connections that ended in the TLS handshake: no or expired certificate, wrong authority, "
    "garbage");
static bd_metric *const metrics[] = {&m_handshakes};

/* gRPC 1.51 says that a handshake has failed nowhere but in its log, among the lines for debugging.
 * They are few: none for a call. */
void gr_watch_handshakes(void)
{
    bd_metrics_register(metrics, sizeof metrics / sizeof metrics[0]);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

/* gRPC's own lines say nothing that our errors do not; they help only when looking for bugs. */
static void on_core_log(gpr_log_func_args *args)
{
    static const char where[] = "chttp2_server.cc", what[] = "Handshaking failed";
    size_t n = strlen(args->file);
    if (n >= sizeof where - 1 && strcmp(args->file + n - (sizeof where - 1), where) == 0 &&
        strncmp(args->message, what, sizeof what - 1) == 0) {
        bd_metric_add(&m_handshakes, 1);
    }
    BD_LOG(DEBUG, "grpc core", "file", args->file, "line", args->line, "text", args->message);
}

/* gRPC's own threads may be in a handshake when the process ends, also after grpc_shutdown: what OpenSSL
 * would free at exit they still use. Without effect where a host program has begun with OpenSSL before. */
static void keep_openssl(void)
{
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

void rpc_tune_process(void)
{
    /* gRPC 1.51 takes these two from its environment only. */
    (void)setenv("GRPC_EXPERIMENTS", /* NOLINT(concurrency-mt-unsafe): no other thread yet */
                 "tcp_rcv_lowat,tcp_frame_size_tuning", 0);
}

bd_status rpc_env_new(const rpc_env_options *opt, rpc_env **out, bd_err *err)
{
    static const rpc_env_options defaults;
    opt = opt != NULL ? opt : &defaults;
    rpc_security *security = NULL;
    keep_openssl();
    bd_status rc = rpc_security_new(opt->security, &security, err);
    if (rc != BD_OK) {
        return rc;
    }
    gr_env *env = bd_calloc(1, sizeof *env);
    if (env == NULL) {
        rpc_security_free(security);
        return bd_err_set(err, BD_E_NOMEM, "rpc: out of memory");
    }
    env->base.security = security;
    gpr_set_log_function(on_core_log);
    grpc_init();
    BD_LOG(DEBUG, "grpc core", "version", grpc_version_string());
    int cores = bd_cpus();
    env->base.t = &gr_transport;
    int n_queues = opt->n_queues > 0 ? opt->n_queues : clamp(cores / 2, 1, 4);
    env->n_queues = clamp(n_queues, 1, GR_MAX_QUEUES);
    env->n_threads = clamp(opt->n_threads > 0 ? opt->n_threads : 1, 1, GR_THREADS_PER_QUEUE);
    env->spin_ns = opt->spin_us > 0 ? opt->spin_us * (int64_t)1000 : 0;
    (void)pthread_mutex_init(&env->lock, NULL);
    (void)pthread_cond_init(&env->none_left, NULL);
    int n_workers = opt->n_workers > 0 ? opt->n_workers : clamp(cores, 4, 1024);
    rc = start_all(env, n_workers, err);
    if (rc != BD_OK) {
        env_destroy(env);
        return rc;
    }
    *out = &env->base;
    return BD_OK;
}

const rpc_transport gr_transport = {
    .try_bytes = sizeof(gr_try),
    .env_free = env_free,
    .now_ns = env_now_ns,
    .after = env_after,
    .block = env_block,
    .on_env_thread = on_env_thread,
    .channel_new = gr_channel_new,
    .channel_destroy = gr_channel_destroy,
    .try_start = gr_try_start,
    .try_cancel = gr_try_cancel,
    .stream_open = gr_stream_open,
    .stream_send = gr_stream_send,
    .stream_finish = gr_stream_finish,
    .stream_cancel = gr_stream_cancel,
    .stream_destroy = gr_stream_destroy,
    .server_new = gr_server_new,
    .server_start = gr_server_start,
    .server_port = gr_server_port,
    .server_stop = gr_server_stop,
    .server_destroy = gr_server_destroy,
    .req_cancelled = gr_req_cancelled,
    .req_ms_left = gr_req_ms_left,
    .req_reply = gr_req_reply,
    .req_fail = gr_req_fail,
};
