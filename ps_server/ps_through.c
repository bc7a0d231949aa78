#include "ps_server/ps_through.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES (4u << 20)
/* RocksDB notes a number in the last kilobytes when it takes a file: they are hashed later. */
#define TAIL_BYTES  (256u << 10)
#define ALIGN_BYTES 4096u

struct ps_through {
    char *path;           /* owned */
    char memory_path[64]; /* of the file in memory, as the writer opens it */
    int memory_fd, fd;
    bool direct;            /* fd wants whole blocks */
    uint8_t *buf;           /* the thread's; owned; CHUNK_BYTES */
    bd_file_prefix *prefix; /* the thread's, close's after it; owned; NULL: not known */
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;
    pthread_cond_t fed, moved;
    uint64_t n_moved; /* under lock */
    bool finished;    /* under lock: the writer is done */
    bd_status rc;     /* under lock: the first failure, with err */
    bd_err err;
};

static bd_status read_all(const ps_through *t, uint64_t at, size_t n, bd_err *err)
{
    for (size_t have = 0; have < n;) {
        ssize_t got = pread(t->memory_fd, t->buf + have, n - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bd_err_errno(err, BD_E_IO, got == 0 ? EIO : errno, "read back %s", t->path);
        }
        have += (size_t)got;
    }
    return BD_OK;
}

static bd_status write_all(const ps_through *t, uint64_t at, size_t n, bd_err *err)
{
    for (size_t have = 0; have < n;) {
        ssize_t got = pwrite(t->fd, t->buf + have, n - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bd_err_errno(err, BD_E_IO, got == 0 ? ENOSPC : errno, "write %s", t->path);
        }
        have += (size_t)got;
    }
    return BD_OK;
}

/* n bytes from `at` on; the last of the file may be less than a block. */
static bd_status move(const ps_through *t, uint64_t at, size_t n, bool hashed, bd_err *err)
{
    size_t blocks = t->direct ? (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES : n;
    bd_status rc = read_all(t, at, n, err);
    if (rc != BD_OK) {
        return rc;
    }
    memset(t->buf + n, 0, blocks - n);
    if (hashed && t->prefix != NULL) {
        bd_file_prefix_add(t->prefix, t->buf, n);
    }
    rc = write_all(t, at, blocks, err);
    if (rc == BD_OK && blocks > n && ftruncate(t->fd, (off_t)(at + n)) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "cut %s", t->path);
    }
    (void)fallocate(t->memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n);
    return rc;
}

/* Under lock, which it lets go meanwhile. False: there is nothing to move yet. */
static bool move_some(ps_through *t)
{
    struct stat st;
    bd_err err = BD_ERR_INIT;
    uint64_t at = t->n_moved;
    if (fstat(t->memory_fd, &st) != 0 || (uint64_t)st.st_size <= at) {
        return false;
    }
    uint64_t there = (uint64_t)st.st_size - at;
    bool hashed = there >= CHUNK_BYTES + TAIL_BYTES;
    if (!hashed && !t->finished) {
        return false;
    }
    size_t n = there < CHUNK_BYTES ? (size_t)there : CHUNK_BYTES;
    (void)pthread_mutex_unlock(&t->lock);
    bd_status rc = move(t, at, n, hashed, &err);
    (void)pthread_mutex_lock(&t->lock);
    t->n_moved += n;
    if (rc != BD_OK) {
        t->rc = rc;
        t->err = err;
    }
    (void)pthread_cond_signal(&t->moved);
    return true;
}

static void *through_main(void *user)
{
    ps_through *t = user;
    (void)pthread_mutex_lock(&t->lock);
    while (t->rc == BD_OK) {
        if (move_some(t)) {
            continue;
        }
        if (t->finished) {
            break;
        }
        (void)pthread_cond_wait(&t->fed, &t->lock);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void through_free(ps_through *t)
{
    if (t->memory_fd >= 0) {
        (void)close(t->memory_fd);
    }
    if (t->fd >= 0) {
        (void)close(t->fd);
    }
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->fed);
    (void)pthread_cond_destroy(&t->moved);
    bd_file_prefix_free(t->prefix);
    bd_free(t->buf);
    bd_free(t->path);
    bd_free(t);
}

/* False: the writer could not open the file in memory. */
static bool open_memory(ps_through *t)
{
    t->memory_fd = memfd_create("braid-rows", MFD_CLOEXEC);
    (void)snprintf(t->memory_path, sizeof t->memory_path, "/proc/self/fd/%d", t->memory_fd);
    return t->memory_fd >= 0 && access(t->memory_path, R_OK | W_OK) == 0;
}

/* The file on the disk; file systems that know no direct writing get plain ones. */
static bd_status open_file(ps_through *t, bd_err *err)
{
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    t->fd = open(t->path, flags | O_DIRECT, 0666);
    t->direct = t->fd >= 0;
    if (t->fd < 0 && errno == EINVAL) {
        t->fd = open(t->path, flags, 0666);
    }
    if (t->fd < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "open %s", t->path);
    }
    bd_err none;
    (void)!bd_file_prefix_new(t->fd, &t->prefix, &none); /* without it the file is read */
    return BD_OK;
}

bd_status ps_through_open(const char *path, ps_through **out, bd_err *err)
{
    *out = NULL;
    ps_through *t = bd_calloc(1, sizeof *t);
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write %s: no memory", path);
    }
    t->fd = t->memory_fd = -1;
    t->err = (bd_err)BD_ERR_INIT;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->fed, NULL);
    (void)pthread_cond_init(&t->moved, NULL);
    t->path = bd_strdup(path);
    t->buf = bd_alloc_aligned(ALIGN_BYTES, CHUNK_BYTES);
    bd_status rc = t->path == NULL || t->buf == NULL
                       ? bd_err_set(err, BD_E_NOMEM, "write %s: no memory", path)
                       : BD_OK;
    bool has_memory = rc == BD_OK && open_memory(t);
    if (has_memory) {
        rc = open_file(t, err);
    }
    t->runs = has_memory && rc == BD_OK && pthread_create(&t->thread, NULL, through_main, t) == 0;
    if (!t->runs) {
        through_free(t);
        return rc;
    }
    *out = t;
    return BD_OK;
}

const char *ps_through_path(const ps_through *t)
{
    return t->memory_path;
}

bool ps_through_feed(ps_through *t, uint64_t n_bytes)
{
    (void)pthread_mutex_lock(&t->lock);
    (void)pthread_cond_signal(&t->fed);
    while (t->rc == BD_OK && n_bytes > t->n_moved + PS_THROUGH_BEHIND_BYTES) {
        (void)pthread_cond_wait(&t->moved, &t->lock);
    }
    bool goes_on = t->rc == BD_OK;
    (void)pthread_mutex_unlock(&t->lock);
    return goes_on;
}

bd_status ps_through_close(ps_through *t, bd_file_prefix **prefix, bd_err *err)
{
    *prefix = NULL;
    if (t == NULL) {
        return BD_OK;
    }
    (void)pthread_mutex_lock(&t->lock);
    t->finished = true;
    (void)pthread_cond_signal(&t->fed);
    (void)pthread_mutex_unlock(&t->lock);
    (void)pthread_join(t->thread, NULL);
    bd_status rc = t->rc;
    if (rc != BD_OK) {
        *err = t->err;
    } else {
        *prefix = t->prefix;
        t->prefix = NULL;
    }
    through_free(t);
    return rc;
}
