#include "ps_server/ps_rule.h"

#include "base/option.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

#define MAX_FORMS 16

static const char *nearest(const char *name, const char *const *names, size_t n, char out[96])
{
    const char *meant = bd_nearest(name, names, n);
    (void)snprintf(out, 96, "%s%.64s%s", meant == NULL ? "" : ", did you mean ",
                   meant == NULL ? "" : meant, meant == NULL ? "" : "?");
    return out;
}

static bd_status put(const ps_rule_form *f, const char *name, double value, double *param,
                     bd_err *err)
{
    const char *names[PS_RULE_MAX_PARAMS];
    char meant[96];
    for (size_t i = 0; i < f->n_params; i++) {
        const num_hyper *h = &f->params[i];
        names[i] = h->name;
        if (strcmp(h->name, name) != 0) {
            continue;
        }
        if (!(value >= h->min && value <= h->max)) { /* a NaN is refused too */
            return bd_err_set(err, BD_E_INVALID, "%s: %s=%g must be from %g to %g", f->name, name,
                              value, h->min, h->max);
        }
        param[i] = value;
        return BD_OK;
    }
    return bd_err_set(err, BD_E_INVALID, "%s: unknown number %.64s%s", f->name, name,
                      nearest(name, names, f->n_params, meant));
}

bd_status ps_rule_params(const ps_rule_form *form, const Braid__V1__Rule *msg, double *param,
                         bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < PS_RULE_MAX_PARAMS; i++) {
        param[i] = i < form->n_params ? form->params[i].def : 0;
    }
    for (size_t i = 0; i < msg->n_params && rc == BD_OK; i++) {
        rc = put(form, msg->params[i]->name, msg->params[i]->value, param, err);
    }
    const char *wrong = rc == BD_OK && form->wrong != NULL ? form->wrong(param) : NULL;
    return wrong == NULL ? rc : bd_err_set(err, BD_E_INVALID, "%s: %s", form->name, wrong);
}

bd_status ps_rule_unknown(const char *what, const char *name, const ps_rule_form *const *forms,
                          size_t n, bd_err *err)
{
    const char *names[MAX_FORMS];
    char meant[96];
    for (size_t i = 0; i < n && i < MAX_FORMS; i++) {
        names[i] = forms[i]->name;
    }
    return bd_err_set(err, BD_E_INVALID, "unknown %s \"%.64s\"%s", what, name,
                      nearest(name, names, n < MAX_FORMS ? n : MAX_FORMS, meant));
}

void ps_rule_text(const ps_rule_form *form, const double *param, char *out, size_t out_bytes)
{
    int at = snprintf(out, out_bytes, "%s", form->name);
    for (size_t i = 0; i < form->n_params && at > 0 && (size_t)at < out_bytes; i++) {
        at += snprintf(out + at, out_bytes - (size_t)at, "%s%s=%.17g", i == 0 ? "(" : ", ",
                       form->params[i].name, param[i]);
    }
    if (form->n_params > 0 && at > 0 && (size_t)at < out_bytes) {
        (void)snprintf(out + at, out_bytes - (size_t)at, ")");
    }
}
