#include "rpc/rpc_stats.h"

#include "base/clock.h"
#include "base/metrics.h"

#include "rpc/rpc_status.h"

#include <pthread.h>
#include <string.h>

static rpc_stats slots[2][RPC_STATS_SLOTS];
static rpc_stats others[2] = {{.state = 2, .method = "other"}, {.state = 2, .method = "other"}};

/* Upper bounds of the buckets in ns; the last bucket has none. */
static const int64_t bounds_ns[RPC_STATS_BUCKETS - 1] = {
    20000,    50000,    100000,    200000,    500000,     1000000,    2000000,     5000000,
    10000000, 20000000, 100000000, 500000000, 1000000000, 5000000000, 30000000000,
};

static const char *const code_names[RPC_STATS_CODES] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

static uint32_t hash_of(const char *path)
{
    uint32_t h = 2166136261U; /* FNV-1a */
    for (; *path != '\0'; path++) {
        h = (h ^ (uint8_t)*path) * 16777619U;
    }
    return h;
}

static bool is_plain(const char *path)
{
    for (; *path != '\0'; path++) {
        if (*path <= ' ' || *path > '~' || *path == '"' || *path == '\\') {
            return false;
        }
    }
    return true;
}

rpc_stats *rpc_stats_of(rpc_side side, const char *path)
{
    if (path == NULL || path[0] != '/') {
        return &others[side];
    }
    uint32_t h = hash_of(path);
    for (uint32_t i = 0; i < RPC_STATS_SLOTS; i++) {
        rpc_stats *s = &slots[side][(h + i) % RPC_STATS_SLOTS];
        uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
        if (state == 0) {
            if (strlen(path) > sizeof s->method || !is_plain(path)) {
                break;
            }
            if (atomic_compare_exchange_strong(&s->state, &state, 1)) {
                s->hash = h;
                memcpy(s->method, path + 1, strlen(path));
                atomic_store_explicit(&s->state, 2, memory_order_release);
                return s;
            }
        }
        while (state == 1) { /* another thread writes the name, just now */
            state = atomic_load_explicit(&s->state, memory_order_acquire);
        }
        if (s->hash == h && strcmp(s->method, path + 1) == 0) {
            return s;
        }
    }
    return &others[side];
}

void rpc_stats_call(rpc_stats *s, bd_status rc, int64_t took_ns)
{
    int code = rpc_status_to_grpc(rc);
    int b = 0;
    while (b < RPC_STATS_BUCKETS - 1 && took_ns > bounds_ns[b]) {
        b++;
    }
    rpc_stats_add(&s->calls[code], 1);
    rpc_stats_add(&s->buckets[b], 1);
    rpc_stats_add(&s->total_ns, took_ns > 0 ? (uint64_t)took_ns : 0);
}

/* ---- the page ---- */

typedef void (*put_fn)(bd_page *p, const char *family, const rpc_stats *s);

static uint64_t load(const _Atomic uint64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static void put_calls(bd_page *p, const char *family, const rpc_stats *s)
{
    for (int c = 0; c < RPC_STATS_CODES; c++) {
        uint64_t n = load(&s->calls[c]);
        if (n > 0) {
            bd_page_sample(p, (double)n, "%s{method=\"%s\",code=\"%s\"}", family, s->method,
                           code_names[c]);
        }
    }
}

static void put_seconds(bd_page *p, const char *family, const rpc_stats *s)
{
    uint64_t n = 0;
    for (int b = 0; b < RPC_STATS_BUCKETS; b++) {
        n += load(&s->buckets[b]);
        if (b < RPC_STATS_BUCKETS - 1) {
            bd_page_sample(p, (double)n, "%s_bucket{method=\"%s\",le=\"%.15g\"}", family, s->method,
                           (double)bounds_ns[b] / (double)BD_NS_PER_S);
        } else {
            bd_page_sample(p, (double)n, "%s_bucket{method=\"%s\",le=\"+Inf\"}", family, s->method);
        }
    }
    bd_page_sample(p, (double)load(&s->total_ns) / (double)BD_NS_PER_S, "%s_sum{method=\"%s\"}",
                   family, s->method);
    bd_page_sample(p, (double)n, "%s_count{method=\"%s\"}", family, s->method);
}

static void put_bytes(bd_page *p, const char *family, const rpc_stats *s)
{
    bd_page_sample(p, (double)load(&s->received_bytes), "%s{method=\"%s\",direction=\"received\"}",
                   family, s->method);
    bd_page_sample(p, (double)load(&s->sent_bytes), "%s{method=\"%s\",direction=\"sent\"}", family,
                   s->method);
}

static void put_messages(bd_page *p, const char *family, const rpc_stats *s)
{
    uint64_t in = load(&s->received_messages), out = load(&s->sent_messages);
    if (in + out > 0) {
        bd_page_sample(p, (double)in, "%s{method=\"%s\",direction=\"received\"}", family,
                       s->method);
        bd_page_sample(p, (double)out, "%s{method=\"%s\",direction=\"sent\"}", family, s->method);
    }
}

static void put_family(bd_page *p, rpc_side side, const char *family, const char *kind,
                       const char *help, put_fn put)
{
    bd_page_family(p, family, kind, help);
    for (int i = 0; i <= RPC_STATS_SLOTS; i++) {
        const rpc_stats *s = i < RPC_STATS_SLOTS ? &slots[side][i] : &others[side];
        if (atomic_load_explicit(&s->state, memory_order_acquire) == 2) {
            put(p, family, s);
        }
    }
}

static void put_page(bd_page *p)
{
    put_family(p, RPC_SERVER_SIDE, "braid_rpc_server_calls_total", "counter",
               "calls and streams answered, by method and gRPC code (calls)", put_calls);
    put_family(p, RPC_SERVER_SIDE, "braid_rpc_server_call_seconds", "histogram",
               "from a request's arrival to its answer; streams: how long they were open (seconds)",
               put_seconds);
    put_family(p, RPC_SERVER_SIDE, "braid_rpc_server_bytes_total", "counter",
               "message bytes received and sent, by method (bytes)", put_bytes);
    put_family(p, RPC_SERVER_SIDE, "braid_rpc_server_stream_messages_total", "counter",
               "messages on streams, by method (messages)", put_messages);
    put_family(p, RPC_CLIENT_SIDE, "braid_rpc_client_calls_total", "counter",
               "own calls that ended, by method and gRPC code, after all tries (calls)", put_calls);
    put_family(p, RPC_CLIENT_SIDE, "braid_rpc_client_call_seconds", "histogram",
               "from the start of an own call to its end, with all tries (seconds)", put_seconds);
    put_family(p, RPC_CLIENT_SIDE, "braid_rpc_client_bytes_total", "counter",
               "message bytes received and sent by own calls (bytes)", put_bytes);
    put_family(p, RPC_CLIENT_SIDE, "braid_rpc_client_stream_messages_total", "counter",
               "messages on own streams (messages)", put_messages);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void register_page(void)
{
    bd_metrics_add_source(put_page);
}

void rpc_stats_register(void)
{
    (void)pthread_once(&once, register_page);
}
