/* rpc/rpc_gate.h - who may come in: the same for every transport.
 *
 * Layer:   rpc, private.
 * Threads: any.
 */
#ifndef RPC_GATE_H
#define RPC_GATE_H

#include "rpc/rpc_int.h"
#include "rpc/rpc_security_int.h"

/* Once, when the first server is made. */
void rpc_gate_register_metrics(void);

/* Does the caller's `authorization` value allow the method? *scope: what it has, also where tokens
 * are not asked for (then admin). BD_E_UNAUTHENTICATED: no token, or none of ours; BD_E_DENIED: its
 * scope is too small. m NULL: a method that does not exist. */
bd_status rpc_gate_authenticate(rpc_server *s, const rpc_method *m, const char *auth, size_t n_auth,
                                rpc_scope *scope, bd_err *err) BD_MUST_CHECK;
/* Limits count this method: the server has some, and it is not open to everybody. */
bool rpc_gate_limits(const rpc_server *s, const rpc_method *m);

#endif
