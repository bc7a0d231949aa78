/* Dedup and partition: nothing lost, nothing twice, always the same order. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/cl_part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SEED 77u

static cl_map *make_map(size_t n_servers, uint64_t seed)
{
    static const char *const addresses[] = {"a:1", "b:2", "c:3", "d:4", "e:5"};
    uint32_t owner[CL_N_SLOTS];
    for (uint32_t s = 0; s < CL_N_SLOTS; s++) {
        owner[s] = (uint32_t)(bd_rand_u64(SEED, seed, s) % n_servers);
    }
    cl_map *m = NULL;
    assert_int_equal(cl_map_new(1, addresses, n_servers, owner, CL_N_SLOTS, &m, NULL), BD_OK);
    return m;
}

static void draw_ids(uint64_t *ids, size_t n, uint64_t seed, uint64_t vocabulary)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = bd_rand_u64(SEED, seed, i) % vocabulary;
        ids[i] = r == 0 ? 0 : r == 1 ? UINT64_MAX : bd_mix64(r); /* any key is legal */
    }
}

/* The uniques of these ids are distinct, grouped by server and slot, in the order of their first
 * occurrence, and indexed. */
static void check_uniques(const cl_map *map, size_t n_servers, const uint64_t *ids, size_t n)
{
    cl_uniques u;
    assert_int_equal(cl_uniques_init(&u, map, ids, n, false, NULL), BD_OK);
    const uint64_t *keys = (const uint64_t *)(void *)u.keys->bytes;
    for (size_t i = 0; i < n; i++) {
        assert_true(u.index[i] < u.n_unique);
        assert_true(keys[u.index[i]] == ids[i]);
    }
    assert_int_equal(u.server_first[0], 0);
    assert_int_equal(u.server_first[n_servers], u.n_unique);
    for (size_t s = 0; s < n_servers; s++) {
        for (size_t k = u.server_first[s]; k < u.server_first[s + 1]; k++) {
            assert_int_equal(map->owner[cl_slot_of(keys[k])], s);
            if (k > u.server_first[s]) { /* sorted by slot; inside a slot by first occurrence */
                uint32_t a = cl_slot_of(keys[k - 1]), b = cl_slot_of(keys[k]);
                assert_true(a <= b);
                size_t first_a = 0, first_b = 0;
                for (; ids[first_a] != keys[k - 1]; first_a++) {
                }
                for (; ids[first_b] != keys[k]; first_b++) {
                }
                assert_true(a < b || first_a < first_b);
            }
        }
    }
    cl_uniques_deinit(&u);
}

/* The ids are as they were, in the order of their slots, each with a key of its own. */
static void check_as_they_are(const cl_map *map, size_t n_servers, const uint64_t *ids, size_t n,
                              const cl_uniques *u)
{
    const uint64_t *keys = (const uint64_t *)(void *)u->keys->bytes;
    static uint32_t id_of[9000];
    assert_int_equal(u->n_unique, n);
    for (size_t i = 0; i < n; i++) {
        id_of[i] = UINT32_MAX;
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(u->index[i] < n && keys[u->index[i]] == ids[i]);
        assert_int_equal(id_of[u->index[i]], UINT32_MAX);
        id_of[u->index[i]] = (uint32_t)i;
    }
    assert_int_equal(u->server_first[n_servers], n);
    for (size_t s = 0; s < n_servers; s++) {
        for (size_t k = u->server_first[s]; k < u->server_first[s + 1]; k++) {
            assert_int_equal(map->owner[cl_slot_of(keys[k])], s);
            if (k > u->server_first[s]) {
                uint32_t a = cl_slot_of(keys[k - 1]), b = cl_slot_of(keys[k]);
                assert_true(a < b || (a == b && id_of[k - 1] < id_of[k]));
            }
        }
    }
}

/* Ids stay as they are where few are repeated, not too few are asked for, and who asks allows it. */
static void few_repeated_ids_stay_as_they_are(void **state)
{
    (void)state;
    static uint64_t ids[9000];
    const struct {
        size_t n;
        uint64_t vocabulary;
        bool may, want;
    } cases[] = {
        {9000, 1u << 30, true, true},
        {9000, 1u << 30, false, false},
        {CL_PART_MANY_IDS, 1u << 30, true, true},
        {CL_PART_MANY_IDS - 1, 1u << 30, true, false},
        {9000, 150000, true, true},
        {9000, 30000, true, false},
        {9000, 10, true, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n_servers = 1 + c % 4, n = cases[c].n;
        cl_map *map = make_map(n_servers, c);
        cl_uniques u;
        draw_ids(ids, n, c, cases[c].vocabulary);
        assert_int_equal(cl_uniques_init(&u, map, ids, n, cases[c].may, NULL), BD_OK);
        assert_int_equal(u.as_they_are, cases[c].want);
        if (cases[c].want) {
            check_as_they_are(map, n_servers, ids, n, &u);
        }
        cl_uniques_deinit(&u);
        for (size_t i = 0; i < 60;
             i++) { /* one slot of many: its keys are compared with each other */
            ids[i * (n / 60)] = ids[0];
        }
        assert_int_equal(cl_uniques_init(&u, map, ids, n, cases[c].may, NULL), BD_OK);
        assert_false(u.as_they_are);
        cl_uniques_deinit(&u);
        cl_map_unref(map);
    }
}

static void uniques_are_distinct_grouped_and_indexed(void **state)
{
    (void)state;
    static uint64_t ids[5000];
    for (uint64_t seed = 0; seed < 60; seed++) {
        size_t n_servers = 1 + seed % 5, n = seed == 0 ? 0 : (size_t)(seed * seed * seed) % 5000;
        cl_map *map = make_map(n_servers, seed);
        draw_ids(ids, n, seed, 1 + seed * 37);
        check_uniques(map, n_servers, ids, n);
        cl_map_unref(map);
    }
}

/* n ids of two slots, each of which has `vocabulary` keys. */
static void draw_crowded_ids(uint64_t *ids, size_t n, uint64_t vocabulary)
{
    static uint64_t keys[2][200];
    size_t found[2] = {0, 0};
    for (uint64_t key = 0; found[0] < vocabulary || found[1] < vocabulary; key++) {
        uint32_t slot = cl_slot_of(key);
        if (slot < 2 && found[slot] < vocabulary) {
            keys[slot][found[slot]++] = key;
        }
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = keys[i % 2][bd_rand_u64(SEED, vocabulary, i) % vocabulary];
    }
}

static void slots_with_many_keys_are_no_exception(void **state)
{
    (void)state;
    static uint64_t ids[1000];
    cl_map *map = make_map(3, 1);
    for (size_t n = 1; n <= 1000; n = n * 3 / 2 + 1) {
        draw_crowded_ids(ids, n, 1);
        check_uniques(map, 3, ids, n);
        draw_crowded_ids(ids, n, 40);
        check_uniques(map, 3, ids, n);
        draw_crowded_ids(ids, n, 200);
        check_uniques(map, 3, ids, n);
    }
    cl_map_unref(map);
}

/* Every row of every table is in exactly one part of its server, in order; parts keep their size.
 */
static void plan_covers_every_row_once(void **state)
{
    (void)state;
    static uint64_t ids[3000];
    for (uint64_t seed = 1; seed < 40; seed++) {
        size_t n_servers = 1 + seed % 5, part_bytes = (size_t)16 << (seed % 12);
        cl_map *map = make_map(n_servers, seed);
        uint32_t dims[3] = {1, 16, (uint32_t)(seed * 7)};
        cl_uniques u[3];
        size_t next[3][5];
        for (size_t t = 0; t < 3; t++) {
            size_t n = (size_t)(bd_rand_u64(SEED, seed, t) % 3000);
            draw_ids(ids, n, seed + t, 2000);
            assert_int_equal(cl_uniques_init(&u[t], map, ids, n, false, NULL), BD_OK);
            memcpy(next[t], u[t].server_first, n_servers * sizeof(size_t));
        }
        cl_plan p;
        const cl_cut cuts[3] = {
            {&u[0], dims[0], NULL}, {&u[1], dims[1], NULL}, {&u[2], dims[2], NULL}};
        assert_int_equal(cl_plan_init(&p, n_servers, cuts, 3, part_bytes, NULL), BD_OK);
        size_t seen_of_server[5] = {0}, bytes_of_server[5] = {0}, next_slice = 0;
        for (size_t i = 0; i < p.n_parts; i++) {
            const cl_part *part = &p.parts[i];
            size_t bytes = 0, rows = 0;
            assert_int_equal(part->part, seen_of_server[part->server_idx]++);
            assert_int_equal(part->first_slice, next_slice);
            next_slice += part->n_slices;
            for (size_t s = 0; s < part->n_slices; s++) {
                const cl_slice *sl = &p.slices[part->first_slice + s];
                assert_int_equal(sl->first_row, next[sl->table_idx][part->server_idx]);
                assert_true(sl->n_rows > 0);
                next[sl->table_idx][part->server_idx] += sl->n_rows;
                rows += sl->n_rows;
                bytes += sl->n_rows * (8 + 4 * (size_t)dims[sl->table_idx]);
            }
            size_t row_bytes = 8 + 4 * (size_t)(dims[2] > 16 ? dims[2] : 16); /* the widest */
            assert_true(bytes <= part_bytes + part_bytes / 2 + row_bytes || rows == 1);
            bytes_of_server[part->server_idx] += bytes;
            assert_true(rows > 0 || part->n_parts == 1);
        }
        for (size_t i = 0; i < p.n_parts; i++) {
            assert_int_equal(p.parts[i].n_parts, seen_of_server[p.parts[i].server_idx]);
        }
        for (size_t s = 0; s < n_servers; s++) {
            assert_true(seen_of_server[s] > 0);
            assert_true(seen_of_server[s] <= bytes_of_server[s] / part_bytes + 1);
            for (size_t t = 0; t < 3; t++) {
                assert_int_equal(next[t][s], u[t].server_first[s + 1]);
            }
        }
        cl_plan_deinit(&p);
        for (size_t t = 0; t < 3; t++) {
            cl_uniques_deinit(&u[t]);
        }
        cl_map_unref(map);
    }
}

static void a_broken_map_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const addresses[] = {"a:1", "b:2"};
    uint32_t owner[CL_N_SLOTS] = {0};
    cl_map *m = NULL;
    bd_err err = BD_ERR_INIT;
    owner[17] = 2;
    assert_int_equal(cl_map_new(1, addresses, 2, owner, CL_N_SLOTS, &m, &err), BD_E_CORRUPT);
    assert_string_equal(err.text, "shard map: slot 17 belongs to server 2 of 2");
    assert_int_equal(cl_map_new(1, addresses, 2, owner, 5, &m, &err), BD_E_CORRUPT);
    assert_int_equal(cl_map_new(1, addresses, 0, owner, CL_N_SLOTS, &m, &err), BD_E_CORRUPT);
}

static void allocations_fail(const uint64_t *ids, size_t n)
{
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        static const char *const addresses[] = {"a:1", "b:2"};
        static const uint32_t owner[CL_N_SLOTS] = {[3] = 1};
        cl_map *map = NULL;
        cl_uniques u = {0};
        cl_plan p = {0};
        const uint32_t dim = 4;
        bd_fault_fail_alloc(nth);
        rc = cl_map_new(1, addresses, 2, owner, CL_N_SLOTS, &map, NULL);
        if (rc == BD_OK) {
            rc = cl_uniques_init(&u, map, ids, n, n >= CL_PART_MANY_IDS, NULL);
        }
        if (rc == BD_OK) {
            const cl_cut cut = {&u, dim, NULL};
            rc = cl_plan_init(&p, 2, &cut, 1, 100, NULL);
        }
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        cl_plan_deinit(&p);
        cl_uniques_deinit(&u);
        cl_map_unref(map);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

static void dedup_survives_every_allocation_failure(void **state)
{
    (void)state;
    static uint64_t ids[CL_PART_MANY_IDS];
    draw_crowded_ids(ids, 1000, 200);
    allocations_fail(ids, 1000);
    draw_ids(ids, CL_PART_MANY_IDS, 1, 1u << 30);
    allocations_fail(ids, CL_PART_MANY_IDS);
}

int main(void)
{
    (void)printf("seed %u\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniques_are_distinct_grouped_and_indexed),
        cmocka_unit_test(few_repeated_ids_stay_as_they_are),
        cmocka_unit_test(slots_with_many_keys_are_no_exception),
        cmocka_unit_test(plan_covers_every_row_once),
        cmocka_unit_test(a_broken_map_is_refused_by_name),
        cmocka_unit_test(dedup_survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
