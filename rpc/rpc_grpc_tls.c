/* Credentials of channels and servers, renewed when the files change. */
#include "base/log.h"
#include "base/mem.h"

#include "rpc/rpc_grpc_int.h"

grpc_channel_credentials *gr_channel_creds(const rpc_certs *c)
{
    if (c == NULL || c->ca == NULL) {
        return grpc_insecure_credentials_create();
    }
    grpc_ssl_pem_key_cert_pair pair = {c->key, c->cert};
    return grpc_ssl_credentials_create_ex(c->ca, c->cert != NULL ? &pair : NULL, NULL, NULL);
}

/* gRPC asks before each handshake. "Failed" keeps what it has. */
static grpc_ssl_certificate_config_reload_status on_fetch(void *user,
                                                          grpc_ssl_server_certificate_config **out)
{
    gr_tls_feed *f = user;
    rpc_security_poll(f->security, bd_mono_ns());
    uint64_t now = atomic_load_explicit(&f->security->generation, memory_order_acquire);
    if (atomic_exchange_explicit(&f->handed, now, memory_order_relaxed) == now) {
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    rpc_certs *c = rpc_security_certs(f->security);
    grpc_ssl_pem_key_cert_pair pair = {c->key, c->cert};
    /* gRPC 1.51 aborts when a fetcher gives no authorities, also where nobody is asked for a
     * certificate and so nothing is checked with them. */
    *out = grpc_ssl_server_certificate_config_create(c->ca != NULL ? c->ca : c->cert, &pair, 1);
    rpc_certs_unref(c);
    return *out != NULL ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                        : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
}

grpc_server_credentials *gr_server_creds(gr_tls_feed *f)
{
    if (!rpc_security_serves_tls(f->security)) {
        return grpc_insecure_server_credentials_create();
    }
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            f->security->require_client_cert
                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            on_fetch, f));
}

/* ---- the own token ---- */

static void on_slice_gone(void *user)
{
    rpc_own_token_unref(user);
}

size_t gr_auth_fill(rpc_channel *ch, grpc_metadata *md)
{
    rpc_own_token *t = rpc_channel_token(ch);
    if (t == NULL) {
        return 0;
    }
    *md = (grpc_metadata){0};
    md->key = grpc_slice_from_static_string(ch->to_etcd ? RPC_ETCD_AUTH_KEY : RPC_AUTH_KEY);
    md->value = grpc_slice_new_with_user_data(t->text, t->n, on_slice_gone, t);
    return 1;
}

void gr_auth_release(grpc_metadata *md, size_t n)
{
    if (n > 0) {
        grpc_slice_unref(md->value);
    }
}

const grpc_metadata *gr_metadata_find(const grpc_metadata_array *a, const char *key)
{
    for (size_t i = 0; i < a->count; i++) {
        if (grpc_slice_str_cmp(a->metadata[i].key, key) == 0) {
            return &a->metadata[i];
        }
    }
    return NULL;
}
