/* Several ranks on several hosts: shared memory inside a host, tcp between hosts.
 *
 *   allreduce   large, as many ranks on every host: each rank reduces its slice inside the host,
 *               reduces it with the same slice of the other hosts, then all gather the slices.
 * Small, or hosts that differ: one rank of each host stands for it. Sent between hosts: 2(H-1)/H *
 * S bytes per host. broadcast, reduce, barrier   through one rank of each host the rest    over a
 * tcp group of all ranks, after all have agreed that they run it
 *
 * A group of groups: each step is an operation of `local` (shm), `cross` (tcp, the ranks with my
 * local number) or `flat` (tcp, all ranks). An error of one ends all three with the same text, so
 * it reaches every rank. The time limits grow from the inside out (local, cross, local again), so
 * that the group nearest to the culprit speaks first; and who waits for a rank that waits in
 * another group gives it longer, for the next operation's first part may wait for this one's last.
 *
 * A failure belongs to an operation, as in the engine: what `flat` says of one that this rank has
 * not reached waits until it has. The groups of the operation that runs know for themselves.
 */
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_host.h"
#ifdef BRAID_HAVE_NCCL
#include "ring/ring_nccl.h"
#endif
#include "ring/ring_shm_int.h"

#include <inttypes.h>

/* Up to this size one rank per host talks to the others: fewer messages. */
#define SMALL_BYTES ((size_t)32 << 10)

typedef struct hier {
    ring_backend backend; /* first: the pointers are the same */
    ring_comm *comm;      /* borrowed: it outlives its backend */
    ring_hosts hosts;
    int rank;
    int host;
    int local_rank;
    ring_comm *local; /* owned */
    ring_comm
        *cross;      /* owned; NULL: no rank of another host has my local number, or hosts differ */
    ring_comm *flat; /* owned */
    int *local_labels;
    int *cross_labels;
    bool is_even; /* as many ranks on every host */
    int64_t timeout_ns;
    _Atomic uint64_t n_started;
    _Atomic uint64_t n_done; /* without an error */
    pthread_mutex_t lock;
    bd_err pending; /* under lock: of operation pending_at (from 1); code BD_OK: none */
    uint64_t pending_at;
} hier;

static bool is_leader(const hier *h)
{
    return h->local_rank == 0;
}

static bd_status run_on(ring_comm *c, const ring_op *op, bd_err *err)
{
    return ring_comm_submit(c, op, NULL, err);
}

/* Not on this host: whoever waits for this rank in `local` meanwhile is told. */
static bd_status run_away(hier *h, ring_comm *c, const ring_op *op, bd_err *err)
{
    ring_shm_set_away(h->local, true);
    bd_status rc = run_on(c, op, err);
    ring_shm_set_away(h->local, false);
    return rc;
}

/* An operation of a part of the vector; avg is divided at the end, once. */
static ring_op part_of(const ring_op *op, ring_op_kind kind, size_t first, size_t n, int root)
{
    ring_op part = *op;
    uint8_t *base = op->out;
    part.kind = kind;
    part.reduce = op->reduce == NUM_AVG ? NUM_SUM : op->reduce;
    part.root = root;
    part.n_elems = n;
    part.in = base == NULL ? NULL : base + first * num_dtype_bytes((int)op->dtype);
    part.out = part.in;
    part.name_hash =
        bd_mix64(op->name_hash ^ (uint64_t)(uint32_t)op->root << 8 ^ (uint64_t)op->reduce);
    return part;
}

static void divide(const hier *h, const ring_op *op, const ring_op *part)
{
    if (op->reduce == NUM_AVG) {
        ring_divide(part->out, part->n_elems, op->dtype, h->hosts.world);
    }
}

static bd_status local_late(hier *h, const ring_op *op, bd_err *err)
{
    h->local->engine.timeout_ns = h->timeout_ns * 3 / 2; /* runs on this thread only */
    bd_status rc = run_on(h->local, op, err);
    h->local->engine.timeout_ns = h->timeout_ns;
    return rc;
}

/* Elements [first, first + n) through the leaders. */
static bd_status reduce_by_leaders(hier *h, const ring_op *op, size_t first, size_t n, bd_err *err)
{
    ring_op step = part_of(op, RING_OP_REDUCE, first, n, 0);
    bd_status rc = run_on(h->local, &step, err);
    if (rc == BD_OK && is_leader(h)) {
        step.kind = RING_OP_ALLREDUCE;
        step.root = -1;
        rc = run_away(h, h->cross, &step, err);
        divide(h, op, &step);
    }
    step = part_of(op, RING_OP_BROADCAST, first, n, 0);
    step.reduce = 0;
    return rc != BD_OK ? rc : local_late(h, &step, err);
}

static bd_status reduce_by_slices(hier *h, const ring_op *op, bd_err *err)
{
    size_t n_local = (size_t)ring_world(h->local);
    size_t n = op->n_elems / n_local;
    ring_op scatter = part_of(op, RING_OP_REDUCE_SCATTER, 0, n, -1);
    ring_op slice = part_of(op, RING_OP_ALLREDUCE, n * (size_t)h->local_rank, n, -1);
    ring_op gather = part_of(op, RING_OP_ALL_GATHER, 0, n, -1);
    scatter.out = slice.out;
    gather.in = slice.out;
    gather.reduce = 0;
    bd_status rc = run_on(h->local, &scatter, err);
    rc = rc != BD_OK ? rc : run_away(h, h->cross, &slice, err);
    if (rc == BD_OK) {
        divide(h, op, &slice);
        rc = local_late(h, &gather, err);
    }
    size_t done = n * n_local;
    if (rc == BD_OK && done < op->n_elems) {
        rc = reduce_by_leaders(h, op, done, op->n_elems - done, err);
    }
    return rc;
}

static bd_status run_allreduce(hier *h, const ring_op *op, bd_err *err)
{
    size_t n_bytes = op->n_elems * num_dtype_bytes((int)op->dtype);
    return h->is_even && n_bytes > SMALL_BYTES ? reduce_by_slices(h, op, err)
                                               : reduce_by_leaders(h, op, 0, op->n_elems, err);
}

/* From the root to its leader, to the other leaders, to their hosts. */
static bd_status run_broadcast(hier *h, const ring_op *op, bd_err *err)
{
    int root_host = h->hosts.host_of[op->root];
    bd_status rc = BD_OK;
    ring_op step = part_of(op, RING_OP_BROADCAST, 0, op->n_elems, h->hosts.local_of[op->root]);
    if (root_host == h->host) {
        rc = run_on(h->local, &step, err);
    }
    step.root = root_host;
    if (rc == BD_OK && is_leader(h)) {
        rc = run_away(h, h->cross, &step, err);
    }
    step.root = 0;
    return rc == BD_OK && root_host != h->host ? local_late(h, &step, err) : rc;
}

static bd_status run_reduce(hier *h, const ring_op *op, bd_err *err)
{
    int root_host = h->hosts.host_of[op->root];
    int root_local = h->hosts.local_of[op->root];
    ring_op step = part_of(op, RING_OP_REDUCE, 0, op->n_elems, 0);
    bd_status rc = run_on(h->local, &step, err);
    step.root = root_host;
    if (rc == BD_OK && is_leader(h)) {
        rc = run_away(h, h->cross, &step, err);
        if (h->rank == op->root || root_host == h->host) {
            divide(h, op, &step);
        }
    }
    if (rc == BD_OK && root_local != 0 && root_host == h->host) {
        step = part_of(op, RING_OP_BROADCAST, 0, op->n_elems, 0);
        step.reduce = 0;
        rc = local_late(h, &step, err);
    }
    return rc;
}

static bd_status run_barrier(hier *h, const ring_op *op, bd_err *err)
{
    bd_status rc = run_on(h->local, op, err);
    if (rc == BD_OK && is_leader(h)) {
        rc = run_away(h, h->cross, op, err);
    }
    return rc != BD_OK ? rc : local_late(h, op, err);
}

static bd_status run_flat(hier *h, const ring_op *op, bd_err *err)
{
    ring_op same = *op;
    same.agree_only = true;
    bd_status rc = run_on(h->local, &same, err);
    if (rc == BD_OK && is_leader(h)) {
        rc = run_away(h, h->cross, &same, err);
    }
    return rc != BD_OK ? rc : run_away(h, h->flat, op, err);
}

static void fail_all(hier *h, const bd_err *why)
{
    ring_comm *const parts[] = {h->local, h->cross, h->flat};
    for (size_t i = 0; i < sizeof parts / sizeof(ring_comm *); i++) {
        if (parts[i] != NULL) {
            ring_comm_fail(parts[i], why);
        }
    }
}

/* All parts end now when the failure that is to come has been reached. */
static void fail_if_due(hier *h)
{
    bd_err why = BD_ERR_INIT;
    (void)pthread_mutex_lock(&h->lock);
    if (h->pending.code != BD_OK && h->pending_at <= atomic_load(&h->n_done) + 1) {
        why = h->pending;
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (why.code != BD_OK) {
        fail_all(h, &why);
    }
}

/* On flat's thread: an error elsewhere, while this rank waits in another of its groups or nowhere.
 * 0: a lost rank; the operation that runs finds out whether it needs it. */
static void on_flat_failed(void *user, const bd_err *why, uint64_t at)
{
    hier *h = user;
    (void)pthread_mutex_lock(&h->lock);
    at = at != 0 ? at : atomic_load(&h->n_started) + 1;
    if (h->pending.code == BD_OK || at < h->pending_at) {
        h->pending_at = at;
    }
    bd_err_keep_first(&h->pending, why);
    (void)pthread_mutex_unlock(&h->lock);
    fail_if_due(h);
}

static void count_sent(hier *h)
{
    uint64_t sent = ring_bytes_sent(h->local) + ring_bytes_sent(h->flat);
    sent += h->cross != NULL ? ring_bytes_sent(h->cross) : 0;
    atomic_store_explicit(&h->comm->engine.bytes_sent, sent, memory_order_relaxed);
}

static bd_status hier_run(ring_backend *b, const ring_op *op, bd_err *err)
{
    hier *h = (hier *)b;
    bd_status rc;
    (void)atomic_fetch_add(&h->n_started, 1);
    switch (op->kind) {
    case RING_OP_ALLREDUCE:
        rc = run_allreduce(h, op, err);
        break;
    case RING_OP_BROADCAST:
        rc = run_broadcast(h, op, err);
        break;
    case RING_OP_REDUCE:
        rc = run_reduce(h, op, err);
        break;
    case RING_OP_BARRIER:
        rc = run_barrier(h, op, err);
        break;
    default:
        rc = run_flat(h, op, err);
        break;
    }
    if (rc != BD_OK) {
        fail_all(h, err);
    } else {
        (void)atomic_fetch_add(&h->n_done, 1);
        fail_if_due(h);
    }
    count_sent(h);
    return rc;
}

static void hier_fail(ring_backend *b, const bd_err *why)
{
    fail_all((hier *)b, why);
}

static void *hier_alloc(ring_backend *b, size_t n_bytes)
{
    ring_backend *local = ((hier *)b)->local->backend;
    return local != NULL && local->alloc != NULL ? local->alloc(local, n_bytes) : NULL;
}

static bool hier_release(ring_backend *b, void *p)
{
    ring_backend *local = ((hier *)b)->local->backend;
    return local != NULL && local->release != NULL && local->release(local, p);
}

/* Life. */

static void hier_stop(ring_backend *b)
{
    hier *h = (hier *)b;
    if (h->flat != NULL) { /* its own end is no failure to tell */
        ring_comm_unwatch(h->flat);
    }
    ring_free(h->flat); /* first: its thread may just be telling the others */
    ring_free(h->cross);
    ring_free(h->local);
    ring_hosts_deinit(&h->hosts);
    bd_free(h->local_labels);
    bd_free(h->cross_labels);
    (void)pthread_mutex_destroy(&h->lock);
    bd_free(h);
}

static int index_of(const int *ranks, int rank)
{
    int i = 0;
    while (ranks[i] != rank) {
        i++;
    }
    return i;
}

typedef struct members {
    const int *labels; /* NULL: all ranks */
    int n;
} members;

/* One of the groups: over shared memory or tcp. */
static bd_status make(hier *h, bd_kv *kv, const ring_options *opt, const char *part, int number,
                      members of, ring_comm **out, bd_err *err)
{
    const int *labels = of.labels;
    ring_options o = *opt;
    bool is_local = labels == h->local_labels;
    char *group = bd_strfmt("%s/%s%d", h->comm->group, part, number);
    if (group == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring %s", h->comm->group);
    }
    o.group = group;
    o.labels = labels;
    int rank = labels == NULL ? h->rank : index_of(labels, h->rank);
    bd_status rc = is_local ? ring_shm_new(kv, rank, of.n, &o, out, err)
                            : ring_tcp_new(kv, rank, of.n, &o, out, err);
    bd_free(group);
    return rc;
}

static void limit_parts(hier *h)
{
    ring_comm *across[] = {h->flat, h->cross};
    for (size_t i = 0; i < sizeof across / sizeof across[0]; i++) {
        if (across[i] != NULL) {
            across[i]->engine.timeout_ns = h->timeout_ns * 5 / 4;
        }
    }
    if (h->local != NULL) {
        h->local->engine.timeout_ns = h->timeout_ns;
    }
}

static bd_status make_parts(hier *h, bd_kv *kv, const ring_options *opt, bd_err *err)
{
    int world = h->hosts.world;
    h->local_labels = bd_calloc((size_t)world, sizeof(int));
    h->cross_labels = bd_calloc((size_t)world, sizeof(int));
    if (h->local_labels == NULL || h->cross_labels == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring %s", h->comm->group);
    }
    int n_local = ring_hosts_list(&h->hosts, h->host, -1, h->local_labels);
    int n_cross = ring_hosts_list(&h->hosts, -1, h->local_rank, h->cross_labels);
    bd_status rc = make(h, kv, opt, "flat", 0, (members){NULL, world}, &h->flat, err);
    rc = rc != BD_OK ? rc
                     : make(h, kv, opt, "host", h->host, (members){h->local_labels, n_local},
                            &h->local, err);
    if (rc == BD_OK && (h->is_even || is_leader(h))) {
        rc = make(h, kv, opt, "cross", h->local_rank, (members){h->cross_labels, n_cross},
                  &h->cross, err);
    }
    h->backend.p2p = h->flat;
    if (rc == BD_OK) {
        limit_parts(h);
        ring_comm_set_outer(h->flat, &h->n_started, &h->n_done);
        ring_comm_watch(h->flat, on_flat_failed, h);
        if (h->cross != NULL) {
            ring_comm_set_outer(h->cross, &h->n_started, &h->n_done);
        }
    }
    return rc;
}

/* Takes over hosts. */
bd_status ring_hier_new(bd_kv *kv, int rank, const ring_options *opt, ring_hosts *hosts,
                        ring_comm **out, bd_err *err)
{
    static const ring_options none = {0};
    ring_comm *c = NULL;
    opt = opt != NULL ? opt : &none;
    hier *h = bd_calloc(1, sizeof *h);
    bd_status rc = h == NULL ? bd_err_set(err, BD_E_NOMEM, "ring") : BD_OK;
    rc = rc != BD_OK ? rc : ring_comm_new(rank, hosts->world, opt, &c, err);
    if (rc != BD_OK || h == NULL || c == NULL) {
        ring_hosts_deinit(hosts);
        bd_free(h);
        return rc;
    }
    h->backend = (ring_backend){.stop = hier_stop,
                                .run = hier_run,
                                .fail = hier_fail,
                                .alloc = hier_alloc,
                                .release = hier_release};
    h->comm = c;
    h->hosts = *hosts;
    *hosts = (ring_hosts){0};
    h->rank = rank;
    h->host = h->hosts.host_of[rank];
    h->local_rank = h->hosts.local_of[rank];
    h->is_even = h->hosts.least_local == h->hosts.most_local;
    h->timeout_ns = c->engine.timeout_ns;
    (void)pthread_mutex_init(&h->lock, NULL);
    c->backend = &h->backend;
    rc = make_parts(h, kv, opt, err);
    if (rc != BD_OK) {
        ring_free(c);
        return rc;
    }
    *out = c;
    return BD_OK;
}

bd_status ring_new(bd_kv *kv, int rank, int world, const ring_options *opt, ring_comm **out,
                   bd_err *err)
{
    ring_backend_kind kind = opt != NULL ? opt->backend : RING_AUTO;
    ring_hosts hosts;
    if (kind == RING_SHM) {
        return ring_shm_new(kv, rank, world, opt, out, err);
    }
    if (kind == RING_NCCL) {
#ifdef BRAID_HAVE_NCCL
        return ring_nccl_comm_new(kv, rank, world, opt, out, err);
#else
        return bd_err_set(err, BD_E_UNSUPPORTED,
                          "ring over nccl: this build has no NCCL (see docs/GPU.md)");
#endif
    }
    if (kind == RING_TCP || world <= 1 || rank < 0 || rank >= world) {
        return ring_tcp_new(kv, rank, world, opt, out, err);
    }
    bd_status rc = ring_hosts_find(kv, rank, world, opt, &hosts, err);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "ring rank %d", rank);
        return rc;
    }
    if (hosts.n_hosts == 1 || hosts.most_local == 1) {
        bool is_one = hosts.n_hosts == 1 && world <= RING_SHM_MOST_RANKS;
        ring_hosts_deinit(&hosts);
        return is_one ? ring_shm_new(kv, rank, world, opt, out, err)
                      : ring_tcp_new(kv, rank, world, opt, out, err);
    }
    return ring_hier_new(kv, rank, opt, &hosts, out, err);
}

void ring_test_limit(ring_comm *c, int64_t limit_ms)
{
    c->engine.timeout_ns = limit_ms * BD_NS_PER_MS;
    if (c->backend == NULL) {
        return;
    }
    if (c->backend->p2p != NULL) {
        c->backend->p2p->engine.timeout_ns = c->engine.timeout_ns;
    }
    if (c->backend->run == hier_run) {
        hier *h = (hier *)(void *)c->backend;
        h->timeout_ns = c->engine.timeout_ns;
        limit_parts(h);
    }
}
