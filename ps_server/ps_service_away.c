/* Lookups with rows on the disk: noted, fetched off the handlers and put in place by the threads
 * that fetch; the one that puts the last ones answers. */
#include "ps_server/ps_service_int.h"

/* The rows of one table of the lookup that are away. In the call's arena. */
struct ps_away {
    ps_away *next;
    ps_call *call;
    const uint64_t *keys;
    float *out;
    ps_fetch *fetch; /* owned */
};

static bd_status no_memory(size_t n, bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "lookup: no memory for %zu keys", n);
}

bd_status ps_away_read(ps_call *c, ps_table *t, const uint64_t *keys, size_t n, float *out,
                       bd_err *err)
{
    uint32_t *missing = NULL;
    if (ps_table_is_limited(t)) {
        missing = bd_arena_alloc(&c->arena, (n + 1) * sizeof *missing);
        if (missing == NULL) {
            return no_memory(n, err);
        }
    }
    ps_fetch *f = NULL;
    bd_status rc = ps_shard_read_start(c->service->shard, t, keys, n, out, missing, &f, err);
    if (rc != BD_OK || f == NULL) {
        return rc;
    }
    ps_away *a = bd_arena_calloc(&c->arena, 1, sizeof *a);
    if (a == NULL) {
        ps_fetch_free(f);
        return no_memory(n, err);
    }
    *a = (ps_away){.next = c->away, .call = c, .keys = keys, .out = out, .fetch = f};
    c->away = a;
    return BD_OK;
}

static void on_put(ps_fetch *f, size_t first, size_t n)
{
    const ps_away *a = f->user;
    ps_shard_read_put(a->call->service->shard, f, first, n, a->keys, a->out);
}

/* Answered right here: an answering thread would have to be woken first, and this one may have
 * nothing else to do. */
static void on_fetched(ps_fetch *f)
{
    ps_call *c = ((ps_away *)f->user)->call;
    ps_service *v = c->service;
    if (atomic_fetch_sub(&c->n_fetches, 1) != 1) {
        return;
    }
    ps_answer_lookup(c);
    (void)pthread_mutex_lock(&v->lock);
    v->n_away--;
    if (v->quit) { /* who stops may wait for the last one */
        (void)pthread_cond_broadcast(&v->changed);
    }
    (void)pthread_mutex_unlock(&v->lock);
}

void ps_away_start(ps_call *c)
{
    ps_service *v = c->service;
    unsigned n = 0;
    for (ps_away *a = c->away; a != NULL; a = a->next) {
        a->fetch->put = on_put;
        a->fetch->done = on_fetched;
        a->fetch->user = a;
        n++;
    }
    (void)pthread_mutex_lock(&v->lock);
    v->n_away++;
    (void)pthread_mutex_unlock(&v->lock);
    atomic_store(&c->n_fetches, n);
    for (ps_away *a = c->away, *next; n > 0; a = next, n--) { /* with the last one c may be gone */
        next = a->next;
        ps_fetch_start(ps_shard_fetch_pool(v->shard), a->fetch);
    }
}

bd_status ps_away_end(ps_call *c, bd_err *err)
{
    bd_status rc = BD_OK;
    for (const ps_away *a = c->away; a != NULL && rc == BD_OK; a = a->next) {
        rc = ps_shard_read_end(c->service->shard, a->fetch, err);
    }
    return rc == BD_OK || rc == BD_AGAIN ? rc : bd_err_wrap(err, "lookup");
}

void ps_away_drop(ps_call *c)
{
    for (; c->away != NULL; c->away = c->away->next) {
        ps_fetch_free(c->away->fetch);
    }
}
