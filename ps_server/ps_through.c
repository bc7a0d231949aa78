#include "ps_server/ps_through.h"

#include "base/assert.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define ALIGN_BYTES ((size_t)4096)

typedef struct chunk {
    uint8_t *bytes; /* owned; PS_THROUGH_CHUNK_BYTES and a piece */
    size_t n_bytes; /* a full one: to be written; else what is there so far */
} chunk;

struct ps_through {
    char *path; /* owned */
    int fd;
    bool direct;            /* fd wants whole blocks */
    bool lasting;           /* all bytes so far */
    bd_file_prefix *prefix; /* the writer's; owned; NULL: not known */
    uint64_t n_bytes;       /* the writer's */
    size_t piece_bytes;
    chunk
        chunks[PS_THROUGH_CHUNKS]; /* a ring: [n_written, n_full) the thread's, then the writer's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, written;
    uint64_t n_full,
        n_written; /* chunks; under lock, but that each side reads its own as it likes */
    bool finished; /* under lock: no more come */
    bd_status rc;  /* under lock: the first failure, with err */
    bd_err err;
};

static chunk *chunk_of(ps_through *t, uint64_t n)
{
    return &t->chunks[n % PS_THROUGH_CHUNKS];
}

/* ---- the thread ---- */
/* At the end of what is there; the last of the file may be less than a block. */
static bd_status write_chunk(const ps_through *t, chunk *c, uint64_t at, bd_err *err)
{
    size_t n = c->n_bytes;
    size_t blocks = t->direct ? (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES : n;
    memset(c->bytes + n, 0, blocks - n);
    for (size_t have = 0; have < blocks;) {
        ssize_t got = pwrite(t->fd, c->bytes + have, blocks - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bd_err_errno(err, BD_E_IO, got == 0 ? ENOSPC : errno, "write %s", t->path);
        }
        have += (size_t)got;
    }
    if (blocks > n && ftruncate(t->fd, (off_t)(at + n)) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "cut %s", t->path);
    }
    return BD_OK;
}

static void *through_main(void *user)
{
    ps_through *t = user;
    uint64_t at = 0;
    (void)pthread_mutex_lock(&t->lock);
    while (t->rc == BD_OK) {
        if (t->n_written == t->n_full) {
            if (t->finished) {
                break;
            }
            (void)pthread_cond_wait(&t->filled, &t->lock);
            continue;
        }
        chunk *c = chunk_of(t, t->n_written);
        (void)pthread_mutex_unlock(&t->lock);
        bd_err err = BD_ERR_INIT;
        bd_status rc = write_chunk(t, c, at, &err);
        at += c->n_bytes;
        (void)pthread_mutex_lock(&t->lock);
        t->n_written++;
        if (rc != BD_OK) {
            t->rc = rc;
            t->err = err;
        }
        (void)pthread_cond_signal(&t->written);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- the writer ---- */
static void through_free(ps_through *t)
{
    if (t->fd >= 0) {
        (void)close(t->fd);
    }
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->filled);
    (void)pthread_cond_destroy(&t->written);
    bd_file_prefix_free(t->prefix);
    for (size_t i = 0; i < PS_THROUGH_CHUNKS; i++) {
        bd_free(t->chunks[i].bytes);
    }
    bd_free(t->path);
    bd_free(t);
}

/* File systems that know no direct writing get plain ones. */
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

bd_status ps_through_open(const char *path, size_t piece_bytes, ps_through **out, bd_err *err)
{
    ps_through *t = bd_calloc(1, sizeof *t);
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write %s: no memory", path);
    }
    t->fd = -1;
    t->rc = BD_OK;
    t->err = (bd_err)BD_ERR_INIT;
    t->lasting = true;
    t->piece_bytes = piece_bytes;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->filled, NULL);
    (void)pthread_cond_init(&t->written, NULL);
    t->path = bd_strdup(path);
    bool ok = t->path != NULL;
    for (size_t i = 0; i < PS_THROUGH_CHUNKS && ok; i++) {
        t->chunks[i].bytes = /* the last block of the file is filled up */
            bd_alloc_aligned(ALIGN_BYTES, PS_THROUGH_CHUNK_BYTES + piece_bytes + ALIGN_BYTES);
        ok = t->chunks[i].bytes != NULL;
    }
    bd_status rc =
        ok ? open_file(t, err) : bd_err_set(err, BD_E_NOMEM, "write %s: no memory", path);
    if (rc == BD_OK && pthread_create(&t->thread, NULL, through_main, t) != 0) {
        rc = bd_err_set(err, BD_E_NOMEM, "write %s: no thread", path);
    }
    if (rc != BD_OK) {
        through_free(t);
        return rc;
    }
    *out = t;
    return BD_OK;
}

/* The writer's chunk goes to the thread, but for what is no whole block; that begins the next one,
 * once there is room for it. */
static bool hand_over(ps_through *t)
{
    chunk *c = chunk_of(t, t->n_full), *next = chunk_of(t, t->n_full + 1);
    size_t rest = c->n_bytes % ALIGN_BYTES;
    (void)pthread_mutex_lock(&t->lock);
    while (t->rc == BD_OK && t->n_full - t->n_written >= PS_THROUGH_CHUNKS - 1) {
        (void)pthread_cond_wait(&t->written, &t->lock);
    }
    bool goes_on = t->rc == BD_OK;
    if (goes_on) {
        c->n_bytes -= rest;
        memcpy(next->bytes, c->bytes + c->n_bytes, rest);
        next->n_bytes = rest;
        t->n_full++;
        (void)pthread_cond_signal(&t->filled);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return goes_on;
}

uint8_t *ps_through_room(ps_through *t, size_t n)
{
    BD_ASSERT(n <= t->piece_bytes);
    if (chunk_of(t, t->n_full)->n_bytes >= PS_THROUGH_CHUNK_BYTES && !hand_over(t)) {
        return NULL;
    }
    chunk *c = chunk_of(t, t->n_full);
    return c->bytes + c->n_bytes;
}

void ps_through_add(ps_through *t, size_t n, bool lasting)
{
    chunk *c = chunk_of(t, t->n_full);
    t->lasting = t->lasting && lasting;
    if (t->lasting && t->prefix != NULL) {
        bd_file_prefix_add(t->prefix, c->bytes + c->n_bytes, n);
    }
    c->n_bytes += n;
    t->n_bytes += n;
}

uint64_t ps_through_bytes(const ps_through *t)
{
    return t->n_bytes;
}

bd_status ps_through_close(ps_through *t, bd_file_prefix **prefix, bd_err *err)
{
    *prefix = NULL;
    if (t == NULL) {
        return BD_OK;
    }
    (void)pthread_mutex_lock(&t->lock);
    while (t->rc == BD_OK && t->n_full - t->n_written >= PS_THROUGH_CHUNKS - 1) {
        (void)pthread_cond_wait(&t->written, &t->lock);
    }
    t->n_full++; /* the writer's, as it is */
    t->finished = true;
    (void)pthread_cond_signal(&t->filled);
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
