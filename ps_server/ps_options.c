#include "ps_server/ps_options.h"

#include "rpc/rpc_security_opt.h"

#include <stddef.h>

#define AT(field)  offsetof(ps_options, field)
#define SEC(field) offsetof(ps_options, security.field)

const bd_opt ps_option_table[] = {
    {"index", BD_OPT_I64, AT(index), "0", 0, 4095, NULL,
     "Which server this is, counted from 0; server 0 hosts the coordinator."},
    {"servers", BD_OPT_I64, AT(servers), "1", 1, 4096, NULL, "How many servers the cluster has."},
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL,
     "host:port of server 0; not needed on server 0 itself."},
    {"store", BD_OPT_STR, AT(store), "", 0, 0, NULL,
     "Where the cluster keeps its state: etcd://HOST:PORT[,HOST:PORT...][/PREFIX], the same on "
     "every "
     "server, which then all serve as coordinator; empty: server 0 keeps it."},
    {"listen", BD_OPT_STR, AT(listen), "127.0.0.1:7700", 0, 0, NULL,
     "host:port to serve on; port 0: the system picks."},
    {"advertise", BD_OPT_STR, AT(advertise), "", 0, 0, NULL,
     "host or host:port where clients reach this server; default: what it listens on."},
    {"data_dir", BD_OPT_STR, AT(data_dir), NULL, 0, 0, NULL,
     "Folder for journal, rows and checkpoints; made when it does not exist."},
    {"restore_from", BD_OPT_STR, AT(restore_from), "", 0, 0, NULL,
     "Where parts of checkpoints are that other servers made, separated by commas: their data "
     "folders, a folder of such folders, or ps://HOST:PORT of a running server that has a part. "
     "Needed to restore onto another number of servers."},
    {"ready_fd", BD_OPT_I64, AT(ready_fd), "-1", -1, 65535, NULL,
     "File descriptor that gets one line \"READY host:port\" when the server serves; -1: none."},
    {"journal_cap", BD_OPT_BYTES, AT(journal_cap), "512MiB", 1 << 20, 1e15, NULL,
     "Rows are written back when the journal grows beyond this; at twice this, steps wait."},
    {"staged_limit", BD_OPT_BYTES, AT(staged_limit), "1GiB", 1 << 20, 1e15, NULL,
     "Memory for gradients of steps that are not committed yet (the oldest one may hold as much "
     "again)."},
    {"bound_wait", BD_OPT_DURATION_MS, AT(bound_wait), "90s", 100, 86400000, NULL,
     "Bounded jobs: how long lookups wait for a rank that pushes nothing; they are then answered "
     "with an error that names it."},
    {"salvage", BD_OPT_BOOL, AT(salvage), "false", 0, 0, NULL,
     "Start on a damaged data folder with what is whole of it; the job must then be resumed from a "
     "checkpoint."},
    {"memory_budget", BD_OPT_BYTES, AT(memory_budget), "0", 0, 1e15, NULL,
     "Memory the server may use; rows that do not fit stay on the disk. 0: four fifths of the "
     "control "
     "group's limit, without one no limit."},
    {"keep_tombstones", BD_OPT_I64, AT(keep_tombstones), "2", 1, 64, NULL,
     "The tombstone of an evicted row stays until so many checkpoints made since the start hold "
     "it; "
     "merges of the row store leave it out after that."},
    {"threads", BD_OPT_I64, AT(threads), "0", 0, 1024, NULL,
     "Handler threads; 0: one per core, at least 4."},
    {"register_wait", BD_OPT_DURATION_MS, AT(register_wait), "60s", 100, 86400000, NULL,
     "How long to wait at start until the coordinator has taken this server's address."},
    {"autograd_lease", BD_OPT_DURATION_MS, AT(autograd_lease), "60s", 100, 86400000, NULL,
     "Contexts of a client that says nothing for so long are dropped, and the client is expired."},
    {"metrics_listen", BD_OPT_STR, AT(metrics_listen), "", 0, 0, NULL,
     "host:port of the /metrics and /healthz page; empty: none."},
    {"health_listen", BD_OPT_STR, AT(health_listen), "", 0, 0, NULL,
     "host:port of the plain-text health port for probes: grpc.health.v1 with the services "
     "\"liveness\" and \"readiness\"; empty: none."},
    {"allow_insecure", BD_OPT_BOOL, AT(allow_insecure), "false", 0, 0, NULL,
     "Without TLS: serve plain text on an address that other hosts can reach, and speak it (and "
     "send "
     "the token) to server 0."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
    {"tls_client_auth", BD_OPT_ENUM, AT(tls_client_auth), "none", 0, 0, "none|require",
     "require: mutual TLS, clients must show a certificate signed by tls_ca."},
    {"tokens_file", BD_OPT_STR, SEC(tokens_file), "", 0, 0, NULL,
     "File of the tokens that clients may show, a line each: name, read|train|admin, token; read "
     "again when it changes; empty: nobody is asked for one."},
    {"max_connections", BD_OPT_I64, AT(max_connections), "1024", 0, 1000000, NULL,
     "TCP connections that one peer (an address) may hold; the newest ones beyond it are closed; "
     "0: "
     "no limit."},
    {"max_bytes_in_flight", BD_OPT_BYTES, AT(max_bytes_in_flight), "0B", 0, 1e15, NULL,
     "Requests of one peer that are not answered yet may hold so much memory; beyond it calls are "
     "refused (RESOURCE_EXHAUSTED) and streams read more slowly; 0B: no limit."},
    {"max_requests_per_second", BD_OPT_F64, AT(max_requests_per_second), "0", 0, 1e9, NULL,
     "Requests a second of one peer, in bursts of at most a second's worth; beyond it as "
     "max_bytes_in_flight; 0: no limit."},
    {"log_level", BD_OPT_ENUM, AT(log_level), "info", 0, 0, "debug|info|warn|error",
     "The least important log lines to print."},
    {"log_json", BD_OPT_BOOL, AT(log_json), "false", 0, 0, NULL,
     "Log lines as JSON objects instead of text."},
    {"print_config", BD_OPT_ENUM, AT(print_config), "none", 0, 0, "none|text|json",
     "Prints the options, checked, each with where it is from, and ends."},
};
const size_t ps_n_options = sizeof ps_option_table / sizeof ps_option_table[0];
