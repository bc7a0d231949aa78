/* The public collectives: check arguments, describe the operation, hand it to the communicator. */
#include "ring/ring.h"

#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_comm_int.h"

#include <string.h>

static void set_name(ring_op *op, const char *name)
{
    const char *text = name != NULL ? name : "";
    size_t n = strlen(text);
    op->name_hash = bd_hash64(text, n, 0);
    memcpy(op->name, text, n < RING_NAME_BYTES - 1 ? n : RING_NAME_BYTES - 1);
}

/* n_parts * n_elems elements must be addressable. */
static bd_status check_size(const ring_op *op, size_t n_parts, const void *buf, bd_err *err)
{
    size_t n_bytes = num_dtype_bytes((int)op->dtype);
    const char *what = ring_op_name((int)op->kind);
    if (n_bytes == 0) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": dtype %d", what, op->name, (int)op->dtype);
    }
    if (!bd_mul_size(n_bytes, op->n_elems, &n_bytes) || !bd_mul_size(n_bytes, n_parts, &n_bytes)) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": %zu elements are more than memory", what,
                          op->name, op->n_elems);
    }
    if (n_bytes > 0 && buf == NULL) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": no buffer", what, op->name);
    }
    return BD_OK;
}

static bd_status check_reduce(const ring_op *op, bd_err *err)
{
    bool is_float = op->dtype == NUM_F32 || op->dtype == NUM_F16 || op->dtype == NUM_BF16 ||
                    op->dtype == NUM_F64;
    bool is_bits = op->reduce == NUM_BAND || op->reduce == NUM_BOR;
    if (op->reduce < NUM_SUM || op->reduce > NUM_BOR) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": reduce op %d", ring_op_name((int)op->kind),
                          op->name, op->reduce);
    }
    if (is_float && is_bits) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "%s \"%s\": %s of %s", ring_op_name((int)op->kind),
                          op->name, num_reduce_op_name(op->reduce), num_dtype_name((int)op->dtype));
    }
    return BD_OK;
}

static bd_status check_root(const ring_comm *c, const ring_op *op, bd_err *err)
{
    if (op->root < 0 || op->root >= c->engine.world) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": root %d of world %d",
                          ring_op_name((int)op->kind), op->name, op->root, c->engine.world);
    }
    return BD_OK;
}

bd_status ring_allreduce(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, num_reduce_op op,
                         const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALLREDUCE,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    set_name(&o, name);
    bd_status rc = check_size(&o, 1, buf, err);
    rc = rc != BD_OK ? rc : check_reduce(&o, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

/* NOLINTNEXTLINE(readability-function-size): the public collectives take what MPI's take */
bd_status ring_reduce_scatter(ring_comm *c, void *in, void *out, size_t n_elems_out,
                              num_dtype dtype, num_reduce_op op, const char *name, ring_work **work,
                              bd_err *err)
{
    ring_op o = {.kind = RING_OP_REDUCE_SCATTER,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = -1,
                 .n_elems = n_elems_out,
                 .in = in,
                 .out = out};
    set_name(&o, name);
    bd_status rc = check_size(&o, (size_t)c->engine.world, in != NULL ? out : in, err);
    rc = rc != BD_OK ? rc : check_reduce(&o, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

bd_status ring_all_gather(ring_comm *c, const void *in, void *out, size_t n_elems_in,
                          num_dtype dtype, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {
        .kind = RING_OP_ALL_GATHER, .dtype = dtype, .root = -1, .n_elems = n_elems_in, .out = out};
    memcpy(&o.in, &in, sizeof in); /* one struct for all operations; this one only reads `in` */
    set_name(&o, name);
    bd_status rc = check_size(&o, (size_t)c->engine.world, in != NULL ? out : in, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

bd_status ring_broadcast(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, int root,
                         const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_BROADCAST,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    set_name(&o, name);
    bd_status rc = check_root(c, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, 1, buf, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

// NOLINTNEXTLINE(readability-function-size): a collective takes what MPI's does
bd_status ring_reduce(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, num_reduce_op op,
                      int root, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_REDUCE,
                 .dtype = dtype,
                 .reduce = (int)op,
                 .root = root,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf};
    set_name(&o, name);
    bd_status rc = check_root(c, &o, err);
    rc = rc != BD_OK ? rc : check_size(&o, 1, buf, err);
    rc = rc != BD_OK ? rc : check_reduce(&o, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

// NOLINTNEXTLINE(readability-function-size): a collective takes what MPI's does
bd_status ring_gather(ring_comm *c, const void *in, void *out, size_t n_elems_in, num_dtype dtype,
                      int root, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_GATHER,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems_in,
                 .in = bd_unconst(in),
                 .out = out};
    set_name(&o, name);
    bool gets = root == c->engine.rank;
    bd_status rc = check_root(c, &o, err);
    rc = rc != BD_OK ? rc
                     : check_size(&o, (size_t)c->engine.world, gets && in != NULL ? out : in, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

// NOLINTNEXTLINE(readability-function-size): a collective takes what MPI's does
bd_status ring_scatter(ring_comm *c, const void *in, void *out, size_t n_elems_out, num_dtype dtype,
                       int root, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_SCATTER,
                 .dtype = dtype,
                 .root = root,
                 .n_elems = n_elems_out,
                 .in = bd_unconst(in),
                 .out = out};
    set_name(&o, name);
    bool gives = root == c->engine.rank;
    bd_status rc = check_root(c, &o, err);
    rc = rc != BD_OK
             ? rc
             : check_size(&o, (size_t)c->engine.world, gives && out != NULL ? in : out, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

bd_status ring_all_to_all(ring_comm *c, const void *in, void *out, size_t n_elems, num_dtype dtype,
                          const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALL_TO_ALL,
                 .dtype = dtype,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = bd_unconst(in),
                 .out = out};
    set_name(&o, name);
    bd_status rc = check_size(&o, (size_t)c->engine.world, in != NULL ? out : in, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

/* The sum of counts is addressable in buf. */
static bd_status check_counts(const ring_comm *c, const ring_op *op, const size_t *counts,
                              const void *buf, bd_err *err)
{
    ring_op all = *op;
    for (int r = 0; r < c->engine.world; r++) {
        if (!bd_add_size(all.n_elems, counts[r], &all.n_elems)) {
            return bd_err_set(err, BD_E_INVALID,
                              "%s: the counts of %d ranks add up to more than memory", op->name,
                              c->engine.world);
        }
    }
    return check_size(&all, 1, buf, err);
}

/* NOLINTNEXTLINE(readability-function-size): the public collectives take what MPI's take */
bd_status ring_all_to_all_v(ring_comm *c, const void *in, const size_t *send_counts, void *out,
                            const size_t *recv_counts, num_dtype dtype, const char *name,
                            ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_ALL_TO_ALL_V,
                 .dtype = dtype,
                 .root = -1,
                 .in = bd_unconst(in),
                 .out = out,
                 .send_counts = send_counts,
                 .recv_counts = recv_counts};
    set_name(&o, name);
    bd_status rc = check_counts(c, &o, send_counts, in, err);
    rc = rc != BD_OK ? rc : check_counts(c, &o, recv_counts, out, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, &o, work, err);
}

bd_status ring_barrier(ring_comm *c, const char *name, bd_err *err)
{
    ring_op o = {.kind = RING_OP_BARRIER, .dtype = NUM_U8, .root = -1};
    set_name(&o, name);
    return ring_comm_submit(c, &o, NULL, err);
}

static bd_status submit_p2p(ring_comm *c, ring_op *o, const char *name, ring_work **work,
                            bd_err *err)
{
    set_name(o, name);
    if (o->peer < 0 || o->peer >= c->engine.world || o->peer == c->engine.rank) {
        return bd_err_set(err, BD_E_INVALID, "%s \"%s\": rank %d and rank %d of world %d",
                          ring_op_name((int)o->kind), o->name, c->engine.rank, o->peer,
                          c->engine.world);
    }
    bd_status rc = check_size(o, 1, o->in, err);
    return rc != BD_OK ? rc : ring_comm_submit(c, o, work, err);
}

// NOLINTNEXTLINE(readability-function-size): a collective takes what MPI's does
bd_status ring_send(ring_comm *c, const void *buf, size_t n_elems, num_dtype dtype, int to,
                    uint32_t tag, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_SEND,
                 .dtype = dtype,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = bd_unconst(buf),
                 .peer = to,
                 .tag = tag};
    return submit_p2p(c, &o, name, work, err);
}

// NOLINTNEXTLINE(readability-function-size): a collective takes what MPI's does
bd_status ring_recv(ring_comm *c, void *buf, size_t n_elems, num_dtype dtype, int from,
                    uint32_t tag, const char *name, ring_work **work, bd_err *err)
{
    ring_op o = {.kind = RING_OP_RECV,
                 .dtype = dtype,
                 .root = -1,
                 .n_elems = n_elems,
                 .in = buf,
                 .out = buf,
                 .peer = from,
                 .tag = tag};
    return submit_p2p(c, &o, name, work, err);
}
