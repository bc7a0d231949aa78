#include "base/kv.h"

#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct kv_entry kv_entry;
struct kv_entry {
    kv_entry *next;
    char *key; /* owned */
    char *val; /* owned, terminated */
    size_t n_bytes;
    int64_t until_ns; /* goes then; 0: stays */
};

typedef struct kv_mem {
    bd_kv kv;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    kv_entry *entries;      /* under lock; rendezvous holds few keys, so a list */
} kv_mem;

static void entry_free(kv_entry *e)
{
    bd_free(e->key);
    bd_free(e->val);
    bd_free(e);
}

/* Drops what has run out; the time at which the next one does, INT64_MAX: none. */
static int64_t expire(kv_mem *m)
{
    int64_t now = bd_mono_ns(), next = INT64_MAX;
    for (kv_entry **link = &m->entries; *link != NULL;) {
        kv_entry *e = *link;
        if (e->until_ns != 0 && e->until_ns <= now) {
            *link = e->next;
            entry_free(e);
            continue;
        }
        next = e->until_ns != 0 && e->until_ns < next ? e->until_ns : next;
        link = &e->next;
    }
    return next;
}

static kv_entry *find(kv_mem *m, const char *key)
{
    (void)expire(m);
    for (kv_entry *e = m->entries; e != NULL; e = e->next) {
        if (strcmp(e->key, key) == 0) {
            return e;
        }
    }
    return NULL;
}

static bd_status put_locked(kv_mem *m, const char *key, const void *val, size_t n_bytes,
                            bd_err *err)
{
    kv_entry *e = find(m, key);
    char *copy = bd_alloc(n_bytes + 1);
    if (copy == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "kv set %s", key);
    }
    if (n_bytes > 0) {
        memcpy(copy, val, n_bytes);
    }
    copy[n_bytes] = '\0';
    if (e == NULL) {
        e = bd_calloc(1, sizeof *e);
        char *name = e == NULL ? NULL : bd_strdup(key);
        if (name == NULL) {
            bd_free(e);
            bd_free(copy);
            return bd_err_set(err, BD_E_NOMEM, "kv set %s", key);
        }
        e->key = name;
        e->next = m->entries;
        m->entries = e;
    }
    bd_free(e->val);
    e->val = copy;
    e->n_bytes = n_bytes;
    e->until_ns = 0;
    (void)pthread_cond_broadcast(&m->changed);
    return BD_OK;
}

static bd_status mem_set(bd_kv *kv, const char *key, const void *val, size_t n_bytes, bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    (void)pthread_mutex_lock(&m->lock);
    bd_status rc = put_locked(m, key, val, n_bytes, err);
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static int64_t deadline_after(int64_t timeout_ms)
{
    const int64_t year_ms = 365LL * 24 * 3600 * 1000; /* as good as for ever, and no overflow */
    return bd_mono_ns() + (timeout_ms < year_ms ? timeout_ms : year_ms) * BD_NS_PER_MS;
}

/* Until something changes, or runs out. False: until_ns has come. */
static bool wait_change(kv_mem *m, int64_t until_ns)
{
    int64_t next = expire(m), at = next < until_ns ? next : until_ns;
    struct timespec ts = {.tv_sec = at / BD_NS_PER_S, .tv_nsec = at % BD_NS_PER_S};
    return pthread_cond_timedwait(&m->changed, &m->lock, &ts) == 0 || bd_mono_ns() < until_ns;
}

static bd_status mem_get(bd_kv *kv, const char *key, int64_t timeout_ms, char **val,
                         size_t *n_bytes, bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    int64_t until = deadline_after(timeout_ms);
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    kv_entry *e = find(m, key);
    while (e == NULL && timeout_ms > 0 && wait_change(m, until)) {
        e = find(m, key);
    }
    if (e == NULL) {
        rc = timeout_ms > 0 ? bd_err_set(err, BD_E_TIMEOUT,
                                         "kv get %s: absent after %" PRId64 " ms", key, timeout_ms)
                            : bd_err_set(err, BD_E_NOT_FOUND, "kv get %s: absent", key);
    } else {
        char *copy = bd_alloc(e->n_bytes + 1);
        if (copy == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "kv get %s", key);
        } else {
            memcpy(copy, e->val, e->n_bytes + 1);
            *val = copy;
            if (n_bytes != NULL) {
                *n_bytes = e->n_bytes;
            }
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static int64_t number_of(const kv_entry *e)
{
    return e == NULL ? 0 : strtoll(e->val, NULL, 10);
}

static bd_status mem_add(bd_kv *kv, const char *key, int64_t by, int64_t *after, bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    int64_t next = number_of(find(m, key)) + by;
    if (by != 0) {
        char text[32];
        int n = snprintf(text, sizeof text, "%" PRId64, next);
        rc = put_locked(m, key, text, (size_t)n, err);
    }
    if (rc == BD_OK) {
        *after = next;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static bd_status mem_compare_set(bd_kv *kv, const char *key, const char *expected,
                                 const char *desired, bool *swapped, bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    kv_entry *e = find(m, key);
    bool equal = expected == NULL ? e == NULL : e != NULL && strcmp(e->val, expected) == 0;
    if (equal) {
        rc = put_locked(m, key, desired, strlen(desired), err);
    }
    if (rc == BD_OK) {
        *swapped = equal;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static bd_status mem_del(bd_kv *kv, const char *key, bd_err *err)
{
    (void)err;
    kv_mem *m = (kv_mem *)kv;
    (void)pthread_mutex_lock(&m->lock);
    for (kv_entry **link = &m->entries; *link != NULL; link = &(*link)->next) {
        if (strcmp((*link)->key, key) == 0) {
            kv_entry *e = *link;
            *link = e->next;
            entry_free(e);
            break;
        }
    }
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
    return BD_OK;
}

static bd_status mem_wait_at_least(bd_kv *kv, const char *key, int64_t at_least, int64_t timeout_ms,
                                   bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    int64_t until = deadline_after(timeout_ms);
    (void)pthread_mutex_lock(&m->lock);
    int64_t now = number_of(find(m, key));
    while (now < at_least && wait_change(m, until)) {
        now = number_of(find(m, key));
    }
    (void)pthread_mutex_unlock(&m->lock);
    return now >= at_least
               ? BD_OK
               : bd_err_set(err, BD_E_TIMEOUT,
                            "kv wait %s: %" PRId64 " of %" PRId64 " after %" PRId64 " ms", key, now,
                            at_least, timeout_ms);
}

static bd_status mem_set_for(bd_kv *kv, const char *key, const char *val, int64_t ttl_ms,
                             bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    (void)pthread_mutex_lock(&m->lock);
    bd_status rc = put_locked(m, key, val, strlen(val), err);
    if (rc == BD_OK) {
        find(m, key)->until_ns = deadline_after(ttl_ms);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static bool is_known(const kv_entry *e, const char *known)
{
    return known == NULL ? e == NULL : e != NULL && strcmp(e->val, known) == 0;
}

static bd_status mem_get_other(bd_kv *kv, const char *key, const char *known, int64_t timeout_ms,
                               char **val, bd_err *err)
{
    kv_mem *m = (kv_mem *)kv;
    int64_t until = deadline_after(timeout_ms);
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    kv_entry *e = find(m, key);
    while (is_known(e, known) && timeout_ms > 0 && wait_change(m, until)) {
        e = find(m, key);
    }
    if (is_known(e, known)) {
        rc = bd_err_set(err, BD_E_TIMEOUT, "kv get %s: the same after %" PRId64 " ms", key,
                        timeout_ms);
    } else {
        *val = e == NULL ? NULL : bd_strdup(e->val);
        if (e != NULL && *val == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "kv get %s", key);
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

bd_kv *bd_kv_mem_new(void)
{
    kv_mem *m = bd_calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&m->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&m->lock, NULL);
    m->kv = (bd_kv){.set = mem_set,
                    .get = mem_get,
                    .add = mem_add,
                    .compare_set = mem_compare_set,
                    .del = mem_del,
                    .wait_at_least = mem_wait_at_least,
                    .set_for = mem_set_for,
                    .get_other = mem_get_other};
    return &m->kv;
}

void bd_kv_mem_free(bd_kv *kv)
{
    kv_mem *m = (kv_mem *)kv;
    if (m == NULL) {
        return;
    }
    while (m->entries != NULL) {
        kv_entry *e = m->entries;
        m->entries = e->next;
        entry_free(e);
    }
    (void)pthread_cond_destroy(&m->changed);
    (void)pthread_mutex_destroy(&m->lock);
    bd_free(m);
}

bd_status bd_kv_barrier(bd_kv *kv, const char *name, int world, int64_t timeout_ms, bd_err *err)
{
    int64_t arrived;
    bd_status rc = kv->add(kv, name, 1, &arrived, err);
    if (rc == BD_OK) {
        rc = kv->wait_at_least(kv, name, world, timeout_ms, err);
    }
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "barrier %s", name);
    }
    return rc;
}
