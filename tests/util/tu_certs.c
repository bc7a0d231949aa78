#include "tests/util/tu_certs.h"

#include "base/mem.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct tu_ca {
    EVP_PKEY *key;
    X509 *cert;
};

static void add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    assert_non_null(e);
    assert_int_equal(X509_add_ext(x, e, -1), 1);
    X509_EXTENSION_free(e);
}

/* issuer NULL: self-signed authority. */
static X509 *make_cert(const char *name, EVP_PKEY *key, long valid_s, X509 *issuer,
                       EVP_PKEY *issuer_key)
{
    X509 *x = X509_new();
    uint64_t serial = 0;
    assert_non_null(x);
    assert_int_equal(RAND_bytes((unsigned char *)&serial, sizeof serial), 1);
    assert_int_equal(X509_set_version(x, 2), 1);
    assert_int_equal(ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(x), valid_s < 0 ? 2 * valid_s : -3600));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(x), valid_s));
    X509_NAME *n = X509_get_subject_name(x);
    assert_int_equal(
        X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0),
        1);
    assert_int_equal(X509_set_issuer_name(x, issuer != NULL ? X509_get_subject_name(issuer) : n),
                     1);
    assert_int_equal(X509_set_pubkey(x, key), 1);
    if (issuer == NULL) {
        add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE");
        add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign");
    } else {
        add_extension(x, issuer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    }
    assert_true(X509_sign(x, issuer != NULL ? issuer_key : key, EVP_sha256()) > 0);
    return x;
}

tu_ca *tu_ca_new(const char *name)
{
    tu_ca *ca = bd_calloc(1, sizeof *ca);
    assert_non_null(ca);
    ca->key = EVP_EC_gen("P-256");
    assert_non_null(ca->key);
    ca->cert = make_cert(name, ca->key, 86400, NULL, NULL);
    return ca;
}

void tu_ca_free(tu_ca *ca)
{
    X509_free(ca->cert);
    EVP_PKEY_free(ca->key);
    bd_free(ca);
}

void tu_ca_write(const tu_ca *ca, const char *path, int append)
{
    FILE *f = fopen(path, append != 0 ? "a" : "w");
    assert_non_null(f);
    assert_int_equal(PEM_write_X509(f, ca->cert), 1);
    assert_int_equal(fclose(f), 0);
}

static void put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n / 2, f), n / 2);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(fwrite(text + n / 2, 1, n - n / 2, f), n - n / 2);
    assert_int_equal(fclose(f), 0);
}

static void put_renamed(const char *path, const char *text, size_t n)
{
    char temp[512];
    (void)snprintf(temp, sizeof temp, "%s.new", path);
    put(temp, text, n);
    assert_int_equal(rename(temp, path), 0);
}

void tu_file_write(const char *path, const char *text)
{
    put_renamed(path, text, strlen(text));
}

void tu_cert_write(const tu_ca *ca, const char *name, long valid_s, const char *cert_path,
                   const char *key_path, int atomic)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = make_cert(name, key, valid_s, ca->cert, ca->key);
    BIO *cert_bio = BIO_new(BIO_s_mem()), *key_bio = BIO_new(BIO_s_mem());
    char *cert_text = NULL, *key_text = NULL;
    void (*write)(const char *path, const char *text, size_t n) = atomic != 0 ? put_renamed : put;
    assert_int_equal(PEM_write_bio_X509(cert_bio, x), 1);
    assert_int_equal(PEM_write_bio_PrivateKey(key_bio, key, NULL, NULL, 0, NULL, NULL), 1);
    long n_cert = BIO_get_mem_data(cert_bio, &cert_text);
    long n_key = BIO_get_mem_data(key_bio, &key_text);
    write(cert_path, cert_text, (size_t)n_cert);
    write(key_path, key_text, (size_t)n_key);
    (void)BIO_free(cert_bio);
    (void)BIO_free(key_bio);
    X509_free(x);
    EVP_PKEY_free(key);
}
