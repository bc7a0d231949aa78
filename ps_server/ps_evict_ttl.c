/* A row that nobody has pushed for so long goes: in steps, in seconds, whichever comes first. */
#include "ps_server/ps_evict.h"

enum { STEPS, SECONDS, EVERY };
static const num_hyper params[] = {
    {"steps", 0, 0, 1e18, "steps without a push; 0: no such limit"},
    {"seconds", 0, 0, 4e9, "time without a push; 0: no such limit"},
    PS_EVICT_EVERY,
};

static const char *wrong(const double *param)
{
    return param[STEPS] == 0 && param[SECONDS] == 0 ? "say steps, seconds or both" : NULL;
}

static bool goes(const double *param, const ps_evict_row *row, const ps_evict_now *now)
{
    bool steps = param[STEPS] > 0 && now->step > row->last_step &&
                 (double)(now->step - row->last_step) > param[STEPS];
    bool time = param[SECONDS] > 0 && row->last_time != 0 && now->time_s > row->last_time &&
                (double)(now->time_s - row->last_time) > param[SECONDS];
    return steps || time;
}

const ps_evict ps_evict_ttl = {
    .form = {.name = "ttl",
             .help = "rows that were not pushed for more than steps or seconds",
             .params = params,
             .n_params = sizeof params / sizeof params[0],
             .wrong = wrong},
    .every_at = EVERY,
    .goes = goes,
};
