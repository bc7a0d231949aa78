/* send and recv, and groups of some ranks, over every backend. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"

#include "tests/util/ring_groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void on_all(int world, rank_fn fn)
{
    for (int b = RANKS_MEM; b <= RANKS_HIER; b++) {
        ring_ranks_run((ranks_backend)b, world, NULL, fn, NULL);
    }
}

/* Everybody sends to the next rank and receives from the one before, at once and of any size, with
 * collectives between. */
static void shift(rank_test *t)
{
    static const size_t counts[] = {0, 1, 1000, 3000000};
    bd_err err = BD_ERR_INIT;
    int next = (t->rank + 1) % t->world;
    int before = (t->rank + t->world - 1) % t->world;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        size_t n = counts[k];
        ring_work *w[2] = {NULL, NULL};
        int32_t *out = bd_calloc(n + 1, sizeof *out);
        int32_t *in = bd_calloc(n + 1, sizeof *in);
        for (size_t i = 0; i < n; i++) {
            out[i] = t->rank * 7 + (int32_t)i;
        }
        RANK_OK(t, ring_send(t->comm, out, n, NUM_I32, next, 5, "s", &w[0], &err), &err);
        RANK_OK(t, ring_recv(t->comm, in, n, NUM_I32, before, 5, "s", &w[1], &err), &err);
        RANK_OK(t, ring_work_wait(w[1], &err), &err);
        RANK_OK(t, ring_work_wait(w[0], &err), &err);
        for (size_t i = 0; i < n; i++) {
            RANK_CHECK(t, in[i] == before * 7 + (int32_t)i);
        }
        RANK_CHECK(t, in[n] == 0);
        bd_free(out);
        bd_free(in);
        RANK_OK(t, ring_barrier(t->comm, "between", &err), &err);
    }
}

static void all_may_send_at_once(void **state)
{
    (void)state;
    on_all(2, shift);
    on_all(4, shift);
}

/* Messages with different tags are received in another order than sent; with one tag in order. */
static void tags(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v[4] = {1, 2, 3, 4};
    ring_work *w[4] = {NULL};
    if (t->rank == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            RANK_OK(t, ring_send(t->comm, &v[i], 1, NUM_F32, 1, i / 2, "", &w[i], &err), &err);
        }
    } else if (t->rank == 1) {
        memset(v, 0, sizeof v);
        for (uint32_t i = 0; i < 4; i++) { /* tag 1 is posted first */
            RANK_OK(t, ring_recv(t->comm, &v[i], 1, NUM_F32, 0, 1 - i / 2, "", &w[i], &err), &err);
        }
    }
    for (int i = 0; t->rank < 2 && i < 4; i++) {
        RANK_OK(t, ring_work_wait(w[i], &err), &err);
    }
    RANK_CHECK(t, t->rank != 1 || (v[0] == 3 && v[1] == 4 && v[2] == 1 && v[3] == 2));
    RANK_OK(t, ring_barrier(t->comm, "end", &err), &err);
}

static void tags_tell_messages_apart(void **state)
{
    (void)state;
    on_all(3, tags);
}

static void other_count(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v[8] = {0};
    bd_status rc = BD_OK;
    if (t->rank == 0) {
        rc = ring_send(t->comm, v, 7, NUM_F32, 1, 0, "act", NULL, &err);
        rc = rc == BD_OK ? ring_barrier(t->comm, "later", &err) : rc;
    } else if (t->rank == 1) {
        rc = ring_recv(t->comm, v, 8, NUM_F32, 0, 0, "act", NULL, &err);
    } else {
        rc = ring_barrier(t->comm, "later", &err);
    }
    RANK_CHECK(t, rc == BD_E_MISMATCH);
    RANK_CHECK(t, strstr(err.text, "rank 1: recv \"act\" from rank 0 (tag 0, f32 x 8)") != NULL);
    RANK_CHECK(t, strstr(err.text, "but rank 0 sends \"act\", f32 x 7") != NULL);
    rank_meet(t);
}

static void a_different_count_is_a_mismatch_on_all(void **state)
{
    (void)state;
    on_all(3, other_count);
}

static void nobody_sends(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v = 0;
    rank_limit(t, 150);
    if (t->rank == 1) {
        bd_status rc = ring_recv(t->comm, &v, 1, NUM_F32, 0, 0, "x", NULL, &err);
        RANK_CHECK(t, rc == BD_E_TIMEOUT);
        RANK_CHECK(t, strstr(err.text, "rank 0 did not take part for 150 ms") != NULL ||
                          strstr(err.text, "rank 0 did not take part for 187 ms") != NULL);
    }
    rank_meet(t);
    RANK_CHECK(t, t->rank == 1 || ring_barrier(t->comm, "later", &err) == BD_E_TIMEOUT);
    rank_meet(t);
}

static void a_message_that_does_not_come_is_a_timeout(void **state)
{
    (void)state;
    on_all(2, nobody_sends);
}

static void bad_peers(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v = 0;
    RANK_CHECK(t, ring_send(t->comm, &v, 1, NUM_F32, t->rank, 0, "", NULL, &err) == BD_E_INVALID);
    RANK_CHECK(t, ring_recv(t->comm, &v, 1, NUM_F32, t->world, 0, "", NULL, &err) == BD_E_INVALID);
    RANK_CHECK(t, ring_recv(t->comm, &v, 1, NUM_F32, -1, 0, "", NULL, &err) == BD_E_INVALID);
    RANK_OK(t, ring_barrier(t->comm, "end", &err), &err);
}

static void a_peer_outside_the_group_is_invalid(void **state)
{
    (void)state;
    on_all(2, bad_peers);
}

/* Groups of some ranks: only the members take part; parent and child work side by side. */
static void only_members_make_a_group(void **state)
{
    (void)state;
    for (int b = RANKS_TCP; b <= RANKS_HIER; b++) { /* the in-memory one has no rendezvous */
        ring_groups_check((ranks_backend)b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_may_send_at_once),
        cmocka_unit_test(tags_tell_messages_apart),
        cmocka_unit_test(a_different_count_is_a_mismatch_on_all),
        cmocka_unit_test(a_message_that_does_not_come_is_a_timeout),
        cmocka_unit_test(a_peer_outside_the_group_is_invalid),
        cmocka_unit_test(only_members_make_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
