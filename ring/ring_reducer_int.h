/* ring/ring_reducer_int.h - the inside of the reducer, shared by its files.
 *
 *   ring_reducer.c          life, prepare, ready, unused, finish
 *   ring_reducer_bucket.c   bucket memory, gradients in and out, launching
 *   ring_reducer_sum.c      how one bucket is summed: plain, in rank order, narrowed, by a hook
 *   ring_reducer_agree.c    manifest check, order broadcast, who is to blame
 *   ring_reducer_layout.c   the buckets as text
 *   ring_reducer_buffers.c  broadcast of buffers before a forward
 *   ring_reducer_join.c     uneven inputs
 *   ring_reducer_log.c      log record, times
 *
 * Layer: ring. Threads: all of it on the thread that runs backward.
 */
#ifndef RING_REDUCER_INT_H
#define RING_REDUCER_INT_H

#include "ring/ring_bucket.h"
#include "ring/ring_reducer.h"
#include "ring/ring_reducer_log.h"

typedef struct ring_bucket {
    num_dtype dtype;
    size_t n_elems;
    uint8_t *data;   /* owned, ring_alloc */
    uint16_t *wire;  /* owned, ring_alloc: what travels of a narrowed bucket, or NULL */
    bool is_idle;    /* static graph: no rank uses its parameters; never sent */
    size_t cursor;   /* in plan.params: all before it are settled */
    size_t n_padded; /* room in data and wire: a multiple of world for sums in rank order */
    void *parts;     /* owned, ring_alloc: everybody's part of what this rank sums, or NULL */
    float *acc;      /* owned: f32 sums of a 16-bit part, or NULL */
} ring_bucket;

/* What travels at once: a bucket, or a part of one that is much larger than its limit, which leaves
 * as soon as its own elements are final. */
typedef struct ring_piece {
    size_t bucket, idx; /* the idx-th of its bucket */
    bool is_last;       /* of its bucket */
    size_t first_elem, n_elems;
    size_t n_padded;  /* as of the bucket; first_elem is a multiple of world */
    bool is_open;     /* launched and not yet waited for */
    ring_work *work;  /* of the sum; deterministic: of its first, then of its second half */
    void *hook_state; /* the hook's, while is_open */
} ring_piece;

typedef struct ring_slot {
    size_t bucket;
    size_t offset_elems;
} ring_slot;

typedef struct ring_reducer_stats {
    int64_t n_steps, n_sampled, rate;
    size_t n_emitted;                                    /* of the counts at which the log is due */
    double forward_ns, backward_ns, comm_ns, overlap_ns; /* sums over sampled steps */
    int64_t last[4];                                     /* the same of the last sampled step */
    size_t unused_bytes;
    uint64_t used_hash;    /* of the last step */
    bool used_changed;     /* some step used other parameters than the one before */
    size_t *initial_bytes; /* owned [n_initial]: buckets at the start */
    size_t n_initial;
    bool has_join;
    bd_err error; /* the last one */
} ring_reducer_stats;

struct ring_reducer {
    ring_comm *comm;    /* borrowed */
    ring_param *params; /* owned copies; names and grads are borrowed, or views of the buckets */
    size_t n_params;
    ring_reducer_options opt;   /* resolved */
    num_dtype wire_dtype;       /* of narrowed buckets; 0: none */
    ring_hook hook;             /* name NULL: none */
    const ring_buffer *buffers; /* owned copies */
    size_t n_buffers;
    uint8_t *buffer_bytes; /* owned [n_buffer_bytes]: all of them in one piece */
    size_t n_buffer_bytes;

    ring_bucket_plan plan;
    ring_bucket *buckets; /* owned, plan.n_buckets */
    ring_piece *pieces;   /* owned, n_pieces: of all buckets, in launch order */
    size_t n_pieces;
    ring_slot *slots; /* owned, by parameter */
    size_t *offsets;  /* owned [n_params], in elements, beside plan.params */
    bool has_rebuilt;

    /* one backward */
    bool in_forward; /* ring_reducer_forward without its finish yet */
    bool forward_sync;
    bool in_backward;
    bool is_sync;
    bool has_told;       /* joined ranks know is_sync */
    float step_scale;    /* scale for the ranks that take part */
    bool *is_settled;    /* ready, or declared unused */
    size_t *n_final;     /* elements of a gradient that is not ready but final so far */
    bool *is_unused;     /* declared so */
    bool *is_missing;    /* neither, and that is an error */
    bool *is_saved;      /* the view's old contents are in saved */
    void **saved;        /* owned blocks, by parameter; made at first need */
    size_t *ready_order; /* of the last synchronised backward */
    size_t n_ready_order;
    size_t next_piece; /* the next to launch */
    uint8_t *flags;    /* owned, flags_bytes: used bits, missing bits, a byte for faults */
    size_t flags_bytes;
    bd_err fault; /* the first wrong call of this backward; code BD_OK: none */

    /* static graph: uses in the first step, and those still to come in this one */
    bool is_recorded;
    uint32_t *n_uses, *n_left;

    /* across backwards */
    bool has_stepped;     /* hooks and buffers can no longer be set */
    bool *is_used;        /* locally, since the last synchronised finish */
    bool *is_used_global; /* result of the last synchronised finish */
    bool has_joined_ranks;
    int n_active;  /* ranks with data in this step */
    int last_rank; /* the highest of them */

    ring_step_times times;
    ring_piece_times *piece_times; /* owned [cap_piece_times] */
    size_t n_piece_times, cap_piece_times;
    int64_t wait_ns;
    int64_t comm_ns;
    ring_reducer_stats stats;
};

/* ring_reducer.c */
/* Keeps e as this backward's fault (the first one stays) and as the log's error; copies it to err
 * and returns its code. */
bd_status ring_reducer_keep(ring_reducer *r, const bd_err *e, bd_err *err);
bool ring_reducer_is_view(const ring_reducer *r, size_t i);

/* ring_reducer_bucket.c */
/* Buckets and slots for r->plan; the old ones are freed, views move. On failure r is unchanged.
 * plan: moved. */
bd_status ring_reducer_adopt(ring_reducer *r, ring_bucket_plan *plan, bd_err *err) BD_MUST_CHECK;
/* Cuts the buckets into pieces anew: there is a hook now. Nothing is launched. */
bd_status ring_reducer_cut(ring_reducer *r, bd_err *err) BD_MUST_CHECK;
void ring_reducer_drop_buckets(ring_reducer *r);
void ring_reducer_reset_step(ring_reducer *r);
/* Parameter i's contribution into its bucket; launches what is complete and next in order. */
bd_status ring_reducer_settle(ring_reducer *r, size_t i, bd_err *err) BD_MUST_CHECK;
/* The same for its first n_elems elements. */
bd_status ring_reducer_settle_upto(ring_reducer *r, size_t i, size_t n_elems,
                                   bd_err *err) BD_MUST_CHECK;
/* Settles what is left, waits for all, and puts the sums into the gradients. Shared by finish and
 * the shadow step; is_missing and fault are set. */
bd_status ring_reducer_complete(ring_reducer *r, bd_err *err) BD_MUST_CHECK;
static inline void *ring_reducer_at(const ring_reducer *r, size_t i)
{
    const ring_slot *s = &r->slots[i];
    return r->buckets[s->bucket].data + s->offset_elems * num_dtype_bytes((int)r->params[i].dtype);
}

/* ring_reducer_sum.c */
/* The memory of a bucket (n_elems and dtype are set); false: out of memory (deinit frees). */
bool ring_sum_init(const ring_reducer *r, ring_bucket *b) BD_MUST_CHECK;
void ring_sum_deinit(const ring_reducer *r, ring_bucket *b);
/* Whether the bucket holds gradients as they are, and its sum scales them. */
bool ring_sum_scales(const ring_reducer *r, const ring_bucket *b);
bd_status ring_sum_start(ring_reducer *r, ring_piece *p, bd_err *err) BD_MUST_CHECK;
/* Deterministic: between all starts and the first wait, for each piece in order. */
bd_status ring_sum_turn(ring_reducer *r, ring_piece *p, bd_err *err) BD_MUST_CHECK;
/* Waits and leaves the sum in data; *done_ns: when it was complete. No-op when the
 * piece is not open. */
bd_status ring_sum_wait(ring_reducer *r, ring_piece *p, int64_t *done_ns,
                        bd_err *err) BD_MUST_CHECK;

/* ring_reducer_agree.c */
bd_status ring_reducer_check_manifest(ring_reducer *r, bd_err *err) BD_MUST_CHECK;
/* The plan for this order of parameters (r->n_params, each once). */
bd_status ring_reducer_plan(const ring_reducer *r, const size_t *order, ring_bucket_plan *out,
                            bd_err *err) BD_MUST_CHECK;
/* Rank 0's ready order for everybody. */
bd_status ring_reducer_rebuild(ring_reducer *r, bd_err *err) BD_MUST_CHECK;
/* The error of an undeclared unused parameter, the same on all ranks. Collective. */
bd_status ring_reducer_report_missing(ring_reducer *r, bd_err *err);
/* The error of a rank whose backward failed, the same on all ranks. Collective. */
bd_status ring_reducer_report_fault(ring_reducer *r, bd_err *err);
/* BD_OK, or the same error on all ranks: mine is this rank's complaint (BD_OK for none). The lowest
 * rank's wins. Collective. */
bd_status ring_reducer_agree(ring_reducer *r, const bd_err *mine, bd_err *err) BD_MUST_CHECK;

/* ring_reducer_buffers.c */
bd_status ring_reducer_send_buffers(ring_reducer *r, bd_err *err) BD_MUST_CHECK;

/* ring_reducer_join.c */
/* In forward or prepare: tells joined ranks whether this step synchronises. */
bd_status ring_reducer_tell_joined(ring_reducer *r, bool sync, bd_err *err) BD_MUST_CHECK;

/* ring_reducer_log.c */
void ring_reducer_log_step(ring_reducer *r);

static inline bool ring_bit(const uint8_t *bits, size_t i)
{
    return (bits[i / 8] >> (i % 8) & 1) != 0;
}

static inline void ring_set_bit(uint8_t *bits, size_t i)
{
    bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
}

#endif
