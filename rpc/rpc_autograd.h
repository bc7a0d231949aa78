/* rpc/rpc_autograd.h - distributed autograd: call modules on other nodes, run one backward pass
 * through all of them.
 *
 * Layer:     rpc. Knows no tape: the owner of a local graph asks for a call's backward when the
 *            gradients of its outputs are there (a custom node of the tape).
 * Wire:      proto/braid/v1/autograd.proto.
 * Contexts:  one forward-backward-step of one client, (client id, number). rpc_ag_begin makes one;
 *            nodes it reaches make their part by themselves. Gradients of parameters live in the
 *            context until it ends and reach the parameter only in a step. Several calls and
 * several backwards add up. Demand:    a call that does not reach the loss is never waited for:
 * nothing hangs. Failure:   the first failure on any node fails the context on every node it has
 * reached, and every later operation on it returns that error: "Error on node <name>: ...".
 * Threads:   all functions from any thread, but one thread at a time per call record. Handlers run
 *            on the env's pool; modules run on them, several at once (see rpc_module).
 *
 *   field               written by         read by        protected by
 *   contexts, clients   callers, handlers  same           rpc_ag lock
 *   calls, gradients    callers, handlers  same           context lock; never held over a call
 *   parameter, state    Step               modules        the module's lock: Step alone writes
 *
 * Ends:      rpc_ag_end, or the fused backward, frees a context on all its nodes; a late message
 *            never brings it back. rpc_ag_drop_client, rpc_ag_sweep: the client's lease is over. A
 * node remembers at most 1024 ended contexts of a client above the oldest it may still see; older
 *            numbers count as ended.
 * Read next: rpc_module.h, rpc_ag_int.h, tests/sim/test_ddp_dist_autograd.c.
 */
#ifndef RPC_AUTOGRAD_H
#define RPC_AUTOGRAD_H

#include "rpc/rpc.h"
#include "rpc/rpc_module.h"

typedef struct rpc_ag rpc_ag;           /* this process as a node, caller and callee */
typedef struct rpc_ag_peer rpc_ag_peer; /* another node */
typedef struct rpc_ag_msg rpc_ag_msg;   /* record of one call; belongs to its context */

typedef struct rpc_ag_options {
    const char *name;    /* in error texts, e.g. "trainer-0"; copied */
    uint64_t client_id;  /* from the coordinator; never 0 */
    int64_t deadline_ms; /* of each call to a peer, 0: 60,000 */
} rpc_ag_options;

/* env NULL: a node without peers and without a server; its contexts hold local gradients and
 * strands. */
bd_status rpc_ag_new(rpc_env *env, const rpc_ag_options *opt, rpc_ag **out,
                     bd_err *err) BD_MUST_CHECK;
/* Servers it was served by and all operations must have ended. Open contexts are dropped here only.
 */
void rpc_ag_free(rpc_ag *ag);
/* Adds the Autograd service to a server that has not started. */
bd_status rpc_ag_serve(rpc_ag *ag, rpc_server *server) BD_MUST_CHECK;
/* A node that may be called. ch: borrowed until rpc_ag_free. */
bd_status rpc_ag_peer_new(rpc_ag *ag, const char *name, rpc_channel *ch,
                          rpc_ag_peer **out) BD_MUST_CHECK;
/* Makes a module callable; borrowed until rpc_ag_free. Optimiser states are made here. BD_E_EXISTS,
 * BD_E_NOMEM. */
bd_status rpc_ag_register(rpc_ag *ag, const rpc_module *module, bd_err *err) BD_MUST_CHECK;

/* One of the votes on a step of a sync job (all ranks of it vote on every step, on every server).
 */
typedef struct rpc_ag_vote {
    uint64_t job_epoch, step;
    uint32_t rank;
} rpc_ag_vote;

/* ---- a store: parameters that the node's Step hands over instead of changing them itself ---- */
typedef struct rpc_step_grad { /* one parameter's gradient in a step; borrowed during the call */
    const rpc_module *module;
    size_t param_idx, dim, n_rows;
    uint64_t tag;         /* rpc_grad_tag */
    const uint64_t *rows; /* distinct, in the order they first came */
    const float *values;  /* n_rows x dim */
} rpc_step_grad;
typedef struct rpc_ag_step_id {
    uint64_t client_id, number; /* of the context */
    const rpc_ag_vote *vote;    /* NULL: none */
} rpc_ag_step_id;
typedef struct rpc_ag_store {
    void *user;
    /* The module of this name, or NULL; asked once for a name that is found. Lives as long as the
     * node. */
    const rpc_module *(*find)(void *user, const char *name);
    /* Applies a context's gradients as one, durably, exactly once for (client_id, number). Blocks;
     * with a vote (else NULL; then n may be 0) until all ranks have voted. BD_E_UNAVAILABLE:
     * nothing was done, the client asks again. */
    bd_status (*step)(void *user, const rpc_ag_step_id *id, double lr_scale,
                      const rpc_step_grad *grads, size_t n, bd_err *err);
    /* True: that step was applied, maybe before this process started. */
    bool (*stepped)(void *user, const rpc_ag_step_id *id);
} rpc_ag_store;
/* Before the server starts; store is borrowed until rpc_ag_free. */
void rpc_ag_set_store(rpc_ag *ag, const rpc_ag_store *store);

/* Copies the current values of a parameter (n_rows x dim) of a module on this node, between two
 * steps. BD_E_NOT_FOUND. */
bd_status rpc_ag_read_param(rpc_ag *ag, const char *module, size_t param_idx, float *out,
                            bd_err *err) BD_MUST_CHECK;

/* ---- contexts ---- */
bd_status rpc_ag_begin(rpc_ag *ag, rpc_ag_ctx **out, bd_err *err) BD_MUST_CHECK;
uint64_t rpc_ag_ctx_number(const rpc_ag_ctx *ctx);
/* Ends the context here and, best effort, on every node it reached; ctx and its records are gone
 * afterwards, whatever is returned (the first failure to reach a node, whose lease then does it). A
 * strand that was not told a decision is told to abort, or dropped when the context has failed. */
bd_status rpc_ag_end(rpc_ag_ctx *ctx, bd_err *err);
/* Fails the context here and on all nodes it reached. why->text is taken as it is when it says
 * "Error on node ..." already. */
void rpc_ag_fail(rpc_ag_ctx *ctx, const bd_err *why);
/* BD_OK, or the failure of the context. */
bd_status rpc_ag_check(rpc_ag_ctx *ctx, bd_err *err) BD_MUST_CHECK;
/* Gradient memory of a local parameter in this context: zeroed when new, the same for the same
 * slot. For tp_param_bind_grad and ring_reducer_bind. Lives until the context ends. */
bd_status rpc_ag_local_grad(rpc_ag_ctx *ctx, size_t slot, size_t n_elems, float **grad,
                            bd_err *err) BD_MUST_CHECK;

/* ---- calls ---- */
typedef struct rpc_ag_result {
    rpc_tensor out[RPC_MODULE_MAX_IO]; /* buffers owned by the caller */
    size_t n_out;
    rpc_ag_msg *msg; /* for backward; NULL: the peer recorded nothing, no output gives a gradient */
} rpc_ag_result;
void rpc_ag_result_free(rpc_ag_result *r); /* drops the outputs; the record is the context's */

/* Runs module on peer. in[n_in]: borrowed during the call; requires_grad asks for a gradient.
 * Blocks. result is filled on BD_OK, untouched otherwise. A failure fails the context. */
bd_status rpc_ag_call(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, const rpc_tensor *in,
                      size_t n_in, rpc_ag_result *result, bd_err *err) BD_MUST_CHECK;
/* The same in two halves, so that several calls are in flight. Every start that returned BD_OK
 * needs its wait, which frees *pending. */
typedef struct rpc_ag_pending rpc_ag_pending;
bd_status rpc_ag_call_start(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                            const rpc_tensor *in, size_t n_in, rpc_ag_pending **pending,
                            bd_err *err) BD_MUST_CHECK;
bd_status rpc_ag_call_wait(rpc_ag_pending *pending, rpc_ag_result *result,
                           bd_err *err) BD_MUST_CHECK;

size_t rpc_ag_msg_n_in(const rpc_ag_msg *msg);

typedef struct rpc_ag_fused {
    bool step;       /* then apply the peer's gradients of this context */
    double lr_scale; /* with step; 0: 1 */
    bool cleanup;    /* then end the context on the peer (rpc_ag_end need not reach it again) */
} rpc_ag_fused;

/* Gives the gradients of a call's outputs and gets those of its inputs.
 *
 *   grad_out  [n_out] as the call's outputs; buf NULL: no gradient
 *   grad_in   [n_in] filled; buf NULL where none was wanted; caller owns the buffers
 *   fused     NULL: plain backward
 *
 * May be called again (gradients add up). Blocks. A failure fails the context. */
bd_status rpc_ag_backward(rpc_ag_msg *msg, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, const rpc_ag_fused *fused,
                          bd_err *err) BD_MUST_CHECK;
/* The step of this context is rank's vote: servers[n] are all servers of the job, also those that
 * the context does not call. Before the step; a failed vote fails the context, and the same step
 * may be voted on by another context of the rank until it is applied. The job is opened sync, with
 * `world` ranks; nobody else pushes or commits in it. */
bd_status rpc_ag_set_vote(rpc_ag_ctx *ctx, const rpc_ag_vote *vote, rpc_ag_peer *const *servers,
                          size_t n, bd_err *err) BD_MUST_CHECK;
/* Applies this context's gradients on every node it reached and on its strands, once. Blocks. */
bd_status rpc_ag_step(rpc_ag_ctx *ctx, double lr_scale, bd_err *err) BD_MUST_CHECK;
/* The same in two halves, so that the strands' answers come while the caller works: start decides
 * (and waits for nodes that were reached through peers, if any), settle waits for the strands. A
 * failed context is never stepped: start returns its failure. */
bd_status rpc_ag_step_start(rpc_ag_ctx *ctx, double lr_scale, bd_err *err) BD_MUST_CHECK;
/* Throws the gradients away: every strand is told so. rpc_ag_settle waits. */
bd_status rpc_ag_abort_start(rpc_ag_ctx *ctx, bd_err *err) BD_MUST_CHECK;
bd_status rpc_ag_settle(rpc_ag_ctx *ctx, bd_err *err) BD_MUST_CHECK;

/* ---- strands: parts of a context that travel on a road of their own ----
 *
 * A trainer's lookups and pushes go through client/, with its sharding, retries and commits, and
 * not through Forward and Backward. A strand makes them part of the context all the same: a lookup
 * is recorded (recv: it has a context id and a message id as every call), its backward goes through
 * the context, the context's step is the strand's commit, and a context that has failed, wherever
 * that was, pushes and commits nothing more.
 *
 * Threads: as the context's calls, one at a time. A failure on another node reaches a strand at its
 * next operation, not before. */
typedef struct rpc_ag_strand rpc_ag_strand;
typedef struct rpc_ag_strand_ops {
    /* Gradient of output out_idx of a call; grad[n_elems] is borrowed as the strand says. */
    bd_status (*backward)(rpc_ag_strand *s, void *call, size_t out_idx, const float *grad,
                          size_t n_elems, bd_err *err);
    /* Once in a context: keep its gradients, or throw them away. Starts and returns. */
    bd_status (*decide)(rpc_ag_strand *s, bool commit, double lr_scale, bd_err *err);
    /* Until the decision is done everywhere. */
    bd_status (*settle)(rpc_ag_strand *s, bd_err *err);
    /* Lets go of everything without waiting: the context has failed. */
    void (*drop)(rpc_ag_strand *s);
} rpc_ag_strand_ops;
struct rpc_ag_strand {
    const rpc_ag_strand_ops *ops;
    const char *name; /* what the node is called in error texts */
};
/* Records a call that went over a strand; *out is the context's. strand: borrowed until the context
 * ends. call: what backward gets. BD_E_NOMEM, or the context's failure. */
bd_status rpc_ag_recv(rpc_ag_ctx *ctx, rpc_ag_strand *strand, void *call, rpc_ag_msg **out,
                      bd_err *err) BD_MUST_CHECK;
/* A failure fails the context; one that has failed returns its failure and reaches no strand. */
bd_status rpc_ag_recv_backward(rpc_ag_msg *msg, size_t out_idx, const float *grad, size_t n_elems,
                               bd_err *err) BD_MUST_CHECK;
uint64_t rpc_ag_msg_id(const rpc_ag_msg *msg);
rpc_ag_ctx *rpc_ag_msg_ctx(const rpc_ag_msg *msg);

/* ---- what a context holds ---- */
typedef struct rpc_ag_grad {
    char *module, *param; /* owned */
    bool sparse;
    size_t dim;     /* sparse: elements of a row */
    size_t n_rows;  /* sparse */
    uint64_t *rows; /* owned */
    float *values;  /* owned: dense n_values, sparse n_rows x dim */
    size_t n_values;
} rpc_ag_grad;
typedef struct rpc_ag_grads {
    rpc_ag_grad *items; /* owned */
    size_t n;
} rpc_ag_grads;
/* The gradients that this context holds on peer (NULL: on this node); module NULL: all. */
bd_status rpc_ag_gradients(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                           rpc_ag_grads *out, bd_err *err) BD_MUST_CHECK;
void rpc_ag_grads_free(rpc_ag_grads *g);

/* ---- leases and tests ---- */
/* The lease of a client is over: its contexts go, and its late messages get BD_E_CLIENT_EXPIRED. */
void rpc_ag_drop_client(rpc_ag *ag, uint64_t client_id);
/* Drops clients with contexts or references here that have said nothing for lease_ms: not Forward,
 * Backward, Step, Fetch, Fork or KeepAlive. Returns how many. Call it now and then. */
size_t rpc_ag_sweep(rpc_ag *ag, int64_t lease_ms);
/* Tells all peers that this node is alive, for a trainer whose step takes longer than the lease.
 * The first failure; BD_E_CLIENT_EXPIRED: too late. */
bd_status rpc_ag_keep_alive(rpc_ag *ag, bd_err *err) BD_MUST_CHECK;
/* Contexts alive on this node, its own and others'. */
size_t rpc_ag_n_contexts(rpc_ag *ag);

#endif
