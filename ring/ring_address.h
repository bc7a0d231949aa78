/* ring/ring_address.h - which address of this host a rank listens on, and what others connect to.
 *
 * Layer:   ring. Threads: any; getaddrinfo may ask a name server.
 * Texts:   owned by the caller (bd_free).
 */
#ifndef RING_ADDRESS_H
#define RING_ADDRESS_H

#include "base/err.h"

#include <sys/socket.h>

/* The address of a network interface, numeric.
 *
 *   which  a name ("eth1"), or a prefix that one address of this host lies in ("10.1.0.0/16",
 *          "fd00::/8"; without "/" the whole address). Of several addresses the first IPv4 one,
 * else the first IPv6 one; those of a link only (fe80::) do not count, others cannot name them
 *
 * BD_E_NOT_FOUND lists what there is; BD_E_INVALID: a prefix that is none.
 */
bd_status ring_address_of(const char *which, char **out, bd_err *err) BD_MUST_CHECK;

/* What others shall connect to when a socket listens at `at`: "host:port" or "[host]:port",
 * numeric. Of a socket that listens on all addresses: the first one that is not loopback, if there
 * is one. */
bd_status ring_address_text(const struct sockaddr *at, socklen_t at_bytes, char **out,
                            bd_err *err) BD_MUST_CHECK;

#endif
