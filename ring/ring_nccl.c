/* A communicator's life: rendezvous, NCCL's init and end, translation of foreign errors. */
#include "ring/ring_nccl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ring/ring_nccl_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DEFAULT_TIMEOUT_MS 60000
#define DEFAULT_POLL_MS    100
#define DEFAULT_STOP_MS    10000
#define SETTLE_NAP_NS      20000
#define MAX_WORLD          65536

/* ---- foreign errors ---- */

bd_status ring_nccl_cuda_err(bd_err *err, cudaError_t e, const char *what)
{
    bd_status code = BD_E_IO;
    if (e == cudaErrorMemoryAllocation) {
        code = BD_E_NOMEM;
    } else if (e == cudaErrorNoDevice || e == cudaErrorInvalidDevice ||
               e == cudaErrorInsufficientDriver) {
        code = BD_E_UNAVAILABLE;
    }
    return bd_err_set(err, code, "%s: %s", what, cudaGetErrorString(e));
}

bd_status ring_nccl_err(bd_err *err, ncclResult_t r, ncclComm_t comm, const char *what)
{
    bd_status code = BD_E_IO;
    if (r == ncclRemoteError) {
        code = BD_E_PEER_LOST;
    } else if (r == ncclInvalidArgument || r == ncclInvalidUsage) {
        code = BD_E_INVALID;
    } else if (r == ncclInternalError) {
        code = BD_E_INTERNAL;
    }
    const char *detail = ncclGetLastError(comm);
    return bd_err_set(err, code, "%s: %s%s%s", what, ncclGetErrorString(r),
                      detail != NULL && detail[0] != '\0' ? ": " : "",
                      detail != NULL ? detail : "");
}

/* ---- one NCCL call at a time ---- */

ncclComm_t ring_nccl_lock_comm(ring_nccl *n)
{
    (void)pthread_mutex_lock(&n->call_lock);
    ncclComm_t comm = atomic_load(&n->comm);
    if (comm == NULL) {
        (void)pthread_mutex_unlock(&n->call_lock);
    }
    return comm;
}

void ring_nccl_unlock_comm(ring_nccl *n)
{
    (void)pthread_mutex_unlock(&n->call_lock);
}

bd_status ring_nccl_settle(ring_nccl *n, ncclResult_t first, const char *what, int64_t deadline_ns,
                           bd_err *err)
{
    ncclResult_t state = first;
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};
    for (;;) {
        bd_status rc = ring_nccl_failure(n, err);
        if (rc != BD_OK) {
            return rc;
        }
        ncclComm_t comm = ring_nccl_lock_comm(n);
        if (comm == NULL && state == ncclInProgress) {
            return bd_err_set(err, BD_E_ABORTED, "%s: aborted", what);
        }
        if (state == ncclInProgress) {
            ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
            state = asked != ncclSuccess ? asked : state;
        }
        if (state != ncclSuccess && state != ncclInProgress) {
            rc = ring_nccl_err(err, state, comm, what);
        }
        if (comm != NULL) {
            ring_nccl_unlock_comm(n);
        }
        if (state != ncclInProgress) {
            return rc;
        }
        if (bd_mono_ns() > deadline_ns) {
            return bd_err_set(err, BD_E_TIMEOUT, "%s: NCCL is not ready at the time limit", what);
        }
        (void)nanosleep(&nap, NULL);
    }
}

/* ---- rendezvous ---- */

/* Waits for key until the deadline, or until the group has failed. */
static bd_status await_key(ring_nccl *n, const char *key, int64_t deadline_ns, char **val,
                           size_t *n_bytes, bd_err *err)
{
    bd_status rc = BD_AGAIN;
    while (rc == BD_AGAIN) {
        rc = ring_nccl_failure(n, err);
        if (rc != BD_OK) {
            return rc;
        }
        int64_t left_ms = (deadline_ns - bd_mono_ns()) / BD_NS_PER_MS;
        int64_t ms = left_ms < n->poll_ms ? left_ms : n->poll_ms;
        rc = ring_nccl_key_wait(n, key, ms > 0 ? ms : 0, val, n_bytes, err);
        if (rc == BD_AGAIN && left_ms <= 0) {
            return BD_AGAIN;
        }
    }
    return rc;
}

/* What rank r has said about itself must equal what we say. */
static bd_status check_peer(ring_nccl *n, int r, const char *mine, const char *theirs, bd_err *err)
{
    if (strcmp(mine, theirs) == 0) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_MISMATCH,
                      "nccl %s: rank %d has NCCL version and world %s, rank %d has %s", n->group,
                      n->rank, mine, r, theirs);
}

static bd_status absent(ring_nccl *n, int first, bd_err *err)
{
    char who[200] = "";
    size_t used = 0;
    for (int r = first; r < n->world && used < sizeof who - 12; r++) {
        char key[32];
        char *val = NULL;
        (void)snprintf(key, sizeof key, "rank/%d", r);
        bd_status rc = ring_nccl_key_wait(n, key, 0, &val, NULL, err);
        bd_free(val);
        if (rc == BD_AGAIN) {
            int k = snprintf(who + used, sizeof who - used, "%s%d", used == 0 ? "" : ", ", r);
            used += k > 0 ? (size_t)k : 0;
        }
    }
    return bd_err_set(err, BD_E_TIMEOUT, "nccl %s: absent after %" PRId64 " ms: rank %s", n->group,
                      (int64_t)(n->timeout_ns / BD_NS_PER_MS), who);
}

static bd_status join(ring_nccl *n, int64_t deadline_ns, bd_err *err)
{
    char key[32], mine[64];
    int version = 0;
    bool is_first = false;
    ncclResult_t r = ncclGetVersion(&version);
    if (r != ncclSuccess) {
        return ring_nccl_err(err, r, NULL, "ncclGetVersion");
    }
    (void)snprintf(key, sizeof key, "rank/%d", n->rank);
    (void)snprintf(mine, sizeof mine, "%d %d", version, n->world);
    bd_status rc = ring_nccl_key_claim(n, key, mine, &is_first, err);
    if (rc == BD_OK && !is_first) {
        rc = bd_err_set(err, BD_E_EXISTS, "nccl %s: rank %d has joined already", n->group, n->rank);
    }
    for (int p = 0; rc == BD_OK && p < n->world; p++) {
        char *theirs = NULL;
        (void)snprintf(key, sizeof key, "rank/%d", p);
        rc = await_key(n, key, deadline_ns, &theirs, NULL, err);
        if (rc == BD_AGAIN) {
            return absent(n, p, err);
        }
        rc = rc == BD_OK ? check_peer(n, p, mine, theirs, err) : rc;
        bd_free(theirs);
    }
    return rc;
}

static bd_status share_id(ring_nccl *n, int64_t deadline_ns, ncclUniqueId *id, bd_err *err)
{
    if (n->rank == 0) {
        ncclResult_t r = ncclGetUniqueId(id);
        return r != ncclSuccess ? ring_nccl_err(err, r, NULL, "ncclGetUniqueId")
                                : ring_nccl_key_set(n, "id", id, sizeof *id, err);
    }
    char *val = NULL;
    size_t n_bytes = 0;
    bd_status rc = await_key(n, "id", deadline_ns, &val, &n_bytes, err);
    if (rc == BD_AGAIN) {
        rc = bd_err_set(err, BD_E_TIMEOUT, "nccl %s: no id from rank 0", n->group);
    } else if (rc == BD_OK && n_bytes != sizeof *id) {
        rc = bd_err_set(err, BD_E_CORRUPT, "nccl %s: an id of %zu bytes", n->group, n_bytes);
    } else if (rc == BD_OK) {
        memcpy(id, val, sizeof *id);
    }
    bd_free(val);
    return rc;
}

static bd_status connect_all(ring_nccl *n, const ncclUniqueId *id, int64_t deadline_ns, bd_err *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    (void)pthread_mutex_lock(&n->call_lock);
    ncclResult_t r = ncclCommInitRankConfig(&comm, n->world, *id, n->rank, &config);
    atomic_store(&n->comm, comm);
    (void)pthread_mutex_unlock(&n->call_lock);
    bd_status rc = ring_nccl_settle(n, r, "ncclCommInitRankConfig", deadline_ns, err);
    if (rc == BD_E_TIMEOUT) {
        rc = bd_err_set(err, rc,
                        "nccl %s: all %d ranks have joined, but NCCL did not connect them in "
                        "%" PRId64 " ms (does NCCL_SOCKET_IFNAME name the right interface?)",
                        n->group, n->world, (int64_t)(n->timeout_ns / BD_NS_PER_MS));
    }
    n->is_up = rc == BD_OK;
    return rc;
}

/* ---- life ---- */

static bd_status open_device(ring_nccl *n, bd_err *err)
{
    cudaError_t e = cudaSetDevice(n->device);
    if (e != cudaSuccess) {
        return ring_nccl_cuda_err(err, e, "cudaSetDevice");
    }
    e = cudaStreamCreateWithFlags(&n->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        return ring_nccl_cuda_err(err, e, "cudaStreamCreateWithFlags");
    }
    e = cudaEventCreateWithFlags(&n->fork, cudaEventDisableTiming);
    if (e != cudaSuccess) {
        return ring_nccl_cuda_err(err, e, "cudaEventCreateWithFlags");
    }
    e = cudaMalloc(&n->token, sizeof(float));
    return e != cudaSuccess ? ring_nccl_cuda_err(err, e, "cudaMalloc") : BD_OK;
}

static int64_t or_default(int64_t value, int64_t def)
{
    return value > 0 ? value : def;
}

static ring_nccl *alloc(const ring_nccl_options *opt, bd_kv *kv, int rank, int world)
{
    const char *group = opt->group != NULL ? opt->group : "default";
    ring_nccl *n = bd_calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&n->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)pthread_mutex_init(&n->call_lock, NULL);
    n->rank = rank;
    n->world = world;
    n->device = opt->device;
    n->timeout_ns = or_default(opt->timeout_ms, DEFAULT_TIMEOUT_MS) * BD_NS_PER_MS;
    n->poll_ms = or_default(opt->poll_ms, DEFAULT_POLL_MS);
    n->stop_ms = or_default(opt->stop_ms, DEFAULT_STOP_MS);
    n->kv = kv;
    n->control = opt->control;
    n->group = bd_strdup(group);
    n->prefix = bd_strfmt("ring/%s/%" PRIu64 "/nccl/", group, opt->epoch);
    return n;
}

static void release(ring_nccl *n)
{
    (void)cudaSetDevice(n->device);
    ring_nccl_works_free(n);
    if (n->token != NULL) {
        (void)cudaFree(n->token);
    }
    if (n->fork != NULL) {
        (void)cudaEventDestroy(n->fork);
    }
    if (n->stream != NULL) {
        (void)cudaStreamDestroy(n->stream);
    }
    (void)pthread_cond_destroy(&n->changed);
    (void)pthread_mutex_destroy(&n->lock);
    (void)pthread_mutex_destroy(&n->call_lock);
    bd_free(n->group);
    bd_free(n->prefix);
    bd_free(n);
}

/* The watchdog comes first: it also ends an init that another rank has given up. */
static bd_status start(ring_nccl *n, bd_err *err)
{
    int64_t deadline_ns = bd_mono_ns() + n->timeout_ns;
    ncclUniqueId id;
    if (pthread_create(&n->watchdog, NULL, ring_nccl_watchdog, n) != 0) {
        return bd_err_set(err, BD_E_EXHAUSTED, "nccl %s: thread of the watchdog", n->group);
    }
    n->has_watchdog = true;
    bd_status rc = open_device(n, err);
    rc = rc != BD_OK ? rc : join(n, deadline_ns, err);
    rc = rc != BD_OK ? rc : share_id(n, deadline_ns, &id, err);
    return rc != BD_OK ? rc : connect_all(n, &id, deadline_ns, err);
}

static bd_status check_options(int rank, int world, const ring_nccl_options *opt, bd_err *err)
{
    if (opt == NULL || world < 1 || world > MAX_WORLD || rank < 0 || rank >= world) {
        return bd_err_set(err, BD_E_INVALID, "nccl: rank %d of world %d", rank, world);
    }
    if (opt->control != NULL &&
        (ring_rank(opt->control) != rank || ring_world(opt->control) != world)) {
        return bd_err_set(
            err, BD_E_INVALID,
            "nccl: rank %d of world %d, but rank %d of %d in the control communicator", rank, world,
            ring_rank(opt->control), ring_world(opt->control));
    }
    return BD_OK;
}

bd_status ring_nccl_new(bd_kv *kv, int rank, int world, const ring_nccl_options *opt,
                        ring_nccl **out, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    bd_status rc = check_options(rank, world, opt, err);
    if (rc != BD_OK) {
        return rc;
    }
    ring_nccl *n = alloc(opt, kv, rank, world);
    if (n == NULL || n->group == NULL || n->prefix == NULL) {
        if (n != NULL) {
            release(n);
        }
        return bd_err_set(err, BD_E_NOMEM, "nccl: rank %d", rank);
    }
    rc = start(n, &why);
    if (rc == BD_E_EXISTS || !n->has_watchdog) { /* the rank that was first goes on */
        (void)bd_err_set(err, why.code, "%s", why.text);
        ring_nccl_free(n);
        return rc;
    }
    if (rc != BD_OK) {
        (void)bd_err_wrap(&why, "nccl init, rank %d", rank);
        rc = ring_nccl_fail(n, &why, err);
        ring_nccl_free(n);
        return rc;
    }
    *out = n;
    return BD_OK;
}

void ring_nccl_abort(ring_nccl *n, const bd_err *why)
{
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_ABORTED, "nccl %s: rank %d aborted: %s", n->group, n->rank,
                     why != NULL && why->code != BD_OK ? bd_err_text(why) : "no reason given");
    (void)ring_nccl_fail(n, &err, NULL);
}

/* Nothing runs any more on this rank; the others may still be in their last operation. */
static void close_comm(ring_nccl *n)
{
    bd_err err = BD_ERR_INIT;
    ncclComm_t comm = ring_nccl_lock_comm(n);
    if (comm == NULL) {
        return;
    }
    ncclResult_t r = n->is_up ? ncclCommFinalize(comm) : ncclInternalError;
    ring_nccl_unlock_comm(n);
    bd_status rc = ring_nccl_settle(n, r, "ncclCommFinalize", bd_mono_ns() + n->timeout_ns, &err);
    if (n->is_up && rc != BD_OK) {
        BD_LOG(WARN, "nccl: unclean end, other ranks may have gone before", "why", err.text);
    }
    (void)(rc == BD_OK ? ncclCommDestroy(comm) : ncclCommAbort(comm));
    atomic_store(&n->comm, NULL);
}

/* Others that wait for this rank are told so when they ask. */
static void say_goodbye(ring_nccl *n)
{
    bd_err err = BD_ERR_INIT;
    char key[32], text[64];
    ring_nccl_farewell(n, text, sizeof text);
    (void)snprintf(key, sizeof key, "at/%d", n->rank);
    if (ring_nccl_key_set(n, key, text, strlen(text), &err) != BD_OK) {
        BD_LOG(INFO, "nccl: other ranks are not told that this one has left", "why", err.text);
    }
}

void ring_nccl_dispose(ring_nccl *n)
{
    if (n->is_up && n->failure.code == BD_OK) {
        say_goodbye(n);
    }
    close_comm(n);
    release(n);
}

/* False: NCCL does not stop, and the watchdog still waits for it. */
static bool stop_watchdog(ring_nccl *n)
{
    int64_t until = bd_mono_ns() + n->stop_ms * BD_NS_PER_MS;
    const struct timespec at = {.tv_sec = until / BD_NS_PER_S, .tv_nsec = until % BD_NS_PER_S};
    (void)pthread_mutex_lock(&n->lock);
    n->must_stop = true;
    (void)pthread_cond_broadcast(&n->changed);
    int late = 0;
    while (!n->watchdog_ended && late == 0) {
        late = pthread_cond_timedwait(&n->changed, &n->lock, &at);
    }
    bool ended = n->watchdog_ended;
    n->is_orphan = !ended;
    (void)pthread_mutex_unlock(&n->lock);
    (void)(ended ? pthread_join(n->watchdog, NULL) : pthread_detach(n->watchdog));
    return ended;
}

void ring_nccl_free(ring_nccl *n)
{
    if (n == NULL) {
        return;
    }
    bd_err err = BD_ERR_INIT;
    int rank = n->rank;
    (void)cudaSetDevice(n->device);
    (void)pthread_mutex_lock(&n->lock);
    bool open = ring_nccl_retire(n, NULL) == BD_OK && n->head != NULL;
    (void)pthread_mutex_unlock(&n->lock);
    if (open) {
        (void)bd_err_set(&err, BD_E_ABORTED, "nccl %s: rank %d: the communicator was freed",
                         n->group, n->rank);
        (void)ring_nccl_fail(n, &err, NULL);
    }
    if (n->has_watchdog && !stop_watchdog(n)) {
        BD_LOG(ERROR, "nccl: a communicator does not stop and stays behind, end this process",
               "rank", rank);
        return; /* no longer ours */
    }
    ring_nccl_dispose(n);
}

int ring_nccl_rank(const ring_nccl *n)
{
    return n->rank;
}

int ring_nccl_world(const ring_nccl *n)
{
    return n->world;
}

bd_status ring_nccl_failure(ring_nccl *n, bd_err *err)
{
    (void)pthread_mutex_lock(&n->lock);
    bd_status rc = n->failure.code;
    if (rc != BD_OK && err != NULL) {
        *err = n->failure;
    }
    (void)pthread_mutex_unlock(&n->lock);
    return rc;
}
