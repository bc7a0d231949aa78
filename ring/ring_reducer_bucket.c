/* Bucket memory, gradients in and out, launching in order. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_reducer_int.h"

#include <string.h>

static void free_buckets(const ring_reducer *r, ring_bucket *buckets, size_t n)
{
    for (size_t b = 0; buckets != NULL && b < n; b++) {
        ring_sum_deinit(r, &buckets[b]);
    }
    bd_free(buckets);
}

void ring_reducer_drop_buckets(ring_reducer *r)
{
    bd_err ignored = BD_ERR_INIT;
    for (size_t k = 0; k < r->n_pieces; k++) {
        int64_t done_ns = 0; /* the memory is still in use */
        bd_status rc = ring_sum_wait(r, &r->pieces[k], &done_ns, &ignored);
        (void)rc;
    }
    free_buckets(r, r->buckets, r->plan.n_buckets);
    bd_free(r->pieces);
    r->pieces = NULL;
    r->n_pieces = 0;
    r->buckets = NULL;
    ring_bucket_plan_deinit(&r->plan);
}

static bd_status make_buckets(const ring_reducer *r, const ring_bucket_plan *plan, ring_slot *slots,
                              size_t *offsets, ring_bucket **out, bd_err *err)
{
    ring_bucket *buckets = bd_calloc(plan->n_buckets + 1, sizeof *buckets);
    bool ok = buckets != NULL;
    for (size_t b = 0; ok && b < plan->n_buckets; b++) {
        bool idle = r->is_recorded;
        for (size_t k = plan->starts[b]; k < plan->starts[b + 1]; k++) {
            size_t i = plan->params[k];
            slots[i] = (ring_slot){b, buckets[b].n_elems};
            offsets[k] = buckets[b].n_elems;
            buckets[b].dtype = r->params[i].dtype;
            buckets[b].n_elems += r->params[i].n_elems;
            idle = idle && !r->is_used_global[i];
        }
        buckets[b].is_idle = idle;
        ok = ring_sum_init(r, &buckets[b]);
    }
    if (!ok) {
        free_buckets(r, buckets, plan->n_buckets);
        return bd_err_set(err, BD_E_NOMEM, "reducer: %zu buckets", plan->n_buckets);
    }
    *out = buckets;
    return BD_OK;
}

/* Pieces. A bucket of at least twice its limit is cut into as many as it has limits: one large
 * parameter does not hold up the link until all of its gradient is there. */

static size_t n_pieces_of(const ring_reducer *r, const ring_bucket *b, size_t b_idx)
{
    size_t limit = b_idx == 0 ? r->opt.first_bucket_bytes : r->opt.bucket_bytes;
    size_t n = b->n_elems * num_dtype_bytes((int)b->dtype) / limit;
    return r->hook.name != NULL || n < 2 ? 1 : n;
}

/* Pieces begin at multiples of a cache line's elements for each rank. */
static size_t piece_elems(const ring_reducer *r, const ring_bucket *b, size_t n)
{
    size_t unit = 64 * (size_t)ring_world(r->comm);
    size_t elems = (b->n_elems + n - 1) / n;
    return n == 1 ? b->n_elems : (elems + unit - 1) / unit * unit;
}

static bd_status make_pieces(ring_reducer *r, const ring_bucket *buckets, size_t n_buckets,
                             ring_piece **out, size_t *n_out, bd_err *err)
{
    size_t n = 0, cap = 0;
    ring_piece *pieces = NULL;
    bool ok = buckets != NULL && bd_grow(&pieces, &cap, n_buckets + 1, sizeof *pieces);
    for (size_t b_idx = 0; ok && b_idx < n_buckets; b_idx++) {
        const ring_bucket *b = &buckets[b_idx];
        size_t step = piece_elems(r, b, n_pieces_of(r, b, b_idx)), first = 0;
        for (size_t k = 0; ok && (k == 0 || first < b->n_elems); k++) {
            bool is_last = first + step >= b->n_elems;
            ok = bd_grow(&pieces, &cap, n + 1, sizeof *pieces);
            if (ok) {
                pieces[n++] = (ring_piece){.bucket = b_idx,
                                           .idx = k,
                                           .is_last = is_last,
                                           .first_elem = first,
                                           .n_elems = is_last ? b->n_elems - first : step,
                                           .n_padded = is_last ? b->n_padded - first : step};
            }
            first += step;
        }
    }
    ok = ok && bd_grow(&r->piece_times, &r->cap_piece_times, n, sizeof *r->piece_times);
    if (!ok) {
        bd_free(pieces);
        return bd_err_set(err, BD_E_NOMEM, "reducer: pieces of %zu buckets", n_buckets);
    }
    *out = pieces;
    *n_out = n;
    return BD_OK;
}

bd_status ring_reducer_cut(ring_reducer *r, bd_err *err)
{
    ring_piece *pieces = NULL;
    size_t n = 0;
    bd_status rc = make_pieces(r, r->buckets, r->plan.n_buckets, &pieces, &n, err);
    if (rc == BD_OK) {
        bd_free(r->pieces);
        r->pieces = pieces;
        r->n_pieces = n;
    }
    return rc;
}

/* Gradients that live in the old buckets, or in memory that the first buckets replace, move to the
 * new ones; r->buckets and r->slots are still the old ones. */
static void move_views(ring_reducer *r, const ring_bucket *buckets, const ring_slot *slots)
{
    for (size_t i = 0; i < r->n_params; i++) {
        ring_param *p = &r->params[i];
        size_t elem_bytes = num_dtype_bytes((int)p->dtype);
        void *at = buckets[slots[i].bucket].data + slots[i].offset_elems * elem_bytes;
        bool is_home = r->buckets == NULL || ring_reducer_is_view(r, i); /* not bound elsewhere */
        if (p->n_elems > 0 && is_home && p->grad != NULL) {
            memcpy(at, p->grad, p->n_elems * elem_bytes);
        } else if (p->n_elems > 0) {
            memset(at, 0, p->n_elems * elem_bytes);
        }
        p->grad = is_home ? at : p->grad;
        r->opt.bind(r->opt.bind_user, i, at);
    }
}

bd_status ring_reducer_adopt(ring_reducer *r, ring_bucket_plan *plan, bd_err *err)
{
    ring_bucket *buckets = NULL;
    ring_piece *pieces = NULL;
    size_t n_pieces = 0;
    ring_slot *slots = bd_calloc(r->n_params + 1, sizeof *slots);
    size_t *offsets = bd_calloc(r->n_params + 1, sizeof *offsets);
    bd_status rc = slots == NULL || offsets == NULL
                       ? bd_err_set(err, BD_E_NOMEM, "reducer")
                       : make_buckets(r, plan, slots, offsets, &buckets, err);
    rc = rc == BD_OK ? make_pieces(r, buckets, plan->n_buckets, &pieces, &n_pieces, err) : rc;
    if (rc != BD_OK) {
        free_buckets(r, buckets, plan->n_buckets);
        bd_free(slots);
        bd_free(offsets);
        return rc;
    }
    if (r->opt.bind != NULL && buckets != NULL && slots != NULL) {
        move_views(r, buckets, slots);
    }
    ring_reducer_drop_buckets(r);
    bd_free(r->slots);
    bd_free(r->offsets);
    r->slots = slots;
    r->offsets = offsets;
    r->buckets = buckets;
    r->pieces = pieces;
    r->n_pieces = n_pieces;
    r->plan = *plan;
    *plan = (ring_bucket_plan){0};
    if (r->hook.on_layout != NULL) {
        r->hook.on_layout(r->hook.user);
    }
    return BD_OK;
}

void ring_reducer_reset_step(ring_reducer *r)
{
    memset(r->is_settled, 0, r->n_params * sizeof *r->is_settled);
    memset(r->is_unused, 0, r->n_params * sizeof *r->is_unused);
    memset(r->n_final, 0, r->n_params * sizeof *r->n_final);
    memset(r->is_missing, 0, r->n_params * sizeof *r->is_missing);
    memset(r->is_saved, 0, r->n_params * sizeof *r->is_saved);
    memset(r->flags, 0, r->flags_bytes);
    r->fault = (bd_err)BD_ERR_INIT;
    r->n_ready_order = 0;
    r->next_piece = 0;
    r->times.first_launch_ns = 0;
    r->times.last_done_ns = 0;
    for (size_t b = 0; b < r->plan.n_buckets; b++) {
        r->buckets[b].cursor = r->plan.starts[b];
    }
}

/* Copying and scaling in one pass: the gradient is read once. dst == src is fine. */
static void copy_scaled(void *dst, const void *src, size_t n_elems, num_dtype dtype, float scale)
{
    if (dtype == NUM_F32 && scale != 1.0f) {
        float *d = dst;
        const float *s = src;
        for (size_t i = 0; i < n_elems; i++) {
            d[i] = s[i] * scale;
        }
        return;
    }
    if (dst != src) {
        memcpy(dst, src, n_elems * num_dtype_bytes((int)dtype));
    }
    if (scale != 1.0f) {
        num_scale(dst, n_elems, dtype, scale);
    }
}

/* A view that is not used here must hold zeros; what it held comes back if nobody used it. */
static bd_status save_view(ring_reducer *r, size_t i, size_t n_bytes, bd_err *err)
{
    if (r->saved[i] == NULL) {
        r->saved[i] = bd_alloc(n_bytes);
    }
    if (r->saved[i] == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer: gradient of %zu bytes", n_bytes);
    }
    memcpy(r->saved[i], r->params[i].grad, n_bytes);
    r->is_saved[i] = true;
    return BD_OK;
}

/* Elements [first, end) of parameter i into its bucket, of this rank's gradient. */
static void contribute_used(ring_reducer *r, size_t i, size_t first, size_t end)
{
    const ring_param *p = &r->params[i];
    const ring_slot *s = &r->slots[i];
    size_t elem_bytes = num_dtype_bytes((int)p->dtype);
    float scale = ring_sum_scales(r, &r->buckets[s->bucket]) ? 1 : r->step_scale;
    copy_scaled((uint8_t *)ring_reducer_at(r, i) + first * elem_bytes,
                (const uint8_t *)p->grad + first * elem_bytes, end - first, p->dtype, scale);
}

/* Zeros, but not where something is on its way already (of a backward that failed since). */
static bd_status contribute_zeros(ring_reducer *r, size_t i, bd_err *err)
{
    const ring_param *p = &r->params[i];
    uint8_t *at = ring_reducer_at(r, i);
    size_t elem_bytes = num_dtype_bytes((int)p->dtype), n_sent = r->n_final[i];
    bd_status rc = BD_OK;
    if (p->grad == at && n_sent == 0) {
        rc = save_view(r, i, p->n_elems * elem_bytes, err);
    }
    memset(at + n_sent * elem_bytes, 0, (p->n_elems - n_sent) * elem_bytes);
    return rc;
}

/* How many of the bucket's elements are final from its first on; all of its parameters: SIZE_MAX.
 */
static size_t final_elems(const ring_reducer *r, size_t b_idx)
{
    ring_bucket *b = &r->buckets[b_idx];
    size_t end = r->plan.starts[b_idx + 1];
    while (b->cursor < end && r->is_settled[r->plan.params[b->cursor]]) {
        b->cursor++;
    }
    if (b->cursor == end) {
        return SIZE_MAX;
    }
    size_t i = r->plan.params[b->cursor];
    return r->slots[i].offset_elems + r->n_final[i];
}

/* Strictly in index order on every rank, whatever the order of readiness: this is what keeps the
 * collectives of all ranks matched. */
static bd_status launch(ring_reducer *r, bd_err *err)
{
    bd_status rc = BD_OK;
    while (rc == BD_OK && r->next_piece < r->n_pieces) {
        ring_piece *p = &r->pieces[r->next_piece];
        const ring_bucket *b = &r->buckets[p->bucket];
        size_t n_final = final_elems(r, p->bucket);
        if (p->is_last ? n_final != SIZE_MAX : n_final < p->first_elem + p->n_elems) {
            break;
        }
        ring_piece_times *t = &r->piece_times[r->next_piece];
        *t = (ring_piece_times){.bucket = p->bucket,
                                .piece = p->idx,
                                .n_bytes = p->n_elems * num_dtype_bytes((int)b->dtype)};
        if (!b->is_idle) {
            t->launch_ns = bd_mono_ns();
            r->times.first_launch_ns =
                r->times.first_launch_ns != 0 ? r->times.first_launch_ns : t->launch_ns;
            rc = ring_sum_start(r, p, err);
        }
        r->next_piece++;
    }
    return rc;
}

bd_status ring_reducer_settle(ring_reducer *r, size_t i, bd_err *err)
{
    bd_status rc = BD_OK;
    BD_ASSERT(!r->is_settled[i]);
    r->is_settled[i] = true;
    if (r->params[i].n_elems > 0 && !r->buckets[r->slots[i].bucket].is_idle) {
        if (r->is_used[i]) {
            contribute_used(r, i, r->n_final[i], r->params[i].n_elems);
        } else {
            rc = contribute_zeros(r, i, err);
        }
    }
    return rc == BD_OK ? launch(r, err) : rc;
}

bd_status ring_reducer_settle_upto(ring_reducer *r, size_t i, size_t n_elems, bd_err *err)
{
    if (r->buckets[r->slots[i].bucket].is_idle || n_elems <= r->n_final[i]) {
        return BD_OK;
    }
    contribute_used(r, i, r->n_final[i], n_elems);
    r->n_final[i] = n_elems;
    return launch(r, err);
}

static void wait_piece(ring_reducer *r, size_t idx, bd_err *first)
{
    ring_piece_times *t = &r->piece_times[idx];
    bd_err err = BD_ERR_INIT;
    t->wait_start_ns = bd_mono_ns();
    bd_status rc = ring_sum_wait(r, &r->pieces[idx], &t->done_ns, &err);
    t->wait_end_ns = bd_mono_ns();
    r->times.last_done_ns = t->done_ns > r->times.last_done_ns ? t->done_ns : r->times.last_done_ns;
    if (rc != BD_OK) {
        bd_err_keep_first(first, &err);
    }
}

/* Who used what, who misses what, who failed: one reduction after the last bucket, so that a fault
 * after that bucket's launch is still told. */
static bd_status reduce_flags(ring_reducer *r, ring_work **work, bd_err *err)
{
    size_t half = r->flags_bytes / 2;
    for (size_t i = 0; i < r->n_params; i++) {
        if (r->is_used[i]) {
            ring_set_bit(r->flags, i);
        }
        if (r->is_missing[i]) {
            ring_set_bit(r->flags + half, i);
        }
    }
    r->flags[2 * half] = r->fault.code != BD_OK ? 1 : 0;
    return ring_allreduce(r->comm, r->flags, r->flags_bytes, NUM_U8, NUM_BOR, "reducer.flags", work,
                          err);
}

static void put_back(ring_reducer *r)
{
    for (size_t i = 0; i < r->n_params; i++) {
        const ring_param *p = &r->params[i];
        size_t n_bytes = p->n_elems * num_dtype_bytes((int)p->dtype);
        void *at = ring_reducer_at(r, i);
        r->is_used_global[i] = ring_bit(r->flags, i);
        if (r->is_used_global[i] && n_bytes > 0 && p->grad != at) {
            memcpy(p->grad, at, n_bytes);
        } else if (!r->is_used_global[i] && r->is_saved[i]) {
            memcpy(at, r->saved[i], n_bytes);
        }
        r->is_used[i] = false;
    }
}

static bool any_missing(const ring_reducer *r)
{
    const uint8_t *bits = r->flags + r->flags_bytes / 2;
    for (size_t i = 0; i < r->n_params; i++) {
        if (ring_bit(bits, i)) {
            return true;
        }
    }
    return false;
}

/* All buckets launched and waited for, flags reduced; the first failure is the result. */
static bd_status sum_all(ring_reducer *r, bd_err *err)
{
    bd_err first = BD_ERR_INIT, more = BD_ERR_INIT;
    ring_work *flags = NULL;
    for (size_t k = 0; k < r->n_params && first.code == BD_OK; k++) {
        size_t i = r->plan.params[k];
        if (!r->is_settled[i]) {
            first.code = ring_reducer_settle(r, i, &first);
        }
    }
    if (first.code == BD_OK) {
        first.code = reduce_flags(r, &flags, &first);
    }
    int64_t start_ns = bd_mono_ns();
    for (size_t k = 0; first.code == BD_OK && k < r->n_pieces; k++) {
        first.code = ring_sum_turn(r, &r->pieces[k], &first);
    }
    r->n_piece_times = r->n_pieces;
    for (size_t k = 0; k < r->n_pieces; k++) {
        wait_piece(r, k, &first);
    }
    if (flags != NULL && ring_work_wait(flags, &more) != BD_OK) {
        bd_err_keep_first(&first, &more);
    }
    r->wait_ns = bd_mono_ns() - start_ns;
    r->comm_ns =
        r->times.first_launch_ns != 0 ? r->times.last_done_ns - r->times.first_launch_ns : 0;
    return first.code == BD_OK ? BD_OK : bd_err_set(err, first.code, "%s", first.text);
}

bd_status ring_reducer_complete(ring_reducer *r, bd_err *err)
{
    bd_status rc = sum_all(r, err);
    if (rc != BD_OK) {
        return rc;
    }
    bool failed = r->flags[r->flags_bytes - 1] != 0;
    if (failed || any_missing(r)) { /* the gradients of this step are void */
        memset(r->is_used, 0, r->n_params * sizeof *r->is_used);
        return failed ? ring_reducer_report_fault(r, err) : ring_reducer_report_missing(r, err);
    }
    put_back(r);
    bool recorded_now = r->opt.static_graph && !r->is_recorded;
    r->is_recorded = r->opt.static_graph;
    if (!r->has_rebuilt) {
        return ring_reducer_rebuild(r, err);
    }
    for (size_t b = 0; recorded_now && b < r->plan.n_buckets; b++) { /* a layout that was loaded */
        bool idle = true;
        for (size_t k = r->plan.starts[b]; k < r->plan.starts[b + 1]; k++) {
            idle = idle && !r->is_used_global[r->plan.params[k]];
        }
        r->buckets[b].is_idle = idle;
    }
    return BD_OK;
}
