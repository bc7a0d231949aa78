/* worker/wk_prefetch.h - the next batches, made by a thread while the current one trains.
 *
 * Layer:     worker.
 * Ownership: an item is moved to the training thread by next, and back by give_back.
 *
 * Thread model of wk_prefetch
 *   threads    maker (1): make; training thread (1): next, give_back
 *   field      written by    read by   protected by
 *   ready      both          both      lock; at most `depth` items exist
 *   stop, rc   both          both      lock
 *   blocking   next waits for the maker; the maker waits for a free item
 *   shutdown   free: stop, wake, join; items still ready are dropped
 */
#ifndef WK_PREFETCH_H
#define WK_PREFETCH_H

#include "worker/wk_batch.h"
#include "worker/wk_sparse.h"

typedef struct wk_item {
    wk_batch batch;
    wk_lookup *lookup; /* owned: prepared, not fetched */
    uint64_t step;
} wk_item;

/* Fills item for item->step; runs on the maker thread. An error reaches the caller of next. */
typedef bd_status (*wk_make_fn)(void *user, wk_item *item, bd_err *err);
/* Releases what make put in (lookup); the batch's arena stays for reuse. */
typedef void (*wk_drop_fn)(void *user, wk_item *item);

typedef struct wk_prefetch wk_prefetch;

/* Items for steps [first_step, end_step), in order, at most depth (>= 2) at once. */
bd_status wk_prefetch_new(uint64_t first_step, uint64_t end_step, size_t depth, wk_make_fn make,
                          wk_drop_fn drop, void *user, wk_prefetch **out,
                          bd_err *err) BD_MUST_CHECK;
/* *item NULL: past the last step. */
bd_status wk_prefetch_next(wk_prefetch *p, wk_item **item, bd_err *err) BD_MUST_CHECK;
void wk_prefetch_give_back(wk_prefetch *p, wk_item *item); /* NULL is fine */
/* All items must have been given back. */
void wk_prefetch_free(wk_prefetch *p);

#endif
