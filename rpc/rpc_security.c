/* Loading and reloading of certificates and tokens. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"

#include "rpc/rpc_pem.h"
#include "rpc/rpc_security_int.h"

#include <string.h>

#define LOOK_MS 1000

static bd_metric m_reloads =
    BD_METRIC_COUNTER("braid_rpc_security_reloads_total", "files",
                      "certificates or token lists that were replaced while running");
static bd_metric m_bad =
    BD_METRIC_COUNTER("braid_rpc_security_reload_failures_total", "files",
                      "changed certificates or token lists that were not whole: the old ones stay");
static bd_metric m_expiry =
    BD_METRIC_GAUGE("braid_rpc_certificate_expiry_seconds", "seconds since 1970",
                    "when the own certificate expires; 0: none");
static bd_metric *const metrics[] = {&m_reloads, &m_bad, &m_expiry};

void rpc_security_register_metrics(void)
{
    bd_metrics_register(metrics, sizeof metrics / sizeof metrics[0]);
}

static bool is_set(const char *s)
{
    return s != NULL && s[0] != '\0';
}

static const char *or_null(const char *s)
{
    return is_set(s) ? s : NULL;
}

/* ---- certificates ---- */

void rpc_certs_unref(rpc_certs *c)
{
    if (c == NULL || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (c->key != NULL) {
        explicit_bzero(c->key, strlen(c->key));
    }
    bd_free(c->ca);
    bd_free(c->cert);
    bd_free(c->key);
    bd_free(c);
}

static bd_status read_optional(const char *what, const char *path, char **out, bd_err *err)
{
    return path != NULL ? rpc_file_read(what, path, out, err) : BD_OK;
}

static bd_status certs_load(const rpc_security *s, rpc_certs **out, bd_err *err)
{
    const rpc_watch *w = &s->pem_watch;
    const char *ca_option = s->is_etcds ? "etcd_ca" : "tls_ca";
    const char *cert_option = s->is_etcds ? "etcd_cert" : "tls_cert";
    const char *key_option = s->is_etcds ? "etcd_key" : "tls_key";
    rpc_certs *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "certificates: out of memory");
    }
    atomic_init(&c->refs, 1);
    const char *cert = w->files[1].path, *ca = w->files[0].path;
    bd_status rc = read_optional(ca_option, ca, &c->ca, err);
    if (rc == BD_OK) {
        rc = read_optional(cert_option, cert, &c->cert, err);
    }
    if (rc == BD_OK) {
        rc = read_optional(key_option, w->files[2].path, &c->key, err);
    }
    if (rc == BD_OK && ca != NULL && rpc_pem_check_ca(c->ca, err) != BD_OK) {
        rc = bd_err_wrap(err, "%s: %s", ca_option, ca);
    }
    if (rc == BD_OK && cert != NULL &&
        rpc_pem_check_pair(c->cert, c->key, &c->not_after_s, err) != BD_OK) {
        rc = bd_err_wrap(err, "%s: %s", cert_option, cert);
    }
    if (rc != BD_OK) {
        rpc_certs_unref(c);
        return rc;
    }
    *out = c;
    return BD_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a == NULL ? b == NULL : b != NULL && strcmp(a, b) == 0;
}

/* is_first: at the start. */
static void tell_certs(const rpc_security *s, const rpc_certs *c, bool is_first)
{
    if (s->has_cert && !s->is_etcds) {
        bd_metric_set(&m_expiry, (double)c->not_after_s);
    }
    if (!is_first) {
        bd_metric_add(&m_reloads, 1);
        BD_LOG(INFO, "certificates replaced", "expires_s", c->not_after_s);
    }
}

static bd_status certs_renew(rpc_security *s, bd_err *err)
{
    rpc_certs *c = NULL;
    bd_status rc = certs_load(s, &c, err);
    if (rc != BD_OK || c == NULL) {
        return rc;
    }
    (void)pthread_mutex_lock(&s->lock);
    rpc_certs *old = s->certs;
    bool same = old != NULL && same_text(old->ca, c->ca) && same_text(old->cert, c->cert) &&
                same_text(old->key, c->key);
    if (same) {
        old = c;
    } else {
        s->certs = c;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!same) {
        tell_certs(s, c, old == NULL);
        atomic_fetch_add_explicit(&s->generation, 1, memory_order_release);
    }
    rpc_certs_unref(old);
    return BD_OK;
}

rpc_certs *rpc_security_certs(rpc_security *s)
{
    (void)pthread_mutex_lock(&s->lock);
    rpc_certs *c = s->certs;
    if (c != NULL) {
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return c;
}

/* ---- tokens ---- */

void rpc_own_token_unref(rpc_own_token *t)
{
    if (t != NULL && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) {
        explicit_bzero(t->text, t->n);
        bd_free(t);
    }
}

static void text_free(char *text)
{
    if (text != NULL) {
        explicit_bzero(text, strlen(text));
        bd_free(text);
    }
}

static bd_status own_renew(rpc_security *s, bd_err *err)
{
    static const char scheme[] = "Bearer ";
    const char *path = s->own_watch.files[0].path;
    char *text = NULL;
    bd_status rc = rpc_file_read("token_file", path, &text, err);
    rc = rc == BD_OK ? rpc_token_parse_own(path, text, err) : rc;
    if (rc != BD_OK) {
        text_free(text);
        return rc;
    }
    size_t n = strlen(text) + sizeof scheme - 1;
    rpc_own_token *t = bd_alloc(sizeof *t + n);
    if (t == NULL) {
        text_free(text);
        return bd_err_set(err, BD_E_NOMEM, "token_file: out of memory");
    }
    atomic_init(&t->refs, 1);
    t->n = n;
    memcpy(t->text, scheme, sizeof scheme - 1);
    memcpy(t->text + sizeof scheme - 1, text, n - (sizeof scheme - 1));
    text_free(text);
    (void)pthread_mutex_lock(&s->lock);
    rpc_own_token *old = s->own;
    s->own = t;
    (void)pthread_mutex_unlock(&s->lock);
    rpc_own_token_unref(old);
    return BD_OK;
}

static bd_status tokens_renew(rpc_security *s, bd_err *err)
{
    const char *path = s->tokens_watch.files[0].path;
    char *text = NULL;
    rpc_tokens *t = NULL;
    bd_status rc = rpc_file_read("tokens_file", path, &text, err);
    rc = rc == BD_OK ? rpc_tokens_parse(path, text, &t, err) : rc;
    text_free(text);
    if (rc != BD_OK) {
        return rc;
    }
    (void)pthread_mutex_lock(&s->lock);
    rpc_tokens *old = s->tokens;
    s->tokens = t;
    (void)pthread_mutex_unlock(&s->lock);
    bool is_new = old == NULL || old->n != t->n ||
                  memcmp(old->items, t->items, t->n * sizeof t->items[0]) != 0;
    if (old != NULL && is_new) {
        bd_metric_add(&m_reloads, 1);
        BD_LOG(INFO, "list of tokens replaced", "tokens", t->n);
    }
    rpc_tokens_unref(old);
    return BD_OK;
}

rpc_own_token *rpc_security_own(rpc_security *s)
{
    (void)pthread_mutex_lock(&s->lock);
    rpc_own_token *t = s->own;
    if (t != NULL) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return t;
}

rpc_tokens *rpc_security_tokens(rpc_security *s)
{
    (void)pthread_mutex_lock(&s->lock);
    rpc_tokens *t = s->tokens;
    if (t != NULL) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return t;
}

/* ---- looking ---- */

static void tell_bad(const bd_err *err)
{
    bd_metric_add(&m_bad, 1);
    BD_LOG(WARN, "a changed file is not whole, the old one stays: repair it", "error",
           bd_err_text(err));
}

static void look_at(rpc_security *s, rpc_watch *w, bd_status (*renew)(rpc_security *s, bd_err *err))
{
    bd_err err = BD_ERR_INIT;
    bool is_bad = rpc_watch_changed(w) && renew(s, &err) != BD_OK;
    if (is_bad && w->settled) { /* else it is being written: the next look will tell */
        tell_bad(&err);
    }
}

void rpc_security_poll(rpc_security *s, int64_t now_ns)
{
    if (s == NULL) {
        return;
    }
    int64_t next = atomic_load_explicit(&s->next_look_ns, memory_order_relaxed);
    if (now_ns < next ||
        !atomic_compare_exchange_strong_explicit(&s->next_look_ns, &next, now_ns + s->look_every_ns,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return;
    }
    (void)pthread_mutex_lock(&s->look);
    if (s->has_ca || s->has_cert) {
        look_at(s, &s->pem_watch, certs_renew);
    }
    if (s->has_own) {
        look_at(s, &s->own_watch, own_renew);
    }
    if (s->has_tokens) {
        look_at(s, &s->tokens_watch, tokens_renew);
    }
    (void)pthread_mutex_unlock(&s->look);
}

/* ---- start and end ---- */

static bd_status make(const rpc_security_options *opt, bool is_etcds, rpc_security **out,
                      bd_err *err);

static bd_status check(const rpc_security_options *o, bd_err *err)
{
    if (is_set(o->cert_file) != is_set(o->key_file)) {
        return bd_err_set(err, BD_E_USAGE, "tls_cert and tls_key: one needs the other");
    }
    if (o->require_client_cert && (!is_set(o->ca_file) || !is_set(o->cert_file))) {
        return bd_err_set(err, BD_E_USAGE,
                          "client certificates: need tls_cert, tls_key, and tls_ca that signed the "
                          "clients'");
    }
    if (is_set(o->server_name) && !is_set(o->ca_file)) {
        return bd_err_set(err, BD_E_USAGE, "tls_server_name: needs tls_ca");
    }
    return BD_OK;
}

static bool has_etcd_certs(const rpc_security_options *o)
{
    return is_set(o->etcd_ca_file) || is_set(o->etcd_cert_file) || is_set(o->etcd_key_file);
}

/* What belongs to channels to etcd. */
static bd_status set_up_etcd(rpc_security *s, const rpc_security_options *o, bd_err *err)
{
    bool has_user = is_set(o->etcd_user);
    const rpc_security_options own = {.ca_file = o->etcd_ca_file,
                                      .cert_file = o->etcd_cert_file,
                                      .key_file = o->etcd_key_file,
                                      .look_ms = o->look_ms};
    if (has_user != is_set(o->etcd_password_file)) {
        return bd_err_set(err, BD_E_USAGE, "etcd_user and etcd_password_file: one needs the other");
    }
    if (has_etcd_certs(o) &&
        (!is_set(o->etcd_ca_file) || is_set(o->etcd_cert_file) != is_set(o->etcd_key_file))) {
        return bd_err_set(err, BD_E_USAGE,
                          "etcd_cert, etcd_key: one needs the other, and both need etcd_ca");
    }
    if (has_user) {
        s->etcd_user = bd_strdup(o->etcd_user);
        s->etcd_password_file = bd_strdup(o->etcd_password_file);
        if (s->etcd_user == NULL || s->etcd_password_file == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "security: out of memory");
        }
    }
    return has_etcd_certs(o) ? make(&own, true, &s->etcd, err) : BD_OK;
}

static bd_status set_up(rpc_security *s, const rpc_security_options *o)
{
    const char *pem[RPC_WATCH_FILES] = {or_null(o->ca_file), or_null(o->cert_file),
                                        or_null(o->key_file)};
    const char *own[RPC_WATCH_FILES] = {or_null(o->token_file)};
    const char *tokens[RPC_WATCH_FILES] = {or_null(o->tokens_file)};
    s->has_ca = pem[0] != NULL;
    s->has_cert = pem[1] != NULL;
    s->has_own = own[0] != NULL;
    s->has_tokens = tokens[0] != NULL;
    s->require_client_cert = o->require_client_cert;
    s->allow_insecure = o->allow_insecure;
    bd_status rc = rpc_watch_init(&s->pem_watch, pem);
    rc = rc == BD_OK ? rpc_watch_init(&s->own_watch, own) : rc;
    rc = rc == BD_OK ? rpc_watch_init(&s->tokens_watch, tokens) : rc;
    if (rc == BD_OK && is_set(o->server_name)) {
        s->server_name = bd_strdup(o->server_name);
        rc = s->server_name != NULL ? BD_OK : BD_E_NOMEM;
    }
    return rc;
}

static bd_status load_first(rpc_security *s, bd_err *err)
{
    bd_status rc = BD_OK;
    if (s->has_ca || s->has_cert) {
        (void)rpc_watch_changed(&s->pem_watch);
        rc = certs_renew(s, err);
    }
    if (rc == BD_OK && s->has_own) {
        (void)rpc_watch_changed(&s->own_watch);
        rc = own_renew(s, err);
    }
    if (rc == BD_OK && s->has_tokens) {
        (void)rpc_watch_changed(&s->tokens_watch);
        rc = tokens_renew(s, err);
    }
    return rc;
}

/* opt asks for something. */
static bd_status make(const rpc_security_options *opt, bool is_etcds, rpc_security **out,
                      bd_err *err)
{
    rpc_security *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "security: out of memory");
    }
    s->is_etcds = is_etcds;
    s->look_every_ns = (opt->look_ms > 0 ? opt->look_ms : LOOK_MS) * BD_NS_PER_MS;
    rpc_security_register_metrics();
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_mutex_init(&s->look, NULL);
    bd_status rc = set_up(s, opt);
    rc = rc == BD_OK ? load_first(s, err) : bd_err_set(err, rc, "security: out of memory");
    rc = rc == BD_OK ? set_up_etcd(s, opt, err) : rc;
    if (rc != BD_OK) {
        rpc_security_free(s);
        return rc;
    }
    *out = s;
    return BD_OK;
}

bd_status rpc_security_new(const rpc_security_options *opt, rpc_security **out, bd_err *err)
{
    *out = NULL;
    if (opt == NULL) {
        return BD_OK;
    }
    bd_status rc = check(opt, err);
    bool is_etcd = has_etcd_certs(opt) || is_set(opt->etcd_user) || is_set(opt->etcd_password_file);
    if (rc != BD_OK || (!is_set(opt->ca_file) && !is_set(opt->cert_file) &&
                        !is_set(opt->token_file) && !is_set(opt->tokens_file) && !is_etcd)) {
        return rc;
    }
    return make(opt, false, out, err);
}

void rpc_security_free(rpc_security *s)
{
    if (s == NULL) {
        return;
    }
    rpc_security_free(s->etcd);
    bd_free(s->etcd_user);
    bd_free(s->etcd_password_file);
    rpc_certs_unref(s->certs);
    rpc_own_token_unref(s->own);
    rpc_tokens_unref(s->tokens);
    rpc_watch_deinit(&s->pem_watch);
    rpc_watch_deinit(&s->own_watch);
    rpc_watch_deinit(&s->tokens_watch);
    (void)pthread_mutex_destroy(&s->look);
    (void)pthread_mutex_destroy(&s->lock);
    bd_free(s->server_name);
    bd_free(s);
}
