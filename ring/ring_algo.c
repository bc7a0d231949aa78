#include "ring/ring_algo.h"

#include "ring/ring_plan.h"

const ring_algo *ring_algo_choose(const ring_op *op, int world)
{
    if (op->agree_only) {
        return &ring_barrier_rounds;
    }
    switch (op->kind) {
    case RING_OP_REDUCE:
        return &ring_reduce_chain;
    case RING_OP_GATHER:
    case RING_OP_SCATTER:
    case RING_OP_ALL_TO_ALL:
    case RING_OP_ALL_TO_ALL_V:
        return &ring_exchange_pairs;
    case RING_OP_REDUCE_SCATTER:
        return &ring_reduce_scatter_ring;
    case RING_OP_ALL_GATHER:
        return &ring_all_gather_ring;
    case RING_OP_BROADCAST:
        return &ring_broadcast_tree;
    case RING_OP_BARRIER:
        return &ring_barrier_rounds;
    case RING_OP_SEND: /* not collectives: the engine's */
    case RING_OP_RECV:
    case RING_OP_ALLREDUCE:
        break;
    }
    size_t n_bytes = op->n_elems * num_dtype_bytes((int)op->dtype);
    if (world == 2 && n_bytes <= RING_SMALL_PAIR_BYTES) {
        return &ring_allreduce_small;
    }
    /* A bitmap of ranks bounds the one-round algorithm; with so many ranks it is slower anyway. */
    return n_bytes <= RING_SMALL_BYTES && world <= 1024 ? &ring_allreduce_small
                                                        : &ring_allreduce_ring;
}

void ring_divide(void *buf, size_t n_elems, num_dtype dtype, int world)
{
    if (world == 1) {
        return;
    }
    switch (dtype) {
    case NUM_I32:
        for (size_t i = 0; i < n_elems; i++) {
            ((int32_t *)buf)[i] /= world;
        }
        break;
    case NUM_I64:
        for (size_t i = 0; i < n_elems; i++) {
            ((int64_t *)buf)[i] /= world;
        }
        break;
    case NUM_U8:
        for (size_t i = 0; i < n_elems; i++) {
            ((uint8_t *)buf)[i] = (uint8_t)(((uint8_t *)buf)[i] / world);
        }
        break;
    case NUM_I8:
        for (size_t i = 0; i < n_elems; i++) {
            ((int8_t *)buf)[i] = (int8_t)(((int8_t *)buf)[i] / world);
        }
        break;
    case NUM_F32:
    case NUM_F16:
    case NUM_BF16:
    case NUM_F64:
        num_scale(buf, n_elems, dtype, 1.0 / world);
        break;
    }
}
