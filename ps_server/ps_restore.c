/* Restoring a checkpoint onto this server, whatever number of servers made it.
 *
 * The same number: this server's own part is hard-linked, so nothing is copied. Another number: the
 * rows of this server's slots are read out of every part that holds some and written to a new row
 * store. Their sequence numbers come from other servers' journals, so they are restamped at this
 * journal's head: every later record of this server is newer than they are. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_frozen.h"
#include "ps_server/ps_parts.h"
#include "ps_server/ps_pull.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard_int.h"

#include <inttypes.h>
#include <string.h>

#define CHUNK_BYTES (8u << 20)

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "no memory");
    return BD_E_NOMEM;
}

/* ---- the same number of servers ---- */
static bd_status link_rows(const ps_ckpt_part *part, char *to, bd_err *err)
{
    char *from = bd_strfmt("%s/rows", part->folder);
    bd_status rc = from == NULL ? no_memory(err) : ps_dir_link(from, to, err);
    bd_free(from);
    return rc;
}

/* ---- another number ---- */
typedef struct refill {
    ps_store *store;
    const ps_tables *tables;
    uint32_t first_slot, end_slot;
    ps_seqno head;
    ps_entries chunk; /* of one table */
    size_t cap_rows;
    uint64_t n_read, n_kept;
} refill;

static bd_status write_chunk(refill *r, bd_err *err)
{
    bd_status rc =
        r->chunk.n == 0 ? BD_OK : ps_store_write(r->store, &r->chunk, 1, false, NULL, NULL, err);
    r->chunk.n = 0;
    return rc;
}

/* The chunk becomes one of this table. */
static bd_status start_table(refill *r, uint32_t table_id, bd_err *err)
{
    bd_status rc = write_chunk(r, err);
    ps_table *t = ps_tables_find(r->tables, table_id);
    if (rc == BD_OK && t == NULL) {
        rc = bd_err_set(err, BD_E_CORRUPT, "a row belongs to table %u, which its MANIFEST lacks",
                        table_id);
    }
    if (rc != BD_OK) {
        return rc;
    }
    const ps_spec *spec = ps_table_spec(t);
    ps_entries_deinit(&r->chunk);
    r->chunk.table_id = table_id;
    r->chunk.value_bytes =
        PS_ENTRY_META_BYTES + (spec->weight_words + spec->state_elems) * sizeof(float);
    size_t entry_bytes = PS_ENTRY_KEY_BYTES + r->chunk.value_bytes;
    r->cap_rows = CHUNK_BYTES / entry_bytes + 1;
    r->chunk.bytes = bd_alloc(r->cap_rows * entry_bytes);
    return r->chunk.bytes != NULL ? BD_OK : no_memory(err);
}

static bd_status take_row(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                          size_t value_bytes, bd_err *err)
{
    refill *r = user;
    if (value_bytes == PS_ENTRY_META_BYTES) {
        return BD_OK; /* the tombstone of a row that was evicted */
    }
    ps_table *t = ps_tables_find(r->tables, ps_get_be32(key));
    bool hidden = t != NULL && ps_table_spec(t)->hidden != PS_NOT_HIDDEN;
    r->n_read += !hidden;
    if (key_bytes != PS_ENTRY_KEY_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "a row has a key of %zu bytes", key_bytes);
    }
    uint32_t slot = ps_slot_of_key(ps_get_be64(key + 4));
    if (slot < r->first_slot || slot >= r->end_slot) {
        return BD_OK;
    }
    bd_status rc = BD_OK;
    if (r->chunk.bytes == NULL || r->chunk.table_id != ps_get_be32(key)) {
        rc = start_table(r, ps_get_be32(key), err);
    } else if (r->chunk.n == r->cap_rows) {
        rc = write_chunk(r, err);
    }
    if (rc == BD_OK && value_bytes != r->chunk.value_bytes) {
        rc = bd_err_set(err, BD_E_CORRUPT, "a row of table %u has %zu bytes instead of %zu",
                        r->chunk.table_id, value_bytes, r->chunk.value_bytes);
    }
    if (rc == BD_OK) {
        uint8_t *to = r->chunk.bytes + r->chunk.n++ * (PS_ENTRY_KEY_BYTES + value_bytes);
        memcpy(to, key, key_bytes);
        memcpy(to + PS_ENTRY_KEY_BYTES, value, value_bytes);
        ps_put_le64(to + PS_ENTRY_KEY_BYTES + 8, r->head.n);
        r->n_kept += !hidden;
    }
    return rc;
}

static bd_status refill_from(refill *r, const ps_ckpt_part *part, bd_err *err)
{
    ps_frozen *f = NULL;
    char *rows = bd_strfmt("%s/rows", part->folder);
    bd_status rc = rows == NULL ? no_memory(err) : ps_frozen_open(rows, &f, err);
    r->n_read = 0;
    if (rc == BD_OK) {
        rc = ps_frozen_each(f, 0, take_row, r, err);
    }
    if (rc == BD_OK) {
        rc = write_chunk(r, err);
    }
    if (rc == BD_OK && r->n_read != part->m.n_rows) {
        rc = bd_err_set(err, BD_E_CORRUPT, "it has %" PRIu64 " rows, its MANIFEST says %" PRIu64,
                        r->n_read, part->m.n_rows);
    }
    ps_frozen_close(f);
    bd_free(rows);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "%s", part->folder);
}

/* Fills the empty store with the rows of this server's slots; *n_rows of them. */
static bd_status gather_rows(ps_shard *s, const ps_parts *parts, ps_swap *out, uint64_t *n_rows,
                             bd_err *err)
{
    refill r = {.store = out->store,
                .tables = &out->tables,
                .first_slot = s->first_slot,
                .end_slot = s->end_slot};
    int64_t start = bd_mono_ns();
    bd_status rc = BD_OK;
    size_t n_parts = 0;
    r.head = ps_journal_next(s->journal);
    r.head.n -= 1;
    for (size_t i = 0; i < parts->n && rc == BD_OK; i++) {
        if (ps_part_overlaps(&parts->items[i], s->first_slot, s->end_slot)) {
            rc = refill_from(&r, &parts->items[i], err);
            n_parts++;
        }
    }
    if (rc == BD_OK) {
        rc = ps_store_flush(out->store, err);
    }
    if (rc == BD_OK) {
        out->next_n = r.head.n + 1;
        *n_rows = r.n_kept;
        BD_LOG(INFO, "rows gathered from another number of servers", "parts", n_parts, "of",
               parts->items[0].m.servers, "rows", r.n_kept, "ms",
               (bd_mono_ns() - start) / BD_NS_PER_MS);
    }
    ps_entries_deinit(&r.chunk);
    return rc;
}

/* ---- both ---- */
/* Every part knows the same tables. */
static bd_status add_tables(const ps_parts *parts, ps_tables *ts, bd_err *err)
{
    const ps_manifest *m = &parts->items[0].m;
    bd_status rc = BD_OK;
    for (size_t i = 0; i < m->n_specs && rc == BD_OK; i++) {
        rc = ps_tables_add(ts, &m->specs[i], err);
    }
    for (size_t k = 1; k < parts->n && rc == BD_OK; k++) {
        const ps_manifest *other = &parts->items[k].m;
        bool same = other->n_specs == m->n_specs;
        for (size_t i = 0; i < other->n_specs && same; i++) {
            const ps_table *t = ps_tables_find(ts, other->specs[i].id);
            same = t != NULL && ps_spec_same(ps_table_spec(t), &other->specs[i], NULL) == BD_OK;
        }
        if (!same) {
            rc = bd_err_set(err, BD_E_MISMATCH, "%s and %s have different tables",
                            parts->items[0].folder, parts->items[k].folder);
        }
    }
    return rc;
}

static bd_status check_parts(const ps_shard *s, const ps_parts *parts, bd_err *err)
{
    bd_status rc = ps_parts_check(parts, s->first_slot, s->end_slot, err);
    for (size_t i = 0; i < parts->n && rc == BD_OK; i++) {
        if (ps_part_overlaps(&parts->items[i], s->first_slot, s->end_slot)) {
            rc = ps_manifest_check_sizes(&parts->items[i].m, parts->items[i].folder, err);
        }
    }
    return rc;
}

static const ps_ckpt_part *own_part(const ps_shard *s, const ps_parts *parts)
{
    for (size_t i = 0; i < parts->n; i++) {
        const ps_manifest *m = &parts->items[i].m;
        if (m->servers == s->n_servers && m->index == s->index) {
            return &parts->items[i];
        }
    }
    return NULL;
}

static bool is_stopping(void *user)
{
    ps_shard *s = user;
    (void)pthread_mutex_lock(&s->core_lock);
    bool stopping = s->stopping;
    (void)pthread_mutex_unlock(&s->core_lock);
    return stopping;
}

static bd_status fill_store(ps_shard *s, const ps_parts *parts, ps_swap *out, bd_err *err)
{
    const ps_ckpt_part *own = own_part(s, parts);
    uint64_t n_rows = own == NULL ? 0 : own->m.n_rows;
    out->rows_no = s->rows_no + 1;
    char *to = bd_strfmt("%s/rows-%" PRIu64, s->dir, out->rows_no);
    bd_status rc = to == NULL ? no_memory(err) : ps_dir_remove(to, err);
    if (rc == BD_OK && own != NULL) {
        rc = link_rows(own, to, err);
        out->next_n = own->m.next_n;
    }
    if (rc == BD_OK) {
        rc = ps_store_open(to, &s->budget, &out->store, err);
    }
    if (rc == BD_OK && own == NULL) {
        rc = gather_rows(s, parts, out, &n_rows, err);
    }
    if (rc == BD_OK) {
        rc = ps_load_rows(out->store, &out->tables, NULL, err);
    }
    if (rc == BD_OK && ps_tables_n_rows(&out->tables) != n_rows) {
        rc = bd_err_set(err, BD_E_CORRUPT, "its rows are %" PRIu64 ", its manifest says %" PRIu64,
                        ps_tables_n_rows(&out->tables), n_rows);
    }
    bd_free(to);
    return rc;
}

/* The parts that only servers have come into a folder of ours. When a pull fails they stay, so that
 * the next try (the client's) goes on from there; ps_ckpt_clean removes them after a restore. */
static bd_status pull_parts(ps_shard *s, const char *name, uint64_t epoch, bd_err *err)
{
    char *to = bd_strfmt("%s/" PS_PULL_FOLDER, s->dir);
    const ps_pull p = {.env = s->env,
                       .allow_insecure = s->allow_insecure,
                       .name = name,
                       .epoch = epoch,
                       .first_slot = s->first_slot,
                       .end_slot = s->end_slot,
                       .own = s->dir,
                       .to = to,
                       .stop = is_stopping,
                       .user = s};
    bd_status rc = to == NULL ? no_memory(err) : ps_pull_parts(&p, s->restore_from, err);
    bd_free(to);
    return rc;
}

bd_status ps_ckpt_load(ps_shard *s, const char *name, uint64_t epoch, ps_swap *out, bd_err *err)
{
    ps_parts parts = {0};
    out->tables.budget = &s->budget;
    bool pulls = strstr(s->restore_from, PS_PULL_SCHEME) != NULL;
    char *from = pulls ? bd_strfmt("%s,%s/" PS_PULL_FOLDER, s->restore_from, s->dir)
                       : bd_strdup(s->restore_from);
    bd_status rc = from == NULL ? no_memory(err) : BD_OK;
    if (rc == BD_OK && pulls) {
        rc = pull_parts(s, name, epoch, err);
    }
    if (rc == BD_OK) {
        rc = ps_parts_find(&parts, s->dir, from, name, epoch, err);
    }
    if (rc == BD_OK) {
        rc = check_parts(s, &parts, err);
    }
    if (rc == BD_OK) {
        rc = add_tables(&parts, &out->tables, err);
    }
    if (rc == BD_OK) {
        rc = fill_store(s, &parts, out, err);
    }
    ps_parts_deinit(&parts);
    bd_free(from);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "checkpoint \"%s\"", name);
}
