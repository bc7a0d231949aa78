/* ps_server/ps_policy.h - what becomes of a pushed gradient that is not finite, or longer than the
 * table allows.
 *
 * Layer:   ps_server (pure). Threads: any.
 * Promise: a pure function of the part, so that a part that is sent again ends the same.
 *
 *   reject    the whole part is refused (the default)
 *   drop_row  the row's gradient is left out; the others are applied
 *   clip      NaN becomes 0, an infinity the longest length allowed, then the row is scaled to it
 *   halt      refused, and so is every later push of this job
 */
#ifndef PS_POLICY_H
#define PS_POLICY_H

#include "ps_server/ps_spec.h"

/* What was found in one table's gradients. */
typedef struct ps_bad {
    size_t n_rows; /* bad ones */
    uint64_t key;  /* of the first */
} ps_bad;

/* ps_policy_apply - treats grads[*n x dim] with their keys as the spec says; drop_row moves rows up
 * and lowers *n. *bad is filled also on failure. Returns BD_OK, or BD_E_NUMERIC naming table, key
 * and value (reject, halt). */
bd_status ps_policy_apply(const ps_spec *spec, uint64_t *keys, float *grads, size_t *n, ps_bad *bad,
                          bd_err *err) BD_MUST_CHECK;

/* "reject", "drop_row", "clip", "halt" */
const char *ps_policy_name(ps_policy p);

#endif
