/* worker/wk_trainer.h - one training step of one rank, DESIGN section 3 from top to bottom.
 *
 * Layer:     worker; joins net (model, tables, tape), ring (dense gradients) and sparse (rows).
 * Ownership: owns reducer, dense optimiser, sampler and prefetch; the rest of the config is
 * borrowed. Steps:     count from 1. Step t: rows of t are waited for, forward, backward (dense
 * gradients go to the reducer, row gradients to the servers, each as it gets ready), one small
 *            reduction of flags, COMMIT or ABORT, the dense optimiser while the commit travels and
 *            the lookup of t + 1 is on its way.
 * Context:   each step runs in a context of distributed autograd (wk_strand.h), from its lookup to
 * its commit; a failure on a server, on another rank or in a remote module fails it, and a failed
 *            context pushes and commits nothing more.
 * Promise:   no parameter and no row changes before all buckets, pushes and flags are in. Sums have
 *            a fixed order: ranks, then samples, then ids.
 * Failure:   a loss or gradient that is not finite ends the job on all ranks (BD_E_NUMERIC, naming
 *            step, rank, sample or table), or with train.on_nonfinite skip aborts the step: nothing
 *            changes, the counter grows.
 *
 * Thread model of wk_trainer
 *   threads    training thread (1): everything public; prefetch thread (1): makes batches
 *   field      written by        read by    protected by
 *   sampler    prefetch          prefetch   owner
 *   data       loader, before    both       read-only
 *   net        training          training   owner; tables and ids are constant and read by prefetch
 */
#ifndef WK_TRAINER_H
#define WK_TRAINER_H

#include "ring/ring_reducer.h"
#include "worker/data/wk_sampler.h"
#include "worker/wk_dense_optim.h"
#include "worker/wk_net.h"
#include "worker/wk_prefetch.h"
#include "worker/wk_strand.h"
#include "worker/wk_trace.h"

/* Where a step's time goes, in the order of the table that `make bench` prints. */
#define WK_PHASE_MAP(X)                                                    \
    X(READ, "read", "waiting for the next batch")                          \
    X(LOOKUP, "lookup", "waiting for the rows")                            \
    X(FORWARD, "forward", "model and loss")                                \
    X(BACKWARD, "backward", "gradients, with pushes and buckets launched") \
    X(ALLREDUCE, "allreduce_wait", "waiting for the dense buckets")        \
    X(PUSH, "push_wait", "waiting until every push is staged")             \
    X(FLAGS, "flags", "the reduction that decides the step")               \
    X(OPTIMIZER, "optimizer", "dense parameters")                          \
    X(COMMIT, "commit", "waiting for the servers' commit")

typedef enum wk_phase {
#define BD_X(name, key, text) WK_PHASE_##name,
    WK_PHASE_MAP(BD_X)
#undef BD_X
        WK_N_PHASES
} wk_phase;

const char *wk_phase_name(int phase); /* "?" past the end */

typedef struct wk_trainer_config {
    const wk_job *job;
    const wk_data *data;
    wk_net *net; /* tables created */
    ring_comm *ring;
    rpc_ag *ag; /* the node that steps are contexts of; NULL: one of the trainer's own */
} wk_trainer_config;

typedef struct wk_trainer {
    const wk_job *job;
    const wk_data *data;
    wk_net *net;
    wk_sparse *sparse;
    ring_comm *ring;
    ring_reducer *reducer; /* owned */
    wk_trace *trace;       /* owned; NULL: not asked for */
    wk_dense_optim *optim; /* owned */
    wk_sampler sampler;    /* prefetch thread's */
    wk_prefetch *prefetch; /* owned; NULL until wk_trainer_start */
    wk_item *item;         /* the step in progress, or the next one with its lookup on the way */
    wk_item *next;         /* within a step: the one after */
    rpc_ag *ag;            /* config's, or own_ag */
    rpc_ag *own_ag;        /* owned; NULL: config's is used */
    wk_strand strands[2];  /* contexts of item and next: step t's is strands[t % 2] */
    rpc_ag_msg *rows[2];   /* records of their lookups */
    uint64_t steps_per_epoch, total_steps;
    uint64_t committed; /* last committed step, 0: none */
    uint64_t n_skipped; /* steps aborted because something was not finite */
    uint64_t n_samples; /* trained since the start of this process, all ranks */
    bool sync;
    int64_t phase_ns[WK_N_PHASES];
    struct wk_hook *dense_hooks, *row_hooks; /* owned [n_params], [n_tables] */
    void **row_hook_users;                   /* owned [n_tables] */
    bd_err bad;                              /* what is not finite on this rank in this step */
} wk_trainer;

typedef struct wk_step_result {
    uint64_t step, epoch;
    double loss; /* sum over all samples of the step / their count */
    uint64_t n;  /* samples of the step, all ranks */
    bool committed;
    bool stop; /* some rank asked to stop (wk_trainer_step's stop) */
    double lr_factor;
} wk_step_result;

bd_status wk_trainer_init(wk_trainer *t, const wk_trainer_config *cfg, bd_err *err) BD_MUST_CHECK;
/* Starts the prefetch of steps first_step .. total_steps and the lookup of the first. Dense
 * parameters and t->committed are restored before. */
bd_status wk_trainer_start(wk_trainer *t, uint64_t first_step, bd_err *err) BD_MUST_CHECK;
/* Runs the next step; *more false: there was none, res is untouched. stop: this rank wants to end
 * after this step. On BD_OK the step is applied in the dense parameters and (sync) on all servers;
 * async: its push is on its way, until wk_trainer_flush. */
bd_status wk_trainer_step(wk_trainer *t, bool stop, wk_step_result *res, bool *more,
                          bd_err *err) BD_MUST_CHECK;
/* Until this rank's pushes are applied. */
bd_status wk_trainer_flush(wk_trainer *t, bd_err *err) BD_MUST_CHECK;
/* Any state, also after a failed init. */
void wk_trainer_deinit(wk_trainer *t);

#endif
