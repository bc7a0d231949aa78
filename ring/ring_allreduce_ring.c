/* Large allreduce: reduce round the ring, then gather round the ring. 2(P-1) steps, 2(P-1)/P of the
 * bytes sent per rank, in place. */
#include "ring/ring_algo.h"

static bd_status start(ring_run *run, bd_err *err)
{
    uint32_t hops = (uint32_t)run->world - 1;
    run->as.walk = (ring_walk){.base = run->op->out,
                               .total_elems = run->op->n_elems,
                               .first_chunk = (uint32_t)run->rank,
                               .n_steps = 2 * hops,
                               .n_reduce_steps = hops};
    return ring_walk_start(run, err);
}

static bd_status finish(ring_run *run, bd_err *err)
{
    (void)run;
    (void)err;
    return BD_OK;
}

const ring_algo ring_allreduce_ring = {.name = "ring",
                                       .is_even = true,
                                       .start = start,
                                       .place = ring_walk_place,
                                       .arrived = ring_walk_arrived,
                                       .finish = finish,
                                       .awaits = ring_walk_awaits,
                                       .needs = ring_walk_awaits};
