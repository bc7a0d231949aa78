/* The collectives: agreement, order with compute, the NCCL calls. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_comm_int.h"
#include "ring/ring_nccl_int.h"

#include <inttypes.h>
#include <string.h>

static const ring_nccl_how plain = {0};

/* ---- what NCCL calls things ---- */

/* False: NCCL has no such thing. */
static bool dtype_of(num_dtype dtype, ncclDataType_t *out)
{
    static const struct {
        num_dtype ours;
        ncclDataType_t theirs;
    } table[] = {{NUM_F32, ncclFloat32}, {NUM_F16, ncclFloat16}, {NUM_BF16, ncclBfloat16},
                 {NUM_F64, ncclFloat64}, {NUM_I32, ncclInt32},   {NUM_I64, ncclInt64},
                 {NUM_U8, ncclUint8},    {NUM_I8, ncclInt8}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].ours == dtype) {
            *out = table[i].theirs;
            return true;
        }
    }
    return false;
}

static bool reduce_of(int op, ncclRedOp_t *out)
{
    static const struct {
        num_reduce_op ours;
        ncclRedOp_t theirs;
    } table[] = {{NUM_SUM, ncclSum},
                 {NUM_AVG, ncclAvg},
                 {NUM_MIN, ncclMin},
                 {NUM_MAX, ncclMax},
                 {NUM_PROD, ncclProd}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if ((int)table[i].ours == op) {
            *out = table[i].theirs;
            return true;
        }
    }
    return false;
}

/* ---- checks that need no other rank ---- */

static bd_status check_size(const ring_op *op, size_t n_parts, bool has_buffers, bd_err *err)
{
    size_t n_bytes = num_dtype_bytes((int)op->dtype);
    const char *what = ring_op_name((int)op->kind);
    if (n_bytes == 0) {
        return bd_err_set(err, BD_E_INVALID, "nccl %s: dtype %d", what, (int)op->dtype);
    }
    if (!bd_mul_size(n_bytes, op->n_elems, &n_bytes) || !bd_mul_size(n_bytes, n_parts, &n_bytes)) {
        return bd_err_set(err, BD_E_INVALID, "nccl %s: %zu elements are more than memory", what,
                          op->n_elems);
    }
    if (n_bytes > 0 && !has_buffers) {
        return bd_err_set(err, BD_E_INVALID, "nccl %s: no buffer", what);
    }
    return BD_OK;
}

static bd_status check(const ring_nccl *n, const ring_op *op, bd_err *err)
{
    const char *what = ring_op_name((int)op->kind);
    ncclRedOp_t r;
    if (op->reduce != 0 && !reduce_of(op->reduce, &r)) {
        bool is_known = op->reduce == (int)NUM_BAND || op->reduce == (int)NUM_BOR;
        return bd_err_set(err, is_known ? BD_E_UNSUPPORTED : BD_E_INVALID,
                          "nccl %s: NCCL has no reduce op %s", what,
                          num_reduce_op_name(op->reduce));
    }
    if (op->root < -1 || op->root >= n->world) {
        return bd_err_set(err, BD_E_INVALID, "nccl %s: root %d of world %d", what, op->root,
                          n->world);
    }
    return BD_OK;
}

/* ---- agreement between ranks, on the host ---- */

/* all_to_all_v: what p sends to us is what we expect of p. */
static bd_status agree_on_counts(ring_nccl *n, const ring_op *op, uint64_t seq, bd_err *err)
{
    size_t world = (size_t)n->world;
    uint64_t *sent = bd_calloc(2 * world, sizeof *sent);
    if (sent == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "nccl all_to_all_v");
    }
    uint64_t *theirs = sent + world;
    for (size_t r = 0; r < world; r++) {
        sent[r] = op->send_counts[r];
    }
    bd_status rc = ring_all_to_all(n->control, sent, theirs, 1, NUM_I64, "counts", NULL, err);
    for (size_t r = 0; rc == BD_OK && r < world; r++) {
        if (theirs[r] != op->recv_counts[r]) {
            rc = bd_err_set(err, BD_E_MISMATCH,
                            "nccl %s: all_to_all_v \"%s\" (seq %" PRIu64 "): rank %zu sends "
                            "%" PRIu64 " elements, rank %d expects %zu",
                            n->group, op->name, seq, r, theirs[r], n->rank, op->recv_counts[r]);
        }
    }
    bd_free(sent);
    return rc;
}

static bd_status agree(ring_nccl *n, const ring_op *op, uint64_t seq, bd_err *err)
{
    if (n->control == NULL) {
        return BD_OK;
    }
    ring_op o = *op; /* its buffers are not touched */
    o.agree_only = true;
    bd_status rc = ring_comm_submit(n->control, &o, NULL, err);
    if (rc == BD_OK && op->kind == RING_OP_ALL_TO_ALL_V) {
        rc = agree_on_counts(n, op, seq, err);
    }
    return rc;
}

/* ---- the calls; comm is locked ---- */

typedef struct call {
    ncclComm_t comm;
    cudaStream_t stream;
    ncclDataType_t dtype;
    size_t elem_bytes;
    ncclResult_t rc; /* the first that is neither success nor in progress */
} call;

static void note(call *c, ncclResult_t r)
{
    if (c->rc == ncclSuccess || (c->rc == ncclInProgress && r != ncclSuccess)) {
        c->rc = r;
    }
}

static void send_to(call *c, const void *base, size_t at, size_t n_elems, int peer)
{
    if (n_elems > 0) {
        note(c, ncclSend((const char *)base + at * c->elem_bytes, n_elems, c->dtype, peer, c->comm,
                         c->stream));
    }
}

static void recv_from(call *c, void *base, size_t at, size_t n_elems, int peer)
{
    if (n_elems > 0) {
        note(c, ncclRecv((char *)base + at * c->elem_bytes, n_elems, c->dtype, peer, c->comm,
                         c->stream));
    }
}

/* What NCCL has no single call for (some have one from 2.28 on: it does the same). */
static void exchange(call *c, const ring_nccl *n, const ring_op *op)
{
    size_t out_at = 0, in_at = 0;
    note(c, ncclGroupStart());
    for (int r = 0; r < n->world; r++) {
        size_t k = op->n_elems;
        switch (op->kind) {
        case RING_OP_GATHER:
            if (r == 0) {
                send_to(c, op->in, 0, k, op->root);
            }
            if (n->rank == op->root) {
                recv_from(c, op->out, (size_t)r * k, k, r);
            }
            break;
        case RING_OP_SCATTER:
            if (n->rank == op->root) {
                send_to(c, op->in, (size_t)r * k, k, r);
            }
            if (r == 0) {
                recv_from(c, op->out, 0, k, op->root);
            }
            break;
        default:
            send_to(c, op->in, in_at, op->send_counts != NULL ? op->send_counts[r] : k, r);
            recv_from(c, op->out, out_at, op->recv_counts != NULL ? op->recv_counts[r] : k, r);
            in_at += op->send_counts != NULL ? op->send_counts[r] : k;
            out_at += op->recv_counts != NULL ? op->recv_counts[r] : k;
            break;
        }
    }
    note(c, ncclGroupEnd());
}

static void call_nccl(call *c, const ring_nccl *n, const ring_op *op)
{
    ncclRedOp_t r = ncclSum;
    (void)reduce_of(op->reduce, &r); /* checked before */
    size_t k = op->n_elems;
    switch (op->kind) {
    case RING_OP_ALLREDUCE:
        note(c, ncclAllReduce(op->in, op->out, k, c->dtype, r, c->comm, c->stream));
        break;
    case RING_OP_REDUCE_SCATTER:
        note(c, ncclReduceScatter(op->in, op->out, k, c->dtype, r, c->comm, c->stream));
        break;
    case RING_OP_ALL_GATHER:
        note(c, ncclAllGather(op->in, op->out, k, c->dtype, c->comm, c->stream));
        break;
    case RING_OP_BROADCAST:
        note(c, ncclBroadcast(op->in, op->out, k, c->dtype, op->root, c->comm, c->stream));
        break;
    case RING_OP_REDUCE:
        note(c, ncclReduce(op->in, op->out, k, c->dtype, r, op->root, c->comm, c->stream));
        break;
    case RING_OP_BARRIER:
        note(c, ncclAllReduce(n->token, n->token, 1, ncclFloat32, ncclMax, c->comm, c->stream));
        break;
    default:
        exchange(c, n, op);
        break;
    }
}

static bd_status launch(ring_nccl *n, const ring_nccl_work *w, bd_err *err)
{
    const ring_op *op = &w->op;
    bool has_counts = op->kind == RING_OP_ALL_TO_ALL_V || op->kind == RING_OP_BARRIER;
    if (op->n_elems == 0 && !has_counts) {
        return BD_OK;
    }
    call c = {.stream = n->stream, .elem_bytes = num_dtype_bytes((int)op->dtype)};
    (void)dtype_of(op->dtype, &c.dtype); /* checked before */
    c.comm = ring_nccl_lock_comm(n);
    if (c.comm == NULL) {
        return bd_err_set(err, BD_E_ABORTED, "the group has failed");
    }
    call_nccl(&c, n, op);
    ring_nccl_unlock_comm(n);
    return ring_nccl_settle(n, c.rc, "NCCL", w->issued_ns + n->timeout_ns, err);
}

/* ---- one operation from the call to the stream ---- */

static uint64_t digest_of(const ring_op *op)
{
    uint64_t small = (uint64_t)op->kind | (uint64_t)op->dtype << 8 | (uint64_t)op->reduce << 16 |
                     (uint64_t)(uint32_t)op->root << 32;
    return bd_mix64(bd_mix64(op->name_hash ^ bd_mix64(op->n_elems)) ^ small);
}

/* The operation gets its number; from now on it is in what this rank tells others. */
static bd_status enter(ring_nccl *n, ring_nccl_work *w, bd_err *err)
{
    (void)pthread_mutex_lock(&n->lock);
    bd_status rc = n->failure.code;
    if (rc != BD_OK) {
        (void)bd_err_set(err, rc, "%s", n->failure.text);
        w->state = RING_NCCL_FAILED;
    } else {
        w->seq = n->seq++;
        w->issued_ns = bd_mono_ns();
        ring_nccl_past *past = &n->history[w->seq % RING_NCCL_HISTORY];
        past->seq = w->seq;
        past->digest = digest_of(&w->op);
        ring_op_text(&w->op, w->seq, past->text, sizeof past->text);
        *(n->tail == NULL ? &n->head : &n->tail->next) = w;
        n->tail = w;
    }
    n->n_held++;
    (void)pthread_mutex_unlock(&n->lock);
    return rc;
}

static bd_status order_after(ring_nccl *n, const ring_nccl_how *how, const ring_nccl_work *w,
                             bd_err *err)
{
    cudaError_t e = cudaSetDevice(n->device);
    if (e == cudaSuccess && how->after != NULL) {
        e = cudaEventRecord(n->fork, how->after);
        e = e == cudaSuccess ? cudaStreamWaitEvent(n->stream, n->fork, 0) : e;
    }
    if (e == cudaSuccess && how->after_event != NULL) {
        e = cudaStreamWaitEvent(n->stream, how->after_event, 0);
    }
    e = e == cudaSuccess ? cudaEventRecord(w->ready, n->stream) : e;
    return e == cudaSuccess ? BD_OK : ring_nccl_cuda_err(err, e, "order with compute");
}

static bd_status launched(ring_nccl *n, ring_nccl_work *w, bd_err *err)
{
    cudaError_t e = cudaEventRecord(w->done, n->stream);
    if (e != cudaSuccess) {
        return ring_nccl_cuda_err(err, e, "cudaEventRecord");
    }
    (void)pthread_mutex_lock(&n->lock);
    if (w->state == RING_NCCL_ISSUED) { /* the group may have failed meanwhile */
        w->state = RING_NCCL_LAUNCHED;
    }
    (void)pthread_mutex_unlock(&n->lock);
    return BD_OK;
}

/* The first failure on this rank, with the operation's name. */
static bd_status issue(ring_nccl *n, ring_nccl_work *w, const ring_nccl_how *how, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    bd_status rc = enter(n, w, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = agree(n, &w->op, w->seq, &why); /* its text names operation and ranks */
    if (rc == BD_OK) {
        rc = order_after(n, how, w, &why);
        rc = rc != BD_OK ? rc : launch(n, w, &why);
        rc = rc != BD_OK ? rc : launched(n, w, &why);
        if (rc != BD_OK) {
            char text[RING_OP_TEXT_BYTES];
            ring_op_text(&w->op, w->seq, text, sizeof text);
            (void)bd_err_wrap(&why, "nccl %s: rank %d: %s", n->group, n->rank, text);
        }
    }
    return rc == BD_OK ? BD_OK : ring_nccl_fail(n, &why, err);
}

static bd_status submit(ring_nccl *n, ring_op *op, const ring_nccl_how *how, bd_err *err)
{
    ring_nccl_work *w = NULL;
    how = how != NULL ? how : &plain;
    const char *name = how->name != NULL ? how->name : "";
    size_t len = strlen(name);
    op->name_hash = bd_hash64(name, len, 0);
    memcpy(op->name, name, len < RING_NAME_BYTES - 1 ? len : RING_NAME_BYTES - 1);
    bd_status rc = check(n, op, err);
    bd_err why = BD_ERR_INIT;
    if (rc == BD_OK) {
        rc = ring_nccl_work_new(n, op, &w, &why);
    }
    if (rc == BD_E_NOMEM) { /* nothing has happened: may be tried again */
        return bd_err_set(err, rc, "%s", why.text);
    }
    if (rc != BD_OK) {
        return why.code != BD_OK ? ring_nccl_fail(n, &why, err) : rc;
    }
    rc = issue(n, w, how, err);
    if (rc != BD_OK) {
        ring_nccl_work_release(w);
        return rc;
    }
    if (how->work == NULL) {
        return ring_nccl_work_wait(w, err);
    }
    *how->work = w;
    return BD_OK;
}

/* ---- the public functions ---- */

bd_status ring_nccl_allreduce(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype,
                              num_reduce_op op, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALLREDUCE,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    bd_status rc = check_size(&o, 1, buf != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_reduce_scatter(ring_nccl *n, const void *in, void *out, size_t n_elems_out,
                                   num_dtype dtype, num_reduce_op op, const ring_nccl_how *how,
                                   bd_err *err)
{
    ring_op o = {.kind = RING_OP_REDUCE_SCATTER,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = -1,
                 .n_elems = n_elems_out,
                 .in = bd_unconst(in),
                 .out = out};
    bd_status rc = check_size(&o, (size_t)n->world, in != NULL && out != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_all_gather(ring_nccl *n, const void *in, void *out, size_t n_elems_in,
                               num_dtype dtype, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALL_GATHER,
                 .dtype = dtype,
                 .root = -1,
                 .n_elems = n_elems_in,
                 .in = bd_unconst(in),
                 .out = out};
    bd_status rc = check_size(&o, (size_t)n->world, in != NULL && out != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

/* A root is given, and one of the ranks. */
static bd_status check_root(const ring_nccl *n, const ring_op *op, bd_err *err)
{
    return op->root >= 0 ? BD_OK
                         : bd_err_set(err, BD_E_INVALID, "nccl %s: root %d of world %d",
                                      ring_op_name((int)op->kind), op->root, n->world);
}

bd_status ring_nccl_broadcast(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype, int root,
                              const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_BROADCAST,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    bd_status rc = check_root(n, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, 1, buf != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_reduce(ring_nccl *n, void *buf, size_t n_elems, num_dtype dtype,
                           num_reduce_op op, int root, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_REDUCE,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = root,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    bd_status rc = check_root(n, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, 1, buf != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_gather(ring_nccl *n, const void *in, void *out, size_t n_elems_in,
                           num_dtype dtype, int root, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_GATHER,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems_in,
                 .in = bd_unconst(in),
                 .out = out};
    bool has = in != NULL && (out != NULL || n->rank != root);
    bd_status rc = check_root(n, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, (size_t)n->world, has, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_scatter(ring_nccl *n, const void *in, void *out, size_t n_elems_out,
                            num_dtype dtype, int root, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_SCATTER,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems_out,
                 .in = bd_unconst(in),
                 .out = out};
    bool has = out != NULL && (in != NULL || n->rank != root);
    bd_status rc = check_root(n, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, (size_t)n->world, has, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_all_to_all(ring_nccl *n, const void *in, void *out, size_t n_elems,
                               num_dtype dtype, const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALL_TO_ALL,
                 .dtype = dtype,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = bd_unconst(in),
                 .out = out};
    bd_status rc = check_size(&o, (size_t)n->world, in != NULL && out != NULL, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

/* The sum of counts is addressable in buf. */
static bd_status check_counts(const ring_nccl *n, const ring_op *op, const size_t *counts,
                              const void *buf, bd_err *err)
{
    ring_op all = *op;
    for (int r = 0; r < n->world; r++) {
        if (!bd_add_size(all.n_elems, counts[r], &all.n_elems)) {
            return bd_err_set(err, BD_E_INVALID, "nccl %s: the counts add up to more than memory",
                              ring_op_name((int)op->kind));
        }
    }
    return check_size(&all, 1, buf != NULL, err);
}

bd_status ring_nccl_all_to_all_v(ring_nccl *n, const void *in, const size_t *send_counts, void *out,
                                 const size_t *recv_counts, num_dtype dtype,
                                 const ring_nccl_how *how, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALL_TO_ALL_V,
                 .dtype = dtype,
                 .root = -1,
                 .in = bd_unconst(in),
                 .out = out,
                 .send_counts = send_counts,
                 .recv_counts = recv_counts};
    bd_status rc = check_counts(n, &o, send_counts, in, err);
    rc = rc != BD_OK ? rc : check_counts(n, &o, recv_counts, out, err);
    return rc != BD_OK ? rc : submit(n, &o, how, err);
}

bd_status ring_nccl_barrier(ring_nccl *n, const char *name, bd_err *err)
{
    ring_op o = {.kind = RING_OP_BARRIER, .dtype = NUM_U8, .root = -1};
    const ring_nccl_how how = {.name = name};
    return submit(n, &o, &how, err);
}
