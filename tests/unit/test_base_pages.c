/* Pieces of huge pages: where they lie, that none overlaps another, and that all goes back. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/pages.h"
#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N_PIECES 400u

typedef struct piece {
    uint8_t *bytes;
    size_t n_bytes;
} piece;

/* From a byte to three huge pages, most of them a few dozen KiB. */
static size_t size_of(uint64_t draw)
{
    uint64_t kind = draw % 16;
    size_t most = kind == 0 ? 3 * BD_HUGE_PAGE_BYTES : kind < 4 ? 512 << 10 : 80 << 10;
    return 1 + (size_t)((draw >> 8) % most);
}

static void check(const piece *p, uint8_t mark)
{
    assert_int_equal(p->bytes[0], mark);
    assert_int_equal(p->bytes[p->n_bytes / 2], mark);
    assert_int_equal(p->bytes[p->n_bytes - 1], mark);
}

/* Each piece keeps what was written all over it, whatever comes and goes beside it. */
static void pieces_do_not_overlap(void **state)
{
    (void)state;
    piece pieces[N_PIECES] = {{0}};
    size_t sum = 0, mapped = bd_pages_mapped_bytes();
    long blocks = bd_mem_live_blocks();
    for (uint64_t op = 0; op < 6000; op++) {
        uint64_t draw = bd_rand_u64(7, 0, op), i = bd_rand_u64(7, 1, op) % N_PIECES;
        piece *p = &pieces[i];
        if (p->bytes != NULL) {
            check(p, (uint8_t)i);
            bd_pages_free(p->bytes, p->n_bytes);
            sum -= p->n_bytes;
            *p = (piece){0};
        } else {
            p->n_bytes = size_of(draw);
            p->bytes = bd_pages_alloc(p->n_bytes);
            assert_non_null(p->bytes);
            assert_int_equal((uintptr_t)p->bytes % BD_PAGE_BYTES, 0);
            memset(p->bytes, (int)(i & 0xff), p->n_bytes);
            sum += p->n_bytes;
        }
        assert_true(bd_pages_mapped_bytes() - mapped >= sum);
    }
    for (size_t i = 0; i < N_PIECES; i++) {
        if (pieces[i].bytes != NULL) {
            check(&pieces[i], (uint8_t)i);
            bd_pages_free(pieces[i].bytes, pieces[i].n_bytes);
        }
    }
    assert_int_equal(bd_pages_mapped_bytes(), mapped);
    assert_int_equal(bd_mem_live_blocks(), blocks);
}

/* Pieces of 36 KiB fill chunks to the last few pages, and room that was freed is used again. */
static void chunks_are_filled(void **state)
{
    (void)state;
    enum { N = 560, BYTES = 36 << 10 }; /* 56 to a chunk of 511 pages */
    static void *pieces[N];
    size_t mapped = bd_pages_mapped_bytes();
    for (size_t i = 0; i < N; i++) {
        pieces[i] = bd_pages_alloc(BYTES);
        assert_non_null(pieces[i]);
    }
    assert_int_equal(bd_pages_mapped_bytes() - mapped, 10 * BD_HUGE_PAGE_BYTES);
    for (size_t i = 0; i < N; i += 2) {
        bd_pages_free(pieces[i], BYTES);
        pieces[i] = bd_pages_alloc(BYTES);
        assert_non_null(pieces[i]);
    }
    assert_int_equal(bd_pages_mapped_bytes() - mapped, 10 * BD_HUGE_PAGE_BYTES);
    for (size_t i = 0; i < N; i++) {
        bd_pages_free(pieces[i], BYTES);
    }
    assert_int_equal(bd_pages_mapped_bytes(), mapped);
}

static void failure_leaves_nothing(void **state)
{
    (void)state;
    size_t mapped = bd_pages_mapped_bytes();
    long blocks = bd_mem_live_blocks();
    bd_fault_fail_alloc(0);
    assert_null(bd_pages_alloc(100));
    bd_fault_fail_alloc(-1);
    assert_null(bd_pages_alloc(SIZE_MAX - BD_PAGE_BYTES)); /* more than can be mapped */
    assert_int_equal(bd_pages_mapped_bytes(), mapped);
    assert_int_equal(bd_mem_live_blocks(), blocks);
    bd_pages_free(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_overlap),
        cmocka_unit_test(chunks_are_filled),
        cmocka_unit_test(failure_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
