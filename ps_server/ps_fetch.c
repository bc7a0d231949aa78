#include "ps_server/ps_fetch.h"

#include "base/assert.h"
#include "base/cgroup.h"
#include "base/fault.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MAX_CHUNK   256u
#define MIN_CHUNK   32u /* RocksDB looks for so many keys at a time */
#define MAX_THREADS 64u

struct ps_fetch_pool {
    pthread_rwlock_t store_lock; /* for reading: while the store is read */
    ps_store *store;             /* under store_lock */
    _Atomic uint64_t turn, n_rows;
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    ps_fetch *first, *last; /* under lock: those with keys nobody has taken */
    size_t n_waiting;       /* under lock: keys nobody has taken */
    bool quit;              /* under lock */
    pthread_t threads[MAX_THREADS];
    size_t n_threads;
};

/* A key and where the caller has it. */
typedef struct place {
    uint64_t key;
    uint32_t pick;
} place;

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const place *)a)->key, y = ((const place *)b)->key;
    return x < y ? -1 : x > y;
}

ps_fetch *ps_fetch_new(uint32_t table_id, size_t value_bytes, const uint64_t *all,
                       const uint32_t *pick, size_t n)
{
    size_t bytes = 0;
    ps_fetch *f = bd_calloc(1, sizeof *f);
    if (f == NULL) {
        return NULL;
    }
    f->table_id = table_id;
    f->n = n;
    f->stride = (value_bytes + 7) / 8 * 8;
    f->keys = bd_alloc(n * sizeof *f->keys);
    f->picks = bd_alloc(n * sizeof *f->picks);
    f->bytes = bd_alloc(n * sizeof *f->bytes);
    f->values = bd_mul_size(n, f->stride, &bytes) ? bd_alloc(bytes) : NULL;
    place *places = bd_alloc(n * sizeof *places);
    if (f->keys == NULL || f->picks == NULL || f->bytes == NULL || f->values == NULL ||
        places == NULL) {
        bd_free(places);
        ps_fetch_free(f);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        places[i] = (place){all[pick[i]], pick[i]};
    }
    qsort(places, n, sizeof *places, by_key);
    for (size_t i = 0; i < n; i++) {
        f->keys[i] = places[i].key;
        f->picks[i] = places[i].pick;
    }
    bd_free(places);
    return f;
}

void ps_fetch_free(ps_fetch *f)
{
    if (f != NULL) {
        bd_free(f->keys);
        bd_free(f->picks);
        bd_free(f->values);
        bd_free(f->bytes);
        bd_free(f);
    }
}

/* Under the lock: how many keys make the next chunk. */
static size_t chunk_keys(const ps_fetch_pool *p)
{
    size_t n = p->n_waiting / (2 * p->n_threads + 1) / MIN_CHUNK * MIN_CHUNK;
    return n < MIN_CHUNK ? MIN_CHUNK : n > MAX_CHUNK ? MAX_CHUNK : n;
}

/* Under the lock: the next keys of f are ours; f leaves the queue with its last ones. */
static size_t take(ps_fetch_pool *p, ps_fetch *f, size_t *first)
{
    size_t most = chunk_keys(p), n = f->n - f->taken < most ? f->n - f->taken : most;
    *first = f->taken;
    f->taken += n;
    p->n_waiting -= n;
    if (f->taken == f->n) {
        ps_fetch *before = NULL;
        for (ps_fetch *x = p->first; x != f; x = x->next) {
            before = x;
        }
        *(before == NULL ? &p->first : &before->next) = f->next;
        p->last = p->last == f ? before : p->last;
    }
    return n;
}

static bd_status read_chunk(ps_fetch_pool *p, const ps_fetch *f, size_t first, size_t n,
                            bd_err *err)
{
    const ps_wanted w = {.table_id = f->table_id,
                         .keys = f->keys + first,
                         .n = n,
                         .values = f->values + first * f->stride,
                         .stride = f->stride,
                         .bytes = f->bytes + first};
    (void)pthread_rwlock_rdlock(&p->store_lock);
    bd_status rc = p->store == NULL ? bd_err_set(err, BD_E_UNAVAILABLE, "the row store is closed")
                                    : ps_store_get(p->store, &w, err);
    (void)pthread_rwlock_unlock(&p->store_lock);
    (void)atomic_fetch_add_explicit(&p->n_rows, n, memory_order_relaxed);
    (void)bd_fault_hit("ps.fetch.read"); /* `hold`: read, and not yet told */
    return rc;
}

/* Reads keys that take() gave; under the lock before and after, not meanwhile. True: f is done. */
static bool work_on(ps_fetch_pool *p, ps_fetch *f, size_t first, size_t n)
{
    bd_err err = BD_ERR_INIT;
    (void)pthread_mutex_unlock(&p->lock);
    bd_status rc = read_chunk(p, f, first, n, &err);
    if (rc == BD_OK && f->put != NULL) {
        f->put(f, first, n);
    }
    (void)pthread_mutex_lock(&p->lock);
    if (rc != BD_OK && f->rc == BD_OK) {
        f->rc = rc;
        f->err = err;
    }
    f->finished += n;
    return f->finished == f->n;
}

static void *fetch_main(void *pool)
{
    ps_fetch_pool *p = pool;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        ps_fetch *f = p->first;
        size_t first = 0;
        if (f == NULL) {
            (void)pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        size_t n = take(p, f, &first);
        if (!work_on(p, f, first, n)) {
            continue;
        }
        if (f->done == NULL) { /* somebody waits for it */
            (void)pthread_cond_broadcast(&p->progress);
            continue;
        }
        (void)pthread_mutex_unlock(&p->lock);
        f->done(f);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

bd_status ps_fetch_pool_new(size_t n_threads, ps_fetch_pool **out, bd_err *err)
{
    ps_fetch_pool *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "fetch threads: no memory");
    }
    if (n_threads == 0) {
        size_t cores = (size_t)bd_cpus();
        n_threads = cores < 2 ? 2 : cores; /* they wait for the disk as well */
    }
    n_threads = n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    (void)pthread_rwlock_init(&p->store_lock, NULL);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->progress, NULL);
    for (; p->n_threads < n_threads; p->n_threads++) {
        int e = pthread_create(&p->threads[p->n_threads], NULL, fetch_main, p);
        if (e != 0) {
            ps_fetch_pool_free(p);
            return bd_err_errno(err, BD_E_EXHAUSTED, e, "start fetch threads");
        }
    }
    *out = p;
    return BD_OK;
}

void ps_fetch_pool_free(ps_fetch_pool *p)
{
    if (p == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->quit = true;
    (void)pthread_cond_broadcast(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_threads; i++) {
        (void)pthread_join(p->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_cond_destroy(&p->progress);
    (void)pthread_mutex_destroy(&p->lock);
    (void)pthread_rwlock_destroy(&p->store_lock);
    bd_free(p);
}

void ps_fetch_pool_set_store(ps_fetch_pool *p, ps_store *store)
{
    (void)pthread_rwlock_wrlock(&p->store_lock);
    p->store = store;
    (void)atomic_fetch_add(&p->turn, 1);
    (void)pthread_rwlock_unlock(&p->store_lock);
}

uint64_t ps_fetch_pool_turn(ps_fetch_pool *p)
{
    return atomic_load(&p->turn);
}

uint64_t ps_fetch_pool_rows(ps_fetch_pool *p)
{
    return atomic_load_explicit(&p->n_rows, memory_order_relaxed);
}

/* Under the lock. */
static void enqueue(ps_fetch_pool *p, ps_fetch *f)
{
    BD_ASSERT(f->n > 0);
    f->next = NULL;
    f->taken = f->finished = 0;
    f->rc = BD_OK;
    *(p->last == NULL ? &p->first : &p->last->next) = f;
    p->last = f;
    p->n_waiting += f->n;
    if (f->n > MIN_CHUNK) {
        (void)pthread_cond_broadcast(&p->work);
    } else {
        (void)pthread_cond_signal(&p->work);
    }
}

void ps_fetch_start(ps_fetch_pool *p, ps_fetch *f)
{
    (void)pthread_mutex_lock(&p->lock);
    enqueue(p, f);
    (void)pthread_mutex_unlock(&p->lock);
}

bd_status ps_fetch_wait(ps_fetch_pool *p, ps_fetch *f)
{
    size_t first = 0;
    f->done = NULL;
    (void)pthread_mutex_lock(&p->lock);
    enqueue(p, f);
    while (f->taken < f->n) {
        size_t n = take(p, f, &first);
        (void)work_on(p, f, first, n);
    }
    while (f->finished < f->n) {
        (void)pthread_cond_wait(&p->progress, &p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return f->rc;
}
