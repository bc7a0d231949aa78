/* all_gather: every chunk walks round the ring once. P-1 steps, (P-1)/P of the output's bytes sent
 * per rank. */
#include "ring/ring_algo.h"

#include <string.h>

static bd_status start(ring_run *run, bd_err *err)
{
    size_t n_bytes = run->op->n_elems * run->elem_bytes;
    uint8_t *own = (uint8_t *)run->op->out + (size_t)run->rank * n_bytes;
    if (n_bytes > 0 && own != run->op->in) {
        memmove(own, run->op->in, n_bytes);
    }
    run->as.walk = (ring_walk){.base = run->op->out,
                               .total_elems = run->op->n_elems * (size_t)run->world,
                               .first_chunk = (uint32_t)run->rank,
                               .n_steps = (uint32_t)run->world - 1,
                               .n_reduce_steps = 0};
    return ring_walk_start(run, err);
}

static bd_status finish(ring_run *run, bd_err *err)
{
    (void)run;
    (void)err;
    return BD_OK;
}

const ring_algo ring_all_gather_ring = {.name = "ring",
                                        .is_even = true,
                                        .start = start,
                                        .place = ring_walk_place,
                                        .arrived = ring_walk_arrived,
                                        .finish = finish,
                                        .awaits = ring_walk_awaits,
                                        .needs = ring_walk_awaits};
