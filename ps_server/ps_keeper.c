/* The keeper thread: rows down to the store, journal cut, checkpoints, restores. One at a time, so
 * the store never sees a row older than the one it holds. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_reap.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_scan.h"
#include "ps_server/ps_shard_int.h"

#include <inttypes.h>
#include <string.h>

#define RETRY_MS     1000
#define IDLE_POLL_MS 1000
#define WATCH_MS     100 /* with a memory budget: how often resident memory is looked at */
#define STOP_WRITE_MS \
    15000 /* an orderly stop writes rows back for so long, then leaves the journal */

/* A sync of the journal beside other work. */
typedef struct side_sync {
    ps_journal *journal;
    pthread_t thread;
    bool runs;
    bd_status rc;
    bd_err err;
} side_sync;

static void *sync_main(void *user)
{
    side_sync *y = user;
    y->rc = ps_journal_sync(y->journal, &y->err);
    return NULL;
}

static void start_sync(side_sync *y, ps_journal *j)
{
    *y = (side_sync){.journal = j, .rc = BD_OK, .err = BD_ERR_INIT};
    y->runs = pthread_create(&y->thread, NULL, sync_main, y) == 0;
    if (!y->runs) {
        (void)sync_main(y);
    }
}

static bd_status end_sync(void *user, bd_err *err)
{
    side_sync *y = user;
    if (y->runs) {
        (void)pthread_join(y->thread, NULL);
        y->runs = false;
    }
    if (y->rc != BD_OK) {
        *err = y->err;
    }
    return y->rc;
}

/* A row must not be on the disk before its record is: the journal is synced while the files of rows
 * are built, and they become the store's after it. */
static bd_status write_cut(ps_shard *s, const ps_cut *cut, bd_err *err)
{
    bd_status rc = BD_OK;
    if (cut->n > 0) {
        side_sync y;
        bd_err second;
        start_sync(&y, s->journal);
        rc = ps_store_write(s->store, cut->items, cut->n, s->last_write, end_sync, &y, err);
        (void)!end_sync(&y, rc == BD_OK ? err : &second); /* also when the files failed before */
    }
    const ps_tables *ts = ps_shard_lock_tables(s);
    for (size_t i = 0; i < cut->n && rc == BD_OK; i++) {
        ps_table *t = ps_tables_find(ts, cut->items[i].table_id);
        if (t != NULL) {
            ps_table_written(t, &cut->items[i]);
        }
        (void)atomic_fetch_add(&s->rows_written, cut->items[i].n);
    }
    ps_shard_unlock_tables(s);
    return rc;
}

/* Forgets the records no row needs any more. */
static bd_status cut_journal(ps_shard *s, uint64_t applied_n, bd_err *err)
{
    uint64_t keep_from = applied_n + 1;
    const ps_tables *ts = ps_shard_lock_tables(s);
    for (size_t i = 0; i < ts->n; i++) {
        uint64_t oldest = ps_table_oldest_dirty(ts->items[i]);
        keep_from = oldest < keep_from ? oldest : keep_from;
    }
    ps_shard_unlock_tables(s);
    return ps_journal_cut(s->journal, keep_from, err);
}

static void tell_room(ps_shard *s, bool disk_full)
{
    (void)pthread_mutex_lock(&s->room_lock);
    s->disk_full = disk_full;
    s->want_memory = PS_WANT_NONE;
    s->n_rounds++;
    (void)pthread_cond_broadcast(&s->room);
    (void)pthread_mutex_unlock(&s->room_lock);
}

/* Where a write-back stands. */
typedef struct progress {
    bool cold_only;
    size_t table;
    uint32_t stripe;
    bool more;
} progress;

/* Writes a group of stripes, so that at most group_bytes are copied at a time. The tables lock is
 * held only while rows are copied. */
static bd_status write_group(ps_shard *s, progress *p, bd_err *err)
{
    ps_cut group = {0};
    bd_status rc = BD_OK;
    const ps_tables *ts = ps_shard_lock_tables(s);
    while (p->table < ts->n && group.bytes < s->budget.group_bytes && rc == BD_OK) {
        rc = ps_cut_take_stripe(ts->items[p->table], p->stripe, p->cold_only, &group);
        if (rc == BD_OK && ++p->stripe == PS_N_STRIPES) {
            p->stripe = 0;
            p->table++;
        }
    }
    p->more = p->table < ts->n;
    ps_shard_unlock_tables(s);
    if (rc != BD_OK) {
        (void)bd_err_set(err, rc, "write-back: no memory");
    } else {
        rc = write_cut(s, &group, err);
    }
    if (rc != BD_OK) {
        ps_cut_put_back(s, &group);
    }
    ps_cut_deinit(&group);
    ps_budget_watch(&s->budget); /* on a slow disk this goes on for seconds */
    return rc;
}

bd_status ps_keeper_make_room(ps_shard *s, bool cold_only, bd_err *err)
{
    progress p = {.cold_only = cold_only, .more = true};
    bd_status rc = BD_OK;
    while (p.more && rc == BD_OK) {
        rc = write_group(s, &p, err);
    }
    return rc;
}

/* Rows leave the journal's care: written, safe, their records forgotten. until_ns: when to stop. */
/* A full disk is found before RocksDB meets it. */
static bd_status probe(ps_shard *s, bd_err *err)
{
    char *path = bd_strfmt("%s/rows", s->dir);
    bd_status rc = path == NULL ? bd_err_set(err, BD_E_NOMEM, "write-back: no memory")
                                : ps_disk_probe(path, err);
    bd_free(path);
    return rc;
}

static bd_status write_back(ps_shard *s, int64_t until_ns, bd_err *err)
{
    progress p = {.more = true};
    bd_status rc = probe(s, err);
    int64_t start = bd_mono_ns();
    uint64_t before = atomic_load(&s->rows_written);
    uint64_t applied_n = atomic_load_explicit(&s->applied_n, memory_order_acquire);
    while (p.more && rc == BD_OK && bd_mono_ns() < until_ns) {
        rc = write_group(s, &p, err);
    }
    if (rc == BD_OK) {
        rc = ps_store_flush(s->store, err);
    }
    if (rc == BD_OK) {
        rc = cut_journal(s, applied_n, err);
    }
    tell_room(s, rc != BD_OK);
    (void)atomic_fetch_add(&s->write_backs, 1);
    if (rc != BD_OK) {
        (void)atomic_fetch_add(&s->disk_errors, 1);
        BD_LOG(ERROR, "rows cannot be written back: check the disk; the journal keeps growing",
               "error", bd_err_text(err));
    } else {
        BD_LOG(INFO, "rows written back", "rows", atomic_load(&s->rows_written) - before, "ms",
               (bd_mono_ns() - start) / BD_NS_PER_MS, "journal_bytes",
               ps_journal_bytes(s->journal));
    }
    if (rc == BD_OK && p.more) {
        BD_LOG(WARN,
               "stopped before all rows were written back: the next start replays the journal",
               "journal_bytes", ps_journal_bytes(s->journal));
    }
    return rc;
}

/* ---- memory ---- */
static ps_want wanted(ps_shard *s)
{
    (void)pthread_mutex_lock(&s->room_lock);
    ps_want want = s->want_memory;
    (void)pthread_mutex_unlock(&s->room_lock);
    return want;
}

static bool has_to_make_room(ps_shard *s)
{
    const ps_budget *b = &s->budget;
    if (!ps_budget_limits(b)) {
        return false;
    }
    return wanted(s) != PS_WANT_NONE || atomic_load(&b->blocked_bytes) > b->rows_bytes / 64 ||
           atomic_load(&b->dirty_bytes) > b->rows_bytes / 2;
}

static bd_status make_room(ps_shard *s, bd_err *err)
{
    uint64_t before = atomic_load(&s->rows_written);
    atomic_store(&s->budget.blocked_bytes, 0);
    bool all =
        wanted(s) == PS_WANT_ALL || atomic_load(&s->budget.dirty_bytes) > s->budget.rows_bytes / 2;
    bd_status rc = ps_keeper_make_room(s, !all, err);
    if (rc == BD_OK && !all && atomic_load(&s->rows_written) == before) {
        rc = ps_keeper_make_room(s, false, err); /* every changed row is in use */
    }
    tell_room(s, rc != BD_OK);
    if (rc != BD_OK) {
        (void)atomic_fetch_add(&s->disk_errors, 1);
        BD_LOG(ERROR, "rows cannot be moved to the disk: check it; pushes that need memory wait",
               "error", bd_err_text(err));
    }
    return rc;
}

/* ---- calls to the commit thread ---- */
typedef struct call {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done; /* under lock */
} call;

/* What travels: the op with the way back. */
typedef struct call_op {
    ps_op op;
    call *call;
} call_op;

static void on_called(ps_op *op)
{
    call *c = ((call_op *)(void *)op)->call;
    (void)pthread_mutex_lock(&c->lock);
    c->is_done = true;
    (void)pthread_cond_signal(&c->done);
    (void)pthread_mutex_unlock(&c->lock);
}

void ps_keeper_call(ps_shard *s, ps_op *op)
{
    call c = {.is_done = false};
    call_op travel = {.op = *op, .call = &c};
    (void)pthread_mutex_init(&c.lock, NULL);
    (void)pthread_cond_init(&c.done, NULL);
    travel.op.done = on_called;
    (void)pthread_mutex_lock(&s->room_lock);
    s->commit_wanted++;
    (void)pthread_cond_broadcast(&s->room);
    (void)pthread_mutex_unlock(&s->room_lock);
    ps_queue_post(&s->commit_queue, &travel.op);
    (void)pthread_mutex_lock(&c.lock);
    while (!c.is_done) {
        (void)pthread_cond_wait(&c.done, &c.lock);
    }
    (void)pthread_mutex_unlock(&c.lock);
    (void)pthread_mutex_lock(&s->room_lock);
    s->commit_wanted--;
    (void)pthread_mutex_unlock(&s->room_lock);
    (void)pthread_cond_destroy(&c.done);
    (void)pthread_mutex_destroy(&c.lock);
    void (*done)(ps_op *) = op->done;
    *op = travel.op;
    op->done = done;
}

/* ---- ops ---- */
/* The changed rows as of the step of op, in memory. */
static bd_status take_cut(ps_shard *s, const ps_op *op, ps_cut *cut, bd_err *err)
{
    ps_op take = {.kind = PS_OP_CUT, .cut = cut, .job = op->job};
    memcpy(take.name, op->name, sizeof take.name);
    ps_keeper_call(s, &take);
    if (take.rc != BD_OK) {
        *err = take.err;
    }
    return take.rc;
}

/* A checkpoint holds the rows as of record n. Tombstones that enough checkpoints hold may go. */
static void note_cut(ps_shard *s, uint64_t n)
{
    s->cuts[s->n_cuts++ % PS_MAX_KEEP] = n;
    if (s->n_cuts >= s->keep_tombstones) {
        ps_store_forget_dead(s->store, s->cuts[(s->n_cuts - s->keep_tombstones) % PS_MAX_KEEP]);
    }
}

/* The cut goes down and becomes the checkpoint. */
static bd_status write_checkpoint(ps_shard *s, ps_op *op, ps_cut *cut, bd_err *err)
{
    int64_t start = bd_mono_ns();
    uint64_t applied_n = cut->applied_n;
    bd_status rc = probe(s, err);
    if (rc == BD_OK) {
        rc = write_cut(s, cut, err);
    }
    if (rc == BD_OK) {
        rc = ps_store_flush(s->store, err);
    }
    if (rc == BD_OK) {
        rc = ps_ckpt_make(s, op->name, cut, op, err);
    }
    if (rc == BD_OK) {
        op->n_rows = cut->n_rows;
        ps_cut_deinit(cut);
        note_cut(s, applied_n);
        rc = cut_journal(s, applied_n, err);
        tell_room(s, false);
        (void)atomic_fetch_add(&s->checkpoints, 1);
        BD_LOG(INFO, "checkpoint made", "name", op->name, "step", op->job.last_step, "rows",
               op->n_rows, "fresh_bytes", op->n_fresh_bytes, "bytes", op->n_bytes, "ms",
               (bd_mono_ns() - start) / BD_NS_PER_MS);
    } else {
        (void)atomic_fetch_add(&s->disk_errors, 1);
        ps_cut_put_back(s, cut);
    }
    return rc;
}

/* What became of a cut that was answered before it was written. */
static bool failed_before(const ps_shard *s, const ps_op *op, bd_err *err)
{
    const ps_saved *w = &s->saved;
    if (w->rc == BD_OK || w->job.epoch != op->job.epoch || w->job.last_step != op->job.last_step ||
        strcmp(w->name, op->name) != 0) {
        return false;
    }
    *err = w->err;
    return true;
}

bool ps_shard_is_saving(ps_shard *s)
{
    return atomic_load(&s->saving);
}

/* PS_CKPT_CUT is answered as soon as the rows are held in memory: training goes on while they are
 * written. PS_CKPT_WAIT after it (this thread does one thing after the other) tells how that went.
 * A cut that a restart lost is not taken again at whatever step it is now: the other servers' parts
 * are of the step it was. */
static void checkpoint(ps_shard *s, ps_op *op)
{
    ps_cut cut = {0};
    bool same = false;
    bd_err *err = &op->err;
    bd_status rc = ps_shard_check_size(s, err);
    if (rc == BD_OK) {
        rc = ps_ckpt_same(s, op->name, op->job.epoch, op->job.last_step, op, &same, err);
    }
    if (rc == BD_OK && !same && failed_before(s, op, err)) {
        rc = err->code;
    }
    if (rc == BD_OK && !same && op->phase >= PS_CKPT_POLL) {
        rc = bd_err_set(err, BD_E_NOT_FOUND,
                        "checkpoint \"%s\": its cut is lost, the server was started since",
                        op->name);
    }
    if (rc == BD_OK && !same && ps_budget_limits(&s->budget)) {
        rc =
            ps_keeper_make_room(s, false, err); /* the cut is a copy in memory: it shall be small */
    }
    if (rc == BD_OK && !same) {
        rc = take_cut(s, op, &cut, err);
    }
    if (rc != BD_OK || same) {
        ps_op_finish(op, rc);
    } else if (op->phase == PS_CKPT_CUT) {
        ps_op later = {.job = op->job, .err = BD_ERR_INIT};
        memcpy(later.name, op->name, sizeof later.name);
        atomic_store(&s->saving, true);
        ps_op_finish(op, BD_OK);
        rc = write_checkpoint(s, &later, &cut, &later.err);
        s->saved = (ps_saved){.job = later.job, .rc = rc, .err = later.err};
        memcpy(s->saved.name, later.name, sizeof later.name);
        atomic_store(&s->saving, false);
    } else {
        ps_op_finish(op, write_checkpoint(s, op, &cut, err));
    }
}

/* The job that is open already: a repeated message. */
static bool same_job(ps_shard *s, const ps_op *op)
{
    (void)pthread_mutex_lock(&s->core_lock);
    const ps_job *j = ps_step_job(s->core);
    bool same = j->epoch == op->job.epoch && j->world == op->job.world &&
                j->consistency == op->job.consistency;
    (void)pthread_mutex_unlock(&s->core_lock);
    return same;
}

static bd_status check_open(ps_shard *s, const ps_op *op, bd_err *err)
{
    (void)pthread_mutex_lock(&s->core_lock);
    ps_job j = *ps_step_job(s->core);
    (void)pthread_mutex_unlock(&s->core_lock);
    bd_status rc = op->name[0] == '\0' ? ps_shard_check_size(s, err) : BD_OK;
    if (rc != BD_OK) {
        return rc;
    }
    if (atomic_load(&s->resized)) {
        j.epoch = s->old_epoch;
    }
    if (op->job.epoch < j.epoch) {
        return bd_err_set(err, BD_E_FENCED,
                          "job epoch %" PRIu64 " is older than the open one, %" PRIu64,
                          op->job.epoch, j.epoch);
    }
    if (op->job.epoch == j.epoch) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "job epoch %" PRIu64 " is open with world %u, not %u: take a new epoch",
                          j.epoch, j.world, op->job.world);
    }
    return BD_OK;
}

static void drop_swap(ps_swap *w)
{
    ps_tables_deinit(&w->tables);
    ps_store_close(w->store);
}

static bd_status open_job(ps_shard *s, ps_op *op, bd_err *err)
{
    ps_swap w = {0};
    ps_op swap = {.kind = PS_OP_SWAP, .job = op->job};
    (void)pthread_mutex_lock(&s->core_lock);
    bool lost = op->name[0] == '\0' && ps_step_is_lost(s->core, err);
    (void)pthread_mutex_unlock(&s->core_lock);
    if (lost) {
        return BD_E_LOST;
    }
    if (same_job(s, op)) {
        const ps_tables *ts = ps_shard_lock_tables(s);
        op->n_rows = ps_tables_n_rows(ts);
        ps_shard_unlock_tables(s);
        return BD_OK;
    }
    bd_status rc = check_open(s, op, err);
    if (rc == BD_OK && op->name[0] != '\0') {
        rc = ps_ckpt_load(s, op->name, op->restore_epoch, &w, err);
        swap.swap = &w;
    }
    if (rc == BD_OK && swap.swap != NULL) { /* the journal is about to name the new folder */
        rc = ps_dir_sync(s->dir, err);
    }
    if (rc != BD_OK) {
        drop_swap(&w);
        return rc;
    }
    ps_keeper_call(s, &swap);
    op->n_rows = swap.n_rows;
    rc = swap.rc;
    if (rc != BD_OK) {
        *err = swap.err;
    } else {
        BD_LOG(INFO, "job opened", "epoch", op->job.epoch, "world", op->job.world, "next_step",
               op->job.last_step + 1, "restored", op->name, "rows", op->n_rows);
    }
    if (rc == BD_OK && swap.swap != NULL) {
        ps_store *old = s->store;
        s->store = w.store;
        s->rows_no = w.rows_no;
        s->n_cuts = 0;
        w.store = old; /* closed below */
        atomic_store_explicit(&s->applied_n, ps_journal_next(s->journal).n - 1,
                              memory_order_release);
    }
    drop_swap(&w);
    if (swap.swap != NULL) {
        ps_ckpt_clean(s); /* the rows folder that lost */
    }
    return rc;
}

static void run_op(ps_shard *s, ps_op *op)
{
    bd_status rc = BD_OK;
    switch (op->kind) {
    case PS_OP_OPEN:
        rc = open_job(s, op, &op->err);
        break;
    case PS_OP_CHECKPOINT:
        checkpoint(s, op);
        return;
    case PS_OP_FLUSH:
        rc = write_back(s, INT64_MAX, &op->err);
        break;
    case PS_OP_HASH:
        rc = ps_scan_hash(s, &op->hash, &op->n_rows, &op->err);
        break;
    case PS_OP_PAGE:
        rc = ps_scan_page(s, op->scan, &op->err);
        break;
    default:
        BD_ASSERT(op->kind == PS_OP_DELETE);
        rc = ps_ckpt_delete(s, op->name, &op->err);
        break;
    }
    ps_op_finish(op, rc);
}

static void quit(ps_shard *s)
{
    ps_op stop = {.kind = PS_OP_QUIT};
    (void)pthread_mutex_lock(&s->room_lock);
    s->commit_wanted++; /* it must not wait for us any more */
    (void)pthread_cond_broadcast(&s->room);
    (void)pthread_mutex_unlock(&s->room_lock);
    ps_queue_post(&s->commit_queue, &stop);
    (void)pthread_join(s->commit_thread, NULL);
    s->commit_runs = false;
    s->last_write = true;
    s->stop_rc = write_back(
        s, s->is_unsafe ? INT64_MAX : bd_mono_ns() + STOP_WRITE_MS * BD_NS_PER_MS, &s->stop_err);
    if (s->stop_rc == BD_OK) {
        s->stop_rc = ps_safety_close(s, &s->stop_err);
    }
}

void *ps_keeper_main(void *shard)
{
    ps_shard *s = shard;
    int64_t not_before_ns = 0; /* after a failed write-back */
    int64_t poll_ms = ps_budget_limits(&s->budget) ? WATCH_MS : IDLE_POLL_MS;
    for (;;) {
        ps_op *op = ps_queue_pop(&s->keeper_queue, ps_reap_is_on(s) ? PS_REAP_MS : poll_ms);
        bd_status rc = BD_OK;
        bd_err err;
        if (op != NULL && op->kind == PS_OP_QUIT) {
            quit(s);
            return NULL;
        }
        ps_budget_watch(&s->budget);
        if (op != NULL) {
            run_op(s, op);
        } else if (bd_mono_ns() < not_before_ns) {
            continue;
        } else if (ps_journal_bytes(s->journal) > s->journal_cap_bytes) {
            rc = write_back(s, INT64_MAX, &err);
        } else if (has_to_make_room(s)) {
            rc = make_room(s, &err);
        } else if (ps_budget_limits(&s->budget)) {
            rc = ps_reap_poll(s, &err);
        }
        if (rc != BD_OK) {
            not_before_ns = bd_mono_ns() + RETRY_MS * BD_NS_PER_MS;
        }
    }
}
