/* ps_server/ps_shard_int.h - the inside of a shard, shared by ps_shard.c, ps_commit.c, ps_keeper.c
 * and ps_ckpt.c. Thread model: ps_shard.h. */
#ifndef PS_SHARD_INT_H
#define PS_SHARD_INT_H

#include "base/clock.h"

#include "ps_server/ps_dedup.h"
#include "ps_server/ps_shard.h"
#include "ps_server/ps_store.h"

#include <pthread.h>
#include <stdatomic.h>

#define PS_MAX_IN_FLIGHT 256u
#define PS_MAX_KEEP      64u /* keep_tombstones */
#define PS_DEFAULT_KEEP  2u
/* Fact of area 'M', u64 job epoch: rows have changed that no record knows (durability checkpoint).
 * A start that finds it has lost them; only an orderly stop and a restore take it away. */
#define PS_UNSAFE "unsafe"

/* Ops for one thread. */
typedef struct ps_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ps_op *first, *last; /* under lock */
    bool wake;           /* under lock: look around, there may be work besides ops */
} ps_queue;

void ps_queue_init(ps_queue *q);
void ps_queue_deinit(ps_queue *q);
void ps_queue_post(ps_queue *q, ps_op *op);
void ps_queue_wake(ps_queue *q);
/* Waits up to timeout_ms (< 0: without end) for an op or a wake; NULL: none. */
ps_op *ps_queue_pop(ps_queue *q, int64_t timeout_ms);

/* Changed rows taken at one moment. */
typedef struct ps_cut {
    ps_entries *items; /* owned */
    size_t n, cap;
    size_t bytes;
    uint64_t applied_n; /* every record up to it is in the rows */
    uint64_t n_rows;
    ps_job job;
} ps_cut;

/* A restored set of tables on its way in. */
typedef struct ps_swap {
    ps_tables tables; /* owned; the old ones after the swap */
    ps_store *store;  /* owned; the old one after the swap */
    uint64_t rows_no;
    uint64_t next_n; /* journal position of its rows: new records come after it */
} ps_swap;

/* How a checkpoint went that was answered at its cut. */
typedef struct ps_saved {
    char name[PS_MAX_NAME_BYTES + 1];
    ps_job job;
    bd_status rc;
    bd_err err;
} ps_saved;

/* Rows that shall be written back so that they can leave memory. */
typedef enum ps_want {
    PS_WANT_NONE = 0,
    PS_WANT_COLD, /* those that are not in use */
    PS_WANT_ALL
} ps_want;

struct ps_shard {
    char *dir;           /* owned */
    char *restore_from;  /* owned: folders and servers with parts of checkpoints, besides dir */
    struct rpc_env *env; /* borrowed; set before a job is opened; NULL: no server can be called */
    bool allow_insecure; /* with env */
    uint32_t index, n_servers;
    uint32_t first_slot, end_slot; /* slots of this server: [first, end) */
    size_t journal_cap_bytes, stage_bytes;

    pthread_rwlock_t tables_lock;
    ps_tables tables;

    pthread_mutex_t core_lock;
    ps_step *core;      /* under core_lock */
    ps_dedup *dedup;    /* under core_lock */
    ps_op *in_flight;   /* under core_lock: async pushes between check and apply */
    size_t n_in_flight; /* under core_lock */
    bool stopping;      /* under core_lock */

    /* The folder holds the rows of a cluster of another size: no rows are loaded, and nothing is
     * written until a job restores a checkpoint. Set at the start, ended by the commit thread. */
    _Atomic bool resized;
    uint32_t old_servers; /* resized: how many they were */
    uint64_t old_epoch;   /* resized: the job that was open */

    ps_budget budget;
    ps_fetch_pool *fetch;
    ps_journal *journal;
    ps_store *store;     /* keeper's; the fetch pool reads it */
    bool last_write;     /* keeper's: the shard stops, nobody reads the store any more */
    _Atomic bool saving; /* a cut is answered, and not yet written */
    ps_saved saved;      /* keeper's: the last cut that was answered before it was written */
    char last_ckpt[PS_MAX_NAME_BYTES + 1]; /* keeper's: the last one made since the start */
    size_t keep_tombstones;                /* checkpoints */
    size_t n_cuts;                         /* keeper's: checkpoints since the start or a restore */
    uint64_t cuts[PS_MAX_KEEP];            /* keeper's: applied_n of the last ones, in a ring */
    uint64_t rows_no;                      /* keeper's: the folder rows-<no> */
    struct ps_reap *reap;                  /* owned: ps_reap.h says whose part is what */
    ps_plan *plan;                         /* commit thread's */
    ps_section *sections;                  /* commit thread's; owned */
    size_t cap_sections;
    int64_t swept_ns;     /* commit thread's: when the last slice was looked through (async) */
    uint64_t n_sweeps;    /* commit thread's: slices so far (async) */
    const bd_clock *wall; /* borrowed; NULL: this machine's */
    ps_section *logged;   /* commit thread's; owned: those of a record that are journaled */
    size_t cap_logged;
    ps_op *
        unsynced; /* commit thread's: pushes that are applied and wait for one sync, oldest first */
    ps_op **unsynced_end;
    size_t n_unsynced;
    bool is_unsafe;    /* commit thread's, keeper's after it: see PS_UNSAFE */
    bool rows_known;   /* at open: the journal has the fact "rows" */
    bool rows_dropped; /* at open: by salvage */
    char lost[256];    /* set at open: why the rows are not the job's; "": they are */
    _Atomic uint64_t applied_n;
    int64_t bound_wait_ms;
    size_t in_flight_bytes;    /* under core_lock */
    pthread_mutex_t room_lock; /* the commit thread waits here while the journal is too long */
    pthread_cond_t room;
    int commit_wanted;   /* under room_lock: the keeper waits for the commit thread */
    bool disk_full;      /* under room_lock: the last write-back failed; do not wait for it */
    ps_want want_memory; /* under room_lock: what the commit thread waits for */
    uint64_t n_rounds;   /* under room_lock: write-backs ended */

    ps_queue commit_queue, keeper_queue;
    pthread_t commit_thread, keeper_thread;
    bool commit_runs, keeper_runs;
    bd_status stop_rc;
    bd_err stop_err;

    _Atomic uint64_t steps_applied, pushes_applied, duplicates, keys_applied, steps_aborted;
    _Atomic uint64_t write_backs, rows_written, disk_errors, checkpoints;
    _Atomic uint64_t contexts, clients_expired, group_syncs;
    uint64_t replayed_records; /* by open alone; then constant, as recovery_ns */
    int64_t recovery_ns;
};

/* ---- ps_shard.c ---- */
void ps_shard_run_effects(ps_shard *s, ps_effects *fx);
void ps_op_finish(ps_op *op, bd_status rc);
/* BD_OK, or BD_E_STATE: the folder waits for a restore (resized). */
bd_status ps_shard_check_size(const ps_shard *s, bd_err *err);
void ps_job_pack(const ps_job *job, uint8_t out[32]);
bd_status ps_job_unpack(const uint8_t *bytes, size_t n_bytes, ps_job *out, bd_err *err);

/* ---- ps_load.c ---- */
/* All rows of the store: into memory while the budget has room, of which each table has its share;
 * the others are counted as away. */
bd_status ps_load_rows(ps_store *store, const ps_tables *ts, const ps_progress *progress,
                       bd_err *err);

/* ---- ps_commit.c ---- */
void *ps_commit_main(void *shard);

/* ---- ps_safety.c: what each durability promises ---- */
/* At open: the folder of rows that the journal knows of is there. BD_E_CORRUPT. */
bd_status ps_safety_check_rows(ps_shard *s, const char *path, bd_err *err) BD_MUST_CHECK;
/* At open, salvage: the stored rows are given up for an empty folder (*err says why). */
bd_status ps_safety_drop_rows(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* At open: from here on the folder must be there. */
bd_status ps_safety_note_rows(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* At open: is the fact there? Fills s->lost. */
bd_status ps_safety_load(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* Numbers the record and journals what its tables want journaled (*wants_sync: answered only after
 * ps_safety_sync). On failure nothing is written. Commit thread. */
bd_status ps_safety_append(ps_shard *s, ps_record *rec, const ps_fact *facts, size_t n_facts,
                           bool sync, bd_err *err) BD_MUST_CHECK;
/* After a failed sync of the journal: answers those who wait for a step (ps_step_set_broken). */
void ps_safety_tell_broken(ps_shard *s);
/* Some table of the record has durability sync. */
bool ps_safety_wants_sync(const ps_shard *s, const ps_record *rec);
/* At open: the progress of the open job's ranks (bounded). */
bd_status ps_safety_load_ranks(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* The name of a rank's fact. */
void ps_rank_fact(uint32_t rank, char out[32]);
/* After an orderly stop's write-back: the facts that pushes did not write. */
bd_status ps_safety_close(ps_shard *s, bd_err *err) BD_MUST_CHECK;

/* ---- ps_keeper.c ---- */
void *ps_keeper_main(void *shard);
/* Posts the op to the commit thread and waits until it is done. Keeper only. */
void ps_keeper_call(ps_shard *s, ps_op *op);
/* Writes changed rows that nobody uses (or all of them), so that they can leave memory; nothing is
 * made safe and no record is forgotten. Keeper, or the thread that opens the shard. */
bd_status ps_keeper_make_room(ps_shard *s, bool cold_only, bd_err *err);

/* ---- ps_cut.c: changed rows, held in memory ---- */
/* Takes every changed row, stripe by stripe, on several cores: training stands still. BD_E_NOMEM:
 * what was taken is put back. */
bd_status ps_cut_take(ps_shard *s, ps_cut *cut, bd_err *err);
/* The changed rows of one stripe (cold_only: ps_table_take_dirty) join the cut. BD_E_NOMEM. */
bd_status ps_cut_take_stripe(ps_table *t, uint32_t stripe, bool cold_only, ps_cut *cut);
void ps_cut_put_back(ps_shard *s, ps_cut *cut);
void ps_cut_deinit(ps_cut *cut);

/* ---- ps_ckpt.c: folders and manifests; the keeper's thread ---- */
bd_status ps_ckpt_make(ps_shard *s, const char *name, const ps_cut *cut, ps_op *op, bd_err *err);
bd_status ps_ckpt_delete(ps_shard *s, const char *name, bd_err *err);
/* BD_OK and *same when a checkpoint of this name, job epoch and step is there already. */
bd_status ps_ckpt_same(ps_shard *s, const char *name, uint64_t epoch, uint64_t step, ps_op *op,
                       bool *same, bd_err *err);
/* Removes folders a crash may have left. */
void ps_ckpt_clean(ps_shard *s);

/* ---- ps_restore.c: the keeper's thread ---- */
/* Loads the checkpoint (of that job epoch; 0: the newest) into out: a new rows folder and tables.
 */
bd_status ps_ckpt_load(ps_shard *s, const char *name, uint64_t epoch, ps_swap *out, bd_err *err);

#endif
