#include "cli/cli_bench_kv.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define TEXT_BYTES 128

typedef struct table {
    bd_kv kv; /* first: the pointers are the same */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n;
    struct {
        char key[TEXT_BYTES]; /* empty: deleted */
        char val[TEXT_BYTES];
    } entries[CLI_BENCH_KV_ENTRIES];
} table;

static int find(const table *t, const char *key)
{
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->entries[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

/* Locked. */
static bd_status put(table *t, const char *key, const char *val, size_t n_bytes, bd_err *err)
{
    int i = find(t, key);
    if (i < 0 && t->n < CLI_BENCH_KV_ENTRIES) {
        i = t->n++;
    }
    if (i < 0 || strlen(key) >= TEXT_BYTES || n_bytes >= TEXT_BYTES) {
        return bd_err_set(err, BD_E_EXHAUSTED, "no room for key %s", key);
    }
    (void)snprintf(t->entries[i].key, TEXT_BYTES, "%s", key);
    (void)snprintf(t->entries[i].val, TEXT_BYTES, "%.*s", (int)n_bytes, val);
    (void)pthread_cond_broadcast(&t->changed);
    return BD_OK;
}

static bd_status kv_set(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    table *t = (table *)kv;
    (void)pthread_mutex_lock(&t->lock);
    bd_status rc = put(t, key, val, n_bytes, err);
    (void)pthread_mutex_unlock(&t->lock);
    return rc;
}

static bd_status kv_get(bd_kv *kv, const char *key, int64_t timeout_ms, char **val, size_t *n_bytes,
                        bd_err *err)
{
    table *t = (table *)kv;
    int64_t at = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    struct timespec until = {.tv_sec = at / BD_NS_PER_S, .tv_nsec = at % BD_NS_PER_S};
    (void)pthread_mutex_lock(&t->lock);
    while (find(t, key) < 0 && pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0) {
    }
    int i = find(t, key);
    *val = i < 0 ? NULL : bd_strdup(t->entries[i].val);
    (void)pthread_mutex_unlock(&t->lock);
    if (i < 0) {
        return bd_err_set(err, BD_E_TIMEOUT, "nobody set %s", key);
    }
    if (*val == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s", key);
    }
    if (n_bytes != NULL) {
        *n_bytes = strlen(*val);
    }
    return BD_OK;
}

static bd_status kv_compare_set(bd_kv *kv, const char *key, const char *expected,
                                const char *desired, bool *swapped, bd_err *err)
{
    table *t = (table *)kv;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&t->lock);
    int i = find(t, key);
    *swapped = expected == NULL ? i < 0 : i >= 0 && strcmp(t->entries[i].val, expected) == 0;
    if (*swapped) {
        rc = put(t, key, desired, strlen(desired), err);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return rc;
}

static bd_status kv_del(bd_kv *kv, const char *key, bd_err *err)
{
    table *t = (table *)kv;
    (void)err;
    (void)pthread_mutex_lock(&t->lock);
    int i = find(t, key);
    if (i >= 0) {
        t->entries[i].key[0] = '\0';
    }
    (void)pthread_mutex_unlock(&t->lock);
    return BD_OK;
}

/* The rendezvous of a ring does not count. */
// NOLINTNEXTLINE(readability-non-const-parameter): bd_kv's signature
static bd_status kv_add(bd_kv *kv, const char *key, int64_t by, int64_t *after, bd_err *err)
{
    (void)kv;
    (void)by;
    (void)after;
    return bd_err_set(err, BD_E_UNSUPPORTED, "add %s", key);
}

static bd_status kv_wait_at_least(bd_kv *kv, const char *key, int64_t at_least, int64_t timeout_ms,
                                  bd_err *err)
{
    (void)kv;
    (void)at_least;
    (void)timeout_ms;
    return bd_err_set(err, BD_E_UNSUPPORTED, "wait for %s", key);
}

bd_kv *cli_bench_kv_new(void)
{
    pthread_mutexattr_t ma;
    pthread_condattr_t ca;
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) {
        return NULL;
    }
    (void)pthread_mutexattr_init(&ma);
    (void)pthread_mutexattr_setpshared(&ma, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutex_init(&t->lock, &ma);
    (void)pthread_mutexattr_destroy(&ma);
    (void)pthread_condattr_init(&ca);
    (void)pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
    (void)pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&t->changed, &ca);
    (void)pthread_condattr_destroy(&ca);
    t->kv = (bd_kv){.set = kv_set,
                    .get = kv_get,
                    .add = kv_add,
                    .compare_set = kv_compare_set,
                    .del = kv_del,
                    .wait_at_least = kv_wait_at_least};
    return &t->kv;
}

void cli_bench_kv_free(bd_kv *kv)
{
    if (kv != NULL) {
        (void)munmap(kv, sizeof(table));
    }
}
