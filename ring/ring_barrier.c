/* Dissemination barrier: in round k tell rank + 2^k and hear from rank - 2^k. After ceil(log2 P)
 * rounds everybody has heard, directly or not, from everybody. */
#include "ring/ring_algo.h"
#include "ring/ring_plan.h"

static int teller(const ring_run *run, uint32_t round)
{
    int64_t back = (int64_t)1 << round;
    return (int)(((int64_t)run->rank + run->world - back % run->world) % run->world);
}

static bd_status tell(ring_run *run, uint32_t round, bd_err *err)
{
    int peer = (int)(((int64_t)run->rank + ((int64_t)1 << round)) % run->world);
    return ring_run_send(run, peer, round, 0, NULL, 0, err);
}

static bd_status start(ring_run *run, bd_err *err)
{
    run->as.barrier.arrived = 0;
    run->as.barrier.round = 0;
    run->n_to_receive = ring_plan_rounds(run->world);
    return run->n_to_receive == 0 ? BD_OK : tell(run, 0, err);
}

static bd_status place(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err)
{
    if (f->step >= ring_plan_rounds(run->world) || peer != teller(run, f->step) ||
        f->payload_bytes != 0 || (run->as.barrier.arrived >> f->step & 1) != 0) {
        return bd_err_set(err, BD_E_MISMATCH, "rank %d sent an unexpected frame (step %u)", peer,
                          f->step);
    }
    *dst = NULL;
    return BD_OK;
}

static bd_status arrived(ring_run *run, int peer, const ring_frame *f, bd_err *err)
{
    (void)peer;
    bd_status rc = BD_OK;
    run->as.barrier.arrived |= (uint64_t)1 << f->step;
    while (rc == BD_OK && run->as.barrier.round < ring_plan_rounds(run->world) &&
           (run->as.barrier.arrived >> run->as.barrier.round & 1) != 0) {
        run->as.barrier.round++;
        if (run->as.barrier.round < ring_plan_rounds(run->world)) {
            rc = tell(run, run->as.barrier.round, err);
        }
    }
    return rc;
}

static bd_status finish(ring_run *run, bd_err *err)
{
    (void)run;
    (void)err;
    return BD_OK;
}

static bool awaits(const ring_run *run, int peer)
{
    return run->as.barrier.round < ring_plan_rounds(run->world) &&
           peer == teller(run, run->as.barrier.round);
}

static bool needs(const ring_run *run, int peer)
{
    for (uint32_t k = run->as.barrier.round; k < ring_plan_rounds(run->world); k++) {
        if (peer == teller(run, k) && (run->as.barrier.arrived >> k & 1) == 0) {
            return true;
        }
    }
    return false;
}

const ring_algo ring_barrier_rounds = {.name = "dissemination",
                                       .start = start,
                                       .place = place,
                                       .arrived = arrived,
                                       .finish = finish,
                                       .awaits = awaits,
                                       .needs = needs};
