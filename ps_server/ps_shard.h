/* ps_server/ps_shard.h - one server's part of all tables: memory, journal, store and commit
 * protocol.
 *
 * Layer:     ps_server; no network. The service (ps_service.h) and tests stand on this header.
 * Ownership: ops and waiters belong to the caller until their `done` / `finish` runs.
 * Order:     journal first, then rows, then the answer. Cancellation counts only before journaling.
 * Durable:   checkpoint: rows change in memory; after a crash the job is E_LOST until it is
 *            restored. journal: the record is written, then the rows, then the answer. sync: as
 *            journal, and one fsync before the answers of all pushes that wait by then; lookups may
 *            see a row a moment before. A failed fsync ends all writing until the next start.
 * Faults:    ps.journal.append.before, ps.journal.append.after, ps.journal.sync, ps.apply.after,
 *            ps.commit.reply, ps.checkpoint.rows, ps.checkpoint.publish (base/fault.h).
 *
 * Thread model of ps_shard
 *   threads    handlers (N), commit thread (1), keeper thread (1: write-back, checkpoints,
 *              restores)
 *   field                 written by        read by                protected by
 *   tables (set)          commit            all                    tables_lock (read while used)
 *   rows                  commit            handlers, keeper       stripe locks in ps_table
 *   core, dedup           handlers, commit  same                   core_lock, memory work only
 *   commit queue          all               commit                 queue_lock; bounded (async)
 *   journal               commit            keeper (cut, sync)     its own
 *   store                 keeper            -                      owner
 *   applied_n             commit            keeper                 _Atomic, release/acquire
 *   blocking   handlers: never on disk; requests that must wait are parked as waiters or ops
 *   lock order tables_lock > stripe lock; core_lock and queue_lock alone; none across callbacks
 *   shutdown   ps_shard_stop: refuse, answer the parked, drain the queue, write back, join
 *   overload   async and bounded pushes in flight: 256 and stage_bytes, over it E_EXHAUSTED (the
 *              rank that is furthest behind in a bounded job has as much again for itself; no push
 *              ever waits for a lookup, so that nothing can deadlock); sync: stage limit
 *              (ps_step.h); a journal at twice its cap holds the commit thread until the keeper has
 *              caught up, unless the keeper cannot write rows back (a full disk): the journal then
 *              grows until the disk refuses it too, and pushes with it
 */
#ifndef PS_SHARD_H
#define PS_SHARD_H

#include "base/clock.h"

#include "ps_server/ps_journal.h"
#include "ps_server/ps_step.h"
#include "ps_server/ps_tables.h"

typedef struct ps_shard ps_shard;
struct rpc_env;

typedef struct ps_shard_options {
    const char *data_dir;     /* exists; copied */
    const char *restore_from; /* where the other servers' parts are (ps_parts.h, ps_pull.h), by
                                 commas; NULL: nowhere else */
    uint32_t index, n_servers;
    size_t journal_cap_bytes; /* 0: 512 MiB; the keeper writes rows back beyond it */
    size_t stage_bytes;       /* 0: 1 GiB; see ps_step_new */
    int64_t bound_wait_ms; /* 0: 90 s; bounded: how long a rank may say nothing while others wait */
    size_t keep_tombstones; /* checkpoints that must hold one before it may go, 1 to 64; 0: 2 */
    bool salvage; /* keep what is whole of a damaged journal and damaged rows; the job is E_LOST
                     then */
    size_t memory_bytes;         /* budget of the whole process (ps_budget.h); 0: none */
    const ps_progress *progress; /* of ps_shard_open; borrowed for its time; NULL: the log alone */
    const bd_clock *wall;        /* what time rows get; borrowed, NULL: this machine's wall clock */
} ps_shard_options;

/* Opens the folder, loads the rows, replays the journal. BD_E_EXISTS: another server has the folder
 * open; BD_E_MISMATCH: it is another server's; BD_E_CORRUPT, BD_E_IO. A folder of the same server
 * of a cluster of another size is kept as it is until a job restores a checkpoint; everything else
 * is BD_E_STATE till then. */
bd_status ps_shard_open(const ps_shard_options *opt, ps_shard **out, bd_err *err) BD_MUST_CHECK;
bd_status ps_shard_start(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* Orderly: everything accepted is finished and written back. Returns what went wrong with the disk;
 * nothing acknowledged is lost then either (it is in the journal). */
bd_status ps_shard_stop(ps_shard *s, bd_err *err) BD_MUST_CHECK;
void ps_shard_close(ps_shard *s); /* after stop, or without start */

size_t ps_shard_stage_bytes(const ps_shard *s); /* the limit in force */
const char *ps_shard_dir(const ps_shard *s);    /* the data folder */
/* How servers in restore_from are called: before the first job is opened. env: borrowed until stop;
 * without it such a restore is BD_E_UNSUPPORTED. */
void ps_shard_set_env(ps_shard *s, struct rpc_env *env, bool allow_insecure);

/* ---- slots ---- */
/* BD_OK, or BD_E_MOVED naming the key and its server. */
bd_status ps_shard_check_keys(const ps_shard *s, const uint64_t *keys, size_t n, bd_err *err);

/* ---- reading (any thread) ---- */
/* The set of tables does not change between lock and unlock; short, memory work only. */
const ps_tables *ps_shard_lock_tables(ps_shard *s);
void ps_shard_unlock_tables(ps_shard *s);
ps_journal *ps_shard_journal(ps_shard *s); /* for the coordinator's facts */

/* ps_shard_read - ps_table_read for one table, with the rows that are away; waits for the disk.
 * BD_E_NOT_FOUND: no such table, or one of another dim. */
bd_status ps_shard_read(ps_shard *s, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                        size_t n, float *out, bd_err *err) BD_MUST_CHECK;
/* The same in parts for who does not wait.
 * start: what is in memory; *fetch (the caller's, NULL: nothing is away) gets the rest, by
 * ps_fetch_start in ps_shard_fetch_pool. missing[n] has room for indexes, and may be NULL when
 * the table is not limited. Under the tables lock.
 * put: keys [first, first + n) of the fetch have been read (ps_fetch.h: put). keys and out as for
 * start. Takes the tables lock; does nothing when the tables were replaced.
 * end: the fetch is done: BD_AGAIN when the tables were replaced meanwhile, then start again. Under
 * the tables lock. */
bd_status ps_shard_read_start(ps_shard *s, ps_table *t, const uint64_t *keys, size_t n, float *out,
                              uint32_t *missing, ps_fetch **fetch, bd_err *err) BD_MUST_CHECK;
void ps_shard_read_put(ps_shard *s, const ps_fetch *f, size_t first, size_t n, const uint64_t *keys,
                       float *out);
bd_status ps_shard_read_end(ps_shard *s, const ps_fetch *f, bd_err *err) BD_MUST_CHECK;
ps_fetch_pool *ps_shard_fetch_pool(ps_shard *s);

/* ---- sync protocol ---- */
void ps_shard_decide(ps_shard *s, ps_waiter *w);
void ps_shard_lookup(ps_shard *s, ps_waiter *w);
/* Answers the parked waiters that is_dead says are gone, lookups of a bounded job that wait for a
 * rank which has said nothing for bound_wait, and everyone parked on a broken shard. */
void ps_shard_sweep(ps_shard *s, bool (*is_dead)(const ps_waiter *w));
/* A sync of the journal failed: until the next start nothing is written, and what would have to
 * wait for a write is refused with BD_E_IO. err (may be NULL) says why. */
bool ps_shard_is_broken(ps_shard *s, bd_err *err);

/* ---- work that changes something ---- */
typedef enum ps_op_kind {
    PS_OP_PUSH,       /* in: part; out: duplicate */
    PS_OP_TABLE,      /* in: spec; out: existed */
    PS_OP_ASSIGN,     /* in: part (one table), assign_state */
    PS_OP_OPEN,       /* in: job (last_step = next_step - 1), name: checkpoint or "", restore_epoch;
                       * out: n_rows */
    PS_OP_CHECKPOINT, /* in: phase, name, job.epoch, job.last_step; out: path, n_rows, n_bytes,
                         fresh */
    PS_OP_DELETE,     /* in: name */
    PS_OP_FLUSH,      /* rows are written back, the journal is cut */
    PS_OP_HASH,       /* out: hash, n_rows of all tables, wherever their rows are */
    PS_OP_PAGE,       /* in, out: scan */
    PS_OP_CLOSE,      /* internal: a batch of the core */
    PS_OP_CUT,        /* internal: dirty rows for a checkpoint */
    PS_OP_SWAP,       /* internal: the job, and restored tables */
    PS_OP_QUIT        /* internal */
} ps_op_kind;

/* A checkpoint while training goes on: CUT, between two steps, holds the changed rows in memory and
 * answers; ALL with the same name, job and step waits until they are written and tells how that
 * went. ALL alone does all of it. The numbers are those of the wire. */
typedef enum ps_ckpt_phase {
    PS_CKPT_ALL = 0, /* cut and write */
    PS_CKPT_CUT = 2,
    PS_CKPT_POLL, /* as WAIT: who asks looks at ps_shard_is_saving first */
    PS_CKPT_WAIT  /* how the cut of that name went; BD_E_NOT_FOUND: there is none */
} ps_ckpt_phase;

typedef struct ps_op ps_op;
struct ps_op {
    ps_op_kind kind;
    void (*done)(ps_op *op); /* runs once on any thread, without locks; must not block */

    ps_part *part;       /* moved to the shard by ps_shard_post */
    float *assign_state; /* borrowed until done: [n x state elems], NULL: keep */
    ps_spec spec;
    ps_job job;
    char name[PS_MAX_NAME_BYTES + 1];
    ps_ckpt_phase phase;
    uint64_t restore_epoch; /* the job that made the checkpoint; 0: the newest of that name */

    bd_status rc;
    bd_err err;
    bool duplicate, existed;
    uint64_t n_rows, n_bytes, n_fresh_bytes; /* fresh: not shared with the checkpoint before */
    uint64_t hash;
    struct ps_scan *scan; /* PAGE; borrowed until done (ps_scan.h) */
    char path[512];

    ps_op *next;          /* the shard's */
    ps_op *same;          /* the shard's: repeats of this push that wait for it */
    ps_batch batch;       /* internal */
    struct ps_cut *cut;   /* internal */
    struct ps_swap *swap; /* internal */
};

/* Hands the op over; done runs in any case, maybe before this returns. */
void ps_shard_post(ps_shard *s, ps_op *op);

/* A cut has been answered and is being written. */
bool ps_shard_is_saving(ps_shard *s);

/* The open job (epoch 0: none), and whether a push of a client was applied, in this process or
 * before. */
ps_job ps_shard_job(ps_shard *s);
bool ps_shard_has_pushed(ps_shard *s, uint64_t client_id, uint64_t sequence);

/* ---- numbers for Stats and metrics ---- */
typedef struct ps_shard_stats {
    uint64_t n_rows, n_tables, last_step, job_epoch;
    uint64_t steps_applied, pushes_applied, duplicates, keys_applied, steps_aborted;
    uint64_t journal_records, journal_bytes, staged_bytes, parked, write_backs, rows_written;
    uint64_t disk_errors, checkpoints, dirty_bytes, bad_gradients;
    uint64_t rows_away, rows_fetched, rows_moved_out, memory_budget, rows_bytes;
    uint64_t contexts, clients_expired; /* ps_shard_note_contexts */
    uint64_t group_syncs, filtered_gradients, evicted_rows;
    uint64_t generation, replayed_records; /* starts of this folder; of them the last one's */
    double recovery_s;                     /* of the last start: rows read, journal replayed */
    bool read_only, lost;                  /* a sync failed; E_LOST */
} ps_shard_stats;
void ps_shard_get_stats(ps_shard *s, ps_shard_stats *out);
/* What the Autograd service knows, to stand with the other numbers. */
void ps_shard_note_contexts(ps_shard *s, uint64_t contexts, uint64_t clients_expired);

#endif
