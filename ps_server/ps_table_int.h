/* ps_server/ps_table_int.h - the inside of a table, shared by ps_table*.c. Thread model:
 * ps_table.h. */
#ifndef PS_TABLE_INT_H
#define PS_TABLE_INT_H

#include "base/mem.h"

#include "ps_server/ps_rows.h"
#include "ps_server/ps_table.h"

#include <pthread.h>
#include <stdatomic.h>

#define PS_TABLE_GROUP    32u /* keys whose index and row lines are in flight together */
#define PS_PREFETCH_LINES 10u /* of a row: further ones the hardware follows */

typedef struct ps_stripe {
    _Alignas(64) pthread_rwlock_t lock;
    ps_rows rows; /* under lock */
} ps_stripe;

struct ps_table {
    ps_spec spec;
    _Atomic uint64_t n_rows; /* in memory and on the disk, without tombstones */
    _Atomic uint64_t n_away; /* on the disk only, with tombstones */
    _Atomic uint64_t n_bad, last_bad_key;
    struct ps_table *hidden[PS_N_HIDDEN]; /* borrowed; set before the table is used */
    bool tiered;      /* commit thread's: rows may leave, so records hold theirs */
    size_t load_rows; /* of a stripe that a start brings into memory at most */
    float *scratch;   /* owned [3 * dim], of the one thread that applies */
    ps_stripe stripes[PS_N_STRIPES];
};

/* The keys [at, result) lie in the stripe of keys[at]. */
static inline size_t ps_run_end(const uint64_t *keys, size_t n, size_t at, uint32_t *stripe_idx)
{
    uint32_t s = ps_stripe_of_key(keys[at]);
    size_t end = at + 1;
    while (end < n && ps_stripe_of_key(keys[end]) == s) {
        end++;
    }
    *stripe_idx = s;
    return end;
}

static inline void ps_stripe_read_lock(ps_stripe *s)
{
    (void)pthread_rwlock_rdlock(&s->lock);
}
static inline void ps_stripe_write_lock(ps_stripe *s)
{
    (void)pthread_rwlock_wrlock(&s->lock);
}
static inline void ps_stripe_unlock(ps_stripe *s)
{
    (void)pthread_rwlock_unlock(&s->lock);
}

/* Sends for the row's first bytes; PS_NO_ROW is fine. (Always inline: gcc 12 takes a function that
 * only prefetches for one without effects and drops its calls.) */
__attribute__((always_inline)) static inline void ps_row_prefetch(const ps_rows *r, uint32_t row,
                                                                  size_t want_bytes)
{
    size_t most = (size_t)PS_PREFETCH_LINES * BD_CACHE_LINE_BYTES;
    size_t bytes = want_bytes < most ? want_bytes : most;
    if (row != PS_NO_ROW) {
        const char *p = (const char *)ps_rows_at(r, row);
        for (size_t b = 0; b < bytes; b += BD_CACHE_LINE_BYTES) {
            __builtin_prefetch(p + b, 0, 2);
        }
    }
}

/* rows[i] = number of keys[i] or PS_NO_ROW, n <= PS_TABLE_GROUP; the first want_bytes of each are
 * on their way to the cache. */
void ps_find_group(const ps_rows *r, const uint64_t *keys, size_t n, size_t want_bytes,
                   uint32_t *rows);

/* Rows left the stripe for the disk (under its lock for writing). */
static inline void ps_table_count_moved(ps_table *t, size_t n)
{
    if (n != 0) {
        (void)atomic_fetch_add_explicit(&t->n_away, n, memory_order_relaxed);
    }
}

/* Bytes of a row's weights and state. */
static inline size_t ps_table_row_bytes(const ps_table *t)
{
    return (t->spec.weight_words + t->spec.state_elems) * sizeof(float);
}

/* Weights and state as of a key nobody has pushed. The thread that applies. */
void ps_table_start_row(ps_table *t, ps_rows *r, uint32_t row, uint64_t key);

/* The row for an update by record n, made when it is absent; PS_NO_ROW: it has the update. */
uint32_t ps_table_row_for(ps_table *t, ps_rows *r, uint32_t row, uint64_t key, uint64_t n);
/* The row has been changed by this record. */
void ps_table_stamp(ps_rows *r, uint32_t row, const ps_apply *a);

/* Fills a row that is in the index from a stored value. A tombstone's has no weights and gets those
 * of a key nobody has pushed, so only the thread that applies may fill one. */
void ps_table_fill(ps_table *t, ps_rows *r, uint32_t row, const uint8_t *value, size_t value_bytes);

#endif
