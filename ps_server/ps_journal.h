/* ps_server/ps_journal.h - what the server must not forget: records, dedup state, small facts.
 *
 * Layer:     ps_server. The folder `journal` of the data folder. Rows are not in here (ps_store.h).
 * Threads:   append, reset: one thread at a time (the commit thread owns them; the write-back
 *            thread's cut is handed over under the journal's own lock). Facts (ps_journal_put) from
 *            any thread. bytes, next, sync: any thread.
 * Records:   in a log of their own (ps_log.h, journal/records/): each with the facts of area 'M'
 *            that belong to it, in one frame. Facts of area 'M' alone make a frame as well and take
 *            a number.
 * RocksDB:   'M' + name -> facts of the server: "generation", "head", "cut" (no record below it
 *                          counts), "log" (the first file of the log), "job", "rows", "table/<id>",
 *                          "client/<id>", "unsafe" (ps_shard_int.h). What the log says is newer:
 *                          before a file of it goes, its facts are written here.
 *            'C' + name -> facts of the coordinator
 * Atomic:    a record and the facts given with it are there or not.
 * Cost:      append: one pass for the checksum, one pwritev from where the arrays lie.
 */
#ifndef PS_JOURNAL_H
#define PS_JOURNAL_H

#include "base/err.h"

#include "ps_server/ps_facts.h"
#include "ps_server/ps_record.h"

typedef struct ps_journal ps_journal;

/* Starts a new generation. BD_E_EXISTS: another process has it open. BD_E_CORRUPT: it is damaged,
 * or records at its end that were answered are missing (ps_mark.h; the mark is <path>.mark).
 * salvage: what is whole is kept, the rest is given up, and ps_journal_has_damage says so. */
bd_status ps_journal_open(const char *path, bool salvage, ps_journal **out,
                          bd_err *err) BD_MUST_CHECK;
/* Said after BD_E_CORRUPT. */
#define PS_SALVAGE_HINT "docs/OPERATIONS.md, \"A damaged server\", says what to do"
/* Read-only: no generation begins, nothing is written; facts can be got and records replayed. */
bd_status ps_journal_open_frozen(const char *path, ps_journal **out, bd_err *err) BD_MUST_CHECK;
void ps_journal_close(ps_journal *j);
/* What RocksDB may hold in a memtable from now on (there are two). */
bd_status ps_journal_limit_memory(ps_journal *j, size_t memtable_bytes, bd_err *err) BD_MUST_CHECK;

/* What the next record will get. */
ps_seqno ps_journal_next(ps_journal *j);

/* Takes the next number for a change that is not journaled. Commit thread. */
ps_seqno ps_journal_skip(ps_journal *j);
/* Salvage gave something up. */
bool ps_journal_has_damage(const ps_journal *j);
/* A sync failed: no append, put or sync will succeed until the next start. err (may be NULL) then
 * gets BD_E_IO and what failed first. Any thread. */
bool ps_journal_is_broken(ps_journal *j, bd_err *err);

/* Can 4 MiB be written beside this path? BD_E_IO says why not. The file is removed again. */
bd_status ps_disk_probe(const char *beside, bd_err *err) BD_MUST_CHECK;

/* ps_journal_append - rec (may be NULL: facts only) with the facts; sync: on the disk before it
 * returns. rec->seq must be ps_journal_next. The facts are of area 'M'. Errors: BD_E_IO,
 * BD_E_NOMEM, and nothing is written; the next call tries again. A sync that fails is for good. */
bd_status ps_journal_append(ps_journal *j, const ps_record *rec, const ps_fact *facts,
                            size_t n_facts, bool sync, bd_err *err) BD_MUST_CHECK;

/* Facts alone, from any thread. */
bd_status ps_journal_put(ps_journal *j, const ps_fact *facts, size_t n_facts, bool sync,
                         bd_err *err) BD_MUST_CHECK;

/* *val: owned (bd_free), NULL when the fact is not there. */
bd_status ps_journal_get(ps_journal *j, char area, const char *name, uint8_t **val, size_t *n_bytes,
                         bd_err *err) BD_MUST_CHECK;
typedef bd_status (*ps_fact_fn)(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                                bd_err *err);
/* Every fact of the area whose name starts with prefix, in order of names. */
bd_status ps_journal_each(ps_journal *j, char area, const char *prefix, ps_fact_fn fn, void *user,
                          bd_err *err) BD_MUST_CHECK;

/* Every record in order; the record's memory is valid during the call. BD_E_CORRUPT names the first
 * record that is damaged, incomplete or missing; with salvage it and all later ones are dropped.
 * Logs how far it is and how long the rest may take, every 2 s; tells `progress` (NULL: nobody) at
 * each per cent of the bytes. */
typedef bd_status (*ps_record_fn)(void *user, const ps_record *rec, bd_err *err);
bd_status ps_journal_replay(ps_journal *j, bool salvage, ps_record_fn fn, void *user,
                            const ps_progress *progress, bd_err *err) BD_MUST_CHECK;

/* Milliseconds that the rest takes when it goes on as it went so far; 0: nothing is known. */
int64_t ps_left_ms(size_t done, size_t total, int64_t spent_ns);

/* Forgets the records below n (their rows are in the store). */
bd_status ps_journal_cut(ps_journal *j, uint64_t below_n, bd_err *err) BD_MUST_CHECK;
/* Forgets all records and every fact of area 'M' that starts with "client/" or "table/", and sets
 * the facts given, in one batch: the commit point of a restore. Later records get numbers above
 * min_head as well (rows restored from elsewhere carry numbers up to it). */
bd_status ps_journal_reset(ps_journal *j, uint64_t min_head, const ps_fact *facts, size_t n_facts,
                           bd_err *err) BD_MUST_CHECK;
/* Everything appended so far is on the disk. */
bd_status ps_journal_sync(ps_journal *j, bd_err *err) BD_MUST_CHECK;

size_t ps_journal_bytes(ps_journal *j); /* records kept */
uint64_t ps_journal_records(ps_journal *j);

#endif
