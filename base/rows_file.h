/* base/rows_file.h - rows of a table as flat files: TSV, or NumPy arrays.
 *
 * Layer:     base. Threads: one owner thread for each writer or reader.
 * Ownership: arrays are borrowed during a call.
 * Cost:      streams: one row (TSV) or one buffer in memory, whatever the size of the file.
 * Formats, by the end of the path:
 *   x.tsv   a header line "key w0 .. w<dim-1> s0 .. s<state-1>" and a line a row, separated by
 * tabs; keys are decimal, numbers have the 9 digits that read back as the same float. x.npy
 * x.keys.npy (u64 [n]), x.rows.npy (f32 [n, dim]) and, with state, x.state.npy (f32 [n, state]):
 * NumPy's format 1.0, little-endian, C order; `numpy.load` maps them. A writer writes to <file>.tmp
 * and renames in close: what has its name is whole. NaN and infinities are written and read as they
 * are ("nan", "inf").
 */
#ifndef BD_ROWS_FILE_H
#define BD_ROWS_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bd_rows_writer bd_rows_writer;

/* BD_E_USAGE: the path ends neither in .tsv nor in .npy; BD_E_IO. */
bd_status bd_rows_writer_open(const char *path, size_t dim, size_t state_elems,
                              bd_rows_writer **out, bd_err *err) BD_MUST_CHECK;
/* n rows: keys[n], rows[n x dim], state[n x state_elems] (NULL when there are none). */
bd_status bd_rows_writer_put(bd_rows_writer *w, size_t n, const uint64_t *keys, const float *rows,
                             const float *state, bd_err *err) BD_MUST_CHECK;
/* Ends it in any case; keep false, or a failure: nothing of it stays. */
bd_status bd_rows_writer_close(bd_rows_writer *w, int keep, bd_err *err) BD_MUST_CHECK;

typedef struct bd_rows_reader bd_rows_reader;

/* Checks the header, and of arrays that the file is as long as it says: what is cut off is found
 * before any row is handed out. BD_E_NOT_FOUND, BD_E_USAGE as above, BD_E_DATA with file and line.
 * x.state.npy is read when it is there. */
bd_status bd_rows_reader_open(const char *path, bd_rows_reader **out, bd_err *err) BD_MUST_CHECK;
void bd_rows_reader_close(bd_rows_reader *r); /* NULL is fine */
size_t bd_rows_reader_dim(const bd_rows_reader *r);
size_t bd_rows_reader_state_elems(const bd_rows_reader *r);
/* Up to max rows into the caller's arrays (state: NULL skips it); *n 0: the end. BD_E_DATA names
 * file and line, or the array and the row. */
bd_status bd_rows_reader_next(bd_rows_reader *r, size_t max, uint64_t *keys, float *rows,
                              float *state, size_t *n, bd_err *err) BD_MUST_CHECK;

#endif
