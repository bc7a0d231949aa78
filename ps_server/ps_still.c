#include "ps_server/ps_still.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_frozen.h"
#include "ps_server/ps_journal.h"
#include "ps_server/ps_rocks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* A row that a record changed: an entry of ps_table.h. */
typedef struct changed_row {
    uint32_t table_id;
    uint64_t key;
    const uint8_t *value;
    size_t value_bytes;
} changed_row;

struct ps_still {
    int lock_fd;
    char *dir; /* owned */
    uint32_t index, servers;
    uint64_t rows_no;
    ps_journal *journal;
    ps_frozen *rows; /* NULL: nothing was written back yet */
    ps_tables tables;
    ps_plan *plan;
    ps_entries *entries; /* owned [n_entries]: what the changed rows point into */
    size_t n_entries, cap_entries;
    changed_row *changed; /* owned [n_changed], by table and key */
    size_t n_changed, cap_changed;
};

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "read rows: no memory");
    return BD_E_NOMEM;
}

void ps_still_close(ps_still *s)
{
    if (s == NULL) {
        return;
    }
    for (size_t i = 0; i < s->n_entries; i++) {
        ps_entries_deinit(&s->entries[i]);
    }
    bd_free(s->entries);
    bd_free(s->changed);
    ps_plan_free(s->plan);
    ps_tables_deinit(&s->tables);
    ps_frozen_close(s->rows);
    ps_journal_close(s->journal);
    if (s->lock_fd >= 0) {
        (void)close(s->lock_fd);
    }
    bd_free(s->dir);
    bd_free(s);
}

const ps_tables *ps_still_tables(const ps_still *s)
{
    return &s->tables;
}

void ps_still_identity(const ps_still *s, uint32_t *index, uint32_t *servers)
{
    *index = s->index;
    *servers = s->servers;
}

/* ---- opening ---- */
/* A running server holds the lock; we hold it, shared, so that none starts meanwhile. */
static bd_status lock(ps_still *s, bd_err *err)
{
    char *path = bd_strfmt("%s/LOCK", s->dir);
    bd_status rc = path == NULL ? no_memory(err) : BD_OK;
    s->lock_fd = rc == BD_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (rc == BD_OK && s->lock_fd < 0) {
        rc = bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno,
                          "%s is not a data folder: open %s", s->dir, path);
    } else if (rc == BD_OK && flock(s->lock_fd, LOCK_SH | LOCK_NB) != 0) {
        rc = bd_err_set(err, BD_E_EXISTS,
                        "a server runs on data folder %s: ask it (--coordinator), or stop it",
                        s->dir);
    }
    bd_free(path);
    return rc;
}

static bd_status load_table(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                            bd_err *err)
{
    ps_still *s = user;
    ps_spec spec;
    bd_status rc = ps_spec_unpack(val, n_bytes, &spec, err);
    if (rc == BD_OK) {
        rc = ps_tables_add(&s->tables, &spec, err);
    }
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "fact \"%s\"", name);
}

static bd_status load_facts(ps_still *s, bd_err *err)
{
    uint8_t *val = NULL;
    size_t n = 0;
    bd_status rc = ps_journal_get(s->journal, 'M', "server", &val, &n, err);
    if (rc == BD_OK && val != NULL && n == 8) {
        s->index = ps_get_le32(val);
        s->servers = ps_get_le32(val + 4);
    }
    bd_free(val);
    val = NULL;
    if (rc == BD_OK) {
        rc = ps_journal_get(s->journal, 'M', "rows", &val, &n, err);
    }
    if (rc == BD_OK && val != NULL && n == 8) {
        s->rows_no = ps_get_le64(val);
    }
    bd_free(val);
    return rc == BD_OK ? ps_journal_each(s->journal, 'M', "table/", load_table, s, err) : rc;
}

static bd_status open_stores(ps_still *s, bd_err *err)
{
    char *path = bd_strfmt("%s/journal", s->dir), *rows = NULL, *current = NULL;
    bd_status rc = path == NULL ? no_memory(err) : ps_journal_open_frozen(path, &s->journal, err);
    if (rc == BD_OK) {
        rc = load_facts(s, err);
    }
    if (rc == BD_OK) {
        rows = bd_strfmt("%s/rows-%" PRIu64, s->dir, s->rows_no);
        current = rows == NULL ? NULL : bd_strfmt("%s/CURRENT", rows);
        rc = current == NULL ? no_memory(err) : BD_OK;
    }
    if (rc == BD_OK && access(current, F_OK) == 0) {
        rc = ps_frozen_open(rows, &s->rows, err);
    }
    bd_free(path);
    bd_free(rows);
    bd_free(current);
    return rc;
}

/* ---- the journal's records ---- */
static int by_place(const void *a, const void *b)
{
    const changed_row *x = a, *y = b;
    if (x->table_id != y->table_id) {
        return x->table_id < y->table_id ? -1 : 1;
    }
    return x->key < y->key ? -1 : x->key > y->key;
}

/* Pass one: the keys that records name. */
static bd_status note_keys(void *user, const ps_record *rec, bd_err *err)
{
    ps_still *s = user;
    for (size_t i = 0; i < rec->n_sections; i++) {
        const ps_section *x = &rec->sections[i];
        if (!bd_grow(&s->changed, &s->cap_changed, s->n_changed + x->n_keys + 1,
                     sizeof *s->changed)) {
            return no_memory(err);
        }
        for (size_t k = 0; k < x->n_keys; k++) {
            s->changed[s->n_changed++] = (changed_row){.table_id = x->table_id, .key = x->keys[k]};
        }
    }
    return BD_OK;
}

/* The row as the store has it comes into memory. */
static bd_status bring_in(ps_still *s, const changed_row *c, bd_err *err)
{
    uint8_t *value = NULL, k[PS_ENTRY_KEY_BYTES];
    size_t n = 0;
    ps_table *t = ps_tables_find(&s->tables, c->table_id);
    if (s->rows == NULL || t == NULL) {
        return BD_OK;
    }
    bd_status rc = ps_frozen_get(s->rows, c->table_id, c->key, &value, &n, err);
    if (rc == BD_OK && value != NULL) {
        ps_put_be32(k, c->table_id);
        ps_put_be64(k + 4, c->key);
        rc = ps_table_load(t, k, sizeof k, value, n, err);
    }
    bd_free(value);
    return rc;
}

/* Pass two. */
static bd_status apply(void *user, const ps_record *rec, bd_err *err)
{
    ps_still *s = user;
    bd_status rc = ps_plan_build(s->plan, rec, &s->tables, true, err);
    if (rc == BD_OK) {
        ps_plan_apply(s->plan, rec);
    }
    return rc;
}

/* As a start does it, but with the rows that records name alone in memory. */
static bd_status replay(ps_still *s, bd_err *err)
{
    bd_status rc = ps_journal_replay(s->journal, false, note_keys, s, NULL, err);
    if (rc == BD_OK && s->n_changed > 1) {
        qsort(s->changed, s->n_changed, sizeof *s->changed, by_place);
    }
    for (size_t i = 0; i < s->n_changed && rc == BD_OK; i++) {
        if (i == 0 || by_place(&s->changed[i - 1], &s->changed[i]) != 0) {
            rc = bring_in(s, &s->changed[i], err);
        }
    }
    s->n_changed = 0;
    return rc == BD_OK ? ps_journal_replay(s->journal, false, apply, s, NULL, err) : rc;
}

/* Rows that records changed, in order. */
static bd_status list_changed(ps_still *s, bd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < s->tables.n; i++) {
        for (uint32_t stripe = 0; stripe < PS_N_STRIPES; stripe++) {
            if (!bd_grow(&s->entries, &s->cap_entries, s->n_entries + 1, sizeof *s->entries) ||
                ps_table_take_dirty(s->tables.items[i], stripe, false, &s->entries[s->n_entries]) !=
                    BD_OK) {
                return no_memory(err);
            }
            n += s->entries[s->n_entries++].n;
        }
    }
    if (!bd_grow(&s->changed, &s->cap_changed, n + 1, sizeof *s->changed)) {
        return no_memory(err);
    }
    for (size_t i = 0; i < s->n_entries; i++) {
        const ps_entries *e = &s->entries[i];
        for (size_t k = 0; k < e->n; k++) {
            const uint8_t *at = e->bytes + k * (PS_ENTRY_KEY_BYTES + e->value_bytes);
            s->changed[s->n_changed++] = (changed_row){e->table_id, ps_get_be64(at + 4),
                                                       at + PS_ENTRY_KEY_BYTES, e->value_bytes};
        }
    }
    qsort(s->changed, s->n_changed, sizeof *s->changed, by_place);
    return BD_OK;
}

bd_status ps_still_open(const char *data_dir, ps_still **out, bd_err *err)
{
    ps_still *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return no_memory(err);
    }
    s->lock_fd = -1;
    s->dir = bd_strdup(data_dir);
    s->plan = ps_plan_new();
    bd_status rc = s->dir == NULL || s->plan == NULL ? no_memory(err) : lock(s, err);
    if (rc == BD_OK) {
        rc = open_stores(s, err);
    }
    if (rc == BD_OK) {
        rc = replay(s, err);
    }
    if (rc == BD_OK) {
        rc = list_changed(s, err);
    }
    if (rc != BD_OK) {
        ps_still_close(s);
        return bd_err_wrap(err, "%s", data_dir);
    }
    *out = s;
    return BD_OK;
}

/* ---- rows ---- */
/* What a row that was evicted for good leaves. */
static bool is_tombstone(const uint8_t *value, size_t value_bytes)
{
    return value_bytes == PS_ENTRY_META_BYTES || (ps_get_le32(value) & PS_ENTRY_DEAD) != 0;
}

static bd_status emit(const ps_spec *spec, uint64_t key, const uint8_t *value, size_t value_bytes,
                      ps_still_fn fn, void *user, bd_err *err)
{
    size_t weights = spec->weight_words * sizeof(float);
    if (is_tombstone(value, value_bytes)) {
        return BD_OK;
    }
    if (value_bytes != PS_ENTRY_META_BYTES + weights + spec->state_elems * sizeof(float)) {
        return bd_err_set(err, BD_E_CORRUPT, "table \"%s\" key %" PRIu64 " has %zu bytes",
                          spec->name, key, value_bytes);
    }
    const ps_still_row row = {.key = key,
                              .freq = ps_get_le32(value) & 0x7fffffffu,
                              .seq_n = ps_get_le64(value + 8),
                              .last_step = ps_get_le64(value + 16),
                              .weights = value + PS_ENTRY_META_BYTES,
                              .state = value + PS_ENTRY_META_BYTES + weights};
    return fn(user, &row, err);
}

static bd_status next_stored(ps_cursor *c, ps_cursor_row *row, bd_err *err)
{
    *row = (ps_cursor_row){0};
    return c == NULL ? BD_OK : ps_cursor_next(c, row, err);
}

bd_status ps_still_each(ps_still *s, const ps_spec *spec, ps_still_fn fn, void *user, bd_err *err)
{
    ps_cursor *c = NULL;
    ps_cursor_row stored = {0};
    const changed_row *at = s->changed, *end = s->changed + s->n_changed;
    while (at < end && at->table_id != spec->id) {
        at++;
    }
    bd_status rc = s->rows == NULL ? BD_OK : ps_cursor_open(s->rows, spec->id, &c, err);
    if (rc == BD_OK) {
        rc = next_stored(c, &stored, err);
    }
    while (rc == BD_OK) {
        bool have = at < end && at->table_id == spec->id;
        uint64_t key = stored.key == NULL ? 0 : ps_get_be64(stored.key + 4);
        if (have && (stored.key == NULL || at->key <= key)) {
            bool same = stored.key != NULL && at->key == key;
            rc = emit(spec, at->key, at->value, at->value_bytes, fn, user, err);
            at++;
            if (rc == BD_OK && same) {
                rc = next_stored(c, &stored, err);
            }
        } else if (stored.key != NULL) {
            rc = emit(spec, key, stored.value, stored.value_bytes, fn, user, err);
            if (rc == BD_OK) {
                rc = next_stored(c, &stored, err);
            }
        } else {
            break;
        }
    }
    ps_cursor_close(c);
    return rc;
}

bd_status ps_still_get(ps_still *s, const ps_spec *spec, uint64_t key, bool *found, ps_still_fn fn,
                       void *user, bd_err *err)
{
    uint8_t *value = NULL;
    size_t n = 0;
    const changed_row want = {.table_id = spec->id, .key = key};
    const changed_row *c = bsearch(&want, s->changed, s->n_changed, sizeof *s->changed, by_place);
    bd_status rc = BD_OK;
    *found = true;
    if (c != NULL) {
        *found = !is_tombstone(c->value, c->value_bytes);
        return emit(spec, key, c->value, c->value_bytes, fn, user, err);
    }
    if (s->rows != NULL) {
        rc = ps_frozen_get(s->rows, spec->id, key, &value, &n, err);
    }
    *found = value != NULL && !is_tombstone(value, n);
    if (rc == BD_OK && value != NULL) {
        rc = emit(spec, key, value, n, fn, user, err);
    }
    bd_free(value);
    return rc;
}
