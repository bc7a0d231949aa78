/* Numbers of a shard for Stats and the metrics page. */
#include "base/clock.h"

#include "ps_server/ps_shard_int.h"

void ps_shard_get_stats(ps_shard *s, ps_shard_stats *out)
{
    *out = (ps_shard_stats){0};
    const ps_tables *ts = ps_shard_lock_tables(s);
    out->n_rows = ps_tables_n_rows(ts);
    for (size_t i = 0; i < ts->n; i++) {
        uint64_t key = 0;
        const ps_rule_counts counts = ps_table_rule_counts(ts->items[i]);
        out->n_tables += ps_table_spec(ts->items[i])->hidden == PS_NOT_HIDDEN;
        out->filtered_gradients += counts.filtered;
        out->evicted_rows += counts.evicted;
        out->dirty_bytes += ps_table_dirty_bytes(ts->items[i]);
        out->bad_gradients += ps_table_n_bad(ts->items[i], &key);
    }
    out->rows_away = ps_tables_n_away(ts);
    ps_shard_unlock_tables(s);
    out->rows_fetched = ps_fetch_pool_rows(s->fetch);
    out->rows_moved_out = atomic_load(&s->budget.n_moved_out);
    out->memory_budget = s->budget.total_bytes;
    out->rows_bytes = atomic_load(&s->budget.used_bytes);
    (void)pthread_mutex_lock(&s->core_lock);
    out->last_step = ps_step_job(s->core)->last_step;
    out->job_epoch = ps_step_job(s->core)->epoch;
    out->staged_bytes = ps_step_staged_bytes(s->core);
    out->parked = ps_step_parked(s->core);
    out->lost = ps_step_is_lost(s->core, NULL);
    (void)pthread_mutex_unlock(&s->core_lock);
    out->journal_bytes = ps_journal_bytes(s->journal);
    out->journal_records = ps_journal_records(s->journal);
    out->steps_applied = atomic_load(&s->steps_applied);
    out->steps_aborted = atomic_load(&s->steps_aborted);
    out->pushes_applied = atomic_load(&s->pushes_applied);
    out->duplicates = atomic_load(&s->duplicates);
    out->keys_applied = atomic_load(&s->keys_applied);
    out->write_backs = atomic_load(&s->write_backs);
    out->rows_written = atomic_load(&s->rows_written);
    out->disk_errors = atomic_load(&s->disk_errors);
    out->checkpoints = atomic_load(&s->checkpoints);
    out->contexts = atomic_load(&s->contexts);
    out->clients_expired = atomic_load(&s->clients_expired);
    out->group_syncs = atomic_load(&s->group_syncs);
    out->generation = ps_journal_next(s->journal).generation;
    out->replayed_records = s->replayed_records;
    out->recovery_s = (double)s->recovery_ns / (double)BD_NS_PER_S;
    out->read_only = ps_journal_is_broken(s->journal, NULL);
}

void ps_shard_note_contexts(ps_shard *s, uint64_t contexts, uint64_t clients_expired)
{
    atomic_store(&s->contexts, contexts);
    atomic_store(&s->clients_expired, clients_expired);
}
