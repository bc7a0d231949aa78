#include "base/file_hash.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define READ_BYTES  ((size_t)128 << 10) /* stays in the cache between copy and hash */
#define AHEAD_BYTES ((off_t)32 << 20)   /* asked of the disk before it is needed */

struct bd_file_prefix {
    struct statx is; /* which file; when it was made tells it from a later one with its number */
    uint64_t n_bytes;
    XXH3_state_t *state; /* owned */
};

static bool identify(int fd, struct statx *out)
{
    return statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_BTIME, out) == 0 &&
           (out->stx_mask & STATX_BTIME) != 0 && (out->stx_mask & STATX_INO) != 0;
}

static bool is_same(const struct statx *a, const struct statx *b)
{
    return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
           a->stx_dev_minor == b->stx_dev_minor && a->stx_btime.tv_sec == b->stx_btime.tv_sec &&
           a->stx_btime.tv_nsec == b->stx_btime.tv_nsec;
}

bd_status bd_file_prefix_new(int fd, bd_file_prefix **out, bd_err *err)
{
    bd_file_prefix *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "hash a file: no memory");
    }
    p->state = XXH3_createState();
    if (p->state == NULL || !identify(fd, &p->is)) {
        bd_status rc = p->state == NULL ? bd_err_set(err, BD_E_NOMEM, "hash a file: no memory")
                                        : bd_err_set(err, BD_E_IO, "hash a file: which one it is");
        bd_file_prefix_free(p);
        return rc;
    }
    (void)XXH3_64bits_reset(p->state);
    *out = p;
    return BD_OK;
}

void bd_file_prefix_free(bd_file_prefix *p)
{
    if (p != NULL) {
        (void)XXH3_freeState(p->state);
        bd_free(p);
    }
}

void bd_file_prefix_add(bd_file_prefix *p, const void *bytes, size_t n)
{
    (void)XXH3_64bits_update(p->state, bytes, n);
    p->n_bytes += n;
}

/* The prefix of the open file, NULL: none. */
static const bd_file_prefix *find(int fd, bd_file_prefix *const *known, size_t n)
{
    struct statx is;
    if (n == 0 || !identify(fd, &is)) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if (known[i] != NULL && is_same(&known[i]->is, &is) && known[i]->n_bytes <= is.stx_size) {
            return known[i];
        }
    }
    return NULL;
}

static bd_status hash_fd(int fd, const bd_file_prefix *known, const char *path, uint64_t *n_bytes,
                         uint64_t *hash, bd_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    uint8_t *buf = bd_alloc(READ_BYTES);
    uint64_t sum = known == NULL ? 0 : known->n_bytes;
    bd_status rc = BD_OK;
    if (state == NULL || buf == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "read %s: no memory", path);
        goto out;
    }
    if (known == NULL) {
        (void)XXH3_64bits_reset(state);
    } else {
        XXH3_copyState(state, known->state);
    }
    (void)posix_fadvise(fd, (off_t)sum, AHEAD_BYTES, POSIX_FADV_WILLNEED);
    for (;;) {
        ssize_t n = pread(fd, buf, READ_BYTES, (off_t)sum);
        if (n == 0) {
            break;
        }
        if (n < 0 && errno != EINTR) {
            rc = bd_err_errno(err, BD_E_IO, errno, "read %s", path);
            goto out;
        }
        if (n > 0) {
            (void)XXH3_64bits_update(state, buf, (size_t)n);
            sum += (uint64_t)n;
            (void)posix_fadvise(fd, (off_t)sum + AHEAD_BYTES - n, n, POSIX_FADV_WILLNEED);
        }
    }
    *n_bytes = sum;
    *hash = XXH3_64bits_digest(state);
out:
    bd_free(buf);
    (void)XXH3_freeState(state);
    return rc;
}

bd_status bd_file_hash64_after(const char *path, bd_file_prefix *const *known, size_t n_known,
                               uint64_t *n_bytes, uint64_t *hash, bd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    bd_status rc = hash_fd(fd, find(fd, known, n_known), path, n_bytes, hash, err);
    (void)close(fd);
    return rc;
}

bd_status bd_file_hash64(const char *path, uint64_t *n_bytes, uint64_t *hash, bd_err *err)
{
    return bd_file_hash64_after(path, NULL, 0, n_bytes, hash, err);
}
