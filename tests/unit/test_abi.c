/* The C library inside the process, against a fake cluster: failing allocations, failing servers.
 * The rest of braid.h is tested as its user gets it: tests/integ/test_abi.sh. */
#include "base/fault.h"
#include "base/mem.h"

#include "client/abi/abi_int.h"

#include "tests/util/fake_ps.h"
#include "tests/util/tu_mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 3, N_IDS = 40 };

typedef struct fixture {
    rpc_env *env; /* of the servers */
    fake_ps *ps;
    braid_client *c;
    braid_table tables[2];
    uint64_t ids[N_IDS];
    int64_t offsets[3];
    braid_feature features[3];
    float out[3][N_IDS * DIM];
} fixture;

/* The fake knows no ListTables: handles are made by hand. */
static void start(fixture *fx, int consistency)
{
    braid_error err;
    *fx = (fixture){.offsets = {0, 10, 10}};
    assert_int_equal(rpc_env_new(NULL, &fx->env, NULL), BD_OK);
    fx->ps = fake_ps_new(fx->env, 2);
    braid_options o = BRAID_OPTIONS_INIT;
    o.coordinator = fake_ps_coordinator(fx->ps);
    o.consistency = consistency;
    o.ps_wait_ms = 300;
    if (braid_connect(&o, &fx->c, &err) != BRAID_OK) {
        fail_msg("%s", err.text);
    }
    for (size_t t = 0; t < 2; t++) {
        cl_table_spec spec = {
            .name = t == 0 ? "a" : "b", .dim = DIM, .initializer = "constant", .optimizer = "sgd"};
        fx->tables[t] = (braid_table){.c = fx->c, .name = bd_unconst(spec.name), .dim = DIM};
        assert_int_equal(cl_table_create(fx->c->cl, &spec, &fx->tables[t].id, NULL), BD_OK);
    }
    for (size_t i = 0; i < N_IDS; i++) {
        fx->ids[i] = i * i % 23;
    }
    fx->features[0] =
        (braid_feature){.table = &fx->tables[0], .ids = fx->ids, .n_ids = N_IDS, .n_bags = N_IDS};
    fx->features[1] = (braid_feature){.table = &fx->tables[1],
                                      .ids = fx->ids,
                                      .n_ids = N_IDS,
                                      .n_bags = 3,
                                      .offsets = fx->offsets,
                                      .mode = BRAID_MEAN};
    fx->features[2] = fx->features[0];
    assert_int_equal(braid_job_open(fx->c, NULL, NULL), BRAID_OK);
}

static void stop(fixture *fx)
{
    braid_close(fx->c);
    fake_ps_free(fx->ps);
    rpc_env_free(fx->env);
}

/* Batch, backward and the local half of a step: whichever allocation fails, nothing leaks, the
 * error is E_NOMEM, and the next try works. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, BRAID_ASYNC);
    const float *grads[3] = {fx.out[0], NULL, fx.out[2]};
    long before = tu_settled_blocks();
    int rc = BRAID_E_NOMEM, n_failed = 0;
    for (long nth = 0; rc != BRAID_OK; nth++) {
        braid_error err = {0};
        braid_batch *b = NULL;
        braid_context *x = NULL;
        bd_fault_fail_alloc(nth);
        rc = braid_batch_new(fx.c, fx.features, 3, &b, &err);
        rc = rc == BRAID_OK ? braid_context_new(fx.c, &x, &err) : rc;
        rc = rc == BRAID_OK ? braid_backward(x, b, grads, &err) : rc;
        bd_fault_fail_alloc(-1);
        if (rc != BRAID_OK) {
            assert_int_equal(rc, BRAID_E_NOMEM);
            assert_int_equal(err.status, rc);
            assert_true(strlen(err.text) > 0);
            n_failed++;
        }
        braid_context_free(x);
        braid_batch_free(b);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    assert_true(n_failed > 15);
    stop(&fx);
}

/* Merging two records: the same, with the context kept until a step has gone out. */
static void a_failed_merge_keeps_the_gradients(void **state)
{
    (void)state;
    fixture fx;
    uint64_t key = 5;
    float one[DIM] = {1, 1, 1}, w[DIM];
    braid_context *x = NULL;
    start(&fx, BRAID_SYNC);
    assert_int_equal(braid_context_new(fx.c, &x, NULL), BRAID_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(braid_context_add(x, &fx.tables[0], &key, 1, one, NULL), BRAID_OK);
    }
    for (long nth = 0; nth < 6; nth++) {
        bd_fault_fail_alloc(nth);
        assert_int_equal(braid_step(x, 1, NULL), BRAID_E_NOMEM);
        bd_fault_fail_alloc(-1);
    }
    assert_int_equal(braid_step(x, 1, NULL), BRAID_OK);
    fake_ps_row(fx.ps, fx.tables[0].id, key, w, DIM);
    for (size_t d = 0; d < DIM; d++) { /* the fake's learning rate is 0.5 */
        assert_true(w[d] == fake_ps_initial(key, d) - 0.5f * 3);
    }
    braid_context_free(x);
    stop(&fx);
}

/* Alone in a sync job, a refused step is aborted and the job goes on. */
static void a_refused_step_is_aborted(void **state)
{
    (void)state;
    fixture fx;
    uint64_t key = 7;
    float one[DIM] = {1, 1, 1}, w[DIM];
    braid_error err;
    start(&fx, BRAID_SYNC);
    fake_ps_fail_next(fx.ps, 0, BD_E_DATA, 1);
    fake_ps_fail_next(fx.ps, 1, BD_E_DATA, 1);
    assert_int_equal(braid_push(&fx.tables[0], &key, 1, one, 1, &err), BRAID_E_DATA);
    assert_int_equal(braid_last_step(fx.c), 1);
    assert_int_equal(braid_push(&fx.tables[0], &key, 1, one, 1, &err), BRAID_OK);
    assert_int_equal(braid_last_step(fx.c), 2);
    fake_ps_row(fx.ps, fx.tables[0].id, key, w, DIM);
    assert_true(w[0] == fake_ps_initial(key, 0) - 0.5f);
    stop(&fx);
}

/* A server that is gone is waited for, then named; rows in memory stay usable afterwards. */
static void a_lost_server_is_named(void **state)
{
    (void)state;
    fixture fx;
    float *out[3] = {fx.out[0], fx.out[1], fx.out[2]};
    braid_batch *b = NULL;
    braid_error err;
    start(&fx, BRAID_ASYNC);
    assert_int_equal(braid_batch_new(fx.c, fx.features, 3, &b, &err), BRAID_OK);
    fake_ps_kill(fx.ps, 1);
    assert_int_equal(braid_forward(b, out, &err), BRAID_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "ps-1"));
    fake_ps_start(fx.ps, 1); /* once the channel has reconnected, the batch works again */
    int rc = BRAID_E_UNAVAILABLE;
    for (int tries = 0; rc == BRAID_E_UNAVAILABLE && tries < 30; tries++) {
        rc = braid_forward(b, out, &err);
    }
    assert_int_equal(rc, BRAID_OK);
    assert_true(fx.out[0][1] == fake_ps_initial(fx.ids[0], 1));
    assert_true(fx.out[1][DIM] == 0.0f); /* an empty bag */
    braid_batch_free(b);
    stop(&fx);
}

int main(void)
{
    (void)braid_log_level("error");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_failed_merge_keeps_the_gradients),
        cmocka_unit_test(a_refused_step_is_aborted),
        cmocka_unit_test(a_lost_server_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
