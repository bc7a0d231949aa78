/* worker/wk_sparse.h - where embedding rows come from and where their gradients go: one interface,
 * two homes.
 *
 * Layer:     worker.
 * Homes:     wk_sparse_client: the parameter servers (client/client.h). wk_sparse_local: tables in
 *            this process, for `servers: 0` and as the reference of tests: same initial rows, same
 *            update, same hash as a server's.
 * Threads:   prepare from any thread; everything else from the training thread.
 * Order:     per step: fetch, wait, push_begin, push_table for each table, push_end, push_wait,
 * commit_start, commit_wait. The fetch for step t + 1 may come between commit_start(t) and
 *            commit_wait(t). Gradients are borrowed until commit_wait. Async: until push_table, for
 *            the client copies them, so that servers apply a push while the next step runs:
 *            push_begin waits for the push before (and fails when that one did); push_wait is for
 *            those who need it applied now: a checkpoint, an evaluation, the end.
 */
#ifndef WK_SPARSE_H
#define WK_SPARSE_H

#include "client/client.h"

typedef struct wk_sparse wk_sparse;
typedef struct wk_lookup wk_lookup; /* one batch's distinct keys and their rows */

typedef struct wk_sparse_ops {
    bd_status (*table)(wk_sparse *s, const cl_table_spec *spec, uint32_t *table_id, bd_err *err);
    bd_status (*prepare)(wk_sparse *s, const cl_ids *tables, size_t n, wk_lookup **out,
                         bd_err *err);
    bd_status (*fetch)(wk_sparse *s, wk_lookup *l, uint64_t after_step, bd_err *err);
    bd_status (*wait)(wk_sparse *s, wk_lookup *l, bd_err *err);
    const cl_table_rows *(*rows)(const wk_lookup *l, size_t i);
    void (*lookup_free)(wk_lookup *l);
    /* lr_scale: for async, where a push is applied when it arrives; sync takes the commit's. */
    bd_status (*push_begin)(wk_sparse *s, uint64_t step, wk_lookup *l, double lr_scale,
                            bd_err *err);
    bd_status (*push_table)(wk_sparse *s, size_t table_idx, const float *grads, bd_err *err);
    bd_status (*push_end)(wk_sparse *s, bd_err *err);
    bd_status (*push_wait)(wk_sparse *s, bd_err *err);
    bd_status (*commit_start)(wk_sparse *s, uint64_t step, bool commit, double lr_scale,
                              bd_err *err);
    bd_status (*commit_wait)(wk_sparse *s, bd_err *err);
    /* Lets go of the open push and commit without waiting for servers. abort_step: (sync) says so
     * to the servers, best effort; 0: no rank may say so any more. */
    bd_status (*drop)(wk_sparse *s, uint64_t abort_step, bd_err *err);
    bd_status (*param_hash)(wk_sparse *s, uint64_t *hash, uint64_t *n_rows, bd_err *err);
    bd_status (*checkpoint)(wk_sparse *s, const char *name, uint64_t step, bd_err *err);
    /* The same in two halves, training in between (client.h); NULL: checkpoint does it all. */
    bd_status (*checkpoint_cut)(wk_sparse *s, const char *name, uint64_t step, bd_err *err);
    bd_status (*checkpoint_poll)(wk_sparse *s, const char *name, uint64_t step, bool wait,
                                 bool *done, bd_err *err);
    bd_status (*checkpoint_delete)(wk_sparse *s, const char *name, bd_err *err);
    void (*free)(wk_sparse *s);
} wk_sparse_ops;

struct wk_sparse {
    const wk_sparse_ops *ops;
};

/* c is borrowed until free. */
bd_status wk_sparse_client_new(cl_client *c, wk_sparse **out, bd_err *err) BD_MUST_CHECK;

/* dir: where checkpoints of the rows go (`<dir>/<name>/rows.bin`); borrowed; NULL: none can be
 * made.
 */
bd_status wk_sparse_local_new(const char *dir, wk_sparse **out, bd_err *err) BD_MUST_CHECK;
/* Replaces all rows of the tables that exist by those of the checkpoint. */
bd_status wk_sparse_local_restore(wk_sparse *s, const char *name, bd_err *err) BD_MUST_CHECK;

void wk_sparse_free(wk_sparse *s); /* NULL is fine */

#endif
