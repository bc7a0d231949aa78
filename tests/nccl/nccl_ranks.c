#include "tests/nccl/nccl_ranks.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_nccl_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void nccl_failed(node *t, int line, const char *what, const bd_err *err)
{
    if (t->failure[0] == '\0') {
        (void)snprintf(t->failure, sizeof t->failure, "line %d: %s: %s", line, what,
                       err != NULL ? bd_err_text(err) : "false");
    }
}

int nccl_top_world(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n < MAX_WORLD ? n : MAX_WORLD;
}

static void *node_main(void *arg)
{
    node *t = arg;
    (void)cudaSetDevice(t->opt.device);
    if (t->n == NULL && t->opt.group != NULL) {
        t->rc = ring_nccl_new(t->kv, t->rank, t->world, &t->opt, &t->n, &t->err);
    }
    if (t->opt.group != NULL && t->rc != BD_OK) {
        nccl_failed(t, __LINE__, "ring_nccl_new", &t->err);
    } else {
        if (t->limit_ms > 0 && t->n != NULL) {
            (void)pthread_barrier_wait(t->meet);
            t->n->timeout_ns = t->limit_ms * BD_NS_PER_MS; /* no operation has looked at it yet */
        }
        t->fn(t);
    }
    ring_nccl_free(t->n);
    t->n = NULL;
    return NULL;
}

/* Runs fn on each rank; nodes[world] gets what they left. */
void nccl_run(const setup *s, node_fn fn, node *nodes)
{
    static uint64_t epoch = 1;
    ring_comm *controls[MAX_WORLD] = {0};
    pthread_barrier_t meet;
    bd_err err = BD_ERR_INIT;
    bd_kv *kv = s->kv != NULL ? s->kv : bd_kv_mem_new();
    int present = s->n_present > 0 ? s->n_present : s->world;
    const ring_options ropt = {.group = "control", .epoch = epoch, .timeout_ms = 20000};
    assert_non_null(kv);
    assert_int_equal(pthread_barrier_init(&meet, NULL, (unsigned)present), 0);
    if (s->control) {
        assert_int_equal(ring_mem_new(s->world, &ropt, controls, &err), BD_OK);
    }
    epoch++;
    for (int r = 0; r < present; r++) {
        nodes[r] = (node){.rank = r,
                          .world = s->world,
                          .kv = kv,
                          .limit_ms = s->limit_ms,
                          .fn = fn,
                          .arg = s->arg,
                          .meet = &meet,
                          .opt = {.group = s->no_join ? NULL : "g",
                                  .epoch = epoch,
                                  .device = r,
                                  .timeout_ms = s->timeout_ms > 0 ? s->timeout_ms : 20000,
                                  .poll_ms = 5,
                                  .stop_ms = s->stop_ms,
                                  .control = controls[r]}};
        assert_int_equal(pthread_create(&nodes[r].thread, NULL, node_main, &nodes[r]), 0);
    }
    for (int r = 0; r < present; r++) {
        (void)pthread_join(nodes[r].thread, NULL);
    }
    for (int r = 0; r < s->world; r++) {
        ring_free(controls[r]);
    }
    (void)pthread_barrier_destroy(&meet);
    if (s->kv == NULL) {
        bd_kv_mem_free(kv);
    }
    for (int r = 0; r < present && !s->tolerant; r++) {
        if (nodes[r].failure[0] != '\0') {
            fail_msg("world %d, rank %d: %s", s->world, r, nodes[r].failure);
        }
    }
}

/* Small, so that products and 8-bit sums of 5 ranks stay exact. */
double nccl_input_at(int r, size_t i)
{
    return 1.0 + (double)((bd_mix64(((uint64_t)r << 40) + i) & 0xffff) % 2);
}

void nccl_store(void *buf, size_t i, num_dtype d, double v)
{
    switch (d) {
    case NUM_F32:
        ((float *)buf)[i] = (float)v;
        break;
    case NUM_F16:
        ((uint16_t *)buf)[i] = num_f32_to_f16((float)v);
        break;
    case NUM_BF16:
        ((uint16_t *)buf)[i] = num_f32_to_bf16((float)v);
        break;
    case NUM_F64:
        ((double *)buf)[i] = v;
        break;
    case NUM_I32:
        ((int32_t *)buf)[i] = (int32_t)v;
        break;
    case NUM_I64:
        ((int64_t *)buf)[i] = (int64_t)v;
        break;
    default:
        ((uint8_t *)buf)[i] = (uint8_t)v;
        break;
    }
}

/* Device memory with `who`'s elements from `first` on. */
void *nccl_filled(int who, size_t first, size_t n, num_dtype d)
{
    void *dev = NULL;
    size_t n_bytes = n * num_dtype_bytes((int)d);
    void *host = malloc(n_bytes + 64);
    for (size_t i = 0; host != NULL && i < n; i++) {
        nccl_store(host, i, d, nccl_input_at(who, first + i));
    }
    if (host == NULL || cudaMalloc(&dev, n_bytes + 64) != cudaSuccess ||
        cudaMemcpy(dev, host, n_bytes, cudaMemcpyHostToDevice) != cudaSuccess) {
        abort();
    }
    free(host);
    return dev;
}

void gate_pass(void *arg)
{
    gate *g = arg;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->is_open) {
        (void)pthread_cond_wait(&g->opened, &g->lock);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

void gate_open(gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->is_open = true;
    (void)pthread_cond_broadcast(&g->opened);
    (void)pthread_mutex_unlock(&g->lock);
}

void nccl_one_cause(const node *nodes, int world, bd_status rc, const char *part)
{
    for (int r = 0; r < world; r++) {
        if (nodes[r].rc != rc || strstr(nodes[r].err.text, part) == NULL ||
            strcmp(nodes[r].err.text, nodes[0].err.text) != 0) {
            fail_msg("rank %d of %d: %s \"%s\", want %s with \"%s\"; rank 0: \"%s\"", r, world,
                     bd_status_name((int)nodes[r].rc), nodes[r].err.text, bd_status_name((int)rc),
                     part, nodes[0].err.text);
        }
    }
}

void nccl_compute_hangs(node *t)
{
    gate *g = t->arg;
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    CUDA(t, cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking));
    if (t->rank == t->world - 1) {
        CUDA(t, cudaLaunchHostFunc(t->compute, gate_pass, g));
    }
    const ring_nccl_how how = {.name = "w", .after = t->compute};
    t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, &how, &t->err);
    gate_open(g);
    CUDA(t, cudaStreamDestroy(t->compute));
    ring_nccl_free(t->n);
    t->n = NULL;
    if (t->opt.stop_ms > 0) {
        g->kept = buf;
    } else {
        (void)cudaFree(buf);
    }
}

/* The fault lies before the collective, on one rank's device; the text says so. */
void nccl_disagree(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 16, NUM_F32);
    const ring_nccl_how how = {.name = t->rank == 1 ? "b" : "a"};
    t->rc = ring_nccl_allreduce(t->n, buf, t->rank == 1 ? 5 : 8, NUM_F32, NUM_SUM, &how, &t->err);
    (void)cudaFree(buf);
}

void nccl_once(node *t)
{
    float *buf = nccl_filled(t->rank, 0, 8, NUM_F32);
    t->rc = ring_nccl_allreduce(t->n, buf, 8, NUM_F32, NUM_SUM, NULL, &t->err);
    (void)cudaFree(buf);
}
