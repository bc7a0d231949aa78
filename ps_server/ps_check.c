/* From decoded messages to checked arrays: what passes here cannot hurt the shard. */
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_bags.h"
#include "ps_server/ps_policy.h"
#include "ps_server/ps_service_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_REPLY_BYTES (64ull << 20)

/* A NaN or infinity in x[n]: its index, else n. */
static size_t first_not_finite(const float *x, size_t n)
{
    const size_t block = 256;
    for (size_t at = 0; at < n; at += block) {
        size_t end = at + block < n ? at + block : n;
        uint32_t bad = 0;
        for (size_t i = at; i < end; i++) { /* no branch: one check a block */
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bad |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        if (bad != 0) {
            while (isfinite(x[at])) {
                at++;
            }
            return at;
        }
    }
    return n;
}

/* A key that occurs twice: its index, else n. slots: zeroed, a power of two >= 2 n. */
static size_t first_repeated(const uint64_t *keys, size_t n, uint32_t *slots, size_t mask)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = bd_mix64(keys[i]) & mask;
        while (slots[at] != 0) {
            if (keys[slots[at] - 1] == keys[i]) {
                return i;
            }
            at = (at + 1) & mask;
        }
        slots[at] = (uint32_t)i + 1;
    }
    return n;
}

/* A key among n others. */
static bool is_among(uint64_t key, const uint64_t *keys, size_t n)
{
    bool same = false;
    for (size_t i = 0; i < n; i++) {
        same = same || keys[i] == key;
    }
    return same;
}

/* Keys as clients send them, each slot's together: a key is compared with those of its slot that
 * share six bits of its hash, of which there is seldom one. False: not so, or a slot has many keys,
 * or a key is repeated. */
static bool are_distinct_runs(const uint64_t *keys, size_t n)
{
    const size_t longest = 48;
    uint64_t seen[PS_N_SLOTS / 64] = {0}, bits = 0;
    uint32_t slot = PS_N_SLOTS;
    for (size_t i = 0, at = 0; i < n; i++) {
        uint64_t mixed = bd_mix64(keys[i]), bit = 1ull << (mixed & 63);
        uint32_t of_key = ps_slot_of_mixed(mixed);
        if (of_key != slot) {
            slot = of_key;
            at = i;
            bits = 0;
            if ((seen[slot / 64] >> slot % 64 & 1) != 0) {
                return false;
            }
            seen[slot / 64] |= 1ull << slot % 64;
        }
        if (i - at > longest || ((bits & bit) != 0 && is_among(keys[i], keys + at, i - at))) {
            return false;
        }
        bits |= bit;
    }
    return true;
}

static bd_status check_distinct(const char *table, const uint64_t *keys, size_t n, bd_err *err)
{
    size_t cap = 16;
    if (are_distinct_runs(keys, n)) {
        return BD_OK;
    }
    while (cap < 2 * n) {
        cap *= 2;
    }
    uint32_t *slots = bd_calloc(cap, sizeof *slots);
    if (slots == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "push: no memory");
    }
    size_t i = first_repeated(keys, n, slots, cap - 1);
    bd_free(slots);
    return i == n ? BD_OK
                  : bd_err_set(err, BD_E_INVALID, "table \"%s\": key %" PRIu64 " is repeated",
                               table, keys[i]);
}

/* The spec of a table by id; copied, because tables may be replaced by a restore. */
static bd_status find_spec(ps_service *v, uint32_t id, ps_spec *out, bd_err *err)
{
    const ps_tables *ts = ps_shard_lock_tables(v->shard);
    const ps_table *t = ps_tables_find(ts, id);
    if (t != NULL) {
        *out = *ps_table_spec(t);
    }
    ps_shard_unlock_tables(v->shard);
    return t != NULL ? BD_OK : bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u", id);
}

static bd_status check_bag_counts(const ps_spec *spec, uint32_t n_bags, const px_bulk *entries,
                                  const px_bulk *weights, bd_err *err)
{
    size_t n = px_bulk_count(entries), n_weights = px_bulk_count(weights);
    if (n_bags >= PS_BAG_SAME_KEY || (n_bags == 0 && n + n_weights != 0) ||
        (n_weights != 0 && n_weights != n)) {
        return bd_err_set(err, BD_E_INVALID,
                          "table \"%s\": %u bags of %zu entries with %zu weights", spec->name,
                          n_bags, n, n_weights);
    }
    return BD_OK;
}

/* Counts of one table's arrays, before anything is copied. */
static bd_status check_counts(const px_table_grads *t, const ps_spec *spec, bd_err *err)
{
    size_t n = px_bulk_count(&t->keys), elems = 0, rows = t->n_bags != 0 ? t->n_bags : n;
    if (n > PS_MAX_REQUEST_KEYS) {
        return bd_err_set(err, BD_E_INVALID, "table \"%s\": %zu keys in one request (at most %u)",
                          spec->name, n, PS_MAX_REQUEST_KEYS);
    }
    if (t->dim != spec->dim) {
        return bd_err_set(err, BD_E_MISMATCH, "table \"%s\" has dim %u, the push says %u",
                          spec->name, spec->dim, t->dim);
    }
    if (!bd_mul_size(rows, t->dim, &elems) || px_bulk_count(&t->grads) != elems) {
        return bd_err_set(err, BD_E_INVALID,
                          "table \"%s\": %zu gradient numbers for %zu %s of dim %u", spec->name,
                          px_bulk_count(&t->grads), rows, t->n_bags != 0 ? "bags" : "keys", t->dim);
    }
    return check_bag_counts(spec, t->n_bags, &t->entries, &t->weights, err);
}

static bd_status check_keys(ps_service *v, const ps_spec *spec, const ps_grads *g, bd_err *err)
{
    bd_status rc = ps_shard_check_keys(v->shard, g->keys, g->n_keys, err);
    return rc == BD_OK ? check_distinct(spec->name, g->keys, g->n_keys, err)
                       : bd_err_wrap(err, "table \"%s\"", spec->name);
}

/* Of an assign. */
static bd_status check_values(ps_service *v, const ps_spec *spec, const ps_grads *g, bd_err *err)
{
    size_t bad = first_not_finite(g->grads, g->n_keys * g->dim);
    if (bad < g->n_keys * g->dim) {
        return bd_err_set(err, BD_E_NUMERIC,
                          "table \"%s\": the weight of key %" PRIu64 " element %zu is %f",
                          spec->name, g->keys[bad / g->dim], bad % g->dim, (double)g->grads[bad]);
    }
    return check_keys(v, spec, g, err);
}

/* ---- bad gradients ---- */
static void count_bad(ps_service *v, const ps_spec *spec, const ps_bad *bad)
{
    const ps_tables *ts = ps_shard_lock_tables(v->shard);
    ps_table *t = ps_tables_find(ts, spec->id);
    if (t != NULL) {
        ps_table_count_bad(t, bad->n_rows, bad->key);
    }
    ps_shard_unlock_tables(v->shard);
    BD_LOG(WARN, "bad gradients: look at the trainer's loss and learning rate", "table", spec->name,
           "rows", bad->n_rows, "key", bad->key, "policy", ps_policy_name(spec->policy));
}

static void halt(ps_service *v, uint64_t job_epoch, const bd_err *why)
{
    (void)pthread_mutex_lock(&v->lock);
    v->halt_epoch = job_epoch;
    v->halt_why = *why;
    (void)pthread_mutex_unlock(&v->lock);
    atomic_store_explicit(&v->halted, true, memory_order_release);
}

/* A job whose gradients halted it stays halted; the next one has another epoch. */
static bd_status check_halted(ps_service *v, uint64_t job_epoch, bd_err *err)
{
    bd_status rc = BD_OK;
    if (!atomic_load_explicit(&v->halted, memory_order_acquire)) {
        return BD_OK;
    }
    (void)pthread_mutex_lock(&v->lock);
    if (v->halt_epoch == job_epoch) {
        rc = bd_err_set(err, BD_E_NUMERIC, "job epoch %" PRIu64 " is halted: %s", job_epoch,
                        bd_err_text(&v->halt_why));
    }
    (void)pthread_mutex_unlock(&v->lock);
    return rc;
}

/* Keys and lists of bags, in the part's own memory: keys become distinct, and where their rows may be
 * is found by the keys that the lookup had. */
static bd_status merge_bags(ps_service *v, const ps_spec *spec, ps_grads *g, bd_err *err)
{
    bd_status rc = ps_shard_check_keys(v->shard, g->keys, g->n_keys, err);
    if (rc == BD_OK) {
        rc = ps_bags_check(&g->bags, g->n_keys, err);
    }
    if (rc != BD_OK) {
        return bd_err_wrap(err, "table \"%s\"", spec->name);
    }
    g->found = ps_trail_take(&v->trail, g->table_id, g->keys, g->n_keys);
    ps_bag_keys k = {.keys = bd_unconst(g->keys),
                     .rows = g->found == NULL ? NULL : (uint32_t *)(void *)g->found->bytes,
                     .n_keys = g->n_keys,
                     .entries = bd_unconst(g->bags.entries),
                     .weights = bd_unconst(g->bags.weights),
                     .n_entries = g->bags.n_entries};
    if (ps_bags_merge(&k) != BD_OK) {
        return bd_err_set(err, BD_E_NOMEM, "push: no memory");
    }
    g->n_keys = k.n_keys;
    return BD_OK;
}

/* Bags whose gradients need the policy's eye become rows (of g->own): it looks at keys. */
static bd_status check_bags(const ps_spec *spec, ps_grads *g, bd_err *err)
{
    size_t n_weights = g->bags.weights == NULL ? 0 : g->bags.n_entries;
    size_t n_elems = (size_t)g->bags.n_bags * g->dim;
    bool good = first_not_finite(g->grads, n_elems) == n_elems &&
                first_not_finite(g->bags.weights, n_weights) == n_weights;
    if (good && spec->max_grad_norm == 0 && !ps_spec_sifts(spec)) {
        return BD_OK;
    }
    g->own = bd_buf_new(g->n_keys * g->dim * sizeof(float));
    if (g->own == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory for %zu gradients", spec->name,
                          g->n_keys);
    }
    float *rows = (float *)(void *)g->own->bytes;
    (void)ps_bags_expand(&g->bags, g->grads, g->dim, 0, g->n_keys, rows);
    g->grads = rows;
    g->bags = (ps_bags){0};
    bd_buf_unref(g->found); /* they may be fewer keys soon */
    g->found = NULL;
    return BD_OK;
}

/* Of a push; the arrays are the part's own copy, which drop_row and clip change. */
static bd_status check_gradients(ps_service *v, const ps_spec *spec, uint64_t job_epoch,
                                 uint8_t *arrays, ps_grads *g, bd_err *err)
{
    ps_bad bad;
    float *grads = (float *)(void *)(arrays + g->n_keys * sizeof(uint64_t));
    bd_status rc = g->bags.n_bags != 0 ? merge_bags(v, spec, g, err) : check_keys(v, spec, g, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (g->bags.n_bags != 0) {
        rc = check_bags(spec, g, err);
        if (rc != BD_OK || g->bags.n_bags != 0) {
            return rc;
        }
        grads = (float *)(void *)g->own->bytes;
    }
    rc = ps_policy_apply(spec, (uint64_t *)(void *)arrays, grads, &g->n_keys, &bad, err);
    if (bad.n_rows > 0) {
        count_bad(v, spec, &bad);
    }
    if (rc != BD_OK && spec->policy == PS_POLICY_HALT) {
        halt(v, job_epoch, err);
    }
    return rc;
}

/* A part with room for n_tables tables and n_bytes of arrays. */
static ps_part *part_new(size_t n_tables, size_t n_bytes)
{
    ps_part *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->tables = bd_calloc(n_tables, sizeof *p->tables);
    p->keep = bd_buf_new(n_bytes);
    p->n_bytes = n_bytes;
    if (p->tables == NULL || p->keep == NULL) {
        ps_part_free(p);
        return NULL;
    }
    return p;
}

/* Copies keys (to an 8-aligned place) and values; returns the bytes used. */
static size_t copy_arrays(uint8_t *to, const px_bulk *keys, const px_bulk *values, ps_grads *g)
{
    size_t n = px_bulk_count(keys), m = px_bulk_count(values);
    px_bulk_copy(keys, 0, n, to);
    g->keys = (const uint64_t *)(const void *)to;
    to += n * sizeof(uint64_t);
    px_bulk_copy(values, 0, m, to);
    g->grads = (const float *)(const void *)to;
    g->n_keys = n;
    return n * sizeof(uint64_t) + (m * sizeof(float) + 7) / 8 * 8;
}

static size_t pad8(size_t n_bytes)
{
    return (n_bytes + 7) / 8 * 8;
}

/* Copies the list of bags; returns the bytes used. */
static size_t copy_bags(uint8_t *to, const px_table_grads *t, ps_bags *b)
{
    size_t n = px_bulk_count(&t->entries), used = 0;
    *b = (ps_bags){.n_bags = t->n_bags, .n_entries = n};
    if (t->n_bags != 0) {
        px_bulk_copy(&t->entries, 0, n, to);
        b->entries = (const uint32_t *)(const void *)to;
        used = pad8(t->entries.n_bytes);
    }
    if (t->weights.n_bytes != 0) {
        px_bulk_copy(&t->weights, 0, n, to + used);
        b->weights = (const float *)(const void *)(to + used);
        used += pad8(t->weights.n_bytes);
    }
    return used;
}

static bd_status take_table(ps_service *v, const px_table_grads *t, ps_part *p, size_t *used,
                            bd_err *err)
{
    uint8_t *arrays = p->keep->bytes + *used;
    ps_spec spec = {0};
    ps_grads *g = &p->tables[p->n_tables];
    bd_status rc = find_spec(v, t->table_id, &spec, err);
    if (rc == BD_OK) {
        rc = check_counts(t, &spec, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    *g = (ps_grads){.table_id = t->table_id, .dim = t->dim};
    *used += copy_arrays(arrays, &t->keys, &t->grads, g);
    *used += copy_bags(p->keep->bytes + *used, t, &g->bags);
    p->n_tables++;
    return check_gradients(v, &spec, p->job_epoch, arrays, g, err);
}

static bd_status check_table_repeats(const px_push_request *r, bd_err *err)
{
    for (size_t i = 0; i < r->n_tables; i++) {
        for (size_t k = 0; k < i; k++) {
            if (r->tables[i].table_id == r->tables[k].table_id) {
                return bd_err_set(err, BD_E_INVALID, "table %u is twice in one push",
                                  r->tables[i].table_id);
            }
        }
    }
    return BD_OK;
}

bd_status ps_check_push(ps_service *v, const px_push_request *r, ps_part **out, bd_err *err)
{
    size_t bytes = 0, used = 0;
    bd_status rc = check_halted(v, r->job_epoch, err);
    if (rc == BD_OK) {
        rc = check_table_repeats(r, err);
    }
    if (rc == BD_OK && !(isfinite(r->lr_scale) && r->lr_scale >= 0.0)) {
        rc = bd_err_set(err, BD_E_NUMERIC, "push: lr_scale %f", r->lr_scale);
    }
    for (size_t i = 0; i < r->n_tables; i++) {
        bytes += r->tables[i].keys.n_bytes + pad8(r->tables[i].grads.n_bytes) +
                 pad8(r->tables[i].entries.n_bytes) + pad8(r->tables[i].weights.n_bytes);
    }
    ps_part *p = rc == BD_OK ? part_new(r->n_tables, bytes) : NULL;
    if (rc == BD_OK && p == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "push: no memory for %zu bytes", bytes);
    }
    if (rc == BD_OK) {
        p->job_epoch = r->job_epoch;
    }
    for (size_t i = 0; i < r->n_tables && rc == BD_OK; i++) {
        rc = take_table(v, &r->tables[i], p, &used, err);
    }
    if (rc != BD_OK) {
        ps_part_free(p);
        return bd_err_wrap(err, "push of rank %u step %" PRIu64 " part %u", r->rank, r->step,
                           r->part);
    }
    p->step = r->step;
    p->rank = r->rank;
    p->part = r->part;
    p->n_parts = r->n_parts;
    p->client_id = r->client_id;
    p->sequence = r->sequence;
    p->lr_scale = r->lr_scale == 0.0 ? 1.0 : r->lr_scale;
    *out = p;
    return BD_OK;
}

bd_status ps_check_assign(ps_service *v, const px_assign_request *r, ps_part **out, float **state,
                          bd_err *err)
{
    ps_spec spec = {0};
    size_t n = px_bulk_count(&r->keys), m = px_bulk_count(&r->state), elems = 0;
    *state = NULL;
    bd_status rc = find_spec(v, r->table_id, &spec, err);
    if (rc != BD_OK) {
        return rc;
    }
    px_table_grads t = {
        .table_id = r->table_id, .dim = spec.dim, .keys = r->keys, .grads = r->rows};
    rc = check_counts(&t, &spec, err);
    if (rc == BD_OK && m != 0 && (!bd_mul_size(n, spec.state_elems, &elems) || m != elems)) {
        rc = bd_err_set(err, BD_E_INVALID, "table \"%s\": %zu state numbers for %zu keys of %zu",
                        spec.name, m, n, spec.state_elems);
    }
    if (rc != BD_OK) {
        return rc;
    }
    size_t bytes = n * sizeof(uint64_t) + (r->rows.n_bytes + 7) / 8 * 8;
    ps_part *p = part_new(1, bytes + r->state.n_bytes);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "assign: no memory");
    }
    p->n_tables = 1;
    p->tables[0] = (ps_grads){.table_id = r->table_id, .dim = spec.dim};
    (void)copy_arrays(p->keep->bytes, &r->keys, &r->rows, &p->tables[0]);
    if (m != 0) {
        *state = (float *)(void *)(p->keep->bytes + bytes);
        px_bulk_copy(&r->state, 0, m, *state);
    }
    rc = check_values(v, &spec, &p->tables[0], err);
    if (rc == BD_OK && m != 0 && first_not_finite(*state, m) < m) {
        rc = bd_err_set(err, BD_E_NUMERIC, "table \"%s\": a state number is not finite", spec.name);
    }
    if (rc != BD_OK) {
        ps_part_free(p);
        return bd_err_wrap(err, "assign");
    }
    *out = p;
    return BD_OK;
}

/* The elements where they lie, or a copy in the arena where they are not in one piece. NULL: no
 * memory. */
static const void *in_one_piece(bd_arena *a, const px_bulk *b)
{
    size_t n = px_bulk_count(b);
    const void *there = px_bulk_ptr(b, 0, n);
    if (there == NULL) {
        void *copy = bd_arena_alloc(a, b->n_bytes);
        if (copy != NULL) {
            px_bulk_copy(b, 0, n, copy);
        }
        there = copy;
    }
    return there;
}

static bd_status take_bags(ps_call *c, const ps_spec *spec, const px_table_keys *t, ps_bags *out,
                           bd_err *err)
{
    bd_status rc = check_bag_counts(spec, t->n_bags, &t->entries, &t->weights, err);
    if (rc != BD_OK || t->n_bags == 0) {
        return rc;
    }
    *out = (ps_bags){.n_bags = t->n_bags,
                     .n_entries = px_bulk_count(&t->entries),
                     .entries = in_one_piece(&c->arena, &t->entries)};
    if (t->weights.n_bytes != 0) {
        out->weights = in_one_piece(&c->arena, &t->weights);
    }
    if (out->entries == NULL || (t->weights.n_bytes != 0 && out->weights == NULL)) {
        return bd_err_set(err, BD_E_NOMEM, "lookup: no memory");
    }
    rc = ps_bags_check(out, px_bulk_count(&t->keys), err);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "table \"%s\"", spec->name);
}

bd_status ps_check_lookup(ps_call *c, bd_err *err)
{
    const px_lookup_request *r = &c->lookup;
    size_t reply_bytes = 0;
    bd_status rc = BD_OK;
    c->keys = bd_arena_calloc(&c->arena, r->n_tables, sizeof *c->keys);
    c->bags = bd_arena_calloc(&c->arena, r->n_tables, sizeof *c->bags);
    c->unpooled = bd_arena_calloc(&c->arena, r->n_tables, sizeof *c->unpooled);
    if (c->keys == NULL || c->bags == NULL || c->unpooled == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lookup: no memory");
    }
    for (size_t i = 0; i < r->n_tables && rc == BD_OK; i++) {
        const px_bulk *b = &r->tables[i].keys;
        size_t n = px_bulk_count(b);
        ps_spec spec = {0};
        rc = find_spec(c->service, r->tables[i].table_id, &spec, err);
        if (rc != BD_OK) {
            break;
        }
        size_t n_bags = r->tables[i].n_bags;
        reply_bytes += (n_bags != 0 ? n_bags : n) * spec.dim * sizeof(float);
        if (n > PS_MAX_REQUEST_KEYS || reply_bytes > MAX_REPLY_BYTES) {
            rc = bd_err_set(err, BD_E_INVALID,
                            "table \"%s\": %zu keys make a reply of more than %llu bytes: ask in "
                            "parts",
                            spec.name, n, MAX_REPLY_BYTES);
            break;
        }
        c->keys[i] = in_one_piece(&c->arena, b);
        if (c->keys[i] == NULL) {
            rc = bd_err_set(err, BD_E_NOMEM, "lookup: no memory");
            break;
        }
        rc = ps_shard_check_keys(c->service->shard, c->keys[i], n, err);
        if (rc != BD_OK) {
            (void)bd_err_wrap(err, "table \"%s\"", spec.name);
        } else {
            rc = take_bags(c, &spec, &r->tables[i], &c->bags[i], err);
        }
    }
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "lookup of rank %u", r->rank);
}
