/* A bounded queue of made items between two threads. */
#include "worker/wk_prefetch.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct wk_prefetch {
    pthread_t maker;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    wk_make_fn make;
    wk_drop_fn drop;
    void *user;
    uint64_t next_made, next_taken, end_step;
    size_t depth;
    wk_item *items;  /* owned [depth] */
    wk_item **spare; /* owned [depth]: free items, a stack */
    size_t n_spare;
    wk_item **ready; /* owned [depth]: slot of a step is step % depth */
    bool stop;
    bd_status rc; /* of the first make that failed */
    bd_err err;
};

/* The next step to make and an item for it; false: stop. Called with the lock held. */
static bool wait_for_work(wk_prefetch *p, wk_item **item)
{
    while (!p->stop && p->n_spare == 0) {
        (void)pthread_cond_wait(&p->changed, &p->lock);
    }
    if (p->stop || p->next_made == p->end_step) {
        return false;
    }
    *item = p->spare[--p->n_spare];
    (*item)->step = p->next_made;
    return true;
}

static void *run_maker(void *arg)
{
    wk_prefetch *p = arg;
    wk_item *item = NULL;
    (void)pthread_mutex_lock(&p->lock);
    while (wait_for_work(p, &item)) {
        bd_err err = BD_ERR_INIT;
        (void)pthread_mutex_unlock(&p->lock);
        bd_status rc = p->make(p->user, item, &err);
        (void)pthread_mutex_lock(&p->lock);
        if (rc != BD_OK) {
            p->rc = rc;
            p->err = err;
            p->spare[p->n_spare++] = item;
            (void)pthread_cond_broadcast(&p->changed);
            break;
        }
        p->ready[p->next_made % p->depth] = item;
        p->next_made++;
        (void)pthread_cond_broadcast(&p->changed);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void free_memory(wk_prefetch *p)
{
    for (size_t i = 0; p->items != NULL && i < p->depth; i++) {
        bd_arena_deinit(&p->items[i].batch.arena);
    }
    bd_free(p->items);
    bd_free(p->spare);
    bd_free(p->ready);
    bd_free(p);
}

bd_status wk_prefetch_new(uint64_t first_step, uint64_t end_step, size_t depth, wk_make_fn make,
                          wk_drop_fn drop, void *user, wk_prefetch **out, bd_err *err)
{
    wk_prefetch *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "prefetch");
    }
    p->make = make;
    p->drop = drop;
    p->user = user;
    p->next_made = p->next_taken = first_step;
    p->end_step = end_step;
    p->depth = depth;
    p->items = bd_calloc(depth, sizeof *p->items);
    p->spare = bd_calloc(depth, sizeof(wk_item *));
    p->ready = bd_calloc(depth, sizeof(wk_item *));
    if (p->items == NULL || p->spare == NULL || p->ready == NULL) {
        free_memory(p);
        return bd_err_set(err, BD_E_NOMEM, "prefetch");
    }
    for (size_t i = 0; i < depth; i++) {
        bd_arena_init(&p->items[i].batch.arena);
        p->spare[p->n_spare++] = &p->items[i];
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->changed, NULL);
    int e = pthread_create(&p->maker, NULL, run_maker, p);
    if (e != 0) {
        free_memory(p);
        return bd_err_errno(err, BD_E_EXHAUSTED, e, "prefetch thread");
    }
    *out = p;
    return BD_OK;
}

bd_status wk_prefetch_next(wk_prefetch *p, wk_item **item, bd_err *err)
{
    bd_status rc = BD_OK;
    *item = NULL;
    if (p->next_taken == p->end_step) {
        return BD_OK;
    }
    (void)pthread_mutex_lock(&p->lock);
    while (p->next_made == p->next_taken && p->rc == BD_OK) {
        (void)pthread_cond_wait(&p->changed, &p->lock);
    }
    if (p->next_made > p->next_taken) {
        *item = p->ready[p->next_taken % p->depth];
        p->next_taken++;
    } else {
        rc = p->rc;
        if (err != NULL) {
            *err = p->err;
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}

void wk_prefetch_give_back(wk_prefetch *p, wk_item *item)
{
    if (item == NULL) {
        return;
    }
    p->drop(p->user, item);
    (void)pthread_mutex_lock(&p->lock);
    p->spare[p->n_spare++] = item;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

void wk_prefetch_free(wk_prefetch *p)
{
    if (p == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_join(p->maker, NULL);
    for (uint64_t s = p->next_taken; s < p->next_made; s++) {
        p->drop(p->user, p->ready[s % p->depth]);
    }
    (void)pthread_mutex_destroy(&p->lock);
    (void)pthread_cond_destroy(&p->changed);
    free_memory(p);
}
