#include "ps_server/ps_store.h"

#include "base/cgroup.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_sorted.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define BATCH_BYTES    (1u << 20)
#define BUILDER_NICE   10
#define MIN_FILE_ROWS  16384u /* fewer are written as batches */
#define FILE_BYTES     (256u << 20)
#define MAX_FILES      64u /* that one write makes */
#define AHEAD          12u
#define PREFETCH_BYTES 512u
#define CACHED_READS   16u
/* Files of level 0 beyond which batches, which RocksDB slows, are used. */
#define MAX_LOOSE_FILES 12u
/* While all rows are in memory nobody reads the store before the next start, so that merging its
 * files can wait: it would take the disk from checkpoints and the journal. */
#define MAX_UNREAD_FILES 36u
#define MAX_KNOWN        128u /* files whose hash is known but for their end; older ones are read */
#define WINDOW_ROWS      64u
#define WINDOW_BYTES     ((size_t)32 << 10)

struct ps_store {
    ps_rocks rocks;
    /* Reads of single rows: most leave the block cache alone, for the block of a cold row is not
     * asked for again soon; one in CACHED_READS fills it, so that indexes come back. */
    rocksdb_readoptions_t *point, *point_cached;
    _Atomic unsigned n_reads;
    rocksdb_envoptions_t *env;
    bool unread; /* nobody reads rows before the next start: no budget */
    rocksdb_ingestexternalfileoptions_t *ingest;
    uint64_t n_made;                  /* files for ingestion: a name for the next */
    bd_file_prefix *known[MAX_KNOWN]; /* owned; of the last files made, a ring */
    size_t n_known;
    size_t n_builders;
    unsigned long max_loose_files;
    rocksdb_compactionfilter_t *forget;
    _Atomic uint64_t forget_n; /* tombstones of records up to it are left out by merges */
};

/* A store without a budget: see MAX_UNREAD_FILES. */
static bd_status merge_late(ps_store *s, bd_err *err)
{
    char *text = NULL;
    const char *keys[] = {"level0_file_num_compaction_trigger", "level0_slowdown_writes_trigger",
                          "level0_stop_writes_trigger"};
    const char *values[] = {"24", "48", "64"};
    rocksdb_set_options(s->rocks.db, 3, keys, values, &text);
    return ps_rocks_status(&s->rocks, "set options of", text, err);
}

/* Half the cores: the others train on. */
static size_t default_builders(void)
{
    size_t cores = (size_t)bd_cpus(), half = cores < 2 ? 1 : cores / 2;
    return half < PS_STORE_MAX_BUILDERS ? half : PS_STORE_MAX_BUILDERS;
}

void ps_store_set_builders(ps_store *s, size_t n)
{
    s->n_builders = n == 0 ? 1 : (n < PS_STORE_MAX_BUILDERS ? n : PS_STORE_MAX_BUILDERS);
}

/* ---- tombstones ---- */
static void no_destructor(void *store)
{
    (void)store;
}

static const char *filter_name(void *store)
{
    (void)store;
    return "braid.tombstones";
}

/* A merge asks about the newest value of a key; older ones are gone whatever the answer is.
 * NOLINTBEGIN(readability-function-size,readability-non-const-parameter): RocksDB's signature */
static unsigned char forgets(void *store, int level, const char *key, size_t key_bytes,
                             const char *value, size_t value_bytes, char **new_value,
                             size_t *new_bytes, unsigned char *changed)
{
    const ps_store *s = store;
    (void)level;
    (void)key;
    (void)key_bytes;
    (void)new_value;
    (void)new_bytes;
    *changed = 0;
    return value_bytes == PS_ENTRY_META_BYTES &&
           ps_get_le64((const uint8_t *)value + 8) <=
               atomic_load_explicit(&s->forget_n, memory_order_relaxed);
}
/* NOLINTEND(readability-function-size,readability-non-const-parameter) */

void ps_store_forget_dead(ps_store *s, uint64_t n)
{
    uint64_t had = atomic_load_explicit(&s->forget_n, memory_order_relaxed);
    if (n > had) {
        atomic_store_explicit(&s->forget_n, n, memory_order_relaxed);
    }
}

bd_status ps_store_open(const char *path, const ps_budget *budget, ps_store **out, bd_err *err)
{
    ps_store *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "row store: no memory");
    }
    s->forget = rocksdb_compactionfilter_create(s, no_destructor, forgets, filter_name);
    ps_rocks_limits limits = {.forget = s->forget};
    if (ps_budget_limits(budget)) {
        limits.memtable_bytes = budget->memtable_bytes;
        limits.cache_bytes = budget->cache_bytes;
    }
    bd_status rc = ps_rocks_open_within(&s->rocks, path, false, &limits, err);
    if (rc != BD_OK) {
        rocksdb_compactionfilter_destroy(s->forget);
        bd_free(s);
        return bd_err_wrap(err, "row store");
    }
    s->point = rocksdb_readoptions_create();
    s->point_cached = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(s->point, 0);
    s->env = rocksdb_envoptions_create();
    s->ingest = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(s->ingest, 1);
    s->n_builders = default_builders();
    s->unread = !ps_budget_limits(budget);
    s->max_loose_files = s->unread ? MAX_UNREAD_FILES : MAX_LOOSE_FILES;
    if (s->unread) {
        rc = merge_late(s, err);
    }
    if (rc != BD_OK) {
        ps_store_close(s);
        return rc;
    }
    *out = s;
    return BD_OK;
}

void ps_store_close(ps_store *s)
{
    if (s != NULL) {
        ps_rocks_close(&s->rocks);
        rocksdb_readoptions_destroy(s->point);
        rocksdb_readoptions_destroy(s->point_cached);
        rocksdb_envoptions_destroy(s->env);
        rocksdb_ingestexternalfileoptions_destroy(s->ingest);
        rocksdb_compactionfilter_destroy(s->forget);
        for (size_t i = 0; i < MAX_KNOWN; i++) {
            bd_file_prefix_free(s->known[i]);
        }
        bd_free(s);
    }
}

bd_status ps_store_hash_file(void *store, const char *path, uint64_t *n_bytes, uint64_t *hash,
                             bd_err *err)
{
    const ps_store *s = store;
    return bd_file_hash64_after(path, s->known, MAX_KNOWN, n_bytes, hash, err);
}

/* ---- writing ---- */
/* Entries lie in the order of their changes: each is a miss, unless it is asked for ahead. */
static void prefetch_entry(const ps_ref *refs, size_t i, size_t n)
{
    if (i + AHEAD < n) {
        const char *p = (const char *)refs[i + AHEAD].at;
        size_t bytes = PS_ENTRY_KEY_BYTES + (size_t)refs[i + AHEAD].value_bytes;
        for (size_t b = 0; b < bytes && b < PREFETCH_BYTES; b += BD_CACHE_LINE_BYTES) {
            __builtin_prefetch(p + b);
        }
    }
}

static bd_status write_batches(ps_store *s, const ps_ref *refs, size_t n, bd_err *err)
{
    bd_status rc = BD_OK;
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    for (size_t i = 0, in_batch = 0; i < n && rc == BD_OK; i++) {
        prefetch_entry(refs, i, n);
        const char *at = (const char *)refs[i].at;
        rocksdb_writebatch_put(b, at, PS_ENTRY_KEY_BYTES, at + PS_ENTRY_KEY_BYTES,
                               refs[i].value_bytes);
        in_batch += PS_ENTRY_KEY_BYTES + refs[i].value_bytes;
        if (in_batch >= BATCH_BYTES || i + 1 == n) {
            char *text = NULL;
            rocksdb_write(s->rocks.db, s->rocks.write_unlogged, b, &text);
            rc = ps_rocks_status(&s->rocks, "write rows", text, err);
            rocksdb_writebatch_clear(b);
            in_batch = 0;
        }
    }
    rocksdb_writebatch_destroy(b);
    return rc;
}

/* Entries that lie all over memory, copied to one place before RocksDB sees them: the copies wait
 * for memory together, RocksDB's comparisons and copies one after the other. */
typedef struct window {
    uint8_t bytes[WINDOW_BYTES];
    const uint8_t *at[WINDOW_ROWS]; /* where entry i is */
    size_t n;
} window;

static void fill_window(window *w, const ps_ref *refs, size_t n)
{
    size_t used = 0;
    for (w->n = 0; w->n < n && w->n < WINDOW_ROWS; w->n++) {
        size_t bytes = PS_ENTRY_KEY_BYTES + (size_t)refs[w->n].value_bytes;
        if (bytes > WINDOW_BYTES - used && w->n > 0) {
            break;
        }
        w->at[w->n] = refs[w->n].at; /* a large one stays where it is */
        if (bytes <= WINDOW_BYTES - used) {
            prefetch_entry(refs, w->n, n);
            memcpy(w->bytes + used, refs[w->n].at, bytes);
            w->at[w->n] = w->bytes + used;
            used += bytes;
        }
    }
}

static void put_window(rocksdb_sstfilewriter_t *to, const window *w, const ps_ref *refs,
                       char **text)
{
    for (size_t i = 0; i < w->n && *text == NULL; i++) {
        const char *at = (const char *)w->at[i];
        rocksdb_sstfilewriter_put(to, at, PS_ENTRY_KEY_BYTES, at + PS_ENTRY_KEY_BYTES,
                                  refs[i].value_bytes, text);
    }
}

static bd_status fill_file(const ps_store *s, const char *path, const ps_ref *refs, size_t n,
                           bd_err *err)
{
    char *text = NULL;
    window *w = bd_alloc(sizeof *w);
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write rows: no memory");
    }
    rocksdb_sstfilewriter_t *to = rocksdb_sstfilewriter_create(s->env, s->rocks.options);
    rocksdb_sstfilewriter_open(to, path, &text);
    for (size_t i = 0; i < n && text == NULL; i += w->n) {
        fill_window(w, refs + i, n - i);
        put_window(to, w, refs + i, &text);
    }
    if (text == NULL) {
        rocksdb_sstfilewriter_finish(to, &text);
    }
    rocksdb_sstfilewriter_destroy(to);
    bd_free(w);
    return ps_rocks_status(&s->rocks, "write a file of rows for", text, err);
}

/* One file. Those that nobody reads are made without RocksDB and go past the page cache. */
static bd_status make_file(const ps_store *s, const char *path, const ps_ref *refs, size_t n,
                           bd_file_prefix **prefix, bd_err *err)
{
    return s->unread ? ps_sorted_write(path, refs, n, prefix, err)
                     : fill_file(s, path, refs, n, err);
}

/* The files of one write; builders take one after the other. */
typedef struct build {
    ps_store *store;
    const ps_ref *refs;
    size_t n, per; /* entries, and of one file */
    size_t n_files;
    char *paths[MAX_FILES];              /* owned */
    bd_file_prefix *prefixes[MAX_FILES]; /* owned */
    pthread_mutex_t lock;
    size_t next;  /* under lock: the first file nobody builds */
    bd_status rc; /* under lock: the first failure, with err */
    bd_err err;   /* under lock */
} build;

static void *build_files(void *user)
{
    build *b = user;
    const ps_store *s = b->store;
    for (;;) {
        bd_err err = BD_ERR_INIT;
        (void)pthread_mutex_lock(&b->lock);
        size_t i = b->rc == BD_OK ? b->next++ : b->n_files;
        (void)pthread_mutex_unlock(&b->lock);
        if (i >= b->n_files) {
            return NULL;
        }
        size_t at = i * b->per, n = b->n - at < b->per ? b->n - at : b->per;
        bd_status rc = make_file(s, b->paths[i], b->refs + at, n, &b->prefixes[i], &err);
        (void)pthread_mutex_lock(&b->lock);
        if (rc != BD_OK && b->rc == BD_OK) {
            b->rc = rc;
            b->err = err;
        }
        (void)pthread_mutex_unlock(&b->lock);
    }
}

/* How many entries go to a file: files of FILE_BYTES at most, and one for each builder. */
static void plan_files(build *b)
{
    size_t fit = FILE_BYTES / (PS_ENTRY_KEY_BYTES + b->refs[0].value_bytes) + 1;
    size_t share = (b->n + b->store->n_builders - 1) / b->store->n_builders;
    size_t least = (b->n + MAX_FILES - 1) / MAX_FILES;
    share = share < MIN_FILE_ROWS ? MIN_FILE_ROWS : share;
    b->per = share < fit ? share : fit;
    b->per = b->per < least ? least : b->per;
    b->n_files = (b->n + b->per - 1) / b->per;
}

static bd_status name_files(build *b, bd_err *err)
{
    for (size_t i = 0; i < b->n_files; i++) {
        b->paths[i] =
            bd_strfmt("%s/new-%" PRIu64 ".rows", b->store->rocks.path, b->store->n_made++);
        if (b->paths[i] == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "write rows: no memory");
        }
    }
    return BD_OK;
}

/* Builders leave the cores to who trains. (A priority is a thread's own, and only root may raise it
 * again: hence not the caller's.) */
static void *build_files_aside(void *user)
{
    (void)setpriority(PRIO_PROCESS, 0, BUILDER_NICE);
    return build_files(user);
}

/* With no thread to be had the caller builds all files. */
static void run_builders(build *b)
{
    pthread_t helpers[PS_STORE_MAX_BUILDERS];
    size_t n = 0;
    while (n < b->store->n_builders && n < b->n_files &&
           pthread_create(&helpers[n], NULL, build_files_aside, b) == 0) {
        n++;
    }
    if (n == 0) {
        (void)build_files(b);
    }
    for (size_t i = 0; i < n; i++) {
        (void)pthread_join(helpers[i], NULL);
    }
}

/* What is known of the files' hashes stays with the store; the oldest of it goes. */
static void keep_prefixes(ps_store *s, build *b)
{
    for (size_t i = 0; i < b->n_files; i++) {
        bd_file_prefix **slot = &s->known[s->n_known++ % MAX_KNOWN];
        bd_file_prefix_free(*slot);
        *slot = b->prefixes[i];
    }
}

static bd_status pass(ps_store_gate gate, void *user, bd_err *err)
{
    return gate == NULL ? BD_OK : gate(user, err);
}

/* The memtable goes to the disk first: were it to get rows from before these files and from after
 * them, and were the files merged in between, RocksDB 7 would take its file for one out of order and
 * refuse every later flush (its pull request 10922; no row would be wrong). */
static bd_status take_files(ps_store *s, build *b, bd_err *err)
{
    char *text = NULL;
    const char *files[MAX_FILES] = {NULL};
    memcpy(files, b->paths, b->n_files * sizeof *files);
    bd_status rc = ps_store_flush(s, err);
    if (rc == BD_OK) {
        rocksdb_ingest_external_file(s->rocks.db, files, b->n_files, s->ingest, &text);
        rc = ps_rocks_status(&s->rocks, "take files of rows into", text, err);
    }
    return rc;
}

/* Sorted files beside the store's; RocksDB moves them in, all or none, and syncs them. */
static bd_status write_files(ps_store *s, const ps_ref *refs, size_t n, ps_store_gate gate,
                             void *user, bd_err *err)
{
    build b = {.store = s, .refs = refs, .n = n, .rc = BD_OK};
    (void)pthread_mutex_init(&b.lock, NULL);
    plan_files(&b);
    bd_status rc = name_files(&b, err);
    if (rc == BD_OK) {
        run_builders(&b);
        rc = b.rc;
    }
    if (b.rc != BD_OK) {
        *err = b.err;
    }
    if (rc == BD_OK) {
        rc = pass(gate, user, err);
    }
    rc = rc == BD_OK ? take_files(s, &b, err) : rc;
    keep_prefixes(s, &b);
    for (size_t i = 0; i < b.n_files; i++) {
        if (rc != BD_OK && b.paths[i] != NULL) {
            (void)unlink(b.paths[i]); /* else it has moved */
        }
        bd_free(b.paths[i]);
    }
    (void)pthread_mutex_destroy(&b.lock);
    return rc;
}

static bool has_loose_files(const ps_store *s)
{
    char *v = rocksdb_property_value(s->rocks.db, "rocksdb.num-files-at-level0");
    bool many = v != NULL && strtoul(v, NULL, 10) >= s->max_loose_files;
    rocksdb_free(v);
    return many;
}

bd_status ps_store_write(ps_store *s, const ps_entries *items, size_t n_items, bool last,
                         ps_store_gate gate, void *user, bd_err *err)
{
    ps_ref *refs = NULL;
    size_t n = 0;
    bd_status rc = ps_order_entries(items, n_items, &refs, &n, err);
    if (rc == BD_OK) {
        bool as_files = n >= MIN_FILE_ROWS && (last || !has_loose_files(s));
        rc = as_files ? write_files(s, refs, n, gate, user, err) : pass(gate, user, err);
        rc = rc == BD_OK && !as_files ? write_batches(s, refs, n, err) : rc;
    }
    bd_free(refs);
    return rc;
}

bd_status ps_store_flush(ps_store *s, bd_err *err)
{
    char *text = NULL;
    rocksdb_flush(s->rocks.db, s->rocks.flush, &text);
    return ps_rocks_status(&s->rocks, "flush rows", text, err);
}

bd_status ps_store_freeze(ps_store *s, const char *folder, bd_err *err)
{
    char *text = NULL;
    rocksdb_checkpoint_t *c = rocksdb_checkpoint_object_create(s->rocks.db, &text);
    bd_status rc = ps_rocks_status(&s->rocks, "checkpoint", text, err);
    if (rc != BD_OK) {
        return rc;
    }
    text = NULL;
    rocksdb_checkpoint_create(c, folder, 0, &text);
    rc = ps_rocks_status(&s->rocks, "checkpoint", text, err);
    rocksdb_checkpoint_object_destroy(c);
    return rc;
}

/* ---- reading ---- */
/* What one MultiGet needs; on the heap, because fetch threads have small stacks. */
typedef struct multi {
    char *keys; /* [n x PS_ENTRY_KEY_BYTES] */
    const char **key_of;
    size_t *key_bytes;
    rocksdb_pinnableslice_t **values;
    char **errors;
} multi;

static void multi_deinit(multi *m)
{
    bd_free(m->keys);
    bd_free(m->key_of);
    bd_free(m->key_bytes);
    bd_free(m->values);
    bd_free(m->errors);
}

static bd_status multi_init(multi *m, const ps_wanted *w, bd_err *err)
{
    size_t n = w->n;
    *m = (multi){.keys = bd_calloc(n, PS_ENTRY_KEY_BYTES),
                 .key_of = bd_calloc(n, sizeof *m->key_of),
                 .key_bytes = bd_calloc(n, sizeof *m->key_bytes),
                 .values = bd_calloc(n, sizeof *m->values),
                 .errors = bd_calloc(n, sizeof *m->errors)};
    if (m->keys == NULL || m->key_of == NULL || m->key_bytes == NULL || m->values == NULL ||
        m->errors == NULL) {
        multi_deinit(m);
        return bd_err_set(err, BD_E_NOMEM, "read rows: no memory");
    }
    for (size_t i = 0; i < n; i++) {
        char *k = m->keys + i * PS_ENTRY_KEY_BYTES;
        ps_put_be32((uint8_t *)k, w->table_id);
        ps_put_be64((uint8_t *)k + 4, w->keys[i]);
        m->key_of[i] = k;
        m->key_bytes[i] = PS_ENTRY_KEY_BYTES;
    }
    return BD_OK;
}

/* Copies value i out; everything of it is freed in any case. */
static bd_status take_value(ps_store *s, multi *m, size_t i, uint8_t *to, size_t stride,
                            uint32_t *bytes, bd_err *err)
{
    bd_status rc = ps_rocks_status(&s->rocks, "read rows", m->errors[i], err);
    *bytes = 0;
    if (m->values[i] == NULL) {
        return rc;
    }
    size_t n = 0;
    const char *v = rocksdb_pinnableslice_value(m->values[i], &n);
    if (rc == BD_OK && (n > stride || n < PS_ENTRY_META_BYTES)) {
        rc = bd_err_set(err, BD_E_CORRUPT, "a stored row of %s has %zu bytes, at most %zu fit",
                        s->rocks.path, n, stride);
    } else if (rc == BD_OK) {
        memcpy(to, v, n);
        *bytes = (uint32_t)n;
    }
    rocksdb_pinnableslice_destroy(m->values[i]);
    return rc;
}

bd_status ps_store_get(ps_store *s, const ps_wanted *w, bd_err *err)
{
    multi m;
    bd_err one = BD_ERR_INIT;
    bd_status rc = multi_init(&m, w, err);
    if (rc != BD_OK) {
        return rc;
    }
    unsigned turn = atomic_fetch_add_explicit(&s->n_reads, 1, memory_order_relaxed);
    const rocksdb_readoptions_t *how = turn % CACHED_READS == 0 ? s->point_cached : s->point;
    rocksdb_batched_multi_get_cf(s->rocks.db, how, s->rocks.all, w->n, m.key_of, m.key_bytes,
                                 m.values, m.errors, false);
    for (size_t i = 0; i < w->n; i++) {
        bd_status r =
            take_value(s, &m, i, w->values + i * w->stride, w->stride, &w->bytes[i], &one);
        if (r != BD_OK && rc == BD_OK) {
            rc = r;
            *err = one;
        }
    }
    multi_deinit(&m);
    return rc;
}

static bd_status each(ps_store *s, rocksdb_iterator_t *it, uint32_t table_id, ps_entry_fn fn,
                      void *user, bd_err *err)
{
    bd_status rc = BD_OK;
    char *text = NULL;
    for (; rc == BD_OK && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        size_t nk = 0, nv = 0;
        const char *k = rocksdb_iter_key(it, &nk), *v = rocksdb_iter_value(it, &nv);
        if (table_id != 0 &&
            (nk != PS_ENTRY_KEY_BYTES || ps_get_be32((const uint8_t *)k) != table_id)) {
            break;
        }
        rc = fn(user, (const uint8_t *)k, nk, (const uint8_t *)v, nv, err);
    }
    if (rc == BD_OK) {
        rocksdb_iter_get_error(it, &text);
        rc = ps_rocks_status(&s->rocks, "read rows", text, err);
    }
    rocksdb_iter_destroy(it);
    return rc;
}

bd_status ps_store_each(ps_store *s, ps_entry_fn fn, void *user, bd_err *err)
{
    rocksdb_iterator_t *it = rocksdb_create_iterator(s->rocks.db, s->rocks.read);
    rocksdb_iter_seek_to_first(it);
    return each(s, it, 0, fn, user, err);
}

bd_status ps_store_range(ps_store *s, uint32_t table_id, uint64_t from, ps_entry_fn fn, void *user,
                         bd_err *err)
{
    uint8_t key[PS_ENTRY_KEY_BYTES];
    rocksdb_iterator_t *it = rocksdb_create_iterator(s->rocks.db, s->rocks.read);
    ps_put_be32(key, table_id);
    ps_put_be64(key + 4, from);
    rocksdb_iter_seek(it, (const char *)key, sizeof key);
    bd_status rc = each(s, it, table_id, fn, user, err);
    return rc == BD_AGAIN ? BD_OK : rc;
}

uint64_t ps_store_table_bytes(ps_store *s, uint32_t table_id)
{
    uint8_t first[4],
        end[PS_ENTRY_KEY_BYTES + 1]; /* longer than a key: behind all of the table's */
    uint64_t bytes = 0;
    char *error = NULL;
    ps_put_be32(first, table_id);
    memset(end, 0xff, sizeof end);
    ps_put_be32(end, table_id);
    const char *from[] = {(const char *)first}, *to[] = {(const char *)end};
    const size_t from_bytes[] = {sizeof first}, to_bytes[] = {sizeof end};
    rocksdb_approximate_sizes(s->rocks.db, 1, from, from_bytes, to, to_bytes, &bytes, &error);
    bool ok = error == NULL;
    rocksdb_free(error);
    return ok ? bytes : 0;
}
