#include "ps_server/ps_bound.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"

#include <inttypes.h>

bd_status ps_bound_init(ps_bound *b, uint32_t world, uint64_t last_step, int64_t now_ms)
{
    ps_rank_at *ranks = bd_calloc(world, sizeof *ranks);
    if (ranks == NULL) {
        return BD_E_NOMEM;
    }
    for (uint32_t r = 0; r < world; r++) {
        ranks[r] = (ps_rank_at){.done_step = last_step, .moved_ms = now_ms};
    }
    bd_free(b->ranks);
    *b = (ps_bound){world, ranks};
    return BD_OK;
}

void ps_bound_deinit(ps_bound *b)
{
    bd_free(b->ranks);
    *b = (ps_bound){0};
}

bd_status ps_bound_check(const ps_bound *b, const ps_part *p, bd_err *err)
{
    if (p->rank >= b->world) {
        return bd_err_set(err, BD_E_INVALID, "rank %u is outside the job's world of %u", p->rank,
                          b->world);
    }
    if (p->n_parts == 0 || p->part >= p->n_parts) {
        return bd_err_set(err, BD_E_INVALID, "rank %u: part %u of %u", p->rank, p->part,
                          p->n_parts);
    }
    const ps_rank_at *r = &b->ranks[p->rank];
    if (p->step != r->done_step + 1) {
        return bd_err_set(err, BD_E_STATE,
                          "rank %u pushes step %" PRIu64 ", but its last complete step is %" PRIu64
                          ": a bounded job pushes every step to every server, in order",
                          p->rank, p->step, r->done_step);
    }
    if (r->n_parts != 0 && r->n_parts != p->n_parts) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "step %" PRIu64 " rank %u: this part says %u parts, an earlier one %u",
                          p->step, p->rank, p->n_parts, r->n_parts);
    }
    return BD_OK;
}

static ps_rank_at after(const ps_rank_at *r, const ps_part *p)
{
    ps_rank_at next = *r;
    next.n_parts = p->n_parts;
    if (++next.n_have == p->n_parts) {
        next.done_step = p->step;
        next.n_have = 0;
        next.n_parts = 0;
    }
    return next;
}

static void pack(const ps_rank_at *r, uint64_t job_epoch, uint8_t out[PS_BOUND_BYTES])
{
    ps_put_le64(out, job_epoch);
    ps_put_le64(out + 8, r->done_step);
    ps_put_le32(out + 16, r->n_have);
    ps_put_le32(out + 20, r->n_parts);
}

void ps_bound_pack_next(const ps_bound *b, const ps_part *p, uint8_t out[PS_BOUND_BYTES])
{
    ps_rank_at next = after(&b->ranks[p->rank], p);
    pack(&next, p->job_epoch, out);
}

void ps_bound_pack(const ps_bound *b, uint32_t rank, uint64_t job_epoch,
                   uint8_t out[PS_BOUND_BYTES])
{
    pack(&b->ranks[rank], job_epoch, out);
}

bd_status ps_bound_load(ps_bound *b, uint32_t rank, uint64_t job_epoch, const uint8_t *bytes,
                        size_t n_bytes, bd_err *err)
{
    if (n_bytes != PS_BOUND_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "the fact of rank %u has %zu bytes", rank, n_bytes);
    }
    if (rank < b->world && ps_get_le64(bytes) == job_epoch) {
        b->ranks[rank].done_step = ps_get_le64(bytes + 8);
        b->ranks[rank].n_have = ps_get_le32(bytes + 16);
        b->ranks[rank].n_parts = ps_get_le32(bytes + 20);
    }
    return BD_OK;
}

void ps_bound_apply(ps_bound *b, const ps_part *p, int64_t now_ms)
{
    b->ranks[p->rank] = after(&b->ranks[p->rank], p);
    b->ranks[p->rank].moved_ms = now_ms;
}

uint64_t ps_bound_low(const ps_bound *b)
{
    uint64_t low = UINT64_MAX;
    for (uint32_t r = 0; r < b->world; r++) {
        low = b->ranks[r].done_step < low ? b->ranks[r].done_step : low;
    }
    return low;
}

uint32_t ps_bound_stuck(const ps_bound *b, uint64_t step, int64_t since_ms)
{
    for (uint32_t r = 0; r < b->world; r++) {
        if (b->ranks[r].done_step < step && b->ranks[r].moved_ms <= since_ms) {
            return r;
        }
    }
    return b->world;
}
