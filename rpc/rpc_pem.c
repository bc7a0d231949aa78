#include "rpc/rpc_pem.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>
#include <time.h>

static BIO *bio_of(const char *pem)
{
    size_t n = strlen(pem);
    return BIO_new_mem_buf(pem, n > INT_MAX ? INT_MAX : (int)n);
}

static X509 *read_cert(const char *pem)
{
    BIO *bio = bio_of(pem);
    X509 *x = bio != NULL ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    (void)BIO_free(bio);
    return x;
}

/* An encrypted key must not make OpenSSL ask the terminal. */
static int no_password(char *buf, int size, int rw, // NOLINT(readability-non-const-parameter)
                       void *user)
{
    (void)buf;
    (void)size;
    (void)rw;
    (void)user;
    return -1;
}

static EVP_PKEY *read_key(const char *pem)
{
    BIO *bio = bio_of(pem);
    EVP_PKEY *k = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    (void)BIO_free(bio);
    return k;
}

static int64_t expiry_of(const X509 *x)
{
    struct tm tm;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(x), &tm) != 1) {
        return 0;
    }
    return (int64_t)timegm(&tm);
}

bd_status rpc_pem_check_pair(const char *cert, const char *key, int64_t *not_after_s, bd_err *err)
{
    bd_status rc = BD_OK;
    X509 *x = read_cert(cert);
    EVP_PKEY *k = read_key(key);
    if (x == NULL) {
        rc = bd_err_set(err, BD_E_USAGE, "the certificate file holds no PEM certificate");
    } else if (k == NULL) {
        rc = bd_err_set(err, BD_E_USAGE,
                        "the key file holds no PEM private key (or one with a password)");
    } else if (X509_check_private_key(x, k) != 1) {
        rc = bd_err_set(err, BD_E_USAGE, "the key is not the certificate's");
    } else {
        *not_after_s = expiry_of(x);
    }
    EVP_PKEY_free(k);
    X509_free(x);
    ERR_clear_error();
    return rc;
}

bd_status rpc_pem_check_ca(const char *ca, bd_err *err)
{
    X509 *x = read_cert(ca);
    bd_status rc =
        x != NULL ? BD_OK
                  : bd_err_set(err, BD_E_USAGE, "the authorities' file holds no PEM certificate");
    X509_free(x);
    ERR_clear_error();
    return rc;
}
