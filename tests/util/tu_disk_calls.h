/* tests/util/tu_disk_calls.h - the system calls that tu_disk.h takes over. Include it in one file
 * of a test program. */
#ifndef TU_DISK_CALLS_H
#define TU_DISK_CALLS_H

#include "tests/util/tu_disk.h"

/* ---- the calls ---- */
#define DISK_REAL(type, name)                             \
    static type real;                                     \
    if (real == NULL) {                                   \
        *(void **)(void *)&real = dlsym(RTLD_NEXT, name); \
    }

typedef int (*disk_open_fn)(const char *, int, ...);
typedef int (*disk_fd_fn)(int);
typedef ssize_t (*disk_write_fn)(int, const void *, size_t);
typedef ssize_t (*disk_pwrite_fn)(int, const void *, size_t, off_t);
typedef ssize_t (*disk_pwritev_fn)(int, const struct iovec *, int, off_t);
typedef int (*disk_two_fn)(const char *, const char *);
typedef int (*disk_path_fn)(const char *);
typedef int (*disk_mkdir_fn)(const char *, mode_t);
typedef int (*disk_fallocate_fn)(int, int, off_t, off_t);

static int disk_open(disk_open_fn real, const char *path, int flags, mode_t mode)
{
    bool ours = disk_is_ours(path);
    bool existed = ours && access(path, F_OK) == 0;
    int fail = ours ? atomic_load(&disk->fail) : 0;
    if (fail != 0 && ((flags & O_CREAT) != 0 && !existed)) {
        errno = fail;
        return -1;
    }
    if (fail == EROFS && (flags & O_ACCMODE) != O_RDONLY) {
        errno = EROFS;
        return -1;
    }
    int fd = real(path, flags, mode);
    disk_opened(path, fd, existed, flags);
    return fd;
}

int open(const char *path, int flags, ...) TU_DISK_API;
int open(const char *path, int flags, ...)
{
    DISK_REAL(disk_open_fn, "open")
    va_list ap;
    va_start(ap, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return disk_open(real, path, flags, mode);
}

int open64(const char *path, int flags, ...) TU_DISK_API;
int open64(const char *path, int flags, ...)
{
    DISK_REAL(disk_open_fn, "open64")
    va_list ap;
    va_start(ap, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return disk_open(real, path, flags, mode);
}

int close(int fd) TU_DISK_API;
int close(int fd)
{
    DISK_REAL(disk_fd_fn, "close")
    if (fd >= 0 && fd < TU_DISK_FDS) {
        disk_fd_file[fd] = 0;
    }
    return real(fd);
}

static int disk_sync(disk_fd_fn real, int fd)
{
    struct stat st = {.st_size = 0};
    int fail = disk_trouble(fd);
    if (fail == EIO) {
        errno = EIO;
        return -1;
    }
    bool ours = disk_of(fd) != NULL && fstat(fd, &st) == 0;
    int rc = real(fd);
    if (rc == 0 && ours) {
        disk_synced(fd, (uint64_t)st.st_size);
    }
    return rc;
}

int fsync(int fd) TU_DISK_API;
int fsync(int fd)
{
    DISK_REAL(disk_fd_fn, "fsync")
    return disk_sync(real, fd);
}

int fdatasync(int fd) TU_DISK_API;
int fdatasync(int fd)
{
    DISK_REAL(disk_fd_fn, "fdatasync")
    return disk_sync(real, fd);
}

ssize_t write(int fd, const void *bytes, size_t n) TU_DISK_API;
ssize_t write(int fd, const void *bytes, size_t n)
{
    DISK_REAL(disk_write_fn, "write")
    int fail = disk_trouble(fd);
    if (fail != 0) {
        errno = fail;
        return -1;
    }
    return real(fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) TU_DISK_API;
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    DISK_REAL(disk_pwrite_fn, "pwrite")
    int fail = disk_trouble(fd);
    if (fail != 0) {
        errno = fail;
        return -1;
    }
    return real(fd, bytes, n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at) TU_DISK_API;
ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at)
{
    return pwrite(fd, bytes, n, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t at) TU_DISK_API;
ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t at)
{
    DISK_REAL(disk_pwritev_fn, "pwritev")
    int fail = disk_trouble(fd);
    if (fail != 0) {
        errno = fail;
        return -1;
    }
    return real(fd, pieces, n, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int n, off_t at) TU_DISK_API;
ssize_t pwritev64(int fd, const struct iovec *pieces, int n, off_t at)
{
    return pwritev(fd, pieces, n, at);
}

int fallocate(int fd, int mode, off_t at, off_t n) TU_DISK_API;
int fallocate(int fd, int mode, off_t at, off_t n)
{
    DISK_REAL(disk_fallocate_fn, "fallocate")
    int fail = disk_trouble(fd);
    if (fail != 0) {
        errno = fail;
        return -1;
    }
    return real(fd, mode, at, n);
}

int mkdir(const char *path, mode_t mode) TU_DISK_API;
int mkdir(const char *path, mode_t mode)
{
    DISK_REAL(disk_mkdir_fn, "mkdir")
    int fail = disk_is_ours(path) ? atomic_load(&disk->fail) : 0;
    if (fail != 0 && access(path, F_OK) != 0) {
        errno = fail;
        return -1;
    }
    int rc = real(path, mode);
    if (rc == 0 && disk_is_ours(path)) {
        (void)pthread_mutex_lock(&disk_lock);
        if (disk_find(path) == NULL) {
            (void)disk_add(path, 0, true, false);
        }
        (void)pthread_mutex_unlock(&disk_lock);
    }
    return rc;
}

int rename(const char *from, const char *to) TU_DISK_API;
int rename(const char *from, const char *to)
{
    DISK_REAL(disk_two_fn, "rename")
    int rc = real(from, to);
    if (rc == 0 && disk_is_ours(from)) {
        (void)pthread_mutex_lock(&disk_lock);
        tu_disk_file *f = disk_find(from), *old = disk_find(to);
        if (old != NULL && f != NULL) {
            f->is_durable = old->is_durable;
            old->path[0] = '\0';
        } else if (f != NULL) {
            f->is_durable = false;
        }
        if (f != NULL) {
            (void)snprintf(f->path, sizeof f->path, "%s", to);
        }
        (void)pthread_mutex_unlock(&disk_lock);
    }
    return rc;
}

int unlink(const char *path) TU_DISK_API;
int unlink(const char *path)
{
    DISK_REAL(disk_path_fn, "unlink")
    int rc = real(path);
    if (rc == 0 && disk_is_ours(path)) {
        (void)pthread_mutex_lock(&disk_lock);
        tu_disk_file *f = disk_find(path);
        if (f != NULL) {
            f->path[0] = '\0';
        }
        (void)pthread_mutex_unlock(&disk_lock);
    }
    return rc;
}

#endif
