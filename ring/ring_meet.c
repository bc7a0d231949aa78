/* Rendezvous: every rank listens, publishes where, connects to all lower ranks and accepts all
 * higher ones. Runs on the caller's thread with blocking sockets and one deadline.
 *
 *   key    ring/<group>/<epoch>/rank/<r>    value "host:port mark", or @name in .../shm/<r>; set
 *                                           once: a second one is a second process with that rank
 *   HELLO  both ways on every connection: group, epoch, world, rank; segment is the number of the
 *          connection, step how many there are to each rank, seq the mark of who listens: a random
 *          number, so that a job of the same name that has the port by now is not taken for ours.
 *          What says another group, epoch or mark is not ours and is closed; another world or
 *          number of connections is an error.
 */
#include "ring/ring_meet.h"

#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_address.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A stranger that connects and says nothing may hold us up so long. */
#define HELLO_MS 2000

typedef struct meeting {
    bd_kv *kv;          /* borrowed */
    const ring_comm *c; /* borrowed */
    int rank;
    int world;
    int64_t timeout_ms;
    int64_t until_ns;
    char **addresses; /* owned, world, owned texts */
    uint64_t *marks;  /* owned, world */
    int listener;
    ring_meet_how how;
    int *fds; /* borrowed, world * n_conns */
} meeting;

static int *fd_at(const meeting *m, int rank, int conn)
{
    return &m->fds[rank * m->how.n_conns + conn];
}

static int64_t left_ms(const meeting *m)
{
    int64_t left = (m->until_ns - bd_mono_ns()) / BD_NS_PER_MS;
    return left > 0 ? left : 0;
}

static char *key_of(const meeting *m, int rank)
{
    return bd_strfmt("ring/%s/%" PRIu64 "/%s/%d", m->c->group, m->c->engine.epoch,
                     m->how.is_unix ? "shm" : "rank", rank);
}

/* Listening and publishing. */

static bd_status listen_on(meeting *m, const char *host, bd_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int bad = getaddrinfo(host, "0", &hints, &found);
    if (bad != 0) {
        return bd_err_set(err, BD_E_INVALID, "bind address %s: %s", host, gai_strerror(bad));
    }
    bd_status rc = BD_OK;
    m->listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->listener < 0 || bind(m->listener, found->ai_addr, found->ai_addrlen) != 0 ||
        listen(m->listener, SOMAXCONN) != 0) { /* a full backlog costs a second per rank */
        rc = bd_err_errno(err, BD_E_IO, errno, "listen on %s", host);
    }
    freeaddrinfo(found);
    return rc;
}

/* An abstract name: nothing to clean up. `name` begins with the zero byte of such names. */
static socklen_t unix_address(const char *name, struct sockaddr_un *at)
{
    size_t n = strlen(name);
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = n < sizeof at->sun_path - 1 ? n : sizeof at->sun_path - 1;
    memcpy(at->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* *address: owned text "@name". */
static bd_status listen_unix(meeting *m, char **address, bd_err *err)
{
    uint64_t word[2] = {0, 0};
    struct sockaddr_un at;
    if (getrandom(word, sizeof word, 0) != sizeof word) {
        return bd_err_errno(err, BD_E_IO, errno, "random name of a socket");
    }
    char *name = bd_strfmt("@braid-ring-%016" PRIx64 "%016" PRIx64, word[0], word[1]);
    if (name == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    socklen_t n = unix_address(name + 1, &at);
    m->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&at, n) != 0 ||
        listen(m->listener, SOMAXCONN) != 0) {
        bd_free(name);
        return bd_err_errno(err, BD_E_IO, errno, "listen on a unix socket");
    }
    *address = name;
    return BD_OK;
}

static bool is_same_user(int fd)
{
    struct ucred who = {0};
    socklen_t n = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}

/* *address: owned text. The interface, where one is given, decides. */
static bd_status listen_tcp(meeting *m, const ring_options *opt, char **address, bd_err *err)
{
    const char *host = opt != NULL && opt->bind_host != NULL ? opt->bind_host : "127.0.0.1";
    const char *interface = opt != NULL ? opt->interface : NULL;
    struct sockaddr_storage at = {0};
    socklen_t n_bytes = sizeof at;
    char *found = NULL, *text = NULL;
    bd_status rc = BD_OK;
    if (getrandom(&m->marks[m->rank], sizeof *m->marks, 0) != sizeof *m->marks) {
        return bd_err_errno(err, BD_E_IO, errno, "random mark of a listener");
    }
    if (interface != NULL && interface[0] != '\0') {
        rc = ring_address_of(interface, &found, err);
    }
    rc = rc != BD_OK ? rc : listen_on(m, found != NULL ? found : host, err);
    if (rc == BD_OK && getsockname(m->listener, (struct sockaddr *)&at, &n_bytes) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "own port");
    }
    rc = rc != BD_OK ? rc : ring_address_text((struct sockaddr *)&at, n_bytes, &text, err);
    if (rc == BD_OK) {
        *address = bd_strfmt("%s %" PRIx64, text, m->marks[m->rank]);
        rc = *address != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    bd_free(text);
    bd_free(found);
    return rc;
}

static bd_status publish(meeting *m, const char *value, bd_err *err)
{
    bool is_first = false;
    bd_status rc = BD_OK;
    char *key = key_of(m, m->rank);
    if (key == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    rc = m->kv->compare_set(m->kv, key, NULL, value, &is_first, err);
    if (rc == BD_OK && !is_first) {
        rc = bd_err_set(err, BD_E_EXISTS,
                        "rank %d has already joined group %s, epoch %" PRIu64
                        ": was it started twice?",
                        m->rank, m->c->group, m->c->engine.epoch);
    }
    bd_free(key);
    return rc;
}

/* The ranks for which `have` is false, as the error of a rendezvous that took too long. */
static bd_status absent(const meeting *m, bool (*have)(const meeting *, int), const char *what,
                        bd_err *err)
{
    char list[200] = "";
    int n = 0;
    for (int r = 0; r < m->world; r++) {
        size_t used = strlen(list);
        if (r != m->rank && !have(m, r)) {
            (void)snprintf(list + used, sizeof list - used, "%s%d", n > 0 ? ", " : "", r);
            n++;
        }
    }
    return bd_err_set(
        err, BD_E_TIMEOUT, "group %s, epoch %" PRIu64 ": rank%s %s %s within %" PRId64 " ms",
        m->c->group, m->c->engine.epoch, n == 1 ? "" : "s", list, what, m->timeout_ms);
}

/* "host:port mark" cut in place. */
static void take_mark(meeting *m, int r)
{
    char *space = m->addresses[r] != NULL ? strchr(m->addresses[r], ' ') : NULL;
    if (space != NULL) {
        *space = '\0';
        m->marks[r] = strtoull(space + 1, NULL, 16);
    }
}

static bool has_address(const meeting *m, int r)
{
    return m->addresses[r] != NULL;
}

static bool has_connection(const meeting *m, int r)
{
    for (int k = 0; k < m->how.n_conns; k++) {
        if (*fd_at(m, r, k) < 0) {
            return false;
        }
    }
    return true;
}

static bd_status find_addresses(meeting *m, bd_err *err)
{
    bool is_late = false;
    for (int r = 0; r < m->world; r++) {
        char *key = key_of(m, r);
        if (key == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "rendezvous");
        }
        bd_status rc =
            m->kv->get(m->kv, key, is_late ? 0 : left_ms(m), &m->addresses[r], NULL, err);
        bd_free(key);
        take_mark(m, r);
        if (rc == BD_E_TIMEOUT || rc == BD_E_NOT_FOUND) {
            is_late = true; /* go on without waiting: the error names all who are absent */
        } else if (rc != BD_OK) {
            return rc;
        }
    }
    return is_late ? absent(m, has_address, "did not join", err) : BD_OK;
}

/* Blocking transfers with the deadline. */

bd_status ring_meet_wait(int fd, short events, int64_t ms, bd_err *err)
{
    struct pollfd p = {.fd = fd, .events = events};
    int64_t until = bd_mono_ns() + ms * BD_NS_PER_MS;
    int n = -1;
    do {
        int64_t left = (until - bd_mono_ns()) / BD_NS_PER_MS;
        n = poll(&p, 1, left > 0 ? (int)(left < INT32_MAX ? left : INT32_MAX) : 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "poll");
    }
    return n > 0 ? BD_OK : bd_err_set(err, BD_E_TIMEOUT, "no answer");
}

/* listener: the rank that listens. */
static bd_status send_hello(const meeting *m, int listener, int fd, int conn, bd_err *err)
{
    uint8_t bytes[RING_FRAME_BYTES];
    const ring_frame f = {.kind = RING_FRAME_HELLO,
                          .root = -1,
                          .group = m->c->engine.group_hash,
                          .epoch = m->c->engine.epoch,
                          .seq = m->marks[listener],
                          .step = (uint32_t)m->how.n_conns,
                          .segment = (uint32_t)conn,
                          .rank = m->rank,
                          .world = m->world};
    ring_frame_encode(&f, bytes);
    ssize_t n = -1;
    do { /* 128 bytes into an empty socket buffer: whole or not at all */
        n = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof bytes ? BD_OK : bd_err_errno(err, BD_E_IO, errno, "send hello");
}

static bd_status read_hello(int fd, int64_t ms, ring_frame *f, bd_err *err)
{
    uint8_t bytes[RING_FRAME_BYTES];
    size_t have = 0;
    int64_t until = bd_mono_ns() + ms * BD_NS_PER_MS;
    while (have < sizeof bytes) {
        int64_t left = (until - bd_mono_ns()) / BD_NS_PER_MS;
        bd_status rc = ring_meet_wait(fd, POLLIN, left > 0 ? left : 0, err);
        if (rc != BD_OK) {
            return rc;
        }
        ssize_t n = recv(fd, bytes + have, sizeof bytes - have, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n == 0 ? bd_err_set(err, BD_E_UNAVAILABLE, "it closed the connection")
                          : bd_err_errno(err, BD_E_UNAVAILABLE, errno, "read hello");
        }
        have += (size_t)n;
    }
    return ring_frame_decode(bytes, f, err);
}

/* Connecting to lower ranks. */

/* "host:port" or "[host]:port" cut in place. */
static bool split_address(char *text, char **host, char **port)
{
    char *colon = strrchr(text, ':');
    if (colon == NULL) {
        return false;
    }
    *colon = '\0';
    *port = colon + 1;
    *host = text;
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text[n - 1] = '\0';
        (*host)++;
    }
    return true;
}

static bd_status connect_fd(int fd, const struct addrinfo *to, int64_t ms, bd_err *err)
{
    int bad = 0;
    socklen_t n_bytes = sizeof bad;
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) {
        return BD_OK;
    }
    if (errno != EINPROGRESS) {
        return bd_err_errno(err, BD_E_UNAVAILABLE, errno, "connect");
    }
    bd_status rc = ring_meet_wait(fd, POLLOUT, ms, err);
    if (rc == BD_OK && (getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &n_bytes) != 0 || bad != 0)) {
        rc = bd_err_errno(err, BD_E_UNAVAILABLE, bad != 0 ? bad : errno, "connect");
    }
    return rc;
}

/* Host and port of rank r; *found is owned (freeaddrinfo). */
static bd_status resolve(const meeting *m, int r, struct addrinfo **found, bd_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char *host = NULL;
    char *port = NULL;
    char *text = bd_strdup(m->addresses[r]);
    bool ok = text != NULL && split_address(text, &host, &port);
    int bad = ok ? getaddrinfo(host, port, &hints, found) : 0;
    bd_free(text);
    if (!ok || bad != 0) {
        return bd_err_set(err, BD_E_DATA, "address of rank %d is %s%s%s", r, m->addresses[r],
                          bad != 0 ? ": " : "", bad != 0 ? gai_strerror(bad) : "");
    }
    return BD_OK;
}

static int64_t n_addresses(const struct addrinfo *from)
{
    int64_t n = 0;
    for (const struct addrinfo *a = from; a != NULL; a = a->ai_next) {
        n++;
    }
    return n;
}

/* A name may have several addresses, of which one family may not lead there: the first that
 * answers. One that is silent has its share of the time. */
static bd_status connect_tcp(meeting *m, int r, int *fd, bd_err *err)
{
    struct addrinfo *found = NULL;
    bd_status rc = resolve(m, r, &found, err);
    bool done = rc != BD_OK;
    for (const struct addrinfo *a = found; !done && a != NULL; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        rc = *fd < 0 ? bd_err_errno(err, BD_E_EXHAUSTED, errno, "socket")
                     : connect_fd(*fd, a, left_ms(m) / n_addresses(a), err);
        done = rc == BD_OK;
        if (!done && *fd >= 0) {
            (void)close(*fd);
            *fd = -1;
        }
    }
    if (found != NULL) {
        freeaddrinfo(found);
    }
    return rc;
}

static bd_status connect_unix(const meeting *m, int r, int *fd, bd_err *err)
{
    struct sockaddr_un at;
    socklen_t n = unix_address(m->addresses[r] + 1, &at);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        return bd_err_errno(err, BD_E_EXHAUSTED, errno, "socket");
    }
    if (connect(*fd, (struct sockaddr *)&at, n) != 0) {
        return bd_err_errno(err, BD_E_UNAVAILABLE, errno,
                            "connect (is it on this host, in this network namespace?)");
    }
    return is_same_user(*fd) ? BD_OK : bd_err_set(err, BD_E_DENIED, "it belongs to another user");
}

static bool is_ours(const meeting *m, int listener, const ring_frame *f)
{
    return f->kind == RING_FRAME_HELLO && f->group == m->c->engine.group_hash &&
           f->epoch == m->c->engine.epoch && f->seq == m->marks[listener];
}

/* One of ours, but started differently: err says how. */
static bool agrees(const meeting *m, const ring_frame *f, bd_err *err)
{
    if (f->world != m->world) {
        (void)bd_err_set(err, BD_E_MISMATCH,
                         "group %s: rank %d was started with world %d, rank %d with world %d",
                         m->c->group, m->rank, m->world, f->rank, f->world);
        return false;
    }
    if (f->step != (uint32_t)m->how.n_conns || f->segment >= f->step) {
        (void)bd_err_set(err, BD_E_MISMATCH,
                         "group %s: rank %d was started with %d connections, rank %d with %u",
                         m->c->group, m->rank, m->how.n_conns, f->rank, f->step);
        return false;
    }
    return true;
}

/* Rank r has closed: perhaps it has said before that it was started differently. */
static void ask_why(const meeting *m, int r, bd_status *rc, bd_err *err)
{
    ring_frame f = {0};
    bd_err why = BD_ERR_INIT;
    int fd = *fd_at(m, r, 0);
    if (fd >= 0 && read_hello(fd, 100, &f, &why) == BD_OK && is_ours(m, r, &f) &&
        !agrees(m, &f, &why)) {
        *rc = bd_err_set(err, why.code, "%s", why.text);
    }
}

static bd_status connect_to(meeting *m, int r, bd_err *err)
{
    bd_status rc = BD_OK;
    for (int k = 0; rc == BD_OK && k < m->how.n_conns; k++) {
        int *fd = fd_at(m, r, k);
        rc = m->addresses[r][0] == '@' ? connect_unix(m, r, fd, err) : connect_tcp(m, r, fd, err);
        rc = rc != BD_OK ? rc : send_hello(m, r, *fd, k, err);
    }
    if (rc != BD_OK) {
        ask_why(m, r, &rc, err);
        (void)bd_err_wrap(err, "rank %d at %s", r, m->addresses[r]);
    }
    return rc;
}

/* Accepting higher ranks. */

/* Takes over fd: keeps it or closes it. */
static bd_status welcome(meeting *m, int fd, bd_err *err)
{
    ring_frame f = {0};
    bd_err why = BD_ERR_INIT;
    int64_t ms = left_ms(m) < HELLO_MS ? left_ms(m) : HELLO_MS;
    bd_status rc = read_hello(fd, ms, &f, &why);
    if (rc == BD_OK && is_ours(m, m->rank, &f) && !agrees(m, &f, err)) {
        (void)send_hello(m, m->rank, fd, (int)f.segment, &why); /* so that it can say the same */
        (void)close(fd);
        return BD_E_MISMATCH;
    }
    if (rc != BD_OK || !is_ours(m, m->rank, &f) || f.rank <= m->rank || f.rank >= m->world ||
        (m->how.is_unix && !is_same_user(fd)) || *fd_at(m, f.rank, (int)f.segment) >= 0 ||
        send_hello(m, m->rank, fd, (int)f.segment, &why) != BD_OK) {
        (void)close(fd); /* a stranger, or one of another epoch or job */
        return BD_OK;
    }
    *fd_at(m, f.rank, (int)f.segment) = fd;
    return BD_OK;
}

static bool all_connected(const meeting *m)
{
    for (int r = 0; r < m->world; r++) {
        if (r != m->rank && !has_connection(m, r)) {
            return false;
        }
    }
    return true;
}

static bd_status accept_all(meeting *m, bd_err *err)
{
    bd_status rc = BD_OK;
    while (rc == BD_OK && !all_connected(m)) {
        rc = ring_meet_wait(m->listener, POLLIN, left_ms(m), err);
        if (rc == BD_E_TIMEOUT) {
            return absent(m, has_connection, "did not connect", err);
        }
        int fd = rc == BD_OK ? accept4(m->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            rc = welcome(m, fd, err);
        } else if (rc == BD_OK && errno != EINTR && errno != ECONNABORTED) {
            rc = bd_err_errno(err, BD_E_EXHAUSTED, errno, "accept");
        }
    }
    return rc;
}

static bd_status read_answers(meeting *m, bd_err *err)
{
    for (int i = 0; i < m->rank * m->how.n_conns; i++) {
        ring_frame f = {0};
        int r = i / m->how.n_conns;
        bd_status rc = read_hello(m->fds[i], left_ms(m), &f, err);
        if (rc == BD_OK && (!is_ours(m, r, &f) || f.rank != r)) {
            rc = bd_err_set(err, BD_E_MISMATCH, "it belongs to another group");
        } else if (rc == BD_OK && !agrees(m, &f, err)) {
            rc = BD_E_MISMATCH;
        }
        if (rc != BD_OK) {
            (void)bd_err_wrap(err, "rank %d at %s", r, m->addresses[r]);
            return rc;
        }
    }
    return BD_OK;
}

static void set_no_delay(const meeting *m)
{
    const int on = 1;
    for (int i = 0; !m->how.is_unix && i < m->world * m->how.n_conns; i++) {
        if (m->fds[i] >= 0) { /* only speed depends on it */
            (void)setsockopt(m->fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
    }
}

/* So that a later try in the same epoch is not taken for a second process. */
static void unpublish(meeting *m)
{
    bd_err ignored = BD_ERR_INIT;
    char *key = key_of(m, m->rank);
    if (key != NULL) {
        (void)m->kv->del(m->kv, key, &ignored);
    }
    bd_free(key);
}

static void meeting_deinit(meeting *m, bd_status rc)
{
    if (m->listener >= 0) {
        (void)close(m->listener);
    }
    for (int i = 0; rc != BD_OK && i < m->world * m->how.n_conns; i++) {
        if (m->fds[i] >= 0) {
            (void)close(m->fds[i]);
            m->fds[i] = -1;
        }
    }
    for (int r = 0; m->addresses != NULL && r < m->world; r++) {
        bd_free(m->addresses[r]);
    }
    bd_free(m->addresses);
    bd_free(m->marks);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): fds is written through the meeting */
bd_status ring_meet(bd_kv *kv, const ring_comm *c, const ring_options *opt,
                    const ring_meet_how *how, int *fds, bd_err *err)
{
    meeting m = {.kv = kv,
                 .c = c,
                 .rank = ring_rank(c),
                 .world = ring_world(c),
                 .timeout_ms = ring_options_timeout_ms(opt),
                 .listener = -1,
                 .how = *how,
                 .fds = fds};
    m.until_ns = bd_mono_ns() + m.timeout_ms * BD_NS_PER_MS;
    bool is_published = false;
    bd_status rc = BD_OK;
    char *address = NULL;
    for (int i = 0; i < m.world * how->n_conns; i++) {
        fds[i] = -1;
    }
    m.addresses = bd_calloc((size_t)m.world, sizeof *m.addresses);
    m.marks = bd_calloc((size_t)m.world, sizeof *m.marks);
    if (m.addresses == NULL || m.marks == NULL) {
        meeting_deinit(&m, BD_E_NOMEM);
        return bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    rc = how->is_unix ? listen_unix(&m, &address, err) : listen_tcp(&m, opt, &address, err);
    rc = rc != BD_OK ? rc : publish(&m, address, err);
    is_published = rc == BD_OK;
    rc = rc != BD_OK ? rc : find_addresses(&m, err);
    for (int r = 0; rc == BD_OK && r < m.rank; r++) {
        rc = connect_to(&m, r, err);
    }
    rc = rc != BD_OK ? rc : accept_all(&m, err);
    rc = rc != BD_OK ? rc : read_answers(&m, err);
    if (rc == BD_OK) {
        set_no_delay(&m);
    } else if (is_published) {
        unpublish(&m);
    }
    bd_free(address);
    meeting_deinit(&m, rc);
    return rc;
}
