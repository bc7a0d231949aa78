/* ps_server/ps_through.h - a large file that its writer appends to and nobody reads soon, on its
 * way to the disk past the page cache.
 *
 * The writer makes the bytes where they leave from, hashed while they are in its caches; a thread
 * of its own writes them beside it. So a checkpoint neither fills the page cache, nor copies a row
 * twice, nor reads a file again to hash it, nor lets the builder wait for each write.
 *
 * Layer:     ps_server; files only.
 * Threads:   one at a time uses it; its own thread is joined by close.
 * Ownership: close frees it.
 * Cost:      no copy but of the last block of each PS_THROUGH_CHUNK_BYTES; PS_THROUGH_CHUNKS of
 *            them in memory, and the largest piece that was asked for.
 */
#ifndef PS_THROUGH_H
#define PS_THROUGH_H

#include "base/err.h"
#include "base/file_hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_THROUGH_CHUNK_BYTES ((size_t)2 << 20) /* written at a time */
#define PS_THROUGH_CHUNKS      4u

typedef struct ps_through ps_through;

/* ps_through_open - a new file at the path, or one instead of what is there. piece_bytes: the
 * largest that will be asked for. BD_E_NOMEM; BD_E_IO names the path. */
bd_status ps_through_open(const char *path, size_t piece_bytes, ps_through **out,
                          bd_err *err) BD_MUST_CHECK;
/* Room for the file's next n bytes, n <= piece_bytes, until the next call; waits while the disk is
 * far behind. NULL: writing has failed, and close says how. */
uint8_t *ps_through_room(ps_through *t, size_t n);
/* The first n bytes of the room are the file's. lasting: they will never change; from the first
 * that may, the file is read to be hashed. */
void ps_through_add(ps_through *t, size_t n, bool lasting);
/* How many bytes it has. */
uint64_t ps_through_bytes(const ps_through *t);
/* ps_through_close - the writer is done (or has given up: the file is then of no use). Waits until
 * all of it is written; it is not synced. *prefix: owned; NULL: the whole file has to be read to be
 * hashed. BD_E_IO names the path. NULL is fine. */
bd_status ps_through_close(ps_through *t, bd_file_prefix **prefix, bd_err *err);

#endif
