/* tests/util/tu_cluster.h - whole servers in this process, spoken to by real clients over loopback.
 *
 * A failure ends the process with a text (tu_must of tu_shard.h).
 */
#ifndef TU_CLUSTER_H
#define TU_CLUSTER_H

#include "client/client.h"
#include "ps_server/ps_server.h"

#include <stddef.h>

#define TU_MAX_SERVERS 4

typedef struct tu_cluster {
    char dir[64];
    size_t n;
    bd_options options;               /* owns the texts of opt */
    ps_options opt;                   /* what all servers get; set before the start */
    char address[TU_MAX_SERVERS][64]; /* stays the same over a restart */
    ps_server *servers[TU_MAX_SERVERS];
} tu_cluster;

/* Defaults in c->opt; nothing runs yet. */
void tu_cluster_init(tu_cluster *c, size_t n);
void tu_cluster_start(tu_cluster *c, size_t i);
void tu_cluster_start_all(tu_cluster *c);
void tu_cluster_stop(tu_cluster *c, size_t i);
/* Stops what runs, last one first, and removes the folders. */
void tu_cluster_end(tu_cluster *c);

typedef struct tu_rank {
    rpc_env *env;
    cl_client *client;
} tu_rank;
void tu_rank_open(tu_rank *r, const tu_cluster *c, const char *name, int64_t ps_wait_ms);
void tu_rank_close(tu_rank *r);

/* A number of the Stats of all servers, summed. */
double tu_stat(tu_rank *r, const char *name);
/* Until the number is at least so large; ends the process after 30 s. */
void tu_stat_wait(tu_rank *r, const char *name, double at_least);

#endif
