/* Rows in memory: batched lookup and Adagrad update of one table, beside the bare memory work.
 *
 *   build/bin/bench_ps_table [ROWS [DIM [BATCH]]]      (default 1000000 64 8192)
 *
 * Medians of 31 batches of random keys grouped by slot, as clients send them. "bare" gathers or
 * updates the same number of rows of one flat array by row number, without index, lock or header:
 * the limit of this machine's memory. Bytes per row: lookup 8 x DIM (read, write), update 20 x DIM
 * (weights and state read and written, gradient read).
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

#define N_RUNS 31

typedef struct bench {
    size_t rows, dim, batch;
    ps_table *table;
    float *flat;     /* [rows x 2 dim] */
    uint64_t *keys;  /* [batch] */
    uint32_t *order; /* [batch] row numbers for the flat array */
    float *grads, *out;
    uint64_t seq;
} bench;

static void *must(void *p)
{
    if (p == NULL) {
        (void)fprintf(stderr, "error: no memory\n");
        _Exit(1);
    }
    return p;
}

static uint64_t key_of(uint64_t i)
{
    return bd_mix64(i * 3 + 1);
}

static int by_slot(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    uint32_t sx = ps_slot_of_key(x), sy = ps_slot_of_key(y);
    return sx < sy ? -1 : sx > sy;
}

static void next_batch(bench *b, uint64_t run)
{
    for (size_t i = 0; i < b->batch; i++) {
        uint64_t row = bd_rand_u64(run, 0, i) % b->rows;
        b->keys[i] = key_of(row);
        b->order[i] = (uint32_t)row;
    }
    qsort(b->keys, b->batch, sizeof *b->keys, by_slot);
}

static void lookup(bench *b)
{
    ps_table_gather(b->table, b->keys, b->batch, b->out);
}

static void update(bench *b)
{
    ps_apply a = {.seq = {1, ++b->seq}, .step = b->seq, .lr_scale = 1.0};
    if (ps_table_reserve(b->table, b->keys, b->batch) != BD_OK) {
        _Exit(1);
    }
    ps_table_apply(b->table, b->keys, b->grads, b->batch, &a);
}

static void bare_lookup(bench *b)
{
    for (size_t i = 0; i < b->batch; i++) {
        if (i + 12 < b->batch) {
            __builtin_prefetch(b->flat + (size_t)b->order[i + 12] * 2 * b->dim);
        }
        memcpy(b->out + i * b->dim, b->flat + (size_t)b->order[i] * 2 * b->dim,
               b->dim * sizeof(float));
    }
}

static void bare_update(bench *b)
{
    for (size_t i = 0; i < b->batch; i++) {
        if (i + 12 < b->batch) {
            __builtin_prefetch(b->flat + (size_t)b->order[i + 12] * 2 * b->dim);
        }
        float *w = b->flat + (size_t)b->order[i] * 2 * b->dim, *s = w + b->dim;
        const float *g = b->grads + i * b->dim;
        for (size_t e = 0; e < b->dim; e++) {
            s[e] += g[e] * g[e];
            w[e] -= 0.01f * g[e] * s[e];
        }
    }
}

static int by_time(const void *a, const void *b)
{
    int64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* Rows a second, the median run. */
static double measure(bench *b, void (*work)(bench *))
{
    int64_t ns[N_RUNS];
    for (uint64_t r = 0; r < N_RUNS; r++) {
        next_batch(b, r);
        int64_t start = bd_mono_ns();
        work(b);
        ns[r] = bd_mono_ns() - start;
    }
    qsort(ns, N_RUNS, sizeof ns[0], by_time);
    const size_t middle = N_RUNS / 2;
    return (double)b->batch * 1e9 / (double)ns[middle];
}

static void make_table(bench *b)
{
    Braid__V1__TableSpec m;
    char name[] = "bench", opt[] = "adagrad";
    ps_spec s;
    bd_err err;
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.dim = (uint32_t)b->dim;
    m.optimizer = opt;
    if (ps_spec_parse(&m, &s, &err) != BD_OK) {
        (void)fprintf(stderr, "error: %s\n", bd_err_text(&err));
        _Exit(2);
    }
    b->table = must(ps_table_new(&s, NULL));
    for (uint64_t i = 0; i < b->rows; i++) {
        uint64_t key = key_of(i);
        ps_apply a = {.seq = {1, ++b->seq}, .step = 1, .lr_scale = 1.0};
        if (ps_table_reserve(b->table, &key, 1) != BD_OK) {
            _Exit(1);
        }
        ps_table_apply(b->table, &key, b->grads, 1, &a);
    }
}

int main(int argc, char **argv)
{
    bench b = {.rows = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000,
               .dim = argc > 2 ? strtoul(argv[2], NULL, 10) : 64,
               .batch = argc > 3 ? strtoul(argv[3], NULL, 10) : 8192};
    if (b.rows == 0 || b.dim == 0 || b.dim > PS_MAX_DIM || b.batch == 0) {
        (void)fprintf(stderr, "usage: bench_ps_table [ROWS [DIM [BATCH]]]\n");
        return 2;
    }
    b.flat = must(bd_calloc(b.rows, 2 * b.dim * sizeof(float)));
    memset(b.flat, 1, b.rows * 2 * b.dim * sizeof(float)); /* real pages */
    b.keys = must(bd_calloc(b.batch, sizeof *b.keys));
    b.order = must(bd_calloc(b.batch, sizeof *b.order));
    b.grads = must(bd_calloc(b.batch, b.dim * sizeof(float)));
    b.out = must(bd_calloc(b.batch, b.dim * sizeof(float)));
    for (size_t i = 0; i < b.batch * b.dim; i++) {
        b.grads[i] = 0.01f;
    }
    make_table(&b);
    (void)printf("bench_ps_table: %zu rows, dim %zu, batch %zu\n", b.rows, b.dim, b.batch);
    (void)printf("%-8s %14s %14s %8s\n", "work", "rows/s", "bare rows/s", "ratio");
    double l = measure(&b, lookup), bl = measure(&b, bare_lookup);
    double u = measure(&b, update), bu = measure(&b, bare_update);
    (void)printf("%-8s %14.0f %14.0f %8.2f\n", "lookup", l, bl, l / bl);
    (void)printf("%-8s %14.0f %14.0f %8.2f\n", "update", u, bu, u / bu);
    ps_table_free(b.table);
    bd_free(b.flat);
    bd_free(b.keys);
    bd_free(b.order);
    bd_free(b.grads);
    bd_free(b.out);
    return 0;
}
