/* Opening a journal and reading it back: the numbers and facts there are, then, at a start, the
 * records in order, none missing. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_journal_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROGRESS_NS (2 * BD_NS_PER_S)

ps_journal *ps_journal_alloc(void)
{
    ps_journal *j = bd_calloc(1, sizeof *j);
    if (j != NULL) {
        (void)pthread_mutex_init(&j->lock, NULL);
        (void)pthread_mutex_init(&j->write_lock, NULL);
        (void)pthread_rwlock_init(&j->db_lock, NULL);
        j->mark.fd = -1;
    }
    return j;
}

void ps_journal_close(ps_journal *j)
{
    if (j == NULL) {
        return;
    }
    ps_rocks_close(&j->rocks);
    ps_log_close(j->log);
    ps_mark_close(&j->mark);
    (void)pthread_mutex_destroy(&j->lock);
    (void)pthread_mutex_destroy(&j->write_lock);
    (void)pthread_rwlock_destroy(&j->db_lock);
    ps_facts_deinit(&j->facts);
    ps_pieces_deinit(&j->pieces);
    bd_free(j->packed);
    bd_free(j->kept);
    bd_free(j);
}

/* ---- opening ---- */
static bd_status read_number(ps_journal *j, const char *name, uint64_t *out, bd_err *err)
{
    uint8_t *val = NULL;
    size_t n = 0;
    bd_status rc = ps_journal_get(j, 'M', name, &val, &n, err);
    if (rc == BD_OK && val != NULL && n != 8) {
        rc = bd_err_set(err, BD_E_CORRUPT, "journal %s: fact \"%s\" has %zu bytes", j->rocks.path,
                        name, n);
    }
    *out = rc == BD_OK && val != NULL ? ps_get_le64(val) : 0;
    bd_free(val);
    return rc;
}

/* Servers before the log of its own kept records in RocksDB; one that was stopped left none. */
static bd_status check_version(ps_journal *j, bd_err *err)
{
    size_t n = 0;
    rocksdb_iterator_t *it = rocksdb_create_iterator(j->rocks.db, j->rocks.read);
    rocksdb_iter_seek(it, "J", 1);
    const char *k = rocksdb_iter_valid(it) ? rocksdb_iter_key(it, &n) : NULL;
    bool old = k != NULL && n > 0 && k[0] == 'J';
    rocksdb_iter_destroy(it);
    return !old ? BD_OK
                : bd_err_set(err, BD_E_MISMATCH,
                             "%s holds records of an older version: start that one on it again and "
                             "stop it, so that they become rows",
                             j->rocks.path);
}

static bd_status note_frame(void *user, const ps_frame *f, bd_err *err)
{
    ps_journal *j = user;
    bd_status rc = ps_facts_unpack(&j->facts, f->facts, f->facts_bytes, err);
    if (rc == BD_OK && f->record != NULL && f->n >= j->cut_n &&
        ps_journal_keep(j, f->n, f->record_bytes) != BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    j->head = f->n > j->head ? f->n : j->head;
    return rc;
}

bd_status ps_journal_read_log(ps_journal *j, const char *path, bool read_only, bd_err *err)
{
    uint64_t first = 0;
    char *folder = bd_strfmt("%s/records", path);
    bd_status rc =
        folder == NULL ? bd_err_set(err, BD_E_NOMEM, "journal: no memory") : check_version(j, err);
    if (rc == BD_OK) {
        rc = read_number(j, "head", &j->head, err);
    }
    if (rc == BD_OK) {
        rc = read_number(j, "cut", &j->cut_n, err);
    }
    if (rc == BD_OK) {
        rc = read_number(j, "log", &first, err);
    }
    if (rc == BD_OK) {
        rc = ps_log_open(folder, first, read_only, note_frame, j, &j->log, err);
    }
    bd_free(folder);
    return rc;
}

static bd_status start_generation(ps_journal *j, bd_err *err)
{
    uint64_t generation = 0;
    uint8_t bytes[8];
    bd_status rc = read_number(j, "generation", &generation, err);
    if (rc != BD_OK) {
        return rc;
    }
    j->generation = (uint32_t)generation + 1;
    ps_put_le64(bytes, j->generation);
    ps_fact f = {'M', "generation", bytes, sizeof bytes};
    return ps_journal_put_db(j, &f, 1, true, err);
}

/* The end of the journal is there: what was written in this boot, or synced, cannot be gone. */
static bd_status check_end(ps_journal *j, uint64_t must_have, bool salvage, bd_err *err)
{
    bool island = must_have == 0 && ps_log_has_island(j->log);
    if (j->head >= must_have && !island) {
        return BD_OK;
    }
    if (!salvage && island) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "%s is damaged after record %" PRIu64
                          ": whole ones follow (" PS_SALVAGE_HINT ")",
                          j->rocks.path, j->head);
    }
    if (!salvage) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "%s ends at record %" PRIu64 ", but record %" PRIu64
                          " was answered: its end is missing (" PS_SALVAGE_HINT ")",
                          j->rocks.path, j->head, must_have);
    }
    BD_LOG(ERROR, "salvage: the journal's end is missing", "last", j->head, "answered", must_have);
    j->has_damage = true;
    j->head = must_have > j->head ? must_have : j->head; /* numbers never go back */
    return ps_journal_note_head(j, err);
}

static bd_status open_rocks(ps_journal *j, const char *path, bool salvage, bd_err *err)
{
    bd_status rc = ps_rocks_open(&j->rocks, path, true, err);
    if (rc != BD_E_CORRUPT) {
        return rc;
    }
    if (!salvage) {
        return bd_err_set(err, rc, "%s (" PS_SALVAGE_HINT ")", bd_err_text(err));
    }
    BD_LOG(ERROR, "salvage: the journal is damaged and is repaired", "error", bd_err_text(err));
    j->has_damage = true;
    rc = ps_rocks_repair(path, true, err);
    return rc == BD_OK ? ps_rocks_open(&j->rocks, path, true, err) : rc;
}

static bd_status open_mark(ps_journal *j, const char *path, bool salvage, bd_err *err)
{
    uint64_t must_have = 0;
    char *name = bd_strfmt("%s.mark", path);
    if (name == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    bd_status rc = ps_mark_open(name, &j->mark, &must_have, err);
    if (rc == BD_OK) {
        rc = check_end(j, must_have, salvage, err);
    }
    bd_free(name);
    return rc;
}

/* A first file that is missing. */
static bd_status hint(bd_status rc, bd_err *err)
{
    return rc == BD_E_CORRUPT && strstr(bd_err_text(err), PS_SALVAGE_HINT) == NULL
               ? bd_err_set(err, rc, "%s (" PS_SALVAGE_HINT ")", bd_err_text(err))
               : rc;
}

bd_status ps_journal_open(const char *path, bool salvage, ps_journal **out, bd_err *err)
{
    ps_journal *j = ps_journal_alloc();
    if (j == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    bd_status rc = open_rocks(j, path, salvage, err);
    if (rc == BD_OK) {
        rc = hint(ps_journal_read_log(j, path, false, err), err);
    }
    if (rc == BD_OK) {
        rc = open_mark(j, path, salvage, err);
    }
    if (rc == BD_OK) {
        rc = start_generation(j, err);
    }
    if (rc != BD_OK) {
        ps_journal_close(j);
        return bd_err_wrap(err, "journal");
    }
    *out = j;
    return BD_OK;
}

bd_status ps_journal_open_frozen(const char *path, ps_journal **out, bd_err *err)
{
    ps_journal *j = ps_journal_alloc();
    if (j == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    bd_status rc = ps_rocks_open_frozen(&j->rocks, path, err);
    if (rc == BD_OK) {
        rc = ps_journal_read_log(j, path, true, err);
    }
    if (rc != BD_OK) {
        ps_journal_close(j);
        return bd_err_wrap(err, "journal");
    }
    *out = j;
    return BD_OK;
}

bd_status ps_journal_limit_memory(ps_journal *j, size_t memtable_bytes, bd_err *err)
{
    j->memtable_bytes = memtable_bytes;
    return ps_rocks_limit_memtables(&j->rocks, memtable_bytes, err);
}

/* ---- replay ---- */
/* Where records go, and how far they are. */
typedef struct replay {
    ps_journal *journal;
    ps_record_fn fn;
    void *user;
    const ps_progress *progress; /* NULL: nobody asks */
    uint64_t n;                  /* of the record at hand */
    size_t done_bytes;
    unsigned told_percent_plus_1; /* 0: nothing was told */
    int64_t start_ns, logged_ns;
} replay;

int64_t ps_left_ms(size_t done, size_t total, int64_t spent_ns)
{
    if (done == 0 || total <= done) {
        return 0;
    }
    return (int64_t)((double)spent_ns / (double)done * (double)(total - done) / 1e6);
}

static void tell_progress(replay *g)
{
    int64_t now = bd_mono_ns();
    size_t total = g->journal->bytes;
    unsigned percent = total == 0 ? 100 : (unsigned)(g->done_bytes * 100 / total);
    int64_t left_ms = ps_left_ms(g->done_bytes, total, now - g->start_ns);
    if (now - g->logged_ns > PROGRESS_NS) {
        g->logged_ns = now;
        BD_LOG(INFO, "replaying the journal", "record", g->n, "last", g->journal->head, "percent",
               percent, "left_ms", left_ms);
    }
    if (g->progress != NULL && g->told_percent_plus_1 != percent + 1) {
        char line[96];
        g->told_percent_plus_1 = percent + 1;
        (void)snprintf(line, sizeof line,
                       "replaying the journal: %u %% of %zu MiB, about %.0f s left", percent,
                       total >> 20, ceil((double)left_ms / 1e3));
        g->progress->tell(g->progress->user, line);
    }
}

static bd_status emit(void *user, const ps_frame *f, bd_err *err)
{
    replay *g = user;
    ps_record rec;
    if (f->record == NULL || f->n < g->journal->cut_n) {
        return BD_OK;
    }
    g->n = f->n;
    tell_progress(g);
    (void)bd_fault_hit("ps.replay.record"); /* `hold`: a start that takes long */
    bd_status rc = ps_record_decode(f->record, f->record_bytes, &rec, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = rec.seq.n != f->n
             ? bd_err_set(err, BD_E_CORRUPT,
                          "frame %" PRIu64 " of the journal holds record %" PRIu64, f->n, rec.seq.n)
             : g->fn(g->user, &rec, err);
    g->done_bytes += f->record_bytes;
    g->n += rc == BD_OK ? 1u : 0u; /* what follows is damaged, if anything */
    bd_free(rec.sections);
    return rc;
}

/* What is whole stays: the records from the damaged one on are given up. */
static bd_status salvage_end(replay *g, const bd_err *why, bd_err *err)
{
    BD_LOG(ERROR, "salvage: the journal is damaged; records from here on are given up", "record",
           g->n, "last", g->journal->head, "error", bd_err_text(why));
    return ps_journal_drop_from(g->journal, g->n, err);
}

bd_status ps_journal_replay(ps_journal *j, bool salvage, ps_record_fn fn, void *user,
                            const ps_progress *progress, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    replay g = {.journal = j,
                .fn = fn,
                .user = user,
                .progress = progress,
                .start_ns = bd_mono_ns(),
                .logged_ns = bd_mono_ns()};
    bd_status rc = ps_log_each(j->log, emit, &g, &why);
    if (rc == BD_E_CORRUPT && salvage) {
        return salvage_end(&g, &why, err);
    }
    if (rc == BD_E_CORRUPT) {
        return bd_err_set(err, rc, "%s (" PS_SALVAGE_HINT ")", bd_err_text(&why));
    }
    return rc == BD_OK ? rc : bd_err_set(err, rc, "%s", bd_err_text(&why));
}
