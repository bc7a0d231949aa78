/* ps_server/ps_metrics.h - the numbers of a server: one list, for the Stats RPC and the metrics
 * page.
 *
 * Layer:   ps_server. Threads: any.
 */
#ifndef PS_METRICS_H
#define PS_METRICS_H

#include "base/metrics.h"

#include "ps_server/ps_shard.h"

/* field of ps_shard_stats, kind, name, unit, help */
#define PS_METRICS_MAP(X)                                                                         \
    X(n_rows, GAUGE, "braid_ps_rows", "rows", "rows of all tables, in memory and on the disk")    \
    X(rows_away, GAUGE, "braid_ps_rows_away", "rows",                                             \
      "on the disk only, evicted ones that are not merged yet too")                               \
    X(rows_fetched, COUNTER, "braid_ps_rows_fetched_total", "rows",                               \
      "keys looked for on the disk because they were not in memory")                              \
    X(rows_moved_out, COUNTER, "braid_ps_rows_moved_out_total", "rows",                           \
      "rows that left memory for others")                                                         \
    X(memory_budget, GAUGE, "braid_ps_memory_budget_bytes", "bytes",                              \
      "memory the server may use; 0: no limit")                                                   \
    X(rows_bytes, GAUGE, "braid_ps_rows_bytes", "bytes",                                          \
      "rows in memory and their index; 0 without memory_budget")                                  \
    X(n_tables, GAUGE, "braid_ps_tables", "tables", "tables of this server")                      \
    X(job_epoch, GAUGE, "braid_ps_job_epoch", "epoch", "epoch of the open job; 0: none")          \
    X(last_step, GAUGE, "braid_ps_last_step", "step", "last finished step of the open job")       \
    X(steps_applied, COUNTER, "braid_ps_steps_total", "steps", "sync steps applied")              \
    X(steps_aborted, COUNTER, "braid_ps_aborts_total", "steps", "sync steps closed by ABORT")     \
    X(pushes_applied, COUNTER, "braid_ps_pushes_total", "pushes", "async pushes applied")         \
    X(duplicates, COUNTER, "braid_ps_duplicates_total", "pushes", "repeated parts, not applied")  \
    X(keys_applied, COUNTER, "braid_ps_keys_total", "keys", "keys with a gradient applied")       \
    X(journal_records, GAUGE, "braid_ps_journal_records", "records", "records a restart replays") \
    X(journal_bytes, GAUGE, "braid_ps_journal_bytes", "bytes", "records a restart replays")       \
    X(staged_bytes, GAUGE, "braid_ps_staged_bytes", "bytes", "gradients of steps not committed")  \
    X(dirty_bytes, GAUGE, "braid_ps_dirty_bytes", "bytes", "rows the next write-back writes")     \
    X(parked, GAUGE, "braid_ps_parked_requests", "requests", "requests that wait for a step")     \
    X(write_backs, COUNTER, "braid_ps_write_backs_total", "times", "write-backs of changed rows") \
    X(rows_written, COUNTER, "braid_ps_rows_written_total", "rows", "rows written to the store")  \
    X(checkpoints, COUNTER, "braid_ps_checkpoints_total", "checkpoints", "checkpoints made")      \
    X(contexts, GAUGE, "braid_ps_contexts", "contexts", "autograd contexts alive")                \
    X(clients_expired, COUNTER, "braid_ps_clients_expired_total", "clients", "leases that ended") \
    X(bad_gradients, COUNTER, "braid_ps_bad_gradients_total", "rows",                             \
      "gradients that bad_gradient was asked about; ListTables names table and key")              \
    X(filtered_gradients, COUNTER, "braid_ps_filtered_gradients_total", "rows",                   \
      "gradients that admission dropped, since the tables were made; by table: ListTables")       \
    X(evicted_rows, COUNTER, "braid_ps_evicted_rows_total", "rows",                               \
      "rows that eviction took, since the tables were made; by table: ListTables")                \
    X(group_syncs, COUNTER, "braid_ps_push_syncs_total", "syncs",                                 \
      "journal syncs that answered async pushes of tables with durability sync")                  \
    X(read_only, GAUGE, "braid_ps_read_only", "0 or 1",                                           \
      "a journal sync failed: pushes are refused until the next start")                           \
    X(lost, GAUGE, "braid_ps_lost", "0 or 1",                                                     \
      "rows were lost: requests are refused until the job is resumed from a checkpoint")          \
    X(generation, GAUGE, "braid_ps_generation", "starts", "starts on this data folder")           \
    X(replayed_records, GAUGE, "braid_ps_replayed_records", "records",                            \
      "records that the last start replayed")                                                     \
    X(recovery_s, GAUGE, "braid_ps_recovery_seconds", "seconds",                                  \
      "what the last start took to read rows and to replay the journal")                          \
    X(disk_errors, COUNTER, "braid_ps_disk_errors_total", "errors", "writes the disk refused")

enum {
#define BD_X(field, kind, name, unit, help) PS_METRIC_AT_##field,
    PS_METRICS_MAP(BD_X)
#undef BD_X
        PS_N_METRICS
};

const char *ps_metric_name(size_t i);
void ps_metrics_values(const ps_shard_stats *st, double out[PS_N_METRICS]);
/* From request to answer; a lookup's or a commit's includes the wait for its step. */
extern bd_metric ps_metric_lookup_s, ps_metric_push_s, ps_metric_commit_s;
extern bd_metric ps_metric_failures, ps_metric_lookup_keys;
extern bd_metric ps_metric_ready, ps_metric_draining; /* 0 or 1 */

typedef struct ps_metrics_limits {
    const char *data_dir; /* its disk is watched; copied */
    int64_t journal_cap_bytes, staged_limit_bytes;
} ps_metrics_limits;

/* Puts them on the process's metrics page; update copies the shard's numbers there. */
void ps_metrics_register(const ps_metrics_limits *limits);
void ps_metrics_update(ps_shard *s);

#endif
