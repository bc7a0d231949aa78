/* Element types and reductions: conversions are exact, SIMD equals the reference, NaN wins. */
#include "base/num/cpu.h"
#include "base/num/dtype.h"
#include "base/num/reduce.h"
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

enum { MAX_ELEMS = (1 << 12) + 3 + 1 };
#define BUF_BYTES ((size_t)8 * MAX_ELEMS)

static const int all_dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_F64,
                                 NUM_I32, NUM_I64, NUM_U8,   NUM_I8};
static const int all_ops[] = {NUM_SUM, NUM_AVG, NUM_MIN, NUM_MAX, NUM_PROD, NUM_BAND, NUM_BOR};
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static void names_and_sizes_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(all_dtypes); i++) {
        assert_int_equal(num_dtype_parse(num_dtype_name(all_dtypes[i])), all_dtypes[i]);
    }
    assert_int_equal(num_dtype_bytes(NUM_BF16), 2);
    assert_int_equal(num_dtype_bytes(NUM_I64), 8);
    assert_int_equal(num_dtype_bytes(0), 0);
    assert_int_equal(num_dtype_bytes(99), 0);
    assert_string_equal(num_dtype_name(99), "?");
    assert_int_equal(num_dtype_parse("float"), 0);
    assert_string_equal(num_reduce_op_name(NUM_BOR), "bor");
    assert_string_equal(num_reduce_op_name(99), "?");
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Value of a half by its definition, in double. */
static double half_value(uint16_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return (h & 0x8000) != 0 ? -v : v;
}

static void every_half_widens_to_its_value_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = num_f16_to_f32((uint16_t)h);
        if (((h >> 10) & 31) == 31) {
            assert_true((h & 1023) == 0 ? isinf(f) : isnan(f));
        } else {
            assert_true((double)f == half_value((uint16_t)h));
        }
        if (!isnan(f)) {
            assert_int_equal(num_f32_to_f16(f), h);
        } else {
            assert_true(isnan(num_f16_to_f32(num_f32_to_f16(f))));
        }
        float b = num_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits(b), h << 16);
        if (!isnan(b)) {
            assert_int_equal(num_f32_to_bf16(b), h);
        } else {
            assert_true(isnan(num_bf16_to_f32(num_f32_to_bf16(b))));
        }
    }
}

/* Between two neighbouring halves: below the middle down, above up, the middle to the even one. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double lo = half_value((uint16_t)h);
        double hi = h == 0x7bff ? 65536.0 : half_value((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2);
        uint32_t even = (h & 1) == 0 ? h : h + 1;
        assert_int_equal(num_f32_to_f16(mid), even);
        assert_int_equal(num_f32_to_f16(nextafterf(mid, 0.0f)), h);
        assert_int_equal(num_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(num_f32_to_f16(-mid), even | 0x8000);
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t even = (h & 1) == 0 ? h : h + 1;
        assert_int_equal(num_f32_to_bf16(from_bits(h << 16 | 0x8000u)), even);
        assert_int_equal(num_f32_to_bf16(from_bits(h << 16 | 0x7fffu)), h);
        assert_int_equal(num_f32_to_bf16(from_bits(h << 16 | 0x8001u)), h + 1);
    }
    assert_int_equal(num_f32_to_f16(from_bits(0x7f800001u)), 0x7e00); /* NaN, not infinity */
    assert_int_equal(num_f32_to_bf16(from_bits(0x7fffffffu)), 0x7fff);
}

static bool is_nan(const uint8_t *p, int dtype)
{
    uint16_t h;
    float f;
    double d;
    switch (dtype) {
    case NUM_F32:
        memcpy(&f, p, sizeof f);
        return isnan(f);
    case NUM_F64:
        memcpy(&d, p, sizeof d);
        return isnan(d);
    case NUM_F16:
        memcpy(&h, p, sizeof h);
        return isnan(num_f16_to_f32(h));
    case NUM_BF16:
        memcpy(&h, p, sizeof h);
        return isnan(num_bf16_to_f32(h));
    default:
        return false;
    }
}

static void assert_same(const uint8_t *a, const uint8_t *b, size_t n, int dtype)
{
    size_t size = num_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = a + i * size, *q = b + i * size;
        if (!(is_nan(p, dtype) && is_nan(q, dtype))) {
            assert_memory_equal(p, q, size);
        }
    }
}

/* Random bytes: for floats they hold every class of number, NaN, infinities, subnormals. */
static void fill(uint8_t *p, size_t n_bytes, uint64_t stream)
{
    for (size_t i = 0; i < n_bytes; i++) {
        p[i] = (uint8_t)bd_rand_u64(7, stream, i);
    }
}

static void simd_equals_the_reference_bit_for_bit(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 3, 7, 8, 9, 31, 33, 257, MAX_ELEMS - 1};
    uint8_t *acc = malloc(BUF_BYTES), *ref = malloc(BUF_BYTES), *x = malloc(BUF_BYTES);
    fill(acc, BUF_BYTES, 1);
    fill(x, BUF_BYTES, 2);
    for (size_t d = 0; d < N_OF(all_dtypes); d++) {
        for (size_t o = 0; o < N_OF(all_ops); o++) {
            for (size_t s = 0; s < N_OF(sizes); s++) {
                int dtype = all_dtypes[d], op = all_ops[o];
                size_t off = (s & 1) * num_dtype_bytes(dtype); /* off the vector alignment */
                memcpy(ref, acc, BUF_BYTES);
                bd_status a =
                    num_reduce_ref(ref + off, x, sizes[s], (num_dtype)dtype, (num_reduce_op)op);
                uint8_t *got = malloc(BUF_BYTES);
                memcpy(got, acc, BUF_BYTES);
                bd_status b =
                    num_reduce(got + off, x, sizes[s], (num_dtype)dtype, (num_reduce_op)op);
                assert_int_equal(a, b);
                assert_same(got, ref, MAX_ELEMS, dtype);
                free(got);
            }
        }
    }
    free(acc);
    free(ref);
    free(x);
}

static void known_values(void **state)
{
    (void)state;
    float f[3] = {1.0f, -2.0f, 0.5f};
    const float g[3] = {0.25f, 4.0f, NAN};
    assert_int_equal(num_reduce(f, g, 3, NUM_F32, NUM_SUM), BD_OK);
    assert_true(f[0] == 1.25f && f[1] == 2.0f && isnan(f[2]));
    int32_t i[2] = {INT32_MAX, -5};
    const int32_t j[2] = {1, 3};
    assert_int_equal(num_reduce(i, j, 2, NUM_I32, NUM_SUM), BD_OK);
    assert_int_equal(i[0], INT32_MIN); /* wraps */
    assert_int_equal(i[1], -2);
    int8_t a[2] = {-128, 5};
    const int8_t b[2] = {1, -7};
    assert_int_equal(num_reduce(a, b, 2, NUM_I8, NUM_MIN), BD_OK);
    assert_int_equal(a[0], -128);
    assert_int_equal(a[1], -7);
    uint8_t m[1] = {0xf0};
    const uint8_t k[1] = {0x3c};
    assert_int_equal(num_reduce(m, k, 1, NUM_U8, NUM_BAND), BD_OK);
    assert_int_equal(m[0], 0x30);
    /* one rounding: 2048 + 1 is not a half, and goes to the even neighbour */
    uint16_t h = num_f32_to_f16(2048.0f), one = num_f32_to_f16(1.0f);
    assert_int_equal(num_reduce(&h, &one, 1, NUM_F16, NUM_SUM), BD_OK);
    assert_true(num_f16_to_f32(h) == 2048.0f);
    float wide = 2048.0f;
    assert_int_equal(num_reduce_f32acc(&wide, &one, 1, NUM_F16), BD_OK);
    assert_true(wide == 2049.0f);
}

/* f32acc adds the widened value, with one rounding of the sum. */
static void f32acc_widens_every_float_type(void **state)
{
    (void)state;
    enum { N = 37 };
    static const num_dtype dtypes[] = {NUM_F32, NUM_F16, NUM_BF16};
    float values[N], start[N], acc[N];
    uint16_t halves[N];
    bd_rand_normal(1, 1, 1, 0, 10, values, N);
    bd_rand_normal(1, 1, 2, 0, 10, start, N);
    for (size_t d = 0; d < N_OF(dtypes); d++) {
        memcpy(acc, start, sizeof acc);
        const void *x = dtypes[d] == NUM_F32 ? (const void *)values : halves;
        float wide[N];
        for (size_t i = 0; i < N; i++) {
            halves[i] =
                dtypes[d] == NUM_F16 ? num_f32_to_f16(values[i]) : num_f32_to_bf16(values[i]);
            wide[i] = dtypes[d] == NUM_F32   ? values[i]
                      : dtypes[d] == NUM_F16 ? num_f16_to_f32(halves[i])
                                             : num_bf16_to_f32(halves[i]);
        }
        assert_int_equal(num_reduce_f32acc(acc, x, N, dtypes[d]), BD_OK);
        for (size_t i = 0; i < N; i++) {
            assert_true(acc[i] == start[i] + wide[i]);
        }
    }
}

static void nan_wins_in_min_and_max_from_both_sides(void **state)
{
    (void)state;
    static const num_reduce_op ops[] = {NUM_MIN, NUM_MAX};
    for (size_t o = 0; o < 2; o++) {
        for (size_t n = 1; n <= 17; n += 16) {
            float a[17], b[17];
            for (size_t i = 0; i < n; i++) {
                a[i] = i % 2 == 0 ? NAN : 1.0f;
                b[i] = i % 2 == 0 ? 1.0f : NAN;
            }
            assert_int_equal(num_reduce(a, b, n, NUM_F32, ops[o]), BD_OK);
            for (size_t i = 0; i < n; i++) {
                assert_true(isnan(a[i]));
            }
        }
    }
}

static void unknown_numbers_are_refused(void **state)
{
    (void)state;
    float a = 1, b = 2;
    assert_int_equal(num_reduce(&a, &b, 1, NUM_F32, NUM_BAND), BD_E_UNSUPPORTED);
    assert_int_equal(num_reduce(&a, &b, 1, (num_dtype)77, NUM_SUM), BD_E_INVALID);
    assert_int_equal(num_reduce(&a, &b, 1, NUM_F32, (num_reduce_op)77), BD_E_INVALID);
    assert_int_equal(num_reduce_f32acc(&a, &b, 1, NUM_I32), BD_E_UNSUPPORTED);
    assert_int_equal(num_reduce_f32acc(&a, &b, 1, (num_dtype)0), BD_E_INVALID);
    assert_true(a == 1);
}

static void scaling_rounds_once_and_clamps(void **state)
{
    (void)state;
    float f[2] = {3.0f, -6.0f};
    num_scale(f, 2, NUM_F32, 1.0 / 3.0);
    assert_true(f[0] == 1.0f && f[1] == -2.0f);
    int32_t i[3] = {7, -7, INT32_MAX};
    num_scale(i, 3, NUM_I32, 0.5);
    assert_int_equal(i[0], 3);
    assert_int_equal(i[1], -3);
    num_scale(i, 3, NUM_I32, 1e9);
    assert_int_equal(i[1], INT32_MIN);
    assert_int_equal(i[2], INT32_MAX);
    int64_t l[1] = {INT64_MAX};
    num_scale(l, 1, NUM_I64, 2.0);
    assert_true(l[0] == INT64_MAX);
    num_scale(l, 1, NUM_I64, (double)NAN);
    assert_true(l[0] == 0);
    uint8_t u[1] = {200};
    num_scale(u, 1, NUM_U8, 2.0);
    assert_int_equal(u[0], 255);
    int8_t b[2] = {100, -100};
    num_scale(b, 2, NUM_I8, 2.0);
    assert_true(b[0] == 127 && b[1] == -128);
    double d[1] = {0.1};
    num_scale(d, 1, NUM_F64, 3.0);
    assert_true(d[0] == 0.1 * 3.0);
    uint16_t h[2] = {num_f32_to_bf16(3.0f), num_f32_to_f16(3.0f)};
    num_scale(h, 1, NUM_BF16, 0.5);
    num_scale(h + 1, 1, NUM_F16, 0.5);
    assert_true(num_bf16_to_f32(h[0]) == 1.5f && num_f16_to_f32(h[1]) == 1.5f);
}

int main(int argc, char **argv)
{
    (void)argc;
    print_message("avx2: %s\n", num_cpu_has_avx2() ? "yes" : "no");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes_round_trip),
        cmocka_unit_test(every_half_widens_to_its_value_and_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(simd_equals_the_reference_bit_for_bit),
        cmocka_unit_test(known_values),
        cmocka_unit_test(f32acc_widens_every_float_type),
        cmocka_unit_test(nan_wins_in_min_and_max_from_both_sides),
        cmocka_unit_test(unknown_numbers_are_refused),
        cmocka_unit_test(scaling_rounds_once_and_clamps),
    };
    return tu_run_with_and_without_simd(argv, cmocka_run_group_tests(tests, NULL, NULL));
}
