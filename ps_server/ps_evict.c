#include "ps_server/ps_evict.h"

#include <string.h>

static const ps_evict *const all[] = {&ps_evict_ttl, &ps_evict_lru, &ps_evict_lfu, &ps_evict_norm,
                                      &ps_evict_score};

const ps_evict *ps_evict_at(size_t i)
{
    return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

const ps_evict *ps_evict_find(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->form.name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}

uint64_t ps_evict_every(const ps_evict *e, const double *param)
{
    uint64_t want = (uint64_t)param[e->every_at], every = 1;
    while (every < want) {
        every *= 2;
    }
    return every;
}

uint64_t ps_evict_most(const ps_evict *e, const double *param, const ps_evict_now *now)
{
    return (uint64_t)(param[e->max_rows_at] * now->share);
}

/* The server's rows, spread so that the quotas of all slices add up to it. */
uint64_t ps_evict_quota(const ps_evict *e, const double *param, const ps_evict_now *now,
                        uint64_t slice)
{
    uint64_t rows = ps_evict_most(e, param, now);
    uint64_t every = ps_evict_every(e, param), each = rows / every, rest = rows % every;
    return each + (slice < rest);
}
