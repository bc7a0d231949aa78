/* The training loop: it learns, it does the same with 1, 2 and 4 workers, a resumed run ends with
 * the same parameters as an uninterrupted one, and a number that is not finite stops or skips. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_file.h"
#include "worker/wk_run.h"
#include "worker/wk_train.h"

#include "tests/util/shared_sparse.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_STEPS = 50, N_ROWS = 2000 };

static char dir[] = "/tmp/braid_wk_train_XXXXXX";
static char train_path[64], run_dir[64];

/* Two categories that interact and a number; learnable by an FM, not by chance. */
static void write_data(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (uint64_t i = 0; i < N_ROWS; i++) {
        uint64_t a = bd_rand_u64(1, 0, i) % 12, b = bd_rand_u64(1, 1, i) % 9;
        double x = (double)(bd_rand_u64(1, 2, i) % 100) / 50.0 - 1.0;
        bool y = (a * 5 + b * 3) % 7 < 3 || x > 0.8;
        (void)fprintf(f, "%d,a%d,b%d,%d|%d,%.2f\n", y, (int)a, (int)b, (int)(a % 3), (int)(b % 4),
                      x);
    }
    assert_int_equal(fclose(f), 0);
}

static void set(wk_job *j, const char *key, const char *value)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = bd_options_set(&j->options, key, value, "test", &err);
    assert_string_equal(bd_err_text(&err), bd_status_text(BD_OK));
    assert_int_equal(rc, BD_OK);
}

static void make_job(wk_job *j, int world)
{
    bd_err err = BD_ERR_INIT;
    assert_int_equal(wk_job_load_file(j, NULL, &err), BD_OK);
    set(j, "run_dir", run_dir);
    set(j, "progress", "none");
    set(j, "log_level", "error");
    set(j, "model.kind", "deepfm");
    set(j, "model.dim", "4");
    set(j, "model.top", "8,8");
    set(j, "data.train", train_path);
    set(j, "data.test", train_path);
    set(j, "data.schema", "y:label,a:cat,b:cat,tags:multi(|),x:numeric");
    set(j, "train.batch", "64");
    set(j, "train.epochs", "4");
    set(j, "servers", "0");
    j->process.world = world;
    j->metrics_file = "/dev/null";
    j->embedding = (wk_job_rows){.optimizer = "adagrad",
                                 .hyper = "clip_norm=10",
                                 .dtype = "f32",
                                 .learning_rate = 0.1,
                                 .l2 = 0.00001,
                                 .bad_gradient = "reject",
                                 .admission = "",
                                 .eviction = "",
                                 .init_file = ""};
    j->bias = j->embedding;
}

/* ---- several ranks as threads ---- */

typedef struct rank_run {
    wk_job job;
    wk_sparse *sparse;
    ring_comm *ring;
    double losses[N_STEPS];
    uint64_t dense_hash;
    bd_status rc;
    bd_err err;
} rank_run;

static bd_status run_rank(rank_run *r, wk_data *data, wk_net *net, wk_trainer *t)
{
    tp_device *dev = NULL;
    bool more = true;
    wk_step_result s = {0};
    bd_status rc = wk_data_load(&r->job, data, &r->err);
    rc = rc == BD_OK ? tp_device_new_cpu(1, &dev, &r->err) : rc;
    rc = rc == BD_OK ? wk_net_init(net, &r->job, data, r->sparse, dev, &r->err) : rc;
    rc = rc == BD_OK ? wk_net_create_tables(net, &r->err) : rc;
    const wk_trainer_config config = {&r->job, data, net, r->ring, NULL};
    rc = rc == BD_OK ? wk_trainer_init(t, &config, &r->err) : rc;
    rc = rc == BD_OK ? wk_trainer_start(t, 1, &r->err) : rc;
    for (int i = 0; i < N_STEPS && rc == BD_OK; i++) {
        rc = wk_trainer_step(t, false, &s, &more, &r->err);
        r->losses[i] = s.loss;
    }
    rc = rc == BD_OK ? wk_dense_optim_hash(t->optim, &r->dense_hash, &r->err) : rc;
    wk_trainer_deinit(t);
    wk_net_deinit(net);
    if (dev != NULL) {
        tp_device_free(dev);
    }
    return rc;
}

static void *rank_main(void *arg)
{
    rank_run *r = arg;
    wk_data data = {0};
    wk_net net = {0};
    wk_trainer t = {0};
    r->rc = run_rank(r, &data, &net, &t);
    wk_data_free(&data);
    return NULL;
}

/* Losses of N_STEPS steps with `world` ranks; all ranks see the same ones. */
static void run_world(int world, const char *sampler, double *losses)
{
    rank_run *runs = calloc((size_t)world, sizeof *runs);
    wk_sparse *sparse[4];
    ring_comm *rings[4];
    pthread_t threads[4];
    const ring_options opt = {.group = "test", .epoch = 1, .timeout_ms = 30000};
    shared_sparse *group = shared_sparse_new(world, sparse);
    assert_int_equal(ring_mem_new(world, &opt, rings, NULL), BD_OK);
    for (int i = 0; i < world; i++) {
        make_job(&runs[i].job, world);
        set(&runs[i].job, "train.sampler", sampler);
        runs[i].sparse = sparse[i];
        runs[i].ring = rings[i];
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &runs[i]), 0);
    }
    for (int i = 0; i < world; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < world; i++) {
        assert_string_equal(bd_err_text(&runs[i].err), bd_status_text(BD_OK));
        assert_int_equal(runs[i].rc, BD_OK);
        assert_memory_equal(runs[i].losses, runs[0].losses, sizeof runs[0].losses);
        assert_int_equal(runs[i].dense_hash, runs[0].dense_hash);
    }
    memcpy(losses, runs[0].losses, sizeof runs[0].losses);
    for (int i = 0; i < world; i++) {
        ring_free(rings[i]);
        wk_sparse_free(sparse[i]);
        wk_job_deinit(&runs[i].job);
    }
    shared_sparse_free(group);
    free(runs);
}

static void one_two_and_four_workers_see_the_same_losses(void **state)
{
    (void)state;
    double one[N_STEPS], many[N_STEPS];
    run_world(1, "exact", one);
    assert_true(one[N_STEPS - 1] < 0.8 * one[0]); /* and it learns */
    for (int world = 2; world <= 4; world += 2) {
        run_world(world, "exact", many);
        for (int i = 0; i < N_STEPS; i++) {
            assert_true(fabs(many[i] - one[i]) <= 1e-5 * fabs(one[i]));
        }
    }
}

static void the_distributed_sampler_trains_too(void **state)
{
    (void)state;
    double losses[N_STEPS];
    run_world(2, "distributed", losses);
    assert_true(losses[N_STEPS - 1] < 0.8 * losses[0]);
}

/* ---- whole runs of one worker ---- */

static char *run_job(const wk_job *j, bd_status want, bd_err *err)
{
    char *result = NULL;
    bool stopped = false;
    const wk_run_options opt = {.job = j};
    bd_status rc = wk_run_train(&opt, &result, &stopped, err);
    if (rc != want) {
        fail_msg("%s", bd_err_text(err));
    }
    return result;
}

static void field(const char *json, const char *key, char *out, size_t cap)
{
    char pattern[64];
    (void)snprintf(pattern, sizeof pattern, "\"%s\":", key);
    const char *p = strstr(json, pattern);
    assert_non_null(p);
    p += strlen(pattern);
    size_t n = strcspn(p, ",}");
    assert_true(n < cap);
    memcpy(out, p, n);
    out[n] = '\0';
}

static void clear_run(void)
{
    char cmd[160];
    (void)snprintf(cmd, sizeof cmd, "rm -rf '%s'", run_dir);
    assert_int_equal(system(cmd), 0);
}

/* max_steps 0: to the end. */
static char *hash_of_run(const char *max_steps, const char *resume, const char *at_end)
{
    wk_job j;
    bd_err err = BD_ERR_INIT;
    static char hash[32];
    make_job(&j, 1);
    set(&j, "model.dropout", "0.2");
    set(&j, "train.max_steps", max_steps);
    set(&j, "train.checkpoint_every", "10");
    set(&j, "train.checkpoint_keep", "2");
    set(&j, "train.checkpoint_at_end", at_end);
    set(&j, "resume", resume);
    char *result = run_job(&j, BD_OK, &err);
    field(result, "param_hash", hash, sizeof hash);
    bd_free(result);
    wk_job_deinit(&j);
    return hash;
}

static void a_resumed_run_ends_with_the_same_parameters(void **state)
{
    (void)state;
    char whole[32];
    long before = bd_mem_live_blocks();
    clear_run();
    (void)snprintf(whole, sizeof whole, "%s", hash_of_run("70", "none", "true"));
    clear_run();
    (void)hash_of_run("37", "none", "false"); /* as if killed: the last checkpoint is step-30 */
    assert_string_equal(hash_of_run("70", "auto", "true"), whole);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void a_broken_checkpoint_gives_way_to_an_older_one(void **state)
{
    (void)state;
    char path[128], whole[32];
    clear_run();
    (void)snprintf(whole, sizeof whole, "%s", hash_of_run("70", "none", "true"));
    clear_run();
    (void)hash_of_run("37", "none", "false");
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-30/dense.bin", run_dir);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 100, SEEK_SET), 0);
    assert_int_equal(fputc(0x5a, f), 0x5a);
    assert_int_equal(fclose(f), 0);
    assert_string_equal(hash_of_run("70", "auto", "true"), whole); /* from step-20 */
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-10", run_dir);
    assert_int_not_equal(access(path, F_OK), 0); /* only two are kept */
}

static void another_seed_gives_other_parameters_and_the_same_seed_the_same(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char hash[3][32], auc[32];
    const char *seeds[] = {"1", "1", "2"};
    for (int i = 0; i < 3; i++) {
        clear_run();
        make_job(&j, 1);
        set(&j, "seed", seeds[i]);
        char *result = run_job(&j, BD_OK, &err);
        field(result, "param_hash", hash[i], sizeof hash[i]);
        field(result, "auc", auc, sizeof auc);
        assert_true(strtod(auc, NULL) > 0.9);
        bd_free(result);
        wk_job_deinit(&j);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
}

static void early_stop_ends_when_nothing_gets_better(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char steps[32];
    clear_run();
    make_job(&j, 1);
    set(&j, "train.learning_rate",
        "0"); /* with all rates 0 no evaluation is better than the first */
    j.embedding.learning_rate = j.bias.learning_rate = 0;
    set(&j, "train.eval_every", "3");
    set(&j, "train.early_stop_patience", "2");
    char *result = run_job(&j, BD_OK, &err);
    field(result, "steps", steps, sizeof steps);
    assert_string_equal(steps, "9");
    bd_free(result);
    wk_job_deinit(&j);
}

static void a_value_that_is_not_finite_stops_or_skips(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char path[96], skipped[32];
    (void)snprintf(path, sizeof path, "%s/huge.csv", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 64; i++) {
        (void)fprintf(f, "%d,a%d,b1,1,%s\n", i % 2, i % 5, i == 40 ? "3e38" : "1");
    }
    assert_int_equal(fclose(f), 0);
    clear_run();
    make_job(&j, 1);
    set(&j, "data.train", path);
    set(&j, "data.test", "");
    set(&j, "model.kind", "dlrm"); /* its dots of 1e38 and 100 overflow */
    set(&j, "model.bottom", "8,4");
    set(&j, "model.embedding_init", "100");
    set(&j, "train.shuffle", "false");
    set(&j, "train.batch", "16");
    set(&j, "train.epochs", "1");
    (void)run_job(&j, BD_E_NUMERIC, &err);
    assert_non_null(strstr(bd_err_text(&err), "step 3: "));
    assert_non_null(strstr(bd_err_text(&err), "sample 40"));
    assert_non_null(strstr(bd_err_text(&err), "rank 0"));
    clear_run();
    set(&j, "train.on_nonfinite", "skip");
    char *result = run_job(&j, BD_OK, &err);
    field(result, "skipped_steps", skipped, sizeof skipped);
    assert_string_equal(skipped, "1");
    bd_free(result);
    wk_job_deinit(&j);
}

static void a_dry_run_needs_no_server_and_writes_nothing(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char *text = NULL;
    size_t n = 0;
    clear_run();
    make_job(&j, 1);
    set(&j, "servers", "2");
    FILE *out = open_memstream(&text, &n);
    const wk_run_options opt = {.job = &j, .out = out};
    assert_int_equal(wk_run_dry(&opt, &err), BD_OK);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "emb.a"));
    assert_non_null(strstr(text, "step 1  loss 0."));
    assert_int_not_equal(access(run_dir, F_OK), 0);
    free(text);
    wk_job_deinit(&j);
}

static void predictions_are_those_of_the_checkpoint(void **state)
{
    (void)state;
    wk_job j;
    bd_err err = BD_ERR_INIT;
    char out[96];
    double p = 0;
    int n = 0, right = 0;
    (void)snprintf(out, sizeof out, "%s/scores.txt", dir);
    clear_run();
    make_job(&j, 1);
    bd_free(run_job(&j, BD_OK, &err));
    set(&j, "predict", train_path);
    set(&j, "output", out);
    const wk_run_options opt = {.job = &j};
    assert_int_equal(wk_run_predict(&opt, &err), BD_OK);
    FILE *f = fopen(out, "r"), *data = fopen(train_path, "r");
    for (char line[256]; fgets(line, sizeof line, data) != NULL; n++) {
        char score[64];
        assert_non_null(fgets(score, sizeof score, f));
        p = strtod(score, NULL);
        assert_true(p > 0 && p < 1);
        right += (p > 0.5) == (line[0] == '1');
    }
    assert_int_equal(n, N_ROWS);
    assert_true(right > N_ROWS * 8 / 10);
    assert_int_equal(fclose(f) + fclose(data), 0);
    wk_job_deinit(&j);
}

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    bd_log_set_level(BD_LOG_ERROR);
    (void)snprintf(train_path, sizeof train_path, "%s/train.csv", dir);
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", dir);
    write_data(train_path);
    return 0;
}

static int remove_dir(void **state)
{
    char cmd[128];
    (void)state;
    (void)snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_two_and_four_workers_see_the_same_losses),
        cmocka_unit_test(the_distributed_sampler_trains_too),
        cmocka_unit_test(a_resumed_run_ends_with_the_same_parameters),
        cmocka_unit_test(a_broken_checkpoint_gives_way_to_an_older_one),
        cmocka_unit_test(another_seed_gives_other_parameters_and_the_same_seed_the_same),
        cmocka_unit_test(early_stop_ends_when_nothing_gets_better),
        cmocka_unit_test(a_value_that_is_not_finite_stops_or_skips),
        cmocka_unit_test(a_dry_run_needs_no_server_and_writes_nothing),
        cmocka_unit_test(predictions_are_those_of_the_checkpoint),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
