/* tests/util/ps_cluster.h - whole parameter servers in this process, for the real client over
 * loopback.
 *
 * Failures end the test. A server that is stopped and started again comes back on its folder and
 * address.
 */
#ifndef PS_CLUSTER_H
#define PS_CLUSTER_H

#include "ps_server/ps_server.h"

#define PS_CLUSTER_MAX 4

typedef struct ps_cluster {
    char dir[64];
    size_t n;
    int64_t autograd_lease_ms; /* of servers started from now on; 0: 60,000 */
    char address[PS_CLUSTER_MAX][64];
    ps_server *servers[PS_CLUSTER_MAX];
} ps_cluster;

/* Fails the test, saying why, unless rc is BD_OK. */
void must(bd_status rc, const bd_err *err);
void ps_cluster_start(ps_cluster *c, size_t n);
void ps_cluster_stop(ps_cluster *c); /* and removes the folder */
/* All servers, of a cluster of n (its folders may be of another number). */
void ps_cluster_start_servers(ps_cluster *c, size_t n);
void ps_cluster_stop_servers(ps_cluster *c);
void ps_cluster_start_server(ps_cluster *c, size_t i);
void ps_cluster_stop_server(ps_cluster *c, size_t i);

#endif
