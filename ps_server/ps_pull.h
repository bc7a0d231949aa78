/* ps_server/ps_pull.h - parts of a checkpoint from servers that run, for a restore without a shared
 * folder.
 *
 * Layer:     ps_server; calls other servers by rpc (ReadPart), writes files.
 * Threads:   the keeper's; blocks until all is there.
 * Places:    <to>/<i>/checkpoints/<name> for the i-th server named, laid out so that ps_parts.h
 *            finds it. MANIFEST comes first, to <to>/<i>/MANIFEST, and takes its place last: a part
 *            with a MANIFEST is whole. Of a part without slots of ours only the MANIFEST comes, and
 *            of one that is in our own folder nothing.
 * Checks:    every piece by its checksum, every file by size and checksum of its MANIFEST line. A
 *            file that is there and passes is not asked for again.
 * Cost:      one call for each MiB, one at a time.
 */
#ifndef PS_PULL_H
#define PS_PULL_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_PULL_SCHEME      "ps://"
#define PS_PULL_FOLDER      ".pulled" /* no checkpoint can have that name */
#define PS_PULL_PIECE_BYTES ((size_t)1 << 20)

typedef struct ps_pull {
    struct rpc_env *env; /* borrowed */
    bool allow_insecure;
    const char *name; /* of the checkpoint */
    uint64_t epoch;   /* the job that made it; 0: whatever a server has */
    uint32_t first_slot, end_slot;
    const char *own; /* our data folder: its part need not be pulled */
    const char *to;  /* folder, made when there is something to pull */
    bool (*stop)(void *user);
    void *user;
} ps_pull;

/* ps_pull_parts - from: folders (skipped) and ps://HOST:PORT, separated by commas. A server that
 * has no part of the name or epoch is passed over: what is missing in the end ps_parts_check names.
 * Errors name server, checkpoint and file: BD_E_UNAVAILABLE and BD_E_TIMEOUT (nobody answered),
 * BD_E_DENIED, BD_E_CORRUPT (bytes that are not what their checksum says), BD_E_IO (our disk),
 * BD_E_CANCELLED (stop), BD_E_UNSUPPORTED (no env). */
bd_status ps_pull_parts(const ps_pull *p, const char *from, bd_err *err) BD_MUST_CHECK;

#endif
