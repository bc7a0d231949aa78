/* A communicator of ring.h whose operations run on the devices: RING_NCCL.
 * Vectors in device memory go to NCCL as they are; vectors in host memory are
 * copied to a device buffer and back. What NCCL cannot do (band, bor; send and
 * recv with tags, in any order) goes through `host`, which also carries the ranks'
 * agreement before each operation on a group of its own.
 *
 * Cost: that of NCCL, and for host memory both copies, which nothing overlaps.
 */
#include "base/mem.h"

#include "ring/ring_comm_int.h"
#include "ring/ring_host.h"
#include "ring/ring_nccl_int.h"

/* Device memory that grows. */
typedef struct stage {
    void *p; /* owned */
    size_t n_bytes;
} stage;

typedef struct nccl_comm {
    ring_backend backend; /* first: the pointers are the same */
    ring_comm *comm;      /* borrowed: it outlives its backend */
    ring_comm *control;   /* owned; ring_nccl's alone */
    ring_comm *host;      /* owned */
    ring_nccl *n;         /* owned */
    cudaStream_t stream;  /* owned; copies */
    stage in;
    stage out;
} nccl_comm;

static size_t sum_of(const size_t *counts, int world)
{
    size_t n = 0;
    for (int r = 0; r < world; r++) {
        n += counts[r];
    }
    return n;
}

static bool is_in_place(const ring_op *op)
{
    return op->kind == RING_OP_ALLREDUCE || op->kind == RING_OP_REDUCE ||
           op->kind == RING_OP_BROADCAST;
}

static size_t in_elems(const nccl_comm *h, const ring_op *op)
{
    size_t world = (size_t)ring_world(h->comm);
    bool is_root = op->root == ring_rank(h->comm);
    switch (op->kind) {
    case RING_OP_REDUCE_SCATTER:
    case RING_OP_ALL_TO_ALL:
        return op->n_elems * world;
    case RING_OP_SCATTER:
        return is_root ? op->n_elems * world : 0;
    case RING_OP_ALL_TO_ALL_V:
        return sum_of(op->send_counts, (int)world);
    default:
        return op->n_elems;
    }
}

static size_t out_elems(const nccl_comm *h, const ring_op *op)
{
    size_t world = (size_t)ring_world(h->comm);
    bool is_root = op->root == ring_rank(h->comm);
    switch (op->kind) {
    case RING_OP_ALL_GATHER:
    case RING_OP_ALL_TO_ALL:
        return op->n_elems * world;
    case RING_OP_GATHER:
        return is_root ? op->n_elems * world : 0;
    case RING_OP_REDUCE:
        return is_root ? op->n_elems : 0;
    case RING_OP_ALL_TO_ALL_V:
        return sum_of(op->recv_counts, (int)world);
    default:
        return op->n_elems;
    }
}

static bool is_on_device(const void *p)
{
    struct cudaPointerAttributes a;
    return p != NULL && cudaPointerGetAttributes(&a, p) == cudaSuccess &&
           (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged);
}

static bd_status reserve(stage *s, size_t n_bytes, bd_err *err)
{
    if (n_bytes <= s->n_bytes) {
        return BD_OK;
    }
    (void)cudaFree(s->p);
    *s = (stage){0};
    cudaError_t e = cudaMalloc(&s->p, n_bytes);
    if (e != cudaSuccess) {
        s->p = NULL;
        return ring_nccl_cuda_err(err, e, "device memory for a host vector");
    }
    s->n_bytes = n_bytes;
    return BD_OK;
}

static bd_status copy(nccl_comm *h, void *dst, const void *src, size_t n_bytes,
                      enum cudaMemcpyKind kind, bd_err *err)
{
    cudaError_t e =
        n_bytes == 0 ? cudaSuccess : cudaMemcpyAsync(dst, src, n_bytes, kind, h->stream);
    return e == cudaSuccess ? BD_OK : ring_nccl_cuda_err(err, e, "copy of a host vector");
}

static bd_status call(const nccl_comm *h, const ring_op *op, const void *in, void *out, bd_err *err)
{
    const ring_nccl_how how = {.name = op->name, .after = h->stream};
    const size_t n = op->n_elems;
    const num_dtype d = op->dtype;
    const num_reduce_op reduce = (num_reduce_op)op->reduce;
    switch (op->kind) {
    case RING_OP_ALLREDUCE:
        return ring_nccl_allreduce(h->n, out, n, d, reduce, &how, err);
    case RING_OP_REDUCE_SCATTER:
        return ring_nccl_reduce_scatter(h->n, in, out, n, d, reduce, &how, err);
    case RING_OP_ALL_GATHER:
        return ring_nccl_all_gather(h->n, in, out, n, d, &how, err);
    case RING_OP_BROADCAST:
        return ring_nccl_broadcast(h->n, out, n, d, op->root, &how, err);
    case RING_OP_REDUCE:
        return ring_nccl_reduce(h->n, out, n, d, reduce, op->root, &how, err);
    case RING_OP_GATHER:
        return ring_nccl_gather(h->n, in, out, n, d, op->root, &how, err);
    case RING_OP_SCATTER:
        return ring_nccl_scatter(h->n, in, out, n, d, op->root, &how, err);
    case RING_OP_ALL_TO_ALL:
        return ring_nccl_all_to_all(h->n, in, out, n, d, &how, err);
    case RING_OP_ALL_TO_ALL_V:
        return ring_nccl_all_to_all_v(h->n, in, op->send_counts, out, op->recv_counts, d, &how,
                                      err);
    default:
        return ring_nccl_barrier(h->n, op->name, err);
    }
}

static bd_status run_on_device(nccl_comm *h, const ring_op *op, bd_err *err)
{
    size_t elem_bytes = num_dtype_bytes((int)op->dtype);
    size_t in_bytes = op->kind == RING_OP_BARRIER ? 0 : in_elems(h, op) * elem_bytes;
    size_t out_bytes = op->kind == RING_OP_BARRIER ? 0 : out_elems(h, op) * elem_bytes;
    bool in_place = is_in_place(op);
    bool stages_in = in_bytes > 0 && !in_place && !is_on_device(op->in);
    bool stages_out = (in_place ? in_bytes : out_bytes) > 0 && !is_on_device(op->out);
    const void *in = op->in;
    void *out = op->out;
    cudaError_t e = cudaSetDevice(h->comm->options.device - 1);
    bd_status rc = e == cudaSuccess ? BD_OK : ring_nccl_cuda_err(err, e, "cudaSetDevice");
    if (rc == BD_OK && stages_in) {
        rc = reserve(&h->in, in_bytes, err);
        rc = rc != BD_OK ? rc : copy(h, h->in.p, op->in, in_bytes, cudaMemcpyHostToDevice, err);
        in = h->in.p;
    }
    if (rc == BD_OK && stages_out) {
        rc = reserve(&h->out, in_place ? in_bytes : out_bytes, err);
        out = h->out.p;
    }
    if (rc == BD_OK && stages_out && in_place) {
        rc = copy(h, out, op->out, in_bytes, cudaMemcpyHostToDevice, err);
    }
    rc = rc != BD_OK ? rc : call(h, op, in, out, err);
    if (rc == BD_OK && stages_out) {
        rc = copy(h, op->out, out, out_bytes, cudaMemcpyDeviceToHost, err);
        e = cudaStreamSynchronize(h->stream);
        rc = rc == BD_OK && e != cudaSuccess ? ring_nccl_cuda_err(err, e, "copy of a result") : rc;
    }
    return rc;
}

static bd_status nccl_run(ring_backend *b, const ring_op *op, bd_err *err)
{
    nccl_comm *h = (nccl_comm *)b;
    bool is_bits = op->reduce == (int)NUM_BAND || op->reduce == (int)NUM_BOR;
    bd_status rc = is_bits ? ring_comm_submit(h->host, op, NULL, err) : run_on_device(h, op, err);
    if (rc != BD_OK) { /* the first one that the group heard of is what all say */
        bd_err why = *err;
        rc = ring_nccl_fail(h->n, &why, err);
        ring_comm_fail(h->host, err);
    }
    (void)atomic_fetch_add_explicit(&h->comm->engine.bytes_sent,
                                    in_elems(h, op) * num_dtype_bytes((int)op->dtype),
                                    memory_order_relaxed);
    return rc;
}

/* Messages in device memory travel through host memory: NCCL's pair up in the order of issue only,
 * ours by tag and several at once. */
static bd_status nccl_lend(ring_backend *b, const ring_op *op, void **host, bd_err *err)
{
    const nccl_comm *h = (nccl_comm *)b;
    size_t n_bytes = op->n_elems * num_dtype_bytes((int)op->dtype);
    *host = NULL;
    if (!is_on_device(op->in)) {
        return BD_OK;
    }
    void *block = bd_alloc(n_bytes + 1);
    if (block == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "message of %zu bytes in device memory", n_bytes);
    }
    cudaError_t e = cudaSetDevice(h->comm->options.device - 1);
    if (e == cudaSuccess && op->kind == RING_OP_SEND) {
        e = cudaMemcpy(block, op->in, n_bytes, cudaMemcpyDeviceToHost);
    }
    if (e != cudaSuccess) {
        bd_free(block);
        return ring_nccl_cuda_err(err, e, "copy of a message");
    }
    *host = block;
    return BD_OK;
}

static bd_status nccl_give_back(ring_backend *b, const ring_op *op, void *host, bool is_well,
                                bd_err *err)
{
    const nccl_comm *h = (nccl_comm *)b;
    cudaError_t e = cudaSuccess;
    if (is_well && op->kind == RING_OP_RECV) {
        e = cudaSetDevice(h->comm->options.device - 1);
        e = e == cudaSuccess
                ? cudaMemcpy(op->out, host, op->n_elems * num_dtype_bytes((int)op->dtype),
                             cudaMemcpyHostToDevice)
                : e;
    }
    bd_free(host);
    return e == cudaSuccess ? BD_OK : ring_nccl_cuda_err(err, e, "copy of a message");
}

static void nccl_fail(ring_backend *b, const bd_err *why)
{
    nccl_comm *h = (nccl_comm *)b;
    bd_err all = BD_ERR_INIT;
    (void)ring_nccl_fail(h->n, why, &all);
    ring_comm_fail(h->host, &all);
}

/* On host's thread: a send or recv has failed, or a rank is gone. */
static void on_host_failed(void *user, const bd_err *why, uint64_t at)
{
    nccl_comm *h = user;
    bd_err all = BD_ERR_INIT;
    (void)at;
    (void)ring_nccl_fail(h->n, why, &all);
}

static void nccl_stop(ring_backend *b)
{
    nccl_comm *h = (nccl_comm *)b;
    if (h->host != NULL) { /* its own end is no failure to tell; first: its thread
                              may be telling */
        ring_comm_unwatch(h->host);
        ring_free(h->host);
    }
    ring_nccl_free(h->n);
    ring_free(h->control);
    (void)cudaFree(h->in.p);
    (void)cudaFree(h->out.p);
    if (h->stream != NULL) {
        (void)cudaStreamDestroy(h->stream);
    }
    bd_free(h);
}

/* A group of all ranks on host memory. */
static bd_status make_host_group(bd_kv *kv, ring_comm *c, const ring_options *opt,
                                 ring_backend_kind kind, const char *part, ring_comm **out,
                                 bd_err *err)
{
    ring_options o = *opt;
    char *group = bd_strfmt("%s/%s", c->group, part);
    if (group == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring %s", c->group);
    }
    o.group = group;
    o.backend = kind;
    bd_status rc = ring_new(kv, ring_rank(c), ring_world(c), &o, out, err);
    bd_free(group);
    return rc;
}

static bd_status find_device(bd_kv *kv, ring_comm *c, const ring_options *opt, bd_err *err)
{
    ring_hosts hosts;
    if (c->options.device > 0) {
        return BD_OK;
    }
    bd_status rc = ring_hosts_find(kv, ring_rank(c), ring_world(c), opt, &hosts, err);
    if (rc == BD_OK) {
        c->options.device = hosts.local_of[ring_rank(c)] + 1;
        ring_hosts_deinit(&hosts);
    }
    return rc;
}

static bd_status make_parts(nccl_comm *h, bd_kv *kv, const ring_options *opt, bd_err *err)
{
    ring_comm *c = h->comm;
    bd_status rc = find_device(kv, c, opt, err);
    rc = rc != BD_OK ? rc : make_host_group(kv, c, opt, RING_AUTO, "control", &h->control, err);
    rc = rc != BD_OK ? rc : make_host_group(kv, c, opt, RING_TCP, "host", &h->host, err);
    const ring_nccl_options o = {.group = c->group,
                                 .epoch = c->engine.epoch,
                                 .device = c->options.device - 1,
                                 .timeout_ms = opt->timeout_ms,
                                 .poll_ms = c->options.poll_ms,
                                 .control = h->control};
    rc = rc != BD_OK ? rc : ring_nccl_new(kv, ring_rank(c), ring_world(c), &o, &h->n, err);
    if (rc == BD_OK) {
        cudaError_t e = cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking);
        if (e != cudaSuccess) {
            h->stream = NULL;
            rc = ring_nccl_cuda_err(err, e, "stream for copies");
        }
    }
    h->backend.p2p = h->host;
    if (rc == BD_OK && h->host->backend != NULL) { /* more than one rank */
        ring_comm_watch(h->host, on_host_failed, h);
    }
    return rc;
}

bd_status ring_nccl_comm_new(bd_kv *kv, int rank, int world, const ring_options *opt,
                             ring_comm **out, bd_err *err)
{
    static const ring_options none = {0};
    ring_comm *c = NULL;
    opt = opt != NULL ? opt : &none;
    nccl_comm *h = bd_calloc(1, sizeof *h);
    if (h == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring over nccl");
    }
    bd_status rc = ring_comm_new(rank, world, opt, &c, err);
    if (rc != BD_OK) {
        bd_free(h);
        return rc;
    }
    h->backend = (ring_backend){.stop = nccl_stop,
                                .run = nccl_run,
                                .fail = nccl_fail,
                                .lend = nccl_lend,
                                .give_back = nccl_give_back};
    h->comm = c;
    c->backend = &h->backend;
    rc = make_parts(h, kv, opt, err);
    if (rc != BD_OK) {
        ring_free(c);
        (void)bd_err_wrap(err, "ring rank %d", rank);
        return rc; /* err may be NULL */
    }
    *out = c;
    return BD_OK;
}
