#include "ps_server/ps_metrics.h"

#include "base/metrics.h"

#include <stdio.h>
#include <sys/statvfs.h>

static const double seconds[] = BD_BOUNDS_SECONDS;
bd_metric ps_metric_lookup_s =
    BD_METRIC_HISTOGRAM("braid_ps_lookup_seconds", "seconds",
                        "lookups, from request to answer, with the wait for their step", seconds);
bd_metric ps_metric_push_s = BD_METRIC_HISTOGRAM("braid_ps_push_seconds", "seconds",
                                                 "pushes, from request to answer", seconds);
bd_metric ps_metric_commit_s = BD_METRIC_HISTOGRAM(
    "braid_ps_commit_seconds", "seconds",
    "commits, from request to answer, with the wait for the other ranks' pushes", seconds);
bd_metric ps_metric_failures = BD_METRIC_COUNTER("braid_ps_failed_requests_total", "requests",
                                                 "requests answered with an error");
bd_metric ps_metric_lookup_keys =
    BD_METRIC_COUNTER("braid_ps_lookup_keys_total", "keys", "keys that lookups asked for");
bd_metric ps_metric_ready =
    BD_METRIC_GAUGE("braid_ps_ready", "0 or 1", "loaded and registered, not draining");
bd_metric ps_metric_draining = BD_METRIC_GAUGE("braid_ps_draining", "0 or 1", "asked to drain");
static bd_metric disk_bytes =
    BD_METRIC_GAUGE("braid_ps_disk_size_bytes", "bytes", "size of the data folder's disk");
static bd_metric disk_free = BD_METRIC_GAUGE("braid_ps_disk_free_bytes", "bytes",
                                             "free on the data folder's disk, for this user");
static bd_metric journal_cap = BD_METRIC_GAUGE("braid_ps_journal_cap_bytes", "bytes",
                                               "journal_cap; at twice this, steps wait");
static bd_metric staged_limit =
    BD_METRIC_GAUGE("braid_ps_staged_limit_bytes", "bytes", "staged_limit");
static char watched_dir[4096]; /* set at start, before anything updates */

static bd_metric metrics[PS_N_METRICS] = {
#define BD_X(field, kind, name, unit, help) BD_METRIC_##kind(name, unit, help),
    PS_METRICS_MAP(BD_X)
#undef BD_X
};

const char *ps_metric_name(size_t i)
{
    return metrics[i].name;
}

void ps_metrics_values(const ps_shard_stats *st, double out[PS_N_METRICS])
{
#define BD_X(field, kind, name, unit, help) out[PS_METRIC_AT_##field] = (double)st->field;
    PS_METRICS_MAP(BD_X)
#undef BD_X
}

void ps_metrics_register(const ps_metrics_limits *limits)
{
    bd_metric *const more[] = {&ps_metric_lookup_s,
                               &ps_metric_push_s,
                               &ps_metric_commit_s,
                               &ps_metric_failures,
                               &ps_metric_lookup_keys,
                               &ps_metric_ready,
                               &ps_metric_draining,
                               &disk_bytes,
                               &disk_free,
                               &journal_cap,
                               &staged_limit};
    for (size_t i = 0; i < PS_N_METRICS; i++) {
        bd_metric *m = &metrics[i];
        bd_metrics_register(&m, 1);
    }
    bd_metrics_register(more, sizeof more / sizeof more[0]);
    bd_metric_set(&journal_cap, (double)limits->journal_cap_bytes);
    bd_metric_set(&staged_limit, (double)limits->staged_limit_bytes);
    (void)snprintf(watched_dir, sizeof watched_dir, "%s", limits->data_dir);
}

static void update_disk(void)
{
    struct statvfs st;
    if (watched_dir[0] != '\0' && statvfs(watched_dir, &st) == 0) {
        bd_metric_set(&disk_bytes, (double)st.f_blocks * (double)st.f_frsize);
        bd_metric_set(&disk_free, (double)st.f_bavail * (double)st.f_frsize);
    }
}

void ps_metrics_update(ps_shard *s)
{
    ps_shard_stats st;
    double values[PS_N_METRICS];
    update_disk();
    ps_shard_get_stats(s, &st);
    ps_metrics_values(&st, values);
    for (size_t i = 0; i < PS_N_METRICS; i++) {
        if (metrics[i].kind == BD_COUNTER) { /* the shard counts; this is its copy */
            atomic_store_explicit(&metrics[i].count, (uint64_t)values[i], memory_order_relaxed);
        } else {
            bd_metric_set(&metrics[i], values[i]);
        }
    }
}
