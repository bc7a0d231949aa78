#include "ps_server/ps_reap.h"

#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rows.h"
#include "ps_server/ps_shard_int.h"
#include "ps_server/ps_sweep.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP_MS    20 /* async: from slice to slice */
#define MAX_KEYS    PS_REAP_SCAN_ROWS
#define MAX_BYTES   (4u << 20)
#define SAMPLE_ROWS 65536u
#define MIN_REST_NS BD_NS_PER_S
#define SPARE       1.02

/* Of the rows gone through, each with the same chance: the places they have in a rule's order. */
typedef struct sample {
    ps_rank *items; /* owned */
    size_t n, cap;
} sample;

typedef enum phase {
    BEGIN,
    MEASURE, /* the places below which rows go are being found */
    TAKE
} phase;

struct ps_reap {
    /* keeper's */
    size_t table;    /* index in the set: where the pass is */
    uint64_t from;   /* the key it goes on from */
    phase phase;     /* of the table */
    uint64_t n_seen; /* rows since the table's beginning */
    uint64_t chance; /* of a row to be sampled, of 2^64 */
    sample samples[PS_MAX_EVICTS];
    int64_t began_ns, rest_until_ns;
    uint8_t *values; /* owned: of the batch's rows */
    size_t cap_values, stride, most;
    uint32_t bytes[MAX_KEYS];
    float *weights; /* owned */
    size_t cap_weights;
    /* whose turn it is */
    _Atomic bool ready; /* the commit thread's; else the keeper's */
    ps_sweep_more more;
    uint64_t keys[MAX_KEYS];
    /* of the commit thread's last record */
    _Atomic uint64_t step;
    _Atomic uint32_t time_s; /* 0: none yet */
};

ps_reap *ps_reap_new(void)
{
    return bd_calloc(1, sizeof(ps_reap));
}

void ps_reap_free(ps_reap *r)
{
    for (size_t i = 0; r != NULL && i < PS_MAX_EVICTS; i++) {
        bd_free(r->samples[i].items);
    }
    if (r != NULL) {
        bd_free(r->values);
        bd_free(r->weights);
        bd_free(r);
    }
}

static double share_of(const ps_shard *s)
{
    return (double)(s->end_slot - s->first_slot) / PS_N_SLOTS;
}

/* ---- the commit thread's part ---- */
/* Which slice of the tables is looked through for rows to evict. In sync it is the step's own, so
 * that a restarted server takes the same; else one at a time, SWEEP_MS apart. False: none now. */
static bool next_turn(ps_shard *s, const ps_record *rec, uint64_t *turn)
{
    if (rec->kind == PS_RECORD_STEP) {
        *turn = rec->step;
        return true;
    }
    int64_t now = bd_mono_ns();
    if (rec->kind != PS_RECORD_PUSH || now - s->swept_ns < SWEEP_MS * BD_NS_PER_MS) {
        return false;
    }
    s->swept_ns = now;
    *turn = s->n_sweeps++;
    return true;
}

bd_status ps_reap_plan(ps_shard *s, const ps_record *rec, bd_err *err)
{
    ps_reap *r = s->reap;
    uint64_t turn = 0;
    if (!next_turn(s, rec, &turn)) {
        return BD_OK;
    }
    const ps_evict_now now = {.step = rec->step, .time_s = rec->time_s, .share = share_of(s)};
    bool ready = atomic_load_explicit(&r->ready, memory_order_acquire);
    bd_status rc = ps_plan_sweep(s->plan, &s->tables, turn, &now, ready ? &r->more : NULL, err);
    if (rc == BD_OK) {
        atomic_store_explicit(&r->step, now.step, memory_order_relaxed);
        atomic_store_explicit(&r->time_s, now.time_s, memory_order_release);
    }
    if (rc == BD_OK && ready) {
        atomic_store_explicit(&r->ready, false, memory_order_release);
    }
    return rc;
}

/* ---- the keeper's part ---- */
/* One batch of one table. */
typedef struct batch {
    ps_reap *reap;
    ps_table *table;
    const ps_spec *spec;
    ps_evict_now now;
    size_t n_rows;
    bool more; /* the table has further rows */
} batch;

/* A stored row as the rules see it. */
static ps_evict_row row_of(const batch *b, uint64_t key, const uint8_t *value)
{
    const ps_spec *spec = b->spec;
    ps_evict_row x = {.key = key,
                      .freq = ps_get_le32(value) & PS_MAX_FREQ,
                      .last_time = ps_get_le32(value + 4),
                      .last_step = ps_get_le64(value + 16),
                      .dim = spec->dim};
    bool wanted = false;
    for (size_t i = 0; i < spec->n_evicts; i++) {
        wanted = wanted || spec->evicts[i].rule->wants_weights;
    }
    if (wanted) { /* RocksDB's bytes are not aligned: they lie behind the place for the weights */
        float *stored = b->reap->weights + spec->dim;
        memcpy(stored, value + PS_ENTRY_META_BYTES, spec->weight_words * sizeof *stored);
        num_row_decode(spec->dtype, stored, spec->dim, b->reap->weights);
        x.weights = b->reap->weights;
    }
    return x;
}

static bool note_sample(const batch *b, const ps_evict_row *x)
{
    ps_reap *r = b->reap;
    bool ok = true;
    if (bd_mix64(bd_mix64(x->key)) > r->chance) {
        return true;
    }
    for (size_t i = 0; i < b->spec->n_evicts && ok; i++) {
        const ps_eviction *e = &b->spec->evicts[i];
        sample *m = &r->samples[i];
        if (e->rule->rank == NULL || m->n == 2 * (size_t)SAMPLE_ROWS) {
            continue;
        }
        ok = bd_grow(&m->items, &m->cap, m->n + 1, sizeof *m->items);
        if (ok) {
            m->items[m->n++] = (ps_rank){e->rule->rank(e->param, x, &b->now), x->key};
        }
    }
    return ok;
}

static void take_row(const batch *b, const ps_evict_row *x, const uint8_t *value, size_t bytes)
{
    ps_reap *r = b->reap;
    bool goes = false;
    for (size_t i = 0; i < b->spec->n_evicts && !goes; i++) {
        goes = ps_sweep_takes(&b->spec->evicts[i], x, &b->now, &r->more.below[i]);
    }
    if (goes) {
        size_t n = r->more.n++;
        r->keys[n] = x->key;
        r->bytes[n] = (uint32_t)bytes;
        memcpy(r->values + n * r->stride, value, bytes);
    }
}

static bd_status on_row(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes, bd_err *err)
{
    batch *b = user;
    ps_reap *r = b->reap;
    (void)key_bytes;
    uint64_t k = ps_get_be64(key + 4);
    bd_status rc = ps_table_check_value(b->table, value_bytes, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (b->n_rows == PS_REAP_SCAN_ROWS || r->more.n == r->most) {
        b->more = true;
        r->from = k;
        return BD_AGAIN;
    }
    b->n_rows++;
    if (value_bytes == PS_ENTRY_META_BYTES) { /* a tombstone */
        return BD_OK;
    }
    const ps_evict_row x = row_of(b, k, value);
    r->n_seen++;
    if (r->phase == TAKE) {
        take_row(b, &x, value, value_bytes);
    } else if (!note_sample(b, &x)) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory for a sample of its rows",
                          b->spec->name);
    }
    return BD_OK;
}

/* By how much the rows of the table are too many for its rule. */
static uint64_t excess_of(const batch *b, const ps_eviction *e)
{
    uint64_t rows = ps_table_n_rows(b->table);
    uint64_t most = e->rule->rank == NULL ? rows : ps_evict_most(e->rule, e->param, &b->now);
    return rows > most ? rows - most : 0;
}

static int by_rank(const void *a, const void *b)
{
    return ps_rank_less(a, b) ? -1 : ps_rank_less(b, a);
}

/* The place below which, of all rows seen, so many are, and by the sample's error a few more: those
 * are not taken (ps_sweep_slice), but too few would have to wait for another pass. */
static ps_rank place_of(sample *m, uint64_t n_seen, uint64_t excess)
{
    if (m->n == 0) {
        return (ps_rank){0, 0};
    }
    qsort(m->items, m->n, sizeof *m->items, by_rank);
    double at = SPARE * (double)excess * (double)m->n / (double)n_seen;
    return at < (double)m->n ? m->items[(size_t)at] : (ps_rank){UINT64_MAX, UINT64_MAX};
}

/* At the beginning of a table: is there a rule that has to be told a place first? */
static void begin_table(batch *b)
{
    ps_reap *r = b->reap;
    uint64_t rows = ps_table_n_rows(b->table);
    r->phase = TAKE;
    r->n_seen = 0;
    r->chance = rows <= SAMPLE_ROWS ? UINT64_MAX : UINT64_MAX / rows * SAMPLE_ROWS;
    for (size_t i = 0; i < PS_MAX_EVICTS; i++) {
        r->samples[i].n = 0;
        r->more.below[i] = (ps_rank){0, 0};
        if (i < b->spec->n_evicts && excess_of(b, &b->spec->evicts[i]) > 0) {
            r->phase = MEASURE;
        }
    }
}

/* At the end of a table: on to the next, or through it once more with the places known. */
static void end_table(const batch *b)
{
    ps_reap *r = b->reap;
    r->from = 0;
    if (r->phase == TAKE) {
        r->phase = BEGIN;
        r->table++;
        return;
    }
    for (size_t i = 0; i < b->spec->n_evicts; i++) {
        uint64_t excess = excess_of(b, &b->spec->evicts[i]);
        r->more.below[i] = place_of(&r->samples[i], r->n_seen, excess);
    }
    r->phase = TAKE;
}

/* Room for the rows of a batch. */
static bd_status make_room(batch *b, bd_err *err)
{
    ps_reap *r = b->reap;
    size_t weights = b->spec->dim + b->spec->weight_words;
    r->stride = (ps_table_value_bytes(b->table) + 7) / 8 * 8;
    r->most = MAX_BYTES / r->stride < MAX_KEYS ? MAX_BYTES / r->stride : MAX_KEYS;
    r->most = r->most == 0 ? 1 : r->most;
    if (!bd_grow(&r->values, &r->cap_values, r->most * r->stride, 1) ||
        !bd_grow(&r->weights, &r->cap_weights, weights, sizeof *r->weights)) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory to look for rows to evict",
                          b->spec->name);
    }
    return BD_OK;
}

static bd_status run_batch(ps_shard *s, batch *b, bd_err *err)
{
    ps_reap *r = b->reap;
    b->spec = ps_table_spec(b->table);
    bd_status rc = make_room(b, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (r->phase == BEGIN) {
        begin_table(b);
    }
    r->more.n = 0;
    r->more.table_id = b->spec->id;
    r->more.keys = r->keys;
    rc = ps_store_range(s->store, b->spec->id, r->from, on_row, b, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!b->more) {
        end_table(b);
    }
    if (r->more.n > 0) {
        const ps_found found = {.values = r->values, .stride = r->stride, .bytes = r->bytes};
        ps_table_bring(b->table, r->keys, r->more.n, &found);
        atomic_store_explicit(&r->ready, true, memory_order_release);
    }
    return BD_OK;
}

/* The table the pass is at, among those with rules and rows away; NULL: it is through. */
static ps_table *table_at(ps_shard *s)
{
    ps_reap *r = s->reap;
    ps_table *found = NULL;
    const ps_tables *ts = ps_shard_lock_tables(s);
    while (r->table < ts->n && found == NULL) {
        ps_table *t = ts->items[r->table];
        if (ps_table_spec(t)->n_evicts > 0 && ps_table_n_away(t) > 0) {
            found = t;
        } else {
            r->table++;
            r->phase = BEGIN;
            r->from = 0;
        }
    }
    ps_shard_unlock_tables(s);
    return found;
}

/* The next pass begins at the first table, after a rest. */
static void end_pass(ps_reap *r, int64_t now_ns)
{
    int64_t took_ns = now_ns - r->began_ns;
    r->rest_until_ns = now_ns + (took_ns > MIN_REST_NS ? took_ns : MIN_REST_NS);
    r->began_ns = 0;
    r->table = 0;
    r->phase = BEGIN;
    r->from = 0;
}

bool ps_reap_is_on(const ps_shard *s)
{
    return s->reap->began_ns != 0;
}

bd_status ps_reap_poll(ps_shard *s, bd_err *err)
{
    ps_reap *r = s->reap;
    int64_t now_ns = bd_mono_ns();
    uint32_t time_s = atomic_load_explicit(&r->time_s, memory_order_acquire);
    if (time_s == 0 || now_ns < r->rest_until_ns ||
        atomic_load_explicit(&r->ready, memory_order_acquire)) {
        return BD_OK;
    }
    r->began_ns = r->began_ns == 0 ? now_ns : r->began_ns;
    batch b = {.reap = r, .table = table_at(s)};
    b.now = (ps_evict_now){.step = atomic_load_explicit(&r->step, memory_order_relaxed),
                           .time_s = time_s,
                           .share = share_of(s)};
    if (b.table == NULL) {
        end_pass(r, now_ns);
        return BD_OK;
    }
    bd_status rc = run_batch(s, &b, err);
    if (rc != BD_OK) {
        end_pass(r, now_ns);
        (void)atomic_fetch_add(&s->disk_errors, rc == BD_E_NOMEM ? 0u : 1u);
        BD_LOG(ERROR, "rows on the disk cannot be looked through for eviction: check it", "error",
               bd_err_text(err));
    }
    return rc;
}
