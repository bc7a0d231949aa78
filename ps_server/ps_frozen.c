#include "ps_server/ps_frozen.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"

#include <string.h>

struct ps_frozen {
    ps_rocks rocks;
};

bd_status ps_frozen_open(const char *folder, ps_frozen **out, bd_err *err)
{
    ps_frozen *f = bd_calloc(1, sizeof *f);
    if (f == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "open %s: no memory", folder);
    }
    bd_status rc = ps_rocks_open_frozen(&f->rocks, folder, err);
    if (rc != BD_OK) {
        bd_free(f);
        return rc;
    }
    *out = f;
    return BD_OK;
}

void ps_frozen_close(ps_frozen *f)
{
    if (f != NULL) {
        ps_rocks_close(&f->rocks);
        bd_free(f);
    }
}

struct ps_cursor {
    ps_frozen *from; /* borrowed */
    rocksdb_iterator_t *it;
    uint32_t table_id; /* 0: all */
    bool started;
};

bd_status ps_cursor_open(ps_frozen *f, uint32_t table_id, ps_cursor **out, bd_err *err)
{
    uint8_t from[4];
    ps_cursor *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read rows: no memory");
    }
    c->from = f;
    c->table_id = table_id;
    c->it = rocksdb_create_iterator(f->rocks.db, f->rocks.read);
    ps_put_be32(from, table_id);
    rocksdb_iter_seek(c->it, (const char *)from, sizeof from);
    *out = c;
    return BD_OK;
}

void ps_cursor_close(ps_cursor *c)
{
    if (c != NULL) {
        rocksdb_iter_destroy(c->it);
        bd_free(c);
    }
}

bd_status ps_cursor_next(ps_cursor *c, ps_cursor_row *row, bd_err *err)
{
    char *text = NULL;
    *row = (ps_cursor_row){0};
    if (c->started) {
        rocksdb_iter_next(c->it);
    }
    c->started = true;
    if (!rocksdb_iter_valid(c->it)) {
        rocksdb_iter_get_error(c->it, &text);
        return ps_rocks_status(&c->from->rocks, "read rows", text, err);
    }
    row->key = (const uint8_t *)rocksdb_iter_key(c->it, &row->key_bytes);
    row->value = (const uint8_t *)rocksdb_iter_value(c->it, &row->value_bytes);
    if (row->key_bytes != PS_ENTRY_KEY_BYTES || row->value_bytes < PS_ENTRY_META_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: a row has %zu bytes of key and %zu of value",
                          c->from->rocks.path, row->key_bytes, row->value_bytes);
    }
    if (c->table_id != 0 && ps_get_be32(row->key) != c->table_id) {
        *row = (ps_cursor_row){0};
    }
    return BD_OK;
}

bd_status ps_frozen_each(ps_frozen *f, uint32_t table_id, ps_entry_fn fn, void *user, bd_err *err)
{
    ps_cursor *c = NULL;
    ps_cursor_row row = {0};
    bd_status rc = ps_cursor_open(f, table_id, &c, err);
    while (rc == BD_OK) {
        rc = ps_cursor_next(c, &row, err);
        if (rc != BD_OK || row.key == NULL) {
            break;
        }
        rc = fn(user, row.key, row.key_bytes, row.value, row.value_bytes, err);
    }
    ps_cursor_close(c);
    return rc;
}

bd_status ps_frozen_get(ps_frozen *f, uint32_t table_id, uint64_t key, uint8_t **value,
                        size_t *n_bytes, bd_err *err)
{
    uint8_t k[PS_ENTRY_KEY_BYTES];
    char *text = NULL;
    size_t n = 0;
    ps_put_be32(k, table_id);
    ps_put_be64(k + 4, key);
    char *v = rocksdb_get(f->rocks.db, f->rocks.read, (const char *)k, sizeof k, &n, &text);
    bd_status rc = ps_rocks_status(&f->rocks, "read row", text, err);
    *value = NULL;
    *n_bytes = n;
    if (rc == BD_OK && v != NULL) {
        *value = bd_alloc(n + 1);
        if (*value == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "read row: no memory");
        } else {
            memcpy(*value, v, n);
        }
    }
    rocksdb_free(v);
    return rc;
}
