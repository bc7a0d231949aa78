/* tests/util/shared_kv.h - a key-value store between processes of one test: shared memory that
 * children inherit. A process that dies with the lock leaves it to the others. set, get,
 * compare_set and del only; keys up to 95 bytes, values up to 159. */
#ifndef TESTS_SHARED_KV_H
#define TESTS_SHARED_KV_H

#include "base/kv.h"

/* Room for n_entries keys. Fails the test without memory. */
bd_kv *shared_kv_new(int n_entries);
void shared_kv_free(bd_kv *kv);

#endif
