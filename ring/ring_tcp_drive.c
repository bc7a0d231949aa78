/* Who makes the progress of a tcp communicator, and how it waits. */
#include "base/assert.h"

#include "ring/ring_tcp_int.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

/* A wake-up costs 20 to 50 us: worth that much looking again. */
#define SPIN_NS (50 * (int64_t)1000)
/* With more ranks than cores a caller gives its core away and looks again, up to so long: who gets
 * it is mostly the rank it waits for. When it comes back this late somebody else had the core, and
 * the next waits sleep at once: the kernel prefers who wakes to who yields. */
#define YIELD_NS (200 * (int64_t)1000)
#define LATE_NS  (1000 * (int64_t)1000)
#define N_SOBER  64
/* So long after a caller the thread leaves the connections alone: the next call is likely to come,
 * and a thread that wakes for its frames would only be in the way. */
#define REST_NS (20 * BD_NS_PER_MS)
/* Up to so many connections it is cheaper to try each than to ask poll first. */
#define MOST_TRIED 4

static ring_engine *engine_of(const ring_tcp *t)
{
    return &t->comm->engine;
}

static bool is_frozen(const ring_tcp *t)
{
    return atomic_load_explicit(&t->is_frozen, memory_order_relaxed);
}

void ring_tcp_wake(ring_backend *b)
{
    ring_tcp *t = (ring_tcp *)b;
    const uint64_t one = 1;
    /* fails only when the counter is full: then it is readable anyway */
    (void)!write(t->wake_fd, &one, sizeof one);
    (void)!write(t->kick_fd, &one, sizeof one);
}

static void drain_event(int fd)
{
    uint64_t ignored = 0;
    (void)!read(fd, &ignored, sizeof ignored);
}

/* Progress. */

/* Writing comes after reading: what came in is often what may go out. */
static bool turn(ring_conn *c)
{
    bool moved = ring_conn_read(c);
    return ring_conn_write(c) || moved;
}

static int list_polled(const ring_tcp *t, struct pollfd *list, int wake_fd)
{
    for (int i = 0; i < t->n_conns; i++) {
        short events = ring_conn_events(&t->conns[i]);
        list[i] = (struct pollfd){.fd = events != 0 ? t->conns[i].fd : -1, .events = events};
    }
    list[t->n_conns] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    return t->n_conns + 1;
}

static int poll_list(struct pollfd *list, int n, int ms)
{
    int found = poll(list, (nfds_t)n, ms);
    BD_ASSERT(found >= 0 || errno == EINTR || errno == ENOMEM);
    return found;
}

/* One turn of every connection that may have something to do. */
static bool progress(ring_tcp *t)
{
    bool moved = false;
    if (is_frozen(t) && !t->is_closing) {
        return false;
    }
    if (t->n_conns > MOST_TRIED) {
        int n = list_polled(t, t->looked, -1);
        (void)poll_list(t->looked, n, 0);
    }
    for (int i = 0; i < t->n_conns; i++) {
        ring_conn *c = &t->conns[i];
        bool can_write = c->head != NULL && !c->is_full;
        if (t->n_conns <= MOST_TRIED || can_write || t->looked[i].revents != 0) {
            moved = turn(c) || moved;
        }
    }
    return moved;
}

/* What must happen after events: queued operations start, held frames are offered, time. */
static void after_events(ring_tcp *t)
{
    bool more = !is_frozen(t);
    while (more) {
        more = false;
        ring_comm_pump(t->comm);
        for (int i = 0; i < t->n_conns; i++) {
            more = ring_conn_unhold(&t->conns[i]) || more;
        }
    }
}

static int64_t next_tick_ns(const ring_tcp *t)
{
    int64_t at_ns =
        is_frozen(t) || t->is_closing ? INT64_MAX : ring_engine_deadline_ns(engine_of(t));
    return at_ns < t->bound_ns ? at_ns : t->bound_ns;
}

static void tick(ring_tcp *t)
{
    int64_t now = bd_mono_ns();
    if (now >= t->bound_ns) {
        t->bound_ns = INT64_MAX;
        ring_tcp_on_bound(t);
    }
    if (now >= next_tick_ns(t)) {
        ring_engine_on_tick(engine_of(t));
    }
}

static int ms_until(int64_t at_ns)
{
    if (at_ns == INT64_MAX) {
        return -1;
    }
    int64_t left = (at_ns - bd_mono_ns()) / BD_NS_PER_MS + 1;
    return left < 0 ? 0 : left < INT32_MAX ? (int)left : INT32_MAX;
}

/* Sleeps until something may have happened. */
static void sleep_on(ring_tcp *t, int wake_fd)
{
    int n = list_polled(t, t->looked, wake_fd);
    for (int i = 0; is_frozen(t) && !t->is_closing && i < t->n_conns; i++) {
        t->looked[i].fd = -1;
    }
    (void)poll_list(t->looked, n, ms_until(next_tick_ns(t)));
    for (int i = 0; i < t->n_conns; i++) {
        if ((t->looked[i].revents & POLLOUT) != 0) {
            t->conns[i].is_full = false;
        }
    }
    if (t->looked[t->n_conns].revents != 0) {
        drain_event(wake_fd);
    }
}

static void take_faults(ring_tcp *t)
{
    if (atomic_load_explicit(&t->must_die, memory_order_relaxed)) {
        ring_tcp_die(t);
    }
}

/* A caller. */

/* Nothing has moved since *since_ns (0: until now): true when it shall look again, false: sleep. */
static bool look_again(ring_tcp *t, int64_t *since_ns)
{
    int64_t now = bd_mono_ns();
    *since_ns = *since_ns == 0 ? now : *since_ns;
    if (t->may_spin || t->n_sober > 0) {
        return t->may_spin && now - *since_ns < SPIN_NS;
    }
    if (now - *since_ns >= YIELD_NS) {
        return false;
    }
    (void)sched_yield();
    t->n_sober = bd_mono_ns() - now > LATE_NS ? N_SOBER : 0;
    return true;
}

void ring_tcp_drive(ring_backend *b, const ring_work *w)
{
    ring_tcp *t = (ring_tcp *)b;
    int64_t since_ns = 0;
    after_events(t); /* starts it */
    while (!ring_work_done(w)) {
        bool moved = progress(t);
        if (ring_work_done(w)) {
            break;
        }
        if (moved) {
            after_events(t);
            since_ns = 0;
            continue;
        }
        if (look_again(t, &since_ns)) {
            continue;
        }
        tick(t);
        after_events(t);
        take_faults(t);
        if (ring_work_done(w) || ring_comm_must_stop(t->comm)) {
            break;
        }
        sleep_on(t, t->wake_fd);
        after_events(t);
        since_ns = 0;
        t->n_sober -= t->n_sober > 0 ? 1 : 0;
    }
    if (!ring_engine_is_idle(engine_of(t))) {
        after_events(t); /* failed: tells who else waits */
    }
}

/* The thread. */

/* Nothing to do without a caller. Communicator locked. */
static bool is_at_rest(const ring_tcp *t)
{
    const ring_comm *c = t->comm;
    bool is_idle = ring_engine_is_idle(&c->engine) && c->engine.p2p == NULL && c->head == NULL;
    return is_idle && !c->must_stop && c->abort_why.code == BD_OK && !t->is_closing &&
           !is_frozen(t);
}

static void rest(ring_tcp *t, int64_t ns)
{
    struct pollfd kick = {.fd = t->kick_fd, .events = POLLIN};
    if (poll_list(&kick, 1, (int)(ns / BD_NS_PER_MS) + 1) > 0) {
        drain_event(t->kick_fd);
    }
}

/* Becomes the driver, or waits for the reason to: true when it is. */
static bool take_over(ring_tcp *t)
{
    ring_comm *c = t->comm;
    (void)pthread_mutex_lock(&c->lock);
    int64_t rested_ns = bd_mono_ns() - c->left_ns;
    bool is_taken = c->driver != RING_DRIVER_NONE;
    if (is_taken || (is_at_rest(t) && rested_ns < REST_NS)) {
        (void)pthread_mutex_unlock(&c->lock);
        rest(t, is_taken ? REST_NS : REST_NS - rested_ns);
        return false;
    }
    if (!is_at_rest(t)) {
        c->driver = RING_DRIVER_THREAD;
        (void)pthread_mutex_unlock(&c->lock);
        return true;
    }
    int n = list_polled(t, t->polled, t->kick_fd);
    int ms = ms_until(next_tick_ns(t)); /* at rest, too: it may have to say where it is */
    c->is_watched = true;
    (void)pthread_mutex_unlock(&c->lock);
    (void)poll_list(t->polled, n, ms);
    (void)pthread_mutex_lock(&c->lock);
    c->is_watched = false;
    if (t->polled[t->n_conns].revents != 0) {
        drain_event(t->kick_fd);
    }
    bool is_free = c->driver == RING_DRIVER_NONE;
    c->driver = is_free ? RING_DRIVER_THREAD : c->driver;
    (void)pthread_mutex_unlock(&c->lock);
    return is_free;
}

/* False: goes on, something is open. */
static bool hand_back(ring_tcp *t, bool had_work)
{
    ring_comm *c = t->comm;
    (void)pthread_mutex_lock(&c->lock);
    bool done = is_at_rest(t);
    for (int i = 0; done && i < t->n_conns; i++) {
        done = t->conns[i].fd < 0 || t->conns[i].head == NULL;
    }
    if (done) {
        c->driver = RING_DRIVER_NONE;
        c->left_ns = had_work ? bd_mono_ns() : c->left_ns;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return done;
}

/* As the driver until nothing is open. True: the end of the communicator. */
static bool thread_drive(ring_tcp *t)
{
    bool had_work = false;
    for (;;) {
        take_faults(t);
        if (!t->is_closing && ring_comm_must_stop(t->comm)) {
            ring_tcp_begin_close(t);
        }
        after_events(t);
        had_work = had_work || t->comm->running != NULL || engine_of(t)->p2p != NULL;
        bool moved = progress(t);
        tick(t);
        after_events(t);
        if (t->is_closing && !ring_tcp_any_open(t)) {
            return true;
        }
        if (!moved && hand_back(t, had_work)) {
            break;
        }
        if (!moved) {
            sleep_on(t, t->kick_fd);
        }
    }
    return false;
}

void *ring_tcp_main(void *arg)
{
    ring_tcp *t = arg;
    sigset_t all;
    (void)sigfillset(&all); /* signals are the program's */
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    bool ended = false;
    while (!ended) {
        ended = take_over(t) && thread_drive(t);
    }
    ring_comm_close(t->comm);
    return NULL;
}
