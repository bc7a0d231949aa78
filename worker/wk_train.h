/* worker/wk_train.h - a whole training run of one rank: steps, evaluations, early stop,
 * checkpoints.
 *
 * Layer:     worker.
 * Threads:   the training thread. stop may be set by a signal handler.
 * Ownership: everything in the environment is borrowed.
 * Ranks:     all ranks call it with equal jobs; decisions (early stop, stop, checkpoint) follow
 * from values that are the same on all of them.
 */
#ifndef WK_TRAIN_H
#define WK_TRAIN_H

#include "worker/wk_ckpt.h"
#include "worker/wk_metrics.h"
#include "worker/wk_page.h"
#include "worker/wk_progress.h"

#include <signal.h>

typedef struct wk_train_env {
    const wk_job *job;
    const wk_data *data;
    wk_net *net; /* tables created */
    ring_comm *ring;
    rpc_ag *ag; /* wk_trainer_config.ag; may be NULL */
    wk_progress *progress;
    wk_page *page; /* NULL: none */
    volatile const sig_atomic_t
        *stop;          /* not 0: end after this step, with a checkpoint; may be NULL */
    uint64_t job_epoch; /* of the servers; 0: no servers */
    bool resumed;       /* the same on all ranks */
    wk_ckpt *from;      /* resumed: rank 0's is full, the others' empty */
} wk_train_env;

typedef struct wk_train_result {
    wk_metrics metrics;   /* of the last evaluation; n 0: none */
    double best;          /* best AUC (mse: RMSE) of all evaluations, NaN: none */
    uint64_t steps;       /* last step run */
    uint64_t n_samples;   /* trained by this process's run, all ranks */
    double train_seconds; /* in steps, without evaluations and checkpoints */
    double last_loss;
    uint64_t n_skipped;
    uint64_t param_hash, n_rows;
    size_t n_dense;
    int64_t phase_ns[WK_N_PHASES];
    bool stopped; /* ended by `stop` */
} wk_train_result;

bd_status wk_train(const wk_train_env *env, wk_train_result *out, bd_err *err) BD_MUST_CHECK;

#endif
