/* Who waits for a step: COMMIT and ABORT messages until it is closed, lookups until it is there. */
#include "ps_server/ps_step_int.h"

#include <inttypes.h>
#include <stdio.h>

void ps_step_finish(ps_step *s, ps_waiter *w, bd_status rc, ps_effects *fx)
{
    w->rc = rc;
    w->last_step = s->job.last_step;
    w->next = NULL;
    if (fx->done_last == NULL) {
        fx->done = w;
    } else {
        fx->done_last->next = w;
    }
    fx->done_last = w;
}

void ps_step_park(ps_step *s, ps_waiter **list, ps_waiter *w)
{
    w->next = *list;
    *list = w;
    s->n_parked++;
}

ps_waiter *ps_step_take_all(ps_waiter **list)
{
    ps_waiter *out = NULL;
    for (ps_waiter *w = *list, *next; w != NULL; w = next) {
        next = w->next;
        w->next = out;
        out = w;
    }
    *list = NULL;
    return out;
}

void ps_step_finish_all(ps_step *s, ps_waiter **list, bd_status rc, const bd_err *err,
                        ps_effects *fx)
{
    for (ps_waiter *w = ps_step_take_all(list), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (err != NULL) {
            w->err = *err;
        }
        ps_step_finish(s, w, rc, fx);
    }
}

void ps_step_wake_lookups(ps_step *s, ps_effects *fx)
{
    for (ps_waiter *w = ps_step_take_all(&s->lookups), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (w->step <= s->job.last_step) {
            ps_step_finish(s, w, BD_OK, fx);
        } else {
            ps_step_park(s, &s->lookups, w);
        }
    }
}

void ps_step_expire(ps_step *s, int64_t since_ms, ps_effects *fx)
{
    if (s->bound.world == 0) {
        return;
    }
    for (ps_waiter *w = ps_step_take_all(&s->lookups), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        uint32_t rank = ps_bound_stuck(&s->bound, w->step, since_ms);
        if (rank == s->bound.world) {
            ps_step_park(s, &s->lookups, w);
            continue;
        }
        (void)bd_err_set(&w->err, BD_E_ABORTED,
                         "lookup of rank %u waits for step %" PRIu64 " of all ranks, but rank %u "
                         "has finished step %" PRIu64
                         " and said nothing since: it is dead or stuck",
                         w->rank, w->step, rank, s->bound.ranks[rank].done_step);
        ps_step_finish(s, w, BD_E_ABORTED, fx);
    }
}

/* Whom the oldest open step up to the waiter's waits for, into w->err. */
static void name_missing(ps_step *s, ps_waiter *w)
{
    enum { MAX_NAMED = 8 };
    char list[MAX_NAMED * sizeof ", 4294967295"] = "";
    size_t at = 0;
    uint32_t n = 0;
    uint64_t step = s->job.last_step + 1;
    while (step < w->step && ps_step_at(s, step)->n_complete == s->job.world) {
        step++;
    }
    const ps_open_step *o = ps_step_at(s, step);
    for (uint32_t r = 0; r < s->job.world && !(s->closing && step == s->job.last_step + 1); r++) {
        if (o->ranks != NULL && o->ranks[r].n_parts > 0 &&
            o->ranks[r].n_have == o->ranks[r].n_parts) {
            continue;
        }
        if (n++ < MAX_NAMED) {
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%u", at > 0 ? ", " : "", r);
        }
    }
    if (n == 0) {
        (void)bd_err_set(&w->err, BD_E_CANCELLED,
                         "all are there, step %" PRIu64 " is not applied yet", w->step);
        return;
    }
    (void)bd_err_set(&w->err, BD_E_CANCELLED, "missing at step %" PRIu64 ": rank%s %s%s of %u",
                     step, n > 1 ? "s" : "", list, n > MAX_NAMED ? ", ..." : "", s->job.world);
}

static void sweep_list(ps_step *s, ps_waiter **list, bool (*is_dead)(const ps_waiter *w),
                       ps_effects *fx)
{
    for (ps_waiter *w = ps_step_take_all(list), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (is_dead != NULL && !is_dead(w)) {
            ps_step_park(s, list, w);
            continue;
        }
        if (is_dead == NULL) {
            (void)bd_err_set(&w->err, BD_E_UNAVAILABLE, "the server is stopping");
        } else if (w->kind == PS_WAIT_COMMIT) {
            name_missing(s, w);
        } else {
            (void)bd_err_set(&w->err, BD_E_CANCELLED, "the caller gave up");
        }
        ps_step_finish(s, w, w->err.code, fx);
    }
}

void ps_step_sweep(ps_step *s, bool (*is_dead)(const ps_waiter *w), ps_effects *fx)
{
    for (size_t i = 0; i < PS_STEP_WINDOW; i++) {
        sweep_list(s, &s->steps[i].waiters, is_dead, fx);
    }
    sweep_list(s, &s->lookups, is_dead, fx);
}
