/* The coordinator's thread: a queue in front of the pure core. */
#include "ps_server/ps_coord.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct ps_coord {
    ps_coord_core *core; /* the thread's */
    ps_journal *journal; /* borrowed */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ps_coord_op *first, *last; /* under lock */
    bool stopped;              /* under lock */
    bool runs;
    pthread_t thread;
};

static bd_status write_facts(void *user, const ps_fact *facts, size_t n, bool sync, bd_err *err)
{
    ps_coord *c = user;
    return ps_journal_put(c->journal, facts, n, sync, err);
}

static bd_status load_fact(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                           bd_err *err)
{
    ps_coord *c = user;
    return ps_coord_core_load(c->core, name, val, n_bytes, err);
}

/* The next op; NULL when until_ns has come. */
static ps_coord_op *pop(ps_coord *c, int64_t until_ns)
{
    struct timespec until;
    int e = 0;
    (void)pthread_mutex_lock(&c->lock);
    while (c->first == NULL && e == 0) {
        if (until_ns == INT64_MAX) {
            e = pthread_cond_wait(&c->changed, &c->lock);
        } else {
            until.tv_sec = (time_t)(until_ns / BD_NS_PER_S);
            until.tv_nsec = (long)(until_ns % BD_NS_PER_S);
            e = pthread_cond_timedwait(&c->changed, &c->lock, &until);
        }
    }
    ps_coord_op *op = c->first;
    if (op != NULL) {
        c->first = op->next;
        c->last = c->first == NULL ? NULL : c->last;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return op;
}

static void *coord_main(void *coord)
{
    ps_coord *c = coord;
    int64_t until_ns = INT64_MAX;
    for (;;) {
        ps_coord_op *op = pop(c, until_ns);
        if (op != NULL && op->kind == PS_COORD_QUIT) {
            ps_coord_core_stop(c->core);
            return NULL;
        }
        int64_t now_ns = bd_mono_ns();
        if (op != NULL) {
            ps_coord_core_run(c->core, op, now_ns);
        }
        until_ns = ps_coord_core_tick(c->core, now_ns);
    }
}

bd_status ps_coord_new(ps_journal *journal, uint32_t n_servers, ps_coord **out, bd_err *err)
{
    pthread_condattr_t attr;
    ps_coord *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "coordinator: no memory");
    }
    c->journal = journal;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    c->core = ps_coord_core_new(n_servers, write_facts, c);
    bd_status rc = c->core == NULL ? bd_err_set(err, BD_E_NOMEM, "coordinator: no memory")
                                   : ps_journal_each(journal, 'C', "", load_fact, c, err);
    if (rc == BD_OK) {
        int e = pthread_create(&c->thread, NULL, coord_main, c);
        c->runs = e == 0;
        rc = e == 0 ? BD_OK : bd_err_errno(err, BD_E_EXHAUSTED, e, "start threads");
    }
    if (rc != BD_OK) {
        ps_coord_free(c);
        return rc;
    }
    *out = c;
    return BD_OK;
}

static bool enqueue(ps_coord *c, ps_coord_op *op)
{
    op->next = NULL;
    (void)pthread_mutex_lock(&c->lock);
    bool ok = !c->stopped;
    if (ok) {
        if (c->last == NULL) {
            c->first = op;
        } else {
            c->last->next = op;
        }
        c->last = op;
        c->stopped = op->kind == PS_COORD_QUIT;
        (void)pthread_cond_signal(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return ok;
}

void ps_coord_post(ps_coord *c, ps_coord_op *op)
{
    if (!enqueue(c, op)) {
        op->rc = bd_err_set(&op->err, BD_E_UNAVAILABLE, "the coordinator is stopping");
        op->done(op);
    }
}

void ps_coord_stop(ps_coord *c)
{
    ps_coord_op quit = {.kind = PS_COORD_QUIT};
    if (c->runs && enqueue(c, &quit)) {
        (void)pthread_join(c->thread, NULL);
        c->runs = false;
    }
}

void ps_coord_free(ps_coord *c)
{
    if (c == NULL) {
        return;
    }
    ps_coord_stop(c);
    ps_coord_core_free(c->core);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    bd_free(c);
}
