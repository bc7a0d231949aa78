/* Operations in flight: their events, their end, and who waits for them. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_nccl_int.h"

#include <inttypes.h>
#include <time.h>

#define WAIT_NAP_MIN_NS 10000
#define WAIT_NAP_MAX_NS 200000

static void work_free(ring_nccl_work *w)
{
    if (w->ready != NULL) {
        (void)cudaEventDestroy(w->ready);
    }
    if (w->done != NULL) {
        (void)cudaEventDestroy(w->done);
    }
    bd_free(w);
}

static bd_status work_make(ring_nccl_work **out, bd_err *err)
{
    ring_nccl_work *w = bd_calloc(1, sizeof *w);
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "nccl: operation");
    }
    cudaError_t e = cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming);
    if (e == cudaSuccess) {
        e = cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming);
    }
    if (e != cudaSuccess) {
        work_free(w);
        return ring_nccl_cuda_err(err, e, "cudaEventCreateWithFlags");
    }
    *out = w;
    return BD_OK;
}

bd_status ring_nccl_work_new(ring_nccl *n, const ring_op *op, ring_nccl_work **out, bd_err *err)
{
    (void)pthread_mutex_lock(&n->lock);
    ring_nccl_work *w = n->spare;
    if (w != NULL) {
        n->spare = w->next;
    }
    (void)pthread_mutex_unlock(&n->lock);
    bd_status rc = w == NULL ? work_make(&w, err) : BD_OK;
    if (rc != BD_OK || w == NULL) {
        return rc;
    }
    w->owner = n;
    w->next = NULL;
    w->op = *op;
    w->state = RING_NCCL_ISSUED;
    w->is_held = true;
    *out = w;
    return BD_OK;
}

void ring_nccl_works_free(ring_nccl *n)
{
    BD_ASSERT(n->head == NULL && n->n_held == 0); /* works are given back before the free */
    while (n->spare != NULL) {
        ring_nccl_work *w = n->spare;
        n->spare = w->next;
        work_free(w);
    }
}

/* Ended and given back: its events can be used again. Locked. */
static void recycle(ring_nccl *n, ring_nccl_work *w)
{
    if (!w->is_held && w->state >= RING_NCCL_ENDED) {
        w->next = n->spare;
        n->spare = w;
    }
}

static void end_head(ring_nccl *n, ring_nccl_state state)
{
    ring_nccl_work *w = n->head;
    n->head = w->next;
    n->tail = n->head == NULL ? NULL : n->tail;
    w->state = state;
    recycle(n, w);
}

bd_status ring_nccl_retire(ring_nccl *n, bd_err *err)
{
    while (n->head != NULL && n->head->state == RING_NCCL_LAUNCHED) {
        cudaError_t e = cudaEventQuery(n->head->done);
        if (e == cudaErrorNotReady) {
            break;
        }
        if (e != cudaSuccess) {
            char text[RING_OP_TEXT_BYTES];
            bd_status rc = ring_nccl_cuda_err(err, e, "the device");
            ring_op_text(&n->head->op, n->head->seq, text, sizeof text);
            (void)bd_err_wrap(err, "nccl %s: rank %d: %s", n->group, n->rank, text);
            return rc;
        }
        end_head(n, RING_NCCL_ENDED);
    }
    return BD_OK;
}

void ring_nccl_end_all(ring_nccl *n)
{
    while (n->head != NULL) {
        end_head(n, RING_NCCL_FAILED);
    }
}

ring_nccl_event ring_nccl_work_event(const ring_nccl_work *w)
{
    return w->done;
}

bd_status ring_nccl_work_order(ring_nccl_work *w, ring_nccl_stream stream, bd_err *err)
{
    cudaError_t e = cudaStreamWaitEvent(stream, w->done, 0);
    return e == cudaSuccess ? BD_OK : ring_nccl_cuda_err(err, e, "cudaStreamWaitEvent");
}

/* *err is a fresh one: what the device says, or the failure of the group. */
static bool has_ended(ring_nccl_work *w, bd_err *err)
{
    ring_nccl *n = w->owner;
    (void)pthread_mutex_lock(&n->lock);
    bd_status rc = n->failure.code == BD_OK ? ring_nccl_retire(n, err) : BD_OK;
    ring_nccl_give_up(n);
    ring_nccl_state state = w->state;
    if (state == RING_NCCL_FAILED) {
        *err = n->failure;
    }
    (void)pthread_mutex_unlock(&n->lock);
    if (rc != BD_OK) {
        bd_err why = *err;
        (void)ring_nccl_fail(n, &why, err);
        return true;
    }
    return state >= RING_NCCL_ENDED;
}

bool ring_nccl_work_done(ring_nccl_work *w)
{
    bd_err err = BD_ERR_INIT;
    return has_ended(w, &err);
}

void ring_nccl_work_release(ring_nccl_work *w)
{
    ring_nccl *n = w->owner;
    (void)pthread_mutex_lock(&n->lock);
    w->is_held = false;
    n->n_held--;
    recycle(n, w);
    (void)pthread_mutex_unlock(&n->lock);
}

bd_status ring_nccl_work_wait(ring_nccl_work *w, bd_err *err)
{
    bd_err end = BD_ERR_INIT;
    struct timespec nap = {.tv_nsec = WAIT_NAP_MIN_NS};
    (void)cudaSetDevice(w->owner->device);
    while (!has_ended(w, &end)) { /* bounded: the watchdog ends what takes longer than timeout_ns */
        (void)nanosleep(&nap, NULL);
        nap.tv_nsec = nap.tv_nsec < WAIT_NAP_MAX_NS ? nap.tv_nsec * 2 : nap.tv_nsec;
    }
    ring_nccl_work_release(w);
    if (end.code != BD_OK && err != NULL) {
        *err = end;
    }
    return end.code;
}
