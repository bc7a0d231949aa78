/* base/file_hash.h - the XXH3-64 of a whole file, as `xxhsum -H3` prints it.
 *
 * Layer:   base. Threads: any. Cost: reads the file once, 1 MiB at a time.
 */
#ifndef BD_FILE_HASH_H
#define BD_FILE_HASH_H

#include "base/err.h"

#include <stdint.h>

/* bd_file_hash64 - *n_bytes and *hash of the file's content (the same as bd_hash64 of it with seed
 * 0). BD_E_NOT_FOUND, BD_E_IO and BD_E_NOMEM name the file. */
bd_status bd_file_hash64(const char *path, uint64_t *n_bytes, uint64_t *hash,
                         bd_err *err) BD_MUST_CHECK;

#endif
