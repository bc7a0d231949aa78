/* worker/wk_rdzv.h - the ranks of one start of a job find each other through the coordinator's
 * store.
 *
 * Layer:     worker.
 * Threads:   blocks its caller.
 * Stale keys: the store outlives runs. A rank asks with a random number of its own and takes only
 *            the answer to that number, so what an older start has left there is never mistaken for
 *            this one. Keys: rdzv/<job>/ask/<rank> = "<nonce> <world>",
 *            rdzv/<job>/answer/<rank>/<nonce>, rdzv/<job>/<epoch>/joined/<rank>.
 */
#ifndef WK_RDZV_H
#define WK_RDZV_H

#include "base/err.h"
#include "base/kv.h"

typedef struct wk_rdzv {
    const char *job;
    int rank, world;
    int64_t timeout_ms;
} wk_rdzv;

/* Rank 0: gives `text` (one line, no leading '!') to every other rank and waits until all have
 * joined. BD_E_TIMEOUT names the absent ranks, BD_E_MISMATCH a rank with another world. */
bd_status wk_rdzv_lead(bd_kv *kv, const wk_rdzv *r, uint64_t epoch, const char *text,
                       bd_err *err) BD_MUST_CHECK;
/* Other ranks: *text (owned, bd_free) is rank 0's. text begins with the epoch in decimal.
 * BD_E_EXISTS: this rank has joined already; BD_E_MISMATCH: other world; BD_E_TIMEOUT. */
bd_status wk_rdzv_follow(bd_kv *kv, const wk_rdzv *r, char **text, bd_err *err) BD_MUST_CHECK;

/* A rank may run once in a run folder: holds <run_dir>/worker-<rank>.lock until the process ends or
 * the descriptor is closed. BD_E_EXISTS names rank and process. */
bd_status wk_rank_lock(const char *run_dir, int rank, int *fd, bd_err *err) BD_MUST_CHECK;

#endif
