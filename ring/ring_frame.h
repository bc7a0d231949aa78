/* ring/ring_frame.h - the header in front of every message between ranks, byte for byte.
 *
 * All numbers little-endian, 128 bytes, payload follows:
 *
 *   offset size  field
 *   0      4     magic 0x474e5242 ("BRNG")
 *   4      2     version, 1
 *   6      1     kind: RING_FRAME_KIND_MAP
 *   7      1     op: RING_OP_MAP, 0 for control frames
 *   8      8     group: hash of the group's name
 *   16     8     epoch
 *   24     8     seq: number of the operation in this group, from 0; ABORT: the first one that
 *                fails, those before it are complete on the sender
 *   32     1     dtype (num_dtype), 0 for control frames
 *   33     1     reduce op (num_reduce_op), 0 where the operation has none
 *   34     2     zero
 *   36     4     root, -1 where the operation has none
 *   40     8     count: elements, as the caller gave them; ABORT: status code (two's complement)
 *   48     8     name hash; ABORT: the same in the larger group of which this is a part, from 1
 *                (ring_engine.outer_at), or 0
 *   56     4     step of the algorithm; STATE, PROBE: RING_STATE_*
 *   60     4     segment within the step
 *   64     8     payload bytes that follow the header
 *   72     4     rank of the sender
 *   76     4     world of the sender
 *   80     48    name, cut to 47 bytes, zero-padded: for error texts only
 *
 * Layer:   ring (pure part). Threads: pure functions.
 * Trust:   decode checks magic, version, kind and name termination; everything else is compared by
 *          the engine with what this rank runs.
 */
#ifndef RING_FRAME_H
#define RING_FRAME_H

#include "base/err.h"

#include <stdint.h>

#define RING_FRAME_BYTES   128
#define RING_FRAME_MAGIC   0x474e5242u
#define RING_FRAME_VERSION 1
#define RING_NAME_BYTES    48

/* name, number, text */
#define RING_FRAME_KIND_MAP(X)                                            \
    X(DATA, 1, "data")                                                    \
    X(ABORT, 2, "abort")     /* payload: the reason's text */             \
    X(GOODBYE, 3, "goodbye") /* orderly end; seq: operations completed */ \
    X(PROBE, 4, "probe")     /* I wait, at seq: where are you? */         \
    X(STATE, 5, "state")     /* answer to PROBE: seq and step */          \
    X(HELLO, 6, "hello")     /* first frame of a connection */

typedef enum ring_frame_kind {
#define BD_X(name, num, text) RING_FRAME_##name = (num),
    RING_FRAME_KIND_MAP(BD_X)
#undef BD_X
} ring_frame_kind;

/* What a rank does, at `seq`. */
enum {
    RING_STATE_IDLE = 0,
    RING_STATE_RUNNING = 1,
    RING_STATE_ELSEWHERE = 2 /* runs an operation of the larger group, but another part of it */
};

#define RING_OP_MAP(X)                     \
    X(ALLREDUCE, 1, "allreduce")           \
    X(REDUCE_SCATTER, 2, "reduce_scatter") \
    X(ALL_GATHER, 3, "all_gather")         \
    X(BROADCAST, 4, "broadcast")           \
    X(BARRIER, 5, "barrier")               \
    X(REDUCE, 6, "reduce")                 \
    X(GATHER, 7, "gather")                 \
    X(SCATTER, 8, "scatter")               \
    X(ALL_TO_ALL, 9, "all_to_all")         \
    X(ALL_TO_ALL_V, 10, "all_to_all_v")    \
    X(SEND, 11, "send")                    \
    X(RECV, 12, "recv")

typedef enum ring_op_kind {
#define BD_X(name, num, text) RING_OP_##name = (num),
    RING_OP_MAP(BD_X)
#undef BD_X
} ring_op_kind;

/* "?" for a number that is not in the list. */
const char *ring_op_name(int op);

typedef struct ring_frame {
    uint8_t kind; /* ring_frame_kind */
    uint8_t op;   /* ring_op_kind */
    uint8_t dtype;
    uint8_t reduce;
    int32_t root;
    uint64_t group;
    uint64_t epoch;
    uint64_t seq;
    uint64_t count;
    uint64_t name_hash;
    uint32_t step;
    uint32_t segment;
    uint64_t payload_bytes;
    int32_t rank;
    int32_t world;
    char name[RING_NAME_BYTES]; /* always terminated */
} ring_frame;

void ring_frame_encode(const ring_frame *f, uint8_t out[RING_FRAME_BYTES]);
/* BD_E_CORRUPT says which field; *out untouched then. */
bd_status ring_frame_decode(const uint8_t in[RING_FRAME_BYTES], ring_frame *out,
                            bd_err *err) BD_MUST_CHECK;

#endif
