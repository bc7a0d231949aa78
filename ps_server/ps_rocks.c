#include "ps_server/ps_rocks.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define JOURNAL_MEMTABLE_BYTES (8ull << 20)
#define JOURNAL_MAX_WAL_BYTES  (32ull << 20)
#define ROWS_MEMTABLE_BYTES    (128ull << 20)
#define NO_LOG_LINES           6 /* above the highest level */
#define ROWS_CACHE_BYTES       (64ull << 20)
#define ROWS_BLOCK_BYTES       (4u << 10) /* a read of one row reads one block */
#define ROWS_INDEX_RESTART     16 /* keys of the index lie close together: a third of the bytes */
#define JOURNAL_BLOCK_BYTES    (64u << 10)
#define FILTER_BITS_PER_KEY    10
#define MEMTABLE_BLOOM         0.05 /* of a memtable: most keys that are looked for are not in it */

bd_status ps_rocks_status(const ps_rocks *r, const char *what, char *text, bd_err *err)
{
    if (text == NULL) {
        return BD_OK;
    }
    bd_status code = BD_E_IO;
    if (strstr(text, "Corruption") != NULL || strstr(text, "checksum mismatch") != NULL) {
        code = BD_E_CORRUPT;
    } else if (strstr(text, "LOCK") != NULL || strstr(text, "lock hold") != NULL) {
        code = BD_E_EXISTS;
    }
    code = bd_err_set(err, code, "%s %s: %s", what, r->path == NULL ? "" : r->path, text);
    rocksdb_free(text);
    return code;
}

/* Rows are read one by one, and most keys that are looked for and new are in no file. */
static void set_row_tables(ps_rocks *r, size_t cache_bytes)
{
    rocksdb_block_based_table_options_t *t = r->table_options;
    r->cache = rocksdb_cache_create_lru(cache_bytes);
    rocksdb_block_based_options_set_block_cache(t, r->cache);
    rocksdb_block_based_options_set_block_size(t, ROWS_BLOCK_BYTES);
    rocksdb_block_based_options_set_index_block_restart_interval(t, ROWS_INDEX_RESTART);
    rocksdb_block_based_options_set_filter_policy(
        t, rocksdb_filterpolicy_create_bloom_full(FILTER_BITS_PER_KEY));
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(t, 1);
    rocksdb_block_based_options_set_data_block_index_type(
        t, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
}

static void set_options(ps_rocks *r, bool journal, const ps_rocks_limits *limits)
{
    static const ps_rocks_limits none;
    limits = limits == NULL ? &none : limits;
    rocksdb_options_t *o = r->options;
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_paranoid_checks(o, 1);
    rocksdb_options_set_compression(o, rocksdb_no_compression);
    rocksdb_options_set_max_background_jobs(o, 2);
    /* The LOG file stays empty: a second line after one that a full disk refused ends the process
     * where RocksDB is built with its assertions, as Debian's is. Errors come back to us anyway. */
    rocksdb_options_set_info_log_level(o, NO_LOG_LINES);
    rocksdb_options_set_keep_log_file_num(o, 1);
    rocksdb_options_set_max_open_files(o, 256);
    rocksdb_options_set_max_write_buffer_number(o, limits->memtable_bytes == 0 ? 4 : 2);
    /* Damage in the middle of the log is an error to report, never a silent cut: only the torn
     * record at the very end, which nobody was answered for, may be dropped. */
    rocksdb_options_set_wal_recovery_mode(o, rocksdb_tolerate_corrupted_tail_records_recovery);
    if (journal) {
        rocksdb_options_set_write_buffer_size(
            o, limits->memtable_bytes == 0 ? JOURNAL_MEMTABLE_BYTES : limits->memtable_bytes);
        rocksdb_block_based_options_set_block_size(r->table_options, JOURNAL_BLOCK_BYTES);
        rocksdb_options_set_max_total_wal_size(o, JOURNAL_MAX_WAL_BYTES);
        rocksdb_options_set_compaction_style(o, rocksdb_universal_compaction);
        rocksdb_options_set_level0_file_num_compaction_trigger(o, 8);
    } else {
        rocksdb_options_set_write_buffer_size(
            o, limits->memtable_bytes == 0 ? ROWS_MEMTABLE_BYTES : limits->memtable_bytes);
        rocksdb_options_set_compaction_style(o, rocksdb_universal_compaction);
        rocksdb_options_set_memtable_prefix_bloom_size_ratio(o, MEMTABLE_BLOOM);
        rocksdb_options_set_memtable_whole_key_filtering(o, 1);
        set_row_tables(r, limits->cache_bytes == 0 ? ROWS_CACHE_BYTES : limits->cache_bytes);
        rocksdb_options_set_target_file_size_base(o, 64ull << 20);
        if (limits->forget != NULL) {
            rocksdb_options_set_compaction_filter(o, limits->forget);
        }
        rocksdb_options_set_max_bytes_for_level_base(o, 512ull << 20);
    }
    rocksdb_options_set_block_based_table_factory(o, r->table_options);
}

bd_status ps_rocks_limit_memtables(ps_rocks *r, size_t bytes, bd_err *err)
{
    char *text = NULL, number[32];
    const char *keys[] = {"write_buffer_size", "max_write_buffer_number"};
    const char *values[] = {number, "2"};
    (void)snprintf(number, sizeof number, "%zu", bytes);
    rocksdb_set_options(r->db, 2, keys, values, &text);
    return ps_rocks_status(r, "set options of", text, err);
}

/* Files of RocksDB lie in the folder. */
static bd_status see_file(void *user, const char *dir, const char *name, bd_err *err)
{
    bool *any = user;
    size_t n = strlen(name);
    (void)dir;
    (void)err;
    *any = *any || strncmp(name, "MANIFEST-", 9) == 0 ||
           (n > 4 && (strcmp(name + n - 4, ".sst") == 0 || strcmp(name + n - 4, ".log") == 0));
    return BD_OK;
}

/* RocksDB would take a folder whose CURRENT is gone for a new one. */
static bd_status check_current(const char *path, bd_err *err)
{
    char current[PATH_MAX];
    bool any = false;
    bd_err none;
    if (snprintf(current, sizeof current, "%s/CURRENT", path) >= (int)sizeof current) {
        return bd_err_set(err, BD_E_INVALID, "open %s: the path is too long", path);
    }
    if (access(current, F_OK) == 0 || ps_dir_each(path, see_file, &any, &none) != BD_OK || !any) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_CORRUPT, "open %s: its file CURRENT is missing", path);
}

bd_status ps_rocks_repair(const char *path, bool journal, bd_err *err)
{
    char *text = NULL;
    ps_rocks r = {.options = rocksdb_options_create(),
                  .table_options = rocksdb_block_based_options_create()};
    set_options(&r, journal, NULL);
    rocksdb_repair_db(r.options, path, &text);
    rocksdb_block_based_options_destroy(r.table_options);
    rocksdb_options_destroy(r.options);
    if (r.cache != NULL) {
        rocksdb_cache_destroy(r.cache);
    }
    bd_status rc = ps_rocks_status(&r, "repair", text, err);
    return rc == BD_OK ? rc : bd_err_wrap(err, "%s", path);
}

/* The handles of an instance; the caller opens it. */
static bd_status make_handles(ps_rocks *r, const char *path, bool journal,
                              const ps_rocks_limits *limits, bd_err *err)
{
    memset(r, 0, sizeof *r);
    r->path = bd_strdup(path);
    if (r->path == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "open %s: no memory", path);
    }
    r->options = rocksdb_options_create();
    r->table_options = rocksdb_block_based_options_create();
    set_options(r, journal, limits);
    r->write_logged = rocksdb_writeoptions_create();
    r->write_synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(r->write_synced, 1);
    r->write_unlogged = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(r->write_unlogged, 1);
    r->read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(r->read, 0);
    rocksdb_readoptions_set_readahead_size(r->read, 2u << 20);
    r->flush = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(r->flush, 1);
    return BD_OK;
}

/* Takes what the open call said. */
static bd_status opened(ps_rocks *r, char *text, bd_err *err)
{
    bd_status rc = ps_rocks_status(r, "open", text, err);
    if (rc != BD_OK) {
        r->db = NULL;
        r->all = NULL;
        ps_rocks_close(r);
    }
    return rc;
}

static rocksdb_t *open_db(ps_rocks *r, bool journal, char **text)
{
    if (journal) {
        return rocksdb_open(r->options, r->path, text);
    }
    const char *names[] = {"default"};
    const rocksdb_options_t *options[] = {r->options};
    return rocksdb_open_column_families(r->options, r->path, 1, names, options, &r->all, text);
}

bd_status ps_rocks_open(ps_rocks *r, const char *path, bool journal, bd_err *err)
{
    return ps_rocks_open_within(r, path, journal, NULL, err);
}

bd_status ps_rocks_open_within(ps_rocks *r, const char *path, bool journal,
                               const ps_rocks_limits *limits, bd_err *err)
{
    char *text = NULL;
    memset(r, 0, sizeof *r);
    bd_status rc = check_current(path, err);
    if (rc == BD_OK) {
        rc = make_handles(r, path, journal, limits, err);
    }
    if (rc == BD_OK) {
        r->db = open_db(r, journal, &text);
        rc = opened(r, text, err);
    }
    return rc;
}

bd_status ps_rocks_open_frozen(ps_rocks *r, const char *path, bd_err *err)
{
    char *text = NULL;
    bd_status rc = make_handles(r, path, false, NULL, err);
    if (rc == BD_OK) {
        rocksdb_options_set_create_if_missing(r->options, 0);
        rocksdb_options_set_db_log_dir(r->options, "/dev/null"); /* no LOG file beside the rows */
        r->db = rocksdb_open_for_read_only(r->options, path, 0, &text);
        rc = opened(r, text, err);
    }
    return rc;
}

void ps_rocks_close(ps_rocks *r)
{
    if (r->all != NULL) {
        rocksdb_column_family_handle_destroy(r->all);
    }
    if (r->db != NULL) {
        rocksdb_close(r->db);
    }
    if (r->options != NULL) {
        rocksdb_flushoptions_destroy(r->flush);
        rocksdb_readoptions_destroy(r->read);
        rocksdb_writeoptions_destroy(r->write_unlogged);
        rocksdb_writeoptions_destroy(r->write_synced);
        rocksdb_writeoptions_destroy(r->write_logged);
        rocksdb_block_based_options_destroy(r->table_options);
        rocksdb_options_destroy(r->options);
    }
    if (r->cache != NULL) {
        rocksdb_cache_destroy(r->cache);
    }
    bd_free(r->path);
    memset(r, 0, sizeof *r);
}
