/* How the arenas come to all ranks: memfds over unix sockets. The sockets stay open: their end
 * tells that a rank is lost. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_meet.h"
#include "ring/ring_shm_int.h"
#include "ring/ring_tcp_int.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The heap: as large as memory, but a system may forbid that much address space. */
#define HEAP_LEAST_BYTES ((size_t)16 << 20)
#define HEAP_MOST_BYTES  ((size_t)1 << 41)
#define PAGE_BYTES       ((size_t)4096)

static size_t pages(size_t n_bytes)
{
    return (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void lay_out(ring_shm *s)
{
    s->table_at = ring_shm_slots_at() + 2 * RING_SHM_SMALL_BYTES;
    s->stage_at = s->table_at + pages(2 * (size_t)s->world * sizeof(uint64_t));
    s->heap_at = s->stage_at + RING_SHM_N_STAGES * RING_SHM_STAGE_BYTES;
}

static size_t heap_bytes(void)
{
    struct rlimit most = {.rlim_cur = RLIM_INFINITY};
    long n = sysconf(_SC_PHYS_PAGES);
    size_t want = n > 0 ? (size_t)n * PAGE_BYTES : HEAP_LEAST_BYTES;
    /* a file beyond this limit is a signal, not an error */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur / 2 < want) {
        want = most.rlim_cur / 2;
    }
    want = want < HEAP_LEAST_BYTES ? HEAP_LEAST_BYTES : want;
    return pages(want < HEAP_MOST_BYTES ? want : HEAP_MOST_BYTES);
}

static void *map_fd(int fd, size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bd_status make_own(ring_shm *s, bd_err *err)
{
    ring_shm_peer *own = &s->peers[s->rank];
    size_t heap = heap_bytes();
    s->arena_fd = memfd_create("braid-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->arena_fd < 0) {
        return bd_err_errno(err, BD_E_EXHAUSTED, errno, "shared memory");
    }
    for (; own->map == NULL && heap >= HEAP_LEAST_BYTES; heap = pages(heap / 2)) {
        own->map_bytes = s->heap_at + heap;
        if (ftruncate(s->arena_fd, (off_t)own->map_bytes) == 0) {
            own->map = map_fd(s->arena_fd, own->map_bytes);
        }
    }
    /* nobody can cut it under the others' feet */
    if (own->map == NULL ||
        fcntl(s->arena_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return bd_err_errno(err, BD_E_NOMEM, errno, "shared memory of %zu bytes", own->map_bytes);
    }
    return BD_OK;
}

typedef union fd_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
} fd_room;

static bd_status send_fd(int socket, int fd, bd_err *err)
{
    char byte = 'm';
    fd_room room = {.bytes = {0}};
    struct iovec io = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &io,
                         .msg_iovlen = 1,
                         .msg_control = room.bytes,
                         .msg_controllen = sizeof room.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    ssize_t n = -1;
    do {
        n = sendmsg(socket, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == 1 ? BD_OK : bd_err_errno(err, BD_E_UNAVAILABLE, errno, "hand over memory");
}

static bd_status receive_fd(int socket, int64_t ms, int *fd, bd_err *err)
{
    char byte = 0;
    fd_room room = {.bytes = {0}};
    struct iovec io = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &io,
                         .msg_iovlen = 1,
                         .msg_control = room.bytes,
                         .msg_controllen = sizeof room.bytes};
    bd_status rc = ring_meet_wait(socket, POLLIN, ms, err);
    if (rc != BD_OK) {
        return rc;
    }
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c == NULL || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) {
        return bd_err_set(err, BD_E_UNAVAILABLE, "it gave no memory");
    }
    memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return BD_OK;
}

static bd_status take_arena(ring_shm *s, int r, int64_t ms, bd_err *err)
{
    ring_shm_peer *p = &s->peers[r];
    struct stat st = {0};
    int fd = -1;
    bd_status rc = receive_fd(p->socket, ms, &fd, err);
    if (rc != BD_OK) {
        return rc;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        (size_t)st.st_size < s->heap_at) {
        rc = bd_err_set(err, BD_E_MISMATCH, "its memory has another layout");
        goto out;
    }
    p->map_bytes = (size_t)st.st_size;
    p->map = map_fd(fd, p->map_bytes);
    if (p->map == NULL) {
        rc = bd_err_errno(err, BD_E_NOMEM, errno, "map %zu bytes", p->map_bytes);
    }
out:
    (void)close(fd);
    return rc;
}

static bd_status swap_arenas(ring_shm *s, int64_t until_ns, bd_err *err)
{
    bd_status rc = BD_OK;
    for (int r = 0; rc == BD_OK && r < s->world; r++) {
        rc = r == s->rank ? BD_OK : send_fd(s->peers[r].socket, s->arena_fd, err);
    }
    for (int r = 0; rc == BD_OK && r < s->world; r++) {
        int64_t left_ms = (until_ns - bd_mono_ns()) / BD_NS_PER_MS;
        if (r != s->rank) {
            rc = take_arena(s, r, left_ms > 0 ? left_ms : 0, err);
            (void)(rc != BD_OK ? bd_err_wrap(err, "rank %d", r) : BD_OK);
        }
    }
    return rc;
}

static bd_status make_wire(ring_shm *s, const ring_options *opt, int *fds, bd_err *err)
{
    ring_options o = opt != NULL ? *opt : (ring_options){0};
    o.group = s->comm->group;
    bd_status rc = ring_comm_new(s->rank, s->world, &o, &s->wire, err);
    return rc == BD_OK ? ring_tcp_attach(s->wire, fds, err) : rc;
}

bd_status ring_shm_meet(ring_shm *s, bd_kv *kv, const ring_options *opt, bd_err *err)
{
    const ring_meet_how how = {.is_unix = true, .n_conns = 2}; /* memory and life; wire */
    int64_t until_ns = bd_mono_ns() + s->comm->engine.timeout_ns;
    size_t world = (size_t)s->world;
    int *fds = bd_calloc(3 * world, sizeof *fds);
    if (fds == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring in shared memory");
    }
    int *wire_fds = fds + 2 * world;
    lay_out(s);
    bd_status rc = make_own(s, err);
    rc = rc != BD_OK ? rc : ring_meet(kv, s->comm, opt, &how, fds, err);
    if (rc != BD_OK) {
        bd_free(fds);
        return rc;
    }
    for (size_t r = 0; r < world; r++) {
        s->peers[r].socket = fds[2 * r];
        wire_fds[r] = fds[2 * r + 1];
    }
    rc = swap_arenas(s, until_ns, err);
    rc = rc != BD_OK ? rc : make_wire(s, opt, wire_fds, err);
    for (size_t r = 0; r < world; r++) {
        if (wire_fds[r] >= 0) {
            (void)close(wire_fds[r]);
        }
    }
    bd_free(fds);
    return rc;
}
