/* ps_server/ps_trail.h - where the rows of recent lookups lie, for the pushes that follow them.
 *
 * Layer:     ps_server (memory only). Includes base/.
 * Why:       a trainer pushes the keys that it has looked up a moment before. The row's number is
 *            in its index entry, one cache line of six that an update asks the memory for, and the
 *            one that the others have to wait for.
 * Promise:   none. What is given back are guesses: a row that was found may have left, its slot may
 *            be another key's, and the note may be that of other keys. Who uses one looks at the
 *            row's own key (ps_rows_is_row_of), in a line it needs anyway, and searches when it is
 *            wrong; a lost note costs that search. So nothing here is written down or told to
 *            clients, and no retry, restart or eviction has to know of it.
 * Threads:   any; one lock, held for a moment.
 * Bounds:    PS_TRAIL_NOTES notes and PS_TRAIL_BYTES; the oldest ones go.
 */
#ifndef PS_TRAIL_H
#define PS_TRAIL_H

#include "base/buf.h"

#include <pthread.h>

#define PS_TRAIL_NOTES    64u
#define PS_TRAIL_BYTES    ((size_t)16 << 20)
#define PS_TRAIL_MIN_KEYS 32u /* fewer are found faster than noted */

typedef struct ps_trail_note {
    uint32_t table_id;
    size_t n;
    uint64_t print; /* of some of the keys */
    bd_buf *rows;   /* shared: u32[n] row numbers; NULL: no note */
} ps_trail_note;

typedef struct ps_trail {
    pthread_mutex_t lock;
    ps_trail_note notes[PS_TRAIL_NOTES]; /* under lock, as all below */
    size_t next;                         /* the oldest one's place */
    size_t n_bytes;
} ps_trail;

void ps_trail_init(ps_trail *t);
void ps_trail_deinit(ps_trail *t);

/* ps_trail_put - keys[n] of a lookup were found at rows (u32[n]), whose reference moves. */
void ps_trail_put(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n, bd_buf *rows);
/* ps_trail_take - the newest note of such keys, which is gone then; the caller's reference. NULL:
 * none. */
bd_buf *ps_trail_take(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n);

#endif
