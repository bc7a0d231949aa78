/* Memory: counting, faults, overflow; arenas keep their blocks; buffers and chains keep their
 * bytes. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/fault.h"
#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void blocks_are_counted(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    void *a = bd_alloc(0), *b = bd_calloc(3, 5), *c = bd_alloc_aligned(64, 100);
    char *d = bd_strdup("text"), *e = bd_strfmt("%d-%s", 7, "x");
    assert_non_null(a);
    assert_int_equal((uintptr_t)c % 64, 0);
    assert_memory_equal(b, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 15);
    assert_string_equal(d, "text");
    assert_string_equal(e, "7-x");
    assert_int_equal(bd_mem_live_blocks(), before + 5);
    d = bd_realloc(d, 1000);
    assert_string_equal(d, "text");
    assert_int_equal(bd_mem_live_blocks(), before + 5);
    bd_free(a);
    bd_free(b);
    bd_free(c);
    bd_free(d);
    bd_free(e);
    bd_free(NULL);
    assert_int_equal(bd_mem_live_blocks(), before);
}

/* Whatever its size, also where the block was used before. */
static void zeroed_blocks_are_zero(void **state)
{
    (void)state;
    for (size_t n = 1; n <= (size_t)16 << 20; n *= 2) {
        for (size_t more = 0; more < 2; more++) {
            uint8_t *dirty = bd_alloc(n + more);
            assert_non_null(dirty);
            memset(dirty, 0xff, n + more);
            bd_free(dirty);
            uint8_t *p = bd_calloc(n + more, 1);
            assert_non_null(p);
            assert_int_equal(p[0], 0);
            assert_memory_equal(p, p + 1, n + more - 1);
            bd_free(p);
        }
    }
}

static void the_nth_allocation_fails_once(void **state)
{
    (void)state;
    bd_fault_fail_alloc(2);
    void *a = bd_alloc(1), *b = bd_calloc(1, 1), *c = bd_alloc_aligned(64, 1), *d = bd_alloc(1);
    assert_true(a != NULL && b != NULL && c == NULL && d != NULL);
    bd_fault_fail_alloc(0);
    assert_null(bd_realloc(a, 100)); /* the old block stays */
    assert_null(bd_calloc(SIZE_MAX, 2));
    bd_free(a);
    bd_free(b);
    bd_free(d);
}

static void overflow_is_seen(void **state)
{
    (void)state;
    size_t r = 5;
    assert_false(bd_mul_size(SIZE_MAX / 2 + 1, 2, &r));
    assert_false(bd_add_size(SIZE_MAX, 1, &r));
    assert_int_equal(r, 5);
    assert_true(bd_mul_size(SIZE_MAX / 2, 2, &r) && r == SIZE_MAX - 1);
    assert_true(bd_add_size(SIZE_MAX - 1, 1, &r) && r == SIZE_MAX);
}

static void arrays_grow_and_keep_their_items(void **state)
{
    (void)state;
    void *items = NULL;
    size_t cap = 0;
    for (size_t n = 0; n < 1000; n++) {
        assert_true(bd_grow(&items, &cap, n + 1, sizeof(int)));
        ((int *)items)[n] = (int)n;
    }
    assert_true(cap >= 1000 && cap <= 2048);
    assert_int_equal(((int *)items)[999], 999);
    size_t old = cap;
    assert_false(bd_grow(&items, &cap, SIZE_MAX / 2, sizeof(int)));
    assert_false(bd_grow(&items, &cap, SIZE_MAX, 1));
    bd_fault_fail_alloc(0);
    assert_false(bd_grow(&items, &cap, cap + 1, sizeof(int)));
    assert_int_equal(cap, old);
    assert_int_equal(((int *)items)[7], 7);
    bd_free(items);
}

static void an_arena_in_a_steady_loop_allocates_nothing(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    bd_arena a;
    bd_arena_init(&a);
    long steady = 0;
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < 300; i++) {
            uint8_t *p = bd_arena_alloc(&a, i * 31);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            memset(p, (int)i, i * 31);
        }
        uint8_t *z = bd_arena_calloc(&a, 100, 7);
        for (size_t i = 0; i < 700; i++) {
            assert_int_equal(z[i], 0);
        }
        assert_string_equal(bd_arena_strdup(&a, "name"), "name");
        assert_true(a.used_bytes >= (size_t)300 * 299 / 2 * 31);
        if (round == 0) {
            steady = bd_mem_live_blocks();
        }
        assert_int_equal(bd_mem_live_blocks(), steady);
        bd_arena_reset(&a);
        assert_int_equal(a.used_bytes, 0);
    }
    assert_null(bd_arena_alloc(&a, SIZE_MAX));
    assert_null(bd_arena_alloc(&a, SIZE_MAX - 4096));
    assert_null(bd_arena_calloc(&a, SIZE_MAX, 2));
    bd_arena_deinit(&a);
    bd_fault_fail_alloc(0);
    assert_null(bd_arena_strdup(&a, "x"));
    bd_fault_fail_alloc(-1);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void an_arena_never_hands_out_overlapping_memory(void **state)
{
    (void)state;
    enum { N = 200 };
    bd_arena a;
    bd_arena_init(&a);
    uint8_t *p[N];
    size_t n[N];
    for (size_t i = 0; i < N; i++) {
        n[i] = (i * 7919) % 5000 + (i % 50 == 0 ? 200000 : 0);
        p[i] = bd_arena_alloc(&a, n[i]);
        memset(p[i], (int)(i & 255), n[i]);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < n[i]; k += 61) {
            assert_int_equal(p[i][k], i & 255);
        }
    }
    bd_arena_deinit(&a);
}

static int n_released;

static void on_release(void *user)
{
    assert_ptr_equal(user, &n_released);
    n_released++;
}

static void the_last_reference_frees(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    char foreign[4] = "abc";
    bd_buf *b = bd_buf_wrap(foreign, 3, on_release, &n_released);
    bd_buf *same = bd_buf_ref(b);
    bd_buf_unref(b);
    assert_int_equal(n_released, 0);
    assert_memory_equal(same->bytes, "abc", 3);
    bd_buf_unref(same);
    assert_int_equal(n_released, 1);
    bd_buf *plain = bd_buf_copy("hello", 5);
    assert_int_equal((uintptr_t)plain->bytes % 64, 0);
    assert_memory_equal(plain->bytes, "hello", 5);
    bd_buf_unref(plain);
    bd_buf_unref(bd_buf_new(0));
    bd_buf_unref(NULL);
    assert_null(bd_buf_new(SIZE_MAX));
    bd_fault_fail_alloc(0);
    assert_null(bd_buf_wrap(foreign, 3, on_release, &n_released));
    assert_int_equal(n_released, 1); /* not released when it was not wrapped */
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void *ref_and_unref(void *user)
{
    for (int i = 0; i < 20000; i++) {
        bd_buf_unref(bd_buf_ref(user));
    }
    bd_buf_unref(user);
    return NULL;
}

static void references_are_safe_across_threads(void **state)
{
    (void)state;
    n_released = 0;
    char foreign[1];
    bd_buf *b = bd_buf_wrap(foreign, 1, on_release, &n_released);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ref_and_unref, bd_buf_ref(b)), 0);
    }
    bd_buf_unref(b);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(n_released, 1);
}

static void chains_read_across_pieces(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    bd_chain c, d;
    bd_chain_init(&c);
    bd_chain_init(&d);
    bd_buf *b = bd_buf_copy("0123456789", 10);
    assert_int_equal(bd_chain_add(&c, b, 2, 3), BD_OK);
    assert_int_equal(bd_chain_add(&c, b, 0, 0), BD_OK);
    assert_int_equal(bd_chain_add_copy(&c, "abc", 3), BD_OK);
    assert_int_equal(bd_chain_add_moved(&c, b), BD_OK);
    char all[17] = "";
    assert_true(bd_chain_read(&c, 0, all, 16));
    assert_string_equal(all, "234abc0123456789");
    for (size_t at = 0; at <= 16; at++) {
        for (size_t n = 0; n <= 16 - at; n++) {
            char part[17] = "";
            assert_true(bd_chain_read(&c, at, part, n));
            assert_memory_equal(part, all + at, n);
        }
    }
    assert_false(bd_chain_read(&c, 10, all, 7));
    assert_false(bd_chain_read(&c, 17, all, 0));
    assert_false(bd_chain_read(&c, SIZE_MAX, all, 2));
    bd_buf *flat = bd_chain_flatten(&c);
    assert_int_equal(flat->n_bytes, 16);
    assert_memory_equal(flat->bytes, all, 16);
    bd_chain one;
    bd_chain_init(&one);
    assert_int_equal(bd_chain_add_moved(&one, flat), BD_OK);
    bd_buf *shared = bd_chain_flatten(&one);
    assert_ptr_equal(shared, flat); /* a single whole piece is not copied */
    bd_buf_unref(shared);
    assert_int_equal(bd_chain_add_chain(&d, &c), BD_OK);
    bd_chain_deinit(&c);
    bd_chain_move(&c, &d);
    assert_int_equal(d.n_pieces, 0);
    assert_int_equal(c.n_bytes, 16);
    bd_chain_deinit(&c);
    bd_chain_deinit(&d);
    bd_chain_deinit(&one);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static bd_status build(bd_chain *out, const bd_chain *tail)
{
    bd_status rc = bd_chain_add_copy(out, "ab", 2);
    return rc == BD_OK ? bd_chain_add_chain(out, tail) : rc;
}

static void chains_survive_every_allocation_failure(void **state)
{
    (void)state;
    bd_chain tail;
    bd_chain_init(&tail);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(bd_chain_add_copy(&tail, "xyz", 3), BD_OK);
    }
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        bd_chain c;
        bd_chain_init(&c);
        bd_fault_fail_alloc(nth);
        rc = build(&c, &tail);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || (rc == BD_E_NOMEM && c.n_bytes <= 2 && c.n_pieces <= 1));
        bd_chain_deinit(&c);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    bd_chain_deinit(&tail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_counted),
        cmocka_unit_test(zeroed_blocks_are_zero),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(overflow_is_seen),
        cmocka_unit_test(arrays_grow_and_keep_their_items),
        cmocka_unit_test(an_arena_in_a_steady_loop_allocates_nothing),
        cmocka_unit_test(an_arena_never_hands_out_overlapping_memory),
        cmocka_unit_test(the_last_reference_frees),
        cmocka_unit_test(references_are_safe_across_threads),
        cmocka_unit_test(chains_read_across_pieces),
        cmocka_unit_test(chains_survive_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
