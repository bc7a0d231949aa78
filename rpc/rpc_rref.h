/* rpc/rpc_rref.h - references to values that stay on their node.
 *
 * Layer:     rpc, public; beside rpc_autograd.h.
 * Source:    the RRef protocol of PyTorch's RPC (owner, forks), with one fork for each node and a
 *            number that grows, instead of one for each copy: repeats and reordering cost nothing.
 * Owner:     the node where the value lies. It lives there while a node holds a fork of it, a
 * handle on the owner exists, or an open context has used it; then its memory goes. Sharing:   put
 * it into rpc_tensor.rref of an input or output of a call (rpc_module.h). A node that gets one
 * registers its fork with the owner before the module runs (or before the caller has its answer);
 * whoever sent it holds its own until then: no value is gone early. Names:     a reference names
 * its owner. A peer must be called (rpc_ag_peer_new) what it calls itself (rpc_ag_options.name), on
 * all nodes that references come to. Deleting:  the last rpc_rref_unref on a node sends DeleteFork,
 * again and again for a minute when it does not arrive. What cannot be delivered ends with the
 * lease of the node: one that keeps references for longer than the lease calls rpc_ag_keep_alive.
 * Backward:  fetching in a context is recorded. Gradients of all users of a value add up on the
 *            owner and go through the module that made it; those of its inputs wait for the maker
 *            (rpc_rref_msg). After rpc_ag_reach the module goes backward once, when all gradients
 *            are in; without it each goes on at once. Nothing waits for one that does not come.
 * Threads:   all functions from any thread.
 * Read next: rpc_rref_int.h, proto/braid/v1/autograd.proto.
 */
#ifndef RPC_RREF_H
#define RPC_RREF_H

#include "rpc/rpc_autograd.h"

/* ---- making ---- */
/* A value on this node: t[n], n in [1, RPC_MODULE_MAX_IO], f32 or i64 with buffers (shared; nobody
 * writes to them any more). One that requires a gradient collects it in each context that uses it:
 * rpc_ag_gradients names it module "rref", parameter "<creator>/<number>/<index>". *out: one
 * reference. BD_E_INVALID, BD_E_NOMEM. */
bd_status rpc_rref_new(rpc_ag *ag, const rpc_tensor *t, size_t n, rpc_rref **out,
                       bd_err *err) BD_MUST_CHECK;
/* Runs module on peer, where its outputs stay. Returns at once; the reference may be used at once,
 * too: what needs it waits until it is made. When that fails, the reference and the context say so.
 * in: as rpc_ag_call. rpc_ag_end waits for it. */
bd_status rpc_rref_remote(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                          const rpc_tensor *in, size_t n_in, rpc_rref **out,
                          bd_err *err) BD_MUST_CHECK;
/* Until the owner has confirmed it. Blocks. The error of its making. */
bd_status rpc_rref_wait(rpc_rref *r, bd_err *err) BD_MUST_CHECK;

rpc_rref *rpc_rref_ref(rpc_rref *r);
void rpc_rref_unref(rpc_rref *r); /* NULL is fine; never blocks */

/* ---- using ---- */
const char *rpc_rref_owner(const rpc_rref *r); /* the node's name */
bool rpc_rref_is_owner(const rpc_rref *r);     /* this node */
/* The value, fetched from its owner when that is another node. ctx: records it for backward
 * (out->msg, NULL when no output takes a gradient); NULL: only the value. Outputs share the owner's
 * buffers when it is this node: do not write to them. Blocks. BD_E_NOT_FOUND: the owner does not
 * know it (any more). A failure fails the context. */
bd_status rpc_rref_to_here(rpc_ag_ctx *ctx, rpc_rref *r, rpc_ag_result *out,
                           bd_err *err) BD_MUST_CHECK;
/* The same, on the owner only, without a message. BD_E_STATE: another node is the owner. */
bd_status rpc_rref_local_value(rpc_ag_ctx *ctx, rpc_rref *r, rpc_ag_result *out,
                               bd_err *err) BD_MUST_CHECK;
/* The record of its making, for rpc_ag_backward without output gradients: gives those of the
 * inputs. Once everything that used the reference has gone backward. NULL: not made by
 * rpc_rref_remote here, or not recorded. Valid until its context ends. */
rpc_ag_msg *rpc_rref_msg(rpc_rref *r);

/* ---- the wave ---- */
/* Says which records (of calls, fetches, local values) get their rpc_ag_backward next: all of them
 * must. Costs nothing where no reference is used; else one message for each call behind them.
 * Blocks until it has gone everywhere. A failure fails the context. */
bd_status rpc_ag_reach(rpc_ag_ctx *ctx, rpc_ag_msg *const *live, size_t n,
                       bd_err *err) BD_MUST_CHECK;

/* ---- tests and numbers ---- */
typedef struct rpc_rref_counts {
    size_t values;  /* that live here */
    size_t forks;   /* of other nodes (or of this one by way of a channel), of these values */
    size_t handles; /* on this node */
} rpc_rref_counts;
void rpc_rref_count(rpc_ag *ag, rpc_rref_counts *out);

#endif
