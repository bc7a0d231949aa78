/* Waiting for flags of other ranks. A rank that spins costs a core, one that sleeps costs its waker
 * a system call and itself a wake-up of 20-50 us. So: spin while every rank can have a core of its
 * own; otherwise give the core to the others at once; sleep when that took too long. Who sleeps
 * says for whom, so that only that rank has to wake it. */
#include "base/clock.h"

#include "ring/ring_engine_text.h"
#include "ring/ring_shm_int.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define YIELDS       200
#define TICK_NS      (50 * BD_NS_PER_MS)
#define FAIL_WAIT_NS BD_NS_PER_S

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    const struct timespec t = {.tv_sec = ns / BD_NS_PER_S, .tv_nsec = ns % BD_NS_PER_S};
    /* woken, changed, interrupted or late: the caller looks again */
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void ring_door(ring_shm_rank *r)
{
    (void)atomic_fetch_add(&r->door, 1);
    (void)syscall(SYS_futex, &r->door, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* What was stored before is seen before what is loaded after. */
static void full_fence(void)
{
#if defined(__SANITIZE_THREAD__) /* knows no fences; a read-modify-write is one, too */
    static _Atomic int any;
    (void)atomic_fetch_add(&any, 1);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

void ring_shm_signal(ring_shm *s)
{
    full_fence(); /* pairs with that of doze: it sees our flag, or we see that it sleeps */
    for (int r = 0; r < s->world; r++) {
        ring_shm_rank *peer = ring_shm_of(s, r);
        if (r != s->rank &&
            atomic_load_explicit(&peer->waits_for, memory_order_relaxed) == s->rank + 1) {
            ring_door(peer);
        }
    }
}

/* Failure. */

static bool has_failed(const ring_shm *s, uint64_t at)
{
    const ring_shm_rank *first = ring_shm_of(s, 0);
    int state = atomic_load_explicit(&first->failure_state, memory_order_acquire);
    return state == 2 && /* 1: being written */
           at >= atomic_load_explicit(&first->failure_at, memory_order_acquire);
}

bd_status ring_shm_check(ring_shm *s, uint64_t at, bd_err *err)
{
    const ring_shm_rank *first = ring_shm_of(s, 0);
    if (!has_failed(s, at)) {
        return BD_OK;
    }
    bd_status code = bd_status_known(first->failure_code);
    char text[BD_ERR_TEXT_BYTES];
    memcpy(text, first->failure_text, sizeof text);
    text[sizeof text - 1] = '\0';
    return bd_err_set(err, code < BD_OK ? code : BD_E_INTERNAL, "%s", text);
}

static void ring_all_doors(ring_shm *s)
{
    for (int r = 0; r < s->world; r++) {
        ring_door(ring_shm_of(s, r));
    }
}

/* A failure is known, but of a later operation. */
static void fail_earlier(ring_shm *s, uint64_t at)
{
    _Atomic uint64_t *first_at = &ring_shm_of(s, 0)->failure_at;
    uint64_t seen = atomic_load(first_at);
    while (at < seen) {
        if (atomic_compare_exchange_weak(first_at, &seen, at)) {
            ring_all_doors(s);
            return;
        }
    }
}

bd_status ring_shm_fail(ring_shm *s, uint64_t at, bd_err *why)
{
    ring_shm_rank *first = ring_shm_of(s, 0);
    int none = 0;
    if (atomic_compare_exchange_strong(&first->failure_state, &none, 1)) {
        first->failure_code = (int)why->code;
        memcpy(first->failure_text, why->text, sizeof first->failure_text);
        atomic_store_explicit(&first->failure_at, at, memory_order_relaxed);
        atomic_store_explicit(&first->failure_state, 2, memory_order_release);
        ring_all_doors(s);
        return why->code;
    }
    /* somebody was first; it may have died while writing */
    int64_t until = bd_mono_ns() + FAIL_WAIT_NS;
    while (atomic_load_explicit(&first->failure_state, memory_order_acquire) != 2 &&
           bd_mono_ns() < until) {
        (void)sched_yield();
    }
    fail_earlier(s, at);
    bd_status rc = ring_shm_check(s, at, why);
    return rc != BD_OK ? rc : why->code;
}

static bd_status fail_op(ring_shm *s, bd_err *why)
{
    const ring_engine *e = &s->comm->engine;
    char what[RING_OP_TEXT_BYTES];
    ring_op_text(e->op, e->seq, what, sizeof what);
    (void)bd_err_wrap(why, "rank %d: %s", ring_engine_label(e, e->rank), what);
    return ring_shm_fail(s, s->n_ops, why);
}

/* Lost ranks. */

static bool has_hung_up(const ring_shm *s, int rank)
{
    struct pollfd p = {.fd = s->peers[rank].socket, .events = POLLIN | POLLRDHUP};
    return p.fd >= 0 && poll(&p, 1, 0) > 0; /* nothing is ever sent: it can only be the end */
}

/* A rank that has ended is an error only while something is missing from it. */
static bd_status check_alive(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want,
                             bd_err *err)
{
    const ring_engine *e = &s->comm->engine;
    for (int r = 0; r < s->world; r++) {
        if (r == s->rank || !has_hung_up(s, r)) {
            continue;
        }
        uint64_t gone = atomic_load_explicit(&ring_shm_of(s, r)->gone, memory_order_acquire);
        if (r == rank && atomic_load_explicit(flag, memory_order_acquire) >= want) {
            continue; /* its last act was what we wait for */
        }
        if (gone > 0 && r != rank) {
            continue; /* it has done its part of this operation, or its turn will come */
        }
        if (gone == 0 && r != rank &&
            atomic_load_explicit(&ring_shm_of(s, r)->left, memory_order_acquire) >= s->n_ops) {
            continue;
        }
        if (gone > 0) {
            (void)bd_err_set(err, BD_E_PEER_LOST,
                             "rank %d left the group after %" PRIu64 " operations",
                             ring_engine_label(e, r), gone - 1);
        } else {
            (void)bd_err_set(err, BD_E_PEER_LOST, "rank %d lost (its process ended)",
                             ring_engine_label(e, r));
        }
        return fail_op(s, err);
    }
    return BD_OK;
}

/* Time. */

static bool has_begun(const ring_shm *s, int r)
{
    return atomic_load_explicit(&ring_shm_head_of(s, r)->seq, memory_order_acquire) >= s->n_ops;
}

/* A rank that waits looks at its flags every tick; one that is stopped does not. */
static bool is_still(const ring_shm *s, int r, int64_t now)
{
    int64_t beat = atomic_load_explicit(&ring_shm_of(s, r)->beat_ns, memory_order_relaxed);
    return now - beat > s->comm->engine.timeout_ns / 2;
}

void ring_shm_set_away(ring_comm *c, bool is_away)
{
    ring_shm *s = (ring_shm *)(void *)c->backend;
    if (s != NULL) {
        atomic_store_explicit(&ring_shm_of(s, s->rank)->is_away, is_away, memory_order_relaxed);
    }
}

static bool is_late(const ring_shm *s, int64_t waited_ns)
{
    bool any_away = false;
    for (int r = 0; r < s->world; r++) {
        any_away =
            any_away || atomic_load_explicit(&ring_shm_of(s, r)->is_away, memory_order_relaxed);
    }
    return waited_ns >= s->comm->engine.timeout_ns * (any_away ? 2 : 1);
}

static int list_missing(const ring_shm *s, int awaited, char *out, size_t out_bytes)
{
    const ring_engine *e = &s->comm->engine;
    int64_t now = bd_mono_ns();
    int n = 0;
    for (int pass = 0; n == 0 && pass < 3; pass++) {
        for (int r = 0; r < s->world; r++) {
            bool named = pass == 0   ? !has_begun(s, r)
                         : pass == 1 ? is_still(s, r, now)
                                     : r == awaited;
            size_t used = strlen(out);
            if (r != s->rank && named) {
                (void)snprintf(out + used, out_bytes - used, "%s%d", n > 0 ? ", " : "",
                               ring_engine_label(e, r));
                n++;
            }
        }
    }
    return n;
}

static bd_status fail_late(ring_shm *s, int awaited, bd_err *err)
{
    char ranks[160] = "";
    int n = list_missing(s, awaited, ranks, sizeof ranks);
    int n_begun = 0;
    for (int r = 0; r < s->world; r++) {
        n_begun += has_begun(s, r) ? 1 : 0;
    }
    (void)bd_err_set(err, BD_E_TIMEOUT,
                     "rank%s %s did not take part for %" PRId64
                     " ms (%d of %d ranks have begun it, %" PRIu64 " chunks of memory shared)",
                     n == 1 ? "" : "s", ranks, (int64_t)(s->comm->engine.timeout_ns / BD_NS_PER_MS),
                     n_begun, s->world, atomic_load(&ring_shm_of(s, s->rank)->staged));
    return fail_op(s, err);
}

/* Sleeps until `rank` signals, the group fails or ns have passed. */
static void doze(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want, int64_t ns)
{
    ring_shm_rank *me = ring_shm_of(s, s->rank);
    uint32_t door = atomic_load(&me->door);
    atomic_store_explicit(&me->waits_for, rank + 1, memory_order_relaxed);
    full_fence(); /* pairs with ring_shm_signal's */
    if (atomic_load_explicit(flag, memory_order_acquire) < want && !has_failed(s, s->n_ops)) {
        futex_wait(&me->door, door, ns);
    }
    atomic_store_explicit(&me->waits_for, 0, memory_order_relaxed);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* On one core with the rank we wait for, spinning keeps it from running. */
static bool shares_core(const ring_shm *s, int rank)
{
    int cpu = sched_getcpu();
    _Atomic int *said = &ring_shm_of(s, s->rank)->cpu;
    if (atomic_load_explicit(said, memory_order_relaxed) != cpu) { /* else the line stays shared */
        atomic_store_explicit(said, cpu, memory_order_relaxed);
    }
    return atomic_load_explicit(&ring_shm_of(s, rank)->cpu, memory_order_relaxed) == cpu;
}

/* True: the flag is there. */
static bool spin(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want)
{
    bool may_spin = s->spin_ns > 0 && !shares_core(s, rank);
    int64_t until = may_spin ? bd_mono_ns() + s->spin_ns : 0;
    for (int i = 0; may_spin; i++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= want) {
            return true;
        }
        if (i % 64 == 63 && bd_mono_ns() >= until) {
            break;
        }
        pause_cpu();
    }
    for (int i = 0; i < YIELDS; i++) {
        (void)sched_yield();
        if (atomic_load_explicit(flag, memory_order_acquire) >= want) {
            return true;
        }
    }
    return false;
}

static bd_status wait_long(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want,
                           bd_err *err)
{
    ring_shm_rank *me = ring_shm_of(s, s->rank);
    int64_t timeout_ns = s->comm->engine.timeout_ns;
    int64_t tick_ns = timeout_ns / 8 < TICK_NS ? timeout_ns / 8 + 1 : TICK_NS;
    int64_t start_ns = bd_mono_ns();
    bd_status rc = BD_OK;
    while (rc == BD_OK && atomic_load_explicit(flag, memory_order_acquire) < want) {
        atomic_store_explicit(&me->beat_ns, bd_mono_ns(), memory_order_relaxed);
        doze(s, rank, flag, want, tick_ns);
        if (atomic_load_explicit(flag, memory_order_acquire) >= want) {
            break;
        }
        rc = ring_shm_check(s, s->n_ops, err);
        rc = rc != BD_OK ? rc : check_alive(s, rank, flag, want, err);
        if (rc == BD_OK && is_late(s, bd_mono_ns() - start_ns) &&
            atomic_load_explicit(flag, memory_order_acquire) < want) {
            rc = fail_late(s, rank, err);
        }
    }
    return rc;
}

bd_status ring_shm_wait(ring_shm *s, int rank, const _Atomic uint64_t *flag, uint64_t want,
                        bd_err *err)
{
    if (atomic_load_explicit(flag, memory_order_acquire) >= want || spin(s, rank, flag, want)) {
        return BD_OK;
    }
    return wait_long(s, rank, flag, want, err);
}

bd_status ring_shm_wait_all(ring_shm *s, size_t flag_offset, uint64_t want, bd_err *err)
{
    bd_status rc = BD_OK;
    for (int i = 1; rc == BD_OK && i < s->world; i++) {
        int r = (s->rank + i) % s->world;
        const _Atomic uint64_t *flag =
            (const _Atomic uint64_t *)(const void *)(s->peers[r].map + flag_offset);
        rc = ring_shm_wait(s, r, flag, want, err);
    }
    return rc;
}
