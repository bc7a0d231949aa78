#include "ps_server/ps_step.h"

#include "base/assert.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef enum decision { UNDECIDED, COMMITTED, ABORTED } decision;

typedef struct rank_parts {
    uint32_t n_parts; /* 0: nothing has come yet */
    uint32_t n_have;
    ps_part **parts; /* owned [n_parts]; NULL entries are missing */
} rank_parts;

/* One step that is not closed yet. */
typedef struct open_step {
    rank_parts *ranks; /* owned [world]; NULL until the first push */
    uint32_t n_complete;
    size_t bytes;
    decision decision;
    bool has_lr; /* a COMMIT message came, not only a lookup */
    double lr_scale;
    ps_waiter *waiters; /* its COMMIT and ABORT messages, newest first */
} open_step;

struct ps_step {
    ps_job job;
    size_t stage_bytes;
    size_t ahead_bytes;              /* staged for other steps than the next one */
    bool closing;                    /* a batch is out */
    open_step steps[PS_STEP_WINDOW]; /* by step % PS_STEP_WINDOW */
    ps_waiter *lookups;              /* parked, newest first */
    size_t n_parked;
    bool is_lost;
    bd_err lost;
    bool is_broken; /* for good */
    bd_err broken;
    ps_bound bound;
};

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

static open_step *step_at(ps_step *s, uint64_t step)
{
    return &s->steps[step % PS_STEP_WINDOW];
}

/* Frees the staged parts; the decision and the waiters stay. */
static void drop_parts(ps_step *s, open_step *o)
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
    if (o != step_at(s, s->job.last_step + 1)) {
        s->ahead_bytes -= o->bytes;
    }
    o->bytes = 0;
}

static void finish(ps_step *s, ps_waiter *w, bd_status rc, ps_effects *fx)
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

static void park(ps_step *s, ps_waiter **list, ps_waiter *w)
{
    w->next = *list;
    *list = w;
    s->n_parked++;
}

/* Oldest first, so that the first COMMIT gets the first answer. */
static ps_waiter *take_all(ps_waiter **list)
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

/* Answers everybody on the list with the code and text. */
static void finish_all(ps_step *s, ps_waiter **list, bd_status rc, const bd_err *err,
                       ps_effects *fx)
{
    for (ps_waiter *w = take_all(list), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (err != NULL) {
            w->err = *err;
        }
        finish(s, w, rc, fx);
    }
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
        finish_all(s, &s->steps[i].waiters, BD_E_FENCED, &fenced, fx);
        s->steps[i] = (open_step){0};
    }
    finish_all(s, &s->lookups, BD_E_FENCED, &fenced, fx);
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
            finish_all(s, &step_at(s, step)->waiters, err->code, err, fx);
        }
    }
    finish_all(s, &s->lookups, err->code, err, fx);
}

/* Would have to wait for what will not come. */
static bool refuse_broken(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    if (s->is_broken) {
        w->err = s->broken;
        finish(s, w, w->err.code, fx);
    }
    return s->is_broken;
}

/* ---- closing ---- */
/* The parts of the step as one list in (rank, part) order; the step holds none afterwards. */
static void take_parts(ps_step *s, open_step *o, ps_batch *b)
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
    open_step *o = step_at(s, step);
    bool ready = o->decision == ABORTED ||
                 (o->decision == COMMITTED && o->has_lr && o->n_complete == s->job.world);
    if (s->closing || !ready) {
        return;
    }
    BD_ASSERT(!fx->close);
    s->closing = true;
    fx->close = true;
    fx->batch = (ps_batch){.job_epoch = s->job.epoch,
                           .step = step,
                           .aborted = o->decision == ABORTED,
                           .lr_scale = o->lr_scale};
    if (!fx->batch.aborted) {
        take_parts(s, o, &fx->batch);
    }
}

/* Answers the lookups whose step is there. */
static void wake_lookups(ps_step *s, ps_effects *fx)
{
    for (ps_waiter *w = take_all(&s->lookups), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (w->step <= s->job.last_step) {
            finish(s, w, BD_OK, fx);
        } else {
            park(s, &s->lookups, w);
        }
    }
}

void ps_step_closed(ps_step *s, bd_status rc, const bd_err *err, ps_effects *fx)
{
    uint64_t step = s->job.last_step + 1;
    open_step *o = step_at(s, step);
    BD_ASSERT(s->closing);
    s->closing = false;
    drop_parts(s, o);
    if (rc != BD_OK) {
        finish_all(s, &o->waiters, rc, err, fx);
        return;
    }
    s->job.last_step = step;
    if (o->decision == ABORTED) {
        s->job.last_aborted = step;
    }
    bool first = true;
    for (ps_waiter *w = take_all(&o->waiters), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        w->duplicate = !first;
        first = false;
        finish(s, w, BD_OK, fx);
    }
    *o = (open_step){0};
    s->ahead_bytes -= step_at(s, step + 1)->bytes; /* it is the next one now */
    wake_lookups(s, fx);
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

static bd_status check_room(const ps_step *s, const open_step *o, const ps_part *p, bd_err *err)
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
static bd_status room_for(ps_step *s, open_step *o, const ps_part *p, bd_err *err)
{
    if (o->ranks == NULL) {
        o->ranks = bd_calloc(s->job.world, sizeof *o->ranks);
        if (o->ranks == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory to stage", p->step);
        }
    }
    rank_parts *r = &o->ranks[p->rank];
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
    open_step *o = step_at(s, p->step);
    bool is_next = p->step == s->job.last_step + 1;
    *duplicate = p->step <= s->job.last_step || o->decision == ABORTED || (is_next && s->closing);
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
    rank_parts *r = &o->ranks[p->rank];
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
    finish(s, w, w->err.code, fx);
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
        finish(s, w, BD_OK, fx);
    }
}

static bd_status set_commit(open_step *o, ps_waiter *w)
{
    if (o->decision == ABORTED) {
        return bd_err_set(&w->err, BD_E_STATE, "commit of step %" PRIu64 ", which was aborted",
                          w->step);
    }
    if (o->has_lr && o->lr_scale != w->lr_scale) {
        return bd_err_set(&w->err, BD_E_MISMATCH,
                          "step %" PRIu64 " rank %u: lr_scale %.17g, another rank says %.17g",
                          w->step, w->rank, w->lr_scale, o->lr_scale);
    }
    o->decision = COMMITTED;
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
    open_step *o = step_at(s, w->step);
    bool closing = s->closing && w->step == s->job.last_step + 1;
    if (w->kind == PS_WAIT_ABORT) {
        if (o->decision == COMMITTED) {
            (void)bd_err_set(&w->err, BD_E_STATE,
                             "abort of step %" PRIu64 ", which was decided to commit", w->step);
            refuse(s, w, fx);
            return;
        }
        o->decision = ABORTED;
        if (!closing) {
            drop_parts(s, o);
        }
    } else {
        if (set_commit(o, w) != BD_OK) {
            refuse(s, w, fx);
            return;
        }
        const rank_parts *r = o->ranks == NULL ? NULL : &o->ranks[w->rank];
        if (!closing && (r == NULL || r->n_parts == 0 || r->n_have < r->n_parts)) {
            (void)bd_err_set(&w->err, BD_E_NEED_PARTS,
                             "step %" PRIu64 ": parts of rank %u are missing here, send them again",
                             w->step, w->rank);
            refuse(s, w, fx);
            return;
        }
    }
    park(s, &o->waiters, w);
    try_close(s, fx);
}

void ps_step_lookup(ps_step *s, ps_waiter *w, ps_effects *fx)
{
    w->duplicate = false;
    w->err = (bd_err)BD_ERR_INIT;
    if (w->job_epoch == 0) {
        finish(s, w, ps_step_is_lost(s, &w->err) ? BD_E_LOST : BD_OK, fx);
        return;
    }
    if (ps_step_check_epoch(s, w->job_epoch, &w->err) != BD_OK ||
        (s->job.consistency == PS_SYNC && check_window(s, w->step, &w->err) != BD_OK)) {
        refuse(s, w, fx);
        return;
    }
    if (w->step <= s->job.last_step || s->job.consistency == PS_ASYNC) {
        finish(s, w, BD_OK, fx);
        return;
    }
    if (refuse_broken(s, w, fx)) {
        return;
    }
    open_step *o = step_at(s, w->step);
    if (s->job.consistency == PS_SYNC && o->decision == UNDECIDED) {
        o->decision = COMMITTED;
    }
    park(s, &s->lookups, w);
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
        wake_lookups(s, fx);
    }
}

void ps_step_expire(ps_step *s, int64_t since_ms, ps_effects *fx)
{
    if (s->bound.world == 0) {
        return;
    }
    for (ps_waiter *w = take_all(&s->lookups), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        uint32_t rank = ps_bound_stuck(&s->bound, w->step, since_ms);
        if (rank == s->bound.world) {
            park(s, &s->lookups, w);
            continue;
        }
        (void)bd_err_set(&w->err, BD_E_ABORTED,
                         "lookup of rank %u waits for step %" PRIu64 " of all ranks, but rank %u "
                         "has finished step %" PRIu64
                         " and said nothing since: it is dead or stuck",
                         w->rank, w->step, rank, s->bound.ranks[rank].done_step);
        finish(s, w, BD_E_ABORTED, fx);
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
    while (step < w->step && step_at(s, step)->n_complete == s->job.world) {
        step++;
    }
    const open_step *o = step_at(s, step);
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
    for (ps_waiter *w = take_all(list), *next; w != NULL; w = next) {
        next = w->next;
        s->n_parked--;
        if (is_dead != NULL && !is_dead(w)) {
            park(s, list, w);
            continue;
        }
        if (is_dead == NULL) {
            (void)bd_err_set(&w->err, BD_E_UNAVAILABLE, "the server is stopping");
        } else if (w->kind == PS_WAIT_COMMIT) {
            name_missing(s, w);
        } else {
            (void)bd_err_set(&w->err, BD_E_CANCELLED, "the caller gave up");
        }
        finish(s, w, w->err.code, fx);
    }
}

void ps_step_sweep(ps_step *s, bool (*is_dead)(const ps_waiter *w), ps_effects *fx)
{
    for (size_t i = 0; i < PS_STEP_WINDOW; i++) {
        sweep_list(s, &s->steps[i].waiters, is_dead, fx);
    }
    sweep_list(s, &s->lookups, is_dead, fx);
}
