/* ps_server/ps_health.h - what probes are told: alive, ready, draining.
 *
 * Layer:     ps_server.
 * Threads:   any; the states are under one lock. The health port has threads of its own, so that
 *            probes are answered while a journal is replayed and while every handler is busy.
 * Port:      plain text, grpc.health.v1 alone. Services: "liveness" (SERVING while the process
 *            answers at all, during replay and drain too), "readiness" and "" (see below).
 * Readiness: SERVING when the rows are loaded, the coordinator knows the address, the journal can
 *            be written, and nobody has asked to drain or to stop. A drain lasts until undrain or
 * the end of the process: a restarted server is never drained.
 */
#ifndef PS_HEALTH_H
#define PS_HEALTH_H

#include "rpc/rpc.h"

typedef struct ps_health ps_health;

/* listen: "host:port" of the health port, "": none (the states are kept all the same). BD_E_IO: the
 * port is in use; BD_E_NOMEM. */
bd_status ps_health_new(const char *listen, ps_health **out, bd_err *err) BD_MUST_CHECK;
/* The port that is served; 0: none. */
int ps_health_port(const ps_health *h);
/* The server whose own grpc.health.v1 follows readiness; NULL: none any more. */
void ps_health_follow(ps_health *h, rpc_server *main_server);
/* What a server that is not ready yet is doing: the reason that ps_health_is_serving gives until
 * it is ready. Fits ps_progress. */
void ps_health_tell(void *h, const char *line);
void ps_health_set_ready(ps_health *h, bool ready);
void ps_health_set_draining(ps_health *h, bool draining);
/* Not ready until the end of the process; the first `why` is kept. */
void ps_health_set_failed(ps_health *h, const char *why);
bool ps_health_is_draining(ps_health *h);
/* Ready, not draining and not failed; else `reason` says why not. Fits bd_http_health. */
bool ps_health_is_serving(void *h, char *reason, size_t n_reason);
/* Ends the port. NULL is fine. */
void ps_health_free(ps_health *h);

#endif
