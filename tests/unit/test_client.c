/* The client against a fake cluster: what a trainer sees is the same whether servers answer, fail,
 * restart, lose what was staged, or hand slots to each other. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/kv.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include "tests/util/fake_ps.h"
#include "tests/util/tu_mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { DIM_A = 4, DIM_B = 16, N_IDS = 600, N_STEPS = 6 };

typedef struct fixture {
    rpc_env *env;
    fake_ps *ps;
    cl_client *c;
    uint32_t table[2];
} fixture;

static cl_client *connect_to(fixture *fx, const char *name, int64_t ps_wait_ms, size_t part_bytes)
{
    cl_client *c = NULL;
    bd_err err = BD_ERR_INIT;
    cl_options opt = {.coordinator = fake_ps_coordinator(fx->ps),
                      .name = name,
                      .connect_wait_ms = 5000,
                      .ps_wait_ms = ps_wait_ms,
                      .part_bytes = part_bytes};
    if (cl_client_new(fx->env, &opt, &c, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

static void open_job(fixture *fx, int world, cl_consistency consistency)
{
    cl_job job = {.rank = 0, .world = world, .consistency = consistency};
    assert_int_equal(cl_job_next_epoch(fx->c, &job.epoch, NULL), BD_OK);
    assert_int_equal(cl_job_open(fx->c, &job, NULL, 1, NULL), BD_OK);
    cl_job_join(fx->c, &job);
}

static void start(fixture *fx, size_t n_servers, size_t part_bytes, cl_consistency consistency)
{
    assert_int_equal(rpc_env_new(NULL, &fx->env, NULL), BD_OK);
    fx->ps = fake_ps_new(fx->env, n_servers);
    fx->c = connect_to(fx, "worker-0", 10000, part_bytes);
    static const char *const names[] = {"a", "b"};
    for (size_t t = 0; t < 2; t++) {
        cl_table_spec spec = {.name = names[t],
                              .dim = t == 0 ? DIM_A : DIM_B,
                              .initializer = "constant",
                              .optimizer = "sgd"};
        assert_int_equal(cl_table_create(fx->c, &spec, &fx->table[t], NULL), BD_OK);
    }
    open_job(fx, 1, consistency);
}

static void stop(fixture *fx)
{
    cl_client_free(fx->c);
    fake_ps_free(fx->ps);
    rpc_env_free(fx->env);
}

static void draw_ids(uint64_t *ids, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = bd_mix64(bd_rand_u64(5, stream, i) % 300);
    }
}

/* What the rows must be: the same arithmetic as the fake's, in one process. */
typedef struct model {
    uint64_t key;
    bool known;
    float w[DIM_B];
} model;
typedef struct reference {
    model rows[2][1024];
} reference;

static model *ref_row(reference *ref, size_t t, uint64_t key)
{
    size_t at = (size_t)bd_mix64(key) & 1023;
    while (ref->rows[t][at].known && ref->rows[t][at].key != key) {
        at = (at + 1) & 1023;
    }
    model *m = &ref->rows[t][at];
    if (!m->known) {
        m->known = true;
        m->key = key;
        for (size_t e = 0; e < DIM_B; e++) {
            m->w[e] = fake_ps_initial(key, e);
        }
    }
    return m;
}

typedef void (*trouble_fn)(fixture *fx, uint64_t step, const char *moment);

static void no_trouble(fixture *fx, uint64_t step, const char *moment)
{
    (void)fx;
    (void)step;
    (void)moment;
}

static cl_rows *lookup(fixture *fx, const cl_ids *ids, uint64_t after_step)
{
    cl_rows *r = NULL;
    bd_err err = BD_ERR_INIT;
    if (cl_rows_prepare(fx->c, ids, 2, &r, &err) != BD_OK ||
        cl_rows_fetch(r, after_step, &err) != BD_OK || cl_rows_wait(r, &err) != BD_OK) {
        fail_msg("lookup: %s", err.text);
    }
    return r;
}

static void check_rows(const cl_rows *r, const cl_ids *ids, reference *ref)
{
    for (size_t t = 0; t < 2; t++) {
        const cl_table_rows *rows = cl_rows_table(r, t);
        for (size_t i = 0; i < ids[t].n_ids; i++) {
            assert_true(rows->keys[rows->index[i]] == ids[t].ids[i]);
            assert_memory_equal(rows->rows + (size_t)rows->index[i] * rows->dim,
                                ref_row(ref, t, ids[t].ids[i])->w, rows->dim * sizeof(float));
        }
    }
}

/* Gradient of a row: any function of step, table and key. */
static float grad_of(uint64_t step, size_t t, uint64_t key, size_t e)
{
    return (float)(bd_mix64(key + step * 7 + t + e) % 64) / 64.0f;
}

/* N_STEPS steps of lookup, push, commit; `trouble` strikes between any two calls. */
static void train(fixture *fx, reference *ref, trouble_fn trouble)
{
    static uint64_t ids_a[N_IDS], ids_b[N_IDS];
    bool is_sync = fake_ps_committed(fx->ps, 0) == 0;
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        bd_err err = BD_ERR_INIT;
        float *grads[2];
        draw_ids(ids_a, N_IDS, step);
        draw_ids(ids_b, N_IDS, step + 100);
        cl_ids ids[2] = {{.table_id = fx->table[0], .dim = DIM_A, .ids = ids_a, .n_ids = N_IDS},
                         {.table_id = fx->table[1], .dim = DIM_B, .ids = ids_b, .n_ids = N_IDS}};
        trouble(fx, step, "before lookup");
        cl_rows *r = lookup(fx, ids, step - 1);
        check_rows(r, ids, ref);
        for (size_t t = 0; t < 2; t++) {
            const cl_table_rows *rows = cl_rows_table(r, t);
            grads[t] = bd_alloc(rows->n_unique * rows->dim * sizeof(float));
            for (size_t u = 0; u < rows->n_unique; u++) {
                model *m = ref_row(ref, t, rows->keys[u]);
                for (size_t e = 0; e < rows->dim; e++) {
                    float g = grad_of(step, t, rows->keys[u], e);
                    grads[t][u * rows->dim + e] = g;
                    m->w[e] -= 0.5f * g;
                }
            }
        }
        trouble(fx, step, "before push");
        assert_int_equal(cl_push_begin(fx->c, step, r, NULL), BD_OK);
        assert_int_equal(cl_push_table(fx->c, 1, grads[1], NULL), BD_OK); /* backward's order */
        trouble(fx, step, "in push");
        assert_int_equal(cl_push_table(fx->c, 0, grads[0], NULL), BD_OK);
        assert_int_equal(cl_push_end(fx->c, NULL), BD_OK);
        if (cl_push_wait(fx->c, &err) != BD_OK) {
            fail_msg("push: %s", err.text);
        }
        cl_rows_free(r); /* the push does not need it any more */
        trouble(fx, step, "before commit");
        if (is_sync && cl_commit(fx->c, step, true, 1.0, &err) != BD_OK) {
            fail_msg("commit: %s", err.text);
        }
        bd_free(grads[0]);
        bd_free(grads[1]);
    }
}

static void check_final(fixture *fx, reference *ref)
{
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < 1024; i++) {
            const model *m = &ref->rows[t][i];
            float w[DIM_B];
            if (m->known) {
                size_t dim = t == 0 ? DIM_A : DIM_B;
                fake_ps_row(fx->ps, fx->table[t], m->key, w, dim);
                assert_memory_equal(w, m->w, dim * sizeof(float));
            }
        }
    }
}

static reference *reference_new(void)
{
    reference *ref = bd_calloc(1, sizeof *ref);
    assert_non_null(ref);
    return ref;
}

static void run_sync(size_t n_servers, size_t part_bytes, trouble_fn trouble,
                     fake_ps_counts *counts)
{
    long before = bd_mem_live_blocks();
    fixture fx;
    start(&fx, n_servers, part_bytes, CL_SYNC);
    reference *ref = reference_new();
    train(&fx, ref, trouble);
    check_final(&fx, ref);
    for (size_t i = 0; i < n_servers; i++) {
        assert_int_equal(fake_ps_committed(fx.ps, i), N_STEPS);
    }
    *counts = fake_ps_get_counts(fx.ps);
    assert_int_equal(counts->commits, N_STEPS * n_servers); /* each step once on each server */
    bd_free(ref);
    stop(&fx);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void any_number_of_servers_trains_the_same_rows(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 4; n++) {
        fake_ps_counts counts;
        run_sync(n, 0, no_trouble, &counts);
        assert_int_equal(counts.largest_push_parts, 1);
        assert_int_equal(counts.lookups, (int)n * N_STEPS);
        assert_int_equal(counts.pushes, (int)n * N_STEPS);
        assert_int_equal(counts.need_parts, 0);
    }
}

static void large_requests_go_in_parts(void **state)
{
    (void)state;
    fake_ps_counts counts;
    run_sync(2, 1500, no_trouble, &counts);
    assert_true(counts.largest_push_parts > 3);
    assert_true(counts.largest_request_bytes < 1700);
}

static void restart(fixture *fx, size_t server)
{
    fake_ps_kill(fx->ps, server);
    fake_ps_start(fx->ps, server);
}

static void restart_everywhere(fixture *fx, uint64_t step, const char *moment)
{
    static const char *const moments[] = {"before lookup", "before push", "in push",
                                          "before commit"};
    if (strcmp(moment, moments[step % 4]) == 0) {
        restart(fx, step % 2);
    }
}

static void restarted_servers_get_their_parts_again(void **state)
{
    (void)state;
    fake_ps_counts counts;
    run_sync(2, 1500, restart_everywhere, &counts);
    assert_true(counts.need_parts > 0);
}

static void fail_in_many_ways(fixture *fx, uint64_t step, const char *moment)
{
    static const bd_status codes[] = {BD_E_UNAVAILABLE, BD_E_EXHAUSTED, BD_E_CANCELLED,
                                      BD_E_PEER_LOST};
    fake_ps_fail_next(fx->ps, (step + (size_t)moment[0]) % 2, codes[step % 4], 3);
}

static void passing_failures_are_not_seen(void **state)
{
    (void)state;
    fake_ps_counts counts;
    run_sync(2, 1500, fail_in_many_ways, &counts);
}

static void duplicate_all(fixture *fx, uint64_t step, const char *moment)
{
    (void)step;
    (void)moment;
    fake_ps_duplicate_pushes(fx->ps, true);
}

static void pushes_that_arrive_twice_count_once(void **state)
{
    (void)state;
    fake_ps_counts counts;
    run_sync(2, 0, duplicate_all, &counts);
    assert_int_equal(counts.duplicates, 2 * N_STEPS);
}

static void move_slots(fixture *fx, uint64_t step, const char *moment)
{
    if (strcmp(moment, "before lookup") == 0 && step % 2 == 0) {
        fake_ps_rotate_slots(fx->ps);
    } else if (strcmp(moment, "in push") == 0) {
        fake_ps_bump_epoch(fx->ps);
    }
}

static void moved_slots_are_followed(void **state)
{
    (void)state;
    fake_ps_counts counts;
    run_sync(3, 0, move_slots, &counts);
    assert_true(counts.moved > 0);
}

/* Without commit: each push is applied once, by its sequence, whatever happens to the answer. */
static void async_pushes_are_applied_once(void **state)
{
    (void)state;
    static const trouble_fn troubles[] = {no_trouble, restart_everywhere, fail_in_many_ways,
                                          duplicate_all};
    for (size_t i = 0; i < 4; i++) {
        fixture fx;
        start(&fx, 2, 1500, CL_ASYNC);
        reference *ref = reference_new();
        static uint64_t ids_a[N_IDS], ids_b[N_IDS];
        for (uint64_t step = 1; step <= N_STEPS; step++) {
            float *grads[2];
            draw_ids(ids_a, N_IDS, step);
            draw_ids(ids_b, N_IDS, step + 100);
            cl_ids ids[2] = {{.table_id = fx.table[0], .dim = DIM_A, .ids = ids_a, .n_ids = N_IDS},
                             {.table_id = fx.table[1], .dim = DIM_B, .ids = ids_b, .n_ids = N_IDS}};
            troubles[i](&fx, step, "before lookup");
            cl_rows *r = lookup(&fx, ids, 0);
            check_rows(r, ids, ref);
            for (size_t t = 0; t < 2; t++) {
                const cl_table_rows *rows = cl_rows_table(r, t);
                grads[t] = bd_alloc(rows->n_unique * rows->dim * sizeof(float));
                for (size_t k = 0; k < rows->n_unique * rows->dim; k++) {
                    grads[t][k] = 0.25f;
                    ref_row(ref, t, rows->keys[k / rows->dim])->w[k % rows->dim] -= 0.125f * 0.5f;
                }
            }
            cl_set_lr_scale(fx.c, 0.5);
            troubles[i](&fx, step, "before push");
            assert_int_equal(cl_push_start(fx.c, step, r, grads, NULL), BD_OK);
            troubles[i](&fx, step, "before commit");
            assert_int_equal(cl_push_wait(fx.c, NULL), BD_OK);
            cl_rows_free(r);
            bd_free(grads[0]);
            bd_free(grads[1]);
        }
        check_final(&fx, ref);
        bd_free(ref);
        stop(&fx);
    }
}

static void an_aborted_step_changes_nothing(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 2, 0, CL_SYNC);
    uint64_t ids_a[3] = {1, 2, 3};
    cl_ids ids[2] = {{.table_id = fx.table[0], .dim = DIM_A, .ids = ids_a, .n_ids = 3},
                     {.table_id = fx.table[1], .dim = DIM_B, .ids = NULL, .n_ids = 0}};
    float grads_a[3 * DIM_A], none = 0, *grads[2] = {grads_a, &none};
    for (size_t i = 0; i < (size_t)3 * DIM_A; i++) {
        grads_a[i] = 1;
    }
    reference *ref = reference_new();
    cl_rows *r = lookup(&fx, ids, 0);
    assert_int_equal(cl_push_start(fx.c, 1, r, grads, NULL), BD_OK);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cl_push_begin(fx.c, 2, r, &err), BD_E_STATE);
    assert_string_equal(err.text, "push of step 2, but step 1 is not committed");
    assert_int_equal(cl_commit(fx.c, 1, false, 1.0, NULL), BD_OK);
    cl_rows_free(r);
    r = lookup(&fx, ids, 0);
    check_rows(r, ids, ref);
    cl_rows_free(r);
    bd_free(ref);
    stop(&fx);
}

/* Two ranks: a server sums both; a rank that waits for the other's parts goes on when they come. */
static void *second_rank(void *user)
{
    fixture *fx = user;
    cl_client *c = connect_to(fx, "worker-1", 10000, 0);
    cl_job job = {.epoch = 1, .rank = 1, .world = 2, .consistency = CL_SYNC};
    cl_job_join(c, &job);
    uint64_t key = 42;
    float grad[DIM_A] = {1, 1, 1, 1};
    float *grads[1] = {grad};
    cl_ids ids = {.table_id = fx->table[0], .dim = DIM_A, .ids = &key, .n_ids = 1};
    cl_rows *r = NULL;
    assert_int_equal(cl_rows_prepare(c, &ids, 1, &r, NULL), BD_OK);
    assert_int_equal(cl_push_start(c, 1, r, grads, NULL), BD_OK);
    assert_int_equal(cl_commit(c, 1, true, 1.0, NULL), BD_OK);
    cl_rows_free(r);
    cl_client_free(c);
    return NULL;
}

static void the_sum_of_all_ranks_is_applied(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 2, 0, CL_SYNC);
    cl_job job = {.epoch = 1, .rank = 0, .world = 2, .consistency = CL_SYNC};
    assert_int_equal(cl_job_open(fx.c, &job, NULL, 1, NULL), BD_OK);
    cl_job_join(fx.c, &job);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, second_rank, &fx), 0);
    uint64_t key = 42;
    float grad[DIM_A] = {2, 2, 2, 2};
    float *grads[1] = {grad};
    cl_ids ids = {.table_id = fx.table[0], .dim = DIM_A, .ids = &key, .n_ids = 1};
    cl_rows *r = NULL;
    assert_int_equal(cl_rows_prepare(fx.c, &ids, 1, &r, NULL), BD_OK);
    assert_int_equal(cl_push_start(fx.c, 1, r, grads, NULL), BD_OK);
    assert_int_equal(cl_commit(fx.c, 1, true, 1.0, NULL), BD_OK);
    assert_int_equal(cl_rows_fetch(r, 1, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, NULL), BD_OK);
    assert_true(cl_rows_table(r, 0)->rows[0] == fake_ps_initial(42, 0) - 0.5f * 2 - 0.5f * 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    cl_rows_free(r);
    stop(&fx);
}

static void a_lost_server_is_named(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 2, 0, CL_SYNC);
    cl_client *c = connect_to(&fx, "hasty", 300, 0);
    uint64_t ids_a[40];
    draw_ids(ids_a, 40, 1);
    cl_ids ids = {.table_id = fx.table[0], .dim = DIM_A, .ids = ids_a, .n_ids = 40};
    cl_rows *r = NULL;
    bd_err err = BD_ERR_INIT;
    char want[80];
    fake_ps_kill(fx.ps, 1);
    assert_int_equal(cl_rows_prepare(c, &ids, 1, &r, NULL), BD_OK);
    assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, &err), BD_E_UNAVAILABLE);
    (void)snprintf(want, sizeof want, "ps-1 (%s): waited 0.", fake_ps_address(fx.ps, 1));
    if (strncmp(err.text, want, strlen(want)) != 0) {
        fail_msg("got \"%s\", want \"%s...\"", err.text, want);
    }
    fake_ps_start(fx.ps,
                  1); /* the same rows object works again, once the channel has reconnected */
    bd_status rc = BD_E_UNAVAILABLE;
    for (int tries = 0; rc == BD_E_UNAVAILABLE && tries < 30; tries++) {
        assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
        rc = cl_rows_wait(r, &err);
    }
    assert_int_equal(rc, BD_OK);
    fake_ps_ignore_next(fx.ps, 0, 1); /* a server that takes requests and is silent */
    assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "ps-0 ("));
    cl_rows_free(r);
    cl_client_free(c);
    stop(&fx);
}

static void errors_for_good_come_through_at_once(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 2, 0, CL_SYNC);
    uint64_t key = 1;
    cl_ids ids = {.table_id = fx.table[0], .dim = DIM_A, .ids = &key, .n_ids = 1};
    cl_rows *r = NULL;
    bd_err err = BD_ERR_INIT;
    fake_ps_fail_next(fx.ps, 0, BD_E_FENCED, 1);
    fake_ps_fail_next(fx.ps, 1, BD_E_FENCED, 1);
    assert_int_equal(cl_rows_prepare(fx.c, &ids, 1, &r, NULL), BD_OK);
    assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, &err), BD_E_FENCED);
    assert_non_null(strstr(err.text, "Lookup: the fake says no"));
    cl_rows_free(r);
    ids.dim = DIM_A + 1; /* not the table's */
    assert_int_equal(cl_rows_prepare(fx.c, &ids, 1, &r, NULL), BD_OK);
    fake_ps_fail_next(fx.ps, 0, BD_OK, 0);
    fake_ps_fail_next(fx.ps, 1, BD_OK, 0);
    assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
    assert_int_equal(cl_rows_wait(r, &err), BD_E_MISMATCH);
    cl_rows_free(r);
    cl_table_spec spec = {.name = "a", .dim = 9, .initializer = "constant", .optimizer = "sgd"};
    uint32_t id;
    assert_int_equal(cl_table_create(fx.c, &spec, &id, &err), BD_E_MISMATCH);
    assert_non_null(strstr(err.text, "table exists with another dim"));
    stop(&fx);
}

/* Requests may be given up at any moment: nothing is left behind, nothing crashes. */
static void unfinished_work_can_be_dropped(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    fixture fx;
    start(&fx, 2, 200, CL_SYNC);
    static uint64_t ids_a[N_IDS];
    draw_ids(ids_a, N_IDS, 1);
    cl_ids ids = {.table_id = fx.table[0], .dim = DIM_A, .ids = ids_a, .n_ids = N_IDS};
    for (int i = 0; i < 10; i++) {
        cl_rows *r = NULL;
        assert_int_equal(cl_rows_prepare(fx.c, &ids, 1, &r, NULL), BD_OK);
        assert_int_equal(cl_rows_fetch(r, 0, NULL), BD_OK);
        cl_rows_free(r);
    }
    cl_rows *r = NULL;
    assert_int_equal(cl_rows_prepare(fx.c, &ids, 1, &r, NULL), BD_OK);
    static float grad[N_IDS * DIM_A];
    float *grads[1] = {grad};
    assert_int_equal(cl_push_start(fx.c, 1, r, grads, NULL), BD_OK);
    cl_rows_free(r);
    stop(&fx);
    assert_int_equal(bd_mem_live_blocks(), before);
}

/* The local half of a lookup and of a push: every allocation may fail, and the next try works. */
static void preparing_survives_every_allocation_failure(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 2, 500, CL_SYNC);
    static uint64_t ids_a[100];
    draw_ids(ids_a, 100, 1);
    cl_ids ids = {.table_id = fx.table[0], .dim = DIM_A, .ids = ids_a, .n_ids = 100};
    long before = tu_settled_blocks(), nth = 0;
    cl_rows *r = NULL;
    bd_status rc = BD_E_NOMEM;
    for (; rc != BD_OK; nth++) {
        bd_err err = BD_ERR_INIT;
        bd_fault_fail_alloc(nth);
        rc = cl_rows_prepare(fx.c, &ids, 1, &r, &err);
        bd_fault_fail_alloc(-1);
        if (rc != BD_OK) {
            assert_int_equal(rc, BD_E_NOMEM);
            assert_int_equal(err.code, BD_E_NOMEM);
            assert_int_equal(bd_mem_live_blocks(), before);
        }
    }
    assert_true(nth > 10);
    before = bd_mem_live_blocks();
    rc = BD_E_NOMEM;
    for (nth = 0; rc != BD_OK; nth++) {
        bd_fault_fail_alloc(nth);
        rc = cl_push_begin(fx.c, 1, r, NULL);
        bd_fault_fail_alloc(-1);
        if (rc != BD_OK) {
            assert_int_equal(rc, BD_E_NOMEM);
            assert_int_equal(bd_mem_live_blocks(), before);
        }
    }
    assert_true(nth > 5);
    static const float grad[100 * DIM_A];
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cl_push_end(fx.c, &err), BD_E_STATE);
    assert_string_equal(err.text, "push ended with 0 of 1 tables");
    assert_int_equal(cl_push_table(fx.c, 0, grad, NULL), BD_OK);
    assert_int_equal(cl_push_table(fx.c, 0, grad, NULL), BD_E_STATE); /* once is enough */
    assert_int_equal(cl_push_end(fx.c, NULL), BD_OK);
    assert_int_equal(cl_commit(fx.c, 1, true, 1.0, NULL), BD_OK);
    cl_rows_free(r);
    stop(&fx);
}

static void assigned_rows_are_read_back(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 3, 256, CL_SYNC);
    static uint64_t keys[200];
    static float rows[200 * DIM_B];
    for (size_t i = 0; i < 200; i++) {
        keys[i] = bd_mix64(i);
        for (size_t e = 0; e < DIM_B; e++) {
            rows[i * DIM_B + e] = (float)(i * 100 + e);
        }
    }
    assert_int_equal(cl_assign(fx.c, fx.table[1], DIM_B, keys, rows, NULL, 200, NULL), BD_OK);
    cl_ids ids[2] = {{.table_id = fx.table[0], .dim = DIM_A, .ids = keys, .n_ids = 0},
                     {.table_id = fx.table[1], .dim = DIM_B, .ids = keys, .n_ids = 200}};
    cl_rows *r = lookup(&fx, ids, 0);
    const cl_table_rows *t = cl_rows_table(r, 1);
    for (size_t i = 0; i < 200; i++) {
        assert_memory_equal(t->rows + (size_t)t->index[i] * DIM_B, rows + i * DIM_B,
                            DIM_B * sizeof(float));
    }
    cl_rows_free(r);
    uint64_t hash = 0, n_rows = 0;
    assert_int_equal(cl_param_hash(fx.c, &hash, &n_rows, NULL), BD_OK);
    assert_int_equal(n_rows, 200);
    bd_err err = BD_ERR_INIT;
    assert_int_equal(cl_checkpoint(fx.c, "c1", 0, NULL), BD_OK);
    assert_int_equal(cl_checkpoint(fx.c, "c1", 3, &err), BD_E_STATE);
    assert_non_null(strstr(err.text, "ps-"));
    stop(&fx);
}

static void the_store_works_through_the_coordinator(void **state)
{
    (void)state;
    fixture fx;
    start(&fx, 1, 0, CL_SYNC);
    bd_kv *kv = cl_client_kv(fx.c);
    bd_err err = BD_ERR_INIT;
    char *val = NULL;
    size_t n = 0;
    int64_t after = 0;
    bool swapped = true;
    assert_int_equal(kv->get(kv, "x", 0, &val, &n, &err), BD_E_NOT_FOUND);
    assert_int_equal(kv->get(kv, "x", 30, &val, &n, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "kv get x"));
    assert_int_equal(kv->set(kv, "x", "ab\0c", 4, &err), BD_OK);
    assert_int_equal(kv->get(kv, "x", 1000, &val, &n, &err), BD_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(val, "ab\0c", 5);
    bd_free(val);
    assert_int_equal(kv->add(kv, "n", 5, &after, &err), BD_OK);
    assert_int_equal(kv->add(kv, "n", -7, &after, &err), BD_OK);
    assert_int_equal(after, -2);
    assert_int_equal(kv->compare_set(kv, "c", "old", "new", &swapped, &err), BD_OK);
    assert_false(swapped);
    assert_int_equal(kv->compare_set(kv, "c", NULL, "new", &swapped, &err), BD_OK);
    assert_true(swapped);
    assert_int_equal(kv->wait_at_least(kv, "n", 1, 30, &err), BD_E_TIMEOUT);
    assert_int_equal(kv->add(kv, "n", 9, &after, &err), BD_OK);
    assert_int_equal(kv->wait_at_least(kv, "n", 7, 1000, &err), BD_OK);
    assert_int_equal(kv->del(kv, "x", &err), BD_OK);
    assert_int_equal(kv->get(kv, "x", 0, &val, &n, &err), BD_E_NOT_FOUND);
    assert_int_equal(bd_kv_barrier(kv, "b", 1, 1000, &err), BD_OK);
    restart(&fx, 0); /* the coordinator is back in a moment: callers only wait */
    assert_int_equal(kv->set(kv, "y", "1", 1, &err), BD_OK);
    stop(&fx);
}

static void no_coordinator_is_named_in_time(void **state)
{
    (void)state;
    rpc_env *env = NULL;
    cl_client *c = NULL;
    bd_err err = BD_ERR_INIT;
    cl_options opt = {.coordinator = "127.0.0.1:1", .connect_wait_ms = 200};
    assert_int_equal(rpc_env_new(NULL, &env, NULL), BD_OK);
    assert_int_equal(cl_client_new(env, &opt, &c, &err), BD_E_UNAVAILABLE);
    assert_int_equal(strncmp(err.text, "coordinator (127.0.0.1:1): waited ", 34), 0);
    rpc_env_free(env);
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_servers_trains_the_same_rows),
        cmocka_unit_test(large_requests_go_in_parts),
        cmocka_unit_test(restarted_servers_get_their_parts_again),
        cmocka_unit_test(passing_failures_are_not_seen),
        cmocka_unit_test(pushes_that_arrive_twice_count_once),
        cmocka_unit_test(moved_slots_are_followed),
        cmocka_unit_test(async_pushes_are_applied_once),
        cmocka_unit_test(an_aborted_step_changes_nothing),
        cmocka_unit_test(the_sum_of_all_ranks_is_applied),
        cmocka_unit_test(a_lost_server_is_named),
        cmocka_unit_test(errors_for_good_come_through_at_once),
        cmocka_unit_test(unfinished_work_can_be_dropped),
        cmocka_unit_test(preparing_survives_every_allocation_failure),
        cmocka_unit_test(assigned_rows_are_read_back),
        cmocka_unit_test(the_store_works_through_the_coordinator),
        cmocka_unit_test(no_coordinator_is_named_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
