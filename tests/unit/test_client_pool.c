/* Row memory is used again when it fits, never shared by two holders, and gone with the last
 * reference. */
#include "base/mem.h"

#include "client/cl_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static void a_block_that_fits_comes_again(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    cl_pool *p = cl_pool_new();
    assert_non_null(p);
    cl_block a = cl_pool_take(p, 8 * MIB), b = cl_pool_take(p, 8 * MIB);
    assert_non_null(a.bytes);
    assert_non_null(b.bytes);
    assert_ptr_not_equal(a.bytes, b.bytes);
    assert_true(a.cap_bytes >= 8 * MIB);
    assert_int_equal((uintptr_t)a.bytes % BD_CACHE_LINE_BYTES, 0);
    memset(a.bytes, 1, 8 * MIB);
    memset(b.bytes, 2, 8 * MIB);
    assert_int_equal(*(const char *)a.bytes, 1);
    void *first = a.bytes;
    cl_pool_give(p, &a);
    assert_null(a.bytes);
    a = cl_pool_take(p, 7 * MIB); /* near enough */
    assert_ptr_equal(a.bytes, first);
    cl_pool_give(p, &a);
    a = cl_pool_take(p, 9 * MIB); /* too small for this */
    assert_ptr_not_equal(a.bytes, first);
    cl_block small = cl_pool_take(p, MIB); /* 8 MiB would be a waste */
    assert_ptr_not_equal(small.bytes, first);
    cl_pool_give(p, &small);
    cl_pool_give(p, &a);
    cl_pool_give(p, &b);
    cl_pool_unref(p);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void it_keeps_the_largest_few(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    cl_pool *p = cl_pool_new();
    cl_block b[CL_POOL_BLOCKS + 3];
    for (size_t i = 0; i < sizeof b / sizeof b[0]; i++) {
        b[i] = cl_pool_take(p, (i + 1) * MIB);
        assert_non_null(b[i].bytes);
    }
    void *largest = b[CL_POOL_BLOCKS + 2].bytes;
    for (size_t i = 0; i < sizeof b / sizeof b[0]; i++) {
        cl_pool_give(p, &b[i]);
    }
    assert_int_equal(bd_mem_live_blocks(), before + 1 + CL_POOL_BLOCKS);
    cl_block again = cl_pool_take(p, (CL_POOL_BLOCKS + 3) * MIB);
    assert_ptr_equal(again.bytes, largest);
    cl_pool_ref(p);
    cl_pool_unref(p);
    cl_pool_give(p, &again);
    cl_block tiny = cl_pool_take(p, 0), none = {0};
    assert_non_null(tiny.bytes);
    cl_pool_give(p, &tiny); /* not kept */
    cl_pool_give(p, &none);
    cl_pool_unref(p);
    assert_int_equal(bd_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_fits_comes_again),
        cmocka_unit_test(it_keeps_the_largest_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
