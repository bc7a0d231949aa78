/* Durable small files. */
#include "worker/wk_file.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bd_status wk_writer_open(wk_writer *w, const char *path, bd_err *err)
{
    memset(w, 0, sizeof *w);
    w->path = bd_strdup(path);
    return w->path != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "write %s", path);
}

void wk_writer_drop(wk_writer *w)
{
    bd_free(w->bytes);
    bd_free(w->path);
    memset(w, 0, sizeof *w);
}

void wk_write(wk_writer *w, const void *bytes, size_t n_bytes)
{
    if (w->failed || n_bytes == 0) {
        return;
    }
    if (!bd_grow(&w->bytes, &w->cap_bytes, w->n_bytes + n_bytes, 1)) {
        w->failed = true;
        return;
    }
    memcpy(w->bytes + w->n_bytes, bytes, n_bytes);
    w->n_bytes += n_bytes;
}

void wk_write_u32(wk_writer *w, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    wk_write(w, b, sizeof b);
}

void wk_write_u64(wk_writer *w, uint64_t v)
{
    wk_write_u32(w, (uint32_t)v);
    wk_write_u32(w, (uint32_t)(v >> 32));
}

static bd_status write_all(int fd, const char *path, const char *bytes, size_t n_bytes, bd_err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = bd_fault_hit("wk.file.write") ? -1 : write(fd, bytes + done, n_bytes - done);
        if (n < 0 && errno != EINTR) {
            return bd_err_errno(err, BD_E_IO, errno, "write %s", path);
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(fd) == 0 ? BD_OK : bd_err_errno(err, BD_E_IO, errno, "fsync %s", path);
}

/* The folder's entry must be durable too, else a crash may undo the rename. */
static bd_status sync_parent(const char *path, bd_err *err)
{
    bd_status rc = BD_OK;
    char *dir = bd_strdup(path);
    if (dir == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write %s", path);
    }
    char *slash = strrchr(dir, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    int fd = open(slash == NULL  ? "."
                  : slash == dir ? "/"
                                 : dir,
                  O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "fsync the folder of %s", path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    bd_free(dir);
    return rc;
}

static bd_status write_file(const char *path, const void *bytes, size_t n_bytes, bd_err *err)
{
    char *tmp = bd_strfmt("%s.tmp", path);
    bd_status rc;
    if (tmp == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write %s", path);
    }
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "open %s", tmp);
        goto out;
    }
    rc = write_all(fd, tmp, bytes, n_bytes, err);
    if (close(fd) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "close %s", tmp);
    }
    if (rc == BD_OK && rename(tmp, path) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "rename %s", tmp);
    }
    if (rc == BD_OK) {
        rc = sync_parent(path, err);
    } else {
        (void)unlink(tmp);
    }
out:
    bd_free(tmp);
    return rc;
}

bd_status wk_writer_close(wk_writer *w, bd_err *err)
{
    bd_status rc;
    wk_write_u64(w, w->failed ? 0 : bd_hash64(w->bytes, w->n_bytes, 0));
    if (w->failed) {
        rc = bd_err_set(err, BD_E_NOMEM, "write %s", w->path);
    } else {
        rc = write_file(w->path, w->bytes, w->n_bytes, err);
    }
    wk_writer_drop(w);
    return rc;
}

bd_status wk_write_bytes(const char *path, const void *bytes, size_t n_bytes, bd_err *err)
{
    return write_file(path, bytes, n_bytes, err);
}

/* ---- reading ---- */

static bd_status read_all(FILE *f, const char *path, wk_blob *b, bd_err *err)
{
    size_t cap = 0;
    for (;;) {
        if (!bd_grow(&b->bytes, &cap, b->n_bytes + 65536, 1)) {
            return bd_err_set(err, BD_E_NOMEM, "read %s", path);
        }
        size_t n = fread(b->bytes + b->n_bytes, 1, cap - b->n_bytes, f);
        b->n_bytes += n;
        if (n == 0) {
            return ferror(f) ? bd_err_errno(err, BD_E_IO, errno, "read %s", path) : BD_OK;
        }
    }
}

uint32_t wk_blob_u32(wk_blob *b)
{
    const uint8_t *p = wk_blob_take(b, 4);
    return p == NULL
               ? 0
               : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t wk_blob_u64(wk_blob *b)
{
    uint64_t low = wk_blob_u32(b);
    return low | (uint64_t)wk_blob_u32(b) << 32;
}

const void *wk_blob_take(wk_blob *b, size_t n_bytes)
{
    if (n_bytes > b->n_bytes - b->pos) {
        b->cut = true;
        return NULL;
    }
    b->pos += n_bytes;
    return b->bytes + b->pos - n_bytes;
}

static bd_status check_blob(wk_blob *b, const char *path, const char magic[8], bd_err *err)
{
    if (b->n_bytes < 16 || memcmp(b->bytes, magic, 8) != 0) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: not a %.7s file", path, magic);
    }
    uint64_t want = bd_hash64(b->bytes, b->n_bytes - 8, 0);
    b->pos = b->n_bytes - 8;
    if (wk_blob_u64(b) != want) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: checksum differs", path);
    }
    b->n_bytes -= 8;
    b->pos = 8;
    return BD_OK;
}

bd_status wk_read_bytes(wk_blob *b, const char *path, bd_err *err)
{
    FILE *f = fopen(path, "re");
    memset(b, 0, sizeof *b);
    if (f == NULL) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    bd_status rc = read_all(f, path, b, err);
    (void)fclose(f);
    if (rc != BD_OK) {
        wk_blob_deinit(b);
    }
    return rc;
}

bd_status wk_blob_load(wk_blob *b, const char *path, const char magic[8], bd_err *err)
{
    bd_status rc = wk_read_bytes(b, path, err);
    if (rc == BD_OK) {
        rc = check_blob(b, path, magic, err);
    }
    if (rc != BD_OK) {
        wk_blob_deinit(b);
    }
    return rc;
}

void wk_blob_deinit(wk_blob *b)
{
    bd_free(b->bytes);
    memset(b, 0, sizeof *b);
}

/* ---- folders ---- */

bd_status wk_make_dirs(const char *path, bd_err *err)
{
    char *copy = bd_strdup(path);
    bd_status rc = BD_OK;
    if (copy == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "folder %s", path);
    }
    for (char *p = copy; rc == BD_OK && p != NULL;) {
        p = strchr(p + 1, '/');
        if (p != NULL) {
            *p = '\0';
        }
        if (mkdir(copy, 0755) != 0 && errno != EEXIST) {
            rc = bd_err_errno(err, BD_E_IO, errno, "make folder %s", copy);
        }
        if (p != NULL) {
            *p = '/';
        }
    }
    bd_free(copy);
    return rc;
}

bd_status wk_remove_file(const char *path, bd_err *err)
{
    if (unlink(path) != 0 && errno != ENOENT) {
        return bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
    }
    return BD_OK;
}

static int not_dots(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

bd_status wk_remove_dir(const char *path, bd_err *err)
{
    bd_status rc = BD_OK;
    struct dirent **names = NULL;
    int n = scandir(path, &names, not_dots, NULL);
    if (n < 0) {
        return errno == ENOENT ? BD_OK : bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    }
    for (int i = 0; i < n; i++) {
        char *file = bd_strfmt("%s/%s", path, names[i]->d_name);
        if (rc == BD_OK) {
            rc = file != NULL ? wk_remove_file(file, err)
                              : bd_err_set(err, BD_E_NOMEM, "remove %s", path);
        }
        bd_free(file);
        free(names[i]);
    }
    free(names);
    if (rc == BD_OK && rmdir(path) != 0 && errno != ENOENT) {
        rc = bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
    }
    return rc;
}
