#include "base/mem.h"

#include "ps_server/ps_rocks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COPY_BYTES (256u << 10)

bd_status ps_dir_make(const char *path, bd_err *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0) {
        return BD_OK;
    }
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return BD_OK;
    }
    return bd_err_errno(err, BD_E_IO, errno, "make folder %s", path);
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

bd_status ps_dir_each(const char *path, ps_dir_fn fn, void *user, bd_err *err)
{
    bd_status rc = BD_OK;
    DIR *d = opendir(path);
    if (d == NULL) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    while (rc == BD_OK) {
        /* NOLINTNEXTLINE(concurrency-mt-unsafe): this thread's own stream */
        const struct dirent *e = readdir(d);
        if (e == NULL) {
            break;
        }
        if (!is_dot(e->d_name)) {
            rc = fn(user, path, e->d_name, err);
        }
    }
    (void)closedir(d);
    return rc;
}

static bd_status remove_one(void *user, const char *dir, const char *name, bd_err *err)
{
    (void)user;
    char *path = bd_strfmt("%s/%s", dir, name);
    if (path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "remove %s: no memory", dir);
    }
    bd_status rc = BD_OK;
    if (unlink(path) != 0) {
        rc = errno == EISDIR || errno == EPERM
                 ? ps_dir_remove(path, err)
                 : bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
    }
    bd_free(path);
    return rc;
}

bd_status ps_dir_remove(const char *path, bd_err *err)
{
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return BD_OK;
    }
    bd_status rc = ps_dir_each(path, remove_one, NULL, err);
    if (rc == BD_OK && rmdir(path) != 0 && errno != ENOENT) {
        rc = bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
    }
    return rc;
}

static bd_status copy_bytes(int in, int out, const char *to, bd_err *err)
{
    char *buf = bd_alloc(COPY_BYTES);
    bd_status rc = buf == NULL ? bd_err_set(err, BD_E_NOMEM, "copy: no memory") : BD_OK;
    while (rc == BD_OK) {
        ssize_t n = read(in, buf, COPY_BYTES);
        if (n == 0) {
            break;
        }
        for (ssize_t done = 0; n > 0 && done < n;) {
            ssize_t w = write(out, buf + done, (size_t)(n - done));
            if (w <= 0) {
                n = -1;
                break;
            }
            done += w;
        }
        if (n < 0) {
            rc = bd_err_errno(err, BD_E_IO, errno, "copy to %s", to);
        }
    }
    if (rc == BD_OK && fsync(out) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "fsync %s", to);
    }
    bd_free(buf);
    return rc;
}

static bd_status copy_file(const char *from, const char *to, bd_err *err)
{
    bd_status rc = BD_OK;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    if (in < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "open %s", from);
    }
    out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    rc =
        out < 0 ? bd_err_errno(err, BD_E_IO, errno, "create %s", to) : copy_bytes(in, out, to, err);
    if (out >= 0 && close(out) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "close %s", to);
    }
    (void)close(in);
    return rc;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bd_status link_one(void *user, const char *dir, const char *name, bd_err *err)
{
    const char *to_dir = user;
    if (strcmp(name, "LOCK") == 0) {
        return BD_OK;
    }
    bd_status rc = BD_OK;
    char *from = bd_strfmt("%s/%s", dir, name), *to = bd_strfmt("%s/%s", to_dir, name);
    if (from == NULL || to == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "link %s: no memory", name);
    } else if (!ends_with(name, ".sst") || link(from, to) != 0) {
        rc = copy_file(from, to, err); /* also where hard links are not possible */
    }
    bd_free(from);
    bd_free(to);
    return rc;
}

bd_status ps_dir_link(const char *from, char *to, bd_err *err)
{
    bd_status rc = ps_dir_make(to, err);
    if (rc == BD_OK) {
        rc = ps_dir_each(from, link_one, to, err);
    }
    return rc == BD_OK ? ps_dir_sync(to, err) : rc;
}

bd_status ps_dir_sync(const char *path, bd_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        bd_status rc = bd_err_errno(err, BD_E_IO, errno, "fsync %s", path);
        if (fd >= 0) {
            (void)close(fd);
        }
        return rc;
    }
    (void)close(fd);
    return BD_OK;
}

static bd_status add_bytes(void *user, const char *dir, const char *name, bd_err *err)
{
    struct stat st;
    char *path = bd_strfmt("%s/%s", dir, name);
    (void)err;
    if (path != NULL && lstat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        *(size_t *)user += (size_t)st.st_size;
    }
    bd_free(path);
    return BD_OK;
}

size_t ps_dir_bytes(const char *path)
{
    size_t sum = 0;
    bd_err ignored;
    (void)!ps_dir_each(path, add_bytes, &sum, &ignored);
    return sum;
}
