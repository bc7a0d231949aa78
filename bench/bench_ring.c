/* Allreduce (f32 sum) of the tcp backend on this host, one thread per rank in one process.
 *
 *   bench_ring [WORLD [MAX_MIB]]     defaults 2 and 64
 *
 * Every size is checked against the expected sum before it is timed. Columns: median of the rounds
 * (slowest rank of each round), algorithm bandwidth = bytes / time, bus bandwidth = that times
 * 2(P-1)/P, and the bytes that rank 0 sent against the formula in ring/ring.h. */
#include "base/clock.h"
#include "base/kv.h"
#include "base/mem.h"

#include "ring/ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_WORLD  16
#define MAX_ROUNDS 400

typedef struct bench {
    bd_kv *kv;
    int world;
    size_t max_bytes;
    pthread_barrier_t meeting;
    int64_t took_ns[MAX_WORLD][MAX_ROUNDS];
} bench;

typedef struct bench_rank {
    bench *b;
    int rank;
    bd_err err;
    bd_status rc;
} bench_rank;

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static size_t rounds_for(size_t n_bytes)
{
    size_t n = ((size_t)256 << 20) / (n_bytes + 1);
    return n < 7 ? 7 : n > MAX_ROUNDS ? MAX_ROUNDS : n;
}

static bd_status check(ring_comm *c, float *v, size_t n, bd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        v[i] = (float)(ring_rank(c) + 1) + (float)(i % 8);
    }
    bd_status rc = ring_allreduce(c, v, n, NUM_F32, NUM_SUM, "check", NULL, err);
    int p = ring_world(c);
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        float want = (float)p * ((float)(p + 1) / 2.0f + (float)(i % 8));
        if (v[i] != want) {
            rc = bd_err_set(err, BD_E_INTERNAL, "wrong sum at %zu of %zu", i, n);
        }
    }
    return rc;
}

static void report(bench *b, size_t n_bytes, size_t rounds, uint64_t sent)
{
    int64_t slowest[MAX_ROUNDS];
    for (size_t k = 0; k < rounds; k++) {
        slowest[k] = 0;
        for (int r = 0; r < b->world; r++) {
            slowest[k] = b->took_ns[r][k] > slowest[k] ? b->took_ns[r][k] : slowest[k];
        }
    }
    qsort(slowest, rounds, sizeof slowest[0], by_value);
    size_t middle = rounds / 2;
    double ns = (double)slowest[middle];
    double gb_s = (double)n_bytes / ns;
    double share = 2.0 * (b->world - 1) / b->world;
    (void)printf("%12zu %12.1f %9.3f %9.3f %9.3f\n", n_bytes, ns / 1e3, gb_s, gb_s * share,
                 (double)sent / (double)rounds / (share * (double)n_bytes));
    (void)fflush(stdout);
}

static bd_status time_size(bench_rank *me, ring_comm *c, float *v, size_t n_bytes)
{
    bench *b = me->b;
    size_t n = n_bytes / sizeof *v;
    size_t rounds = rounds_for(n_bytes);
    bd_status rc = check(c, v, n, &me->err);
    for (size_t i = 0; i < n; i++) {
        v[i] = 0; /* stays 0: no overflow over the rounds */
    }
    uint64_t before = ring_bytes_sent(c);
    for (size_t k = 0; rc == BD_OK && k < rounds; k++) {
        int64_t start = bd_mono_ns();
        rc = ring_allreduce(c, v, n, NUM_F32, NUM_SUM, "time", NULL, &me->err);
        b->took_ns[me->rank][k] = bd_mono_ns() - start;
    }
    uint64_t sent = ring_bytes_sent(c) - before;
    (void)pthread_barrier_wait(&b->meeting);
    if (me->rank == 0 && rc == BD_OK) {
        report(b, n_bytes, rounds, sent);
    }
    (void)pthread_barrier_wait(&b->meeting);
    return rc;
}

static void *rank_main(void *arg)
{
    bench_rank *me = arg;
    const ring_options opt = {.group = "bench", .epoch = 1};
    ring_comm *c = NULL;
    me->rc = ring_tcp_new(me->b->kv, me->rank, me->b->world, &opt, &c, &me->err);
    float *v = me->rc == BD_OK ? ring_alloc(c, me->b->max_bytes) : NULL;
    if (me->rc == BD_OK && v == NULL) {
        me->rc = bd_err_set(&me->err, BD_E_NOMEM, "buffer");
    }
    for (size_t n = 4; me->rc == BD_OK && n <= me->b->max_bytes; n *= 4) {
        me->rc = time_size(me, c, v, n);
    }
    if (c != NULL) {
        ring_mem_release(c, v);
    }
    ring_free(c);
    return NULL;
}

int main(int argc, char **argv)
{
    static bench b;
    static bench_rank ranks[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    long world = argc > 1 ? strtol(argv[1], NULL, 10) : 2;
    long max_mib = argc > 2 ? strtol(argv[2], NULL, 10) : 64;
    int bad = 0;
    if (world < 1 || world > MAX_WORLD || max_mib < 1 || max_mib > 4096) {
        (void)fprintf(stderr, "usage: bench_ring [WORLD 1-%d [MAX_MIB 1-4096]]\n", MAX_WORLD);
        return 2;
    }
    b.world = (int)world;
    b.max_bytes = (size_t)max_mib << 20;
    b.kv = bd_kv_mem_new();
    (void)pthread_barrier_init(&b.meeting, NULL, (unsigned)world);
    (void)printf("allreduce f32, tcp loopback, %d ranks, %ld cpus\n", b.world,
                 sysconf(_SC_NPROCESSORS_ONLN));
    (void)printf("%12s %12s %9s %9s %9s\n", "bytes", "us", "GB/s", "bus GB/s", "sent/form");
    for (int r = 0; r < b.world; r++) {
        ranks[r] = (bench_rank){.b = &b, .rank = r};
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0) {
            return 1;
        }
    }
    for (int r = 0; r < b.world; r++) {
        (void)pthread_join(threads[r], NULL);
        if (ranks[r].rc != BD_OK) {
            (void)fprintf(stderr, "rank %d: %s\n", r, bd_err_text(&ranks[r].err));
            bad = 1;
        }
    }
    (void)pthread_barrier_destroy(&b.meeting);
    bd_kv_mem_free(b.kv);
    return bad;
}
