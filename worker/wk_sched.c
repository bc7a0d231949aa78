/* Learning-rate schedules. */
#include "worker/wk_sched.h"

#include <math.h>
#include <string.h>

/* How far training has come after the warm-up: 0 at its first step, 1 just after the last one, so
 * that no step is wasted on a rate of 0. */
static double progress(uint64_t step, uint64_t warmup, uint64_t total)
{
    if (total <= warmup || step <= warmup + 1) {
        return 0;
    }
    double p = (double)(step - 1 - warmup) / (double)(total - warmup);
    return p < 1 ? p : 1;
}

double wk_lr_factor(const wk_job_train *t, uint64_t step, uint64_t total_steps,
                    uint64_t steps_per_epoch)
{
    uint64_t warmup = (uint64_t)t->warmup_steps;
    double p = progress(step, warmup, total_steps);
    if (step < warmup) {
        return (double)step / (double)warmup;
    }
    if (strcmp(t->lr_schedule, "linear") == 0) {
        return 1 - (1 - t->lr_final) * p;
    }
    if (strcmp(t->lr_schedule, "cosine") == 0) {
        return t->lr_final + (1 - t->lr_final) * 0.5 * (1 + cos(acos(-1.0) * p));
    }
    if (strcmp(t->lr_schedule, "step") == 0) {
        uint64_t epoch = (step - 1) / steps_per_epoch;
        uint64_t n_drops = epoch / (uint64_t)t->lr_step;
        return pow(t->lr_gamma, (double)n_drops);
    }
    return 1;
}
