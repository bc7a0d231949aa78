/* Counts and vectors beyond 32 bits. The large vector takes little memory: the
 * root's pages are all the zero page but the last, the receiver's are one piece
 * of memory mapped again and again. */
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_frame.h"
#include "ring/ring_plan.h"

#include "tests/util/ring_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define ALIAS_BYTES ((size_t)64 << 20)
#define WIDE_BYTES  (((size_t)1 << 31) + 5)

/* The arithmetic, far beyond any memory: chunks tile 2^40 + 7 elements, and
 * headers carry them. */
static void counts_beyond_32_bits_are_whole(void **state)
{
    (void)state;
    const size_t total = ((size_t)1 << 40) + 7;
    size_t next = 0;
    for (uint32_t chunk = 0; chunk < 5; chunk++) {
        ring_span s;
        assert_int_equal(ring_plan_span(total, 5, chunk, &s), BD_OK);
        assert_int_equal(s.first_elem, next);
        assert_in_range(s.elems, total / 5, total / 5 + 1);
        uint32_t n = ring_plan_n_segments(&s, (size_t)1 << 20);
        assert_int_equal(n, (s.elems + ((size_t)1 << 20) - 1) >> 20);
        ring_span last = ring_plan_segment(&s, (size_t)1 << 20, n - 1);
        assert_int_equal(last.first_elem + last.elems, s.first_elem + s.elems);
        next += s.elems;
    }
    assert_int_equal(next, total);
    uint8_t bytes[RING_FRAME_BYTES];
    ring_frame back;
    const ring_frame f = {.kind = RING_FRAME_DATA,
                          .op = RING_OP_BROADCAST,
                          .dtype = NUM_U8,
                          .count = total,
                          .payload_bytes = total};
    ring_frame_encode(&f, bytes);
    assert_int_equal(ring_frame_decode(bytes, &back, NULL), BD_OK);
    assert_int_equal(back.count, total);
    assert_int_equal(back.payload_bytes, total);
}

/* 1 and 2^32 + 1 elements are not the same. */
static void counts_differ_above(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    const size_t n = t->rank == 1 ? ((size_t)1 << 32) + 1 : 1;
    uint8_t *v =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RANK_CHECK(t, v != MAP_FAILED);
    bd_status rc = ring_broadcast(t->comm, v, n, NUM_U8, 0, "w", NULL, &err);
    (void)munmap(v, n);
    if (rc != BD_E_MISMATCH || strstr(err.text, "u8 x 4294967297") == NULL) {
        rank_failed(t, __FILE__, __LINE__, "count", &err);
    }
}

static void a_count_is_not_cut_to_32_bits(void **state)
{
    (void)state;
    for (int b = RANKS_MEM; b <= RANKS_SHM; b++) {
        ring_ranks_run((ranks_backend)b, 2, NULL, counts_differ_above, NULL);
    }
}

static uint8_t *map_again_and_again(size_t n_bytes)
{
    uint8_t *base =
        mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int fd = memfd_create("wide", MFD_CLOEXEC);
    bool ok = base != MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)ALIAS_BYTES) == 0;
    for (size_t at = 0; ok && at < n_bytes; at += ALIAS_BYTES) {
        size_t n = n_bytes - at < ALIAS_BYTES ? n_bytes - at : ALIAS_BYTES;
        ok = mmap(base + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base + at;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return ok ? base : NULL;
}

static void broadcast_wide(rank_test *t)
{
    static const uint8_t tail[] = {3, 1, 4, 1, 5};
    bd_err err = BD_ERR_INIT;
    uint8_t *v = NULL;
    if (t->rank == 0) {
        v = mmap(NULL, WIDE_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        RANK_CHECK(t, v != MAP_FAILED);
        memcpy(v + ((size_t)1 << 31), tail, sizeof tail);
    } else {
        v = map_again_and_again(WIDE_BYTES);
        RANK_CHECK(t, v != NULL);
    }
    bd_status rc = ring_broadcast(t->comm, v, WIDE_BYTES, NUM_U8, 0, "w", NULL, &err);
    bool is_there = memcmp(v + ((size_t)1 << 31), tail, sizeof tail) == 0;
    (void)munmap(v, WIDE_BYTES);
    RANK_OK(t, rc, &err);
    RANK_CHECK(t, is_there);
    RANK_CHECK(t, t->rank != 0 || ring_bytes_sent(t->comm) >= WIDE_BYTES);
}

static void a_vector_beyond_2_31_bytes(void **state)
{
    (void)state;
#ifdef BRAID_SANITIZED
    (void)broadcast_wide;
    skip(); /* minutes, and shadow memory for all of it */
#else
    ring_ranks_run(RANKS_TCP, 2, NULL, broadcast_wide, NULL);
    ring_ranks_run(RANKS_SHM, 2, NULL, broadcast_wide, NULL);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_beyond_32_bits_are_whole),
        cmocka_unit_test(a_count_is_not_cut_to_32_bits),
        cmocka_unit_test(a_vector_beyond_2_31_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
