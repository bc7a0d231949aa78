#include "rpc/rpc_gate.h"

#include "base/metrics.h"

#include <string.h>
#include <strings.h>

static bd_metric m_unauthenticated =
    BD_METRIC_COUNTER("braid_rpc_unauthenticated_total", "calls",
                      "calls refused because they had no token, or one that is not in the list");
static bd_metric m_denied =
    BD_METRIC_COUNTER("braid_rpc_denied_total", "calls",
                      "calls refused because the scope of their token is too small");
static bd_metric *const metrics[] = {&m_unauthenticated, &m_denied};

void rpc_gate_register_metrics(void)
{
    bd_metrics_register(metrics, sizeof metrics / sizeof metrics[0]);
}

static bd_status unauthenticated(const char *text, bd_err *err)
{
    bd_metric_add(&m_unauthenticated, 1);
    return bd_err_set(err, BD_E_UNAUTHENTICATED, "%s", text);
}

bd_status rpc_gate_authenticate(rpc_server *s, const rpc_method *m, const char *auth, size_t n_auth,
                                rpc_scope *scope, bd_err *err)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof scheme - 1;
    rpc_security *sec = s->env->security;
    rpc_scope needed = m != NULL ? m->scope : RPC_SCOPE_READ;
    *scope = RPC_SCOPE_ADMIN;
    if (sec == NULL || !sec->has_tokens || needed == RPC_SCOPE_NONE) {
        return BD_OK;
    }
    *scope = RPC_SCOPE_NONE;
    if (auth == NULL) {
        return unauthenticated("this server wants a token (authorization: Bearer ...)", err);
    }
    if (n_auth < n_scheme || strncasecmp(auth, scheme, n_scheme) != 0) {
        return unauthenticated("authorization: not of the form `Bearer token`", err);
    }
    rpc_security_poll(sec, s->t->now_ns(s->env));
    rpc_tokens *list = rpc_security_tokens(sec);
    const rpc_token *t = rpc_tokens_find(list, auth + n_scheme, n_auth - n_scheme);
    bd_status rc = BD_OK;
    if (t == NULL) {
        rc = unauthenticated("the token is not in this server's list", err);
    } else if (t->scope < needed) {
        bd_metric_add(&m_denied, 1);
        rc = bd_err_set(err, BD_E_DENIED, "the token of %s has the scope %s, this needs %s",
                        t->name, rpc_scope_name(t->scope), rpc_scope_name(needed));
    } else {
        *scope = t->scope;
    }
    rpc_tokens_unref(list);
    return rc;
}

bool rpc_gate_limits(const rpc_server *s, const rpc_method *m)
{
    return s->peers != NULL && m != NULL && m->scope != RPC_SCOPE_NONE;
}
