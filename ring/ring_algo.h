/* ring/ring_algo.h - what a collective algorithm is: frames in, frames out, no sockets or threads.
 *
 * Layer:     ring (pure part).
 * Threads:   all of it on the communicator's own thread.
 * Ownership: the engine owns the run and its scratch; the operation's buffers are the caller's and
 *            borrowed until the run ends.
 * A run:     start sends what needs no input. For every frame: place says where its payload goes,
 *            arrived is told when it is there and sends what follows from it. When n_to_receive
 *            frames are in and all sends are out, finish puts the result in place.
 * Read next: ring/ring_walk.h, ring/ring_engine.h.
 */
#ifndef RING_ALGO_H
#define RING_ALGO_H

#include "base/num/dtype.h"
#include "base/num/reduce.h"

#include "ring/ring_frame.h"
#include "ring/ring_walk.h"

#include <stdbool.h>
#include <stddef.h>

/* What the caller asked for. */
typedef struct ring_op {
    ring_op_kind kind;
    num_dtype dtype;
    int reduce;                /* num_reduce_op, 0 for none */
    int root;                  /* -1 for none */
    size_t n_elems;            /* as the caller counts them; goes into the frame check */
    void *in;                  /* borrowed; in place: in == out */
    void *out;                 /* borrowed */
    const size_t *send_counts; /* all_to_all_v: borrowed, world */
    const size_t *recv_counts;
    int peer;        /* send, recv: the other rank */
    uint32_t tag;    /* send, recv */
    bool agree_only; /* only checks that all ranks run the same; moves nothing */
    uint64_t name_hash;
    char name[RING_NAME_BYTES];
} ring_op;

typedef struct ring_engine ring_engine;
typedef struct ring_algo ring_algo;

typedef struct ring_run {
    ring_engine *engine;
    const ring_algo *algo;
    const ring_op *op; /* borrowed */
    int rank;
    int world;
    int n_lanes; /* ways to each peer */
    int lane;    /* in place and arrived: over which the frame came */
    size_t elem_bytes;
    uint64_t n_to_receive; /* frames; set by start */
    uint64_t n_received;
    uint64_t n_sending; /* frames handed to the transport and not yet out */
    uint64_t bytes_received;
    uint8_t *scratch; /* of ring_run_scratch */
    union {
        ring_walk walk;
        struct {
            uint64_t arrived[16]; /* bit per rank: world <= 1024 */
            uint32_t n_segments;  /* of a vector; 1 when world > 2 */
            uint32_t n_reduced;   /* segments */
        } small;
        struct {
            int chain;
            int parent;
            uint32_t n_segments;
            uint32_t segment; /* next one from the parent */
            int n_children;
            int n_acked;
            uint32_t acked; /* bit per child; more than 32 need world > 2^32 */
        } tree;
        struct {
            uint32_t segment; /* next one from the rank before */
            bool has_ack;
        } chain;
        struct {
            uint64_t arrived; /* bit per round */
            uint32_t round;
        } barrier;
    } as;
} ring_run;

struct ring_algo {
    const char *name;
    bool is_even; /* at any time every rank has to send about as much as it has to receive */
    bd_status (*start)(ring_run *run, bd_err *err);
    /* BD_OK: *dst holds f->payload_bytes. An error: this frame has no place in this run. */
    bd_status (*place)(ring_run *run, int peer, const ring_frame *f, void **dst, bd_err *err);
    bd_status (*arrived)(ring_run *run, int peer, const ring_frame *f, bd_err *err);
    bd_status (*finish)(ring_run *run, bd_err *err);
    /* Whether the run cannot go on without a frame of peer: for the text of a timeout. */
    bool (*awaits)(const ring_run *run, int peer);
    /* Whether a frame of peer is still to come before the run can end. */
    bool (*needs)(const ring_run *run, int peer);
};

extern const ring_algo ring_allreduce_ring;
extern const ring_algo ring_allreduce_small;
extern const ring_algo ring_reduce_scatter_ring;
extern const ring_algo ring_all_gather_ring;
extern const ring_algo ring_broadcast_tree;
extern const ring_algo ring_barrier_rounds;
extern const ring_algo ring_reduce_chain;
extern const ring_algo ring_exchange_pairs;

/* The algorithm: a pure function of operation, bytes and world, so all ranks choose alike. */
const ring_algo *ring_algo_choose(const ring_op *op, int world);

/* What algorithms may ask of the engine. */
/* Sends one frame, over lane 0 or the one given. payload stays borrowed until the run ends and must
 * not change until the frame is out. */
bd_status ring_run_send(ring_run *run, int peer, uint32_t step, uint32_t segment,
                        const void *payload, size_t n_bytes, bd_err *err) BD_MUST_CHECK;
bd_status ring_run_send_lane(ring_run *run, int peer, int lane, uint32_t step, uint32_t segment,
                             const void *payload, size_t n_bytes, bd_err *err) BD_MUST_CHECK;
/* n_bytes of scratch for this run in run->scratch; once a run. Kept between runs. */
bd_status ring_run_scratch(ring_run *run, size_t n_bytes, bd_err *err) BD_MUST_CHECK;

/* buf[i] /= world for NUM_AVG: floats times 1/world, integers truncated toward zero. */
void ring_divide(void *buf, size_t n_elems, num_dtype dtype, int world);

#endif
