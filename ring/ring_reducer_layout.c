/* The buckets as text, for a checkpoint. */
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_reducer_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layout text: "braid-buckets 1 <rebuilt>" and one line of indices per bucket. */

bd_status ring_reducer_layout_save(const ring_reducer *r, char **text, bd_err *err)
{
    size_t cap = 0;
    size_t used = 0;
    char *out = NULL;
    char piece[48];
    int n = snprintf(piece, sizeof piece, "braid-buckets 1 %d\n", r->has_rebuilt ? 1 : 0);
    bool ok = bd_grow(&out, &cap, (size_t)n + 1, 1);
    for (size_t b = 0; ok; b++) {
        memcpy(out + used, piece, (size_t)n + 1);
        used += (size_t)n;
        if (b == r->plan.n_buckets) {
            break;
        }
        for (size_t k = r->plan.starts[b]; ok && k < r->plan.starts[b + 1]; k++) {
            n = snprintf(piece, sizeof piece, "%zu ", r->plan.params[k]);
            ok = bd_grow(&out, &cap, used + (size_t)n + 2, 1);
            if (ok) {
                memcpy(out + used, piece, (size_t)n + 1);
                used += (size_t)n;
            }
        }
        n = snprintf(piece, sizeof piece, "\n");
        ok = ok && bd_grow(&out, &cap, used + 2, 1);
    }
    if (!ok) {
        bd_free(out);
        return bd_err_set(err, BD_E_NOMEM, "reducer layout");
    }
    *text = out;
    return BD_OK;
}

/* One line of indices into the plan; false when it is not valid here. */
static bool parse_bucket(const ring_reducer *r, const char *line, size_t length,
                         ring_bucket_plan *plan, size_t *n_used, bool *seen)
{
    const char *at = line;
    size_t first = *n_used;
    while (at < line + length) {
        char *end = NULL;
        unsigned long long i = strtoull(at, &end, 10);
        if (end == at || *end != ' ' || i >= r->n_params || seen[i] ||
            (*n_used > first && r->params[i].dtype != r->params[plan->params[first]].dtype)) {
            return false;
        }
        seen[i] = true;
        plan->params[(*n_used)++] = (size_t)i;
        at = end + 1;
    }
    plan->starts[++plan->n_buckets] = *n_used;
    return *n_used > first;
}

static bd_status parse_layout(const ring_reducer *r, const char *text, ring_bucket_plan *plan,
                              bool *rebuilt, bd_err *err)
{
    static const char head[] = "braid-buckets 1 ";
    size_t n_used = 0;
    bool *seen = bd_calloc(r->n_params + 1, sizeof *seen);
    plan->starts = bd_calloc(r->n_params + 2, sizeof *plan->starts);
    plan->params = bd_calloc(r->n_params + 1, sizeof *plan->params);
    bd_status rc = BD_OK;
    if (seen == NULL || plan->starts == NULL || plan->params == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "reducer layout");
        goto out;
    }
    size_t skip = sizeof head - 1;
    bool ok = strncmp(text, head, skip) == 0 && (text[skip] == '0' || text[skip] == '1') &&
              text[skip + 1] == '\n';
    if (ok) {
        *rebuilt = text[skip] == '1';
        for (text += skip + 2; ok && *text != '\0' && plan->n_buckets < r->n_params;) {
            size_t length = strcspn(text, "\n");
            ok = text[length] == '\n' && parse_bucket(r, text, length, plan, &n_used, seen);
            text += ok ? length + 1 : 0;
        }
        ok = ok && *text == '\0';
    }
    if (!ok || n_used != r->n_params) {
        rc = bd_err_set(err, BD_E_DATA, "reducer layout: does not fit the %zu parameters",
                        r->n_params);
    }
out:
    bd_free(seen);
    return rc;
}

/* All ranks or none: a rank that cannot use the text, or has another, stops everybody. */
bd_status ring_reducer_layout_load(ring_reducer *r, const char *text, bd_err *err)
{
    ring_bucket_plan plan = {0};
    bool rebuilt = false;
    bd_err own = BD_ERR_INIT;
    uint64_t hash = bd_hash64(text, strlen(text), 0);
    int64_t theirs = (int64_t)hash;
    if (r->in_backward) {
        return bd_err_set(err, BD_E_STATE, "reducer: a backward is open");
    }
    bd_status parsed = parse_layout(r, text, &plan, &rebuilt, &own);
    bd_status rc = ring_broadcast(r->comm, &theirs, 1, NUM_I64, 0, "reducer.layout", NULL, err);
    if (rc == BD_OK) {
        if (parsed == BD_OK && (uint64_t)theirs != hash) {
            (void)bd_err_set(&own, BD_E_MISMATCH, "has another bucket layout than rank 0");
        }
        own.code = own.code != BD_OK ? BD_E_MISMATCH : BD_OK;
        rc = ring_reducer_agree(r, &own, err);
    }
    rc = rc != BD_OK ? rc : ring_reducer_adopt(r, &plan, err);
    if (rc == BD_OK) {
        r->has_rebuilt = rebuilt;
    }
    ring_bucket_plan_deinit(&plan);
    return rc;
}
