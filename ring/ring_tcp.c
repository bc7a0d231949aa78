/* Life of the tcp backend: taking over connected sockets, failing, closing. */
#include "base/assert.h"
#include "base/cgroup.h"
#include "base/mem.h"

#include "ring/ring_meet.h"
#include "ring/ring_tcp_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_MS  200
#define LINGER_MS 1000

static bd_status tcp_send(ring_transport *b, int peer, int lane, const ring_frame *f,
                          const void *payload, bd_err *err)
{
    ring_tcp *t = (ring_tcp *)(void *)b;
    return ring_conn_send(&t->conns[peer * t->comm->engine.n_lanes + lane], f, payload, err);
}

void ring_tcp_on_bound(ring_tcp *t)
{
    for (int i = 0; i < t->n_conns; i++) {
        if (t->is_closing || ring_conn_has_data_out(&t->conns[i])) {
            ring_conn_close(&t->conns[i]);
        }
    }
    if (t->is_draining) {
        t->is_draining = false;
        ring_engine_on_quiet(&t->comm->engine);
    }
}

static bool tcp_quiesce(ring_transport *b)
{
    ring_tcp *t = (ring_tcp *)(void *)b;
    bool quiet = true;
    for (int i = 0; i < t->n_conns; i++) {
        ring_conn_sink(&t->conns[i]);
        quiet = ring_conn_quiesce(&t->conns[i]) && quiet;
    }
    if (!quiet) {
        t->is_draining = true;
        t->bound_ns = bd_mono_ns() + DRAIN_MS * BD_NS_PER_MS;
    }
    return quiet;
}

/* Closing. */

bool ring_tcp_any_open(const ring_tcp *t)
{
    for (int i = 0; i < t->n_conns; i++) {
        if (t->conns[i].fd >= 0) {
            return true;
        }
    }
    return false;
}

void ring_tcp_begin_close(ring_tcp *t)
{
    if (!atomic_load(&t->is_frozen)) {
        ring_comm_goodbye(t->comm);
    }
    t->is_closing = true;
    bool failed = t->comm->engine.failure.code != BD_OK;
    t->bound_ns = bd_mono_ns() + (failed ? DRAIN_MS : LINGER_MS) * BD_NS_PER_MS;
    for (int i = 0; i < t->n_conns; i++) {
        ring_conn_sink(&t->conns[i]);
        ring_conn_shut(&t->conns[i]);
    }
}

/* Faults. */

void ring_tcp_die(ring_tcp *t)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    for (int i = 0; i < t->n_conns; i++) {
        if (t->conns[i].fd >= 0) {
            (void)setsockopt(t->conns[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            ring_conn_close(&t->conns[i]);
        }
    }
}

void ring_tcp_test_stop(ring_comm *c)
{
    ring_tcp *t = (ring_tcp *)(void *)c->backend;
    atomic_store(&t->is_frozen, true);
    c->backend->wake(c->backend);
}

void ring_tcp_test_kill(ring_comm *c)
{
    ring_tcp *t = (ring_tcp *)(void *)c->backend;
    atomic_store(&t->must_die, true);
    ring_tcp_test_stop(c);
}

/* Life. */

static void tcp_free(ring_tcp *t)
{
    for (int i = 0; t->conns != NULL && i < t->n_conns; i++) {
        ring_conn_deinit(&t->conns[i]);
    }
    if (t->kick_fd >= 0) {
        (void)close(t->kick_fd);
    }
    if (t->wake_fd >= 0) {
        (void)close(t->wake_fd);
    }
    bd_free(t->conns);
    bd_free(t->polled);
    bd_free(t->looked);
    bd_free(t);
}

static void tcp_stop(ring_backend *b)
{
    ring_tcp *t = (ring_tcp *)b;
    ring_tcp_wake(b);
    (void)pthread_join(t->thread, NULL);
    tcp_free(t);
}

/* Whether the peer of fd has this host's address: loopback, or both ends the same. */
static bool is_local_peer(int fd)
{
    struct sockaddr_storage own = {0};
    struct sockaddr_storage peer = {0};
    socklen_t n_own = sizeof own;
    socklen_t n_peer = sizeof peer;
    if (getsockname(fd, (struct sockaddr *)&own, &n_own) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &n_peer) != 0) {
        return false;
    }
    if (own.ss_family == AF_INET) {
        struct sockaddr_in a;
        struct sockaddr_in b;
        memcpy(&a, &own, sizeof a);
        memcpy(&b, &peer, sizeof b);
        return a.sin_addr.s_addr == b.sin_addr.s_addr || ntohl(b.sin_addr.s_addr) >> 24 == 127;
    }
    if (own.ss_family == AF_INET6) {
        struct sockaddr_in6 a;
        struct sockaddr_in6 b;
        memcpy(&a, &own, sizeof a);
        memcpy(&b, &peer, sizeof b);
        return IN6_ARE_ADDR_EQUAL(&a.sin6_addr, &b.sin6_addr);
    }
    return own.ss_family == AF_UNIX;
}

/* A connection takes over its socket here: *fd becomes -1. */
static bd_status open_conn(ring_tcp *t, int idx, int *fd, bd_err *err)
{
    ring_conn *c = &t->conns[idx];
    int flags = fcntl(*fd, F_GETFL);
    if (flags < 0 || fcntl(*fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "connection to rank %d", c->peer);
    }
    c->fd = *fd;
    c->is_local = is_local_peer(*fd);
    *fd = -1;
    return BD_OK;
}

/* A value of /proc/sys/net/core; 0: not known. */
static long core_limit(const char *name)
{
    char path[64];
    char text[32] = "";
    (void)snprintf(path, sizeof path, "/proc/sys/net/core/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    return n > 0 ? strtol(text, NULL, 10) : 0;
}

/* Large enough buffers that the window of loopback stays open. Not set where the host would cut
 * them: that only switches off the kernel's own tuning, which goes further. */
static bool set_buffers(int fd)
{
    const int want = (int)RING_TCP_BUFFER_BYTES;
    int sent = setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &want, sizeof want);
    int got = setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &want, sizeof want);
    if (sent == 0 && got == 0) {
        return true;
    }
    if (core_limit("wmem_max") < want || core_limit("rmem_max") < want) {
        return false;
    }
    return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &want, sizeof want) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &want, sizeof want) == 0;
}

static bd_status open_conns(ring_tcp *t, int *fds, bd_err *err)
{
    ring_comm *c = t->comm;
    int n_lanes = c->engine.n_lanes;
    int n_local = 1;
    bool all_large = true;
    for (int i = 0; i < t->n_conns; i++) {
        ring_conn *conn = &t->conns[i];
        conn->peer = i / n_lanes;
        conn->lane = i % n_lanes;
        if (conn->peer == ring_rank(c)) {
            continue;
        }
        bd_status rc = open_conn(t, i, &fds[i], err);
        if (rc != BD_OK) {
            return rc;
        }
        n_local += conn->lane == 0 && conn->is_local ? 1 : 0;
        all_large = all_large && (!conn->is_local || set_buffers(conn->fd));
    }
    t->may_spin = n_local <= bd_cpus();
    /* more ranks than cores share their caches, too */
    t->lead_bytes = all_large && t->may_spin ? 2 * RING_TCP_LEAD_BYTES : RING_TCP_LEAD_BYTES;
    return BD_OK;
}

static ring_tcp *tcp_new(ring_comm *c)
{
    ring_tcp *t = bd_calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->backend.transport.send = tcp_send;
    t->backend.transport.quiesce = tcp_quiesce;
    t->backend.wake = ring_tcp_wake;
    t->backend.drive = ring_tcp_drive;
    t->backend.stop = tcp_stop;
    t->comm = c;
    t->bound_ns = INT64_MAX;
    t->n_conns = ring_world(c) * c->engine.n_lanes;
    t->conns = bd_calloc((size_t)t->n_conns, sizeof *t->conns);
    t->polled = bd_calloc((size_t)t->n_conns + 1, sizeof *t->polled);
    t->looked = bd_calloc((size_t)t->n_conns + 1, sizeof *t->looked);
    for (int i = 0; t->conns != NULL && i < t->n_conns; i++) {
        t->conns[i].owner = t;
        t->conns[i].fd = -1;
    }
    t->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->conns == NULL || t->polled == NULL || t->looked == NULL) {
        tcp_free(t);
        return NULL;
    }
    return t;
}

bd_status ring_tcp_attach(ring_comm *c, int *fds, bd_err *err)
{
    ring_tcp *t = tcp_new(c);
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring over tcp");
    }
    bd_status rc = t->kick_fd < 0 || t->wake_fd < 0
                       ? bd_err_errno(err, BD_E_EXHAUSTED, errno, "wake-up of the communicator")
                       : open_conns(t, fds, err);
    c->engine.transport = &t->backend.transport;
    if (rc == BD_OK && pthread_create(&t->thread, NULL, ring_tcp_main, t) != 0) {
        rc = bd_err_set(err, BD_E_EXHAUSTED, "thread of the communicator");
    }
    if (rc != BD_OK) {
        c->engine.transport = NULL;
        tcp_free(t);
        return rc;
    }
    c->backend = &t->backend;
    return BD_OK;
}

bd_status ring_tcp_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                       bd_err *err)
{
    ring_comm *c = NULL;
    int *fds = NULL;
    bd_status rc = BD_OK;
    int n_lanes = opt != NULL && opt->n_connections > 0 ? opt->n_connections : 1;
    if (n_lanes > RING_MAX_LANES) {
        return bd_err_set(err, BD_E_INVALID,
                          "ring over tcp: %d connections per neighbour, at most %d", n_lanes,
                          RING_MAX_LANES);
    }
    rc = ring_comm_new(rank, world, opt, &c, err);
    rc = rc != BD_OK ? rc : ring_engine_set_lanes(&c->engine, n_lanes, err);
    if (rc != BD_OK) {
        goto out;
    }
    fds = bd_calloc((size_t)world * (size_t)n_lanes, sizeof *fds);
    if (fds == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "ring over tcp");
        goto out;
    }
    const ring_meet_how how = {.n_conns = n_lanes};
    rc = ring_meet(kv, c, opt, &how, fds, err);
    if (rc == BD_OK && world > 1) {
        rc = ring_tcp_attach(c, fds, err);
    }
    for (int i = 0; i < world * n_lanes; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
out:
    bd_free(fds);
    if (rc != BD_OK) {
        ring_free(c);
        (void)bd_err_wrap(err, "ring rank %d", rank);
        return rc; /* err may be NULL */
    }
    *out = c;
    return BD_OK;
}
