/* worker/wk_sched.h - the factor on all learning rates as a function of the step.
 *
 * Layer: worker. Pure.
 */
#ifndef WK_SCHED_H
#define WK_SCHED_H

#include "worker/wk_job.h"

/* step counts from 1. Warm-up rises linearly to 1 at train.warmup_steps; then constant, linear or
 * cosine towards train.lr_final, which the step after total_steps would have, or train.lr_gamma
 * every train.lr_step epochs. Never negative; 1 for a job without schedule. */
double wk_lr_factor(const wk_job_train *t, uint64_t step, uint64_t total_steps,
                    uint64_t steps_per_epoch);

#endif
