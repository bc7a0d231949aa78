/* The commit protocol against a simple model, under reordered, repeated and lost messages. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_step.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPOCH 3u

static ps_job job_of(uint32_t world)
{
    return (ps_job){.epoch = EPOCH, .world = world, .consistency = PS_SYNC};
}

static ps_part *part_of(uint64_t step, uint32_t rank, uint32_t part, uint32_t n_parts)
{
    ps_part *p = bd_calloc(1, sizeof *p);
    *p = (ps_part){.job_epoch = EPOCH,
                   .step = step,
                   .rank = rank,
                   .part = part,
                   .n_parts = n_parts,
                   .n_bytes = 100};
    return p;
}

static bd_status push(ps_step *s, ps_part *p, bool *dup, ps_effects *fx, bd_err *err)
{
    bd_status rc = ps_step_push(s, p, dup, fx, err);
    if (rc != BD_OK) {
        ps_part_free(p);
    }
    return rc;
}

static ps_waiter waiter_of(ps_wait_kind kind, uint64_t step, uint32_t rank)
{
    return (ps_waiter){
        .kind = kind, .job_epoch = EPOCH, .step = step, .rank = rank, .lr_scale = 1.0};
}

/* Checks a batch: every part of every rank once, in order; then frees it and closes the step. */
static void close_batch(ps_step *s, ps_effects *fx, uint64_t step, uint32_t world, uint32_t n_parts)
{
    assert_true(fx->close);
    assert_int_equal(fx->batch.step, step);
    const ps_part *p = fx->batch.parts;
    for (uint32_t r = 0; r < world; r++) {
        for (uint32_t k = 0; k < n_parts; k++, p = p->next) {
            assert_int_equal(p->rank, r);
            assert_int_equal(p->part, k);
        }
    }
    assert_null(p);
    ps_part_free_list(fx->batch.parts);
    *fx = (ps_effects){0};
    ps_step_closed(s, BD_OK, NULL, fx);
}

/* The plain course of a step of two ranks, with a lookup of the next one waiting for it. */
static void a_step_closes_once(void **state)
{
    (void)state;
    ps_job job = job_of(2);
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup = true;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 1, 0, 1), &dup, &fx, &err), BD_OK);
    assert_false(dup);
    assert_int_equal(push(s, part_of(1, 1, 0, 1), &dup, &fx, &err), BD_OK);
    assert_true(dup);
    ps_waiter early = waiter_of(PS_WAIT_COMMIT, 1, 1), mine = waiter_of(PS_WAIT_COMMIT, 1, 0);
    ps_waiter look = waiter_of(PS_WAIT_LOOKUP, 1, 1);
    ps_step_decide(s, &early, &fx);
    ps_step_lookup(s, &look, &fx);
    assert_null(fx.done); /* rank 0's part is missing: both wait */
    ps_step_decide(s, &mine, &fx);
    assert_ptr_equal(fx.done, &mine); /* it has not pushed */
    assert_int_equal(mine.rc, BD_E_NEED_PARTS);
    fx = (ps_effects){0};
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    close_batch(s, &fx, 1, 2, 1);
    assert_ptr_equal(fx.done, &early);
    assert_ptr_equal(early.next, &look);
    assert_int_equal(early.rc, BD_OK);
    assert_false(early.duplicate);
    assert_int_equal(look.last_step, 1);
    fx = (ps_effects){0};
    ps_step_decide(s, &mine, &fx);
    assert_int_equal(mine.rc, BD_OK);
    assert_true(mine.duplicate);
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    assert_true(dup);
    assert_false(fx.close);
    ps_step_free(s);
}

/* ABORT closes the step; contradictions are named; the next step goes on. */
static void abort_closes_and_contradicts(void **state)
{
    (void)state;
    ps_job job = job_of(1);
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    ps_waiter a = waiter_of(PS_WAIT_ABORT, 1, 0), b = a, c = waiter_of(PS_WAIT_COMMIT, 1, 0);
    ps_step_decide(s, &a, &fx);
    assert_true(fx.close && fx.batch.aborted);
    assert_null(fx.batch.parts);
    fx = (ps_effects){0};
    ps_step_closed(s, BD_OK, NULL, &fx);
    assert_ptr_equal(fx.done, &a);
    fx = (ps_effects){0};
    ps_step_decide(s, &b, &fx);
    assert_true(b.rc == BD_OK && b.duplicate);
    ps_step_decide(s, &c, &fx);
    assert_int_equal(c.rc, BD_E_STATE);
    fx = (ps_effects){0};
    assert_int_equal(push(s, part_of(2, 0, 0, 1), &dup, &fx, &err), BD_OK);
    c = waiter_of(PS_WAIT_COMMIT, 2, 0);
    ps_step_decide(s, &c, &fx);
    b = waiter_of(PS_WAIT_ABORT, 2, 0);
    ps_effects none = {0};
    ps_step_decide(s, &b, &none); /* while it is being applied */
    assert_int_equal(b.rc, BD_E_STATE);
    close_batch(s, &fx, 2, 1, 1);
    assert_int_equal(ps_step_job(s)->last_step, 2);
    assert_int_equal(ps_step_job(s)->last_aborted, 1);
    ps_step_free(s);
}

/* Ranks must agree on the factor of the learning rate. */
static void lr_scales_must_agree(void **state)
{
    (void)state;
    ps_job job = job_of(2);
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    ps_waiter a = waiter_of(PS_WAIT_COMMIT, 1, 0), b = waiter_of(PS_WAIT_COMMIT, 1, 1);
    ps_step_decide(s, &a, &fx);
    b.lr_scale = 0.5;
    ps_step_decide(s, &b, &fx);
    assert_int_equal(b.rc, BD_E_MISMATCH);
    fx = (ps_effects){0};
    ps_step_sweep(s, NULL, &fx);
    assert_int_equal(a.rc, BD_E_UNAVAILABLE);
    ps_step_free(s);
}

/* A new job fences the old one: everybody parked is told, naming both epochs. */
static void a_new_job_fences_the_old(void **state)
{
    (void)state;
    ps_job job = job_of(2), next = {.epoch = 9, .world = 1, .consistency = PS_SYNC, .last_step = 4};
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    ps_waiter a = waiter_of(PS_WAIT_COMMIT, 1, 0), l = waiter_of(PS_WAIT_LOOKUP, 1, 1);
    ps_step_decide(s, &a, &fx);
    ps_step_lookup(s, &l, &fx);
    assert_int_equal(ps_step_parked(s), 2);
    assert_int_equal(ps_step_open(s, &next, 0, &fx, &err), BD_OK);
    assert_int_equal(a.rc, BD_E_FENCED);
    assert_int_equal(l.rc, BD_E_FENCED);
    assert_non_null(strstr(bd_err_text(&a.err), "3"));
    assert_non_null(strstr(bd_err_text(&a.err), "9"));
    assert_int_equal(ps_step_staged_bytes(s), 0);
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_E_FENCED);
    next.epoch = 8;
    assert_int_equal(ps_step_open(s, &next, 0, &fx, &err), BD_E_FENCED);
    assert_int_equal(ps_step_check_epoch(s, 10, &err), BD_E_STATE);
    ps_step_free(s);
}

static void limits_are_named(void **state)
{
    (void)state;
    ps_job job = job_of(2);
    ps_step *s = ps_step_new(&job, 250, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 2, 0, 1), &dup, &fx, &err), BD_E_INVALID);
    assert_non_null(strstr(bd_err_text(&err), "rank 2"));
    assert_int_equal(push(s, part_of(1, 0, 1, 1), &dup, &fx, &err), BD_E_INVALID);
    assert_int_equal(push(s, part_of(1 + PS_STEP_WINDOW, 0, 0, 1), &dup, &fx, &err), BD_E_STATE);
    assert_int_equal(push(s, part_of(1, 0, 0, 2), &dup, &fx, &err), BD_OK);
    assert_int_equal(push(s, part_of(1, 0, 1, 3), &dup, &fx, &err), BD_E_MISMATCH);
    /* Two parts ahead fill the limit; the next step to close still has its own. */
    assert_int_equal(push(s, part_of(2, 0, 0, 1), &dup, &fx, &err), BD_OK);
    assert_int_equal(push(s, part_of(3, 0, 0, 1), &dup, &fx, &err), BD_OK);
    assert_int_equal(push(s, part_of(4, 0, 0, 1), &dup, &fx, &err), BD_E_EXHAUSTED);
    assert_int_equal(push(s, part_of(1, 0, 1, 2), &dup, &fx, &err), BD_OK);
    assert_int_equal(push(s, part_of(1, 1, 0, 1), &dup, &fx, &err), BD_E_EXHAUSTED);
    ps_step_free(s);
}

/* ---- model test ---- */
enum { WORLD = 3, N_PARTS = 2, STEPS = 40 };

/* What one rank does next. It pushes its parts, says COMMIT, and goes on when it is answered. */
typedef struct rank_state {
    uint64_t step;
    ps_waiter commit, look;
    bool committing, looking;
} rank_state;

static void take_done(rank_state *ranks, ps_effects *fx, uint64_t last)
{
    for (ps_waiter *w = fx->done, *next; w != NULL; w = next) {
        next = w->next;
        rank_state *r = &ranks[w->rank];
        if (w->kind == PS_WAIT_LOOKUP) {
            assert_int_equal(w->rc, BD_OK);
            assert_true(w->last_step >= w->step);
            r->looking = false;
            continue;
        }
        assert_true(w->rc == BD_OK || w->rc == BD_E_NEED_PARTS);
        r->committing = false;
        if (w->rc == BD_OK) {
            assert_true(last >= w->step);
            r->step = w->step + 1;
        }
    }
    *fx = (ps_effects){0};
}

/* A restart: staged parts and parked requests are gone; what was closed stays. */
static ps_step *restart(ps_step *s, rank_state *ranks)
{
    ps_job job = *ps_step_job(s);
    ps_effects fx = {0};
    ps_step_sweep(s, NULL, &fx);
    for (uint32_t r = 0; r < WORLD; r++) {
        ranks[r].committing = false;
        ranks[r].looking = false;
    }
    ps_step_free(s);
    return ps_step_new(&job, 1 << 20, 0);
}

/* Random choice of who does what, with repeats, losses and restarts: each step closes exactly once,
 * in order, with exactly the parts of its ranks. */
static void random_orders_close_each_step_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        ps_job job = job_of(WORLD);
        ps_step *s = ps_step_new(&job, 1 << 20, 0);
        rank_state ranks[WORLD] = {0};
        uint64_t closed = 0, n = 0;
        for (uint32_t r = 0; r < WORLD; r++) {
            ranks[r].step = 1;
        }
        for (; closed < STEPS && n < 100000; n++) {
            uint64_t dice = bd_rand_u64(seed, 0, n);
            uint32_t r = (uint32_t)(dice % WORLD), what = (uint32_t)(dice >> 8) % 100;
            rank_state *me = &ranks[r];
            ps_effects fx = {0};
            bool dup;
            bd_err err;
            if (what < 50) { /* a part, maybe again, maybe an old one */
                uint64_t step = (dice >> 20) % 10 == 0 && me->step > 1 ? me->step - 1 : me->step;
                assert_int_equal(
                    push(s, part_of(step, r, (dice >> 30) % N_PARTS, N_PARTS), &dup, &fx, &err),
                    BD_OK);
            } else if (what < 80 && !me->committing) {
                me->commit = waiter_of(PS_WAIT_COMMIT, me->step, r);
                me->committing = true;
                ps_step_decide(s, &me->commit, &fx);
            } else if (what < 97 && !me->looking) {
                me->look = waiter_of(PS_WAIT_LOOKUP, me->step - 1, r);
                me->looking = true;
                ps_step_lookup(s, &me->look, &fx);
            } else if (what == 99) {
                s = restart(s, ranks);
                continue;
            }
            for (; fx.close; closed++) {
                ps_effects before = {.done = fx.done, .done_last = fx.done_last};
                take_done(ranks, &before, closed);
                close_batch(s, &fx, closed + 1, WORLD, N_PARTS);
            }
            take_done(ranks, &fx, closed);
            assert_int_equal(ps_step_job(s)->last_step, closed);
        }
        assert_int_equal(closed, STEPS);
        ps_effects fx = {0};
        ps_step_sweep(s, NULL, &fx);
        ps_step_free(s);
    }
}

/* A journal that fails loses the staged parts, not the decision: the ranks send them again. */
static void a_failed_journal_asks_again(void **state)
{
    (void)state;
    ps_job job = job_of(1);
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err, disk;
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    ps_waiter a = waiter_of(PS_WAIT_COMMIT, 1, 0);
    ps_step_decide(s, &a, &fx);
    assert_true(fx.close);
    ps_part_free_list(fx.batch.parts);
    fx = (ps_effects){0};
    (void)bd_err_set(&disk, BD_E_IO, "no space left on device");
    ps_step_closed(s, BD_E_IO, &disk, &fx);
    assert_int_equal(a.rc, BD_E_IO);
    assert_non_null(strstr(bd_err_text(&a.err), "no space"));
    fx = (ps_effects){0};
    ps_step_decide(s, &a, &fx);
    assert_int_equal(a.rc, BD_E_NEED_PARTS);
    fx = (ps_effects){0};
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    if (!fx.close) {
        ps_step_decide(s, &a, &fx);
    }
    close_batch(s, &fx, 1, 1, 1);
    ps_step_free(s);
}

/* Whoever waits for what will not come is told so; what is closed stays as it is. */
static void a_broken_journal_lets_nobody_wait(void **state)
{
    (void)state;
    ps_job job = job_of(2);
    ps_step *s = ps_step_new(&job, 1000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err, disk;
    (void)bd_err_set(&disk, BD_E_IO, "sync: no disk");
    for (uint64_t step = 1; step <= 2; step++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_int_equal(push(s, part_of(step, rank, 0, 1), &dup, &fx, &err), BD_OK);
        }
    }
    assert_int_equal(push(s, part_of(3, 0, 0, 1), &dup, &fx, &err), BD_OK);
    ps_waiter one = waiter_of(PS_WAIT_COMMIT, 1, 0), two = waiter_of(PS_WAIT_COMMIT, 2, 0);
    ps_step_decide(s, &one, &fx);
    close_batch(s, &fx, 1, 2, 1);
    fx = (ps_effects){0};
    ps_step_decide(s, &two, &fx);
    assert_true(fx.close); /* the batch is out */
    ps_part_free_list(fx.batch.parts);
    fx = (ps_effects){0};
    ps_waiter three = waiter_of(PS_WAIT_COMMIT, 3, 0), look = waiter_of(PS_WAIT_LOOKUP, 2, 1);
    ps_step_decide(s, &three, &fx); /* waits for the other rank */
    ps_step_lookup(s, &look, &fx);
    assert_null(fx.done);
    ps_step_set_broken(s, &disk, &fx);
    assert_ptr_equal(fx.done, &three);
    assert_ptr_equal(three.next, &look);
    assert_null(look.next);
    assert_true(three.rc == BD_E_IO && look.rc == BD_E_IO);
    assert_string_equal(bd_err_text(&look.err), "sync: no disk");
    fx = (ps_effects){0};
    ps_step_closed(s, BD_E_IO, &disk, &fx);
    assert_ptr_equal(fx.done, &two);
    assert_int_equal(two.rc, BD_E_IO);
    assert_int_equal(ps_step_parked(s), 0);
    fx = (ps_effects){0};
    ps_step_lookup(s, &look, &fx);
    ps_step_decide(s, &three, &fx);
    assert_true(look.rc == BD_E_IO && three.rc == BD_E_IO);
    ps_waiter past = waiter_of(PS_WAIT_LOOKUP, 1, 0);
    ps_step_lookup(s, &past, &fx);
    ps_step_decide(s, &one, &fx);
    assert_true(past.rc == BD_OK && one.rc == BD_OK && one.duplicate);
    assert_int_equal(ps_step_parked(s), 0);
    ps_step_free(s);
}

static bool every_one(const ps_waiter *w)
{
    (void)w;
    return true;
}

/* What a COMMIT says of those it waited for in vain. */
static void expect_missing(ps_step *s, uint64_t step, const char *text)
{
    ps_effects fx = {0};
    ps_waiter w = waiter_of(PS_WAIT_COMMIT, step, 0);
    ps_step_decide(s, &w, &fx);
    assert_true(fx.done == NULL && !fx.close);
    ps_step_sweep(s, every_one, &fx);
    assert_ptr_equal(fx.done, &w);
    assert_int_equal(w.rc, BD_E_CANCELLED);
    assert_string_equal(bd_err_text(&w.err), text);
    assert_int_equal(ps_step_parked(s), 0);
}

/* Ranks with no part or not all parts, of this step or an earlier one. */
static void who_never_came_is_named(void **state)
{
    (void)state;
    ps_job job = job_of(12);
    ps_step *s = ps_step_new(&job, 10000, 0);
    ps_effects fx = {0};
    bool dup;
    bd_err err;
    assert_int_equal(push(s, part_of(1, 0, 0, 1), &dup, &fx, &err), BD_OK);
    assert_int_equal(push(s, part_of(1, 3, 0, 2), &dup, &fx, &err), BD_OK); /* half of it */
    expect_missing(s, 1, "missing at step 1: ranks 1, 2, 3, 4, 5, 6, 7, 8, ... of 12");
    assert_int_equal(push(s, part_of(1, 3, 1, 2), &dup, &fx, &err), BD_OK);
    for (uint32_t rank = 1; rank < 11; rank++) {
        if (rank != 3) {
            assert_int_equal(push(s, part_of(1, rank, 0, 1), &dup, &fx, &err), BD_OK);
        }
    }
    expect_missing(s, 1, "missing at step 1: rank 11 of 12");
    for (uint32_t rank = 0; rank < 12; rank++) {
        assert_int_equal(push(s, part_of(2, rank, 0, 1), &dup, &fx, &err), BD_OK);
    }
    expect_missing(s, 2, "missing at step 1: rank 11 of 12");
    assert_int_equal(push(s, part_of(1, 11, 0, 1), &dup, &fx, &err), BD_OK);
    assert_true(fx.close);
    ps_part_free_list(fx.batch.parts); /* being written */
    ps_waiter late = waiter_of(PS_WAIT_COMMIT, 1, 0);
    fx = (ps_effects){0};
    ps_step_decide(s, &late, &fx);
    ps_step_sweep(s, every_one, &fx);
    assert_string_equal(bd_err_text(&late.err), "all are there, step 1 is not applied yet");
    ps_step_free(s);
}

static void staging_survives_every_allocation_failure(void **state)
{
    (void)state;
    long start = bd_mem_live_blocks();
    for (long nth = 0; nth < 8; nth++) {
        ps_job job = job_of(2);
        ps_step *s = ps_step_new(&job, 1000, 0);
        ps_part *p = part_of(1, 0, 0, 2), *q = part_of(1, 1, 0, 1);
        ps_effects fx = {0};
        bool dup;
        bd_err err;
        bd_fault_fail_alloc(nth);
        bd_status a = push(s, p, &dup, &fx, &err), b = push(s, q, &dup, &fx, &err);
        bd_fault_fail_alloc(-1);
        assert_true((a == BD_OK || a == BD_E_NOMEM) && (b == BD_OK || b == BD_E_NOMEM));
        assert_true(nth < 3 ? a != BD_OK || b != BD_OK : a == BD_OK && b == BD_OK);
        ps_step_free(s);
        assert_int_equal(bd_mem_live_blocks(), start);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_closes_once),
        cmocka_unit_test(abort_closes_and_contradicts),
        cmocka_unit_test(lr_scales_must_agree),
        cmocka_unit_test(a_new_job_fences_the_old),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(random_orders_close_each_step_once),
        cmocka_unit_test(a_failed_journal_asks_again),
        cmocka_unit_test(a_broken_journal_lets_nobody_wait),
        cmocka_unit_test(who_never_came_is_named),
        cmocka_unit_test(staging_survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
