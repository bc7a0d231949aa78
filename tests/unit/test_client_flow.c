/* What is in flight together (parts of one request, a push and a lookup), and pushes by a shard map
 * that is no longer true: told by name, nothing applied twice, nothing lost in silence.
 *
 * The servers' slots are a function of how many there are (rpc_slots_of) and a client refuses a map
 * with another number of servers, so a push never meets other owners today; the fake turns its map
 * all the same. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include "tests/util/fake_ps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Of cl_rows.c: parts of a lookup that are on their way to one server at once. */
enum { WINDOW = 4 };
enum { DIM = 16, N_KEYS = 600, PART_BYTES = 1500, WAIT_MS = 20000 };

typedef struct fixture {
    rpc_env *env;
    fake_ps *ps;
    cl_client *c;
    uint32_t table[2];
    uint64_t keys[2][N_KEYS];
    float grads[2][N_KEYS * DIM]; /* of any order of the keys: all are 1 */
} fixture;

static fixture *start(size_t n_servers, size_t part_bytes, cl_consistency consistency)
{
    static const char *const names[] = {"a", "b"};
    fixture *fx = bd_calloc(1, sizeof *fx);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_env_new(NULL, &fx->env, NULL), BD_OK);
    fx->ps = fake_ps_new(fx->env, n_servers);
    cl_options opt = {.coordinator = fake_ps_coordinator(fx->ps),
                      .name = "worker",
                      .connect_wait_ms = WAIT_MS,
                      .ps_wait_ms = WAIT_MS,
                      .part_bytes = part_bytes};
    if (cl_client_new(fx->env, &opt, &fx->c, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    for (size_t t = 0; t < 2; t++) {
        cl_table_spec spec = {
            .name = names[t], .dim = DIM, .initializer = "constant", .optimizer = "sgd"};
        assert_int_equal(cl_table_create(fx->c, &spec, &fx->table[t], NULL), BD_OK);
        for (size_t i = 0; i < N_KEYS; i++) {
            fx->keys[t][i] = bd_mix64(i);
        }
        for (size_t i = 0; i < (size_t)N_KEYS * DIM; i++) {
            fx->grads[t][i] = 1;
        }
    }
    cl_job job = {.rank = 0, .world = 1, .consistency = consistency};
    assert_int_equal(cl_job_next_epoch(fx->c, &job.epoch, NULL), BD_OK);
    assert_int_equal(cl_job_open(fx->c, &job, NULL, 1, NULL), BD_OK);
    cl_job_join(fx->c, &job);
    return fx;
}

static void stop(fixture *fx)
{
    cl_client_free(fx->c);
    fake_ps_free(fx->ps);
    rpc_env_free(fx->env);
    bd_free(fx);
}

/* The first n keys of both tables, asked for. */
static cl_rows *fetch(fixture *fx, size_t n)
{
    cl_rows *r = NULL;
    bd_err err = BD_ERR_INIT;
    cl_ids ids[2];
    for (size_t t = 0; t < 2; t++) {
        ids[t] = (cl_ids){.table_id = fx->table[t], .dim = DIM, .ids = fx->keys[t], .n_ids = n};
    }
    if (cl_rows_prepare(fx->c, ids, 2, &r, &err) != BD_OK || cl_rows_fetch(r, 0, &err) != BD_OK) {
        fail_msg("fetch: %s", err.text);
    }
    return r;
}

/* Each row is its first value less half a gradient for each of n_steps. */
static void check_rows(const cl_rows *r, float n_steps)
{
    for (size_t t = 0; t < 2; t++) {
        const cl_table_rows *rows = cl_rows_table(r, t);
        for (size_t i = 0; i < rows->n_unique * DIM; i++) {
            assert_true(rows->rows[i] ==
                        fake_ps_initial(rows->keys[i / DIM], i % DIM) - 0.5f * n_steps);
        }
    }
}

static cl_rows *lookup(fixture *fx, size_t n, float n_steps)
{
    bd_err err = BD_ERR_INIT;
    cl_rows *r = fetch(fx, n);
    if (cl_rows_wait(r, &err) != BD_OK) {
        fail_msg("lookup: %s", err.text);
    }
    check_rows(r, n_steps);
    return r;
}

static bd_status push(fixture *fx, uint64_t step, const cl_rows *r, bd_err *err)
{
    float *grads[2] = {fx->grads[0], fx->grads[1]};
    bd_status rc = cl_push_start(fx->c, step, r, grads, err);
    return rc == BD_OK ? cl_push_wait(fx->c, err) : rc;
}

static void must_push(fixture *fx, uint64_t step, const cl_rows *r)
{
    bd_err err = BD_ERR_INIT;
    if (push(fx, step, r, &err) != BD_OK) {
        fail_msg("push: %s", err.text);
    }
}

/* ---- in flight together ---- */

/* A server that answers nothing before a whole window is with it, and then the last part first. */
static void parts_of_a_lookup_are_on_their_way_together(void **state)
{
    (void)state;
    fixture *fx = start(1, PART_BYTES, CL_ASYNC);
    fake_ps_hold(fx->ps, 0, WINDOW);
    cl_rows_free(lookup(fx, N_KEYS, 0));
    assert_true(fake_ps_get_counts(fx->ps).lookups > 2 * WINDOW);
    stop(fx);
}

static void parts_of_a_push_are_on_their_way_together(void **state)
{
    (void)state;
    static const cl_consistency all[] = {CL_ASYNC, CL_SYNC}; /* the fake has no bounded */
    for (size_t i = 0; i < 2; i++) {
        fixture *fx = start(1, PART_BYTES, all[i]);
        cl_rows *r = lookup(fx, N_KEYS, 0);
        fake_ps_hold(fx->ps, 0, WINDOW);
        must_push(fx, 1, r);
        if (all[i] == CL_SYNC) {
            assert_int_equal(cl_commit(fx->c, 1, true, 1.0, NULL), BD_OK);
        }
        cl_rows_free(r);
        assert_true(fake_ps_get_counts(fx->ps).pushes > WINDOW);
        cl_rows_free(lookup(fx, N_KEYS, 1));
        stop(fx);
    }
}

/* A lookup does not wait behind a push that is not answered: prefetch beside a step. */
static void a_lookup_goes_beside_a_push(void **state)
{
    (void)state;
    fixture *fx = start(1, 0, CL_ASYNC);
    float *grads[2] = {fx->grads[0], fx->grads[1]};
    cl_rows *r = lookup(fx, 10, 0);
    fake_ps_hold(fx->ps, 0, 2);
    assert_int_equal(cl_push_start(fx->c, 1, r, grads, NULL), BD_OK);
    cl_rows *next = fetch(fx, N_KEYS);
    assert_int_equal(cl_rows_wait(next, NULL), BD_OK);
    assert_int_equal(cl_push_wait(fx->c, NULL), BD_OK);
    cl_rows_free(next);
    cl_rows_free(r);
    cl_rows_free(lookup(fx, 10, 1));
    stop(fx);
}

/* ---- shard maps ---- */

/* sync: nothing of a step that was refused is there, and the step can be made anew. */
static void a_sync_push_by_an_old_map_changes_nothing(void **state)
{
    (void)state;
    fixture *fx = start(3, PART_BYTES, CL_SYNC);
    bd_err err = BD_ERR_INIT;
    cl_rows *r = lookup(fx, N_KEYS, 0);
    fake_ps_rotate_slots(fx->ps); /* which the client does not know */
    assert_int_equal(push(fx, 1, r, &err), BD_E_MOVED);
    assert_non_null(strstr(err.text, "slots of ps-"));
    assert_non_null(strstr(err.text, "have moved"));
    assert_int_equal(cl_push_drop(fx->c, 1, NULL), BD_OK);
    assert_int_equal(push(fx, 1, r, &err), BD_E_MOVED); /* which it knows now: nothing is sent */
    assert_string_equal(err.text, "slots have moved between the lookup and the push of step 1");
    cl_rows_free(r);
    assert_int_equal(fake_ps_get_counts(fx->ps).pushes, 0);
    r = lookup(fx, N_KEYS, 0); /* grouped anew */
    must_push(fx, 1, r);
    assert_int_equal(cl_commit(fx->c, 1, true, 1.0, NULL), BD_OK);
    cl_rows_free(r);
    cl_rows_free(lookup(fx, N_KEYS, 1));
    stop(fx);
}

/* async: what was answered before is in the rows once, what was refused is not, and the caller is
 * told. */
static void an_async_push_by_an_old_map_applies_no_row_twice(void **state)
{
    (void)state;
    fixture *fx = start(2, PART_BYTES, CL_ASYNC);
    bd_err err = BD_ERR_INIT;
    cl_rows *r = lookup(fx, N_KEYS, 0);
    assert_int_equal(cl_push_begin(fx->c, 1, r, NULL), BD_OK);
    assert_int_equal(cl_push_table(fx->c, 1, fx->grads[1], NULL), BD_OK);
    int64_t end_ns = bd_mono_ns() + WAIT_MS * BD_NS_PER_MS;
    while (fake_ps_get_counts(fx->ps).pushes < 3 && bd_mono_ns() < end_ns) {
        bd_sleep_ms(1);
    }
    fake_ps_rotate_slots(fx->ps);
    assert_int_equal(cl_push_table(fx->c, 0, fx->grads[0], NULL), BD_OK);
    assert_int_equal(cl_push_end(fx->c, NULL), BD_OK);
    assert_int_equal(cl_push_wait(fx->c, &err), BD_E_MOVED);
    assert_non_null(strstr(err.text, "have moved"));
    assert_int_equal(cl_push_drop(fx->c, 0, NULL), BD_OK);
    cl_rows_free(r);

    size_t n_applied[2] = {0};
    r = fetch(fx, N_KEYS);
    assert_int_equal(cl_rows_wait(r, NULL), BD_OK);
    for (size_t t = 0; t < 2; t++) {
        const cl_table_rows *rows = cl_rows_table(r, t);
        for (size_t k = 0; k < rows->n_unique; k++) {
            float step = fake_ps_initial(rows->keys[k], 0) - rows->rows[k * DIM];
            assert_true(step == 0 || step == 0.5f);
            n_applied[t] += step != 0;
        }
    }
    assert_true(n_applied[1] > 0);
    assert_int_equal(n_applied[0], 0);
    must_push(fx, 2, r); /* the client goes on, by the new map */
    cl_rows_free(r);
    stop(fx);
}

/* A cluster that came back with fewer servers is another one: rows are elsewhere. */
static void a_map_of_another_number_of_servers_is_refused(void **state)
{
    (void)state;
    fixture *fx = start(3, 0, CL_ASYNC);
    bd_err err = BD_ERR_INIT;
    cl_rows *r = lookup(fx, N_KEYS, 0);
    fake_ps_shrink_map(fx->ps, 2);
    assert_int_equal(push(fx, 1, r, &err), BD_E_MISMATCH);
    assert_string_equal(err.text, "the shard map went from 3 to 2 servers");
    assert_int_equal(fake_ps_get_counts(fx->ps).pushes, 0);
    assert_int_equal(cl_push_drop(fx->c, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, &err), BD_E_MISMATCH);
    cl_rows_free(r);
    stop(fx);
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_lookup_are_on_their_way_together),
        cmocka_unit_test(parts_of_a_push_are_on_their_way_together),
        cmocka_unit_test(a_lookup_goes_beside_a_push),
        cmocka_unit_test(a_sync_push_by_an_old_map_changes_nothing),
        cmocka_unit_test(an_async_push_by_an_old_map_applies_no_row_twice),
        cmocka_unit_test(a_map_of_another_number_of_servers_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
