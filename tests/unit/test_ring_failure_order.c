/* A failure belongs to an operation: what one rank completed before it, every rank completes, even
 * when the news of the failure comes first. Over memory, tcp, shared memory and both together. */
#include "base/clock.h"

#include "ring/ring.h"
#include "ring/ring_engine.h"
#include "ring/ring_shm_int.h"

#include "tests/util/ring_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The pure part: rank 0 of 4 in a barrier (operation 0), frames in any order. */

typedef struct bench {
    ring_engine engine;
    ring_transport transport;
    ring_op op;
    bd_status rc[2]; /* of the operations that ended */
    bd_err err;
    int n_done;
    ring_frame abort; /* the last one that the engine sent */
} bench;

static bench g_bench;

static bd_status catch_frame(ring_transport *t, int peer, int lane, const ring_frame *f,
                             const void *payload, bd_err *err)
{
    (void)lane;
    (void)t;
    (void)peer;
    (void)payload;
    (void)err;
    if (f->kind == RING_FRAME_ABORT) {
        g_bench.abort = *f;
    }
    return BD_OK;
}

static bool nothing_out(ring_transport *t)
{
    (void)t;
    return true;
}

static void note_done(void *user, bd_status rc, const bd_err *err)
{
    bench *b = user;
    assert_true(b->n_done < 2);
    b->rc[b->n_done++] = rc;
    if (err != NULL) {
        b->err = *err;
    }
}

static ring_engine *begin(void)
{
    bench *b = &g_bench;
    memset(b, 0, sizeof *b);
    b->transport.send = catch_frame;
    b->transport.quiesce = nothing_out;
    b->op = (ring_op){.kind = RING_OP_BARRIER, .root = -1};
    b->engine.rank = 0;
    b->engine.world = 4;
    b->engine.timeout_ns = 20 * BD_NS_PER_S;
    b->engine.clock = bd_clock_real();
    b->engine.transport = &b->transport;
    b->engine.on_done = note_done;
    b->engine.user = b;
    assert_int_equal(ring_engine_init(&b->engine, NULL), BD_OK);
    ring_engine_start(&b->engine, &b->op);
    return &b->engine;
}

static ring_verdict feed(ring_engine *e, int from, ring_frame f, const char *text)
{
    void *dst = NULL;
    f.rank = from;
    f.root = -1;
    f.payload_bytes = strlen(text);
    ring_verdict v = ring_engine_on_header(e, from, 0, &f, &dst);
    if (v == RING_TAKE) {
        memcpy(dst, text, strlen(text) > 0 ? strlen(text) : 0);
        ring_engine_on_payload(e, from, 0);
    }
    return v;
}

static void feed_barrier(ring_engine *e, int from, uint32_t round)
{
    ring_frame f = {.kind = RING_FRAME_DATA, .op = RING_OP_BARRIER, .step = round};
    f.rank = from;
    f.root = -1;
    void *dst = NULL;
    assert_int_equal(ring_engine_on_header(e, from, 0, &f, &dst), RING_TAKE);
    ring_engine_on_payload(e, from, 0);
}

static void feed_abort(ring_engine *e, int from, uint64_t seq)
{
    ring_frame f = {
        .kind = RING_FRAME_ABORT, .seq = seq, .count = (uint64_t)(int64_t)BD_E_MISMATCH};
    (void)feed(e, from, f, "they disagree");
}

static void an_abort_of_the_next_operation_waits(void **state)
{
    (void)state;
    ring_engine *e = begin();
    feed_abort(e, 1, 1);
    assert_int_equal(g_bench.n_done, 0);
    ring_engine_on_peer_lost(e, 1, "it has left"); /* after ABORT: no news */
    feed_barrier(e, 3, 0);
    assert_int_equal(g_bench.n_done, 0);
    feed_barrier(e, 2, 1);
    assert_int_equal(g_bench.n_done, 1);
    assert_int_equal(g_bench.rc[0], BD_OK);
    assert_int_equal(e->failure.code, BD_E_MISMATCH); /* now it is due, and told to the others */
    assert_int_equal(g_bench.abort.seq, 1);
    ring_engine_deinit(e);
}

static void an_abort_of_this_operation_ends_it(void **state)
{
    (void)state;
    ring_engine *e = begin();
    feed_abort(e, 1, 1);
    feed_abort(e, 2, 0); /* rank 2 did not complete it: nobody will */
    assert_int_equal(g_bench.rc[0], BD_E_MISMATCH);
    assert_int_equal(g_bench.abort.seq, 0);
    ring_engine_deinit(e);
}

static void a_lost_rank_is_an_error_when_something_is_missing(void **state)
{
    (void)state;
    ring_engine *e = begin();
    ring_engine_on_peer_lost(e, 1, "killed"); /* it has nothing to say to rank 0 */
    assert_int_equal(g_bench.n_done, 0);
    feed_barrier(e, 3, 0);
    feed_barrier(e, 2, 1);
    assert_int_equal(g_bench.rc[0], BD_OK);
    assert_int_equal(e->failure.code, BD_E_PEER_LOST);
    ring_engine_deinit(e);

    e = begin();
    ring_engine_on_peer_lost(e, 2, "killed"); /* its second round is missing */
    assert_int_equal(g_bench.rc[0], BD_E_PEER_LOST);
    assert_non_null(strstr(g_bench.err.text, "rank 2 lost (killed)"));
    ring_engine_deinit(e);
}

/* The backends. */

/* Rank 1, a leaf of the broadcast (in hier: on the root's host), is done with it and aborts; only
 * then rank 3 calls it, on which ranks 2 and (but in hier) 0 wait. */
static void leaf_aborts(rank_test *t)
{
    enum { LEAF = 1, LATE = 3 };
    _Atomic bool *has_aborted = t->arg;
    bd_err err = BD_ERR_INIT;
    float x = t->rank == 0 ? 7.0F : 0.0F;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    while (t->rank == LATE && !atomic_load(has_aborted)) {
        bd_sleep_ms(1); /* rank_meet would need ranks that wait */
    }
    bd_status rc = ring_broadcast(t->comm, &x, 1, NUM_F32, 0, "b", NULL, &err);
    if (t->rank == LEAF) {
        ring_abort(t->comm, NULL);
        bd_sleep_ms(20); /* the news travel: the test could pass without it, never fail */
        atomic_store(has_aborted, true);
    }
    RANK_OK(t, rc, &err);
    RANK_CHECK(t, (int)x == 7);
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_ABORTED);
    RANK_CHECK(t, strstr(err.text, "rank 1 aborted") != NULL);
}

static void a_completed_broadcast_reaches_everybody(void **state)
{
    (void)state;
    static const ranks_backend backends[] = {RANKS_MEM, RANKS_TCP, RANKS_HIER};
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        _Atomic bool has_aborted = false;
        ring_ranks_run(backends[b], 4, NULL, leaf_aborts, &has_aborted);
    }
}

/* An abort right before the end is not lost: the others hear of it, not of an orderly leaving. */
static void aborts_and_goes(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank == 1) {
        ring_abort(t->comm, NULL);
        ring_free(t->comm);
        t->keep_comm = true;
        return;
    }
    RANK_CHECK(t, ring_barrier(t->comm, "later", &err) == BD_E_ABORTED);
    RANK_CHECK(t, strstr(err.text, "rank 1 aborted") != NULL);
}

static void an_abort_before_the_end_is_heard(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        ring_ranks_run((ranks_backend)(i % 4), 3, NULL, aborts_and_goes, NULL);
    }
}

/* In shared memory nobody completes an operation that another has not begun, so the failure of the
 * next one is made here, by a rank that has not yet called the first. */
static void fails_ahead(rank_test *t)
{
    ring_shm *s = (ring_shm *)(void *)t->comm->backend;
    bd_err err = BD_ERR_INIT;
    bd_err why = BD_ERR_INIT;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank == 1) {
        (void)bd_err_set(&why, BD_E_MISMATCH, "they disagree");
        RANK_CHECK(t, ring_shm_fail(s, 3, &why) == BD_E_MISMATCH);
        (void)bd_err_set(&why, BD_E_IO, "a second reason");
        RANK_CHECK(t, ring_shm_fail(s, 4, &why) == BD_E_MISMATCH);
    }
    RANK_OK(t, ring_barrier(t->comm, "second", &err), &err);
    RANK_CHECK(t, ring_barrier(t->comm, "third", &err) == BD_E_MISMATCH);
    RANK_CHECK(t, strcmp(err.text, "they disagree") == 0);
}

/* What ends an earlier operation wins over one that was to end a later one. */
static void fails_earlier(rank_test *t)
{
    ring_shm *s = (ring_shm *)(void *)t->comm->backend;
    bd_err err = BD_ERR_INIT;
    bd_err why = BD_ERR_INIT;
    RANK_OK(t, ring_barrier(t->comm, "start", &err), &err);
    if (t->rank == 1) {
        (void)bd_err_set(&why, BD_E_MISMATCH, "they disagree");
        RANK_CHECK(t, ring_shm_fail(s, 3, &why) == BD_E_MISMATCH);
        RANK_CHECK(t, ring_shm_fail(s, 2, &why) == BD_E_MISMATCH);
    }
    RANK_CHECK(t, ring_barrier(t->comm, "second", &err) == BD_E_MISMATCH);
}

static void a_later_failure_waits_in_shared_memory(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_SHM, 3, NULL, fails_ahead, NULL);
    ring_ranks_run(RANKS_SHM, 3, NULL, fails_earlier, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_of_the_next_operation_waits),
        cmocka_unit_test(an_abort_of_this_operation_ends_it),
        cmocka_unit_test(a_lost_rank_is_an_error_when_something_is_missing),
        cmocka_unit_test(a_completed_broadcast_reaches_everybody),
        cmocka_unit_test(an_abort_before_the_end_is_heard),
        cmocka_unit_test(a_later_failure_waits_in_shared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
