/* One client of `braid bench ps`: fills the table, checks values, runs the timed batches. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/num/row_codec.h"
#include "base/rand.h"

#include "cli/cli_bench_keys.h"
#include "cli/cli_bench_ps.h"
#include "client/client.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#define FILL_BYTES   ((size_t)8 << 20) /* rows assigned at once */
#define POOL_KEYS    ((size_t)1 << 22) /* keys drawn before the clock starts, for each second */
#define POOL_BATCHES 256u              /* at most, for each second */
#define POOL_SECONDS 8u                /* a longer run draws no more: then batches come again */
#define WARM_SHARE   0.25              /* of the timed length, before it */
#define GRADIENT     0.0009765625f
#define MEET_POLL_NS 200000

typedef struct client {
    const bench_ps *b;
    const bench_ps_flags *f;
    int rank;
    rpc_env *env;
    cl_client *c;
    cl_job job;
    uint32_t table_id;
    uint32_t n_met;                   /* meetings so far */
    uint64_t step;                    /* last one */
    bool is_sync, is_push, is_lookup; /* of the job and the op */
    uint64_t *pool;                   /* owned: batches one after the other */
    size_t n_pool;                    /* batches in it */
    uint64_t at;                      /* next batch */
    float *grads;                     /* owned, [max_keys x dim] */
} client;

/* ---- meeting the others ---- */
static bd_status meet(client *k, bd_err *err)
{
    bench_ps_shared *s = k->b->shared;
    const struct timespec pause = {.tv_nsec = MEET_POLL_NS};
    uint32_t want = ++k->n_met * (uint32_t)k->f->clients;
    (void)atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) < want) {
        if (atomic_load(&s->failed) != 0) {
            return bd_err_set(err, BD_E_CANCELLED, "another client failed");
        }
        (void)nanosleep(&pause, NULL);
    }
    return BD_OK;
}

/* ---- the table ---- */
/* What element e of a filled row is: a whole number, exact in every dtype but i8. */
static float value_of(uint64_t key, size_t e)
{
    return (float)((int)(bd_mix64(key + e) & 0xff) - 128);
}

static bd_status create_table(client *k, bd_err *err)
{
    cl_table_spec spec = {.name = k->b->table,
                          .dim = (uint32_t)k->f->dim,
                          .dtype = k->f->dtype,
                          .initializer = "uniform",
                          .optimizer = k->f->optimizer,
                          .durability = k->f->durability};
    return cl_table_create(k->c, &spec, &k->table_id, err);
}

static bd_status fill_table(client *k, bd_err *err)
{
    size_t dim = (size_t)k->f->dim;
    uint64_t n_rows = (uint64_t)k->f->rows;
    size_t chunk = FILL_BYTES / (dim * sizeof(float));
    chunk = chunk < 1 ? 1 : chunk > n_rows ? (size_t)n_rows : chunk;
    uint64_t *keys = bd_alloc(chunk * sizeof *keys);
    float *rows = bd_alloc(chunk * dim * sizeof *rows);
    bd_status rc = keys != NULL && rows != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "fill");
    for (uint64_t first = 0; keys != NULL && rows != NULL && rc == BD_OK && first < n_rows;
         first += chunk) {
        size_t n = n_rows - first < chunk ? (size_t)(n_rows - first) : chunk;
        for (size_t i = 0; i < n; i++) {
            keys[i] = cli_bench_key(first + i);
            for (size_t e = 0; e < dim; e++) {
                rows[i * dim + e] = value_of(keys[i], e);
            }
        }
        rc = cl_assign(k->c, k->table_id, (uint32_t)dim, keys, rows, NULL, n, err);
    }
    bd_free(keys);
    bd_free(rows);
    return rc;
}

/* The first client makes table and job; the others come to them. */
static bd_status set_up(client *k, bd_err *err)
{
    bench_ps_shared *s = k->b->shared;
    cl_options opt = {.coordinator = k->b->coordinator,
                      .name = "bench",
                      .wire_rows = k->f->wire_rows,
                      .wire_grads = k->f->wire_grads,
                      .wire_codec = k->f->codec};
    rpc_env_options env = {.spin_us = (int)k->f->spin_us};
    bd_status rc = rpc_env_new(&env, &k->env, err);
    if (rc == BD_OK) {
        rc = cl_client_new(k->env, &opt, &k->c, err);
    }
    k->job = (cl_job){.rank = k->rank,
                      .world = (int)k->f->clients,
                      .consistency = k->is_sync ? CL_SYNC : CL_ASYNC};
    if (rc == BD_OK && k->rank == 0) {
        rc = create_table(k, err);
        if (rc == BD_OK) {
            rc = fill_table(k, err);
        }
        if (rc == BD_OK) {
            rc = cl_job_next_epoch(k->c, &k->job.epoch, err);
        }
        if (rc == BD_OK) {
            rc = cl_job_open(k->c, &k->job, NULL, 1, err);
        }
        atomic_store(&s->table_id, k->table_id);
        atomic_store(&s->epoch, k->job.epoch);
    }
    if (rc == BD_OK) {
        rc = meet(k, err);
    }
    if (rc == BD_OK) {
        k->table_id = atomic_load(&s->table_id);
        k->job.epoch = atomic_load(&s->epoch);
        cl_job_join(k->c, &k->job);
    }
    return rc;
}

/* ---- batches ---- */
static bd_status prepare(client *k, const uint64_t *ids, size_t n, cl_rows **out, bd_err *err)
{
    cl_ids t = {.table_id = k->table_id, .dim = (uint32_t)k->f->dim, .ids = ids, .n_ids = n};
    return cl_rows_prepare(k->c, &t, 1, out, err);
}

static bd_status look_up(client *k, const uint64_t *ids, size_t n, cl_rows **out, bd_err *err)
{
    bd_status rc = prepare(k, ids, n, out, err);
    if (rc == BD_OK) {
        rc = cl_rows_fetch(*out, k->is_sync ? k->step : 0, err);
    }
    return rc == BD_OK ? cl_rows_wait(*out, err) : rc;
}

/* Pushes grads for the rows of r, to the point where they are applied. */
static bd_status push(client *k, const cl_rows *r, const float *grads, bd_err *err)
{
    float *list[1] = {bd_unconst(grads)};
    bd_status rc = cl_push_start(k->c, ++k->step, r, list, err);
    if (rc == BD_OK) {
        rc = cl_push_wait(k->c, err);
    }
    return rc == BD_OK && k->is_sync ? cl_commit(k->c, k->step, true, 1.0, err) : rc;
}

/* ---- checks ---- */
static bd_status differs(uint64_t key, size_t e, float got, float want, const char *what,
                         bd_err *err)
{
    return bd_err_set(err, BD_E_INTERNAL, "%s: key %" PRIu64 " element %zu is %g, not %g", what,
                      key, e, (double)got, (double)want);
}

/* What a number stored or sent as dtype may be off by, relative to the largest of its row. */
static double slack_of(const char *dtype)
{
    return strcmp(dtype, "f32") == 0    ? 0
           : strcmp(dtype, "f16") == 0  ? 0x1p-10
           : strcmp(dtype, "bf16") == 0 ? 0x1p-7
                                        : 0x1p-6;
}

/* A gradient that is off moves the row by the step it takes at most, and both rows travelled. */
static double slack(const client *k)
{
    return slack_of(k->f->dtype) + slack_of(k->f->wire_grads) + 2 * slack_of(k->f->wire_rows);
}

/* The rows of a filled table, asked for with repeats. */
static bd_status check_lookup(client *k, const uint64_t *ids, size_t n, bd_err *err)
{
    cl_rows *r = NULL;
    size_t dim = (size_t)k->f->dim;
    /* whole numbers up to 128 are exact but in i8, whose step is up to 128 / 127 */
    double off = strcmp(k->f->dtype, "i8") == 0 || strcmp(k->f->wire_rows, "i8") == 0 ? 1.5 : 0.0;
    bd_status rc = look_up(k, ids, n, &r, err);
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        const cl_table_rows *t = cl_rows_table(r, 0);
        const float *row = t->rows + t->index[i] * dim;
        for (size_t e = 0; rc == BD_OK && e < dim; e++) {
            float want = value_of(ids[i], e);
            if (!(fabs((double)row[e] - (double)want) <= off)) {
                rc = differs(ids[i], e, row[e], want, "lookup", err);
            }
        }
    }
    cl_rows_free(r);
    return rc;
}

/* One row after one push, as this process computes it. before[dim] becomes after. */
static bd_status step_row(const client *k, float *w, float *scratch, const float *g, bd_err *err)
{
    const num_optim *opt = num_optim_find(k->f->optimizer);
    float hyper[NUM_OPTIM_MAX_HYPER];
    size_t dim = (size_t)k->f->dim;
    if (opt == NULL) {
        return bd_err_set(err, BD_E_USAGE, "bench: optimizer \"%.64s\" is unknown",
                          k->f->optimizer);
    }
    bd_status rc = num_optim_hyper(opt, NULL, NULL, 0, hyper, err);
    float *state = bd_calloc(opt->state_elems(dim) + 1, sizeof *state);
    if (rc == BD_OK && state == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "check");
    }
    if (rc == BD_OK) {
        opt->init(hyper, state, dim);
        num_optim_apply(opt, hyper, w, state, g, dim, scratch);
    }
    bd_free(state);
    return rc;
}

static bd_status compare_pushed(const client *k, const cl_table_rows *before,
                                const cl_table_rows *after, float *w, bd_err *err)
{
    size_t dim = (size_t)k->f->dim;
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < before->n_unique; i++) {
        double top = 0;
        memcpy(w, before->rows + i * dim, dim * sizeof *w);
        rc = step_row(k, w, w + dim, k->grads + i * dim, err);
        for (size_t e = 0; e < dim; e++) {
            top = fmax(top, fabs((double)w[e]));
        }
        for (size_t e = 0; rc == BD_OK && e < dim; e++) {
            float got = after->rows[i * dim + e];
            if (!(fabs((double)got - (double)w[e]) <= top * slack(k))) {
                rc = differs(before->keys[i], e, got, w[e], "push", err);
            }
        }
    }
    return rc;
}

/* Rows that nobody has touched: before, one push, after. In sync every rank takes part, the others
 * with nothing. */
static bd_status check_push(client *k, size_t size_idx, bd_err *err)
{
    size_t n = k->rank == 0 ? (k->b->sizes[size_idx] < 512 ? k->b->sizes[size_idx] : 512) : 0;
    uint64_t first = (uint64_t)k->f->rows + size_idx * 512, ids[512];
    float *w = bd_alloc(2 * (size_t)k->f->dim * sizeof *w);
    cl_rows *before = NULL, *after = NULL;
    for (size_t i = 0; i < n; i++) {
        ids[i] = cli_bench_key(first + i);
    }
    bd_status rc = w != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "check");
    if (rc == BD_OK && (n > 0 || k->is_sync)) {
        rc = look_up(k, ids, n, &before, err);
        rc = rc == BD_OK ? push(k, before, k->grads, err) : rc;
        rc = rc == BD_OK ? look_up(k, ids, n, &after, err) : rc;
    }
    if (rc == BD_OK && n > 0) {
        rc = compare_pushed(k, cl_rows_table(before, 0), cl_rows_table(after, 0), w, err);
    }
    cl_rows_free(before);
    cl_rows_free(after);
    bd_free(w);
    return rc;
}

/* ---- timed work ---- */
static const uint64_t *next_ids(client *k, size_t n)
{
    return k->pool + (k->at++ % k->n_pool) * n;
}

/* Batches that come again soon would be found in any cache: a table that is larger than memory
 * would look smaller than it is. */
static size_t pool_seconds(const client *k)
{
    double s = k->f->seconds;
    return s < 1 ? 1 : s > POOL_SECONDS ? POOL_SECONDS : (size_t)s;
}

static size_t pool_keys(const client *k)
{
    size_t keys = POOL_KEYS * pool_seconds(k);
    return keys > k->b->max_keys ? keys : k->b->max_keys;
}

static void draw_pool(client *k, size_t n)
{
    cli_bench_keys keys;
    bool is_zipf = strcmp(k->f->dist, "zipf") == 0;
    cli_bench_keys_init(&keys, (uint64_t)k->f->rows, is_zipf ? k->f->zipf : 0);
    size_t most = POOL_BATCHES * pool_seconds(k), fit = pool_keys(k) / n;
    k->n_pool = fit < 1 ? 1 : fit < most ? fit : most;
    for (size_t i = 0; i < k->n_pool * n; i++) {
        k->pool[i] = cli_bench_key(cli_bench_keys_row(&keys, (uint64_t)k->rank, i));
    }
}

/* Lookups in flight, oldest first. */
typedef struct flight {
    cl_rows *rows[16];
    int64_t start_ns[16];
    size_t n;
} flight;

static bd_status launch(client *k, flight *fl, size_t n_keys, bd_err *err)
{
    cl_rows *r = NULL;
    int64_t start = bd_mono_ns();
    bd_status rc = prepare(k, next_ids(k, n_keys), n_keys, &r, err);
    if (rc == BD_OK && k->is_lookup) {
        rc = cl_rows_fetch(r, k->is_sync ? k->step : 0, err);
    }
    if (rc != BD_OK) {
        cl_rows_free(r);
        return rc;
    }
    fl->rows[fl->n] = r;
    fl->start_ns[fl->n++] = start;
    return BD_OK;
}

/* Finishes the oldest. */
static bd_status land(client *k, flight *fl, size_t *n_rows, int64_t *start_ns, bd_err *err)
{
    cl_rows *r = fl->rows[0];
    bd_status rc = k->is_lookup ? cl_rows_wait(r, err) : BD_OK;
    *n_rows = cl_rows_table(r, 0)->n_unique;
    *start_ns = fl->start_ns[0];
    if (rc == BD_OK && k->is_push) {
        rc = push(k, r, k->grads, err);
        *n_rows *= k->is_lookup ? 2 : 1; /* each row went both ways */
    }
    cl_rows_free(r);
    fl->n--;
    memmove(fl->rows, fl->rows + 1, fl->n * sizeof(void *));
    memmove(fl->start_ns, fl->start_ns + 1, fl->n * sizeof fl->start_ns[0]);
    return rc;
}

/* Until `seconds` have passed, or n_steps batches when that is not 0. */
static bd_status run_batches(client *k, size_t n_keys, double seconds, uint64_t n_steps,
                             bench_ps_result *out, bd_err *err)
{
    flight fl = {.n = 0};
    bd_status rc = BD_OK;
    int64_t start = bd_mono_ns(), end = start + (int64_t)(seconds * 1e9), now = start;
    uint64_t n_started = 0, n_done = 0;
    out->rows = 0;
    out->n_samples = 0;
    for (;;) {
        bool more = n_steps > 0 ? n_started < n_steps : now < end;
        while (rc == BD_OK && more && fl.n < (size_t)k->f->depth) {
            rc = launch(k, &fl, n_keys, err);
            n_started++;
            more = n_steps == 0 || n_started < n_steps;
        }
        if (rc != BD_OK || fl.n == 0) {
            break;
        }
        size_t n_rows = 0;
        int64_t began = 0;
        rc = land(k, &fl, &n_rows, &began, err);
        now = bd_mono_ns();
        out->rows += n_rows;
        /* the newest ones fill the ring */
        out->us[n_done % BENCH_PS_MAX_SAMPLES] = (float)((double)(now - began) * 1e-3);
        n_done++;
    }
    out->n_samples = (uint32_t)(n_done < BENCH_PS_MAX_SAMPLES ? n_done : BENCH_PS_MAX_SAMPLES);
    out->seconds = (double)(now - start) * 1e-9;
    for (size_t i = 0; i < fl.n; i++) { /* after a failure */
        cl_rows_free(fl.rows[i]);
    }
    return rc;
}

/* Sync: all ranks must do the same number of steps, so the first one says how many. */
static bd_status agree_steps(client *k, size_t n_keys, bench_ps_result *out, uint64_t *n_steps,
                             bd_err *err)
{
    enum { TRIAL = 8 };
    *n_steps = 0;
    if (!k->is_sync || !k->is_push) {
        return run_batches(k, n_keys, k->f->seconds * WARM_SHARE, 0, out, err);
    }
    bd_status rc = run_batches(k, n_keys, 0, TRIAL, out, err);
    if (rc == BD_OK && k->rank == 0) {
        double n = k->f->seconds * TRIAL / (out->seconds > 0 ? out->seconds : 1e-6);
        atomic_store(&k->b->shared->n_steps, n < 1 ? 1 : (uint64_t)n);
    }
    if (rc == BD_OK) {
        rc = meet(k, err);
    }
    *n_steps = atomic_load(&k->b->shared->n_steps);
    return rc;
}

static bd_status run_size(client *k, size_t size_idx, bd_err *err)
{
    size_t n_keys = k->b->sizes[size_idx];
    bench_ps_result *out = &k->b->shared->results[k->rank];
    uint64_t n_steps = 0;
    draw_pool(k, n_keys);
    bd_status rc = BD_OK;
    if (size_idx == 0 || !k->is_push) { /* pushes change the rows */
        rc = check_lookup(k, k->pool, n_keys, err);
    }
    if (rc == BD_OK) {
        rc = meet(k, err);
    }
    if (rc == BD_OK && k->is_push) {
        rc = check_push(k, size_idx, err);
        rc = rc == BD_OK ? meet(k, err) : rc;
    }
    if (rc == BD_OK) {
        rc = agree_steps(k, n_keys, out, &n_steps, err);
    }
    if (rc == BD_OK) {
        rc = meet(k, err);
    }
    if (rc == BD_OK) {
        rc = run_batches(k, n_keys, k->f->seconds, n_steps, out, err);
    }
    if (rc == BD_OK) {
        rc = meet(k, err);
    }
    if (rc == BD_OK && k->rank == 0) {
        rc = bench_ps_report(k->b, n_keys, err);
    }
    return rc == BD_OK ? meet(k, err) : rc; /* nobody writes results that are being read */
}

static bd_status allocate(client *k, bd_err *err)
{
    size_t pool = pool_keys(k), n = 0;
    if (!bd_mul_size(k->b->max_keys > 512 ? k->b->max_keys : 512, (size_t)k->f->dim, &n)) {
        return bd_err_set(err, BD_E_INVALID, "bench: too many numbers in a batch");
    }
    k->pool = bd_alloc(pool * sizeof *k->pool);
    k->grads = bd_alloc(n * sizeof *k->grads);
    if (k->pool == NULL || k->grads == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "bench");
    }
    for (size_t i = 0; i < n; i++) {
        k->grads[i] = i % 3 == 0 ? GRADIENT : -GRADIENT;
    }
    return BD_OK;
}

bd_status bench_ps_client_run(const bench_ps *b, int rank, bd_err *err)
{
    client k = {.b = b,
                .f = b->flags,
                .rank = rank,
                .is_sync = strcmp(b->flags->consistency, "sync") == 0,
                .is_push = strcmp(b->flags->op, "lookup") != 0,
                .is_lookup = strcmp(b->flags->op, "push") != 0};
    bd_status rc = allocate(&k, err);
    if (rc == BD_OK) {
        rc = set_up(&k, err);
    }
    for (size_t i = 0; rc == BD_OK && i < b->n_sizes; i++) {
        rc = run_size(&k, i, err);
    }
    cl_client_free(k.c);
    if (k.env != NULL) {
        rpc_env_free(k.env);
    }
    bd_free(k.pool);
    bd_free(k.grads);
    return rc;
}
