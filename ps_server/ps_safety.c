/* What each durability promises: which sections of a record are journaled, and what a start knows
 * of changes that were not. */
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard_int.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ps_durability durability_of(const ps_shard *s, uint32_t table_id)
{
    const ps_table *t = ps_tables_find(&s->tables, table_id);
    return t == NULL ? PS_DURABILITY_JOURNAL : ps_table_spec(t)->durability;
}

bool ps_safety_wants_sync(const ps_shard *s, const ps_record *rec)
{
    for (size_t i = 0; i < rec->n_sections; i++) {
        if (durability_of(s, rec->sections[i].table_id) == PS_DURABILITY_SYNC) {
            return true;
        }
    }
    return false;
}

/* Copies the sections that are journaled. */
static bd_status choose_sections(ps_shard *s, const ps_record *rec, ps_record *out, bd_err *err)
{
    if (!bd_grow(&s->logged, &s->cap_logged, rec->n_sections + 1, sizeof *s->logged)) {
        return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory", rec->step);
    }
    *out = *rec;
    out->n_sections = 0;
    out->sections = s->logged;
    for (size_t i = 0; i < rec->n_sections; i++) {
        if (durability_of(s, rec->sections[i].table_id) != PS_DURABILITY_CHECKPOINT) {
            s->logged[out->n_sections++] = rec->sections[i];
        }
    }
    return BD_OK;
}

/* Says on the disk, once, that a crash loses rows from here on. */
static bd_status set_unsafe(ps_shard *s, uint64_t job_epoch, bd_err *err)
{
    uint8_t epoch[8];
    if (s->is_unsafe) {
        return BD_OK;
    }
    ps_put_le64(epoch, job_epoch);
    ps_fact f = {'M', PS_UNSAFE, epoch, sizeof epoch};
    bd_status rc = ps_journal_put(s->journal, &f, 1, true, err);
    s->is_unsafe = rc == BD_OK;
    return rc;
}

bd_status ps_safety_append(ps_shard *s, ps_record *rec, const ps_fact *facts, size_t n_facts,
                           bool sync, bd_err *err)
{
    ps_record logged = {0};
    bd_status rc = choose_sections(s, rec, &logged, err);
    bool all = logged.n_sections == rec->n_sections;
    if (rc == BD_OK && !all) {
        rc = set_unsafe(s, rec->job_epoch, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    rec->seq = ps_journal_next(s->journal); /* a fact may have taken the one before */
    logged.seq = rec->seq;
    if (!all && logged.n_sections == 0) { /* the facts follow with the orderly stop */
        if (ps_journal_is_broken(s->journal, err)) {
            return BD_E_IO;
        }
        (void)ps_journal_skip(s->journal);
        return BD_OK;
    }
    return ps_journal_append(s->journal, &logged, facts, n_facts, sync, err);
}

void ps_safety_tell_broken(ps_shard *s)
{
    ps_effects fx = {0};
    bd_err err;
    if (!ps_journal_is_broken(s->journal, &err)) {
        return;
    }
    (void)pthread_mutex_lock(&s->core_lock);
    ps_step_set_broken(s->core, &err, &fx);
    (void)pthread_mutex_unlock(&s->core_lock);
    ps_shard_run_effects(s, &fx);
}

/* ---- start ---- */
bd_status ps_safety_check_rows(ps_shard *s, const char *path, bd_err *err)
{
    char current[PATH_MAX];
    (void)snprintf(current, sizeof current, "%s/CURRENT", path);
    if (!s->rows_known || atomic_load(&s->resized) || access(current, F_OK) == 0) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_CORRUPT, "the rows are missing: there is no %s", current);
}

bd_status ps_safety_note_rows(ps_shard *s, bd_err *err)
{
    uint8_t no[8];
    ps_put_le64(no, s->rows_no);
    ps_fact f = {'M', "rows", no, sizeof no};
    if (s->rows_known) {
        return BD_OK;
    }
    bd_status rc = ps_dir_sync(s->dir, err); /* its entries: the journal's folder and the rows' */
    return rc == BD_OK ? ps_journal_put(s->journal, &f, 1, true, err) : rc;
}

/* Tables like those of `ts`, without rows. */
static bd_status empty_tables(const ps_tables *ts, ps_tables *out, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < ts->n && rc == BD_OK; i++) {
        const ps_spec *spec = ps_table_spec(ts->items[i]);
        rc = spec->hidden == PS_NOT_HIDDEN ? ps_tables_add(out, spec, err) : BD_OK;
    }
    return rc;
}

/* rows-<n> becomes damaged-rows-<n>, which nothing removes. */
static bd_status put_aside(const ps_shard *s, bd_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    (void)snprintf(from, sizeof from, "%s/rows-%" PRIu64, s->dir, s->rows_no);
    (void)snprintf(to, sizeof to, "%s/damaged-rows-%" PRIu64, s->dir, s->rows_no);
    if (rename(from, to) != 0 && errno != ENOENT) {
        return bd_err_errno(err, BD_E_IO, errno, "rename %s to %s", from, to);
    }
    return BD_OK;
}

bd_status ps_safety_drop_rows(ps_shard *s, bd_err *err)
{
    ps_tables empty = {.budget = &s->budget};
    BD_LOG(ERROR,
           "salvage: the stored rows are damaged and are given up; their folder is kept under "
           "another name",
           "rows", s->rows_no, "error", bd_err_text(err));
    bd_status rc = empty_tables(&s->tables, &empty, err);
    if (rc != BD_OK) {
        ps_tables_deinit(&empty);
        return rc;
    }
    ps_tables_deinit(&s->tables);
    s->tables = empty;
    ps_fetch_pool_set_store(s->fetch, NULL);
    ps_store_close(s->store);
    s->store = NULL;
    rc = put_aside(s, err);
    if (rc != BD_OK) {
        return rc;
    }
    s->rows_no++;
    s->rows_known = false; /* the new number is to be noted */
    s->rows_dropped = true;
    char *path = bd_strfmt("%s/rows-%" PRIu64, s->dir, s->rows_no);
    rc = path == NULL ? bd_err_set(err, BD_E_NOMEM, "open: no memory")
                      : ps_store_open(path, &s->budget, &s->store, err);
    bd_free(path);
    return rc;
}

static const char *what_was_lost(const ps_shard *s)
{
    if (s->rows_dropped) {
        return "that were damaged on the disk";
    }
    return ps_journal_has_damage(s->journal) ? "with the damaged part of its journal"
                                             : "of tables with durability checkpoint when it died";
}

bd_status ps_safety_load(ps_shard *s, bd_err *err)
{
    uint8_t *val = NULL;
    size_t n = 0;
    bd_status rc = ps_journal_get(s->journal, 'M', PS_UNSAFE, &val, &n, err);
    bool damaged = s->rows_dropped || ps_journal_has_damage(s->journal);
    if (rc == BD_OK && val == NULL && damaged) {
        uint8_t epoch[8] = {0};
        ps_fact f = {'M', PS_UNSAFE, epoch, sizeof epoch};
        rc = ps_journal_put(s->journal, &f, 1, true, err);
    }
    if (rc == BD_OK && (val != NULL || damaged)) {
        s->is_unsafe = true;
        (void)snprintf(s->lost, sizeof s->lost,
                       "server %u lost rows %s: resume the job from a checkpoint, or start with "
                       "empty data folders",
                       s->index, what_was_lost(s));
        ps_step_set_lost(s->core, s->lost);
        BD_LOG(ERROR, "rows were lost: the job must be resumed from a checkpoint", "why", s->lost);
    }
    bd_free(val);
    return rc;
}

/* ---- bounded ---- */
void ps_rank_fact(uint32_t rank, char out[32])
{
    (void)snprintf(out, 32, "rank/%08x", rank);
}

static bd_status load_rank(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                           bd_err *err)
{
    ps_shard *s = user;
    return ps_bound_load(ps_step_bound(s->core),
                         (uint32_t)strtoul(name + strlen("rank/"), NULL, 16),
                         ps_step_job(s->core)->epoch, val, n_bytes, err);
}

bd_status ps_safety_load_ranks(ps_shard *s, bd_err *err)
{
    bd_status rc = ps_journal_each(s->journal, 'M', "rank/", load_rank, s, err);
    ps_step_recount(s->core);
    return rc;
}

static bd_status put_rank(ps_shard *s, uint32_t rank, bd_err *err)
{
    char name[32];
    uint8_t bytes[PS_BOUND_BYTES];
    ps_rank_fact(rank, name);
    ps_bound_pack(ps_step_bound(s->core), rank, ps_step_job(s->core)->epoch, bytes);
    ps_fact f = {'M', name, bytes, sizeof bytes};
    return ps_journal_put(s->journal, &f, 1, false, err);
}

/* ---- stop ---- */
static bd_status put_client(ps_shard *s, uint64_t client, bd_err *err)
{
    char name[32];
    bd_buf *state = ps_dedup_pack(s->dedup, client);
    if (state == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "stop: no memory");
    }
    (void)snprintf(name, sizeof name, "client/%016" PRIx64, client);
    ps_fact f = {'M', name, state->bytes, state->n_bytes};
    bd_status rc = ps_journal_put(s->journal, &f, 1, false, err);
    bd_buf_unref(state);
    return rc;
}

bd_status ps_safety_close(ps_shard *s, bd_err *err)
{
    uint8_t job[32];
    uint64_t client = 0;
    bd_status rc = BD_OK;
    if (!s->is_unsafe || s->lost[0] != '\0') {
        return BD_OK;
    }
    for (size_t i = 0; rc == BD_OK && ps_dedup_at(s->dedup, i, &client); i++) {
        rc = put_client(s, client, err);
    }
    for (uint32_t r = 0; rc == BD_OK && r < ps_step_bound(s->core)->world; r++) {
        rc = put_rank(s, r, err);
    }
    ps_job_pack(ps_step_job(s->core), job);
    ps_fact facts[2] = {{'M', "job", job, sizeof job}, {'M', PS_UNSAFE, NULL, 0}};
    return rc == BD_OK ? ps_journal_put(s->journal, facts, 2, true, err) : rc;
}
