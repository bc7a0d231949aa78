/* Whole servers in this process, spoken to by the real client over loopback. */
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include "tests/util/ps_cluster.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIM 8u

static const char *dtypes[2];  /* of the two tables; NULL: f32 */
static cl_bad_gradient policy; /* of both tables */
static double max_norm;

/* A trainer of one rank with two tables. */
typedef struct trainer {
    rpc_env *env;
    cl_client *client;
    cl_job job;
    uint32_t tables[2];
    uint64_t step;
} trainer;

static void create_tables(trainer *t)
{
    bd_err err;
    cl_param init[2] = {{"low", -0.1}, {"high", 0.1}};
    cl_param opt = {"learning_rate", 0.05};
    for (int i = 0; i < 2; i++) {
        cl_table_spec spec = {.name = i == 0 ? "user" : "item",
                              .dim = DIM,
                              .dtype = dtypes[i],
                              .bad_gradient = policy,
                              .max_gradient_norm = max_norm,
                              .initializer = "uniform",
                              .init_params = init,
                              .n_init_params = 2,
                              .seed = 7,
                              .optimizer = i == 0 ? "adagrad" : "adam",
                              .opt_params = &opt,
                              .n_opt_params = 1};
        must(cl_table_create(t->client, &spec, &t->tables[i], &err), &err);
    }
}

static void connect_trainer(trainer *t, const ps_cluster *c)
{
    bd_err err;
    memset(t, 0, sizeof *t);
    cl_options opt = {.coordinator = c->address[0], .name = "trainer", .ps_wait_ms = 20000};
    must(rpc_env_new(&(rpc_env_options){0}, &t->env, &err), &err);
    must(cl_client_new(t->env, &opt, &t->client, &err), &err);
    t->job = (cl_job){.rank = 0, .world = 1, .consistency = CL_SYNC};
    must(cl_job_next_epoch(t->client, &t->job.epoch, &err), &err);
}

static void open_trainer(trainer *t, const ps_cluster *c, const char *restore, uint64_t next_step)
{
    bd_err err;
    connect_trainer(t, c);
    must(cl_job_open(t->client, &t->job, restore, next_step, &err), &err);
    cl_job_join(t->client, &t->job);
    create_tables(t);
    t->step = next_step - 1;
}

static void close_trainer(trainer *t)
{
    cl_client_free(t->client);
    rpc_env_free(t->env);
}

/* One step: look rows up, push gradients that depend on them, commit. */
static void train_step(trainer *t)
{
    bd_err err;
    cl_rows *r = NULL;
    uint64_t ids[2][40];
    float *grads[2];
    uint64_t step = ++t->step;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < 40; i++) {
            ids[k][i] = bd_rand_u64(1, (uint64_t)k, step * 100 + i) % 500;
        }
    }
    cl_ids asked[2] = {{.table_id = t->tables[0], .dim = DIM, .ids = ids[0], .n_ids = 40},
                       {.table_id = t->tables[1], .dim = DIM, .ids = ids[1], .n_ids = 40}};
    must(cl_rows_prepare(t->client, asked, 2, &r, &err), &err);
    must(cl_rows_fetch(r, step - 1, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    for (size_t k = 0; k < 2; k++) {
        const cl_table_rows *rows = cl_rows_table(r, k);
        grads[k] = bd_alloc(rows->n_unique * DIM * sizeof(float));
        for (size_t i = 0; i < rows->n_unique * DIM; i++) {
            grads[k][i] = rows->rows[i] * 0.5f + (float)(i % 7) * 0.01f;
        }
    }
    must(cl_push_start(t->client, step, r, grads, &err), &err);
    must(cl_push_wait(t->client, &err), &err);
    must(cl_commit(t->client, step, true, 1.0, &err), &err);
    bd_free(grads[0]);
    bd_free(grads[1]);
    cl_rows_free(r);
}

static uint64_t hash_of(trainer *t)
{
    bd_err err;
    uint64_t hash = 0, rows = 0;
    must(cl_param_hash(t->client, &hash, &rows, &err), &err);
    assert_true(rows > 100);
    return hash;
}

static uint64_t train(size_t n_servers, uint64_t steps)
{
    ps_cluster c;
    trainer t;
    ps_cluster_start(&c, n_servers);
    open_trainer(&t, &c, NULL, 1);
    for (uint64_t i = 0; i < steps; i++) {
        train_step(&t);
    }
    uint64_t hash = hash_of(&t);
    close_trainer(&t);
    ps_cluster_stop(&c);
    return hash;
}

/* The same training gives the same bits on 1, 2 and 4 servers. */
static void servers_do_not_change_a_bit(void **state)
{
    (void)state;
    uint64_t one = train(1, 12);
    assert_int_equal(train(2, 12), one);
    assert_int_equal(train(4, 12), one);
}

/* A server that stops and comes back on its folder goes on as if nothing had happened. */
static void restart_changes_nothing(void **state)
{
    (void)state;
    uint64_t want = train(2, 9);
    ps_cluster c;
    trainer t;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    for (int i = 0; i < 9; i++) {
        if (i % 3 == 2) {
            ps_cluster_stop_server(&c, (size_t)(i % 2));
            ps_cluster_start_server(&c, (size_t)(i % 2));
        }
        train_step(&t);
    }
    assert_int_equal(hash_of(&t), want);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

/* A job that is rolled back to its checkpoint and trained again ends with the same bits. */
static void restore_rolls_back(void **state)
{
    (void)state;
    ps_cluster c;
    trainer t;
    bd_err err;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    for (int i = 0; i < 5; i++) {
        train_step(&t);
    }
    uint64_t at_5 = hash_of(&t);
    must(cl_checkpoint(t.client, "step-5", 5, &err), &err);
    for (int i = 0; i < 4; i++) {
        train_step(&t);
    }
    uint64_t at_9 = hash_of(&t);
    close_trainer(&t);

    open_trainer(&t, &c, "step-5", 6);
    assert_int_equal(hash_of(&t), at_5);
    for (int i = 0; i < 4; i++) {
        train_step(&t);
    }
    assert_int_equal(hash_of(&t), at_9);
    ps_cluster_stop_server(&c, 1); /* the restored rows are the ones on the disk as well */
    ps_cluster_start_server(&c, 1);
    assert_int_equal(hash_of(&t), at_9);
    must(cl_checkpoint_delete(t.client, "step-5", &err), &err);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

static void train_to(trainer *t, uint64_t step)
{
    while (t->step < step) {
        train_step(t);
    }
}

/* Made on 2 servers, restored on 3, trained, made again, restored on 1 and then on 2: at every cut
 * and at the end the bits are those of a run on one server that nobody disturbed. */
static void checkpoints_fit_any_number_of_servers(void **state)
{
    (void)state;
    const uint64_t at_5 = train(1, 5), at_8 = train(1, 8), at_12 = train(1, 12);
    ps_cluster c;
    trainer t;
    bd_err err;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    train_to(&t, 5);
    must(cl_checkpoint(t.client, "five", 5, &err), &err);
    train_to(&t, 9);
    close_trainer(&t);
    ps_cluster_stop_servers(&c);

    ps_cluster_start_servers(&c, 3);
    open_trainer(&t, &c, "five", 6);
    assert_int_equal(hash_of(&t), at_5);
    train_to(&t, 8);
    must(cl_checkpoint(t.client, "eight", 8, &err), &err);
    ps_cluster_stop_server(&c, 2); /* what was gathered is on its own disk */
    ps_cluster_start_server(&c, 2);
    assert_int_equal(hash_of(&t), at_8);
    close_trainer(&t);
    ps_cluster_stop_servers(&c);

    ps_cluster_start_servers(&c, 1);
    open_trainer(&t, &c, "eight", 9);
    assert_int_equal(hash_of(&t), at_8);
    must(cl_checkpoint(t.client, "five", 8, &err), &err); /* the name of older parts elsewhere */
    close_trainer(&t);
    ps_cluster_stop_servers(&c);

    ps_cluster_start_servers(&c, 2);
    open_trainer(&t, &c, "five", 9);
    assert_int_equal(hash_of(&t), at_8);
    train_to(&t, 12);
    assert_int_equal(hash_of(&t), at_12);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

/* A cut is answered before it is written; training goes on; polled until it is whole, it holds the
 * rows of its step. */
static void a_cut_is_written_while_training_goes_on(void **state)
{
    (void)state;
    ps_cluster c;
    trainer t;
    bd_err err;
    bool done = false;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    train_to(&t, 5);
    uint64_t at_5 = hash_of(&t);
    must(cl_checkpoint_cut(t.client, "five", 5, &err), &err);
    while (!done) {
        train_step(&t);
        must(cl_checkpoint_poll(t.client, "five", 5, false, &done, &err), &err);
    }
    assert_int_equal(cl_checkpoint_cut(t.client, "late", 5, &err), BD_E_STATE);
    close_trainer(&t);
    open_trainer(&t, &c, "five", 6);
    assert_int_equal(hash_of(&t), at_5);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

/* Servers whose folders are of a cluster of another size keep them and do nothing till a job
 * restores; started in their old number they go on as if nothing had been. */
static void another_size_waits_for_a_restore(void **state)
{
    (void)state;
    char part[96], away[96];
    ps_cluster c;
    trainer t;
    bd_err err;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    train_to(&t, 5);
    uint64_t hash = hash_of(&t);
    must(cl_checkpoint(t.client, "five", 5, &err), &err);
    close_trainer(&t);
    ps_cluster_stop_servers(&c);

    ps_cluster_start_servers(&c, 1);
    connect_trainer(&t, &c);
    assert_int_equal(cl_job_open(t.client, &t.job, NULL, 6, &err), BD_E_STATE);
    assert_non_null(strstr(bd_err_text(&err), "server 0 of 2, and this is server 0 of 1"));
    assert_int_equal(cl_checkpoint(t.client, "x", 5, &err), BD_E_STATE);
    assert_int_equal(cl_job_open(t.client, &t.job, "six", 6, &err), BD_E_NOT_FOUND);
    t.job.restore_epoch = 99;
    assert_int_equal(cl_job_open(t.client, &t.job, "five", 6, &err), BD_E_NOT_FOUND);
    t.job.restore_epoch = 0;
    (void)snprintf(part, sizeof part, "%s/ps-1/checkpoints/five", c.dir);
    (void)snprintf(away, sizeof away, "%s/ps-1/checkpoints/six", c.dir);
    assert_int_equal(rename(part, away), 0);
    assert_int_equal(cl_job_open(t.client, &t.job, "five", 6, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), "the part of server 1 of 2 is missing"));
    assert_int_equal(rename(away, part), 0);
    close_trainer(&t);
    ps_cluster_stop_servers(&c);

    ps_cluster_start_servers(&c, 2);
    connect_trainer(&t, &c);
    assert_int_equal(hash_of(&t), hash);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

/* All of it holds for rows in half precision and in int8, whose rounding is random: the draw is a
 * function of table, key, step and element. */
static void stored_types_change_nothing_of_that(void **state)
{
    uint64_t f32 = train(1, 12);
    dtypes[0] = "i8";
    dtypes[1] = "bf16";
    assert_true(train(1, 12) != f32);
    servers_do_not_change_a_bit(state);
    restart_changes_nothing(state);
    dtypes[0] = "f16";
    restore_rolls_back(state);
    checkpoints_fit_any_number_of_servers(state);
    dtypes[0] = dtypes[1] = NULL;
}

/* ---- bad gradients ---- */

/* One step of table 0 whose gradient is 0.01 everywhere, but `bad` in element 1 of key 7. */
static bd_status push_one_bad(trainer *t, uint64_t n_ids, float bad, bd_err *err)
{
    static const uint64_t ids[] = {3, 4, 5, 6, 7, UINT64_MAX};
    cl_rows *r = NULL;
    float grads[6 * DIM], *list[] = {grads};
    const cl_ids asked = {.table_id = t->tables[0], .dim = DIM, .ids = ids, .n_ids = n_ids};
    uint64_t step = ++t->step;
    must(cl_rows_prepare(t->client, &asked, 1, &r, err), err);
    must(cl_rows_fetch(r, step - 1, err), err);
    must(cl_rows_wait(r, err), err);
    const cl_table_rows *rows = cl_rows_table(r, 0);
    for (size_t i = 0; i < rows->n_unique * DIM; i++) {
        grads[i] = rows->keys[i / DIM] == 7 && i % DIM == 1 ? bad : 0.01f;
    }
    bd_status rc = cl_push_start(t->client, step, r, list, err);
    if (rc == BD_OK) {
        rc = cl_push_wait(t->client, err);
    }
    if (rc == BD_OK) {
        rc = cl_commit(t->client, step, true, 1.0, err);
    }
    cl_rows_free(r);
    return rc;
}

/* The hash after one such step under the policy; *rc is the step's. */
static uint64_t hash_after(cl_bad_gradient p, double most, uint64_t n_ids, float bad, bd_status *rc)
{
    ps_cluster c;
    trainer t;
    bd_err err;
    uint64_t hash = 0, rows = 0;
    policy = p;
    max_norm = most;
    ps_cluster_start(&c, 2);
    open_trainer(&t, &c, NULL, 1);
    *rc = push_one_bad(&t, n_ids, bad, &err);
    if (*rc != BD_OK) {
        assert_int_equal(*rc, BD_E_NUMERIC);
        assert_non_null(strstr(bd_err_text(&err), "table \"user\": the gradient of key 7"));
        assert_true(p == CL_BAD_REJECT || p == CL_BAD_HALT);
    } else {
        must(cl_param_hash(t.client, &hash, &rows, &err), &err);
    }
    close_trainer(&t);
    ps_cluster_stop(&c);
    policy = CL_BAD_REJECT;
    max_norm = 0;
    return hash;
}

/* reject fails; drop_row is as if the key had not been pushed; clip as if its gradient had been
 * within bounds; a norm counts as well as a NaN does. */
static void bad_gradients_follow_the_tables_policy(void **state)
{
    (void)state;
    bd_status rc;
    uint64_t without_7 = hash_after(CL_BAD_REJECT, 0, 4, 0, &rc);
    assert_int_equal(rc, BD_OK);
    (void)hash_after(CL_BAD_REJECT, 0, 5, NAN, &rc);
    assert_int_equal(rc, BD_E_NUMERIC);
    (void)hash_after(CL_BAD_REJECT, 1, 5, 1.5f, &rc);
    assert_int_equal(rc, BD_E_NUMERIC);
    uint64_t within = hash_after(CL_BAD_REJECT, 2, 5, 1.5f, &rc);
    assert_int_equal(rc, BD_OK);
    assert_int_equal(hash_after(CL_BAD_REJECT, 0, 5, 1.5f, &rc), within);
    assert_int_equal(hash_after(CL_BAD_DROP_ROW, 0, 5, INFINITY, &rc), without_7);
    assert_int_equal(hash_after(CL_BAD_DROP_ROW, 1, 5, 1.5f, &rc), without_7);
    assert_int_equal(hash_after(CL_BAD_DROP_ROW, 2, 5, 1.5f, &rc), within);
    uint64_t zero = hash_after(CL_BAD_REJECT, 0, 5, 0, &rc);
    assert_int_equal(hash_after(CL_BAD_CLIP, 2, 5, NAN, &rc), zero);
    assert_int_equal(hash_after(CL_BAD_CLIP, 2, 5, 1.5f, &rc), within);
    assert_true(hash_after(CL_BAD_CLIP, 1, 5, 1.5f, &rc) != within);
    assert_int_equal(rc, BD_OK);
}

/* halt: the push fails, and later ones of this job do, on the server that saw it; not the next job.
 */
static void a_halted_job_stays_halted(void **state)
{
    (void)state;
    ps_cluster c;
    trainer t;
    bd_err err;
    policy = CL_BAD_HALT;
    ps_cluster_start(&c, 1);
    open_trainer(&t, &c, NULL, 1);
    must(push_one_bad(&t, 6, 0, &err), &err);
    assert_int_equal(push_one_bad(&t, 6, NAN, &err), BD_E_NUMERIC);
    cl_client_free(t.client); /* this rank comes back and tries the step again, without the NaN */
    cl_options opt = {.coordinator = c.address[0], .name = "again", .ps_wait_ms = 20000};
    must(cl_client_new(t.env, &opt, &t.client, &err), &err);
    cl_job_join(t.client, &t.job);
    t.step--;
    assert_int_equal(push_one_bad(&t, 6, 0, &err), BD_E_NUMERIC);
    assert_non_null(strstr(bd_err_text(&err), "is halted: table \"user\": the gradient of key 7"));
    close_trainer(&t);
    open_trainer(&t, &c, NULL, 2);
    must(push_one_bad(&t, 6, 0, &err), &err);
    close_trainer(&t);
    ps_cluster_stop(&c);
    policy = CL_BAD_REJECT;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_do_not_change_a_bit),
        cmocka_unit_test(restart_changes_nothing),
        cmocka_unit_test(restore_rolls_back),
        cmocka_unit_test(checkpoints_fit_any_number_of_servers),
        cmocka_unit_test(a_cut_is_written_while_training_goes_on),
        cmocka_unit_test(another_size_waits_for_a_restore),
        cmocka_unit_test(stored_types_change_nothing_of_that),
        cmocka_unit_test(bad_gradients_follow_the_tables_policy),
        cmocka_unit_test(a_halted_job_stays_halted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
