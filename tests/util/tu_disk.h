/* tests/util/tu_disk.h - a disk that forgets what was not synced, fills up and refuses writes: the
 * system calls of this program (RocksDB's too) go through functions that know a table of files.
 * Include tu_disk_calls.h in one file of a test program, after which `write` and friends are its
 * own.
 *
 * Power loss: every file under `root` has the size that was last synced, and an entry that is
 * durable once its folder was synced. A test, when the process that wrote is dead, cuts files to
 * that size (plus a random piece of what came later, as a disk may keep some of it) and removes
 * what no folder knows durably. The table lives in a file, so that it survives kill
 * -9. A rename over an old file leaves the new one; an unlink is durable at once: both are allowed.
 *
 * Trouble: with fail set, calls that write get that errno (ENOSPC: a full disk, EROFS: read-only,
 * EIO), files under `root` alone.
 */
#ifndef TU_DISK_H
#define TU_DISK_H

#include "base/rand.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define TU_DISK_FILES 1024
#define TU_DISK_FDS   4096
#define TU_DISK_API   __attribute__((visibility("default")))

typedef struct tu_disk_file {
    char path[192]; /* "": free */
    uint64_t synced_bytes;
    bool is_dir, is_durable;
} tu_disk_file;

typedef struct tu_disk {
    char root[64];
    _Atomic int fail; /* errno for writes; 0: none */
    _Atomic uint64_t n_syncs;
    _Atomic uint64_t answered; /* for the test's own use */
    tu_disk_file files[TU_DISK_FILES];
} tu_disk;

static tu_disk *disk; /* NULL: calls go through */
static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
static int disk_fd_file[TU_DISK_FDS]; /* index + 1 */

/* ---- the table ---- */
static bool disk_is_ours(const char *path)
{
    size_t n = disk == NULL ? 0 : strlen(disk->root);
    return n > 0 && strncmp(path, disk->root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static tu_disk_file *disk_find(const char *path)
{
    for (int i = 0; i < TU_DISK_FILES; i++) {
        if (strcmp(disk->files[i].path, path) == 0) {
            return &disk->files[i];
        }
    }
    return NULL;
}

static tu_disk_file *disk_add(const char *path, uint64_t synced, bool is_dir, bool is_durable)
{
    tu_disk_file *f = disk_find("");
    if (f == NULL || strlen(path) >= sizeof f->path) {
        abort();
    }
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    f->synced_bytes = synced;
    f->is_dir = is_dir;
    f->is_durable = is_durable;
    return f;
}

static void disk_opened(const char *path, int fd, bool existed, int flags)
{
    struct stat st;
    if (!disk_is_ours(path) || fd < 0 || fd >= TU_DISK_FDS || fstat(fd, &st) != 0) {
        return;
    }
    (void)pthread_mutex_lock(&disk_lock);
    tu_disk_file *f = disk_find(path);
    if (f == NULL) {
        f = disk_add(path, existed ? (uint64_t)st.st_size : 0, S_ISDIR(st.st_mode), existed);
    }
    if ((flags & O_TRUNC) != 0) {
        f->synced_bytes = 0;
    }
    disk_fd_file[fd] = (int)(f - disk->files) + 1;
    (void)pthread_mutex_unlock(&disk_lock);
}

static tu_disk_file *disk_of(int fd)
{
    return disk != NULL && fd >= 0 && fd < TU_DISK_FDS && disk_fd_file[fd] != 0
               ? &disk->files[disk_fd_file[fd] - 1]
               : NULL;
}

/* Non-zero: the call fails with that errno. */
static int disk_trouble(int fd)
{
    return disk_of(fd) == NULL ? 0 : atomic_load(&disk->fail);
}

static void disk_synced(int fd, uint64_t bytes)
{
    (void)pthread_mutex_lock(&disk_lock);
    tu_disk_file *f = disk_of(fd);
    size_t n = f == NULL ? 0 : strlen(f->path);
    if (f != NULL && !f->is_dir) {
        f->synced_bytes = bytes;
    }
    for (int i = 0; f != NULL && f->is_dir && i < TU_DISK_FILES; i++) {
        tu_disk_file *in = &disk->files[i];
        if (strncmp(in->path, f->path, n) == 0 && in->path[n] == '/' &&
            strchr(in->path + n + 1, '/') == NULL) {
            in->is_durable = true;
        }
    }
    (void)pthread_mutex_unlock(&disk_lock);
    if (f != NULL) {
        (void)atomic_fetch_add(&disk->n_syncs, 1);
    }
}

/* ---- for the test ---- */
static void tu_disk_name(const char *root, char out[96])
{
    (void)snprintf(out, 96, "%s.disk", root);
}

/* Watches what is under root; `fresh` starts an empty table. */
static void tu_disk_open(const char *root, bool fresh)
{
    char name[96];
    tu_disk_name(root, name);
    int fd = open(name, O_RDWR | O_CREAT | (fresh ? O_TRUNC : 0), 0600);
    if (fd < 0 || ftruncate(fd, sizeof *disk) != 0) {
        abort();
    }
    void *at = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (at == MAP_FAILED) {
        abort();
    }
    (void)snprintf(((tu_disk *)at)->root, sizeof disk->root, "%s", root);
    disk = at;
}

static void tu_disk_close(void)
{
    tu_disk *d = disk;
    disk = NULL;
    memset(disk_fd_file, 0, sizeof disk_fd_file);
    (void)munmap(d, sizeof *d);
}

#endif
