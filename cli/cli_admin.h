/* cli/cli_admin.h - questions to running servers: who are they, how are they, what tables are
 * there.
 *
 * Layer:     cli (base, proto, rpc).
 * Threads:   the caller's; blocks up to timeout_ms for each question.
 * Ownership: cli_admin_open gives a connection, cli_admin_close ends it; replies are freed with
 *            px_unpacked_free.
 */
#ifndef CLI_ADMIN_H
#define CLI_ADMIN_H

#include "base/err.h"

#include "proto/px_pack.h"
#include "rpc/rpc_store.h"

typedef struct cli_admin {
    rpc_env *env;           /* owned */
    rpc_store *store;       /* owned: knows the servers */
    rpc_shard_map map;      /* owned */
    rpc_channel **channels; /* owned, [n_servers] */
    size_t n_servers;
    int64_t timeout_ms;
} cli_admin;

/* Where the coordinator is: the address given, or what the launcher wrote into the run's folder.
 * BD_E_USAGE: neither is given; BD_E_NOT_FOUND: the run has none. */
bd_status cli_admin_find(const char *coordinator, const char *run_dir, char *address,
                         size_t n_address, bd_err *err) BD_MUST_CHECK;
/* Connects to the coordinator (rpc_store.h: server 0, or etcd://...) and learns the servers.
 * BD_E_UNAVAILABLE or BD_E_TIMEOUT name it. */
bd_status cli_admin_open(cli_admin *a, const char *coordinator, int64_t timeout_ms,
                         const rpc_security_options *security, bd_err *err) BD_MUST_CHECK;
void cli_admin_close(cli_admin *a);
const char *cli_admin_address(const cli_admin *a, size_t server);
/* One request to one server. */
bd_status cli_admin_ask(cli_admin *a, size_t server, const char *method,
                        const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                        ProtobufCMessage **reply, bd_err *err) BD_MUST_CHECK;

#endif
