/* Admission: which pushes of new keys make rows, what is counted, and that a restart, a replay and
 * a restore know it all. */
#include "base/mem.h"
#include "base/num/hyper.h"

#include "ps_server/ps_admit.h"

#include "tests/util/tu_shard.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#define DIM TU_SHARD_DIM

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

/* ---- the rules alone ---- */
static void texts_of_rules_are_taken_apart(void **state)
{
    (void)state;
    num_rules r;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(num_rules_parse(" ttl(steps=3, seconds=4) ;lru ; ", &r, &err), BD_OK);
    assert_int_equal(r.n, 2);
    assert_string_equal(r.names[0], "ttl");
    assert_int_equal(r.params[0].n, 2);
    assert_string_equal(r.params[0].names[1], "seconds");
    assert_true(r.params[0].values[1] == 4);
    assert_string_equal(r.names[1], "lru");
    assert_int_equal(r.params[1].n, 0);
    assert_int_equal(num_rules_parse(NULL, &r, &err), BD_OK);
    assert_int_equal(r.n, 0);
    static const char *const wrong[][2] = {
        {"ttl(steps=3", "\"ttl(steps=3\" is not a rule like name(number=1)"},
        {";lru", "\"\" is not a rule like name(number=1)"},
        {"(a=1)", "\"(a=1)\" is not a rule like name(number=1)"},
        {"ttl(steps)", "ttl: \"steps\" is not name=number"},
        {"a;b;c;d;e", "more than 4 rules"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(num_rules_parse(wrong[i][0], &r, &err), BD_E_INVALID);
        assert_string_equal(bd_err_text(&err), wrong[i][1]);
    }
}

static bool admits(const ps_admit *m, const double *param, uint64_t key, uint64_t draw,
                   const uint32_t *words)
{
    const ps_admit_ask ask = {
        .param = param, .key = key, .table_key = 77, .draw = draw, .words = words};
    return m->admit(&ask);
}

static void frequency_admits_the_nth_push(void **state)
{
    (void)state;
    const double param[PS_RULE_MAX_PARAMS] = {3, 0};
    uint32_t words[1] = {0};
    assert_false(admits(&ps_admit_frequency, param, 5, 1, NULL));
    ps_admit_frequency.note(param, words, 5);
    assert_false(admits(&ps_admit_frequency, param, 5, 2, words));
    ps_admit_frequency.note(param, words, 5);
    assert_true(admits(&ps_admit_frequency, param, 5, 3, words));
    const double first[PS_RULE_MAX_PARAMS] = {1, 0};
    assert_true(admits(&ps_admit_frequency, first, 5, 1, NULL));
}

/* Never later than the n-th push, and seldom earlier while the sketch is not full. */
static void sketch_counts_in_bounded_memory(void **state)
{
    (void)state;
    enum { N = 4000, BLOCKS = 4096, WORDS = 65 };
    const double param[PS_RULE_MAX_PARAMS] = {3, 0};
    static uint32_t words[BLOCKS][WORDS];
    size_t early = 0;
    assert_int_equal(ps_admit_sketch.filter_words, WORDS);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t key = bd_rand_u64(1, 2, i), row = ps_admit_sketch.filter_key(param, key);
        uint32_t *w = words[ps_slot_of_key(row)];
        assert_int_equal(ps_slot_of_key(row), ps_slot_of_key(key)); /* the same server has both */
        for (int n = 1; n <= 2; n++) {
            early += admits(&ps_admit_sketch, param, key, 0, w);
            ps_admit_sketch.note(param, w, key);
        }
        assert_true(admits(&ps_admit_sketch, param, key, 0, w));
    }
    assert_true(early < N / 100);
    /* Aging: what is not pushed any more fades. */
    uint64_t key = bd_rand_u64(1, 2, 0);
    uint32_t w[WORDS] = {0};
    for (int i = 0; i < 4; i++) {
        ps_admit_sketch.note(param, w, key);
    }
    assert_true(admits(&ps_admit_sketch, param, key, 0, w));
    for (int halvings = 0; halvings < 2; halvings++) {
        w[0] = 8 * 256;
        ps_admit_sketch.age(param, w);
    }
    assert_int_equal(w[0], 4 * 256);
    assert_false(admits(&ps_admit_sketch, param, key, 0, w));
}

static void sketch_has_as_many_blocks_as_paid_for(void **state)
{
    (void)state;
    const double large[PS_RULE_MAX_PARAMS] = {3, 320.0 * 16384};
    uint64_t a = bd_unmix64(0x1230000000000000u), b = bd_unmix64(0x1234000000000000u),
             c = bd_unmix64(0x1233ffffffffffffu);
    uint64_t row = ps_admit_sketch.filter_key(large, a);
    assert_int_equal(ps_admit_sketch.filter_key(large, c), row); /* 14 bits: 1230..1233 */
    assert_true(ps_admit_sketch.filter_key(large, b) != row);
    assert_int_equal(bd_unmix64(bd_mix64(12345)), 12345);
}

static void probability_is_pure_and_right(void **state)
{
    (void)state;
    enum { N = 20000 };
    const double param[PS_RULE_MAX_PARAMS] = {0.3};
    const double never[PS_RULE_MAX_PARAMS] = {0}, always[PS_RULE_MAX_PARAMS] = {1};
    size_t n = 0, differ = 0;
    for (uint64_t key = 0; key < N; key++) {
        bool yes = admits(&ps_admit_probability, param, key, 9, NULL);
        n += yes;
        assert_true(admits(&ps_admit_probability, param, key, 9, NULL) == yes);
        differ += admits(&ps_admit_probability, param, key, 10, NULL) != yes;
        assert_false(admits(&ps_admit_probability, never, key, 9, NULL));
        assert_true(admits(&ps_admit_probability, always, key, 9, NULL));
    }
    assert_in_range(n, N * 28 / 100, N * 32 / 100);
    assert_in_range(differ, N * 38 / 100,
                    N * 46 / 100); /* 2 p (1 - p): another step, another draw */
}

static void every_rule_has_a_name_and_help(void **state)
{
    (void)state;
    for (size_t i = 0; ps_admit_at(i) != NULL; i++) {
        const ps_admit *m = ps_admit_at(i);
        assert_ptr_equal(ps_admit_find(m->form.name), m);
        assert_true(m->form.help[0] != '\0' && m->filter_words <= 128);
        assert_int_equal(m->filter_words != 0, m->note != NULL && m->filter_key != NULL);
    }
    assert_null(ps_admit_find("nobody"));
}

/* ---- in a table ---- */
static ps_shard *open_job(uint32_t *table, ps_durability d, const char *admission)
{
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    const ps_job job = {.epoch = 1, .world = 1, .consistency = PS_SYNC};
    *table = tu_table_rules(s, "t", d, admission, NULL);
    tu_must(tu_open_job(s, &job, "", &err), &err);
    return s;
}

static void a_key_without_a_row_reads_as_new_and_is_counted(void **state)
{
    (void)state;
    uint32_t t = 0;
    const uint64_t keys[] = {0, UINT64_MAX, 17};
    ps_shard *s = open_job(&t, PS_DURABILITY_JOURNAL, "frequency(count=3)");
    tu_push(s, t, 1, keys, 3);
    tu_push(s, t, 2, keys, 2);
    assert_true(tu_weight(s, t, 0) == 0);
    assert_int_equal(tu_stats(s).n_rows, 0);
    assert_int_equal(tu_stats(s).filtered_gradients, 5);
    tu_push(s, t, 3, keys, 3);
    assert_true(tu_weight(s, t, 0) == 1 && tu_weight(s, t, UINT64_MAX) == 1 &&
                tu_weight(s, t, 17) == 0);
    assert_int_equal(tu_stats(s).n_rows, 2);
    assert_int_equal(tu_stats(s).n_tables, 1);
    assert_int_equal(tu_stats(s).filtered_gradients, 6);
    tu_push(s, t, 4, keys, 3);
    assert_true(tu_weight(s, t, 0) == 2 && tu_weight(s, t, 17) == 1);
    tu_shard_close(s);
}

/* The counts of keys that wait, and of what was dropped, are there after a stop, after a crash and
 * after a restore: the same steps end in the same table. */
static void counts_survive(void **state)
{
    static const char *const rules[] = {"frequency(count=4)", "sketch(count=4)"};
    static const ps_durability levels[] = {PS_DURABILITY_JOURNAL, PS_DURABILITY_SYNC,
                                           PS_DURABILITY_CHECKPOINT};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        uint32_t t = 0;
        const uint64_t keys[] = {5, 6};
        bd_err err;
        tu_dir_clear(dir);
        ps_shard *s = open_job(&t, levels[i / 2], rules[i % 2]);
        tu_push(s, t, 1, keys, 2);
        tu_shard_close(s); /* written back */
        s = tu_shard_must_open(dir);
        tu_push(s, t, 2, keys, 2);
        tu_must(tu_checkpoint(s, "two", 1, 2, &err), &err);
        if (levels[i / 2] == PS_DURABILITY_CHECKPOINT) {
            tu_push(s, t, 3, keys, 1);
            tu_shard_close(s);
        } else {
            tu_shard_close(s);
            const char *const args[] = {dir, NULL};
            int status = tu_child(args); /* pushes step 3 and dies */
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
        s = tu_shard_must_open(dir);
        assert_int_equal(tu_stats(s).filtered_gradients, 5);
        tu_push(s, t, 4, keys, 2);
        assert_true(tu_weight(s, t, 5) == 1 && tu_weight(s, t, 6) == 0);
        assert_int_equal(tu_stats(s).filtered_gradients, 6);
        const ps_job again = {.epoch = 2, .world = 1, .consistency = PS_SYNC, .last_step = 2};
        tu_must(tu_open_job(s, &again, "two", &err), &err);
        assert_int_equal(tu_stats(s).filtered_gradients, 4);
        assert_int_equal(tu_stats(s).n_rows, 0);
        tu_shard_close(s);
    }
}

/* The third step of counts_survive in a process of its own, which ends like a crash. */
static int child(const char *folder)
{
    const uint64_t key = 5;
    ps_shard *s = tu_shard_must_open(folder);
    tu_push(s, ps_table_id("t"), 3, &key, 1);
    return raise(SIGKILL);
}

static void a_waiting_key_is_forgotten(void **state)
{
    (void)state;
    uint32_t t = 0;
    const uint64_t key = 5, other = 6;
    ps_shard *s = open_job(&t, PS_DURABILITY_JOURNAL, "frequency(count=2, within_steps=2)");
    tu_push(s, t, 1, &key, 1);
    for (uint64_t step = 2; step < 1100; step++) { /* one pass of the filter */
        tu_push(s, t, step, &other, 1);
    }
    tu_push(s, t, 1100, &key, 1);
    assert_true(tu_weight(s, t, key) == 0);
    tu_push(s, t, 1101, &key, 1);
    assert_true(tu_weight(s, t, key) == 1);
    tu_shard_close(s);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "child") == 0) {
        return child(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_rules_are_taken_apart),
        cmocka_unit_test(frequency_admits_the_nth_push),
        cmocka_unit_test(sketch_counts_in_bounded_memory),
        cmocka_unit_test(sketch_has_as_many_blocks_as_paid_for),
        cmocka_unit_test(probability_is_pure_and_right),
        cmocka_unit_test(every_rule_has_a_name_and_help),
        cmocka_unit_test_setup_teardown(a_key_without_a_row_reads_as_new_and_is_counted, begin,
                                        end),
        cmocka_unit_test_setup_teardown(counts_survive, begin, end),
        cmocka_unit_test_setup_teardown(a_waiting_key_is_forgotten, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
