/* rpc/rpc_ag_call_int.h - clients, gradients, running modules, calling peers, telling several.
 *
 * Layer:  rpc, private to rpc_ag_*.c and rpc_rref*.c.
 */
#ifndef RPC_AG_CALL_INT_H
#define RPC_AG_CALL_INT_H

#include "rpc/rpc_ag_int.h"

/* ---- rpc_ag_client.c ---- */
/* The client's entry, made when new, for a word of it now: its lease begins anew. NULL: memory. */
ag_client *ag_client_get_locked(rpc_ag *ag, uint64_t id);
void ag_client_free(ag_client *c);
bool ag_client_is_expired_locked(const rpc_ag *ag, uint64_t id);
bool ag_client_has_ended(const ag_client *c, uint64_t number);
void ag_client_note_ended(ag_client *c, uint64_t number);
/* A word of the client: its lease begins anew. BD_E_CLIENT_EXPIRED. */
bd_status ag_client_touch(rpc_ag *ag, uint64_t client_id, bd_err *err) BD_MUST_CHECK;
/* The same of a node that calls in another's context, whose lease decides. */
void ag_client_hear(rpc_ag *ag, uint64_t client_id);
/* A fused call's answer, kept for a retry that finds its context ended. Shares the buffers. */
void ag_reply_keep(rpc_ag *ag, uint64_t client_id, uint64_t number, uint64_t sequence,
                   const bd_chain *reply);
/* True: out got it. */
bool ag_reply_find(rpc_ag *ag, uint64_t client_id, uint64_t number, uint64_t sequence,
                   bd_chain *out);

/* ---- rpc_ag_grad.c ---- */
void ag_grads_free(ag_grad *g);
/* Applies the context's gradients on this node, once per sequence. *again: it was done before. */
bd_status ag_step_local(rpc_ag_ctx *ctx, uint64_t sequence, uint64_t caller, double lr_scale,
                        bool *again, bd_err *err) BD_MUST_CHECK;

/* ---- rpc_ag_run.c ---- */
/* The module's functions, under its lock. Calls that forward makes know node as their parent. */
bd_status ag_run_forward(rpc_ag_ctx *ctx, ag_node *node, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err) BD_MUST_CHECK;
bd_status ag_run_backward(rpc_ag_ctx *ctx, ag_node *node, const rpc_tensor *grad_out,
                          rpc_tensor *grad_in, bd_err *err) BD_MUST_CHECK;
/* The one whose forward runs on this thread; NULL: none. */
const ag_node *ag_running(void);

/* ---- rpc_ag_caller.c ---- */
uint64_t ag_next_id(rpc_ag *ag);
Braid__V1__AutogradContextId ag_id_of(const rpc_ag_ctx *ctx);
/* A record for a call to peer (NULL: none). NULL: out of memory. */
rpc_ag_msg *ag_msg_new(rpc_ag_ctx *ctx, rpc_ag_peer *peer);
/* Puts the record into the context, which owns it then. */
void ag_msg_keep(rpc_ag_ctx *ctx, rpc_ag_msg *msg);
/* "Error on node <name>: ..." once, whoever says it first. */
void ag_err_on_node(bd_err *err, const char *node);
/* Fails the context here and tells the nodes it has reached, without waiting. */
void ag_ctx_fail(rpc_ag_ctx *ctx, const bd_err *why);
/* A call to peer went wrong: names the node and fails the context. Returns rc. */
bd_status ag_peer_failed(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, bd_status rc, bd_err *err);
/* Checks the inputs and waits until their references may go out; their shapes go into msg. */
bd_status ag_args_check(rpc_ag_msg *msg, const char *module, const rpc_tensor *in, size_t n_in,
                        bd_err *err) BD_MUST_CHECK;
bd_status ag_pack_forward(const rpc_ag_msg *msg, const char *module, const rpc_tensor *in,
                          uint64_t keep, bd_chain *out, bd_err *err) BD_MUST_CHECK;
/* An answer of Forward or Fetch. msg is the context's when it was recorded; else it is freed. */
bd_status ag_read_forward(rpc_ag_msg **msg, const bd_chain *reply, rpc_ag_result *result,
                          bd_err *err) BD_MUST_CHECK;

/* ---- rpc_ag_replay.c ---- */
void ag_msg_free(rpc_ag_msg *msg); /* NULL is fine */
/* body is about to be sent for msg: keeps it as well, where it may be sent again. */
void ag_sent_keep(rpc_ag_msg *msg, const char *method, const bd_chain *body);
/* peer has answered; the first instance stays. */
void ag_instance_note(rpc_ag_ctx *ctx, const rpc_ag_peer *peer, uint64_t instance);
uint64_t ag_instance_of(rpc_ag_ctx *ctx, const rpc_ag_peer *peer);
/* Sends everything of the context that peer (NULL: every peer) has lost once more, in its order.
 * BD_E_NOT_FOUND: it is not all here. */
bd_status ag_replay(rpc_ag_ctx *ctx, rpc_ag_peer *peer, bd_err *err) BD_MUST_CHECK;

/* ---- rpc_ag_vote.c ---- */
/* Into a request; NULL: the context's client does not vote, or is another node. */
Braid__V1__AutogradVote *ag_vote_to_wire(rpc_ag_ctx *ctx, Braid__V1__AutogradVote *w);
/* From a request, into the context. NULL is fine. */
void ag_vote_note(rpc_ag_ctx *ctx, const Braid__V1__AutogradVote *w);
/* The store has applied the step that the request means. */
bool ag_vote_stepped(const rpc_ag *ag, const Braid__V1__AutogradContextId *id,
                     const Braid__V1__AutogradVote *w);

/* ---- rpc_ag_fan.c ---- */
/* The same request to n peers (n_bodies 1), or to each its own. Waits for all; the first failure,
 * which names its node. */
bd_status ag_fan_out(rpc_ag *ag, const char *method, rpc_ag_peer *const *peers, size_t n,
                     const bd_chain *bodies, size_t n_bodies, int64_t deadline_ms,
                     bd_err *err) BD_MUST_CHECK;
/* Step and cleanup on the reached peers. */
bd_status ag_fan_step(rpc_ag_ctx *ctx, uint64_t sequence, double lr_scale,
                      bd_err *err) BD_MUST_CHECK;
bd_status ag_fan_cleanup(rpc_ag_ctx *ctx, bd_err *err) BD_MUST_CHECK;
bd_status ag_begin_step(rpc_ag_ctx *ctx, uint64_t sequence, uint64_t caller, double lr_scale,
                        bd_err *err) BD_MUST_CHECK;

#endif
