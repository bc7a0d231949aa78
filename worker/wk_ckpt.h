/* worker/wk_ckpt.h - checkpoints: one cut over dense part, optimiser, rows, bucket layout,
 * position.
 *
 * Layer:     worker. Rank 0 writes and reads; the others get the content by broadcast.
 * Files:     <run_dir>/checkpoints/step-<t>/dense.bin (wk_dense_optim.h) and manifest.json; the
 * rows of the same cut are kept by the servers under the same name (or in rows.bin here, with
 *            servers: 0), the dedup state with them.
 * Order:     rows, dense.bin, then manifest.json (fsync, rename): a checkpoint without a manifest
 * is none. Older ones are deleted after the new one is whole. Position:  the sampler is a function
 * of the step, dropout and the rest of the random choices too: the step number is all the state a
 * reader has.
 */
#ifndef WK_CKPT_H
#define WK_CKPT_H

#include "worker/wk_trainer.h"

typedef struct wk_ckpt {
    char name[104];     /* "step-<t>" */
    uint64_t step;      /* last step that was run */
    uint64_t committed; /* last step that changed the model */
    uint64_t n_skipped;
    uint64_t job_epoch; /* of the job that made it: names the servers' parts; 0: no servers */
    double best;        /* early stop: best value so far, NaN: none */
    int64_t n_worse;    /* evaluations since */
    char *layout;       /* owned: the reducer's buckets */
    bd_buf *dense;      /* one reference */
} wk_ckpt;

void wk_ckpt_deinit(wk_ckpt *c);

/* Rank 0, in two halves, so that training goes on while rows are written. begin: the step's commit
 * has been answered and the next one not begun; takes the cut (name, layout and dense are filled in
 * here). finish: later, asks whether the rows are written (wait: until they are), then writes
 * dense.bin and manifest.json: *done, and c is empty again. A failure empties it too;
 * BD_E_NOT_FOUND: a server was started since begin and the cut is lost, training is not touched;
 * what the other servers hold of it is deleted. */
bd_status wk_ckpt_begin(wk_ckpt *c, const wk_trainer *t, const char *run_dir,
                        bd_err *err) BD_MUST_CHECK;
bd_status wk_ckpt_finish(wk_ckpt *c, const wk_trainer *t, const char *run_dir, bool wait,
                         bool *done, bd_err *err) BD_MUST_CHECK;
/* Deletes all but the newest `keep` checkpoints, rows first. */
bd_status wk_ckpt_prune(const wk_trainer *t, const char *run_dir, size_t keep,
                        bd_err *err) BD_MUST_CHECK;
/* Rank 0. which: "auto" (the newest whole one; *found false when there is none) or a name
 * (BD_E_NOT_FOUND, BD_E_CORRUPT). Reads the manifest and dense.bin into c. */
bd_status wk_ckpt_find(const char *run_dir, const char *which, wk_ckpt *c, bool *found,
                       bd_err *err) BD_MUST_CHECK;
/* Collective. Rank 0's c goes to all (they pass an empty one). */
bd_status wk_ckpt_broadcast(wk_ckpt *c, ring_comm *ring, bd_err *err) BD_MUST_CHECK;
/* Collective. Puts dense part and bucket layout into the trainer. */
bd_status wk_ckpt_apply(const wk_ckpt *c, wk_trainer *t, bd_err *err) BD_MUST_CHECK;

#endif
