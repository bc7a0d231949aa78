#include "rpc/rpc_conns.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_EVERY_NS  (250 * BD_NS_PER_MS)
#define SHARE_OF_TIME  8   /* a look may take an eighth of the time */
#define ACCEPTS_PER_MS 100 /* no machine accepts faster: so often the door is watched */
#define RESERVE_LEAST  256
#define RESERVE_MOST   8192
#define MAX_LISTENERS  8

typedef struct conn {
    struct in6_addr host; /* IPv4: mapped */
    in_port_t port;       /* the peer's */
    int fd;
    uint64_t since; /* look at which it was first seen */
    bool is_shut;   /* by us; gRPC has not closed it yet */
} conn;

struct rpc_conns {
    int port, max_per_peer;
    DIR *dir;                     /* of the process's descriptors */
    int null_fd, look_fd;         /* look_fd: what is being looked at, else a second null_fd */
    int listeners[MAX_LISTENERS]; /* duplicates of the listening sockets */
    int n_listeners;
    int n_max, n_reserve; /* descriptors of the process; so many stay free */
    bool door_closed;
    pthread_t thread;
    pthread_mutex_t lock; /* guards stop */
    pthread_cond_t wake;
    bool stop;
    /* the thread's own */
    conn *seen, *last; /* [n_seen], [n_last] sorted by host and port; last: of the look before */
    size_t n_seen, n_last, cap_seen, cap_last;
    uint64_t look;
};

static bd_metric m_open = BD_METRIC_GAUGE("braid_rpc_connections", "connections",
                                          "open TCP connections to the gRPC port");
static bd_metric m_limited =
    BD_METRIC_COUNTER("braid_rpc_limited_connections_total", "connections",
                      "connections closed because their peer, or all together, had too many");
static bd_metric m_door = BD_METRIC_COUNTER(
    "braid_rpc_door_closed_total", "times",
    "new connections were held off because the process was running out of file descriptors");
static bd_metric *const metrics[] = {&m_open, &m_limited, &m_door};

static int by_peer(const void *a, const void *b)
{
    const conn *x = a, *y = b;
    int c = memcmp(&x->host, &y->host, sizeof x->host);
    return c != 0 ? c : (x->port > y->port) - (x->port < y->port);
}

/* By host, oldest first. */
static int by_age(const void *a, const void *b)
{
    const conn *x = a, *y = b;
    int c = memcmp(&x->host, &y->host, sizeof x->host);
    return c != 0 ? c : (x->since > y->since) - (x->since < y->since);
}

static bool split(const struct sockaddr_storage *a, struct in6_addr *host, in_port_t *port)
{
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *s = (const void *)a;
        *host = s->sin6_addr;
        *port = ntohs(s->sin6_port);
        return true;
    }
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *s = (const void *)a;
        memset(host, 0, sizeof *host);
        host->s6_addr[10] = host->s6_addr[11] = 0xff;
        memcpy(&host->s6_addr[12], &s->sin_addr, sizeof s->sin_addr);
        *port = ntohs(s->sin_port);
        return true;
    }
    return false;
}

/* look_fd becomes a duplicate of fd, if that is a connection to our port. */
static bool look_at(rpc_conns *c, int fd, conn *out)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t n_here = sizeof here, n_there = sizeof there;
    struct in6_addr host;
    in_port_t port = 0;
    if (dup3(fd, c->look_fd, O_CLOEXEC) < 0) {
        return false;
    }
    if (getsockname(c->look_fd, (struct sockaddr *)&here, &n_here) != 0 ||
        !split(&here, &host, &port) || port != c->port ||
        getpeername(c->look_fd, (struct sockaddr *)&there, &n_there) != 0) {
        return false;
    }
    out->fd = fd;
    return split(&there, &out->host, &out->port);
}

static void let_go(rpc_conns *c)
{
    (void)dup3(c->null_fd, c->look_fd, O_CLOEXEC);
}

static const struct dirent *next_entry(rpc_conns *c)
{
    return readdir(c->dir); // NOLINT(concurrency-mt-unsafe): this thread's own stream
}

static void collect(rpc_conns *c)
{
    c->n_seen = 0;
    rewinddir(c->dir);
    for (const struct dirent *e = next_entry(c); e != NULL; e = next_entry(c)) {
        conn found;
        void *items = c->seen;
        int fd = (int)strtol(e->d_name, NULL, 10);
        if (e->d_name[0] == '.' || fd == c->null_fd || fd == c->look_fd ||
            !look_at(c, fd, &found)) {
            continue;
        }
        if (!bd_grow(&items, &c->cap_seen, c->n_seen + 1, sizeof *c->seen)) {
            break;
        }
        c->seen = items;
        c->seen[c->n_seen++] = found;
    }
    let_go(c);
    for (size_t i = 0; i < c->n_seen; i++) {
        const conn *old = c->n_last == 0
                              ? NULL
                              : bsearch(&c->seen[i], c->last, c->n_last, sizeof *c->last, by_peer);
        c->seen[i].since = old != NULL ? old->since : c->look;
        c->seen[i].is_shut = old != NULL && old->is_shut;
    }
}

static void shut(rpc_conns *c, const conn *victim)
{
    conn now;
    if (look_at(c, victim->fd, &now) && by_peer(&now, victim) == 0) {
        (void)shutdown(c->look_fd, SHUT_RDWR);
        bd_metric_add(&m_limited, 1);
    }
    let_go(c);
}

static bool same_host(const conn *a, const conn *b)
{
    return memcmp(&a->host, &b->host, sizeof a->host) == 0;
}

/* The newest ones beyond the limits go. */
static void enforce(rpc_conns *c)
{
    size_t of_peer = 0, kept = 0, n_shut = 0, most = (size_t)c->n_max / 2;
    qsort(c->seen, c->n_seen, sizeof *c->seen, by_age);
    for (size_t i = 0; i < c->n_seen; i++) {
        of_peer = i > 0 && same_host(&c->seen[i], &c->seen[i - 1]) ? of_peer + 1 : 1;
        bool too_many = (c->max_per_peer > 0 && of_peer > (size_t)c->max_per_peer) || kept >= most;
        if (too_many && !c->seen[i].is_shut) {
            shut(c, &c->seen[i]);
            c->seen[i].is_shut = true;
            n_shut++;
        }
        kept += too_many ? 0 : 1;
    }
    if (n_shut > 0) {
        BD_LOG(WARN,
               "connections closed, their peer has too many: look at it, or raise max_connections",
               "closed", n_shut, "kept", kept, "max", c->max_per_peer);
    }
}

static void look(rpc_conns *c)
{
    c->look++;
    collect(c);
    if (c->n_seen > 0) {
        enforce(c);
        qsort(c->seen, c->n_seen, sizeof *c->seen, by_peer);
    }
    bd_metric_set(&m_open, (double)c->n_seen);
    conn *t = c->last;
    size_t cap = c->cap_last;
    c->last = c->seen;
    c->cap_last = c->cap_seen;
    c->n_last = c->n_seen;
    c->seen = t;
    c->cap_seen = cap;
}

static bool sleep_until_stop(rpc_conns *c, int64_t ns)
{
    struct timespec until;
    int64_t at = bd_wall_ns() + ns;
    until.tv_sec = at / BD_NS_PER_S;
    until.tv_nsec = at % BD_NS_PER_S;
    (void)pthread_mutex_lock(&c->lock);
    while (!c->stop && pthread_cond_timedwait(&c->wake, &c->lock, &until) != ETIMEDOUT) {
    }
    bool stop = c->stop;
    (void)pthread_mutex_unlock(&c->lock);
    return stop;
}

/* ---- the door ---- */

static void set_door(rpc_conns *c, bool closed)
{
    struct sock_filter drop = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {.len = 1, .filter = &drop};
    int none = 0;
    for (int i = 0; i < c->n_listeners; i++) {
        if (closed) {
            (void)setsockopt(c->listeners[i], SOL_SOCKET, SO_ATTACH_FILTER, &program,
                             sizeof program);
        } else {
            (void)setsockopt(c->listeners[i], SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
        }
    }
    c->door_closed = closed;
}

/* True: descriptors are short, look at once. The lowest free number tells how many are in use. */
static bool watch_door(rpc_conns *c)
{
    int lowest = fcntl(c->null_fd, F_DUPFD_CLOEXEC, 0);
    if (lowest >= 0) {
        (void)close(lowest);
    }
    bool is_short = lowest < 0 || lowest > c->n_max - c->n_reserve;
    if (is_short && !c->door_closed) {
        set_door(c, true);
        bd_metric_add(&m_door, 1);
        BD_LOG(WARN, "new connections held off, file descriptors run out: raise the limit (nofile)",
               "max", c->n_max, "reserve", c->n_reserve);
    } else if (!is_short && c->door_closed) {
        set_door(c, false);
        BD_LOG(INFO, "new connections are taken again", "max", c->n_max);
    }
    return is_short;
}

static bool listens(const rpc_conns *c, int fd)
{
    struct sockaddr_storage here = {0};
    struct in6_addr host;
    in_port_t port = 0;
    int is_listener = 0;
    socklen_t n_here = sizeof here, n = sizeof is_listener;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listener, &n) == 0 && is_listener != 0 &&
           getsockname(fd, (struct sockaddr *)&here, &n_here) == 0 && split(&here, &host, &port) &&
           port == c->port;
}

/* Duplicates of the sockets that listen on the port. */
static void find_listeners(rpc_conns *c)
{
    int found[MAX_LISTENERS], n = 0;
    if (c->dir == NULL) {
        return;
    }
    rewinddir(c->dir);
    for (const struct dirent *e = next_entry(c); e != NULL && n < MAX_LISTENERS;
         e = next_entry(c)) {
        int fd = (int)strtol(e->d_name, NULL, 10);
        if (e->d_name[0] != '.' && listens(c, fd)) {
            found[n++] = fd;
        }
    }
    for (int i = 0; i < n; i++) { /* not while walking: they would be found, too */
        int copy = fcntl(found[i], F_DUPFD_CLOEXEC, 0);
        if (copy >= 0) {
            c->listeners[c->n_listeners++] = copy;
            /* gRPC takes all that wait there at once, before the door can be closed. */
            (void)listen(copy, c->n_reserve / 4);
        }
    }
}

static void *conns_main(void *arg)
{
    rpc_conns *c = arg;
    int64_t step_ns = (int64_t)c->n_reserve / ACCEPTS_PER_MS * BD_NS_PER_MS;
    int64_t next_look = 0;
    step_ns = step_ns < 2 * BD_NS_PER_MS ? 2 * BD_NS_PER_MS : step_ns;
    while (!sleep_until_stop(c, step_ns)) {
        int64_t start = bd_mono_ns();
        if (watch_door(c) || start >= next_look) {
            look(c);
            int64_t pause = (bd_mono_ns() - start) * SHARE_OF_TIME;
            next_look = bd_mono_ns() + (pause > LOOK_EVERY_NS ? pause : LOOK_EVERY_NS);
        }
    }
    if (c->door_closed) {
        set_door(c, false);
    }
    return NULL;
}

static void measure_descriptors(rpc_conns *c)
{
    struct rlimit l = {.rlim_cur = 1024};
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        struct rlimit more = {.rlim_cur = l.rlim_max, .rlim_max = l.rlim_max};
        l.rlim_cur = setrlimit(RLIMIT_NOFILE, &more) == 0 ? l.rlim_max : l.rlim_cur;
    }
    c->n_max = l.rlim_cur > INT_MAX ? INT_MAX : (int)l.rlim_cur;
    int least = c->n_max / 2 < RESERVE_LEAST ? c->n_max / 2 : RESERVE_LEAST;
    c->n_reserve = c->n_max / 4 > least ? c->n_max / 4 : least;
    c->n_reserve = c->n_reserve < RESERVE_MOST ? c->n_reserve : RESERVE_MOST;
}

static void conns_free(rpc_conns *c)
{
    if (c->dir != NULL) {
        (void)closedir(c->dir);
    }
    if (c->null_fd >= 0) {
        (void)close(c->null_fd);
    }
    if (c->look_fd >= 0) {
        (void)close(c->look_fd);
    }
    for (int i = 0; i < c->n_listeners; i++) {
        (void)close(c->listeners[i]);
    }
    (void)pthread_cond_destroy(&c->wake);
    (void)pthread_mutex_destroy(&c->lock);
    bd_free(c->seen);
    bd_free(c->last);
    bd_free(c);
}

bd_status rpc_conns_start(int port, int max_per_peer, rpc_conns **out, bd_err *err)
{
    rpc_conns *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "limit of connections: out of memory");
    }
    bd_metrics_register(metrics, sizeof metrics / sizeof metrics[0]);
    measure_descriptors(c);
    c->port = port;
    c->max_per_peer = max_per_peer;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->wake, NULL);
    c->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    c->look_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    c->dir = opendir("/proc/self/fd");
    int e = c->null_fd < 0 || c->look_fd < 0 || c->dir == NULL ? errno : 0;
    if (e == 0) {
        find_listeners(c);
        e = pthread_create(&c->thread, NULL, conns_main, c);
    }
    if (e != 0) {
        conns_free(c);
        return bd_err_errno(err, BD_E_IO, e, "limit of connections");
    }
    *out = c;
    return BD_OK;
}

void rpc_conns_stop(rpc_conns *c)
{
    if (c == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&c->lock);
    c->stop = true;
    (void)pthread_cond_signal(&c->wake);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    conns_free(c);
}
