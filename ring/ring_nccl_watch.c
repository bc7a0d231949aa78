/* The watchdog: looks at the device, at NCCL and at the alarm of other ranks, and sees to it that
 * all ranks end with one verdict. It alone stops NCCL. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ring/ring_comm_int.h"
#include "ring/ring_nccl_int.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOCK_WAIT_MS   1000 /* a call that takes longer is stuck inside NCCL */
#define REVOKE_WAIT_MS 1000
#define REPORT_MIN_MS  1000
#define IDLE_FACTOR    4 /* how much slower an idle rank polls */

/* From this version on operations can be stopped before memory is freed. */
#if NCCL_VERSION_CODE >= 22809
#define HAS_REVOKE 1
#else
#define HAS_REVOKE 0
#endif

/* ---- keys ---- */

static char *key_of(const ring_nccl *n, const char *key, bd_err *err)
{
    char *full = bd_strfmt("%s%s", n->prefix, key);
    if (full == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "nccl %s: key %s", n->group, key);
    }
    return full;
}

bd_status ring_nccl_key_wait(ring_nccl *n, const char *key, int64_t ms, char **val, size_t *n_bytes,
                             bd_err *err)
{
    size_t ignored = 0;
    char *full = key_of(n, key, err);
    if (full == NULL) {
        return BD_E_NOMEM;
    }
    bd_status rc = n->kv->get(n->kv, full, ms, val, n_bytes != NULL ? n_bytes : &ignored, err);
    bd_free(full);
    return rc == BD_E_TIMEOUT || rc == BD_E_NOT_FOUND ? BD_AGAIN : rc;
}

bd_status ring_nccl_key_set(ring_nccl *n, const char *key, const void *val, size_t n_bytes,
                            bd_err *err)
{
    char *full = key_of(n, key, err);
    if (full == NULL) {
        return BD_E_NOMEM;
    }
    bd_status rc = n->kv->set(n->kv, full, val, n_bytes, err);
    bd_free(full);
    return rc;
}

bd_status ring_nccl_key_claim(ring_nccl *n, const char *key, const char *val, bool *is_first,
                              bd_err *err)
{
    char *full = key_of(n, key, err);
    if (full == NULL) {
        return BD_E_NOMEM;
    }
    bd_status rc = n->kv->compare_set(n->kv, full, NULL, val, is_first, err);
    bd_free(full);
    return rc;
}

/* ---- the end of NCCL ---- */

/* Another thread may be stuck in a call with the lock held; ending that is what abort is for. */
static bool lock_calls(ring_nccl *n)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += LOCK_WAIT_MS / 1000;
    return pthread_mutex_timedlock(&n->call_lock, &at) == 0;
}

/* True: nothing of it runs any more, and it can be destroyed. */
static bool revoked(ncclComm_t comm)
{
#if HAS_REVOKE
    const struct timespec nap = {.tv_nsec = BD_NS_PER_MS};
    ncclResult_t state = ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
    int64_t until = bd_mono_ns() + REVOKE_WAIT_MS * BD_NS_PER_MS;
    while (state == ncclInProgress && bd_mono_ns() < until) {
        (void)nanosleep(&nap, NULL);
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) {
            return false;
        }
    }
    return state == ncclSuccess;
#else
    (void)comm;
    return false;
#endif
}

static void end_comm(const ring_nccl *n, ncclComm_t comm, bool may_revoke)
{
    ncclResult_t r = may_revoke && revoked(comm) ? ncclCommDestroy(comm) : ncclCommAbort(comm);
    if (r != ncclSuccess && r != ncclInProgress) {
        BD_LOG(WARN, "nccl: the end of a failed communicator failed", "group", n->group, "why",
               ncclGetErrorString(r));
    }
}

static void stop_nccl(ring_nccl *n)
{
    bool locked = lock_calls(n);
    ncclComm_t comm = atomic_load(&n->comm);
    if (comm != NULL) {
        end_comm(n, comm, locked && n->is_up);
        atomic_store(&n->comm, NULL);
    }
    if (locked) {
        (void)pthread_mutex_unlock(&n->call_lock);
    }
}

/* ---- one verdict for all ranks ---- */

static bool parse_verdict(const char *text, bd_err *out)
{
    char *end = NULL;
    long code = strtol(text, &end, 10);
    if (end == text || *end != ' ' || code >= 0) {
        return false;
    }
    (void)bd_err_set(out, bd_status_known((int)code), "%s", end + 1);
    return true;
}

/* The first verdict stays: *why becomes it. */
static void publish(ring_nccl *n, bd_err *why)
{
    bd_err err = BD_ERR_INIT;
    bool is_first = false, alarmed = false;
    char *line = bd_strfmt("%d %s", (int)why->code, why->text);
    char *theirs = NULL;
    bd_status rc = line == NULL ? bd_err_set(&err, BD_E_NOMEM, "nccl")
                                : ring_nccl_key_claim(n, "verdict", line, &is_first, &err);
    if (rc == BD_OK && !is_first) {
        rc = ring_nccl_key_wait(n, "verdict", 0, &theirs, NULL, &err);
        if (rc == BD_OK && !parse_verdict(theirs, why)) {
            rc = bd_err_set(&err, BD_E_CORRUPT, "nccl: verdict %s", theirs);
        }
    }
    rc = rc != BD_OK ? rc : ring_nccl_key_claim(n, "alarm", "-", &alarmed, &err);
    if (rc != BD_OK) {
        BD_LOG(WARN, "nccl: other ranks cannot be told of a failure, they end at their time limit",
               "group", n->group, "why", err.text);
    }
    bd_free(line);
    bd_free(theirs);
}

static void conclude(ring_nccl *n, const bd_err *reason)
{
    bd_err why = *reason;
    bd_err second = BD_ERR_INIT;
    publish(n, &why);
    (void)pthread_mutex_lock(&n->lock);
    if (ring_nccl_retire(n, &second) != BD_OK) { /* what has run until now has its result */
        BD_LOG(WARN, "nccl: the device failed, too", "group", n->group, "why", second.text);
    }
    n->failure = why;
    n->failed_ns = bd_mono_ns();
    (void)pthread_mutex_unlock(&n->lock);
    if (n->control != NULL) {
        ring_comm_fail(n->control, &why); /* who waits in it for agreement waits in vain */
    }
    stop_nccl(n);
    (void)pthread_mutex_lock(&n->lock);
    ring_nccl_end_all(n);
    n->is_stopped = true;
    (void)pthread_cond_broadcast(&n->changed);
    (void)pthread_mutex_unlock(&n->lock);
}

void ring_nccl_give_up(ring_nccl *n)
{
    if (n->failure.code == BD_OK || n->is_stopped ||
        bd_mono_ns() < n->failed_ns + n->stop_ms * BD_NS_PER_MS) {
        return;
    }
    bd_err why = n->failure;
    (void)bd_err_set(&n->failure, why.code,
                     "%s (and NCCL did not stop in %" PRId64
                     " ms: the device may still write, end this process)",
                     why.text, n->stop_ms);
    ring_nccl_end_all(n);
    n->is_stopped = true;
    (void)pthread_cond_broadcast(&n->changed);
}

bd_status ring_nccl_fail(ring_nccl *n, const bd_err *why, bd_err *err)
{
    (void)pthread_mutex_lock(&n->lock);
    if (!n->has_watchdog || n->watchdog_ended) {
        bd_err_keep_first(&n->failure, why);
        n->is_stopped = true;
        ring_nccl_end_all(n);
    }
    bd_err_keep_first(&n->wanted, why);
    (void)pthread_cond_broadcast(&n->changed);
    while (!n->is_stopped) {
        int64_t until = bd_mono_ns() + n->poll_ms * BD_NS_PER_MS;
        const struct timespec at = {.tv_sec = until / BD_NS_PER_S, .tv_nsec = until % BD_NS_PER_S};
        (void)pthread_cond_timedwait(&n->changed, &n->lock, &at);
        ring_nccl_give_up(n);
    }
    bd_status rc = n->failure.code;
    if (err != NULL) {
        *err = n->failure;
    }
    (void)pthread_mutex_unlock(&n->lock);
    return rc;
}

/* ---- a stuck operation ---- */

static void report(ring_nccl *n, uint64_t seq)
{
    bd_err err = BD_ERR_INIT;
    char key[32], text[RING_OP_TEXT_BYTES + 64];
    (void)pthread_mutex_lock(&n->lock);
    ring_nccl_report(n, seq, text, sizeof text);
    (void)pthread_mutex_unlock(&n->lock);
    (void)snprintf(key, sizeof key, "at/%d", n->rank);
    if (ring_nccl_key_set(n, key, text, strlen(text), &err) != BD_OK) {
        BD_LOG(WARN, "nccl: cannot tell other ranks where this one is", "why", err.text);
    }
}

static int64_t report_ms(const ring_nccl *n)
{
    int64_t ms = n->poll_ms * 3 * IDLE_FACTOR;
    return ms > REPORT_MIN_MS ? ms : REPORT_MIN_MS;
}

/* This rank has raised the alarm: hears all ranks, and judges. */
static void investigate(ring_nccl *n, uint64_t seq, const char *text)
{
    bd_err err = BD_ERR_INIT;
    int64_t until = bd_mono_ns() + report_ms(n) * BD_NS_PER_MS;
    char **reports = bd_calloc((size_t)n->world, sizeof *reports);
    if (reports == NULL) {
        (void)bd_err_set(&err, BD_E_TIMEOUT, "nccl %s: rank %d: %s: timed out", n->group, n->rank,
                         text);
        conclude(n, &err);
        return;
    }
    report(n, seq);
    for (int r = 0; r < n->world; r++) {
        char key[32];
        int64_t left_ms = (until - bd_mono_ns()) / BD_NS_PER_MS;
        (void)snprintf(key, sizeof key, "at/%d", r);
        if (ring_nccl_key_wait(n, key, left_ms > 0 ? left_ms : 0, &reports[r], NULL, &err) !=
            BD_OK) {
            reports[r] = NULL;
        }
    }
    ring_nccl_judge(n, seq, text, reports, &err);
    for (int r = 0; r < n->world; r++) {
        bd_free(reports[r]);
    }
    bd_free(reports);
    conclude(n, &err);
}

/* Another rank has raised the alarm: says where this one is, takes over the verdict. */
static void follow(ring_nccl *n, const char *alarm)
{
    bd_err err = BD_ERR_INIT, ignored = BD_ERR_INIT;
    char *end = NULL;
    char *verdict = NULL;
    uint64_t seq = strtoull(alarm, &end, 10);
    if (end != alarm) {
        report(n, seq);
    }
    bd_status rc = ring_nccl_key_wait(n, "verdict", 2 * report_ms(n), &verdict, NULL, &ignored);
    if (rc != BD_OK || !parse_verdict(verdict, &err)) {
        (void)bd_err_set(&err, BD_E_TIMEOUT,
                         "nccl %s: rank %d: a rank gave the alarm (seq %s) and no reason", n->group,
                         n->rank, alarm);
    }
    bd_free(verdict);
    conclude(n, &err);
}

/* ---- what the watchdog looks at ---- */

/* The oldest operation has been open for too long: *seq and text are of it. */
static bool is_late(ring_nccl *n, uint64_t *seq, char *text, size_t text_bytes)
{
    (void)pthread_mutex_lock(&n->lock);
    const ring_nccl_work *w = n->head;
    bool late = w != NULL && bd_mono_ns() > w->issued_ns + n->timeout_ns;
    if (late) {
        *seq = w->seq;
        ring_op_text(&w->op, w->seq, text, text_bytes);
    }
    (void)pthread_mutex_unlock(&n->lock);
    return late;
}

static bd_status ask_nccl(ring_nccl *n, bd_err *err)
{
    ncclResult_t state = ncclSuccess;
    bd_status rc = BD_OK;
    if (pthread_mutex_trylock(&n->call_lock) != 0) {
        return BD_OK; /* a call is under way, and will see it */
    }
    ncclComm_t comm = atomic_load(&n->comm);
    ncclResult_t r = comm == NULL ? ncclSuccess : ncclCommGetAsyncError(comm, &state);
    r = r != ncclSuccess ? r : state;
    if (r != ncclSuccess && r != ncclInProgress) {
        rc = ring_nccl_err(err, r, comm, "NCCL");
    }
    (void)pthread_mutex_unlock(&n->call_lock);
    return rc;
}

/* What ran when NCCL failed. */
static void blame_head(ring_nccl *n, bd_err *err)
{
    char text[RING_OP_TEXT_BYTES] = "between operations";
    (void)pthread_mutex_lock(&n->lock);
    if (n->head != NULL) {
        ring_op_text(&n->head->op, n->head->seq, text, sizeof text);
    }
    (void)pthread_mutex_unlock(&n->lock);
    (void)bd_err_wrap(err, "nccl %s: rank %d: %s", n->group, n->rank, text);
}

/* True: it has concluded. */
static bool look(ring_nccl *n)
{
    bd_err err = BD_ERR_INIT;
    char text[RING_OP_TEXT_BYTES], seq_text[24];
    uint64_t seq = 0;
    bool is_first = false;
    (void)pthread_mutex_lock(&n->lock);
    bd_status rc = ring_nccl_retire(n, &err);
    bd_err wanted = n->wanted;
    (void)pthread_mutex_unlock(&n->lock);
    if (wanted.code != BD_OK) {
        conclude(n, &wanted);
        return true;
    }
    if (rc == BD_OK) {
        rc = ask_nccl(n, &err);
        if (rc != BD_OK) {
            blame_head(n, &err);
        }
    }
    if (rc != BD_OK) {
        conclude(n, &err);
        return true;
    }
    if (!is_late(n, &seq, text, sizeof text)) {
        return false;
    }
    (void)snprintf(seq_text, sizeof seq_text, "%" PRIu64, seq);
    rc = ring_nccl_key_claim(n, "alarm", seq_text, &is_first, &err);
    if (rc == BD_OK && !is_first) {
        return false; /* the alarm is answered next */
    }
    investigate(n, seq, text); /* also when the store is down: then nobody is heard */
    return true;
}

/* Waits for the next look, or for the alarm of another rank. True: has concluded. */
static bool nap(ring_nccl *n)
{
    bd_err err = BD_ERR_INIT;
    char *alarm = NULL;
    (void)pthread_mutex_lock(&n->lock);
    bool skip = n->must_stop || n->wanted.code != BD_OK;
    int64_t ms = n->head != NULL ? n->poll_ms : n->poll_ms * IDLE_FACTOR;
    (void)pthread_mutex_unlock(&n->lock);
    bd_status rc = ring_nccl_key_wait(n, "alarm", skip ? 0 : ms, &alarm, NULL, &err);
    if (rc == BD_OK) {
        follow(n, alarm);
        bd_free(alarm);
        return true;
    }
    if (rc != BD_AGAIN) { /* the store is away: at least the own clock goes on */
        int64_t until = bd_mono_ns() + ms * BD_NS_PER_MS;
        const struct timespec at = {.tv_sec = until / BD_NS_PER_S, .tv_nsec = until % BD_NS_PER_S};
        (void)pthread_mutex_lock(&n->lock);
        if (!n->must_stop && n->wanted.code == BD_OK) {
            (void)pthread_cond_timedwait(&n->changed, &n->lock, &at);
        }
        (void)pthread_mutex_unlock(&n->lock);
    }
    return false;
}

void *ring_nccl_watchdog(void *arg)
{
    ring_nccl *n = arg;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    (void)cudaSetDevice(n->device);
    bool done = false;
    while (!done) {
        done = look(n);
        (void)pthread_mutex_lock(&n->lock);
        bool stop = n->must_stop && n->wanted.code == BD_OK;
        (void)pthread_mutex_unlock(&n->lock);
        if (stop) {
            break;
        }
        done = done || nap(n);
    }
    (void)pthread_mutex_lock(&n->lock);
    n->watchdog_ended = true;
    bool is_orphan = n->is_orphan;
    (void)pthread_cond_broadcast(&n->changed);
    (void)pthread_mutex_unlock(&n->lock);
    if (is_orphan) {
        ring_nccl_dispose(n);
    }
    return NULL;
}
