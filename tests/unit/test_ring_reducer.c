/* The reducer's contract: order of launches, rebuild, no_sync, unused, manifests, layouts. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_mem_int.h"
#include "ring/ring_reducer.h"

#include "tests/util/ring_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* launch_in_order and ready orders that differ on every rank and step: sums are right, so launches
 * matched (the frame check would refuse anything else). */
static void random_ready_orders(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    for (int step = 0; step < 6; step++) {
        size_t order[N_PARAMS];
        model_shuffle(order, N_PARAMS, (uint64_t)step * 10 + (uint64_t)t->rank);
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t k = 0; k < N_PARAMS; k++) {
            model_fill(&m, t->rank, step, order[k]);
            RANK_OK(t, ring_reducer_ready(r, order[k], &err), &err);
        }
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            RANK_CHECK(t, ring_reducer_used(r)[i] && model_is_sum(&m, t->world, step, i));
        }
        RANK_CHECK(t, ring_reducer_wait_ns(r) >= 0 && ring_reducer_comm_ns(r) > 0);
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void launch_in_order(void **state)
{
    (void)state;
    ring_everywhere(random_ready_orders, NULL);
}

/* Buckets start in reverse order; after the first step everybody has rank 0's. */
static void rank0_wins(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    static const size_t order0[N_PARAMS] = {2, 0, 6, 4, 1, 5, 3};
    static const size_t others[N_PARAMS] = {0, 1, 2, 3, 4, 5, 6};
    model m;
    size_t n = 0;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    const size_t *b = ring_reducer_bucket(r, 0, &n); /* 64 floats >= 100 bytes */
    RANK_CHECK(t, n == 1 && b[0] == 6);
    b = ring_reducer_bucket(r, 1, &n);
    RANK_CHECK(t, n == 1 && b[0] == 5);
    b = ring_reducer_bucket(r, 2, &n); /* 0 + 68 + 20000 */
    RANK_CHECK(t, n == 3 && b[0] == 4 && b[1] == 3 && b[2] == 2);
    if (!model_step(r, &m, t, 0, t->rank == 0 ? order0 : others)) {
        return;
    }
    b = ring_reducer_bucket(r, 0, &n);
    RANK_CHECK(t, ring_reducer_n_buckets(r) == 3 && n == 1 && b[0] == 2);
    b = ring_reducer_bucket(r, 1, &n);
    RANK_CHECK(t, n == 5 && b[0] == 0 && b[1] == 6 && b[2] == 4 && b[3] == 1 && b[4] == 5);
    b = ring_reducer_bucket(r, 2, &n);
    RANK_CHECK(t, n == 1 && b[0] == 3);
    if (!model_step(r, &m, t, 1, t->rank == 0 ? others : order0)) { /* once only */
        return;
    }
    b = ring_reducer_bucket(r, 0, &n);
    RANK_CHECK(t, n == 1 && b[0] == 2);
    for (size_t i = 0; i < N_PARAMS; i++) {
        RANK_CHECK(t, model_is_sum(&m, t->world, 1, i));
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void bucket_rebuild_rank0_wins(void **state)
{
    (void)state;
    ring_everywhere(rank0_wins, NULL);
}

/* The table of A.7: used here; used elsewhere (becomes the sum); used nowhere (untouched). */
static void unused_table(rank_test *t)
{
    bool find_unused = *(const bool *)t->arg;
    ring_reducer_options opt = model_buckets;
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    opt.find_unused = find_unused;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &opt, &r, &err), &err);
    for (int step = 0; step < 3; step++) {
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            bool used = i == 2 ? t->rank == 0 : i != 3;
            model_fill(&m, t->rank, step, i); /* stale values where unused */
            if (used) {
                RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
            } else if (!find_unused) {
                RANK_OK(t, ring_reducer_unused(r, i, &err), &err);
            }
        }
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
        for (size_t k = 0; k < model_sizes[2]; k++) {
            RANK_CHECK(t, m.grads[2][k] == model_grad(0, step, 2, k));
        }
        for (size_t k = 0; k < model_sizes[3]; k++) {
            RANK_CHECK(t, m.grads[3][k] == model_grad(t->rank, step, 3, k));
        }
        RANK_CHECK(t, model_is_sum(&m, t->world, step, 5));
        RANK_CHECK(t, ring_reducer_used(r)[2] && !ring_reducer_used(r)[3]);
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void unused_dynamic(void **state)
{
    (void)state;
    bool modes[] = {false, true};
    ring_everywhere(unused_table, &modes[0]);
    ring_everywhere(unused_table, &modes[1]);
}

/* The last rank forgets fc1.w once: everybody hears it in this backward, and the next one works. */
static void forgotten(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    char want[96];
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    for (size_t i = 0; i < N_PARAMS; i++) {
        model_fill(&m, t->rank, 0, i);
        if (i != 2 || t->rank != t->world - 1) {
            RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
        }
    }
    RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE);
    (void)snprintf(want, sizeof want, "parameter 2 (fc1.w) got no gradient on rank %d",
                   t->world - 1);
    RANK_CHECK(t, strstr(err.text, want) != NULL);
    RANK_CHECK(t, m.grads[0][0] == model_grad(t->rank, 0, 0, 0)); /* untouched */
    static const size_t order[N_PARAMS] = {0, 1, 2, 3, 4, 5, 6};
    if (model_step(r, &m, t, 1, order)) {
        for (size_t i = 0; i < N_PARAMS; i++) {
            RANK_CHECK(t, model_is_sum(&m, t->world, 1, i));
        }
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void unused_undetected_raises(void **state)
{
    (void)state;
    ring_everywhere(forgotten, NULL);
}

/* Three micro-batches = their sum; a parameter used only under no_sync is still reduced. */
static void accumulate(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    for (int micro = 0; micro < 3; micro++) {
        RANK_OK(t, ring_reducer_prepare(r, micro == 2, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            if (i == 0 && micro == 2) {
                RANK_OK(t, ring_reducer_unused(r, i, &err), &err);
                continue;
            }
            for (size_t k = 0; k < model_sizes[i]; k++) {
                m.grads[i][k] += model_grad(t->rank, micro, i, k);
            }
            RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
        }
        uint64_t before = ring_bytes_sent(t->comm);
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
        RANK_CHECK(t, micro == 2 || ring_bytes_sent(t->comm) == before);
    }
    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < model_sizes[i]; k++) {
            float want = 0;
            for (int rank = 0; rank < t->world; rank++) {
                for (int micro = 0; micro < (i == 0 ? 2 : 3); micro++) {
                    want += model_grad(rank, micro, i, k);
                }
            }
            RANK_CHECK(t, m.grads[i][k] == want);
        }
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void no_sync_accumulate(void **state)
{
    (void)state;
    ring_everywhere(accumulate, NULL);
}

/* One rank marks a gradient twice: it hears it at once, everybody at the end, the next step is
 * good. */
static void twice(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    int culprit = t->world - 1;
    char want[64];
    model_init(&m);
    (void)snprintf(want, sizeof want, "rank %d: parameter 2 (fc1.w) became ready twice", culprit);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    RANK_CHECK(t, ring_reducer_ready(r, 0, &err) == BD_E_STATE); /* no backward is open */
    for (int step = 0; step < 2; step++) {
        size_t last = step == 0 ? 0 : 2; /* every bucket is out already when step 1 goes wrong */
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        RANK_CHECK(t, ring_reducer_prepare(r, true, &err) == BD_E_STATE);
        for (size_t i = N_PARAMS; i > last; i--) {
            RANK_OK(t, ring_reducer_ready(r, i - 1, &err), &err);
        }
        for (size_t i = 0; i < last; i++) {
            RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
        }
        if (t->rank == culprit) {
            RANK_CHECK(t, ring_reducer_ready(r, 2, &err) == BD_E_STATE);
            RANK_CHECK(t, ring_reducer_unused(r, 2, &err) == BD_E_STATE);
        }
        RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE);
        RANK_CHECK(t, strstr(err.text, want) != NULL);
        RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE); /* not open any more */
    }
    RANK_CHECK(t, model_step(r, &m, t, 1, NULL) && model_is_sum(&m, t->world, 1, 2));
    ring_reducer_free(r);
    model_deinit(&m);
}

static void double_ready(void **state)
{
    (void)state;
    ring_everywhere(twice, NULL);
}

typedef struct manifest_case {
    const char *what;
    const char *want; /* in everybody's error */
} manifest_case;

static void differing(rank_test *t)
{
    const manifest_case *c = t->arg;
    ring_reducer_options opt = model_buckets;
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    size_t n = N_PARAMS;
    float x = 1;
    model_init(&m);
    if (t->rank == 1) {
        if (strcmp(c->what, "count") == 0) {
            n--;
        } else if (strcmp(c->what, "name") == 0) {
            m.params[3].name = "fc9.b";
        } else if (strcmp(c->what, "dtype") == 0) {
            m.params[3].dtype = NUM_I32;
        } else if (strcmp(c->what, "size") == 0) {
            m.params[3].n_elems--;
        } else if (strcmp(c->what, "knob") == 0) {
            opt.find_unused = true;
        } else {
            ring_param p = m.params[1];
            m.params[1] = m.params[3];
            m.params[3] = p;
        }
    }
    RANK_CHECK(t, ring_reducer_new(t->comm, m.params, n, &opt, &r, &err) == BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "rank 1") != NULL && strstr(err.text, c->want) != NULL);
    /* the group is still good */
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "after", NULL, &err), &err);
    model_deinit(&m);
}

static void manifest_mismatch(void **state)
{
    (void)state;
    manifest_case cases[] = {
        {"count", "7 parameters"},  {"name", "fc9.b"},         {"dtype", "fc1.b i32 x 17"},
        {"size", "fc1.b f32 x 16"}, {"knob", "find_unused 1"}, {"order", "parameter 1: fc1.b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const int worlds[] = {2, 3, 4, 5, 8};
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            ring_on_every_backend(worlds[w], differing, &cases[i]);
        }
    }
}

/* A saved layout gives the same buckets in a new reducer; a wrong or differing one is refused. */
static void layouts(rank_test *t)
{
    static const size_t order0[N_PARAMS] = {2, 0, 6, 4, 1, 5, 3};
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    ring_reducer *again = NULL;
    char *text = NULL, *text2 = NULL, *fresh = NULL;
    model m;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    RANK_OK(t, ring_reducer_layout_save(r, &fresh, &err), &err);
    if (!model_step(r, &m, t, 0, order0)) {
        return;
    }
    RANK_OK(t, ring_reducer_layout_save(r, &text, &err), &err);
    RANK_CHECK(t, strcmp(text, "braid-buckets 1 1\n2 \n0 6 4 1 5 \n3 \n") == 0);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &again, &err), &err);
    RANK_CHECK(t,
               ring_reducer_layout_load(again, "braid-buckets 1 1\n2 2 \n", &err) == BD_E_MISMATCH);
    RANK_CHECK(t,
               ring_reducer_layout_load(again, t->rank == 1 ? fresh : text, &err) == BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "rank 1") != NULL);
    RANK_OK(t, ring_reducer_layout_load(again, text, &err), &err);
    RANK_OK(t, ring_reducer_layout_save(again, &text2, &err), &err);
    RANK_CHECK(t, strcmp(text, text2) == 0);
    static const size_t other[N_PARAMS] = {0, 1, 2, 3, 4, 5, 6};
    if (model_step(again, &m, t, 1, other)) { /* not rebuilt a second time */
        bd_free(text2);
        RANK_OK(t, ring_reducer_layout_save(again, &text2, &err), &err);
        RANK_CHECK(t, strcmp(text, text2) == 0 && model_is_sum(&m, t->world, 1, 5));
    }
    bd_free(text);
    bd_free(text2);
    bd_free(fresh);
    ring_reducer_free(again);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void layout_survives_a_checkpoint(void **state)
{
    (void)state;
    ring_on_every_backend(2, layouts, NULL);
    ring_on_every_backend(5, layouts, NULL);
}

/* scale, other dtypes, other gradient memory. */
static void scaled_and_bound(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    float a[3] = {0};
    uint16_t h[2] = {0};
    float b[3] = {2, 4, 6};
    uint16_t g[2] = {num_f32_to_f16(8), num_f32_to_f16(1)};
    const ring_param params[] = {{"a", 3, NUM_F32, a}, {"h", 2, NUM_F16, h}};
    ring_reducer_options opt = {.scale = 1.0f / (float)t->world};
    void *const grads[] = {b, g};
    RANK_OK(t, ring_reducer_new(t->comm, params, 2, &opt, &r, &err), &err);
    ring_reducer_bind(r, grads);
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, 0, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, 1, &err), &err);
    RANK_OK(t, ring_reducer_finish(r, &err), &err);
    RANK_CHECK(t, b[0] == 2 && b[1] == 4 && b[2] == 6 && a[0] == 0);
    RANK_CHECK(t, num_f16_to_f32(g[0]) == 8 && num_f16_to_f32(g[1]) == 1 && h[0] == 0);
    RANK_CHECK(t, ring_reducer_n_buckets(r) == 2);
    ring_reducer_free(r);
}

static void scale_and_bind(void **state)
{
    (void)state;
    ring_everywhere(scaled_and_bound, NULL);
}

/* A rank dies between two buckets: finish names it on the others, and freeing is safe. */
static void dies_in_backward(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, 6, &err), &err);
    rank_meet(t);
    if (t->rank == 1) {
        ring_mem_test_kill(t->comm);
    } else {
        bd_status rc = BD_OK;
        for (size_t i = 0; rc == BD_OK && i < 6; i++) {
            rc = ring_reducer_ready(r, i, &err);
        }
        rc = ring_reducer_finish(r, &err);
        RANK_CHECK(t, rc == BD_E_PEER_LOST && strstr(err.text, "rank 1 lost") != NULL);
    }
    rank_meet(t);
    if (t->rank == 1) { /* a dead process needs no tidying; this thread does */
        ring_mem_test_revive(t->comm);
        ring_abort(t->comm, NULL);
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void lost_rank_in_backward(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        ring_ranks_run(RANKS_MEM, world, NULL, dies_in_backward, NULL);
    }
}

/* Every allocation of a reducer's life on one rank alone. */
static bd_status whole_life(ring_comm *c, model *m, bd_err *err)
{
    ring_reducer *r = NULL;
    char *text = NULL;
    bd_status rc = ring_reducer_new(c, m->params, N_PARAMS, &model_buckets, &r, err);
    rc = rc != BD_OK ? rc : ring_reducer_prepare(r, true, err);
    for (size_t i = 0; rc == BD_OK && i < N_PARAMS; i++) {
        rc = ring_reducer_ready(r, i, err);
    }
    rc = rc != BD_OK ? rc : ring_reducer_finish(r, err);
    rc = rc != BD_OK ? rc : ring_reducer_layout_save(r, &text, err);
    rc = rc != BD_OK ? rc : ring_reducer_layout_load(r, text, err);
    bd_free(text);
    ring_reducer_free(r);
    return rc;
}

static void every_allocation_failure_is_reported(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_E_NOMEM;
    ring_comm *c = NULL;
    model m;
    long nth = 0;
    model_init(&m);
    assert_int_equal(ring_mem_new(1, NULL, &c, &err), BD_OK);
    assert_int_equal(whole_life(c, &m, &err), BD_OK); /* the engine's scratch is kept */
    for (; rc != BD_OK; nth++) {
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(nth);
        rc = whole_life(c, &m, &err);
        assert_int_equal(bd_mem_live_blocks(), before);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM || rc == BD_E_MISMATCH);
    }
    bd_fault_fail_alloc(-1);
    assert_true(nth > 30);
    ring_free(c);
    model_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launch_in_order),
        cmocka_unit_test(bucket_rebuild_rank0_wins),
        cmocka_unit_test(unused_dynamic),
        cmocka_unit_test(unused_undetected_raises),
        cmocka_unit_test(no_sync_accumulate),
        cmocka_unit_test(double_ready),
        cmocka_unit_test(manifest_mismatch),
        cmocka_unit_test(layout_survives_a_checkpoint),
        cmocka_unit_test(scale_and_bind),
        cmocka_unit_test(lost_rank_in_backward),
        cmocka_unit_test(every_allocation_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
