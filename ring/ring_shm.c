/* The shm backend's life, and how an operation begins: headers, agreement, choice. */
#include "base/assert.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_engine_text.h"
#include "ring/ring_shm_int.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SPIN_NS 50000

size_t ring_shm_slots_at(void)
{
    return (sizeof(ring_shm_rank) + 4095) / 4096 * 4096;
}

void ring_shm_count(ring_shm *s, size_t n_bytes)
{
    (void)atomic_fetch_add_explicit(&s->comm->engine.bytes_sent, n_bytes, memory_order_relaxed);
}

bd_status ring_shm_leave(ring_shm *s, bd_err *err)
{
    atomic_store_explicit(&ring_shm_of(s, s->rank)->left, s->n_ops, memory_order_release);
    ring_shm_signal(s);
    return ring_shm_wait_all(s, offsetof(ring_shm_rank, left), s->n_ops, err);
}

/* A rank that has staged chunk k is done with chunk k - 2 of everybody (it combines one chunk
 * late); its results in my stage I have collected before. */
bd_status ring_shm_stage_room(ring_shm *s, uint64_t chunk, bd_err *err)
{
    uint64_t want = chunk + 2 > RING_SHM_N_STAGES ? chunk + 3 - RING_SHM_N_STAGES : 0;
    return ring_shm_wait_all(s, offsetof(ring_shm_rank, staged), want, err);
}

/* Agreement. */

static uint64_t digest_of(const ring_op *op)
{
    uint64_t h = bd_mix64(op->name_hash ^ bd_mix64(op->n_elems));
    uint64_t small = (uint64_t)op->kind | (uint64_t)op->dtype << 8 | (uint64_t)op->reduce << 16 |
                     (uint64_t)(uint32_t)op->root << 32;
    return bd_mix64(h ^ small);
}

static void fill_head(ring_shm *s, const ring_op *op)
{
    ring_shm_head *h = ring_shm_head_of(s, s->rank);
    size_t n = op->agree_only ? 0 : ring_shm_in_bytes(s, op);
    h->digest = digest_of(op);
    h->in_bytes = n;
    h->in_at = n <= RING_SHM_TINY_BYTES ? RING_SHM_PRIVATE : ring_shm_at(s, op->in, n);
    h->is_inline = h->in_at == RING_SHM_PRIVATE && n <= RING_SHM_SMALL_BYTES;
    h->op = (uint8_t)op->kind;
    h->dtype = (uint8_t)op->dtype;
    h->reduce = (uint8_t)op->reduce;
    h->root = op->root;
    h->count = op->n_elems;
    h->name_hash = op->name_hash;
    memcpy(h->name, op->name, sizeof h->name);
    if (h->is_inline && n > 0) {
        memcpy(ring_shm_slot(s, s->rank), op->in, n);
        ring_shm_count(s, n);
    }
    bool has_table = op->kind == RING_OP_ALL_TO_ALL_V && !op->agree_only;
    for (int r = 0; has_table && r < s->world; r++) {
        ring_shm_table(s, s->rank)[r] = op->send_counts[r] * num_dtype_bytes((int)op->dtype);
    }
    atomic_store_explicit(&h->seq, s->n_ops, memory_order_release);
    ring_shm_signal(s);
}

static bd_status mismatch(ring_shm *s, int peer, bd_err *err)
{
    const ring_shm_head *h = ring_shm_head_of(s, peer);
    ring_frame f = {.op = h->op,
                    .dtype = h->dtype,
                    .reduce = h->reduce,
                    .root = h->root,
                    .count = h->count,
                    .seq = s->n_ops - 1};
    memcpy(f.name, h->name, sizeof f.name);
    f.name[sizeof f.name - 1] = '\0';
    ring_mismatch_text(&s->comm->engine, peer, &f, err);
    return ring_shm_fail(s, s->n_ops, err);
}

static bd_status agree(ring_shm *s, const ring_op *op, bd_err *err)
{
    size_t flag = offsetof(ring_shm_rank, head) + (s->n_ops & 1) * sizeof(ring_shm_head) +
                  offsetof(ring_shm_head, seq);
    fill_head(s, op);
    bd_status rc = ring_shm_wait_all(s, flag, s->n_ops, err);
    uint64_t own = ring_shm_head_of(s, s->rank)->digest;
    for (int r = 0; rc == BD_OK && r < s->world; r++) {
        if (ring_shm_head_of(s, r)->digest != own) {
            rc = mismatch(s, r, err);
        }
    }
    return rc;
}

static bd_status run_kind(ring_shm *s, const ring_op *op, bd_err *err)
{
    switch (op->kind) {
    case RING_OP_ALLREDUCE:
    case RING_OP_REDUCE_SCATTER:
    case RING_OP_REDUCE:
        return ring_shm_run_reduce(s, op, err);
    case RING_OP_BARRIER:
        return BD_OK;
    default:
        return ring_shm_run_move(s, op, err);
    }
}

static bd_status shm_run(ring_backend *b, const ring_op *op, bd_err *err)
{
    ring_shm *s = (ring_shm *)b;
    ring_engine *e = &s->comm->engine;
    bd_status rc = ring_shm_check(s, s->n_ops + 1, err);
    if (rc != BD_OK) {
        return rc;
    }
    s->n_ops++;
    atomic_store_explicit(&s->n_started, s->n_ops, memory_order_relaxed);
    e->op = op;
    rc = agree(s, op, err);
    if (rc == BD_OK && !op->agree_only) {
        rc = run_kind(s, op, err);
        rc = rc == BD_OK ? rc : ring_shm_fail(s, s->n_ops, err); /* a first error stays the first */
    }
    e->op = NULL;
    if (rc == BD_OK) {
        atomic_store_explicit(&ring_shm_of(s, s->rank)->left, s->n_ops, memory_order_release);
        atomic_store_explicit(&s->n_done, s->n_ops, memory_order_relaxed);
        e->seq++;
    } else {
        ring_comm_fail(s->wire, err);
    }
    return rc;
}

static void shm_fail(ring_backend *b, const bd_err *why)
{
    ring_shm *s = (ring_shm *)b;
    bd_err err = *why;
    (void)ring_shm_fail(s, atomic_load_explicit(&s->n_done, memory_order_relaxed) + 1, &err);
    ring_comm_fail(s->wire, &err);
}

/* On the wire's thread. A lost rank (0) is for the operation that runs to judge: it knows whether
 * it still needs it. */
static void on_wire_failed(void *user, const bd_err *why, uint64_t at)
{
    ring_shm *s = user;
    bd_err err = *why;
    at = at != 0 ? at : atomic_load_explicit(&s->n_started, memory_order_relaxed) + 1;
    (void)ring_shm_fail(s, at, &err);
}

/* Life. */

static void shm_free(ring_shm *s)
{
    if (s->wire != NULL) { /* its own end is no failure to tell */
        ring_comm_unwatch(s->wire);
        ring_free(s->wire);
    }
    for (int r = 0; s->peers != NULL && r < s->world; r++) {
        if (s->peers[r].socket >= 0) {
            (void)close(s->peers[r].socket);
        }
        if (s->peers[r].map != NULL) {
            (void)munmap(s->peers[r].map, s->peers[r].map_bytes);
        }
    }
    if (s->arena_fd >= 0) {
        (void)close(s->arena_fd);
    }
    ring_shm_heap_deinit(s);
    bd_free(s->peers);
    bd_free(s);
}

static void shm_stop(ring_backend *b)
{
    ring_shm *s = (ring_shm *)b;
    atomic_store_explicit(&ring_shm_of(s, s->rank)->gone, s->comm->engine.seq + 1,
                          memory_order_release);
    shm_free(s);
}

void ring_shm_test_kill(ring_comm *c)
{
    ring_shm *s = (ring_shm *)(void *)c->backend;
    for (int r = 0; r < s->world; r++) {
        if (r != s->rank) {
            (void)shutdown(s->peers[r].socket, SHUT_RDWR);
        }
    }
}

static int64_t spin_for(int world)
{
    return world <= bd_cpus() ? SPIN_NS : 0;
}

static bd_status attach(ring_comm *c, bd_kv *kv, const ring_options *opt, bd_err *err)
{
    int world = ring_world(c);
    ring_shm *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring in shared memory");
    }
    s->backend = (ring_backend){.stop = shm_stop,
                                .run = shm_run,
                                .fail = shm_fail,
                                .alloc = ring_shm_alloc,
                                .release = ring_shm_release};
    s->comm = c;
    s->rank = ring_rank(c);
    s->world = world;
    s->arena_fd = -1;
    s->spin_ns = spin_for(world);
    (void)pthread_mutex_init(&s->heap.lock, NULL);
    s->peers = bd_calloc((size_t)world, sizeof *s->peers);
    for (int r = 0; s->peers != NULL && r < world; r++) {
        s->peers[r].socket = -1;
    }
    bd_status rc = s->peers == NULL ? bd_err_set(err, BD_E_NOMEM, "ring in shared memory") : BD_OK;
    rc = rc != BD_OK ? rc : ring_shm_meet(s, kv, opt, err);
    rc = rc != BD_OK ? rc : ring_shm_heap_init(s, err);
    if (rc != BD_OK) {
        shm_free(s);
        return rc;
    }
    ring_comm_set_outer(s->wire, &s->n_started, &s->n_done);
    ring_comm_watch(s->wire, on_wire_failed, s);
    s->backend.p2p = s->wire;
    c->backend = &s->backend;
    return BD_OK;
}

bd_status ring_shm_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                       bd_err *err)
{
    ring_comm *c = NULL;
    if (world > RING_SHM_MOST_RANKS) {
        return bd_err_set(err, BD_E_INVALID, "ring in shared memory: %d ranks, the most are %d",
                          world, RING_SHM_MOST_RANKS);
    }
    bd_status rc = ring_comm_new(rank, world, opt, &c, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (world > 1) {
        rc = attach(c, kv, opt, err);
    }
    if (rc != BD_OK) {
        ring_free(c);
        (void)bd_err_wrap(err, "ring rank %d", rank);
        return rc; /* err may be NULL */
    }
    *out = c;
    return BD_OK;
}
