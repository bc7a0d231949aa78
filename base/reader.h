/* base/reader.h - text files line by line: plain, gzip (.gz) and Zstandard (.zst).
 *
 * Layer:     base; zlib and zstd stay behind this header.
 * Threads:   one owner thread.
 * Ownership: the line is borrowed until the next call.
 * Format:    by content, not by name (the magic bytes); several gzip members or zstd frames one
 *            after the other are one file. Lines end at LF or CR LF, the last one also at the end
 *            of the file; an empty file has no lines. A UTF-8 byte order mark at the start is
 * dropped. Faults:    "base.reader.read" fails a read of the file with BD_E_IO.
 */
#ifndef BD_READER_H
#define BD_READER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { BD_READER_MAX_LINE_BYTES = 16 << 20 };

typedef struct bd_reader bd_reader;

/* BD_E_NOT_FOUND for a missing file, BD_E_IO (permissions, a directory), BD_E_NOMEM. */
bd_status bd_reader_open(const char *path, bd_reader **out, bd_err *err) BD_MUST_CHECK;
void bd_reader_close(bd_reader *r); /* NULL is fine */

/* The next line without its end, followed by a zero byte that *n_bytes does not count (a line may
 * hold zero bytes itself). At the end of the file: BD_OK and *line NULL.
 *
 * BD_E_CORRUPT (truncated or damaged compressed data), BD_E_DATA (a line above
 * BD_READER_MAX_LINE_BYTES), BD_E_IO, BD_E_NOMEM; all name file:line. After an error the reader
 * can only be closed or rewound. */
bd_status bd_reader_line(bd_reader *r, char **line, size_t *n_bytes, bd_err *err) BD_MUST_CHECK;
/* Number of the last line returned, from 1; 0 before the first. */
uint64_t bd_reader_line_no(const bd_reader *r);
const char *bd_reader_path(const bd_reader *r);
/* Back to the start of the file. */
bd_status bd_reader_rewind(bd_reader *r, bd_err *err) BD_MUST_CHECK;

#endif
