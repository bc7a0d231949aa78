/* Which kernels OpenBLAS is asked for. That the worker computes with them: integ/test_cli.sh. */
#include "tape/blas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void old_kernels_give_way(void **state)
{
    (void)state;
    assert_string_equal(tp_blas_better("Prescott", true, true), "SkylakeX");
    assert_string_equal(tp_blas_better("Prescott", true, false), "Haswell");
    assert_string_equal(tp_blas_better("SANDYBRIDGE", true, true), "SkylakeX");
}

static void a_cpu_without_avx2_keeps_them(void **state)
{
    (void)state;
    assert_null(tp_blas_better("Prescott", false, false));
    assert_null(tp_blas_better("Sandybridge", false, true));
}

static void kernels_that_fit_are_kept(void **state)
{
    (void)state;
    static const char *const fine[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake",
                                       "SapphireRapids"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_null(tp_blas_better(fine[i], true, true));
    }
    assert_null(tp_blas_better("neoversen1", true, true));
}

static void the_library_names_its_kernels(void **state)
{
    (void)state;
    assert_true(strlen(tp_blas_kernels()) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_kernels_give_way),
        cmocka_unit_test(a_cpu_without_avx2_keeps_them),
        cmocka_unit_test(kernels_that_fit_are_kept),
        cmocka_unit_test(the_library_names_its_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
