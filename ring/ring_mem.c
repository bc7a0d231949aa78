/* In-memory backend: the ranks are communicators of one process, each with its own thread and an
 * inbox with one queue per sender. Frames are copied; there is no limit on what waits in an inbox
 * (tests are small). */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring_comm_int.h"
#include "ring/ring_mem_int.h"

#include <pthread.h>
#include <string.h>

typedef struct mem_msg mem_msg;
struct mem_msg {
    mem_msg *next;
    ring_frame frame;
    uint8_t *payload; /* behind this struct */
};

typedef struct mem_queue {
    mem_msg *head;
    mem_msg *tail;
    bool is_lost; /* after head .. tail the sender's connection has ended */
} mem_queue;

typedef struct mem_inbox {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    mem_queue *from;        /* owned, world; under lock */
    bool is_woken;          /* under lock */
    bool is_closed;         /* under lock: nobody reads it any more */
} mem_inbox;

/* Shared by the communicators of one group; the last one frees it. */
typedef struct mem_hub {
    _Atomic int refs;
    int world;          /* inboxes that exist */
    int n_senders;      /* queues per inbox */
    mem_inbox *inboxes; /* owned, world */
} mem_hub;

typedef struct ring_mem {
    ring_backend backend; /* first: the pointers are the same */
    ring_comm *comm;      /* borrowed: it outlives its backend */
    mem_hub *hub;         /* shared */
    pthread_t thread;
    uint64_t *held_at; /* owned, world: engine's n_started when the sender's head was held */
    _Atomic bool is_stopped;
    _Atomic bool is_killed;
    _Atomic long drop_nth; /* -1: none */
} ring_mem;

static void wake_inbox(mem_inbox *in)
{
    (void)pthread_mutex_lock(&in->lock);
    in->is_woken = true;
    (void)pthread_cond_signal(&in->changed);
    (void)pthread_mutex_unlock(&in->lock);
}

static void queue_deinit(mem_queue *q)
{
    while (q->head != NULL) {
        mem_msg *next = q->head->next;
        bd_free(q->head);
        q->head = next;
    }
    q->tail = NULL;
}

static void hub_unref(mem_hub *hub)
{
    if (atomic_fetch_sub(&hub->refs, 1) != 1) {
        return;
    }
    for (int r = 0; r < hub->world; r++) {
        (void)pthread_mutex_destroy(&hub->inboxes[r].lock);
        (void)pthread_cond_destroy(&hub->inboxes[r].changed);
        /* a rank that never got its thread has read nothing */
        for (int k = 0; hub->inboxes[r].from != NULL && k < hub->n_senders; k++) {
            queue_deinit(&hub->inboxes[r].from[k]);
        }
        bd_free(hub->inboxes[r].from);
    }
    bd_free(hub->inboxes);
    bd_free(hub);
}

static mem_hub *hub_new(int world)
{
    mem_hub *hub = bd_calloc(1, sizeof *hub);
    if (hub == NULL) {
        return NULL;
    }
    hub->inboxes = bd_calloc((size_t)world, sizeof *hub->inboxes);
    if (hub->inboxes == NULL) {
        bd_free(hub);
        return NULL;
    }
    hub->refs = 1;
    hub->n_senders = world;
    bool ok = true;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    for (int r = 0; r < world; r++) {
        mem_inbox *in = &hub->inboxes[r];
        (void)pthread_mutex_init(&in->lock, NULL);
        (void)pthread_cond_init(&in->changed, &attr);
        in->from = bd_calloc((size_t)world, sizeof *in->from);
        hub->world = r + 1;
        ok = ok && in->from != NULL;
    }
    (void)pthread_condattr_destroy(&attr);
    if (!ok) {
        hub_unref(hub);
        return NULL;
    }
    return hub;
}

/* Transport. */

static bool is_dropped(ring_mem *m, const ring_frame *f)
{
    if (atomic_load(&m->is_killed)) {
        return true;
    }
    if (f->kind != RING_FRAME_DATA || atomic_load(&m->drop_nth) < 0) {
        return false;
    }
    return atomic_fetch_sub(&m->drop_nth, 1) == 0;
}

static bd_status mem_send(ring_transport *t, int peer, int lane, const ring_frame *f,
                          const void *payload, bd_err *err)
{
    (void)lane;
    ring_mem *m = (ring_mem *)(void *)t;
    mem_inbox *in = &m->hub->inboxes[peer];
    size_t n_bytes = (size_t)f->payload_bytes;
    if (is_dropped(m, f)) {
        return BD_OK;
    }
    mem_msg *msg = bd_alloc(sizeof *msg + n_bytes);
    if (msg == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "frame of %zu bytes", n_bytes);
    }
    msg->next = NULL;
    msg->frame = *f;
    msg->payload = (uint8_t *)(msg + 1);
    if (n_bytes > 0) {
        memcpy(msg->payload, payload, n_bytes);
    }
    (void)pthread_mutex_lock(&in->lock);
    mem_queue *q = &in->from[m->comm->engine.rank];
    bool is_closed = in->is_closed;
    if (!is_closed) {
        *(q->tail == NULL ? &q->head : &q->tail->next) = msg;
        q->tail = msg;
        (void)pthread_cond_signal(&in->changed);
    }
    (void)pthread_mutex_unlock(&in->lock);
    if (is_closed) {
        bd_free(msg);
    }
    return BD_OK;
}

static bool mem_quiesce(ring_transport *t)
{
    (void)t;
    return true; /* frames were copied */
}

/* The thread. */

typedef struct mem_event {
    int from; /* -1: none */
    mem_msg *msg;
    bool is_lost;
} mem_event;

/* The first sender that has something for us now. Inbox locked. */
static mem_event find_event(ring_mem *m, mem_inbox *in)
{
    for (int r = 0; r < m->hub->world; r++) {
        mem_queue *q = &in->from[r];
        if (q->head != NULL && m->held_at[r] != m->comm->engine.n_started) {
            return (mem_event){.from = r, .msg = q->head};
        }
        if (q->head == NULL && q->is_lost) {
            q->is_lost = false;
            return (mem_event){.from = r, .is_lost = true};
        }
    }
    return (mem_event){.from = -1};
}

static void wait_changed(mem_inbox *in, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        (void)pthread_cond_wait(&in->changed, &in->lock);
        return;
    }
    struct timespec until = {.tv_sec = deadline_ns / BD_NS_PER_S,
                             .tv_nsec = deadline_ns % BD_NS_PER_S};
    (void)pthread_cond_timedwait(&in->changed, &in->lock, &until);
}

/* Waits for an event, a wake-up or the engine's deadline. The message stays queued. */
static mem_event next_event(ring_mem *m)
{
    mem_inbox *in = &m->hub->inboxes[m->comm->engine.rank];
    int64_t deadline_ns = ring_engine_deadline_ns(&m->comm->engine);
    mem_event ev = {.from = -1};
    (void)pthread_mutex_lock(&in->lock);
    for (;;) {
        bool is_dead = atomic_load(&m->is_stopped) || atomic_load(&m->is_killed);
        if (!is_dead) {
            ev = find_event(m, in);
        }
        if (ev.from >= 0 || in->is_woken || (!is_dead && bd_mono_ns() >= deadline_ns)) {
            break;
        }
        wait_changed(in, is_dead ? INT64_MAX : deadline_ns);
    }
    in->is_woken = false;
    (void)pthread_mutex_unlock(&in->lock);
    return ev;
}

static void drop_head(ring_mem *m, int from)
{
    mem_inbox *in = &m->hub->inboxes[m->comm->engine.rank];
    (void)pthread_mutex_lock(&in->lock);
    mem_queue *q = &in->from[from];
    mem_msg *msg = q->head;
    q->head = msg->next;
    if (q->head == NULL) {
        q->tail = NULL;
    }
    (void)pthread_mutex_unlock(&in->lock);
    bd_free(msg);
}

static void deliver(ring_mem *m, const mem_event *ev)
{
    ring_engine *e = &m->comm->engine;
    void *dst = NULL;
    if (ev->is_lost) {
        ring_engine_on_peer_lost(e, ev->from, "killed");
        return;
    }
    switch (ring_engine_on_header(e, ev->from, 0, &ev->msg->frame, &dst)) {
    case RING_HOLD:
        m->held_at[ev->from] = e->n_started;
        break;
    case RING_STOP:
        drop_head(m, ev->from);
        break;
    case RING_TAKE:
        if (ev->msg->frame.payload_bytes > 0) {
            memcpy(dst, ev->msg->payload, (size_t)ev->msg->frame.payload_bytes);
        }
        drop_head(m, ev->from);
        ring_engine_on_payload(e, ev->from, 0);
        break;
    }
}

static void close_inbox(ring_mem *m)
{
    mem_inbox *in = &m->hub->inboxes[m->comm->engine.rank];
    (void)pthread_mutex_lock(&in->lock);
    in->is_closed = true;
    for (int r = 0; r < m->hub->world; r++) {
        queue_deinit(&in->from[r]);
    }
    (void)pthread_mutex_unlock(&in->lock);
}

static void *mem_main(void *arg)
{
    ring_mem *m = arg;
    while (!ring_comm_must_stop(m->comm)) {
        mem_event ev = next_event(m);
        if (ev.from >= 0) {
            deliver(m, &ev);
        }
        if (!atomic_load(&m->is_stopped) && !atomic_load(&m->is_killed)) {
            ring_engine_on_tick(&m->comm->engine);
            ring_comm_pump(m->comm);
        }
    }
    ring_comm_goodbye(m->comm);
    ring_comm_close(m->comm);
    close_inbox(m);
    return NULL;
}

static void mem_wake(ring_backend *b)
{
    ring_mem *m = (ring_mem *)b;
    wake_inbox(&m->hub->inboxes[m->comm->engine.rank]);
}

static void mem_stop(ring_backend *b)
{
    ring_mem *m = (ring_mem *)b;
    mem_wake(b);
    (void)pthread_join(m->thread, NULL);
    hub_unref(m->hub);
    bd_free(m->held_at);
    bd_free(m);
}

static bd_status attach(ring_comm *c, mem_hub *hub, bd_err *err)
{
    size_t world = (size_t)hub->world;
    ring_mem *m = bd_calloc(1, sizeof *m);
    uint64_t *held_at = m == NULL ? NULL : bd_calloc(world, sizeof *held_at);
    if (held_at == NULL) {
        bd_free(m);
        return bd_err_set(err, BD_E_NOMEM, "ring in memory");
    }
    for (size_t r = 0; r < world; r++) {
        held_at[r] = UINT64_MAX;
    }
    m->backend.transport.send = mem_send;
    m->backend.transport.quiesce = mem_quiesce;
    m->backend.wake = mem_wake;
    m->backend.stop = mem_stop;
    m->comm = c;
    m->held_at = held_at;
    m->hub = hub;
    m->drop_nth = -1;
    c->engine.transport = &m->backend.transport;
    if (pthread_create(&m->thread, NULL, mem_main, m) != 0) {
        c->engine.transport = NULL;
        bd_free(held_at);
        bd_free(m);
        return bd_err_set(err, BD_E_EXHAUSTED, "thread of the communicator");
    }
    (void)atomic_fetch_add(&hub->refs, 1);
    c->backend = &m->backend;
    return BD_OK;
}

bd_status ring_mem_new(int world, const ring_options *opt, ring_comm **out_array, bd_err *err)
{
    bd_status rc = BD_OK;
    if (world < 1) {
        return bd_err_set(err, BD_E_INVALID, "ring in memory of %d ranks", world);
    }
    mem_hub *hub = hub_new(world);
    ring_comm **made = hub == NULL ? NULL : bd_calloc((size_t)world, sizeof(ring_comm *));
    if (made == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "ring in memory of %d ranks", world);
    }
    for (int r = 0; rc == BD_OK && made != NULL && r < world; r++) {
        rc = ring_comm_new(r, world, opt, &made[r], err);
        if (rc == BD_OK && world > 1) {
            rc = attach(made[r], hub, err);
        }
    }
    for (int r = 0; made != NULL && r < world; r++) {
        if (rc == BD_OK) {
            out_array[r] = made[r];
        } else {
            ring_free(made[r]);
        }
    }
    bd_free(made);
    if (hub != NULL) {
        hub_unref(hub);
    }
    return rc;
}

/* Faults. */

static ring_mem *mem_of(ring_comm *c)
{
    return (ring_mem *)(void *)c->backend;
}

void ring_mem_test_stop(ring_comm *c)
{
    atomic_store(&mem_of(c)->is_stopped, true);
    mem_wake(c->backend);
}

void ring_mem_test_kill(ring_comm *c)
{
    ring_mem *m = mem_of(c);
    atomic_store(&m->is_killed, true);
    for (int r = 0; r < m->hub->world; r++) {
        mem_inbox *in = &m->hub->inboxes[r];
        (void)pthread_mutex_lock(&in->lock);
        in->from[c->engine.rank].is_lost = r != c->engine.rank;
        (void)pthread_cond_signal(&in->changed);
        (void)pthread_mutex_unlock(&in->lock);
    }
    mem_wake(c->backend);
}

void ring_mem_test_revive(ring_comm *c)
{
    atomic_store(&mem_of(c)->is_killed, false);
    mem_wake(c->backend);
}

void ring_mem_test_drop(ring_comm *c, long nth)
{
    atomic_store(&mem_of(c)->drop_nth, nth);
}
