/* bucket_assign_table: DDP's bucket assignment on tables worked out by hand. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/num/dtype.h"

#include "ring/ring_bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "0 1|2" for buckets {0, 1} and {2}. */
static void expect(const ring_bucket_item *items, size_t n, const size_t *order,
                   const size_t *limits, size_t n_limits, const char *want)
{
    char got[256] = "";
    ring_bucket_plan p = {0};
    bd_err err = BD_ERR_INIT;
    assert_int_equal(ring_bucket_assign(items, n, order, limits, n_limits, &p, &err), BD_OK);
    for (size_t b = 0; b < p.n_buckets; b++) {
        for (size_t k = p.starts[b]; k < p.starts[b + 1]; k++) {
            size_t used = strlen(got);
            (void)snprintf(got + used, sizeof got - used, "%s%zu",
                           k > p.starts[b] ? " "
                           : b > 0         ? "|"
                                           : "",
                           p.params[k]);
        }
    }
    assert_string_equal(got, want);
    ring_bucket_plan_deinit(&p);
}

static void a_bucket_closes_after_it_reached_its_limit(void **state)
{
    (void)state;
    const ring_bucket_item items[] = {{.n_bytes = 40, .dtype = NUM_F32},
                                      {.n_bytes = 50, .dtype = NUM_F32},
                                      {.n_bytes = 30, .dtype = NUM_F32},
                                      {.n_bytes = 5, .dtype = NUM_F32}};
    const size_t limit = 80;
    expect(items, 4, NULL, &limit, 1, "0 1|2 3"); /* 90: overshoots by one */
}

static void a_giant_joins_what_is_open(void **state)
{
    (void)state;
    const ring_bucket_item items[] = {{.n_bytes = 4, .dtype = NUM_F32},
                                      {.n_bytes = 1000, .dtype = NUM_F32},
                                      {.n_bytes = 4, .dtype = NUM_F32}};
    const size_t limit = 100;
    expect(items, 3, NULL, &limit, 1, "0 1|2");
}

static void the_first_limit_holds_for_the_first_bucket_of_each_dtype(void **state)
{
    (void)state;
    ring_bucket_item items[10];
    const size_t limits[] = {10, 40};
    for (size_t i = 0; i < 10; i++) {
        items[i] = (ring_bucket_item){.n_bytes = 10, .dtype = i < 6 ? NUM_F32 : NUM_F16};
    }
    expect(items, 10, NULL, limits, 2, "0|1 2 3 4|5|6|7 8 9");
}

static void dtypes_interleave_and_never_mix(void **state)
{
    (void)state;
    const ring_bucket_item items[] = {{.n_bytes = 10, .dtype = NUM_F32},
                                      {.n_bytes = 10, .dtype = NUM_F16},
                                      {.n_bytes = 10, .dtype = NUM_F32},
                                      {.n_bytes = 10, .dtype = NUM_F16},
                                      {.n_bytes = 10, .dtype = NUM_F32}};
    const size_t limit = 20;
    const size_t order[] = {4, 3, 2, 1, 0};
    expect(items, 5, NULL, &limit, 1, "0 2|1 3|4");
    expect(items, 5, order, &limit, 1, "4 2|3 1|0"); /* given order: kept */
}

static void sparse_is_alone(void **state)
{
    (void)state;
    const ring_bucket_item items[] = {{.n_bytes = 10, .dtype = NUM_F32},
                                      {.n_bytes = 10, .dtype = NUM_F32, .is_sparse = true},
                                      {.n_bytes = 10, .dtype = NUM_F32}};
    const size_t limit = 100;
    expect(items, 3, NULL, &limit, 1, "0 2|1");
    expect(items, 0, NULL, &limit, 1, "");
}

static void every_allocation_failure_is_reported(void **state)
{
    (void)state;
    const ring_bucket_item items[] = {{.n_bytes = 10, .dtype = NUM_F32}};
    const size_t limit = 100;
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        long before = bd_mem_live_blocks();
        ring_bucket_plan p = {0};
        bd_fault_fail_alloc(nth);
        rc = ring_bucket_assign(items, 1, NULL, &limit, 1, &p, NULL);
        if (rc != BD_OK) {
            assert_int_equal(rc, BD_E_NOMEM);
            assert_int_equal(bd_mem_live_blocks(), before);
        }
        ring_bucket_plan_deinit(&p);
    }
    bd_fault_fail_alloc(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_closes_after_it_reached_its_limit),
        cmocka_unit_test(a_giant_joins_what_is_open),
        cmocka_unit_test(the_first_limit_holds_for_the_first_bucket_of_each_dtype),
        cmocka_unit_test(dtypes_interleave_and_never_mix),
        cmocka_unit_test(sparse_is_alone),
        cmocka_unit_test(every_allocation_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
