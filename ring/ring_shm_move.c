/* Moving data without combining it: every rank takes its regions out of every other rank's input,
 * which is in its slot (small), in its arena (read in place), or passes through its stages. */
#include "ring/ring_shm_int.h"

#include <string.h>

typedef struct region {
    size_t at; /* bytes */
    size_t n_bytes;
} region;

static size_t elems_bytes(const ring_op *op, size_t n)
{
    return n * num_dtype_bytes((int)op->dtype);
}

size_t ring_shm_in_bytes(const ring_shm *s, const ring_op *op)
{
    size_t one = elems_bytes(op, op->n_elems);
    size_t n = 0;
    switch (op->kind) {
    case RING_OP_ALLREDUCE:
    case RING_OP_REDUCE:
    case RING_OP_ALL_GATHER:
    case RING_OP_GATHER:
        return one;
    case RING_OP_BROADCAST:
        return op->root == s->rank ? one : 0;
    case RING_OP_SCATTER:
        return op->root == s->rank ? one * (size_t)s->world : 0;
    case RING_OP_REDUCE_SCATTER:
    case RING_OP_ALL_TO_ALL:
        return one * (size_t)s->world;
    case RING_OP_ALL_TO_ALL_V:
        for (int r = 0; r < s->world; r++) {
            n += elems_bytes(op, op->send_counts[r]);
        }
        return n;
    case RING_OP_BARRIER:
    case RING_OP_SEND:
    case RING_OP_RECV:
        break;
    }
    return 0;
}

/* What this rank takes from the input of rank `from`. */
static region source(const ring_shm *s, const ring_op *op, int from)
{
    size_t one = elems_bytes(op, op->n_elems);
    size_t me = (size_t)s->rank;
    region r = {0, 0};
    switch (op->kind) {
    case RING_OP_ALL_GATHER:
        return (region){0, one};
    case RING_OP_BROADCAST:
        return (region){0, from == op->root && from != s->rank ? one : 0};
    case RING_OP_GATHER:
        return (region){0, op->root == s->rank ? one : 0};
    case RING_OP_SCATTER:
        return (region){me * one, from == op->root ? one : 0};
    case RING_OP_ALL_TO_ALL:
        return (region){me * one, one};
    default: /* all_to_all_v */
        for (int k = 0; k < s->rank; k++) {
            r.at += (size_t)ring_shm_table(s, from)[k];
        }
        r.n_bytes = (size_t)ring_shm_table(s, from)[s->rank];
        return r;
    }
}

/* Where it goes in the own output. */
static size_t target(const ring_op *op, int from)
{
    size_t at = 0;
    if (op->kind == RING_OP_BROADCAST || op->kind == RING_OP_SCATTER) {
        return 0;
    }
    if (op->kind != RING_OP_ALL_TO_ALL_V) {
        return (size_t)from * elems_bytes(op, op->n_elems);
    }
    for (int k = 0; k < from; k++) {
        at += elems_bytes(op, op->recv_counts[k]);
    }
    return at;
}

static bd_status check_counts(const ring_shm *s, const ring_op *op, bd_err *err)
{
    for (int r = 0; op->kind == RING_OP_ALL_TO_ALL_V && r < s->world; r++) {
        size_t want = elems_bytes(op, op->recv_counts[r]);
        size_t got = (size_t)ring_shm_table(s, r)[s->rank];
        if (want != got) {
            return bd_err_set(err, BD_E_MISMATCH,
                              "rank %d sends %zu bytes to rank %d, which expects %zu",
                              ring_engine_label(&s->comm->engine, r), got,
                              ring_engine_label(&s->comm->engine, s->rank), want);
        }
    }
    return BD_OK;
}

/* Copies what of [at, at + n) in rank from's input is ours. */
static void take(const ring_shm *s, const ring_op *op, int from, const uint8_t *src, size_t at,
                 size_t n)
{
    region r = source(s, op, from);
    size_t first = r.at > at ? r.at : at;
    size_t end = r.at + r.n_bytes < at + n ? r.at + r.n_bytes : at + n;
    if (first >= end) {
        return;
    }
    uint8_t *dst = (uint8_t *)op->out + target(op, from) + (first - r.at);
    src += first - at;
    if (dst != src) {
        memmove(dst, src, end - first);
    }
}

static bool is_staged(const ring_shm *s, int r)
{
    const ring_shm_head *h = ring_shm_head_of(s, r);
    return !h->is_inline && h->in_at == RING_SHM_PRIVATE;
}

static bd_status take_staged(ring_shm *s, const ring_op *op, uint64_t c, bd_err *err)
{
    uint64_t chunk = s->n_moved + c;
    size_t at = (size_t)c * RING_SHM_STAGE_BYTES;
    bd_status rc = ring_shm_stage_room(s, chunk, err);
    if (rc != BD_OK) {
        return rc;
    }
    size_t all = ring_shm_in_bytes(s, op);
    size_t n = at >= all ? 0 : all - at < RING_SHM_STAGE_BYTES ? all - at : RING_SHM_STAGE_BYTES;
    if (is_staged(s, s->rank) && n > 0) {
        memcpy(ring_shm_stage(s, s->rank, chunk), (const uint8_t *)op->in + at, n);
        ring_shm_count(s, n);
    }
    atomic_store_explicit(&ring_shm_of(s, s->rank)->staged, chunk + 1, memory_order_release);
    ring_shm_signal(s);
    rc = ring_shm_wait_all(s, offsetof(ring_shm_rank, staged), chunk + 1, err);
    for (int i = 1; rc == BD_OK && i < s->world; i++) {
        int r = (s->rank + i) % s->world;
        if (is_staged(s, r)) {
            take(s, op, r, ring_shm_stage(s, r, chunk), at, RING_SHM_STAGE_BYTES);
        }
    }
    return rc;
}

bd_status ring_shm_run_move(ring_shm *s, const ring_op *op, bd_err *err)
{
    bool any_direct = false;
    size_t staged_bytes = 0;
    bd_status rc = check_counts(s, op, err);
    if (rc != BD_OK) {
        return rc;
    }
    size_t own = ring_shm_in_bytes(s, op);
    if (own > 0 && op->kind != RING_OP_BROADCAST) {
        take(s, op, s->rank, op->in, 0, own);
    }
    for (int i = 1; i < s->world; i++) {
        int r = (s->rank + i) % s->world;
        const ring_shm_head *h = ring_shm_head_of(s, r);
        const uint8_t *src = h->is_inline ? ring_shm_slot(s, r) : s->peers[r].map + h->in_at;
        if (!is_staged(s, r)) {
            take(s, op, r, src, 0, (size_t)h->in_bytes);
        }
    }
    for (int r = 0; r < s->world; r++) {
        const ring_shm_head *h = ring_shm_head_of(s, r);
        any_direct = any_direct || (!h->is_inline && h->in_at != RING_SHM_PRIVATE);
        if (is_staged(s, r) && h->in_bytes > staged_bytes) {
            staged_bytes = (size_t)h->in_bytes;
        }
    }
    uint64_t n_chunks = (staged_bytes + RING_SHM_STAGE_BYTES - 1) / RING_SHM_STAGE_BYTES;
    for (uint64_t c = 0; rc == BD_OK && c < n_chunks; c++) {
        rc = take_staged(s, op, c, err);
    }
    s->n_moved += n_chunks;
    return rc == BD_OK && any_direct ? ring_shm_leave(s, err) : rc;
}
