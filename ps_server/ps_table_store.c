/* Rows on their way to and from the store: see ps_table.h. */
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_table_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD 8u /* rows on their way to the cache while one is copied */

/* They were changed in any order: each is a miss. */
static void prefetch_row(const ps_rows *r, uint32_t row)
{
    const char *p = (const char *)ps_rows_at(r, row);
    for (size_t b = 0; b < r->stride_bytes && b < (size_t)8 * BD_CACHE_LINE_BYTES;
         b += BD_CACHE_LINE_BYTES) {
        __builtin_prefetch(p + b, 1);
    }
}

static void write_entry(const ps_table *t, const ps_rows *r, uint32_t row, uint8_t *to)
{
    const ps_row_meta *m = ps_rows_meta(r, row);
    ps_put_be32(to, t->spec.id);
    ps_put_be64(to + 4, m->key);
    to += PS_ENTRY_KEY_BYTES;
    ps_put_le32(to, m->freq | (m->dead ? PS_ENTRY_DEAD : 0u));
    ps_put_le32(to + 4, m->last_time);
    ps_put_le64(to + 8, m->seq_n);
    ps_put_le64(to + 16, m->last_step);
    memcpy(to + PS_ENTRY_META_BYTES, ps_rows_at(r, row), r->elems * sizeof(float));
}

size_t ps_table_value_bytes(const ps_table *t)
{
    return PS_ENTRY_META_BYTES + ps_table_row_bytes(t);
}

/* The rows to take, moved to the front of the dirty list; the others keep their order behind. */
static size_t choose(ps_rows *r, bool cold_only)
{
    if (!cold_only || r->budget == NULL) {
        return r->n_dirty;
    }
    size_t n = 0;
    for (size_t i = 0; i < r->n_dirty; i++) {
        uint32_t row = r->dirty[i];
        if (ps_rows_is_cold(r, row)) {
            r->dirty[i] = r->dirty[n];
            r->dirty[n++] = row;
        }
    }
    return n;
}

bd_status ps_table_take_dirty(ps_table *t, uint32_t stripe_idx, bool cold_only, ps_entries *out)
{
    ps_stripe *st = &t->stripes[stripe_idx];
    ps_rows *r = &st->rows;
    bd_status rc = BD_OK;

    *out = (ps_entries){.table_id = t->spec.id, .stripe = stripe_idx, .oldest_n = UINT64_MAX};
    out->value_bytes = PS_ENTRY_META_BYTES + r->elems * sizeof(float);
    ps_stripe_write_lock(st);
    size_t n = choose(r, cold_only);
    if (n == 0) {
        goto out;
    }
    size_t entry_bytes = PS_ENTRY_KEY_BYTES + out->value_bytes;
    /* With a budget every page counts; else large ones, because sorting goes all over them. */
    out->bytes = r->budget != NULL ? bd_alloc(n * entry_bytes) : bd_alloc_huge(n * entry_bytes);
    if (out->bytes == NULL) {
        rc = BD_E_NOMEM;
        goto out;
    }
    out->n = n;
    out->oldest_n = r->oldest_dirty_n;
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            prefetch_row(r, r->dirty[i + AHEAD]);
        }
        ps_row_meta *m = ps_rows_meta(r, r->dirty[i]);
        write_entry(t, r, r->dirty[i], out->bytes + i * entry_bytes);
        m->dirty = 0;
        m->writing = r->budget != NULL || m->dead; /* others never leave: see arrive */
        out->n_dead += m->dead;
    }
    r->n_dirty -= n;
    memmove(r->dirty, r->dirty + n, r->n_dirty * sizeof *r->dirty);
    if (r->budget != NULL) {
        (void)atomic_fetch_sub_explicit(&r->budget->dirty_bytes, n * r->stride_bytes,
                                        memory_order_relaxed);
    }
out:
    ps_stripe_unlock(st);
    return rc;
}

/* The rows of the entries are no longer on their way; changed says that they did not arrive. */
static void arrive(ps_table *t, const ps_entries *e, bool changed)
{
    ps_stripe *st = &t->stripes[e->stripe];
    ps_rows *r = &st->rows;
    size_t entry_bytes = PS_ENTRY_KEY_BYTES + e->value_bytes;
    ps_stripe_write_lock(st);
    for (size_t i = 0; i < e->n; i++) {
        uint64_t key = ps_get_be64(e->bytes + i * entry_bytes + 4);
        uint32_t row = ps_rows_find(r, key, bd_mix64(key));
        if (row == PS_NO_ROW) { /* cannot be: a row that is being written stays */
            continue;
        }
        ps_rows_meta(r, row)->writing = 0;
        if (changed) {
            ps_rows_touch(r, row, e->oldest_n);
        }
    }
    if (changed && e->n > 0 && e->oldest_n < r->oldest_dirty_n) {
        r->oldest_dirty_n = e->oldest_n;
    }
    r->stuck = false;
    ps_stripe_unlock(st);
}

void ps_table_put_back(ps_table *t, const ps_entries *e)
{
    arrive(t, e, true);
}

void ps_table_written(ps_table *t, const ps_entries *e)
{
    if (t->stripes[e->stripe].rows.budget != NULL || e->n_dead > 0) { /* else nothing waits */
        arrive(t, e, false);
    }
}

void ps_entries_deinit(ps_entries *e)
{
    bd_free(e->bytes);
    *e = (ps_entries){0};
}

uint64_t ps_table_oldest_dirty(ps_table *t)
{
    uint64_t oldest = UINT64_MAX;
    for (size_t s = 0; s < PS_N_STRIPES; s++) {
        ps_stripe_read_lock(&t->stripes[s]);
        const ps_rows *r = &t->stripes[s].rows;
        if (r->n_dirty > 0 && r->oldest_dirty_n < oldest) {
            oldest = r->oldest_dirty_n;
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    return oldest;
}

size_t ps_table_dirty_bytes(ps_table *t)
{
    size_t rows = 0;
    for (size_t s = 0; s < PS_N_STRIPES; s++) {
        ps_stripe_read_lock(&t->stripes[s]);
        rows += t->stripes[s].rows.n_dirty;
        ps_stripe_unlock(&t->stripes[s]);
    }
    return rows * (PS_ENTRY_KEY_BYTES + PS_ENTRY_META_BYTES +
                   (t->spec.weight_words + t->spec.state_elems) * sizeof(float));
}

void ps_table_fill(ps_table *t, ps_rows *r, uint32_t row, const uint8_t *value, size_t value_bytes)
{
    ps_row_meta *m = ps_rows_meta(r, row);
    m->freq = ps_get_le32(value) & PS_MAX_FREQ;
    m->last_time = ps_get_le32(value + 4);
    m->seq_n = ps_get_le64(value + 8);
    m->last_step = ps_get_le64(value + 16);
    m->dead = value_bytes == PS_ENTRY_META_BYTES;
    if (m->dead) {
        ps_table_start_row(t, r, row, m->key);
    } else {
        memcpy(ps_rows_at(r, row), value + PS_ENTRY_META_BYTES, r->elems * sizeof(float));
    }
}

bd_status ps_table_check_value(const ps_table *t, size_t value_bytes, bd_err *err)
{
    size_t row_bytes = ps_table_row_bytes(t);
    if (value_bytes == PS_ENTRY_META_BYTES || value_bytes == PS_ENTRY_META_BYTES + row_bytes) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_CORRUPT,
                      "a stored row of table \"%s\" has %zu bytes instead of %zu", t->spec.name,
                      value_bytes, PS_ENTRY_META_BYTES + row_bytes);
}

void ps_table_limit_load(ps_table *t, size_t bytes)
{
    t->load_rows = bytes / ps_table_memory_bytes(t) / PS_N_STRIPES;
}

size_t ps_table_memory_bytes(const ps_table *t)
{
    return ps_rows_slot_bytes(&t->stripes[0].rows) + 2 * sizeof(ps_rows_entry);
}

/* Start-up: rows come in until the budget is used up; the others are counted as away. */
static bd_status load_row(ps_table *t, uint64_t key, const uint8_t *value, size_t value_bytes)
{
    size_t none = 0;
    ps_stripe *st = &t->stripes[ps_stripe_of_key(key)];
    ps_rows *r = &st->rows;
    bool dead = value_bytes == PS_ENTRY_META_BYTES;
    ps_stripe_write_lock(st);
    uint32_t row = ps_rows_find(r, key, bd_mix64(key));
    bd_status rc = row != PS_NO_ROW            ? BD_OK
                   : r->n_rows >= t->load_rows ? BD_E_EXHAUSTED
                                               : ps_rows_reserve(r, 1, false, &none);
    if (row == PS_NO_ROW && !dead && (rc == BD_OK || rc == BD_E_EXHAUSTED)) {
        (void)atomic_fetch_add_explicit(&t->n_rows, 1, memory_order_relaxed);
    }
    if (rc == BD_OK) {
        row = row == PS_NO_ROW ? ps_rows_add(r, key, bd_mix64(key)) : row;
        ps_table_fill(t, r, row, value, value_bytes);
    } else if (rc == BD_E_EXHAUSTED) {
        t->tiered = true;
        ps_table_count_moved(t, 1);
        rc = BD_OK;
    }
    ps_stripe_unlock(st);
    return rc;
}

bd_status ps_table_load(ps_table *t, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes, bd_err *err)
{
    if (key_bytes != PS_ENTRY_KEY_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "a stored row of table \"%s\" has a key of %zu bytes",
                          t->spec.name, key_bytes);
    }
    bd_status rc = ps_table_check_value(t, value_bytes, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = load_row(t, ps_get_be64(key + 4), value, value_bytes);
    return rc == BD_OK ? BD_OK
                       : bd_err_set(err, rc, "table \"%s\": no memory for %" PRIu64 " rows",
                                    t->spec.name, ps_table_n_rows(t) + 1);
}
