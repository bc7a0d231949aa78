/* Keys of `braid bench ps`: the power law is the power law, whatever the exponent, and every row
 * has a key of its own. */
#include "base/mem.h"

#include "cli/cli_bench_keys.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Pearson's chi-squared of n draws against P(r) ~ 1 / (r + 1)^s. */
static double chi_squared(uint64_t n_rows, double s, size_t n)
{
    cli_bench_keys k;
    double sum = 0, chi = 0;
    uint32_t *count = bd_calloc(n_rows, sizeof *count);
    assert_non_null(count);
    cli_bench_keys_init(&k, n_rows, s);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = cli_bench_keys_row(&k, 7, i);
        assert_true(r < n_rows);
        count[r]++;
    }
    for (uint64_t r = 0; r < n_rows; r++) {
        sum += pow((double)(r + 1), -s);
    }
    for (uint64_t r = 0; r < n_rows; r++) {
        double want = (double)n * pow((double)(r + 1), -s) / sum;
        chi += ((double)count[r] - want) * ((double)count[r] - want) / want;
    }
    bd_free(count);
    return chi;
}

/* 49 degrees of freedom: 85.35 is passed once in 1000 seeds, and the seed is fixed. */
static void test_power_law(void **state)
{
    (void)state;
    const double exponents[] = {0.5, 1.0, 1.05, 2.0};
    for (size_t i = 0; i < sizeof exponents / sizeof exponents[0]; i++) {
        assert_true(chi_squared(50, exponents[i], 50000) < 85.35);
    }
}

static void test_uniform(void **state)
{
    (void)state;
    assert_true(chi_squared(50, 0, 50000) < 85.35);
}

/* One row; a number of rows that no table could hold; the same draw twice. */
static void test_edges(void **state)
{
    (void)state;
    cli_bench_keys k;
    cli_bench_keys_init(&k, 1, 1.05);
    assert_int_equal(cli_bench_keys_row(&k, 0, 3), 0);
    cli_bench_keys_init(&k, 1ull << 40, 1.05);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t r = cli_bench_keys_row(&k, 1, i);
        assert_true(r < 1ull << 40);
        assert_true(r == cli_bench_keys_row(&k, 1, i));
    }
    assert_true(cli_bench_key(0) != cli_bench_key(1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_law),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
