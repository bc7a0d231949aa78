/* NCCL between the threads of one process: the ranks of a clique meet in memory, on their streams'
 * threads; the last to arrive computes for all. One lock for all of it. */
#include "base/fault.h"
#include "base/num/reduce.h"

#include "ring/ring_algo.h"

#include "tests/fakes/fake_gpu.h"

#include <nccl.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLD    64
#define MAX_GROUP    256
#define SETTLE_POLLS 2 /* questions until what is "in progress" is done */
#define MAY_FAIL(name, error)             \
    do {                                  \
        if (bd_fault_hit("fake." name)) { \
            return (error);               \
        }                                 \
    } while (0)

typedef enum kind { ALLREDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST } kind;

typedef struct coll {
    kind kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    int root;
} coll;

/* The ranks that are at one operation. */
typedef struct slot {
    const coll *at[MAX_WORLD];
    int n_arrived;
    int n_left;
    bool is_done;
} slot;

typedef struct post {
    struct post *next;
    int src;
    int dst;
    bool is_send;
    bool is_done;
    bool is_matched;
    const void *in;
    void *out;
    size_t n_bytes;
} post;

typedef struct clique {
    struct clique *next;
    uint64_t id;
    int world;
    int n_joined;
    int n_members;
    slot slots[2]; /* by parity: nobody is two operations ahead */
    post *posts;
} clique;

struct ncclComm {
    clique *clique;
    int rank;
    ncclResult_t error; /* sticky */
    int polls_left;
    int n_running;
    int n_queued; /* tasks that hold a reference */
    bool is_stopped;
    bool is_freed;
    uint64_t n_run;
    struct task *pending; /* reach the stream when the state is asked for */
};

/* One operation on its way to the stream: a collective, or the sends and receives of a group. */
typedef struct task {
    struct task *next;
    ncclComm_t comm;
    cudaStream_t stream;
    coll coll;
    post *posts; /* NULL: a collective */
    int n_posts;
} task;

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_changed = PTHREAD_COND_INITIALIZER;
static clique *g_cliques;
static uint64_t g_last_id;
static bool g_let_go;

/* The group of this thread. */
static _Thread_local int t_depth;
static _Thread_local task *t_group;

void fake_nccl_let_go(void)
{
    (void)pthread_mutex_lock(&g_lock);
    g_let_go = true;
    (void)pthread_cond_broadcast(&g_changed);
    (void)pthread_mutex_unlock(&g_lock);
}

static num_dtype dtype_of(ncclDataType_t d)
{
    switch (d) {
    case ncclInt8:
        return NUM_I8;
    case ncclUint8:
        return NUM_U8;
    case ncclInt32:
        return NUM_I32;
    case ncclInt64:
        return NUM_I64;
    case ncclFloat16:
        return NUM_F16;
    case ncclFloat64:
        return NUM_F64;
    case ncclBfloat16:
        return NUM_BF16;
    default:
        return NUM_F32;
    }
}

static num_reduce_op op_of(ncclRedOp_t op)
{
    static const num_reduce_op table[] = {NUM_SUM, NUM_PROD, NUM_MAX, NUM_MIN, NUM_AVG};
    return table[op];
}

static size_t bytes_of(const coll *c)
{
    return c->count * num_dtype_bytes((int)dtype_of(c->dtype));
}

/* ---- collectives ---- */

static bool is_same(const coll *a, const coll *b)
{
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
           a->root == b->root;
}

static void compute_reduce(const slot *s, int world)
{
    const coll *first = s->at[0];
    size_t n_bytes = bytes_of(first);
    size_t n_parts = first->kind == REDUCE_SCATTER ? (size_t)world : 1;
    num_dtype dtype = dtype_of(first->dtype);
    char *sum = malloc(n_bytes * n_parts);
    if (sum == NULL) {
        abort();
    }
    memcpy(sum, first->in, n_bytes * n_parts);
    for (int r = 1; r < world; r++) {
        if (num_reduce(sum, s->at[r]->in, first->count * n_parts, dtype, op_of(first->op)) !=
            BD_OK) {
            abort();
        }
    }
    if (first->op == ncclAvg) {
        ring_divide(sum, first->count * n_parts, dtype, world);
    }
    for (int r = 0; r < world; r++) {
        if (first->kind != REDUCE || r == first->root) {
            memcpy(s->at[r]->out, sum + (n_parts > 1 ? (size_t)r * n_bytes : 0), n_bytes);
        }
    }
    free(sum);
}

static void compute(const slot *s, int world)
{
    const coll *first = s->at[0];
    size_t n_bytes = bytes_of(first);
    for (int r = 0; r < world && first->kind == ALL_GATHER; r++) {
        for (int p = 0; p < world; p++) {
            memmove((char *)s->at[r]->out + (size_t)p * n_bytes, s->at[p]->in, n_bytes);
        }
    }
    for (int r = 0; r < world && first->kind == BROADCAST; r++) {
        memmove(s->at[r]->out, s->at[first->root]->in, n_bytes);
    }
    if (first->kind <= REDUCE_SCATTER) {
        compute_reduce(s, world);
    }
}

/* Ranks that do different things hang, as with the real one. */
static void run_coll(ncclComm_t comm, const coll *c)
{
    clique *q = comm->clique;
    slot *s = &q->slots[comm->n_run++ & 1];
    bool all_same = true;
    s->at[comm->rank] = c;
    s->n_arrived++;
    for (int r = 0; s->n_arrived == q->world && r < q->world; r++) {
        all_same = all_same && is_same(s->at[r], c);
    }
    if (s->n_arrived == q->world && all_same) {
        compute(s, q->world);
        s->is_done = true;
        (void)pthread_cond_broadcast(&g_changed);
    }
    while (!s->is_done && !comm->is_stopped) {
        (void)pthread_cond_wait(&g_changed, &g_lock);
    }
    if (!s->is_done) {
        s->at[comm->rank] = NULL;
        s->n_arrived--;
    } else if (++s->n_left == q->world) {
        *s = (slot){0};
    }
}

/* ---- sends and receives ---- */

static void match(clique *q, post *p)
{
    for (post *o = q->posts; o != NULL; o = o->next) {
        if (!o->is_matched && o != p && o->is_send != p->is_send && o->src == p->src &&
            o->dst == p->dst) {
            const post *from = p->is_send ? p : o;
            const post *to = p->is_send ? o : p;
            o->is_matched = p->is_matched = true;
            if (from->n_bytes == to->n_bytes) {
                memcpy(to->out, from->in, from->n_bytes);
                o->is_done = p->is_done = true;
            }
            return;
        }
    }
}

static void unlink_post(clique *q, const post *p)
{
    post **at = &q->posts;
    while (*at != NULL && *at != p) {
        at = &(*at)->next;
    }
    if (*at == p) {
        *at = p->next;
    }
}

static void run_posts(ncclComm_t comm, task *t)
{
    clique *q = comm->clique;
    bool open = true;
    for (int i = 0; i < t->n_posts; i++) {
        post **tail = &q->posts;
        while (*tail != NULL) {
            tail = &(*tail)->next;
        }
        *tail = &t->posts[i];
        match(q, &t->posts[i]);
    }
    (void)pthread_cond_broadcast(&g_changed);
    while (open && !comm->is_stopped) {
        open = false;
        for (int i = 0; i < t->n_posts; i++) {
            open = open || !t->posts[i].is_done;
        }
        if (open) {
            (void)pthread_cond_wait(&g_changed, &g_lock);
        }
    }
    for (int i = 0; i < t->n_posts; i++) {
        unlink_post(q, &t->posts[i]);
    }
}

/* ---- life ---- */

/* The last one out: the communicator, and its clique. */
static void free_if_unused(ncclComm_t comm)
{
    clique *q = comm->clique;
    if (!comm->is_freed || comm->n_queued > 0) {
        return;
    }
    free(comm);
    if (--q->n_members == 0) {
        clique **at = &g_cliques;
        while (*at != q) {
            at = &(*at)->next;
        }
        *at = q->next;
        free(q);
    }
}

static void task_free(task *t)
{
    free(t->posts);
    free(t);
}

static void run_task(void *arg)
{
    task *t = arg;
    ncclComm_t comm = t->comm;
    (void)pthread_mutex_lock(&g_lock);
    comm->n_running++;
    if (!comm->is_stopped && t->posts != NULL) {
        run_posts(comm, t);
    } else if (!comm->is_stopped) {
        run_coll(comm, &t->coll);
    }
    comm->n_running--;
    comm->n_queued--;
    (void)pthread_cond_broadcast(&g_changed);
    free_if_unused(comm);
    (void)pthread_mutex_unlock(&g_lock);
    task_free(t);
}

static void flush(ncclComm_t comm)
{
    while (comm->pending != NULL) {
        task *t = comm->pending;
        comm->pending = t->next;
        comm->n_queued++;
        fake_gpu_push(t->stream, run_task, t);
    }
}

const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const texts[] = {"no error",       "unhandled cuda error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error",   "in progress"};
    return texts[r];
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm != NULL && comm->error == ncclRemoteError ? "a peer closed its connection" : "";
}

ncclResult_t ncclGetVersion(int *version)
{
    MAY_FAIL("ncclGetVersion", ncclInternalError);
    *version = bd_fault_hit("fake.other_version") ? 21800 : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    MAY_FAIL("ncclGetUniqueId", ncclSystemError);
    memset(id, 0, sizeof *id);
    (void)pthread_mutex_lock(&g_lock);
    g_last_id++;
    memcpy(id->internal, &g_last_id, sizeof g_last_id);
    (void)pthread_mutex_unlock(&g_lock);
    return ncclSuccess;
}

static clique *clique_of(uint64_t id, int world)
{
    clique *q = g_cliques;
    while (q != NULL && q->id != id) {
        q = q->next;
    }
    if (q == NULL) {
        q = calloc(1, sizeof *q);
        if (q == NULL) {
            abort();
        }
        q->id = id;
        q->world = world;
        q->next = g_cliques;
        g_cliques = q;
    }
    return q;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    uint64_t number = 0;
    MAY_FAIL("ncclCommInitRankConfig", ncclSystemError);
    if (config->blocking != 0 || world > MAX_WORLD || rank < 0 || rank >= world) {
        return ncclInvalidArgument;
    }
    ncclComm_t fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return ncclSystemError;
    }
    memcpy(&number, id.internal, sizeof number);
    (void)pthread_mutex_lock(&g_lock);
    fresh->clique = clique_of(number, world);
    fresh->clique->n_joined += bd_fault_hit("fake.hang.init") ? -world : 1;
    fresh->clique->n_members++;
    fresh->rank = rank;
    fresh->polls_left = SETTLE_POLLS;
    (void)pthread_mutex_unlock(&g_lock);
    fake_gpu_count(1);
    *comm = fresh;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    MAY_FAIL("ncclCommGetAsyncError", ncclInternalError);
    (void)pthread_mutex_lock(&g_lock);
    if (bd_fault_hit("fake.async")) {
        comm->error = ncclRemoteError;
    }
    if (comm->polls_left > 0) {
        comm->polls_left--;
    }
    bool ready =
        comm->polls_left == 0 &&
        (comm->is_stopped ? comm->n_running == 0 : comm->clique->n_joined == comm->clique->world);
    if (ready) {
        flush(comm);
    }
    *state = comm->error != ncclSuccess ? comm->error : ready ? ncclSuccess : ncclInProgress;
    (void)pthread_mutex_unlock(&g_lock);
    return ncclSuccess;
}

/* The real one waits for what is queued; here the caller has done so. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    MAY_FAIL("ncclCommFinalize", ncclInternalError);
    (void)pthread_mutex_lock(&g_lock);
    comm->polls_left = SETTLE_POLLS;
    (void)pthread_mutex_unlock(&g_lock);
    return ncclInProgress;
}

static void let_down(ncclComm_t comm)
{
    comm->is_stopped = true;
    while (comm->pending != NULL) {
        task *t = comm->pending;
        comm->pending = t->next;
        task_free(t);
    }
    (void)pthread_cond_broadcast(&g_changed);
}

static void retire_comm(ncclComm_t comm)
{
    let_down(comm);
    while (comm->n_running > 0) {
        (void)pthread_cond_wait(&g_changed, &g_lock);
    }
    comm->is_freed = true;
    free_if_unused(comm);
    fake_gpu_count(-1);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&g_lock);
    retire_comm(comm);
    (void)pthread_mutex_unlock(&g_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    bool fails = bd_fault_hit("fake.ncclCommAbort");
    bool hangs = bd_fault_hit("fake.hang.abort");
    (void)pthread_mutex_lock(&g_lock);
    while (hangs && !g_let_go) {
        (void)pthread_cond_wait(&g_changed, &g_lock);
    }
    retire_comm(comm);
    (void)pthread_mutex_unlock(&g_lock);
    return fails ? ncclInternalError : ncclSuccess;
}

#if NCCL_VERSION_CODE >= 22809
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    (void)flags;
    MAY_FAIL("ncclCommRevoke", ncclInternalError);
    (void)pthread_mutex_lock(&g_lock);
    let_down(comm);
    comm->polls_left = SETTLE_POLLS;
    (void)pthread_mutex_unlock(&g_lock);
    return ncclInProgress;
}
#endif

/* ---- calls ---- */

/* Not on the stream before the state has been asked for. */
static ncclResult_t enqueue(task *t)
{
    ncclComm_t comm = t->comm;
    (void)pthread_mutex_lock(&g_lock);
    task **tail = &comm->pending;
    while (*tail != NULL) {
        tail = &(*tail)->next;
    }
    *tail = t;
    comm->polls_left = SETTLE_POLLS;
    (void)pthread_mutex_unlock(&g_lock);
    return ncclInProgress;
}

static ncclResult_t issue(coll c, ncclComm_t comm, cudaStream_t stream)
{
    if (t_depth > 0 || c.root >= comm->clique->world) {
        return ncclInvalidUsage;
    }
    task *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return ncclSystemError;
    }
    t->comm = comm;
    t->stream = stream;
    t->coll = c;
    return enqueue(t);
}

/* A call that does not come back until the communicator is taken down. */
static bool hung(ncclComm_t comm)
{
    if (!bd_fault_hit("fake.hang.call")) {
        return false;
    }
    (void)pthread_mutex_lock(&g_lock);
    comm->n_queued++;
    while (!comm->is_stopped) {
        (void)pthread_cond_wait(&g_changed, &g_lock);
    }
    comm->n_queued--;
    free_if_unused(comm);
    (void)pthread_mutex_unlock(&g_lock);
    return true;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL("ncclAllReduce", ncclUnhandledCudaError);
    if (hung(comm)) {
        return ncclInternalError;
    }
    return issue((coll){ALLREDUCE, in, out, count, dtype, op, -1}, comm, stream);
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL("ncclReduce", ncclUnhandledCudaError);
    return issue((coll){REDUCE, in, out, count, dtype, op, root}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count_out, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL("ncclReduceScatter", ncclUnhandledCudaError);
    return issue((coll){REDUCE_SCATTER, in, out, count_out, dtype, op, -1}, comm, stream);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count_in, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL("ncclAllGather", ncclUnhandledCudaError);
    return issue((coll){ALL_GATHER, in, out, count_in, dtype, ncclSum, -1}, comm, stream);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    MAY_FAIL("ncclBroadcast", ncclUnhandledCudaError);
    return issue((coll){BROADCAST, in, out, count, dtype, ncclSum, root}, comm, stream);
}

static ncclResult_t add_post(post p, ncclComm_t comm, cudaStream_t stream)
{
    if (t_depth == 0) {
        return ncclInvalidUsage; /* the real one can; nobody here does */
    }
    if (t_group == NULL) {
        t_group = calloc(1, sizeof *t_group);
        if (t_group == NULL) {
            return ncclSystemError;
        }
        t_group->posts = calloc(MAX_GROUP, sizeof *t_group->posts);
        t_group->comm = comm;
        t_group->stream = stream;
    }
    if (t_group->posts == NULL || t_group->n_posts == MAX_GROUP) {
        return ncclInvalidUsage;
    }
    t_group->posts[t_group->n_posts++] = p;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    MAY_FAIL("ncclSend", ncclUnhandledCudaError);
    post p = {.src = comm->rank,
              .dst = peer,
              .is_send = true,
              .in = in,
              .n_bytes = count * num_dtype_bytes((int)dtype_of(dtype))};
    return add_post(p, comm, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    MAY_FAIL("ncclRecv", ncclUnhandledCudaError);
    post p = {.src = peer,
              .dst = comm->rank,
              .out = out,
              .n_bytes = count * num_dtype_bytes((int)dtype_of(dtype))};
    return add_post(p, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    MAY_FAIL("ncclGroupStart", ncclInternalError);
    t_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (t_depth == 0) {
        return ncclInvalidUsage;
    }
    task *t = t_group;
    t_depth--;
    t_group = NULL;
    if (bd_fault_hit("fake.ncclGroupEnd")) {
        if (t != NULL) {
            task_free(t);
        }
        return ncclInternalError;
    }
    return t == NULL ? ncclSuccess : enqueue(t);
}
