#include "rpc/rpc_timer.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

typedef struct entry {
    int64_t at_ns;
    uint64_t seq; /* equal times run in the order they came */
    void (*fn)(void *user);
    void *user;
} entry;

struct rpc_timer {
    pthread_mutex_t lock; /* guards heap, seq, stopping */
    pthread_cond_t changed;
    pthread_t thread;
    entry *heap; /* binary heap, earliest first */
    size_t n, cap;
    uint64_t seq;
    bool stopping;
    void (*on_thread_start)(void *user);
    void *user;
};

static bool earlier(const entry *a, const entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void swap_entries(entry *a, entry *b)
{
    entry t = *a;
    *a = *b;
    *b = t;
}

static void sift_up(rpc_timer *t, size_t i)
{
    while (i > 0 && earlier(&t->heap[i], &t->heap[(i - 1) / 2])) {
        swap_entries(&t->heap[i], &t->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static entry pop_locked(rpc_timer *t)
{
    entry top = t->heap[0];
    t->heap[0] = t->heap[--t->n];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < t->n; k++) {
            least = earlier(&t->heap[k], &t->heap[least]) ? k : least;
        }
        if (least == i) {
            return top;
        }
        swap_entries(&t->heap[i], &t->heap[least]);
        i = least;
    }
}

static void wait_locked(rpc_timer *t)
{
    if (t->n == 0) {
        (void)pthread_cond_wait(&t->changed, &t->lock);
        return;
    }
    struct timespec until = {.tv_sec = t->heap[0].at_ns / BD_NS_PER_S,
                             .tv_nsec = t->heap[0].at_ns % BD_NS_PER_S};
    (void)pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

static void *timer_main(void *arg)
{
    rpc_timer *t = arg;
    if (t->on_thread_start != NULL) {
        t->on_thread_start(t->user);
    }
    (void)pthread_mutex_lock(&t->lock);
    while (!t->stopping || t->n > 0) {
        if (t->n > 0 && (t->stopping || t->heap[0].at_ns <= bd_mono_ns())) {
            entry e = pop_locked(t);
            (void)pthread_mutex_unlock(&t->lock);
            e.fn(e.user);
            (void)pthread_mutex_lock(&t->lock);
        } else {
            wait_locked(t);
        }
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void timer_destroy(rpc_timer *t)
{
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
    bd_free(t->heap);
    bd_free(t);
}

bd_status rpc_timer_new(void (*on_thread_start)(void *user), void *user, rpc_timer **out,
                        bd_err *err)
{
    rpc_timer *t = bd_calloc(1, sizeof *t);
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "rpc timer: out of memory");
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&t->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&t->lock, NULL);
    t->on_thread_start = on_thread_start;
    t->user = user;
    int e = pthread_create(&t->thread, NULL, timer_main, t);
    if (e != 0) {
        timer_destroy(t);
        return bd_err_errno(err, BD_E_NOMEM, e, "rpc timer: start its thread");
    }
    *out = t;
    return BD_OK;
}

void rpc_timer_free(rpc_timer *t)
{
    if (t == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&t->lock);
    t->stopping = true;
    (void)pthread_cond_signal(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
    (void)pthread_join(t->thread, NULL);
    timer_destroy(t);
}

bd_status rpc_timer_add(rpc_timer *t, int64_t delay_ns, void (*fn)(void *user), void *user)
{
    bd_status rc = BD_E_NOMEM;
    (void)pthread_mutex_lock(&t->lock);
    void *items = t->heap;
    if (bd_grow(&items, &t->cap, t->n + 1, sizeof *t->heap)) {
        t->heap = items;
        t->heap[t->n] = (entry){bd_mono_ns() + delay_ns, t->seq++, fn, user};
        sift_up(t, t->n++);
        (void)pthread_cond_signal(&t->changed);
        rc = BD_OK;
    }
    (void)pthread_mutex_unlock(&t->lock);
    return rc;
}
