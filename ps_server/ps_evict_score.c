/* Rows of a small score go. The score of a row is the number of its pushes, halved for every
 * half_life steps since the last one (Paddle's show score with its decay, taken when it is looked
 * at). */
#include "ps_server/ps_evict.h"

#include <math.h>

enum { BELOW, HALF_LIFE, EVERY };
static const num_hyper params[] = {
    {"below", 1, 0, 1e30, "score"},
    {"half_life", 1000, 1, 1e18, "steps without a push that halve it"},
    PS_EVICT_EVERY,
};

static bool goes(const double *param, const ps_evict_row *row, const ps_evict_now *now)
{
    double idle = now->step > row->last_step ? (double)(now->step - row->last_step) : 0;
    return ldexp((double)row->freq, -(int)fmin(idle / param[HALF_LIFE], 1000)) < param[BELOW];
}

const ps_evict ps_evict_score = {
    .form = {.name = "score",
             .help = "rows whose pushes, halved every half_life steps of silence, are too few",
             .params = params,
             .n_params = sizeof params / sizeof params[0]},
    .every_at = EVERY,
    .goes = goes,
};
