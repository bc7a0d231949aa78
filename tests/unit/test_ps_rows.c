/* Rows that come and go: the index against a plain array, who leaves and who comes
 * in, what the budget is charged. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N_KEYS 3000u

/* Keys that collide: the index has few entries, and runs of neighbours form. */
static uint64_t key_of(uint64_t i)
{
    return i == 0 ? 0 : i == 1 ? UINT64_MAX : i * 7;
}

static uint32_t find(const ps_rows *r, uint64_t key)
{
    return ps_rows_find(r, key, bd_mix64(key));
}

/* After any adds and removals every key is found exactly when it is there, at a row that is its. */
static void removal_keeps_the_index_whole(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    bool there[N_KEYS] = {false};
    size_t n = 0, none = 0;
    ps_budget_init(&b, (size_t)1 << 30);
    ps_rows_init(&r, 3, &b);
    for (uint64_t op = 0; op < 60000; op++) {
        uint64_t i = bd_rand_u64(4, 0, op) % N_KEYS, key = key_of(i);
        uint32_t row = find(&r, key);
        assert_int_equal(row != PS_NO_ROW, there[i]);
        if (row == PS_NO_ROW) {
            assert_int_equal(ps_rows_reserve(&r, 1, false, &none), BD_OK);
            row = ps_rows_add(&r, key, bd_mix64(key));
            *(uint64_t *)(void *)ps_rows_at(&r, row) = key;
        } else {
            assert_int_equal(*(uint64_t *)(void *)ps_rows_at(&r, row), key);
            ps_rows_remove(&r, row);
        }
        n = there[i] ? n - 1 : n + 1;
        there[i] = !there[i];
        assert_int_equal(r.n_rows, n);
    }
    for (uint64_t i = 0; i < N_KEYS; i++) {
        assert_int_equal(find(&r, key_of(i)) != PS_NO_ROW, there[i]);
    }
    assert_true(r.n_slots <= N_KEYS); /* slots are used again */
    ps_rows_deinit(&r);
    assert_int_equal(atomic_load(&b.used_bytes), 0);
}

static void fill(ps_rows *r, uint64_t first, size_t n)
{
    size_t none = 0;
    assert_int_equal(ps_rows_reserve(r, n, false, &none), BD_OK);
    for (uint64_t i = first; i < first + n; i++) {
        (void)ps_rows_add(r, key_of(i), bd_mix64(key_of(i)));
    }
}

static unsigned uses_of(const ps_rows *r, uint32_t row)
{
    return atomic_load(&r->uses[row]);
}

/* The least used leave first; what may not leave stays, and the hand says that it found nothing. */
static void the_least_used_leave(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    size_t moved = 0;
    ps_budget_init(&b, (size_t)1 << 30);
    ps_rows_init(&r, 4, &b);
    fill(&r, 10, 100);
    for (uint64_t i = 10; i < 110; i += 2) {
        ps_rows_use(&r, find(&r, key_of(i)));
    }
    for (int tries = 0; tries < 100; tries++) {
        moved += ps_rows_move_out(&r, 1, 2);
    }
    assert_int_equal(moved, 50);
    assert_false(r.stuck); /* others could leave */
    for (uint64_t i = 10; i < 110; i++) {
        assert_int_equal(find(&r, key_of(i)) != PS_NO_ROW, i % 2 == 0);
    }
    ps_rows_meta(&r, find(&r, key_of(20)))->held = 1;
    ps_rows_meta(&r, find(&r, key_of(22)))->writing = 1;
    ps_rows_touch(&r, find(&r, key_of(24)), 1);
    assert_int_equal(ps_rows_move_out(&r, 50, PS_ROWS_ANY_USES), 47);
    assert_int_equal(r.n_rows, 3);
    assert_true(r.stuck && atomic_load(&b.blocked_bytes) > 0);
    assert_int_equal(atomic_load(&b.dirty_bytes), r.stride_bytes);
    ps_rows_deinit(&r);
    assert_int_equal(atomic_load(&b.used_bytes), 0);
    assert_int_equal(atomic_load(&b.dirty_bytes), 0);
}

/* A lookup's row comes in when it has been asked for more often than one that would leave, or at
 * once while rows are being changed; what is known of a row that left is still known. */
static void admission_is_by_uses(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    size_t moved = 0;
    const uint64_t rare = bd_mix64(1u << 30), other = bd_mix64(1u << 29);
    ps_budget_init(&b, PS_BUDGET_MIN_BYTES);
    b.rows_bytes = 200000;
    ps_rows_init(&r, 60, &b);
    while (ps_rows_reserve(&r, 1, false, &moved) == BD_OK) {
        (void)ps_rows_add(&r, r.n_rows + 1, bd_mix64(r.n_rows + 1));
    }
    r.n_asked = r.n_aged = 10 * r.n_slots; /* no row has changed for long */
    for (uint32_t row = 0; row < r.n_slots; row++) {
        ps_rows_use(&r, row); /* twice each by now */
    }
    assert_int_equal(ps_rows_admit(&r, rare, &moved), BD_E_EXHAUSTED);
    assert_int_equal(ps_rows_admit(&r, rare, &moved), BD_E_EXHAUSTED);
    assert_int_equal(moved, 0);
    assert_int_equal(ps_rows_admit(&r, rare, &moved), BD_OK);
    assert_int_equal(moved, 1);
    uint32_t row = ps_rows_add(&r, 1u << 30, rare);
    assert_int_equal(uses_of(&r, row), 3);
    ps_rows_remove(&r, row);
    assert_int_equal(ps_rows_reserve(&r, 1, true, &moved), BD_OK);
    row = ps_rows_add(&r, 1u << 30, rare);
    assert_int_equal(uses_of(&r, row), 3);

    assert_int_equal(ps_rows_admit(&r, other, &moved), BD_E_EXHAUSTED);
    ps_rows_touch(&r, row, 1);
    moved = 0;
    assert_int_equal(ps_rows_admit(&r, bd_mix64(1u << 28), &moved), BD_OK);
    assert_int_equal(moved, 1);
    ps_rows_deinit(&r);
    assert_int_equal(atomic_load(&b.used_bytes), 0);
}

/* Old uses are halved, so that what was wanted once does not stay for ever. */
static void uses_grow_old(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    size_t moved = 0;
    ps_budget_init(&b, PS_BUDGET_MIN_BYTES);
    ps_rows_init(&r, 4, &b);
    fill(&r, 10, 100);
    uint32_t row = find(&r, key_of(10));
    for (int i = 0; i < 40; i++) {
        ps_rows_use(&r, row);
    }
    assert_int_equal(uses_of(&r, row), PS_ROWS_MOST_USES);
    for (uint64_t i = 0; i < 500 && uses_of(&r, row) == PS_ROWS_MOST_USES; i++) {
        bd_status rc = ps_rows_admit(&r, bd_mix64(1000000 + i), &moved);
        assert_true(rc == BD_OK || rc == BD_E_EXHAUSTED);
    }
    assert_int_equal(uses_of(&r, row), PS_ROWS_MOST_USES / 2);
    ps_rows_deinit(&r);
}

/* A used-up budget: room comes from rows that leave, or not at all; a promise is kept. */
static void reserve_moves_out_or_says_exhausted(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    size_t moved = 0;
    ps_budget_init(&b, PS_BUDGET_MIN_BYTES);
    b.rows_bytes = 200000;
    ps_rows_init(&r, 60, &b);
    while (ps_rows_reserve(&r, 1, false, &moved) == BD_OK) {
        (void)ps_rows_add(&r, r.n_rows + 1, bd_mix64(r.n_rows + 1));
    }
    size_t full = r.n_rows;
    assert_true(full > 400 && full < 200000 / (60 * 4));
    assert_int_equal(ps_rows_reserve(&r, 1, false, &moved), BD_E_EXHAUSTED);
    assert_int_equal(moved, 0);
    assert_int_equal(ps_rows_reserve(&r, 7, true, &moved), BD_OK);
    assert_int_equal(moved, 7);
    assert_int_equal(r.n_rows, full - 7);
    r.promised = 7;
    moved = 0;
    assert_int_equal(ps_rows_reserve(&r, 1, false, &moved), BD_E_EXHAUSTED);
    assert_int_equal(ps_rows_reserve(&r, full, true, &moved), BD_E_EXHAUSTED); /* more than fits */
    assert_true(atomic_load(&b.used_bytes) <= b.rows_bytes);
    ps_rows_deinit(&r);
    assert_int_equal(atomic_load(&b.used_bytes), 0);
}

/* The last block goes with its rows, unless one of them is needed; the others stay as they are. */
static void a_block_is_given_up(void **state)
{
    (void)state;
    ps_rows r;
    ps_budget b;
    size_t moved = 0, paid = 0;
    ps_budget_init(&b, PS_BUDGET_MIN_BYTES);
    ps_rows_init(&r, 60, &b);
    fill(&r, 0, 100);
    const size_t blocks = r.n_blocks, used = atomic_load(&b.used_bytes),
                 slot = ps_rows_slot_bytes(&r);
    ps_rows_remove(&r, find(&r, key_of(3)));
    ps_rows_remove(&r, find(&r, key_of(98))); /* its slot is in the block that goes */
    ps_rows_touch(&r, find(&r, key_of(99)), 1);
    assert_int_equal(ps_rows_give(&r, &moved), 0);
    assert_int_equal(r.n_rows, 98);
    ps_rows_meta(&r, find(&r, key_of(99)))->dirty = 0;
    ps_rows_meta(&r, find(&r, key_of(99)))->writing = 1;
    assert_int_equal(ps_rows_give(&r, &moved), 0);
    ps_rows_meta(&r, find(&r, key_of(99)))->writing = 0;
    paid = r.paid_slots;
    size_t gave = ps_rows_give(&r, &moved);
    assert_true(gave > 0 && moved > 0 && r.n_blocks == blocks - 1);
    assert_int_equal(r.paid_slots, paid - gave);
    assert_int_equal(r.n_rows, 98 - moved);
    assert_int_equal(atomic_load(&b.used_bytes), used); /* the caller's now */
    size_t there = 0;
    for (uint64_t k = 0; k < 100; k++) {
        uint32_t row = find(&r, key_of(k));
        assert_true(row == PS_NO_ROW || ps_rows_meta(&r, row)->key == key_of(k));
        there += row != PS_NO_ROW;
    }
    assert_int_equal(there, r.n_rows);
    /* The slots that are left are used again, and then new ones. */
    ps_budget_give(&b, gave * slot);
    fill(&r, 1000, 60);
    for (uint64_t k = 1000; k < 1060; k++) {
        assert_int_equal(ps_rows_meta(&r, find(&r, key_of(k)))->key, key_of(k));
    }
    while (ps_rows_give(&r, &moved) != 0) {
    }
    assert_int_equal(r.n_blocks, 1); /* the first one stays */
    ps_budget_give(&b, atomic_load(&b.used_bytes) - r.paid_slots * slot -
                           (r.index_mask + 1) * sizeof(ps_rows_entry));
    ps_rows_deinit(&r);
    assert_int_equal(atomic_load(&b.used_bytes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(removal_keeps_the_index_whole),
        cmocka_unit_test(the_least_used_leave),
        cmocka_unit_test(admission_is_by_uses),
        cmocka_unit_test(uses_grow_old),
        cmocka_unit_test(reserve_moves_out_or_says_exhausted),
        cmocka_unit_test(a_block_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
