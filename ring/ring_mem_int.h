/* ring/ring_mem_int.h - faults of the in-memory backend, for tests. From any thread. */
#ifndef RING_MEM_INT_H
#define RING_MEM_INT_H

#include "ring/ring.h"

/* The rank neither reads nor begins anything any more, as one under SIGSTOP. */
void ring_mem_test_stop(ring_comm *c);
/* The rank is gone, as one under SIGKILL: the others see its connection end. */
void ring_mem_test_kill(ring_comm *c);
/* A killed rank runs again, so that what it has open can be ended (ring_abort) and freed. */
void ring_mem_test_revive(ring_comm *c);
/* The nth data frame that this rank sends from now on (0: the next) gets lost. */
void ring_mem_test_drop(ring_comm *c, long nth);

#endif
