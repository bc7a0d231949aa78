#include "client/cl_stats.h"

#include "base/clock.h"
#include "base/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static cl_stats slots[CL_STATS_SERVERS];
static cl_stats other = {.state = 2, .name = "other"};

static const char *const reasons[CL_AGAIN_N] = {
#define BD_X(name, text) text,
    CL_AGAIN_MAP(BD_X)
#undef BD_X
};

static cl_again_reason reason_of(bd_status rc)
{
    switch (rc) {
    case BD_E_TIMEOUT:
        return CL_AGAIN_TIMEOUT;
    case BD_E_EXHAUSTED:
        return CL_AGAIN_BUSY;
    case BD_E_MOVED:
        return CL_AGAIN_MOVED;
    case BD_E_NEED_PARTS:
        return CL_AGAIN_PARTS;
    default:
        return CL_AGAIN_DOWN;
    }
}

void cl_stats_retry(cl_stats *s, bd_status rc)
{
    (void)atomic_fetch_add_explicit(&s->retries[reason_of(rc)], 1, memory_order_relaxed);
}

void cl_stats_down(cl_stats *s)
{
    (void)atomic_fetch_add_explicit(&s->outages, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&s->n_down, 1, memory_order_relaxed);
}

void cl_stats_up(cl_stats *s, int64_t down_ns)
{
    (void)atomic_fetch_add_explicit(&s->outage_ns, down_ns > 0 ? (uint64_t)down_ns : 0,
                                    memory_order_relaxed);
    (void)atomic_fetch_sub_explicit(&s->n_down, 1, memory_order_relaxed);
}

/* ---- the page ---- */
typedef void (*put_fn)(bd_page *p, const char *family, const cl_stats *s);

static void put_retries(bd_page *p, const char *family, const cl_stats *s)
{
    for (int r = 0; r < CL_AGAIN_N; r++) {
        bd_page_sample(p, (double)atomic_load(&s->retries[r]), "%s{server=\"%s\",reason=\"%s\"}",
                       family, s->name, reasons[r]);
    }
}

static void put_outages(bd_page *p, const char *family, const cl_stats *s)
{
    bd_page_sample(p, (double)atomic_load(&s->outages), "%s{server=\"%s\"}", family, s->name);
}

static void put_seconds(bd_page *p, const char *family, const cl_stats *s)
{
    bd_page_sample(p, (double)atomic_load(&s->outage_ns) / (double)BD_NS_PER_S, "%s{server=\"%s\"}",
                   family, s->name);
}

static void put_down(bd_page *p, const char *family, const cl_stats *s)
{
    bd_page_sample(p, atomic_load(&s->n_down) > 0 ? 1 : 0, "%s{server=\"%s\"}", family, s->name);
}

static void put_family(bd_page *p, const char *family, const char *kind, const char *help,
                       put_fn put)
{
    bd_page_family(p, family, kind, help);
    for (int i = 0; i < CL_STATS_SERVERS; i++) {
        if (atomic_load_explicit(&slots[i].state, memory_order_acquire) == 2) {
            put(p, family, &slots[i]);
        }
    }
    put(p, family, &other);
}

static void put_page(bd_page *p)
{
    put_family(p, "braid_client_retries_total", "counter",
               "requests to a server that were sent again, by reason (requests)", put_retries);
    put_family(p, "braid_client_outages_total", "counter",
               "times a server stopped answering (times)", put_outages);
    put_family(p, "braid_client_outage_seconds_total", "counter",
               "from a request that a server did not answer to its next answer (seconds)",
               put_seconds);
    put_family(p, "braid_client_server_down", "gauge", "a server is waited for now (0 or 1)",
               put_down);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void register_page(void)
{
    bd_metrics_add_source(put_page);
}

cl_stats *cl_stats_of(const char *name)
{
    (void)pthread_once(&once, register_page);
    for (int i = 0; i < CL_STATS_SERVERS && strlen(name) < sizeof slots[i].name; i++) {
        cl_stats *s = &slots[i];
        uint32_t state = 0;
        if (atomic_compare_exchange_strong(&s->state, &state, 1)) {
            (void)snprintf(s->name, sizeof s->name, "%s", name);
            atomic_store_explicit(&s->state, 2, memory_order_release);
            return s;
        }
        while (state == 1) { /* another thread writes the name, just now */
            state = atomic_load_explicit(&s->state, memory_order_acquire);
        }
        if (strcmp(s->name, name) == 0) {
            return s;
        }
    }
    return &other;
}
