/* Every push of a key without a row makes it with probability p: a pure function of seed, table,
 * key and step (in async: of the client's push), so that retries end the same. */
#include "ps_server/ps_admit.h"

static const num_hyper params[] = {{"p", 0.5, 0, 1, "probability that a push makes the row"}};

static bool admit(const ps_admit_ask *ask)
{
    uint64_t h = bd_mix64(ask->table_key ^ bd_mix64(ask->key ^ bd_mix64(ask->draw)));
    return (double)(h >> 11) * 0x1p-53 < ask->param[0];
}

const ps_admit ps_admit_probability = {
    .form = {.name = "probability",
             .help = "each push with probability p",
             .params = params,
             .n_params = 1},
    .admit = admit,
};
