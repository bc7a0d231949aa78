/* rpc/rpc_peers.h - how much each peer of a server may ask for.
 *
 * Layer:     rpc, private. A peer is an address without its port; behind a translating router, all
 *            hosts there are one peer.
 * Rate:      a bucket that holds one second's requests and refills steadily.
 * Bytes:     of requests that have come and are not answered. Unary: over the limit they are
 * refused with BD_E_EXHAUSTED. Streams are not read on until there is room, so their senders slow
 *            down; a message counts until an answer is sent (the mean of those that wait).
 * Threads:   any; one lock, held for a few instructions. Only entered where a limit is set.
 * Bound:     RPC_PEERS_MAX peers are remembered; beyond that idle ones are forgotten, and if none
 * is idle a new one is refused.
 */
#ifndef RPC_PEERS_H
#define RPC_PEERS_H

#include "rpc/rpc.h"

enum { RPC_PEERS_MAX = 4096, RPC_PEER_NAME_BYTES = 72 };

typedef struct rpc_peers rpc_peers;
typedef struct rpc_peer rpc_peer;

/* *out is NULL when no limit asks for it. */
bd_status rpc_peers_new(const rpc_limits *limits, rpc_peers **out) BD_MUST_CHECK;
void rpc_peers_free(rpc_peers *p); /* all tickets are back; NULL is fine */
/* One unary request of n_bytes. On BD_OK *out is charged until rpc_peers_leave with the same
 * n_bytes. */
bd_status rpc_peers_enter(rpc_peers *p, const char *name, size_t n_bytes, int64_t now_ns,
                          rpc_peer **out, bd_err *err) BD_MUST_CHECK;
void rpc_peers_leave(rpc_peers *p, rpc_peer *peer, size_t n_bytes);
/* A stream's: takes a reference without charging anything, given back by leave with 0. */
bd_status rpc_peers_join(rpc_peers *p, const char *name, int64_t now_ns, rpc_peer **out,
                         bd_err *err) BD_MUST_CHECK;
/* A message on it. Returns after how many ns to ask rpc_peers_wait_ns before reading on; 0: at
 * once.
 */
int64_t rpc_peers_charge(rpc_peers *p, rpc_peer *peer, size_t n_bytes, int64_t now_ns);
int64_t rpc_peers_wait_ns(rpc_peers *p, rpc_peer *peer, int64_t now_ns);
void rpc_peers_uncharge(rpc_peers *p, rpc_peer *peer, size_t n_bytes);
/* Once, when the first server is made. */
void rpc_peers_register_metrics(void);

#endif
