/* rpc/rpc_conns.h - how many TCP connections a peer may hold to a server's port.
 *
 * Layer:   rpc, private. gRPC core 1.51 accepts whatever comes, has no limit of its own and hands
 *          out neither sockets nor events of them.
 * Method:  a thread walks the process's descriptors four times a second (less often when that takes
 *          long), counts the connections to the port by address and shuts down the newest ones
 *          beyond the limit, as if the peer had closed them; gRPC then tidies up. A descriptor is
 *          looked at through a duplicate: one that is reused meanwhile cannot be hit.
 * Bounds:  max_per_peer of one address (0: none); half of the process's descriptors for all of them
 *          together. The soft limit on descriptors is raised to the hard one at the start.
 * Door:    gRPC never accepts again once accept has failed for want of a descriptor [measured: all
 *          later clients time out]. So the thread asks every few milliseconds how many are left
 *          (one dup); at a quarter it has the kernel drop what arrives at the listening socket (a
 *          socket filter; clients try again by themselves) until some are free again.
 * Threads: start and stop from one thread.
 */
#ifndef RPC_CONNS_H
#define RPC_CONNS_H

#include "base/err.h"

typedef struct rpc_conns rpc_conns;

bd_status rpc_conns_start(int port, int max_per_peer, rpc_conns **out, bd_err *err) BD_MUST_CHECK;
void rpc_conns_stop(rpc_conns *c); /* joins; NULL is fine */

#endif
