/* ps_server/ps_step.h - the commit protocol of sync training: events in, effects out.
 *
 * Layer:     ps_server (pure core: no clock, no I/O, no threads; tests drive it with virtual events).
 * Threads:   one caller at a time (the shard's core lock).
 * Ownership: waiters belong to their requests; while parked the core holds the link. Parts are moved
 *            in by push and out by the batch of an effect.
 *
 * Protocol, for a job (epoch, world):
 *   - A push is staged under (step, rank, part). The same part again is a duplicate. Steps up to
 *     PS_STEP_WINDOW ahead of the last closed one may be staged; the next one to close has a memory
 *     reserve of its own, so that staging cannot deadlock.
 *   - COMMIT(t) decides t; the first message sets lr_scale, the others must agree. Lookup with
 *     after_step = t also says that t was decided COMMIT, but carries no lr_scale: t is applied
 *     when a COMMIT message is there and all parts of all ranks are.
 *   - COMMIT from a rank whose own parts are missing here (this server was restarted) is answered
 *     E_NEED_PARTS: it sends them again and then COMMIT again. Parts of other ranks missing: parked.
 *   - ABORT(t) closes t without changing rows: the trainer goes on with t + 1. COMMIT after ABORT
 *     and ABORT after COMMIT are E_STATE.
 *   - Steps close strictly in order, one at a time: effect -> journal -> apply -> ps_step_closed.
 *   - An older epoch is E_FENCED naming both, whatever the message.
 * Async and bounded jobs use the epoch check and the lookups only: pushes are applied as they come
 * (ps_shard.h), and in a bounded job (ps_bound.h) the last step is the one that every rank has
 * completed; lookups wait for it.
 */
#ifndef PS_STEP_H
#define PS_STEP_H

#include "base/err.h"

#include "ps_server/ps_bound.h"

#define PS_STEP_WINDOW 16u

typedef struct ps_job {
    uint64_t epoch; /* 0: no job was ever opened */
    uint32_t world;
    ps_consistency consistency;
    uint64_t last_step;    /* last closed step */
    uint64_t last_aborted; /* last step closed by ABORT; 0: none */
} ps_job;

typedef enum ps_wait_kind { PS_WAIT_COMMIT, PS_WAIT_ABORT, PS_WAIT_LOOKUP } ps_wait_kind;

/* A request that may have to wait. The first block is set by the caller, the second by the core. */
typedef struct ps_waiter ps_waiter;
struct ps_waiter {
    ps_wait_kind kind;
    uint64_t job_epoch;
    uint64_t step; /* lookup: after_step */
    uint32_t rank;
    double lr_scale;
    void (*finish)(ps_waiter *w); /* for the shard: runs once, without locks; must not block */
    int64_t expires_ns; /* for is_dead of those without a request of their own; 0: has one */

    bd_status rc;
    bool duplicate;
    uint64_t last_step;
    bd_err err;
    ps_waiter *next;
};

/* A decided step for the journal and the rows. */
typedef struct ps_batch {
    uint64_t job_epoch;
    uint64_t step;
    bool aborted; /* only to be remembered */
    double lr_scale;
    ps_part *parts; /* owned list, ordered by (rank, part) */
    size_t n_parts;
} ps_batch;

/* What the caller must do. Zero-initialise before each call. */
typedef struct ps_effects {
    ps_waiter *done; /* answer these, in this order */
    ps_waiter *done_last;
    bool close; /* hand batch to the commit thread, then call ps_step_closed */
    ps_batch batch;
} ps_effects;

typedef struct ps_step ps_step;

/* stage_bytes: limit of all staged parts but those of the next step to close, which may hold as
 * much again. NULL: no memory. */
ps_step *ps_step_new(const ps_job *job, size_t stage_bytes, int64_t now_ms);
void ps_step_free(ps_step *s); /* nobody must be parked */
const ps_job *ps_step_job(const ps_step *s);
size_t ps_step_staged_bytes(const ps_step *s);
size_t ps_step_parked(const ps_step *s);

/* Until it is cleared (why NULL), requests of any epoch are refused with BD_E_LOST and this text.
 */
void ps_step_set_lost(ps_step *s, const char *why);
bool ps_step_is_lost(const ps_step *s, bd_err *err);

/* Nothing will be applied any more (the journal cannot be written until the next start): everyone
 * parked is answered with err, and so is from now on who would have to wait. Steps that are closed
 * are read and confirmed as before. Those of a batch that is out are answered by ps_step_closed. */
void ps_step_set_broken(ps_step *s, const bd_err *err, ps_effects *fx);

/* BD_OK when a request of this epoch may be served, else BD_E_LOST, BD_E_FENCED or BD_E_STATE. */
bd_status ps_step_check_epoch(const ps_step *s, uint64_t epoch, bd_err *err);

/* Replaces the job: everything staged is dropped, everyone parked is answered E_FENCED. A batch
 * that is out is the old job's: do not close it. BD_E_FENCED, BD_E_NOMEM: nothing changed. */
bd_status ps_step_open(ps_step *s, const ps_job *job, int64_t now_ms, ps_effects *fx,
                       bd_err *err) BD_MUST_CHECK;

/* On BD_OK p is moved (freed when it is a duplicate). */
bd_status ps_step_push(ps_step *s, ps_part *p, bool *duplicate, ps_effects *fx,
                       bd_err *err) BD_MUST_CHECK;
/* Parked, or in fx->done. */
void ps_step_decide(ps_step *s, ps_waiter *w, ps_effects *fx); /* COMMIT or ABORT */
void ps_step_lookup(ps_step *s, ps_waiter *w, ps_effects *fx);

/* The batch of the last close effect is journaled and applied (rc BD_OK), or was not (its parts are
 * lost: ranks are asked for them again). */
void ps_step_closed(ps_step *s, bd_status rc, const bd_err *err, ps_effects *fx);

/* ---- bounded ---- */
/* The ranks' progress; world 0 unless the job is bounded. */
ps_bound *ps_step_bound(ps_step *s);
/* A part of a bounded job is applied: lookups that waited for it are answered. */
void ps_step_applied(ps_step *s, const ps_part *p, int64_t now_ms, ps_effects *fx);
/* After the facts of ranks have been read back. */
void ps_step_recount(ps_step *s);
/* Answers the lookups that wait for a rank which has not moved since (E_ABORTED, naming it). */
void ps_step_expire(ps_step *s, int64_t since_ms, ps_effects *fx);

/* Takes the parked waiters for which is_dead says so (E_CANCELLED; a COMMIT's text names the ranks
 * whose parts are missing), NULL: all (E_UNAVAILABLE). */
void ps_step_sweep(ps_step *s, bool (*is_dead)(const ps_waiter *w), ps_effects *fx);

#endif
