/* ps_server/ps_step_int.h - what the two files of ps_step share: the open steps, and who waits for them.
 *
 *   ps_step.c       parts and decisions: what a step is made of, when it closes
 *   ps_step_wait.c  waiters: parked, answered, told whom they wait for when they give up
 *
 * Layer, threads and ownership: ps_step.h.
 */
#ifndef PS_STEP_INT_H
#define PS_STEP_INT_H

#include "ps_server/ps_step.h"

typedef enum ps_decision { PS_UNDECIDED, PS_COMMITTED, PS_ABORTED } ps_decision;

typedef struct ps_rank_parts {
    uint32_t n_parts; /* 0: nothing has come yet */
    uint32_t n_have;
    ps_part **parts; /* owned [n_parts]; NULL entries are missing */
} ps_rank_parts;

/* One step that is not closed yet. */
typedef struct ps_open_step {
    ps_rank_parts *ranks; /* owned [world]; NULL until the first push */
    uint32_t n_complete;
    size_t bytes;
    ps_decision decision;
    bool has_lr; /* a COMMIT message came, not only a lookup */
    double lr_scale;
    ps_waiter *waiters; /* its COMMIT and ABORT messages, newest first */
} ps_open_step;

struct ps_step {
    ps_job job;
    size_t stage_bytes;
    size_t ahead_bytes;                 /* staged for other steps than the next one */
    bool closing;                       /* a batch is out */
    ps_open_step steps[PS_STEP_WINDOW]; /* by step % PS_STEP_WINDOW */
    ps_waiter *lookups;                 /* parked, newest first */
    size_t n_parked;
    bool is_lost;
    bd_err lost;
    bool is_broken; /* for good */
    bd_err broken;
    ps_bound bound;
};

static inline ps_open_step *ps_step_at(ps_step *s, uint64_t step)
{
    return &s->steps[step % PS_STEP_WINDOW];
}

/* Answers w, which is on no list: it joins the effects' done list. */
void ps_step_finish(ps_step *s, ps_waiter *w, bd_status rc, ps_effects *fx);

void ps_step_park(ps_step *s, ps_waiter **list, ps_waiter *w);

/* Empties the list; the caller counts n_parked down. Oldest first, so that the first COMMIT gets the
 * first answer. */
ps_waiter *ps_step_take_all(ps_waiter **list);

/* Answers everybody on the list with the code and text (err may be NULL). */
void ps_step_finish_all(ps_step *s, ps_waiter **list, bd_status rc, const bd_err *err,
                        ps_effects *fx);

/* Answers the lookups whose step is there. */
void ps_step_wake_lookups(ps_step *s, ps_effects *fx);

#endif
