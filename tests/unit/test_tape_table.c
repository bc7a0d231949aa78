/* The local embedding table: dedup, sparse gradients, initial values, growth, failing memory. */
#include "base/fault.h"
#include "base/mem.h"

#include "tape/local_table.h"

#include "tests/util/tape_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DIM ((size_t)3)

typedef struct fixture {
    tp_device *dev;
    tp_tape *tape;
    tp_table *table;
    float hyper[NUM_OPTIM_MAX_HYPER];
} fixture;

static tp_table *open_table(fixture *f, const char *name, uint64_t seed)
{
    tp_table *t = NULL;
    tp_table_config cfg = {.name = name,
                           .dim = DIM,
                           .seed = seed,
                           .init_low = -0.5f,
                           .init_high = 0.5f,
                           .optim = num_optim_find("sgd")};
    assert_int_equal(tp_table_new(f->dev, &cfg, &t, NULL), BD_OK);
    return t;
}

static int setup(void **state)
{
    static fixture f;
    assert_int_equal(tp_device_new_cpu(1, &f.dev, NULL), BD_OK);
    assert_int_equal(tp_tape_new(f.dev, &f.tape, NULL), BD_OK);
    f.table = open_table(&f, "emb.user", 7);
    assert_int_equal(num_optim_hyper(num_optim_find("sgd"), NULL, NULL, 0, f.hyper, NULL), BD_OK);
    f.hyper[0] = 1;
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tp_table_free(f->table);
    tp_tape_free(f->tape);
    tp_device_free(f->dev);
    return 0;
}

/* ids 9 0 9 in bags {9 0} {} {9}: two distinct rows; their gradients count their uses. */
static void gradients_are_sparse_and_summed(void **state)
{
    fixture *f = *state;
    static const uint64_t ids[] = {9, 0, 9};
    static const uint32_t offsets[] = {0, 2, 2, 3};
    float before[2][DIM], after[DIM];
    tp_table_rows rows;
    tp_tensor *out = NULL;
    bd_err err;
    (void)tp_table_get(f->table, 9, before[0]);
    (void)tp_table_get(f->table, 0, before[1]);
    tp_table_bags bags = {.ids = ids, .offsets = offsets, .n = 3, .mode = TP_BAG_SUM};
    assert_int_equal(tp_table_bag(f->table, f->tape, &bags, &rows, &out, &err), BD_OK);
    assert_int_equal(rows.n_unique, 2);
    assert_true(rows.keys[0] == 9 && rows.keys[1] == 0);
    for (size_t k = 0; k < DIM; k++) {
        assert_true(tc_read(out)[k] == before[0][k] + before[1][k]);
        assert_true(tc_read(out)[DIM + k] == 0);
        assert_true(tc_read(out)[2 * DIM + k] == before[0][k]);
    }
    assert_int_equal(tp_table_n_rows(f->table), 0); /* a lookup creates nothing */
    assert_int_equal(tp_backward(f->tape, out, NULL, &err), BD_OK);
    static const float want[] = {2, 2, 2, 1, 1, 1};
    assert_memory_equal(tc_read(rows.rows->grad), want, sizeof(want));
    assert_int_equal(tp_table_apply(f->table, &rows, tc_read(rows.rows->grad), f->hyper, &err),
                     BD_OK);
    assert_int_equal(tp_table_n_rows(f->table), 2);
    assert_true(tp_table_get(f->table, 9, after));
    assert_true(after[1] == before[0][1] - 2);
    assert_true(tp_table_get(f->table, 0, after));
    assert_true(after[2] == before[1][2] - 1);
}

/* Initial values: a pure function of seed, name and key, inside the bounds. */
static void absent_keys_read_as_their_initial_value(void **state)
{
    fixture *f = *state;
    tp_table *same = open_table(f, "emb.user", 7), *name = open_table(f, "emb.item", 7);
    tp_table *seed = open_table(f, "emb.user", 8);
    float a[DIM], b[DIM];
    static const uint64_t keys[] = {0, 1, UINT64_MAX, 0x123456789abcdef0u};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        assert_false(tp_table_get(f->table, keys[i], a));
        assert_false(tp_table_get(same, keys[i], b));
        assert_memory_equal(a, b, sizeof(a));
        (void)tp_table_get(name, keys[i], b);
        assert_memory_not_equal(a, b, sizeof(a));
        (void)tp_table_get(seed, keys[i], b);
        assert_memory_not_equal(a, b, sizeof(a));
        for (size_t k = 0; k < DIM; k++) {
            assert_true(a[k] >= -0.5f && a[k] <= 0.5f);
        }
    }
    tp_table_free(same);
    tp_table_free(name);
    tp_table_free(seed);
}

#define N_KEYS  ((size_t)3000)
#define AT_ONCE ((size_t)100)

static void many_keys_keep_their_rows(void **state)
{
    fixture *f = *state;
    float ones[AT_ONCE * DIM], w[DIM], start[DIM];
    for (size_t i = 0; i < AT_ONCE * DIM; i++) {
        ones[i] = 1;
    }
    for (uint64_t first = 0; first < N_KEYS; first += AT_ONCE / 2) { /* each key twice */
        uint64_t ids[AT_ONCE];
        tp_table_rows rows;
        for (size_t i = 0; i < AT_ONCE; i++) {
            ids[i] = (first + i) << 40;
        }
        tp_tape_reset(f->tape);
        assert_int_equal(tp_table_lookup(f->table, f->tape, ids, AT_ONCE, &rows, NULL), BD_OK);
        assert_int_equal(rows.n_unique, AT_ONCE);
        assert_int_equal(tp_table_apply(f->table, &rows, ones, f->hyper, NULL), BD_OK);
    }
    assert_int_equal(tp_table_n_rows(f->table), N_KEYS + AT_ONCE / 2);
    tp_table *fresh = open_table(f, "emb.user", 7);
    for (uint64_t i = AT_ONCE / 2; i < N_KEYS; i++) {
        assert_true(tp_table_get(f->table, i << 40, w));
        (void)tp_table_get(fresh, i << 40, start);
        assert_true(w[0] == start[0] - 1 - 1);
    }
    tp_table_free(fresh);
}

static void no_ids_are_no_rows(void **state)
{
    fixture *f = *state;
    static const uint32_t offsets[] = {0};
    tp_table_rows rows;
    tp_tensor *out = NULL;
    tp_table_bags bags = {.offsets = offsets, .mode = TP_BAG_MEAN};
    assert_int_equal(tp_table_bag(f->table, f->tape, &bags, &rows, &out, NULL), BD_OK);
    assert_int_equal(rows.n_unique, 0);
    assert_int_equal(out->dims[0], 0);
    assert_int_equal(tp_backward(f->tape, out, NULL, NULL), BD_OK);
    assert_int_equal(tp_table_apply(f->table, &rows, NULL, f->hyper, NULL), BD_OK);
    assert_int_equal(tp_table_n_rows(f->table), 0);
}

static bd_status use(fixture *f, tp_table *t)
{
    static const uint64_t ids[] = {1, 2, 3, 2};
    static const float grads[3 * DIM] = {0};
    tp_table_rows rows;
    bd_status rc = tp_table_lookup(t, f->tape, ids, 4, &rows, NULL);
    return rc == BD_OK ? tp_table_apply(t, &rows, grads, f->hyper, NULL) : rc;
}

static void every_allocation_may_fail(void **state)
{
    fixture *f = *state;
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        tp_tape *old = f->tape, *tape = NULL;
        long before = bd_mem_live_blocks();
        tp_table *t = open_table(f, "t", 1);
        assert_int_equal(tp_tape_new(f->dev, &tape, NULL), BD_OK);
        f->tape = tape;
        bd_fault_fail_alloc(nth);
        rc = use(f, t);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        assert_int_equal(tp_table_n_rows(t), rc == BD_OK ? 3 : 0);
        assert_int_equal(use(f, t), BD_OK); /* and then it goes on */
        f->tape = old;
        tp_tape_free(tape);
        tp_table_free(t);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gradients_are_sparse_and_summed), TEST(absent_keys_read_as_their_initial_value),
        TEST(many_keys_keep_their_rows),       TEST(no_ids_are_no_rows),
        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
