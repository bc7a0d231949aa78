/* The end of a process in which a thread of gRPC may still be in a TLS handshake: OpenSSL is whole until the
 * last moment. */
#include "rpc/rpc.h"

#include "tests/util/tu_shard.h"

#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool openssl_works(void)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_MD *md = EVP_MD_fetch(NULL, "SHA256", NULL);
    bool ok = md != NULL && EVP_Digest("x", 1, digest, &n, md, NULL) == 1 && n == 32;
    EVP_MD_free(md);
    return ok;
}

static void in_the_end(void)
{
    if (!openssl_works()) {
        _exit(9);
    }
}

/* What is registered first runs last, so after all that OpenSSL registers. */
static int child(void)
{
    rpc_env *env = NULL;
    bd_err err = BD_ERR_INIT;
    if (atexit(in_the_end) != 0 || rpc_env_new(NULL, &env, &err) != BD_OK || !openssl_works()) {
        return 8;
    }
    rpc_env_free(env);
    return 0;
}

static void openssl_is_there_until_the_process_has_gone(void **state)
{
    (void)state;
    const char *const args[] = {NULL};
    int status = tu_child(args);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "child") == 0) {
        return child();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(openssl_is_there_until_the_process_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
