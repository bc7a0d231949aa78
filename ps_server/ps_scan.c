#include "ps_server/ps_scan.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_shard_int.h"

#include <string.h>

typedef struct pass {
    const ps_table *table;
    const ps_spec *spec;
    ps_scan *scan;
    float *row; /* owned: RocksDB's bytes, aligned */
    uint64_t sum, n_rows;
} pass;

static bd_status hash_entry(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                            size_t value_bytes, bd_err *err)
{
    pass *p = user;
    (void)key_bytes;
    bd_status rc = ps_table_check_value(p->table, value_bytes, err);
    if (rc == BD_OK && value_bytes > PS_ENTRY_META_BYTES) { /* else a tombstone */
        p->sum += ps_table_hash_row(p->spec, ps_get_be64(key + 4), value + PS_ENTRY_META_BYTES);
        p->n_rows++;
    }
    return rc;
}

bd_status ps_scan_hash(ps_shard *s, uint64_t *hash, uint64_t *n_rows, bd_err *err)
{
    bd_status rc = ps_keeper_make_room(s, false, err);
    *hash = *n_rows = 0;
    /* Tables go at this thread's wish only; new ones come behind those that are there. */
    for (size_t i = 0; rc == BD_OK; i++) {
        pass p = {0};
        const ps_tables *ts = ps_shard_lock_tables(s);
        p.table = i < ts->n ? ts->items[i] : NULL;
        ps_shard_unlock_tables(s);
        if (p.table == NULL) {
            break;
        }
        p.spec = ps_table_spec(p.table);
        if (p.spec->hidden != PS_NOT_HIDDEN) {
            continue;
        }
        rc = ps_store_range(s->store, p.spec->id, 0, hash_entry, &p, err);
        *hash += p.sum;
        *n_rows += p.n_rows;
    }
    return rc;
}

static bd_status page_entry(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                            size_t value_bytes, bd_err *err)
{
    pass *p = user;
    ps_page *g = &p->scan->page;
    const ps_spec *spec = p->spec;
    (void)key_bytes;
    bd_status rc = ps_table_check_value(p->table, value_bytes, err);
    if (rc != BD_OK || value_bytes == PS_ENTRY_META_BYTES) {
        return rc;
    }
    if (g->n == p->scan->max_rows) {
        g->more = true;
        g->next = ps_get_be64(key + 4);
        return BD_AGAIN;
    }
    memcpy(p->row, value + PS_ENTRY_META_BYTES, value_bytes - PS_ENTRY_META_BYTES);
    g->keys[g->n] = ps_get_be64(key + 4);
    num_row_decode(spec->dtype, p->row, spec->dim, g->rows + g->n * spec->dim);
    if (g->state != NULL) {
        memcpy(g->state + g->n * spec->state_elems, p->row + spec->weight_words,
               spec->state_elems * sizeof(float));
    }
    g->n++;
    return BD_OK;
}

bd_status ps_scan_page(ps_shard *s, ps_scan *scan, bd_err *err)
{
    const ps_tables *ts = ps_shard_lock_tables(s);
    pass p = {.table = ps_tables_find(ts, scan->table_id), .scan = scan};
    ps_shard_unlock_tables(s);
    if (p.table == NULL) {
        return bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u", scan->table_id);
    }
    p.spec = ps_table_spec(p.table);
    p.row = bd_alloc(ps_table_value_bytes(p.table));
    if (p.row == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "export: no memory");
    }
    scan->page.n = 0;
    scan->page.more = false;
    bd_status rc = ps_keeper_make_room(s, false, err);
    if (rc == BD_OK) {
        rc = ps_store_range(s->store, scan->table_id, scan->from, page_entry, &p, err);
    }
    bd_free(p.row);
    return rc;
}
