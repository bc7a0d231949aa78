/* worker/wk_run.h - what braid-worker does with a job: train, dry run, predict.
 *
 * Layer:     worker; wires data, servers, ring and loop together.
 * Threads:   blocks its caller.
 * Ownership: the result text is the caller's (bd_free).
 */
#ifndef WK_RUN_H
#define WK_RUN_H

#include "worker/wk_job.h"

#include <signal.h>
#include <stdio.h>

typedef struct wk_run_options {
    const wk_job *job;                 /* checked */
    FILE *out;                         /* progress of rank 0 */
    volatile const sig_atomic_t *stop; /* may be NULL */
} wk_run_options;

/* Trains. *result: rank 0's RESULT object as JSON, NULL on other ranks. *stopped: ended early by
 * `stop`. */
bd_status wk_run_train(const wk_run_options *opt, char **result, bool *stopped,
                       bd_err *err) BD_MUST_CHECK;
/* Reads data (the first 10,000 rows of each file unless data.max_rows says otherwise), runs one
 * step with local tables, prints what the model is. No network. */
bd_status wk_run_dry(const wk_run_options *opt, bd_err *err) BD_MUST_CHECK;
/* Scores job->process.predict with a checkpoint; one probability (mse: value) a line. */
bd_status wk_run_predict(const wk_run_options *opt, bd_err *err) BD_MUST_CHECK;

#endif
