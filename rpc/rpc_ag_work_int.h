/* rpc/rpc_ag_work_int.h - a request of the Autograd service, from its bytes to its answer.
 *
 * Layer:  rpc, private to rpc_ag_server.c and rpc_rref_server.c.
 */
#ifndef RPC_AG_WORK_INT_H
#define RPC_AG_WORK_INT_H

#include "rpc/rpc_ag_call_int.h"

/* One request in work. */
typedef struct ag_work {
    rpc_ag *ag;
    ProtobufCMessage *msg; /* owned */
    rpc_ag_ctx *ctx;       /* shared; NULL until found */
    bool late;             /* a repeat whose answer is gone: nobody waits, nothing has failed */
    bd_chain reply;
    bd_err err;
} ag_work;

/* user: the rpc_ag. Always ended by ag_work_end, also on failure. */
bd_status ag_work_begin(ag_work *w, void *user, rpc_req *req,
                        const ProtobufCMessageDescriptor *type) BD_MUST_CHECK;
/* Finds the context, whole. */
bd_status ag_work_context(ag_work *w, const Braid__V1__AutogradContextId *id,
                          bool create) BD_MUST_CHECK;
/* The caller lives, though the context may be another node's: what it holds here it keeps. */
void ag_work_heard(ag_work *w, uint64_t caller_id);
/* The work itself went wrong, not the way to it: the context has failed. Returns rc. */
bd_status ag_work_failed(ag_work *w, bd_status rc);
/* Answers: reply, or err with rc. */
void ag_work_end(ag_work *w, rpc_req *req, bd_status rc);

#endif
