#include "base/log.h"

#include "base/clock.h"
#include "base/json.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES     2048
#define MAX_PER_WINDOW 20
#define WINDOW_NS      BD_NS_PER_S

static char who[64] = "braid"; /* set once at start, before other threads log */
static _Atomic int min_level = BD_LOG_INFO;
static _Atomic bool as_json;
static _Atomic int out_fd = 2;

void bd_log_set_who(const char *name)
{
    (void)snprintf(who, sizeof who, "%s", name);
}

void bd_log_set_level(bd_log_level level)
{
    atomic_store(&min_level, (int)level);
}

void bd_log_set_json(bool json)
{
    atomic_store(&as_json, json);
}

void bd_log_set_fd(int fd)
{
    atomic_store(&out_fd, fd);
}

bool bd_log_on(bd_log_level level)
{
    return (int)level >= atomic_load_explicit(&min_level, memory_order_relaxed);
}

static const char *level_name(bd_log_level level)
{
    switch (level) {
#define BD_X(name, num, text) \
    case (num):               \
        return #name;
        BD_LOG_LEVEL_MAP(BD_X)
#undef BD_X
    default:
        return "?";
    }
}

int bd_log_level_parse(const char *name)
{
#define BD_X(level, num, text)     \
    if (strcmp(name, text) == 0) { \
        return (num);              \
    }
    BD_LOG_LEVEL_MAP(BD_X)
#undef BD_X
    return -1;
}

/* A long value is cut, but the line stays whole: a string leaves room for what follows it, and a
 * pair is left out when it might not fit. */
enum { TAIL_BYTES = 64, PAIR_BYTES = 192 };

typedef struct line {
    char text[LINE_BYTES];
    size_t n;
} line;

static size_t room(const line *l)
{
    return LINE_BYTES - 1 - l->n; /* one byte is always left for the newline */
}

static void put_bytes(line *l, const char *s, size_t n)
{
    if (n > room(l)) {
        n = room(l);
    }
    memcpy(l->text + l->n, s, n);
    l->n += n;
}

static void put(line *l, const char *s)
{
    put_bytes(l, s, strlen(s));
}

/* Quoted and escaped: control bytes and quotes of a peer cannot start a new line or field, and
 * bytes that are not UTF-8 cannot break a reader of the JSON form. */
static void put_escaped(line *l, const char *s)
{
    put(l, "\"");
    while (*s != '\0' && room(l) > TAIL_BYTES) {
        unsigned char c = (unsigned char)*s;
        char piece[8];
        size_t n = bd_utf8_bytes(s);
        if (n == 0) {
            put(l, "\xef\xbf\xbd");
            n = 1;
        } else if (c == '"' || c == '\\') {
            (void)snprintf(piece, sizeof piece, "\\%c", c);
            put(l, piece);
        } else if (c < 0x20 || c == 0x7f) {
            (void)snprintf(piece, sizeof piece, "\\u%04x", c);
            put(l, piece);
        } else {
            put_bytes(l, s, n);
        }
        s += n;
    }
    put(l, "\"");
}

static bool needs_quotes(const char *s)
{
    if (*s == '\0') {
        return true;
    }
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c <= 0x20 || c == '"' || c == '\\' || c == '=' || c >= 0x7f) {
            return true;
        }
    }
    return false;
}

static void put_val(line *l, const bd_log_val *v, bool json)
{
    char piece[64];
    switch (v->kind) {
    case BD_LOG_I64:
        (void)snprintf(piece, sizeof piece, "%lld", (long long)v->as.i);
        break;
    case BD_LOG_U64:
        (void)snprintf(piece, sizeof piece, "%llu", (unsigned long long)v->as.u);
        break;
    case BD_LOG_F64:
        if (json && (v->as.f - v->as.f) != 0.0) { /* NaN and infinity are not JSON numbers */
            (void)snprintf(piece, sizeof piece, "\"%g\"", v->as.f);
        } else {
            (void)snprintf(piece, sizeof piece, "%.6g", v->as.f);
        }
        break;
    case BD_LOG_BOOL:
        (void)snprintf(piece, sizeof piece, "%s", v->as.b ? "true" : "false");
        break;
    case BD_LOG_STR: {
        const char *s = v->as.s == NULL ? "(null)" : v->as.s;
        if (json || needs_quotes(s) || strlen(s) > room(l) - TAIL_BYTES) {
            put_escaped(l, s);
        } else {
            put(l, s);
        }
        return;
    }
    default:
        return;
    }
    put(l, piece);
}

static void put_time(line *l)
{
    int64_t now_ns = bd_wall_ns();
    time_t seconds = (time_t)(now_ns / BD_NS_PER_S);
    struct tm t;
    char date[32], text[48];
    (void)gmtime_r(&seconds, &t);
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &t);
    (void)snprintf(text, sizeof text, "%s.%03dZ", date, (int)(now_ns / BD_NS_PER_MS % 1000));
    put(l, text);
}

/* True when the line may go out; *n_dropped gets the lines swallowed before it. */
static bool site_admits(bd_log_site *site, bd_log_level level, int *n_dropped)
{
    int64_t now = bd_mono_ns();
    int64_t start = atomic_load(&site->window_start_ns);
    if ((start == 0 || now - start >= WINDOW_NS) &&
        atomic_compare_exchange_strong(&site->window_start_ns, &start, now)) {
        atomic_store(&site->n_in_window, 0);
    }
    if (atomic_fetch_add(&site->n_in_window, 1) >= MAX_PER_WINDOW && level < BD_LOG_ERROR) {
        atomic_fetch_add(&site->n_dropped, 1);
        return false;
    }
    *n_dropped = atomic_exchange(&site->n_dropped, 0);
    return true;
}

void bd_log_emit(bd_log_site *site, bd_log_level level, const char *event, int n_pairs,
                 const char *const *keys, const bd_log_val *vals)
{
    int n_dropped = 0;
    if (!site_admits(site, level, &n_dropped)) {
        return;
    }
    bool json = atomic_load_explicit(&as_json, memory_order_relaxed);
    line l = {.n = 0};
    put(&l, json ? "{\"time\":\"" : "");
    put_time(&l);
    put(&l, json ? "\",\"level\":\"" : " ");
    put(&l, level_name(level));
    put(&l, json ? "\",\"who\":\"" : " ");
    put(&l, who);
    put(&l, json ? "\",\"event\":" : " ");
    if (json) {
        put_escaped(&l, event);
    } else {
        put(&l, event);
    }
    for (int i = 0; i < n_pairs && room(&l) > PAIR_BYTES; i++) {
        put(&l, json ? ",\"" : " ");
        put(&l, keys[i]);
        put(&l, json ? "\":" : "=");
        put_val(&l, &vals[i], json);
    }
    if (n_dropped > 0) {
        bd_log_val v = bd_log_i(n_dropped);
        put(&l, json ? ",\"lines_dropped\":" : " lines_dropped=");
        put_val(&l, &v, json);
    }
    put(&l, json ? "}" : "");
    l.text[l.n++] = '\n';
    ssize_t done = write(atomic_load(&out_fd), l.text, l.n);
    (void)done; /* nowhere to report a failing log */
}
