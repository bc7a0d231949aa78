/* What all ranks must agree on: the manifest, the order of the buckets, who forgot a parameter and
 * whose backward failed. */
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_reducer_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COMPLAINT_BYTES 400

typedef struct complaint {
    int32_t code;
    char text[COMPLAINT_BYTES];
} complaint;

bd_status ring_reducer_plan(const ring_reducer *r, const size_t *order, ring_bucket_plan *out,
                            bd_err *err)
{
    const size_t limits[] = {r->opt.first_bucket_bytes, r->opt.bucket_bytes};
    ring_bucket_item *items = bd_calloc(r->n_params + 1, sizeof *items);
    if (items == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer");
    }
    for (size_t i = 0; i < r->n_params; i++) {
        const ring_param *p = &r->params[i];
        items[i].dtype = (int)p->dtype;
        items[i].n_bytes = p->n_elems * num_dtype_bytes((int)p->dtype);
        items[i].is_sparse = r->is_recorded && !r->is_used_global[i]; /* alone: it is never sent */
    }
    bd_status rc = ring_bucket_assign(items, r->n_params, order, limits, 2, out, err);
    bd_free(items);
    return rc;
}

/* Every rank sends its complaint, a code and a text; the lowest rank's is everybody's error. */
bd_status ring_reducer_agree(ring_reducer *r, const bd_err *mine, bd_err *err)
{
    static const char own_prefix[] = "reducer: ";
    size_t world = (size_t)ring_world(r->comm);
    size_t skip = strncmp(mine->text, own_prefix, sizeof own_prefix - 1) == 0
                      ? sizeof own_prefix - 1
                      : 0; /* it comes back in front of the rank */
    complaint own = {.code = (int32_t)mine->code};
    complaint *all = bd_calloc(world, sizeof *all);
    if (all == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer");
    }
    (void)snprintf(own.text, sizeof own.text, "%s", bd_err_text(mine) + skip);
    bd_status rc =
        ring_all_gather(r->comm, &own, all, sizeof own, NUM_U8, "reducer.agree", NULL, err);
    for (size_t k = 0; rc == BD_OK && k < world; k++) {
        all[k].text[COMPLAINT_BYTES - 1] = '\0';
        if (all[k].code != BD_OK) {
            rc = bd_err_set(err, (bd_status)all[k].code, "reducer: rank %zu: %s", k, all[k].text);
        }
    }
    bd_free(all);
    return rc;
}

/* Manifest: two lines of options, one per parameter and buffer. */

static char *manifest_line(const ring_reducer *r, size_t idx)
{
    const ring_reducer_options *o = &r->opt;
    if (idx == 0) {
        return bd_strfmt("%zu parameters, buckets of %zu and %zu bytes, find_unused %d, scale %a\n",
                         r->n_params, o->first_bucket_bytes, o->bucket_bytes,
                         o->find_unused ? 1 : 0, (double)o->scale);
    }
    if (idx == 1) {
        return bd_strfmt("static_graph %d, deterministic %d, compress %s, hook %s, "
                         "divide_by_active %d, join_throws %d, %zu buffers\n",
                         o->static_graph ? 1 : 0, o->deterministic ? 1 : 0, o->compress,
                         r->hook.name != NULL ? r->hook.name : "none", o->divide_by_active ? 1 : 0,
                         o->join_throws ? 1 : 0, r->n_buffers);
    }
    idx -= 2;
    if (idx < r->n_params) {
        const ring_param *p = &r->params[idx];
        return bd_strfmt("parameter %zu: %s %s x %zu\n", idx, p->name,
                         num_dtype_name((int)p->dtype), p->n_elems);
    }
    idx -= r->n_params;
    const ring_buffer *b = &r->buffers[idx];
    return bd_strfmt("buffer %zu: %s %s x %zu\n", idx, b->name, num_dtype_name((int)b->dtype),
                     b->n_elems);
}

static char *manifest_new(const ring_reducer *r, size_t *n_bytes)
{
    size_t cap = 0;
    size_t used = 0;
    char *text = NULL;
    for (size_t i = 0; i < 2 + r->n_params + r->n_buffers; i++) {
        char *line = manifest_line(r, i);
        size_t n = line == NULL ? 0 : strlen(line);
        if (line == NULL || !bd_grow(&text, &cap, used + n + 1, 1)) {
            bd_free(line);
            bd_free(text);
            return NULL;
        }
        memcpy(text + used, line, n + 1);
        used += n;
        bd_free(line);
    }
    *n_bytes = used;
    return text;
}

static size_t line_length(const char *s, size_t n_bytes)
{
    const char *end = memchr(s, '\n', n_bytes);
    return end == NULL ? n_bytes : (size_t)(end - s);
}

/* The first line that differs, from both sides; BD_OK when there is none. */
static void first_difference(const char *ours, size_t n_ours, const char *theirs, size_t n_theirs,
                             bd_err *out)
{
    while (n_ours > 0 || n_theirs > 0) {
        size_t a = line_length(ours, n_ours);
        size_t b = line_length(theirs, n_theirs);
        if (a != b || memcmp(ours, theirs, a) != 0) {
            (void)bd_err_set(out, BD_E_MISMATCH, "has \"%.*s\", rank 0 has \"%.*s\"",
                             (int)(a < 150 ? a : 150), ours, (int)(b < 150 ? b : 150), theirs);
            return;
        }
        a += a < n_ours ? 1 : 0;
        b += b < n_theirs ? 1 : 0;
        ours += a;
        theirs += b;
        n_ours -= a;
        n_theirs -= b;
    }
}

/* Some rank differs: all get rank 0's text, and say where theirs is different. */
static bd_status explain_difference(ring_reducer *r, const char *ours, size_t n_ours,
                                    size_t n_theirs, bd_err *err)
{
    bd_err differs = BD_ERR_INIT;
    char *theirs = bd_alloc(n_theirs + 1);
    if (theirs == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer: manifest of %zu bytes", n_theirs);
    }
    if (ring_rank(r->comm) == 0) {
        memcpy(theirs, ours, n_theirs);
    }
    bd_status rc =
        ring_broadcast(r->comm, theirs, n_theirs, NUM_U8, 0, "reducer.manifest.text", NULL, err);
    if (rc == BD_OK) {
        first_difference(ours, n_ours, theirs, n_theirs, &differs);
        rc = ring_reducer_agree(r, &differs, err);
    }
    if (rc == BD_OK) { /* equal texts with unequal hashes: cannot be */
        rc = bd_err_set(err, BD_E_INTERNAL, "reducer: manifests differ nowhere");
    }
    bd_free(theirs);
    return rc;
}

bd_status ring_reducer_check_manifest(ring_reducer *r, bd_err *err)
{
    size_t world = (size_t)ring_world(r->comm);
    size_t n_bytes = 0;
    char *text = manifest_new(r, &n_bytes);
    int64_t *all = bd_calloc(2 * world, sizeof *all);
    bd_status rc = BD_OK;
    if (text == NULL || all == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "reducer");
        goto out;
    }
    int64_t own[2] = {(int64_t)bd_hash64(text, n_bytes, 0), (int64_t)n_bytes};
    rc = ring_all_gather(r->comm, own, all, 2, NUM_I64, "reducer.manifest", NULL, err);
    bool equal = true;
    for (size_t k = 1; rc == BD_OK && k < world; k++) {
        equal = equal && all[2 * k] == all[0] && all[2 * k + 1] == all[1];
    }
    if (rc == BD_OK && !equal) {
        rc = explain_difference(r, text, n_bytes, (size_t)all[1], err);
    }
out:
    bd_free(all);
    bd_free(text);
    return rc;
}

/* Ready order. */

static bd_status check_permutation(const int64_t *order, size_t n, size_t *out, bd_err *err)
{
    bool *seen = bd_calloc(n + 1, sizeof *seen);
    bd_status rc = seen == NULL ? bd_err_set(err, BD_E_NOMEM, "reducer") : BD_OK;
    for (size_t k = 0; rc == BD_OK && seen != NULL && k < n; k++) {
        if (order[k] < 0 || (uint64_t)order[k] >= n || seen[order[k]]) {
            rc = bd_err_set(err, BD_E_CORRUPT, "reducer: bucket order names %" PRId64, order[k]);
        } else {
            seen[order[k]] = true;
            out[k] = (size_t)order[k];
        }
    }
    bd_free(seen);
    return rc;
}

/* Observed order, then what was not seen, last parameter first: what some rank used before what
 * none did. */
static void full_order(const ring_reducer *r, int64_t *order, bool *seen)
{
    size_t n = 0;
    for (size_t k = 0; k < r->n_ready_order; k++) {
        order[n++] = (int64_t)r->ready_order[k];
        seen[r->ready_order[k]] = true;
    }
    for (int used = 1; used >= 0; used--) {
        for (size_t i = r->n_params; i > 0; i--) {
            if (!seen[i - 1] && r->is_used_global[i - 1] == (used != 0)) {
                order[n++] = (int64_t)(i - 1);
            }
        }
    }
}

bd_status ring_reducer_rebuild(ring_reducer *r, bd_err *err)
{
    size_t n = r->n_params;
    ring_bucket_plan plan = {0};
    bd_status rc = BD_OK;
    int64_t *order = bd_calloc(n + 1, sizeof *order);
    size_t *indices = bd_calloc(n + 1, sizeof *indices);
    bool *seen = bd_calloc(n + 1, sizeof *seen);
    if (order == NULL || indices == NULL || seen == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "reducer");
        goto out;
    }
    full_order(r, order, seen);
    rc = ring_broadcast(r->comm, order, n, NUM_I64, 0, "reducer.rebuild", NULL, err);
    rc = rc != BD_OK ? rc : check_permutation(order, n, indices, err);
    rc = rc != BD_OK ? rc : ring_reducer_plan(r, indices, &plan, err);
    rc = rc != BD_OK ? rc : ring_reducer_adopt(r, &plan, err);
    r->has_rebuilt = rc == BD_OK;
out:
    ring_bucket_plan_deinit(&plan);
    bd_free(seen);
    bd_free(indices);
    bd_free(order);
    return rc;
}

bd_status ring_reducer_report_missing(ring_reducer *r, bd_err *err)
{
    size_t world = (size_t)ring_world(r->comm);
    int64_t mine = -1;
    for (size_t i = r->n_params; i > 0; i--) {
        mine = r->is_missing[i - 1] ? (int64_t)(i - 1) : mine;
    }
    int64_t *all = bd_calloc(world, sizeof *all);
    if (all == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer");
    }
    bd_status rc = ring_all_gather(r->comm, &mine, all, 1, NUM_I64, "reducer.missing", NULL, err);
    for (size_t k = 0; rc == BD_OK && k < world; k++) {
        if (all[k] >= 0 && (uint64_t)all[k] < r->n_params) {
            rc = bd_err_set(err, BD_E_STATE,
                            "reducer: parameter %" PRId64
                            " (%s) got no gradient on rank %zu and was not declared unused",
                            all[k], r->params[all[k]].name, k);
        }
    }
    bd_free(all);
    return rc != BD_OK ? rc : bd_err_set(err, BD_E_INTERNAL, "reducer: nobody misses a parameter");
}

bd_status ring_reducer_report_fault(ring_reducer *r, bd_err *err)
{
    bd_status rc = ring_reducer_agree(r, &r->fault, err);
    return rc != BD_OK ? rc : bd_err_set(err, BD_E_INTERNAL, "reducer: nobody failed");
}
