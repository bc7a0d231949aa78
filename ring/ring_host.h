/* ring/ring_host.h - which ranks share a host.
 *
 * Layer: ring. Threads: the caller's; blocks until all ranks have said where they are.
 * Two ranks share a host when they run under one boot of one kernel and in one network namespace:
 * then unix sockets join them. Published under ring/<group>/<epoch>/host/<rank>.
 */
#ifndef RING_HOST_H
#define RING_HOST_H

#include "ring/ring_comm_int.h"

typedef struct ring_hosts {
    int world;
    int n_hosts;
    int most_local; /* ranks of the fullest host */
    int least_local;
    int *host_of;  /* owned, world: numbered by their first rank */
    int *local_of; /* owned, world: number within the host, by rank */
} ring_hosts;

/* BD_E_TIMEOUT names the absent ranks. */
bd_status ring_hosts_find(bd_kv *kv, int rank, int world, const ring_options *opt, ring_hosts *out,
                          bd_err *err) BD_MUST_CHECK;
void ring_hosts_deinit(ring_hosts *h);
/* The ranks on `host`, or (local >= 0) those with this local number on any host, in order. Returns
 * how many; ranks has room for world. */
int ring_hosts_list(const ring_hosts *h, int host, int local, int *ranks);

/* ring_hier.c: takes over hosts, also on failure. */
bd_status ring_hier_new(bd_kv *kv, int rank, const ring_options *opt, ring_hosts *hosts,
                        ring_comm **out, bd_err *err) BD_MUST_CHECK;

#endif
