/* Pooling at the servers: lists of bags, their journal records, and training through the real
 * client, which must come to what pooling at the client comes to. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/num/vec.h"
#include "base/rand.h"

#include "client/client.h"
#include "ps_server/ps_bags.h"
#include "ps_server/ps_tables.h"

#include "tests/util/ps_cluster.h"
#include "tests/util/tu_record.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

#define DIM    ((size_t)6)
#define N_IDS  ((size_t)300)
#define N_BAGS ((size_t)40)
#define N_KEYS ((size_t)90)
#define STEPS  ((size_t)12)

#define SAME PS_BAG_SAME_KEY

/* ---- lists ---- */
static void refused(const char *want, const uint32_t *entries, size_t n, uint32_t n_bags,
                    size_t n_keys)
{
    bd_err err = BD_ERR_INIT;
    ps_bags b = {.n_bags = n_bags, .n_entries = n, .entries = entries};
    assert_int_equal(ps_bags_check(&b, n_keys, &err), BD_E_INVALID);
    assert_string_equal(bd_err_text(&err), want);
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    const uint32_t good[] = {0, SAME | 2, 1}, early[] = {SAME | 0, 1};
    bd_err err = BD_ERR_INIT;
    ps_bags b = {.n_bags = 3, .n_entries = 3, .entries = good};
    assert_int_equal(ps_bags_check(&b, 2, &err), BD_OK);
    refused("bag 2 of 2", good, 3, 2, 2);
    refused("the bags have entries of 2 keys, there are 3", good, 3, 3, 3);
    refused("the bags have entries of 0 keys, there are 1", good, 0, 3, 1);
    refused("the first entry of the bags belongs to no key", early, 2, 3, 1);
    b = (ps_bags){.n_bags = 3};
    assert_int_equal(ps_bags_check(&b, 0, &err), BD_OK);
}

/* ---- keys that come again ---- */
#define MERGED 600u

/* Keys as a client sends them: with repeats of a few, each with one to three entries. */
typedef struct lists {
    uint64_t keys[MERGED];
    uint32_t rows[MERGED], entries[3 * MERGED];
    float weights[3 * MERGED];
    ps_bag_keys k;
} lists;

/* The order of keys: each slot's together, or any. */
typedef enum lists_order { BY_SLOT, ANY_ORDER, ONE_SLOT } lists_order;

static uint64_t key_in(lists_order order, uint64_t draw)
{
    static uint64_t next, in_slot[200];
    static size_t n;
    for (; n < 200; next++) {
        if (ps_slot_of_key(next) == 77) {
            in_slot[n++] = next;
        }
    }
    return order == ONE_SLOT ? in_slot[draw % n] : draw % 400;
}

static void draw_lists(lists *l, lists_order order, size_t n, uint64_t seed, bool weighted)
{
    memset(l, 0, sizeof *l);
    for (size_t i = 0; i < n; i++) { /* sorted in by slot, after those that are there */
        uint64_t key = key_in(order, bd_rand_u64(seed, 1, i));
        size_t at = i;
        for (; order == BY_SLOT && at > 0 && ps_slot_of_key(l->keys[at - 1]) > ps_slot_of_key(key);
             at--) {
            l->keys[at] = l->keys[at - 1];
        }
        l->keys[at] = key;
    }
    size_t e = 0;
    for (size_t i = 0; i < n; i++) {
        l->rows[i] = (uint32_t)l->keys[i] + 7;
        for (uint64_t k = 0, of_key = 1 + bd_rand_u64(seed, 2, i) % 3; k < of_key; k++, e++) {
            l->entries[e] = (uint32_t)(bd_rand_u64(seed, 3, e) % N_BAGS) | (k > 0 ? SAME : 0);
            l->weights[e] = (float)e;
        }
    }
    l->k = (ps_bag_keys){l->keys, l->rows, n, l->entries, weighted ? l->weights : NULL, e};
}

/* What merging must come to, the simple way: for each key in the order of its first place, all of
 * its entries in theirs. */
static void merge_slowly(const lists *l, lists *out)
{
    memset(out, 0, sizeof *out);
    size_t n = 0, e = 0;
    for (size_t i = 0; i < l->k.n_keys; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++) {
            first = first && l->keys[k] != l->keys[i];
        }
        size_t begun = e, entry = 0;
        for (size_t k = 0; first && k < l->k.n_keys; k++) {
            for (bool more = true; more; entry++) {
                if (l->keys[k] == l->keys[i]) {
                    out->entries[e] = (l->entries[entry] & ~SAME) | (e > begun ? SAME : 0);
                    out->weights[e++] = l->weights[entry];
                }
                more = entry + 1 < l->k.n_entries && (l->entries[entry + 1] & SAME) != 0;
            }
        }
        if (first) {
            out->rows[n] = l->rows[i];
            out->keys[n++] = l->keys[i];
        }
    }
    out->k = (ps_bag_keys){.n_keys = n, .n_entries = e};
}

static void keys_that_come_again_are_merged(void **state)
{
    (void)state;
    static lists l, want;
    for (uint64_t seed = 0; seed < 90; seed++) {
        lists_order order = (lists_order)(seed % 3);
        size_t n = seed < 6 ? (size_t)seed : (size_t)(seed * seed * seed) % MERGED;
        draw_lists(&l, order, n, seed, seed % 2 == 0);
        merge_slowly(&l, &want);
        l.k.rows = seed % 5 == 0 ? NULL : l.k.rows;
        assert_int_equal(ps_bags_merge(&l.k), BD_OK);
        assert_int_equal(l.k.n_keys, want.k.n_keys);
        assert_int_equal(l.k.n_entries, want.k.n_entries);
        assert_memory_equal(l.keys, want.keys, l.k.n_keys * sizeof *l.keys);
        assert_memory_equal(l.entries, want.entries, l.k.n_entries * sizeof *l.entries);
        if (l.k.rows != NULL) {
            assert_memory_equal(l.rows, want.rows, l.k.n_keys * sizeof *l.rows);
        }
        if (l.k.weights != NULL) {
            assert_memory_equal(l.weights, want.weights, l.k.n_entries * sizeof *l.weights);
        }
    }
}

/* Requests that no client sends cost no more than others of their size: one key again and again, and
 * long lists that have to change places. (With steps that grow as the square this case does not
 * end in the test's time.) */
static void merging_takes_steps_in_proportion(void **state)
{
    (void)state;
    enum { MANY = 1 << 20, LONG = MANY / 2 };
    uint64_t *keys = bd_calloc(MANY, sizeof *keys);
    uint32_t *entries = bd_alloc(MANY * sizeof *entries);
    for (uint32_t i = 0; i < MANY; i++) {
        entries[i] = i % N_BAGS;
    }
    ps_bag_keys k = {.keys = keys, .n_keys = MANY, .entries = entries, .n_entries = MANY};
    assert_int_equal(ps_bags_merge(&k), BD_OK);
    assert_int_equal(k.n_keys, 1);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(entries[i], i % N_BAGS | (i > 0 ? SAME : 0));
    }
    /* a: one entry, b: many, a: many */
    uint64_t a = key_in(ONE_SLOT, 0), b = key_in(ONE_SLOT, 1);
    keys[0] = keys[2] = a;
    keys[1] = b;
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t of_key = i == 0 ? 0 : i <= LONG ? i - 1 : i - LONG - 1;
        entries[i] = (i == 0 || i > LONG ? 1u : 2u) | (of_key > 0 ? SAME : 0);
    }
    k = (ps_bag_keys){.keys = keys, .n_keys = 3, .entries = entries, .n_entries = MANY};
    assert_int_equal(ps_bags_merge(&k), BD_OK);
    assert_true(k.n_keys == 2 && keys[0] == a && keys[1] == b);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t of_a = MANY - LONG; /* the first, and those behind b's */
        assert_int_equal(entries[i], (i < of_a ? 1u : 2u) | (i == 0 || i == of_a ? 0 : SAME));
    }
    bd_free(keys);
    bd_free(entries);
}

static void merging_survives_every_allocation_failure(void **state)
{
    (void)state;
    static lists l, was;
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        draw_lists(&l, ANY_ORDER, MERGED, 1, true);
        merge_slowly(&l, &was);
        bd_fault_fail_alloc(nth);
        rc = ps_bags_merge(&l.k);
        bd_fault_fail_alloc(-1);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    assert_memory_equal(l.entries, was.entries, l.k.n_entries * sizeof *l.entries);
}

static ps_spec spec_of(const char *optimizer)
{
    Braid__V1__TableSpec m;
    Braid__V1__Param lr, *params[1] = {&lr};
    char name[] = "t", rate[] = "learning_rate", init[] = "normal", opt[32];
    ps_spec s;
    bd_err err = BD_ERR_INIT;
    braid__v1__table_spec__init(&m);
    braid__v1__param__init(&lr);
    (void)snprintf(opt, sizeof opt, "%s", optimizer);
    lr.name = rate;
    lr.value = 0.5;
    m.name = name;
    m.dim = DIM;
    m.initializer = init;
    m.optimizer = opt;
    m.n_opt_params = 1;
    m.opt_params = params;
    must(ps_spec_parse(&m, &s, &err), &err);
    return s;
}

/* Two keys, three bags, weights: sums of rows, and gradients of keys, by hand. */
static void sums_are_those_of_the_entries(void **state)
{
    (void)state;
    const uint64_t keys[] = {5, 9};
    const uint32_t entries[] = {0, SAME | 2, SAME | 0, 2};
    const float weights[] = {1, 2, 3, -1};
    const ps_bags b = {.n_bags = 3, .n_entries = 4, .entries = entries, .weights = weights};
    float rows[2 * DIM], out[3 * DIM], back[2 * DIM];
    ps_spec s = spec_of("sgd");
    ps_table *t = ps_table_new(&s, NULL);
    ps_table_gather(t, keys, 2, rows);
    assert_int_equal(ps_table_pool(t, keys, 2, &b, out, NULL), BD_OK);
    for (size_t d = 0; d < DIM; d++) {
        float r5 = rows[d], r9 = rows[DIM + d];
        assert_true(out[d] == r5 + 3 * r5);
        assert_true(out[DIM + d] == 0);
        assert_true(out[2 * DIM + d] == 2 * r5 - r9);
    }
    assert_int_equal(ps_bags_expand(&b, out, DIM, 0, 2, back), 4);
    for (size_t d = 0; d < DIM; d++) {
        assert_true(back[d] == out[d] + 2 * out[2 * DIM + d] + 3 * out[d]);
        assert_true(back[DIM + d] == -out[2 * DIM + d]);
    }
    ps_table_free(t);
}

/* A record with bags does to rows what its key gradients would do, and again after its bytes. */
static void records_with_bags_replay(void **state)
{
    (void)state;
#define N ((size_t)700) /* more than a block */
    uint64_t keys[N];
    uint32_t entries[2 * N];
    float weights[2 * N], grads[N_BAGS * DIM], by_key[N * DIM];
    ps_spec spec = spec_of("adagrad");
    ps_tables one = {0}, two = {0};
    bd_err err = BD_ERR_INIT;
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        keys[i] = (uint64_t)i << 50 | i; /* by stripe, as clients send them, is not needed */
        weights[n] = (float)(i % 5) - 1.5f;
        entries[n++] = (uint32_t)(i * 7 % N_BAGS);
        if (i % 3 == 0) {
            weights[n] = 0.25f;
            entries[n++] = SAME | (uint32_t)(i % N_BAGS);
        }
    }
    for (size_t i = 0; i < N_BAGS * DIM; i++) {
        grads[i] = (float)(i % 11) - 5;
    }
    ps_section s = {.table_id = spec.id, .dim = DIM, .n_keys = N, .keys = keys, .values = grads};
    s.bags = (ps_bags){.n_bags = N_BAGS, .n_entries = n, .entries = entries, .weights = weights};
    ps_record rec = {.kind = PS_RECORD_PUSH, .seq = {1, 1}, .lr_scale = 1, .n_sections = 1};
    rec.sections = &s;
    (void)ps_bags_expand(&s.bags, grads, DIM, 0, N, by_key);
    must(ps_tables_add(&one, &spec, &err), &err);
    must(ps_tables_add(&two, &spec, &err), &err);
    const ps_apply a = {.seq = {1, 1}, .write = 1, .lr_scale = 1};
    assert_int_equal(ps_table_reserve(one.items[0], keys, N), BD_OK);
    ps_table_apply(one.items[0], keys, by_key, N, &a);

    bd_buf *bytes = tu_record_bytes(&rec);
    ps_record got;
    ps_plan *plan = ps_plan_new();
    must(ps_record_decode(bytes->bytes, bytes->n_bytes, &got, &err), &err);
    must(ps_plan_build(plan, &got, &two, true, &err), &err);
    ps_plan_apply(plan, &got);
    uint64_t rows = 0;
    assert_int_equal(ps_tables_hash(&one, &rows), ps_tables_hash(&two, &rows));
    assert_int_equal(rows, N);
    bd_free(got.sections);
    for (size_t cut = PS_RECORD_HEADER_BYTES; cut < bytes->n_bytes; cut += 8) { /* half a record */
        assert_int_equal(ps_record_decode(bytes->bytes, cut, &got, &err), BD_E_CORRUPT);
    }
    ps_plan_free(plan);
    bd_buf_unref(bytes);
    ps_tables_deinit(&one);
    ps_tables_deinit(&two);
}

/* ---- through client and servers ---- */
typedef struct trainer {
    rpc_env *env;
    cl_client *client;
    uint32_t table;
    uint64_t step;
} trainer;

static void open_trainer(trainer *t, const ps_cluster *c, cl_pooling pooling, cl_consistency mode,
                         cl_bad_gradient policy)
{
    bd_err err;
    cl_param lr = {"learning_rate", 0.1};
    cl_options opt = {.coordinator = c->address[0],
                      .name = "trainer",
                      .ps_wait_ms = 20000,
                      .part_bytes = 4096,
                      .pooling = pooling};
    memset(t, 0, sizeof *t);
    must(rpc_env_new(&(rpc_env_options){0}, &t->env, &err), &err);
    must(cl_client_new(t->env, &opt, &t->client, &err), &err);
    cl_job job = {.world = 1, .consistency = mode};
    cl_table_spec spec = {.name = "t",
                          .dim = DIM,
                          .initializer = "normal",
                          .optimizer = "adagrad",
                          .opt_params = &lr,
                          .n_opt_params = 1,
                          .bad_gradient = policy};
    must(cl_job_next_epoch(t->client, &job.epoch, &err), &err);
    must(cl_table_create(t->client, &spec, &t->table, &err), &err);
    must(cl_job_open(t->client, &job, NULL, 1, &err), &err);
    cl_job_join(t->client, &job);
}

static void close_trainer(trainer *t)
{
    cl_client_free(t->client);
    rpc_env_free(t->env);
}

typedef struct batch {
    uint64_t ids[N_IDS];
    uint32_t offsets[N_BAGS + 1];
    float weights[N_IDS];
    cl_ids asked;
} batch;

static void make_batch(batch *b, uint32_t table, uint64_t step)
{
    for (size_t i = 0; i < N_IDS; i++) {
        b->ids[i] = bd_rand_u64(3, step, i) % N_KEYS;
        b->weights[i] = (float)(bd_rand_u64(4, step, i) % 9) * 0.25f - 1;
    }
    for (size_t i = 1; i < N_BAGS; i++) { /* rising; some bags are empty */
        uint32_t room = N_IDS - b->offsets[i - 1];
        b->offsets[i] = b->offsets[i - 1] + (uint32_t)(bd_rand_u64(5, step, i) % 16) % (room + 1);
    }
    b->offsets[N_BAGS] = N_IDS;
    b->asked = (cl_ids){.table_id = table,
                        .dim = DIM,
                        .ids = b->ids,
                        .n_ids = N_IDS,
                        .offsets = b->offsets,
                        .n_bags = N_BAGS,
                        .weights = step % 2 == 0 ? b->weights : NULL};
}

static float weight(const batch *b, size_t i)
{
    return b->asked.weights == NULL ? 1 : b->asked.weights[i];
}

/* Bags of rows that came row by row. */
static void pool(const batch *b, const cl_table_rows *r, float *out)
{
    memset(out, 0, N_BAGS * DIM * sizeof *out);
    for (size_t bag = 0; bag < N_BAGS; bag++) {
        for (size_t i = b->offsets[bag]; i < b->offsets[bag + 1]; i++) {
            num_axpy(out + bag * DIM, weight(b, i), r->rows + (size_t)r->index[i] * DIM, DIM);
        }
    }
}

/* One step; the bags that came, and gradients that depend on them. bad: in one element of bag 7. */
static bd_status step(trainer *t, float bad, float bags[N_BAGS * DIM], bd_err *err)
{
    batch b = {0};
    cl_rows *r = NULL;
    float by_bag[N_BAGS * DIM], by_key[N_KEYS * DIM] = {0};
    float *grads[1] = {by_bag};
    make_batch(&b, t->table, ++t->step);
    must(cl_rows_prepare(t->client, &b.asked, 1, &r, err), err);
    must(cl_rows_fetch(r, 0, err), err);
    must(cl_rows_wait(r, err), err);
    const cl_table_rows *rows = cl_rows_table(r, 0);
    if (rows->offsets != NULL) {
        assert_int_equal(rows->n_rows, N_BAGS);
        memcpy(bags, rows->rows, N_BAGS * DIM * sizeof *bags);
    } else {
        assert_int_equal(rows->n_rows, rows->n_unique);
        pool(&b, rows, bags);
    }
    for (size_t i = 0; i < N_BAGS * DIM; i++) {
        by_bag[i] = (float)(bd_rand_u64(6, t->step, i) % 17) * 0.125f - 1;
    }
    by_bag[7 * DIM + 1] += bad;
    if (rows->offsets == NULL) {
        cl_table_rows as_bags = *rows;
        as_bags.offsets = b.offsets;
        as_bags.n_rows = N_BAGS;
        as_bags.weights = b.asked.weights;
        cl_table_rows_expand(&as_bags, by_bag, by_key);
        grads[0] = by_key;
    }
    bd_status rc = cl_push_start(t->client, t->step, r, grads, err);
    rc = rc == BD_OK ? cl_push_wait(t->client, err) : rc;
    cl_rows_free(r);
    return rc;
}

static void all_rows(trainer *t, float rows[N_KEYS * DIM])
{
    bd_err err;
    uint64_t keys[N_KEYS];
    cl_rows *r = NULL;
    for (size_t i = 0; i < N_KEYS; i++) {
        keys[i] = i;
    }
    cl_ids ids = {.table_id = t->table, .dim = DIM, .ids = keys, .n_ids = N_KEYS};
    must(cl_rows_prepare(t->client, &ids, 1, &r, &err), &err);
    must(cl_rows_fetch(r, 0, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    const cl_table_rows *got = cl_rows_table(r, 0);
    for (size_t i = 0; i < N_KEYS; i++) {
        memcpy(rows + i * DIM, got->rows + (size_t)got->index[i] * DIM, DIM * sizeof *rows);
    }
    cl_rows_free(r);
}

typedef struct outcome {
    float bags[STEPS][N_BAGS * DIM];
    float rows[N_KEYS * DIM];
} outcome;

static void train(size_t n_servers, cl_pooling pooling, outcome *o)
{
    ps_cluster c;
    trainer t;
    bd_err err;
    ps_cluster_start(&c, n_servers);
    open_trainer(&t, &c, pooling, CL_ASYNC, CL_BAD_REJECT);
    for (size_t s = 0; s < STEPS; s++) {
        must(step(&t, 0, o->bags[s], &err), &err);
    }
    ps_cluster_stop_server(&c, n_servers - 1); /* what was pushed is there after a restart */
    ps_cluster_start_server(&c, n_servers - 1);
    all_rows(&t, o->rows);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

static void close_enough(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(a[i] - b[i]) <= 1e-5f * (1 + fabsf(a[i])))) {
            fail_msg("element %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
        }
    }
}

/* Where bags are summed changes the order of sums only; so does the number of servers. */
static void pooling_anywhere_is_the_same(void **state)
{
    (void)state;
    outcome here, there;
    train(1, CL_POOL_CLIENT, &here);
    for (size_t n = 1; n <= 3; n++) {
        train(n, n == 2 ? CL_POOL_AUTO : CL_POOL_SERVER, &there);
        for (size_t s = 0; s < STEPS; s++) {
            close_enough(here.bags[s], there.bags[s], N_BAGS * DIM);
        }
        close_enough(here.rows, there.rows, N_KEYS * DIM);
    }
}

/* A gradient that is not finite, in a bag: the policy of the table, with the key named. */
static void bad_gradients_of_bags_meet_the_policy(void **state)
{
    (void)state;
    ps_cluster c;
    trainer t;
    bd_err err;
    float bags[N_BAGS * DIM], before[N_KEYS * DIM], after[N_KEYS * DIM];
    ps_cluster_start(&c, 1);
    open_trainer(&t, &c, CL_POOL_SERVER, CL_ASYNC, CL_BAD_REJECT);
    must(step(&t, 0, bags, &err), &err);
    all_rows(&t, before);
    assert_int_equal(step(&t, NAN, bags, &err), BD_E_NUMERIC);
    assert_non_null(strstr(bd_err_text(&err), "table \"t\": the gradient of key "));
    all_rows(&t, after);
    assert_memory_equal(before, after, sizeof before);
    close_trainer(&t);
    ps_cluster_stop(&c);

    ps_cluster_start(&c, 1);
    open_trainer(&t, &c, CL_POOL_SERVER, CL_ASYNC, CL_BAD_DROP_ROW);
    all_rows(&t, before);
    must(step(&t, NAN, bags, &err), &err);
    all_rows(&t, after);
    batch b = {0};
    make_batch(&b, t.table, t.step);
    for (uint64_t key = 0; key < N_KEYS; key++) {
        bool seen = false, in_bad = false;
        for (size_t i = 0; i < N_IDS; i++) {
            seen = seen || b.ids[i] == key;
            in_bad = in_bad || (b.ids[i] == key && i >= b.offsets[7] && i < b.offsets[8]);
        }
        bool same = true;
        for (size_t d = 0; d < DIM; d++) {
            same = same && before[key * DIM + d] == after[key * DIM + d];
        }
        assert_true(same == (!seen || in_bad));
    }
    close_trainer(&t);
    ps_cluster_stop(&c);
}

/* A sync job never pools at the servers; a client that sends bags all the same is told. */
static void sync_jobs_pool_at_the_client(void **state)
{
    (void)state;
    ps_cluster c;
    trainer t;
    bd_err err;
    batch b = {0};
    cl_rows *r = NULL;
    float grads[N_BAGS * DIM] = {0}, *list[1] = {grads};
    ps_cluster_start(&c, 1);
    open_trainer(&t, &c, CL_POOL_SERVER, CL_SYNC, CL_BAD_REJECT);
    make_batch(&b, t.table, 1);
    must(cl_rows_prepare(t.client, &b.asked, 1, &r, &err), &err);
    assert_null(cl_rows_table(r, 0)->offsets);
    cl_rows_free(r);
    cl_job job = {.consistency = CL_ASYNC, .world = 1, .epoch = 1};
    cl_job_join(t.client, &job); /* a client that has it wrong */
    must(cl_rows_prepare(t.client, &b.asked, 1, &r, &err), &err);
    assert_non_null(cl_rows_table(r, 0)->offsets);
    bd_status rc = cl_push_start(t.client, 1, r, list, &err);
    assert_int_equal(rc == BD_OK ? cl_push_wait(t.client, &err) : rc, BD_E_INVALID);
    assert_non_null(strstr(bd_err_text(&err), "which is sync: pool at the client"));
    cl_rows_free(r);
    close_trainer(&t);
    ps_cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(keys_that_come_again_are_merged),
        cmocka_unit_test(merging_takes_steps_in_proportion),
        cmocka_unit_test(merging_survives_every_allocation_failure),
        cmocka_unit_test(sums_are_those_of_the_entries),
        cmocka_unit_test(records_with_bags_replay),
        cmocka_unit_test(pooling_anywhere_is_the_same),
        cmocka_unit_test(bad_gradients_of_bags_meet_the_policy),
        cmocka_unit_test(sync_jobs_pool_at_the_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
