/* base/http.h - a small HTTP page for operators: /metrics and /healthz.
 *
 * Layer:     base; libmicrohttpd stays behind this header.
 * Threads:   start and stop on one thread; requests are answered on one thread of its own, which
 *            calls `health`.
 * Ownership: health and user are borrowed until bd_http_stop has returned.
 * Bounds:    16 connections, 10 s each; only GET and HEAD; request bodies are refused.
 */
#ifndef BD_HTTP_H
#define BD_HTTP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct bd_http bd_http;

/* /healthz answers 200 "ok" when this returns true, else 503 with the reason it wrote. Never
 * blocks. */
typedef bool (*bd_http_health)(void *user, char *reason, size_t reason_bytes);

/* addr: "host:port", "[v6]:port"; port 0: the system picks. health NULL: always healthy.
 * BD_E_USAGE (malformed address), BD_E_IO naming it (port in use, unknown host), BD_E_NOMEM. */
bd_status bd_http_start(const char *addr, bd_http_health health, void *user, bd_http **out,
                        bd_err *err) BD_MUST_CHECK;
/* The port that is served. */
int bd_http_port(const bd_http *h);
/* Ends open connections and joins the thread. NULL is fine. */
void bd_http_stop(bd_http *h);

#endif
