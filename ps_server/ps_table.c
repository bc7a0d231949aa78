#include "ps_server/ps_table.h"

#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_bags.h"
#include "ps_server/ps_table_int.h"

#include <string.h>

#define GROUP       PS_TABLE_GROUP
#define INDEX_AHEAD 16u /* keys between asking for an index entry and reading it */
#define ROW_AHEAD   12u /* and for a row */
_Static_assert(INDEX_AHEAD + ROW_AHEAD < GROUP, "what is under way of one key has a place");

ps_table *ps_table_new(const ps_spec *spec, ps_budget *budget)
{
    ps_table *t = bd_alloc_aligned(BD_CACHE_LINE_BYTES, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->scratch = bd_alloc(3 * (size_t)spec->dim * sizeof(float));
    if (t->scratch == NULL) {
        bd_free(t);
        return NULL;
    }
    t->spec = *spec;
    t->tiered = false;
    t->load_rows = SIZE_MAX;
    memset(t->hidden, 0, sizeof t->hidden);
    atomic_init(&t->n_rows, 0);
    atomic_init(&t->n_away, 0);
    atomic_init(&t->n_bad, 0);
    atomic_init(&t->last_bad_key, 0);
    for (size_t i = 0; i < PS_N_STRIPES; i++) {
        (void)pthread_rwlock_init(&t->stripes[i].lock, NULL);
        ps_rows_init(&t->stripes[i].rows, spec->weight_words + spec->state_elems,
                     ps_budget_limits(budget) ? budget : NULL);
    }
    return t;
}

void ps_table_free(ps_table *t)
{
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < PS_N_STRIPES; i++) {
        ps_rows_deinit(&t->stripes[i].rows);
        (void)pthread_rwlock_destroy(&t->stripes[i].lock);
    }
    bd_free(t->scratch);
    bd_free(t);
}

const ps_spec *ps_table_spec(const ps_table *t)
{
    return &t->spec;
}

uint64_t ps_table_n_rows(const ps_table *t)
{
    return atomic_load_explicit(&t->n_rows, memory_order_relaxed);
}

uint64_t ps_table_n_away(const ps_table *t)
{
    return atomic_load_explicit(&t->n_away, memory_order_relaxed);
}

void ps_table_count_bad(ps_table *t, size_t n_rows, uint64_t key)
{
    atomic_store_explicit(&t->last_bad_key, key, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&t->n_bad, n_rows, memory_order_relaxed);
}

uint64_t ps_table_n_bad(const ps_table *t, uint64_t *last_key)
{
    *last_key = atomic_load_explicit(&t->last_bad_key, memory_order_relaxed);
    return atomic_load_explicit(&t->n_bad, memory_order_relaxed);
}

void ps_find_group(const ps_rows *r, const uint64_t *keys, size_t n, size_t want_bytes,
                   uint32_t *rows)
{
    uint64_t mixed[GROUP];
    for (size_t i = 0; i < n; i++) {
        mixed[i] = bd_mix64(keys[i]);
        ps_rows_prefetch(r, mixed[i]);
    }
    for (size_t i = 0; i < n; i++) {
        rows[i] = ps_rows_find(r, keys[i], mixed[i]);
        ps_row_prefetch(r, rows[i], want_bytes);
    }
}

bool ps_table_is_limited(const ps_table *t)
{
    return t->stripes[0].rows.budget != NULL;
}

bd_status ps_table_reserve(ps_table *t, const uint64_t *keys, size_t n)
{
    size_t count[PS_N_STRIPES] = {0}, none = 0;
    for (size_t i = 0; i < n; i++) {
        count[ps_stripe_of_key(keys[i])]++;
    }
    bd_status rc = BD_OK;
    for (size_t s = 0; s < PS_N_STRIPES && rc == BD_OK; s++) {
        if (count[s] != 0) {
            ps_stripe_write_lock(&t->stripes[s]);
            rc = ps_rows_reserve(&t->stripes[s].rows, count[s], false, &none);
            ps_stripe_unlock(&t->stripes[s]);
        }
    }
    return rc;
}

void ps_table_start_row(ps_table *t, ps_rows *r, uint32_t row, uint64_t key)
{
    const ps_spec *s = &t->spec;
    float *w = ps_rows_at(r, row);
    ps_spec_row(s, key, t->scratch);
    num_row_encode(s->dtype, t->scratch, s->dim, NUM_ROW_NEAREST, w);
    s->opt->init(s->hyper, w + s->weight_words, s->dim);
}

static void start_row(ps_table *t, ps_rows *r, uint32_t row, uint64_t key)
{
    ps_table_start_row(t, r, row, key);
    (void)atomic_fetch_add_explicit(&t->n_rows, 1, memory_order_relaxed);
}

static uint32_t add_row(ps_table *t, ps_rows *r, uint64_t key)
{
    uint32_t row = ps_rows_add(r, key, bd_mix64(key));
    r->promised -= r->promised > 0 ? 1u : 0u;
    start_row(t, r, row, key);
    return row;
}

static inline uint32_t row_for(ps_table *t, ps_rows *r, uint32_t row, uint64_t key, uint64_t n)
{
    if (row == PS_NO_ROW) {
        return add_row(t, r, key);
    }
    ps_row_meta *m = ps_rows_meta(r, row);
    m->held = 0;
    if (m->seq_n >= n) {
        return PS_NO_ROW; /* replay: the store had this row already */
    }
    if (m->dead) {
        m->dead = 0;
        m->freq = 0;
        start_row(t, r, row, key);
    }
    return row;
}

uint32_t ps_table_row_for(ps_table *t, ps_rows *r, uint32_t row, uint64_t key, uint64_t n)
{
    return row_for(t, r, row, key, n);
}

static inline void stamp(ps_rows *r, uint32_t row, const ps_apply *a)
{
    ps_row_meta *m = ps_rows_meta(r, row);
    m->seq_n = a->seq.n;
    m->last_time = a->time_s;
    m->last_step = a->step;
    ps_rows_use(r, row);
    ps_rows_touch(r, row, a->seq.n);
}

void ps_table_stamp(ps_rows *r, uint32_t row, const ps_apply *a)
{
    stamp(r, row, a);
}

static void count_push(ps_row_meta *m)
{
    uint32_t freq = m->freq;
    m->freq = (freq < PS_MAX_FREQ ? freq + 1 : freq) & PS_MAX_FREQ;
}

static uint64_t draw_of(const ps_spec *s, uint64_t key, const ps_apply *a)
{
    return s->dtype == NUM_F32 ? NUM_ROW_NEAREST : num_row_draw(s->init_key, key, a->write);
}

/* Gradients of keys one after another: rows of an array, or from bags. */
typedef struct gradients {
    const float *values;
    ps_bag_walk walk; /* bags NULL: none */
    float *scratch;   /* bags: [dim] */
} gradients;

static const float *next_gradient(gradients *g)
{
    if (g->walk.bags != NULL) {
        return ps_bag_grad(&g->walk, g->values, g->scratch);
    }
    const float *row = g->values;
    g->values += g->walk.dim;
    return row;
}

/* Where an update of one stripe's keys stands: rows[i % GROUP] is that of key i, whose lines are on
 * their way. */
typedef struct updating {
    ps_table *t;
    ps_rows *r;
    const uint64_t *keys;
    const uint32_t *guesses; /* NULL: none */
    gradients *grads;
    const ps_apply *a;
    const float *hyper;
    uint64_t mixed[GROUP];
    uint32_t rows[GROUP];
} updating;

/* Key f's row number, for which its index entry has been asked for, or what is taken for it. */
static uint32_t find_ahead(const updating *u, size_t f)
{
    if (u->guesses != NULL && u->guesses[f] < u->r->n_slots) {
        return u->guesses[f];
    }
    return ps_rows_find(u->r, u->keys[f], u->mixed[f % GROUP]);
}

/* A guess is looked at when the row's lines are here. */
static uint32_t row_of(const updating *u, size_t i)
{
    uint32_t row = u->rows[i % GROUP];
    bool guessed = u->guesses != NULL && row != PS_NO_ROW;
    return !guessed || ps_rows_is_row_of(u->r, row, u->keys[i])
               ? row
               : ps_rows_find(u->r, u->keys[i], u->mixed[i % GROUP]);
}

static void update_one(updating *u, size_t i)
{
    const ps_spec *spec = &u->t->spec;
    const num_row_form form = {spec->opt, spec->dtype, spec->dim};
    uint64_t key = u->keys[i];
    uint32_t row = row_for(u->t, u->r, row_of(u, i), key, u->a->seq.n);
    const float *grad = next_gradient(u->grads);
    if (row == PS_NO_ROW) {
        return;
    }
    num_row_update(&form, u->hyper, ps_rows_at(u->r, row), grad, draw_of(spec, key, u->a),
                   u->t->scratch);
    count_push(ps_rows_meta(u->r, row));
    stamp(u->r, row, u->a);
}

/* Under one lock no row of these keys moves or comes but by update_one, so what is found ahead
 * stays true: keys are distinct. */
static void apply_run(updating *u, size_t n)
{
    for (size_t i = 0; i < n + INDEX_AHEAD + ROW_AHEAD; i++) {
        size_t f = i - INDEX_AHEAD, c = f - ROW_AHEAD; /* below 0: huge */
        if (i < n) {
            u->mixed[i % GROUP] = bd_mix64(u->keys[i]);
            if (u->guesses == NULL || u->guesses[i] >= u->r->n_slots) {
                ps_rows_prefetch(u->r, u->mixed[i % GROUP]);
            }
        }
        if (f < n) {
            u->rows[f % GROUP] = find_ahead(u, f);
            ps_row_prefetch(u->r, u->rows[f % GROUP], u->r->stride_bytes);
        }
        if (c < n) {
            update_one(u, c);
        }
    }
}

static void apply_all(ps_table *t, const uint64_t *keys, const uint32_t *guesses, gradients *grads,
                      size_t n, const ps_apply *a)
{
    float hyper[NUM_OPTIM_MAX_HYPER];
    uint32_t s = 0;
    updating u = {.t = t, .grads = grads, .a = a, .hyper = hyper};
    memcpy(hyper, t->spec.hyper, sizeof hyper);
    hyper[0] = (float)((double)hyper[0] * a->lr_scale);
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_stripe *st = &t->stripes[s];
        ps_stripe_write_lock(st);
        u.r = &st->rows;
        u.keys = keys + at;
        u.guesses = guesses == NULL ? NULL : guesses + at;
        apply_run(&u, end - at);
        ps_stripe_unlock(st);
    }
}

void ps_table_apply(ps_table *t, const uint64_t *keys, const float *grads, size_t n,
                    const ps_apply *a)
{
    gradients g = {.values = grads, .walk = {.dim = t->spec.dim}};
    apply_all(t, keys, NULL, &g, n, a);
}

void ps_table_apply_bags(ps_table *t, const uint64_t *keys, size_t n, const ps_bags *bags,
                         const float *bag_grads, const uint32_t *guesses, const ps_apply *a)
{
    size_t dim = t->spec.dim; /* the first 2 * dim of scratch are the update's */
    gradients g = {bag_grads, {.bags = bags, .dim = dim}, t->scratch + 2 * dim};
    apply_all(t, keys, guesses, &g, n, a);
}

/* Of repeated keys the last one wins, so a row of this very record is written again. */
static void assign_one(ps_table *t, ps_rows *r, uint64_t key, const float *weights,
                       const float *state, const ps_apply *a)
{
    uint32_t row = ps_rows_find(r, key, bd_mix64(key));
    bool again = row != PS_NO_ROW && ps_rows_meta(r, row)->seq_n == a->seq.n;
    row = again ? row : ps_table_row_for(t, r, row, key, a->seq.n);
    if (row == PS_NO_ROW) {
        return; /* replay */
    }
    float *w = ps_rows_at(r, row);
    num_row_encode(t->spec.dtype, weights, t->spec.dim, NUM_ROW_NEAREST, w);
    if (state != NULL && t->spec.state_elems != 0) {
        memcpy(w + t->spec.weight_words, state, t->spec.state_elems * sizeof(float));
    }
    ps_table_stamp(r, row, a);
}

void ps_table_assign(ps_table *t, const uint64_t *keys, const float *rows, const float *state,
                     size_t n, const ps_apply *a)
{
    size_t dim = t->spec.dim, se = t->spec.state_elems;
    uint32_t s = 0;
    for (size_t at = 0, end; at < n; at = end) {
        end = ps_run_end(keys, n, at, &s);
        ps_rows *r = &t->stripes[s].rows;
        ps_stripe_write_lock(&t->stripes[s]);
        for (size_t i = at; i < end; i++) {
            assign_one(t, r, keys[i], rows + i * dim, state == NULL ? NULL : state + i * se, a);
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
}
