/* Checkpoints while training goes on: MB/s of rows, and what training loses meanwhile.
 *
 *   build/bin/bench_ckpt DIR [ROWS [DIM [BATCH [ROUNDS [PAUSE_MS [DURABILITY]]]]]]
 *       (default 1000000 64 8192 3 0 journal; durability: journal or checkpoint)
 *
 * One server's shard without network (DIR: a folder on the disk to measure, made and removed): one
 * table of ROWS rows of DIM floats, SGD; every step pushes BATCH random keys and commits. Each
 * round trains alone for a while (alone), then makes a checkpoint while training goes on (during),
 * first with every row changed since the last one (full), then with what a tenth of ROWS pushed
 * keys changed (increment). MB/s: bytes of changed rows (entries: weights, state, 36 bytes of key
 * and counters) per second from the start of the cut until the checkpoint is whole. Cut: how long
 * training stands still for it. Kept: steps per second during / alone. PAUSE_MS: what the trainer
 * does between its steps elsewhere (its model, on another host); 0: the server is saturated.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

#define ALONE_STEPS 300u

typedef struct bench {
    ps_shard *shard;
    uint32_t table;
    size_t rows, dim, batch;
    long pause_ms;
    bool journaled;
    uint64_t epoch, step;
    int64_t longest_ns; /* step since it was set to 0 */
} bench;

static _Noreturn void fail(const char *text)
{
    (void)fprintf(stderr, "error: %s\n", text);
    _Exit(1);
}

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail(bd_err_text(err));
    }
}

/* ---- blocking calls ---- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

typedef struct op_call {
    ps_op op;
    bool done; /* under lock */
} op_call;

static void on_op(ps_op *op)
{
    (void)pthread_mutex_lock(&lock);
    ((op_call *)(void *)op)->done = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

typedef struct wait_call {
    ps_waiter w;
    bool done; /* under lock */
} wait_call;

static void on_waiter(ps_waiter *w)
{
    (void)pthread_mutex_lock(&lock);
    ((wait_call *)(void *)w)->done = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void wait_for(const bool *done)
{
    (void)pthread_mutex_lock(&lock);
    while (!*done) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
}

static bool is_done(const bool *done)
{
    (void)pthread_mutex_lock(&lock);
    bool is = *done;
    (void)pthread_mutex_unlock(&lock);
    return is;
}

static void call(bench *b, op_call *c)
{
    c->done = false;
    c->op.done = on_op;
    ps_shard_post(b->shard, &c->op);
    wait_for(&c->done);
    must(c->op.rc, &c->op.err);
}

/* ---- training ---- */
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

/* Distinct keys, n of the table's rows: random ones, or all from `first` on. */
static ps_part *make_part(const bench *b, bool random, uint64_t first, size_t n)
{
    BD_ASSERT(n > 0 && n <= b->rows);
    ps_part *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        fail("no memory");
    }
    p->keep = bd_buf_new(n * (8 + b->dim * 4));
    p->tables = bd_calloc(1, sizeof *p->tables);
    if (p->keep == NULL || p->tables == NULL) {
        fail("no memory");
    }
    uint64_t *keys = (uint64_t *)(void *)p->keep->bytes, stride = b->rows / n;
    float *grads = (float *)(void *)(p->keep->bytes + n * 8);
    for (size_t i = 0; i < n; i++) { /* one of each stretch of ROWS / n rows: distinct */
        uint64_t row = random ? i * stride + bd_rand_u64(b->step, 0, i) % stride : first + i;
        keys[i] = key_of(row);
    }
    qsort(keys, n, sizeof *keys, by_slot);
    for (size_t i = 0; i < n * b->dim; i++) {
        grads[i] = 0.25f;
    }
    p->tables[0] = (ps_grads){
        .table_id = b->table, .dim = (uint32_t)b->dim, .n_keys = n, .keys = keys, .grads = grads};
    p->n_tables = 1;
    p->n_bytes = p->keep->n_bytes;
    p->job_epoch = b->epoch;
    p->step = b->step;
    p->n_parts = 1;
    p->lr_scale = 1.0;
    return p;
}

static void run_step(bench *b, bool random, uint64_t first, size_t n)
{
    b->step++;
    op_call push = {.op = {.kind = PS_OP_PUSH, .part = make_part(b, random, first, n)}};
    int64_t start = bd_mono_ns();
    call(b, &push);
    wait_call w = {.w = {.kind = PS_WAIT_COMMIT,
                         .job_epoch = b->epoch,
                         .step = b->step,
                         .lr_scale = 1.0,
                         .finish = on_waiter}};
    ps_shard_decide(b->shard, &w.w);
    wait_for(&w.done);
    must(w.w.rc, &w.w.err);
    int64_t took = bd_mono_ns() - start;
    bd_sleep_ms(random ? b->pause_ms : 0);
    b->longest_ns = took > b->longest_ns ? took : b->longest_ns;
}

static void change_all(bench *b)
{
    for (uint64_t at = 0; at < b->rows; at += b->batch) {
        run_step(b, false, at, b->rows - at < b->batch ? b->rows - at : b->batch);
    }
}

static double steps_per_s(bench *b, unsigned n)
{
    int64_t start = bd_mono_ns();
    for (unsigned i = 0; i < n; i++) {
        run_step(b, true, 0, b->batch);
    }
    return n / ((double)(bd_mono_ns() - start) * 1e-9);
}

/* ---- checkpoints ---- */
/* One phase; training goes on until it is answered. */
static void phase(bench *b, ps_ckpt_phase p, const char *name, uint64_t step, bool train)
{
    op_call c = {.op = {.kind = PS_OP_CHECKPOINT, .phase = p, .done = on_op}};
    c.op.job = (ps_job){.epoch = b->epoch, .last_step = step};
    (void)snprintf(c.op.name, sizeof c.op.name, "%s", name);
    ps_shard_post(b->shard, &c.op);
    while (train && !is_done(&c.done)) {
        run_step(b, true, 0, b->batch);
    }
    wait_for(&c.done);
    must(c.op.rc, &c.op.err);
}

static double ms_of(int64_t ns)
{
    return (double)ns * 1e-6;
}

static void save(bench *b, const char *what, int round)
{
    ps_shard_stats st;
    char name[64];
    b->longest_ns = 0;
    double alone = steps_per_s(b, ALONE_STEPS);
    int64_t longest_alone = b->longest_ns;
    if (strcmp(what, "full") == 0) {
        change_all(b);
    }
    ps_shard_get_stats(b->shard, &st);
    (void)snprintf(name, sizeof name, "%s-%d", what, round);
    b->longest_ns = 0;
    uint64_t first_step = b->step;
    int64_t start = bd_mono_ns();
    uint64_t step = b->step;
    phase(b, PS_CKPT_CUT, name, step, false);
    int64_t cut = bd_mono_ns();
    phase(b, PS_CKPT_ALL, name, step, true);
    int64_t end = bd_mono_ns();
    double seconds = (double)(end - start) * 1e-9, mb = (double)st.dirty_bytes / 1e6;
    double during = (double)(b->step - first_step) / seconds;
    (void)printf(
        "%-9s round %d  rows %7.1f MB  %5.0f MB/s  cut %4.0f ms rest %5.0f "
        "ms  steps/s alone %5.1f during %5.1f kept %3.0f %%  longest step %4.0f / %4.0f ms\n",
        what, round, mb, mb / seconds, ms_of(cut - start), ms_of(end - cut), alone, during,
        100 * during / alone, ms_of(longest_alone), ms_of(b->longest_ns));
    (void)fflush(stdout);
}

static void open_bench(bench *b, const char *dir)
{
    bd_err err = BD_ERR_INIT;
    Braid__V1__TableSpec m;
    char name[] = "t", opt[] = "sgd";
    op_call c = {.op = {.kind = PS_OP_TABLE}};
    ps_shard_options so = {.data_dir = dir, .n_servers = 1, .journal_cap_bytes = (size_t)8 << 30};
    must(ps_dir_make(dir, &err), &err);
    must(ps_shard_open(&so, &b->shard, &err), &err);
    must(ps_shard_start(b->shard, &err), &err);
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.dim = (uint32_t)b->dim;
    m.optimizer = opt;
    m.durability = b->journaled ? BRAID__V1__DURABILITY__DURABILITY_JOURNAL
                                : BRAID__V1__DURABILITY__DURABILITY_CHECKPOINT;
    must(ps_spec_parse(&m, &c.op.spec, &err), &err);
    call(b, &c);
    b->table = c.op.spec.id;
    b->epoch = ps_shard_job(b->shard).epoch + 1;
    op_call open = {.op = {.kind = PS_OP_OPEN, .job = {b->epoch, 1, PS_SYNC, 0, 0}}};
    call(b, &open);
}

int main(int argc, char **argv)
{
    bd_err err = BD_ERR_INIT;
    bench b = {.rows = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000,
               .dim = argc > 3 ? strtoul(argv[3], NULL, 10) : 64,
               .batch = argc > 4 ? strtoul(argv[4], NULL, 10) : 8192};
    int rounds = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 3;
    b.pause_ms = argc > 6 ? strtol(argv[6], NULL, 10) : 0;
    b.journaled = argc <= 7 || strcmp(argv[7], "checkpoint") != 0;
    if (argc < 2 || b.dim == 0 || b.batch == 0 || b.rows < b.batch) {
        (void)fprintf(stderr, "usage: bench_ckpt DIR [ROWS [DIM [BATCH [ROUNDS]]]]\n");
        return 2;
    }
    bd_log_set_level(BD_LOG_WARN);
    open_bench(&b, argv[1]);
    change_all(&b);
    for (int i = 0; i < rounds; i++) {
        save(&b, "full", i);
        (void)steps_per_s(&b, (unsigned)(b.rows / 10 / b.batch) + 1);
        save(&b, "increment", i);
    }
    must(ps_shard_stop(b.shard, &err), &err);
    ps_shard_close(b.shard);
    must(ps_dir_remove(argv[1], &err), &err);
    return 0;
}
