/* Rows between memory and the store: held for a record, fetched, put in. */
#include "base/assert.h"

#include "ps_server/ps_table_int.h"

#include <string.h>

#define GROUP PS_TABLE_GROUP

/* Marks the rows that are in memory as held; the indexes of the others, from `first` on, go to
 * miss. */
static size_t hold_group(ps_rows *r, const uint32_t *rows, size_t m, size_t first, uint32_t *miss)
{
    size_t n_miss = 0;
    for (size_t i = 0; i < m; i++) {
        if (rows[i] == PS_NO_ROW) {
            miss[n_miss++] = (uint32_t)(first + i);
        } else {
            ps_rows_meta(r, rows[i])->held = 1;
            ps_rows_use(r, rows[i]);
        }
    }
    return n_miss;
}

/* The same for keys of several stripes. */
static size_t hold_rows(ps_table *t, const uint64_t *keys, size_t n, uint32_t *miss)
{
    size_t n_miss = 0;
    uint32_t s = 0, rows[GROUP];
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_rows *r = &t->stripes[s].rows;
        ps_stripe_write_lock(&t->stripes[s]);
        for (size_t g = at; g < end; g += GROUP) {
            size_t m = end - g < GROUP ? end - g : GROUP;
            ps_find_group(r, keys + g, m, 0, rows);
            n_miss += hold_group(r, rows, m, g, miss + n_miss);
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    return n_miss;
}

static bd_status promise_room(ps_table *t, const uint64_t *keys, const uint32_t *miss,
                              size_t n_miss)
{
    size_t count[PS_N_STRIPES] = {0};
    for (size_t i = 0; i < n_miss; i++) {
        count[ps_stripe_of_key(keys[miss[i]])]++;
    }
    bd_status rc = BD_OK;
    /* Also behind a stripe without room, so that one write-back makes room in all of them. */
    for (size_t s = 0; s < PS_N_STRIPES && rc != BD_E_NOMEM; s++) {
        if (count[s] == 0) {
            continue;
        }
        size_t moved = 0;
        ps_rows *r = &t->stripes[s].rows;
        ps_stripe_write_lock(&t->stripes[s]);
        bd_status one = ps_rows_reserve(r, count[s], true, &moved);
        r->lacks = one == BD_E_EXHAUSTED ? r->n_rows + r->promised + count[s] - r->paid_slots : 0;
        r->promised += one == BD_OK ? count[s] : 0;
        rc = one == BD_OK ? rc : one;
        ps_table_count_moved(t, moved);
        ps_stripe_unlock(&t->stripes[s]);
    }
    return rc;
}

bd_status ps_table_hold(ps_table *t, const uint64_t *keys, size_t n, uint32_t *miss, size_t *n_miss)
{
    bool limited = ps_table_is_limited(t);
    *n_miss = 0;
    if (!t->tiered && ps_table_n_away(t) == 0) {
        bd_status rc = ps_table_reserve(t, keys, n);
        if (rc != BD_E_EXHAUSTED || !limited) {
            return rc;
        }
    }
    t->tiered = true; /* from now on rows may leave */
    size_t missing = hold_rows(t, keys, n, miss);
    bool away = ps_table_n_away(t) != 0;
    bd_status rc = promise_room(t, keys, miss, missing);
    if (rc != BD_OK) {
        ps_table_release(t, keys, n);
        return rc;
    }
    *n_miss = away ? missing : 0;
    return BD_OK;
}

void ps_table_release(ps_table *t, const uint64_t *keys, size_t n)
{
    uint32_t s = 0;
    if (!t->tiered) {
        return;
    }
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_rows *r = &t->stripes[s].rows;
        ps_stripe_write_lock(&t->stripes[s]);
        for (size_t i = at; i < end; i++) {
            uint32_t row = ps_rows_find(r, keys[i], bd_mix64(keys[i]));
            if (row != PS_NO_ROW) {
                ps_rows_meta(r, row)->held = 0;
            }
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    ps_table_end_hold(t);
}

void ps_table_end_hold(ps_table *t)
{
    for (size_t s = 0; t->tiered && s < PS_N_STRIPES; s++) {
        ps_stripe_write_lock(&t->stripes[s]);
        t->stripes[s].rows.promised = 0;
        ps_stripe_unlock(&t->stripes[s]);
    }
}

/* A fetched row comes into memory, under the stripe's lock; its room is there. */
static uint32_t put_in(ps_table *t, ps_rows *r, uint64_t key, const uint8_t *value,
                       size_t value_bytes)
{
    uint32_t row = ps_rows_add(r, key, bd_mix64(key));
    ps_table_fill(t, r, row, value, value_bytes);
    (void)atomic_fetch_sub_explicit(&t->n_away, 1, memory_order_relaxed);
    return row;
}

void ps_table_install(ps_table *t, const uint64_t *keys, const uint32_t *miss, size_t n_miss,
                      const ps_found *found)
{
    for (size_t i = 0; i < n_miss; i++) {
        uint64_t key = keys[miss[i]];
        if (found->bytes[i] == 0) {
            continue; /* nobody has it: the record makes it */
        }
        ps_stripe *st = &t->stripes[ps_stripe_of_key(key)];
        ps_stripe_write_lock(st);
        uint32_t row = ps_rows_find(&st->rows, key, bd_mix64(key));
        if (row == PS_NO_ROW) { /* else a lookup has brought it meanwhile */
            row = put_in(t, &st->rows, key, found->values + i * found->stride, found->bytes[i]);
        }
        ps_rows_meta(&st->rows, row)->held = 1;
        st->rows.promised -= st->rows.promised > 0 ? 1u : 0u;
        ps_stripe_unlock(st);
    }
}

/* For a lookup: where it is worth it. Else for a sweep, where there is room. */
static uint32_t put_in_if_room(ps_table *t, ps_rows *r, uint64_t key, const uint8_t *value,
                               size_t value_bytes, bool asked)
{
    size_t moved = 0;
    bd_status rc =
        asked ? ps_rows_admit(r, bd_mix64(key), &moved) : ps_rows_reserve(r, 1, true, &moved);
    ps_table_count_moved(t, moved);
    return rc == BD_OK ? put_in(t, r, key, value, value_bytes) : PS_NO_ROW;
}

/* Key i of what a lookup has fetched, under the stripe's lock for writing. */
static void finish_one(ps_table *t, ps_rows *r, uint64_t key, const ps_found *found, size_t i,
                       float *out)
{
    const uint8_t *value = found->values + i * found->stride;
    size_t value_bytes = found->bytes[i];
    const ps_spec *spec = &t->spec;
    uint32_t row = ps_rows_find(r, key, bd_mix64(key));
    if (row != PS_NO_ROW) {
        ps_rows_use(r, row);
    }
    if (row == PS_NO_ROW && value_bytes <= PS_ENTRY_META_BYTES) { /* none, or a tombstone */
        ps_spec_row(spec, key, out);
        return;
    }
    if (row == PS_NO_ROW && r->left_n <= found->as_of) { /* else it may have changed and left */
        row = put_in_if_room(t, r, key, value, value_bytes, true);
    }
    if (row != PS_NO_ROW) {
        num_row_decode(spec->dtype, ps_rows_at(r, row), spec->dim, out);
    } else { /* it is read where it is */
        num_row_decode(spec->dtype, (const float *)(const void *)(value + PS_ENTRY_META_BYTES),
                       spec->dim, out);
    }
}

void ps_table_finish(ps_table *t, const uint64_t *keys, const uint32_t *miss, size_t n_miss,
                     const ps_found *found, float *out)
{
    for (size_t i = 0; i < n_miss;) {
        uint32_t s = ps_stripe_of_key(keys[miss[i]]);
        ps_stripe_write_lock(&t->stripes[s]);
        for (; i < n_miss && ps_stripe_of_key(keys[miss[i]]) == s; i++) {
            finish_one(t, &t->stripes[s].rows, keys[miss[i]], found, i,
                       out + (size_t)miss[i] * t->spec.dim);
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
}

void ps_table_bring(ps_table *t, const uint64_t *keys, size_t n, const ps_found *found)
{
    for (size_t i = 0; i < n; i++) {
        ps_stripe *st = &t->stripes[ps_stripe_of_key(keys[i])];
        ps_stripe_write_lock(st);
        if (found->bytes[i] > PS_ENTRY_META_BYTES &&
            ps_rows_find(&st->rows, keys[i], bd_mix64(keys[i])) == PS_NO_ROW) {
            (void)put_in_if_room(t, &st->rows, keys[i], found->values + i * found->stride,
                                 found->bytes[i], false);
        }
        ps_stripe_unlock(st);
    }
}
