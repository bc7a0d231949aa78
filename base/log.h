/* base/log.h - structured log lines: a fixed event text and key-value pairs.
 *
 *   BD_LOG(INFO, "push applied", "worker", id, "step", step, "bytes", n);
 *
 * prints one line `2026-01-02T03:04:05.678Z INFO ps-0 push applied worker=1 step=7 bytes=9` (or one
 * JSON object with bd_log_set_json). Values: any integer, double, bool or (const) char *; strings
 * are escaped, so bytes of a peer cannot forge a line. Up to 8 pairs. Warn and error lines say what
 * the operator should do.
 *
 * Layer:   base.
 * Threads: any; a line is one write(2).
 * Limits:  per call site at most 20 lines a second; the next line after a pause says how many were
 *          dropped. ERROR is never dropped.
 */
#ifndef BD_LOG_H
#define BD_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* level, number, name as the user writes it */
#define BD_LOG_LEVEL_MAP(X) \
    X(DEBUG, 0, "debug")    \
    X(INFO, 1, "info")      \
    X(WARN, 2, "warn")      \
    X(ERROR, 3, "error")

typedef enum bd_log_level {
#define BD_X(name, num, text) BD_LOG_##name = (num),
    BD_LOG_LEVEL_MAP(BD_X)
#undef BD_X
} bd_log_level;

typedef enum bd_log_kind {
    BD_LOG_I64,
    BD_LOG_U64,
    BD_LOG_F64,
    BD_LOG_BOOL,
    BD_LOG_STR
} bd_log_kind;

typedef struct bd_log_val {
    bd_log_kind kind;
    union {
        int64_t i;
        uint64_t u;
        double f;
        bool b;
        const char *s;
    } as;
} bd_log_val;

/* State of one call site for the rate limit. */
typedef struct bd_log_site {
    _Atomic int64_t window_start_ns;
    _Atomic int n_in_window;
    _Atomic int n_dropped;
} bd_log_site;

/* `name` is printed in every line (for example "ps-0"); copied. Default: the program's name. */
void bd_log_set_who(const char *name);
void bd_log_set_level(bd_log_level level);
void bd_log_set_json(bool json);
/* Lines go to this descriptor (default 2). */
void bd_log_set_fd(int fd);
/* 0-based level for "debug".."error"; -1 for another word. */
int bd_log_level_parse(const char *name);

void bd_log_emit(bd_log_site *site, bd_log_level level, const char *event, int n_pairs,
                 const char *const *keys, const bd_log_val *vals);
bool bd_log_on(bd_log_level level);

static inline bd_log_val bd_log_i(long long v)
{
    return (bd_log_val){BD_LOG_I64, {.i = v}};
}
static inline bd_log_val bd_log_u(unsigned long long v)
{
    return (bd_log_val){BD_LOG_U64, {.u = v}};
}
static inline bd_log_val bd_log_f(double v)
{
    return (bd_log_val){BD_LOG_F64, {.f = v}};
}
static inline bd_log_val bd_log_b(bool v)
{
    return (bd_log_val){BD_LOG_BOOL, {.b = v}};
}
static inline bd_log_val bd_log_s(const char *v)
{
    return (bd_log_val){BD_LOG_STR, {.s = v}};
}

#define BD_LOG_VAL(v) \
    _Generic((v), bool                                                                             \
             : bd_log_b, char *                                                                    \
             : bd_log_s, const char *                                                              \
             : bd_log_s, float                                                                     \
             : bd_log_f, double                                                                    \
             : bd_log_f, unsigned char                                                             \
             : bd_log_u, unsigned short                                                            \
             : bd_log_u, unsigned int                                                              \
             : bd_log_u, unsigned long                                                             \
             : bd_log_u, unsigned long long                                                        \
             : bd_log_u, default                                                                   \
             : bd_log_i)(v)

#define BD_LOG_K0()
#define BD_LOG_V0()
#define BD_LOG_K2(k, v)                                                                            k
#define BD_LOG_V2(k, v)                                                                            BD_LOG_VAL(v)
#define BD_LOG_K4(k, v, ...)                                                                       k, BD_LOG_K2(__VA_ARGS__)
#define BD_LOG_V4(k, v, ...)                                                                       BD_LOG_VAL(v), BD_LOG_V2(__VA_ARGS__)
#define BD_LOG_K6(k, v, ...)                                                                       k, BD_LOG_K4(__VA_ARGS__)
#define BD_LOG_V6(k, v, ...)                                                                       BD_LOG_VAL(v), BD_LOG_V4(__VA_ARGS__)
#define BD_LOG_K8(k, v, ...)                                                                       k, BD_LOG_K6(__VA_ARGS__)
#define BD_LOG_V8(k, v, ...)                                                                       BD_LOG_VAL(v), BD_LOG_V6(__VA_ARGS__)
#define BD_LOG_K10(k, v, ...)                                                                      k, BD_LOG_K8(__VA_ARGS__)
#define BD_LOG_V10(k, v, ...)                                                                      BD_LOG_VAL(v), BD_LOG_V8(__VA_ARGS__)
#define BD_LOG_K12(k, v, ...)                                                                      k, BD_LOG_K10(__VA_ARGS__)
#define BD_LOG_V12(k, v, ...)                                                                      BD_LOG_VAL(v), BD_LOG_V10(__VA_ARGS__)
#define BD_LOG_K14(k, v, ...)                                                                      k, BD_LOG_K12(__VA_ARGS__)
#define BD_LOG_V14(k, v, ...)                                                                      BD_LOG_VAL(v), BD_LOG_V12(__VA_ARGS__)
#define BD_LOG_K16(k, v, ...)                                                                      k, BD_LOG_K14(__VA_ARGS__)
#define BD_LOG_V16(k, v, ...)                                                                      BD_LOG_VAL(v), BD_LOG_V14(__VA_ARGS__)
#define BD_LOG_PICK(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, n, ...) n
#define BD_LOG_N(...) \
    BD_LOG_PICK(__VA_ARGS__, 16, odd, 14, odd, 12, odd, 10, odd, 8, odd, 6, odd, 4, odd, 2, odd)
#define BD_LOG_CAT2(a, b) a##b
#define BD_LOG_CAT(a, b)  BD_LOG_CAT2(a, b)

/* At least one pair. `level` is DEBUG, INFO, WARN or ERROR. */
#define BD_LOG(level, event, ...)                                                               \
    do {                                                                                        \
        if (bd_log_on(BD_LOG_##level)) {                                                        \
            static bd_log_site bd_site;                                                         \
            const char *bd_keys[] = {BD_LOG_CAT(BD_LOG_K, BD_LOG_N(__VA_ARGS__))(__VA_ARGS__)}; \
            bd_log_val bd_vals[] = {BD_LOG_CAT(BD_LOG_V, BD_LOG_N(__VA_ARGS__))(__VA_ARGS__)};  \
            bd_log_emit(&bd_site, BD_LOG_##level, event,                                        \
                        (int)(sizeof bd_keys / sizeof bd_keys[0]), bd_keys, bd_vals);           \
        }                                                                                       \
    } while (0)

#endif
