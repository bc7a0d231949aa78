/* How a journal record changes the tables: see ps_tables.h. */
#include "base/arena.h"
#include "base/mem.h"

#include "ps_server/ps_bags.h"
#include "ps_server/ps_sift.h"
#include "ps_server/ps_sweep.h"
#include "ps_server/ps_tables.h"

#include <inttypes.h>
#include <string.h>

/* ---- plan ---- */
typedef struct table_plan {
    ps_table *table; /* borrowed */
    size_t n;
    const uint64_t *keys; /* the section's own arrays, or sums in the arena */
    const float *values;
    const float *state;      /* assign */
    ps_bags bags;            /* values are their gradients */
    const uint32_t *guesses; /* where the rows of keys may be; NULL: no idea */
    ps_sift sift;
} table_plan;

struct ps_plan {
    bd_arena arena;    /* sums; reset by build */
    table_plan *items; /* owned */
    size_t n, cap;
    ps_fetch_pool *fetch; /* borrowed */
    ps_sweep *sweep;      /* owned; NULL before the first */
    ps_section *journal;  /* owned: ps_plan_journal */
    size_t cap_journal;
};

ps_plan *ps_plan_new(void)
{
    ps_plan *p = bd_calloc(1, sizeof *p);
    if (p != NULL) {
        bd_arena_init(&p->arena);
    }
    return p;
}

void ps_plan_free(ps_plan *p)
{
    if (p != NULL) {
        bd_arena_deinit(&p->arena);
        ps_sweep_free(p->sweep);
        bd_free(p->journal);
        bd_free(p->items);
        bd_free(p);
    }
}

void ps_plan_set_fetch(ps_plan *p, ps_fetch_pool *fetch)
{
    p->fetch = fetch;
}

/* Open addressing over the keys summed so far; holds index + 1. */
typedef struct key_map {
    uint32_t *slots;
    size_t mask;
    uint64_t *keys;
    float *sums;
    size_t n;
} key_map;

static bool map_init(key_map *m, bd_arena *a, size_t n_keys, size_t dim)
{
    size_t cap = 16, elems = 0;
    while (cap < 2 * n_keys) {
        cap *= 2;
    }
    if (n_keys >= UINT32_MAX || !bd_mul_size(n_keys, dim, &elems)) {
        return false;
    }
    *m = (key_map){.mask = cap - 1};
    m->slots = bd_arena_calloc(a, cap, sizeof *m->slots);
    m->keys = bd_arena_alloc(a, n_keys * sizeof *m->keys);
    m->sums = bd_arena_alloc(a, elems * sizeof *m->sums);
    return m->slots != NULL && m->keys != NULL && m->sums != NULL;
}

static void map_add(key_map *m, uint64_t key, const float *g, size_t dim)
{
    size_t i = bd_mix64(key) & m->mask;
    while (m->slots[i] != 0 && m->keys[m->slots[i] - 1] != key) {
        i = (i + 1) & m->mask;
    }
    if (m->slots[i] == 0) {
        m->keys[m->n] = key;
        memcpy(m->sums + m->n * dim, g, dim * sizeof *g);
        m->slots[i] = (uint32_t)++m->n;
        return;
    }
    float *sum = m->sums + (m->slots[i] - 1) * dim;
    for (size_t e = 0; e < dim; e++) {
        sum[e] += g[e];
    }
}

/* Sums all sections of the record that belong to the table of section `first`. */
static bd_status sum_sections(ps_plan *p, const ps_record *rec, size_t first, size_t n_keys,
                              table_plan *t)
{
    key_map m;
    uint32_t id = rec->sections[first].table_id;
    if (!map_init(&m, &p->arena, n_keys, rec->sections[first].dim)) {
        return BD_E_NOMEM;
    }
    for (size_t i = first; i < rec->n_sections; i++) {
        const ps_section *s = &rec->sections[i];
        bool mine = s->table_id == id && s->kind == PS_SECTION_VALUES;
        for (size_t k = 0; mine && k < s->n_keys; k++) {
            map_add(&m, s->keys[k], s->values + k * s->dim, s->dim);
        }
    }
    t->n = m.n;
    t->keys = m.keys;
    t->values = m.sums;
    return BD_OK;
}

static bd_status check_section(const ps_section *s, const ps_table *t, bd_err *err)
{
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u", s->table_id);
    }
    const ps_spec *spec = ps_table_spec(t);
    if (s->dim != spec->dim || (s->state_elems != 0 && s->state_elems != spec->state_elems)) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "table \"%s\" has dim %u and state %zu, not %u and %u", spec->name,
                          spec->dim, spec->state_elems, s->dim, s->state_elems);
    }
    return s->bags.n_bags == 0 || s->kind != PS_SECTION_VALUES
               ? BD_OK
               : ps_bags_check(&s->bags, s->n_keys, err);
}

static bool seen_before(const ps_record *rec, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (rec->sections[k].table_id == rec->sections[i].table_id) {
            return true;
        }
    }
    return false;
}

/* The rows of keys that are away come into memory. */
static bd_status bring(ps_plan *p, ps_table *t, const uint64_t *keys, const uint32_t *miss,
                       size_t n, bd_err *err)
{
    const ps_spec *spec = ps_table_spec(t);
    ps_fetch *f =
        p->fetch == NULL ? NULL : ps_fetch_new(spec->id, ps_table_value_bytes(t), keys, miss, n);
    if (f == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory to read %zu rows", spec->name,
                          n);
    }
    bd_status rc = ps_fetch_wait(p->fetch, f);
    if (rc == BD_OK) {
        const ps_found found = ps_fetch_found(f, 0);
        ps_table_install(t, keys, f->picks, n, &found);
    } else if (err != NULL) {
        *err = f->err;
    }
    ps_fetch_free(f);
    return rc;
}

/* Room and rows for keys of the table; n 0: nothing is held. */
static bd_status hold(ps_plan *p, ps_table *t, const uint64_t *keys, size_t n, bd_err *err)
{
    const char *name = ps_table_spec(t)->name;
    size_t n_miss = 0;
    uint32_t *miss = bd_arena_alloc(&p->arena, (n + 1) * sizeof *miss);
    bd_status rc = miss == NULL ? BD_E_NOMEM : ps_table_hold(t, keys, n, miss, &n_miss);
    if (rc == BD_E_EXHAUSTED) {
        return bd_err_set(err, rc,
                          "table \"%s\": memory_budget has no room for %zu keys until changed rows "
                          "are written back",
                          name, n);
    }
    if (rc != BD_OK) {
        return bd_err_set(err, rc, "table \"%s\": no memory for %zu keys", name, n);
    }
    rc = n_miss == 0 ? BD_OK : bring(p, t, keys, miss, n_miss, err);
    if (rc != BD_OK) {
        ps_table_release(t, keys, n);
    }
    return rc;
}

/* What the record has of one table. */
typedef struct sections {
    size_t first; /* with values; n_sections of the record: none */
    size_t n, n_keys;
    bool has_bags;
    const ps_section *filtered, *evicted; /* NULL: none */
} sections;

static bd_status find_sections(const ps_record *rec, uint32_t id, const ps_table *t, sections *out,
                               bd_err *err)
{
    bd_status rc = BD_OK;
    *out = (sections){.first = rec->n_sections};
    for (size_t i = 0; i < rec->n_sections && rc == BD_OK; i++) {
        const ps_section *s = &rec->sections[i];
        if (s->table_id != id) {
            continue;
        }
        rc = check_section(s, t, err);
        if (s->kind == PS_SECTION_FILTERED) {
            out->filtered = s;
        } else if (s->kind == PS_SECTION_EVICTED) {
            out->evicted = s;
        } else {
            out->first = out->n == 0 ? i : out->first;
            out->has_bags = out->has_bags || s->bags.n_bags != 0;
            out->n++;
            out->n_keys += s->n_keys;
        }
    }
    if (rc == BD_OK && out->has_bags && out->n > 1) {
        rc = bd_err_set(err, BD_E_INVALID, "table \"%s\": bags of %zu parts in one step",
                        ps_table_spec(t)->name, out->n);
    }
    return rc;
}

static bd_status no_memory_for(const ps_table *t, size_t n_keys, bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory for %zu keys",
                      ps_table_spec(t)->name, n_keys);
}

/* A record's draw: of a step, the step; of a push, its client's sequence, the same at a retry. */
static uint64_t draw_of(const ps_record *rec)
{
    return rec->kind == PS_RECORD_STEP ? rec->step : bd_mix64(rec->client_id) ^ rec->sequence;
}

/* Admission: asks about keys without a row (live), or does as the record says (replay). The filter
 * rows are held afterwards, or nothing is. */
static bd_status sift(ps_plan *p, const ps_record *rec, const sections *x, bool decided,
                      table_plan *t, bd_err *err)
{
    ps_table *filter = ps_table_hidden(t->table, PS_HIDDEN_FILTER);
    const ps_section *f = x->filtered;
    ps_sifted g = {.keys = t->keys, .values = t->values, .n = t->n};
    bd_status rc = decided ? ps_sift_recall(&t->sift, &p->arena, t->table, t->keys, t->n,
                                            f == NULL ? NULL : f->keys, f == NULL ? 0 : f->n_keys)
                           : ps_sift_ask(&t->sift, &p->arena, t->table, t->keys, t->n);
    if (rc != BD_OK) {
        return no_memory_for(t->table, t->n, err);
    }
    if (filter != NULL) {
        rc = hold(p, filter, t->sift.rows, t->sift.n_rows, err);
    }
    if (rc != BD_OK || decided) {
        return rc;
    }
    rc = ps_sift_decide(&t->sift, &p->arena, t->table, draw_of(rec), &g);
    if (rc != BD_OK) {
        if (filter != NULL) {
            ps_table_release(filter, t->sift.rows, t->sift.n_rows);
        }
        return no_memory_for(t->table, t->n, err);
    }
    t->keys = g.keys;
    t->guesses = NULL; /* they were of the keys before */
    t->values = g.values;
    t->n = g.n;
    return BD_OK;
}

/* Lets go of everything the table's part of the plan holds. */
static void release(const table_plan *t)
{
    ps_table *filter = ps_table_hidden(t->table, PS_HIDDEN_FILTER);
    ps_table *counts = ps_table_hidden(t->table, PS_HIDDEN_COUNTS);
    ps_table_release(t->table, t->keys, t->n);
    ps_table_release(t->table, t->sift.evicted, t->sift.n_evicted);
    if (filter != NULL) {
        ps_table_release(filter, t->sift.rows, t->sift.n_rows);
    }
    if (counts != NULL) {
        ps_table_release(counts, t->sift.slots, t->sift.n_slots);
    }
}

static bd_status add_item(ps_plan *p, const table_plan *t, bd_err *err)
{
    if (!bd_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items)) {
        release(t);
        return no_memory_for(t->table, t->n, err);
    }
    p->items[p->n++] = *t;
    return BD_OK;
}

/* Keys and summed values of the table. */
static bd_status sum_table(ps_plan *p, const ps_record *rec, const sections *x, table_plan *t)
{
    const ps_section *s = &rec->sections[x->first];
    if (x->n == 0) {
        return BD_OK;
    }
    if (x->n > 1) {
        return sum_sections(p, rec, x->first, x->n_keys, t);
    }
    t->n = s->n_keys;
    t->keys = s->keys;
    t->values = s->values;
    t->state = s->state;
    t->bags = s->bags;
    t->guesses = s->guesses;
    return BD_OK;
}

/* Rows that the record says are evicted; of a live record they are found by ps_plan_sweep. */
static bd_status recall_evicted(ps_plan *p, const ps_section *x, table_plan *t, bd_err *err)
{
    uint64_t *keys = bd_arena_alloc(&p->arena, (x->n_keys + 1) * sizeof *keys);
    if (keys == NULL) {
        return no_memory_for(t->table, x->n_keys, err);
    }
    if (x->n_keys > 0) {
        memcpy(keys, x->keys, x->n_keys * sizeof *keys);
    }
    bd_status rc = hold(p, t->table, keys, x->n_keys, err);
    if (rc == BD_OK) {
        t->sift.evicted = keys;
        t->sift.n_evicted = x->n_keys;
    }
    return rc;
}

/* The counts rows of what is known now. */
static bd_status hold_counts(ps_plan *p, table_plan *t, bd_err *err)
{
    ps_table *counts = ps_table_hidden(t->table, PS_HIDDEN_COUNTS);
    if (counts == NULL) {
        return BD_OK;
    }
    bd_status rc = ps_sift_count(&t->sift, &p->arena, t->table);
    if (rc != BD_OK) {
        return no_memory_for(t->table, t->sift.n_dropped, err);
    }
    rc = hold(p, counts, t->sift.slots, t->sift.n_slots, err);
    t->sift.n_slots = rc == BD_OK ? t->sift.n_slots : 0;
    return rc;
}

static bd_status plan_table(ps_plan *p, const ps_record *rec, uint32_t id, const ps_tables *ts,
                            bool decided, bd_err *err)
{
    table_plan t = {.table = ps_tables_find(ts, id)};
    sections x;
    bd_status rc = find_sections(rec, id, t.table, &x, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = sum_table(p, rec, &x, &t);
    if (rc != BD_OK) {
        return no_memory_for(t.table, x.n_keys, err);
    }
    rc = hold(p, t.table, t.keys, t.n, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (ps_spec_sifts(ps_table_spec(t.table)) && rec->kind != PS_RECORD_ASSIGN) {
        rc = sift(p, rec, &x, decided, &t, err);
        t.sift.n_rows = rc == BD_OK ? t.sift.n_rows : 0;
    }
    if (rc == BD_OK && x.evicted != NULL) {
        rc = recall_evicted(p, x.evicted, &t, err);
    }
    if (rc == BD_OK) {
        rc = hold_counts(p, &t, err);
    }
    if (rc != BD_OK) {
        release(&t);
        return rc;
    }
    return add_item(p, &t, err);
}

void ps_plan_drop(ps_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        release(&p->items[i]);
    }
    p->n = 0;
}

bd_status ps_plan_build(ps_plan *p, const ps_record *rec, const ps_tables *ts, bool decided,
                        bd_err *err)
{
    bd_status rc = BD_OK;
    ps_plan_drop(p);
    bd_arena_reset(&p->arena);
    for (size_t i = 0; i < rec->n_sections && rc == BD_OK; i++) {
        if (!seen_before(rec, i)) {
            rc = plan_table(p, rec, rec->sections[i].table_id, ts, decided, err);
        }
    }
    if (rc != BD_OK) {
        ps_plan_drop(p);
    }
    return rc;
}

/* ---- eviction ---- */
/* The table's part of the plan; NULL: it has none yet. */
static table_plan *item_of(ps_plan *p, const ps_table *t)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->items[i].table == t) {
            return &p->items[i];
        }
    }
    return NULL;
}

/* Keys of the table that the record works on stay. */
static size_t exclude(ps_plan *p, const ps_table *t, uint64_t *keys, size_t n)
{
    for (size_t i = 0; i < p->n && n > 0; i++) {
        const table_plan *x = &p->items[i];
        if (x->table == t) {
            n = ps_sweep_exclude(p->sweep, keys, n, x->keys, x->n);
        } else if (ps_table_hidden(x->table, PS_HIDDEN_FILTER) == t) {
            n = ps_sweep_exclude(p->sweep, keys, n, x->sift.rows, x->sift.n_rows);
        }
    }
    return n;
}

static bd_status add_evicted(ps_plan *p, ps_table *table, const uint64_t *keys, size_t n,
                             bd_err *err)
{
    table_plan fresh = {.table = table}, *t = item_of(p, table);
    uint64_t *copy = bd_arena_alloc(&p->arena, n * sizeof *copy);
    if (copy == NULL) {
        return no_memory_for(table, n, err);
    }
    memcpy(copy, keys, n * sizeof *copy);
    t = t == NULL ? &fresh : t;
    ps_table *counts = ps_table_hidden(table, PS_HIDDEN_COUNTS);
    if (counts != NULL) {
        ps_table_release(counts, t->sift.slots, t->sift.n_slots);
        t->sift.n_slots = 0;
    }
    t->sift.evicted = copy;
    t->sift.n_evicted = ps_table_pin(table, copy, n);
    bd_status rc = hold_counts(p, t, err);
    return rc == BD_OK && t == &fresh ? add_item(p, &fresh, err) : rc;
}

bd_status ps_plan_sweep(ps_plan *p, const ps_tables *ts, uint64_t turn, const ps_evict_now *now,
                        const ps_sweep_more *more, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < ts->n && rc == BD_OK; i++) {
        ps_table *t = ts->items[i];
        uint64_t *keys = NULL;
        size_t n = 0;
        if (ps_table_spec(t)->n_evicts == 0) {
            continue;
        }
        bool besides = more != NULL && more->table_id == ps_table_spec(t)->id;
        p->sweep = p->sweep == NULL ? ps_sweep_new() : p->sweep;
        rc = p->sweep == NULL
                 ? BD_E_NOMEM
                 : ps_sweep_slice(p->sweep, t, turn, now, besides ? more : NULL, &keys, &n);
        if (rc != BD_OK) {
            rc = bd_err_set(err, rc, "table \"%s\": no memory to look for rows to evict",
                            ps_table_spec(t)->name);
        } else if ((n = exclude(p, t, keys, n)) > 0) {
            rc = add_evicted(p, t, keys, n, err);
        }
    }
    if (rc != BD_OK) {
        ps_plan_drop(p);
    }
    return rc;
}

/* ---- what the journal gets ---- */
static bool is_sifted(ps_plan *p, const ps_section *s, const ps_tables *ts)
{
    const table_plan *t = item_of(p, ps_tables_find(ts, s->table_id));
    return t != NULL && t->sift.n_dropped > 0;
}

static void add_section(ps_plan *p, size_t *n, const table_plan *t, ps_section_kind kind,
                        const uint64_t *keys, size_t n_keys)
{
    const ps_spec *spec = ps_table_spec(t->table);
    p->journal[(*n)++] = (ps_section){.kind = kind,
                                      .table_id = spec->id,
                                      .dim = spec->dim,
                                      .n_keys = n_keys,
                                      .keys = keys,
                                      .values = kind == PS_SECTION_VALUES ? t->values : NULL};
}

bd_status ps_plan_journal(ps_plan *p, ps_record *rec, const ps_tables *ts, bd_err *err)
{
    size_t n = 0;
    bool changed = false;
    for (size_t i = 0; i < p->n; i++) {
        changed = changed || p->items[i].sift.n_dropped > 0 || p->items[i].sift.n_evicted > 0;
    }
    if (!changed) {
        return BD_OK;
    }
    if (!bd_grow(&p->journal, &p->cap_journal, rec->n_sections + 3 * p->n, sizeof *p->journal)) {
        return bd_err_set(err, BD_E_NOMEM, "step %" PRIu64 ": no memory", rec->step);
    }
    for (size_t i = 0; i < rec->n_sections; i++) {
        if (!is_sifted(p, &rec->sections[i], ts)) {
            p->journal[n++] = rec->sections[i];
        }
    }
    for (size_t i = 0; i < p->n; i++) {
        const table_plan *t = &p->items[i];
        if (t->sift.n_dropped > 0) {
            add_section(p, &n, t, PS_SECTION_VALUES, t->keys, t->n);
            add_section(p, &n, t, PS_SECTION_FILTERED, t->sift.dropped, t->sift.n_dropped);
        }
        if (t->sift.n_evicted > 0) {
            add_section(p, &n, t, PS_SECTION_EVICTED, t->sift.evicted, t->sift.n_evicted);
        }
    }
    rec->sections = p->journal;
    rec->n_sections = n;
    return BD_OK;
}

static void end_hold(ps_table *t)
{
    ps_table_end_hold(t);
    for (int kind = PS_HIDDEN_FILTER; kind < PS_N_HIDDEN; kind++) {
        ps_table *h = ps_table_hidden(t, (ps_hidden)kind);
        if (h != NULL) {
            ps_table_end_hold(h);
        }
    }
}

void ps_plan_apply(ps_plan *p, const ps_record *rec)
{
    ps_apply a = {.seq = rec->seq, .step = rec->step, .lr_scale = rec->lr_scale};
    a.time_s = rec->n_sections == 0 ? 0 : rec->sections[0].time_s;
    /* A step's number is the same on any number of servers; an async push has none of its own. */
    a.write = rec->kind == PS_RECORD_STEP ? rec->step : rec->seq.n;
    for (size_t i = 0; i < p->n; i++) {
        const table_plan *t = &p->items[i];
        if (rec->kind == PS_RECORD_ASSIGN) {
            ps_table_assign(t->table, t->keys, t->values, t->state, t->n, &a);
        } else if (t->bags.n_bags != 0) {
            ps_table_apply_bags(t->table, t->keys, t->n, &t->bags, t->values, t->guesses, &a);
        } else {
            ps_table_apply(t->table, t->keys, t->values, t->n, &a);
        }
        ps_sift_apply(&t->sift, t->table, &a);
        end_hold(t->table);
    }
    p->n = 0;
}
