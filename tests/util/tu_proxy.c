#include "tests/util/tu_proxy.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_PAIRS   64
#define PIECE_BYTES 65536

/* Two connections; half [i] holds what came from side i and goes to the other. */
typedef struct half {
    uint8_t *bytes; /* owned [PIECE_BYTES] */
    size_t n, sent;
    int64_t hold_until_ns;
} half;

typedef struct pair {
    int fds[2];
    half halves[2];
} pair;

struct tu_proxy {
    tu_proxy_options opt;
    int listen_fd;
    char address[64];
    _Atomic uint64_t target; /* the IPv4 address, then 16 bits of port; 0: not set */
    _Atomic bool quit;
    _Atomic uint64_t cuts, delays;
    uint64_t draws; /* the thread's */
    pair pairs[MAX_PAIRS];
    size_t n_pairs;
    pthread_t thread;
};

static void check(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}

static bool draw(tu_proxy *p, uint32_t permille)
{
    return bd_rand_u64(p->opt.seed, 1, p->draws++) % 1000 < permille;
}

static int connect_to(uint64_t target)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl((uint32_t)(target >> 16))},
                            .sin_port = htons((uint16_t)target)};
    check(fd >= 0, "socket");
    if (connect(fd, (const struct sockaddr *)(const void *)&a, sizeof a) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void accept_one(tu_proxy *p)
{
    int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
    if (fd < 0) {
        return;
    }
    uint64_t target = atomic_load(&p->target);
    int out = target == 0 || p->n_pairs == MAX_PAIRS ? -1 : connect_to(target);
    if (out < 0) { /* the server is away: so is the proxy */
        (void)close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pair *c = &p->pairs[p->n_pairs++];
    *c = (pair){.fds = {fd, out}};
    for (int i = 0; i < 2; i++) {
        c->halves[i].bytes = bd_alloc(PIECE_BYTES);
        check(c->halves[i].bytes != NULL, "memory");
    }
}

static void end_pair(tu_proxy *p, size_t i)
{
    pair *c = &p->pairs[i];
    for (int k = 0; k < 2; k++) {
        (void)close(c->fds[k]);
        bd_free(c->halves[k].bytes);
    }
    *c = p->pairs[--p->n_pairs];
}

/* Takes what came from one side. False: the pair has ended. */
static bool read_half(tu_proxy *p, pair *c, int from)
{
    half *h = &c->halves[from];
    ssize_t n = read(c->fds[from], h->bytes, PIECE_BYTES);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n <= 0) {
        return false;
    }
    h->n = (size_t)n;
    h->sent = 0;
    if (draw(p, p->opt.cut_permille)) {
        (void)atomic_fetch_add(&p->cuts, 1);
        return false;
    }
    if (draw(p, p->opt.delay_permille)) {
        (void)atomic_fetch_add(&p->delays, 1);
        h->hold_until_ns = bd_mono_ns() + (int64_t)(bd_rand_u64(p->opt.seed, 2, p->draws++) %
                                                    (p->opt.delay_ms + 1)) *
                                              BD_NS_PER_MS;
    }
    return true;
}

static bool write_half(pair *c, int from)
{
    half *h = &c->halves[from];
    ssize_t n = send(c->fds[1 - from], h->bytes + h->sent, h->n - h->sent, MSG_NOSIGNAL);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    h->sent += (size_t)n;
    if (h->sent == h->n) {
        h->n = 0;
    }
    return true;
}

static int fill_polls(const tu_proxy *p, struct pollfd *polls)
{
    int timeout = 50;
    int64_t now = bd_mono_ns();
    polls[0] = (struct pollfd){.fd = p->listen_fd, .events = POLLIN};
    for (size_t i = 0; i < p->n_pairs; i++) {
        for (int k = 0; k < 2; k++) {
            const half *in = &p->pairs[i].halves[k], *out = &p->pairs[i].halves[1 - k];
            bool held = out->n > 0 && out->hold_until_ns > now;
            polls[1 + 2 * i + (size_t)k] = (struct pollfd){
                .fd = p->pairs[i].fds[k],
                .events = (short)((in->n == 0 ? POLLIN : 0) | (out->n > 0 && !held ? POLLOUT : 0))};
            timeout = held ? 1 : timeout;
        }
    }
    return timeout;
}

static void *proxy_main(void *user)
{
    tu_proxy *p = user;
    while (!atomic_load(&p->quit)) {
        struct pollfd polls[1 + 2 * MAX_PAIRS];
        size_t n = p->n_pairs;
        int timeout = fill_polls(p, polls);
        (void)poll(polls, (nfds_t)(1 + 2 * n), timeout);
        for (size_t i = n; i-- > 0;) {
            bool alive = true;
            for (int k = 0; k < 2 && alive; k++) {
                short got = polls[1 + 2 * i + (size_t)k].revents;
                if ((got & POLLOUT) != 0) {
                    alive = write_half(&p->pairs[i], 1 - k);
                }
                if (alive && (got & (POLLIN | POLLHUP | POLLERR)) != 0 &&
                    p->pairs[i].halves[k].n == 0) {
                    alive = read_half(p, &p->pairs[i], k);
                }
            }
            if (!alive) {
                end_pair(p, i);
            }
        }
        if ((polls[0].revents & POLLIN) != 0) {
            accept_one(p);
        }
    }
    return NULL;
}

tu_proxy *tu_proxy_new(const tu_proxy_options *opt)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    tu_proxy *p = bd_calloc(1, sizeof *p);
    check(p != NULL, "memory");
    p->opt = *opt;
    p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    check(p->listen_fd >= 0 &&
              bind(p->listen_fd, (const struct sockaddr *)(const void *)&a, sizeof a) == 0 &&
              listen(p->listen_fd, 16) == 0 &&
              getsockname(p->listen_fd, (struct sockaddr *)(void *)&a, &n) == 0,
          "listen");
    (void)snprintf(p->address, sizeof p->address, "127.0.0.1:%d", ntohs(a.sin_port));
    check(pthread_create(&p->thread, NULL, proxy_main, p) == 0, "thread");
    return p;
}

const char *tu_proxy_address(const tu_proxy *p)
{
    return p->address;
}

void tu_proxy_set_target(tu_proxy *p, const char *target)
{
    const char *colon = strrchr(target, ':');
    char host[32] = "";
    struct in_addr at = {0};
    if (colon == NULL) {
        check(false, "target");
        return;
    }
    (void)snprintf(host, sizeof host, "%.*s", (int)(colon - target), target);
    check(inet_pton(AF_INET, host, &at) == 1, "target");
    atomic_store(&p->target, (uint64_t)ntohl(at.s_addr) << 16 | strtoul(colon + 1, NULL, 10));
}

uint64_t tu_proxy_cuts(tu_proxy *p)
{
    return atomic_load(&p->cuts);
}

uint64_t tu_proxy_delays(tu_proxy *p)
{
    return atomic_load(&p->delays);
}

void tu_proxy_free(tu_proxy *p)
{
    atomic_store(&p->quit, true);
    (void)pthread_join(p->thread, NULL);
    while (p->n_pairs > 0) {
        end_pair(p, 0);
    }
    (void)close(p->listen_fd);
    bd_free(p);
}
