/* First rows: pure functions of (seed, table, key, element), with the moments their names promise.
 */
#include "base/num/init.h"
#include "base/rand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 64, N_ROWS = 4000, N = DIM * N_ROWS };

/* One line for each initialiser and each branch in it: parameters, and what follows from them. */
static const struct setting {
    const char *name;
    size_t n;
    const char *names[3];
    double values[3];
    double mean, stddev, low, high; /* expected */
} settings[] = {
    {"uniform", 0, {NULL}, {0}, 0, 0.1 / 3.4641016, -0.05, 0.05},
    {"uniform", 2, {"low", "high"}, {1, 3}, 2, 2 / 3.4641016, 1, 3},
    {"uniform", 2, {"low", "high"}, {0.25, 0.25}, 0.25, 0, 0.25, 0.25},
    {"normal", 2, {"mean", "stddev"}, {0.5, 2}, 0.5, 2, -15, 16},
    {"normal", 2, {"mean", "stddev"}, {0.5, 0}, 0.5, 0, 0.5, 0.5},
    /* a standard normal cut at 2: variance 1 - 4 phi(2) / (2 Phi(2) - 1) = 0.8796^2 */
    {"truncated_normal", 2, {"mean", "stddev"}, {1, 0.5}, 1, 0.5 * 0.87962566, 0, 2},
    {"constant", 0, {NULL}, {0}, 0, 0, 0, 0},
    {"constant", 1, {"value"}, {-3}, -3, 0, -3, -3},
    {"xavier_uniform", 0, {NULL}, {0}, 0, 0.125, -0.2165064, 0.2165064}, /* sqrt(6 / 128) */
    {"xavier_uniform",
     3,
     {"gain", "fan_in", "fan_out"},
     {2, 100, 50},
     0,
     2 * 0.11547005,
     -0.4,
     0.4},
    {"xavier_normal", 0, {NULL}, {0}, 0, 0.125, -1, 1},
    {"xavier_normal", 2, {"fan_in", "fan_out"}, {100, 50}, 0, 0.11547005, -1, 1},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static const num_init *prepared(const struct setting *s, float *param)
{
    const num_init *in = num_init_find(s->name);
    assert_non_null(in);
    assert_int_equal(num_init_params(in, s->names, s->values, s->n, param, NULL), BD_OK);
    return in;
}

static void values_have_their_moments(void **state)
{
    (void)state;
    float *x = malloc(N * sizeof *x);
    for (size_t k = 0; k < N_SETTINGS; k++) {
        const struct setting *s = &settings[k];
        float param[NUM_INIT_MAX_PARAMS];
        const num_init *in = prepared(s, param);
        uint64_t table = num_init_key(7, "items");
        double sum = 0, squares = 0;
        for (uint64_t row = 0; row < N_ROWS; row++) {
            num_init_row(in, param, table, row, x + row * DIM, DIM);
        }
        for (size_t i = 0; i < N; i++) {
            assert_true((double)x[i] >= s->low - 1e-6 && (double)x[i] <= s->high + 1e-6);
            sum += (double)x[i];
        }
        for (size_t i = 0; i < N; i++) {
            squares += ((double)x[i] - sum / N) * ((double)x[i] - sum / N);
        }
        double stddev = sqrt(squares / N);
        double mean_error = fabs(sum / N - s->mean), spread_error = fabs(stddev - s->stddev);
        if (mean_error > 5 * s->stddev / sqrt(N) + 1e-6 || spread_error > 0.01 * s->stddev + 1e-9) {
            fail_msg("%s: mean %g, stddev %g", s->name, sum / N, stddev);
        }
    }
    free(x);
}

/* The same on every call; another for another key, table or seed; elements do not depend on dim. */
static void rows_are_pure_functions(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_SETTINGS; k++) {
        float param[NUM_INIT_MAX_PARAMS], a[DIM], b[DIM];
        const num_init *in = prepared(&settings[k], param);
        const uint64_t tables[] = {num_init_key(7, "items"), num_init_key(8, "items"),
                                   num_init_key(7, "users"), num_init_key(7, "items")};
        const uint64_t keys[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0};
        num_init_row(in, param, tables[0], UINT64_MAX, a, DIM);
        num_init_row(in, param, tables[0], UINT64_MAX, b, DIM);
        assert_memory_equal(a, b, sizeof a);
        for (size_t i = 1; i < 4; i++) {
            num_init_row(in, param, tables[i], keys[i], b, DIM);
            bool differ = a[0] != b[0] || a[DIM - 1] != b[DIM - 1];
            assert_true(differ == (settings[k].stddev > 0));
        }
        bool own_fan = strncmp(in->name, "xavier", 6) != 0 || settings[k].n > 1;
        for (size_t dim = 0; own_fan && dim < DIM; dim += 7) {
            num_init_row(in, param, tables[0], UINT64_MAX, b, dim);
            assert_memory_equal(a, b, dim * sizeof *a);
        }
    }
}

/* Trained tables hold on to these: computed once from the formulas in init.c and rand.h. */
static void values_never_change(void **state)
{
    (void)state;
    static const float golden[6][3] = {{-0x1.84cb68p-7f, -0x1.92dbfep-5f, 0x1.3359a4p-6f},
                                       {-0x1.32cd48p-6f, -0x1.72f258p-5f, -0x1.7bc3fcp-5f},
                                       {-0x1.32cd48p-6f, -0x1.72f258p-5f, -0x1.7bc3fep-5f},
                                       {0, 0, 0},
                                       {-0x1.e5fe4p-3f, -0x1.f792fcp-1f, 0x1.803008p-2f},
                                       {-0x1.bad492p-3f, -0x1.0bb52ap-1f, -0x1.12127ap-1f}};
    for (size_t k = 0; num_init_at(k) != NULL; k++) {
        const num_init *in = num_init_at(k);
        float param[NUM_INIT_MAX_PARAMS], x[3];
        assert_int_equal(num_init_params(in, NULL, NULL, 0, param, NULL), BD_OK);
        num_init_row(in, param, num_init_key(42, "t"), 12345, x, 3);
        for (size_t i = 0; i < 3; i++) {
            if (x[i] != golden[k][i]) {
                fail_msg("%s element %zu: %a, was %a", in->name, i, (double)x[i],
                         (double)golden[k][i]);
            }
        }
    }
    /* What servers wrote before there was this table. */
    float param[NUM_INIT_MAX_PARAMS] = {-0.5f, 0.5f}, x[9], y[9];
    uint64_t k = bd_mix64(5 ^ bd_mix64(bd_hash64("abc", 3, 0)));
    num_init_row(num_init_find("uniform"), param, num_init_key(5, "abc"), 77, x, 9);
    bd_rand_uniform(k, 0, 77, -0.5f, 0.5f, y, 9);
    assert_memory_equal(x, y, sizeof x);
    num_init_row(num_init_find("normal"), param, num_init_key(5, "abc"), 77, x, 9);
    bd_rand_normal(k, 0, 77, -0.5f, 0.5f, y, 9);
    assert_memory_equal(x, y, sizeof x);
}

static void wrong_parameters_are_named(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    float param[NUM_INIT_MAX_PARAMS] = {9, 9, 9};
    const char *low[] = {"low"}, *slip[] = {"stdev"}, *alien[] = {"value"};
    const double one[] = {1}, negative[] = {-1}, nan[] = {(double)NAN};
    const num_init *uniform = num_init_find("uniform"), *normal = num_init_find("normal");
    assert_int_equal(num_init_params(uniform, low, one, 1, param, &err), BD_E_INVALID);
    assert_string_equal(err.text, "uniform: low is above high");
    assert_int_equal(num_init_params(uniform, low, nan, 1, param, &err), BD_E_INVALID);
    assert_string_equal(err.text, "uniform: low=nan must be from -1e+30 to 1e+30");
    assert_int_equal(num_init_params(normal, slip, one, 1, param, &err), BD_E_INVALID);
    assert_string_equal(err.text, "normal: unknown parameter stdev, did you mean stddev?");
    assert_int_equal(num_init_params(normal, alien, one, 1, param, &err), BD_E_INVALID);
    assert_string_equal(err.text, "normal: unknown parameter value");
    slip[0] = "stddev";
    assert_int_equal(num_init_params(normal, slip, negative, 1, param, &err), BD_E_INVALID);
    assert_true(param[0] == 9 && param[2] == 9); /* untouched on failure */
    assert_null(num_init_find("zeros"));
}

static void every_initialiser_is_tested(void **state)
{
    (void)state;
    for (size_t i = 0; num_init_at(i) != NULL; i++) {
        size_t n = 0;
        for (size_t k = 0; k < N_SETTINGS; k++) {
            n += strcmp(settings[k].name, num_init_at(i)->name) == 0 ? 1 : 0;
        }
        assert_true(n > 0 && num_init_at(i)->n_params <= NUM_INIT_MAX_PARAMS);
        assert_ptr_equal(num_init_find(num_init_at(i)->name), num_init_at(i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_moments),   cmocka_unit_test(rows_are_pure_functions),
        cmocka_unit_test(values_never_change),         cmocka_unit_test(wrong_parameters_are_named),
        cmocka_unit_test(every_initialiser_is_tested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
