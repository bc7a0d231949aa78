/* Stored rows: what rounding does and does not do to weights, SIMD against the reference. */
#include "base/num/row_codec.h"
#include "base/rand.h"

#include "tests/util/tu_simd.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_DIM = 1027 };
static const int dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_I8};
enum { N_DTYPES = 4 };

/* Distance of neighbouring values of the format around w, in a row whose largest weight is top. */
static double step_of(int dtype, double w, double top)
{
    switch (dtype) {
    case NUM_F16:
        return fmax(ldexp(1, ilogb(fmax(fabs(w), 1e-30)) - 10), 0x1p-24);
    case NUM_BF16:
        return ldexp(1, ilogb(fmax(fabs(w), 1e-30)) - 7);
    case NUM_I8:
        return top / 127 * (1 + 0x1p-16);
    default:
        return 0;
    }
}

static void through(int dtype, const float *w, size_t dim, uint64_t draw, float *out)
{
    uint32_t row[MAX_DIM + 1];
    num_row_encode(dtype, w, dim, draw, row);
    num_row_decode(dtype, row, dim, out);
}

static void sizes_are_multiples_of_four(void **state)
{
    (void)state;
    assert_int_equal(num_row_bytes(NUM_F32, 3), 12);
    assert_int_equal(num_row_bytes(NUM_F16, 3), 8);
    assert_int_equal(num_row_bytes(NUM_BF16, 4), 8);
    assert_int_equal(num_row_bytes(NUM_I8, 4), 8);
    assert_int_equal(num_row_bytes(NUM_I8, 5), 12);
    assert_int_equal(num_row_bytes(NUM_I64, 5), 0);
    assert_int_equal(num_row_bytes(0, 5), 0);
    assert_int_equal(num_row_bytes(-1, 5), 0);
}

static void check_error(int dtype, double w, double back, double top, bool nearest)
{
    double step = step_of(dtype, w, top), most = nearest ? step / 2 : step;
    if (fabs(back - w) > most * (1 + 1e-4)) {
        fail_msg("%s: %g became %g", num_dtype_name(dtype), w, back);
    }
}

/* Nearest: at most half a step off. Stochastic: less than one step off. */
static void errors_are_bounded(void **state)
{
    (void)state;
    enum { N_SIZES = 20 }; /* from 2^-14, into the subnormals of f16, to 2^5 */
    float w[MAX_DIM], back[MAX_DIM];
    for (uint64_t t = 0; t < (uint64_t)N_DTYPES * N_SIZES; t++) {
        int dtype = dtypes[t / N_SIZES];
        float top = 0;
        bd_rand_normal(1, 1, t, 0, ldexpf(1, (int)(t % N_SIZES) - 14), w, MAX_DIM);
        for (size_t i = 0; i < MAX_DIM; i++) {
            top = fmaxf(top, fabsf(w[i]));
        }
        for (uint64_t draw = 0; draw < 3; draw++) {
            through(dtype, w, MAX_DIM, draw, back);
            for (size_t i = 0; i < MAX_DIM; i++) {
                check_error(dtype, (double)w[i], (double)back[i], (double)top,
                            draw == NUM_ROW_NEAREST);
            }
        }
    }
}

/* Over many draws the mean is the weight: the error of the mean shrinks as chance says, far below
 * the step; and an update much smaller than a step is not lost. */
static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    enum { DIM = 64, N_DRAWS = 4000 };
    for (size_t k = 1; k < N_DTYPES; k++) {
        float w[DIM], back[DIM];
        double sum[DIM] = {0}, z_squares = 0;
        bd_rand_uniform(2, k, 0, -1, 1, w, DIM);
        w[0] = 1.0f;            /* the row's largest */
        w[1] = 0x1.8p-16f;      /* f16 subnormal */
        w[2] = 0.5f + 0x1p-18f; /* 1/16 .. 1/512 of a step above a value */
        for (uint64_t t = 0; t < N_DRAWS; t++) {
            through(dtypes[k], w, DIM, num_row_draw(99, 7, t), back);
            for (size_t i = 0; i < DIM; i++) {
                sum[i] += (double)back[i] - (double)w[i];
            }
        }
        for (size_t i = 1; i < DIM; i++) {
            double step = step_of(dtypes[k], (double)w[i], 1);
            double z = sum[i] / N_DRAWS / (step / 2 / sqrt(N_DRAWS)); /* deviation is <= step / 2 */
            if (fabs(z) > 4.5) {
                fail_msg("%s element %zu: mean is %g steps off", num_dtype_name(dtypes[k]), i,
                         sum[i] / N_DRAWS / step);
            }
            z_squares += z * z;
        }
        assert_true(z_squares / DIM < 1.5); /* its expectation is at most 1 */
        /* What each draw adds to a weight just above a value, it adds up: nearest would lose it. */
        through(dtypes[k], w, DIM, NUM_ROW_NEAREST, back);
        assert_true(dtypes[k] == NUM_I8 || back[2] == 0.5f);
    }
}

/* Elements of a row, rows of a table and writes of a row are rounded independently. */
static void draws_are_independent(void **state)
{
    (void)state;
    enum { DIM = 1000, N_PAIRS = 3 };
    float w[DIM], a[DIM], b[DIM];
    for (size_t i = 0; i < DIM; i++) {
        w[i] = 1 + 0x1p-8f; /* half a step of bf16 above 1 */
    }
    const uint64_t draws[N_PAIRS + 1] = {num_row_draw(1, 5, 9), num_row_draw(2, 5, 9),
                                         num_row_draw(1, 6, 9), num_row_draw(1, 5, 10)};
    through(NUM_BF16, w, DIM, draws[0], a);
    int ups = 0, runs = 0;
    for (size_t i = 0; i < DIM; i++) {
        ups += a[i] > 1 ? 1 : 0;
        runs += i > 0 && a[i] != a[i - 1] ? 1 : 0;
    }
    assert_in_range(ups, 420, 580); /* 5 deviations */
    assert_in_range(runs, 420, 580);
    for (size_t k = 1; k <= N_PAIRS; k++) {
        int same = 0;
        through(NUM_BF16, w, DIM, draws[k], b);
        for (size_t i = 0; i < DIM; i++) {
            same += a[i] == b[i] ? 1 : 0;
        }
        assert_in_range(same, 420, 580);
    }
    through(NUM_BF16, w, DIM, draws[0], b);
    assert_memory_equal(a, b, sizeof a);
}

/* Decoded and encoded again: the same bytes, whatever the draw. */
static void decoded_rows_keep_every_bit(void **state)
{
    (void)state;
    float w[MAX_DIM], back[MAX_DIM];
    uint32_t first[MAX_DIM + 1], again[MAX_DIM + 1];
    for (size_t k = 0; k < N_DTYPES; k++) {
        for (uint64_t t = 0; t < 60; t++) {
            size_t dim = (size_t)(bd_rand_u64(3, k, t) % MAX_DIM);
            bd_rand_normal(3, k, t, 0, ldexpf(1, (int)(t * 4) - 120), w, dim); /* 2^-120 .. 2^116 */
            if (t == 59 && dim > 0) {
                w[0] = FLT_MAX;
            }
            num_row_encode(dtypes[k], w, dim, t, first);
            num_row_decode(dtypes[k], first, dim, back);
            for (uint64_t draw = 0; draw < 4; draw++) {
                num_row_encode(dtypes[k], back, dim, draw, again);
                assert_memory_equal(first, again, num_row_bytes(dtypes[k], dim));
            }
        }
    }
}

/* The same for many short int8 rows: the largest weight of each is 127 steps, whatever the draw. */
static void short_rows_find_their_scale_again(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 20000; t++) {
        float w[3], back[3];
        uint32_t first[2], again[2];
        bd_rand_normal(6, 6, t, 0, 1, w, 3);
        num_row_encode(NUM_I8, w, 3, num_row_draw(1, 2, t), first);
        num_row_decode(NUM_I8, first, 3, back);
        num_row_encode(NUM_I8, back, 3, num_row_draw(3, 4, t), again);
        assert_memory_equal(first, again, sizeof first);
    }
}

/* Zeros are exact; what is not finite never becomes a number; what is too large saturates. */
static void special_values(void **state)
{
    (void)state;
    const float zeros[5] = {0};
    const float odd[5] = {INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX};
    for (size_t k = 0; k < N_DTYPES; k++) {
        for (uint64_t draw = 0; draw < 50; draw++) {
            float back[5];
            through(dtypes[k], zeros, 5, draw, back);
            assert_memory_equal(back, zeros, sizeof back);
            through(dtypes[k], odd, 5, draw, back);
            if (dtypes[k] == NUM_I8) {
                for (size_t i = 0; i < 5; i++) {
                    assert_true(isnan(back[i]));
                }
                through(NUM_I8, odd + 3, 2, draw, back);
                assert_true(back[0] > 0.99f * FLT_MAX && isfinite(back[0]));
                assert_true(back[1] == -back[0]);
                continue;
            }
            float top = dtypes[k] == NUM_F16    ? 65504
                        : dtypes[k] == NUM_BF16 ? 0x1.fep127f
                                                : FLT_MAX;
            assert_true(back[0] == INFINITY && back[1] == -INFINITY && isnan(back[2]));
            assert_true(back[3] == top && back[4] == -top);
        }
    }
    const float tiny[2] = {0x1p-101f, -0x1p-149f};
    float back[2];
    through(NUM_I8, tiny, 2, 1, back);
    assert_true(back[0] == 0 && back[1] == 0);
}

/* The public conversions round as the codec does to nearest, for every finite value that fits. */
static void nearest_is_the_plain_conversion(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 20000; t++) {
        uint32_t bits = (uint32_t)bd_rand_u64(4, 4, t), row = 0;
        float w;
        memcpy(&w, &bits, sizeof w);
        num_row_encode(NUM_F16, &w, 1, NUM_ROW_NEAREST, &row);
        if (fabsf(w) < 65504) {
            assert_int_equal(row, num_f32_to_f16(w));
        }
        num_row_encode(NUM_BF16, &w, 1, NUM_ROW_NEAREST, &row);
        if (fabsf(w) < 0x1.fep127f || isnan(w)) {
            assert_int_equal(row, num_f32_to_bf16(w));
        }
    }
}

static void simd_equals_the_reference(void **state)
{
    (void)state;
    static const float odd[] = {0.0f, -0.0f, 1e-42f, 3e38f, 65519.9f, INFINITY, -INFINITY, NAN};
    static const size_t dims[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 1000, MAX_DIM};
    float w[MAX_DIM + 1], a[MAX_DIM + 1], b[MAX_DIM + 1];
    uint32_t x[MAX_DIM + 2], y[MAX_DIM + 2];
    for (size_t k = 0; k < N_DTYPES; k++) {
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            for (uint64_t t = 0; t < 12; t++) {
                size_t dim = dims[d], n = num_row_bytes(dtypes[k], dim);
                bd_rand_normal(5, d, t, 0, ldexpf(1, (int)t * 8 - 40), w + 1, dim);
                for (size_t i = t; t >= 6 && i < dim; i += 3) { /* with odd values, off alignment */
                    w[1 + i] = odd[(i / 3 + t) % (t % 2 == 0 ? 5 : 8)];
                }
                memset(x, 0xaa, sizeof x);
                memset(y, 0x55, sizeof y);
                uint64_t draw = t % 3 == 0 ? NUM_ROW_NEAREST : num_row_draw(t, d, k);
                num_row_encode(dtypes[k], w + 1, dim, draw, x);
                num_row_encode_ref(dtypes[k], w + 1, dim, draw, y);
                assert_memory_equal(x, y, n);
                assert_true(n % 4 == 0 && x[n / 4] == 0xaaaaaaaau && y[n / 4] == 0x55555555u);
                num_row_decode(dtypes[k], x, dim, a);
                num_row_decode_ref(dtypes[k], x, dim, b);
                for (size_t i = 0; i < dim; i++) {
                    if (!isnan(a[i]) || !isnan(b[i])) {
                        assert_memory_equal(&a[i], &b[i], sizeof a[i]);
                    }
                }
            }
        }
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_multiples_of_four),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(draws_are_independent),
        cmocka_unit_test(decoded_rows_keep_every_bit),
        cmocka_unit_test(short_rows_find_their_scale_again),
        cmocka_unit_test(special_values),
        cmocka_unit_test(nearest_is_the_plain_conversion),
        cmocka_unit_test(simd_equals_the_reference),
    };
    return tu_run_with_and_without_simd(argv, cmocka_run_group_tests(tests, NULL, NULL));
}
