#include "rpc/rpc_peers.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LOOK_AGAIN_NS (5 * BD_NS_PER_MS)

struct rpc_peer {
    rpc_peer *next; /* in its chain */
    char name[RPC_PEER_NAME_BYTES];
    int refs;          /* requests and streams */
    size_t bytes;      /* charged */
    double tokens;     /* requests it may send now; streams may go below zero */
    int64_t filled_ns; /* when tokens was right */
};

enum { CHAINS = 256 };

struct rpc_peers {
    rpc_limits limits;
    pthread_mutex_t lock; /* guards everything below */
    rpc_peer *chains[CHAINS];
    size_t n;
};

static bd_metric m_rate =
    BD_METRIC_COUNTER("braid_rpc_limited_requests_total", "requests",
                      "requests refused, or streams held up, by max_requests_per_second");
static bd_metric m_bytes =
    BD_METRIC_COUNTER("braid_rpc_limited_bytes_total", "requests",
                      "requests refused, or streams held up, by max_bytes_in_flight");
static bd_metric *const metrics[] = {&m_rate, &m_bytes};

void rpc_peers_register_metrics(void)
{
    bd_metrics_register(metrics, sizeof metrics / sizeof metrics[0]);
}

bd_status rpc_peers_new(const rpc_limits *limits, rpc_peers **out)
{
    *out = NULL;
    if (limits->max_bytes == 0 && limits->max_requests_per_s <= 0) {
        return BD_OK;
    }
    rpc_peers *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return BD_E_NOMEM;
    }
    p->limits = *limits;
    (void)pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return BD_OK;
}

void rpc_peers_free(rpc_peers *p)
{
    if (p == NULL) {
        return;
    }
    for (int c = 0; c < CHAINS; c++) {
        while (p->chains[c] != NULL) {
            rpc_peer *next = p->chains[c]->next;
            bd_free(p->chains[c]);
            p->chains[c] = next;
        }
    }
    (void)pthread_mutex_destroy(&p->lock);
    bd_free(p);
}

static uint32_t chain_of(const char *name)
{
    uint32_t h = 2166136261U;
    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619U;
    }
    return h % CHAINS;
}

static double burst_of(const rpc_peers *p)
{
    return p->limits.max_requests_per_s > 1 ? p->limits.max_requests_per_s : 1;
}

static void refill_locked(const rpc_peers *p, rpc_peer *peer, int64_t now_ns)
{
    double more =
        (double)(now_ns - peer->filled_ns) / (double)BD_NS_PER_S * p->limits.max_requests_per_s;
    if (more > 0) {
        double sum = peer->tokens + more;
        peer->tokens = sum < burst_of(p) ? sum : burst_of(p);
        peer->filled_ns = now_ns;
    }
}

/* Idle ones have had a second to fill their bucket: they are as good as new. */
static void forget_idle_locked(rpc_peers *p, int64_t now_ns)
{
    for (int c = 0; c < CHAINS; c++) {
        for (rpc_peer **at = &p->chains[c]; *at != NULL;) {
            rpc_peer *peer = *at;
            if (peer->refs == 0 && now_ns - peer->filled_ns >= BD_NS_PER_S) {
                *at = peer->next;
                bd_free(peer);
                p->n--;
            } else {
                at = &peer->next;
            }
        }
    }
}

/* With one more reference; NULL: no room, no memory. */
static rpc_peer *take_locked(rpc_peers *p, const char *name, int64_t now_ns)
{
    uint32_t c = chain_of(name);
    for (rpc_peer *peer = p->chains[c]; peer != NULL; peer = peer->next) {
        if (strncmp(peer->name, name, sizeof peer->name - 1) == 0) {
            peer->refs++;
            return peer;
        }
    }
    if (p->n >= RPC_PEERS_MAX) {
        forget_idle_locked(p, now_ns);
    }
    rpc_peer *peer = p->n < RPC_PEERS_MAX ? bd_calloc(1, sizeof *peer) : NULL;
    if (peer == NULL) {
        return NULL;
    }
    (void)snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->refs = 1;
    peer->tokens = burst_of(p);
    peer->filled_ns = now_ns;
    peer->next = p->chains[c];
    p->chains[c] = peer;
    p->n++;
    return peer;
}

static bd_status admit_locked(rpc_peers *p, rpc_peer *peer, size_t n_bytes, int64_t now_ns,
                              bd_err *err)
{
    const rpc_limits *l = &p->limits;
    if (l->max_requests_per_s > 0) {
        refill_locked(p, peer, now_ns);
        if (peer->tokens < 1) {
            bd_metric_add(&m_rate, 1);
            return bd_err_set(err, BD_E_EXHAUSTED,
                              "%s asks for more than %g requests a second "
                              "(max_requests_per_second): slow down",
                              peer->name, l->max_requests_per_s);
        }
    }
    /* A single request always fits: the server's message size bounds it. */
    if (l->max_bytes > 0 && peer->bytes > 0 && peer->bytes + n_bytes > l->max_bytes) {
        bd_metric_add(&m_bytes, 1);
        return bd_err_set(err, BD_E_EXHAUSTED,
                          "%s has %zu bytes of requests in flight (max_bytes_in_flight): slow down",
                          peer->name, peer->bytes);
    }
    peer->tokens -= l->max_requests_per_s > 0 ? 1 : 0;
    peer->bytes += n_bytes;
    return BD_OK;
}

bd_status rpc_peers_join(rpc_peers *p, const char *name, int64_t now_ns, rpc_peer **out,
                         bd_err *err)
{
    (void)pthread_mutex_lock(&p->lock);
    rpc_peer *peer = take_locked(p, name, now_ns);
    (void)pthread_mutex_unlock(&p->lock);
    if (peer == NULL) {
        return bd_err_set(err, BD_E_EXHAUSTED, "more than %d peers", RPC_PEERS_MAX);
    }
    *out = peer;
    return BD_OK;
}

bd_status rpc_peers_enter(rpc_peers *p, const char *name, size_t n_bytes, int64_t now_ns,
                          rpc_peer **out, bd_err *err)
{
    bd_status rc;
    (void)pthread_mutex_lock(&p->lock);
    rpc_peer *peer = take_locked(p, name, now_ns);
    if (peer == NULL) {
        rc = bd_err_set(err, BD_E_EXHAUSTED, "more than %d peers", RPC_PEERS_MAX);
    } else {
        rc = admit_locked(p, peer, n_bytes, now_ns, err);
        peer->refs -= rc == BD_OK ? 0 : 1;
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (rc == BD_OK) {
        *out = peer;
    }
    return rc;
}

void rpc_peers_leave(rpc_peers *p, rpc_peer *peer, size_t n_bytes)
{
    (void)pthread_mutex_lock(&p->lock);
    peer->bytes -= n_bytes;
    peer->refs--;
    (void)pthread_mutex_unlock(&p->lock);
}

static int64_t wait_locked(rpc_peers *p, rpc_peer *peer, int64_t now_ns)
{
    const rpc_limits *l = &p->limits;
    if (l->max_requests_per_s > 0) {
        refill_locked(p, peer, now_ns);
        if (peer->tokens < 0) {
            return (int64_t)(-peer->tokens / l->max_requests_per_s * (double)BD_NS_PER_S) + 1;
        }
    }
    return l->max_bytes > 0 && peer->bytes > l->max_bytes ? LOOK_AGAIN_NS : 0;
}

int64_t rpc_peers_charge(rpc_peers *p, rpc_peer *peer, size_t n_bytes, int64_t now_ns)
{
    (void)pthread_mutex_lock(&p->lock);
    peer->bytes += n_bytes;
    peer->tokens -= p->limits.max_requests_per_s > 0 ? 1 : 0;
    int64_t wait = wait_locked(p, peer, now_ns);
    if (wait > 0) {
        bd_metric_add(
            p->limits.max_bytes > 0 && peer->bytes > p->limits.max_bytes ? &m_bytes : &m_rate, 1);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return wait;
}

int64_t rpc_peers_wait_ns(rpc_peers *p, rpc_peer *peer, int64_t now_ns)
{
    (void)pthread_mutex_lock(&p->lock);
    int64_t wait = wait_locked(p, peer, now_ns);
    (void)pthread_mutex_unlock(&p->lock);
    return wait;
}

void rpc_peers_uncharge(rpc_peers *p, rpc_peer *peer, size_t n_bytes)
{
    (void)pthread_mutex_lock(&p->lock);
    peer->bytes -= n_bytes;
    (void)pthread_mutex_unlock(&p->lock);
}
