#include "tests/util/cut_proxy.h"

#include "base/mem.h"

#include "ring/ring_frame.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST_PAIRS 16

typedef struct pair {
    int outside;      /* who connected; -1: closed */
    int inside;       /* the rank */
    size_t n_outward; /* bytes that have left the rank */
} pair;

struct cut_proxy {
    bd_kv kv; /* first */
    bd_kv *inner;
    const char *key_end;
    size_t n_left; /* bytes towards the rank before it happens; thread */
    cut_how how;
    bool is_cut; /* thread */
    int listener;
    unsigned port;
    _Atomic int target_port; /* 0: not known yet */
    pair pairs[MOST_PAIRS];  /* thread */
    int n_pairs;
    _Atomic bool must_stop;
    pthread_t thread;
};

static int loopback_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
}

/* The store. */

static bd_status proxy_get(bd_kv *kv, const char *key, int64_t timeout_ms, char **val,
                           size_t *n_bytes, bd_err *err)
{
    bd_kv *inner = ((cut_proxy *)kv)->inner;
    return inner->get(inner, key, timeout_ms, val, n_bytes, err);
}

static bd_status proxy_set(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    bd_kv *inner = ((cut_proxy *)kv)->inner;
    return inner->set(inner, key, val, n_bytes, err);
}

static bd_status proxy_del(bd_kv *kv, const char *key, bd_err *err)
{
    bd_kv *inner = ((cut_proxy *)kv)->inner;
    return inner->del(inner, key, err);
}

static bd_status proxy_compare_set(bd_kv *kv, const char *key, const char *expected,
                                   const char *desired, bool *swapped, bd_err *err)
{
    cut_proxy *p = (cut_proxy *)kv;
    size_t n = strlen(key), n_end = strlen(p->key_end);
    char own[64];
    if (n >= n_end && strcmp(key + n - n_end, p->key_end) == 0) {
        const char *colon = strrchr(desired, ':');
        atomic_store(&p->target_port, colon == NULL ? 0 : (int)strtol(colon + 1, NULL, 10));
        const char *mark = strchr(desired, ' ');
        (void)snprintf(own, sizeof own, "127.0.0.1:%u%s", p->port, mark != NULL ? mark : "");
        desired = own;
    }
    return p->inner->compare_set(p->inner, key, expected, desired, swapped, err);
}

/* The wire. */

static void close_pair(pair *c)
{
    if (c->outside >= 0) {
        (void)close(c->outside);
        (void)close(c->inside);
    }
    c->outside = -1;
    c->inside = -1;
}

static void accept_one(cut_proxy *p)
{
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    struct sockaddr_in to = loopback((unsigned)atomic_load(&p->target_port));
    if (fd < 0) {
        return;
    }
    int inside = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->n_pairs == MOST_PAIRS || inside < 0 ||
        connect(inside, (struct sockaddr *)&to, sizeof to) != 0) {
        (void)close(fd);
        if (inside >= 0) {
            (void)close(inside);
        }
        return;
    }
    p->pairs[p->n_pairs++] = (pair){.outside = fd, .inside = inside};
}

static bool write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k <= 0) {
            return false;
        }
        bytes += k;
        n -= (size_t)k;
    }
    return true;
}

static void close_all(cut_proxy *p)
{
    for (int i = 0; i < p->n_pairs; i++) {
        close_pair(&p->pairs[i]);
    }
}

static size_t most_outward(const cut_proxy *p, const pair *c, size_t most)
{
    size_t left = RING_FRAME_BYTES - c->n_outward;
    return p->how != CUT_STALL || most < left ? most : left;
}

/* Moves what is there from one side to the other; an end closes both. */
static void forward(cut_proxy *p, pair *c, bool inwards)
{
    static uint8_t bytes[1 << 16]; /* one thread */
    bool counts = inwards && !p->is_cut;
    size_t most = counts && p->n_left < sizeof bytes ? p->n_left : sizeof bytes;
    most = inwards ? most : most_outward(p, c, most);
    bool flips = counts && p->how == CUT_FLIP && most == 0;
    ssize_t n = recv(inwards ? c->outside : c->inside, bytes, flips ? 1 : most, 0);
    if (n <= 0) {
        close_pair(c);
        return;
    }
    if (flips) {
        bytes[0] = (uint8_t)~bytes[0];
        p->is_cut = true;
    }
    bool is_written = write_all(inwards ? c->inside : c->outside, bytes, (size_t)n);
    if (!is_written && p->how != CUT_STALL) { /* else a rank has ended before it heard anything */
        close_pair(c);
        return;
    }
    c->n_outward += inwards ? 0 : (size_t)n;
    if (counts && !flips) {
        p->n_left -= (size_t)n;
        p->is_cut = p->n_left == 0 && p->how != CUT_FLIP;
        if (p->is_cut && p->how == CUT_CLOSE) {
            close_all(p);
        }
    }
}

static void *proxy_main(void *arg)
{
    cut_proxy *p = arg;
    while (!atomic_load(&p->must_stop)) {
        struct pollfd fds[1 + 2 * MOST_PAIRS] = {{.fd = p->listener, .events = POLLIN}};
        int n = p->n_pairs;
        bool is_stalled = p->is_cut && p->how == CUT_STALL;
        for (int i = 0; i < n; i++) {
            fds[1 + 2 * i] = (struct pollfd){.fd = p->pairs[i].outside, .events = POLLIN};
            bool is_shut = most_outward(p, &p->pairs[i], 1) == 0;
            fds[2 + 2 * i] =
                (struct pollfd){.fd = is_shut ? -1 : p->pairs[i].inside, .events = POLLIN};
        }
        if (poll(fds, is_stalled ? 1 : (nfds_t)(1 + 2 * n), 20) <= 0) {
            continue;
        }
        if (fds[0].revents != 0) {
            accept_one(p);
        }
        for (int i = 0; i < n && !(p->is_cut && p->how == CUT_STALL); i++) {
            if (p->pairs[i].outside >= 0 && fds[1 + 2 * i].revents != 0) {
                forward(p, &p->pairs[i], true);
            }
            if (p->pairs[i].outside >= 0 && fds[2 + 2 * i].revents != 0) {
                forward(p, &p->pairs[i], false);
            }
        }
    }
    return NULL;
}

cut_proxy *cut_proxy_new(bd_kv *kv, const char *key_end, size_t n_bytes, cut_how how)
{
    cut_proxy *p = bd_calloc(1, sizeof *p);
    struct sockaddr_in at = loopback(0);
    socklen_t n = sizeof at;
    assert_non_null(p);
    p->kv = (bd_kv){
        .set = proxy_set, .get = proxy_get, .compare_set = proxy_compare_set, .del = proxy_del};
    p->inner = kv;
    p->key_end = key_end;
    p->n_left = n_bytes;
    p->how = how;
    p->listener = loopback_socket();
    assert_int_equal(bind(p->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(p->listener, MOST_PAIRS), 0);
    assert_int_equal(getsockname(p->listener, (struct sockaddr *)&at, &n), 0);
    p->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&p->thread, NULL, proxy_main, p), 0);
    return p;
}

bd_kv *cut_proxy_kv(cut_proxy *p)
{
    return &p->kv;
}

void cut_proxy_free(cut_proxy *p)
{
    atomic_store(&p->must_stop, true);
    (void)pthread_join(p->thread, NULL);
    close_all(p);
    (void)close(p->listener);
    bd_free(p);
}
