/* Batched reads. Index entries and rows are asked for well before they are needed, across the runs
 * of several stripes, for a run of one stripe is a few dozen keys only. */
#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_bags.h"
#include "ps_server/ps_table_int.h"

#include <string.h>

#define SPAN_KEYS   512u /* read under one set of locks */
#define SPAN_RUNS   16u
#define INDEX_AHEAD 16u /* keys between asking for an index entry and reading it */
#define ROW_AHEAD   12u /* and for a row */

/* The next keys, whose stripes ascend and are locked for reading: who takes several locks takes
 * them in this order, and writers take one at a time. */
typedef struct span {
    size_t n_keys, n_runs;
    uint32_t stripes[SPAN_RUNS];
    uint64_t mixed[SPAN_KEYS];
    uint32_t rows[SPAN_KEYS];
} span;

static void lock_span(ps_table *t, const uint64_t *keys, size_t n, span *sp)
{
    sp->n_runs = 0;
    for (sp->n_keys = 0; sp->n_keys < n && sp->n_keys < SPAN_KEYS; sp->n_keys++) {
        uint64_t mixed = bd_mix64(keys[sp->n_keys]);
        uint32_t s = ps_stripe_of_mixed(mixed);
        bool is_first = sp->n_runs == 0;
        if (is_first || s != sp->stripes[sp->n_runs - 1]) {
            if (sp->n_runs == SPAN_RUNS || (!is_first && s < sp->stripes[sp->n_runs - 1])) {
                return;
            }
            ps_stripe_read_lock(&t->stripes[s]);
            sp->stripes[sp->n_runs++] = s;
        }
        sp->mixed[sp->n_keys] = mixed;
    }
}

static void unlock_span(ps_table *t, const span *sp)
{
    for (size_t i = sp->n_runs; i > 0; i--) {
        ps_stripe_unlock(&t->stripes[sp->stripes[i - 1]]);
    }
}

/* Where a read of one batch stands. */
typedef struct reading {
    const uint64_t *keys; /* of the span */
    float *out;
    size_t at;         /* of the span's first key in the batch */
    uint32_t *missing; /* NULL: every row is in memory */
    size_t n_missing;
    bool away;        /* absent rows may be on the disk */
    ps_bag_walk bags; /* bags NULL: rows go out as they are */
    float *row;       /* bags: room for one */
    uint32_t *found;  /* [n of the batch]; NULL: not wanted */
} reading;

static void pool_one(const ps_spec *spec, const ps_rows *r, uint32_t row, size_t i, reading *g)
{
    const float *weights = g->row;
    if (row == PS_NO_ROW) {
        ps_spec_row(spec, g->keys[i], g->row);
    } else if (spec->dtype == NUM_F32) {
        weights = ps_rows_at(r, row);
    } else {
        num_row_decode(spec->dtype, ps_rows_at(r, row), spec->dim, g->row);
    }
    ps_bag_add(&g->bags, weights, g->out);
}

static void copy_out(const ps_table *t, const ps_rows *r, uint32_t row, size_t i, reading *g)
{
    const ps_spec *spec = &t->spec;
    float *to = g->out + (g->at + i) * spec->dim;
    if (row == PS_NO_ROW && g->away) {
        g->missing[g->n_missing++] = (uint32_t)(g->at + i);
    } else if (row == PS_NO_ROW) {
        ps_spec_row(spec, g->keys[i], to);
    } else {
        ps_rows_use(r, row);
        num_row_decode(spec->dtype, ps_rows_at(r, row), spec->dim, to);
    }
}

static void gather_span(const ps_table *t, span *sp, reading *g)
{
    size_t n = sp->n_keys, row_bytes = t->spec.weight_words * sizeof(float);
    for (size_t i = 0; i < n + INDEX_AHEAD + ROW_AHEAD; i++) {
        if (i < n) {
            ps_rows_prefetch(&t->stripes[ps_stripe_of_mixed(sp->mixed[i])].rows, sp->mixed[i]);
        }
        size_t f = i - INDEX_AHEAD, c = f - ROW_AHEAD; /* below 0: huge */
        if (f < n) {
            const ps_rows *r = &t->stripes[ps_stripe_of_mixed(sp->mixed[f])].rows;
            sp->rows[f] = ps_rows_find(r, g->keys[f], sp->mixed[f]);
            ps_row_prefetch(r, sp->rows[f], row_bytes);
        }
        if (c < n) {
            const ps_rows *r = &t->stripes[ps_stripe_of_mixed(sp->mixed[c])].rows;
            if (g->bags.bags != NULL) {
                pool_one(&t->spec, r, sp->rows[c], c, g);
            } else {
                copy_out(t, r, sp->rows[c], c, g);
            }
        }
    }
}

static void read_all(ps_table *t, const uint64_t *keys, size_t n, reading *g)
{
    span sp;
    for (; g->at < n; g->at += sp.n_keys) {
        g->keys = keys + g->at;
        lock_span(t, g->keys, n - g->at, &sp);
        /* A key that is away was counted before its stripe's lock was given up. */
        g->away = g->missing != NULL && ps_table_n_away(t) != 0;
        gather_span(t, &sp, g);
        if (g->found != NULL) {
            memcpy(g->found + g->at, sp.rows, sp.n_keys * sizeof *sp.rows);
        }
        unlock_span(t, &sp);
    }
}

// NOLINTNEXTLINE(readability-non-const-parameter): written through the reading
size_t ps_table_read(ps_table *t, const uint64_t *keys, size_t n, float *out, uint32_t *missing)
{
    reading g = {.out = out, .missing = missing};
    read_all(t, keys, n, &g);
    return g.n_missing;
}

bd_status ps_table_pool(ps_table *t, const uint64_t *keys, size_t n, const ps_bags *bags,
                        float *out,
                        uint32_t *found) // NOLINT(readability-non-const-parameter): is written
{
    size_t dim = t->spec.dim;
    reading g = {.out = out, .bags = {.bags = bags, .dim = dim}, .found = found};
    g.row = bd_alloc(dim * sizeof *g.row);
    if (g.row == NULL) {
        return BD_E_NOMEM;
    }
    BD_ASSERT(ps_table_n_away(t) == 0);
    memset(out, 0, bags->n_bags * dim * sizeof *out);
    read_all(t, keys, n, &g);
    bd_free(g.row);
    return BD_OK;
}

void ps_table_gather(ps_table *t, const uint64_t *keys, size_t n, float *out)
{
    BD_ASSERT(ps_table_n_away(t) == 0);
    (void)ps_table_read(t, keys, n, out, NULL);
}
