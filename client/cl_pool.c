#include "client/cl_pool.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define STEP_BYTES ((size_t)64 << 10) /* sizes are multiples: batches of about one size fit */

struct cl_pool {
    _Atomic uint32_t refs;
    pthread_mutex_t lock;
    cl_block free[CL_POOL_BLOCKS]; /* under lock */
    size_t n_free;                 /* under lock */
};

cl_pool *cl_pool_new(void)
{
    cl_pool *p = bd_calloc(1, sizeof *p);
    if (p != NULL) {
        atomic_init(&p->refs, 1);
        (void)pthread_mutex_init(&p->lock, NULL);
    }
    return p;
}

cl_pool *cl_pool_ref(cl_pool *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void cl_pool_unref(cl_pool *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < p->n_free; i++) {
        bd_free(p->free[i].bytes);
    }
    (void)pthread_mutex_destroy(&p->lock);
    bd_free(p);
}

/* The smallest free block that holds n_bytes and is not much too large. */
static cl_block find(cl_pool *p, size_t n_bytes)
{
    cl_block got = {0};
    size_t best = CL_POOL_BLOCKS;
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_free; i++) {
        size_t cap = p->free[i].cap_bytes;
        if (cap >= n_bytes && cap - n_bytes <= n_bytes / 2 + STEP_BYTES &&
            (best == CL_POOL_BLOCKS || cap < p->free[best].cap_bytes)) {
            best = i;
        }
    }
    if (best < CL_POOL_BLOCKS) {
        got = p->free[best];
        p->free[best] = p->free[--p->n_free];
    }
    (void)pthread_mutex_unlock(&p->lock);
    return got;
}

cl_block cl_pool_take(cl_pool *p, size_t n_bytes)
{
    cl_block b = {0};
    size_t cap = n_bytes;
    if (n_bytes >= CL_POOL_MIN_BYTES) {
        b = find(p, n_bytes);
        if (b.bytes != NULL || !bd_add_size(n_bytes, STEP_BYTES - 1, &cap)) {
            return b;
        }
        cap = cap / STEP_BYTES * STEP_BYTES;
    }
    b.bytes = bd_alloc_huge(cap);
    b.cap_bytes = b.bytes != NULL ? cap : 0;
    return b;
}

void cl_pool_give(cl_pool *p, cl_block *b)
{
    cl_block drop = *b;
    *b = (cl_block){0};
    if (drop.bytes == NULL || drop.cap_bytes < CL_POOL_MIN_BYTES) {
        bd_free(drop.bytes);
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    if (p->n_free < CL_POOL_BLOCKS) {
        p->free[p->n_free++] = drop;
        drop = (cl_block){0};
    } else {
        for (size_t i = 0; i < p->n_free; i++) { /* the smallest of all goes */
            if (p->free[i].cap_bytes < drop.cap_bytes) {
                cl_block smaller = p->free[i];
                p->free[i] = drop;
                drop = smaller;
            }
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    bd_free(drop.bytes);
}
