/* worker/data/wk_lines.h - a line of a data file, and how a bad one is reported.
 *
 * Layer:     worker/data, over base/reader.h (plain, .gz, .zst; LF and CRLF may be mixed).
 * Ownership: a line's text is the reader's buffer: writable, valid until the next line is read.
 */
#ifndef WK_LINES_H
#define WK_LINES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wk_line {
    const char *path; /* borrowed */
    uint64_t number;  /* from 1 */
    char *text;       /* zero-terminated, without line end */
    size_t n_bytes;
} wk_line;

/* BD_E_DATA with "<path>:<line>:<column>: <text>". at: a place in the line's text whose byte number
 * (from 1) is the column; NULL: the start. */
bd_status wk_line_bad(const wk_line *line, const char *at, bd_err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
