/* worker/wk_reducer.h - the reducer of a job: dense parameters of the model, options of the job,
 * batch norm's buffers, and the log record of each rank.
 *
 * Layer:     worker; joins net (model) and ring (reducer).
 * Threads:   the training thread.
 * Ownership: job, net and ring are borrowed for the reducer's life. With ring.gradient_views the
 *            model's gradients live in the reducer until ring_reducer_free, then in their own
 * memory again. Numbers:   the reducer's parameter i is the i-th of the model that has a gradient.
 */
#ifndef WK_REDUCER_H
#define WK_REDUCER_H

#include "ring/ring_reducer.h"
#include "worker/wk_net.h"

/* Collective. */
bd_status wk_reducer_new(const wk_job *job, wk_net *net, ring_comm *ring, ring_reducer **out,
                         bd_err *err) BD_MUST_CHECK;
/* Writes <run_dir>/reducer-rank<r>.json: whole, over the last one. always false: only when a sample
 * count is reached (ring_reducer_log_due). A file that cannot be written is a log line. */
void wk_reducer_log(const wk_job *job, ring_reducer *r, int rank, bool always);

#endif
