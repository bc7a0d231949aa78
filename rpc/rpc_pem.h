/* rpc/rpc_pem.h - are these PEM files whole? gRPC would only say so at the first connection.
 *
 * Layer:   rpc, private; the only file that uses OpenSSL.
 * Threads: pure functions.
 */
#ifndef RPC_PEM_H
#define RPC_PEM_H

#include "base/err.h"

#include <stdint.h>

/* cert (leaf first) parses and key is its private key. *not_after_s: when the leaf expires, seconds
 * since 1970. BD_E_USAGE says what is wrong. */
bd_status rpc_pem_check_pair(const char *cert, const char *key, int64_t *not_after_s,
                             bd_err *err) BD_MUST_CHECK;
/* At least one certificate. */
bd_status rpc_pem_check_ca(const char *ca, bd_err *err) BD_MUST_CHECK;

#endif
