/* worker/wk_progress.h - what a user sees of a run: a bar or lines, and metrics.jsonl.
 *
 * Layer:     worker.
 * Threads:   the training thread of rank 0.
 * Ownership: owns the metrics file; `out` is borrowed.
 * Lines:     metrics.jsonl has one JSON object a line; `type` is "train", "eval", "checkpoint" or
 *            "end"; every line has `time` (seconds since 1970), `step` and `epoch` (from 1). A
 * resumed run appends.
 */
#ifndef WK_PROGRESS_H
#define WK_PROGRESS_H

#include "worker/wk_metrics.h"
#include "worker/wk_trainer.h"

#include <stdio.h>

typedef struct wk_progress {
    FILE *out;     /* borrowed; NULL: silent */
    FILE *metrics; /* owned; NULL: none */
    bool bar;      /* out is a terminal */
    bool drawn;    /* a bar stands on the current line */
    uint64_t total_steps, steps_per_epoch;
    int64_t log_every;
    int64_t start_ns, last_ns; /* of the run; of the last line */
    uint64_t last_samples;     /* trained at the last line */
    double loss_sum;           /* over the samples since the last line */
    uint64_t loss_n;
    int64_t last_phase_ns[WK_N_PHASES];
} wk_progress;

/* Ranks other than 0 pass out NULL and quiet true: nothing is written. BD_E_IO names the metrics
 * file. */
bd_status wk_progress_init(wk_progress *p, const wk_job *job, FILE *out, bool quiet,
                           bd_err *err) BD_MUST_CHECK;
void wk_progress_deinit(wk_progress *p);
void wk_progress_start(wk_progress *p, const wk_trainer *t);
void wk_progress_step(wk_progress *p, const wk_trainer *t, const wk_step_result *r);
void wk_progress_eval(wk_progress *p, uint64_t step, uint64_t epoch, const wk_metrics *m);
void wk_progress_checkpoint(wk_progress *p, uint64_t step, uint64_t epoch, const char *name);
/* The table "time per step": where the time of this run's steps went. */
void wk_progress_end(wk_progress *p, const wk_trainer *t, uint64_t n_steps, double seconds);
/* A line of text of its own, the bar out of the way. */
void wk_progress_say(wk_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
