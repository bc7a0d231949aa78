/* rpc/rpc_rref_int.h - values, forks and handles of references; what a context does with a value.
 *
 * Layer:  rpc, private to rpc_ag_*.c and rpc_rref*.c.
 * Files:  rpc_rref.c values, forks, handles; rpc_rref_use.c making and fetching; rpc_rref_flow.c
 *         gradients of values, the wave; rpc_rref_server.c what other nodes ask.
 * Locks:  values, forks and handles under ag->lock; flows under their context's.
 *
 *   the owner's rule for (value, node), with fork number n and `latest` the highest one seen:
 *     Fork(n)        n > latest: latest = n, alive.      n < latest: nothing (a late repeat)
 *     DeleteFork(n)  n >= latest: latest = n, not alive. n < latest: nothing (a later fork lives)
 *   A node has one fork at a time; a Fork behind its own DeleteFork finds n == latest and stays
 * dead.
 */
#ifndef RPC_RREF_INT_H
#define RPC_RREF_INT_H

#include "rpc/rpc_ag_call_int.h"
#include "rpc/rpc_rref.h"

#define AG_DELETE_TRIES   20 /* of AG_CONTROL_MS each; then the lease does it */
#define AG_DELETE_WAIT_MS 10 /* more with each try that found no memory */

typedef struct ag_fork {
    uint64_t client_id, latest;
    bool alive;
    struct ag_fork *next;
} ag_fork;

struct ag_value {
    uint64_t creator_id, number;
    rpc_tensor t[RPC_MODULE_MAX_IO]; /* buffers shared; never written */
    size_t n;
    size_t n_refs; /* handles here, and contexts */
    ag_fork *forks;
    size_t n_alive;
    struct ag_value *next;
};

typedef enum rref_state { RREF_MAKING, RREF_FORKING, RREF_READY, RREF_FAILED } rref_state;

struct rpc_rref {
    rpc_ag *ag;
    uint64_t creator_id, number;
    char *owner_name;   /* owned */
    rpc_ag_peer *owner; /* NULL: this node */
    ag_value *value;    /* this node's: one reference */
    size_t refs;
    uint64_t fork;    /* this node's number; 0: none was asked for */
    rref_state state; /* grows */
    bd_err why;       /* with RREF_FAILED */
    rpc_wait made;    /* posted when it is no longer in the making */
    rpc_ag_msg *msg;
    int n_deletes; /* tries of its DeleteFork, once nobody holds it here */
    rpc_rref *next;
};

/* What a context does with a value of this node. */
struct ag_flow {
    ag_value *value;   /* one reference */
    ag_node *producer; /* made it in this context; NULL: a leaf here */
    rpc_tensor grad[RPC_MODULE_MAX_IO];
    uint64_t wave;  /* the last one that came by */
    size_t waiting; /* users announced by it whose backward has not come */
    ag_flow *next;
};

/* ---- rpc_rref.c ---- */
/* A new value with one reference; t[n] moved on BD_OK. BD_E_EXISTS, BD_E_NOMEM. */
bd_status ag_value_new(rpc_ag *ag, uint64_t creator_id, uint64_t number, rpc_tensor *t, size_t n,
                       ag_value **out) BD_MUST_CHECK;
/* With a new reference; NULL: unknown. */
ag_value *ag_value_get(rpc_ag *ag, const Braid__V1__AutogradRRef *name);
void ag_value_unref(rpc_ag *ag, ag_value *v); /* NULL is fine */
void ag_values_free(rpc_ag *ag);              /* all: the node ends */
/* A handle in state RREF_MAKING (owner: a peer) or RREF_READY (NULL: this node, takes value's
 * reference). NULL: out of memory. */
rpc_rref *ag_rref_new(rpc_ag *ag, uint64_t creator_id, uint64_t number, rpc_ag_peer *owner,
                      ag_value *value);
void ag_rref_made(rpc_rref *r, rref_state state, const bd_err *why);
/* The handle for what came in a message, with its fork confirmed by the owner. Blocks. */
bd_status ag_rref_import(rpc_ag *ag, const Braid__V1__AutogradRRef *w, rpc_rref **out,
                         bd_err *err) BD_MUST_CHECK;
/* All references among the tensors of a message, into t[n].rref. On failure t has none. */
bd_status ag_rrefs_import(rpc_ag *ag, Braid__V1__AutogradTensor *const *w, size_t n, rpc_tensor *t,
                          bd_err *err) BD_MUST_CHECK;
void ag_rref_to_wire(const rpc_rref *r, Braid__V1__AutogradRRef *w);
/* Body of Fork and DeleteFork. */
bd_status ag_rref_pack_fork(const rpc_rref *r, bd_chain *out, bd_err *err) BD_MUST_CHECK;
/* The owner's side. BD_E_NOT_FOUND, BD_E_CLIENT_EXPIRED, BD_E_STATE (deleted already). */
bd_status ag_value_fork(rpc_ag *ag, const Braid__V1__AutogradForkRequest *r,
                        bd_err *err) BD_MUST_CHECK;
bd_status ag_value_delete_fork(rpc_ag *ag, const Braid__V1__AutogradForkRequest *r,
                               bd_err *err) BD_MUST_CHECK;
/* All forks of a client whose lease is over. */
void ag_values_drop_client(rpc_ag *ag, uint64_t client_id);

/* ---- rpc_rref_flow.c ---- */
/* The context's part of a value; made when new. The context takes the reference (also on failure).
 */
bd_status ag_flow_get(rpc_ag_ctx *ctx, ag_value *value, ag_node *producer, ag_flow **out,
                      bd_err *err) BD_MUST_CHECK;
void ag_flows_free(rpc_ag *ag, ag_flow *f);
bool ag_flow_wants_grad(const ag_flow *f);
/* Gradients of one user; wave: of its record when it was announced, else 0. Runs what made the
 * value when they were the last. BD_E_UNAVAILABLE: it runs already, nothing was done. */
bd_status ag_flow_feed(rpc_ag_ctx *ctx, ag_flow *f, const rpc_tensor *grad, size_t n, uint64_t wave,
                       bd_err *err) BD_MUST_CHECK;
/* Nothing may be open when the gradients are applied: a user that never went backward. */
bd_status ag_flows_check_locked(const rpc_ag_ctx *ctx, bd_err *err) BD_MUST_CHECK;
bd_status ag_reach_here(rpc_ag_ctx *ctx, const Braid__V1__AutogradReachRequest *r,
                        bd_err *err) BD_MUST_CHECK;
/* Tells what was announced behind node, but not asked by its module, that nothing comes. */
bd_status ag_reach_release(rpc_ag_ctx *ctx, const ag_node *node, bd_err *err) BD_MUST_CHECK;

/* ---- rpc_rref_use.c ---- */
/* A record of value's use on this node: out->msg and the outputs. value's reference is taken. */
bd_status ag_rref_use_here(rpc_ag_ctx *ctx, ag_value *value, rpc_ag_result *out,
                           bd_err *err) BD_MUST_CHECK;

/* ---- rpc_rref_server.c ---- */
bd_status ag_rref_serve(rpc_ag *ag, rpc_server *server) BD_MUST_CHECK;

#endif
