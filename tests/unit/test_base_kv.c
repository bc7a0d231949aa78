/* The key-value store: its semantics, and that every change wakes its waiters. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/kv.h"
#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LONG_MS = 20000 };

static bd_kv *kv;

static int setup(void **state)
{
    (void)state;
    kv = bd_kv_mem_new();
    return kv == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    bd_kv_mem_free(kv);
    return 0;
}

static void expect_val(const char *key, const char *want)
{
    char *val = NULL;
    size_t n = 0;
    assert_int_equal(kv->get(kv, key, 0, &val, &n, NULL), BD_OK);
    assert_string_equal(val, want);
    assert_int_equal(n, strlen(want));
    bd_free(val);
}

static void values_are_kept_and_replaced(void **state)
{
    (void)state;
    char *val = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(kv->get(kv, "a", 0, &val, NULL, &err), BD_E_NOT_FOUND);
    assert_string_equal(err.text, "kv get a: absent");
    assert_int_equal(kv->get(kv, "a", 1, &val, NULL, &err), BD_E_TIMEOUT);
    assert_string_equal(err.text, "kv get a: absent after 1 ms");
    assert_int_equal(kv->set(kv, "a", "one", 3, NULL), BD_OK);
    assert_int_equal(kv->set(kv, "b", "", 0, NULL), BD_OK);
    expect_val("a", "one");
    expect_val("b", "");
    assert_int_equal(kv->set(kv, "a", "x\0y", 3, NULL), BD_OK); /* bytes, not text */
    size_t n = 0;
    assert_int_equal(kv->get(kv, "a", INT64_MAX, &val, &n, NULL), BD_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(val, "x\0y", 4);
    bd_free(val);
    assert_int_equal(kv->del(kv, "a", NULL), BD_OK);
    assert_int_equal(kv->del(kv, "a", NULL), BD_OK);
    assert_int_equal(kv->get(kv, "a", 0, &val, NULL, NULL), BD_E_NOT_FOUND);
    expect_val("b", "");
}

static void add_counts_and_zero_only_reads(void **state)
{
    (void)state;
    int64_t after = 99;
    assert_int_equal(kv->add(kv, "n", 0, &after, NULL), BD_OK);
    assert_int_equal(after, 0);
    char *val = NULL;
    assert_int_equal(kv->get(kv, "n", 0, &val, NULL, NULL), BD_E_NOT_FOUND);
    assert_int_equal(kv->add(kv, "n", 5, &after, NULL), BD_OK);
    assert_int_equal(kv->add(kv, "n", -7, &after, NULL), BD_OK);
    assert_int_equal(after, -2);
    expect_val("n", "-2");
}

static void compare_set_tells_absent_from_equal(void **state)
{
    (void)state;
    bool swapped = true;
    assert_int_equal(kv->compare_set(kv, "c", "x", "y", &swapped, NULL), BD_OK);
    assert_false(swapped);
    assert_int_equal(kv->compare_set(kv, "c", NULL, "x", &swapped, NULL), BD_OK);
    assert_true(swapped);
    assert_int_equal(kv->compare_set(kv, "c", NULL, "z", &swapped, NULL), BD_OK);
    assert_false(swapped);
    assert_int_equal(kv->compare_set(kv, "c", "x", "", &swapped, NULL), BD_OK);
    assert_true(swapped);
    assert_int_equal(kv->compare_set(kv, "c", "", "w", &swapped, NULL), BD_OK);
    assert_true(swapped);
    expect_val("c", "w");
}

typedef struct waiter {
    const char *key;
    int64_t at_least; /* < 0: get */
    bd_status rc;
} waiter;

static void *wait_for(void *user)
{
    waiter *w = user;
    char *val = NULL;
    w->rc = w->at_least < 0 ? kv->get(kv, w->key, LONG_MS, &val, NULL, NULL)
                            : kv->wait_at_least(kv, w->key, w->at_least, LONG_MS, NULL);
    bd_free(val);
    return NULL;
}

/* Each kind of change wakes a waiter long before its timeout (a lost wake-up would take 20 s and
 * end in BD_E_TIMEOUT). */
static void every_change_wakes_its_waiters(void **state)
{
    (void)state;
    waiter w[3] = {{"by set", -1, BD_E_INTERNAL},
                   {"by compare_set", -1, BD_E_INTERNAL},
                   {"by add", 3, BD_E_INTERNAL}};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for, &w[i]), 0);
    }
    bool swapped = false;
    int64_t after = 0;
    assert_int_equal(kv->set(kv, "by set", "1", 1, NULL), BD_OK);
    assert_int_equal(kv->compare_set(kv, "by compare_set", NULL, "1", &swapped, NULL), BD_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kv->add(kv, "by add", 1, &after, NULL), BD_OK);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(w[i].rc, BD_OK);
    }
}

static void *add_many(void *user)
{
    (void)user;
    int64_t after;
    for (int i = 0; i < 2000; i++) {
        if (kv->add(kv, "sum", 1, &after, NULL) != BD_OK) {
            return "failed";
        }
    }
    return NULL;
}

static void adds_of_many_threads_all_count(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    expect_val("sum", "8000");
}

static void *arrive(void *user)
{
    bd_status *rc = user;
    *rc = bd_kv_barrier(kv, "gate", 3, LONG_MS, NULL);
    return NULL;
}

static void a_barrier_opens_for_all_or_says_who_is_missing(void **state)
{
    (void)state;
    pthread_t threads[2];
    bd_status rc[2] = {BD_E_INTERNAL, BD_E_INTERNAL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, arrive, &rc[i]), 0);
    }
    assert_int_equal(bd_kv_barrier(kv, "gate", 3, LONG_MS, NULL), BD_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(rc[i], BD_OK);
    }
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_kv_barrier(kv, "shut", 2, 1, &err), BD_E_TIMEOUT);
    assert_string_equal(err.text, "barrier shut: kv wait shut: 1 of 2 after 1 ms");
    assert_int_equal(bd_kv_barrier(kv, "shut", 3, 1, NULL), BD_E_TIMEOUT); /* no err: same code */
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        char *val = NULL, key[32];
        (void)snprintf(key, sizeof key, "key %ld", nth);
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(nth);
        rc = kv->set(kv, key, "v", 1, NULL);
        if (rc == BD_OK) {
            rc = kv->get(kv, key, 0, &val, NULL, NULL);
        } else {
            assert_int_equal(bd_mem_live_blocks(), before);
        }
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        bd_free(val);
        assert_int_equal(kv->del(kv, key, NULL), BD_OK);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    bd_fault_fail_alloc(0);
    assert_null(bd_kv_mem_new());
    bd_kv_mem_free(NULL);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(values_are_kept_and_replaced),
        CASE(add_counts_and_zero_only_reads),
        CASE(compare_set_tells_absent_from_equal),
        CASE(every_change_wakes_its_waiters),
        CASE(adds_of_many_threads_all_count),
        CASE(a_barrier_opens_for_all_or_says_who_is_missing),
        CASE(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
