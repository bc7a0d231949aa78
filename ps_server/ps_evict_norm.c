/* Rows of a small L2 norm go, once they have had the time to grow. */
#include "base/num/vec.h"

#include "ps_server/ps_evict.h"

enum { BELOW, MIN_PUSHES, EVERY };
static const num_hyper params[] = {
    {"below", 0, 0, 1e30, "L2 norm of the weights"},
    {"min_pushes", 1, 1, 1e8, "rows with fewer pushes stay"},
    PS_EVICT_EVERY,
};

static const char *wrong(const double *param)
{
    return param[BELOW] == 0 ? "say below" : NULL;
}

static bool goes(const double *param, const ps_evict_row *row, const ps_evict_now *now)
{
    (void)now;
    return (double)row->freq >= param[MIN_PUSHES] &&
           num_sumsq(row->weights, row->dim) < param[BELOW] * param[BELOW];
}

const ps_evict ps_evict_norm = {
    .form = {.name = "norm",
             .help = "rows whose L2 norm is below a threshold",
             .params = params,
             .n_params = sizeof params / sizeof params[0],
             .wrong = wrong},
    .every_at = EVERY,
    .wants_weights = true,
    .goes = goes,
};
