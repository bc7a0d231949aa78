#include "ps_server/ps_diff.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_frozen.h"
#include "ps_server/ps_rocks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* All parts of one checkpoint as one stream of rows in key order. */
typedef struct source {
    ps_frozen *store;
    ps_cursor *cursor;
    ps_cursor_row row; /* the next one */
    const ps_manifest *m;
    uint32_t table_id; /* the last one asked about */
    bool hidden;       /* it is a hidden table */
} source;

typedef struct stream {
    source *sources; /* owned [n] */
    size_t n;
    source *at; /* with the smallest key; NULL: the end */
} stream;

static bool is_hidden(source *x, uint32_t table_id)
{
    ps_spec spec;
    if (table_id == x->table_id) { /* rows come table by table */
        return x->hidden;
    }
    x->table_id = table_id;
    x->hidden = false;
    for (size_t i = 0; i < x->m->n_specs && !x->hidden; i++) {
        x->hidden = ps_spec_owns(&x->m->specs[i], table_id, &spec);
    }
    return x->hidden;
}

/* Past tombstones: what they stand for is not there; and past hidden tables. */
static bd_status advance(source *x, bd_err *err)
{
    bd_status rc = BD_OK;
    bool skip = true;
    while (rc == BD_OK && skip) {
        rc = ps_cursor_next(x->cursor, &x->row, err);
        skip = rc == BD_OK && x->row.key != NULL &&
               (x->row.value_bytes == PS_ENTRY_META_BYTES || is_hidden(x, ps_get_be32(x->row.key)));
    }
    return rc;
}

static void pick(stream *s)
{
    s->at = NULL;
    for (size_t i = 0; i < s->n; i++) {
        source *x = &s->sources[i];
        if (x->row.key != NULL &&
            (s->at == NULL || memcmp(x->row.key, s->at->row.key, PS_ENTRY_KEY_BYTES) < 0)) {
            s->at = x;
        }
    }
}

static void stream_close(stream *s)
{
    for (size_t i = 0; i < s->n; i++) {
        ps_cursor_close(s->sources[i].cursor);
        ps_frozen_close(s->sources[i].store);
    }
    bd_free(s->sources);
}

static bd_status stream_open(stream *s, const ps_checkpoint *k, bd_err *err)
{
    bd_status rc = BD_OK;
    *s = (stream){.sources = bd_calloc(k->n_parts + 1, sizeof *s->sources)};
    if (s->sources == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "diff: no memory");
    }
    if (ps_checkpoint_state(k) != PS_CKPT_WHOLE) {
        return bd_err_set(err, BD_E_STATE, "checkpoint \"%s\" is %s: `braid ckpt verify` says why",
                          k->name, ps_ckpt_state_text(ps_checkpoint_state(k)));
    }
    for (size_t i = 0; i < k->n_parts && rc == BD_OK; i++) {
        source *x = &s->sources[s->n++];
        char *rows = bd_strfmt("%s/rows", k->parts[i].folder);
        rc = rows == NULL ? bd_err_set(err, BD_E_NOMEM, "diff: no memory")
                          : ps_frozen_open(rows, &x->store, err);
        if (rc == BD_OK) {
            rc = ps_cursor_open(x->store, 0, &x->cursor, err);
        }
        x->m = &k->parts[i].m;
        if (rc == BD_OK) {
            rc = advance(x, err);
        }
        bd_free(rows);
    }
    pick(s);
    return rc;
}

static bd_status stream_next(stream *s, bd_err *err)
{
    bd_status rc = advance(s->at, err);
    pick(s);
    return rc;
}

/* ---- tables ---- */
typedef struct tables {
    const ps_manifest *a, *b;
    ps_table_diff *items; /* owned [n] */
    uint32_t *ids;        /* owned [n] */
    size_t n;
    float *x, *y; /* owned [PS_MAX_DIM] */
} tables;

static const ps_spec *spec_of(const ps_manifest *m, uint32_t id)
{
    for (size_t i = 0; m != NULL && i < m->n_specs; i++) {
        if (m->specs[i].id == id) {
            return &m->specs[i];
        }
    }
    return NULL;
}

static void add_tables(tables *t, const ps_manifest *m)
{
    for (size_t i = 0; m != NULL && i < m->n_specs; i++) {
        bool known = false;
        for (size_t k = 0; k < t->n; k++) {
            known = known || t->ids[k] == m->specs[i].id;
        }
        if (known) {
            continue;
        }
        const ps_spec *a = spec_of(t->a, m->specs[i].id), *b = spec_of(t->b, m->specs[i].id);
        ps_table_diff *d = &t->items[t->n];
        *d = (ps_table_diff){.spec_differs =
                                 a != NULL && b != NULL &&
                                 (a->dim != b->dim || a->dtype != b->dtype || a->opt != b->opt)};
        (void)snprintf(d->name, sizeof d->name, "%s", m->specs[i].name);
        t->ids[t->n++] = m->specs[i].id;
    }
}

static bd_status tables_init(tables *t, const ps_checkpoint *a, const ps_checkpoint *b, bd_err *err)
{
    *t = (tables){.a = a->n_parts > 0 ? &a->parts[0].m : NULL,
                  .b = b->n_parts > 0 ? &b->parts[0].m : NULL};
    size_t most = (t->a == NULL ? 0 : t->a->n_specs) + (t->b == NULL ? 0 : t->b->n_specs);
    t->items = bd_calloc(most + 1, sizeof *t->items);
    t->ids = bd_calloc(most + 1, sizeof *t->ids);
    t->x = bd_alloc(PS_MAX_DIM * sizeof(float));
    t->y = bd_alloc(PS_MAX_DIM * sizeof(float));
    if (t->items == NULL || t->ids == NULL || t->x == NULL || t->y == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "diff: no memory");
    }
    add_tables(t, t->a);
    add_tables(t, t->b);
    return BD_OK;
}

static void tables_deinit(tables *t)
{
    bd_free(t->ids);
    bd_free(t->x);
    bd_free(t->y);
}

static ps_table_diff *find(tables *t, uint32_t id)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->ids[i] == id) {
            return &t->items[i];
        }
    }
    return NULL;
}

static void compare(tables *t, ps_table_diff *d, const ps_cursor_row *a, const ps_cursor_row *b)
{
    const size_t meta = PS_ENTRY_META_BYTES;
    if (!d->spec_differs && a->value_bytes == b->value_bytes &&
        memcmp(a->value + meta, b->value + meta, a->value_bytes - meta) == 0) {
        d->same++;
        return;
    }
    d->changed++;
    const ps_spec *spec = spec_of(t->a, ps_get_be32(a->key));
    if (d->spec_differs || a->value_bytes != b->value_bytes ||
        a->value_bytes < meta + spec->weight_words * sizeof(float)) {
        return;
    }
    num_row_decode(spec->dtype, a->value + meta, spec->dim, t->x);
    num_row_decode(spec->dtype, b->value + meta, spec->dim, t->y);
    for (size_t i = 0; i < spec->dim; i++) {
        double by = fabs((double)t->x[i] - (double)t->y[i]);
        if (by > d->largest) {
            d->largest = by;
            d->largest_key = ps_get_be64(a->key + 4);
        }
    }
}

static bd_status merge(tables *t, stream *a, stream *b, bd_err *err)
{
    bd_status rc = BD_OK;
    while (rc == BD_OK && (a->at != NULL || b->at != NULL)) {
        int order = a->at == NULL   ? 1
                    : b->at == NULL ? -1
                                    : memcmp(a->at->row.key, b->at->row.key, PS_ENTRY_KEY_BYTES);
        const ps_cursor_row *row = order <= 0 ? &a->at->row : &b->at->row;
        ps_table_diff *d = find(t, ps_get_be32(row->key));
        if (d == NULL) {
            return bd_err_set(err, BD_E_CORRUPT, "a row of table %u, which no MANIFEST names",
                              ps_get_be32(row->key));
        }
        if (order < 0) {
            d->only_a++;
        } else if (order > 0) {
            d->only_b++;
        } else {
            compare(t, d, &a->at->row, &b->at->row);
        }
        if (order <= 0) {
            rc = stream_next(a, err);
        }
        if (order >= 0 && rc == BD_OK) {
            rc = stream_next(b, err);
        }
    }
    return rc;
}

bd_status ps_checkpoint_diff(const ps_checkpoint *a, const ps_checkpoint *b, ps_table_diff **out,
                             size_t *n, bd_err *err)
{
    tables t;
    stream sa = {0}, sb = {0};
    bd_status rc = tables_init(&t, a, b, err);
    if (rc == BD_OK) {
        rc = stream_open(&sa, a, err);
    }
    if (rc == BD_OK) {
        rc = stream_open(&sb, b, err);
    }
    if (rc == BD_OK) {
        rc = merge(&t, &sa, &sb, err);
    }
    if (rc == BD_OK) {
        *out = t.items;
        *n = t.n;
    } else {
        bd_free(t.items);
    }
    stream_close(&sa);
    stream_close(&sb);
    tables_deinit(&t);
    return rc;
}
