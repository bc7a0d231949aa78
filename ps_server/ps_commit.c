/* The commit thread: the one place where rows change. Record, journal, apply, answer. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_reap.h"
#include "ps_server/ps_shard_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint32_t *guesses_of(const ps_grads *g)
{
    return g->found == NULL ? NULL : (const uint32_t *)(const void *)g->found->bytes;
}

/* Appends the sections of one part to the record. */
static bd_status add_sections(ps_shard *s, ps_record *rec, const ps_part *p, bd_err *err)
{
    if (!bd_grow(&s->sections, &s->cap_sections, rec->n_sections + p->n_tables,
                 sizeof *s->sections)) {
        return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory", p->step);
    }
    for (size_t i = 0; i < p->n_tables; i++) {
        const ps_grads *g = &p->tables[i];
        s->sections[rec->n_sections++] = (ps_section){.rank = p->rank,
                                                      .part = p->part,
                                                      .table_id = g->table_id,
                                                      .dim = g->dim,
                                                      .n_keys = g->n_keys,
                                                      .keys = g->keys,
                                                      .values = g->grads,
                                                      .bags = g->bags,
                                                      .guesses = guesses_of(g)};
    }
    rec->sections = s->sections;
    return BD_OK;
}

/* A journal of twice its cap holds us until the keeper has cut it, unless it waits for us. */
static void wait_for_room(ps_shard *s)
{
    size_t bytes = ps_journal_bytes(s->journal);
    if (bytes > s->journal_cap_bytes) {
        ps_queue_wake(&s->keeper_queue);
    }
    if (bytes <= 2 * s->journal_cap_bytes) {
        return;
    }
    BD_LOG(WARN, "the journal is full: waiting until rows are written back", "bytes", bytes);
    (void)pthread_mutex_lock(&s->room_lock);
    while (ps_journal_bytes(s->journal) > 2 * s->journal_cap_bytes && s->commit_wanted == 0 &&
           !s->disk_full) {
        (void)pthread_cond_wait(&s->room, &s->room_lock);
    }
    (void)pthread_mutex_unlock(&s->room_lock);
}

/* Waits until the keeper has written changed rows back, so that they can leave memory: those that are
 * not in use, or all. False: it could not, or it waits for us. */
static bool wait_for_memory(ps_shard *s, ps_want want)
{
    (void)pthread_mutex_lock(&s->room_lock);
    uint64_t round = s->n_rounds;
    s->want_memory = want;
    ps_queue_wake(&s->keeper_queue);
    while (s->n_rounds == round && s->commit_wanted == 0) {
        (void)pthread_cond_wait(&s->room, &s->room_lock);
    }
    bool better = s->n_rounds != round && !s->disk_full;
    (void)pthread_mutex_unlock(&s->room_lock);
    return better;
}

static bd_status plan_once(ps_shard *s, const ps_record *rec, bd_err *err)
{
    bd_status rc = ps_plan_build(s->plan, rec, &s->tables, false, err);
    return rc == BD_OK ? ps_reap_plan(s, rec, err) : rc;
}

/* The plan with its rows in memory. When every changed row has been written and stripes have shared
 * what memory they have, and there still is no room, the step is too large. */
static bd_status plan(ps_shard *s, const ps_record *rec, bd_err *err)
{
    bd_status rc = plan_once(s, rec, err);
    bool goes_on = true;
    for (int i = 0; i < 4 && rc == BD_E_EXHAUSTED && goes_on; i++) {
        goes_on = wait_for_memory(s, i == 0 ? PS_WANT_COLD : PS_WANT_ALL);
        rc = plan_once(s, rec, err);
        /* What a table lacked is known only when those before it have theirs. */
        for (size_t k = 0; k <= rec->n_sections && rc == BD_E_EXHAUSTED; k++) {
            if (!ps_tables_share(&s->tables)) {
                break;
            }
            rc = plan_once(s, rec, err);
        }
    }
    return rc;
}

/* Rows that cannot leave because they have changed go down before anybody has to wait. */
static void ask_for_room(ps_shard *s)
{
    const ps_budget *b = &s->budget;
    if (ps_budget_limits(b) &&
        (atomic_load_explicit(&b->blocked_bytes, memory_order_relaxed) > b->rows_bytes / 64 ||
         atomic_load_explicit(&b->dirty_bytes, memory_order_relaxed) > b->rows_bytes / 2)) {
        ps_queue_wake(&s->keeper_queue);
    }
}

/* Journal first, then rows. On failure nothing has changed. sync: on the disk before the rows
 * change; else the caller sees to it, when a table wants it. */
static bd_status write_and_apply(ps_shard *s, ps_record *rec, const ps_fact *facts, size_t n_facts,
                                 bool sync, bd_err *err)
{
    rec->seq = ps_journal_next(s->journal);
    int64_t now_ns = s->wall == NULL ? bd_wall_ns() : bd_now_ns(s->wall);
    rec->time_s = (uint32_t)(now_ns / BD_NS_PER_S);
    bd_status rc = plan(s, rec, err);
    if (rc == BD_OK) {
        rc = ps_plan_journal(s->plan, rec, &s->tables, err);
    }
    for (size_t i = 0; i < rec->n_sections; i++) {
        rec->sections[i].time_s = rec->time_s;
    }
    if (rc == BD_OK) {
        rc = ps_safety_append(s, rec, facts, n_facts, sync, err);
    }
    if (rc == BD_E_IO || rc == BD_E_CORRUPT) {
        (void)atomic_fetch_add(&s->disk_errors, 1);
        BD_LOG(ERROR, "the journal cannot be written: check the disk; nothing was applied", "error",
               bd_err_text(err));
    }
    if (rc != BD_OK) {
        ps_plan_drop(s->plan);
        return rc;
    }
    ps_plan_apply(s->plan, rec);
    ask_for_room(s);
    atomic_store_explicit(&s->applied_n, rec->seq.n, memory_order_release);
    for (size_t i = 0; i < rec->n_sections; i++) {
        bool values = rec->sections[i].kind == PS_SECTION_VALUES;
        (void)atomic_fetch_add(&s->keys_applied, values ? rec->sections[i].n_keys : 0);
    }
    (void)bd_fault_hit("ps.apply.after");
    return BD_OK;
}

/* ---- steps ---- */
static bd_status apply_step(ps_shard *s, const ps_batch *b, ps_job job, bd_err *err)
{
    uint8_t bytes[32];
    ps_record rec = {.kind = PS_RECORD_STEP,
                     .job_epoch = b->job_epoch,
                     .step = b->step,
                     .lr_scale = b->lr_scale};
    bd_status rc = BD_OK;
    job.last_step = b->step;
    job.last_aborted = b->aborted ? b->step : job.last_aborted;
    ps_job_pack(&job, bytes);
    ps_fact fact = {'M', "job", bytes, sizeof bytes};
    if (b->aborted) {
        rc = ps_journal_append(s->journal, NULL, &fact, 1, false, err);
        (void)atomic_fetch_add(&s->steps_aborted, rc == BD_OK ? 1u : 0u);
        return rc;
    }
    for (const ps_part *p = b->parts; p != NULL && rc == BD_OK; p = p->next) {
        rc = add_sections(s, &rec, p, err);
    }
    if (rc == BD_OK) {
        rc = write_and_apply(s, &rec, &fact, 1, ps_safety_wants_sync(s, &rec), err);
    }
    (void)atomic_fetch_add(&s->steps_applied, rc == BD_OK ? 1u : 0u);
    return rc;
}

static void close_step(ps_shard *s, ps_op *op)
{
    ps_effects fx = {0};
    bd_err err = BD_ERR_INIT;
    (void)pthread_mutex_lock(&s->core_lock);
    ps_job job = *ps_step_job(s->core);
    (void)pthread_mutex_unlock(&s->core_lock);
    if (job.epoch == op->batch.job_epoch) { /* else a new job has been opened since */
        bd_status rc = apply_step(s, &op->batch, job, &err);
        if (rc != BD_OK) {
            (void)bd_err_wrap(&err, "step %" PRIu64, op->batch.step);
        }
        (void)bd_fault_hit("ps.commit.reply");
        (void)pthread_mutex_lock(&s->core_lock);
        ps_step_closed(s->core, rc, &err, &fx);
        (void)pthread_mutex_unlock(&s->core_lock);
    }
    ps_part_free_list(op->batch.parts);
    bd_free(op);
    ps_shard_run_effects(s, &fx);
    ps_safety_tell_broken(s);
    wait_for_room(s);
}

/* ---- async pushes ---- */
/* Steps of autograd contexts belong to no rank. */
static bool is_ranked(const ps_shard *s, const ps_part *p)
{
    return ps_step_job(s->core)->consistency == PS_BOUNDED &&
           (p->client_id & PS_DEDUP_CONTEXT) == 0;
}

/* rank: gets the fact of a bounded job's rank; *ranked false: there is none. */
static bd_status mark_and_pack(ps_shard *s, const ps_part *p, bd_buf **state,
                               uint8_t rank[PS_BOUND_BYTES], bool *ranked, bd_err *err)
{
    (void)pthread_mutex_lock(&s->core_lock);
    bd_status rc = ps_step_check_epoch(s->core, p->job_epoch, err);
    *ranked = rc == BD_OK && is_ranked(s, p);
    if (*ranked) {
        rc = ps_bound_check(ps_step_bound(s->core), p, err);
    }
    if (rc == BD_OK && *ranked) {
        ps_bound_pack_next(ps_step_bound(s->core), p, rank);
    }
    if (rc == BD_OK) {
        rc = ps_dedup_mark(s->dedup, p->client_id, p->sequence, p->part, p->n_parts);
        *state = rc == BD_OK ? ps_dedup_pack(s->dedup, p->client_id) : NULL;
        if (rc == BD_OK && *state == NULL) {
            ps_dedup_unmark(s->dedup, p->client_id, p->sequence, p->part, p->n_parts);
            rc = BD_E_NOMEM;
        }
        if (rc != BD_OK) {
            (void)bd_err_set(err, rc, "push of client %" PRIu64 ": no memory", p->client_id);
        }
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    return rc;
}

static bd_status apply_push(ps_shard *s, const ps_part *p, bool *wants_sync, bd_err *err)
{
    char name[32], rank_name[32];
    uint8_t rank[PS_BOUND_BYTES];
    bool ranked = false;
    ps_effects fx = {0};
    bd_buf *state = NULL;
    ps_record rec = {.kind = PS_RECORD_PUSH,
                     .job_epoch = p->job_epoch,
                     .step = p->step,
                     .lr_scale = p->lr_scale,
                     .client_id = p->client_id,
                     .sequence = p->sequence,
                     .part = p->part,
                     .n_parts = p->n_parts};
    (void)snprintf(name, sizeof name, "client/%016" PRIx64, p->client_id);
    bd_status rc = mark_and_pack(s, p, &state, rank, &ranked, err);
    if (rc != BD_OK) {
        return rc;
    }
    ps_rank_fact(p->rank, rank_name);
    const ps_fact facts[2] = {{'M', name, state->bytes, state->n_bytes},
                              {'M', rank_name, rank, sizeof rank}};
    rc = add_sections(s, &rec, p, err);
    *wants_sync = rc == BD_OK && ps_safety_wants_sync(s, &rec);
    if (rc == BD_OK) {
        rc = write_and_apply(s, &rec, facts, ranked ? 2 : 1, false, err);
    }
    (void)pthread_mutex_lock(&s->core_lock);
    if (rc != BD_OK) {
        ps_dedup_unmark(s->dedup, p->client_id, p->sequence, p->part, p->n_parts);
    } else if (ranked) {
        ps_step_applied(s->core, p, bd_mono_ns() / BD_NS_PER_MS, &fx);
    }
    (void)pthread_mutex_unlock(&s->core_lock);
    bd_buf_unref(state);
    ps_shard_run_effects(s, &fx);
    return rc;
}

/* Takes the push out of the list of those in flight. */
static void untrack(ps_shard *s, const ps_op *op)
{
    for (ps_op **link = &s->in_flight; *link != NULL; link = &(*link)->next) {
        if ((*link)->same == op) {
            ps_op *t = *link;
            *link = t->next;
            s->n_in_flight--;
            s->in_flight_bytes -= op->part->n_bytes;
            bd_free(t);
            return;
        }
    }
}

/* Answers a push and its repeats. */
static void end_push(ps_shard *s, ps_op *op, bd_status rc)
{
    (void)atomic_fetch_add(&s->pushes_applied, rc == BD_OK ? 1u : 0u);
    (void)bd_fault_hit("ps.commit.reply");
    (void)pthread_mutex_lock(&s->core_lock);
    untrack(s, op);
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_part_free(op->part);
    op->part = NULL;
    bd_err err = op->err;
    for (ps_op *o = op, *next; o != NULL; o = next) { /* it, and its repeats */
        next = o->same;
        o->err = err;
        ps_op_finish(o, rc);
    }
}

/* One sync for all pushes that are applied and wait for it. A failure is for good (ps_journal.h):
 * their rows are ahead of the disk, and what they were is found out by the next start. */
static void sync_pushes(ps_shard *s)
{
    bd_err err = BD_ERR_INIT;
    if (s->unsynced == NULL) {
        return;
    }
    bd_status rc = ps_journal_sync(s->journal, &err);
    if (rc == BD_OK) {
        (void)atomic_fetch_add(&s->group_syncs, 1);
    } else {
        (void)atomic_fetch_add(&s->disk_errors, 1);
        BD_LOG(ERROR, "the journal cannot be synced: pushes are refused until the next start",
               "error", bd_err_text(&err));
    }
    ps_op *op = s->unsynced;
    s->unsynced = NULL;
    s->unsynced_end = &s->unsynced;
    s->n_unsynced = 0;
    for (ps_op *next; op != NULL; op = next) {
        next = op->next;
        op->err = err;
        end_push(s, op, rc);
    }
    ps_safety_tell_broken(s);
}

static void push_async(ps_shard *s, ps_op *op)
{
    bool wants_sync = false;
    bd_status rc = apply_push(s, op->part, &wants_sync, &op->err);
    if (rc == BD_OK && wants_sync) {
        op->next = NULL;
        *s->unsynced_end = op;
        s->unsynced_end = &op->next;
        s->n_unsynced++;
    } else {
        end_push(s, op, rc);
    }
    if (s->n_unsynced >= PS_MAX_IN_FLIGHT / 2) {
        sync_pushes(s);
    }
    wait_for_room(s);
}

/* ---- tables and rows by hand ---- */
static bd_status add_table(ps_shard *s, const ps_spec *spec, bd_err *err)
{
    char name[32];
    (void)snprintf(name, sizeof name, "table/%08x", spec->id);
    bd_buf *packed = ps_spec_pack(spec);
    if (packed == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory", spec->name);
    }
    ps_fact fact = {'M', name, packed->bytes, packed->n_bytes};
    (void)pthread_rwlock_wrlock(&s->tables_lock);
    bd_status rc = ps_tables_add(&s->tables, spec, err);
    (void)pthread_rwlock_unlock(&s->tables_lock);
    if (rc == BD_OK) {
        rc = ps_journal_append(s->journal, NULL, &fact, 1, true, err);
        if (rc != BD_OK) { /* it is the last one, and nobody knows its id yet */
            (void)pthread_rwlock_wrlock(&s->tables_lock);
            ps_tables_drop_last(&s->tables);
            (void)pthread_rwlock_unlock(&s->tables_lock);
        }
    }
    bd_buf_unref(packed);
    return rc;
}

static void create_table(ps_shard *s, ps_op *op)
{
    bd_status rc = ps_shard_check_size(s, &op->err);
    if (rc != BD_OK) {
        ps_op_finish(op, rc);
        return;
    }
    ps_table *t = ps_tables_find(&s->tables, op->spec.id);
    op->existed = t != NULL;
    rc = t != NULL ? ps_spec_same(ps_table_spec(t), &op->spec, &op->err)
                   : add_table(s, &op->spec, &op->err);
    if (rc == BD_OK && !op->existed) {
        BD_LOG(INFO, "table created", "table", op->spec.name, "dim", op->spec.dim, "optimizer",
               op->spec.opt->name);
    }
    ps_op_finish(op, rc);
}

static bd_status check_lost(ps_shard *s, bd_err *err)
{
    (void)pthread_mutex_lock(&s->core_lock);
    bool lost = ps_step_is_lost(s->core, err);
    (void)pthread_mutex_unlock(&s->core_lock);
    return lost ? BD_E_LOST : BD_OK;
}

static void assign(ps_shard *s, ps_op *op)
{
    ps_record rec = {.kind = PS_RECORD_ASSIGN, .lr_scale = 1.0};
    bd_status rc = check_lost(s, &op->err);
    if (rc == BD_OK) {
        rc = add_sections(s, &rec, op->part, &op->err);
    }
    ps_table *t = ps_tables_find(&s->tables, op->part->tables[0].table_id);
    if (rc == BD_OK && t == NULL) {
        rc = bd_err_set(&op->err, BD_E_NOT_FOUND, "no table with id %u",
                        op->part->tables[0].table_id);
    }
    if (rc == BD_OK) {
        if (op->assign_state != NULL) {
            s->sections[0].state = op->assign_state;
            s->sections[0].state_elems = (uint32_t)ps_table_spec(t)->state_elems;
        }
        rc = write_and_apply(s, &rec, NULL, 0, ps_safety_wants_sync(s, &rec), &op->err);
    }
    ps_part_free(op->part);
    op->part = NULL;
    ps_op_finish(op, rc);
    wait_for_room(s);
}

/* ---- for the keeper ---- */
static void cut(ps_shard *s, ps_op *op)
{
    if (check_lost(s, &op->err) != BD_OK) {
        ps_op_finish(op, op->err.code);
        return;
    }
    (void)pthread_mutex_lock(&s->core_lock);
    op->cut->job = *ps_step_job(s->core);
    (void)pthread_mutex_unlock(&s->core_lock);
    const ps_job *have = &op->cut->job;
    if (have->consistency == PS_SYNC && op->job.epoch != 0 &&
        (have->epoch != op->job.epoch || have->last_step != op->job.last_step)) {
        (void)bd_err_set(&op->err, have->epoch > op->job.epoch ? BD_E_FENCED : BD_E_STATE,
                         "checkpoint \"%s\" of job epoch %" PRIu64 " step %" PRIu64
                         ", but the server is at job epoch %" PRIu64 " step %" PRIu64,
                         op->name, op->job.epoch, op->job.last_step, have->epoch, have->last_step);
        ps_op_finish(op, op->err.code);
        return;
    }
    if (have->consistency != PS_SYNC && have->epoch == op->job.epoch) {
        op->cut->job.last_step = op->job.last_step; /* steps are the clients': they know which */
    }
    ps_op_finish(op, ps_cut_take(s, op->cut, &op->err));
}

static bd_status swap_facts(ps_shard *s, const ps_swap *w, const ps_job *job, bd_err *err)
{
    uint8_t job_bytes[32], no[8], server[8];
    size_t n = 0, n_tables = w == NULL ? 0 : w->tables.n;
    bd_status rc = BD_OK;
    char(*names)[32] = bd_calloc(n_tables + 1, sizeof *names);
    bd_buf **packed = bd_calloc(n_tables + 1, sizeof *packed);
    ps_fact *facts = bd_calloc(n_tables + 4, sizeof *facts);
    if (names == NULL || packed == NULL || facts == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "open job: no memory");
        goto out;
    }
    ps_job_pack(job, job_bytes);
    facts[n++] = (ps_fact){'M', "job", job_bytes, sizeof job_bytes};
    if (w == NULL) {
        rc = ps_journal_append(s->journal, NULL, facts, n, true, err);
        goto out;
    }
    ps_put_le64(no, w->rows_no);
    facts[n++] = (ps_fact){'M', "rows", no, sizeof no};
    ps_put_le32(server, s->index); /* the rows are this cluster's from now on */
    ps_put_le32(server + 4, s->n_servers);
    facts[n++] = (ps_fact){'M', "server", server, sizeof server};
    facts[n++] = (ps_fact){'M', PS_UNSAFE, NULL, 0};
    for (size_t i = 0; i < n_tables; i++) {
        const ps_spec *spec = ps_table_spec(w->tables.items[i]);
        if (spec->hidden != PS_NOT_HIDDEN) {
            continue;
        }
        packed[i] = ps_spec_pack(spec);
        if (packed[i] == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "open job: no memory");
            goto out;
        }
        (void)snprintf(names[i], sizeof *names, "table/%08x", spec->id);
        facts[n++] = (ps_fact){'M', names[i], packed[i]->bytes, packed[i]->n_bytes};
    }
    rc = ps_journal_reset(s->journal, w->next_n - 1, facts, n, err);
out:
    for (size_t i = 0; packed != NULL && i < n_tables; i++) {
        bd_buf_unref(packed[i]);
    }
    bd_free(names);
    bd_free(packed);
    bd_free(facts);
    return rc;
}

/* Opens the job; with op->swap also replaces tables and store. The journal's write is the commit
 * point: before it nothing has changed, after it nothing can fail. */
static void swap(ps_shard *s, ps_op *op)
{
    ps_effects fx = {0};
    ps_swap *w = op->swap;
    (void)pthread_mutex_lock(&s->core_lock);
    ps_job have = *ps_step_job(s->core);
    (void)pthread_mutex_unlock(&s->core_lock);
    bd_status rc = BD_OK;
    if (op->job.epoch < have.epoch) {
        rc = bd_err_set(&op->err, BD_E_FENCED,
                        "job epoch %" PRIu64 " is older than the open one, %" PRIu64, op->job.epoch,
                        have.epoch);
    } else {
        rc = swap_facts(s, w, &op->job, &op->err);
    }
    if (rc == BD_OK && w != NULL) {
        ps_tables old = s->tables;
        (void)pthread_rwlock_wrlock(&s->tables_lock);
        s->tables = w->tables;
        ps_fetch_pool_set_store(s->fetch, w->store);
        (void)pthread_rwlock_unlock(&s->tables_lock);
        w->tables = old;
        atomic_store(&s->resized, false);
        atomic_store_explicit(&s->applied_n, ps_journal_next(s->journal).n - 1,
                              memory_order_release);
    }
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&s->core_lock);
        if (w != NULL) { /* the rows are the checkpoint's, and all of them are on the disk */
            ps_step_set_lost(s->core, NULL);
            s->lost[0] = '\0';
            s->is_unsafe = false;
        }
        rc = ps_step_open(s->core, &op->job, bd_mono_ns() / BD_NS_PER_MS, &fx, &op->err);
        ps_dedup_clear(s->dedup);
        (void)pthread_mutex_unlock(&s->core_lock);
    }
    op->n_rows = ps_tables_n_rows(&s->tables);
    ps_shard_run_effects(s, &fx);
    ps_op_finish(op, rc);
}

void *ps_commit_main(void *shard)
{
    ps_shard *s = shard;
    for (;;) {
        /* Pushes that came while the last sync ran share the next one. */
        ps_op *op = ps_queue_pop(&s->commit_queue, s->unsynced == NULL ? -1 : 0);
        if (op == NULL || op->kind != PS_OP_PUSH) {
            sync_pushes(s);
        }
        if (op == NULL) {
            continue; /* a wake without an op, or none for now */
        }
        switch (op->kind) {
        case PS_OP_CLOSE:
            close_step(s, op);
            break;
        case PS_OP_PUSH:
            push_async(s, op);
            break;
        case PS_OP_TABLE:
            create_table(s, op);
            break;
        case PS_OP_ASSIGN:
            assign(s, op);
            break;
        case PS_OP_CUT:
            cut(s, op);
            break;
        case PS_OP_SWAP:
            swap(s, op);
            break;
        default:
            BD_ASSERT(op->kind == PS_OP_QUIT);
            return NULL;
        }
    }
}
