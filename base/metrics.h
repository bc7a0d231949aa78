/* base/metrics.h - counters, gauges and histograms of this process, in Prometheus text form.
 *
 *   static bd_metric m_keys = BD_METRIC_COUNTER("braid_ps_lookup_keys_total", "keys",
 *                                               "keys that lookups asked for");
 *   static bd_metric *const ps_metrics[] = {&m_keys, ...};
 *   bd_metrics_register(ps_metrics, n);        once, at start
 *   bd_metric_add(&m_keys, n_keys);            anywhere
 *
 * Layer:     base.
 * Threads:   all functions from any thread. Values are relaxed atomics: a page may show one metric
 *            a moment ahead of another, never a torn value.
 * Ownership: metrics are static; the registry borrows them for the life of the process.
 * Names:     braid_<folder>_<noun>_<unit>, counters end in _total.
 */
#ifndef BD_METRICS_H
#define BD_METRICS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bd_metric_kind { BD_COUNTER, BD_GAUGE, BD_HISTOGRAM } bd_metric_kind;

enum { BD_METRIC_MAX_BOUNDS = 16, BD_METRICS_MAX = 512 };

typedef struct bd_metric {
    const char *name, *unit, *help;
    bd_metric_kind kind;
    const double *bounds; /* histogram: upper bounds of the buckets, rising; the last is +Inf */
    size_t n_bounds;
    _Atomic uint64_t count; /* counter: its value; histogram: observations */
    _Atomic double value;   /* gauge: its value; histogram: sum */
    _Atomic uint64_t buckets[BD_METRIC_MAX_BOUNDS + 1]; /* not cumulative */
} bd_metric;

#define BD_METRIC_COUNTER(name_, unit_, help_)                                \
    {                                                                         \
        .name = (name_), .unit = (unit_), .help = (help_), .kind = BD_COUNTER \
    }
#define BD_METRIC_GAUGE(name_, unit_, help_)                                \
    {                                                                       \
        .name = (name_), .unit = (unit_), .help = (help_), .kind = BD_GAUGE \
    }
/* bounds_: an array of double, at most BD_METRIC_MAX_BOUNDS. */
#define BD_METRIC_HISTOGRAM(name_, unit_, help_, bounds_)                        \
    {                                                                            \
        .name = (name_), .unit = (unit_), .help = (help_), .kind = BD_HISTOGRAM, \
        .bounds = (bounds_), .n_bounds = sizeof(bounds_) / sizeof((bounds_)[0])  \
    }

/* Bounds for durations in seconds (10 us to 30 s) and for sizes in bytes (256 B to 256 MiB). */
#define BD_BOUNDS_SECONDS                                                      \
    {                                                                          \
        1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30 \
    }
#define BD_BOUNDS_BYTES                                                                        \
    {                                                                                          \
        256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864, 268435456 \
    }

static inline void bd_metric_add(bd_metric *m, uint64_t n)
{
    atomic_fetch_add_explicit(&m->count, n, memory_order_relaxed);
}
static inline void bd_metric_set(bd_metric *m, double v)
{
    atomic_store_explicit(&m->value, v, memory_order_relaxed);
}
/* A gauge up or down by v. */
void bd_metric_shift(bd_metric *m, double v);
/* One observation of a histogram. NaN goes into the last bucket and spoils the sum. */
void bd_metric_observe(bd_metric *m, double v);
/* A counter's or histogram's count; for tests and reports. */
static inline uint64_t bd_metric_count(const bd_metric *m)
{
    return atomic_load_explicit(&m->count, memory_order_relaxed);
}
/* A gauge's value, a histogram's sum. */
static inline double bd_metric_value(const bd_metric *m)
{
    return atomic_load_explicit(&m->value, memory_order_relaxed);
}

/* Adds metrics to the page; one that is there already is skipped. A malformed or taken name is a
 * bug (BD_ASSERT). */
void bd_metrics_register(bd_metric *const *metrics, size_t n);
/* ---- families whose series are known only while running (labels) ---- */
typedef struct bd_page bd_page;
/* fn writes families of its own whenever a page is made, with the functions below; called under the
 * registry's lock, so it must neither block nor use the registry. At most 8 sources. */
void bd_metrics_add_source(void (*fn)(bd_page *page));
/* kind: "counter", "gauge" or "histogram". Its samples follow. */
void bd_page_family(bd_page *page, const char *name, const char *kind, const char *help);
/* fmt: the series with its labels, e.g. "braid_x_total{method=\"%s\"}". */
void bd_page_sample(bd_page *page, double value, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The page with every registered metric, process_* and braid_build_info; owned (bd_free). NULL: no
 * memory. */
char *bd_metrics_text(void);

#endif
