#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_comm_int.h"

#include <signal.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 60000
/* Rank bitmaps and 32-bit step numbers hold far more; this bounds sizes from outside. */
#define MAX_WORLD 65536

int64_t ring_options_timeout_ms(const ring_options *opt)
{
    return opt != NULL && opt->timeout_ms > 0 ? opt->timeout_ms : DEFAULT_TIMEOUT_MS;
}

/* Works. */

static ring_work *work_new(void)
{
    ring_work *w = bd_calloc(1, sizeof *w);
    if (w != NULL) {
        (void)pthread_mutex_init(&w->lock, NULL);
        (void)pthread_cond_init(&w->ended, NULL);
    }
    return w;
}

static void work_free(ring_work *w)
{
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->ended);
    bd_free(w);
}

/* The waiter may free w as soon as the lock is released. */
static void work_end(ring_work *w, bd_status rc, const bd_err *err)
{
    (void)pthread_mutex_lock(&w->lock);
    w->rc = rc;
    if (err != NULL) {
        w->err = *err;
    }
    w->done_ns = bd_mono_ns();
    w->comm = NULL;
    atomic_store_explicit(&w->is_done, true, memory_order_release);
    (void)pthread_cond_signal(&w->ended);
    (void)pthread_mutex_unlock(&w->lock);
}

bool ring_work_done(const ring_work *w)
{
    return atomic_load_explicit(&w->is_done, memory_order_acquire);
}

static void help(ring_comm *c, const ring_work *until);

/* Who waits for the last operation that was issued, while nobody has begun any, runs them: the
 * communicator's thread would first have to wake up. With more behind it that thread wakes up
 * anyway. A communicator lives while one of its works has not ended, so w->lock keeps c; its own
 * lock comes first in the order, so it can only be tried. */
static void help_with(ring_work *w)
{
    (void)pthread_mutex_lock(&w->lock);
    ring_comm *c = w->comm;
    bool mine = c != NULL && pthread_mutex_trylock(&c->lock) == 0;
    bool begin = mine && !c->is_busy && c->tail == w && !c->must_stop;
    if (begin) {
        c->is_busy = true;
    } else if (mine) {
        (void)pthread_mutex_unlock(&c->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (begin) {
        help(c, w);
    }
}

static void wait_for(ring_work *w)
{
    (void)pthread_mutex_lock(&w->lock);
    while (!ring_work_done(w)) {
        (void)pthread_cond_wait(&w->ended, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

/* A send or recv through memory that the backend has lent has ended. */
static bd_status give_back(const ring_work *w, bd_status rc, bd_err *err)
{
    ring_op op = w->op;
    op.in = w->own_memory;
    op.out = w->own_memory;
    bd_status back = w->lender->give_back(w->lender, &op, w->op.in, rc == BD_OK, err);
    return rc != BD_OK ? rc : back;
}

bd_status ring_work_wait_timed(ring_work *w, int64_t *done_ns, bd_err *err)
{
    if (!ring_work_done(w)) {
        help_with(w);
    }
    wait_for(w);
    bd_status rc = w->rc;
    if (rc != BD_OK && err != NULL) {
        *err = w->err;
    }
    if (done_ns != NULL) {
        *done_ns = w->done_ns;
    }
    rc = w->lender != NULL ? give_back(w, rc, err) : rc;
    work_free(w);
    return rc;
}

bd_status ring_work_wait(ring_work *w, bd_err *err)
{
    return ring_work_wait_timed(w, NULL, err);
}

/* The communicator. */

static void on_done(void *user, bd_status rc, const bd_err *err)
{
    ring_comm *c = user;
    ring_work *w = c->running;
    c->running = NULL;
    BD_ASSERT(w != NULL);
    work_end(w, rc, err);
}

static void on_p2p_done(void *user, ring_p2p *p, bd_status rc, const bd_err *err)
{
    (void)user;
    work_end((ring_work *)(void *)((uint8_t *)p - offsetof(ring_work, p2p)), rc, err);
}

/* Copies what a group of c's ranks is made with. */
static bd_status keep_options(ring_comm *c, const ring_options *opt)
{
    c->options = opt != NULL ? *opt : (ring_options){0};
    c->options.group = NULL;
    c->options.labels = NULL;
    c->options.bind_host = NULL;
    c->options.interface = NULL;
    c->options.host = NULL;
    if (opt != NULL && opt->bind_host != NULL) {
        c->options.bind_host = bd_strdup(opt->bind_host);
    }
    if (opt != NULL && opt->host != NULL) {
        c->options.host = bd_strdup(opt->host);
    }
    if (opt != NULL && opt->interface != NULL) {
        c->options.interface = bd_strdup(opt->interface);
    }
    bool ok = opt == NULL || opt->interface == NULL || c->options.interface != NULL;
    ok = ok && (opt == NULL || ((opt->bind_host == NULL || c->options.bind_host != NULL) &&
                                (opt->host == NULL || c->options.host != NULL)));
    return ok ? BD_OK : BD_E_NOMEM;
}

static void forget_options(ring_comm *c)
{
    bd_free(bd_unconst(c->options.bind_host));
    bd_free(bd_unconst(c->options.interface));
    bd_free(bd_unconst(c->options.host));
}

bd_status ring_comm_new(int rank, int world, const ring_options *opt, ring_comm **out, bd_err *err)
{
    const char *group = opt != NULL && opt->group != NULL ? opt->group : "default";
    if (world < 1 || world > MAX_WORLD || rank < 0 || rank >= world) {
        return bd_err_set(err, BD_E_INVALID, "ring %s: rank %d of world %d", group, rank, world);
    }
    ring_comm *c = bd_calloc(1, sizeof *c);
    char *name = c == NULL ? NULL : bd_strdup(group);
    if (name == NULL) {
        bd_free(c);
        return bd_err_set(err, BD_E_NOMEM, "ring %s", group);
    }
    c->group = name;
    c->engine.rank = rank;
    c->engine.world = world;
    c->engine.group_hash = bd_fnv1a64(group, strlen(group));
    c->engine.epoch = opt != NULL ? opt->epoch : 0;
    c->engine.timeout_ns = ring_options_timeout_ms(opt) * BD_NS_PER_MS;
    c->engine.clock = bd_clock_real();
    c->engine.on_done = on_done;
    c->engine.on_p2p_done = on_p2p_done;
    c->engine.labels = opt != NULL ? opt->labels : NULL;
    c->engine.user = c;
    bd_status rc = keep_options(c, opt);
    rc = rc == BD_OK ? ring_engine_init(&c->engine, err)
                     : bd_err_set(err, BD_E_NOMEM, "ring %s", group);
    if (rc != BD_OK) {
        forget_options(c);
        bd_free(c->group);
        bd_free(c);
        return rc;
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    *out = c;
    return BD_OK;
}

static bool is_p2p(const ring_op *op)
{
    return op->kind == RING_OP_SEND || op->kind == RING_OP_RECV;
}

/* The next one that may start: a collective only when none runs. */
static ring_work *pop(ring_comm *c, bool p2p_only)
{
    (void)pthread_mutex_lock(&c->lock);
    ring_work *w = c->head;
    w = w != NULL && p2p_only && !is_p2p(&w->op) ? NULL : w;
    if (w != NULL) {
        c->head = w->next;
        if (c->head == NULL) {
            c->tail = NULL;
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    return w;
}

/* After a failure: later calls are refused at once, queued ones end now. */
static void fail_queue(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bd_err_keep_first(&c->failure, &c->engine.failure);
    void (*tell)(void *, const bd_err *, uint64_t) = c->on_failed;
    void *user = c->failed_user;
    c->on_failed = NULL;
    (void)pthread_mutex_unlock(&c->lock);
    if (tell != NULL) {
        tell(user, &c->engine.failure, c->engine.outer_at);
    }
    for (ring_work *w = pop(c, false); w != NULL; w = pop(c, false)) {
        work_end(w, c->engine.failure.code, &c->engine.failure);
    }
}

static void act_on_abort(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool aborted = c->abort_why.code != BD_OK;
    (void)pthread_mutex_unlock(&c->lock);
    if (aborted) { /* written once, before this */
        ring_engine_fail(&c->engine, &c->abort_why);
    }
}

void ring_comm_goodbye(ring_comm *c)
{
    act_on_abort(c);
    ring_engine_goodbye(&c->engine);
}

void ring_comm_pump(ring_comm *c)
{
    act_on_abort(c);
    while (c->engine.failure.code == BD_OK) {
        ring_work *w = pop(c, !ring_engine_is_idle(&c->engine));
        if (w == NULL) {
            return;
        }
        if (is_p2p(&w->op)) {
            w->p2p.op = &w->op;
            ring_engine_start_p2p(&c->engine, &w->p2p);
        } else {
            c->running = w;
            ring_engine_start(&c->engine, &w->op);
        }
    }
    if (c->engine.failure.code != BD_OK) {
        fail_queue(c);
    }
}

/* Locked. */
static void enqueue(ring_comm *c, ring_work *w)
{
    *(c->tail == NULL ? &c->head : &c->tail->next) = w;
    c->tail = w;
}

/* Direct backends. */

static bd_status run_direct(ring_comm *c, const ring_op *op, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    bd_status rc = c->backend->run(c->backend, op, &why);
    if (rc != BD_OK) {
        (void)pthread_mutex_lock(&c->lock);
        bd_err_keep_first(&c->failure, &why);
        (void)pthread_mutex_unlock(&c->lock);
        (void)bd_err_set(err, why.code, "%s", why.text);
    }
    return rc;
}

/* Runs what is queued, up to `last` (NULL: all). Returns with the lock held, as it was entered; an
 * operation ends under it, so that who hears of it finds the communicator idle if that was all. */
static void drain(ring_comm *c, const ring_work *last)
{
    bool more = true;
    while (more && c->head != NULL && !c->must_stop) {
        ring_work *w = c->head;
        bd_err err = c->failure;
        more = w != last;
        c->head = w->next;
        c->tail = c->head != NULL ? c->tail : NULL;
        (void)pthread_mutex_unlock(&c->lock);
        bd_status rc = err.code != BD_OK ? err.code : run_direct(c, &w->op, &err);
        (void)pthread_mutex_lock(&c->lock);
        work_end(w, rc, &err);
    }
}

/* Locked and busy when entered; neither when left. */
static void help(ring_comm *c, const ring_work *until)
{
    drain(c, until);
    c->is_busy = false;
    if (c->head != NULL || c->must_stop) {
        (void)pthread_cond_broadcast(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

static void *direct_main(void *arg)
{
    ring_comm *c = arg;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    (void)pthread_mutex_lock(&c->lock);
    while (!c->must_stop) {
        if (c->head == NULL || c->is_busy) {
            (void)pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        c->is_busy = true;
        drain(c, NULL);
        c->is_busy = false;
        (void)pthread_cond_broadcast(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Locked. */
static bd_status enqueue_direct(ring_comm *c, ring_work *w, bd_err *err)
{
    if (!c->has_thread && pthread_create(&c->thread, NULL, direct_main, c) != 0) {
        return bd_err_set(err, BD_E_EXHAUSTED, "ring %s: thread of the communicator", c->group);
    }
    c->has_thread = true;
    w->comm = c; /* nobody else knows w yet */
    enqueue(c, w);
    (void)pthread_cond_broadcast(&c->changed);
    return BD_OK;
}

/* Nothing before it: on this thread, since a change of threads costs more than a small operation.
 * *rc is set when true. */
static bool ran_here(ring_comm *c, const ring_op *op, bd_status *rc, bd_err *err)
{
    (void)pthread_mutex_lock(&c->lock);
    bool here = !c->is_busy && c->head == NULL && !c->must_stop;
    bool failed = c->failure.code != BD_OK;
    if (here && failed) {
        *rc = bd_err_set(err, c->failure.code, "%s", c->failure.text);
    }
    c->is_busy = c->is_busy || (here && !failed);
    (void)pthread_mutex_unlock(&c->lock);
    if (!here || failed) {
        return here;
    }
    *rc = run_direct(c, op, err);
    (void)pthread_mutex_lock(&c->lock);
    c->is_busy = false;
    if (c->head != NULL || c->must_stop) {
        (void)pthread_cond_broadcast(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return true;
}

/* No operation stays open; a caller that still runs one is told to stop, and waited for. */
static void stop_direct(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool open = c->is_busy || c->head != NULL;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    if (open) {
        bd_err err = BD_ERR_INIT;
        (void)bd_err_set(&err, BD_E_ABORTED, "rank %d: the communicator was freed", c->engine.rank);
        c->backend->fail(c->backend, &err);
        (void)pthread_mutex_lock(&c->lock);
        bd_err_keep_first(&c->failure, &err);
        while (c->is_busy) {
            (void)pthread_cond_wait(&c->changed, &c->lock);
        }
        (void)pthread_mutex_unlock(&c->lock);
    }
    if (c->has_thread) {
        (void)pthread_join(c->thread, NULL);
    }
    for (ring_work *w = pop(c, false); w != NULL; w = pop(c, false)) {
        work_end(w, c->failure.code, &c->failure);
    }
}

/* Framed backends. */

/* Locked, no driver: nothing is open. */
static bool is_unused(const ring_comm *c)
{
    return c->head == NULL && !c->must_stop && c->failure.code == BD_OK &&
           ring_engine_is_idle(&c->engine) && c->engine.p2p == NULL;
}

/* Nothing else is open: this thread makes the progress, since a change of threads costs more than a
 * small operation. *rc is set when true. */
static bool drove_here(ring_comm *c, const ring_op *op, bd_status *rc, bd_err *err)
{
    ring_work w = {.op = *op, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    (void)pthread_mutex_lock(&c->lock);
    bool here = c->driver == RING_DRIVER_NONE && is_unused(c);
    bool was_watched = c->is_watched;
    if (here) {
        c->driver = RING_DRIVER_CALLER;
        enqueue(c, &w);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (!here) {
        return false;
    }
    if (was_watched) {
        c->backend->wake(c->backend);
    }
    c->backend->drive(c->backend, &w);
    (void)pthread_mutex_lock(&c->lock);
    c->driver = RING_DRIVER_NONE;
    c->left_ns = bd_mono_ns();
    if (!is_unused(c)) {
        c->backend->wake(c->backend); /* the rest is the own thread's */
    }
    (void)pthread_mutex_unlock(&c->lock);
    wait_for(&w); /* done but for ring_free */
    *rc = w.rc;
    if (w.rc != BD_OK && err != NULL) {
        *err = w.err;
    }
    return true;
}

/* Send and recv of a direct backend. */
/* NOLINTNEXTLINE(misc-no-recursion): once, from a direct backend to its framed one */
static bd_status submit_p2p(ring_backend *b, const ring_op *op, ring_work **work, bd_err *err)
{
    ring_op o = *op;
    void *host = NULL;
    ring_work *w = NULL;
    bd_err ignored = BD_ERR_INIT;
    bd_status rc = b->lend != NULL ? b->lend(b, op, &host, err) : BD_OK;
    if (rc != BD_OK || host == NULL) {
        return rc != BD_OK ? rc : ring_comm_submit(b->p2p, op, work, err);
    }
    o.in = host;
    o.out = host;
    rc = ring_comm_submit(b->p2p, &o, &w, err);
    if (rc != BD_OK || w == NULL) {
        (void)b->give_back(b, op, host, false, &ignored);
        return rc;
    }
    w->lender = b;
    w->own_memory = op->in;
    if (work == NULL) {
        return ring_work_wait(w, err);
    }
    *work = w;
    return BD_OK;
}

/* NOLINTNEXTLINE(misc-no-recursion): once, from a direct backend to its framed one */
bd_status ring_comm_submit(ring_comm *c, const ring_op *op, ring_work **work, bd_err *err)
{
    bool is_direct = c->backend != NULL && c->backend->run != NULL;
    bd_status done = BD_OK;
    if (is_direct && is_p2p(op)) {
        return submit_p2p(c->backend, op, work, err);
    }
    if (is_direct && work == NULL && ran_here(c, op, &done, err)) {
        return done;
    }
    bool has_drive = c->backend != NULL && c->backend->drive != NULL;
    if (has_drive && work == NULL && drove_here(c, op, &done, err)) {
        return done;
    }
    bd_status rc = BD_OK;
    ring_work *w = work_new();
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ring %s: operation", c->group);
    }
    w->op = *op;
    (void)pthread_mutex_lock(&c->lock);
    if (c->failure.code != BD_OK) {
        rc = bd_err_set(err, c->failure.code, "%s", c->failure.text);
    } else if (is_direct) {
        rc = enqueue_direct(c, w, err);
    } else {
        enqueue(c, w);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (rc != BD_OK) {
        work_free(w);
        return rc;
    }
    if (c->backend != NULL && !is_direct) {
        c->backend->wake(c->backend);
    } else if (c->backend == NULL) { /* world 1 */
        ring_comm_pump(c);
    }
    if (work == NULL) {
        return ring_work_wait(w, err);
    }
    *work = w;
    return BD_OK;
}

bool ring_comm_must_stop(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool stop = c->must_stop;
    (void)pthread_mutex_unlock(&c->lock);
    return stop;
}

void ring_comm_close(ring_comm *c)
{
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_ABORTED, "rank %d: the communicator was freed", c->engine.rank);
    ring_engine_on_quiet(&c->engine);
    ring_engine_fail(&c->engine, &err);
    ring_engine_on_quiet(&c->engine);
    fail_queue(c);
}

void ring_comm_set_outer(ring_comm *c, const _Atomic uint64_t *started,
                         const _Atomic uint64_t *done)
{
    atomic_store(&c->engine.outer_done, done);
    atomic_store(&c->engine.outer_started, started);
}

void ring_comm_watch(ring_comm *c, void (*fn)(void *user, const bd_err *why, uint64_t outer_at),
                     void *user)
{
    (void)pthread_mutex_lock(&c->lock);
    bd_err failed = c->failure;
    if (failed.code == BD_OK) {
        c->on_failed = fn;
        c->failed_user = user;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (failed.code != BD_OK) {
        fn(user, &failed, 0);
    }
}

void ring_comm_unwatch(ring_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->on_failed = NULL;
    (void)pthread_mutex_unlock(&c->lock);
}

void ring_comm_fail(ring_comm *c, const bd_err *why)
{
    bool is_first = false;
    (void)pthread_mutex_lock(&c->lock);
    if (c->abort_why.code == BD_OK && c->failure.code == BD_OK) {
        c->abort_why = *why;
        bd_err_keep_first(&c->failure, why);
        is_first = true;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (c->backend != NULL && c->backend->run != NULL) {
        if (is_first) {
            c->backend->fail(c->backend, why);
        }
    } else if (c->backend != NULL) {
        c->backend->wake(c->backend);
    }
}

void ring_abort(ring_comm *c, const bd_err *why)
{
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_ABORTED, "rank %d aborted: %s", c->engine.rank,
                     why != NULL && why->code != BD_OK ? bd_err_text(why) : "no reason given");
    ring_comm_fail(c, &err);
}

void ring_free(ring_comm *c)
{
    if (c == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&c->lock);
    c->must_stop = true;
    (void)pthread_mutex_unlock(&c->lock);
    if (c->backend != NULL && c->backend->run != NULL) {
        stop_direct(c);
    }
    if (c->backend != NULL) {
        c->backend->stop(c->backend);
    }
    BD_ASSERT(c->head == NULL && c->running == NULL);
    ring_engine_deinit(&c->engine);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    forget_options(c);
    bd_free(c->group);
    bd_free(c);
}

int ring_rank(const ring_comm *c)
{
    return c->engine.rank;
}

int ring_world(const ring_comm *c)
{
    return c->engine.world;
}

uint64_t ring_bytes_sent(const ring_comm *c)
{
    return atomic_load_explicit(&c->engine.bytes_sent, memory_order_relaxed);
}

void *ring_alloc(ring_comm *c, size_t n_bytes)
{
    void *p = NULL;
    if (c->backend != NULL && c->backend->alloc != NULL) {
        p = c->backend->alloc(c->backend, n_bytes);
    }
    return p != NULL ? p : bd_alloc_aligned(BD_CACHE_LINE_BYTES, n_bytes);
}

void ring_mem_release(ring_comm *c, void *p)
{
    if (p != NULL && c->backend != NULL && c->backend->release != NULL &&
        c->backend->release(c->backend, p)) {
        return;
    }
    bd_free(p);
}
