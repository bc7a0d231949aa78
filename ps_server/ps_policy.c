#include "ps_server/ps_policy.h"

#include "base/num/vec.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *ps_policy_name(ps_policy p)
{
    static const char *const names[] = {"?", "reject", "drop_row", "clip", "halt"};
    return names[p];
}

static bool is_bad(const ps_spec *s, const float *g)
{
    double most = (double)s->max_grad_norm;
    double sumsq = num_sumsq(g, s->dim); /* in double: finite when all of g is */
    return !isfinite(sumsq) || (most > 0 && sumsq > most * most);
}

static void clip(const ps_spec *s, float *g)
{
    float most = s->max_grad_norm;
    for (uint32_t e = 0; e < s->dim; e++) {
        g[e] = isnan(g[e]) ? 0.0f : isinf(g[e]) ? copysignf(most, g[e]) : g[e];
    }
    double norm = sqrt(num_sumsq(g, s->dim));
    for (uint32_t e = 0; e < s->dim && norm > (double)most; e++) {
        g[e] = (float)((double)g[e] * ((double)most / norm));
    }
}

static bd_status refuse(const ps_spec *s, uint64_t key, const float *g, bd_err *err)
{
    size_t e = num_first_not_finite(g, s->dim);
    if (e < s->dim) {
        return bd_err_set(err, BD_E_NUMERIC,
                          "table \"%s\": the gradient of key %" PRIu64 " element %zu is %f",
                          s->name, key, e, (double)g[e]);
    }
    return bd_err_set(err, BD_E_NUMERIC,
                      "table \"%s\": the gradient of key %" PRIu64 " has norm %g, more than %g",
                      s->name, key, sqrt(num_sumsq(g, s->dim)), (double)s->max_grad_norm);
}

/* Row by row, after something bad is known to be there or a norm is to be measured. */
static bd_status each_row(const ps_spec *s, uint64_t *keys, float *grads, size_t *n, ps_bad *bad,
                          bd_err *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        float *g = grads + i * s->dim;
        if (is_bad(s, g)) {
            bad->key = bad->n_rows == 0 ? keys[i] : bad->key;
            bad->n_rows++;
            if (s->policy == PS_POLICY_DROP_ROW) {
                continue;
            }
            if (s->policy != PS_POLICY_CLIP) {
                return refuse(s, keys[i], g, err);
            }
            clip(s, g);
        }
        if (kept != i) {
            keys[kept] = keys[i];
            memmove(grads + kept * s->dim, g, s->dim * sizeof *g);
        }
        kept++;
    }
    *n = kept;
    return BD_OK;
}

bd_status ps_policy_apply(const ps_spec *spec, uint64_t *keys, float *grads, size_t *n, ps_bad *bad,
                          bd_err *err)
{
    *bad = (ps_bad){0};
    if (spec->max_grad_norm == 0 && num_all_finite(grads, *n * spec->dim)) {
        return BD_OK;
    }
    return each_row(spec, keys, grads, n, bad, err);
}
