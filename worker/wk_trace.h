/* worker/wk_trace.h - a timeline of the first steps, for chrome://tracing and Perfetto.
 *
 * Layer:     worker.
 * Threads:   the training thread.
 * File:      <run_dir>/trace-rank<r>.json in the Trace Event Format: process = rank; rows
 * "training" (the phases of wk_trainer.h, forward and backward among them), "buckets" (each from
 *            launch to completion) and "waits" (for each bucket in finish). Times are microseconds
 * of the host's monotonic clock, so that the files of one host can be put together;
 *            otherData.wall_minus_mono_ns joins those of several hosts.
 */
#ifndef WK_TRACE_H
#define WK_TRACE_H

#include "base/err.h"

#include "ring/ring_reducer.h"

typedef struct wk_trace wk_trace;

/* Of the first n_steps steps; run_dir is copied. n_steps 0: *out NULL, and everything below accepts
 * NULL and does nothing. */
bd_status wk_trace_new(const char *run_dir, int rank, int64_t n_steps, wk_trace **out,
                       bd_err *err) BD_MUST_CHECK;
/* Writes what there is, if it was not written yet. */
void wk_trace_free(wk_trace *t);
/* A phase of the step in progress. name is copied. */
void wk_trace_phase(wk_trace *t, const char *name, int64_t start_ns, int64_t end_ns);
/* Ends the step: its buckets and waits. After the last step the file is written; a file that cannot
 * be written is a log line. */
void wk_trace_step(wk_trace *t, uint64_t step, const ring_reducer *r);

#endif
