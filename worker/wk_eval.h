/* worker/wk_eval.h - evaluation with all ranks: each scores its share, everybody sees the result.
 *
 * Layer:   worker.
 * Exact:   every row counts once; the result does not depend on the number of ranks.
 */
#ifndef WK_EVAL_H
#define WK_EVAL_H

#include "ring/ring.h"
#include "worker/wk_metrics.h"
#include "worker/wk_net.h"

/* Collective. after_step: the committed step whose model is evaluated. Same result on all ranks. */
bd_status wk_eval(wk_net *net, const wk_dataset *set, ring_comm *ring, uint64_t after_step,
                  wk_metrics *out, bd_err *err) BD_MUST_CHECK;
/* Collective: every rank gives its share (wk_share of n_total, in order) of scores; all[n_total] is
 * the whole, on every rank. */
bd_status wk_eval_gather(ring_comm *ring, const float *mine, size_t n_mine, size_t n_total,
                         float *all, bd_err *err) BD_MUST_CHECK;

#endif
