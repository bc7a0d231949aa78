#include "tests/util/shared_kv.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

typedef struct entry {
    char key[96]; /* empty: free */
    char val[160];
    size_t n_bytes;
} entry;

typedef struct shared_kv {
    bd_kv kv; /* first */
    pthread_mutex_t lock;
    size_t n_mapped;
    int n_entries;
    entry entries[];
} shared_kv;

static void lock(shared_kv *s)
{
    if (pthread_mutex_lock(&s->lock) == EOWNERDEAD) {
        (void)pthread_mutex_consistent(&s->lock);
    }
}

/* The key's entry; without one, a free one if `make`; NULL: none. */
static entry *find(shared_kv *s, const char *key, bool make)
{
    entry *spare = NULL;
    for (int i = 0; i < s->n_entries; i++) {
        entry *e = &s->entries[i];
        if (strcmp(e->key, key) == 0) {
            return e;
        }
        spare = spare == NULL && e->key[0] == '\0' ? e : spare;
    }
    if (!make || spare == NULL || strlen(key) >= sizeof spare->key) {
        return NULL;
    }
    (void)snprintf(spare->key, sizeof spare->key, "%s", key);
    spare->n_bytes = 0;
    return spare;
}

static bd_status store(shared_kv *s, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    entry *e = n_bytes < sizeof e->val ? find(s, key, true) : NULL;
    if (e == NULL) {
        return bd_err_set(err, BD_E_EXHAUSTED, "no room for %s", key);
    }
    memcpy(e->val, val, n_bytes);
    e->val[n_bytes] = '\0';
    e->n_bytes = n_bytes;
    return BD_OK;
}

static bd_status kv_set(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    shared_kv *s = (shared_kv *)kv;
    lock(s);
    bd_status rc = store(s, key, val, n_bytes, err);
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

static bd_status kv_get(bd_kv *kv, const char *key, int64_t timeout_ms, char **val, size_t *n_bytes,
                        bd_err *err)
{
    shared_kv *s = (shared_kv *)kv;
    int64_t until = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    for (;;) {
        lock(s);
        const entry *e = find(s, key, false);
        *val = e == NULL ? NULL : bd_strdup(e->val);
        if (e != NULL && n_bytes != NULL) {
            *n_bytes = e->n_bytes;
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (e != NULL) {
            return *val != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "%s", key);
        }
        if (bd_mono_ns() >= until) {
            return bd_err_set(err, timeout_ms > 0 ? BD_E_TIMEOUT : BD_E_NOT_FOUND, "%s", key);
        }
        bd_sleep_ms(1); /* a condition variable would not survive a killed waiter */
    }
}

static bd_status kv_compare_set(bd_kv *kv, const char *key, const char *expected,
                                const char *desired, bool *swapped, bd_err *err)
{
    shared_kv *s = (shared_kv *)kv;
    bd_status rc = BD_OK;
    lock(s);
    const entry *e = find(s, key, false);
    *swapped = e == NULL ? expected == NULL : expected != NULL && strcmp(e->val, expected) == 0;
    if (*swapped) {
        rc = store(s, key, desired, strlen(desired), err);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

static bd_status kv_del(bd_kv *kv, const char *key, bd_err *err)
{
    shared_kv *s = (shared_kv *)kv;
    (void)err;
    lock(s);
    entry *e = find(s, key, false);
    if (e != NULL) {
        e->key[0] = '\0';
    }
    (void)pthread_mutex_unlock(&s->lock);
    return BD_OK;
}

bd_kv *shared_kv_new(int n_entries)
{
    size_t n_mapped = sizeof(shared_kv) + (size_t)n_entries * sizeof(entry);
    shared_kv *s = mmap(NULL, n_mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attr;
    assert_true(s != MAP_FAILED);
    (void)pthread_mutexattr_init(&attr);
    (void)pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    (void)pthread_mutex_init(&s->lock, &attr);
    (void)pthread_mutexattr_destroy(&attr);
    s->n_mapped = n_mapped;
    s->n_entries = n_entries;
    s->kv.set = kv_set;
    s->kv.get = kv_get;
    s->kv.compare_set = kv_compare_set;
    s->kv.del = kv_del;
    return &s->kv;
}

void shared_kv_free(bd_kv *kv)
{
    shared_kv *s = (shared_kv *)kv;
    (void)pthread_mutex_destroy(&s->lock);
    (void)munmap(s, s->n_mapped);
}
