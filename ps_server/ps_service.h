/* ps_server/ps_service.h - the RPCs of a server over its shard and, on server 0, the coordinator.
 *
 * Layer:     ps_server; the only part of it that knows rpc/ and proto/.
 * Checks:    every number from the wire is checked before it reaches the shard; an error names the
 *            table, key, rank or part.
 * Threads:   handlers run on the rpc pool, stream messages on the queue threads; lookups of a
 * stream and lookups that were parked are answered by the service's own threads, which also look
 * twice a second for parked callers that gave up. Ownership: one ps_call for each request, freed
 * when it is answered.
 */
#ifndef PS_SERVICE_H
#define PS_SERVICE_H

#include "ps_server/ps_coord.h"
#include "ps_server/ps_health.h"
#include "ps_server/ps_shard.h"
#include "rpc/rpc.h"

typedef struct ps_service ps_service;

typedef struct ps_service_options {
    int n_threads;        /* that answer lookups, 0: 2 */
    const char *instance; /* random per start; copied */
    ps_health *health;    /* borrowed; outlives the service */
} ps_service_options;

/* shard and coord (NULL on other servers than 0) are borrowed and must outlive the service. */
bd_status ps_service_new(const ps_service_options *opt, ps_shard *shard, ps_coord *coord,
                         ps_service **out, bd_err *err) BD_MUST_CHECK;
/* Its contexts are swept by the service and stand in Stats; borrowed until ps_service_free. */
struct ps_autograd;
void ps_service_set_autograd(ps_service *v, struct ps_autograd *a);
/* The shard map's epoch that this server has registered with. */
void ps_service_set_map_epoch(ps_service *v, uint64_t epoch);
/* Before rpc_server_start. */
bd_status ps_service_register(ps_service *v, rpc_server *server, bd_err *err) BD_MUST_CHECK;
/* After ps_shard_stop (which answers the parked) and before rpc_server_free. */
void ps_service_free(ps_service *v);

#endif
