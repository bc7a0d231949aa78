/* Metrics against brute force and hand-made values; schedules at their corners. */
#include "base/rand.h"

#include "worker/wk_metrics.h"
#include "worker/wk_sched.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static double auc_by_pairs(const float *s, const float *y, size_t n)
{
    double in_order = 0, pairs = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            if (y[i] > 0.5f && y[j] < 0.5f) {
                pairs += 1;
                in_order += s[i] > s[j] ? 1 : s[i] == s[j] ? 0.5 : 0;
            }
        }
    }
    return in_order / pairs;
}

static void auc_equals_the_count_of_pairs_with_ties_as_halves(void **state)
{
    (void)state;
    enum { N = 301 };
    float s[N], y[N];
    for (uint64_t trial = 0; trial < 20; trial++) {
        uint64_t levels = 1 + trial * trial; /* few levels: many ties */
        for (uint64_t i = 0; i < N; i++) {
            s[i] = (float)(bd_rand_u64(trial, 0, i) % levels) - (float)levels / 2.0f;
            y[i] = (float)(bd_rand_u64(trial, 1, i) % 3 == 0);
        }
        double auc = 0;
        assert_int_equal(wk_auc(s, y, N, &auc, NULL), BD_OK);
        assert_true(fabs(auc - auc_by_pairs(s, y, N)) < 1e-12);
    }
}

static void auc_knows_its_corners(void **state)
{
    (void)state;
    double auc = 0;
    const float zeros[] = {-0.0f, 0.0f}, y[] = {1, 0}, ones[] = {1, 1};
    const float s[] = {-1e30f, 1e30f};
    assert_int_equal(wk_auc(zeros, y, 2, &auc, NULL), BD_OK);
    assert_true(auc == 0.5); /* -0 ties with +0 */
    assert_int_equal(wk_auc(s, y, 2, &auc, NULL), BD_OK);
    assert_true(auc == 0.0);
    assert_int_equal(wk_auc(s, ones, 2, &auc, NULL), BD_OK);
    assert_true(isnan(auc));
    assert_int_equal(wk_auc(s, y, 0, &auc, NULL), BD_OK);
    assert_true(isnan(auc));
}

static void binary_metrics_have_their_textbook_values(void **state)
{
    (void)state;
    const float z[] = {0.0f, 2.0f, -1.0f, 100.0f}, y[] = {1, 1, 0, 0};
    wk_metrics m;
    double p1 = 1 / (1 + exp(-2.0)), p2 = 1 / (1 + exp(1.0));
    assert_int_equal(wk_metrics_compute(z, y, 4, true, &m, NULL), BD_OK);
    assert_true(fabs(m.logloss - (log(2.0) - log(p1) - log(1 - p2) + 100.0) / 4) < 1e-9);
    assert_true(m.accuracy == 0.5); /* logit 0 is no for y = 1; 100 is wrong */
    assert_true(fabs(m.rmse - sqrt((0.25 + (1 - p1) * (1 - p1) + p2 * p2 + 1) / 4)) < 1e-9);
    assert_true(fabs(m.norm_entropy - m.logloss / log(2.0)) < 1e-12);
    assert_int_equal(m.n_positive, 2);
    assert_true(m.auc == 0.5);
}

static void value_metrics_are_rmse_only(void **state)
{
    (void)state;
    const float z[] = {1, 2}, y[] = {2, 4};
    wk_metrics m;
    assert_int_equal(wk_metrics_compute(z, y, 2, false, &m, NULL), BD_OK);
    assert_true(fabs(m.rmse - sqrt(2.5)) < 1e-12);
    assert_true(isnan(m.auc) && isnan(m.logloss));
}

static void a_score_that_is_no_number_is_named(void **state)
{
    (void)state;
    const float z[] = {1, NAN}, y[] = {1, 0};
    wk_metrics m;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(wk_metrics_compute(z, y, 2, true, &m, &err), BD_E_NUMERIC);
    assert_string_equal(bd_err_text(&err), "evaluation: the score of row 1 is nan");
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

static void schedules_pass_through_their_corners(void **state)
{
    (void)state;
    wk_job_train t = {.lr_schedule = "constant", .lr_step = 2, .lr_gamma = 0.5, .lr_final = 0.1};
    assert_true(near(wk_lr_factor(&t, 1, 100, 10), 1));
    t.warmup_steps = 10;
    assert_true(near(wk_lr_factor(&t, 1, 100, 10), 0.1));
    assert_true(near(wk_lr_factor(&t, 10, 100, 10), 1));
    t.lr_schedule = "linear";
    assert_true(near(wk_lr_factor(&t, 56, 100, 10), 0.55));
    assert_true(near(wk_lr_factor(&t, 100, 100, 10), 0.11)); /* the last step still moves */
    assert_true(near(wk_lr_factor(&t, 101, 100, 10), 0.1));
    assert_true(near(wk_lr_factor(&t, 200, 100, 10), 0.1)); /* never below */
    t.lr_schedule = "cosine";
    assert_true(near(wk_lr_factor(&t, 56, 100, 10), 0.55));
    assert_true(near(wk_lr_factor(&t, 101, 100, 10), 0.1));
    t.lr_schedule = "step";
    t.warmup_steps = 0;
    assert_true(near(wk_lr_factor(&t, 20, 100, 10), 1));
    assert_true(near(wk_lr_factor(&t, 21, 100, 10), 0.5));
    assert_true(near(wk_lr_factor(&t, 100, 100, 10), 0.0625));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auc_equals_the_count_of_pairs_with_ties_as_halves),
        cmocka_unit_test(auc_knows_its_corners),
        cmocka_unit_test(binary_metrics_have_their_textbook_values),
        cmocka_unit_test(value_metrics_are_rmse_only),
        cmocka_unit_test(a_score_that_is_no_number_is_named),
        cmocka_unit_test(schedules_pass_through_their_corners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
