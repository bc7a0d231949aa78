/* rpc/rpc_tokens.h - a server's list of bearer tokens.
 *
 * Layer:     rpc, private.
 * Threads:   a list is fixed once parsed; lookups from any thread.
 * Secrecy:   a lookup compares with every token in full, whatever matches, so that its time tells
 *            nothing of a token but how many there are. Errors name the line and nothing that
 * stands in it: somebody may have swapped the words.
 */
#ifndef RPC_TOKENS_H
#define RPC_TOKENS_H

#include "rpc/rpc_security.h"

#include <stdatomic.h>
#include <stdint.h>

enum { RPC_TOKEN_NAME_BYTES = 64 };

typedef struct rpc_token {
    char name[RPC_TOKEN_NAME_BYTES]; /* of the client, for logs */
    rpc_scope scope;
    uint8_t secret[RPC_TOKEN_MAX_BYTES + 1]; /* [0]: its length; the rest: its bytes, then zeros */
} rpc_token;

typedef struct rpc_tokens {
    _Atomic int refs;
    size_t n;
    rpc_token items[];
} rpc_tokens;

/* text: the file. Errors: BD_E_USAGE naming path and line. */
bd_status rpc_tokens_parse(const char *path, const char *text, rpc_tokens **out,
                           bd_err *err) BD_MUST_CHECK;
void rpc_tokens_unref(rpc_tokens *t);
/* The entry with this token; NULL: none. */
const rpc_token *rpc_tokens_find(const rpc_tokens *t, const char *token, size_t n);
/* The only token of a channel's file: the first line without white space around it. */
bd_status rpc_token_parse_own(const char *path, char *text, bd_err *err) BD_MUST_CHECK;

#endif
