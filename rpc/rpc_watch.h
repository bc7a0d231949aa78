/* rpc/rpc_watch.h - small files that operators replace while we run.
 *
 * Layer:   rpc, private.
 * Threads: none of its own; the owner serialises.
 * Method:  device, inode, size and time of change are compared, so renames (and Kubernetes' swapped
 *          symbolic links) are seen. A file changed less than 2 s ago is not settled: it may change
 *          once more within one tick of the file system's clock, so it is looked at again.
 */
#ifndef RPC_WATCH_H
#define RPC_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum { RPC_WATCH_FILES = 3, RPC_FILE_MAX_BYTES = 1 << 20 };

typedef struct rpc_watch {
    struct rpc_watch_sign {
        char *path; /* owned; NULL: none */
        dev_t dev;
        ino_t ino;
        off_t size;
        struct timespec changed;
    } files[RPC_WATCH_FILES];
    bool settled;
} rpc_watch;

/* Paths are copied; NULL entries are skipped. */
bd_status rpc_watch_init(rpc_watch *w, const char *const *paths) BD_MUST_CHECK;
void rpc_watch_deinit(rpc_watch *w);
/* Something may have changed since the last question; true at the first one. */
bool rpc_watch_changed(rpc_watch *w);
/* The whole file, terminated; owned (bd_free). what: for errors, e.g. "tls_cert". Errors are
 * BD_E_USAGE naming what and path: missing, unreadable, over RPC_FILE_MAX_BYTES. */
bd_status rpc_file_read(const char *what, const char *path, char **out, bd_err *err) BD_MUST_CHECK;

#endif
