/* Reductions, stored rows and optimiser steps: portable against SIMD, in cache and out of it.
 * Prints medians.
 *
 * Reductions read two streams and write one; the table gives bytes of `x` per second, so the memory
 * moved is three times as much. Optimiser steps give elements per second.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/num/cpu.h"
#include "base/num/optim.h"
#include "base/num/reduce.h"
#include "base/num/row_codec.h"
#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_REPEATS = 7, BIG_BYTES = 64 << 20, SMALL_BYTES = 64 << 10, MIN_NS = 20000000 };

typedef struct job {
    void *acc, *x;
    size_t n;
    num_dtype dtype;
    const num_optim *opt;
    float hyper[NUM_OPTIM_MAX_HYPER];
    size_t dim;
    bool simd;
} job;

static void reduce_once(const job *j)
{
    bd_status rc = j->simd ? num_reduce(j->acc, j->x, j->n, j->dtype, NUM_SUM)
                           : num_reduce_ref(j->acc, j->x, j->n, j->dtype, NUM_SUM);
    if (rc != BD_OK) {
        abort();
    }
}

/* Rows of weights and state, one after the other in acc. */
static void step_once(const job *j)
{
    size_t row = j->dim + j->opt->state_elems(j->dim);
    float *rows = j->acc;
    for (size_t i = 0; i < j->n; i++) {
        float *w = rows + i * row;
        (j->simd ? j->opt->step : j->opt->step_ref)(j->hyper, w, w + j->dim, j->x, j->dim);
    }
}

/* Rows of dim weights from x to acc, stochastically rounded, and back. */
static void encode_once(const job *j)
{
    size_t bytes = num_row_bytes((int)j->dtype, j->dim);
    for (size_t i = 0; i < j->n; i++) {
        (j->simd ? num_row_encode : num_row_encode_ref)((int)j->dtype, j->x, j->dim, i + 1,
                                                        (uint8_t *)j->acc + i * bytes);
    }
}

static void decode_once(const job *j)
{
    size_t bytes = num_row_bytes((int)j->dtype, j->dim);
    for (size_t i = 0; i < j->n; i++) {
        (j->simd ? num_row_decode : num_row_decode_ref)(
            (int)j->dtype, (const uint8_t *)j->acc + i * bytes, j->dim, j->x);
    }
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Median seconds of one call. */
static double time_of(void (*once)(const job *j), const job *j)
{
    double s[N_REPEATS];
    for (int r = 0; r < N_REPEATS; r++) {
        int64_t start = bd_mono_ns(), now = start;
        long n_calls = 0;
        for (; now - start < MIN_NS; now = bd_mono_ns()) {
            once(j);
            n_calls++;
        }
        s[r] = (double)(now - start) / 1e9 / (double)n_calls;
    }
    qsort(s, N_REPEATS, sizeof s[0], by_value);
    return s[N_REPEATS / 2];
}

static void bench_reduce(job *j)
{
    static const num_dtype dtypes[] = {NUM_F32, NUM_BF16, NUM_F16};
    static const size_t sizes[] = {SMALL_BYTES, BIG_BYTES};
    printf("%-24s %10s %14s %14s %8s\n", "sum", "KiB", "portable GB/s", "SIMD GB/s", "ratio");
    for (size_t d = 0; d < 3; d++) {
        for (size_t s = 0; s < 2; s++) {
            j->dtype = dtypes[d];
            j->n = sizes[s] / num_dtype_bytes((int)dtypes[d]);
            double gb[2];
            for (int simd = 0; simd < 2; simd++) {
                memset(j->acc, 0, sizes[s]);
                j->simd = simd == 1;
                gb[simd] = (double)sizes[s] / time_of(reduce_once, j) / 1e9;
            }
            printf("%-24s %10zu %14.2f %14.2f %8.2f\n", num_dtype_name((int)dtypes[d]),
                   sizes[s] >> 10, gb[0], gb[1], gb[1] / gb[0]);
        }
    }
}

static void bench_optim(job *j)
{
    printf("%-24s %10s %14s %14s %8s\n", "step of 64 rows", "dim", "portable M/s", "SIMD M/s",
           "ratio");
    for (size_t i = 0; num_optim_at(i) != NULL; i++) {
        for (size_t dim = 16; dim <= 256; dim *= 4) {
            j->opt = num_optim_at(i);
            j->dim = dim;
            j->n = 64;
            if (num_optim_hyper(j->opt, NULL, NULL, 0, j->hyper, NULL) != BD_OK) {
                abort();
            }
            double rate[2];
            for (int simd = 0; simd < 2; simd++) {
                memset(j->acc, 0, BIG_BYTES / 8);
                j->simd = simd == 1;
                rate[simd] = (double)(dim * j->n) / time_of(step_once, j) / 1e6;
            }
            printf("%-24s %10zu %14.0f %14.0f %8.2f\n", j->opt->name, dim, rate[0], rate[1],
                   rate[1] / rate[0]);
        }
    }
}

static void bench_codec(job *j)
{
    static const num_dtype dtypes[] = {NUM_F16, NUM_BF16, NUM_I8};
    printf("%-24s %10s %14s %14s %8s\n", "rows of 64", "", "portable M/s", "SIMD M/s", "ratio");
    for (size_t d = 0; d < 3; d++) {
        for (int back = 0; back < 2; back++) {
            double rate[2];
            j->dtype = dtypes[d];
            j->dim = 64;
            j->n = 64;
            for (int simd = 0; simd < 2; simd++) {
                j->simd = simd == 1;
                rate[simd] = (double)(j->dim * j->n) /
                             time_of(back == 1 ? decode_once : encode_once, j) / 1e6;
            }
            printf("%-24s %10s %14.0f %14.0f %8.2f\n", num_dtype_name((int)dtypes[d]),
                   back == 1 ? "decode" : "encode", rate[0], rate[1], rate[1] / rate[0]);
        }
    }
}

int main(void)
{
    job j = {.acc = bd_alloc_aligned(64, BIG_BYTES), .x = bd_alloc_aligned(64, BIG_BYTES)};
    if (j.acc == NULL || j.x == NULL) {
        return 1;
    }
    printf("avx2: %s; medians of %d\n", num_cpu_has_avx2() ? "yes" : "no", N_REPEATS);
    memset(j.x, 0, BIG_BYTES);
    bench_reduce(&j);
    bd_rand_normal(1, 1, 1, 0, 0.1f, j.x, 1 << 16);
    bench_codec(&j);
    bench_optim(&j);
    bd_free(j.acc);
    bd_free(j.x);
    return 0;
}
