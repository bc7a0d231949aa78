/* tests/util/tu_proxy.h - a TCP proxy on loopback that delays what it passes on and cuts
 * connections, by a seed; it knows nothing of what the bytes mean.
 *
 * Threads: one of its own. A failure to set it up ends the process.
 */
#ifndef TU_PROXY_H
#define TU_PROXY_H

#include <stdint.h>

typedef struct tu_proxy tu_proxy;

typedef struct tu_proxy_options {
    uint64_t seed;
    uint32_t delay_permille; /* of the pieces passed on: held for up to delay_ms */
    uint32_t delay_ms;
    uint32_t cut_permille; /* of the pieces: lost, and both sides closed */
} tu_proxy_options;

/* Listens at once; connections are passed to `target` ("127.0.0.1:port", or another IPv4 address)
 * once it is set. */
tu_proxy *tu_proxy_new(const tu_proxy_options *opt);
const char *tu_proxy_address(const tu_proxy *p);
void tu_proxy_set_target(tu_proxy *p, const char *target);
/* Cuts so far. */
uint64_t tu_proxy_cuts(tu_proxy *p);
uint64_t tu_proxy_delays(tu_proxy *p);
void tu_proxy_free(tu_proxy *p);

#endif
