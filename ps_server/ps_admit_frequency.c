/* A key is admitted at its n-th push. Exact: 48 bytes for each key that waits, within the budget.
 */
#include "ps_server/ps_admit.h"

enum { COUNT, WITHIN };
static const num_hyper params[] = {
    {"count", 2, 1, 1e9, "the push that makes the row, counted from 1"},
    {"within_steps", 0, 0, 1e18, "a key that waits is forgotten after so many steps; 0: never"},
};

static uint64_t filter_key(const double *param, uint64_t key)
{
    (void)param;
    return key;
}

static void note(const double *param, uint32_t *words, uint64_t key)
{
    (void)param;
    (void)key;
    words[0] += words[0] < UINT32_MAX;
}

static uint64_t forget_steps(const double *param)
{
    return (uint64_t)param[WITHIN];
}

static bool admit(const ps_admit_ask *ask)
{
    double before = ask->words == NULL ? 0 : (double)ask->words[0];
    return before + 1 >= ask->param[COUNT];
}

const ps_admit ps_admit_frequency = {
    .form = {.name = "frequency",
             .help = "from the count-th push of a key on, each key counted by itself",
             .params = params,
             .n_params = sizeof params / sizeof params[0]},
    .filter_words = 1,
    .filter_key = filter_key,
    .note = note,
    .own_rows = true,
    .forget_steps = forget_steps,
    .admit = admit,
};
