#include "rpc/rpc_pool.h"

#include "base/log.h"
#include "base/mem.h"

#include "rpc/rpc.h"

#include <pthread.h>
#include <stdbool.h>

struct rpc_pool {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;  /* a job, or stopping */
    pthread_cond_t gone;  /* a thread has left */
    rpc_job *first, **last;
    int n_target;  /* threads that may run at once */
    int n_threads; /* alive */
    int n_blocked; /* of them: waiting in nested calls */
    int n_idle;    /* of them: waiting for a job */
    bool stopping;
};

static _Thread_local rpc_pool *tls_pool; /* set in the pool's own threads */
static _Thread_local int tls_blocked_depth;

static void *worker_main(void *arg);

static void spawn_locked(rpc_pool *p)
{
    pthread_t id;
    pthread_attr_t attr;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr,
                                      PTHREAD_CREATE_DETACHED); /* free waits for n_threads */
    int e = pthread_create(&id, &attr, worker_main, p);
    (void)pthread_attr_destroy(&attr);
    if (e == 0) {
        p->n_threads++;
    } else {
        BD_LOG(WARN, "no thread for a request handler, raise the process's thread limit", "errno",
               e, "threads", p->n_threads);
    }
}

/* Another thread when there is a job that nobody is free to take and the running ones are fewer
 * than wanted. */
static void grow_if_needed_locked(rpc_pool *p)
{
    if (p->first != NULL && p->n_idle == 0 && p->n_threads - p->n_blocked < p->n_target) {
        spawn_locked(p);
    }
}

static void *worker_main(void *arg)
{
    rpc_pool *p = arg;
    tls_pool = p;
    (void)pthread_mutex_lock(&p->lock);
    for (;;) {
        rpc_job *job = p->first;
        if (job != NULL) {
            p->first = job->next;
            if (p->first == NULL) {
                p->last = &p->first;
            }
            (void)pthread_mutex_unlock(&p->lock);
            job->run(job);
            (void)pthread_mutex_lock(&p->lock);
            continue;
        }
        if (p->stopping || p->n_threads - p->n_blocked > p->n_target) {
            break;
        }
        p->n_idle++;
        (void)pthread_cond_wait(&p->work, &p->lock);
        p->n_idle--;
    }
    p->n_threads--;
    (void)pthread_cond_broadcast(&p->gone);
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

bd_status rpc_pool_new(int n_workers, rpc_pool **out, bd_err *err)
{
    rpc_pool *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "handler pool: out of memory");
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->gone, NULL);
    p->last = &p->first;
    p->n_target = n_workers;
    *out = p;
    return BD_OK; /* threads start with the work */
}

void rpc_pool_free(rpc_pool *p)
{
    if (p == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    (void)pthread_cond_broadcast(&p->work);
    while (p->n_threads > 0) {
        (void)pthread_cond_wait(&p->gone, &p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_cond_destroy(&p->gone);
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_mutex_destroy(&p->lock);
    bd_free(p);
}

void rpc_pool_submit(rpc_pool *p, rpc_job *job)
{
    job->next = NULL;
    (void)pthread_mutex_lock(&p->lock);
    *p->last = job;
    p->last = &job->next;
    grow_if_needed_locked(p);
    if (p->n_idle > 0) {
        (void)pthread_cond_signal(&p->work);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

int rpc_pool_n_threads(rpc_pool *p)
{
    (void)pthread_mutex_lock(&p->lock);
    int n = p->n_threads;
    (void)pthread_mutex_unlock(&p->lock);
    return n;
}

void rpc_blocking_begin(void)
{
    rpc_pool *p = tls_pool;
    if (p != NULL && tls_blocked_depth++ == 0) {
        (void)pthread_mutex_lock(&p->lock);
        p->n_blocked++;
        grow_if_needed_locked(p);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

void rpc_blocking_end(void)
{
    rpc_pool *p = tls_pool;
    if (p != NULL && --tls_blocked_depth == 0) {
        (void)pthread_mutex_lock(&p->lock);
        p->n_blocked--;
        (void)pthread_mutex_unlock(&p->lock);
    }
}
