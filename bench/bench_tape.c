/* bench_tape - where the time of a DLRM step goes inside one process, without data and servers.
 *
 * Model: 26 tables x dim 16, bottom 13-512-256-64-16, top 512-256-1, one id per field, Adagrad.
 * usage: bench_tape [batch [steps [threads]]]      (default 2048 30 1)
 * Prints the median step, samples per second, and per kernel (gemm: per shape) calls, time per step
 * and GFLOP/s. `bound` is the time of the matrix products alone. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "tape/kernels.h"
#include "worker/wk_dense_optim.h"
#include "worker/wk_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_FIELDS = 26, N_DENSE = 13, DIM = 16, TABLE_ROWS = 100000, MAX_LINES = 64 };

/* ---- timed kernels ---- */

typedef struct line {
    char name[64];
    int64_t ns;
    long calls;
    double flops;
} line;

static line lines[MAX_LINES];
static size_t n_lines;
static const tp_ops *real_ops;

static int64_t now_ns(void)
{
    return bd_mono_ns();
}

static void charge(const char *name, int64_t since, double flops)
{
    int64_t ns = now_ns() - since;
    size_t i = 0;
    while (i < n_lines && strcmp(lines[i].name, name) != 0) {
        i++;
    }
    if (i == n_lines && n_lines < MAX_LINES) {
        (void)snprintf(lines[n_lines++].name, sizeof(lines[0].name), "%s", name);
    }
    if (i < n_lines) {
        lines[i].ns += ns;
        lines[i].calls++;
        lines[i].flops += flops;
    }
}

static void timed_gemm(tp_device *dev, const tp_gemm_args *g)
{
    char name[64];
    int64_t t0 = now_ns();
    real_ops->gemm(dev, g);
    (void)snprintf(name, sizeof(name), "gemm %s%s %zu x %zu x %zu", g->trans_a ? "T" : "N",
                   g->trans_b ? "T" : "N", g->m, g->n, g->k);
    charge(name, t0, 2.0 * (double)g->m * (double)g->n * (double)g->k);
}

#define TIMED(kernel, params, args)   \
    static void timed_##kernel params \
    {                                 \
        int64_t t0 = now_ns();        \
        real_ops->kernel args;        \
        charge(#kernel, t0, 0);       \
    }

TIMED(bias_act, (tp_device * dev, float *y, const float *b, size_t n, size_t c, tp_act act),
      (dev, y, b, n, c, act))
TIMED(bias_act_grad,
      (tp_device * dev, float *g, const float *y, float *db, size_t n, size_t c, tp_act act),
      (dev, g, y, db, n, c, act))
TIMED(dot_interact,
      (tp_device * dev, const float *const *feats, size_t nf, size_t n, size_t d, float *y),
      (dev, feats, nf, n, d, y))
TIMED(dot_interact_grad,
      (tp_device * dev, const float *const *feats, const float *dy, float *const *df,
       const float *betas, size_t nf, size_t n, size_t d),
      (dev, feats, dy, df, betas, nf, n, d))
TIMED(bag, (tp_device * dev, const tp_bag_args *a, const float *rows, float *y), (dev, a, rows, y))
TIMED(bag_grad,
      (tp_device * dev, const tp_bag_args *a, const float *rows, const float *dy, float beta,
       float *drows),
      (dev, a, rows, dy, beta, drows))
TIMED(bce,
      (tp_device * dev, const float *x, const float *t, size_t n, float f, float *dx, float *l,
       double *s),
      (dev, x, t, n, f, dx, l, s))
TIMED(loss_grad,
      (tp_device * dev, const float *u, const float *s, float f, float beta, float *dx, size_t n),
      (dev, u, s, f, beta, dx, n))
TIMED(zero, (tp_device * dev, void *dst, size_t n_bytes), (dev, dst, n_bytes))

/* ---- the model ---- */

typedef struct bench {
    size_t batch_size, n_steps;
    tp_device *dev;
    tp_tape *tape;
    wk_model *model;
    wk_dense_optim *optim;
    wk_batch batch;
    wk_field_ids fields[N_FIELDS];
    float *rows[N_FIELDS], *grads[N_FIELDS];
    uint32_t *index[N_FIELDS], *offsets;
    size_t n_unique[N_FIELDS];
    int64_t forward_ns, backward_ns, optim_ns;
} bench;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        (void)fprintf(stderr, "error: %s\n", bd_err_text(err));
        _exit(1);
    }
}

static void *room(size_t n, size_t size)
{
    void *p = bd_alloc_aligned(64, n * size);
    if (p == NULL) {
        must(BD_E_NOMEM, NULL);
        _exit(1);
    }
    memset(p, 0, n * size);
    return p;
}

/* Unique rows in order of first use, as the client's dedup gives them. */
static void fill_field(bench *b, size_t f)
{
    uint32_t *row_of = room(TABLE_ROWS, sizeof(uint32_t));
    size_t n_unique = 0;
    b->index[f] = room(b->batch_size, sizeof(uint32_t));
    for (size_t i = 0; i < b->batch_size; i++) {
        size_t id = (size_t)(bd_rand_u64(1, f, i) % TABLE_ROWS);
        if (row_of[id] == 0) {
            row_of[id] = (uint32_t)++n_unique;
        }
        b->index[f][i] = row_of[id] - 1;
    }
    bd_free(row_of);
    b->n_unique[f] = n_unique;
    b->rows[f] = room(n_unique * DIM, sizeof(float));
    b->grads[f] = room(n_unique * DIM, sizeof(float));
    bd_rand_uniform(2, f, 0, -0.25f, 0.25f, b->rows[f], n_unique * DIM);
    b->fields[f] = (wk_field_ids){.offsets = b->offsets, .n_ids = b->batch_size};
}

static void fill_batch(bench *b)
{
    size_t n = b->batch_size;
    b->offsets = room(n + 1, sizeof(uint32_t));
    for (size_t i = 0; i <= n; i++) {
        b->offsets[i] = (uint32_t)i;
    }
    b->batch = (wk_batch){.n = n,
                          .n_global = n,
                          .labels = room(n, sizeof(float)),
                          .dense = room(n * N_DENSE, sizeof(float)),
                          .sample_idx = room(n, sizeof(uint64_t)),
                          .n_dense = N_DENSE,
                          .fields = b->fields,
                          .n_fields = N_FIELDS};
    bd_rand_uniform(3, 0, 0, 0, 1, b->batch.dense, n * N_DENSE);
    for (size_t i = 0; i < n; i++) {
        b->batch.labels[i] = (float)(bd_rand_u64(4, 0, i) & 1u);
    }
    for (size_t f = 0; f < N_FIELDS; f++) {
        fill_field(b, f);
    }
}

static void open_bench(bench *b, int n_threads)
{
    static char names[N_FIELDS][8];
    static const char *name_list[N_FIELDS];
    static const size_t bottom[] = {512, 256, 64, 16}, top[] = {512, 256};
    static bool multi[N_FIELDS];
    bd_err err = BD_ERR_INIT;
    wk_model_config cfg = {.kind = "dlrm", .dim = DIM, .n_bottom = 4, .n_top = 2, .seed = 1};
    memcpy(cfg.bottom, bottom, sizeof(bottom));
    memcpy(cfg.top, top, sizeof(top));
    for (size_t f = 0; f < N_FIELDS; f++) {
        (void)snprintf(names[f], sizeof(names[f]), "c%zu", f);
        name_list[f] = names[f];
    }
    wk_model_inputs in = {
        .n_dense = N_DENSE, .n_fields = N_FIELDS, .field_names = name_list, .field_multi = multi};
    must(tp_device_new_cpu(n_threads, &b->dev, &err), &err);
    must(tp_tape_new(b->dev, &b->tape, &err), &err);
    must(wk_model_new(&cfg, &in, b->dev, &b->model, &err), &err);
    size_t n_params;
    const wk_model_param *p = wk_model_params(b->model, &n_params);
    wk_dense_optim_config ocfg = {.optimizer = "adagrad"};
    must(wk_dense_optim_new(p, n_params, &ocfg, &b->optim, &err), &err);
    fill_batch(b);
}

static void one_step(bench *b)
{
    bd_err err = BD_ERR_INIT;
    wk_model_rows rows[N_FIELDS] = {0};
    wk_model_mode mode = {.train = true};
    tp_tensor *logits = NULL, *loss = NULL;
    tp_tape_reset(b->tape);
    int64_t t0 = now_ns();
    for (size_t f = 0; f < N_FIELDS; f++) {
        rows[f].index = b->index[f];
        must(tp_tape_wrap(b->tape, 2, (const size_t[]){b->n_unique[f], DIM}, b->rows[f], true,
                          b->grads[f], &rows[f].rows, &err),
             &err);
    }
    must(wk_model_forward(b->model, b->tape, &b->batch, rows, &mode, &logits, &err), &err);
    must(tp_bce_logits(b->tape, logits, b->batch.labels, 1.0f / (float)b->batch.n, &loss, NULL,
                       &err),
         &err);
    int64_t t1 = now_ns();
    wk_dense_optim_zero_grad(b->optim);
    must(tp_backward(b->tape, loss, NULL, &err), &err);
    int64_t t2 = now_ns();
    must(wk_dense_optim_step(b->optim, 0.01f, 1, NULL, &err), &err);
    int64_t t3 = now_ns();
    b->forward_ns += t1 - t0;
    b->backward_ns += t2 - t1;
    b->optim_ns += t3 - t2;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    return by_value(&((const line *)b)->ns, &((const line *)a)->ns);
}

static void report(bench *b, int64_t median_ns)
{
    double steps = (double)b->n_steps, bound = 0, kernels = 0;
    qsort(lines, n_lines, sizeof(lines[0]), by_time);
    printf("%-28s %8s %10s %9s\n", "kernel", "calls", "ms/step", "GFLOP/s");
    for (size_t i = 0; i < n_lines; i++) {
        double ms = (double)lines[i].ns / steps / 1e6;
        printf("%-28s %8.1f %10.3f", lines[i].name, (double)lines[i].calls / steps, ms);
        if (lines[i].flops > 0) {
            printf(" %9.1f", lines[i].flops / (double)lines[i].ns);
            bound += ms;
        }
        printf("\n");
        kernels += ms;
    }
    printf("forward %.2f ms, backward %.2f ms, optimiser %.2f ms, outside kernels %.2f ms\n",
           (double)b->forward_ns / steps / 1e6, (double)b->backward_ns / steps / 1e6,
           (double)b->optim_ns / steps / 1e6,
           (double)(b->forward_ns + b->backward_ns) / steps / 1e6 - kernels);
    double per_s = (double)b->batch_size / ((double)median_ns / 1e9);
    printf("median step %.2f ms: %.0f samples/s; matrix products alone %.2f ms: %.0f samples/s "
           "(%.0f %%)\n",
           (double)median_ns / 1e6, per_s, bound, (double)b->batch_size / bound * 1e3,
           100 * per_s * bound / 1e3 / (double)b->batch_size);
}

int main(int argc, char **argv)
{
    static bench b;
    b.batch_size = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 2048;
    b.n_steps = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 30;
    int n_threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1;
    if (b.batch_size == 0 || b.n_steps == 0) {
        (void)fprintf(stderr, "usage: bench_tape [batch [steps [threads]]]\n");
        return 2;
    }
    open_bench(&b, n_threads);
    for (int i = 0; i < 3; i++) {
        one_step(&b);
    }
    b.forward_ns = b.backward_ns = b.optim_ns = 0;
    tp_ops timed = *b.dev->ops;
    real_ops = b.dev->ops;
    timed.gemm = timed_gemm;
    timed.bias_act = timed_bias_act;
    timed.bias_act_grad = timed_bias_act_grad;
    timed.dot_interact = timed_dot_interact;
    timed.dot_interact_grad = timed_dot_interact_grad;
    timed.bag = timed_bag;
    timed.bag_grad = timed_bag_grad;
    timed.bce = timed_bce;
    timed.loss_grad = timed_loss_grad;
    timed.zero = timed_zero;
    b.dev->ops = &timed;
    int64_t *step_ns = room(b.n_steps, sizeof(int64_t));
    for (size_t i = 0; i < b.n_steps; i++) {
        int64_t t0 = now_ns();
        one_step(&b);
        step_ns[i] = now_ns() - t0;
    }
    qsort(step_ns, b.n_steps, sizeof(*step_ns), by_value);
    report(&b, step_ns[b.n_steps / 2]);
    return 0;
}
