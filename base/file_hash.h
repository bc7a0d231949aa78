/* base/file_hash.h - the XXH3-64 of a whole file, as `xxhsum -H3` prints it.
 *
 * Layer:   base. Threads: any; a prefix: one at a time. Cost: reads the file once, 128 KiB at a time.
 */
#ifndef BD_FILE_HASH_H
#define BD_FILE_HASH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* bd_file_hash64 - *n_bytes and *hash of the file's content (the same as bd_hash64 of it with seed
 * 0). BD_E_NOT_FOUND, BD_E_IO and BD_E_NOMEM name the file. */
bd_status bd_file_hash64(const char *path, uint64_t *n_bytes, uint64_t *hash,
                         bd_err *err) BD_MUST_CHECK;
/* The first bytes of a file, hashed while they were written: who hashes the file later reads only
 * what follows them. */
typedef struct bd_file_prefix bd_file_prefix;

/* bd_file_prefix_new - of the file that is open there, none of its bytes yet. BD_E_NOMEM; BD_E_IO:
 * the file system does not say when a file was made, so that it could be taken for another. */
bd_status bd_file_prefix_new(int fd, bd_file_prefix **out, bd_err *err) BD_MUST_CHECK;
void bd_file_prefix_free(bd_file_prefix *p); /* NULL is fine */
/* The file's next n bytes; they will not change any more. */
void bd_file_prefix_add(bd_file_prefix *p, const void *bytes, size_t n);

/* bd_file_hash64_after - bd_file_hash64 without reading what one of the prefixes knows, if one is
 * of this file (whatever it is called now). */
bd_status bd_file_hash64_after(const char *path, bd_file_prefix *const *known, size_t n_known,
                               uint64_t *n_bytes, uint64_t *hash, bd_err *err) BD_MUST_CHECK;

#endif
