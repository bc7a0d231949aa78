/* base/gzip.h - pieces of a .gz file; zlib stays behind this header (reading: base/reader.h).
 *
 * Layer:   base.
 * Threads: pure function; call from any thread.
 */
#ifndef BD_GZIP_H
#define BD_GZIP_H

#include "base/buf.h"

/* bd_gzip_member - one complete gzip member with the n_bytes. Members written one after the other
 * are a valid .gz file, so pieces can be compressed on several threads. The bytes depend on the
 * input only. NULL: no memory, or n_bytes >= 4 GiB. The caller gets the reference. */
bd_buf *bd_gzip_member(const void *bytes, size_t n_bytes);

#endif
