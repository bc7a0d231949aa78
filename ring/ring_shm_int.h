/* ring/ring_shm_int.h - the shm backend's parts: ranks of one host through shared memory.
 *
 *   ring_shm_meet.c   every rank's memory to every rank, by unix sockets
 *   ring_shm_arena.c  ring_alloc: blocks of the own memory
 *   ring_shm_wait.c   flags, spinning and sleeping, lost ranks, time limits, failure
 *   ring_shm_reduce.c allreduce, reduce_scatter, reduce
 *   ring_shm_move.c   all_gather, broadcast, gather, scatter, all_to_all
 *   (send and recv go over unix sockets, by a communicator of the tcp backend's kind: `wire`)
 *   ring_shm.c        life, headers, which algorithm
 *
 * Each rank has one memfd, its arena, which all ranks map:
 *
 *   offset           what                                        written by
 *   0                ring_shm_rank: flags, headers               its rank (door: whoever wakes it)
 *   SLOTS            two slots of RING_SHM_SMALL_BYTES           its rank
 *   table_at         2 x world x 8: bytes to each rank           its rank
 *   stage_at         RING_SHM_N_STAGES x RING_SHM_STAGE_BYTES    its rank; a reduction's results
 *                                                                also the others
 *   heap_at ...      blocks of ring_alloc                        its rank; in a direct operation
 *                                                                also the others
 * Pages nobody touched take no memory, so the arena is as large as the machine's memory.
 *
 * One operation: a rank fills its header (and its slot, when the input is small), then publishes
 * the operation's number; it waits for the headers of all others and compares digests. So nobody is
 * more than one operation ahead, and two headers and two slots are enough. Small inputs are in the
 * slots already. Larger ones that lie in arenas are read and written in place; those in private
 * memory pass through the stages in chunks that stay in the cache.
 *
 * Thread model of ring_shm
 *   threads    whoever runs an operation (one at a time, ring_comm's is_busy), callers of
 *              ring_alloc, ring_abort
 *   arena blocks       any            any            heap lock
 *   failure            first rank     all ranks      state: 0 -> 1 (writing) -> 2 (set), compare
 *                                                    and swap; in rank 0's arena
 *   failure_at         any rank       all ranks      only shrinks
 *   n_started, n_done  who runs       any thread     relaxed: a failure is placed by them
 *   all flags          their rank     all ranks      release / acquire
 *   blocking   in waits only: spins while the group's threads fit the cores, then futex
 *   shutdown   `gone` is set, then the sockets close: an end of file without it is a lost rank
 *   failure    is of an operation and all later ones: those before it complete on all ranks, with
 *              the flags that the ranks which are past them have set
 *              a rank that is late to notice may still write to blocks of the failed group: their
 *              content is undefined until they are released
 */
#ifndef RING_SHM_INT_H
#define RING_SHM_INT_H

#include "ring/ring_comm_int.h"

#include <pthread.h>
#include <stdatomic.h>

/* Up to this size an operation on private memory is one exchange through the slots. */
#define RING_SHM_SMALL_BYTES ((size_t)16 << 10)
/* Up to this size also one on memory of ring_alloc: copying it costs less than a second exchange.
 */
#define RING_SHM_TINY_BYTES ((size_t)1 << 10)
/* A chunk of all ranks together should stay in the second-level cache. */
#define RING_SHM_STAGE_BYTES ((size_t)256 << 10)
#define RING_SHM_N_STAGES    4
/* Of a reduction. */
#define RING_SHM_CHUNK_BYTES ((size_t)128 << 10)

#define RING_SHM_PRIVATE UINT64_MAX /* ring_shm_head.in_at, out_at: not in the arena */

/* What a rank says about its operation. */
typedef struct ring_shm_head {
    _Alignas(64) _Atomic uint64_t seq; /* number of the operation + 1 */
    uint64_t digest;                   /* of everything all ranks must agree on */
    uint64_t in_at;                    /* where in its arena, or RING_SHM_PRIVATE */
    uint64_t out_at;
    uint64_t in_bytes;
    bool is_inline; /* the input is in the slot */
    /* For error texts. */
    _Alignas(64) uint8_t op;
    uint8_t dtype;
    uint8_t reduce;
    int32_t root;
    uint64_t count;
    uint64_t name_hash;
    char name[RING_NAME_BYTES];
} ring_shm_head;

typedef struct ring_shm_rank {
    ring_shm_head head[2]; /* by the parity of the operation's number */
    /* Chunks since the start, over all operations. */
    _Alignas(64) _Atomic uint64_t staged;
    _Alignas(64) _Atomic uint64_t reduced;
    _Alignas(64) _Atomic uint64_t left; /* operations whose memory of others it no longer touches */
    _Alignas(64) _Atomic uint32_t door; /* futex */
    _Atomic int32_t waits_for; /* rank + 1 whose flag it sleeps for; 0: it does not sleep */
    _Atomic int cpu;           /* where it ran last */
    _Atomic int64_t beat_ns;   /* when it last looked, while it waits */
    _Atomic bool is_away;      /* it waits in another part of a larger group */
    _Atomic uint64_t gone;     /* operations it completed + 1, when it left in order */
    _Alignas(64) _Atomic int failure_state; /* of the group; rank 0's counts */
    _Atomic uint64_t failure_at;            /* number of the first operation that fails */
    int failure_code;
    char failure_text[BD_ERR_TEXT_BYTES];
} ring_shm_rank;

typedef struct ring_shm_block {
    size_t at;
    size_t n_bytes;
    bool is_used;
} ring_shm_block;

/* Blocks tile the heap in order of address. */
typedef struct ring_shm_heap {
    pthread_mutex_t lock;
    ring_shm_block *blocks; /* owned */
    size_t n_blocks;
    size_t cap;
} ring_shm_heap;

typedef struct ring_shm_peer {
    uint8_t *map; /* owned mapping of its arena */
    size_t map_bytes;
    int socket; /* -1: the own one, or closed */
} ring_shm_peer;

typedef struct ring_shm {
    ring_backend backend; /* first: the pointers are the same */
    ring_comm *comm;      /* borrowed: it outlives its backend */
    int rank;
    int world;
    ring_shm_peer *peers; /* owned, world */
    ring_comm *wire; /* owned: send and recv, over unix sockets; its thread also hears of failures
                        while this rank runs nothing */
    int arena_fd;
    size_t table_at;
    size_t stage_at;
    size_t heap_at;
    ring_shm_heap heap;
    int64_t spin_ns;            /* 0: the ranks do not fit the cores */
    uint64_t n_ops;             /* started */
    _Atomic uint64_t n_started; /* the same, for other threads */
    _Atomic uint64_t n_done;    /* without an error */
    uint64_t n_moved;           /* chunks; the same on all ranks */
} ring_shm;

/* Layout. */
static inline ring_shm_rank *ring_shm_of(const ring_shm *s, int rank)
{
    return (ring_shm_rank *)(void *)s->peers[rank].map;
}
size_t ring_shm_slots_at(void);
/* The slot of `rank` for operation number `seq` + 1 = s->n_ops. */
static inline uint8_t *ring_shm_slot(const ring_shm *s, int rank)
{
    return s->peers[rank].map + ring_shm_slots_at() + (s->n_ops & 1) * RING_SHM_SMALL_BYTES;
}
static inline ring_shm_head *ring_shm_head_of(const ring_shm *s, int rank)
{
    return &ring_shm_of(s, rank)->head[s->n_ops & 1];
}
static inline uint64_t *ring_shm_table(const ring_shm *s, int rank)
{
    return (uint64_t *)(void *)(s->peers[rank].map + s->table_at) +
           (s->n_ops & 1) * (size_t)s->world;
}
static inline uint8_t *ring_shm_stage(const ring_shm *s, int rank, uint64_t chunk)
{
    return s->peers[rank].map + s->stage_at + chunk % RING_SHM_N_STAGES * RING_SHM_STAGE_BYTES;
}

/* ring_shm_meet.c: fills peers, arena_fd and the layout. What it opened stays in s on failure. */
bd_status ring_shm_meet(ring_shm *s, bd_kv *kv, const ring_options *opt, bd_err *err) BD_MUST_CHECK;

/* ring_shm_arena.c */
bd_status ring_shm_heap_init(ring_shm *s, bd_err *err) BD_MUST_CHECK;
void ring_shm_heap_deinit(ring_shm *s);
void *ring_shm_alloc(ring_backend *b, size_t n_bytes);
bool ring_shm_release(ring_backend *b, void *p);
/* Offset of [p, p + n_bytes) in the own arena, or RING_SHM_PRIVATE. */
uint64_t ring_shm_at(const ring_shm *s, const void *p, size_t n_bytes);

/* ring_shm_wait.c */
/* Waits until *flag of `rank` is at least `want`. Errors: the group's failure. */
bd_status ring_shm_wait(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want,
                        bd_err *err) BD_MUST_CHECK;
/* After a store to an own flag: wakes who sleeps for it. */
void ring_shm_signal(ring_shm *s);
/* The group fails from operation number `at` on; *why, if nothing came before it, is the reason,
 * and becomes what all ranks report. */
bd_status ring_shm_fail(ring_shm *s, uint64_t at, bd_err *why);
/* BD_OK, or the group's failure when it ends operation number `at`. */
bd_status ring_shm_check(ring_shm *s, uint64_t at, bd_err *err);

/* In a larger group: this rank works in another part of it, so who waits for it here gives it twice
 * the time limit. Nothing for a group of one rank. */
void ring_shm_set_away(ring_comm *c, bool is_away);

/* ring_shm_reduce.c, ring_shm_move.c: after the headers. */
bd_status ring_shm_run_reduce(ring_shm *s, const ring_op *op, bd_err *err) BD_MUST_CHECK;
bd_status ring_shm_run_move(ring_shm *s, const ring_op *op, bd_err *err) BD_MUST_CHECK;
/* Bytes of the input that others may read. */
size_t ring_shm_in_bytes(const ring_shm *s, const ring_op *op);
/* Nobody touches my memory any more. */
bd_status ring_shm_leave(ring_shm *s, bd_err *err) BD_MUST_CHECK;
/* Room for chunk number s->n_moved in the own stages; then, after filling it, what is staged. */
bd_status ring_shm_stage_room(ring_shm *s, uint64_t chunk, bd_err *err) BD_MUST_CHECK;
bd_status ring_shm_wait_all(ring_shm *s, size_t flag_offset, uint64_t want,
                            bd_err *err) BD_MUST_CHECK;
void ring_shm_count(ring_shm *s, size_t n_bytes);

/* Fault, from any thread: to the others the rank looks as under SIGKILL. */
void ring_shm_test_kill(ring_comm *c);

#endif
