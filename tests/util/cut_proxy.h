/* tests/util/cut_proxy.h - a wire that goes wrong after a given number of bytes: a forwarder in
 * front of one rank's listening socket. It puts itself into the rendezvous as a store that writes
 * its own address instead of that rank's, so it works with whatever the backend speaks. */
#ifndef TESTS_CUT_PROXY_H
#define TESTS_CUT_PROXY_H

#include "base/kv.h"

#include <stddef.h>

typedef struct cut_proxy cut_proxy;

typedef enum cut_how {
    CUT_STALL, /* nothing passes any more; from the start, nothing but the rank's hello leaves it,
                  so that what is heard does not depend on who is late; the connections stay */
    CUT_CLOSE, /* both connections end */
    CUT_FLIP   /* the next byte arrives inverted, everything else as it was */
} cut_how;

/* After `n_bytes` towards the rank whose address is stored under a key that ends in `key_end`.
 * kv is borrowed. Fails the test when it cannot start. */
cut_proxy *cut_proxy_new(bd_kv *kv, const char *key_end, size_t n_bytes, cut_how how);
/* What the ranks rendezvous through. */
bd_kv *cut_proxy_kv(cut_proxy *p);
/* Ends connections that are still open. */
void cut_proxy_free(cut_proxy *p);

#endif
