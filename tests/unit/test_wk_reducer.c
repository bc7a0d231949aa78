/* What a job's ring.* keys promise: where gradients live changes no bit, `deterministic` takes
 * bucket sizes out of the result, 16 bits still learn, batch norm's means are rank 0's, and each
 * rank leaves a record and a timeline. */
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_file.h"
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

enum { N_STEPS = 12, N_ROWS = 600, WORLD = 3 };

static char dir[] = "/tmp/braid_wk_reducer_XXXXXX";
static char train_path[64], run_dir[64];

typedef struct setting {
    const char *key, *value;
} setting;

static void write_data(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (uint64_t i = 0; i < N_ROWS; i++) {
        uint64_t a = bd_rand_u64(1, 0, i) % 12, b = bd_rand_u64(1, 1, i) % 9;
        double x = (double)(bd_rand_u64(1, 2, i) % 100) / 50.0 - 1.0;
        (void)fprintf(f, "%d,a%d,b%d,%.2f\n", (a * 5 + b * 3) % 7 < 3 || x > 0.8, (int)a, (int)b,
                      x);
    }
    assert_int_equal(fclose(f), 0);
}

typedef struct rank_run {
    wk_job job;
    wk_sparse *sparse;
    ring_comm *ring;
    double losses[N_STEPS];
    uint64_t hash;        /* after the last step */
    uint64_t hash_synced; /* after one more begin of a forward */
    bd_err err;
} rank_run;

static void set(wk_job *j, const char *key, const char *value)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = bd_options_set(&j->options, key, value, "test", &err);
    assert_string_equal(bd_err_text(&err), bd_status_text(BD_OK));
    assert_int_equal(rc, BD_OK);
}

static void make_job(wk_job *j, const setting *settings)
{
    static const setting base[] = {
        {"progress", "none"},     {"log_level", "error"},
        {"model.kind", "deepfm"}, {"model.dim", "4"},
        {"model.top", "16,8"},    {"data.schema", "y:label,a:cat,b:cat,x:numeric"},
        {"servers", "0"},         {"train.batch", "60"},
        {"train.epochs", "4"},    {NULL, NULL}};
    assert_int_equal(wk_job_load_file(j, NULL, NULL), BD_OK);
    set(j, "run_dir", run_dir);
    set(j, "data.train", train_path);
    for (const setting *s = base; s->key != NULL; s++) {
        set(j, s->key, s->value);
    }
    for (const setting *s = settings; s->key != NULL; s++) {
        set(j, s->key, s->value);
    }
    j->process.world = WORLD;
    j->metrics_file = "/dev/null";
}

static bd_status train(rank_run *r, wk_data *data, wk_net *net, wk_trainer *t)
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
    rc = rc == BD_OK ? wk_dense_optim_hash(t->optim, &r->hash, &r->err) : rc;
    rc = rc == BD_OK ? ring_reducer_forward(t->reducer, true, &r->err) : rc;
    rc = rc == BD_OK ? wk_dense_optim_hash(t->optim, &r->hash_synced, &r->err) : rc;
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
    bd_status rc = train(r, &data, &net, &t);
    if (rc != BD_OK && r->err.code == BD_OK) {
        r->err.code = rc;
    }
    wk_data_free(&data);
    return NULL;
}

static void run_world(const setting *settings, rank_run *runs)
{
    wk_sparse *sparse[WORLD];
    ring_comm *rings[WORLD];
    pthread_t threads[WORLD];
    const ring_options opt = {.group = "test", .epoch = 1, .timeout_ms = 30000};
    shared_sparse *group = shared_sparse_new(WORLD, sparse);
    assert_int_equal(ring_mem_new(WORLD, &opt, rings, NULL), BD_OK);
    for (int i = 0; i < WORLD; i++) {
        runs[i] = (rank_run){.sparse = sparse[i], .ring = rings[i]};
        make_job(&runs[i].job, settings);
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &runs[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_string_equal(bd_err_text(&runs[i].err), bd_status_text(BD_OK));
    }
    for (int i = 0; i < WORLD; i++) {
        ring_free(rings[i]);
        wk_sparse_free(sparse[i]);
        wk_job_deinit(&runs[i].job);
    }
    shared_sparse_free(group);
}

static uint64_t common_hash(const setting *settings)
{
    rank_run runs[WORLD];
    run_world(settings, runs);
    assert_true(runs[1].hash == runs[0].hash && runs[2].hash == runs[0].hash);
    return runs[0].hash;
}

static void gradients_in_buckets_change_no_bit(void **state)
{
    (void)state;
    const setting copies[] = {{"ring.gradient_views", "false"}, {NULL, NULL}};
    const setting views[] = {{"ring.gradient_views", "true"}, {NULL, NULL}};
    const setting fixed[] = {{"ring.static_graph", "true"}, {NULL, NULL}};
    uint64_t want = common_hash(copies);
    assert_true(common_hash(views) == want);
    assert_true(common_hash(fixed) == want);
}

/* Buckets of one parameter each and one bucket of all: the same parameters at the end. */
static void deterministic_is_independent_of_buckets(void **state)
{
    (void)state;
    const setting tiny[] = {{"deterministic", "true"},
                            {"ring.first_bucket", "1B"},
                            {"ring.bucket", "1B"},
                            {NULL, NULL}};
    const setting large[] = {{"deterministic", "true"}, {NULL, NULL}};
    assert_true(common_hash(tiny) == common_hash(large));
}

static void narrow_gradients_learn(void **state)
{
    (void)state;
    static const char *const types[] = {"f16", "bf16"};
    const setting plain[] = {{NULL, NULL}};
    rank_run want[WORLD], got[WORLD];
    run_world(plain, want);
    for (int c = 0; c < 2; c++) {
        const setting narrow[] = {{"ring.compress", types[c]}, {NULL, NULL}};
        run_world(narrow, got);
        assert_true(got[0].hash == got[1].hash && got[0].hash == got[2].hash);
        assert_true(got[0].hash != want[0].hash); /* it did round */
        for (int i = 0; i < N_STEPS; i++) {
            assert_true(fabs(got[0].losses[i] - want[0].losses[i]) < 0.02);
        }
    }
}

static void running_means_are_rank_0s(void **state)
{
    (void)state;
    const setting on[] = {{"model.batch_norm", "true"}, {NULL, NULL}};
    const setting off[] = {
        {"model.batch_norm", "true"}, {"ring.broadcast_buffers", "false"}, {NULL, NULL}};
    rank_run runs[WORLD];
    run_world(on, runs);
    assert_true(runs[1].hash != runs[0].hash); /* each has seen its own last batch */
    assert_true(runs[1].hash_synced == runs[0].hash && runs[2].hash_synced == runs[0].hash);
    run_world(off, runs);
    assert_true(runs[1].hash_synced != runs[0].hash_synced);
}

/* ---- files ---- */

static bd_json_doc *load(const char *name, int rank)
{
    bd_json_doc *doc = NULL;
    bd_err err = BD_ERR_INIT;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s-rank%d.json", run_dir, name, rank);
    if (bd_json_load(path, &doc, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    return doc;
}

static size_t count_events(const bd_json_doc *doc, const char *name, double *ts, double *end)
{
    size_t n = 0;
    for (size_t i = 0; i < bd_json_len(doc, "traceEvents"); i++) {
        char key[64];
        const char *text = NULL;
        double dur = 0;
        (void)snprintf(key, sizeof key, "traceEvents/%zu/name", i);
        assert_true(bd_json_get_str(doc, key, &text));
        if (strcmp(text, name) != 0) {
            continue;
        }
        (void)snprintf(key, sizeof key, "traceEvents/%zu/ts", i);
        assert_true(bd_json_get_f64(doc, key, ts));
        (void)snprintf(key, sizeof key, "traceEvents/%zu/dur", i);
        assert_true(bd_json_get_f64(doc, key, &dur) && dur >= 0);
        *end = *ts + dur;
        n++;
    }
    return n;
}

static void each_rank_leaves_a_record_and_a_timeline(void **state)
{
    (void)state;
    const setting traced[] = {{"trace", "4"}, {NULL, NULL}};
    rank_run runs[WORLD];
    run_world(traced, runs);
    for (int rank = 0; rank < WORLD; rank++) {
        int64_t v = 0;
        double forward = 0, backward = 0, bucket = 0, wait = 0, end = 0;
        bd_json_doc *doc = load("reducer", rank);
        assert_true(bd_json_get_i64(doc, "iteration", &v) && v == N_STEPS);
        assert_true(bd_json_get_i64(doc, "rank", &v) && v == rank);
        assert_true(bd_json_get_i64(doc, "avg_forward_compute_time_ns", &v) ||
                    bd_json_get_f64(doc, "avg_forward_compute_time_ns", &forward));
        bd_json_free(doc);
        doc = load("trace", rank);
        assert_int_equal(count_events(doc, "forward", &forward, &end), 4);
        assert_int_equal(count_events(doc, "backward", &backward, &end), 4);
        assert_int_equal(count_events(doc, "bucket 0", &bucket, &end), 4);
        assert_true(forward <= backward && backward <= bucket); /* of the last step */
        assert_int_equal(count_events(doc, "wait 0", &wait, &end), 4);
        assert_true(bucket <= wait);
        assert_int_equal(count_events(doc, "allreduce_wait", &wait, &end), 4);
        bd_json_free(doc);
    }
}

/* ---- the folder ---- */

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(train_path, sizeof train_path, "%s/train.csv", dir);
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", dir);
    write_data(train_path);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    bd_status run = wk_remove_dir(run_dir, NULL), all = wk_remove_dir(dir, NULL);
    return run == BD_OK && all == BD_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_in_buckets_change_no_bit),
        cmocka_unit_test(deterministic_is_independent_of_buckets),
        cmocka_unit_test(narrow_gradients_learn),
        cmocka_unit_test(running_means_are_rank_0s),
        cmocka_unit_test(each_rank_leaves_a_record_and_a_timeline),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
