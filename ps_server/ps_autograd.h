/* ps_server/ps_autograd.h - every table as a module of the Autograd service.
 *
 * Layer:     ps_server; rpc/rpc_autograd.h does the contexts, this says what a table's forward,
 *            backward and step are.
 * Modules:   "embedding_bag:<table>"       ids i64[m], offsets i64[n] -> f32[n x dim], sum of a bag
 *            "embedding_bag_mean:<table>"  the same, mean over the ids of the request
 *            "embedding_bag_sqrtn:<table>" the sum over the root of their number
 *            "embedding_bag_max:<table>"   the largest, element by element; the gradient goes to
 * the first id that has it; an empty bag is zeros "embedding:<table>"           ids i64[m] -> f32[m
 * x dim] Ids are keys: any 64 bits, as a signed number on the wire. All of them must be in this
 *            server's slots (BD_E_MOVED names the key): a client of several servers sends each its
 *            part of a bag and adds the sums (of mean, sqrtn and max: whole bags). An absent key
 *            reads as its first value; forward creates nothing.
 * Gradients: summed per key in the context. Step gives all tables of the context to the journal as
 *            one push of (client, context number), so they are applied once, by the table's
 *            optimiser, whatever is repeated, and also when this process dies before it has
 * answered. Job:       async: each step is applied as it comes. sync: a step is the vote of a rank
 *            (rpc_ag_set_vote), staged and then committed with those of all other ranks, summed in
 *            their order; it is answered when it is applied, or BD_E_TIMEOUT when a vote is missing
 *            for lease_ms. Gradients are bound to the job epoch in which they came: after another
 *            OpenJob the context gets BD_E_FENCED. Reading needs no job.
 * Leases:    a client with contexts here that says nothing for lease_ms loses them and is
 *            BD_E_CLIENT_EXPIRED from then on.
 * Threads:   rpc handlers (module functions; a step waits for the commit thread), the service's
 * answering thread (sweep). modules: under a lock of its own.
 */
#ifndef PS_AUTOGRAD_H
#define PS_AUTOGRAD_H

#include "ps_server/ps_service.h"

typedef struct ps_autograd ps_autograd;

typedef struct ps_autograd_options {
    uint32_t index;   /* of this server */
    int64_t lease_ms; /* 0: 60,000 */
} ps_autograd_options;

/* v and shard: borrowed until free. */
bd_status ps_autograd_new(rpc_env *env, ps_service *v, ps_shard *shard,
                          const ps_autograd_options *opt, ps_autograd **out,
                          bd_err *err) BD_MUST_CHECK;
/* Before rpc_server_start. */
bd_status ps_autograd_serve(ps_autograd *a, rpc_server *server) BD_MUST_CHECK;
/* Drops contexts of clients whose lease is over, and brings the shard's numbers up to date. */
void ps_autograd_sweep(ps_autograd *a);
/* After rpc_server_free. NULL is fine. */
void ps_autograd_free(ps_autograd *a);

#endif
