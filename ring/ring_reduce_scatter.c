/* reduce_scatter: chunk r walks from rank r + 1 round the ring to rank r and collects every rank's
 * part on the way. P-1 steps, (P-1)/P of the input's bytes sent per rank. The input is scratch. */
#include "ring/ring_algo.h"

#include <string.h>

static bd_status start(ring_run *run, bd_err *err)
{
    uint32_t hops = (uint32_t)run->world - 1;
    run->as.walk = (ring_walk){.base = run->op->in,
                               .total_elems = run->op->n_elems * (size_t)run->world,
                               .first_chunk = ((uint32_t)run->rank + hops) % (uint32_t)run->world,
                               .n_steps = hops,
                               .n_reduce_steps = hops};
    return ring_walk_start(run, err);
}

/* Only now, when all sends are out: `out` may be a part of `in`. */
static bd_status finish(ring_run *run, bd_err *err)
{
    (void)err;
    size_t n_bytes = run->op->n_elems * run->elem_bytes;
    if (n_bytes > 0) {
        memmove(run->op->out, (uint8_t *)run->op->in + (size_t)run->rank * n_bytes, n_bytes);
    }
    return BD_OK;
}

const ring_algo ring_reduce_scatter_ring = {.name = "ring",
                                            .is_even = true,
                                            .start = start,
                                            .place = ring_walk_place,
                                            .arrived = ring_walk_arrived,
                                            .finish = finish,
                                            .awaits = ring_walk_awaits,
                                            .needs = ring_walk_awaits};
