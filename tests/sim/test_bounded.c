/* Bounded consistency in virtual time: ranks of different speed train on several servers through a
 * network that delays every message, and no rank ever reads rows older than the bound, none waits
 * without need, and a rank that dies is named to all that wait for it. */
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

#define EPOCH       4u
#define MAX_RANKS   5u
#define MAX_SERVERS 3u
#define STEPS       40u
#define WAIT_MS     500 /* bound_wait of the servers */

typedef enum kind { THINKS, PUSH_COMES, PUSH_ANSWERED, LOOKUP_COMES, LOOKUP_ANSWERED } kind;

typedef struct event {
    int64_t at_ms;
    uint64_t order; /* of equal times */
    kind kind;
    uint32_t rank, server, part, n_parts;
    uint64_t step;
} event;

typedef struct rank_state {
    uint64_t step;    /* being worked on */
    uint32_t missing; /* answers it waits for */
    ps_waiter waiters[MAX_SERVERS];
    bool is_dead, is_done;
    bd_status failed;
} rank_state;

typedef struct world {
    uint64_t seed, draws, order;
    uint32_t n_ranks, n_servers;
    uint64_t bound;
    int64_t now_ms;
    event *events; /* a heap would be faster; some hundred lie here */
    size_t n, cap;
    ps_step *servers[MAX_SERVERS];
    rank_state ranks[MAX_RANKS];
    uint64_t applied[MAX_SERVERS][MAX_RANKS]; /* the model: steps whose parts are all applied */
    uint32_t parts[MAX_SERVERS][MAX_RANKS];
    uint64_t n_waited; /* lookups that were parked */
} world;

static uint64_t draw(world *w, uint64_t below)
{
    return bd_rand_u64(w->seed, 1, w->draws++) % below;
}

static void post(world *w, int64_t in_ms, event e)
{
    e.at_ms = w->now_ms + in_ms;
    e.order = w->order++;
    assert_true(bd_grow(&w->events, &w->cap, w->n + 1, sizeof *w->events));
    w->events[w->n++] = e;
}

static event take(world *w)
{
    size_t best = 0;
    for (size_t i = 1; i < w->n; i++) {
        const event *a = &w->events[i], *b = &w->events[best];
        best = a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order) ? i : best;
    }
    event e = w->events[best];
    w->events[best] = w->events[--w->n];
    return e;
}

/* The last rank takes ten times as long as the others. */
static int64_t think_ms(world *w, uint32_t rank)
{
    return 1 + (int64_t)draw(w, 10) + (rank + 1 == w->n_ranks ? 90 : 0);
}

/* Answers of a server leave. Each is checked when it was decided, before anything else happens. */
static void answer(world *w, uint32_t server, ps_effects *fx)
{
    assert_false(fx->close);
    for (ps_waiter *x = fx->done, *next; x != NULL; x = next) {
        next = x->next;
        for (uint32_t r = 0; x->rc == BD_OK && r < w->n_ranks; r++) {
            assert_true(w->applied[server][r] >= x->step); /* the bound */
        }
        post(w, 1 + (int64_t)draw(w, 5),
             (event){.kind = LOOKUP_ANSWERED, .rank = x->rank, .server = server});
    }
}

static void send_lookups(world *w, uint32_t rank)
{
    w->ranks[rank].missing = w->n_servers;
    for (uint32_t m = 0; m < w->n_servers; m++) {
        post(w, 1 + (int64_t)draw(w, 5),
             (event){.kind = LOOKUP_COMES, .rank = rank, .server = m, .step = w->ranks[rank].step});
    }
}

static void lookup_comes(world *w, const event *e)
{
    ps_effects fx = {0};
    ps_waiter *x = &w->ranks[e->rank].waiters[e->server];
    uint64_t after = e->step > w->bound + 1 ? e->step - w->bound - 1 : 0;
    *x = (ps_waiter){.kind = PS_WAIT_LOOKUP, .job_epoch = EPOCH, .step = after, .rank = e->rank};
    size_t parked = ps_step_parked(w->servers[e->server]);
    bool there = true;
    for (uint32_t r = 0; r < w->n_ranks; r++) {
        there = there && w->applied[e->server][r] >= after;
    }
    ps_step_lookup(w->servers[e->server], x, &fx);
    bool waits = ps_step_parked(w->servers[e->server]) > parked;
    assert_int_equal(waits, !there); /* it waits only when it must */
    w->n_waited += waits;
    answer(w, e->server, &fx);
}

static void push_comes(world *w, const event *e)
{
    ps_effects fx = {0};
    bd_err err;
    ps_part p = {.job_epoch = EPOCH,
                 .step = e->step,
                 .rank = e->rank,
                 .part = e->part,
                 .n_parts = e->n_parts};
    assert_int_equal(ps_bound_check(ps_step_bound(w->servers[e->server]), &p, &err), BD_OK);
    if (++w->parts[e->server][e->rank] == e->n_parts) {
        w->parts[e->server][e->rank] = 0;
        w->applied[e->server][e->rank] = e->step;
    }
    ps_step_applied(w->servers[e->server], &p, w->now_ms, &fx);
    post(w, 1 + (int64_t)draw(w, 5), (event){.kind = PUSH_ANSWERED, .rank = e->rank});
    answer(w, e->server, &fx);
}

static void thought(world *w, uint32_t rank)
{
    rank_state *r = &w->ranks[rank];
    r->missing = 0;
    for (uint32_t m = 0; m < w->n_servers; m++) {
        uint32_t n_parts = 1 + (uint32_t)draw(w, 3);
        for (uint32_t k = 0; k < n_parts; k++) {
            r->missing++;
            post(w, 1 + (int64_t)draw(w, 5),
                 (event){.kind = PUSH_COMES,
                         .rank = rank,
                         .server = m,
                         .part = k,
                         .n_parts = n_parts,
                         .step = r->step});
        }
    }
}

static void handle(world *w, const event *e)
{
    rank_state *r = &w->ranks[e->rank];
    switch (e->kind) {
    case LOOKUP_COMES:
        lookup_comes(w, e);
        return;
    case PUSH_COMES:
        push_comes(w, e);
        return;
    case LOOKUP_ANSWERED:
        if (r->waiters[e->server].rc != BD_OK) {
            r->failed = r->waiters[e->server].rc;
            r->is_done = true;
        } else if (--r->missing == 0 && !r->is_dead) {
            post(w, think_ms(w, e->rank), (event){.kind = THINKS, .rank = e->rank});
        }
        return;
    case THINKS:
        if (!r->is_dead) {
            thought(w, e->rank);
        }
        return;
    case PUSH_ANSWERED:
        if (--r->missing == 0) {
            r->is_done = r->step == STEPS;
            if (!r->is_done && !r->is_dead) {
                r->step++;
                send_lookups(w, e->rank);
            }
        }
        return;
    }
}

static void start(world *w, uint64_t seed, uint64_t bound)
{
    *w = (world){.seed = seed, .bound = bound};
    w->n_ranks = 2 + (uint32_t)draw(w, MAX_RANKS - 1);
    w->n_servers = 1 + (uint32_t)draw(w, MAX_SERVERS);
    const ps_job job = {.epoch = EPOCH, .world = w->n_ranks, .consistency = PS_BOUNDED};
    for (uint32_t m = 0; m < w->n_servers; m++) {
        w->servers[m] = ps_step_new(&job, 1 << 20, 0);
        assert_non_null(w->servers[m]);
    }
    for (uint32_t r = 0; r < w->n_ranks; r++) {
        w->ranks[r].step = 1;
        send_lookups(w, r);
    }
}

static void expire(world *w)
{
    for (uint32_t m = 0; m < w->n_servers; m++) {
        ps_effects fx = {0};
        ps_step_expire(w->servers[m], w->now_ms - WAIT_MS, &fx);
        answer(w, m, &fx);
    }
}

/* Runs until nothing is on its way; looks for dead ranks every 100 ms as the server does. */
static void run(world *w, uint32_t dies, uint64_t at_step)
{
    int64_t looked_ms = 0;
    for (size_t n = 0; w->n > 0 || w->now_ms < looked_ms + 2 * (int64_t)WAIT_MS; n++) {
        assert_true(n < 1000000);
        bool have = w->n > 0;
        event e = have ? take(w) : (event){.at_ms = w->now_ms + 100};
        w->now_ms = e.at_ms;
        if (dies < w->n_ranks && w->ranks[dies].step == at_step) {
            w->ranks[dies].is_dead = true;
        }
        if (have) {
            handle(w, &e);
            looked_ms = w->now_ms;
        }
        expire(w);
    }
}

static void stop(world *w)
{
    for (uint32_t m = 0; m < w->n_servers; m++) {
        assert_int_equal(ps_step_parked(w->servers[m]), 0);
        ps_step_free(w->servers[m]);
    }
    bd_free(w->events);
}

/* All ranks finish, whatever the bound, the slow one holds the others back (somebody has waited
 * unless the bound is large), and the time is the slow one's. */
static void nobody_reads_older_rows_than_the_bound(void **state)
{
    (void)state;
    const uint64_t bounds[] = {0, 1, 4, 1000};
    for (uint64_t seed = 1; seed <= 25; seed++) {
        for (size_t b = 0; b < 4; b++) {
            world w;
            start(&w, seed, bounds[b]);
            run(&w, UINT32_MAX, 0);
            for (uint32_t r = 0; r < w.n_ranks; r++) {
                assert_true(w.ranks[r].is_done && w.ranks[r].failed == BD_OK);
            }
            assert_int_equal(w.n_waited > 0, bounds[b] < STEPS - 1);
            stop(&w);
        }
    }
}

/* A rank dies at some step: every other one gets an error that names it and ends; none hangs, and
 * none is told of a rank that is only slow. */
static void a_dead_rank_is_named(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        world w;
        char who[32];
        start(&w, seed, 2);
        uint32_t dies = (uint32_t)draw(&w, w.n_ranks);
        (void)snprintf(who, sizeof who, "but rank %u ", dies);
        run(&w, dies, 2 + draw(&w, STEPS - 10));
        for (uint32_t r = 0; r < w.n_ranks; r++) {
            if (r == dies) {
                continue;
            }
            assert_int_equal(w.ranks[r].failed, BD_E_ABORTED);
            bool named = false;
            for (uint32_t m = 0; m < w.n_servers; m++) {
                named = named || strstr(bd_err_text(&w.ranks[r].waiters[m].err), who) != NULL;
            }
            assert_true(named);
        }
        stop(&w);
    }
}

/* What a rank may not do, each refused by name and without effect; progress comes back from its
 * fact. */
static void progress_is_checked_and_kept(void **state)
{
    (void)state;
    ps_bound b = {0}, c = {0};
    bd_err err;
    uint8_t fact[PS_BOUND_BYTES];
    assert_int_equal(ps_bound_init(&b, 2, 6, 0), BD_OK);
    ps_part p = {.job_epoch = EPOCH, .step = 7, .rank = 1, .part = 0, .n_parts = 2};
    const struct {
        ps_part part;
        bd_status rc;
        const char *text;
    } bad[] = {
        {{.step = 7, .rank = 2, .n_parts = 1}, BD_E_INVALID, "world of 2"},
        {{.step = 7, .rank = 1, .part = 2, .n_parts = 2}, BD_E_INVALID, "part 2 of 2"},
        {{.step = 7, .rank = 1, .n_parts = 0}, BD_E_INVALID, "part 0 of 0"},
        {{.step = 8, .rank = 1, .n_parts = 1}, BD_E_STATE, "last complete step is 6"},
        {{.step = 6, .rank = 1, .n_parts = 1}, BD_E_STATE, "last complete step is 6"},
        {{.step = 7, .rank = 1, .part = 1, .n_parts = 3}, BD_E_MISMATCH, "2"},
    };
    assert_int_equal(ps_bound_check(&b, &p, &err), BD_OK);
    ps_bound_pack_next(&b, &p, fact);
    ps_bound_apply(&b, &p, 5);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ps_bound_check(&b, &bad[i].part, &err), bad[i].rc);
        assert_non_null(strstr(bd_err_text(&err), bad[i].text));
    }
    assert_int_equal(ps_bound_init(&c, 2, 6, 0), BD_OK);
    assert_int_equal(ps_bound_load(&c, 1, EPOCH + 1, fact, sizeof fact, &err), BD_OK);
    assert_int_equal(c.ranks[1].n_parts, 0); /* of another job */
    assert_int_equal(ps_bound_load(&c, 1, EPOCH, fact, sizeof fact, &err), BD_OK);
    assert_int_equal(ps_bound_load(&c, 1, EPOCH, fact, 3, &err), BD_E_CORRUPT);
    p.part = 1;
    assert_int_equal(ps_bound_check(&c, &p, &err), BD_OK);
    ps_bound_apply(&c, &p, 6);
    assert_int_equal(c.ranks[1].done_step, 7);
    assert_int_equal(ps_bound_low(&c), 6);
    assert_int_equal(ps_bound_stuck(&c, 7, 6), 0);
    assert_int_equal(ps_bound_stuck(&c, 6, 6), 2);
    ps_bound_deinit(&b);
    ps_bound_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_reads_older_rows_than_the_bound),
        cmocka_unit_test(a_dead_rank_is_named),
        cmocka_unit_test(progress_is_checked_and_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
