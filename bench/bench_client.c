/* The client's steady traffic against running servers: where a step's time goes, in medians.
 *
 *   build/bin/bench_client HOST:PORT [DIM [N_KEYS [N_TABLES]]]      (server 0; default 64 4096 1)
 *
 * Columns: prepare = dedup and partition (local); lookup = keys out, rows in; push = gradients out,
 * staged everywhere; commit = journaled and applied. Bytes: rows (lookup) and gradients (push)
 * only.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_WARM = 5, N_STEPS = 30, MAX_TABLES = 64 };
enum { PREPARE, LOOKUP, PUSH, COMMIT, N_PHASES };

typedef struct bench {
    cl_client *c;
    uint32_t dim;
    size_t n_keys, n_tables, n_rows; /* n_rows: looked up in the last step */
    cl_ids ids[MAX_TABLES];
    uint64_t *keys[MAX_TABLES];
    float *grads[MAX_TABLES];
    double seconds[N_PHASES][N_STEPS];
} bench;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        (void)fprintf(stderr, "error: %s\n", bd_err_text(err));
        _Exit(1);
    }
}

static void set_up(bench *b)
{
    bd_err err = BD_ERR_INIT;
    cl_job job = {.rank = 0, .world = 1, .consistency = CL_SYNC};
    for (size_t t = 0; t < b->n_tables; t++) {
        char name[32];
        (void)snprintf(name, sizeof name, "bench-%u-%zu", b->dim, t);
        cl_table_spec spec = {
            .name = name, .dim = b->dim, .initializer = "uniform", .optimizer = "adagrad"};
        b->ids[t] = (cl_ids){.dim = b->dim, .n_ids = b->n_keys};
        must(cl_table_create(b->c, &spec, &b->ids[t].table_id, &err), &err);
        b->keys[t] = bd_alloc(b->n_keys * sizeof(uint64_t));
        b->grads[t] = bd_calloc(b->n_keys * b->dim, sizeof(float));
        if (b->keys[t] == NULL || b->grads[t] == NULL) {
            must(bd_err_set(&err, BD_E_NOMEM, "buffers"), &err);
        }
        b->ids[t].ids = b->keys[t];
    }
    must(cl_job_next_epoch(b->c, &job.epoch, &err), &err);
    must(cl_job_open(b->c, &job, NULL, 1, &err), &err);
    cl_job_join(b->c, &job);
}

static double lap(int64_t *since_ns)
{
    int64_t now = bd_mono_ns();
    double s = (double)(now - *since_ns) * 1e-9;
    *since_ns = now;
    return s;
}

static void run_step(bench *b, uint64_t step)
{
    bd_err err = BD_ERR_INIT;
    cl_rows *r = NULL;
    double s[N_PHASES];
    for (size_t t = 0; t < b->n_tables; t++) {
        for (size_t i = 0; i < b->n_keys; i++) {
            b->keys[t][i] = bd_mix64(bd_rand_u64(1, step * MAX_TABLES + t, i) % 1000000);
        }
    }
    int64_t at = bd_mono_ns();
    must(cl_rows_prepare(b->c, b->ids, b->n_tables, &r, &err), &err);
    s[PREPARE] = lap(&at);
    must(cl_rows_fetch(r, step - 1, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    s[LOOKUP] = lap(&at);
    must(cl_push_start(b->c, step, r, b->grads, &err), &err);
    must(cl_push_wait(b->c, &err), &err);
    s[PUSH] = lap(&at);
    must(cl_commit(b->c, step, true, 1.0, &err), &err);
    s[COMMIT] = lap(&at);
    b->n_rows = 0;
    for (size_t t = 0; t < b->n_tables; t++) {
        b->n_rows += cl_rows_table(r, t)->n_unique;
    }
    cl_rows_free(r);
    for (int p = 0; step > N_WARM && p < N_PHASES; p++) {
        b->seconds[p][step - N_WARM - 1] = s[p];
    }
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print(bench *b)
{
    static const char *const names[] = {"prepare", "lookup", "push", "commit"};
    double mib = (double)b->n_rows * b->dim * sizeof(float) / (1 << 20);
    (void)printf("%zu tables x %zu keys, dim %u: %zu distinct rows, %.2f MiB\n", b->n_tables,
                 b->n_keys, b->dim, b->n_rows, mib);
    for (int p = 0; p < N_PHASES; p++) {
        qsort(b->seconds[p], N_STEPS, sizeof(double), by_value);
        double s = b->seconds[p][N_STEPS / 2];
        (void)printf("  %-8s %9.3f ms %9.3f M rows/s", names[p], s * 1e3,
                     (double)b->n_rows / s * 1e-6);
        (void)printf(p == LOOKUP || p == PUSH ? " %9.0f MiB/s\n" : "\n", mib / s);
    }
}

int main(int argc, char **argv)
{
    static bench b = {.dim = 64, .n_keys = 4096, .n_tables = 1};
    bd_err err = BD_ERR_INIT;
    rpc_env *env = NULL;
    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s HOST:PORT [DIM [N_KEYS [N_TABLES]]]\n", argv[0]);
        return 2;
    }
    b.dim = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : b.dim;
    b.n_keys = argc > 3 ? strtoul(argv[3], NULL, 10) : b.n_keys;
    b.n_tables = argc > 4 ? strtoul(argv[4], NULL, 10) : b.n_tables;
    if (b.dim == 0 || b.n_keys == 0 || b.n_tables == 0 || b.n_tables > MAX_TABLES) {
        (void)fprintf(stderr, "error: dim, keys and tables (up to %d) start at 1\n", MAX_TABLES);
        return 2;
    }
    cl_options opt = {.coordinator = argv[1], .name = "bench"};
    must(rpc_env_new(NULL, &env, &err), &err);
    must(cl_client_new(env, &opt, &b.c, &err), &err);
    set_up(&b);
    for (uint64_t step = 1; step <= N_WARM + N_STEPS; step++) {
        run_step(&b, step);
    }
    print(&b);
    for (size_t t = 0; t < b.n_tables; t++) {
        bd_free(b.keys[t]);
        bd_free(b.grads[t]);
    }
    cl_client_free(b.c);
    rpc_env_free(env);
    return 0;
}
