/* A lookup that reads the disk and is slow about it: what it brings must not take the place of what
 * has become of the row meanwhile. The fetch is held by a fault point between its read and the use
 * of what was read, while the row comes in, changes or is evicted for good, goes down and leaves
 * memory again. Every push adds 1 to each weight, so that a weight counts pushes. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_shard_int.h"
#include "ps_server/ps_table_int.h"

#include "tests/util/tu_shard.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define KEY     UINT64_MAX
#define FILLERS ((size_t)20000) /* rows of a step; with those of one stripe, fewer */
#define FEW     ((size_t)500)
#define POINT   "ps.fetch.read"
#define TTL     "ttl(steps=200, every=8)" /* many more steps than it takes to drive KEY out */

static char dir[64];
static ps_shard *shard;
static uint32_t table;
static uint64_t step, next_filler;

static int start_with(const char *eviction)
{
    bd_err err;
    tu_dir_new(dir);
    const ps_shard_options opt = {.memory_bytes = PS_BUDGET_MIN_BYTES};
    tu_must(tu_shard_open(dir, &opt, &shard, &err), &err);
    table = tu_table_rules(shard, "t", PS_DURABILITY_JOURNAL, NULL, eviction);
    tu_must(tu_open_job(shard, &(ps_job){1, 1, PS_SYNC, 0, 0}, "", &err), &err);
    step = next_filler = 0;
    return 0;
}

static int start(void **state)
{
    (void)state;
    return start_with(NULL);
}

static int start_evicting(void **state)
{
    (void)state;
    return start_with(TTL);
}

static int stop(void **state)
{
    (void)state;
    bd_fault_disarm_all();
    tu_shard_close(shard);
    tu_dir_drop(dir);
    return 0;
}

static void push_key(void)
{
    const uint64_t key = KEY;
    tu_push(shard, table, ++step, &key, 1);
}

static int by_slot(const void *a, const void *b)
{
    uint64_t x = bd_mix64(*(const uint64_t *)a), y = bd_mix64(*(const uint64_t *)b);
    return x < y ? -1 : x > y;
}

/* A step of new keys; once memory is full those of KEY's stripe alone are enough. */
static void push_fillers(bool of_stripe)
{
    uint64_t *keys = bd_calloc(FILLERS, sizeof *keys);
    size_t n_all = of_stripe ? FEW : FILLERS;
    for (size_t n = 0; n < n_all; next_filler++) {
        if (!of_stripe || ps_stripe_of_key(next_filler) == ps_stripe_of_key(KEY)) {
            keys[n++] = next_filler;
        }
    }
    qsort(keys, n_all, sizeof *keys, by_slot);
    tu_push(shard, table, ++step, keys, n_all);
    bd_free(keys);
}

/* Without a use of the row that would keep it. */
static bool is_in_memory(void)
{
    ps_table *t = ps_tables_find(ps_shard_lock_tables(shard), table);
    ps_stripe *st = &t->stripes[ps_stripe_of_key(KEY)];
    ps_stripe_read_lock(st);
    bool found = ps_rows_find(&st->rows, KEY, bd_mix64(KEY)) != PS_NO_ROW;
    ps_stripe_unlock(st);
    ps_shard_unlock_tables(shard);
    return found;
}

/* Changed rows go down, others take KEY's place. */
static void drive_out(void)
{
    while (is_in_memory()) {
        push_fillers(tu_stats(shard).rows_moved_out > 0);
    }
}

static void *look(void *weight)
{
    *(float *)weight = tu_weight(shard, table, KEY);
    return NULL;
}

/* A lookup of the key, pushed once and driven out, that has read the row from disk and is held. */
static pthread_t slow_lookup(float *seen)
{
    pthread_t slow;
    push_key();
    drive_out();
    assert_true(bd_fault_arm(POINT, "hold", 0));
    assert_int_equal(pthread_create(&slow, NULL, look, seen), 0);
    bd_fault_await_hold(POINT);
    return slow;
}

static void a_slow_lookup_does_not_undo_a_push(void **state)
{
    (void)state;
    float seen = 0;
    pthread_t slow = slow_lookup(&seen);
    push_key();
    assert_true(is_in_memory());
    drive_out();
    bd_fault_disarm_all();
    assert_int_equal(pthread_join(slow, NULL), 0);
    assert_true(seen == 1 || seen == 2); /* both were true while it went on */
    assert_true(tu_weight(shard, table, KEY) == 2);
    push_key();
    assert_true(tu_weight(shard, table, KEY) == 3);
}

/* Nothing happens to the row meanwhile: it comes into memory, as most rows do. */
static void a_slow_lookup_brings_the_row(void **state)
{
    (void)state;
    float seen = 0;
    pthread_t slow = slow_lookup(&seen);
    assert_false(is_in_memory());
    bd_fault_disarm_all();
    assert_int_equal(pthread_join(slow, NULL), 0);
    assert_true(seen == 1);
    assert_true(is_in_memory());
}

/* The row is evicted for good, and its tombstone leaves memory, before the lookup goes on. */
static void a_slow_lookup_does_not_undo_an_eviction(void **state)
{
    (void)state;
    float seen = 0;
    pthread_t slow = slow_lookup(&seen);
    while (tu_weight(shard, table, KEY) != 0) {
        push_fillers(true);
    }
    drive_out();
    bd_fault_disarm_all();
    assert_int_equal(pthread_join(slow, NULL), 0);
    assert_true(seen == 0 || seen == 1);
    assert_false(is_in_memory());
    assert_true(tu_weight(shard, table, KEY) == 0);
    push_key();
    assert_true(tu_weight(shard, table, KEY) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_slow_lookup_does_not_undo_a_push, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_lookup_brings_the_row, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_lookup_does_not_undo_an_eviction, start_evicting,
                                        stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
