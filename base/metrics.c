#include "base/metrics.h"

#include "base/assert.h"
#include "base/build_info.h"
#include "base/mem.h"
#include "base/metrics_int.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bd_metric *registered[BD_METRICS_MAX]; /* under lock */
static size_t n_registered;                   /* under lock */

static void add_f64(_Atomic double *to, double v)
{
    double old = atomic_load_explicit(to, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(to, &old, old + v, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void bd_metric_shift(bd_metric *m, double v)
{
    add_f64(&m->value, v);
}

void bd_metric_observe(bd_metric *m, double v)
{
    size_t i = 0;
    while (i < m->n_bounds && !(v <= m->bounds[i])) {
        i++;
    }
    atomic_fetch_add_explicit(&m->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->count, 1, memory_order_relaxed);
    add_f64(&m->value, v);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool well_formed(const bd_metric *m)
{
    if (strncmp(m->name, "braid_", 6) != 0 || m->n_bounds > BD_METRIC_MAX_BOUNDS) {
        return false;
    }
    for (size_t i = 1; i < m->n_bounds; i++) {
        if (!(m->bounds[i - 1] < m->bounds[i])) {
            return false;
        }
    }
    size_t n_legal = strspn(m->name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return m->name[n_legal] == '\0' && (m->kind == BD_COUNTER) == ends_with(m->name, "_total");
}

static void register_one(bd_metric *m)
{
    BD_ASSERT(well_formed(m));
    for (size_t i = 0; i < n_registered; i++) {
        if (registered[i] == m) {
            return;
        }
        BD_ASSERT(strcmp(registered[i]->name, m->name) != 0);
    }
    BD_ASSERT(n_registered < BD_METRICS_MAX);
    registered[n_registered++] = m;
}

void bd_metrics_register(bd_metric *const *metrics, size_t n)
{
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++) {
        register_one(metrics[i]);
    }
    (void)pthread_mutex_unlock(&lock);
}

struct bd_page {
    char *text; /* owned */
    size_t n, cap;
    bool failed;
};

enum { MAX_SOURCES = 8 };

static void (*sources[MAX_SOURCES])(bd_page *page); /* under lock */
static size_t n_sources;                            /* under lock */

void bd_metrics_add_source(void (*fn)(bd_page *page))
{
    (void)pthread_mutex_lock(&lock);
    BD_ASSERT(n_sources < MAX_SOURCES);
    sources[n_sources++] = fn;
    (void)pthread_mutex_unlock(&lock);
}

static void put(bd_page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void vput(bd_page *p, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

static void vput(bd_page *p, const char *fmt, va_list ap)
{
    enum { MAX_LINE = 512 };
    void *text = p->text;
    if (p->failed || !bd_grow(&text, &p->cap, p->n + MAX_LINE, 1)) {
        p->failed = true;
        return;
    }
    p->text = text;
    int n = vsnprintf(p->text + p->n, MAX_LINE, fmt, ap);
    p->n += n < MAX_LINE ? (size_t)n : MAX_LINE - 1;
}

static void put(bd_page *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vput(p, fmt, ap);
    va_end(ap);
}

static void put_number(bd_page *p, double v)
{
    if (isfinite(v)) {
        put(p, "%.15g\n", v);
    } else {
        put(p, "%s\n", isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
    }
}

void bd_page_family(bd_page *p, const char *name, const char *kind, const char *help)
{
    put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

void bd_page_sample(bd_page *p, double value, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vput(p, fmt, ap);
    va_end(ap);
    put(p, " ");
    put_number(p, value);
}

static void put_histogram(bd_page *p, const bd_metric *m)
{
    uint64_t total = 0;
    for (size_t i = 0; i <= m->n_bounds; i++) {
        total += atomic_load_explicit(&m->buckets[i], memory_order_relaxed);
        if (i < m->n_bounds) {
            put(p, "%s_bucket{le=\"%.15g\"} %" PRIu64 "\n", m->name, m->bounds[i], total);
        } else {
            put(p, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", m->name, total);
        }
    }
    put(p, "%s_sum ", m->name);
    put_number(p, bd_metric_value(m));
    put(p, "%s_count %" PRIu64 "\n", m->name, total); /* equals the last bucket, always */
}

static void put_metric(bd_page *p, const bd_metric *m)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    put(p, "# HELP %s %s (%s)\n# TYPE %s %s\n", m->name, m->help, m->unit, m->name, kinds[m->kind]);
    switch (m->kind) {
    case BD_COUNTER:
        put(p, "%s %" PRIu64 "\n", m->name, bd_metric_count(m));
        break;
    case BD_GAUGE:
        put(p, "%s ", m->name);
        put_number(p, bd_metric_value(m));
        break;
    case BD_HISTOGRAM:
        put_histogram(p, m);
        break;
    default:
        break;
    }
}

static void put_value(bd_page *p, const char *name, const char *kind, const char *help, double v)
{
    put(p, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, kind, name);
    put_number(p, v);
}

static void put_process(bd_page *p)
{
    bd_process_values v;
    bd_process_read(&v);
    put(p,
        "# HELP braid_build_info 1, with the build as labels\n# TYPE braid_build_info gauge\n"
        "braid_build_info{version=\"%s\",commit=\"%s\"} 1\n",
        bd_build_version(), bd_build_commit());
    put_value(p, "process_start_time_seconds", "gauge", "start of the process (since 1970)",
              v.start_s);
    put_value(p, "process_cpu_seconds_total", "counter", "processor time used", v.cpu_s);
    put_value(p, "process_resident_memory_bytes", "gauge", "memory in use", v.resident_bytes);
    put_value(p, "process_virtual_memory_bytes", "gauge", "address space in use", v.virtual_bytes);
    put_value(p, "process_open_fds", "gauge", "open file descriptors", v.open_fds);
    put_value(p, "process_max_fds", "gauge", "file descriptors it may open", v.max_fds);
    put_value(p, "process_threads", "gauge", "threads", v.threads);
}

char *bd_metrics_text(void)
{
    bd_page p = {0};
    put(&p, "%s", "");
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_registered; i++) {
        put_metric(&p, registered[i]);
    }
    for (size_t i = 0; i < n_sources; i++) {
        sources[i](&p);
    }
    (void)pthread_mutex_unlock(&lock);
    put_process(&p);
    if (p.failed) {
        bd_free(p.text);
        p.text = NULL;
    }
    return p.text;
}
