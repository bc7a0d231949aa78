/* Memory for rows that some stripes have goes to others that lack it.
 *
 * Stripes take memory as their rows come, until the budget is used up; then each goes on in what it
 * has. So a table that is new, or that a start loads after the others, would have nothing, and a step
 * that works on more rows of a stripe than it has room for could never be applied. */
#include "ps_server/ps_table_int.h"
#include "ps_server/ps_tables.h"

#include <stdlib.h>

/* A stripe that has something to give. */
typedef struct donor {
    ps_table *table;
    ps_stripe *stripe;
    size_t bytes; /* it has */
} donor;

static int more_first(const void *a, const void *b)
{
    size_t x = ((const donor *)a)->bytes, y = ((const donor *)b)->bytes;
    return (x < y) - (x > y);
}

/* With some ahead, so that the next step need not ask again. */
static size_t wanted_slots(const ps_rows *r)
{
    return r->lacks == 0 ? 0 : r->lacks + r->paid_slots / 8 + 16;
}

/* What the lacking stripes want, and the others as donors; *n is set. */
static size_t survey(const ps_tables *ts, donor *donors, size_t *n)
{
    size_t want = 0;
    *n = 0;
    for (size_t i = 0; i < ts->n * PS_N_STRIPES; i++) {
        ps_table *t = ts->items[i / PS_N_STRIPES];
        ps_stripe *st = &t->stripes[i % PS_N_STRIPES];
        ps_stripe_read_lock(st);
        size_t slot = ps_rows_slot_bytes(&st->rows);
        want += wanted_slots(&st->rows) * slot;
        if (st->rows.lacks == 0 && st->rows.paid_slots != 0) {
            donors[(*n)++] = (donor){t, st, st->rows.paid_slots * slot};
        }
        ps_stripe_unlock(st);
    }
    return want;
}

/* One block of each donor, those that have most first, until there is enough. */
static size_t collect(const donor *donors, size_t n, size_t want)
{
    size_t got = 0;
    for (size_t i = 0; i < n && got < want; i++) {
        size_t moved = 0;
        ps_stripe_write_lock(donors[i].stripe);
        ps_rows *r = &donors[i].stripe->rows;
        got += ps_rows_give(r, &moved) * ps_rows_slot_bytes(r);
        donors[i].table->tiered = donors[i].table->tiered || moved != 0;
        ps_table_count_moved(donors[i].table, moved);
        ps_stripe_unlock(donors[i].stripe);
    }
    return got;
}

/* Hands `got` out: first what was lacking, then what is wanted besides. Returns what nobody took;
 * *all: nobody lacks any more. */
static size_t hand_out(const ps_tables *ts, size_t got, bool *all)
{
    *all = true;
    for (size_t i = 0; i < ts->n * PS_N_STRIPES; i++) {
        ps_stripe *st = &ts->items[i / PS_N_STRIPES]->stripes[i % PS_N_STRIPES];
        ps_rows *r = &st->rows;
        ps_stripe_write_lock(st);
        size_t has = got / ps_rows_slot_bytes(r), wanted = wanted_slots(r);
        if (r->lacks > has) {
            *all = false;
        } else {
            size_t n = wanted < has ? wanted : has;
            got -= n * ps_rows_slot_bytes(r);
            r->paid_slots += n;
            r->lacks = 0;
        }
        ps_stripe_unlock(st);
    }
    return got;
}

bool ps_tables_share(const ps_tables *ts)
{
    size_t n = 0, got = 0, one = 1;
    donor *donors = bd_calloc(ts->n * PS_N_STRIPES + 1, sizeof *donors);
    if (donors == NULL) {
        return false;
    }
    size_t want = survey(ts, donors, &n);
    while (got < want && one != 0) {
        qsort(donors, n, sizeof *donors, more_first);
        one = collect(donors, n, want - got);
        got += one;
        (void)survey(ts, donors, &n);
    }
    bd_free(donors);
    bool all = false;
    ps_budget_give(ts->budget, hand_out(ts, got, &all));
    return all && want != 0;
}
