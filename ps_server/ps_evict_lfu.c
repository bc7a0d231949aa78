/* Of more than max_rows those go that were pushed least often; of these, the longest ago. */
#include "ps_server/ps_evict.h"

enum { MAX_ROWS, EVERY };
static const num_hyper params[] = {
    {"max_rows", 1e6, 1, 1e15, "rows of the table on all servers together"},
    PS_EVICT_EVERY,
};

#define AGE_BITS 36 /* steps that break ties; freq has 27 bits */

static uint64_t rank(const double *param, const ps_evict_row *row, const ps_evict_now *now)
{
    uint64_t most = (1ull << AGE_BITS) - 1;
    (void)param;
    (void)now;
    return (uint64_t)row->freq << AGE_BITS | (row->last_step < most ? row->last_step : most);
}

const ps_evict ps_evict_lfu = {
    .form = {.name = "lfu",
             .help = "beyond max_rows, those with the fewest pushes",
             .params = params,
             .n_params = sizeof params / sizeof params[0]},
    .every_at = EVERY,
    .rank = rank,
    .max_rows_at = MAX_ROWS,
};
