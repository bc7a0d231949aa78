/* ps_server/ps_options.h - what braid-ps can be told: one table, from which flags, environment
 * (BRAID_<KEY>), help and docs are made.
 *
 * Layer: ps_server. Threads: filled at start, read-only afterwards.
 */
#ifndef PS_OPTIONS_H
#define PS_OPTIONS_H

#include "base/option.h"

#include "rpc/rpc_security.h"

typedef struct ps_options {
    int64_t index, servers;
    const char *coordinator;
    const char *store;
    const char *listen, *advertise;
    const char *data_dir, *restore_from;
    int64_t ready_fd;
    int64_t journal_cap, staged_limit; /* bytes */
    int64_t bound_wait;                /* ms */
    bool salvage;
    int64_t memory_budget; /* bytes */
    int64_t keep_tombstones;
    int64_t threads;
    int64_t register_wait;  /* ms */
    int64_t autograd_lease; /* ms */
    const char *metrics_listen, *health_listen;
    bool allow_insecure;
    rpc_security_options security;
    int64_t max_connections, max_bytes_in_flight;
    double max_requests_per_second;
    const char *tls_client_auth;
    const char *log_level;
    bool log_json;
    const char *print_config;
} ps_options;

extern const bd_opt ps_option_table[];
extern const size_t ps_n_options;

#endif
