/* ps_server/ps_bound.h - bounded consistency: how far each rank's pushes are applied here.
 *
 * Layer:     ps_server (pure core: no clock, no I/O, no threads). Threads: one caller at a time
 * (the shard's core lock). Rule:      Lookup(t) of a job with bound n carries after_step = t - 1 -
 * n and is answered when the pushes of every rank through that step are applied. A rank pushes
 * every step to every server, in parts that say how many they are; its step t + 1 begins when t is
 * complete. Dead rank: a rank without progress for the shard's bound_wait while somebody waits for
 * it: the waiters are answered E_ABORTED, naming it. A slow rank is waited for. Durable:   a rank's
 * progress ("rank/<r>") is written with the record that makes it. Format, little-endian: u64 job
 * epoch, u64 last complete step, u32 parts applied of the next one, u32 how many it has (0: none
 * has come).
 */
#ifndef PS_BOUND_H
#define PS_BOUND_H

#include "base/err.h"

#include "ps_server/ps_types.h"

#define PS_BOUND_BYTES 24u

typedef struct ps_rank_at {
    uint64_t done_step;       /* all of its parts are applied, and those of the steps before */
    uint32_t n_have, n_parts; /* of the step after it; n_parts 0: nothing has come */
    int64_t moved_ms;         /* time of its last part here, or of the job's start */
} ps_rank_at;

typedef struct ps_bound {
    uint32_t world;    /* 0: the job is not bounded */
    ps_rank_at *ranks; /* owned [world] */
} ps_bound;

/* Every rank has completed last_step. BD_E_NOMEM: *b unchanged. */
bd_status ps_bound_init(ps_bound *b, uint32_t world, uint64_t last_step,
                        int64_t now_ms) BD_MUST_CHECK;
void ps_bound_deinit(ps_bound *b);

/* May this part (not seen before) be applied now? BD_E_INVALID, BD_E_MISMATCH, BD_E_STATE. */
bd_status ps_bound_check(const ps_bound *b, const ps_part *p, bd_err *err) BD_MUST_CHECK;
/* The rank's fact after the part is applied. */
void ps_bound_pack_next(const ps_bound *b, const ps_part *p, uint8_t out[PS_BOUND_BYTES]);
void ps_bound_pack(const ps_bound *b, uint32_t rank, uint64_t job_epoch,
                   uint8_t out[PS_BOUND_BYTES]);
/* Reads a fact of this job epoch back; one of another epoch is left alone. BD_E_CORRUPT. */
bd_status ps_bound_load(ps_bound *b, uint32_t rank, uint64_t job_epoch, const uint8_t *bytes,
                        size_t n_bytes, bd_err *err) BD_MUST_CHECK;
void ps_bound_apply(ps_bound *b, const ps_part *p, int64_t now_ms);

/* The step that every rank has completed. */
uint64_t ps_bound_low(const ps_bound *b);
/* A rank that holds `step` up and has not moved since; world: none. */
uint32_t ps_bound_stuck(const ps_bound *b, uint64_t step, int64_t since_ms);

#endif
