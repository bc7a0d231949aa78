/* The job's options: one table for file, flags and help; a wrong word gives the nearest right one.
 */
#include "base/json.h"
#include "base/mem.h"

#include "worker/wk_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/braid_wk_job_XXXXXX";

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static bd_status load(wk_job *j, bd_err *err, int argc, const char *const *flags)
{
    const char *argv[16] = {"braid-worker", path};
    bool help = false;
    for (int i = 0; i < argc; i++) {
        argv[2 + i] = flags[i];
    }
    union {
        const char **c;
        char **m;
    } u = {argv};
    return wk_job_load(j, argc + 2, u.m, &help, err);
}

/* Loads and checks; the error's text must be `want`. */
static void expect_usage(const char *yaml, const char *flag, const char *want)
{
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char text[512];
    long before = bd_mem_live_blocks();
    put(yaml);
    bd_status rc = load(&j, &err, flag != NULL ? 1 : 0, &flag);
    rc = rc == BD_OK ? wk_job_check(&j, &err) : rc;
    assert_int_equal(rc, BD_E_USAGE);
    (void)snprintf(text, sizeof text, "%s%s", want[0] == ':' ? path : "", want);
    assert_string_equal(bd_err_text(&err), text);
    wk_job_deinit(&j);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void flags_win_over_the_file_and_the_file_over_defaults(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    const char *flags[] = {"--set", "train.batch=2k", "--rank", "1", "--run-dir=/tmp/x", "--world",
                           "2"};
    put("name: a\ntrain:\n  batch: 32\n  epochs: 7\nmodel:\n  top: [3, 4]\ndata: {train: t, "
        "schema: [\"y:label\"]}\n");
    assert_int_equal(load(&j, &err, 7, flags), BD_OK);
    assert_int_equal(wk_job_check(&j, &err), BD_OK);
    assert_int_equal(j.train.batch, 2000);
    assert_int_equal(j.train.epochs, 7);
    assert_int_equal(j.train.log_every, 50);
    assert_string_equal(j.run_dir, "/tmp/x");
    assert_string_equal(j.metrics_file, "/tmp/x/metrics.jsonl");
    assert_int_equal(j.process.rank, 1);
    assert_int_equal(j.workers, 2); /* the world of the process is the job's */
    assert_int_equal(j.model.top.n, 2);
    assert_string_equal(j.model.top.items[1], "4");
    wk_job_deinit(&j);
}

static void values_follow_from_others(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    put("name: m\ntrain: {learning_rate: 0.5, optimizer: adam}\nembedding: {l2: 0.25, hyper: "
        "\"eps=1\"}\n");
    assert_int_equal(load(&j, &err, 0, NULL), BD_OK);
    assert_string_equal(j.run_dir, "runs/m");
    assert_string_equal(j.embedding.optimizer, "adam");
    assert_string_equal(j.bias.optimizer, "adam");
    assert_string_equal(j.bias.hyper, "eps=1");
    assert_string_equal(j.train.hyper, "");
    assert_true(j.embedding.learning_rate == 0.5 && j.bias.learning_rate == 0.5);
    assert_true(j.bias.l2 == 0.25);
    wk_job_deinit(&j);
}

static void wrong_words_are_named_with_the_nearest_right_one(void **state)
{
    (void)state;
    expect_usage("train:\n  batchh: 3\n", NULL,
                 ":2: train.batchh: unknown key, did you mean train.batch?");
    expect_usage("data: {train: x, schema: [y]}\nmodel: {kind: dlmr}\n", NULL,
                 "model.kind: unknown value \"dlmr\", did you mean dlrm?");
    expect_usage("data: {train: x, schema: [y]}\ntrain: {hyper: epsilon}\n", NULL,
                 "train.hyper: \"epsilon\" is not name=number");
    expect_usage("data: {train: x, schema: [y]}\nembedding: {hyper: \"clip_nrm=1\"}\n", NULL,
                 "embedding.hyper: adagrad: unknown hyperparameter clip_nrm, did you mean "
                 "clip_norm?");
    expect_usage("data: {train: x, schema: [y]}\nbias: {optimizer: adam, hyper: \"beta1=2\"}\n",
                 NULL, "bias.hyper: adam: beta1=2 must be from 0 to 1");
    expect_usage("data: {train: x, schema: [y]}\nembedding: {hyper: \"l2=1\"}\n", NULL,
                 "embedding.hyper: l2 has a key of its own");
    expect_usage("data: {train: x, schema: [y]}\ntrain: {optimizer: adagard}\n", NULL,
                 "train.optimizer: unknown value \"adagard\", did you mean adagrad?");
}

static void rows_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    expect_usage("name: a b\n", NULL,
                 "name: \"a b\": 1 to 100 letters, digits, dots, dashes, underscores");
    expect_usage("data: {schema: [y]}\n", NULL, "data.train: not set");
    expect_usage("data: {train: x, format: ratings, split: hash, test: y}\n", NULL,
                 "data.test: not used with data.split hash, which takes the test rows out of "
                 "data.train");
    expect_usage("workers: 2\ndata: {train: x, format: criteo}\n", "--rank=2",
                 "rank: 2 is not below world 2");
    expect_usage("workers: 2\nservers: 0\ndata: {train: x, format: criteo}\n", NULL,
                 "servers: 0 keeps the tables inside one worker, but workers is 2");
    expect_usage("data: {train: x, format: criteo}\nembedding: {bad_gradient: clip}\n", NULL,
                 "embedding.bad_gradient: clip needs embedding.max_gradient_norm");
    expect_usage(
        "servers: 0\ndata: {train: x, format: criteo}\nembedding: {max_gradient_norm: 1}\n", NULL,
        "embedding.bad_gradient and max_gradient_norm are the servers' work: servers is 0");
    expect_usage("workers: 3\ndata: {train: x, format: criteo}\ntrain: {batch: 10, sampler: "
                 "distributed}\n",
                 NULL,
                 "train.batch: 10 is not a multiple of workers 3, which train.sampler distributed "
                 "needs");
}

static void json_is_nested_and_resolved(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    bd_json_doc *doc = NULL;
    const char *text = "";
    int64_t batch = 0;
    put("name: q\ntrain: {batch: 64}\n");
    assert_int_equal(load(&j, &err, 0, NULL), BD_OK);
    char *json = bd_options_json(&j.options);
    assert_int_equal(bd_json_parse(json, strlen(json), "json", &doc, &err), BD_OK);
    assert_true(bd_json_get_i64(doc, "train/batch", &batch));
    assert_int_equal(batch, 64);
    assert_true(bd_json_get_str(doc, "run_dir", &text));
    assert_string_equal(text, "runs/q");
    bd_json_free(doc);
    bd_free(json);
    wk_job_deinit(&j);
}

static void every_row_has_a_sentence_and_its_own_place(void **state)
{
    (void)state;
    size_t n = 0;
    const bd_opt *t = wk_job_all_options(&n);
    for (size_t i = 0; i < n; i++) {
        assert_true(strlen(t[i].help) > 10);
        assert_int_equal(t[i].help[strlen(t[i].help) - 1], '.');
        assert_non_null(t[i].def); /* a job needs no key: data.train is checked where it is used */
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(t[i].key, t[k].key);
            assert_int_not_equal(t[i].offset, t[k].offset);
        }
    }
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd >= 0 ? close(fd) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void the_ring_waits_longer_than_a_rank_waits_for_a_server(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(wk_job_load_file(&j, NULL, &err), BD_OK);
    j.servers = 2;
    j.ring_timeout_ms = 1000;
    for (int64_t wait_ms = 100; wait_ms < 400000; wait_ms *= 3) {
        j.ps_wait_ms = wait_ms;
        assert_true(wk_job_ring_timeout_ms(&j) >= wait_ms + 10000);
    }
    j.ring_timeout_ms = 5000000; /* a longer wish stands */
    assert_int_equal(wk_job_ring_timeout_ms(&j), 5000000);
    j.servers = 0;
    j.ring_timeout_ms = 1000;
    assert_int_equal(wk_job_ring_timeout_ms(&j), 1000);
    wk_job_deinit(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_win_over_the_file_and_the_file_over_defaults),
        cmocka_unit_test(values_follow_from_others),
        cmocka_unit_test(wrong_words_are_named_with_the_nearest_right_one),
        cmocka_unit_test(rows_that_do_not_fit_together_are_refused),
        cmocka_unit_test(json_is_nested_and_resolved),
        cmocka_unit_test(every_row_has_a_sentence_and_its_own_place),
        cmocka_unit_test(the_ring_waits_longer_than_a_rank_waits_for_a_server),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
