/* ps_server/ps_frozen.h - a row store that nobody writes: a checkpoint's rows, or those of a
 * stopped server.
 *
 * Layer:     ps_server. RocksDB opened read-only: no lock is taken and nothing is written, so
 *            several processes may read one folder.
 * Threads:   one at a time.
 * Formats:   keys and values are the entries of ps_table.h.
 */
#ifndef PS_FROZEN_H
#define PS_FROZEN_H

#include "ps_server/ps_store.h"

typedef struct ps_frozen ps_frozen;

/* BD_E_IO, BD_E_CORRUPT name the folder. */
bd_status ps_frozen_open(const char *folder, ps_frozen **out, bd_err *err) BD_MUST_CHECK;
void ps_frozen_close(ps_frozen *f); /* NULL is fine */

/* ps_frozen_each - every row in key order, or those of one table (table_id != 0). Stops at the
 * first failure of fn and returns it. */
bd_status ps_frozen_each(ps_frozen *f, uint32_t table_id, ps_entry_fn fn, void *user,
                         bd_err *err) BD_MUST_CHECK;
/* ps_frozen_get - *value: owned (bd_free), NULL when there is no such row. */
bd_status ps_frozen_get(ps_frozen *f, uint32_t table_id, uint64_t key, uint8_t **value,
                        size_t *n_bytes, bd_err *err) BD_MUST_CHECK;

/* One row after the other in key order, from the first row of the table (0: of all) on. The bytes
 * are valid until the next call. */
typedef struct ps_cursor ps_cursor;
bd_status ps_cursor_open(ps_frozen *f, uint32_t table_id, ps_cursor **out,
                         bd_err *err) BD_MUST_CHECK;
void ps_cursor_close(ps_cursor *c); /* NULL is fine */

typedef struct ps_cursor_row {
    const uint8_t *key, *value; /* NULL: no more rows */
    size_t key_bytes, value_bytes;
} ps_cursor_row;
/* BD_E_IO, BD_E_CORRUPT: the store's. */
bd_status ps_cursor_next(ps_cursor *c, ps_cursor_row *row, bd_err *err) BD_MUST_CHECK;

#endif
