/* ps_server/ps_server.h - one whole parameter server: shard, coordinator, services, metrics page.
 *
 * Layer:   ps_server; the top of the folder. main.c and tests start servers through it.
 * Threads: start and stop on one thread; nothing here runs handlers.
 * Order:   start: lock the folder, load rows, serve, register at the coordinator, health SERVING.
 *          stop: health NOT_SERVING, refuse, finish, write rows back, close.
 */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "base/err.h"

#include "ps_server/ps_options.h"

typedef struct ps_server ps_server;

/* BD_E_EXISTS: the folder is in use; BD_E_IO: port in use, folder not writable; BD_E_MISMATCH: the
 * folder belongs to another server index or count; BD_E_UNAVAILABLE: no coordinator in time. */
bd_status ps_server_start(const ps_options *opt, ps_server **out, bd_err *err) BD_MUST_CHECK;
/* "host:port" where clients reach it. */
const char *ps_server_address(const ps_server *s);
/* Orderly; frees s. The error is the disk's; nothing answered is lost. */
bd_status ps_server_stop(ps_server *s, bd_err *err) BD_MUST_CHECK;

#endif
