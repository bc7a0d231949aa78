/* Optimiser steps: each equals its formula in double, and SIMD equals the reference bit for bit. */
#include "base/num/optim.h"
#include "base/num/vec.h"
#include "base/rand.h"

#include "tests/util/tu_simd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_DIM = (1 << 12) + 3, N_STEPS = 50 };

/* The formulas, in double, over one row. h: the hyperparameters as the float values used. */
typedef void oracle(const double *h, double *w, double *s, const double *g, size_t dim);

// NOLINTNEXTLINE(readability-non-const-parameter): the type of the table
static void oracle_sgd(const double *h, double *w, double *s, const double *g, size_t dim)
{
    (void)s;
    for (size_t i = 0; i < dim; i++) {
        w[i] -= h[0] * (g[i] + h[1] * w[i]);
    }
}

static void oracle_momentum(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + d;
        w[i] -= h[0] * (h[3] != 0 ? d + h[2] * s[i] : s[i]);
    }
}

static void oracle_adagrad(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] += d * d;
        w[i] -= h[0] * d / (sqrt(s[i]) + h[2]);
    }
}

static void oracle_rowwise(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double sum = 0;
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        sum += d * d;
    }
    s[0] += sum / (double)dim;
    for (size_t i = 0; i < dim; i++) {
        w[i] -= h[0] * (g[i] + h[1] * w[i]) / (sqrt(s[0]) + h[2]);
    }
}

static void oracle_adam(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double t = ++s[2 * dim];
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d;
        s[dim + i] = h[3] * s[dim + i] + (1 - h[3]) * d * d;
        double m = s[i] / (1 - pow(h[2], t)), v = s[dim + i] / (1 - pow(h[3], t));
        w[i] -= h[0] * m / (sqrt(v) + h[4]);
    }
}

static void oracle_adamw(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        w[i] -= h[0] * h[5] * w[i];
    }
    oracle_adam(h, w, s, g, dim);
}

static void oracle_nesterov(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + d;
        w[i] -= h[0] * (d + h[2] * s[i]);
    }
}

static void oracle_rowwise_adam(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double sum = 0, t = ++s[dim + 1];
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d;
        sum += d * d;
    }
    s[dim] = h[3] * s[dim] + (1 - h[3]) * sum / (double)dim;
    for (size_t i = 0; i < dim; i++) {
        w[i] -= h[0] * s[i] / (1 - pow(h[2], t)) / (sqrt(s[dim] / (1 - pow(h[3], t))) + h[4]);
    }
}

static void oracle_adamax(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double t = ++s[2 * dim];
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d;
        s[dim + i] = fmax(h[3] * s[dim + i], fabs(d) + h[4]);
        w[i] -= h[0] / (1 - pow(h[2], t)) * s[i] / s[dim + i];
    }
}

static void oracle_rmsprop(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d * d;
        w[i] -= h[0] * d / (sqrt(s[i]) + h[3]);
    }
}

static void oracle_centered(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d * d;
        s[dim + i] = h[2] * s[dim + i] + (1 - h[2]) * d;
        w[i] -= h[0] * d / (sqrt(s[i] - s[dim + i] * s[dim + i]) + h[3]);
    }
}

static void oracle_adadelta(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d * d;
        double by = d * sqrt(s[dim + i] + h[3]) / sqrt(s[i] + h[3]);
        s[dim + i] = h[2] * s[dim + i] + (1 - h[2]) * by * by;
        w[i] -= h[0] * by;
    }
}

/* h: alpha, l2, l1, beta, initial accumulator */
static void oracle_ftrl(const double *h, double *w, double *s, const double *g, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        double *z = &s[i], *n = &s[dim + i];
        if (*z == 0 && *n == h[4]) { /* the first gradient of a weight that did not start at 0 */
            double sign = w[i] > 0 ? 1 : w[i] < 0 ? -1 : 0;
            *z = -w[i] * ((h[3] + sqrt(*n)) / h[0] + h[1]) - sign * h[2];
        }
        double sigma = (sqrt(*n + g[i] * g[i]) - sqrt(*n)) / h[0];
        *z += g[i] - sigma * w[i];
        *n += g[i] * g[i];
        double sign = *z > 0 ? 1 : -1;
        w[i] = fabs(*z) <= h[2] ? 0 : -(*z - sign * h[2]) / ((h[3] + sqrt(*n)) / h[0] + h[1]);
    }
}

static double norm_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sqrt(sum);
}

static void oracle_lamb(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double t = ++s[2 * dim], r[64];
    for (size_t i = 0; i < dim; i++) {
        double d = g[i] + h[1] * w[i];
        s[i] = h[2] * s[i] + (1 - h[2]) * d;
        s[dim + i] = h[3] * s[dim + i] + (1 - h[3]) * d * d;
        double m = s[i] / (1 - pow(h[2], t)), v = s[dim + i] / (1 - pow(h[3], t));
        r[i] = m / (sqrt(v) + h[4]) + h[5] * w[i];
    }
    double rate = h[0] * norm_of(w, dim) / norm_of(r, dim);
    for (size_t i = 0; i < dim; i++) {
        w[i] -= rate * r[i];
    }
}

static void oracle_lars(const double *h, double *w, double *s, const double *g, size_t dim)
{
    double nw = norm_of(w, dim), local = h[3] * nw / (norm_of(g, dim) + h[1] * nw + h[4]);
    for (size_t i = 0; i < dim; i++) {
        s[i] = h[2] * s[i] + h[0] * local * (g[i] + h[1] * w[i]);
        w[i] -= s[i];
    }
}

/* Settings to test: one line for each optimiser and each branch in it. */
static const struct setting {
    const char *name;
    oracle *oracle;
    size_t n;
    const char *names[5];
    double values[5];
    size_t state_of_16; /* state elements of a row of 16 */
} settings[] = {
    {"sgd", oracle_sgd, 2, {"learning_rate", "l2"}, {0.1, 0.01}, 0},
    {"momentum", oracle_momentum, 2, {"momentum", "l2"}, {0.8, 0.01}, 16},
    {"momentum", oracle_momentum, 2, {"momentum", "nesterov"}, {0.9, 1}, 16},
    {"adagrad", oracle_adagrad, 3, {"initial_accumulator", "eps", "l2"}, {0.1, 1e-6, 0.01}, 16},
    {"adagrad", oracle_adagrad, 1, {"learning_rate"}, {0.05}, 16},
    {"rowwise_adagrad", oracle_rowwise, 2, {"initial_accumulator", "l2"}, {0.1, 0.01}, 1},
    {"adam", oracle_adam, 1, {"l2"}, {0.01}, 33},
    {"adam",
     oracle_adam,
     4,
     {"beta1", "beta2", "eps", "learning_rate"},
     {0.5, 0.9, 1e-4, 0.01},
     33},
    {"nesterov", oracle_nesterov, 2, {"momentum", "l2"}, {0.8, 0.01}, 16},
    {"adamw", oracle_adamw, 3, {"learning_rate", "weight_decay", "l2"}, {0.01, 0.1, 0.01}, 33},
    {"adamw", oracle_adamw, 0, {NULL}, {0}, 33},
    {"rowwise_adam", oracle_rowwise_adam, 2, {"learning_rate", "l2"}, {0.01, 0.01}, 18},
    {"adamax", oracle_adamax, 3, {"learning_rate", "l2", "beta2"}, {0.01, 0.01, 0.9}, 33},
    {"rmsprop", oracle_rmsprop, 3, {"rho", "l2", "eps"}, {0.9, 0.01, 1e-6}, 16},
    {"rmsprop_centered", oracle_centered, 3, {"rho", "l2", "eps"}, {0.9, 0.01, 0.1}, 32},
    {"adadelta", oracle_adadelta, 3, {"rho", "l2", "eps"}, {0.8, 0.01, 1e-4}, 32},
    {"ftrl", oracle_ftrl, 3, {"l1", "l2", "beta"}, {0.3, 0.1, 0.5}, 32},
    {"ftrl", oracle_ftrl, 2, {"initial_accumulator", "learning_rate"}, {0.1, 0.5}, 32},
    {"lamb", oracle_lamb, 3, {"learning_rate", "l2", "weight_decay"}, {0.01, 0.01, 0.1}, 33},
    {"lars", oracle_lars, 3, {"learning_rate", "l2", "trust"}, {0.5, 0.01, 0.02}, 16},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static const num_optim *prepared(const struct setting *s, float *hyper)
{
    const num_optim *opt = num_optim_find(s->name);
    assert_non_null(opt);
    assert_int_equal(num_optim_hyper(opt, s->names, s->values, s->n, hyper, NULL), BD_OK);
    return opt;
}

static void close_to(double got, double want)
{
    double tolerance = 2e-5 * (1 + fabs(want)); /* 50 steps of f32 roundings */
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.9g, want %.9g", got, want);
    }
}

static void each_step_follows_its_formula(void **state)
{
    (void)state;
    enum { DIM = 19 };
    for (size_t k = 0; k < N_SETTINGS; k++) {
        float hyper[NUM_OPTIM_MAX_HYPER], w[DIM], g[DIM], s[2 * DIM + 1] = {0};
        double h[NUM_OPTIM_MAX_HYPER], dw[DIM], dg[DIM], ds[2 * DIM + 1];
        const num_optim *opt = prepared(&settings[k], hyper);
        size_t n_state = opt->state_elems(DIM);
        bd_rand_normal(1, k, 0, 0, 1, w, DIM);
        opt->init(hyper, s, DIM);
        for (size_t i = 0; i < DIM; i++) {
            dw[i] = (double)w[i];
        }
        for (size_t i = 0; i < n_state; i++) {
            ds[i] = (double)s[i];
        }
        for (size_t i = 0; i < NUM_OPTIM_MAX_HYPER; i++) {
            h[i] = (double)hyper[i];
        }
        for (uint64_t t = 0; t < N_STEPS; t++) {
            bd_rand_normal(2, k, t, 0.1f, 1, g, DIM);
            for (size_t i = 0; i < DIM; i++) {
                dg[i] = (double)g[i];
            }
            opt->step_ref(hyper, w, s, g, DIM);
            settings[k].oracle(h, dw, ds, dg, DIM);
            for (size_t i = 0; i < DIM; i++) {
                close_to((double)w[i], dw[i]);
            }
            for (size_t i = 0; i < n_state; i++) {
                close_to((double)s[i], ds[i]);
            }
        }
        assert_int_equal(opt->state_elems(16), settings[k].state_of_16);
    }
}

/* Equal bits; two NaN count as equal. */
static void same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!(isnan(a[i]) && isnan(b[i]))) {
            assert_memory_equal(&a[i], &b[i], sizeof a[i]);
        }
    }
}

/* Ordinary gradients, with zeros, tiny, huge, infinite and NaN ones sprinkled in when odd. */
static void fill_gradient(float *g, size_t n, uint64_t step)
{
    static const float odd[] = {0.0f, -0.0f, 1e-42f, 3e38f, INFINITY, -INFINITY, NAN};
    bd_rand_normal(5, 5, step, 0, 1, g, n);
    for (size_t i = 0; step % 2 == 1 && i < n; i += 5) {
        g[i] = odd[(i / 5) % (sizeof odd / sizeof odd[0])];
    }
}

static void simd_equals_the_reference_bit_for_bit(void **state)
{
    (void)state;
    static const size_t dims[] = {0, 1, 2, 7, 8, 9, 16, 33, MAX_DIM};
    enum { CAP = 3 * MAX_DIM + 2 };
    float *buf = calloc((size_t)5 * CAP, sizeof *buf);
    float *w = buf + 1, *s = buf + CAP + 1; /* off the vector alignment */
    float *w2 = buf + (size_t)2 * CAP, *s2 = buf + (size_t)3 * CAP, *g = buf + (size_t)4 * CAP + 1;
    for (size_t k = 0; k < N_SETTINGS; k++) {
        float hyper[NUM_OPTIM_MAX_HYPER];
        const num_optim *opt = prepared(&settings[k], hyper);
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            size_t dim = dims[d], n_state = opt->state_elems(dim);
            bd_rand_normal(3, 3, d, 0, 1, w, dim);
            opt->init(hyper, s, dim);
            memcpy(w2, w, dim * sizeof *w);
            memcpy(s2, s, n_state * sizeof *s);
            for (uint64_t t = 0; t < 6; t++) {
                fill_gradient(g, dim, t < 4 ? 0 : t);
                opt->step(hyper, w, s, g, dim);
                opt->step_ref(hyper, w2, s2, g, dim);
                same_bits(w, w2, dim);
                same_bits(s, s2, n_state);
            }
        }
    }
    free(buf);
}

/* Each optimiser of the map has a formula above. */
static void every_optimiser_has_a_formula(void **state)
{
    (void)state;
    for (size_t i = 0; num_optim_at(i) != NULL; i++) {
        size_t n = 0;
        for (size_t k = 0; k < N_SETTINGS; k++) {
            n += strcmp(settings[k].name, num_optim_at(i)->name) == 0 ? 1 : 0;
        }
        if (n == 0) {
            fail_msg("%s has no row in settings[]", num_optim_at(i)->name);
        }
    }
}

/* A rate of 0 (the start of a schedule) leaves every weight as it is; afterwards it trains on. */
static void a_rate_of_zero_moves_nothing(void **state)
{
    (void)state;
    enum { DIM = 11 };
    for (size_t k = 0; k < N_SETTINGS; k++) {
        float hyper[NUM_OPTIM_MAX_HYPER], w[DIM], first[DIM], g[DIM], s[2 * DIM + 1];
        const num_optim *opt = prepared(&settings[k], hyper);
        float rate = hyper[0];
        bd_rand_normal(7, k, 0, 0, 1, w, DIM);
        bd_rand_normal(7, k, 1, 0, 1, g, DIM);
        memcpy(first, w, sizeof w);
        opt->init(hyper, s, DIM);
        hyper[0] = 0;
        opt->step(hyper, w, s, g, DIM);
        assert_memory_equal(w, first, sizeof w);
        hyper[0] = rate;
        opt->step(hyper, w, s, g, DIM);
        assert_true(num_all_finite(w, DIM));
        assert_memory_not_equal(w, first, sizeof w);
    }
}

/* A row that starts at 0 has no size to scale by, and must still learn. */
static void rows_of_zeros_learn(void **state)
{
    (void)state;
    enum { DIM = 9 };
    for (size_t k = 0; num_optim_at(k) != NULL; k++) {
        const num_optim *opt = num_optim_at(k);
        float hyper[NUM_OPTIM_MAX_HYPER], w[DIM] = {0}, g[DIM], s[2 * DIM + 1];
        assert_int_equal(num_optim_hyper(opt, NULL, NULL, 0, hyper, NULL), BD_OK);
        opt->init(hyper, s, DIM);
        for (size_t t = 0; t < 20; t++) { /* the gradient of (w - 3)^2 / 2 */
            for (size_t i = 0; i < DIM; i++) {
                g[i] = w[i] - 3;
            }
            opt->step(hyper, w, s, g, DIM);
        }
        for (size_t i = 0; i < DIM; i++) {
            assert_true(w[i] > 0 && w[i] < 6);
        }
        memset(g, 0, sizeof g);
        memset(w, 0, sizeof w);
        opt->init(hyper, s, DIM);
        opt->step(hyper, w, s, g, DIM);
        for (size_t i = 0; i < DIM; i++) {
            assert_true(w[i] == 0); /* nothing to learn: no NaN from 0 / 0 */
        }
    }
}

static void ftrl_keeps_small_weights_at_zero(void **state)
{
    (void)state;
    float hyper[NUM_OPTIM_MAX_HYPER], w[2] = {0}, s[4];
    const num_optim *opt = num_optim_find("ftrl");
    const char *names[] = {"l1"};
    const double values[] = {1};
    assert_int_equal(num_optim_hyper(opt, names, values, 1, hyper, NULL), BD_OK);
    opt->init(hyper, s, 2);
    for (int t = 0; t < 10; t++) {
        const float g[2] = {t % 2 == 0 ? 0.5f : -0.5f, -0.5f};
        opt->step(hyper, w, s, g, 2);
    }
    assert_true(w[0] == 0);
    assert_true(w[1] > 0);
}

static void adam_counts_each_row_for_itself(void **state)
{
    (void)state;
    float hyper[NUM_OPTIM_MAX_HYPER];
    const num_optim *opt = num_optim_find("adam");
    assert_int_equal(num_optim_hyper(opt, NULL, NULL, 0, hyper, NULL), BD_OK);
    float w[1] = {1}, s[3], g[1] = {0.5f};
    opt->init(hyper, s, 1);
    opt->step(hyper, w, s, g, 1);
    close_to((double)w[0], 1 - 0.001); /* the first step is the learning rate, whatever g is */
    assert_true(s[2] == 1);
    s[2] = 0x1p24f;
    opt->step(hyper, w, s, g, 1);
    assert_true(s[2] == 0x1p24f);
    assert_true(isfinite(w[0]));
}

static void names_are_found_and_slips_explained(void **state)
{
    (void)state;
    size_t n = 0;
    for (; num_optim_at(n) != NULL; n++) {
        const num_optim *opt = num_optim_at(n);
        assert_ptr_equal(num_optim_find(opt->name), opt);
        assert_string_equal(opt->hypers[0].name, "learning_rate");
        assert_string_equal(opt->hypers[1].name, "l2");
        assert_true(opt->n_hypers <= NUM_OPTIM_MAX_OWN);
        assert_true(strlen(opt->help) > 0);
        for (size_t i = 0; i < opt->n_hypers; i++) {
            assert_true(opt->hypers[i].def >= opt->hypers[i].min);
            assert_true(opt->hypers[i].def <= opt->hypers[i].max);
        }
    }
    assert_int_equal(n, 15);
    assert_null(num_optim_find("adamv"));
}

static void wrong_hyperparameters_are_named(void **state)
{
    (void)state;
    const num_optim *opt = num_optim_find("adagrad");
    float hyper[NUM_OPTIM_MAX_HYPER] = {-1};
    bd_err err = BD_ERR_INIT;
    const char *slip[] = {"initial_acumulator"}, *alien[] = {"beta1"}, *lr[] = {"learning_rate"};
    const double one[] = {1}, negative[] = {-1}, nan[] = {(double)NAN};
    assert_int_equal(num_optim_hyper(opt, slip, one, 1, hyper, &err), BD_E_INVALID);
    assert_string_equal(err.text, "adagrad: unknown hyperparameter initial_acumulator, did you "
                                  "mean initial_accumulator?");
    assert_int_equal(num_optim_hyper(opt, alien, one, 1, hyper, &err), BD_E_INVALID);
    assert_string_equal(err.text, "adagrad: unknown hyperparameter beta1");
    assert_int_equal(num_optim_hyper(opt, lr, negative, 1, hyper, &err), BD_E_INVALID);
    assert_string_equal(err.text, "adagrad: learning_rate=-1 must be from 0 to 1e+06");
    assert_int_equal(num_optim_hyper(opt, lr, nan, 1, hyper, &err), BD_E_INVALID);
    assert_true(hyper[0] == -1); /* untouched on failure */
}

/* ---- the common hyperparameters ---- */

/* A step of sgd with rate 1, so that the weights show the gradient that was used. */
static void apply_sgd(const char *name, double value, float *w, const float *g, size_t dim)
{
    const num_optim *opt = num_optim_find("sgd");
    const char *names[] = {"learning_rate", name};
    const double values[] = {1, value};
    float hyper[NUM_OPTIM_MAX_HYPER], scratch[16];
    assert_int_equal(num_optim_hyper(opt, names, values, 2, hyper, NULL), BD_OK);
    num_optim_apply(opt, hyper, w, NULL, g, dim, scratch);
}

static void gradients_and_weights_are_kept_in_bounds(void **state)
{
    (void)state;
    const float g[3] = {-3, 0.5f, 4};
    float w[3] = {0};
    apply_sgd("clip_value", 1, w, g, 3);
    assert_true(w[0] == 1 && w[1] == -0.5f && w[2] == -1);

    float v[2] = {0};
    const float g2[2] = {-3, 4};
    apply_sgd("clip_norm", 2.5, v, g2, 2);
    assert_true(v[0] == 1.5f && v[1] == -2);
    memset(v, 0, sizeof v);
    apply_sgd("clip_norm", 5, v, g2, 2); /* it is 5: left alone */
    assert_true(v[0] == 3 && v[1] == -4);

    memset(v, 0, sizeof v);
    apply_sgd("max_norm", 0.5, v, g2, 2);
    close_to((double)v[0], 0.3);
    close_to((double)v[1], -0.4);

    float u[2] = {2, -2};
    const float none[2] = {0};
    apply_sgd("weight_decay", 0.25, u, none, 2);
    assert_true(u[0] == 1.5f && u[1] == -1.5f);

    const float broken[2] = {INFINITY, NAN};
    apply_sgd("clip_norm", 1, u, broken, 2);
    assert_true(!isfinite(u[0]) && isnan(u[1])); /* clipping hides nothing */
}

/* With all of them on: SIMD equals the reference, and g is unchanged unless it is the scratch. */
static void common_hyperparameters_are_the_same_with_simd(void **state)
{
    (void)state;
    enum { DIM = 43 };
    static const char *names[] = {"clip_value", "clip_norm", "weight_decay", "max_norm"};
    static const double values[] = {1.5, 2, 0.01, 3};
    for (size_t k = 0; num_optim_at(k) != NULL; k++) {
        const num_optim *opt = num_optim_at(k);
        float hyper[NUM_OPTIM_MAX_HYPER], w[DIM], w2[DIM], s[2 * DIM + 1], s2[2 * DIM + 1];
        float g[DIM], kept[DIM], scratch[DIM];
        size_t n_names = opt->derived ? 2 : 4;
        assert_int_equal(num_optim_hyper(opt, names, values, n_names, hyper, NULL), BD_OK);
        bd_rand_normal(8, k, 0, 0, 1, w, DIM);
        memcpy(w2, w, sizeof w);
        opt->init(hyper, s, DIM);
        opt->init(hyper, s2, DIM);
        for (uint64_t t = 0; t < 8; t++) {
            fill_gradient(g, DIM, t < 6 ? 0 : t);
            memcpy(kept, g, sizeof g);
            num_optim_apply(opt, hyper, w, s, g, DIM, scratch);
            same_bits(g, kept, DIM);
            num_optim_apply_ref(opt, hyper, w2, s2, g, DIM, g);
            same_bits(w, w2, DIM);
            same_bits(s, s2, opt->state_elems(DIM));
            assert_true(t >= 6 || opt->derived || sqrt(num_sumsq(w, DIM)) < 3.0001);
        }
    }
}

static void common_names_are_found_behind_the_own_ones(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    float hyper[NUM_OPTIM_MAX_HYPER];
    const double one[] = {1};
    const char *decay[] = {"weight_decay"}, *slip[] = {"clip_norn"};
    const num_optim *ftrl = num_optim_find("ftrl"), *adamw = num_optim_find("adamw");
    assert_int_equal(num_optim_place(adamw, "weight_decay"), 5); /* its own hides the common one */
    assert_int_equal(num_optim_place(num_optim_find("sgd"), "weight_decay"),
                     NUM_OPTIM_WEIGHT_DECAY);
    assert_int_equal(num_optim_place(ftrl, "weight_decay"), NUM_OPTIM_MAX_HYPER);
    assert_int_equal(num_optim_hyper(ftrl, decay, one, 1, hyper, &err), BD_E_INVALID);
    assert_int_equal(num_optim_hyper(adamw, slip, one, 1, hyper, &err), BD_E_INVALID);
    assert_string_equal(err.text,
                        "adamw: unknown hyperparameter clip_norn, did you mean clip_norm?");
    for (size_t k = 0; num_optim_at(k) != NULL; k++) { /* places are distinct, names are too */
        uint32_t seen = 0;
        size_t place = 0;
        const num_hyper *h = NULL;
        for (size_t i = 0; (h = num_optim_hyper_at(num_optim_at(k), i, &place)) != NULL; i++) {
            assert_true(place < NUM_OPTIM_MAX_HYPER && (seen & 1u << place) == 0);
            assert_int_equal(num_optim_place(num_optim_at(k), h->name), place);
            seen |= 1u << place;
        }
    }
}

static void lists_of_hyperparameters_are_read(void **state)
{
    (void)state;
    num_hyper_list l;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(num_hyper_list_parse("", &l, &err), BD_OK);
    assert_int_equal(l.n, 0);
    assert_int_equal(num_hyper_list_parse(" beta1=0.8,eps = 1e-6 , nesterov=1 ", &l, &err), BD_OK);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.names[0], "beta1");
    assert_string_equal(l.names[1], "eps");
    assert_string_equal(l.names[2], "nesterov");
    assert_true(l.values[0] == 0.8 && l.values[1] == 1e-6 && l.values[2] == 1);
    static const char *bad[] = {"beta1", "=1", "beta1=", "a=1 2", "a=1,,b=2", "a=1;b=2", " = 3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(num_hyper_list_parse(bad[i], &l, &err), BD_E_INVALID);
    }
    assert_int_equal(num_hyper_list_parse("x=1, y", &l, &err), BD_E_INVALID);
    assert_string_equal(err.text, "\"y\" is not name=number");
    char lots[600];
    memset(lots, 'x', sizeof lots);
    lots[599] = '\0';
    assert_int_equal(num_hyper_list_parse(lots, &l, &err), BD_E_INVALID);
    char many[] = "a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1";
    assert_int_equal(num_hyper_list_parse(many, &l, &err), BD_E_INVALID);
}

static void sums_have_a_fixed_order(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 8, 9, 1023, MAX_DIM};
    float *x = malloc((MAX_DIM + 1) * sizeof *x);
    bd_rand_normal(4, 4, 4, 0, 1e3f, x, MAX_DIM + 1);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        double a = num_sumsq(x + 1, sizes[k]), b = num_sumsq_ref(x + 1, sizes[k]);
        assert_memory_equal(&a, &b, sizeof a);
        a = num_sum(x + 1, sizes[k]);
        b = num_sum_ref(x + 1, sizes[k]);
        assert_memory_equal(&a, &b, sizeof a);
    }
    const float three[] = {3, -4, 12};
    assert_true(num_sumsq(three, 3) == 169 && num_sum(three, 3) == 11);
    free(x);
}

static void what_is_not_finite_is_found_anywhere(void **state)
{
    (void)state;
    enum { N = 2500 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x[N];
    bd_rand_normal(6, 6, 6, 0, 1, x, N);
    x[3] = 3.4e38f; /* large, but finite */
    assert_true(num_all_finite(x, N) && num_all_finite(x, 0));
    assert_int_equal(num_first_not_finite(x, N), N);
    for (size_t i = 0; i < N; i += 83) {
        float kept = x[i];
        x[i] = bad[i % 3];
        assert_false(num_all_finite(x, N));
        assert_true(num_all_finite(x, i));
        assert_int_equal(num_first_not_finite(x, N), i);
        x[i] = kept;
    }
}

static void axpy_and_hash(void **state)
{
    (void)state;
    float y[3] = {1, 2, 3};
    const float x[3] = {10, 20, 30};
    num_axpy(y, 0.5f, x, 3);
    assert_true(y[0] == 6 && y[1] == 12 && y[2] == 18);
    float a[67], b[67], from[67];
    for (size_t i = 0; i < 67; i++) {
        a[i] = b[i] = bd_unit_f32((uint32_t)bd_rand_u64(1, 2, i)) - 0.5f;
        from[i] = bd_unit_f32((uint32_t)bd_rand_u64(1, 3, i)) - 0.5f;
    }
    for (size_t n = 0; n <= 67; n++) { /* the SIMD version rounds as the reference does */
        num_axpy(a, 0.3f, from, n);
        num_axpy_ref(b, 0.3f, from, n);
        assert_memory_equal(a, b, sizeof a);
    }
    const float zero[1] = {0.0f}, negative[1] = {-0.0f};
    assert_true(num_hash(zero, 1, 0) != num_hash(negative, 1, 0));
    assert_true(num_hash(zero, 1, 0) != num_hash(zero, 1, 1));
    assert_true(num_hash(x, 3, 7) == num_hash(x, 3, 7));
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_follows_its_formula),
        cmocka_unit_test(simd_equals_the_reference_bit_for_bit),
        cmocka_unit_test(every_optimiser_has_a_formula),
        cmocka_unit_test(a_rate_of_zero_moves_nothing),
        cmocka_unit_test(rows_of_zeros_learn),
        cmocka_unit_test(ftrl_keeps_small_weights_at_zero),
        cmocka_unit_test(gradients_and_weights_are_kept_in_bounds),
        cmocka_unit_test(common_hyperparameters_are_the_same_with_simd),
        cmocka_unit_test(common_names_are_found_behind_the_own_ones),
        cmocka_unit_test(adam_counts_each_row_for_itself),
        cmocka_unit_test(names_are_found_and_slips_explained),
        cmocka_unit_test(wrong_hyperparameters_are_named),
        cmocka_unit_test(lists_of_hyperparameters_are_read),
        cmocka_unit_test(sums_have_a_fixed_order),
        cmocka_unit_test(what_is_not_finite_is_found_anywhere),
        cmocka_unit_test(axpy_and_hash),
    };
    return tu_run_with_and_without_simd(argv, cmocka_run_group_tests(tests, NULL, NULL));
}
