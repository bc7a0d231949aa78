/* A table larger than memory, one server's shard without network: what a row costs that is away.
 *
 *   build/bin/bench_ps_tier DIR [ROWS [BUDGET_MIB [BATCHES [lookup|mixed [DIM [DRAWS]]]]]]
 *       (default 1900000 256 1200 lookup 64 16384; BUDGET_MIB 0: no limit)
 *
 * DIR is a data folder that is made and filled when it is not there, and kept: the next run opens
 * it. Batches of DRAWS keys by Zipf 1.05, repeated keys once, grouped as clients group them; none
 * is used twice. `mixed` pushes what it has looked up (Adagrad). Each eighth of the batches gives
 * a line: the share of rows that was not in memory, CPU of the whole process, without drawing keys,
 * for a row that travelled, rows in memory, resident memory.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_budget.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard.h"

#include "tests/util/tu_shard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "braid/v1/parameter_server.pb-c.h"

#define ZIPF    1.05
#define GUIDE   ((size_t)1 << 21)
#define WINDOWS 8u

typedef struct bench {
    ps_shard *shard;
    uint32_t table;
    size_t rows, dim, draws;
    uint64_t epoch, step;
    double *cdf;     /* [rows] */
    uint32_t *guide; /* [GUIDE]: where to begin in cdf */
    uint64_t *keys;  /* [draws] */
    float *out;      /* [draws x dim] */
} bench;

static _Noreturn void fail(const char *text)
{
    (void)fprintf(stderr, "error: %s\n", text);
    _Exit(1);
}

static void *room(size_t n, size_t bytes)
{
    void *p = bd_calloc(n, bytes);
    if (p == NULL) {
        fail("no memory");
    }
    return p;
}

/* ---- keys ---- */
static void make_cdf(bench *b)
{
    double sum = 0;
    b->cdf = room(b->rows, sizeof *b->cdf);
    b->guide = room(GUIDE, sizeof *b->guide);
    for (size_t i = 0; i < b->rows; i++) {
        sum += pow((double)i + 1, -ZIPF);
        b->cdf[i] = sum;
    }
    for (size_t i = 0, g = 0; g < GUIDE; g++) {
        while (i + 1 < b->rows && b->cdf[i] < sum * (double)g / (double)GUIDE) {
            i++;
        }
        b->guide[g] = (uint32_t)i;
    }
}

static uint64_t draw(const bench *b, uint64_t batch, uint64_t i)
{
    double u = bd_unit_f64(bd_rand_u64(1, batch, i));
    size_t at = b->guide[(size_t)(u * (double)GUIDE)];
    while (at + 1 < b->rows && b->cdf[at] < u * b->cdf[b->rows - 1]) {
        at++;
    }
    return bd_mix64(at);
}

static int by_place(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    uint64_t mx = bd_mix64(x), my = bd_mix64(y);
    return mx < my ? -1 : mx > my;
}

static size_t distinct(uint64_t *keys, size_t n)
{
    size_t m = 0;
    qsort(keys, n, sizeof *keys, by_place);
    for (size_t i = 0; i < n; i++) {
        if (m == 0 || keys[m - 1] != keys[i]) {
            keys[m++] = keys[i];
        }
    }
    return m;
}

/* ---- steps ---- */
static void push(bench *b, const uint64_t *keys, size_t n)
{
    ps_part *p = room(1, sizeof *p);
    p->keep = bd_buf_new(n * (8 + b->dim * 4));
    p->tables = room(1, sizeof *p->tables);
    if (p->keep == NULL) {
        fail("no memory");
    }
    float *grads = (float *)(void *)(p->keep->bytes + n * 8);
    memcpy(p->keep->bytes, keys, n * sizeof *keys);
    for (size_t i = 0; i < n * b->dim; i++) {
        grads[i] = 0.25f;
    }
    p->tables[0] = (ps_grads){.table_id = b->table,
                              .dim = (uint32_t)b->dim,
                              .n_keys = n,
                              .keys = (const uint64_t *)(const void *)p->keep->bytes,
                              .grads = grads};
    p->n_tables = 1;
    p->n_bytes = p->keep->n_bytes;
    p->job_epoch = b->epoch;
    p->step = ++b->step;
    p->n_parts = 1;
    p->lr_scale = 1.0;
    ps_op op = {.kind = PS_OP_PUSH, .part = p};
    tu_must(tu_call(b->shard, &op), &op.err);
    ps_waiter w = {.kind = PS_WAIT_COMMIT, .job_epoch = b->epoch, .step = b->step, .lr_scale = 1.0};
    tu_must(tu_wait(b->shard, &w), &w.err);
}

static void fill(bench *b)
{
    for (size_t at = 0; at < b->rows; at += b->draws) {
        size_t n = b->rows - at < b->draws ? b->rows - at : b->draws;
        for (size_t i = 0; i < n; i++) { /* the most frequent ones last */
            b->keys[i] = bd_mix64(b->rows - 1 - at - i);
        }
        push(b, b->keys, distinct(b->keys, n));
    }
}

static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One line. */
static void window(bench *b, uint64_t first, uint64_t n_batches, bool pushes)
{
    ps_shard_stats before, after;
    bd_err err = BD_ERR_INIT;
    double cpu = 0;
    int64_t wall = 0;
    size_t rows = 0;
    ps_shard_get_stats(b->shard, &before);
    for (uint64_t k = first; k < first + n_batches; k++) {
        for (size_t i = 0; i < b->draws; i++) {
            b->keys[i] = draw(b, k, i);
        }
        size_t n = distinct(b->keys, b->draws);
        double start = cpu_s();
        int64_t from = bd_mono_ns();
        tu_must(ps_shard_read(b->shard, b->table, (uint32_t)b->dim, b->keys, n, b->out, &err),
                &err);
        if (pushes) {
            push(b, b->keys, n);
        }
        wall += bd_mono_ns() - from;
        cpu += cpu_s() - start;
        rows += n;
    }
    ps_shard_get_stats(b->shard, &after);
    double fetched = (double)(after.rows_fetched - before.rows_fetched), n = (double)rows;
    (void)printf(
        "batches %5" PRIu64 "  fetched %.4f of rows  moved out %.4f  CPU %.3f us a row"
        "  wall %.3f us a row  %" PRIu64 " of %" PRIu64 " rows in memory (%.1f MiB)"
        "  resident %.1f MiB\n",
        first + n_batches, fetched / n, (double)(after.rows_moved_out - before.rows_moved_out) / n,
        cpu * 1e6 / n, (double)wall * 1e-3 / n, after.n_rows - after.rows_away, after.n_rows,
        (double)after.rows_bytes / 1048576.0, (double)ps_budget_resident_bytes() / 1048576.0);
    (void)fflush(stdout);
}

static void open_bench(bench *b, const char *dir, size_t budget)
{
    bd_err err = BD_ERR_INIT;
    Braid__V1__TableSpec m;
    char name[] = "t", opt[] = "adagrad";
    ps_op op = {.kind = PS_OP_TABLE};
    const ps_shard_options so = {.journal_cap_bytes = (size_t)512 << 20, .memory_bytes = budget};
    tu_must(ps_dir_make(dir, &err), &err);
    tu_must(tu_shard_open(dir, &so, &b->shard, &err), &err);
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.dim = (uint32_t)b->dim;
    m.optimizer = opt;
    tu_must(ps_spec_parse(&m, &op.spec, &err), &err);
    tu_must(tu_call(b->shard, &op), &op.err);
    b->table = op.spec.id;
    b->epoch = ps_shard_job(b->shard).epoch + 1;
    ps_op open = {.kind = PS_OP_OPEN, .job = {b->epoch, 1, PS_SYNC, 0, 0}};
    tu_must(tu_call(b->shard, &open), &open.err);
}

static size_t number(int argc, char **argv, int i, size_t otherwise)
{
    return argc > i ? strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    bench b = {.rows = number(argc, argv, 2, 1900000),
               .dim = number(argc, argv, 6, 64),
               .draws = number(argc, argv, 7, 16384)};
    uint64_t batches = number(argc, argv, 4, 1200) / WINDOWS;
    bool pushes = argc > 5 && strcmp(argv[5], "mixed") == 0;
    ps_shard_stats st;
    if (argc < 2 || b.dim == 0 || b.draws == 0 || b.rows < b.draws || batches == 0) {
        (void)fprintf(stderr, "usage: bench_ps_tier DIR [ROWS [BUDGET_MIB [BATCHES [OP]]]]\n");
        return 2;
    }
    bd_log_set_level(BD_LOG_WARN);
    b.keys = room(b.draws, sizeof *b.keys);
    b.out = room(b.draws * b.dim, sizeof *b.out);
    make_cdf(&b);
    open_bench(&b, argv[1], number(argc, argv, 3, 256) << 20);
    ps_shard_get_stats(b.shard, &st);
    if (st.n_rows == 0) {
        fill(&b);
    }
    for (uint64_t i = 0; i < WINDOWS; i++) {
        window(&b, i * batches, batches, pushes);
    }
    tu_shard_close(b.shard);
    bd_free(b.cdf);
    bd_free(b.guide);
    bd_free(b.keys);
    bd_free(b.out);
    return 0;
}
