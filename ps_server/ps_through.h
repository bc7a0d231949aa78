/* ps_server/ps_through.h - a large file that its writer appends to and nobody reads soon, on its
 * way to the disk past the page cache.
 *
 * The writer (RocksDB's, which takes a path and nothing else) writes to a file in memory; a thread
 * of its own brings what is there to the disk beside it, hashes it on the way and gives the memory
 * back. So a checkpoint neither fills the page cache, nor reads a file again to hash it, nor lets
 * the builder wait for the disk.
 *
 * Layer:     ps_server; files only.
 * Threads:   one at a time uses it; its own thread is joined by close.
 * Ownership: close frees it.
 * Cost:      one copy out of the memory file; PS_THROUGH_BEHIND_BYTES of memory.
 */
#ifndef PS_THROUGH_H
#define PS_THROUGH_H

#include "base/err.h"
#include "base/file_hash.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_THROUGH_BEHIND_BYTES (32u << 20) /* the writer may be so far ahead of the disk */

typedef struct ps_through ps_through;

/* ps_through_open - *out NULL on BD_OK: this system has no files in memory, or none that can be
 * opened by path; the writer writes `path` itself. BD_E_NOMEM; BD_E_IO names the path. */
bd_status ps_through_open(const char *path, ps_through **out, bd_err *err) BD_MUST_CHECK;
/* Where the writer writes. */
const char *ps_through_path(const ps_through *t);
/* The writer has come to byte n or so: waits while the disk is far behind. False: writing has
 * failed, and close says how. */
bool ps_through_feed(ps_through *t, uint64_t n_bytes);
/* ps_through_close - the writer is done (or has given up: the file is then of no use). Waits until
 * all of it is written; it is not synced. *prefix: owned; NULL: the file has to be read to be
 * hashed. BD_E_IO names the path. NULL is fine. */
bd_status ps_through_close(ps_through *t, bd_file_prefix **prefix, bd_err *err);

#endif
