#include "ps_server/ps_sift.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WORDS 128u /* of a filter row */

static int by_mixed(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x = bd_mix64(x);
    y = bd_mix64(y);
    return x < y ? -1 : x > y;
}

/* Sorts by stripe and drops repeats; returns how many are left. */
static size_t distinct(uint64_t *keys, size_t n)
{
    size_t kept = 0;
    if (n > 1) {
        qsort(keys, n, sizeof *keys, by_mixed);
    }
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || keys[kept - 1] != keys[i]) {
            keys[kept++] = keys[i];
        }
    }
    return kept;
}

static uint64_t *add_row(const ps_spec *spec, uint64_t key, uint64_t *to)
{
    *to = spec->admit->filter_key(spec->admit_param, key);
    return to + 1;
}

bd_status ps_sift_ask(ps_sift *s, bd_arena *a, ps_table *t, const uint64_t *keys, size_t n)
{
    const ps_spec *spec = ps_table_spec(t);
    s->absent = bd_arena_alloc(a, (n + 1) * sizeof *s->absent);
    if (s->absent == NULL) {
        return BD_E_NOMEM;
    }
    s->n_absent = ps_table_absent(t, keys, n, s->absent);
    if (spec->admit->filter_words == 0 || s->n_absent == 0) {
        return BD_OK;
    }
    s->rows = bd_arena_alloc(a, s->n_absent * sizeof *s->rows);
    if (s->rows == NULL) {
        return BD_E_NOMEM;
    }
    uint64_t *to = s->rows;
    for (size_t i = 0; i < s->n_absent; i++) {
        to = add_row(spec, keys[s->absent[i]], to);
    }
    s->n_rows = distinct(s->rows, s->n_absent);
    return BD_OK;
}

bd_status ps_sift_recall(ps_sift *s, bd_arena *a, ps_table *t, const uint64_t *keys, size_t n,
                         const uint64_t *dropped, size_t n_dropped)
{
    const ps_spec *spec = ps_table_spec(t);
    s->dropped = dropped;
    s->n_dropped = n_dropped;
    if (spec->admit->filter_words == 0) {
        return BD_OK;
    }
    s->fresh = keys;
    s->n_fresh = spec->admit->own_rows ? n : 0;
    s->rows = bd_arena_alloc(a, (n_dropped + s->n_fresh + 1) * sizeof *s->rows);
    if (s->rows == NULL) {
        return BD_E_NOMEM;
    }
    uint64_t *to = s->rows;
    for (size_t i = 0; i < n_dropped; i++) {
        to = add_row(spec, dropped[i], to);
    }
    for (size_t i = 0; i < s->n_fresh; i++) {
        to = add_row(spec, keys[i], to);
    }
    s->n_rows = distinct(s->rows, n_dropped + s->n_fresh);
    return BD_OK;
}

static bool is_admitted(ps_table *t, uint64_t key, uint64_t draw)
{
    const ps_spec *spec = ps_table_spec(t);
    uint32_t words[MAX_WORDS];
    ps_table *filter = ps_table_hidden(t, PS_HIDDEN_FILTER);
    ps_admit_ask ask = {
        .param = spec->admit_param, .key = key, .table_key = spec->init_key, .draw = draw};
    if (filter != NULL &&
        ps_table_peek(filter, spec->admit->filter_key(spec->admit_param, key), words)) {
        ask.words = words;
    }
    return spec->admit->admit(&ask);
}

bd_status ps_sift_decide(ps_sift *s, bd_arena *a, ps_table *t, uint64_t draw, ps_sifted *g)
{
    const ps_spec *spec = ps_table_spec(t);
    size_t dim = spec->dim, n_kept = 0, n_dropped = 0, n_fresh = 0, next = 0;
    uint64_t *dropped = bd_arena_alloc(a, (s->n_absent + 1) * sizeof *dropped);
    uint64_t *fresh = bd_arena_alloc(a, (s->n_absent + 1) * sizeof *fresh);
    uint32_t *gone = bd_arena_alloc(a, (s->n_absent + 1) * sizeof *gone);
    if (dropped == NULL || fresh == NULL || gone == NULL) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; i < s->n_absent; i++) {
        uint64_t key = g->keys[s->absent[i]];
        if (is_admitted(t, key, draw)) {
            fresh[n_fresh++] = key;
        } else {
            gone[n_dropped] = s->absent[i];
            dropped[n_dropped++] = key;
        }
    }
    s->dropped = dropped;
    s->n_dropped = n_dropped;
    s->fresh = fresh;
    s->n_fresh = spec->admit->own_rows ? n_fresh : 0;
    if (n_dropped == 0) {
        return BD_OK;
    }
    size_t left = g->n - n_dropped;
    uint64_t *keys = bd_arena_alloc(a, (left + 1) * sizeof *keys);
    float *values = bd_arena_alloc(a, (left * dim + 1) * sizeof *values);
    if (keys == NULL || values == NULL) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; i < g->n; i++) {
        if (next < n_dropped && gone[next] == i) {
            next++;
            continue;
        }
        keys[n_kept] = g->keys[i];
        memcpy(values + n_kept++ * dim, g->values + i * dim, dim * sizeof *values);
    }
    *g = (ps_sifted){.keys = keys, .values = values, .n = n_kept};
    return BD_OK;
}

/* ---- what to remember ---- */
static int by_row(const void *a, const void *b)
{
    const ps_sift_note *x = a, *y = b;
    if (x->mixed_row != y->mixed_row) {
        return x->mixed_row < y->mixed_row ? -1 : 1;
    }
    return x->key < y->key ? -1 : x->key > y->key;
}

/* The row of a key's slot. */
static uint64_t slot_row(uint64_t key)
{
    return bd_unmix64((uint64_t)ps_slot_of_key(key) << 52);
}

static void count_slots(ps_sift *s)
{
    size_t n = s->n_dropped + s->n_evicted;
    for (size_t i = 0; i < n; i++) {
        s->slots[i] = slot_row(i < s->n_dropped ? s->dropped[i] : s->evicted[i - s->n_dropped]);
    }
    s->n_slots = distinct(s->slots, n);
    memset(s->adds, 0, s->n_slots * sizeof *s->adds);
    for (size_t i = 0; i < n; i++) {
        uint64_t row = slot_row(i < s->n_dropped ? s->dropped[i] : s->evicted[i - s->n_dropped]);
        const uint64_t *at = bsearch(&row, s->slots, s->n_slots, sizeof row, by_mixed);
        s->adds[at - s->slots].by[i < s->n_dropped ? 0 : 1]++;
    }
}

bd_status ps_sift_count(ps_sift *s, bd_arena *a, ps_table *t)
{
    const ps_spec *spec = ps_table_spec(t);
    size_t n = s->n_dropped + s->n_evicted;
    s->n_slots = s->n_notes = 0;
    if (n == 0) {
        return BD_OK;
    }
    s->slots = bd_arena_alloc(a, n * sizeof *s->slots);
    s->adds = bd_arena_alloc(a, n * sizeof *s->adds);
    s->notes = bd_arena_alloc(a, (s->n_dropped + 1) * sizeof *s->notes);
    if (s->slots == NULL || s->adds == NULL || s->notes == NULL) {
        return BD_E_NOMEM;
    }
    count_slots(s);
    for (size_t i = 0; i < s->n_dropped && spec->admit->filter_words != 0; i++) {
        uint64_t row = spec->admit->filter_key(spec->admit_param, s->dropped[i]);
        s->notes[s->n_notes++] = (ps_sift_note){bd_mix64(row), s->dropped[i]};
    }
    if (s->n_notes > 1) {
        qsort(s->notes, s->n_notes, sizeof *s->notes, by_row);
    }
    return BD_OK;
}

/* ---- applying ---- */
/* The notes of one filter row. */
typedef struct run {
    const ps_spec *spec;
    const ps_sift_note *notes;
    size_t n;
} run;

static void note_run(void *user, uint32_t *words)
{
    const run *r = user;
    const ps_admit *m = r->spec->admit;
    for (size_t i = 0; i < r->n; i++) {
        m->note(r->spec->admit_param, words, r->notes[i].key);
    }
    if (m->age != NULL) {
        m->age(r->spec->admit_param, words);
    }
}

static void count_row(void *user, uint32_t *words)
{
    const ps_sift_add *add = user;
    uint64_t counts[2];
    memcpy(counts, words, sizeof counts);
    counts[0] += add->by[0];
    counts[1] += add->by[1];
    memcpy(words, counts, sizeof counts);
}

void ps_sift_apply(const ps_sift *s, ps_table *t, const ps_apply *apply)
{
    ps_table *filter = ps_table_hidden(t, PS_HIDDEN_FILTER);
    ps_table *counts = ps_table_hidden(t, PS_HIDDEN_COUNTS);
    run r = {.spec = ps_table_spec(t)};
    for (size_t at = 0; at < s->n_notes; at += r.n) {
        r.notes = s->notes + at;
        for (r.n = 1; at + r.n < s->n_notes && r.notes[r.n].mixed_row == r.notes[0].mixed_row;) {
            r.n++;
        }
        ps_table_visit(filter, bd_unmix64(r.notes[0].mixed_row), apply, note_run, &r);
    }
    if (filter != NULL) {
        ps_table_evict(filter, s->fresh, s->n_fresh, apply);
    }
    ps_table_evict(t, s->evicted, s->n_evicted, apply);
    for (size_t i = 0; i < s->n_slots && counts != NULL; i++) {
        ps_table_visit(counts, s->slots[i], apply, count_row, &s->adds[i]);
    }
}
