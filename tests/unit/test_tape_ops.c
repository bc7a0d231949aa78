/* Every operation of the tape against central differences, and the values that have names. */
#include "base/mem.h"
#include "base/rand.h"

#include "tests/util/tape_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TOLERANCE 2e-3
#define N_OF(a)   (sizeof(a) / sizeof((a)[0]))

/* ---- expressions ---- */

static bd_status build_linear(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                              bd_err *err)
{
    return tp_linear(tape, in[0], in[1], in[2], *(const tp_act *)arg, out, err);
}

static bd_status build_linear_no_bias(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                      tp_tensor **out, bd_err *err)
{
    return tp_linear(tape, in[0], in[1], NULL, *(const tp_act *)arg, out, err);
}

static bd_status build_relu(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                            bd_err *err)
{
    (void)arg;
    return tp_relu(tape, in[0], out, err);
}

static bd_status build_sigmoid(tp_tape *tape, tp_tensor *const *in, const void *arg,
                               tp_tensor **out, bd_err *err)
{
    (void)arg;
    return tp_sigmoid(tape, in[0], out, err);
}

static bd_status build_scale(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                             bd_err *err)
{
    (void)arg;
    return tp_scale(tape, in[0], -2.5f, out, err);
}

static bd_status build_add(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    (void)arg;
    return tp_add(tape, in[0], in[1], out, err);
}

static bd_status build_add_same(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                tp_tensor **out, bd_err *err)
{
    (void)arg;
    return tp_add_n(tape, (tp_tensor *[]){in[0], in[1], in[0]}, 3, out, err);
}

static bd_status build_add_bias(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                tp_tensor **out, bd_err *err)
{
    (void)arg;
    return tp_add_bias(tape, in[0], in[1], out, err);
}

static bd_status build_mul(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    (void)arg;
    return tp_mul(tape, in[0], in[1], out, err);
}

static bd_status build_square(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                              bd_err *err)
{
    (void)arg;
    return tp_mul(tape, in[0], in[0], out, err);
}

static bd_status build_sum(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    (void)arg;
    return tp_sum(tape, in[0], out, err);
}

static bd_status build_mean(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                            bd_err *err)
{
    (void)arg;
    return tp_mean(tape, in[0], out, err);
}

static bd_status build_concat(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                              bd_err *err)
{
    (void)arg;
    return tp_concat(tape, (tp_tensor *[]){in[0], in[1], in[0]}, 3, out, err);
}

static bd_status build_slice(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                             bd_err *err)
{
    tp_tensor *a = NULL, *b = NULL;
    (void)arg;
    bd_status rc = tp_slice(tape, in[0], 1, 3, &a, err);
    if (rc == BD_OK) {
        rc = tp_slice(tape, in[0], 2, 3, &b, err); /* overlaps: gradients add up */
    }
    return rc == BD_OK ? tp_mul(tape, a, b, out, err) : rc;
}

static bd_status build_interact(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                tp_tensor **out, bd_err *err)
{
    return tp_dot_interact(tape, in, *(const size_t *)arg, out, err);
}

/* The same three vectors over and over: more than the fast kernel's tile holds. */
static bd_status build_interact_many(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                     tp_tensor **out, bd_err *err)
{
    tp_tensor *feats[70];
    (void)arg;
    for (size_t i = 0; i < N_OF(feats); i++) {
        feats[i] = in[i % 3];
    }
    return tp_dot_interact(tape, feats, N_OF(feats), out, err);
}

static bd_status build_fm2(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    return tp_fm2(tape, in, *(const size_t *)arg, out, err);
}

static bd_status build_cross(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                             bd_err *err)
{
    (void)arg;
    return tp_cross(tape, in[0], in[1], in[2], in[3], out, err);
}

static bd_status build_cross_first(tp_tape *tape, tp_tensor *const *in, const void *arg,
                                   tp_tensor **out, bd_err *err)
{
    (void)arg;
    return tp_cross(tape, in[0], in[0], in[1], in[2], out, err);
}

static const uint64_t sample_numbers[] = {5, 0, 1000000007, 3, 4, 8, 9};

static bd_status build_dropout(tp_tape *tape, tp_tensor *const *in, const void *arg,
                               tp_tensor **out, bd_err *err)
{
    (void)arg;
    tp_dropout_key key = {.seed = 3, .step = 9, .layer = 2, .sample_idx = sample_numbers};
    return tp_dropout(tape, in[0], 0.4f, &key, out, err);
}

typedef struct bag_case {
    uint32_t index[16];
    uint32_t offsets[8];
    size_t n;
    tp_bag_mode mode;
} bag_case;

static bd_status build_bag(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    const bag_case *c = arg;
    return tp_embedding_bag(tape, in[0], c->index, c->offsets, c->n, c->mode, out, err);
}

static const float targets[] = {1, 0, 0, 1, 1, 0, 1};

static bd_status build_bce(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    (void)arg;
    return tp_bce_logits(tape, in[0], targets, 0.25f, out, NULL, err);
}

static bd_status build_mse(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                           bd_err *err)
{
    (void)arg;
    return tp_mse(tape, in[0], targets, 0.25f, out, NULL, err);
}

typedef struct bn_case {
    tp_tensor *mean, *var;
    bool train;
} bn_case;

static bd_status build_bn(tp_tape *tape, tp_tensor *const *in, const void *arg, tp_tensor **out,
                          bd_err *err)
{
    const bn_case *c = arg;
    tp_batch_norm_args a = {.gamma = in[1],
                            .beta = in[2],
                            .running_mean = c->mean,
                            .running_var = c->var,
                            .momentum = c->train ? 0.1f : 0,
                            .eps = 1e-2f,
                            .train = c->train};
    return tp_batch_norm(tape, in[0], &a, out, err);
}

/* ---- central differences ---- */

static void linear_gradients(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1}, {3, 5, 2}, {7, 1, 3}, {4, 17, 9}, {5, 3, 1}};
    static const tp_act acts[] = {TP_ACT_NONE, TP_ACT_SIGMOID};
    for (size_t s = 0; s < N_OF(shapes); s++) {
        size_t n = shapes[s][0], c = shapes[s][1], o = shapes[s][2];
        tc_input in[] = {{2, {n, c}, 0}, {2, {o, c}, 0}, {1, {o}, 0}};
        for (size_t a = 0; a < N_OF(acts); a++) {
            tc_check("linear", build_linear, &acts[a], in, 3, TOLERANCE);
        }
        tc_check("linear without bias", build_linear_no_bias, &acts[0], in, 2, TOLERANCE);
    }
    /* A relu has a kink: weights are such that no pre-activation comes near 0. */
    tp_act relu = TP_ACT_RELU;
    tc_input one[] = {{2, {5, 1}, 1.0f}, {2, {3, 1}, 1.0f}};
    tc_check("linear relu", build_linear_no_bias, &relu, one, 2, TOLERANCE);
}

static void elementwise_gradients(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 5}, {2, 33}};
    for (size_t s = 0; s < N_OF(shapes); s++) {
        size_t n = shapes[s][0], c = shapes[s][1];
        tc_input two[] = {{2, {n, c}, 0}, {2, {n, c}, 0}};
        tc_input away[] = {{2, {n, c}, 0.1f}};
        tc_input bias[] = {{2, {n, c}, 0}, {1, {c}, 0}};
        tc_check("relu", build_relu, NULL, away, 1, TOLERANCE);
        tc_check("sigmoid", build_sigmoid, NULL, two, 1, TOLERANCE);
        tc_check("scale", build_scale, NULL, two, 1, TOLERANCE);
        tc_check("add", build_add, NULL, two, 2, TOLERANCE);
        tc_check("add_n with one input twice", build_add_same, NULL, two, 2, TOLERANCE);
        tc_check("add_bias", build_add_bias, NULL, bias, 2, TOLERANCE);
        tc_check("mul", build_mul, NULL, two, 2, TOLERANCE);
        tc_check("mul of one input by itself", build_square, NULL, two, 1, TOLERANCE);
        tc_check("sum", build_sum, NULL, two, 1, TOLERANCE);
        tc_check("mean", build_mean, NULL, two, 1, TOLERANCE);
    }
    tc_input four[] = {{4, {2, 3, 1, 2}, 0}, {4, {2, 3, 1, 2}, 0}};
    tc_check("mul of four dimensions", build_mul, NULL, four, 2, TOLERANCE);
}

static void column_gradients(void **state)
{
    (void)state;
    tc_input parts[] = {{2, {3, 2}, 0}, {2, {3, 5}, 0}};
    tc_input wide[] = {{2, {3, 6}, 0}};
    tc_check("concat", build_concat, NULL, parts, 2, TOLERANCE);
    tc_check("slice", build_slice, NULL, wide, 1, TOLERANCE);
}

static void interaction_gradients(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1}, {1, 2, 4}, {3, 3, 5}, {2, 5, 16}, {2, 12, 19}};
    for (size_t s = 0; s < N_OF(shapes); s++) {
        size_t n = shapes[s][0], n_feats = shapes[s][1], d = shapes[s][2];
        tc_input in[TC_MAX_INPUTS];
        for (size_t i = 0; i < n_feats; i++) {
            in[i] = (tc_input){2, {n, d}, 0};
        }
        tc_check("dot_interact", build_interact, &n_feats, in, n_feats, TOLERANCE);
        tc_check("fm2", build_fm2, &n_feats, in, n_feats, TOLERANCE);
    }
    tc_input three[] = {{2, {1, 2}, 0}, {2, {1, 2}, 0}, {2, {1, 2}, 0}};
    tc_check("dot_interact of 70", build_interact_many, NULL, three, 3, TOLERANCE);
}

static void cross_gradients(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 5}, {2, 17}};
    for (size_t s = 0; s < N_OF(shapes); s++) {
        size_t n = shapes[s][0], d = shapes[s][1];
        tc_input in[] = {{2, {n, d}, 0}, {2, {n, d}, 0}, {2, {d, d}, 0}, {1, {d}, 0}};
        tc_input first[] = {{2, {n, d}, 0}, {2, {d, d}, 0}, {1, {d}, 0}};
        tc_check("cross", build_cross, NULL, in, 4, TOLERANCE);
        tc_check("first cross", build_cross_first, NULL, first, 3, TOLERANCE);
    }
}

static void dropout_gradients(void **state)
{
    (void)state;
    tc_input in[] = {{2, {7, 9}, 0}};
    tc_check("dropout", build_dropout, NULL, in, 1, TOLERANCE);
}

static void bag_gradients(void **state)
{
    (void)state;
    static const bag_case cases[] = {
        {{0, 1, 2}, {0, 1, 2, 3}, 3, TP_BAG_SUM},
        {{3, 3, 0, 1, 3, 2}, {0, 2, 2, 5, 6}, 4, TP_BAG_SUM}, /* twice in a bag, an empty bag */
        {{3, 3, 0, 1, 3, 2}, {0, 2, 2, 5, 6}, 4, TP_BAG_MEAN},
        {{3, 3, 0, 1, 3, 2}, {0, 2, 2, 5, 6}, 4, TP_BAG_MAX},
    };
    static const size_t dims[] = {1, 5, 16};
    for (size_t i = 0; i < N_OF(cases); i++) {
        for (size_t d = 0; d < N_OF(dims); d++) {
            tc_input in[] = {{2, {4, dims[d]}, 0}};
            tc_check("embedding_bag", build_bag, &cases[i], in, 1, TOLERANCE);
        }
    }
}

static void loss_gradients(void **state)
{
    (void)state;
    tc_input column[] = {{2, {7, 1}, 0}};
    tc_input flat[] = {{1, {7}, 0}};
    tc_check("bce", build_bce, NULL, column, 1, TOLERANCE);
    tc_check("bce of a vector", build_bce, NULL, flat, 1, TOLERANCE);
    tc_check("mse", build_mse, NULL, column, 1, TOLERANCE);
}

static void batch_norm_gradients(void **state)
{
    (void)state;
    tp_device *dev = NULL;
    bn_case c = {0};
    static const size_t rows[] = {1, 2, 7};
    assert_int_equal(tp_device_new_cpu(1, &dev, NULL), BD_OK);
    c.mean = tc_param(dev, "mean", 1, (size_t[]){3}, 1);
    c.var = tc_param(dev, "var", 1, (size_t[]){3}, 2);
    for (size_t i = 0; i < 3; i++) {
        tp_f32(c.var)[i] = 1.0f + (float)i;
    }
    for (size_t i = 0; i < N_OF(rows); i++) {
        tc_input in[] = {{2, {rows[i], 3}, 0}, {1, {3}, 0}, {1, {3}, 0}};
        c.train = false;
        tc_check("batch_norm in evaluation", build_bn, &c, in, 3, TOLERANCE);
        c.train = true;
        tc_check("batch_norm", build_bn, &c, in, 3, 2e-2);
    }
    tp_tensor_free(c.mean);
    tp_tensor_free(c.var);
    tp_device_free(dev);
}

/* ---- values ---- */

typedef struct fixture {
    tp_device *dev;
    tp_tape *tape;
} fixture;

static int setup(void **state)
{
    static fixture f;
    assert_int_equal(tp_device_new_cpu(1, &f.dev, NULL), BD_OK);
    assert_int_equal(tp_tape_new(f.dev, &f.tape, NULL), BD_OK);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tp_tape_free(f->tape);
    tp_device_free(f->dev);
    return 0;
}

static tp_tensor *wrap(fixture *f, size_t n, size_t c, float *data)
{
    tp_tensor *t = NULL;
    assert_int_equal(tp_tape_wrap(f->tape, 2, (size_t[]){n, c}, data, true, NULL, &t, NULL), BD_OK);
    return t;
}

/* Lower triangle in row order, the dense vector first. */
static void interaction_layout(void **state)
{
    fixture *f = *state;
    float a[] = {1, 2}, b[] = {3, 4}, c[] = {5, 6};
    tp_tensor *feats[] = {wrap(f, 1, 2, a), wrap(f, 1, 2, b), wrap(f, 1, 2, c)}, *out = NULL;
    assert_int_equal(tp_dot_interact(f->tape, feats, 3, &out, NULL), BD_OK);
    static const float want[] = {1, 2, 11, 17, 39}; /* a, <b,a>, <c,a>, <c,b> */
    assert_int_equal(out->dims[1], 5);
    assert_memory_equal(tc_read(out), want, sizeof(want));
    assert_int_equal(tp_fm2(f->tape, feats, 3, &out, NULL), BD_OK);
    assert_true(tc_read(out)[0] == 11 + 17 + 39);
}

#define N_SAMPLES ((size_t)3)
#define N_FEATS   ((size_t)27)
#define N_DIM     ((size_t)16)

/* The wide kernel gives the bits of plain loops in the documented order. */
static void interaction_equals_plain_loops(void **state)
{
    fixture *f = *state;
    static float data[N_FEATS][N_SAMPLES * N_DIM];
    tp_tensor *feats[N_FEATS], *out = NULL;
    for (size_t i = 0; i < N_FEATS; i++) {
        bd_rand_uniform(1, i, 0, -1, 1, data[i], N_SAMPLES * N_DIM);
        feats[i] = wrap(f, N_SAMPLES, N_DIM, data[i]);
    }
    assert_int_equal(tp_dot_interact(f->tape, feats, N_FEATS, &out, NULL), BD_OK);
    for (size_t s = 0; s < N_SAMPLES; s++) {
        const float *z = tc_read(out) + s * (N_DIM + N_FEATS * (N_FEATS - 1) / 2) + N_DIM;
        for (size_t i = 1; i < N_FEATS; i++) {
            for (size_t j = 0; j < i; j++) {
                float want = 0;
                for (size_t k = 0; k < N_DIM; k++) {
                    want += data[i][s * N_DIM + k] * data[j][s * N_DIM + k];
                }
                assert_true(*z++ == want);
            }
        }
    }
}

static void losses_are_stable_for_large_logits(void **state)
{
    fixture *f = *state;
    float x[] = {1000, -1000, 1000, -1000};
    float t[] = {1, 0, 0, 1};
    tp_tensor *xs = wrap(f, 4, 1, x), *loss = NULL, *sum = NULL;
    assert_int_equal(tp_bce_logits(f->tape, xs, t, 0.25f, &loss, &sum, NULL), BD_OK);
    assert_true(((const double *)(const void *)tc_read(sum))[0] == 2000.0);
    assert_true(tc_read(loss)[0] == 500.0f);
    assert_int_equal(tp_backward(f->tape, loss, NULL, NULL), BD_OK);
    static const float want[] = {0, 0, 0.25f, -0.25f};
    for (size_t i = 0; i < 4; i++) {
        assert_true(tc_read(xs->grad)[i] == want[i]);
    }
}

/* ln 2 per sample at logit 0. */
static void bce_at_zero(void **state)
{
    fixture *f = *state;
    float x[] = {0, 0}, t[] = {0, 1};
    tp_tensor *loss = NULL, *sum = NULL;
    assert_int_equal(tp_bce_logits(f->tape, wrap(f, 2, 1, x), t, 0.5f, &loss, &sum, NULL), BD_OK);
    assert_true(fabs(((const double *)sum->data)[0] - 2 * 0.6931471805599453) < 1e-12);
    assert_true(fabsf(tc_read(loss)[0] - 0.6931472f) < 1e-6f);
}

static void nan_passes_through(void **state)
{
    fixture *f = *state;
    float x[] = {NAN};
    tp_tensor *out = NULL;
    assert_int_equal(tp_relu(f->tape, wrap(f, 1, 1, x), &out, NULL), BD_OK);
    assert_true(isnan(tc_read(out)[0]));
}

#define N_ROWS ((size_t)64)
#define N_COLS ((size_t)10)

/* Sample i has the same mask whichever rank holds it and whatever stands beside it. */
static void dropout_is_a_function_of_the_sample(void **state)
{
    fixture *f = *state;
    static float ones[N_ROWS * N_COLS];
    uint64_t all[N_ROWS], odd[N_ROWS / 2];
    size_t n_kept = 0;
    for (size_t i = 0; i < N_ROWS * N_COLS; i++) {
        ones[i] = 1;
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        all[i] = 1000 + i;
        odd[i / 2] = 1000 + i; /* the odd ones stay */
    }
    tp_dropout_key key = {.seed = 1, .step = 2, .layer = 3, .sample_idx = all};
    tp_tensor *x = wrap(f, N_ROWS, N_COLS, ones), *half = wrap(f, N_ROWS / 2, N_COLS, ones),
              *a = NULL, *b = NULL;
    assert_int_equal(tp_dropout(f->tape, x, 0.25f, &key, &a, NULL), BD_OK);
    key.sample_idx = odd;
    assert_int_equal(tp_dropout(f->tape, half, 0.25f, &key, &b, NULL), BD_OK);
    for (size_t i = 0; i < N_ROWS / 2; i++) {
        assert_memory_equal(tc_read(b) + i * N_COLS, tc_read(a) + (2 * i + 1) * N_COLS,
                            N_COLS * sizeof(float));
    }
    for (size_t i = 0; i < N_ROWS * N_COLS; i++) {
        float v = tc_read(a)[i];
        assert_true(v == 0 || v == 1.0f / 0.75f);
        n_kept += v != 0;
    }
    assert_in_range(n_kept, N_ROWS * N_COLS * 3 / 4 - 50,
                    N_ROWS * N_COLS * 3 / 4 + 50); /* 4.5 sigma */
    key.sample_idx = all;
    key.step = 3;
    assert_int_equal(tp_dropout(f->tape, x, 0.25f, &key, &b, NULL), BD_OK);
    assert_memory_not_equal(tc_read(a), tc_read(b), N_ROWS * N_COLS * sizeof(float));
    key.step = 2;
    key.layer = 4;
    assert_int_equal(tp_dropout(f->tape, x, 0.25f, &key, &b, NULL), BD_OK);
    assert_memory_not_equal(tc_read(a), tc_read(b), N_ROWS * N_COLS * sizeof(float));
}

static void batch_norm_statistics(void **state)
{
    fixture *f = *state;
    float x[] = {1, 10, 3, 10, 5, 10};
    size_t two[] = {2};
    tp_tensor *gamma = tc_param(f->dev, "gamma", 1, two, 1);
    tp_tensor *beta = tc_param(f->dev, "beta", 1, two, 1), *mean = NULL, *var = NULL, *y = NULL;
    assert_int_equal(tp_tensor_new(f->dev, "mean", NUM_F32, 1, two, &mean, NULL), BD_OK);
    assert_int_equal(tp_tensor_new(f->dev, "var", NUM_F32, 1, two, &var, NULL), BD_OK);
    tp_f32(gamma)[0] = tp_f32(gamma)[1] = 1;
    tp_f32(beta)[0] = tp_f32(beta)[1] = 0;
    tp_batch_norm_args a = {.gamma = gamma,
                            .beta = beta,
                            .running_mean = mean,
                            .running_var = var,
                            .momentum = 0.5f,
                            .eps = 0.0f,
                            .train = true};
    tp_tensor *in = wrap(f, 3, 2, x);
    a.eps = 1e-20f;
    assert_int_equal(tp_batch_norm(f->tape, in, &a, &y, NULL), BD_OK);
    assert_true(tp_f32(mean)[0] == 1.5f && tp_f32(mean)[1] == 5.0f);
    assert_true(tp_f32(var)[0] == 2.0f && tp_f32(var)[1] == 0.0f); /* unbiased 4, halved */
    assert_true(fabsf(tc_read(y)[0] + 1.2247449f) < 1e-6f);
    assert_true(tc_read(y)[1] == 0); /* a constant column is centred */
    /* One sample or none: statistics of one are no statistics. */
    assert_int_equal(tp_batch_norm(f->tape, wrap(f, 1, 2, x), &a, &y, NULL), BD_OK);
    assert_int_equal(tp_batch_norm(f->tape, wrap(f, 0, 2, x), &a, &y, NULL), BD_OK);
    assert_true(tp_f32(mean)[0] == 1.5f && tp_f32(var)[0] == 2.0f);
    tp_tensor_free(gamma);
    tp_tensor_free(beta);
    tp_tensor_free(mean);
    tp_tensor_free(var);
}

/* Of equal elements the first has the gradient; a NaN is not hidden by a larger number; no ids: zeros
 * and no gradient. */
static void the_maximum_of_a_bag_is_its_first_largest(void **state)
{
    fixture *f = *state;
    static const uint32_t index[] = {0, 1, 2, 1, 3}, offsets[] = {0, 3, 5, 5};
    static const float rows[4][2] = {{1, -5}, {1, 7}, {-2, 7}, {NAN, 0}};
    float seed[6] = {1, 2, 4, 8, 16, 32};
    static const float want[4][2] = {{1, 0}, {0, 2 + 8}, {0, 0}, {4, 0}};
    size_t shape[] = {4, 2};
    tp_tensor *x = tc_param(f->dev, "rows", 2, shape, 1), *y = NULL, *r = NULL, *sum = NULL;
    assert_int_equal(tp_write(x, rows, NULL), BD_OK);
    assert_int_equal(tp_embedding_bag(f->tape, x, index, offsets, 3, TP_BAG_MAX, &y, NULL), BD_OK);
    const float *got = tc_read(y);
    assert_true(got[0] == 1 && got[1] == 7 && isnan(got[2]) && got[3] == 7);
    assert_true(got[4] == 0 && got[5] == 0);
    assert_int_equal(tp_tape_wrap(f->tape, 2, (size_t[]){3, 2}, seed, false, NULL, &r, NULL),
                     BD_OK);
    assert_int_equal(tp_mul(f->tape, y, r, &y, NULL), BD_OK);
    assert_int_equal(tp_sum(f->tape, y, &sum, NULL), BD_OK);
    assert_int_equal(tp_backward(f->tape, sum, NULL, NULL), BD_OK);
    assert_memory_equal(tc_read(x->grad), want, sizeof want);
    tp_tensor_free(x);
}

/* No samples: every op gives an empty result and zero gradients. */
static void empty_batches_work(void **state)
{
    fixture *f = *state;
    float none[1] = {0};
    uint32_t offsets[] = {0};
    size_t shape_w[] = {3, 2}, shape_b[] = {3};
    tp_tensor *w = tc_param(f->dev, "w", 2, shape_w, 1), *b = tc_param(f->dev, "b", 1, shape_b, 2);
    tp_tensor *x = wrap(f, 0, 2, none), *rows = wrap(f, 0, 3, none), *y = NULL, *bag = NULL;
    tp_tensor *z = NULL, *q = NULL, *loss = NULL;
    assert_int_equal(tp_linear(f->tape, x, w, b, TP_ACT_RELU, &y, NULL), BD_OK);
    assert_int_equal(tp_embedding_bag(f->tape, rows, offsets, offsets, 0, TP_BAG_SUM, &bag, NULL),
                     BD_OK);
    tp_tensor *feats[] = {y, bag};
    assert_int_equal(tp_dot_interact(f->tape, feats, 2, &z, NULL), BD_OK);
    assert_int_equal(tp_concat(f->tape, (tp_tensor *[]){z, y}, 2, &z, NULL), BD_OK);
    assert_int_equal(tp_fm2(f->tape, feats, 2, &q, NULL), BD_OK);
    assert_int_equal(tp_slice(f->tape, z, 0, 1, &z, NULL), BD_OK);
    assert_int_equal(tp_add(f->tape, z, q, &z, NULL), BD_OK);
    assert_int_equal(tp_bce_logits(f->tape, z, none, 0.5f, &loss, NULL, NULL), BD_OK);
    assert_true(tc_read(loss)[0] == 0);
    assert_int_equal(tp_backward(f->tape, loss, NULL, NULL), BD_OK);
    for (size_t i = 0; i < w->n_elems; i++) {
        assert_true(tc_read(w->grad)[i] == 0);
    }
    tp_tensor_free(w);
    tp_tensor_free(b);
}

static void bad_shapes_are_named(void **state)
{
    fixture *f = *state;
    float data[24] = {0};
    bd_err err;
    tp_tensor *a = wrap(f, 2, 3, data), *b = wrap(f, 2, 4, data), *out = NULL;
    assert_int_equal(tp_linear(f->tape, a, b, NULL, TP_ACT_NONE, &out, &err), BD_E_INVALID);
    assert_string_equal(err.text, "linear: x [2 x 3] does not fit w [2 x 4]");
    assert_int_equal(tp_add(f->tape, a, b, &out, &err), BD_E_INVALID);
    assert_int_equal(tp_mul(f->tape, a, b, &out, &err), BD_E_INVALID);
    assert_int_equal(tp_add_bias(f->tape, a, b, &out, &err), BD_E_INVALID);
    assert_int_equal(tp_dot_interact(f->tape, (tp_tensor *[]){a, b}, 2, &out, &err), BD_E_INVALID);
    assert_int_equal(tp_slice(f->tape, a, 2, 2, &out, &err), BD_E_INVALID);
    assert_string_equal(err.text, "slice: columns 2 to 4 of 3");
    assert_int_equal(tp_bce_logits(f->tape, a, data, 1, &out, NULL, &err), BD_E_INVALID);
    assert_int_equal(tp_cross(f->tape, a, a, b, b, &out, &err), BD_E_INVALID);
    assert_int_equal(tp_dropout(f->tape, a, 1.0f, NULL, &out, &err), BD_E_INVALID);
    assert_null(out);
    assert_int_equal(tp_tape_n_nodes(f->tape), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_gradients),
        cmocka_unit_test(elementwise_gradients),
        cmocka_unit_test(column_gradients),
        cmocka_unit_test(interaction_gradients),
        cmocka_unit_test(cross_gradients),
        cmocka_unit_test(dropout_gradients),
        cmocka_unit_test(bag_gradients),
        cmocka_unit_test(loss_gradients),
        cmocka_unit_test(batch_norm_gradients),
        cmocka_unit_test_setup_teardown(interaction_layout, setup, teardown),
        cmocka_unit_test_setup_teardown(interaction_equals_plain_loops, setup, teardown),
        cmocka_unit_test_setup_teardown(losses_are_stable_for_large_logits, setup, teardown),
        cmocka_unit_test_setup_teardown(bce_at_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(nan_passes_through, setup, teardown),
        cmocka_unit_test_setup_teardown(dropout_is_a_function_of_the_sample, setup, teardown),
        cmocka_unit_test_setup_teardown(batch_norm_statistics, setup, teardown),
        cmocka_unit_test_setup_teardown(the_maximum_of_a_bag_is_its_first_largest, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_batches_work, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_shapes_are_named, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
