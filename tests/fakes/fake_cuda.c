/* Streams as threads with a queue; events as two counters. One lock for all of it, for tests are small, but
 * each wakes its own waiters only, for a group of 8 has many.
 * Plain malloc, so that allocation faults hit the code under test only. */
#include "base/fault.h"

#include "tests/fakes/fake_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct task {
    struct task *next;
    void (*run)(void *arg);
    void *arg;
} task;

struct CUstream_st {
    pthread_t thread;
    task *head;
    task *tail;
    bool is_busy;
    bool must_stop;
    pthread_cond_t changed;
};

struct CUevent_st {
    uint64_t n_recorded;
    uint64_t n_happened;
    int refs; /* the owner, and what is queued */
    pthread_cond_t happened;
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long g_live;
static atomic_int g_broken;
static _Thread_local int g_device;

#define MAY_FAIL(name, error)             \
    do {                                  \
        if (bd_fault_hit("fake." name)) { \
            return (error);               \
        }                                 \
    } while (0)

long fake_gpu_live(void)
{
    return atomic_load(&g_live);
}

void fake_gpu_count(int by)
{
    (void)atomic_fetch_add(&g_live, by);
}

void fake_gpu_break(int broken)
{
    atomic_store(&g_broken, broken);
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorNotReady:
        return "device not ready";
    default:
        return "unknown error";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = FAKE_GPU_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    MAY_FAIL("cudaSetDevice", cudaErrorUnknown);
    if (device < 0 || device >= FAKE_GPU_DEVICES) {
        return cudaErrorInvalidDevice;
    }
    g_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = g_device;
    return cudaSuccess;
}

/* Which addresses are device memory; a test has few. */
#define MOST_BLOCKS 1024
static pthread_mutex_t g_blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const uint8_t *p;
    size_t n_bytes;
} g_blocks[MOST_BLOCKS];

static void note_block(const void *p, size_t n_bytes)
{
    (void)pthread_mutex_lock(&g_blocks_lock);
    for (size_t i = 0; i < MOST_BLOCKS; i++) {
        if (g_blocks[i].p == NULL) {
            g_blocks[i].p = p;
            g_blocks[i].n_bytes = n_bytes;
            break;
        }
    }
    (void)pthread_mutex_unlock(&g_blocks_lock);
}

static void forget_block(const void *p)
{
    (void)pthread_mutex_lock(&g_blocks_lock);
    for (size_t i = 0; i < MOST_BLOCKS; i++) {
        if (g_blocks[i].p == p) {
            g_blocks[i].p = NULL;
        }
    }
    (void)pthread_mutex_unlock(&g_blocks_lock);
}

static bool is_in_block(const void *p)
{
    const uint8_t *at = p;
    bool found = false;
    (void)pthread_mutex_lock(&g_blocks_lock);
    for (size_t i = 0; i < MOST_BLOCKS && !found; i++) {
        found = g_blocks[i].p != NULL && at >= g_blocks[i].p &&
                at < g_blocks[i].p + g_blocks[i].n_bytes;
    }
    (void)pthread_mutex_unlock(&g_blocks_lock);
    return found;
}

cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    MAY_FAIL("cudaMalloc", cudaErrorMemoryAllocation);
    *p = malloc(n_bytes > 0 ? n_bytes : 1);
    if (*p == NULL) {
        return cudaErrorMemoryAllocation;
    }
    note_block(*p, n_bytes);
    fake_gpu_count(1);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    *a = (struct cudaPointerAttributes){.type = is_in_block(p) ? cudaMemoryTypeDevice
                                                               : cudaMemoryTypeUnregistered};
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (p != NULL) {
        forget_block(p);
        free(p);
        fake_gpu_count(-1);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    if (n_bytes > 0) {
        memcpy(dst, src, n_bytes);
    }
    return cudaSuccess;
}

/* ---- streams ---- */

static void *stream_main(void *arg)
{
    cudaStream_t s = arg;
    (void)pthread_mutex_lock(&g_lock);
    for (;;) {
        while (s->head == NULL && !s->must_stop) {
            (void)pthread_cond_wait(&s->changed, &g_lock);
        }
        task *t = s->head;
        if (t == NULL) {
            break;
        }
        s->head = t->next;
        s->tail = s->head == NULL ? NULL : s->tail;
        s->is_busy = true;
        (void)pthread_mutex_unlock(&g_lock);
        t->run(t->arg);
        free(t);
        (void)pthread_mutex_lock(&g_lock);
        s->is_busy = false;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&g_lock);
    return NULL;
}

static void push_locked(cudaStream_t s, void (*run)(void *arg), void *arg)
{
    task *t = calloc(1, sizeof *t);
    if (t == NULL) {
        abort(); /* a fake has no way to say so */
    }
    t->run = run;
    t->arg = arg;
    *(s->tail == NULL ? &s->head : &s->tail->next) = t;
    s->tail = t;
    (void)pthread_cond_broadcast(&s->changed);
}

void fake_gpu_push(cudaStream_t s, void (*run)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&g_lock);
    push_locked(s, run, arg);
    (void)pthread_mutex_unlock(&g_lock);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    MAY_FAIL("cudaStreamCreateWithFlags", cudaErrorUnknown);
    cudaStream_t fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return cudaErrorMemoryAllocation;
    }
    (void)pthread_cond_init(&fresh->changed, NULL);
    if (pthread_create(&fresh->thread, NULL, stream_main, fresh) != 0) {
        (void)pthread_cond_destroy(&fresh->changed);
        free(fresh);
        return cudaErrorMemoryAllocation;
    }
    fake_gpu_count(1);
    *s = fresh;
    return cudaSuccess;
}

/* Drains, which the real one does behind the caller's back. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)pthread_mutex_lock(&g_lock);
    s->must_stop = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&g_lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_cond_destroy(&s->changed);
    free(s);
    fake_gpu_count(-1);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)pthread_mutex_lock(&g_lock);
    while (s->head != NULL || s->is_busy) {
        (void)pthread_cond_wait(&s->changed, &g_lock);
    }
    (void)pthread_mutex_unlock(&g_lock);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    fake_gpu_push(s, fn, arg);
    return cudaSuccess;
}

typedef struct copy {
    void *dst;
    const void *src;
    size_t n_bytes;
} copy;

static void run_copy(void *arg)
{
    copy *c = arg;
    memcpy(c->dst, c->src, c->n_bytes);
    free(c);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    copy *c = malloc(sizeof *c);
    if (c == NULL) {
        return cudaErrorMemoryAllocation;
    }
    *c = (copy){.dst = dst, .src = src, .n_bytes = n_bytes};
    fake_gpu_push(s, run_copy, c);
    return cudaSuccess;
}

/* ---- events ---- */

typedef struct mark {
    cudaEvent_t event;
    uint64_t count;
} mark;

static void unref_locked(cudaEvent_t e)
{
    if (--e->refs == 0) {
        (void)pthread_cond_destroy(&e->happened);
        free(e);
    }
}

static mark *mark_new(cudaEvent_t e)
{
    mark *m = malloc(sizeof *m);
    if (m == NULL) {
        abort();
    }
    *m = (mark){.event = e, .count = e->n_recorded};
    e->refs++;
    return m;
}

static void run_record(void *arg)
{
    mark *m = arg;
    (void)pthread_mutex_lock(&g_lock);
    if (m->event->n_happened < m->count) {
        m->event->n_happened = m->count;
        (void)pthread_cond_broadcast(&m->event->happened);
    }
    unref_locked(m->event);
    (void)pthread_mutex_unlock(&g_lock);
    free(m);
}

static void run_wait(void *arg)
{
    mark *m = arg;
    (void)pthread_mutex_lock(&g_lock);
    while (m->event->n_happened < m->count) {
        (void)pthread_cond_wait(&m->event->happened, &g_lock);
    }
    unref_locked(m->event);
    (void)pthread_mutex_unlock(&g_lock);
    free(m);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    MAY_FAIL("cudaEventCreateWithFlags", cudaErrorUnknown);
    cudaEvent_t fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return cudaErrorMemoryAllocation;
    }
    (void)pthread_cond_init(&fresh->happened, NULL);
    fresh->refs = 1;
    fake_gpu_count(1);
    *e = fresh;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)pthread_mutex_lock(&g_lock);
    unref_locked(e);
    (void)pthread_mutex_unlock(&g_lock);
    fake_gpu_count(-1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    MAY_FAIL("cudaEventRecord", cudaErrorUnknown);
    (void)pthread_mutex_lock(&g_lock);
    e->n_recorded++;
    push_locked(s, run_record, mark_new(e));
    (void)pthread_mutex_unlock(&g_lock);
    return cudaSuccess;
}

/* Waits for the newest record of now, not for later ones. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    MAY_FAIL("cudaStreamWaitEvent", cudaErrorUnknown);
    (void)pthread_mutex_lock(&g_lock);
    push_locked(s, run_wait, mark_new(e));
    (void)pthread_mutex_unlock(&g_lock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    MAY_FAIL("cudaEventQuery", cudaErrorIllegalAddress);
    if (atomic_load(&g_broken) != 0) {
        return cudaErrorIllegalAddress;
    }
    (void)pthread_mutex_lock(&g_lock);
    bool happened = e->n_happened >= e->n_recorded;
    (void)pthread_mutex_unlock(&g_lock);
    return happened ? cudaSuccess : cudaErrorNotReady;
}
