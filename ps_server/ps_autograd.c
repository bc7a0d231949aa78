/* The store behind the Autograd service: finds tables, and puts a context's step into the journal.
 */
#include "ps_server/ps_autograd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_ag_module.h"
#include "ps_server/ps_dedup.h"
#include "ps_server/ps_service_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LEASE_MS 60000
#define NODE_IDS (1ull << 62) /* of servers as nodes: no client has such an id */

struct ps_autograd {
    ps_service *service; /* borrowed */
    ps_shard *shard;     /* borrowed */
    rpc_ag *ag;
    rpc_ag_store store;
    int64_t lease_ms;
    pthread_mutex_t lock;
    ps_ag_module *modules; /* under lock; owned */
    _Atomic uint64_t n_expired;
};

/* ---- modules ---- */

static ps_ag_module *known_locked(const ps_autograd *a, const char *name)
{
    ps_ag_module *m = a->modules;
    while (m != NULL && strcmp(m->name, name) != 0) {
        m = m->next;
    }
    return m;
}

static const rpc_module *find(void *user, const char *name)
{
    ps_autograd *a = user;
    bd_err why;
    (void)pthread_mutex_lock(&a->lock);
    ps_ag_module *m = known_locked(a, name);
    if (m == NULL && ps_ag_module_new(a->shard, name, &m, &why) == BD_OK) {
        m->next = a->modules;
        a->modules = m;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return m != NULL ? &m->module : NULL;
}

/* ---- step ---- */

/* One table's gradients in a step: sums of its modules, for "embedding:t" and "embedding_bag:t" may
 * both have been called. */
typedef struct table_sum {
    uint32_t table_id, dim;
    size_t n_keys;
    bd_buf *keys, *grads; /* shared */
} table_sum;

typedef struct waiting {
    ps_op op; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
} waiting;

static void on_done(ps_op *op)
{
    waiting *w = (waiting *)op;
    (void)pthread_mutex_lock(&w->lock);
    w->done = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

/* Hands the part to the shard and waits until it is journaled and applied. */
static bd_status post_and_wait(ps_shard *s, ps_part *part, bool *duplicate, bd_err *err)
{
    waiting w = {.op = {.kind = PS_OP_PUSH, .part = part, .done = on_done}};
    (void)pthread_mutex_init(&w.lock, NULL);
    (void)pthread_cond_init(&w.changed, NULL);
    ps_shard_post(s, &w.op);
    (void)pthread_mutex_lock(&w.lock);
    while (!w.done) {
        (void)pthread_cond_wait(&w.changed, &w.lock);
    }
    (void)pthread_mutex_unlock(&w.lock);
    (void)pthread_cond_destroy(&w.changed);
    (void)pthread_mutex_destroy(&w.lock);
    *duplicate = w.op.duplicate;
    if (w.op.rc != BD_OK && err != NULL) {
        *err = w.op.err;
    }
    return w.op.rc;
}

/* Where key stands among the first n, else n. */
static size_t find_key(const uint64_t *keys, size_t n, const uint32_t *slots, size_t mask,
                       uint64_t key, size_t *slot)
{
    size_t at = bd_mix64(key) & mask;
    while (slots[at] != 0 && keys[slots[at] - 1] != key) {
        at = (at + 1) & mask;
    }
    *slot = at;
    return slots[at] != 0 ? slots[at] - 1 : n;
}

/* Adds the gradients of all modules of one table, in their order. */
static bd_status sum_table(const rpc_step_grad *grads, size_t n, table_sum *t, bd_err *err)
{
    size_t rows = 0, n_keys = 0, cap = 16;
    for (size_t i = 0; i < n; i++) {
        const ps_ag_module *m = grads[i].module->self;
        rows += m->table_id == t->table_id ? grads[i].n_rows : 0;
    }
    if (rows > PS_MAX_REQUEST_KEYS) {
        return bd_err_set(err, BD_E_EXHAUSTED, "step: %zu keys of one table (at most %u)", rows,
                          PS_MAX_REQUEST_KEYS);
    }
    while (cap < 2 * rows) {
        cap *= 2;
    }
    uint32_t *slots = bd_calloc(cap, sizeof *slots);
    t->keys = bd_buf_new(rows * sizeof(uint64_t));
    t->grads = bd_buf_new(rows * t->dim * sizeof(float));
    if (slots == NULL || t->keys == NULL || t->grads == NULL) {
        bd_free(slots);
        return bd_err_set(err, BD_E_NOMEM, "step: out of memory");
    }
    uint64_t *keys = (uint64_t *)(void *)t->keys->bytes;
    float *sums = (float *)(void *)t->grads->bytes;
    memset(sums, 0, rows * t->dim * sizeof *sums);
    for (size_t i = 0; i < n; i++) {
        const ps_ag_module *m = grads[i].module->self;
        for (size_t r = 0; m->table_id == t->table_id && r < grads[i].n_rows; r++) {
            size_t slot, at = find_key(keys, n_keys, slots, cap - 1, grads[i].rows[r], &slot);
            if (at == n_keys) {
                keys[n_keys++] = grads[i].rows[r];
                slots[slot] = (uint32_t)n_keys;
            }
            for (size_t d = 0; d < t->dim; d++) {
                sums[at * t->dim + d] += grads[i].values[r * t->dim + d];
            }
        }
    }
    bd_free(slots);
    t->n_keys = n_keys;
    return BD_OK;
}

/* The tables of the step, each once. *out owned: [*n_out], freed by free_sums. */
static bd_status sum_all(const rpc_step_grad *grads, size_t n, table_sum **out, size_t *n_out,
                         bd_err *err)
{
    table_sum *t = bd_calloc(n + 1, sizeof *t);
    bd_status rc = BD_OK;
    *n_out = 0;
    *out = t;
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "step: out of memory");
    }
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        const ps_ag_module *m = grads[i].module->self;
        size_t k = 0;
        while (k < *n_out && t[k].table_id != m->table_id) {
            k++;
        }
        if (k == *n_out) {
            t[(*n_out)++] = (table_sum){.table_id = m->table_id, .dim = m->dim};
            rc = sum_table(grads, n, &t[k], err);
        }
    }
    return rc;
}

static void free_sums(table_sum *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bd_buf_unref(t[i].keys);
        bd_buf_unref(t[i].grads);
    }
    bd_free(t);
}

static bd_status make_part(const ps_autograd *a, const table_sum *t, size_t n, px_push_request *req,
                           ps_part **out, bd_err *err)
{
    req->tables = bd_calloc(n + 1, sizeof *req->tables);
    req->n_tables = n;
    if (req->tables == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "step: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        req->tables[i].table_id = t[i].table_id;
        req->tables[i].dim = t[i].dim;
        req->tables[i].keys = px_bulk_of(t[i].keys, 0, t[i].n_keys, sizeof(uint64_t));
        req->tables[i].grads = px_bulk_of(t[i].grads, 0, t[i].n_keys * t[i].dim, sizeof(float));
    }
    bd_status rc = ps_check_push(a->service, req, out, err);
    bd_free(req->tables);
    return rc;
}

static bd_status check_mode(const rpc_ag_step_id *id, uint64_t epoch, ps_job job, bd_err *err)
{
    const bool sync = epoch == job.epoch && job.epoch != 0 && job.consistency == PS_SYNC;
    if (sync && id->vote == NULL) {
        return bd_err_set(err, BD_E_STATE,
                          "step of a context in job epoch %" PRIu64
                          ", which is sync: it has to be a rank's vote, or the job async",
                          job.epoch);
    }
    if (!sync && id->vote != NULL && epoch == job.epoch) {
        return bd_err_set(err, BD_E_STATE,
                          "vote of rank %u in job epoch %" PRIu64 ", which is not sync",
                          id->vote->rank, job.epoch);
    }
    if (sync && id->vote->rank >= job.world) {
        return bd_err_set(err, BD_E_INVALID, "vote of rank %u: the job has %u ranks",
                          id->vote->rank, job.world);
    }
    return BD_OK; /* another epoch is refused with the push */
}

static bd_status check_job(const ps_autograd *a, const rpc_ag_step_id *id, uint64_t epoch,
                           const rpc_step_grad *grads, size_t n, bd_err *err)
{
    if (id->client_id >= NODE_IDS) {
        return bd_err_set(err, BD_E_INVALID, "step: client id %" PRIu64 " was never issued",
                          id->client_id);
    }
    for (size_t i = 0; i < n; i++) {
        if (grads[i].tag != epoch) {
            return bd_err_set(err, BD_E_FENCED, "step: a new job was opened within the context");
        }
    }
    return check_mode(id, epoch, ps_shard_job(a->shard), err);
}

/* ---- votes ---- */

typedef struct vote_wait {
    ps_waiter waiter; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
} vote_wait;

static void on_voted(ps_waiter *waiter)
{
    vote_wait *v = (vote_wait *)waiter;
    (void)pthread_mutex_lock(&v->lock);
    v->done = true;
    (void)pthread_cond_signal(&v->changed);
    (void)pthread_mutex_unlock(&v->lock);
}

/* The part is staged: it is committed with those of the other ranks. Other handlers, their votes,
 * need threads meanwhile. */
static bd_status wait_for_votes(const ps_autograd *a, const rpc_ag_vote *vote, double lr_scale,
                                bd_err *err)
{
    vote_wait v = {.waiter = {.kind = PS_WAIT_COMMIT,
                              .job_epoch = vote->job_epoch,
                              .step = vote->step,
                              .rank = vote->rank,
                              .lr_scale = lr_scale,
                              .finish = on_voted,
                              .expires_ns = bd_mono_ns() + a->lease_ms * BD_NS_PER_MS}};
    (void)pthread_mutex_init(&v.lock, NULL);
    (void)pthread_cond_init(&v.changed, NULL);
    rpc_blocking_begin();
    ps_shard_decide(a->shard, &v.waiter);
    (void)pthread_mutex_lock(&v.lock);
    while (!v.done) {
        (void)pthread_cond_wait(&v.changed, &v.lock);
    }
    (void)pthread_mutex_unlock(&v.lock);
    rpc_blocking_end();
    (void)pthread_cond_destroy(&v.changed);
    (void)pthread_mutex_destroy(&v.lock);
    if (v.waiter.rc == BD_E_NEED_PARTS) { /* a write failed, the part went with it */
        return bd_err_set(err, BD_E_UNAVAILABLE, "step %" PRIu64 ": vote again", vote->step);
    }
    if (v.waiter.rc == BD_E_CANCELLED) {
        return bd_err_set(err, BD_E_TIMEOUT,
                          "step %" PRIu64 ": not all ranks have voted within %" PRId64 " ms: %s",
                          vote->step, a->lease_ms, bd_err_text(&v.waiter.err));
    }
    if (v.waiter.rc != BD_OK && err != NULL) {
        *err = v.waiter.err;
    }
    return v.waiter.rc;
}

/* ---- steps ---- */

static px_push_request push_of(const rpc_ag_step_id *id, const rpc_step_grad *grads, size_t n,
                               double lr_scale)
{
    px_push_request req = {.n_parts = 1,
                           .client_id = id->client_id | PS_DEDUP_CONTEXT,
                           .sequence = id->number,
                           .lr_scale = lr_scale};
    req.job_epoch = id->vote != NULL ? id->vote->job_epoch : n > 0 ? grads[0].tag : 0;
    req.rank = id->vote != NULL ? id->vote->rank : 0;
    req.step = id->vote != NULL ? id->vote->step : 0;
    return req;
}

static bd_status step(void *user, const rpc_ag_step_id *id, double lr_scale,
                      const rpc_step_grad *grads, size_t n, bd_err *err)
{
    ps_autograd *a = user;
    table_sum *sums = NULL;
    size_t n_sums = 0;
    ps_part *part = NULL;
    bool duplicate = false;
    px_push_request req = push_of(id, grads, n, lr_scale);
    bd_status rc = check_job(a, id, req.job_epoch, grads, n, err);
    if (rc == BD_OK) {
        rc = sum_all(grads, n, &sums, &n_sums, err);
    }
    if (rc == BD_OK) {
        rc = make_part(a, sums, n_sums, &req, &part, err);
    }
    free_sums(sums, n_sums);
    if (rc == BD_OK) {
        rc = post_and_wait(a->shard, part, &duplicate, err);
    }
    if (rc == BD_E_EXHAUSTED) { /* too many pushes at once: the client asks again */
        return bd_err_set(err, BD_E_UNAVAILABLE, "step: the server is busy");
    }
    if (rc == BD_OK && id->vote != NULL) { /* a repeat of the part is as good as the first */
        return wait_for_votes(a, id->vote, lr_scale, err);
    }
    if (rc == BD_OK && duplicate) {
        rc = bd_err_set(err, BD_E_STATE,
                        "step of context %" PRIu64
                        ": it was stepped before, or more than %u later ones were",
                        id->number, PS_DEDUP_MAX_GAPS);
    }
    return rc;
}

static bool stepped(void *user, const rpc_ag_step_id *id)
{
    const ps_autograd *a = user;
    if (id->vote != NULL) {
        ps_job job = ps_shard_job(a->shard);
        return job.epoch == id->vote->job_epoch && job.consistency == PS_SYNC &&
               job.last_step >= id->vote->step && job.last_aborted != id->vote->step;
    }
    return id->client_id < NODE_IDS &&
           ps_shard_has_pushed(a->shard, id->client_id | PS_DEDUP_CONTEXT, id->number);
}

/* ---- life ---- */

bd_status ps_autograd_new(rpc_env *env, ps_service *v, ps_shard *shard,
                          const ps_autograd_options *opt, ps_autograd **out, bd_err *err)
{
    char name[32];
    ps_autograd *a = bd_calloc(1, sizeof *a);
    if (a == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "autograd: no memory");
    }
    a->service = v;
    a->shard = shard;
    a->lease_ms = opt->lease_ms > 0 ? opt->lease_ms : LEASE_MS;
    a->store = (rpc_ag_store){.user = a, .find = find, .step = step, .stepped = stepped};
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)snprintf(name, sizeof name, "ps-%u", opt->index);
    const rpc_ag_options node = {.name = name, .client_id = NODE_IDS + opt->index};
    bd_status rc = rpc_ag_new(env, &node, &a->ag, err);
    if (rc != BD_OK) {
        ps_autograd_free(a);
        return rc;
    }
    rpc_ag_set_store(a->ag, &a->store);
    *out = a;
    return BD_OK;
}

bd_status ps_autograd_serve(ps_autograd *a, rpc_server *server)
{
    return rpc_ag_serve(a->ag, server);
}

void ps_autograd_sweep(ps_autograd *a)
{
    size_t n = rpc_ag_sweep(a->ag, a->lease_ms);
    if (n > 0) {
        BD_LOG(WARN, "clients said nothing for their lease; their contexts are dropped", "clients",
               n, "lease_ms", a->lease_ms);
    }
    uint64_t expired = atomic_fetch_add(&a->n_expired, n) + n;
    ps_shard_note_contexts(a->shard, rpc_ag_n_contexts(a->ag), expired);
}

void ps_autograd_free(ps_autograd *a)
{
    if (a == NULL) {
        return;
    }
    rpc_ag_free(a->ag);
    while (a->modules != NULL) {
        ps_ag_module *m = a->modules;
        a->modules = m->next;
        ps_ag_module_free(m);
    }
    (void)pthread_mutex_destroy(&a->lock);
    bd_free(a);
}
