/* client/cl_stats.h - what servers cost this process's clients: requests sent again, outages.
 *
 * Layer:   client, private.
 * Threads: any. Counters are relaxed atomics; a server's slot is made once and never freed, and all
 *          clients of the process share it.
 * Bound:   CL_STATS_SERVERS names; the ones that come later are counted together as "other".
 */
#ifndef CL_STATS_H
#define CL_STATS_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

enum { CL_STATS_SERVERS = 256 };

/* Why a request was sent again. */
#define CL_AGAIN_MAP(X)   \
    X(DOWN, "down")       \
    X(TIMEOUT, "timeout") \
    X(BUSY, "busy")       \
    X(MOVED, "moved")     \
    X(PARTS, "lost_parts")

typedef enum cl_again_reason {
#define BD_X(name, text) CL_AGAIN_##name,
    CL_AGAIN_MAP(BD_X)
#undef BD_X
        CL_AGAIN_N
} cl_again_reason;

typedef struct cl_stats {
    _Atomic uint32_t state; /* 0 free, 1 being made, 2 there */
    char name[32];
    _Atomic uint64_t retries[CL_AGAIN_N];
    _Atomic uint64_t outages, outage_ns;
    _Atomic int64_t n_down; /* links that wait for it now */
} cl_stats;

/* The slot of a server by its name in logs ("ps-1"). Puts the families on the metrics page when it
 * is the first one. Never NULL. */
cl_stats *cl_stats_of(const char *name);
/* A request that ended with rc < 0 is sent again. */
void cl_stats_retry(cl_stats *s, bd_status rc);
/* A link has lost its server, and has it again after down_ns. */
void cl_stats_down(cl_stats *s);
void cl_stats_up(cl_stats *s, int64_t down_ns);

#endif
