/* The reducer's life and one backward. See ring_reducer_int.h for its other files. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_reducer_int.h"

#include <string.h>

#define FIRST_BUCKET_BYTES ((size_t)1 << 20)
#define BUCKET_BYTES       ((size_t)25 << 20)
#define LOG_RATE           100

static ring_reducer_options resolve(const ring_reducer_options *opt)
{
    ring_reducer_options o = {0};
    if (opt != NULL) {
        o = *opt;
    }
    o.bucket_bytes = o.bucket_bytes != 0 ? o.bucket_bytes : BUCKET_BYTES;
    o.first_bucket_bytes = o.first_bucket_bytes != 0 ? o.first_bucket_bytes : FIRST_BUCKET_BYTES;
    o.scale = o.scale != 0 ? o.scale : 1.0f;
    o.compress = o.compress != NULL ? o.compress : "none";
    return o;
}

static bd_status check_params(const ring_param *params, size_t n, bd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes = num_dtype_bytes((int)params[i].dtype);
        if (params[i].name == NULL || n_bytes == 0 ||
            !bd_mul_size(n_bytes, params[i].n_elems, &n_bytes)) {
            return bd_err_set(err, BD_E_INVALID, "reducer: parameter %zu (%s) has no valid size", i,
                              params[i].name != NULL ? params[i].name : "no name");
        }
    }
    return BD_OK;
}

static bd_status set_compress(ring_reducer *r, bd_err *err)
{
    int dtype = num_dtype_parse(r->opt.compress);
    if (strcmp(r->opt.compress, "none") == 0) {
        return BD_OK;
    }
    if (dtype != NUM_F16 && dtype != NUM_BF16) {
        return bd_err_set(err, BD_E_INVALID, "reducer: compress \"%.40s\" is not none, f16 or bf16",
                          r->opt.compress);
    }
    r->wire_dtype = (num_dtype)dtype;
    return BD_OK;
}

static bd_status alloc_state(ring_reducer *r, const ring_param *params, bd_err *err)
{
    size_t n = r->n_params;
    r->flags_bytes = 2 * ((n + 7) / 8) + 1;
    r->params = bd_calloc(n + 1, sizeof *r->params);
    r->is_settled = bd_calloc(n + 1, sizeof *r->is_settled);
    r->is_unused = bd_calloc(n + 1, sizeof *r->is_unused);
    r->is_missing = bd_calloc(n + 1, sizeof *r->is_missing);
    r->is_saved = bd_calloc(n + 1, sizeof *r->is_saved);
    r->saved = bd_calloc(n + 1, sizeof *r->saved);
    r->is_used = bd_calloc(n + 1, sizeof *r->is_used);
    r->is_used_global = bd_calloc(n + 1, sizeof *r->is_used_global);
    r->ready_order = bd_calloc(n + 1, sizeof *r->ready_order);
    r->n_uses = bd_calloc(n + 1, sizeof *r->n_uses);
    r->n_left = bd_calloc(n + 1, sizeof *r->n_left);
    r->n_final = bd_calloc(n + 1, sizeof *r->n_final);
    r->stats.initial_bytes = bd_calloc(n + 1, sizeof *r->stats.initial_bytes);
    r->flags = bd_calloc(r->flags_bytes, 1);
    if (r->params == NULL || r->is_settled == NULL || r->is_unused == NULL ||
        r->is_missing == NULL || r->is_saved == NULL || r->saved == NULL || r->is_used == NULL ||
        r->is_used_global == NULL || r->ready_order == NULL || r->n_uses == NULL ||
        r->n_left == NULL || r->n_final == NULL || r->stats.initial_bytes == NULL ||
        r->flags == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer of %zu parameters", n);
    }
    if (n > 0) {
        memcpy(r->params, params, n * sizeof *params);
    }
    return BD_OK;
}

/* Reverse parameter order: backward reaches the last parameters first. */
static bd_status first_plan(ring_reducer *r, bd_err *err)
{
    ring_bucket_plan plan = {0};
    size_t *order = bd_calloc(r->n_params + 1, sizeof *order);
    bd_status rc = order == NULL ? bd_err_set(err, BD_E_NOMEM, "reducer") : BD_OK;
    for (size_t i = 0; rc == BD_OK && i < r->n_params; i++) {
        order[i] = r->n_params - 1 - i;
    }
    if (rc == BD_OK) {
        rc = ring_reducer_plan(r, order, &plan, err);
    }
    if (rc == BD_OK) {
        rc = ring_reducer_adopt(r, &plan, err);
    }
    for (size_t b = 0; rc == BD_OK && b < r->plan.n_buckets; b++) {
        const ring_bucket *k = &r->buckets[b];
        r->stats.initial_bytes[r->stats.n_initial++] = k->n_elems * num_dtype_bytes((int)k->dtype);
    }
    ring_bucket_plan_deinit(&plan);
    bd_free(order);
    return rc;
}

bd_status ring_reducer_new(ring_comm *c, const ring_param *params, size_t n_params,
                           const ring_reducer_options *opt, ring_reducer **out, bd_err *err)
{
    bd_status rc = check_params(params, n_params, err);
    if (rc != BD_OK) {
        return rc;
    }
    ring_reducer *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer");
    }
    r->comm = c;
    r->n_params = n_params;
    r->opt = resolve(opt);
    r->stats.rate = LOG_RATE;
    r->n_active = ring_world(c);
    rc = set_compress(r, err);
    rc = rc != BD_OK ? rc : alloc_state(r, params, err);
    rc = rc != BD_OK ? rc : first_plan(r, err);
    rc = rc != BD_OK ? rc : ring_reducer_check_manifest(r, err);
    if (rc != BD_OK) {
        ring_reducer_free(r);
        return rc;
    }
    *out = r;
    return BD_OK;
}

void ring_reducer_free(ring_reducer *r)
{
    if (r == NULL) {
        return;
    }
    for (size_t i = 0; r->opt.bind != NULL && r->buckets != NULL && i < r->n_params; i++) {
        r->opt.bind(r->opt.bind_user, i, NULL);
    }
    ring_reducer_drop_buckets(r);
    for (size_t i = 0; r->saved != NULL && i < r->n_params; i++) {
        bd_free(r->saved[i]);
    }
    bd_free(r->saved);
    bd_free(bd_unconst(r->buffers));
    bd_free(r->buffer_bytes);
    bd_free(r->slots);
    bd_free(r->offsets);
    bd_free(r->params);
    bd_free(r->is_settled);
    bd_free(r->is_unused);
    bd_free(r->is_missing);
    bd_free(r->is_saved);
    bd_free(r->is_used);
    bd_free(r->is_used_global);
    bd_free(r->ready_order);
    bd_free(r->n_uses);
    bd_free(r->n_left);
    bd_free(r->n_final);
    bd_free(r->piece_times);
    bd_free(r->stats.initial_bytes);
    bd_free(r->flags);
    bd_free(r);
}

bd_status ring_reducer_set_hook(ring_reducer *r, const ring_hook *hook, bd_err *err)
{
    if (r->has_stepped || r->hook.name != NULL) {
        return bd_err_set(err, BD_E_STATE, "reducer: hook %s: %s", hook->name,
                          r->hook.name != NULL ? "there is one already"
                                               : "hooks are set before the first step");
    }
    if (r->opt.deterministic || r->wire_dtype != 0) {
        return bd_err_set(err, BD_E_STATE, "reducer: hook %s: not together with %s", hook->name,
                          r->opt.deterministic ? "deterministic" : "compress");
    }
    r->hook = *hook;
    bd_status rc = ring_reducer_check_manifest(r, err);
    return rc == BD_OK ? ring_reducer_cut(r, err) : rc;
}

/* ---- errors of a backward ---- */

bd_status ring_reducer_keep(ring_reducer *r, const bd_err *e, bd_err *err)
{
    r->stats.error = *e;
    if (r->in_backward) {
        bd_err_keep_first(&r->fault, e);
    }
    if (err != NULL) {
        *err = *e;
    }
    return e->code;
}

void ring_reducer_fail(ring_reducer *r, const bd_err *why)
{
    bd_status rc = why->code != BD_OK ? ring_reducer_keep(r, why, NULL) : BD_OK;
    (void)rc;
}

static bd_status wrong(ring_reducer *r, size_t i, const char *what, bd_err *err)
{
    bd_err e = BD_ERR_INIT;
    (void)bd_err_set(&e, BD_E_STATE, "reducer: parameter %zu (%s) %s", i, r->params[i].name, what);
    return ring_reducer_keep(r, &e, err);
}

/* ---- a step ---- */

bool ring_reducer_is_view(const ring_reducer *r, size_t i)
{
    return r->opt.bind != NULL && r->params[i].grad == ring_reducer_at(r, i);
}

void ring_reducer_bind(ring_reducer *r, void *const *grads)
{
    for (size_t i = 0; i < r->n_params; i++) {
        r->params[i].grad = grads != NULL ? grads[i] : ring_reducer_at(r, i);
    }
}

static float scale_of_step(const ring_reducer *r)
{
    bool all = !r->opt.divide_by_active || !r->has_joined_ranks;
    return all ? r->opt.scale : r->opt.scale * (float)ring_world(r->comm) / (float)r->n_active;
}

/* A static graph knows from its first step who stays unused. */
static bd_status settle_known_unused(ring_reducer *r, bd_err *err)
{
    bd_status rc = BD_OK;
    memcpy(r->n_left, r->n_uses, r->n_params * sizeof *r->n_left);
    for (size_t i = 0; rc == BD_OK && i < r->n_params; i++) {
        if (r->n_uses[i] == 0) {
            rc = ring_reducer_settle(r, i, err);
        }
    }
    return rc;
}

bd_status ring_reducer_prepare(ring_reducer *r, bool sync, bd_err *err)
{
    bd_status rc = BD_OK;
    if (r->in_backward) {
        return bd_err_set(err, BD_E_STATE, "reducer: the last backward was not finished");
    }
    if (r->n_buffers > 0 && (r->in_forward ? r->forward_sync != sync : sync)) {
        return bd_err_set(err, BD_E_STATE, "reducer: backward %s sync after %s",
                          sync ? "with" : "without",
                          r->in_forward ? "another forward" : "no ring_reducer_forward");
    }
    ring_reducer_reset_step(r);
    r->is_sync = sync;
    r->in_backward = true;
    r->has_stepped = true;
    r->step_scale = scale_of_step(r);
    r->times.backward_ns = bd_mono_ns();
    if (r->has_joined_ranks && !r->has_told) {
        rc = ring_reducer_tell_joined(r, sync, err);
    }
    if (rc == BD_OK && r->opt.static_graph && sync) {
        if (r->is_recorded) {
            rc = settle_known_unused(r, err);
        } else {
            memset(r->n_uses, 0, r->n_params * sizeof *r->n_uses);
        }
    }
    return rc;
}

static bd_status check_hook(ring_reducer *r, size_t i, bd_err *err)
{
    bd_err e = BD_ERR_INIT;
    if (i >= r->n_params) {
        (void)bd_err_set(&e, BD_E_INVALID, "reducer: parameter %zu of %zu", i, r->n_params);
        return ring_reducer_keep(r, &e, err);
    }
    return r->in_backward ? BD_OK : wrong(r, i, "became ready while no backward is open", err);
}

static void note_ready(ring_reducer *r, size_t i)
{
    r->is_used[i] = true;
    if (r->n_ready_order < r->n_params) {
        r->ready_order[r->n_ready_order++] = i;
    }
}

/* The first step counts and sends nothing: nobody knows yet which use is the last. */
static bd_status ready_static(ring_reducer *r, size_t i, bd_err *err)
{
    if (!r->is_recorded) {
        if (r->n_uses[i]++ == 0) {
            note_ready(r, i);
        }
        return BD_OK;
    }
    if (r->n_left[i] == 0) {
        return wrong(r, i, "became ready more often than in the first step: the graph has changed",
                     err);
    }
    if (--r->n_left[i] > 0) {
        return BD_OK;
    }
    note_ready(r, i);
    return ring_reducer_settle(r, i, err);
}

bd_status ring_reducer_ready(ring_reducer *r, size_t param_idx, bd_err *err)
{
    size_t i = param_idx;
    bd_status rc = check_hook(r, i, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (r->is_unused[i]) {
        return wrong(r, i, "became ready after it was declared unused", err);
    }
    if (r->opt.static_graph) {
        if (r->is_recorded && r->n_uses[i] == 0) {
            return wrong(r, i, "is used and was not in the first step: the graph has changed", err);
        }
        r->is_used[i] = true;
        return r->is_sync ? ready_static(r, i, err) : BD_OK;
    }
    if (r->is_settled[i]) {
        return wrong(r, i, "became ready twice in one backward", err);
    }
    note_ready(r, i);
    if (!r->is_sync) {
        r->is_settled[i] = true;
        return BD_OK;
    }
    return ring_reducer_settle(r, i, err);
}

bd_status ring_reducer_ready_at(ring_reducer *r, size_t param_idx, const void *grad, bd_err *err)
{
    bd_status rc = check_hook(r, param_idx, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (grad != r->params[param_idx].grad && r->params[param_idx].n_elems > 0) {
        return wrong(r, param_idx,
                     "has its gradient in other memory than the reducer's: somebody replaced it",
                     err);
    }
    return ring_reducer_ready(r, param_idx, err);
}

/* Only where the last use of this backward is at work: then the first part of the sum is final. */
bd_status ring_reducer_ready_upto(ring_reducer *r, size_t param_idx, size_t n_elems, bd_err *err)
{
    size_t i = param_idx;
    bd_status rc = check_hook(r, i, err);
    if (rc != BD_OK || !r->is_sync || r->hook.name != NULL) {
        return rc;
    }
    if (n_elems > r->params[i].n_elems || r->is_settled[i]) {
        return wrong(r, i, "became final in part after all of it, or beyond its end", err);
    }
    bool is_last_use = r->opt.static_graph ? r->is_recorded && r->n_left[i] == 1 : true;
    return is_last_use ? ring_reducer_settle_upto(r, i, n_elems, err) : BD_OK;
}

bd_status ring_reducer_unused(ring_reducer *r, size_t param_idx, bd_err *err)
{
    size_t i = param_idx;
    bd_status rc = check_hook(r, i, err);
    if (rc != BD_OK || r->is_unused[i]) {
        return rc;
    }
    if (r->opt.static_graph && r->is_sync) {
        uint32_t n = r->n_uses[i];
        r->is_unused[i] = n == 0;
        return n == 0 ? BD_OK
                      : wrong(r, i, "was declared unused and is used in the first step", err);
    }
    if (r->is_settled[i]) {
        return wrong(r, i, "was declared unused after it became ready", err);
    }
    if (r->n_final[i] > 0) {
        return wrong(r, i, "was declared unused after a part of it was final", err);
    }
    r->is_unused[i] = true;
    if (!r->is_sync) {
        r->is_settled[i] = true;
        return BD_OK;
    }
    return ring_reducer_settle(r, i, err);
}

/* Who has not become ready, and whether that is an error. A rank whose backward failed is not
 * asked: it has one already. */
static void find_missing(ring_reducer *r)
{
    bd_err ignored = BD_ERR_INIT;
    bool ok = r->fault.code == BD_OK;
    for (size_t i = 0; ok && i < r->n_params; i++) {
        if (r->is_settled[i] || (r->opt.static_graph && !r->is_recorded)) {
            continue;
        }
        if (r->opt.static_graph) {
            bd_status rc =
                wrong(r, i, "became ready less often than in the first step: the graph has changed",
                      &ignored);
            (void)rc;
            return;
        }
        r->is_missing[i] = !r->opt.find_unused || r->n_final[i] > 0;
    }
}

bd_status ring_reducer_finish(ring_reducer *r, bd_err *err)
{
    bd_status rc;
    bd_err e = BD_ERR_INIT;
    if (!r->in_backward) {
        return bd_err_set(err, BD_E_STATE, "reducer: no backward is open");
    }
    r->times.finish_ns = bd_mono_ns();
    if (r->is_sync) {
        find_missing(r);
        rc = ring_reducer_complete(r, &e);
    } else {
        e = r->fault;
        rc = e.code;
    }
    r->in_backward = false;
    r->in_forward = false;
    r->has_told = false;
    r->times.end_ns = bd_mono_ns();
    if (rc == BD_OK && r->is_sync) {
        ring_reducer_log_step(r);
    }
    return rc == BD_OK ? BD_OK : ring_reducer_keep(r, &e, err);
}

const bool *ring_reducer_used(const ring_reducer *r)
{
    return r->is_used_global;
}

size_t ring_reducer_n_buckets(const ring_reducer *r)
{
    return r->plan.n_buckets;
}

const size_t *ring_reducer_bucket(const ring_reducer *r, size_t b, size_t *n_params)
{
    *n_params = r->plan.starts[b + 1] - r->plan.starts[b];
    return r->plan.params + r->plan.starts[b];
}

int64_t ring_reducer_wait_ns(const ring_reducer *r)
{
    return r->wait_ns;
}

int64_t ring_reducer_comm_ns(const ring_reducer *r)
{
    return r->comm_ns;
}
