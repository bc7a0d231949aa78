#include "ps_server/ps_sweep.h"

#include "base/mem.h"

#include "ps_server/ps_table_int.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 64u /* rows whose metadata is on its way to the cache together */

struct ps_sweep {
    ps_rank *list; /* owned: of one rule, rows that go, or with a rank all of the slice */
    size_t n, cap;
    uint64_t *keys; /* owned: what is handed out */
    size_t n_keys, cap_keys;
    uint64_t *dead; /* owned: tombstones of one stripe */
    size_t n_dead, cap_dead;
    uint32_t *slots; /* owned: hash set of keys to exclude, index + 1 */
    size_t cap_slots;
    float *weights; /* owned */
    size_t cap_weights;
};

ps_sweep *ps_sweep_new(void)
{
    return bd_calloc(1, sizeof(ps_sweep));
}

void ps_sweep_free(ps_sweep *s)
{
    if (s != NULL) {
        bd_free(s->list);
        bd_free(s->keys);
        bd_free(s->dead);
        bd_free(s->slots);
        bd_free(s->weights);
        bd_free(s);
    }
}

/* One rule's slice of one table. */
typedef struct look {
    ps_sweep *s;
    ps_table *t;
    const ps_eviction *e;
    const ps_evict_now *now;
    uint64_t slice, every;
    bool drops_dead;
} look;

static bool add_found(ps_sweep *s, uint64_t rank, uint64_t key)
{
    if (!bd_grow(&s->list, &s->cap, s->n + 1, sizeof *s->list)) {
        return false;
    }
    s->list[s->n++] = (ps_rank){rank, key};
    return true;
}

/* As the rule sees it. */
static ps_evict_row row_of(const look *l, const ps_rows *r, uint32_t row)
{
    const ps_row_meta *m = ps_rows_meta(r, row);
    ps_evict_row x = {.key = m->key,
                      .freq = m->freq,
                      .last_time = m->last_time,
                      .last_step = m->last_step,
                      .dim = l->t->spec.dim};
    if (l->e->rule->wants_weights) {
        num_row_decode(l->t->spec.dtype, ps_rows_at(r, row), x.dim, l->s->weights);
        x.weights = l->s->weights;
    }
    return x;
}

/* A row of the slice, under its stripe's lock. */
static bool look_at(const look *l, const ps_rows *r, uint32_t row)
{
    ps_sweep *s = l->s;
    const ps_row_meta *m = ps_rows_meta(r, row);
    const ps_evict *rule = l->e->rule;
    if (m->dead) {
        bool done = l->drops_dead && !m->dirty && !m->writing && !m->held;
        if (done && !bd_grow(&s->dead, &s->cap_dead, s->n_dead + 1, sizeof *s->dead)) {
            return false;
        }
        if (done) {
            s->dead[s->n_dead++] = m->key;
        }
        return true;
    }
    const ps_evict_row x = row_of(l, r, row);
    if (rule->rank != NULL) {
        return add_found(s, rule->rank(l->e->param, &x, l->now), m->key);
    }
    return !rule->goes(l->e->param, &x, l->now) || add_found(s, 0, m->key);
}

/* Rows whose mixed key begins its probe at `home` and is of the slice. */
static size_t rows_at_home(const look *l, const ps_rows *r, size_t home, uint32_t rows[BATCH],
                           size_t n, bool *ok)
{
    for (size_t i = home; r->index[i].row_plus_1 != 0; i = (i + 1) & r->index_mask) {
        uint64_t mixed = bd_mix64(r->index[i].key);
        if ((mixed & r->index_mask) != home || (mixed & (l->every - 1)) != l->slice) {
            continue;
        }
        rows[n++] = r->index[i].row_plus_1 - 1;
        __builtin_prefetch(ps_rows_meta(r, rows[n - 1]));
        if (n == BATCH) {
            for (size_t k = 0; k < n; k++) {
                *ok = *ok && look_at(l, r, rows[k]);
            }
            n = 0;
        }
    }
    return n;
}

static bool look_through(const look *l, const ps_rows *r)
{
    uint32_t rows[BATCH];
    size_t n = 0;
    bool ok = true;
    if (r->index == NULL) {
        return true;
    }
    for (size_t home = l->slice & r->index_mask; home <= r->index_mask; home += l->every) {
        size_t ahead = home + 8 * l->every;
        __builtin_prefetch(&r->index[ahead & r->index_mask]);
        n = rows_at_home(l, r, home, rows, n, &ok);
    }
    for (size_t k = 0; k < n; k++) {
        ok = ok && look_at(l, r, rows[k]);
    }
    return ok;
}

/* The store has these tombstones: memory need not. With a budget they count as away, as all rows
 * that are on the disk only. */
static void drop_dead(ps_table *t, uint32_t stripe, const uint64_t *keys, size_t n)
{
    ps_rows *r = &t->stripes[stripe].rows;
    size_t dropped = 0;
    ps_stripe_write_lock(&t->stripes[stripe]);
    for (size_t i = 0; i < n; i++) {
        uint32_t row = ps_rows_find(r, keys[i], bd_mix64(keys[i]));
        const ps_row_meta *m = row == PS_NO_ROW ? NULL : ps_rows_meta(r, row);
        if (m != NULL && m->dead && !m->dirty && !m->writing && !m->held) {
            ps_rows_remove(r, row);
            dropped++;
        }
    }
    ps_table_count_moved(t, r->budget != NULL ? dropped : 0);
    ps_stripe_unlock(&t->stripes[stripe]);
}

static int by_rank(const void *a, const void *b)
{
    return ps_rank_less(a, b) ? -1 : ps_rank_less(b, a);
}

/* What a rule takes of what it found joins the keys. */
static bool take(ps_sweep *s, const look *l)
{
    size_t n = s->n;
    if (l->e->rule->rank != NULL) {
        uint64_t quota = ps_evict_quota(l->e->rule, l->e->param, l->now, l->slice);
        n = n > quota ? n - quota : 0;
        if (n > 0) {
            qsort(s->list, s->n, sizeof *s->list, by_rank);
        }
    }
    if (!bd_grow(&s->keys, &s->cap_keys, s->n_keys + n, sizeof *s->keys)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        s->keys[s->n_keys++] = s->list[i].key;
    }
    return true;
}

static bool run_rule(ps_sweep *s, ps_table *t, size_t at, uint64_t turn, const ps_evict_now *now)
{
    const ps_eviction *e = &t->spec.evicts[at];
    look l = {.s = s,
              .t = t,
              .e = e,
              .now = now,
              .every = ps_evict_every(e->rule, e->param),
              .drops_dead = at == 0};
    l.slice = turn & (l.every - 1);
    s->n = 0;
    for (uint32_t stripe = 0; stripe < PS_N_STRIPES; stripe++) {
        s->n_dead = 0;
        ps_stripe_read_lock(&t->stripes[stripe]);
        bool ok = look_through(&l, &t->stripes[stripe].rows);
        ps_stripe_unlock(&t->stripes[stripe]);
        if (!ok) {
            return false;
        }
        if (s->n_dead > 0) {
            drop_dead(t, stripe, s->dead, s->n_dead);
        }
    }
    return take(s, &l);
}

static int by_mixed(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x = bd_mix64(x);
    y = bd_mix64(y);
    return x < y ? -1 : x > y;
}

/* ---- rows besides the slice ---- */
bool ps_sweep_takes(const ps_eviction *e, const ps_evict_row *row, const ps_evict_now *now,
                    const ps_rank *below)
{
    if (e->rule->rank == NULL) {
        return e->rule->goes(e->param, row, now);
    }
    const ps_rank at = {e->rule->rank(e->param, row, now), row->key};
    return ps_rank_less(&at, below);
}

/* A rule that ranks takes no more than are too many. */
static bool may_take(const ps_sweep *s, const look *l)
{
    uint64_t keep = ps_evict_most(l->e->rule, l->e->param, l->now);
    return l->e->rule->rank == NULL || ps_table_n_rows(l->t) > keep + s->n_keys;
}

static bool add_key(ps_sweep *s, uint64_t key)
{
    if (!bd_grow(&s->keys, &s->cap_keys, s->n_keys + 1, sizeof *s->keys)) {
        return false;
    }
    s->keys[s->n_keys++] = key;
    return true;
}

static bool look_besides(const look *l, const ps_sweep_more *more, const ps_rank *below)
{
    bool ok = true;
    for (size_t i = 0; i < more->n && ok; i++) {
        uint64_t key = more->keys[i];
        ps_stripe *st = &l->t->stripes[ps_stripe_of_key(key)];
        ps_stripe_read_lock(st);
        uint32_t at = ps_rows_find(&st->rows, key, bd_mix64(key));
        bool goes = at != PS_NO_ROW && !ps_rows_meta(&st->rows, at)->dead;
        if (goes) {
            const ps_evict_row x = row_of(l, &st->rows, at);
            goes = ps_sweep_takes(l->e, &x, l->now, below);
        }
        ps_stripe_unlock(st);
        if (goes && may_take(l->s, l)) {
            ok = add_key(l->s, key);
        }
    }
    return ok;
}

bd_status ps_sweep_slice(ps_sweep *s, ps_table *t, uint64_t turn, const ps_evict_now *now,
                         const ps_sweep_more *more, uint64_t **keys, size_t *n)
{
    bool ok = true;
    s->n_keys = 0;
    if (!bd_grow(&s->weights, &s->cap_weights, t->spec.dim, sizeof *s->weights)) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; i < t->spec.n_evicts; i++) {
        ok = ok && run_rule(s, t, i, turn, now);
    }
    for (size_t i = 0; more != NULL && i < t->spec.n_evicts; i++) {
        look l = {.s = s, .t = t, .e = &t->spec.evicts[i], .now = now};
        ok = ok && look_besides(&l, more, &more->below[i]);
    }
    if (!ok) {
        return BD_E_NOMEM;
    }
    if (s->n_keys > 1) {
        qsort(s->keys, s->n_keys, sizeof *s->keys, by_mixed);
    }
    size_t kept = 0;
    for (size_t i = 0; i < s->n_keys; i++) { /* two rules may take the same row */
        if (kept == 0 || s->keys[kept - 1] != s->keys[i]) {
            s->keys[kept++] = s->keys[i];
        }
    }
    *keys = s->keys;
    *n = kept;
    return BD_OK;
}

size_t ps_sweep_exclude(ps_sweep *s, uint64_t *keys, size_t n, const uint64_t * not, size_t n_not)
{
    size_t cap = 16, kept = 0;
    while (cap < 2 * n) {
        cap *= 2;
    }
    if (n == 0 || !bd_grow(&s->slots, &s->cap_slots, cap + n, sizeof *s->slots)) {
        return 0;
    }
    uint32_t *slots = s->slots, *gone = s->slots + cap;
    memset(slots, 0, (cap + n) * sizeof *slots);
    for (size_t i = 0; i < n; i++) {
        size_t at = bd_mix64(keys[i]) & (cap - 1);
        while (slots[at] != 0) {
            at = (at + 1) & (cap - 1);
        }
        slots[at] = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < n_not; i++) {
        size_t at = bd_mix64(not [i]) & (cap - 1);
        while (slots[at] != 0 && keys[slots[at] - 1] != not [i]) {
            at = (at + 1) & (cap - 1);
        }
        if (slots[at] != 0) {
            gone[slots[at] - 1] = 1;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (gone[i] == 0) {
            keys[kept++] = keys[i];
        }
    }
    return kept;
}
