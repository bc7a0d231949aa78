/* Of more than max_rows those go that were pushed the longest ago. */
#include "ps_server/ps_evict.h"

enum { MAX_ROWS, EVERY };
static const num_hyper params[] = {
    {"max_rows", 1e6, 1, 1e15, "rows of the table on all servers together"},
    PS_EVICT_EVERY,
};

static uint64_t rank(const double *param, const ps_evict_row *row, const ps_evict_now *now)
{
    (void)param;
    (void)now;
    return row->last_step;
}

const ps_evict ps_evict_lru = {
    .form = {.name = "lru",
             .help = "beyond max_rows, those whose last push is the oldest",
             .params = params,
             .n_params = sizeof params / sizeof params[0]},
    .every_at = EVERY,
    .rank = rank,
    .max_rows_at = MAX_ROWS,
};
