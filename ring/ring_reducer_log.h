/* ring/ring_reducer_log.h - what a reducer measures: DDP's log record as JSON, and the times of the
 * last step for a timeline.
 *
 * Layer:   ring. Threads: the reducer's. Times are bd_mono_ns; 0: did not happen.
 * Samples: the first 10 steps, then every 100th (ring_reducer_set_log_rate) enter the averages.
 */
#ifndef RING_REDUCER_LOG_H
#define RING_REDUCER_LOG_H

#include "base/json.h"

#include "ring/ring_reducer.h"

/* The record so far as one object: construction, buckets, last sampled step, averages, the last
 * error. Memory that runs out shows in the writer. */
void ring_reducer_log(const ring_reducer *r, bd_json *j);
/* True once for each of the counts 10, 20, 50, 100, 500, 800 and 1000 of sampled steps. */
bool ring_reducer_log_due(ring_reducer *r);
/* Every n-th step after the first ten is sampled; n >= 1. */
void ring_reducer_set_log_rate(ring_reducer *r, int64_t n);

typedef struct ring_step_times {
    int64_t forward_ns;      /* ring_reducer_forward; 0: it was not called */
    int64_t backward_ns;     /* ring_reducer_prepare */
    int64_t finish_ns;       /* ring_reducer_finish began: backward was done */
    int64_t end_ns;          /* ... and ended */
    int64_t first_launch_ns; /* first bucket */
    int64_t last_done_ns;    /* last bucket complete */
} ring_step_times;

typedef struct ring_piece_times {
    size_t bucket, piece; /* the piece-th of the bucket */
    size_t n_bytes;
    int64_t launch_ns, done_ns;         /* the collective; done of a hook is the end of its wait */
    int64_t wait_start_ns, wait_end_ns; /* in ring_reducer_finish */
} ring_piece_times;

/* Of the last synchronised step. A rebuild at its end does not lose the times of its pieces:
 * n_pieces is that step's. */
const ring_step_times *ring_reducer_times(const ring_reducer *r);
const ring_piece_times *ring_reducer_piece_times(const ring_reducer *r, size_t *n_pieces);

#endif
