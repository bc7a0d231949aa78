#include "ps_server/ps_journal.h"

#include "base/assert.h"
#include "base/fault.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_journal_int.h"

#include <inttypes.h>
#include <string.h>

#define FACT_KEY_BYTES 2048u

/* Returns the key's length, 0 when the name is too long. */
static size_t fact_key(char *key, char area, const char *name)
{
    size_t n = strlen(name);
    if (n + 2 > FACT_KEY_BYTES) {
        return 0;
    }
    key[0] = area;
    memcpy(key + 1, name, n + 1); /* the terminator is not part of the key */
    return n + 1;
}

static bd_status check_names(const ps_fact *facts, size_t n, bd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(facts[i].name) + 2 > FACT_KEY_BYTES || facts[i].name[0] == '\0') {
            return bd_err_set(err, BD_E_INVALID, "a name of no or more than %u bytes",
                              FACT_KEY_BYTES - 2);
        }
    }
    return BD_OK;
}

/* Names are checked. */
static void add_facts(rocksdb_writebatch_t *b, const ps_fact *facts, size_t n)
{
    char key[FACT_KEY_BYTES];
    for (size_t i = 0; i < n; i++) {
        size_t len = fact_key(key, facts[i].area, facts[i].name);
        if (facts[i].val == NULL) {
            rocksdb_writebatch_delete(b, key, len);
        } else {
            rocksdb_writebatch_put(b, key, len, facts[i].val, facts[i].val_bytes);
        }
    }
}

bool ps_journal_is_broken(ps_journal *j, bd_err *err)
{
    (void)pthread_mutex_lock(&j->lock);
    bool broken = j->is_broken;
    if (broken) {
        (void)bd_err_set(err, BD_E_IO,
                         "a sync of the journal failed (%.300s), so nobody knows what is on the "
                         "disk: check it and start the server again",
                         bd_err_text(&j->broken));
    }
    (void)pthread_mutex_unlock(&j->lock);
    return broken;
}

/* After a failed sync the kernel may have dropped what it could not write: what was written before
 * is not safe, and trying again would not tell. */
static void set_broken(ps_journal *j, const bd_err *why)
{
    (void)pthread_mutex_lock(&j->lock);
    if (!j->is_broken) {
        (void)bd_err_set(&j->broken, BD_E_IO, "%s", bd_err_text(why));
    }
    j->is_broken = true;
    (void)pthread_mutex_unlock(&j->lock);
}

bool ps_journal_has_damage(const ps_journal *j)
{
    return j->has_damage;
}

/* ---- facts in RocksDB ---- */
static bd_status write_batch(ps_journal *j, rocksdb_writebatch_t *b, bool sync, bd_err *err)
{
    char *text = NULL;
    if (ps_journal_is_broken(j, err)) {
        return BD_E_IO;
    }
    bd_status rc = ps_journal_begin_write(j, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!sync) {
        atomic_store(&j->unsynced_db, true);
    }
    rocksdb_write(j->rocks.db, sync ? j->rocks.write_synced : j->rocks.write_logged, b, &text);
    rc = ps_rocks_status(&j->rocks, "write", text, err);
    return ps_journal_end_write(j, rc);
}

bd_status ps_journal_put_db(ps_journal *j, const ps_fact *facts, size_t n_facts, bool sync,
                            bd_err *err)
{
    bd_status rc = check_names(facts, n_facts, err);
    if (rc != BD_OK) {
        return rc;
    }
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    add_facts(b, facts, n_facts);
    rc = write_batch(j, b, sync, err);
    rocksdb_writebatch_destroy(b);
    return rc;
}

bd_status ps_journal_put(ps_journal *j, const ps_fact *facts, size_t n_facts, bool sync,
                         bd_err *err)
{
    return n_facts > 0 && facts[0].area == 'C'
               ? ps_journal_put_db(j, facts, n_facts, sync, err)
               : ps_journal_append(j, NULL, facts, n_facts, sync, err);
}

static bd_status copy_out(const void *from, size_t n, const char *name, uint8_t **val,
                          size_t *n_bytes, bd_err *err)
{
    *val = bd_alloc(n + 1);
    if (*val == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read %s: no memory", name);
    }
    if (n > 0) {
        memcpy(*val, from, n);
    }
    *n_bytes = n;
    return BD_OK;
}

/* Does the log have the last word on a fact of area 'M'? */
static bool find_in_log(ps_journal *j, const char *name, uint8_t **val, size_t *n_bytes,
                        bd_status *rc, bd_err *err)
{
    (void)pthread_mutex_lock(&j->lock);
    const ps_facts_item *it = ps_facts_find(&j->facts, name);
    if (it != NULL && it->val != NULL) {
        *rc = copy_out(it->val, it->val_bytes, name, val, n_bytes, err);
    }
    (void)pthread_mutex_unlock(&j->lock);
    return it != NULL;
}

bd_status ps_journal_get(ps_journal *j, char area, const char *name, uint8_t **val, size_t *n_bytes,
                         bd_err *err)
{
    char key[FACT_KEY_BYTES], *text = NULL;
    size_t len = fact_key(key, area, name), n = 0;
    bd_status rc = BD_OK;
    *val = NULL;
    *n_bytes = 0;
    if (area == 'M' && find_in_log(j, name, val, n_bytes, &rc, err)) {
        return rc;
    }
    rc = ps_journal_begin_read(j, err);
    if (rc != BD_OK) {
        return rc;
    }
    char *found = rocksdb_get(j->rocks.db, j->rocks.read, key, len, &n, &text);
    rc = ps_rocks_status(&j->rocks, "read", text, err);
    ps_journal_end_read(j);
    if (rc == BD_OK && found != NULL) {
        rc = copy_out(found, n, name, val, n_bytes, err);
    }
    rocksdb_free(found);
    return rc;
}

/* The facts of one area whose names have a prefix: those of RocksDB and those of the log, merged.
 */
typedef struct walk {
    ps_journal *journal;
    const char *prefix;
    size_t prefix_bytes;
    bool is_logged; /* area 'M' */
    size_t at;      /* in journal->facts */
    ps_fact_fn fn;
    void *user;
} walk;

/* Facts of the log up to this name (NULL: all); *known: it is among them. The log is not appended
 * to meanwhile (facts are walked at a start alone). */
static bd_status walk_log(walk *w, const char *upto, bool *known, bd_err *err)
{
    const ps_facts *f = &w->journal->facts;
    bd_status rc = BD_OK;
    *known = false;
    while (w->is_logged && rc == BD_OK && w->at < f->n && !*known) {
        const ps_facts_item *it = &f->items[w->at];
        int order = upto == NULL ? -1 : strcmp(it->name, upto);
        if (order > 0 || strncmp(it->name, w->prefix, w->prefix_bytes) != 0) {
            break;
        }
        *known = order == 0;
        w->at++;
        rc = it->val == NULL ? BD_OK : w->fn(w->user, it->name, it->val, it->val_bytes, err);
    }
    return rc;
}

static bd_status walk_db(walk *w, rocksdb_iterator_t *it, const char *want, bd_err *err)
{
    char name[FACT_KEY_BYTES], *text = NULL;
    bd_status rc = BD_OK;
    bool known = false;
    rocksdb_iter_seek(it, want, w->prefix_bytes + 1);
    for (; rc == BD_OK && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        size_t nk = 0, nv = 0;
        const char *k = rocksdb_iter_key(it, &nk), *v = rocksdb_iter_value(it, &nv);
        if (nk < w->prefix_bytes + 1 || memcmp(k, want, w->prefix_bytes + 1) != 0 ||
            nk > FACT_KEY_BYTES) {
            break;
        }
        memcpy(name, k + 1, nk - 1);
        name[nk - 1] = '\0';
        rc = walk_log(w, name, &known, err);
        if (rc == BD_OK && !known) {
            rc = w->fn(w->user, name, (const uint8_t *)v, nv, err);
        }
    }
    if (rc == BD_OK) {
        rc = walk_log(w, NULL, &known, err);
    }
    if (rc == BD_OK) {
        rocksdb_iter_get_error(it, &text);
        rc = ps_rocks_status(&w->journal->rocks, "read", text, err);
    }
    return rc;
}

bd_status ps_journal_each(ps_journal *j, char area, const char *prefix, ps_fact_fn fn, void *user,
                          bd_err *err)
{
    char want[FACT_KEY_BYTES];
    walk w = {.journal = j,
              .prefix = prefix,
              .prefix_bytes = strlen(prefix),
              .is_logged = area == 'M',
              .at = ps_facts_at(&j->facts, prefix),
              .fn = fn,
              .user = user};
    (void)fact_key(want, area, prefix);
    bd_status rc = ps_journal_begin_read(j, err);
    if (rc != BD_OK) {
        return rc;
    }
    rocksdb_iterator_t *it = rocksdb_create_iterator(j->rocks.db, j->rocks.read);
    rc = walk_db(&w, it, want, err);
    rocksdb_iter_destroy(it);
    ps_journal_end_read(j);
    return rc;
}

/* ---- records kept ---- */
bd_status ps_journal_keep(ps_journal *j, uint64_t n, size_t bytes)
{
    if (j->kept != NULL && j->kept_first > 1024 &&
        j->kept_first > j->n_kept) { /* move to the front now and then */
        memmove(j->kept, j->kept + j->kept_first, j->n_kept * sizeof *j->kept);
        j->kept_first = 0;
    }
    if (!bd_grow(&j->kept, &j->cap_kept, j->kept_first + j->n_kept + 1, sizeof *j->kept)) {
        return BD_E_NOMEM;
    }
    j->kept[j->kept_first + j->n_kept++] = (ps_kept){n, bytes};
    j->bytes += bytes;
    return BD_OK;
}

ps_seqno ps_journal_next(ps_journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    ps_seqno s = {j->generation, j->head + 1};
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

ps_seqno ps_journal_skip(ps_journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    ps_seqno s = {j->generation, ++j->head};
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

/* Under lock. The record before the next one, 0: none is kept. */
static uint64_t last_kept(const ps_journal *j)
{
    return j->n_kept == 0 ? 0 : j->kept[j->kept_first + j->n_kept - 1].n;
}

/* ---- appending ---- */
/* What a frame consists of, made ready so that nothing can fail after it is written. */
static bd_status prepare(ps_journal *j, const ps_record *rec, const ps_fact *facts, size_t n_facts,
                         ps_facts_item **copies, bd_err *err)
{
    bd_status rc = check_names(facts, n_facts, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!bd_grow(&j->packed, &j->cap_packed, ps_facts_packed_bytes(facts, n_facts) + 8, 1)) {
        return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
    }
    ps_facts_pack(facts, n_facts, j->packed);
    (void)pthread_mutex_lock(&j->lock);
    rc = ps_facts_copy(&j->facts, facts, n_facts, copies);
    if (rc == BD_OK && rec != NULL) {
        BD_ASSERT(rec->seq.n == j->head + 1);
        ps_record linked = *rec;
        linked.before_n = last_kept(j);
        rc = ps_record_pieces(&linked, &j->pieces);
        rc = rc == BD_OK ? ps_journal_keep(j, rec->seq.n, ps_record_bytes(rec)) : rc;
        if (rc != BD_OK) {
            ps_facts_drop_copies(*copies, n_facts);
        }
    }
    (void)pthread_mutex_unlock(&j->lock);
    return rc == BD_OK ? rc : bd_err_set(err, rc, "journal: no memory");
}

static void written(ps_journal *j, uint64_t n, ps_facts_item *copies, size_t n_facts)
{
    (void)pthread_mutex_lock(&j->lock);
    j->head = n;
    ps_mark_written(&j->mark, n);
    ps_facts_take(&j->facts, copies, n_facts);
    (void)pthread_mutex_unlock(&j->lock);
}

static void not_written(ps_journal *j, const ps_record *rec, ps_facts_item *copies, size_t n_facts)
{
    (void)pthread_mutex_lock(&j->lock);
    if (rec != NULL) {
        j->bytes -= j->kept[j->kept_first + --j->n_kept].bytes;
    }
    (void)pthread_mutex_unlock(&j->lock);
    ps_facts_drop_copies(copies, n_facts);
}

bd_status ps_journal_append(ps_journal *j, const ps_record *rec, const ps_fact *facts,
                            size_t n_facts, bool sync, bd_err *err)
{
    ps_facts_item *copies = NULL;
    if (ps_journal_is_broken(j, err)) {
        return BD_E_IO;
    }
    if (bd_fault_hit("ps.journal.append.before")) {
        return bd_err_set(err, BD_E_IO, "write %s: fault point", j->rocks.path);
    }
    (void)pthread_mutex_lock(&j->write_lock);
    uint64_t n = ps_journal_next(j).n;
    bd_status rc = prepare(j, rec, facts, n_facts, &copies, err);
    if (rc == BD_OK) {
        rc = ps_log_append(j->log, n, j->packed, ps_facts_packed_bytes(facts, n_facts),
                           rec == NULL ? NULL : &j->pieces, err);
        if (rc == BD_OK) {
            written(j, n, copies, n_facts);
        } else {
            not_written(j, rec, copies, n_facts);
        }
    }
    (void)pthread_mutex_unlock(&j->write_lock);
    if (rc == BD_OK && sync) {
        rc = ps_journal_sync(j, err);
    }
    (void)bd_fault_hit("ps.journal.append.after"); /* only `kill` makes sense here */
    return rc;
}

/* ---- syncing ---- */
/* Facts of the coordinator that were put without a sync. */
static bd_status sync_db(ps_journal *j, bd_err *err)
{
    char *text = NULL;
    if (!atomic_exchange(&j->unsynced_db, false)) {
        return BD_OK;
    }
    bd_status rc = ps_journal_begin_write(j, err);
    if (rc != BD_OK) {
        return rc;
    }
    rocksdb_flush_wal(j->rocks.db, 1, &text);
    return ps_journal_end_write(j, ps_rocks_status(&j->rocks, "sync", text, err));
}

bd_status ps_journal_sync(ps_journal *j, bd_err *err)
{
    if (ps_journal_is_broken(j, err)) {
        return BD_E_IO;
    }
    (void)pthread_mutex_lock(&j->lock);
    uint64_t head = j->head;
    (void)pthread_mutex_unlock(&j->lock);
    bd_status rc = bd_fault_hit("ps.journal.sync")
                       ? bd_err_set(err, BD_E_IO, "sync %s: fault point", j->rocks.path)
                       : ps_log_sync(j->log, err);
    if (rc == BD_OK) {
        rc = sync_db(j, err);
    }
    if (rc != BD_OK) {
        set_broken(j, err);
        return rc;
    }
    (void)pthread_mutex_lock(&j->lock);
    ps_mark_synced(&j->mark, head);
    (void)pthread_mutex_unlock(&j->lock);
    return BD_OK;
}

/* ---- cutting ---- */
static void drop_kept(ps_journal *j, uint64_t below_n)
{
    while (j->n_kept > 0 && j->kept[j->kept_first].n < below_n) {
        j->bytes -= j->kept[j->kept_first].bytes;
        j->kept_first++;
        j->n_kept--;
    }
    if (j->n_kept == 0) {
        j->kept_first = 0;
    }
}

/* The log's newest facts, but those that a reset forgets. Returns the last change among them. */
static uint64_t add_logged(ps_journal *j, rocksdb_writebatch_t *b, bool reset)
{
    (void)pthread_mutex_lock(&j->lock);
    for (size_t i = 0; i < j->facts.n; i++) {
        const ps_facts_item *it = &j->facts.items[i];
        bool forgotten =
            strncmp(it->name, "client/", 7) == 0 || strncmp(it->name, "table/", 6) == 0;
        if (!reset || !forgotten) {
            ps_fact f = {'M', it->name, it->val, it->val_bytes};
            add_facts(b, &f, 1);
        }
    }
    uint64_t change = j->facts.n_changes;
    (void)pthread_mutex_unlock(&j->lock);
    return change;
}

static void add_number(rocksdb_writebatch_t *b, const char *name, uint64_t v)
{
    uint8_t bytes[8];
    ps_put_le64(bytes, v);
    ps_fact f = {'M', name, bytes, sizeof bytes};
    add_facts(b, &f, 1);
}

/* Files of the log that no record needs go; what else is in them goes to RocksDB before, synced, as
 * far as the log itself is. */
static bd_status drop_files(ps_journal *j, uint64_t segment, rocksdb_writebatch_t *b, bd_err *err)
{
    uint64_t change = add_logged(j, b, false);
    add_number(b, "log", segment);
    bd_status rc = ps_journal_sync(j, err);
    if (rc == BD_OK) {
        rc = write_batch(j, b, true, err);
    }
    if (rc == BD_OK) {
        ps_log_drop_before(j->log, segment);
        (void)pthread_mutex_lock(&j->lock);
        ps_facts_forget(&j->facts, change);
        (void)pthread_mutex_unlock(&j->lock);
    }
    return rc;
}

bd_status ps_journal_cut(ps_journal *j, uint64_t below_n, bd_err *err)
{
    bool more = false;
    uint64_t next = ps_journal_next(j).n;
    below_n = below_n > next ? next : below_n;
    uint64_t segment = ps_log_first_needed(j->log, below_n, &more);
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    add_number(b, "head", next - 1); /* numbers never go back, also when none is kept */
    add_number(b, "cut", below_n);
    bd_status rc = more ? drop_files(j, segment, b, err) : write_batch(j, b, false, err);
    rocksdb_writebatch_destroy(b);
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&j->lock);
        j->cut_n = below_n > j->cut_n ? below_n : j->cut_n;
        drop_kept(j, below_n);
        (void)pthread_mutex_unlock(&j->lock);
    }
    return rc;
}

/* Leaves has_damage alone: the shard asks. */
bd_status ps_journal_drop_from(ps_journal *j, uint64_t n, bd_err *err)
{
    bd_status rc = ps_log_drop_from(j->log, n, err);
    if (rc == BD_OK) {
        (void)pthread_mutex_lock(&j->lock);
        while (j->n_kept > 0 && j->kept[j->kept_first + j->n_kept - 1].n >= n) {
            j->bytes -= j->kept[j->kept_first + --j->n_kept].bytes;
        }
        (void)pthread_mutex_unlock(&j->lock);
        j->has_damage = true;
    }
    return rc == BD_OK ? ps_journal_note_head(j, err) : rc;
}

bd_status ps_journal_note_head(ps_journal *j, bd_err *err)
{
    uint8_t head[8];
    ps_put_le64(head, ps_journal_next(j).n - 1);
    ps_fact f = {'M', "head", head, sizeof head};
    return ps_journal_put_db(j, &f, 1, true, err);
}

bd_status ps_journal_reset(ps_journal *j, uint64_t min_head, const ps_fact *facts, size_t n_facts,
                           bd_err *err)
{
    bd_status rc = check_names(facts, n_facts, err);
    if (rc != BD_OK) {
        return rc;
    }
    uint64_t last = ps_journal_next(j).n - 1, segment = ps_log_roll(j->log);
    last = last > min_head ? last : min_head;
    rocksdb_writebatch_t *b = rocksdb_writebatch_create();
    rocksdb_writebatch_delete_range(b, "Mclient/", 8, "Mclient0", 8); /* '0' follows '/' */
    rocksdb_writebatch_delete_range(b, "Mtable/", 7, "Mtable0", 7);
    uint64_t change = add_logged(j, b, true);
    add_number(b, "head", last);
    add_number(b, "cut", last + 1);
    add_number(b, "log", segment);
    add_facts(b, facts, n_facts);
    rc = write_batch(j, b, true, err);
    rocksdb_writebatch_destroy(b);
    if (rc == BD_OK) {
        ps_log_drop_before(j->log, segment);
        (void)pthread_mutex_lock(&j->lock);
        ps_facts_forget(&j->facts, change);
        drop_kept(j, UINT64_MAX);
        j->head = last;
        j->cut_n = last + 1;
        (void)pthread_mutex_unlock(&j->lock);
    }
    return rc;
}

size_t ps_journal_bytes(ps_journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    size_t n = j->bytes;
    (void)pthread_mutex_unlock(&j->lock);
    return n;
}

uint64_t ps_journal_records(ps_journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    uint64_t n = j->n_kept;
    (void)pthread_mutex_unlock(&j->lock);
    return n;
}
