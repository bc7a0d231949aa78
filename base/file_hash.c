#include "base/file_hash.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#define READ_BYTES  ((size_t)128 << 10) /* stays in the cache between copy and hash */
#define AHEAD_BYTES ((off_t)32 << 20)   /* asked of the disk before it is needed */

static bd_status hash_fd(int fd, const char *path, uint64_t *n_bytes, uint64_t *hash, bd_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    uint8_t *buf = bd_alloc(READ_BYTES);
    uint64_t sum = 0;
    bd_status rc = BD_OK;
    if (state == NULL || buf == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "read %s: no memory", path);
        goto out;
    }
    (void)XXH3_64bits_reset(state);
    (void)posix_fadvise(fd, 0, AHEAD_BYTES, POSIX_FADV_WILLNEED);
    for (;;) {
        ssize_t n = read(fd, buf, READ_BYTES);
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

bd_status bd_file_hash64(const char *path, uint64_t *n_bytes, uint64_t *hash, bd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    bd_status rc = hash_fd(fd, path, n_bytes, hash, err);
    (void)close(fd);
    return rc;
}
