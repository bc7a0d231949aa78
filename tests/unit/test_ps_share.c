/* Memory of rows that one stripe or one table has taken goes to another one that needs it: a push
 * that fits the budget is never refused because somebody came first. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_budget.h"

#include "tests/util/tu_shard.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

/* About 30 thousand of these rows fit the smallest budget. */
#define DIM      256u
#define PER_STEP ((size_t)3000)
#define FULL     ((uint64_t)60000) /* keys of a table larger than memory */

static char dir[64];

static int begin(void **state)
{
    (void)state;
    tu_dir_new(dir);
    return 0;
}

static int end(void **state)
{
    (void)state;
    tu_dir_drop(dir);
    return 0;
}

static ps_shard *reopen(void)
{
    ps_shard *s = NULL;
    bd_err err;
    const ps_shard_options o = {.memory_bytes = PS_BUDGET_MIN_BYTES,
                                .journal_cap_bytes = (size_t)8 << 20};
    tu_must(tu_shard_open(dir, &o, &s, &err), &err);
    return s;
}

static void open_job(ps_shard *s)
{
    bd_err err;
    const ps_job job = {.epoch = 1, .world = 1, .consistency = PS_SYNC};
    tu_must(tu_open_job(s, &job, "", &err), &err);
}

static uint32_t new_table(ps_shard *s, const char *name)
{
    return tu_table_wide(s, name, DIM, PS_DURABILITY_JOURNAL, NULL, NULL);
}

/* Pushes keys 0..n-1, a part of them a step. */
static void fill(ps_shard *s, uint32_t table, uint64_t *step, uint64_t n)
{
    uint64_t *keys = bd_calloc(PER_STEP, sizeof *keys);
    for (uint64_t at = 0; at < n; at += PER_STEP) {
        for (size_t i = 0; i < PER_STEP; i++) {
            keys[i] = at + i;
        }
        tu_push(s, table, (*step)++, keys, PER_STEP);
    }
    bd_free(keys);
}

/* Each of the keys has been pushed so many times. */
static void assert_pushed(ps_shard *s, uint32_t table, uint64_t n, float times)
{
    for (uint64_t key = 0; key < n; key += 997) {
        assert_true(tu_weight(s, table, key) == times);
    }
}

static void a_new_table_gets_memory(void **state)
{
    (void)state;
    uint64_t step = 1;
    ps_shard *s = reopen();
    open_job(s);
    uint32_t large = new_table(s, "large");
    fill(s, large, &step, FULL);
    assert_true(tu_stats(s).rows_away > FULL / 4);
    uint32_t late = new_table(s, "late");
    fill(s, late, &step, 2 * PER_STEP);
    fill(s, late, &step, 2 * PER_STEP);
    fill(s, large, &step, 2 * PER_STEP); /* and back */
    assert_pushed(s, late, 2 * PER_STEP, 2);
    assert_pushed(s, large, 2 * PER_STEP, 2);
    assert_int_equal(tu_stats(s).n_rows, FULL + 2 * PER_STEP);
    tu_shard_close(s);
    s = reopen(); /* the rows of the first table come into memory first */
    fill(s, late, &step, 2 * PER_STEP);
    assert_pushed(s, late, 2 * PER_STEP, 3);
    assert_int_equal(tu_stats(s).n_rows, FULL + 2 * PER_STEP);
    tu_shard_close(s);
}

static int child(const char *folder)
{
    uint64_t step = 1;
    (void)snprintf(dir, sizeof dir, "%s", folder);
    ps_shard *s = reopen();
    open_job(s);
    fill(s, new_table(s, "large"), &step, FULL);
    tu_shard_close(s);
    s = reopen();
    fill(s, new_table(s, "late"), &step, PER_STEP);
    return raise(SIGKILL);
}

/* What was pushed to the late table is in the journal; at the start the first one fills memory. */
static void a_replay_gets_memory(void **state)
{
    (void)state;
    const char *const args[] = {dir, NULL};
    int status = tu_child(args);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ps_shard *s = reopen();
    assert_true(tu_stats(s).replayed_records > 0);
    assert_pushed(s, ps_table_id("late"), PER_STEP, 1);
    assert_int_equal(tu_stats(s).n_rows, FULL + PER_STEP);
    tu_shard_close(s);
}

/* All keys of a step in one stripe: more of them than that stripe's part of memory. */
static void a_step_of_one_stripe_gets_memory(void **state)
{
    (void)state;
    uint64_t step = 1, keys[PER_STEP];
    size_t n = 0;
    ps_shard *s = reopen();
    open_job(s);
    uint32_t t = new_table(s, "large");
    fill(s, t, &step, FULL);
    for (uint64_t key = 0; n < PER_STEP / 2; key++) {
        if (ps_stripe_of_key(key) == 5) {
            keys[n++] = key;
        }
    }
    tu_push(s, t, step++, keys, n);
    assert_true(tu_weight(s, t, keys[0]) == 2 && tu_weight(s, t, keys[n - 1]) == 1);
    fill(s, t, &step, FULL); /* evenly again */
    assert_true(tu_weight(s, t, keys[0]) == 3);
    tu_shard_close(s);
}

/* Keys of the table that are read from the disk, in percent. */
static uint64_t percent_away(ps_shard *s, uint32_t table, uint64_t n)
{
    uint64_t before = tu_stats(s).rows_fetched, asked = 0;
    for (uint64_t key = 0; key < n; key += 97) {
        assert_true(tu_weight(s, table, key) == 1);
        asked++;
    }
    return 100 * (tu_stats(s).rows_fetched - before) / asked;
}

/* Only read since the start: no table has all of the memory. */
static void a_start_shares_memory(void **state)
{
    (void)state;
    uint64_t step = 1;
    const uint64_t n = FULL / 2;
    ps_shard *s = reopen();
    open_job(s);
    uint32_t a = new_table(s, "a"), b = new_table(s, "b");
    fill(s, a, &step, n);
    fill(s, b, &step, n);
    tu_shard_close(s);
    s = reopen();
    assert_in_range(percent_away(s, a, n), 20, 80);
    assert_in_range(percent_away(s, b, n), 20, 80);
    assert_int_equal(tu_stats(s).n_rows, 2 * n);
    tu_shard_close(s);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "child") == 0) {
        return child(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_table_gets_memory, begin, end),
        cmocka_unit_test_setup_teardown(a_replay_gets_memory, begin, end),
        cmocka_unit_test_setup_teardown(a_step_of_one_stripe_gets_memory, begin, end),
        cmocka_unit_test_setup_teardown(a_start_shares_memory, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
