/* ps_server/ps_rule.h - rules with numbers: what admission (ps_admit.h) and eviction (ps_evict.h)
 * have in common. Their numbers, bounds and help come from one row, as those of optimisers do.
 *
 * Layer: ps_server (pure). Threads: any.
 */
#ifndef PS_RULE_H
#define PS_RULE_H

#include "base/err.h"
#include "base/num/hyper.h"

#define PS_RULE_MAX_PARAMS 4

struct Braid__V1__Rule; /* protobuf-c's */

typedef struct ps_rule_form {
    const char *name, *help;
    const num_hyper *params; /* [n_params] */
    size_t n_params;
    /* NULL, or what is wrong with numbers that are each within their bounds. NULL: no check. */
    const char *(*wrong)(const double *param);
} ps_rule_form;

/* param[PS_RULE_MAX_PARAMS] = the message's numbers, defaults for the rest, 0 behind them.
 * BD_E_INVALID names what is wrong. */
bd_status ps_rule_params(const ps_rule_form *form, const struct Braid__V1__Rule *msg, double *param,
                         bd_err *err) BD_MUST_CHECK;

/* "no rule is called x, did you mean y?": forms[n] are those that there are. */
bd_status ps_rule_unknown(const char *what, const char *name, const ps_rule_form *const *forms,
                          size_t n, bd_err *err);

/* "name(a=1, b=2)", without numbers "name". */
void ps_rule_text(const ps_rule_form *form, const double *param, char *out, size_t out_bytes);

#endif
