/* The planted click model: same rows whatever the threads, the shape of Criteo's files, and the
 * two claims about learning: a linear model cannot reach it, a factorisation machine can. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/reader.h"

#include "cli/cli_datagen.h"

#include "tests/util/tu_ctr.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const cli_gen_spec demo_spec = {.seed = 1,
                                       .cardinality = 50,
                                       .zipf = 1.05,
                                       .fields = 4,
                                       .rank = 2,
                                       .linear = 0.8,
                                       .auc = 0.82,
                                       .ctr = 0.25};

static char folder[] = "/tmp/test_cli_gen_XXXXXX";

static char *in_folder(const char *name)
{
    return bd_strfmt("%s/%s", folder, name);
}

static void must_make(cli_gen *g, const cli_gen_spec *spec)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = cli_gen_init(g, spec, &err);
    if (rc != BD_OK) {
        fail_msg("cli_gen_init: %s", bd_err_text(&err));
    }
}

static void a_row_depends_on_its_number_only(void **state)
{
    (void)state;
    cli_gen g, again;
    must_make(&g, &demo_spec);
    must_make(&again, &demo_spec);
    for (uint64_t i = 0; i < 100; i++) {
        cli_gen_row a, b;
        cli_gen_make(&g, CLI_GEN_TRAIN, i, &a);
        cli_gen_make(&again, CLI_GEN_TRAIN, 99 - i, &b);
        cli_gen_make(&again, CLI_GEN_TRAIN, i, &b);
        assert_memory_equal(a.tokens, b.tokens, sizeof a.tokens);
        assert_true(a.prob == b.prob && a.label == b.label);
        cli_gen_make(&g, CLI_GEN_TEST, i, &b);
        assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    }
    cli_gen_deinit(&g);
    cli_gen_deinit(&again);
}

static void ids_follow_the_power_law(void **state)
{
    (void)state;
    enum { N = 100000 };
    cli_gen g;
    must_make(&g, &demo_spec);
    double sum = 0.0;
    for (int64_t r = 1; r <= demo_spec.cardinality; r++) {
        sum += pow((double)r, -demo_spec.zipf);
    }
    int seen[50] = {0};
    for (uint64_t i = 0; i < N; i++) {
        cli_gen_row r;
        cli_gen_make(&g, CLI_GEN_TRAIN, i, &r);
        seen[r.ranks[17]]++;
    }
    for (int r = 0; r < 50; r++) { /* within five standard deviations of a count */
        double want = N * pow(r + 1, -demo_spec.zipf) / sum;
        assert_true(fabs(seen[r] - want) < 5.0 * sqrt(want));
    }
    cli_gen_deinit(&g);
}

static void distinct_ids_of_a_field_have_distinct_tokens(void **state)
{
    (void)state;
    cli_gen g;
    must_make(&g, &demo_spec);
    uint32_t token[50] = {0};
    bool known[50] = {false};
    for (uint64_t i = 0; i < 5000; i++) {
        cli_gen_row r;
        cli_gen_make(&g, CLI_GEN_TRAIN, i, &r);
        assert_true(!known[r.ranks[3]] || token[r.ranks[3]] == r.tokens[3]);
        known[r.ranks[3]] = true;
        token[r.ranks[3]] = r.tokens[3];
    }
    for (int a = 0; a < 50; a++) {
        for (int b = 0; b < a; b++) {
            assert_true(!known[a] || !known[b] || token[a] != token[b]);
        }
    }
    cli_gen_deinit(&g);
}

static void auc_counts_ties_half(void **state)
{
    (void)state;
    const double scores[] = {0.1, 0.4, 0.4, 0.8};
    const bool labels[] = {false, true, false, true};
    assert_true(cli_auc(scores, labels, 4) == 0.875);
    const bool one_class[] = {true, true, true, true};
    assert_true(cli_auc(scores, one_class, 4) == -1.0);
}

static void a_value_out_of_range_is_named(void **state)
{
    (void)state;
    cli_gen g;
    bd_err err = BD_ERR_INIT;
    cli_gen_spec spec = demo_spec;
    spec.cardinality = 1;
    assert_int_equal(cli_gen_init(&g, &spec, &err), BD_E_USAGE);
    assert_non_null(strstr(bd_err_text(&err), "cardinality is 1"));
    spec = demo_spec;
    spec.auc = NAN;
    assert_int_equal(cli_gen_init(&g, &spec, &err), BD_E_USAGE);
    assert_non_null(strstr(bd_err_text(&err), "auc"));
}

/* ---- files ---- */
static cli_datagen_options options_for(const char *train, const char *test, int threads)
{
    return (cli_datagen_options){.spec = demo_spec,
                                 .rows = 9001,
                                 .test_rows = 5000,
                                 .train_path = train,
                                 .test_path = test,
                                 .threads = threads};
}

static void must_write(const cli_datagen_options *opt, cli_datagen_result *r)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = cli_datagen(opt, r, &err);
    if (rc != BD_OK) {
        fail_msg("cli_datagen: %s", bd_err_text(&err));
    }
}

static void must_be_equal(const char *a, const char *b)
{
    bd_reader *ra = NULL, *rb = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_reader_open(a, &ra, &err), BD_OK);
    assert_int_equal(bd_reader_open(b, &rb, &err), BD_OK);
    char *la = NULL, *lb = NULL;
    do {
        size_t na = 0, nb = 0;
        assert_int_equal(bd_reader_line(ra, &la, &na, &err), BD_OK);
        assert_int_equal(bd_reader_line(rb, &lb, &nb, &err), BD_OK);
        assert_true((la == NULL) == (lb == NULL));
        if (la != NULL) {
            assert_string_equal(la, lb);
        }
    } while (la != NULL);
    bd_reader_close(ra);
    bd_reader_close(rb);
}

static void threads_and_compression_change_no_row(void **state)
{
    (void)state;
    char *train = in_folder("a.tsv"), *test = in_folder("at.tsv");
    char *train3 = in_folder("b.tsv.gz"), *test3 = in_folder("bt.tsv.gz");
    cli_datagen_options one = options_for(train, test, 1), three = options_for(train3, test3, 3);
    cli_datagen_result r1, r3, read;
    must_write(&one, &r1);
    must_write(&three, &r3);
    must_be_equal(train, train3);
    must_be_equal(test, test3);
    assert_true(r1.bayes_auc == r3.bayes_auc);
    assert_true(fabs(r1.bayes_auc - demo_spec.auc) < 0.02);
    assert_true(fabs(r1.ctr - demo_spec.ctr) < 0.02);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cli_datagen_meta(train3, &read, &err), BD_OK);
    assert_true(read.bayes_auc == r1.bayes_auc && read.bayes_logloss == r1.bayes_logloss);
    assert_true(cli_datagen_fingerprint(&one) == cli_datagen_fingerprint(&three));
    three.spec.seed = 2;
    assert_true(cli_datagen_fingerprint(&one) != cli_datagen_fingerprint(&three));
    bd_free(train);
    bd_free(test);
    bd_free(train3);
    bd_free(test3);
}

static void a_line_has_criteos_forty_columns(void **state)
{
    (void)state;
    cli_gen g;
    must_make(&g, &demo_spec);
    for (uint64_t i = 0; i < 1000; i++) {
        cli_gen_row r;
        char text[CLI_GEN_ROW_BYTES];
        cli_gen_make(&g, CLI_GEN_TRAIN, i, &r);
        size_t n = cli_gen_format(&r, text);
        assert_true(n <= sizeof text && text[n - 1] == '\n');
        int column = 0;
        for (size_t at = 0, from = 0; at < n; at++) {
            if (text[at] != '\t' && text[at] != '\n') {
                continue;
            }
            text[at] = '\0';
            if (column == 0) {
                assert_int_equal(text[0] - '0', r.label);
            } else if (column <= CLI_GEN_COUNTS) {
                bool missing = r.missing[column - 1];
                assert_true(missing ? at == from
                                    : strtol(text + from, NULL, 10) == r.counts[column - 1]);
            } else {
                assert_int_equal(strtoul(text + from, NULL, 16),
                                 r.tokens[column - 1 - CLI_GEN_COUNTS]);
                assert_int_equal(at - from, 8);
            }
            column++;
            from = at + 1;
        }
        assert_int_equal(column, 1 + CLI_GEN_COUNTS + CLI_GEN_CATS);
    }
    cli_gen_deinit(&g);
}

static void a_file_that_cannot_be_written_is_named_and_leaves_nothing(void **state)
{
    (void)state;
    char *train = in_folder("no/such/folder.tsv"), *test = in_folder("t.tsv");
    cli_datagen_options opt = options_for(train, test, 2);
    cli_datagen_result r;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cli_datagen(&opt, &r, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), train));
    assert_int_equal(access(test, F_OK), -1);

    /* What a full disk does: the write comes back short. */
    char *big = in_folder("big.tsv");
    struct rlimit before, small = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    opt.train_path = big;
    assert_int_equal(cli_datagen(&opt, &r, &err), BD_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(bd_err_text(&err), big));
    assert_int_equal(access(big, F_OK), -1);
    bd_free(big);

    opt.train_path = opt.test_path = test;
    assert_int_equal(cli_datagen(&opt, &r, &err), BD_E_USAGE);
    bd_free(train);
    bd_free(test);
}

static void out_of_memory_is_an_error_and_frees_all(void **state)
{
    (void)state;
    char *train = in_folder("m.tsv.gz"), *test = in_folder("mt.tsv");
    cli_datagen_options opt = options_for(train, test, 1);
    long before = bd_mem_live_blocks(), nth = 0;
    bd_status rc;
    do {
        cli_datagen_result r;
        bd_err err = BD_ERR_INIT;
        bd_fault_fail_alloc(nth++);
        rc = cli_datagen(&opt, &r, &err);
        bd_fault_fail_alloc(-1);
        assert_int_equal(bd_mem_live_blocks(), before);
        if (rc != BD_OK) {
            assert_int_equal(rc, BD_E_NOMEM);
        }
    } while (rc != BD_OK && nth < 100);
    assert_int_equal(rc, BD_OK);
    bd_free(train);
    bd_free(test);
}

/* ---- learning ---- */
static void features(const cli_gen_row *r, float *dense)
{
    for (size_t j = 0; j < CLI_GEN_COUNTS; j++) {
        int32_t x = r->missing[j] || r->counts[j] < 0 ? 0 : r->counts[j];
        dense[j] = log1pf((float)x);
    }
}

enum { TRAIN_ROWS = 400000, TEST_ROWS = 30000 };

/* AUC on the test part: of the model, or of the planted probabilities (NULL). */
static double test_auc(const cli_gen *g, const tu_ctr *m)
{
    static double scores[TEST_ROWS];
    static bool labels[TEST_ROWS];
    for (uint64_t i = 0; i < TEST_ROWS; i++) {
        cli_gen_row r;
        float dense[CLI_GEN_COUNTS];
        cli_gen_make(g, CLI_GEN_TEST, i, &r);
        features(&r, dense);
        scores[i] = m == NULL ? r.prob : tu_ctr_score(m, dense, r.ranks);
        labels[i] = r.label;
    }
    return cli_auc(scores, labels, TEST_ROWS);
}

/* One pass; the learning rate falls to 0, as the demo's does. */
static void train_both(const cli_gen *g, tu_ctr *lr, tu_ctr *fm)
{
    for (uint64_t i = 0; i < TRAIN_ROWS; i++) {
        cli_gen_row r;
        float dense[CLI_GEN_COUNTS];
        cli_gen_make(g, CLI_GEN_TRAIN, i, &r);
        features(&r, dense);
        lr->lr = fm->lr = 0.1f * (1.0f - (float)i / TRAIN_ROWS);
        tu_ctr_learn(lr, dense, r.ranks, r.label);
        tu_ctr_learn(fm, dense, r.ranks, r.label);
    }
}

/* A third of the demo's rows: the full number, and the full 0.99, is the demo itself. */
static void embeddings_must_be_learnt_and_can_be(void **state)
{
    (void)state;
    cli_gen g;
    tu_ctr lr, fm;
    cli_gen_spec spec = demo_spec;
    spec.cardinality = 20;
    must_make(&g, &spec);
    assert_true(tu_ctr_init(&lr, CLI_GEN_COUNTS, CLI_GEN_CATS, 20, 0, 0.1f, 1));
    assert_true(tu_ctr_init(&fm, CLI_GEN_COUNTS, CLI_GEN_CATS, 20, 4, 0.1f, 1));
    train_both(&g, &lr, &fm);
    double bayes = test_auc(&g, NULL), linear = test_auc(&g, &lr), pairs = test_auc(&g, &fm);
    print_message("planted %.4f, logistic regression %.4f, factorisation machine %.4f\n", bayes,
                  linear, pairs);
    assert_true(bayes > 0.75 && bayes < 0.85);
    assert_true(linear < 0.97 * bayes);
    assert_true(linear > 0.90 * bayes); /* the additive part is there to be found */
    assert_true(pairs > 0.98 * bayes);
    tu_ctr_deinit(&lr);
    tu_ctr_deinit(&fm);
    cli_gen_deinit(&g);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"a.tsv",     "at.tsv",   "b.tsv.gz",
                                        "bt.tsv.gz", "m.tsv.gz", "mt.tsv"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = in_folder(names[i]), *meta = cli_datagen_meta_path(path);
        (void)unlink(path);
        (void)unlink(meta);
        bd_free(path);
        bd_free(meta);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_depends_on_its_number_only),
        cmocka_unit_test(ids_follow_the_power_law),
        cmocka_unit_test(distinct_ids_of_a_field_have_distinct_tokens),
        cmocka_unit_test(auc_counts_ties_half),
        cmocka_unit_test(a_value_out_of_range_is_named),
        cmocka_unit_test(threads_and_compression_change_no_row),
        cmocka_unit_test(a_line_has_criteos_forty_columns),
        cmocka_unit_test(a_file_that_cannot_be_written_is_named_and_leaves_nothing),
        cmocka_unit_test(out_of_memory_is_an_error_and_frees_all),
        cmocka_unit_test(embeddings_must_be_learnt_and_can_be),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
