/* Gradient arrays belong to the trainer; the transport may hold on to them a little longer than the
 * answer takes. They are counted, so that they are given back only when nobody reads them. */
#include "base/clock.h"
#include "base/mem.h"

#include "client/cl_int.h"

#include <time.h>

#define RETURN_WAIT_NS (10 * BD_NS_PER_S)

struct cl_borrows {
    _Atomic uint32_t refs; /* the client's, and one for each array out */
    pthread_mutex_t lock;
    pthread_cond_t returned; /* CLOCK_MONOTONIC */
    size_t n_out;            /* under lock */
};

cl_borrows *cl_borrows_new(void)
{
    cl_borrows *b = bd_calloc(1, sizeof *b);
    if (b != NULL) {
        pthread_condattr_t attr;
        (void)pthread_condattr_init(&attr);
        (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&b->returned, &attr);
        (void)pthread_condattr_destroy(&attr);
        (void)pthread_mutex_init(&b->lock, NULL);
        atomic_init(&b->refs, 1);
    }
    return b;
}

void cl_borrows_unref(cl_borrows *b)
{
    if (b != NULL && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) {
        (void)pthread_cond_destroy(&b->returned);
        (void)pthread_mutex_destroy(&b->lock);
        bd_free(b);
    }
}

/* Any thread, also the transport's. */
static void on_release(void *user)
{
    cl_borrows *b = user;
    (void)pthread_mutex_lock(&b->lock);
    b->n_out--;
    (void)pthread_cond_broadcast(&b->returned);
    (void)pthread_mutex_unlock(&b->lock);
    cl_borrows_unref(b);
}

bd_buf *cl_borrow(cl_borrows *b, const float *values, size_t n)
{
    union {
        const float *in;
        void *out;
    } u = {.in = values}; /* a bd_buf may be written, this one is only sent */
    bd_buf *buf = bd_buf_wrap(u.out, n * sizeof *values, on_release, b);
    if (buf != NULL) {
        atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
        (void)pthread_mutex_lock(&b->lock);
        b->n_out++;
        (void)pthread_mutex_unlock(&b->lock);
    }
    return buf;
}

bool cl_borrows_any(cl_borrows *b)
{
    (void)pthread_mutex_lock(&b->lock);
    bool any = b->n_out > 0;
    (void)pthread_mutex_unlock(&b->lock);
    return any;
}

bd_status cl_borrows_wait(cl_borrows *b, bd_err *err)
{
    int64_t until = bd_mono_ns() + RETURN_WAIT_NS;
    struct timespec ts = {.tv_sec = until / BD_NS_PER_S, .tv_nsec = until % BD_NS_PER_S};
    int timed_out = 0;
    (void)pthread_mutex_lock(&b->lock);
    while (b->n_out > 0 && timed_out == 0) {
        timed_out = pthread_cond_timedwait(&b->returned, &b->lock, &ts);
    }
    size_t n = b->n_out;
    (void)pthread_mutex_unlock(&b->lock);
    return n == 0 ? BD_OK
                  : bd_err_set(err, BD_E_INTERNAL,
                               "%zu gradient arrays are still held by the transport", n);
}
