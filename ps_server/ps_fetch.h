/* ps_server/ps_fetch.h - rows from the store by key, in batches, on threads of their own.
 *
 * Layer:     ps_server. Knows the store (ps_store.h), not the tables.
 * Ownership: a fetch belongs to whoever made it; it must live until `done` has run.
 * Threads:   start: any. put and done run on fetch threads, without locks; put on several at once,
 *            each for keys of its own; done after the last put. Neither may block long.
 *            wait: the caller reads along with the threads, so it also works without any.
 * Cost:      one sort of the keys; chunks of neighbours in key order, which lie in few files and so
 *            meet few index blocks, one MultiGet each; the values are copied once. A chunk has 256
 *            keys, and fewer (32 at least) when what is left would not keep all threads busy twice
 *            over, so that they end together.
 */
#ifndef PS_FETCH_H
#define PS_FETCH_H

#include "ps_server/ps_store.h"

typedef struct ps_fetch_pool ps_fetch_pool;

/* n_threads 0: as many as cores, at least two. */
bd_status ps_fetch_pool_new(size_t n_threads, ps_fetch_pool **out, bd_err *err) BD_MUST_CHECK;
/* No fetch may be under way. */
void ps_fetch_pool_free(ps_fetch_pool *p);
/* The store to read from (borrowed, NULL: none); waits until nobody reads from the old one. */
void ps_fetch_pool_set_store(ps_fetch_pool *p, ps_store *store);
/* How often the store was set: a fetch that saw another number has read from an old store. */
uint64_t ps_fetch_pool_turn(ps_fetch_pool *p);

uint64_t ps_fetch_pool_rows(ps_fetch_pool *p); /* read so far */

typedef struct ps_fetch ps_fetch;
struct ps_fetch {
    uint32_t table_id;
    size_t n, stride; /* of values */
    uint64_t *keys;   /* owned [n], ascending */
    uint32_t *picks;  /* owned [n]: keys[i] is the caller's key picks[i] */
    uint8_t *values;  /* owned [n x stride] */
    uint32_t *bytes;  /* owned [n]; 0: the store has none */
    bd_status rc;     /* valid when done */
    bd_err err;
    uint64_t turn;
    uint64_t as_of; /* of a lookup: see ps_found */
    /* Keys [first, first + n) are read; NULL: nothing to do before all are. */
    void (*put)(ps_fetch *f, size_t first, size_t n);
    void (*done)(ps_fetch *f);
    void *user;

    ps_fetch *next;         /* the pool's, as the rest */
    size_t taken, finished; /* keys; under the pool's lock */
};

/* The keys are all[pick[..]]. value_bytes: of the table's stored values. NULL: no memory. */
ps_fetch *ps_fetch_new(uint32_t table_id, size_t value_bytes, const uint64_t *all,
                       const uint32_t *pick, size_t n);
void ps_fetch_free(ps_fetch *f);
void ps_fetch_start(ps_fetch_pool *p, ps_fetch *f);
/* Without `done`. Returns f->rc. */
bd_status ps_fetch_wait(ps_fetch_pool *p, ps_fetch *f);

/* What was read for keys from `first` on. */
static inline ps_found ps_fetch_found(const ps_fetch *f, size_t first)
{
    return (ps_found){.values = f->values + first * f->stride,
                      .stride = f->stride,
                      .bytes = f->bytes + first,
                      .as_of = f->as_of};
}

#endif
