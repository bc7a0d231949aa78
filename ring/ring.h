/* ring/ring.h - communicators and collectives: dense vectors summed over all ranks.
 *
 * Layer:     ring. Includes base/ only.
 * Threads:   one thread at a time issues operations on a communicator; ring_work_wait from any
 * thread. Order:     every rank issues the same operations in the same order. Each frame carries
 * group, sequence, operation, dtype, count and name hash: a mismatch is BD_E_MISMATCH on all ranks,
 *            with both sides in the text, never a hang or a wrong sum.
 * Failure:   the first failure ends the communicator on every rank (BD_E_PEER_LOST names the rank,
 * and comes in under a second for a killed one; BD_E_TIMEOUT says who is missing at which
 *            operation). Then only ring_abort and ring_free are legal; a new epoch makes a new one.
 * Results:   bitwise equal on all ranks and from run to run for the same world, count and backend.
 *            f16 and bf16 accumulate in f32. NaN propagates in sum and wins in min and max.
 * Cost:      allreduce of S bytes on P ranks over tcp: small (<= 32 KiB; two ranks: 512 KiB)
 *            all-to-all in one round, rank order; large: ring, 2(P-1) steps, 2(P-1)/P * S bytes
 * sent per rank.
 */
#ifndef RING_H
#define RING_H

#include "base/err.h"
#include "base/kv.h"
#include "base/num/dtype.h"
#include "base/num/reduce.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ring_comm ring_comm;
typedef struct ring_work ring_work;

typedef enum ring_backend_kind {
    RING_AUTO, /* by where the ranks are: shm, tcp, or shm inside hosts and tcp between them */
    RING_TCP,
    RING_SHM,
    RING_NCCL /* on CUDA devices, one a rank; vectors in device memory, or copied there */
} ring_backend_kind;

/* Ranks of one host that can share memory. */
#define RING_SHM_MOST_RANKS 1024

typedef struct ring_options {
    const char *group;     /* names the group in rendezvous keys and errors; unique per epoch */
    uint64_t epoch;        /* a rebuilt group has a new one; ranks of other epochs are refused */
    const char *bind_host; /* tcp: address or name to listen on; advertised is the address it has.
                              NULL: 127.0.0.1 */
    const char *interface; /* tcp: instead of bind_host, the address of this interface: its name
                              ("eth1"), or a prefix it lies in ("10.1.0.0/16"); NULL or "": none */
    int64_t timeout_ms;    /* per operation and for rendezvous, 0: 60,000 */
    int n_connections;     /* tcp: parallel connections to each rank, up to 16; 0: 1. Segments of
                              large operations are spread over them */
    ring_backend_kind backend; /* ring_new */
    const int *labels;         /* world: what ranks are called in errors; borrowed as long as the
                                  communicator lives. NULL: by their numbers */
    int device;                /* RING_NCCL: CUDA device + 1; 0: the rank's number on its host */
    int64_t poll_ms;           /* RING_NCCL: how often the watchdog looks, 0: 100 */
    const char *host; /* ring_new: ranks with the same text share a host; NULL: found out */
} ring_options;

/* Collective: all ranks call it, with the same opt->backend. Chooses where RING_AUTO says so.
 * RING_NCCL: kv is borrowed until ring_free; send and recv copy device memory through the host;
 * BD_E_UNSUPPORTED in a build without NCCL, BD_E_UNAVAILABLE without a device. */
bd_status ring_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                   bd_err *err) BD_MUST_CHECK;
/* Over tcp. Collective: all ranks call it. Addresses go through kv under "ring/<group>/<epoch>/".
 * kv is borrowed during the call only. BD_E_TIMEOUT names the absent ranks, BD_E_EXISTS a rank that
 * joined twice. */
bd_status ring_tcp_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                       bd_err *err) BD_MUST_CHECK;
/* The same for ranks of one host, through shared memory (memfd; /dev/shm may be tiny). Blocking
 * operations run on their caller's thread. A rank of another host, network namespace or user is
 * BD_E_UNAVAILABLE. */
bd_status ring_shm_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                       bd_err *err) BD_MUST_CHECK;
/* In memory, for threads of one process (tests): `world` linked communicators at once. */
bd_status ring_mem_new(int world, const ring_options *opt, ring_comm **out_array,
                       bd_err *err) BD_MUST_CHECK;
/* Ends open operations with BD_E_ABORTED here and, soon after, on the other ranks. Idempotent. */
void ring_abort(ring_comm *c, const bd_err *why);
void ring_free(ring_comm *c);

int ring_rank(const ring_comm *c);
int ring_world(const ring_comm *c);
/* Bytes this rank has sent since the start, headers included. */
uint64_t ring_bytes_sent(const ring_comm *c);

/* Memory that collectives like best: aligned, and shared with the ranks of this host where they
 * are, so that they read and write it in place. Zeroed there. NULL: no memory. All of it is
 * released before ring_free. When a group has failed, the content is undefined until then. */
void *ring_alloc(ring_comm *c, size_t n_bytes);
void ring_mem_release(ring_comm *c, void *p);

/* The collectives. With work == NULL they block. Else they return at once, *work must be waited for
 * (ring_work_wait frees it), and buffers belong to the operation until then. `name` goes into the
 * frame check and into errors; NULL is "". Counts are elements. In place where in == out. */
bd_status ring_allreduce(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, num_reduce_op op,
                         const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* in: world * n_elems_out; rank r gets chunk r of the sum. in is scratch afterwards. */
bd_status ring_reduce_scatter(ring_comm *c, void *in, void *out, size_t n_elems_out,
                              num_dtype dtype, num_reduce_op op, const char *name, ring_work **work,
                              bd_err *err) BD_MUST_CHECK;
/* out: world * n_elems_in, rank r's part at r * n_elems_in. */
bd_status ring_all_gather(ring_comm *c, const void *in, void *out, size_t n_elems_in,
                          num_dtype dtype, const char *name, ring_work **work,
                          bd_err *err) BD_MUST_CHECK;
bd_status ring_broadcast(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, int root,
                         const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* Only root's buf has the result; that of the others is scratch afterwards. */
bd_status ring_reduce(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, num_reduce_op op,
                      int root, const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* out (root only): world * n_elems_in. */
bd_status ring_gather(ring_comm *c, const void *in, void *out, size_t n_elems_in, num_dtype dtype,
                      int root, const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* in (root only): world * n_elems_out. */
bd_status ring_scatter(ring_comm *c, const void *in, void *out, size_t n_elems_out, num_dtype dtype,
                       int root, const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* Part r of in (n_elems) goes to rank r, as part `own rank` of its out. in and out do not overlap.
 */
bd_status ring_all_to_all(ring_comm *c, const void *in, void *out, size_t n_elems, num_dtype dtype,
                          const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
/* Parts of different length, one after the other: send_counts[r] elements to rank r,
 * recv_counts[r] from it; 0 is legal. Both arrays are borrowed until the operation is complete. A
 * count that its sender and its receiver see differently is BD_E_MISMATCH. */
bd_status ring_all_to_all_v(ring_comm *c, const void *in, const size_t *send_counts, void *out,
                            const size_t *recv_counts, num_dtype dtype, const char *name,
                            ring_work **work, bd_err *err) BD_MUST_CHECK;
/* From one rank to another, which calls the other function with the same count, dtype, name and tag
 * (else BD_E_MISMATCH). They are no step of the group: other ranks know nothing of them, several
 * run at once, and messages with one tag between two ranks keep their order. A send is complete
 * when buf may be used again. What is sent before a collective must be received before it. */
bd_status ring_send(ring_comm *c, const void *buf, size_t n_elems, num_dtype dtype, int to,
                    uint32_t tag, const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
bd_status ring_recv(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, int from,
                    uint32_t tag, const char *name, ring_work **work, bd_err *err) BD_MUST_CHECK;
bd_status ring_barrier(ring_comm *c, const char *name, bd_err *err) BD_MUST_CHECK;

/* A group of some ranks of parent, as parent was made. Only its members call this, all with the
 * same list and name; member i of the list becomes its rank i. A name serves once per parent. */
bd_status ring_subgroup(bd_kv *kv, ring_comm *parent, const int *ranks, int n_ranks,
                        const char *name, ring_comm **out, bd_err *err) BD_MUST_CHECK;
/* Collective on parent: ranks with the same color (>= 0) form a group, in order of key, then rank.
 * color < 0: no group, *out is NULL. */
bd_status ring_split(bd_kv *kv, ring_comm *parent, int64_t color, int64_t key, ring_comm **out,
                     bd_err *err) BD_MUST_CHECK;

/* Blocks; frees the work; returns its result. */
bd_status ring_work_wait(ring_work *w, bd_err *err) BD_MUST_CHECK;
bool ring_work_done(const ring_work *w);

#endif
