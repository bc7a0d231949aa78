/* Every kind of model: what it declares, its gradients, that it learns, empty batches, bad configs.
 */
#include "base/fault.h"
#include "base/mem.h"
#include "base/num/vec.h"
#include "base/rand.h"

#include "tape/ops.h"
#include "worker/wk_dense_optim.h"
#include "worker/wk_model.h"

#include "tests/util/tape_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define N          ((size_t)24)
#define N_DENSE    ((size_t)3)
#define N_FIELDS   ((size_t)3)
#define DIM        ((size_t)4)
#define VOCAB      ((size_t)5)
#define MAX_TABLES ((size_t)8)
#define MAX_IDS    (3 * N)

static const char *const kind_names[] = {"dlrm", "wide_deep", "deepfm", "dcn_v2", "mlp", "mf"};
enum { N_KINDS = sizeof(kind_names) / sizeof(kind_names[0]) };

/* A model on toy data: rows live in plain arrays, one unique row per id. */
typedef struct toy {
    tp_device *dev;
    tp_tape *tape;
    wk_model *model;
    wk_batch batch;
    wk_field_ids fields[N_FIELDS];
    uint32_t offsets[N_FIELDS][N + 1];
    uint32_t index[N_FIELDS][MAX_IDS];
    uint64_t sample_idx[N];
    float labels[N], dense[N * N_DENSE];
    float rows[MAX_TABLES][VOCAB * DIM], grads[MAX_TABLES][VOCAB * DIM];
    wk_model_mode mode;
    float *sums, *sum_grads; /* borrowed [N x DIM] or NULL: the genres' embeddings come pooled */
} toy;

static const char *const field_names[] = {"user", "item", "genres"};
static const bool field_multi[] = {false, false, true};

static wk_model_config toy_config(const char *kind)
{
    wk_model_config c = {.kind = kind, .dim = DIM, .n_bottom = 2, .n_top = 2, .seed = 4};
    c.bottom[0] = 6;
    c.bottom[1] = DIM;
    c.top[0] = 12;
    c.top[1] = 8;
    return c;
}

static wk_model_inputs toy_inputs(size_t n_dense)
{
    return (wk_model_inputs){.n_dense = n_dense,
                             .n_fields = N_FIELDS,
                             .field_names = field_names,
                             .field_multi = field_multi};
}

/* Users and items one id each, genres 0 to 2 of them; labels no linear model can reach. */
static void fill_batch(toy *t, size_t n_dense)
{
    t->batch = (wk_batch){.n = N,
                          .n_global = N,
                          .sample_idx = t->sample_idx,
                          .labels = t->labels,
                          .dense = t->dense,
                          .n_dense = n_dense,
                          .fields = t->fields,
                          .n_fields = N_FIELDS};
    for (size_t f = 0; f < N_FIELDS; f++) {
        size_t at = 0;
        for (size_t i = 0; i < N; i++) {
            size_t n_ids = field_multi[f] ? i % 3 : 1;
            t->offsets[f][i] = (uint32_t)at;
            for (size_t k = 0; k < n_ids; k++) {
                t->index[f][at++] = (uint32_t)(bd_rand_u64(3, f, i * 4 + k) % VOCAB);
            }
        }
        t->offsets[f][N] = (uint32_t)at;
        t->fields[f] = (wk_field_ids){.offsets = t->offsets[f], .n_ids = at};
    }
    bd_rand_uniform(3, 9, 0, -1, 1, t->dense, N * N_DENSE);
    for (size_t i = 0; i < N; i++) {
        t->sample_idx[i] = 100 + i;
        t->labels[i] = (float)((t->index[0][i] ^ t->index[1][i]) & 1u);
    }
}

static void start_rows(toy *t)
{
    size_t n_tables;
    const wk_model_table *tables = wk_model_tables(t->model, &n_tables);
    assert_true(n_tables <= MAX_TABLES);
    for (size_t i = 0; i < n_tables; i++) {
        bd_rand_uniform(8, i, 0, tables[i].init_low - 0.1f, tables[i].init_high + 0.1f, t->rows[i],
                        VOCAB * tables[i].dim);
    }
}

static void toy_open(toy *t, const wk_model_config *cfg, size_t n_dense)
{
    bd_err err;
    wk_model_inputs in = toy_inputs(n_dense);
    *t = (toy){.mode = {.train = true}};
    assert_int_equal(tp_device_new_cpu(1, &t->dev, &err), BD_OK);
    assert_int_equal(tp_tape_new(t->dev, &t->tape, &err), BD_OK);
    if (wk_model_new(cfg, &in, t->dev, &t->model, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    fill_batch(t, n_dense);
    start_rows(t);
}

static void toy_close(toy *t)
{
    wk_model_free(t->model);
    tp_tape_free(t->tape);
    tp_device_free(t->dev);
}

static bd_status forward(toy *t, tp_tensor **logits, bd_err *err)
{
    size_t n_tables;
    const wk_model_table *tables = wk_model_tables(t->model, &n_tables);
    wk_model_rows rows[MAX_TABLES] = {0};
    tp_tape_reset(t->tape);
    for (size_t i = 0; i < n_tables; i++) {
        bool sums = t->sums != NULL && tables[i].dim == DIM && tables[i].field_idx == 2;
        rows[i].index = t->index[tables[i].field_idx];
        rows[i].pooled = sums;
        bd_status rc = tp_tape_wrap(t->tape, 2, (size_t[]){sums ? N : VOCAB, tables[i].dim},
                                    sums ? t->sums : t->rows[i], true,
                                    sums ? t->sum_grads : t->grads[i], &rows[i].rows, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    return wk_model_forward(t->model, t->tape, &t->batch, rows, &t->mode, logits, err);
}

/* Mean loss; with `grads`, gradients of everything too. */
static double loss_of(toy *t, bool grads)
{
    bd_err err = BD_ERR_INIT;
    tp_tensor *logits = NULL, *loss = NULL, *sum = NULL;
    bd_status rc = forward(t, &logits, &err);
    if (rc == BD_OK) {
        float factor = 1.0f / (float)t->batch.n_global;
        rc = tp_bce_logits(t->tape, logits, t->labels, factor, &loss, &sum, &err);
    }
    if (rc == BD_OK && grads) {
        size_t n;
        const wk_model_param *p = wk_model_params(t->model, &n);
        for (size_t i = 0; i < n; i++) {
            tp_tensor_zero_grad(p[i].value);
        }
        memset(t->grads, 0, sizeof(t->grads));
        rc = tp_backward(t->tape, loss, NULL, &err);
    }
    if (rc != BD_OK) {
        fail_msg("%s", err.text);
    }
    return *(const double *)(const void *)tc_read(sum) / (double)t->batch.n_global;
}

/* ---- what models declare ---- */

static void dlrm_declares_its_parameters(void **state)
{
    (void)state;
    static toy t;
    wk_model_config c = toy_config("dlrm");
    c.batch_norm = true;
    c.n_top = 1;
    toy_open(&t, &c, N_DENSE);
    static const struct {
        const char *name;
        size_t n_elems;
        bool grad, decay;
    } want[] = {
        {"bottom.0.weight", 18, true, true}, {"bottom.0.bias", 6, true, false},
        {"bottom.1.weight", 24, true, true}, {"bottom.1.bias", 4, true, false},
        {"top.0.weight", 120, true, true}, /* 12 x (4 and 6 pairs) */
        {"top.0.bias", 12, true, false},     {"top.0.bn.weight", 12, true, false},
        {"top.0.bn.bias", 12, true, false},  {"top.0.bn.mean", 12, false, false},
        {"top.0.bn.var", 12, false, false},  {"head.weight", 12, true, true},
        {"head.bias", 1, true, false},
    };
    size_t n;
    const wk_model_param *p = wk_model_params(t.model, &n);
    assert_int_equal(n, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(p[i].name, want[i].name);
        assert_int_equal(p[i].value->n_elems, want[i].n_elems);
        assert_int_equal(p[i].grad != NULL, want[i].grad);
        assert_int_equal(p[i].decay, want[i].decay);
    }
    assert_true(tc_read(p[9].value)[0] == 1);
    const wk_model_table *tables = wk_model_tables(t.model, &n);
    assert_int_equal(n, 3);
    assert_string_equal(tables[1].name, "emb.item");
    assert_true(tables[1].init_high == 0.5f && tables[1].init_low == -0.5f); /* 1/sqrt(4) */
    assert_false(tables[1].is_bias);
    toy_close(&t);
}

static void deepfm_shares_one_embedding_per_field(void **state)
{
    (void)state;
    static toy t;
    wk_model_config c = toy_config("deepfm");
    size_t n;
    toy_open(&t, &c, N_DENSE);
    const wk_model_table *tables = wk_model_tables(t.model, &n);
    assert_int_equal(n, 2 * N_FIELDS);
    assert_string_equal(tables[0].name, "wide.user");
    assert_true(tables[0].is_bias && tables[0].dim == 1 && tables[0].init_high == 0);
    assert_string_equal(tables[5].name, "emb.genres");
    assert_true(!tables[5].is_bias && tables[5].dim == DIM && tables[5].field_idx == 2);
    toy_close(&t);
}

static void mf_with_dim_0_is_biases_alone(void **state)
{
    (void)state;
    static toy t;
    wk_model_config c = toy_config("mf");
    c.dim = 0;
    size_t n;
    toy_open(&t, &c, 0);
    (void)wk_model_tables(t.model, &n);
    assert_int_equal(n, N_FIELDS);
    const wk_model_param *p = wk_model_params(t.model, &n);
    assert_int_equal(n, 1);
    assert_string_equal(p[0].name, "wide.bias");
    /* logit = bias + user + item + mean of genres */
    tp_tensor *logits = NULL;
    tp_f32(p[0].value)[0] = 0.25f;
    assert_int_equal(forward(&t, &logits, NULL), BD_OK);
    for (size_t i = 0; i < N; i++) {
        double want = 0.25 + (double)t.rows[0][t.index[0][i]] + (double)t.rows[1][t.index[1][i]];
        uint32_t first = t.offsets[2][i], end = t.offsets[2][i + 1];
        for (uint32_t k = first; k < end; k++) {
            want += (double)t.rows[2][t.index[2][k]] / (double)(end - first);
        }
        assert_true(fabs((double)tc_read(logits)[i] - want) < 1e-6);
    }
    toy_close(&t);
}

/* The start of a parameter depends on seed and name alone. */
static void parameters_start_the_same_everywhere(void **state)
{
    (void)state;
    static toy a, b;
    wk_model_config ca = toy_config("mlp"), cb = toy_config("wide_deep");
    size_t na, nb;
    uint64_t hash = 0;
    toy_open(&a, &ca, N_DENSE);
    toy_open(&b, &cb, N_DENSE);
    const wk_model_param *pa = wk_model_params(a.model, &na), *pb = wk_model_params(b.model, &nb);
    size_t n_same = 0;
    for (size_t i = 0; i < na; i++) {
        float bound = 0;
        for (size_t k = 0; k < nb; k++) {
            if (strcmp(pa[i].name, pb[k].name) == 0) {
                n_same++;
                assert_memory_equal(tc_read(pa[i].value), tc_read(pb[k].value),
                                    pa[i].value->n_elems * sizeof(float));
            }
        }
        if (strcmp(pa[i].name, "top.0.weight") == 0) {
            bound = 1.0f / sqrtf((float)pa[i].value->dims[1]);
            for (size_t k = 0; k < pa[i].value->n_elems; k++) {
                assert_true(fabsf(tc_read(pa[i].value)[k]) <= bound);
            }
            hash = num_hash(tc_read(pa[i].value), pa[i].value->n_elems, 0);
        }
    }
    assert_int_equal(n_same, na);
    toy_close(&b);
    cb.seed = 6;
    toy_open(&b, &cb, N_DENSE);
    pb = wk_model_params(b.model, &nb);
    for (size_t k = 0; k < nb; k++) {
        if (strcmp(pb[k].name, "top.0.weight") == 0) {
            assert_true(num_hash(tc_read(pb[k].value), pb[k].value->n_elems, 0) != hash);
        }
    }
    toy_close(&a);
    toy_close(&b);
}

/* ---- gradients ---- */

static double central(toy *t, float *x, float step)
{
    float keep = *x;
    *x = keep + step;
    double up = loss_of(t, false);
    *x = keep - step;
    double down = loss_of(t, false);
    *x = keep;
    return (up - down) / (2 * (double)step);
}

/* A relu's kink may lie within the step: then a smaller step must agree. */
static void check_element(toy *t, const char *kind, const char *what, float *x, float got)
{
    double want = 0;
    for (int shift = 9; shift <= 13; shift += 2) {
        want = central(t, x, ldexpf(1, -shift));
        if (fabs(want - (double)got) <= 1e-3 * (0.05 + fabs(want))) {
            return;
        }
    }
    fail_msg("%s: %s: backward %.7f, central difference %.7f", kind, what, (double)got, want);
}

static void check_gradients(toy *t, const char *kind)
{
    size_t n_params, n_tables;
    const wk_model_param *p = wk_model_params(t->model, &n_params);
    const wk_model_table *tables = wk_model_tables(t->model, &n_tables);
    (void)loss_of(t, true);
    for (size_t i = 0; i < n_params; i++) {
        for (size_t k = 0; p[i].grad != NULL && k < p[i].value->n_elems; k += 5) {
            check_element(t, kind, p[i].name, tp_f32(p[i].value) + k, tc_read(p[i].grad)[k]);
        }
    }
    for (size_t i = 0; i < n_tables; i++) {
        for (size_t k = 0; k < VOCAB * tables[i].dim; k++) {
            check_element(t, kind, tables[i].name, &t->rows[i][k], t->grads[i][k]);
        }
    }
}

static void gradients_of_every_model(void **state)
{
    (void)state;
    static toy t;
    for (size_t k = 0; k < N_KINDS; k++) {
        wk_model_config c = toy_config(kind_names[k]);
        c.dropout = 0.3f; /* the same mask in every forward of one step */
        toy_open(&t, &c, N_DENSE);
        t.mode.step = 4;
        check_gradients(&t, kind_names[k]);
        toy_close(&t);
    }
}

static void gradients_without_dense_columns(void **state)
{
    (void)state;
    static toy t;
    for (size_t k = 0; k < N_KINDS; k++) {
        wk_model_config c = toy_config(kind_names[k]);
        c.n_bottom = 0;
        toy_open(&t, &c, 0);
        check_gradients(&t, kind_names[k]);
        toy_close(&t);
    }
}

/* Sums of the bags of genres, as a server that pools sends them. */
static void pool_genres(const toy *t, float out[N * DIM])
{
    memset(out, 0, N * DIM * sizeof *out);
    for (size_t i = 0; i < N; i++) {
        for (uint32_t k = t->offsets[2][i]; k < t->offsets[2][i + 1]; k++) {
            for (size_t d = 0; d < DIM; d++) {
                out[i * DIM + d] += t->rows[5][t->index[2][k] * DIM + d];
            }
        }
    }
}

/* The largest of each element of a bag, zeros for an empty one. */
static void most_of_genres(const toy *t, float out[N * DIM])
{
    memset(out, 0, N * DIM * sizeof *out);
    for (size_t i = 0; i < N; i++) {
        for (uint32_t k = t->offsets[2][i]; k < t->offsets[2][i + 1]; k++) {
            for (size_t d = 0; d < DIM; d++) {
                float x = t->rows[5][t->index[2][k] * DIM + d], *most = &out[i * DIM + d];
                *most = k == t->offsets[2][i] || x > *most ? x : *most;
            }
        }
    }
}

/* mf's logits from the definition, in double: biases, and the products of all pairs of vectors. */
static double mf_logit(const toy *t, size_t i, const float *sums, double genres_by, double bias_by)
{
    double logit = (double)t->rows[0][t->index[0][i]] + (double)t->rows[1][t->index[1][i]];
    for (uint32_t k = t->offsets[2][i]; k < t->offsets[2][i + 1]; k++) {
        logit += (double)t->rows[2][t->index[2][k]] * bias_by;
    }
    for (size_t d = 0; d < DIM; d++) {
        double u = (double)t->rows[3][t->index[0][i] * DIM + d];
        double v = (double)t->rows[4][t->index[1][i] * DIM + d];
        double g = (double)sums[i * DIM + d] * genres_by;
        logit += u * v + u * g + v * g;
    }
    return logit;
}

/* Rows, and sums that a server made: both are pooled as the combiner says, and flow back so. */
static void combiners_pool_as_they_say(void **state)
{
    (void)state;
    static toy t;
    static float sums[N * DIM], sum_grads[N * DIM];
    static const char *lists[][2] = {
        {"sum", NULL}, {"genres:mean", NULL}, {"mean", "genres:sqrtn"}, {NULL, NULL}};
    for (size_t l = 0; l < 4; l++) {
        wk_model_config c = toy_config("mf");
        c.combiners = lists[l];
        c.n_combiners = l == 3 ? 0 : l == 2 ? 2 : 1;
        toy_open(&t, &c, 0);
        pool_genres(&t, sums);
        for (int pooled = 0; pooled < 2; pooled++) {
            tp_tensor *logits = NULL;
            t.sums = pooled ? sums : NULL;
            t.sum_grads = sum_grads;
            assert_int_equal(forward(&t, &logits, NULL), BD_OK);
            for (size_t i = 0; i < N; i++) {
                double n = i % 3 == 0 ? 1 : (double)(i % 3);
                double by = l == 0 ? 1 : l == 2 ? 1 / sqrt(n) : 1 / n;
                double want = mf_logit(&t, i, sums, by, 1 / n);
                assert_true(fabs((double)tc_read(logits)[i] - want) < 1e-5);
            }
        }
        t.sums = NULL;
        check_gradients(&t, l == 2 ? "mf, sqrtn" : "mf");
        toy_close(&t);
    }
}

/* A maximum needs the rows, which the model says of its embedding and of no other table. */
static void max_takes_the_largest_of_each_element(void **state)
{
    (void)state;
    static toy t;
    static float most[N * DIM];
    wk_model_config c = toy_config("mf");
    c.combiners = (const char *[]){"genres:max"};
    c.n_combiners = 1;
    toy_open(&t, &c, 0);
    most_of_genres(&t, most);
    tp_tensor *logits = NULL;
    assert_int_equal(forward(&t, &logits, NULL), BD_OK);
    for (size_t i = 0; i < N; i++) {
        double n = i % 3 == 0 ? 1 : (double)(i % 3);
        double want = mf_logit(&t, i, most, 1, 1 / n);
        assert_true(fabs((double)tc_read(logits)[i] - want) < 1e-5);
    }
    size_t n_tables = 0;
    const wk_model_table *tables = wk_model_tables(t.model, &n_tables);
    for (size_t i = 0; i < n_tables; i++) {
        assert_int_equal(tables[i].needs_rows, strcmp(tables[i].name, "emb.genres") == 0);
    }
    toy_close(&t);
    for (size_t k = 0; k < N_KINDS; k++) {
        wk_model_config all = toy_config(kind_names[k]);
        all.combiners = (const char *[]){"max"};
        all.n_combiners = 1;
        toy_open(&t, &all, N_DENSE);
        check_gradients(&t, kind_names[k]);
        toy_close(&t);
    }
}

/* ---- learning ---- */

static double train(toy *t, const char *optimizer, float learning_rate, size_t n_steps)
{
    size_t n_params, n_tables;
    const wk_model_param *p = wk_model_params(t->model, &n_params);
    const wk_model_table *tables = wk_model_tables(t->model, &n_tables);
    wk_dense_optim *o = NULL;
    wk_dense_optim_config cfg = {.optimizer = optimizer};
    const num_optim *opt = num_optim_find(optimizer);
    float hyper[NUM_OPTIM_MAX_HYPER];
    static float states[MAX_TABLES][VOCAB][3 * DIM];
    assert_int_equal(num_optim_hyper(opt, NULL, NULL, 0, hyper, NULL), BD_OK);
    assert_int_equal(wk_dense_optim_new(p, n_params, &cfg, &o, NULL), BD_OK);
    hyper[0] = learning_rate;
    for (size_t i = 0; i < n_tables; i++) {
        for (size_t r = 0; r < VOCAB; r++) {
            assert_true(opt->state_elems(tables[i].dim) <= 3 * DIM);
            opt->init(hyper, states[i][r], tables[i].dim);
        }
    }
    for (size_t s = 0; s < n_steps; s++) {
        t->mode.step = s;
        (void)loss_of(t, true);
        assert_int_equal(wk_dense_optim_step(o, learning_rate, 1, NULL, NULL), BD_OK);
        for (size_t i = 0; i < n_tables; i++) {
            for (size_t r = 0; r < VOCAB; r++) {
                size_t dim = tables[i].dim;
                opt->step(hyper, t->rows[i] + r * dim, states[i][r], t->grads[i] + r * dim, dim);
            }
        }
    }
    wk_dense_optim_free(o);
    t->mode.train = false;
    return loss_of(t, false);
}

/* ln 2 is where knowing nothing gets; labels are an exclusive or of two fields. */
static void every_model_learns_by_heart(void **state)
{
    (void)state;
    static toy t;
    for (size_t k = 0; k < N_KINDS; k++) {
        wk_model_config c = toy_config(kind_names[k]);
        toy_open(&t, &c, N_DENSE);
        double loss = train(&t, "adagrad", 0.1f, 300);
        if (!(loss < 0.1)) {
            fail_msg("%s: loss %.4f after 300 steps", kind_names[k], loss);
        }
        toy_close(&t);
    }
}

static void batch_norm_and_dropout_learn_too(void **state)
{
    (void)state;
    static toy t;
    wk_model_config c = toy_config("mlp");
    c.batch_norm = true;
    c.dropout = 0.1f;
    toy_open(&t, &c, N_DENSE);
    double loss = train(&t, "adam", 0.02f, 300);
    assert_true(loss < 0.25);
    toy_close(&t);
}

/* ---- edges ---- */

static void an_empty_batch_gives_zero_gradients(void **state)
{
    (void)state;
    static toy t;
    for (size_t k = 0; k < N_KINDS; k++) {
        wk_model_config c = toy_config(kind_names[k]);
        c.batch_norm = true;
        c.dropout = 0.5f;
        toy_open(&t, &c, N_DENSE);
        t.batch.n = 0;
        memset(t.offsets, 0, sizeof(t.offsets));
        assert_true(loss_of(&t, true) == 0);
        size_t n;
        const wk_model_param *p = wk_model_params(t.model, &n);
        for (size_t i = 0; i < n; i++) {
            assert_true(p[i].grad == NULL ||
                        num_sumsq(tc_read(p[i].grad), p[i].grad->n_elems) == 0);
        }
        toy_close(&t);
    }
}

static void expect_refused(wk_model_config c, const char *text)
{
    bd_err err = BD_ERR_INIT;
    wk_model *m = NULL;
    tp_device *dev = NULL;
    wk_model_inputs in = toy_inputs(N_DENSE);
    long before = bd_mem_live_blocks();
    assert_int_equal(tp_device_new_cpu(1, &dev, NULL), BD_OK);
    assert_int_equal(wk_model_new(&c, &in, dev, &m, &err), BD_E_INVALID);
    assert_string_equal(err.text, text);
    assert_null(m);
    tp_device_free(dev);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    wk_model_config c = toy_config("deepfn");
    expect_refused(c, "unknown model deepfn, did you mean deepfm?");
    c = toy_config("dlrm");
    c.bottom[1] = 5;
    expect_refused(c, "dlrm: the last width of bottom must be dim (4)");
    c = toy_config("mlp");
    c.dim = 0;
    expect_refused(c, "model mlp needs a dim of at least 1");
    c = toy_config("mlp");
    c.top[1] = 0;
    expect_refused(c, "top.1: a layer of width 0");
    c = toy_config("mlp");
    c.combiners = (const char *[]){"mean", "user:sum"};
    c.n_combiners = 2;
    expect_refused(c, "combiner \"user:sum\": field user has one value a sample");
    c.combiners = (const char *[]){"genre:sum"};
    c.n_combiners = 1;
    expect_refused(c, "combiner \"genre:sum\": the data has no such field");
    c.combiners = (const char *[]){"genres:most"};
    expect_refused(c, "combiner \"genres:most\": say sum, mean, sqrtn or max behind the colon");
    c = toy_config("mlp");
    c.dropout = 1;
    expect_refused(c, "model: dropout 1 is not in [0, 1)");
}

static void building_survives_allocation_failures(void **state)
{
    (void)state;
    tp_device *dev = NULL;
    wk_model_config c = toy_config("dcn_v2");
    wk_model_inputs in = toy_inputs(N_DENSE);
    bd_status rc = BD_E_NOMEM;
    c.batch_norm = true;
    assert_int_equal(tp_device_new_cpu(1, &dev, NULL), BD_OK);
    for (long nth = 0; rc != BD_OK; nth++) {
        wk_model *m = NULL;
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(nth);
        rc = wk_model_new(&c, &in, dev, &m, NULL);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        wk_model_free(m);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    tp_device_free(dev);
}

static void every_kind_has_a_name_and_help(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        assert_string_equal(wk_model_kind_name(i), kind_names[i]);
        assert_true(strlen(wk_model_kind_help(i)) > 10);
    }
    assert_null(wk_model_kind_name(N_KINDS));
    assert_null(wk_model_kind_help(N_KINDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dlrm_declares_its_parameters),
        cmocka_unit_test(deepfm_shares_one_embedding_per_field),
        cmocka_unit_test(mf_with_dim_0_is_biases_alone),
        cmocka_unit_test(combiners_pool_as_they_say),
        cmocka_unit_test(max_takes_the_largest_of_each_element),
        cmocka_unit_test(parameters_start_the_same_everywhere),
        cmocka_unit_test(gradients_of_every_model),
        cmocka_unit_test(gradients_without_dense_columns),
        cmocka_unit_test(every_model_learns_by_heart),
        cmocka_unit_test(batch_norm_and_dropout_learn_too),
        cmocka_unit_test(an_empty_batch_gives_zero_gradients),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(building_survives_allocation_failures),
        cmocka_unit_test(every_kind_has_a_name_and_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
