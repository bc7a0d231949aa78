#include "ps_server/ps_shard.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_manifest.h"
#include "ps_server/ps_reap.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard_int.h"
#include "rpc/rpc_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_JOURNAL_CAP   (512ull << 20)
#define DEFAULT_STAGE         (1ull << 30)
#define DEFAULT_BOUND_WAIT_MS 90000 /* less than the clients' ps_wait, so that they hear who */

/* ---- queues ---- */
void ps_queue_init(ps_queue *q)
{
    pthread_condattr_t attr;
    memset(q, 0, sizeof *q);
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&q->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

void ps_queue_deinit(ps_queue *q)
{
    (void)pthread_cond_destroy(&q->changed);
    (void)pthread_mutex_destroy(&q->lock);
}

void ps_queue_post(ps_queue *q, ps_op *op)
{
    op->next = NULL;
    (void)pthread_mutex_lock(&q->lock);
    if (q->last == NULL) {
        q->first = op;
    } else {
        q->last->next = op;
    }
    q->last = op;
    (void)pthread_cond_signal(&q->changed);
    (void)pthread_mutex_unlock(&q->lock);
}

void ps_queue_wake(ps_queue *q)
{
    (void)pthread_mutex_lock(&q->lock);
    q->wake = true;
    (void)pthread_cond_signal(&q->changed);
    (void)pthread_mutex_unlock(&q->lock);
}

ps_op *ps_queue_pop(ps_queue *q, int64_t timeout_ms)
{
    struct timespec until;
    int64_t at = bd_mono_ns() + (timeout_ms < 0 ? 0 : timeout_ms * BD_NS_PER_MS);
    until.tv_sec = (time_t)(at / BD_NS_PER_S);
    until.tv_nsec = (long)(at % BD_NS_PER_S);
    int wait = 0;
    (void)pthread_mutex_lock(&q->lock);
    while (q->first == NULL && !q->wake && wait != ETIMEDOUT) {
        wait = timeout_ms < 0 ? pthread_cond_wait(&q->changed, &q->lock)
                              : pthread_cond_timedwait(&q->changed, &q->lock, &until);
    }
    q->wake = false;
    ps_op *op = q->first;
    if (op != NULL) {
        q->first = op->next;
        q->last = q->first == NULL ? NULL : q->last;
    }
    (void)pthread_mutex_unlock(&q->lock);
    return op;
}

/* ---- facts ---- */
void ps_job_pack(const ps_job *job, uint8_t out[32])
{
    ps_put_le64(out, job->epoch);
    ps_put_le32(out + 8, job->world);
    ps_put_le32(out + 12, (uint32_t)job->consistency);
    ps_put_le64(out + 16, job->last_step);
    ps_put_le64(out + 24, job->last_aborted);
}

bd_status ps_job_unpack(const uint8_t *bytes, size_t n_bytes, ps_job *out, bd_err *err)
{
    if (n_bytes != 32) {
        return bd_err_set(err, BD_E_CORRUPT, "the job's fact has %zu bytes", n_bytes);
    }
    *out = (ps_job){.epoch = ps_get_le64(bytes),
                    .world = ps_get_le32(bytes + 8),
                    .consistency = (ps_consistency)ps_get_le32(bytes + 12),
                    .last_step = ps_get_le64(bytes + 16),
                    .last_aborted = ps_get_le64(bytes + 24)};
    return BD_OK;
}

/* ---- opening ---- */
static bd_status load_table(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                            bd_err *err)
{
    ps_shard *s = user;
    ps_spec spec;
    bd_status rc = ps_spec_unpack(val, n_bytes, &spec, err);
    if (rc == BD_OK) {
        rc = ps_tables_add(&s->tables, &spec, err);
    }
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "fact \"%s\"", name);
}

static bd_status load_client(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                             bd_err *err)
{
    ps_shard *s = user;
    uint64_t client = strtoull(name + strlen("client/"), NULL, 16);
    return ps_dedup_load(s->dedup, client, val, n_bytes, err);
}

bd_status ps_shard_check_size(const ps_shard *s, bd_err *err)
{
    if (!atomic_load(&s->resized)) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_STATE,
                      "data folder %s holds rows of server %u of %u, and this is server %u of %u: "
                      "open a job that restores a checkpoint, or start %u servers again",
                      s->dir, s->index, s->old_servers, s->index, s->n_servers, s->old_servers);
}

/* Another size: nothing to keep when no job was ever opened and no table made. */
static bd_status resize(ps_shard *s, uint32_t old_servers, const uint8_t mine[8], bd_err *err)
{
    uint8_t *val = NULL;
    size_t n = 0;
    ps_job job = {0};
    bd_status rc = ps_journal_get(s->journal, 'M', "job", &val, &n, err);
    if (rc == BD_OK && val != NULL) {
        rc = ps_job_unpack(val, n, &job, err);
    }
    bd_free(val);
    if (rc != BD_OK) {
        return rc;
    }
    if (job.epoch == 0) {
        ps_fact f = {'M', "server", mine, 8};
        return ps_journal_put(s->journal, &f, 1, true, err);
    }
    s->old_servers = old_servers;
    s->old_epoch = job.epoch;
    atomic_store(&s->resized, true);
    BD_LOG(WARN, "the folder is of a cluster of another size: a job must restore a checkpoint",
           "folder", s->dir, "had", old_servers, "has", s->n_servers);
    return BD_OK;
}

/* A folder belongs to one server of a cluster of one size: its rows lie in that server's slots. */
static bd_status check_identity(ps_shard *s, bd_err *err)
{
    uint8_t *val = NULL, mine[8];
    size_t n = 0;
    ps_put_le32(mine, s->index);
    ps_put_le32(mine + 4, s->n_servers);
    bd_status rc = ps_journal_get(s->journal, 'M', "server", &val, &n, err);
    if (rc == BD_OK && val == NULL) {
        ps_fact f = {'M', "server", mine, sizeof mine};
        rc = ps_journal_put(s->journal, &f, 1, true, err);
    } else if (rc == BD_OK && n == sizeof mine && ps_get_le32(val) == s->index &&
               ps_get_le32(val + 4) != s->n_servers) {
        rc = resize(s, ps_get_le32(val + 4), mine, err);
    } else if (rc == BD_OK && (n != sizeof mine || memcmp(val, mine, n) != 0)) {
        rc = bd_err_set(err, BD_E_MISMATCH,
                        "data folder %s belongs to server %u of %u, not %u of %u", s->dir,
                        n == 8 ? ps_get_le32(val) : 0, n == 8 ? ps_get_le32(val + 4) : 0, s->index,
                        s->n_servers);
    }
    bd_free(val);
    return rc;
}

static bd_status load_facts(ps_shard *s, ps_job *job, bd_err *err)
{
    uint8_t *val = NULL;
    size_t n = 0;
    bd_status rc = check_identity(s, err);
    if (rc == BD_OK) {
        rc = ps_journal_get(s->journal, 'M', "job", &val, &n, err);
    }
    *job = (ps_job){.consistency = PS_SYNC};
    if (rc == BD_OK && val != NULL && !atomic_load(&s->resized)) {
        rc = ps_job_unpack(val, n, job, err);
    }
    bd_free(val);
    val = NULL;
    if (rc == BD_OK) {
        rc = ps_journal_get(s->journal, 'M', "rows", &val, &n, err);
    }
    if (rc == BD_OK && val != NULL && n == 8) {
        s->rows_no = ps_get_le64(val);
        s->rows_known = true;
    }
    bd_free(val);
    if (rc != BD_OK || atomic_load(&s->resized)) {
        return rc;
    }
    if (rc == BD_OK) {
        rc = ps_journal_each(s->journal, 'M', "table/", load_table, s, err);
    }
    if (rc == BD_OK) {
        rc = ps_journal_each(s->journal, 'M', "client/", load_client, s, err);
    }
    return rc;
}

static bd_status replay_record(void *user, const ps_record *rec, bd_err *err)
{
    ps_shard *s = user;
    bd_status rc = ps_plan_build(s->plan, rec, &s->tables, true, err);
    for (int i = 0; i < 2 && rc == BD_E_EXHAUSTED; i++) { /* what nobody uses, then everything */
        rc = ps_keeper_make_room(s, i == 0, err);
        rc = rc == BD_OK ? ps_plan_build(s->plan, rec, &s->tables, true, err) : rc;
    }
    for (size_t k = 0; k <= rec->n_sections && rc == BD_E_EXHAUSTED; k++) {
        if (!ps_tables_share(&s->tables)) {
            break;
        }
        rc = ps_plan_build(s->plan, rec, &s->tables, true, err);
    }
    if (rc != BD_OK) {
        return bd_err_wrap(err, "replay of record %" PRIu64, rec->seq.n);
    }
    ps_plan_apply(s->plan, rec);
    s->replayed_records++;
    return BD_OK;
}

static bd_status recover(ps_shard *s, const ps_shard_options *opt, bd_err *err)
{
    bool salvage = opt->salvage;
    bool resized = atomic_load(&s->resized);
    s->rows_no += resized ? 1 : 0; /* an empty one; the fact still names the old rows */
    char *path = bd_strfmt("%s/rows-%" PRIu64, s->dir, s->rows_no);
    int64_t start = bd_mono_ns();
    bd_status rc = path == NULL ? bd_err_set(err, BD_E_NOMEM, "open: no memory")
                                : ps_safety_check_rows(s, path, err);
    if (rc == BD_OK) {
        rc = ps_store_open(path, &s->budget, &s->store, err);
    }
    if (rc == BD_OK) {
        ps_fetch_pool_set_store(s->fetch, s->store);
        rc = ps_load_rows(s->store, &s->tables, opt->progress, err);
    }
    if (rc == BD_E_CORRUPT) {
        rc = salvage ? ps_safety_drop_rows(s, err)
                     : bd_err_set(err, rc, "%s (" PS_SALVAGE_HINT ")", bd_err_text(err));
        ps_fetch_pool_set_store(s->fetch, s->store);
    }
    if (rc == BD_OK && !resized) {
        rc = ps_safety_note_rows(s, err);
    }
    if (rc == BD_OK && !resized) {
        rc = ps_journal_replay(s->journal, salvage, replay_record, s, opt->progress, err);
    }
    if (rc == BD_OK && !resized) {
        ps_seqno next = ps_journal_next(s->journal);
        atomic_store(&s->applied_n, next.n - 1);
        s->recovery_ns = bd_mono_ns() - start;
        BD_LOG(INFO, "rows are there", "rows", ps_tables_n_rows(&s->tables), "rows_away",
               ps_tables_n_away(&s->tables), "records", ps_journal_records(s->journal),
               "generation", next.generation, "ms", s->recovery_ns / BD_NS_PER_MS);
    }
    bd_free(path);
    return rc;
}

static bd_status open_journal(ps_shard *s, bool salvage, bd_err *err)
{
    char *path = bd_strfmt("%s/journal", s->dir);
    bd_status rc =
        path == NULL ? bd_err_set(err, BD_E_NOMEM, "open: no memory") : ps_disk_probe(path, err);
    if (rc == BD_OK) { /* RocksDB does not bear a full disk well */
        rc = ps_journal_open(path, salvage, &s->journal, err);
    }
    if (rc == BD_OK && s->budget.memtable_bytes != 0) {
        rc = ps_journal_limit_memory(s->journal, s->budget.memtable_bytes, err);
    }
    bd_free(path);
    return rc;
}

static void init_fields(ps_shard *s, const ps_shard_options *opt)
{
    s->index = opt->index;
    s->n_servers = opt->n_servers;
    rpc_slots_of(opt->index, opt->n_servers, &s->first_slot, &s->end_slot);
    s->journal_cap_bytes =
        opt->journal_cap_bytes == 0 ? DEFAULT_JOURNAL_CAP : opt->journal_cap_bytes;
    ps_budget_init(&s->budget, opt->memory_bytes);
    size_t most = s->budget.stage_bytes == 0 ? SIZE_MAX : s->budget.stage_bytes;
    s->stage_bytes = opt->stage_bytes == 0 ? DEFAULT_STAGE : opt->stage_bytes;
    s->stage_bytes = s->stage_bytes > most ? most : s->stage_bytes;
    s->tables.budget = &s->budget;
    s->wall = opt->wall;
    s->keep_tombstones = opt->keep_tombstones == 0            ? PS_DEFAULT_KEEP
                         : opt->keep_tombstones < PS_MAX_KEEP ? opt->keep_tombstones
                                                              : PS_MAX_KEEP;
    s->bound_wait_ms = opt->bound_wait_ms == 0 ? DEFAULT_BOUND_WAIT_MS : opt->bound_wait_ms;
    (void)pthread_rwlock_init(&s->tables_lock, NULL);
    (void)pthread_mutex_init(&s->core_lock, NULL);
    (void)pthread_mutex_init(&s->room_lock, NULL);
    (void)pthread_cond_init(&s->room, NULL);
    ps_queue_init(&s->commit_queue);
    ps_queue_init(&s->keeper_queue);
    s->unsynced_end = &s->unsynced;
}

bd_status ps_shard_open(const ps_shard_options *opt, ps_shard **out, bd_err *err)
{
    ps_job job;
    if (opt->n_servers == 0 || opt->n_servers > PS_N_SLOTS || opt->index >= opt->n_servers) {
        return bd_err_set(err, BD_E_INVALID, "server index %u of %u (at most %u servers)",
                          opt->index, opt->n_servers, PS_N_SLOTS);
    }
    ps_shard *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "open: no memory");
    }
    init_fields(s, opt);
    s->dir = bd_strdup(opt->data_dir);
    s->restore_from = bd_strdup(opt->restore_from != NULL ? opt->restore_from : "");
    s->plan = ps_plan_new();
    s->reap = ps_reap_new();
    s->dedup = ps_dedup_new();
    bd_status rc = s->dir == NULL || s->restore_from == NULL || s->plan == NULL ||
                           s->reap == NULL || s->dedup == NULL
                       ? bd_err_set(err, BD_E_NOMEM, "open: no memory")
                       : ps_fetch_pool_new(0, &s->fetch, err);
    if (rc == BD_OK) {
        ps_plan_set_fetch(s->plan, s->fetch);
        rc = open_journal(s, opt->salvage, err);
    }
    if (rc == BD_OK) {
        rc = load_facts(s, &job, err);
    }
    if (rc == BD_OK) {
        ps_ckpt_clean(s);
        rc = recover(s, opt, err);
    }
    if (rc == BD_OK) {
        s->core = ps_step_new(&job, s->stage_bytes, bd_mono_ns() / BD_NS_PER_MS);
        rc = s->core == NULL ? bd_err_set(err, BD_E_NOMEM, "open: no memory") : BD_OK;
    }
    if (rc == BD_OK) {
        rc = ps_safety_load_ranks(s, err);
    }
    if (rc == BD_OK) {
        rc = ps_safety_load(s, err);
    }
    if (rc != BD_OK) {
        ps_shard_close(s);
        return rc;
    }
    *out = s;
    return BD_OK;
}

void ps_shard_close(ps_shard *s)
{
    if (s == NULL) {
        return;
    }
    ps_step_free(s->core);
    ps_dedup_free(s->dedup);
    ps_plan_free(s->plan);
    ps_reap_free(s->reap);
    ps_fetch_pool_free(s->fetch);
    ps_tables_deinit(&s->tables);
    ps_store_close(s->store);
    ps_journal_close(s->journal);
    ps_queue_deinit(&s->commit_queue);
    ps_queue_deinit(&s->keeper_queue);
    (void)pthread_rwlock_destroy(&s->tables_lock);
    (void)pthread_mutex_destroy(&s->core_lock);
    (void)pthread_mutex_destroy(&s->room_lock);
    (void)pthread_cond_destroy(&s->room);
    bd_free(s->sections);
    bd_free(s->logged);
    bd_free(s->dir);
    bd_free(s->restore_from);
    bd_free(s);
}

bd_status ps_shard_start(ps_shard *s, bd_err *err)
{
    int e = pthread_create(&s->commit_thread, NULL, ps_commit_main, s);
    s->commit_runs = e == 0;
    if (e == 0) {
        e = pthread_create(&s->keeper_thread, NULL, ps_keeper_main, s);
        s->keeper_runs = e == 0;
    }
    return e == 0 ? BD_OK : bd_err_errno(err, BD_E_EXHAUSTED, e, "start threads");
}

bd_status ps_shard_stop(ps_shard *s, bd_err *err)
{
    ps_effects fx = {0};
    (void)pthread_mutex_lock(&s->core_lock);
    s->stopping = true;
    ps_step_sweep(s->core, NULL, &fx);
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
    /* The keeper may still need the commit thread (a checkpoint), so it goes first, and ends the
     * commit thread itself before its last write-back. */
    ps_op quit = {.kind = PS_OP_QUIT};
    if (s->keeper_runs) {
        ps_queue_post(&s->keeper_queue, &quit);
        (void)pthread_join(s->keeper_thread, NULL);
        s->keeper_runs = false;
    } else if (s->commit_runs) {
        ps_queue_post(&s->commit_queue, &quit);
    }
    if (s->commit_runs) {
        (void)pthread_join(s->commit_thread, NULL);
        s->commit_runs = false;
    }
    if (err != NULL && s->stop_rc != BD_OK) {
        *err = s->stop_err;
    }
    return s->stop_rc;
}

/* ---- reading ---- */
bd_status ps_shard_check_keys(const ps_shard *s, const uint64_t *keys, size_t n, bd_err *err)
{
    uint32_t n_slots = s->end_slot - s->first_slot;
    if (n_slots == PS_N_SLOTS) {
        return BD_OK; /* the only server: every key is its own */
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = ps_slot_of_key(keys[i]);
        if (slot - s->first_slot >= n_slots) {
            return bd_err_set(err, BD_E_MOVED,
                              "key %" PRIu64 " (slot %u) is not on server %u of %u", keys[i], slot,
                              s->index, s->n_servers);
        }
    }
    return BD_OK;
}

const ps_tables *ps_shard_lock_tables(ps_shard *s)
{
    (void)pthread_rwlock_rdlock(&s->tables_lock);
    return &s->tables;
}

void ps_shard_unlock_tables(ps_shard *s)
{
    (void)pthread_rwlock_unlock(&s->tables_lock);
}

size_t ps_shard_stage_bytes(const ps_shard *s)
{
    return s->stage_bytes;
}

const char *ps_shard_dir(const ps_shard *s)
{
    return s->dir;
}

void ps_shard_set_env(ps_shard *s, struct rpc_env *env, bool allow_insecure)
{
    s->env = env;
    s->allow_insecure = allow_insecure;
}

ps_fetch_pool *ps_shard_fetch_pool(ps_shard *s)
{
    return s->fetch;
}

ps_journal *ps_shard_journal(ps_shard *s)
{
    return s->journal;
}

/* ---- the protocol ---- */
void ps_shard_run_effects(ps_shard *s, ps_effects *fx)
{
    if (fx->close) {
        ps_op *op = bd_calloc(1, sizeof *op);
        if (op != NULL) {
            op->kind = PS_OP_CLOSE;
            op->batch = fx->batch;
            ps_queue_post(&s->commit_queue, op);
        } else {
            ps_effects more = {0};
            bd_err err;
            (void)bd_err_set(&err, BD_E_NOMEM, "step %" PRIu64 ": no memory", fx->batch.step);
            ps_part_free_list(fx->batch.parts);
            (void)pthread_mutex_lock(&s->core_lock);
            if (ps_step_job(s->core)->epoch == fx->batch.job_epoch) {
                ps_step_closed(s->core, BD_E_NOMEM, &err, &more);
            }
            (void)pthread_mutex_unlock(&s->core_lock);
            for (ps_waiter *w = more.done, *next; w != NULL; w = next) {
                next = w->next;
                w->finish(w);
            }
        }
    }
    for (ps_waiter *w = fx->done, *next; w != NULL; w = next) {
        next = w->next;
        w->finish(w);
    }
}

/* While the server stops, nobody may be parked any more. */
static bool refuse_stopping(ps_shard *s, ps_waiter *w, ps_effects *fx)
{
    if (!s->stopping) {
        return false;
    }
    w->rc = bd_err_set(&w->err, BD_E_UNAVAILABLE, "the server is stopping");
    w->next = NULL;
    fx->done = w;
    return true;
}

void ps_shard_decide(ps_shard *s, ps_waiter *w)
{
    ps_effects fx = {0};
    (void)pthread_mutex_lock(&s->core_lock);
    if (!refuse_stopping(s, w, &fx)) {
        ps_step_decide(s->core, w, &fx);
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
}

void ps_shard_lookup(ps_shard *s, ps_waiter *w)
{
    ps_effects fx = {0};
    (void)pthread_mutex_lock(&s->core_lock);
    if (!refuse_stopping(s, w, &fx)) {
        ps_step_lookup(s->core, w, &fx);
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
}

void ps_shard_sweep(ps_shard *s, bool (*is_dead)(const ps_waiter *w))
{
    ps_effects fx = {0};
    (void)pthread_mutex_lock(&s->core_lock);
    ps_step_sweep(s->core, is_dead, &fx);
    ps_step_expire(s->core, bd_mono_ns() / BD_NS_PER_MS - s->bound_wait_ms, &fx);
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
    ps_safety_tell_broken(s); /* whoever found out: also the keeper syncs */
}

bool ps_shard_is_broken(ps_shard *s, bd_err *err)
{
    return ps_journal_is_broken(s->journal, err);
}

void ps_op_finish(ps_op *op, bd_status rc)
{
    op->rc = rc;
    op->done(op);
}

/* ---- async pushes ---- */
static ps_op *find_in_flight(const ps_shard *s, const ps_part *p)
{
    for (ps_op *o = s->in_flight; o != NULL; o = o->next) {
        const ps_part *q = o->part;
        if (q->client_id == p->client_id && q->sequence == p->sequence && q->part == p->part) {
            return o;
        }
    }
    return NULL;
}

/* An async push is in the list of those in flight by a proxy op, because `next` links the queue. */
static ps_op *track(ps_shard *s, ps_op *op)
{
    ps_op *t = bd_calloc(1, sizeof *t);
    if (t != NULL) {
        t->kind = PS_OP_PUSH;
        t->part = op->part;
        t->same = op;
        op->same = NULL;
        t->next = s->in_flight;
        s->in_flight = t;
        s->n_in_flight++;
        s->in_flight_bytes += op->part->n_bytes;
    }
    return t;
}

/* Under core_lock. BD_OK: *job is to be posted (NULL: parked behind the same push, or done). */
static bd_status start_async(ps_shard *s, ps_op *op, bool *finished)
{
    const ps_part *p = op->part;
    bool done = false;
    *finished = false;
    bd_status rc =
        ps_dedup_check(s->dedup, p->client_id, p->sequence, p->part, p->n_parts, &done, &op->err);
    if (rc != BD_OK) {
        return rc;
    }
    ps_op *t = find_in_flight(s, p); /* marked already, but maybe not on the disk yet */
    done = done && t == NULL;
    if (done || t != NULL) {
        op->duplicate = true;
        ps_part_free(op->part);
        op->part = NULL;
        (void)atomic_fetch_add(&s->duplicates, 1);
        if (done) {
            *finished = true;
        } else {
            op->same = t->same->same; /* behind the one that is being applied */
            t->same->same = op;
        }
        return BD_OK;
    }
    /* The rank everybody waits for has as much room again. */
    bool oldest = ps_step_job(s->core)->consistency == PS_BOUNDED &&
                  p->step == ps_step_job(s->core)->last_step + 1;
    size_t times = oldest ? 2 : 1;
    if (s->n_in_flight >= times * PS_MAX_IN_FLIGHT ||
        (s->n_in_flight > 0 && s->in_flight_bytes + p->n_bytes > times * s->stage_bytes)) {
        return bd_err_set(&op->err, BD_E_EXHAUSTED,
                          "%zu pushes of %zu bytes wait to be applied: slow down", s->n_in_flight,
                          s->in_flight_bytes);
    }
    if (track(s, op) == NULL) {
        return bd_err_set(&op->err, BD_E_NOMEM, "push: no memory");
    }
    ps_queue_post(&s->commit_queue, op);
    return BD_OK;
}

/* A sync step sums keys over ranks, in the order of samples: clients of it pool by themselves. */
static bd_status refuse_bags(const ps_part *p, bd_err *err)
{
    for (size_t i = 0; i < p->n_tables; i++) {
        if (p->tables[i].bags.n_bags != 0) {
            return bd_err_set(err, BD_E_INVALID,
                              "gradients of bags in job epoch %" PRIu64
                              ", which is sync: pool at the client",
                              p->job_epoch);
        }
    }
    return BD_OK;
}

static void push(ps_shard *s, ps_op *op)
{
    ps_effects fx = {0};
    bool finished = true;
    (void)pthread_mutex_lock(&s->core_lock);
    bd_status rc = ps_step_check_epoch(s->core, op->part->job_epoch, &op->err);
    if (rc == BD_OK && s->stopping) {
        rc = bd_err_set(&op->err, BD_E_UNAVAILABLE, "the server is stopping");
    }
    if (rc == BD_OK && ps_journal_is_broken(s->journal, &op->err)) { /* repeats as well */
        rc = BD_E_IO;
    }
    if (rc == BD_OK && ps_step_job(s->core)->consistency == PS_SYNC) {
        rc = refuse_bags(op->part, &op->err);
    }
    if (rc == BD_OK && ps_step_job(s->core)->consistency == PS_SYNC) {
        rc = ps_step_push(s->core, op->part, &op->duplicate, &fx, &op->err);
        if (rc == BD_OK) {
            op->part = NULL;
            (void)atomic_fetch_add(&s->duplicates, op->duplicate ? 1u : 0u);
        }
    } else if (rc == BD_OK) {
        rc = start_async(s, op, &finished);
        finished = finished || rc != BD_OK;
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
    if (finished) {
        ps_part_free(op->part);
        op->part = NULL;
        ps_op_finish(op, rc);
    }
}

void ps_shard_post(ps_shard *s, ps_op *op)
{
    op->err = (bd_err)BD_ERR_INIT;
    if (op->kind == PS_OP_PUSH) {
        push(s, op);
        return;
    }
    bool keeper = op->kind == PS_OP_OPEN || op->kind == PS_OP_CHECKPOINT ||
                  op->kind == PS_OP_DELETE || op->kind == PS_OP_FLUSH || op->kind == PS_OP_HASH ||
                  op->kind == PS_OP_PAGE;
    (void)pthread_mutex_lock(&s->core_lock);
    bool refused = s->stopping;
    if (!refused) { /* under the lock, so that nothing lands behind QUIT */
        ps_queue_post(keeper ? &s->keeper_queue : &s->commit_queue, op);
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    if (refused) {
        ps_part_free(op->part);
        op->part = NULL;
        ps_op_finish(op, bd_err_set(&op->err, BD_E_UNAVAILABLE, "the server is stopping"));
    }
}

ps_job ps_shard_job(ps_shard *s)
{
    (void)pthread_mutex_lock(&s->core_lock);
    ps_job job = *ps_step_job(s->core);
    (void)pthread_mutex_unlock(&s->core_lock);
    return job;
}

bool ps_shard_has_pushed(ps_shard *s, uint64_t client_id, uint64_t sequence)
{
    bool done = false;
    bd_err ignored;
    (void)pthread_mutex_lock(&s->core_lock);
    bd_status rc = ps_dedup_check(s->dedup, client_id, sequence, 0, 1, &done, &ignored);
    (void)pthread_mutex_unlock(&s->core_lock);
    return rc == BD_OK && done;
}
