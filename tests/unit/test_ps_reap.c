/* Eviction of rows that are on the disk only: a table larger than its memory comes down to what its
 * rule keeps, the right rows are left, and neither a stop nor kill -9 brings one back. */
#include "base/clock.h"
#include "base/mem.h"

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
#include <time.h>

#include <cmocka.h>

/* Rows are wide: few of them fill the smallest budget, and reaping goes by the number of rows. */
#define BUDGET   ((size_t)PS_BUDGET_MIN_BYTES)
#define STEPS    20u
#define HOT      ((uint64_t)1 << 40) /* a key that every later step pushes */
#define LIMIT_NS (300 * BD_NS_PER_S)

/* What a case fills the table with. */
typedef struct load {
    uint32_t dim;
    size_t per_step; /* keys, new ones in every step */
    const char *eviction;
} load;

static const load by_age = {1024, 1000, "ttl(steps=25, every=64)"};
/* More rows than a pass samples one by one (64 Ki). */
static const load by_number = {256, 6000, "lru(max_rows=105000, every=64)"};

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
    const ps_shard_options o = {.memory_bytes = BUDGET, .journal_cap_bytes = (size_t)8 << 20};
    tu_must(tu_shard_open(dir, &o, &s, &err), &err);
    return s;
}

/* Step k of STEPS pushes keys of its own: most of them are on the disk only in the end. */
static ps_shard *fill(uint32_t *table, const load *l)
{
    bd_err err;
    ps_shard *s = reopen();
    const ps_job job = {.epoch = 1, .world = 1, .consistency = PS_SYNC};
    *table = tu_table_wide(s, "t", l->dim, PS_DURABILITY_JOURNAL, NULL, l->eviction);
    tu_must(tu_open_job(s, &job, "", &err), &err);
    uint64_t *keys = bd_calloc(l->per_step, sizeof *keys);
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (size_t i = 0; i < l->per_step; i++) {
            keys[i] = (step - 1) * l->per_step + i;
        }
        tu_push(s, *table, step, keys, l->per_step);
    }
    bd_free(keys);
    return s;
}

/* Steps that push the hot key alone, from *step on, until no more than so many rows are left. */
static void run_down(ps_shard *s, uint32_t table, uint64_t *step, uint64_t most)
{
    const uint64_t hot[] = {HOT};
    const struct timespec pause = {.tv_nsec = BD_NS_PER_MS};
    int64_t until = bd_mono_ns() + LIMIT_NS;
    while (tu_stats(s).n_rows > most) {
        if (bd_mono_ns() > until) {
            (void)fprintf(stderr, "%llu rows are left\n", (unsigned long long)tu_stats(s).n_rows);
            abort();
        }
        tu_push(s, table, (*step)++, hot, 1);
        (void)nanosleep(&pause, NULL);
    }
}

/* Of all rows, wherever they are. */
static uint64_t hash_of(ps_shard *s)
{
    ps_op op = {.kind = PS_OP_HASH};
    tu_must(tu_call(s, &op), &op.err);
    return op.hash;
}

/* Every row that came is there or counted as evicted. */
static void assert_adds_up(ps_shard *s, uint64_t n_rows)
{
    ps_shard_stats st = tu_stats(s);
    assert_int_equal(st.n_rows + st.evicted_rows, n_rows + 1);
}

static void old_rows_on_the_disk_go(void **state)
{
    (void)state;
    uint32_t t = 0;
    uint64_t step = STEPS + 1;
    const uint64_t n = STEPS * by_age.per_step;
    ps_shard *s = fill(&t, &by_age);
    assert_int_equal(tu_stats(s).n_rows, n);
    assert_true(tu_stats(s).rows_away > n / 8);
    run_down(s, t, &step, 1);
    assert_adds_up(s, n);
    assert_true(tu_weight(s, t, 0) == 0 && tu_weight(s, t, n - 1) == 0);
    assert_true(tu_weight(s, t, HOT) > 0);
    uint64_t hash = hash_of(s);
    tu_shard_close(s);
    s = reopen();
    assert_int_equal(tu_stats(s).n_rows, 1);
    assert_int_equal(hash_of(s), hash);
    assert_true(tu_weight(s, t, 0) == 0);
    tu_shard_close(s);
}

static void rows_on_the_disk_count_for_the_limit(void **state)
{
    (void)state;
    uint32_t t = 0;
    uint64_t step = STEPS + 1;
    const uint64_t n = STEPS * by_number.per_step;
    ps_shard *s = fill(&t, &by_number);
    run_down(s, t, &step, 105000);
    assert_adds_up(s, n);
    assert_true(tu_stats(s).n_rows > 103000);
    for (uint64_t key = 0; key < n; key += 997) { /* the last steps' stay, the first's went */
        bool old = key < 2 * by_number.per_step, fresh = key >= 10 * by_number.per_step;
        assert_true(!old || tu_weight(s, t, key) == 0);
        assert_true(!fresh || tu_weight(s, t, key) == 1);
    }
    uint64_t hash = hash_of(s), rows = tu_stats(s).n_rows;
    tu_shard_close(s);
    s = reopen();
    assert_int_equal(tu_stats(s).n_rows, rows);
    assert_adds_up(s, n);
    assert_int_equal(hash_of(s), hash);
    run_down(s, t, &step, 105000); /* and on it goes */
    tu_shard_close(s);
}

static int child(const char *folder)
{
    uint32_t t = 0;
    uint64_t step = STEPS + 1;
    const uint64_t n = STEPS * by_age.per_step;
    (void)snprintf(dir, sizeof dir, "%s", folder);
    ps_shard *s = fill(&t, &by_age);
    run_down(s, t, &step, n / 2);
    return raise(SIGKILL);
}

/* Killed when half of the rows have gone: a replay takes the same ones. */
static void a_killed_server_goes_on(void **state)
{
    (void)state;
    const char *const args[] = {dir, NULL};
    const uint32_t t = ps_table_id("t");
    const uint64_t n = STEPS * by_age.per_step;
    int status = tu_child(args);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ps_shard *s = reopen();
    assert_in_range(tu_stats(s).n_rows, 1, n / 2);
    assert_adds_up(s, n);
    uint64_t step = tu_stats(s).last_step + 1;
    run_down(s, t, &step, 1);
    assert_adds_up(s, n);
    tu_shard_close(s);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "child") == 0) {
        return child(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(old_rows_on_the_disk_go, begin, end),
        cmocka_unit_test_setup_teardown(rows_on_the_disk_count_for_the_limit, begin, end),
        cmocka_unit_test_setup_teardown(a_killed_server_goes_on, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
