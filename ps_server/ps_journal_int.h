/* ps_server/ps_journal_int.h - the inside of a journal, shared by ps_journal.c, ps_heal.c and
 * ps_replay.c. */
#ifndef PS_JOURNAL_INT_H
#define PS_JOURNAL_INT_H

#include "ps_server/ps_journal.h"
#include "ps_server/ps_log.h"
#include "ps_server/ps_mark.h"
#include "ps_server/ps_rocks.h"

#include <pthread.h>
#include <stdatomic.h>

/* n and size of a record that is kept, oldest first: a ring. */
typedef struct ps_kept {
    uint64_t n;
    size_t bytes;
} ps_kept;

struct ps_journal {
    pthread_rwlock_t db_lock; /* written: RocksDB is opened anew; taken before lock */
    ps_rocks rocks;           /* under db_lock; db NULL: it could not be opened anew */
    _Atomic bool unsynced_db; /* a fact of the coordinator was written without a sync */
    _Atomic bool has_failed;  /* a write failed: set under db_lock, cleared with it for writing */
    int64_t next_try_ns;      /* under db_lock (written) */
    size_t memtable_bytes;    /* to be set again; 0: as opened */
    uint32_t generation;
    pthread_mutex_t write_lock; /* one frame at a time; before lock */
    ps_log *log;                /* owned */
    ps_pieces pieces;           /* under write_lock */
    uint8_t *packed;            /* under write_lock; owned: facts of a frame */
    size_t cap_packed;
    pthread_mutex_t lock;
    ps_facts facts; /* under lock: the newest of those in the log */
    uint64_t head;  /* under lock: last n used */
    uint64_t cut_n; /* under lock: records below it are forgotten */
    ps_kept *kept;  /* under lock; owned: records [kept_first, kept_first + n_kept) */
    size_t kept_first, n_kept, cap_kept;
    size_t bytes;    /* under lock: sum over kept */
    ps_mark mark;    /* under lock */
    bool is_broken;  /* under lock: a sync failed; nothing is taken until the next start */
    bd_err broken;   /* under lock: what the first failure said */
    bool has_damage; /* salvage: the end was cut off */
};

/* ps_heal.c: takes db_lock for reading when the journal can be written, after opening it anew if a
 * write has failed and the disk takes writes again. BD_E_IO: no lock is held. */
bd_status ps_journal_begin_write(ps_journal *j, bd_err *err) BD_MUST_CHECK;
/* Lets the lock go; a failed write (rc) is remembered. Returns rc. */
bd_status ps_journal_end_write(ps_journal *j, bd_status rc);
/* For reading: BD_E_IO when there is nothing to read from. */
bd_status ps_journal_begin_read(ps_journal *j, bd_err *err) BD_MUST_CHECK;
void ps_journal_end_read(ps_journal *j);

/* A handle without anything open. NULL: no memory. */
ps_journal *ps_journal_alloc(void);
/* The numbers in RocksDB, then the log: every whole frame's facts and the sizes of its record. */
bd_status ps_journal_read_log(ps_journal *j, const char *path, bool read_only,
                              bd_err *err) BD_MUST_CHECK;
/* Under lock: one more record. BD_E_NOMEM. */
bd_status ps_journal_keep(ps_journal *j, uint64_t n, size_t bytes) BD_MUST_CHECK;
/* Facts straight into RocksDB: the coordinator's, and the journal's own. */
bd_status ps_journal_put_db(ps_journal *j, const ps_fact *facts, size_t n_facts, bool sync,
                            bd_err *err) BD_MUST_CHECK;
/* The last number used, synced: for when it is higher than what the log ends with. */
bd_status ps_journal_note_head(ps_journal *j, bd_err *err) BD_MUST_CHECK;

/* Salvage: forgets the records from n on. */
bd_status ps_journal_drop_from(ps_journal *j, uint64_t n, bd_err *err) BD_MUST_CHECK;

#endif
