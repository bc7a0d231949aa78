/* The arithmetic of the optimiser kernels, run on the host: num_dense_one over a vector gives what
 * num_optim_apply_ref gives, bit for bit. That the kernels run it is test_num_cuda.c's. */
#include "base/num/optim_dense_int.h"
#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define DIM   ((size_t)257)
#define STEPS 40

/* In (-2, 2), with now and then a zero, a huge one, infinity and NaN. */
static float value_at(uint64_t i)
{
    uint64_t r = bd_mix64(i + 77);
    if (r % 97 == 0) {
        const float odd[] = {0, 1e30f, INFINITY, NAN};
        return odd[(r >> 32) % 4];
    }
    return (float)((double)(r >> 11) * 0x1p-51 - 2.0);
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool both_nan = isnan(a[i]) && isnan(b[i]);
        if (!both_nan && num_bits_of(a[i]) != num_bits_of(b[i])) {
            return false;
        }
    }
    return true;
}

static void compare(const char *name, const char *const *keys, const double *values, size_t n)
{
    const num_optim *opt = num_optim_find(name);
    float hyper[NUM_OPTIM_MAX_HYPER], scratch[DIM];
    float w1[DIM], w2[DIM], g[DIM], s1[2 * DIM + 1], s2[2 * DIM + 1];
    bd_err err = BD_ERR_INIT;
    assert_non_null(opt);
    assert_int_equal(num_optim_hyper(opt, keys, values, n, hyper, &err), BD_OK);
    size_t n_state = opt->state_elems(DIM);
    memset(s1, 0, sizeof s1);
    opt->init(hyper, s1, DIM);
    memcpy(s2, s1, sizeof s1);
    for (size_t i = 0; i < DIM; i++) {
        w1[i] = w2[i] = value_at(i * 3 + 1) * 0.1f;
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        num_dense_step plan;
        for (size_t i = 0; i < DIM; i++) {
            g[i] = value_at(step * 1000 + i);
        }
        num_optim_apply_ref(opt, hyper, w1, s1, g, DIM, scratch);
        assert_int_equal(num_dense_plan(opt, hyper, step, &plan, &err), BD_OK);
        for (size_t i = 0; i < DIM; i++) {
            num_dense_one(&plan, &w2[i], &s2[i], &s2[DIM + i < 2 * DIM ? DIM + i : 0], g[i]);
        }
        if (plan.has_count) {
            s2[2 * DIM] = plan.count;
        }
        if (!same_bits(w1, w2, DIM) || !same_bits(s1, s2, n_state)) {
            fail_msg("%s differs at step %d", name, (int)step);
        }
    }
}

static void every_dense_step_equals_its_reference(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"};
    static const char *const keys[] = {"learning_rate", "l2", "clip_value", "weight_decay"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        compare(names[i], NULL, NULL, 0);
        compare(names[i], keys, (const double[]){0.03, 0.001, 0, 0}, 4);
        compare(names[i], keys, (const double[]){0.03, 0.001, 0.5, 0.1}, 4);
    }
    compare("momentum", (const char *const[]){"nesterov", "momentum"}, (const double[]){1, 0.8}, 2);
    compare("adagrad", (const char *const[]){"initial_accumulator"}, (const double[]){0.1}, 1);
}

/* What one element cannot know is refused, not left out. */
static void norms_and_other_optimisers_are_refused(void **state)
{
    (void)state;
    float hyper[NUM_OPTIM_MAX_HYPER] = {0};
    num_dense_step plan;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(num_dense_plan(num_optim_find("lamb"), hyper, 1, &plan, &err),
                     BD_E_UNSUPPORTED);
    assert_string_equal(err.text, "lamb: not on the device");
    hyper[NUM_OPTIM_CLIP_NORM] = 1;
    assert_int_equal(num_dense_plan(num_optim_find("sgd"), hyper, 1, &plan, &err),
                     BD_E_UNSUPPORTED);
    hyper[NUM_OPTIM_CLIP_NORM] = 0;
    hyper[NUM_OPTIM_MAX_NORM] = 1;
    assert_int_equal(num_dense_plan(num_optim_find("sgd"), hyper, 1, &plan, &err),
                     BD_E_UNSUPPORTED);
    hyper[NUM_OPTIM_MAX_NORM] = 0;
    assert_int_equal(num_dense_plan(num_optim_find("sgd"), hyper, 0, &plan, &err), BD_E_INVALID);
    assert_int_equal(num_dense_plan(num_optim_find("sgd"), hyper, 1, &plan, &err), BD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dense_step_equals_its_reference),
        cmocka_unit_test(norms_and_other_optimisers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
