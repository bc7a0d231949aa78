/* ps_server/ps_store.h - the rows on disk: one RocksDB instance, written in bulk.
 *
 * Layer:   ps_server. Keys and values: ps_table.h (entries). Log off: a row is safe once
 *          ps_store_flush has returned; until then its records stay in the journal.
 * Threads: write, flush, freeze: one thread at a time (write-back). get, each: any.
 * Cost:    a write of many rows is sorted files, one a builder, that RocksDB takes as they are
 * (measured beside batches of puts, rows of 536 bytes: 1.2 to 0.6 M rows/s into an empty store, 1.2
 * to 0.4 into a full one), unless so many files wait for compaction that reads would suffer; a
 *          write of few rows is a batch of puts. flush waits for the memtable to reach the disk;
 *          freeze is hard links. get is one MultiGet.
 */
#ifndef PS_STORE_H
#define PS_STORE_H

#include "base/err.h"

#include "ps_server/ps_table.h"

typedef struct ps_store ps_store;

/* The budget (borrowed during the call; NULL: none) says what RocksDB may keep in memory. */
bd_status ps_store_open(const char *path, const ps_budget *budget, ps_store **out,
                        bd_err *err) BD_MUST_CHECK;
void ps_store_close(ps_store *s);
/* How many threads build the files of a large write, PS_STORE_MAX_BUILDERS at most (at first half
 * the cores). */
#define PS_STORE_MAX_BUILDERS 8u
void ps_store_set_builders(ps_store *s, size_t n);

/* May the rows be in the store now? Called once, before the first of them is. NULL: they may. */
typedef bd_status (*ps_store_gate)(void *user, bd_err *err);
/* Writes the entries of several stripes, in any order; not yet safe. BD_E_IO: some may be
 * written (writing again is harmless). last: nobody reads before the next start, so files need not
 * wait for compaction. A failure of the gate is returned, and no row is written. */
bd_status ps_store_write(ps_store *s, const ps_entries *items, size_t n, bool last,
                         ps_store_gate gate, void *user, bd_err *err) BD_MUST_CHECK;
/* Rows of one table to read; all borrowed. */
typedef struct ps_wanted {
    uint32_t table_id;
    const uint64_t *keys; /* [n] */
    size_t n;
    uint8_t *values; /* value i goes to values + i * stride */
    size_t stride;
    uint32_t *bytes; /* [n] its length; 0: there is none */
} ps_wanted;

/* ps_store_get - the values of some keys. Any order is right; ascending keys read the index of a
 * file once for all that lie in it. BD_E_CORRUPT: a value is longer than the stride. */
bd_status ps_store_get(ps_store *s, const ps_wanted *w, bd_err *err) BD_MUST_CHECK;
bd_status ps_store_flush(ps_store *s, bd_err *err) BD_MUST_CHECK;
/* ps_store_hash_file - bd_file_hash64 of a file of the store or of a frozen one (a hard link); of
 * the files that ps_store_write made only the end is read. store: a ps_store. As write. */
bd_status ps_store_hash_file(void *store, const char *path, uint64_t *n_bytes, uint64_t *hash,
                             bd_err *err) BD_MUST_CHECK;
/* Freezes what is flushed into the folder (must not exist) by hard links. */
bd_status ps_store_freeze(ps_store *s, const char *folder, bd_err *err) BD_MUST_CHECK;

/* ps_store_forget_dead - tombstones of records up to number n are left out when RocksDB merges the
 * files they are in, on its own threads: the next reads may find them or not. Any thread; n never
 * goes back. */
void ps_store_forget_dead(ps_store *s, uint64_t n);

typedef bd_status (*ps_entry_fn)(void *user, const uint8_t *key, size_t key_bytes,
                                 const uint8_t *value, size_t value_bytes, bd_err *err);
/* Every row in key order. */
bd_status ps_store_each(ps_store *s, ps_entry_fn fn, void *user, bd_err *err) BD_MUST_CHECK;
/* Rows of one table with key >= from in key order until fn says BD_AGAIN, which ends it well. */
bd_status ps_store_range(ps_store *s, uint32_t table_id, uint64_t from, ps_entry_fn fn, void *user,
                         bd_err *err) BD_MUST_CHECK;
/* About how many bytes of files the rows of a table take; 0 when that cannot be told. */
uint64_t ps_store_table_bytes(ps_store *s, uint32_t table_id);

#endif
