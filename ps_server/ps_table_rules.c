/* What rules ask of a table's rows: see ps_table.h. All but the counts: the thread that applies. */
#include "base/assert.h"

#include "ps_server/ps_table_int.h"

#include <string.h>

#define GROUP PS_TABLE_GROUP

ps_table *ps_table_hidden(const ps_table *t, ps_hidden kind)
{
    return t->hidden[kind];
}

void ps_table_set_hidden(ps_table *t, ps_hidden kind, ps_table *hidden)
{
    t->hidden[kind] = hidden;
}

ps_rule_counts ps_table_rule_counts(ps_table *t)
{
    ps_rule_counts sum = {0};
    ps_table *c = t->hidden[PS_HIDDEN_COUNTS];
    for (size_t s = 0; c != NULL && s < PS_N_STRIPES; s++) {
        const ps_rows *r = &c->stripes[s].rows;
        ps_stripe_read_lock(&c->stripes[s]);
        for (uint32_t i = 0; i < r->n_slots; i++) {
            uint64_t words[2];
            memcpy(words, ps_rows_at(r, i), sizeof words);
            sum.filtered += ps_rows_meta(r, i)->live ? words[0] : 0;
            sum.evicted += ps_rows_meta(r, i)->live ? words[1] : 0;
        }
        ps_stripe_unlock(&c->stripes[s]);
    }
    return sum;
}

/* Of keys [at, end), all of one stripe, whose lock is held. Returns how many it added. */
static size_t absent_of_run(const ps_rows *r, const uint64_t *keys, size_t at, size_t end,
                            uint32_t *absent)
{
    size_t n = 0;
    uint32_t rows[GROUP];
    for (size_t g = at; g < end; g += GROUP) {
        size_t m = end - g < GROUP ? end - g : GROUP;
        ps_find_group(r, keys + g, m, 0, rows);
        for (size_t i = 0; i < m; i++) {
            if (rows[i] == PS_NO_ROW || ps_rows_meta(r, rows[i])->dead) {
                absent[n++] = (uint32_t)(g + i);
            }
        }
    }
    return n;
}

size_t ps_table_absent(ps_table *t, const uint64_t *keys, size_t n, uint32_t *absent)
{
    size_t n_absent = 0;
    uint32_t s = 0;
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_stripe_read_lock(&t->stripes[s]);
        n_absent += absent_of_run(&t->stripes[s].rows, keys, at, end, absent + n_absent);
        ps_stripe_unlock(&t->stripes[s]);
    }
    return n_absent;
}

bool ps_table_peek(ps_table *t, uint64_t key, uint32_t *words)
{
    ps_stripe *st = &t->stripes[ps_stripe_of_key(key)];
    ps_stripe_read_lock(st);
    uint32_t row = ps_rows_find(&st->rows, key, bd_mix64(key));
    bool there = row != PS_NO_ROW && !ps_rows_meta(&st->rows, row)->dead;
    if (there) {
        memcpy(words, ps_rows_at(&st->rows, row), t->spec.weight_words * sizeof *words);
    }
    ps_stripe_unlock(st);
    return there;
}

void ps_table_visit(ps_table *t, uint64_t key, const ps_apply *a,
                    void (*fn)(void *user, uint32_t *words), void *user)
{
    ps_stripe *st = &t->stripes[ps_stripe_of_key(key)];
    BD_ASSERT(t->spec.hidden != PS_NOT_HIDDEN);
    ps_stripe_write_lock(st);
    uint32_t row = ps_rows_find(&st->rows, key, bd_mix64(key));
    row = ps_table_row_for(t, &st->rows, row, key, a->seq.n);
    if (row != PS_NO_ROW) {
        fn(user, (uint32_t *)(void *)ps_rows_at(&st->rows, row));
        ps_table_stamp(&st->rows, row, a);
    }
    ps_stripe_unlock(st);
}

static void evict_one(ps_table *t, ps_rows *r, uint64_t key, const ps_apply *a)
{
    uint32_t row = ps_rows_find(r, key, bd_mix64(key));
    if (row == PS_NO_ROW) {
        return; /* replay: its tombstone has gone from memory already */
    }
    ps_row_meta *m = ps_rows_meta(r, row);
    m->held = 0;
    if (m->seq_n >= a->seq.n || m->dead) {
        return;
    }
    ps_table_start_row(t, r, row, key); /* reads as new */
    m->dead = 1;
    m->freq = 0;
    ps_table_stamp(r, row, a);
    (void)atomic_fetch_sub_explicit(&t->n_rows, 1, memory_order_relaxed);
}

void ps_table_evict(ps_table *t, const uint64_t *keys, size_t n, const ps_apply *a)
{
    uint32_t s = 0;
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_stripe_write_lock(&t->stripes[s]);
        for (size_t i = at; i < end; i++) {
            evict_one(t, &t->stripes[s].rows, keys[i], a);
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
}

size_t ps_table_pin(ps_table *t, uint64_t *keys, size_t n)
{
    size_t kept = 0;
    uint32_t s = 0;
    if (!ps_table_is_limited(t)) {
        return n; /* rows never leave */
    }
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_rows *r = &t->stripes[s].rows;
        ps_stripe_write_lock(&t->stripes[s]);
        for (size_t i = at; i < end; i++) {
            uint32_t row = ps_rows_find(r, keys[i], bd_mix64(keys[i]));
            if (row != PS_NO_ROW) {
                ps_rows_meta(r, row)->held = 1;
                keys[kept++] = keys[i];
            }
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    return kept;
}
