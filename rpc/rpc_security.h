/* rpc/rpc_security.h - who this process is and whom it trusts: certificates and tokens.
 *
 * Layer:     rpc, public.
 * Scope:     one set for each rpc_env: its servers and its channels use it. An env without one
 *            speaks plain text and asks nobody for a token.
 * Files:     read when the env is made (a missing or malformed one is BD_E_USAGE naming it), looked
 *            at again at most once a second while there is traffic. What has changed and is whole
 *            (a certificate with its own key, a well-formed list of tokens) replaces the old; what
 *            is not whole is logged, counted, and the old stays. Running connections are left
 *            alone: new ones use the new certificate, and each call carries the newest token.
 * Tokens:    a server's list has one line for each: `name scope token`; `#` starts a comment.
 *            Scopes: read < train < admin, each with the rights of the ones before it. Several
 *            lines may name one client, so that old and new token overlap during a change. They are
 *            compared in constant time and appear in no log or error.
 */
#ifndef RPC_SECURITY_H
#define RPC_SECURITY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rpc_scope {
    RPC_SCOPE_NONE = 0, /* open to everybody: health */
    RPC_SCOPE_READ,
    RPC_SCOPE_TRAIN,
    RPC_SCOPE_ADMIN
} rpc_scope;

enum { RPC_TOKEN_MIN_BYTES = 16, RPC_TOKEN_MAX_BYTES = 255, RPC_TOKENS_MAX = 256 };

/* Paths are copied; NULL or "": not used. */
typedef struct rpc_security_options {
    /* PEM file of trusted authorities. Channels: TLS, and the peer's certificate must be signed by
     * one of them and name the host called. Servers: see require_client_cert. */
    const char *ca_file;
    /* PEM files: certificate with its chain, and its key. Servers: serve TLS. Channels (with
     * ca_file): shown to servers that ask for one. */
    const char *cert_file, *key_file;
    bool require_client_cert; /* servers: mutual TLS, signed by ca_file */
    const char *server_name; /* channels: name the peer's certificate must have, instead of the host
                                called */
    const char *token_file;  /* channels: one token, sent with each call */
    const char *tokens_file; /* servers: the list; every call but health's needs one of them */
    bool allow_insecure;     /* channels: send token and password in plain text to another host */
    /* Channels to etcd (rpc_store.h). PEM files as above, where etcd has authorities of its own:
     * etcd_ca_file makes them TLS; without any of the three: ca_file, cert_file and key_file. */
    const char *etcd_ca_file, *etcd_cert_file, *etcd_key_file;
    const char *etcd_user, *etcd_password_file; /* etcd's users; the file is read at each login */
    int64_t look_ms; /* how often calls make it look whether a file was replaced, 0: 1000 */
} rpc_security_options;

/* "none", "read", "train", "admin". */
const char *rpc_scope_name(rpc_scope s);
/* The scope that Braid's public methods need ("/braid.v1.ParameterServer/Push"); admin for one that
 * is not in the table, so that nothing is open by forgetting. */
rpc_scope rpc_scope_of_method(const char *path);

#endif
