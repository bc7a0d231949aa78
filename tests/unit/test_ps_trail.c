/* Where the rows of recent lookups lie: notes and their bounds, and updates that believe them. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_rows.h"
#include "ps_server/ps_table.h"
#include "ps_server/ps_trail.h"

#include "tests/util/ps_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

#define DIM    ((size_t)4)
#define N      ((size_t)500)
#define N_BAGS ((size_t)20)

/* ---- notes ---- */
static void note(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n, uint32_t first)
{
    bd_buf *rows = bd_buf_new(n * sizeof(uint32_t));
    assert_non_null(rows);
    memset(rows->bytes, 0, rows->n_bytes);
    memcpy(rows->bytes, &first, sizeof first);
    ps_trail_put(t, table_id, keys, n, rows);
}

/* The first row of the note of these keys; PS_NO_ROW: there is none. */
static uint32_t taken(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n)
{
    uint32_t first = PS_NO_ROW;
    bd_buf *rows = ps_trail_take(t, table_id, keys, n);
    if (rows != NULL) {
        assert_int_equal(rows->n_bytes, n * sizeof(uint32_t));
        memcpy(&first, rows->bytes, sizeof first);
    }
    bd_buf_unref(rows);
    return first;
}

static void a_note_is_taken_once_by_its_keys(void **state)
{
    (void)state;
    uint64_t keys[N], other[N];
    ps_trail t;
    long before = bd_mem_live_blocks();
    for (size_t i = 0; i < N; i++) {
        keys[i] = i;
        other[i] = i + 1;
    }
    ps_trail_init(&t);
    note(&t, 1, keys, N, 7);
    note(&t, 1, keys, N, 8); /* the same batch once more: both are there */
    assert_int_equal(taken(&t, 2, keys, N), PS_NO_ROW);
    assert_int_equal(taken(&t, 1, keys, N - 1), PS_NO_ROW);
    assert_int_equal(taken(&t, 1, other, N), PS_NO_ROW);
    assert_int_equal(taken(&t, 1, keys, N), 8);
    assert_int_equal(taken(&t, 1, keys, N), 7);
    assert_int_equal(taken(&t, 1, keys, N), PS_NO_ROW);
    assert_int_equal(t.n_bytes, 0);
    note(&t, 1, keys, N, 9);
    ps_trail_deinit(&t);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void notes_that_nobody_takes_make_room(void **state)
{
    (void)state;
    const size_t large = PS_TRAIL_BYTES / sizeof(uint32_t) / 3;
    uint64_t *keys = bd_calloc(PS_TRAIL_BYTES / sizeof(uint32_t) + 1, sizeof *keys);
    assert_non_null(keys);
    ps_trail t;
    ps_trail_init(&t);
    for (uint32_t i = 0; i < 2 * PS_TRAIL_NOTES; i++) {
        note(&t, i, keys, PS_TRAIL_MIN_KEYS, i);
    }
    assert_int_equal(taken(&t, PS_TRAIL_NOTES - 1, keys, PS_TRAIL_MIN_KEYS), PS_NO_ROW);
    assert_int_equal(taken(&t, PS_TRAIL_NOTES, keys, PS_TRAIL_MIN_KEYS), PS_TRAIL_NOTES);
    for (uint32_t i = 0; i < 5; i++) {
        note(&t, 1000 + i, keys, large, i);
        assert_true(t.n_bytes <= PS_TRAIL_BYTES);
    }
    assert_int_equal(taken(&t, 1001, keys, large), PS_NO_ROW);
    assert_int_equal(taken(&t, 1004, keys, large), 4);
    assert_int_equal(taken(&t, 1002, keys, large), 2);
    note(&t, 9, keys, PS_TRAIL_BYTES / sizeof(uint32_t) + 1, 1); /* never fits */
    assert_int_equal(taken(&t, 9, keys, PS_TRAIL_BYTES / sizeof(uint32_t) + 1), PS_NO_ROW);
    assert_int_equal(taken(&t, 1003, keys, large), 3);
    ps_trail_deinit(&t);
    bd_free(keys);
}

/* ---- updates ---- */
static ps_table *new_table(void)
{
    Braid__V1__TableSpec m;
    char name[] = "t", init[] = "normal", opt[] = "adagrad";
    ps_spec s;
    bd_err err = BD_ERR_INIT;
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.dim = DIM;
    m.initializer = init;
    m.optimizer = opt;
    must(ps_spec_parse(&m, &s, &err), &err);
    ps_table *t = ps_table_new(&s, NULL);
    assert_non_null(t);
    return t;
}

/* One push of N keys, some of which have rows by then, to two tables, one of which believes the
 * guesses: the same rows come of it. */
static void both_tables_agree(ps_table *plain, ps_table *guessing, const uint64_t *keys,
                              const uint32_t *guesses, uint64_t seq)
{
    uint32_t entries[N];
    float grads[N_BAGS * DIM];
    uint64_t n_plain = 0, n_guessing = 0;
    for (size_t i = 0; i < N; i++) {
        entries[i] = (uint32_t)(i % N_BAGS);
    }
    for (size_t i = 0; i < N_BAGS * DIM; i++) {
        grads[i] = (float)bd_rand_u64(1, seq, i) / 1e19f;
    }
    const ps_bags b = {.n_bags = N_BAGS, .n_entries = N, .entries = entries};
    const ps_apply a = {.seq = {1, seq}, .step = seq, .write = seq, .lr_scale = 1};
    assert_int_equal(ps_table_reserve(plain, keys, N), BD_OK);
    assert_int_equal(ps_table_reserve(guessing, keys, N), BD_OK);
    ps_table_apply_bags(plain, keys, N, &b, grads, NULL, &a);
    ps_table_apply_bags(guessing, keys, N, &b, grads, guesses, &a);
    assert_int_equal(ps_table_hash(plain, &n_plain), ps_table_hash(guessing, &n_guessing));
    assert_int_equal(n_plain, n_guessing);
}

static void wrong_guesses_change_nothing(void **state)
{
    (void)state;
    uint64_t keys[N];
    uint32_t found[N], wrong[N];
    float out[N_BAGS * DIM];
    uint32_t entries[N] = {0};
    const ps_bags b = {.n_bags = N_BAGS, .n_entries = N, .entries = entries};
    ps_table *plain = new_table(), *guessing = new_table();
    for (size_t i = 0; i < N; i++) {
        keys[i] = bd_mix64(i);
    }
    assert_int_equal(ps_table_pool(guessing, keys, N, &b, out, found), BD_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(found[i], PS_NO_ROW); /* before the first push */
    }
    both_tables_agree(plain, guessing, keys, found, 1);
    assert_int_equal(ps_table_pool(guessing, keys, N, &b, out, found), BD_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_not_equal(found[i], PS_NO_ROW);
    }
    both_tables_agree(plain, guessing, keys, found, 2); /* right ones */
    for (uint64_t seq = 3; seq < 20; seq++) {           /* others' rows, and rows that are not */
        for (size_t i = 0; i < N; i++) {
            uint64_t draw = bd_rand_u64(2, seq, i);
            wrong[i] = draw % 3 == 0 ? found[i] : (uint32_t)(draw >> (draw % 60));
            keys[i] = draw % 7 == 0 ? bd_mix64(seq * N + i) : keys[i]; /* new ones come as well */
        }
        both_tables_agree(plain, guessing, keys, wrong, seq);
    }
    ps_table_free(plain);
    ps_table_free(guessing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_note_is_taken_once_by_its_keys),
        cmocka_unit_test(notes_that_nobody_takes_make_room),
        cmocka_unit_test(wrong_guesses_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
