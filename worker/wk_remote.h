/* worker/wk_remote.h - a call of a module on another node as a node of the tape: what joins tape/
 * and rpc/ in a model.
 *
 * Layer:     worker.
 * Threads:   the tape's.
 * Ownership: tape, context, peer and names are borrowed; the record of the call is the context's.
 * Demand:    the node's backward asks the peer for the gradients of the call when the tape reaches
 * it, so a call whose result is unused costs nothing in backward. Failure:   fails the context,
 * naming the node; then nothing of the step is pushed or committed.
 */
#ifndef WK_REMOTE_H
#define WK_REMOTE_H

#include "rpc/rpc_autograd.h"
#include "tape/tape.h"

typedef struct wk_remote {
    tp_tape *tape;
    rpc_ag_ctx *ctx;
    rpc_ag_peer *peer;
    const char *module;
} wk_remote;

/* out = module(x): x is a tensor of the tape; its gradient comes back in backward. */
bd_status wk_remote_call(const wk_remote *r, tp_tensor *x, tp_tensor **out,
                         bd_err *err) BD_MUST_CHECK;
/* out = module(ids, offsets): an embedding bag; nothing flows back to the caller. */
bd_status wk_remote_bag(const wk_remote *r, const int64_t *ids, size_t n_ids,
                        const int64_t *offsets, size_t n_bags, tp_tensor **out,
                        bd_err *err) BD_MUST_CHECK;

#endif
