/* ps_server/ps_still.h - the rows of a stopped server, as its next start would have them: the row
 * store under the records of the journal. Nothing is written.
 *
 * Layer:     ps_server, for offline tools. One thread.
 * Ownership: ps_still_close frees everything; what each passes is valid during the call.
 * Cost:      memory of the rows that the journal's records name (an orderly stop leaves none);
 *            tables larger than memory are fine.
 */
#ifndef PS_STILL_H
#define PS_STILL_H

#include "ps_server/ps_tables.h"

typedef struct ps_still ps_still;

/* BD_E_EXISTS: a server runs on the folder; BD_E_NOT_FOUND: it is not a data folder; BD_E_CORRUPT.
 */
bd_status ps_still_open(const char *data_dir, ps_still **out, bd_err *err) BD_MUST_CHECK;
void ps_still_close(ps_still *s);                    /* NULL is fine */
const ps_tables *ps_still_tables(const ps_still *s); /* specs; the rows in them are the journal's */
void ps_still_identity(const ps_still *s, uint32_t *index, uint32_t *servers);

/* A row as it is kept (ps_table.h). */
typedef struct ps_still_row {
    uint64_t key;
    uint32_t freq;
    uint64_t seq_n, last_step;
    const uint8_t *weights; /* as the table's dtype stores them */
    const uint8_t *state;   /* f32 LE */
} ps_still_row;

/* Every row of the table in key order. */
typedef bd_status (*ps_still_fn)(void *user, const ps_still_row *row, bd_err *err);
bd_status ps_still_each(ps_still *s, const ps_spec *spec, ps_still_fn fn, void *user,
                        bd_err *err) BD_MUST_CHECK;
/* One row; *found false: the server has none of that key. */
bd_status ps_still_get(ps_still *s, const ps_spec *spec, uint64_t key, bool *found, ps_still_fn fn,
                       void *user, bd_err *err) BD_MUST_CHECK;

#endif
