/* Tables in memory: any key, first rows, updates, pages, the way to the store and back. */
#include "base/fault.h"
#include "base/mem.h"

#include "ps_server/ps_table.h"
#include "ps_server/ps_tables.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

#define DIM 5u

static ps_spec make_spec(const char *name, uint32_t dim, const char *init, const char *opt)
{
    Braid__V1__TableSpec m;
    Braid__V1__Param lr;
    Braid__V1__Param *params[1] = {&lr};
    char text[3][64];
    ps_spec s;
    bd_err err = BD_ERR_INIT;
    braid__v1__table_spec__init(&m);
    braid__v1__param__init(&lr);
    (void)snprintf(text[0], sizeof text[0], "%s", "learning_rate");
    lr.name = text[0];
    lr.value = 0.5;
    (void)snprintf(text[1], sizeof text[1], "%s", init);
    (void)snprintf(text[2], sizeof text[2], "%s", opt);
    char table[PS_MAX_NAME_BYTES + 2];
    (void)snprintf(table, sizeof table, "%s", name);
    m.name = table;
    m.dim = dim;
    m.initializer = text[1];
    m.optimizer = text[2];
    m.seed = 42;
    m.n_opt_params = 1;
    m.opt_params = params;
    if (ps_spec_parse(&m, &s, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    return s;
}

static void push(ps_table *t, const uint64_t *keys, const float *grads, size_t n, uint64_t seq)
{
    ps_apply a = {.seq = {1, seq}, .step = seq, .write = seq, .lr_scale = 1.0};
    assert_int_equal(ps_table_reserve(t, keys, n), BD_OK);
    ps_table_apply(t, keys, grads, n, &a);
}

static const uint64_t odd_keys[] = {0,          UINT64_MAX,          1,           UINT64_MAX - 1,
                                    1ull << 63, 0x8000000080000000u, 0xffffffffu, 0x100000000u};
#define N_ODD (sizeof odd_keys / sizeof odd_keys[0])

/* 0 and 2^64-1 are keys like any other: absent at first, then there with what was pushed. */
static void every_key_is_legal(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", DIM, "uniform", "sgd");
    ps_table *t = ps_table_new(&s, NULL);
    float before[N_ODD * DIM], after[N_ODD * DIM], grads[N_ODD * DIM], row[DIM];
    ps_table_gather(t, odd_keys, N_ODD, before);
    assert_int_equal(ps_table_n_rows(t), 0); /* looking creates nothing */
    for (size_t i = 0; i < N_ODD * DIM; i++) {
        grads[i] = (float)(i + 1);
    }
    push(t, odd_keys, grads, N_ODD, 1);
    assert_int_equal(ps_table_n_rows(t), N_ODD);
    ps_table_gather(t, odd_keys, N_ODD, after);
    for (size_t i = 0; i < N_ODD; i++) {
        ps_spec_row(&s, odd_keys[i], row);
        assert_memory_equal(row, before + i * DIM, sizeof row);
        for (size_t e = 0; e < DIM; e++) { /* sgd: w -= 0.5 g */
            assert_true(after[i * DIM + e] == before[i * DIM + e] - 0.5f * grads[i * DIM + e]);
        }
    }
    ps_table_free(t);
}

/* Rows are found well before they are updated, so what a batch leaves must be what its keys leave
 * one by one: with rows, without, and with this very record already (a replay), at every length. */
static void a_batch_is_its_keys_one_by_one(void **state)
{
    (void)state;
    enum { MOST = 200 };
    ps_spec s = make_spec("t", DIM, "uniform", "adagrad");
    uint64_t keys[MOST], n_keys = 0;
    float grads[MOST * DIM];
    for (uint64_t k = 0; n_keys < MOST; k++) { /* long runs of two stripes */
        if (ps_stripe_of_key(k) == (n_keys < MOST / 2 ? 3 : 40)) {
            keys[n_keys++] = k;
        }
    }
    for (size_t i = 0; i < MOST * (size_t)DIM; i++) {
        grads[i] = (float)(i + 1) * 0.001f;
    }
    for (size_t n = 1; n <= MOST; n++) {
        ps_table *batch = ps_table_new(&s, NULL), *single = ps_table_new(&s, NULL);
        for (size_t i = 0; i < n; i += 2) {
            uint64_t seq = i % 3 == 0 ? 2 : 1;
            push(batch, keys + i, grads + i * DIM, 1, seq);
            push(single, keys + i, grads + i * DIM, 1, seq);
        }
        push(batch, keys, grads, n, 2);
        for (size_t i = n; i > 0; i--) {
            push(single, keys + i - 1, grads + (i - 1) * DIM, 1, 2);
        }
        uint64_t n_batch = 0, n_single = 0;
        assert_int_equal(ps_table_hash(batch, &n_batch), ps_table_hash(single, &n_single));
        assert_int_equal(n_batch, n);
        assert_int_equal(n_single, n);
        ps_table_free(batch);
        ps_table_free(single);
    }
}

/* The hash does not depend on the order in which rows came, and knows every bit. */
static void hash_is_free_of_order(void **state)
{
    (void)state;
    enum { N = 3000 };
    ps_spec s = make_spec("t", DIM, "normal", "adagrad");
    ps_table *a = ps_table_new(&s, NULL), *b = ps_table_new(&s, NULL);
    float g[DIM] = {1, -2, 3, 0.5f, 0.25f};
    uint64_t rows = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t key = bd_mix64(i), back = bd_mix64(N - 1 - i);
        push(a, &key, g, 1, i + 1);
        push(b, &back, g, 1, i + 1);
    }
    uint64_t ha = ps_table_hash(a, &rows);
    assert_int_equal(rows, N);
    assert_int_equal(ha, ps_table_hash(b, &rows));
    uint64_t key = bd_mix64(7);
    g[4] = 1e-30f;
    push(b, &key, g, 1, N + 1);
    assert_true(ps_table_hash(b, &rows) != ha);
    ps_table_free(a);
    ps_table_free(b);
}

/* First rows: a pure function of seed, name and key, the same for each initialiser every time. */
static void first_rows_are_pure(void **state)
{
    (void)state;
    for (size_t k = 0; num_init_at(k) != NULL; k++) {
        const char *name = num_init_at(k)->name;
        ps_spec s = make_spec("t", 33, name, "sgd"), other = make_spec("u", 33, name, "sgd");
        float x[33], y[33], z[33];
        ps_spec_row(&s, 99, x);
        ps_spec_row(&s, 99, y);
        ps_spec_row(&other, 99, z);
        assert_memory_equal(x, y, sizeof x);
        bool constant = strcmp(name, "constant") == 0;
        assert_true((x[0] == z[0] && x[32] == z[32]) == constant); /* constants do not differ */
    }
}

/* A push equals the optimiser's own reference step on a plain array, over several pushes, with and
 * without the hyperparameters that all optimisers share. */
static void push_is_one_optimiser_step(void **state)
{
    (void)state;
    for (size_t k = 0; num_optim_at(k / 2) != NULL; k++) {
        ps_spec s = make_spec("t", DIM, "uniform", num_optim_at(k / 2)->name);
        s.hyper[NUM_OPTIM_CLIP_NORM] = k % 2 == 0 ? 0 : 0.75f;
        ps_table *t = ps_table_new(&s, NULL);
        uint64_t key = 12345;
        float w[DIM + 2 * DIM + 8], g[DIM], got[DIM], scratch[DIM];
        ps_spec_row(&s, key, w);
        s.opt->init(s.hyper, w + DIM, DIM);
        for (uint64_t step = 1; step <= 5; step++) {
            for (size_t e = 0; e < DIM; e++) {
                g[e] = (float)e - (float)step * 0.3f;
            }
            push(t, &key, g, 1, step);
            num_optim_apply_ref(s.opt, s.hyper, w, w + DIM, g, DIM, scratch);
        }
        ps_table_gather(t, &key, 1, got);
        assert_memory_equal(got, w, sizeof got);
        ps_table_free(t);
    }
}

/* A record that a row has seen changes nothing when it comes again (replay). */
static void old_records_are_skipped(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", DIM, "uniform", "adam");
    ps_table *t = ps_table_new(&s, NULL);
    uint64_t keys[2] = {1, 2}, rows = 0;
    float g[2 * DIM] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    push(t, keys, g, 1, 1);
    push(t, keys, g, 2, 2);
    uint64_t hash = ps_table_hash(t, &rows);
    push(t, keys, g, 1, 1);
    push(t, keys, g, 2, 2);
    assert_int_equal(ps_table_hash(t, &rows), hash);
    push(t, keys, g, 2, 3);
    assert_true(ps_table_hash(t, &rows) != hash);
    ps_table_free(t);
}

/* Pages cover every row once, in order of keys. */
static void pages_cover_all(void **state)
{
    (void)state;
    enum { N = 1000, PAGE = 64 };
    ps_spec s = make_spec("t", DIM, "uniform", "adagrad");
    ps_table *t = ps_table_new(&s, NULL);
    float g[DIM] = {1, 1, 1, 1, 1};
    uint64_t keys[PAGE], from = 0, last = 0, seen = 0;
    float rows[PAGE * DIM], st[PAGE * DIM], want[DIM];
    for (uint64_t i = 0; i < N; i++) {
        uint64_t key = i == 0 ? 0 : i == 1 ? UINT64_MAX : bd_mix64(i);
        push(t, &key, g, 1, i + 1);
    }
    for (bool more = true; more;) {
        ps_page page = {.keys = keys, .rows = rows, .state = st};
        assert_int_equal(ps_table_page(t, from, PAGE, &page), BD_OK);
        more = page.more;
        from = page.next;
        for (size_t i = 0; i < page.n; i++, seen++) {
            assert_true(seen == 0 || keys[i] > last);
            last = keys[i];
            ps_table_gather(t, &keys[i], 1, want);
            assert_memory_equal(want, rows + i * DIM, sizeof want);
            assert_true(st[i * DIM] == 1.0f);
        }
    }
    assert_int_equal(seen, N);
    assert_int_equal(last, UINT64_MAX);
    ps_table_free(t);
}

static void load_entries(ps_table *to, const ps_entries *e)
{
    bd_err err;
    size_t stride = PS_ENTRY_KEY_BYTES + e->value_bytes;
    for (size_t i = 0; i < e->n; i++) {
        const uint8_t *at = e->bytes + i * stride;
        assert_int_equal(ps_table_load(to, at, PS_ENTRY_KEY_BYTES, at + PS_ENTRY_KEY_BYTES,
                                       e->value_bytes, &err),
                         BD_OK);
    }
}

/* Changed rows go down once; the loaded copy is equal and goes on equally. */
static void rows_survive_the_way_down(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", DIM, "uniform", "adam");
    ps_table *a = ps_table_new(&s, NULL), *b = ps_table_new(&s, NULL);
    float g[DIM] = {1, 2, 3, 4, 5};
    uint64_t rows = 0;
    assert_int_equal(ps_table_oldest_dirty(a), UINT64_MAX);
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t key = bd_mix64(i % 300);
        push(a, &key, g, 1, i + 10);
    }
    assert_int_equal(ps_table_oldest_dirty(a), 10);
    assert_int_equal(ps_table_dirty_bytes(a),
                     300 * (PS_ENTRY_KEY_BYTES + PS_ENTRY_META_BYTES + (DIM + 2 * DIM + 1) * 4));
    for (uint32_t stripe = 0; stripe < PS_N_STRIPES; stripe++) {
        ps_entries e;
        assert_int_equal(ps_table_take_dirty(a, stripe, false, &e), BD_OK);
        load_entries(b, &e);
        ps_entries_deinit(&e);
    }
    assert_int_equal(ps_table_oldest_dirty(a), UINT64_MAX);
    assert_int_equal(ps_table_oldest_dirty(b), UINT64_MAX);
    uint64_t key = bd_mix64(3);
    push(a, &key, g, 1, 1000);
    push(b, &key, g, 1, 1000);
    assert_int_equal(ps_table_oldest_dirty(a), 1000);
    assert_int_equal(ps_table_hash(a, &rows), ps_table_hash(b, &rows));
    ps_table_free(a);
    ps_table_free(b);
}

/* A table of this row type, through the stored form of its spec. */
static ps_spec stored_as(int dtype, const char *opt)
{
    ps_spec s = make_spec("t", DIM, "uniform", opt), back;
    s.dtype = dtype;
    bd_buf *packed = ps_spec_pack(&s);
    assert_int_equal(ps_spec_unpack(packed->bytes, packed->n_bytes, &back, NULL), BD_OK);
    bd_buf_unref(packed);
    assert_int_equal(back.dtype, dtype);
    assert_int_equal(back.weight_words * 4, num_row_bytes(dtype, DIM));
    return back;
}

/* Rows of every type: what a lookup said before a row was there it says when it is, pages and
 * entries carry the same numbers, and a replay of all pushes from the start gives the same bits. */
static void rows_of_every_type(void **state)
{
    (void)state;
    static const int dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_I8};
    enum { N = 300 };
    for (size_t k = 0; k < 4; k++) {
        ps_spec s = stored_as(dtypes[k], "adam");
        ps_table *a = ps_table_new(&s, NULL), *b = ps_table_new(&s, NULL),
                 *c = ps_table_new(&s, NULL);
        float g[DIM] = {0}, w[DIM], again[DIM];
        uint64_t rows = 0, key = bd_mix64(1);
        ps_table_gather(a, &key, 1, w);
        push(a, &key, g, 1, 1); /* adam does not move on a gradient of 0 */
        ps_table_gather(a, &key, 1, again);
        assert_memory_equal(w, again, sizeof w);
        for (uint64_t i = 2; i < N; i++) {
            key = bd_mix64(i % 40);
            bd_rand_normal(1, k, i, 0, 1, g, DIM);
            push(a, &key, g, 1, i);
        }
        assert_int_equal(ps_table_dirty_bytes(a),
                         40 * (PS_ENTRY_KEY_BYTES + PS_ENTRY_META_BYTES +
                               num_row_bytes(dtypes[k], DIM) + (size_t)(2 * DIM + 1) * 4));
        for (uint32_t stripe = 0; stripe < PS_N_STRIPES; stripe++) {
            ps_entries e;
            assert_int_equal(ps_table_take_dirty(a, stripe, false, &e), BD_OK);
            load_entries(b, &e);
            ps_entries_deinit(&e);
        }
        uint64_t hash = ps_table_hash(a, &rows);
        assert_int_equal(ps_table_hash(b, &rows), hash);
        uint64_t keys[64];
        float values[64 * DIM], st[64 * (2 * DIM + 1)];
        ps_page page = {.keys = keys, .rows = values, .state = st};
        assert_int_equal(ps_table_page(a, 0, 64, &page), BD_OK);
        assert_int_equal(page.n, 40);
        ps_apply by_hand = {.seq = {1, 1}};
        assert_int_equal(ps_table_reserve(c, keys, page.n), BD_OK);
        ps_table_assign(c, keys, values, st, page.n, &by_hand);
        assert_int_equal(ps_table_hash(c, &rows), hash); /* an export is exact */
        ps_table_free(a);
        ps_table_free(b);
        ps_table_free(c);
    }
}

/* Updates far below a step of bf16 (2^-8 of a weight of 1) add up, in the mean over elements. */
static void small_updates_are_not_lost(void **state)
{
    (void)state;
    enum { N_KEYS = 400, N_STEPS = 64 };
    ps_spec s = stored_as(NUM_BF16, "sgd"); /* rate 0.5 */
    ps_table *t = ps_table_new(&s, NULL);
    double sum = 0;
    for (uint64_t key = 0; key < N_KEYS; key++) {
        const float ones[DIM] = {1, 1, 1, 1, 1};
        const float g[DIM] = {0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f};
        ps_apply by_hand = {.seq = {1, 1}};
        float w[DIM];
        assert_int_equal(ps_table_reserve(t, &key, 1), BD_OK);
        ps_table_assign(t, &key, ones, NULL, 1, &by_hand);
        for (uint64_t step = 2; step < 2 + N_STEPS; step++) {
            push(t, &key, g, 1, step);
        }
        ps_table_gather(t, &key, 1, w);
        for (size_t e = 0; e < DIM; e++) {
            sum += 1 - (double)w[e];
        }
    }
    double mean = sum / (N_KEYS * DIM), want = N_STEPS * 0x1p-13;
    assert_true(fabs(mean - want) < 0.1 * want); /* 4 deviations; to nearest it is 0 */
    ps_table_free(t);
}

/* What the store could not take is dirty again, as of its first change. */
static void rows_come_back_when_the_store_fails(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", DIM, "uniform", "sgd");
    ps_table *t = ps_table_new(&s, NULL);
    float g[DIM] = {1, 2, 3, 4, 5};
    uint64_t key = 77;
    uint32_t stripe = ps_stripe_of_key(key);
    ps_entries e;
    push(t, &key, g, 1, 5);
    assert_int_equal(ps_table_take_dirty(t, stripe, false, &e), BD_OK);
    push(t, &key, g, 1, 8);
    assert_int_equal(ps_table_oldest_dirty(t), 8);
    ps_table_put_back(t, &e);
    assert_int_equal(ps_table_oldest_dirty(t), 5);
    ps_entries_deinit(&e);
    assert_int_equal(ps_table_take_dirty(t, stripe, false, &e), BD_OK);
    assert_int_equal(e.n, 1);
    ps_entries_deinit(&e);
    ps_table_free(t);
}

static void sum(ps_record *rec, ps_section *sec, ps_plan *p, const ps_tables *ts)
{
    bd_err err = BD_ERR_INIT;
    rec->sections = sec;
    if (ps_plan_build(p, rec, ts, true, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    ps_plan_apply(p, rec);
}

/* Parts of several ranks are summed per key in their order, then stepped once. */
static void ranks_are_summed_in_order(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", 1, "constant", "sgd");
    ps_tables ts = {0};
    ps_plan *p = ps_plan_new();
    assert_int_equal(ps_tables_add(&ts, &s, NULL), BD_OK);
    const uint64_t k0[] = {10, 20}, k1[] = {20, 30}, k2[] = {20, 10};
    const float g0[] = {1e8f, 1e8f}, g1[] = {1.0f, 2.0f}, g2[] = {-1e8f, -1e8f};
    ps_section sec[3] = {
        {.rank = 0, .table_id = s.id, .dim = 1, .n_keys = 2, .keys = k0, .values = g0},
        {.rank = 1, .table_id = s.id, .dim = 1, .n_keys = 2, .keys = k1, .values = g1},
        {.rank = 2, .table_id = s.id, .dim = 1, .n_keys = 2, .keys = k2, .values = g2}};
    ps_record rec = {.kind = PS_RECORD_STEP, .seq = {1, 1}, .lr_scale = 1.0, .n_sections = 3};
    sum(&rec, sec, p, &ts);
    const uint64_t keys[] = {10, 20, 30};
    float w[3];
    ps_table_gather(ts.items[0], keys, 3, w);
    /* 20: ((1e8 + 1) - 1e8) = 0 in f32, where another order would give 1. */
    assert_true(w[0] == 0.0f && w[1] == 0.0f && w[2] == -1.0f);
    ps_plan_free(p);
    ps_tables_deinit(&ts);
}

/* Every allocation on the way of a push may fail: nothing changes and nothing leaks. */
static void push_survives_every_allocation_failure(void **state)
{
    (void)state;
    ps_spec s = make_spec("t", DIM, "uniform", "adagrad");
    long start = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    long nth = 0;
    for (; rc != BD_OK; nth++) {
        ps_tables ts = {0};
        bd_fault_fail_alloc(nth);
        ps_plan *p = ps_plan_new();
        rc = p == NULL ? BD_E_NOMEM : ps_tables_add(&ts, &s, NULL);
        uint64_t keys[2] = {1, 2};
        float g[2 * DIM] = {1, 2, 3};
        ps_section sec[2] = {
            {.table_id = s.id, .dim = DIM, .n_keys = 2, .keys = keys, .values = g},
            {.table_id = s.id, .dim = DIM, .n_keys = 2, .keys = keys, .values = g}};
        ps_record rec = {.kind = PS_RECORD_STEP,
                         .seq = {1, 1},
                         .lr_scale = 1.0,
                         .n_sections = 2,
                         .sections = sec};
        if (rc == BD_OK) {
            rc = ps_plan_build(p, &rec, &ts, true, NULL);
            assert_int_equal(ps_tables_n_rows(&ts), 0);
        }
        if (rc == BD_OK) {
            ps_plan_apply(p, &rec);
            assert_int_equal(ps_tables_n_rows(&ts), 2);
        } else {
            assert_int_equal(rc, BD_E_NOMEM);
        }
        bd_fault_fail_alloc(-1);
        ps_plan_free(p);
        ps_tables_deinit(&ts);
        assert_int_equal(bd_mem_live_blocks(), start);
    }
    assert_true(nth > 6);
}

/* A spec survives its stored form, and a differing one is named by field. */
static void specs_are_compared_by_field(void **state)
{
    (void)state;
    bd_err err;
    ps_spec a = make_spec("t", DIM, "uniform", "adagrad"), b, c;
    a.hyper[NUM_OPTIM_CLIP_NORM] = 0.5f;
    b = a;
    bd_buf *packed = ps_spec_pack(&a);
    assert_int_equal(ps_spec_unpack(packed->bytes, packed->n_bytes, &c, &err), BD_OK);
    bd_buf_unref(packed);
    assert_int_equal(ps_spec_same(&a, &c, &err), BD_OK);
    assert_int_equal(a.id, c.id);
    b.dim = 6;
    assert_int_equal(ps_spec_same(&a, &b, &err), BD_E_MISMATCH);
    assert_non_null(strstr(bd_err_text(&err), "dim 5, not 6"));
    b = a;
    b.hyper[0] = 0.25f;
    assert_int_equal(ps_spec_same(&a, &b, &err), BD_E_MISMATCH);
    assert_non_null(strstr(bd_err_text(&err), "learning_rate"));
    b = a;
    b.hyper[NUM_OPTIM_CLIP_NORM] = 0.25f;
    assert_int_equal(ps_spec_same(&a, &b, &err), BD_E_MISMATCH);
    assert_non_null(strstr(bd_err_text(&err), "clip_norm 0.5, not 0.25"));
    assert_int_equal(ps_spec_unpack("\xff\xff", 2, &c, &err), BD_E_CORRUPT);
}

static bd_status parse(const char *name, uint32_t dim, const char *init, const char *opt,
                       bd_err *err)
{
    Braid__V1__TableSpec m;
    char text[3][256];
    ps_spec s;
    braid__v1__table_spec__init(&m);
    (void)snprintf(text[0], sizeof text[0], "%s", name);
    (void)snprintf(text[1], sizeof text[1], "%s", init);
    (void)snprintf(text[2], sizeof text[2], "%s", opt);
    m.name = text[0];
    m.dim = dim;
    m.initializer = text[1];
    m.optimizer = text[2];
    return ps_spec_parse(&m, &s, err);
}

static void bad_specs_are_refused(void **state)
{
    (void)state;
    bd_err err;
    assert_int_equal(parse("", 4, "", "", &err), BD_E_INVALID);
    assert_int_equal(parse("../x", 4, "", "", &err), BD_E_INVALID);
    assert_int_equal(parse(".x", 4, "", "", &err), BD_E_INVALID);
    assert_int_equal(parse("t", 0, "", "", &err), BD_E_INVALID);
    assert_int_equal(parse("t", 65537, "", "", &err), BD_E_INVALID);
    assert_non_null(strstr(bd_err_text(&err), "65537"));
    assert_int_equal(parse("t", 4, "zeros", "", &err), BD_E_INVALID);
    assert_non_null(strstr(bd_err_text(&err), "zeros"));
    assert_int_equal(parse("t", 4, "", "adamm", &err), BD_E_INVALID);
    assert_non_null(strstr(bd_err_text(&err), "adamm"));
    assert_int_equal(parse("t", 65536, "", "", &err), BD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_legal),
        cmocka_unit_test(a_batch_is_its_keys_one_by_one),
        cmocka_unit_test(hash_is_free_of_order),
        cmocka_unit_test(first_rows_are_pure),
        cmocka_unit_test(push_is_one_optimiser_step),
        cmocka_unit_test(old_records_are_skipped),
        cmocka_unit_test(pages_cover_all),
        cmocka_unit_test(rows_survive_the_way_down),
        cmocka_unit_test(rows_of_every_type),
        cmocka_unit_test(small_updates_are_not_lost),
        cmocka_unit_test(rows_come_back_when_the_store_fails),
        cmocka_unit_test(ranks_are_summed_in_order),
        cmocka_unit_test(push_survives_every_allocation_failure),
        cmocka_unit_test(specs_are_compared_by_field),
        cmocka_unit_test(bad_specs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
