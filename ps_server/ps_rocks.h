/* ps_server/ps_rocks.h - RocksDB, wrapped as far as the journal and the row store need it.
 *
 * Layer:   ps_server. The only file but the two stores' that knows rocksdb/.
 * Threads: RocksDB's own: every function from any thread.
 * Errors:  RocksDB's text is kept, the path is put before it (BD_E_IO; BD_E_EXISTS when another
 *          process holds the folder; BD_E_CORRUPT for damaged files).
 */
#ifndef PS_ROCKS_H
#define PS_ROCKS_H

#include "base/err.h"

#include <rocksdb/c.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct ps_rocks {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table_options;
    rocksdb_writeoptions_t *write_logged, *write_synced, *write_unlogged;
    rocksdb_readoptions_t *read;
    rocksdb_flushoptions_t *flush;
    rocksdb_cache_t *cache;              /* rows */
    rocksdb_column_family_handle_t *all; /* rows: the one there is, as some calls want it */
    char *path;                          /* owned */
} ps_rocks;

/* What RocksDB may keep in memory; 0: as much as is good for it. */
typedef struct ps_rocks_limits {
    size_t memtable_bytes; /* of one; there are two */
    size_t cache_bytes;    /* blocks, indexes and filters; rows only */
    /* What merging of files leaves out; rows only. Borrowed until close; NULL: nothing. */
    rocksdb_compactionfilter_t *forget;
} ps_rocks_limits;

/* A journal keeps its memtable small in number and big in size and replays its log strictly; a row
 * store is tuned for bulk writes and reads of single rows. */
bd_status ps_rocks_open_within(ps_rocks *r, const char *path, bool journal,
                               const ps_rocks_limits *limits, bd_err *err) BD_MUST_CHECK;
/* ps_rocks_limit_memtables - the same for memtables made from now on. */
bd_status ps_rocks_limit_memtables(ps_rocks *r, size_t bytes, bd_err *err) BD_MUST_CHECK;
/* Without limits. */
bd_status ps_rocks_open(ps_rocks *r, const char *path, bool journal, bd_err *err) BD_MUST_CHECK;
/* Keeps what is whole of a damaged folder; files it cannot use are moved to its folder `lost`.
 * BD_E_CORRUPT, BD_E_IO. Nobody may have it open. */
bd_status ps_rocks_repair(const char *path, bool journal, bd_err *err) BD_MUST_CHECK;
/* Read-only: takes no lock, writes nothing, replays the log into memory. */
bd_status ps_rocks_open_frozen(ps_rocks *r, const char *path, bd_err *err) BD_MUST_CHECK;
void ps_rocks_close(ps_rocks *r); /* zeroed struct is fine */

/* Frees text and returns BD_OK when text is NULL, else the translated error. */
bd_status ps_rocks_status(const ps_rocks *r, const char *what, char *text, bd_err *err);

/* ps_dir_make - mkdir -p for the last component. ps_dir_remove - a folder and the files in it (one
 * level of folders). ps_dir_link - hard-links *.sst files of a RocksDB folder into `to` (created),
 * copies the others. ps_dir_bytes - sum of file sizes. ps_dir_sync - fsync of the folder. */
bd_status ps_dir_make(const char *path, bd_err *err) BD_MUST_CHECK;
bd_status ps_dir_remove(const char *path, bd_err *err) BD_MUST_CHECK;
bd_status ps_dir_link(const char *from, char *to, bd_err *err) BD_MUST_CHECK;
/* Calls fn for every name in the folder until it fails. BD_E_NOT_FOUND: no such folder. */
typedef bd_status (*ps_dir_fn)(void *user, const char *dir, const char *name, bd_err *err);
bd_status ps_dir_each(const char *path, ps_dir_fn fn, void *user, bd_err *err) BD_MUST_CHECK;
bd_status ps_dir_sync(const char *path, bd_err *err) BD_MUST_CHECK;
size_t ps_dir_bytes(const char *path);

#endif
