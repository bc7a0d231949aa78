/* worker/wk_strand.h - the rows of one step as a strand of its autograd context: lookups are its
 * calls, the push is their backward, the commit is the context's step.
 *
 * Layer:     worker; joins rpc/rpc_autograd.h and wk_sparse.h.
 * Threads:   the training thread.
 * Ownership: the strand owns its context and the memory of sums; lookups are borrowed until close.
 * Order:     open, lookup (again and again), wait; then per backward pass wk_strand_backward and
 * the tape's run, whose leaves call rpc_ag_recv_backward; after the last pass push and push_wait;
 * then rpc_ag_step_start or rpc_ag_abort_start, rpc_ag_settle; close. The next step's strand may be
 * open, and its lookups sent, before this one has settled. Sums:      one lookup and one pass:
 * gradients leave table by table while backward runs. Else they are summed here, passes in their
 * order, then lookups in their order, and leave in push, as one gradient for each key: k passes
 * over parts of a batch are one step over the whole of it. Async:     a push is applied when it
 * arrives: backward, step and cleanup in one message. There an abort comes too late for what was
 * pushed. Failure:   the first one fails the context, naming the servers' trouble, or this node's;
 * then nothing is pushed or committed any more, and close lets go without waiting.
 */
#ifndef WK_STRAND_H
#define WK_STRAND_H

#include "rpc/rpc_autograd.h"
#include "worker/wk_sparse.h"

typedef struct wk_strand_call wk_strand_call; /* one lookup */

typedef enum wk_strand_state {
    WK_STRAND_CLOSED = 0,
    WK_STRAND_OPEN,   /* lookups; gradients are summed */
    WK_STRAND_STREAM, /* gradients leave as they come */
    WK_STRAND_PUSHED, /* all have left */
} wk_strand_state;

typedef struct wk_strand {
    rpc_ag_strand base;
    wk_sparse *sparse; /* borrowed */
    rpc_ag_ctx *ctx;   /* owned between open and close */
    uint64_t step;
    bool sync;  /* a commit follows the push */
    bool voted; /* set before other ranks may decide to commit: from then on no abort on failure */
    double lr_scale;
    wk_strand_state state;
    wk_strand_call *calls; /* owned, the first one first */
    float **zeros;         /* owned [n_zeros]: for tables that the loss did not reach */
    size_t n_zeros, cap_zeros;
    wk_lookup *merged; /* owned: the keys of all lookups, one after the other */
    float **merged_grads;
    size_t n_merged;
} wk_strand;

/* Begins a context. s is a closed strand (all zero). */
bd_status wk_strand_open(wk_strand *s, rpc_ag *ag, wk_sparse *sparse, uint64_t step, bool sync,
                         bd_err *err) BD_MUST_CHECK;
/* Sends a prepared lookup of n_tables tables. *rows: its record, for rpc_ag_recv_backward with the
 * table's index in the lookup. l: borrowed until close. */
bd_status wk_strand_lookup(wk_strand *s, wk_lookup *l, size_t n_tables, uint64_t after_step,
                           rpc_ag_msg **rows, bd_err *err) BD_MUST_CHECK;
/* Until the rows of all lookups are in. */
bd_status wk_strand_wait(wk_strand *s, bd_err *err) BD_MUST_CHECK;
/* Before a backward pass. last false: more passes follow (no_sync), gradients are kept here. */
bd_status wk_strand_backward(wk_strand *s, bool last, double lr_scale, bd_err *err) BD_MUST_CHECK;
/* After the last pass: what has not left leaves; tables that got no gradient push zeros. */
bd_status wk_strand_push(wk_strand *s, bd_err *err) BD_MUST_CHECK;
/* Until the servers have staged it (async: nothing to wait for, wk_sparse.h), and the context is
 * still whole. */
bd_status wk_strand_push_wait(wk_strand *s, bd_err *err) BD_MUST_CHECK;
/* Fails the context with an error that came from elsewhere (the ring, the model). */
void wk_strand_fail(wk_strand *s, const bd_err *why);
/* Ends the context: aborts what was not decided, waits for what was; a failed one is dropped. The
 * strand is closed whatever is returned. A closed strand is fine. */
bd_status wk_strand_close(wk_strand *s, bd_err *err);

#endif
