#include "ps_server/ps_step.h"

#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_step_int.h"

#include <inttypes.h>

void ps_part_free(ps_part *p)
{
    if (p != NULL) {
        bd_buf_unref(p->keep);
        for (size_t i = 0; p->tables != NULL && i < p->n_tables; i++) {
            bd_buf_unref(p->tables[i].own);
            bd_buf_unref(p->tables[i].found);
        }
        bd_free(p->tables);
        bd_free(p);
    }
}

void ps_part_free_list(ps_part *first)
{
    while (first != NULL) {
        ps_part *next = first->next;
        ps_part_free(first);
        first = next;
    }
}

ps_step *ps_step_new(const ps_job *job, size_t stage_bytes, int64_t now_ms)
{
    ps_step *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->job = *job;
    s->stage_bytes = stage_bytes;
    if (job->consistency == PS_BOUNDED &&
        ps_bound_init(&s->bound, job->world, job->last_step, now_ms) != BD_OK) {
        bd_free(s);
        return NULL;
    }
    return s;
}

/* Frees the staged parts; the decision and the waiters stay. */
static void drop_parts(ps_step *s, ps_open_step *o)
{
    for (uint32_t r = 0; o->ranks != NULL && r < s->job.world; r++) {
        for (uint32_t p = 0; p < o->ranks[r].n_parts; p++) {
            ps_part_free(o->ranks[r].parts[p]);
        }
        bd_free(o->ranks[r].parts);
    }
    bd_free(o->ranks);
    o->ranks = NULL;
    o->n_complete = 0;
    if (o != ps_step_at(s, s->job.last_step + 1)) {
        s->ahead_bytes -= o->bytes;
    }
    o->bytes = 0;
}

void ps_step_free(ps_step *s)
{
    if (s == NULL) {
        return;
    }
    BD_ASSERT(s->n_parked == 0);
    for (size_t i = 0; i < PS_STEP_WINDOW; i++) {
        drop_parts(s, &s->steps[i]);
    }
    ps_bound_deinit(&s->bound);
    bd_free(s);
}

const ps_job *ps_step_job(const ps_step *s)
{
    return &s->job;
}

size_t ps_step_parked(const ps_step *s)
{
    return s->n_parked;
}

size_t ps_step_staged_bytes(const ps_step *s)
{
    return s->ahead_bytes + s->steps[(s->job.last_step + 1) % PS_STEP_WINDOW].bytes;
}

void ps_step_set_lost(ps_step *s, const char *why)
{
    s->is_lost = why != NULL;
    if (why != NULL) {
        (void)bd_err_set(&s->lost, BD_E_LOST, "%s", why);
    }
}

bool ps_step_is_lost(const ps_step *s, bd_err *err)
{
    if (s->is_lost && err != NULL) {
        *err = s->lost;
    }
    return s->is_lost;
}

bd_status ps_step_check_epoch(const ps_step *s, uint64_t epoch, bd_err *err)
{
    if (ps_step_is_lost(s, err)) {
        return BD_E_LOST;
    }
    if (epoch == s->job.epoch && epoch != 0) {
        return BD_OK;
    }
    if (s->job.epoch == 0) {
        return bd_err_set(err, BD_E_STATE, "job epoch %" PRIu64 " is not open here: no job is",
                          epoch);
    }
    if (epoch < s->job.epoch) {
        return bd_err_set(err, BD_E_FENCED,
                          "request of job epoch %" PRIu64 ", but job epoch %" PRIu64
                          " has been opened since",
                          epoch, s->job.epoch);
    }
    return bd_err_set(err, BD_E_STATE,
                      "job epoch %" PRIu64 " is not open here: job epoch %" PRIu64 " is", epoch,
                      s->job.epoch);
}

bd_status ps_step_open(ps_step *s, const ps_job *job, int64_t now_ms, ps_effects *fx, bd_err *err)
{
    ps_bound bound = {0};
    if (job->epoch < s->job.epoch) {
        return bd_err_set(err, BD_E_FENCED,
                          "job epoch %" PRIu64 " is older than the open one, %" PRIu64, job->epoch,
                          s->job.epoch);
    }
    if (job->consistency == PS_BOUNDED &&
        ps_bound_init(&bound, job->world, job->last_step, now_ms) != BD_OK) {
        return bd_err_set(err, BD_E_NOMEM, "open job: no memory for %u ranks", job->world);
    }
    ps_bound_deinit(&s->bound);
    s->bound = bound;
    bd_err fenced;
    (void)bd_err_set(&fenced, BD_E_FENCED,
                     "request of job epoch %" PRIu64 ", but job epoch %" PRIu64
                     " has been opened since",
                     s->job.epoch, job->epoch);
    for (size_t i = 0; i < PS_STEP_WINDOW; i++) {
        drop_parts(s, &s->steps[i]);
        ps_step_finish_all(s, &s->steps[i].waiters, BD_E_FENCED, &fenced, fx);
        s->steps[i] = (ps_open_step){0};
    }
    ps_step_finish_all(s, &s->lookups, BD_E_FENCED, &fenced, fx);
    s->ahead_bytes = 0;
    s->closing = false;
    s->job = *job;
    return BD_OK;
}

void ps_step_set_broken(ps_step *s, const bd_err *err, ps_effects *fx)
{
    uint64_t next = s->job.last_step + 1;
    s->is_broken = true;
    s->broken = *err;
    for (uint64_t step = next; step < next + PS_STEP_WINDOW; step++) {
        if (step != next || !s->closing) {
            ps_step_finish_all(s, &ps_step_at(s, step)->waiters, err->code, err, fx);
        }
    }
    ps_step_finish_all(s, &s->lookups, err->code, err, fx);
}

/* Would have to wait for what will not come. */
static bool refuse_broken(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    if (s->is_broken) {
        w->err = s->broken;
        ps_step_finish(s, w, w->err.code, fx);
    }
    return s->is_broken;
}

/* ---- closing ---- */
/* The parts of the step as one list in (rank, part) order; the step holds none afterwards. */
static void take_parts(ps_step *s, ps_open_step *o, ps_batch *b)
{
    ps_part **link = &b->parts;
    for (uint32_t r = 0; r < s->job.world; r++) {
        for (uint32_t p = 0; p < o->ranks[r].n_parts; p++) {
            *link = o->ranks[r].parts[p];
            o->ranks[r].parts[p] = NULL;
            link = &(*link)->next;
            b->n_parts++;
        }
    }
    *link = NULL;
}

static void try_close(ps_step *s, ps_effects *fx)
{
    uint64_t step = s->job.last_step + 1;
    ps_open_step *o = ps_step_at(s, step);
    bool ready = o->decision == PS_ABORTED ||
                 (o->decision == PS_COMMITTED && o->has_lr && o->n_complete == s->job.world);
    if (s->closing || !ready) {
        return;
    }
    BD_ASSERT(!fx->close);
    s->closing = true;
    fx->close = true;
    fx->batch = (ps_batch){.job_epoch = s->job.epoch,
                           .step = step,
                           .aborted = o->decision == PS_ABORTED,
                           .lr_scale = o->lr_scale};
    if (!fx->batch.aborted) {
        take_parts(s, o, &fx->batch);
    }
}

void ps_step_closed(ps_step *s, bd_status rc, const bd_err *err, ps_effects *fx)
{
    uint64_t step = s->job.last_step + 1;
    ps_open_step *o = ps_step_at(s, step);
    BD_ASSERT(s->closing);
    s->closing = false;
    drop_parts(s, o);
    if (rc != BD_OK) {
        ps_step_finish_all(s, &o->waiters, rc, err, fx);
        return;
    }
    s->job.last_step = step;
    if (o->decision == PS_ABORTED) {
        s->job.last_aborted = step;
    }
    bool first = true;
    for (ps_waiter *w = ps_step_take_all(&o->waiters), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        w->duplicate = !first;
        first = false;
        ps_step_finish(s, w, BD_OK, fx);
    }
    *o = (ps_open_step){0};
    s->ahead_bytes -= ps_step_at(s, step + 1)->bytes; /* it is the next one now */
    ps_step_wake_lookups(s, fx);
    try_close(s, fx);
}

/* ---- push ---- */
static bd_status check_window(const ps_step *s, uint64_t step, bd_err *err)
{
    if (step <= s->job.last_step + PS_STEP_WINDOW) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_STATE,
                      "step %" PRIu64 " is too far ahead: the last finished step is %" PRIu64, step,
                      s->job.last_step);
}

static bd_status check_sync(const ps_step *s, bd_err *err)
{
    if (s->job.consistency == PS_SYNC) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_STATE, "commit in job epoch %" PRIu64 ", which is async",
                      s->job.epoch);
}

static bd_status check_rank(const ps_step *s, uint32_t rank, bd_err *err)
{
    if (rank < s->job.world) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_INVALID, "rank %u is outside the job's world of %u", rank,
                      s->job.world);
}

static bd_status check_room(const ps_step *s, const ps_open_step *o, const ps_part *p, bd_err *err)
{
    bool is_next = p->step == s->job.last_step + 1;
    size_t used = is_next ? o->bytes : s->ahead_bytes;
    if (p->n_bytes <= s->stage_bytes && used <= s->stage_bytes - p->n_bytes) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_EXHAUSTED,
                      "step %" PRIu64 " rank %u: %zu bytes are staged, the limit is %zu%s", p->step,
                      p->rank, used, s->stage_bytes,
                      is_next ? ": raise staged_limit" : ": wait for the step before it");
}

/* Room for the part in its rank's array. */
static bd_status room_for(ps_step *s, ps_open_step *o, const ps_part *p, bd_err *err)
{
    if (o->ranks == NULL) {
        o->ranks = bd_calloc(s->job.world, sizeof *o->ranks);
        if (o->ranks == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory to stage", p->step);
        }
    }
    ps_rank_parts *r = &o->ranks[p->rank];
    if (r->n_parts == 0) {
        r->parts = bd_calloc(p->n_parts, sizeof *r->parts);
        if (r->parts == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory to stage", p->step);
        }
        r->n_parts = p->n_parts;
    }
    if (r->n_parts != p->n_parts) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "step %" PRIu64 " rank %u: this part says %u parts, an earlier one %u",
                          p->step, p->rank, p->n_parts, r->n_parts);
    }
    return BD_OK;
}

bd_status ps_step_push(ps_step *s, ps_part *p, bool *duplicate, ps_effects *fx, bd_err *err)
{
    bd_status rc = ps_step_check_epoch(s, p->job_epoch, err);
    if (rc == BD_OK) {
        rc = check_rank(s, p->rank, err);
    }
    if (rc == BD_OK && (p->n_parts == 0 || p->n_parts > PS_MAX_PARTS || p->part >= p->n_parts)) {
        rc = bd_err_set(err, BD_E_INVALID, "rank %u: part %u of %u", p->rank, p->part, p->n_parts);
    }
    if (rc == BD_OK) {
        rc = check_window(s, p->step, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    ps_open_step *o = ps_step_at(s, p->step);
    bool is_next = p->step == s->job.last_step + 1;
    *duplicate =
        p->step <= s->job.last_step || o->decision == PS_ABORTED || (is_next && s->closing);
    if (!*duplicate) {
        rc = room_for(s, o, p, err);
        *duplicate = rc == BD_OK && o->ranks[p->rank].parts[p->part] != NULL;
    }
    if (rc == BD_OK && !*duplicate) {
        rc = check_room(s, o, p, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (*duplicate) {
        ps_part_free(p);
        return BD_OK;
    }
    ps_rank_parts *r = &o->ranks[p->rank];
    r->parts[p->part] = p;
    o->n_complete += ++r->n_have == r->n_parts;
    o->bytes += p->n_bytes;
    s->ahead_bytes += is_next ? 0 : p->n_bytes;
    try_close(s, fx);
    return BD_OK;
}

/* ---- decisions ---- */
static void refuse(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    ps_step_finish(s, w, w->err.code, fx);
}

/* The step is closed: a duplicate, or a contradiction. */
static void decide_late(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    bool aborted = w->step == s->job.last_aborted;
    if (w->kind == PS_WAIT_COMMIT && aborted) {
        (void)bd_err_set(&w->err, BD_E_STATE, "commit of step %" PRIu64 ", which was aborted",
                         w->step);
        refuse(s, w, fx);
    } else if (w->kind == PS_WAIT_ABORT && w->step == s->job.last_step && !aborted) {
        (void)bd_err_set(&w->err, BD_E_STATE, "abort of step %" PRIu64 ", which was committed",
                         w->step);
        refuse(s, w, fx);
    } else {
        w->duplicate = true;
        ps_step_finish(s, w, BD_OK, fx);
    }
}

static bd_status set_commit(ps_open_step *o, ps_waiter *w)
{
    if (o->decision == PS_ABORTED) {
        return bd_err_set(&w->err, BD_E_STATE, "commit of step %" PRIu64 ", which was aborted",
                          w->step);
    }
    if (o->has_lr && o->lr_scale != w->lr_scale) {
        return bd_err_set(&w->err, BD_E_MISMATCH,
                          "step %" PRIu64 " rank %u: lr_scale %.17g, another rank says %.17g",
                          w->step, w->rank, w->lr_scale, o->lr_scale);
    }
    o->decision = PS_COMMITTED;
    o->has_lr = true;
    o->lr_scale = w->lr_scale;
    return BD_OK;
}

void ps_step_decide(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    w->duplicate = false;
    w->err = (bd_err)BD_ERR_INIT;
    if (ps_step_check_epoch(s, w->job_epoch, &w->err) != BD_OK || check_sync(s, &w->err) != BD_OK ||
        check_rank(s, w->rank, &w->err) != BD_OK || check_window(s, w->step, &w->err) != BD_OK) {
        refuse(s, w, fx);
        return;
    }
    if (w->step <= s->job.last_step) {
        decide_late(s, w, fx);
        return;
    }
    if (refuse_broken(s, w, fx)) {
        return;
    }
    ps_open_step *o = ps_step_at(s, w->step);
    bool closing = s->closing && w->step == s->job.last_step + 1;
    if (w->kind == PS_WAIT_ABORT) {
        if (o->decision == PS_COMMITTED) {
            (void)bd_err_set(&w->err, BD_E_STATE,
                             "abort of step %" PRIu64 ", which was decided to commit", w->step);
            refuse(s, w, fx);
            return;
        }
        o->decision = PS_ABORTED;
        if (!closing) {
            drop_parts(s, o);
        }
    } else {
        if (set_commit(o, w) != BD_OK) {
            refuse(s, w, fx);
            return;
        }
        const ps_rank_parts *r = o->ranks == NULL ? NULL : &o->ranks[w->rank];
        if (!closing && (r == NULL || r->n_parts == 0 || r->n_have < r->n_parts)) {
            (void)bd_err_set(&w->err, BD_E_NEED_PARTS,
                             "step %" PRIu64 ": parts of rank %u are missing here, send them again",
                             w->step, w->rank);
            refuse(s, w, fx);
            return;
        }
    }
    ps_step_park(s, &o->waiters, w);
    try_close(s, fx);
}

void ps_step_lookup(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    w->duplicate = false;
    w->err = (bd_err)BD_ERR_INIT;
    if (w->job_epoch == 0) {
        ps_step_finish(s, w, ps_step_is_lost(s, &w->err) ? BD_E_LOST : BD_OK, fx);
        return;
    }
    if (ps_step_check_epoch(s, w->job_epoch, &w->err) != BD_OK ||
        (s->job.consistency == PS_SYNC && check_window(s, w->step, &w->err) != BD_OK)) {
        refuse(s, w, fx);
        return;
    }
    if (w->step <= s->job.last_step || s->job.consistency == PS_ASYNC) {
        ps_step_finish(s, w, BD_OK, fx);
        return;
    }
    if (refuse_broken(s, w, fx)) {
        return;
    }
    ps_open_step *o = ps_step_at(s, w->step);
    if (s->job.consistency == PS_SYNC && o->decision == PS_UNDECIDED) {
        o->decision = PS_COMMITTED;
    }
    ps_step_park(s, &s->lookups, w);
}

/* ---- bounded ---- */
ps_bound *ps_step_bound(ps_step *s)
{
    return &s->bound;
}

void ps_step_recount(ps_step *s)
{
    if (s->bound.world != 0) {
        s->job.last_step = ps_bound_low(&s->bound);
    }
}

void ps_step_applied(ps_step *s, const ps_part *p, int64_t now_ms, ps_effects *fx)
{
    uint64_t before = s->job.last_step;
    ps_bound_apply(&s->bound, p, now_ms);
    ps_step_recount(s);
    if (s->job.last_step != before) {
        ps_step_wake_lookups(s, fx);
    }
}
