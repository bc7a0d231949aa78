#include "rpc/rpc_watch.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTLED_NS (2 * BD_NS_PER_S)

bd_status rpc_watch_init(rpc_watch *w, const char *const *paths)
{
    *w = (rpc_watch){0};
    for (int i = 0; i < RPC_WATCH_FILES; i++) {
        if (paths[i] != NULL) {
            w->files[i].path = bd_strdup(paths[i]);
            if (w->files[i].path == NULL) {
                rpc_watch_deinit(w);
                return BD_E_NOMEM;
            }
        }
    }
    return BD_OK;
}

void rpc_watch_deinit(rpc_watch *w)
{
    for (int i = 0; i < RPC_WATCH_FILES; i++) {
        bd_free(w->files[i].path);
    }
    *w = (rpc_watch){0};
}

bool rpc_watch_changed(rpc_watch *w)
{
    bool changed = !w->settled;
    int64_t now_ns = bd_wall_ns();
    w->settled = true;
    for (int i = 0; i < RPC_WATCH_FILES; i++) {
        struct rpc_watch_sign *f = &w->files[i];
        struct stat st;
        if (f->path == NULL || stat(f->path, &st) != 0) {
            continue; /* gone for a moment: the old contents stay */
        }
        changed = changed || st.st_dev != f->dev || st.st_ino != f->ino || st.st_size != f->size ||
                  st.st_ctim.tv_sec != f->changed.tv_sec ||
                  st.st_ctim.tv_nsec != f->changed.tv_nsec;
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->size = st.st_size;
        f->changed = st.st_ctim;
        int64_t age_ns = now_ns - (st.st_ctim.tv_sec * BD_NS_PER_S + st.st_ctim.tv_nsec);
        w->settled = w->settled && age_ns >= SETTLED_NS;
    }
    return changed;
}

static bd_status read_all(int fd, char *text, size_t n, const char *what, const char *path,
                          bd_err *err)
{
    size_t got = 0;
    while (got < n) {
        ssize_t k = read(fd, text + got, n - got);
        if (k < 0 && errno != EINTR) {
            return bd_err_errno(err, BD_E_USAGE, errno, "%s: %s cannot be read", what, path);
        }
        if (k == 0) {
            break;
        }
        got += k > 0 ? (size_t)k : 0;
    }
    text[got] = '\0';
    return BD_OK;
}

bd_status rpc_file_read(const char *what, const char *path, char **out, bd_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return bd_err_errno(err, BD_E_USAGE, errno, "%s: %s cannot be read", what, path);
    }
    bd_status rc = BD_OK;
    char *text = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > RPC_FILE_MAX_BYTES) {
        rc = bd_err_set(err, BD_E_USAGE, "%s: %s is no file of at most %d bytes", what, path,
                        RPC_FILE_MAX_BYTES);
    } else {
        text = bd_alloc((size_t)st.st_size + 1);
        rc = text == NULL ? bd_err_set(err, BD_E_NOMEM, "%s: out of memory", what)
                          : read_all(fd, text, (size_t)st.st_size, what, path, err);
    }
    (void)close(fd);
    if (rc != BD_OK) {
        bd_free(text);
        return rc;
    }
    *out = text;
    return BD_OK;
}
