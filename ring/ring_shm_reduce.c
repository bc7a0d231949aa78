/* Reductions through shared memory. Every rank owns a slice of the vector and combines it from all
 * ranks' memory in rank order, so bits are equal wherever the result goes.
 *
 *   small    the inputs are in the slots (or arenas): everybody combines everything, one exchange
 *   direct   all buffers lie in arenas: read in place, results written to where they belong; two
 *            exchanges, no copy
 *   staged   chunk by chunk: copy the others' slices of my input to my stage; combine my slice from
 *            my input and the others' stages, into all of them; copy the others' slices of the
 *            result out of my stage. Three chunks are under way at a time, one in each phase.
 *
 * Moving a cache line between two cores is what costs (2-core VM: 55 us a MiB to read lines that
 * the other has written, 60 to write lines that it has read; own lines 10 to 20). So results go
 * where the inputs were: a line of a stage moves to its reducer and back, and nothing else moves. 1
 * MiB in two ranks' plain memory: 127 us with results in the reducer's own stage, 80 us so. Larger
 * blocks, smaller stages and prefetching for writing gained nothing; stores around the cache and
 * reading the other process's memory by system call (process_vm_readv) cost 1.1 to 1.7 times as
 * much.
 */
#include "base/assert.h"
#include "base/mem.h"

#include "ring/ring_combine.h"
#include "ring/ring_shm_int.h"

#include <string.h>

#define MAX_WORLD RING_SHM_MOST_RANKS

typedef struct slice {
    size_t at;       /* element of the vector */
    size_t stage_at; /* element of the stage */
    size_t n;
} slice;

typedef struct reduction {
    ring_shm *s;
    const ring_op *op;
    size_t elem_bytes;
    uint8_t *in;        /* of this rank */
    uint8_t *out;       /* where its result goes; NULL: nowhere */
    size_t chunk_elems; /* of the vector, or of each rank's part for reduce_scatter */
    uint64_t n_chunks;
} reduction;

/* The others get results too, unless each rank keeps its own part. */
static bool is_parted(const ring_op *op)
{
    return op->kind == RING_OP_REDUCE_SCATTER;
}

/* Rank r's share of n elements: whole cache lines, so that two ranks never write to one. */
static slice share(const reduction *d, size_t n, int r)
{
    size_t line = BD_CACHE_LINE_BYTES / d->elem_bytes;
    BD_ASSERT(d->s->world > 0);
    size_t per = (n / (size_t)d->s->world / line + 1) * line;
    size_t first = (size_t)r * per < n ? (size_t)r * per : n;
    size_t left = n - first;
    return (slice){.at = first, .stage_at = first, .n = left < per ? left : per};
}

static slice slice_of(const reduction *d, uint64_t chunk, int r)
{
    size_t first = (size_t)chunk * d->chunk_elems;
    size_t left = d->op->n_elems - first;
    size_t n = left < d->chunk_elems ? left : d->chunk_elems;
    if (is_parted(d->op)) {
        return (slice){.at = (size_t)r * d->op->n_elems + first,
                       .stage_at = (size_t)r * d->chunk_elems,
                       .n = n};
    }
    slice s = share(d, n, r);
    s.at += first;
    return s;
}

static bd_status combine(const reduction *d, void *dst, const void *const *src, size_t n,
                         bd_err *err)
{
    return ring_combine(dst, src, d->s->world, n, d->op->dtype, d->op->reduce, err);
}

static uint8_t *input_of(const ring_shm *s, int r)
{
    const ring_shm_head *h = ring_shm_head_of(s, r);
    return h->is_inline ? ring_shm_slot(s, r) : s->peers[r].map + h->in_at;
}

/* Inputs that are read in place must not change before all have read them. */
static bd_status run_small(const reduction *d, bool in_place, bd_err *err)
{
    const void *src[MAX_WORLD];
    _Alignas(64) uint8_t result[RING_SHM_SMALL_BYTES];
    size_t skip = is_parted(d->op) ? (size_t)d->s->rank * d->op->n_elems * d->elem_bytes : 0;
    bd_status rc = BD_OK;
    for (int r = 0; r < d->s->world; r++) {
        src[r] = input_of(d->s, r) + skip;
    }
    if (d->out != NULL) {
        rc = combine(d, in_place ? result : d->out, src, d->op->n_elems, err);
    }
    if (rc != BD_OK || !in_place) {
        return rc;
    }
    rc = ring_shm_leave(d->s, err);
    if (rc == BD_OK && d->out != NULL) {
        memcpy(d->out, result, d->op->n_elems * d->elem_bytes);
    }
    return rc;
}

/* Direct. */

static int n_in_arenas(const ring_shm *s)
{
    int n = 0;
    for (int r = 0; r < s->world; r++) {
        n += ring_shm_head_of(s, r)->in_at != RING_SHM_PRIVATE ? 1 : 0;
    }
    return n;
}

/* Slice by slice. */

/* Fits the first-level cache beside the sources. */
#define BLOCK_BYTES ((size_t)16 << 10)

/* at[r]: where this rank's slice of rank r's vector lies. The result goes to `to`; for allreduce
 * that is at[0], and it is copied to the others while it is in the cache. */
static bd_status combine_slice(const reduction *d, uint8_t *to, uint8_t *const *at, size_t n,
                               bd_err *err)
{
    const void *src[MAX_WORLD];
    bool to_all = d->op->kind == RING_OP_ALLREDUCE;
    size_t all = n * d->elem_bytes;
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < all; i += BLOCK_BYTES) {
        size_t m = all - i < BLOCK_BYTES ? all - i : BLOCK_BYTES;
        for (int r = 0; r < d->s->world; r++) {
            src[r] = at[r] + i;
        }
        rc = combine(d, to + i, src, m / d->elem_bytes, err);
        for (int r = 1; to_all && r < d->s->world; r++) {
            memcpy(at[r] + i, to + i, m);
        }
    }
    return rc;
}

static bd_status run_direct(const reduction *d, bd_err *err)
{
    ring_shm *s = d->s;
    uint8_t *at[MAX_WORLD];
    BD_ASSERT(s->world > 0);
    slice mine = is_parted(d->op)
                     ? (slice){.at = (size_t)s->rank * d->op->n_elems, .n = d->op->n_elems}
                     : share(d, d->op->n_elems, s->rank);
    for (int r = 0; r < s->world; r++) {
        at[r] = input_of(s, r) + mine.at * d->elem_bytes;
    }
    uint8_t *to = is_parted(d->op) ? d->out : at[d->op->kind == RING_OP_REDUCE ? d->op->root : 0];
    bd_status rc = combine_slice(d, to, at, mine.n, err);
    ring_shm_count(s, mine.n * d->elem_bytes * (size_t)(s->world - 1));
    return rc != BD_OK ? rc : ring_shm_leave(s, err);
}

/* Staged. */

static bd_status stage(const reduction *d, uint64_t c, bd_err *err)
{
    ring_shm *s = d->s;
    uint64_t chunk = s->n_moved + c;
    bd_status rc = ring_shm_stage_room(s, chunk, err);
    if (rc != BD_OK) {
        return rc;
    }
    uint8_t *mine = ring_shm_stage(s, s->rank, chunk);
    for (int i = 1; i < s->world; i++) {
        slice p = slice_of(d, c, (s->rank + i) % s->world);
        if (p.n > 0) {
            memcpy(mine + p.stage_at * d->elem_bytes, d->in + p.at * d->elem_bytes,
                   p.n * d->elem_bytes);
            ring_shm_count(s, p.n * d->elem_bytes);
        }
    }
    atomic_store_explicit(&ring_shm_of(s, s->rank)->staged, chunk + 1, memory_order_release);
    ring_shm_signal(s);
    return BD_OK;
}

static bd_status reduce_chunk(const reduction *d, uint64_t c, bd_err *err)
{
    ring_shm *s = d->s;
    uint8_t *at[MAX_WORLD];
    uint64_t chunk = s->n_moved + c;
    slice p = slice_of(d, c, s->rank);
    bd_status rc = ring_shm_wait_all(s, offsetof(ring_shm_rank, staged), chunk + 1, err);
    for (int r = 0; r < s->world; r++) {
        at[r] = r == s->rank ? d->in + p.at * d->elem_bytes
                             : ring_shm_stage(s, r, chunk) + p.stage_at * d->elem_bytes;
    }
    uint8_t *to = is_parted(d->op) ? d->out + (size_t)c * d->chunk_elems * d->elem_bytes
                                   : at[d->op->kind == RING_OP_REDUCE ? d->op->root : 0];
    if (rc == BD_OK && p.n > 0) {
        rc = combine_slice(d, to, at, p.n, err);
    }
    if (rc == BD_OK) {
        atomic_store_explicit(&ring_shm_of(s, s->rank)->reduced, chunk + 1, memory_order_release);
        ring_shm_signal(s);
    }
    return rc;
}

/* The others have put their slices of the result where they found mine. */
static bd_status collect(const reduction *d, uint64_t c, bd_err *err)
{
    ring_shm *s = d->s;
    uint64_t chunk = s->n_moved + c;
    bd_status rc = ring_shm_wait_all(s, offsetof(ring_shm_rank, reduced), chunk + 1, err);
    for (int i = 1; rc == BD_OK && d->out != NULL && i < s->world; i++) {
        slice p = slice_of(d, c, (s->rank + i) % s->world);
        uint8_t *from = ring_shm_stage(s, s->rank, chunk) + p.stage_at * d->elem_bytes;
        uint8_t *to = d->out + p.at * d->elem_bytes;
        if (p.n > 0) {
            memcpy(to, from, p.n * d->elem_bytes);
        }
    }
    return rc;
}

/* One chunk is staged, the one before it combined, the one before that collected: what a rank waits
 * for was mostly done while it did something else. */
static bd_status run_staged(reduction *d, bd_err *err)
{
    bd_status rc = BD_OK;
    bool parted = is_parted(d->op);
    size_t bytes = parted ? RING_SHM_STAGE_BYTES / (size_t)d->s->world : RING_SHM_CHUNK_BYTES;
    size_t line = BD_CACHE_LINE_BYTES / d->elem_bytes;
    d->chunk_elems = bytes / d->elem_bytes / line * line;
    d->n_chunks = (d->op->n_elems + d->chunk_elems - 1) / d->chunk_elems;
    for (uint64_t c = 0; rc == BD_OK && c < d->n_chunks + 2; c++) {
        rc = c < d->n_chunks ? stage(d, c, err) : BD_OK;
        if (rc == BD_OK && c >= 1 && c <= d->n_chunks) {
            rc = reduce_chunk(d, c - 1, err);
        }
        if (rc == BD_OK && c >= 2 && !parted) {
            rc = collect(d, c - 2, err);
        }
    }
    d->s->n_moved += d->n_chunks;
    return rc;
}

bd_status ring_shm_run_reduce(ring_shm *s, const ring_op *op, bd_err *err)
{
    bool gets_result = op->kind != RING_OP_REDUCE || op->root == s->rank;
    reduction d = {.s = s,
                   .op = op,
                   .elem_bytes = num_dtype_bytes((int)op->dtype),
                   .in = op->in,
                   .out = gets_result ? op->out : NULL};
    int n_direct = n_in_arenas(s);
    if (n_direct == s->world) {
        return run_direct(&d, err);
    }
    return ring_shm_head_of(s, s->rank)->in_bytes <= RING_SHM_SMALL_BYTES
               ? run_small(&d, n_direct > 0, err)
               : run_staged(&d, err);
}
