/* How one bucket, or one piece of it, is summed: by one allreduce; in rank order; narrowed to 16
 * bits; by a hook (whole buckets).
 *
 * Rank order: rank k gets everybody's k-th part, adds the parts in rank order, and all gather the
 * sums: no algorithm has a say. 2(P-1)/P * S bytes sent per rank, as a ring; the second half leaves
 * after backward, because it depends on data and launches must not.
 * Narrowed: gradients are scaled in f32, then rounded; partial sums stay as small as the mean. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_comm_int.h"
#include "ring/ring_reducer_int.h"

#include <stdio.h>
#include <string.h>

static bool is_narrowed(const ring_reducer *r, const ring_bucket *b)
{
    return r->wire_dtype != 0 && b->dtype == NUM_F32;
}

static bool is_ordered(const ring_reducer *r)
{
    return r->opt.deterministic && ring_world(r->comm) > 1;
}

static num_dtype travels_as(const ring_reducer *r, const ring_bucket *b)
{
    return is_narrowed(r, b) ? r->wire_dtype : b->dtype;
}

bool ring_sum_init(const ring_reducer *r, ring_bucket *b)
{
    size_t world = (size_t)ring_world(r->comm);
    size_t elem_bytes = num_dtype_bytes((int)travels_as(r, b));
    bool ok = true;
    b->n_padded = is_ordered(r) ? (b->n_elems + world - 1) / world * world : b->n_elems;
    b->data = ring_alloc(r->comm, b->n_padded * num_dtype_bytes((int)b->dtype));
    if (is_narrowed(r, b)) {
        b->wire = ring_alloc(r->comm, b->n_padded * sizeof *b->wire);
        ok = b->wire != NULL;
    }
    if (is_ordered(r)) {
        b->parts = ring_alloc(r->comm, b->n_padded * elem_bytes);
        b->acc = elem_bytes == 2 ? bd_alloc(b->n_padded / world * sizeof *b->acc) : NULL;
        ok = ok && b->parts != NULL && (b->acc != NULL || elem_bytes != 2);
    }
    return ok && b->data != NULL;
}

void ring_sum_deinit(const ring_reducer *r, ring_bucket *b)
{
    ring_mem_release(r->comm, b->data);
    ring_mem_release(r->comm, b->wire);
    ring_mem_release(r->comm, b->parts);
    bd_free(b->acc);
}

bool ring_sum_scales(const ring_reducer *r, const ring_bucket *b)
{
    return r->hook.name != NULL || is_narrowed(r, b);
}

static ring_grad_bucket describe(const ring_reducer *r, size_t b_idx)
{
    const ring_bucket *b = &r->buckets[b_idx];
    size_t first = r->plan.starts[b_idx];
    return (ring_grad_bucket){
        .comm = r->comm,
        .idx = b_idx,
        .n_buckets = r->plan.n_buckets,
        .is_last = b_idx + 1 == r->plan.n_buckets,
        .dtype = b->dtype,
        .data = b->data,
        .n_elems = b->n_elems,
        .scale = r->step_scale,
        .params = r->plan.params + first,
        .offsets_elems = r->offsets + first,
        .n_params = r->plan.starts[b_idx + 1] - first,
    };
}

static void narrow(uint16_t *out, const float *in, size_t n, num_dtype dtype, float scale)
{
    if (dtype == NUM_F16) {
        for (size_t i = 0; i < n; i++) {
            out[i] = num_f32_to_f16(in[i] * scale);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = num_f32_to_bf16(in[i] * scale);
    }
}

static void widen(float *out, const uint16_t *in, size_t n, num_dtype dtype)
{
    if (dtype == NUM_F16) {
        for (size_t i = 0; i < n; i++) {
            out[i] = num_f16_to_f32(in[i]);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = num_bf16_to_f32(in[i]);
    }
}

/* The piece's part of a block of the bucket's elements. */
static uint8_t *at(void *block, size_t first_elem, num_dtype dtype)
{
    return (uint8_t *)block + first_elem * num_dtype_bytes((int)dtype);
}

static uint8_t *travelling(const ring_reducer *r, const ring_bucket *b, const ring_piece *p)
{
    return at(b->wire != NULL ? (void *)b->wire : b->data, p->first_elem, travels_as(r, b));
}

static float *floats(const ring_bucket *b, const ring_piece *p)
{
    return (float *)(void *)b->data + p->first_elem;
}

static void name_of(const ring_piece *p, const char *what, char name[RING_NAME_BYTES])
{
    if (p->idx == 0) {
        (void)snprintf(name, RING_NAME_BYTES, "reducer.%s.%zu", what, p->bucket);
    } else {
        (void)snprintf(name, RING_NAME_BYTES, "reducer.%s.%zu.%zu", what, p->bucket, p->idx);
    }
}

static bd_status start_sum(ring_reducer *r, ring_piece *p, bd_err *err)
{
    const ring_bucket *b = &r->buckets[p->bucket];
    num_dtype dtype = travels_as(r, b);
    uint8_t *buf = travelling(r, b, p);
    char name[RING_NAME_BYTES];
    name_of(p, "bucket", name);
    if (!is_ordered(r)) {
        return ring_allreduce(r->comm, buf, p->n_elems, dtype, NUM_SUM, name, &p->work, err);
    }
    memset(at(buf, p->n_elems, dtype), 0, (p->n_padded - p->n_elems) * num_dtype_bytes((int)dtype));
    return ring_all_to_all(r->comm, buf, at(b->parts, p->first_elem, dtype),
                           p->n_padded / (size_t)ring_world(r->comm), dtype, name, &p->work, err);
}

/* The parts added in rank order, into the first one. */
static bd_status add_parts(const ring_reducer *r, const ring_bucket *b, const ring_piece *p,
                           bd_err *err)
{
    num_dtype dtype = travels_as(r, b);
    size_t world = (size_t)ring_world(r->comm), n = p->n_padded / world;
    uint8_t *parts = at(b->parts, p->first_elem, dtype);
    float *acc = b->acc != NULL ? b->acc + p->first_elem / world : NULL;
    bd_status rc = BD_OK;
    if (acc != NULL) {
        widen(acc, (const uint16_t *)(void *)parts, n, dtype);
    }
    for (size_t k = 1; rc == BD_OK && k < world; k++) {
        rc = acc != NULL ? num_reduce_f32acc(acc, at(parts, k * n, dtype), n, dtype)
                         : num_reduce(parts, at(parts, k * n, dtype), n, dtype, NUM_SUM);
    }
    if (acc != NULL) {
        narrow((uint16_t *)(void *)parts, acc, n, dtype, 1);
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "reducer: sum of %s", num_dtype_name(dtype));
}

bd_status ring_sum_turn(ring_reducer *r, ring_piece *p, bd_err *err)
{
    const ring_bucket *b = &r->buckets[p->bucket];
    char name[RING_NAME_BYTES];
    if (!is_ordered(r) || !p->is_open) {
        return BD_OK;
    }
    ring_work *first_half = p->work;
    p->work = NULL;
    bd_status rc = ring_work_wait(first_half, err);
    rc = rc == BD_OK ? add_parts(r, b, p, err) : rc;
    if (rc != BD_OK) {
        return rc;
    }
    name_of(p, "sums", name);
    return ring_all_gather(r->comm, at(b->parts, p->first_elem, travels_as(r, b)),
                           travelling(r, b, p), p->n_padded / (size_t)ring_world(r->comm),
                           travels_as(r, b), name, &p->work, err);
}

bd_status ring_sum_start(ring_reducer *r, ring_piece *p, bd_err *err)
{
    const ring_bucket *b = &r->buckets[p->bucket];
    if (r->hook.name != NULL) {
        const ring_grad_bucket g = describe(r, p->bucket);
        bd_status rc = r->hook.start(r->hook.user, &g, &p->hook_state, err);
        p->is_open = rc == BD_OK;
        return rc;
    }
    if (b->wire != NULL) {
        narrow(b->wire + p->first_elem, floats(b, p), p->n_elems, r->wire_dtype, r->step_scale);
    }
    bd_status rc = start_sum(r, p, err);
    p->is_open = rc == BD_OK;
    return rc;
}

bd_status ring_sum_wait(ring_reducer *r, ring_piece *p, int64_t *done_ns, bd_err *err)
{
    const ring_bucket *b = &r->buckets[p->bucket];
    bd_status rc;
    if (!p->is_open) {
        return BD_OK;
    }
    p->is_open = false;
    if (r->hook.name != NULL) {
        const ring_grad_bucket g = describe(r, p->bucket);
        rc = r->hook.finish(r->hook.user, &g, p->hook_state, err);
        p->hook_state = NULL;
        *done_ns = bd_mono_ns();
        return rc;
    }
    ring_work *work = p->work;
    p->work = NULL;
    if (work == NULL) { /* its second half was never started */
        return bd_err_set(err, BD_E_ABORTED, "reducer: bucket %zu was given up", p->bucket);
    }
    rc = ring_work_wait_timed(work, done_ns, err);
    if (rc == BD_OK && b->wire != NULL) {
        widen(floats(b, p), b->wire + p->first_elem, p->n_elems, r->wire_dtype);
    }
    return rc;
}
