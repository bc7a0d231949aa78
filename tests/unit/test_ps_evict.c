/* Eviction: which rows each rule takes, when, and what is left: a tombstone that restarts, restores
 * and diffs know. */
#include "base/clock.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_catalog.h"
#include "ps_server/ps_diff.h"
#include "ps_server/ps_evict.h"
#include "ps_server/ps_store.h"

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

#define DIM          TU_SHARD_DIM
#define MERGE_ROUNDS 500 /* checkpoints until RocksDB has merged: a file each, 24 or so */

static char dir[64];
static bd_clock_virtual wall;

static int begin(void **state)
{
    (void)state;
    tu_dir_new(dir);
    bd_clock_virtual_init(&wall, 1000 * BD_NS_PER_S);
    return 0;
}

static int end(void **state)
{
    (void)state;
    tu_dir_drop(dir);
    return 0;
}

/* ---- the rules alone ---- */
static const ps_evict_now later = {.step = 1000, .time_s = 5000, .share = 1};

static bool goes(const ps_evict *e, const double *param, const ps_evict_row *row)
{
    return e->goes(param, row, &later);
}

static void ttl_counts_steps_and_seconds(void **state)
{
    (void)state;
    const double steps[PS_RULE_MAX_PARAMS] = {100, 0}, seconds[PS_RULE_MAX_PARAMS] = {0, 60};
    ps_evict_row row = {.last_step = 900, .last_time = 4940};
    assert_false(goes(&ps_evict_ttl, steps, &row));
    assert_false(goes(&ps_evict_ttl, seconds, &row));
    row.last_step--;
    assert_true(goes(&ps_evict_ttl, steps, &row));
    assert_false(goes(&ps_evict_ttl, seconds, &row));
    row.last_time--;
    assert_true(goes(&ps_evict_ttl, seconds, &row));
    row = (ps_evict_row){.last_step = 2000, .last_time = 0}; /* from the future; time unknown */
    assert_false(goes(&ps_evict_ttl, steps, &row));
    assert_false(goes(&ps_evict_ttl, seconds, &row));
}

static void norm_and_score_have_thresholds(void **state)
{
    (void)state;
    const double norm[PS_RULE_MAX_PARAMS] = {1, 3}, score[PS_RULE_MAX_PARAMS] = {2, 10};
    const float small[2] = {0.5f, -0.5f}, large[2] = {0.8f, 0.61f};
    ps_evict_row row = {.freq = 3, .last_step = 1000, .weights = small, .dim = 2};
    assert_true(goes(&ps_evict_norm, norm, &row));
    row.weights = large;
    assert_false(goes(&ps_evict_norm, norm, &row));
    row = (ps_evict_row){.freq = 2, .weights = small, .dim = 2};
    assert_false(goes(&ps_evict_norm, norm, &row)); /* too young */
    row = (ps_evict_row){.freq = 8, .last_step = 980};
    assert_false(goes(&ps_evict_score, score, &row)); /* 8 / 4 */
    row.last_step = 970;
    assert_true(goes(&ps_evict_score, score, &row)); /* 8 / 8 */
}

static void ranks_order_rows_and_quotas_add_up(void **state)
{
    (void)state;
    const double param[PS_RULE_MAX_PARAMS] = {1000, 48};
    ps_evict_now now = later;
    ps_evict_row old = {.freq = 9, .last_step = 5}, fresh = {.freq = 2, .last_step = 6},
                 older = {.freq = 2, .last_step = 4};
    assert_true(ps_evict_lru.rank(param, &old, &now) < ps_evict_lru.rank(param, &fresh, &now));
    assert_true(ps_evict_lfu.rank(param, &old, &now) > ps_evict_lfu.rank(param, &fresh, &now));
    assert_true(ps_evict_lfu.rank(param, &older, &now) < ps_evict_lfu.rank(param, &fresh, &now));
    assert_int_equal(ps_evict_every(&ps_evict_lru, param), 64);
    for (int half = 0; half < 2; half++) {
        uint64_t sum = 0;
        now.share = half ? 0.5 : 1;
        for (uint64_t slice = 0; slice < 64; slice++) {
            sum += ps_evict_quota(&ps_evict_lru, param, &now, slice);
        }
        assert_int_equal(sum, half ? 500 : 1000);
    }
}

static char *read_rules(void)
{
    static char text[32768];
    FILE *f = fopen("docs/RULES.md", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    assert_int_equal(fclose(f), 0);
    return text;
}

static void assert_documented(const ps_rule_form *f)
{
    char name[80];
    const char *text = read_rules();
    (void)snprintf(name, sizeof name, "| `%s` |", f->name);
    const char *row = strstr(text, name);
    assert_non_null(row);
    assert_true(f->help[0] != '\0');
    for (size_t i = 0; i < f->n_params; i++) {
        (void)snprintf(name, sizeof name, "`%s`", f->params[i].name);
        const char *at = strstr(row, name);
        bool there = at != NULL && (at < strchr(row, '\n') || strcmp(name, "`every`") == 0);
        assert_true(there);
    }
}

static void every_rule_is_named_and_documented(void **state)
{
    (void)state;
    for (size_t i = 0; ps_evict_at(i) != NULL; i++) {
        const ps_evict *e = ps_evict_at(i);
        assert_ptr_equal(ps_evict_find(e->form.name), e);
        assert_true((e->goes == NULL) != (e->rank == NULL));
        assert_string_equal(e->form.params[e->every_at].name, "every");
        assert_documented(&e->form);
    }
    for (size_t i = 0; ps_admit_at(i) != NULL; i++) {
        assert_documented(&ps_admit_at(i)->form);
    }
    assert_null(ps_evict_find("nobody"));
}

/* ---- in a table ---- */
/* One sync step that pushes gradient -1 to keys [first, first + n). */
static void push(ps_shard *s, uint32_t table, uint64_t step, uint64_t first, size_t n)
{
    uint64_t *keys = bd_calloc(n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        keys[i] = first + i;
    }
    tu_push(s, table, step, keys, n);
    bd_free(keys);
}

static ps_shard *reopen(size_t memory_bytes)
{
    ps_shard *s = NULL;
    bd_err err;
    const ps_shard_options o = {.wall = &wall.clock, .memory_bytes = memory_bytes};
    tu_must(tu_shard_open(dir, &o, &s, &err), &err);
    return s;
}

static ps_shard *open_job(uint32_t *table, const char *eviction)
{
    bd_err err;
    ps_shard *s = reopen(0);
    const ps_job job = {.epoch = 1, .world = 1, .consistency = PS_SYNC};
    *table = tu_table_rules(s, "t", PS_DURABILITY_JOURNAL, NULL, eviction);
    tu_must(tu_open_job(s, &job, "", &err), &err);
    return s;
}

static void old_rows_go_by_steps(void **state)
{
    (void)state;
    uint32_t t = 0;
    ps_shard *s = open_job(&t, "ttl(steps=3, every=1)");
    push(s, t, 1, 0, 100);
    push(s, t, 2, 50, 100);
    push(s, t, 3, 200, 1);
    push(s, t, 4, 200, 1); /* 0..49 are 3 steps old */
    assert_int_equal(tu_stats(s).n_rows, 151);
    push(s, t, 5, 0, 10); /* those it pushes stay; 10..49 go */
    assert_int_equal(tu_stats(s).n_rows, 111);
    assert_int_equal(tu_stats(s).evicted_rows, 40);
    assert_true(tu_weight(s, t, 0) == 2 && tu_weight(s, t, 10) == 0 && tu_weight(s, t, 49) == 0);
    assert_true(tu_weight(s, t, 50) == 2 && tu_weight(s, t, 100) == 1);
    push(s, t, 6, 10, 1); /* comes back as new */
    assert_true(tu_weight(s, t, 10) == 1);
    tu_shard_close(s);
}

static void old_rows_go_by_the_clock(void **state)
{
    (void)state;
    uint32_t t = 0;
    ps_shard *s = open_job(&t, "ttl(seconds=60, every=1)");
    push(s, t, 1, 0, 10);
    bd_clock_virtual_advance(&wall, 30 * BD_NS_PER_S);
    push(s, t, 2, 10, 10);
    bd_clock_virtual_advance(&wall, 30 * BD_NS_PER_S);
    push(s, t, 3, 20, 1);
    assert_int_equal(tu_stats(s).n_rows, 21);
    bd_clock_virtual_advance(&wall, 1 * BD_NS_PER_S);
    push(s, t, 4, 20, 1);
    assert_int_equal(tu_stats(s).n_rows, 11);
    tu_shard_close(s);
}

/* After a pass the table has at most max_rows, and the right ones are left. */
static void rows_beyond_the_limit_go(void **state)
{
    (void)state;
    uint32_t t = 0;
    ps_shard *s = open_job(&t, "lru(max_rows=40, every=1)");
    push(s, t, 1, 0, 100);
    push(s, t, 2, 20, 30);
    push(s, t, 3, 1000, 0);
    assert_int_equal(tu_stats(s).n_rows, 40);
    for (uint64_t key = 20; key < 50; key++) {
        assert_true(tu_weight(s, t, key) == 2);
    }
    tu_shard_close(s);
    tu_dir_clear(dir);
    s = open_job(&t, "lfu(max_rows=30, every=8)");
    push(s, t, 1, 0, 100);
    push(s, t, 2, 20, 20);
    for (uint64_t step = 3; step < 11; step++) {
        push(s, t, step, 1000, 0);
    }
    assert_in_range(tu_stats(s).n_rows, 20, 30);
    tu_shard_close(s);
}

static void small_rows_go(void **state)
{
    (void)state;
    uint32_t t = 0;
    ps_shard *s = open_job(&t, "norm(below=3, min_pushes=1, every=4)");
    push(s, t, 1, 0, 50); /* norm 2 */
    push(s, t, 2, 50, 50);
    push(s, t, 3, 50, 50); /* norm 4 where the rule had not come by yet */
    for (uint64_t step = 4; step < 8; step++) {
        push(s, t, step, 1000, 0);
    }
    for (uint64_t key = 0; key < 50; key++) {
        assert_true(tu_weight(s, t, key) == 0);
    }
    tu_shard_close(s);
}

/* ---- what is left ---- */
static const char *const rule = "ttl(steps=2, every=2); lru(max_rows=60, every=4)";

static void train(ps_shard *s, uint32_t t, uint64_t first, uint64_t last)
{
    for (uint64_t step = first; step <= last; step++) {
        push(s, t, step, bd_rand_u64(3, 1, step) % 200, 20);
    }
}

static int child(const char *folder, uint64_t first, uint64_t last)
{
    (void)snprintf(dir, sizeof dir, "%s", folder);
    bd_clock_virtual_init(&wall, 1000 * BD_NS_PER_S);
    ps_shard *s = reopen(0);
    train(s, ps_table_id("t"), first, last);
    return raise(SIGKILL);
}

/* Killed twice on its way, restored once: the rows of a run that nothing disturbed. */
static void crashes_change_nothing(void **state)
{
    (void)state;
    uint32_t t = 0;
    bd_err err;
    ps_shard *s = open_job(&t, rule);
    train(s, t, 1, 40);
    uint64_t want = tu_hash(s), evicted = tu_stats(s).evicted_rows;
    assert_true(evicted > 100);
    tu_shard_close(s);
    tu_dir_clear(dir);
    tu_shard_close(open_job(&t, rule));
    static const char *const spans[][2] = {{"1", "11"}, {"12", "25"}};
    for (size_t i = 0; i < 2; i++) {
        const char *const args[] = {dir, spans[i][0], spans[i][1], NULL};
        int status = tu_child(args);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    s = reopen(0);
    train(s, t, 26, 30);
    tu_must(tu_checkpoint(s, "thirty", 1, 30, &err), &err);
    train(s, t, 31, 40);
    assert_int_equal(tu_hash(s), want);
    assert_int_equal(tu_stats(s).evicted_rows, evicted);
    tu_shard_close(s);
    s = reopen(0);
    assert_int_equal(tu_hash(s), want);
    const ps_job again = {.epoch = 2, .world = 1, .consistency = PS_SYNC, .last_step = 30};
    tu_must(tu_open_job(s, &again, "thirty", &err), &err);
    assert_true(tu_stats(s).evicted_rows < evicted);
    tu_shard_close(s);
}

/* A row that went between two checkpoints is gone in the second, on the disk too. */
static void checkpoints_know_what_went(void **state)
{
    (void)state;
    uint32_t t = 0;
    bd_err err;
    ps_shard *s = open_job(&t, "ttl(steps=3, every=1)");
    push(s, t, 1, 0, 100);
    tu_must(tu_checkpoint(s, "one", 1, 1, &err), &err);
    push(s, t, 2, 30, 100);
    for (uint64_t step = 3; step < 6; step++) {
        push(s, t, step, 1000, 0);
    }
    tu_must(tu_checkpoint(s, "two", 1, 5, &err), &err);
    tu_shard_close(s);
    const ps_checkpoint *a = NULL, *b = NULL;
    const char *const dirs[] = {dir};
    ps_catalog c;
    ps_table_diff *diff = NULL;
    size_t n = 0;
    tu_must(ps_catalog_read(&c, dirs, 1, &err), &err);
    tu_must(ps_catalog_find(&c, "one", &a, &err), &err);
    tu_must(ps_catalog_find(&c, "two", &b, &err), &err);
    tu_must(ps_checkpoint_diff(a, b, &diff, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(diff[0].only_a, 30);
    assert_int_equal(diff[0].only_b, 30);
    assert_int_equal(diff[0].changed, 70);
    bd_free(diff);
    ps_catalog_deinit(&c);
}

static bd_status count_dead(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                            size_t value_bytes, bd_err *err)
{
    (void)key_bytes;
    (void)value;
    (void)err;
    bool mine = ps_get_be32(key) == ps_table_id("t") && ps_get_be64(key + 4) < 1000;
    *(size_t *)user += mine && value_bytes == PS_ENTRY_META_BYTES;
    return BD_OK;
}

/* Tombstones of keys 0..999 in a checkpoint. */
static size_t n_dead_of(const char *name)
{
    char path[128];
    size_t n = 0;
    bd_err err;
    ps_store *rows = NULL;
    (void)snprintf(path, sizeof path, "%s/checkpoints/%s/rows", dir, name);
    tu_must(ps_store_open(path, NULL, &rows, &err), &err);
    tu_must(ps_store_each(rows, count_dead, &n, &err), &err);
    ps_store_close(rows);
    return n;
}

/* keep_tombstones checkpoints hold them; then they go with the merges that checkpoints bring. */
static void tombstones_go_after_some_checkpoints(void **state)
{
    (void)state;
    uint32_t t = 0;
    bd_err err;
    char name[32];
    uint64_t step = 1;
    ps_shard *s = open_job(&t, "ttl(steps=3, every=1)");
    push(s, t, step++, 0, 1000);
    while (step < 8) {
        push(s, t, step++, 5000, 1); /* the others go */
    }
    assert_int_equal(tu_stats(s).n_rows, 1);
    for (int i = 1; i <= 2; i++, step++) {
        push(s, t, step, 5000, 1);
        (void)snprintf(name, sizeof name, "c%d", i);
        tu_must(tu_checkpoint(s, name, 1, step, &err), &err);
        assert_int_equal(n_dead_of(name), 1000);
    }
    size_t left = 1000;
    for (int i = 3; i < MERGE_ROUNDS && left > 0; i++, step++) {
        push(s, t, step, 6000 + (uint64_t)i * 1000, 1000);
        (void)snprintf(name, sizeof name, "c%d", i);
        tu_must(tu_checkpoint(s, name, 1, step, &err), &err);
        left = n_dead_of(name);
    }
    assert_int_equal(left, 0);
    tu_shard_close(s);
}

/* With a budget that holds a part of the table: rows come and go, the limit holds, and a tombstone
 * is read as new wherever it is. */
static void a_tiered_table_evicts(void **state)
{
    (void)state;
    uint32_t t = 0;
    ps_shard *s = open_job(&t, "ttl(steps=4, every=1)");
    tu_shard_close(s);
    s = reopen(512u << 20);
    for (uint64_t step = 1; step <= 12; step++) {
        push(s, t, step, step * 1000, 2000);
    }
    ps_op flush = {.kind = PS_OP_FLUSH};
    tu_must(tu_call(s, &flush), &flush.err);
    push(s, t, 13, 1000000, 1);
    assert_true(tu_weight(s, t, 1500) == 0 && tu_weight(s, t, 12500) == 2);
    uint64_t rows = tu_stats(s).n_rows, hash = tu_hash(s);
    tu_shard_close(s);
    s = reopen(512u << 20);
    assert_int_equal(tu_stats(s).n_rows, rows);
    assert_int_equal(tu_hash(s), hash);
    assert_true(tu_weight(s, t, 1500) == 0);
    tu_shard_close(s);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "child") == 0) {
        return child(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ttl_counts_steps_and_seconds),
        cmocka_unit_test(norm_and_score_have_thresholds),
        cmocka_unit_test(ranks_order_rows_and_quotas_add_up),
        cmocka_unit_test(every_rule_is_named_and_documented),
        cmocka_unit_test_setup_teardown(old_rows_go_by_steps, begin, end),
        cmocka_unit_test_setup_teardown(old_rows_go_by_the_clock, begin, end),
        cmocka_unit_test_setup_teardown(rows_beyond_the_limit_go, begin, end),
        cmocka_unit_test_setup_teardown(small_rows_go, begin, end),
        cmocka_unit_test_setup_teardown(crashes_change_nothing, begin, end),
        cmocka_unit_test_setup_teardown(checkpoints_know_what_went, begin, end),
        cmocka_unit_test_setup_teardown(tombstones_go_after_some_checkpoints, begin, end),
        cmocka_unit_test_setup_teardown(a_tiered_table_evicts, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
