/* Random numbers and hashes are part of the model: golden values, ranges, moments, independence. */
#include "base/rand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The known answers of Random123 for philox4x32-10. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, c0, c1;
        uint32_t want[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t got[4];
        bd_philox(cases[i].key, cases[i].c0, cases[i].c1, got);
        assert_memory_equal(got, cases[i].want, sizeof got);
    }
}

static void hashes_give_the_known_answers(void **state)
{
    (void)state;
    assert_true(bd_fnv1a64("", 0) == 0xcbf29ce484222325);
    assert_true(bd_fnv1a64("a", 1) == 0xaf63dc4c8601ec8c);
    assert_true(bd_fnv1a64("1\t1", 3) == 0x45f44c181893601a);
    assert_true(bd_hash64("", 0, 0) == 0x2d06800538d394c2); /* XXH3-64 of nothing */
    assert_true(bd_hash64("a", 1, 0) != bd_hash64("a", 1, 1));
    assert_true(bd_mix64(0) == 0xe220a8397b1dcdaf); /* first output of splitmix64 with seed 0 */
}

/* These rows must stay the same for ever: they are what a table of an old job starts with. */
static void rows_are_frozen(void **state)
{
    (void)state;
    float u[5], n[5];
    bd_rand_uniform(42, 7, 12345, -0.5f, 0.5f, u, 5);
    bd_rand_normal(42, 7, 12345, 0, 1, n, 5);
    static const float want_u[5] = {0x1.24f2140000000p-2f, -0x1.a6f6000000000p-9f,
                                    -0x1.60a1700000000p-3f, 0x1.eb9fd00000000p-4f,
                                    -0x1.53dff40000000p-2f};
    static const float want_n[5] = {-0.824878037f, 1.5504452f, -0.353869945f, -0.492788613f,
                                    -0.511045873f};
    assert_memory_equal(u, want_u, sizeof u);
    for (int i = 0; i < 5; i++) { /* the last bit is the C library's */
        assert_true(fabsf(n[i] - want_n[i]) <= 1e-6f * (1 + fabsf(want_n[i])));
    }
    assert_true(bd_rand_u64(42, 7, 12345) == 0xc93c85da7f2c855e);
}

static void an_element_does_not_depend_on_the_length(void **state)
{
    (void)state;
    float whole[33], part[33];
    bd_rand_uniform(1, 2, 3, 0, 1, whole, 33);
    for (size_t n = 0; n <= 33; n++) {
        memset(part, 0, sizeof part);
        bd_rand_uniform(1, 2, 3, 0, 1, part, n);
        assert_memory_equal(part, whole, n * sizeof part[0]);
    }
    bd_rand_normal(1, 2, 3, 0, 1, whole, 33);
    for (size_t n = 0; n <= 33; n++) {
        bd_rand_normal(1, 2, 3, 0, 1, part, n);
        assert_memory_equal(part, whole, n * sizeof part[0]);
    }
}

enum { N = 200000 };

static void uniform_fills_its_range_evenly(void **state)
{
    (void)state;
    float *x = malloc(N * sizeof *x);
    int bins[10] = {0};
    double sum = 0;
    bd_rand_uniform(9, 9, 9, -2, 3, x, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(x[i] >= -2 && x[i] < 3);
        sum += (double)x[i];
        bins[(int)(((double)x[i] + 2) * 2)]++;
    }
    assert_true(fabs(sum / N - 0.5) < 0.02); /* 6 sigma */
    for (int b = 0; b < 10; b++) {
        assert_true(abs(bins[b] - N / 10) < 900); /* 6 sigma */
    }
    free(x);
}

static void normal_has_its_moments(void **state)
{
    (void)state;
    float *x = malloc(N * sizeof *x);
    double m1 = 0, m2 = 0, m4 = 0;
    bd_rand_normal(9, 10, 9, 1, 2, x, N);
    for (size_t i = 0; i < N; i++) {
        double z = ((double)x[i] - 1) / 2;
        assert_true(isfinite(z));
        m1 += z;
        m2 += z * z;
        m4 += z * z * z * z;
    }
    assert_true(fabs(m1 / N) < 0.014);
    assert_true(fabs(m2 / N - 1) < 0.02);
    assert_true(fabs(m4 / N - 3) < 0.15);
    free(x);
}

/* Neighbouring keys, streams and indices look unrelated: about half of the bits differ. */
static void neighbours_are_unrelated(void **state)
{
    (void)state;
    long n_bits[3] = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t here = bd_rand_u64(i, 5, 6);
        n_bits[0] += __builtin_popcountll(here ^ bd_rand_u64(i + 1, 5, 6));
        n_bits[1] += __builtin_popcountll(bd_rand_u64(5, i, 6) ^ bd_rand_u64(5, i + 1, 6));
        n_bits[2] += __builtin_popcountll(bd_rand_u64(5, 6, i) ^ bd_rand_u64(5, 6, i + 1));
    }
    for (int k = 0; k < 3; k++) {
        assert_true(labs(n_bits[k] - 32000) < 800); /* 6 sigma */
    }
}

static void units_are_below_one(void **state)
{
    (void)state;
    assert_true(bd_unit_f32(UINT32_MAX) < 1 && bd_unit_f32(0) == 0);
    assert_true(bd_unit_f64(UINT64_MAX) < 1 && bd_unit_f64(0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(hashes_give_the_known_answers),
        cmocka_unit_test(rows_are_frozen),
        cmocka_unit_test(an_element_does_not_depend_on_the_length),
        cmocka_unit_test(uniform_fills_its_range_evenly),
        cmocka_unit_test(normal_has_its_moments),
        cmocka_unit_test(neighbours_are_unrelated),
        cmocka_unit_test(units_are_below_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
