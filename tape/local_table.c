#include "tape/local_table.h"

#include "base/mem.h"
#include "base/num/init.h"
#include "base/rand.h"

#include "tape/tape_int.h"

#include <string.h>

#define NO_ROW UINT32_MAX

struct tp_table {
    tp_device *dev;
    char *name; /* owned */
    tp_table_config cfg;
    const num_init *init;
    uint64_t init_key;
    size_t row_elems; /* weights and optimiser state */
    float *scratch;   /* owned [dim]: of num_optim_apply */
    float *rows;      /* owned [cap_rows x row_elems] */
    uint64_t *keys;   /* owned [cap_rows] */
    uint32_t *slots;  /* owned [n_slots]: row, NO_ROW: free */
    size_t n_slots;   /* power of two, or 0 */
    size_t n_rows, cap_rows, cap_keys;
};

bd_status tp_table_new(tp_device *dev, const tp_table_config *cfg, tp_table **out, bd_err *err)
{
    if (cfg->dim == 0) {
        return bd_err_set(err, BD_E_INVALID, "table %s: dim 0", cfg->name);
    }
    tp_table *t = bd_calloc(1, sizeof(*t));
    char *name = bd_strdup(cfg->name);
    float *scratch = bd_alloc(cfg->dim * sizeof *scratch);
    if (t == NULL || name == NULL || scratch == NULL) {
        bd_free(t);
        bd_free(name);
        bd_free(scratch);
        return bd_err_set(err, BD_E_NOMEM, "table %s: out of memory", cfg->name);
    }
    t->dev = dev;
    t->name = name;
    t->scratch = scratch;
    t->cfg = *cfg;
    t->cfg.name = name;
    t->init = num_init_find("uniform");
    t->init_key = num_init_key(cfg->seed, name);
    t->row_elems = cfg->dim + cfg->optim->state_elems(cfg->dim);
    *out = t;
    return BD_OK;
}

void tp_table_free(tp_table *t)
{
    if (t == NULL) {
        return;
    }
    bd_free(t->name);
    bd_free(t->scratch);
    bd_free(t->rows);
    bd_free(t->keys);
    bd_free(t->slots);
    bd_free(t);
}

size_t tp_table_n_rows(const tp_table *t)
{
    return t->n_rows;
}

/* Slot of key in an open-addressed index over keys[]: its row's, or the free one where it goes. */
static size_t find_slot(const uint32_t *slots, size_t n_slots, const uint64_t *keys, uint64_t key)
{
    size_t s = (size_t)bd_mix64(key) & (n_slots - 1);
    while (slots[s] != NO_ROW && keys[slots[s]] != key) {
        s = (s + 1) & (n_slots - 1);
    }
    return s;
}

static uint32_t find_row(const tp_table *t, uint64_t key)
{
    return t->n_slots == 0 ? NO_ROW : t->slots[find_slot(t->slots, t->n_slots, t->keys, key)];
}

static void initial(const tp_table *t, uint64_t key, float *w)
{
    const float param[NUM_INIT_MAX_PARAMS] = {t->cfg.init_low, t->cfg.init_high};
    num_init_row(t->init, param, t->init_key, key, w, t->cfg.dim);
}

bool tp_table_get(const tp_table *t, uint64_t key, float *w)
{
    uint32_t row = find_row(t, key);
    if (row == NO_ROW) {
        initial(t, key, w);
        return false;
    }
    memcpy(w, t->rows + (size_t)row * t->row_elems, t->cfg.dim * sizeof(float));
    return true;
}

/* ---- lookup ---- */

static size_t slots_for(size_t n)
{
    size_t n_slots = 16;
    while (n_slots < 2 * n) {
        n_slots *= 2;
    }
    return n_slots;
}

/* Distinct ids in order of first use, and each id's place among them. */
static bd_status dedup(tp_tape *tape, const uint64_t *ids, size_t n_ids, tp_table_rows *out,
                       bd_err *err)
{
    if (n_ids >= NO_ROW / 2) {
        return bd_err_set(err, BD_E_INVALID, "lookup of %zu ids at once", n_ids);
    }
    size_t n_slots = slots_for(n_ids);
    uint32_t *slots = bd_arena_alloc(&tape->arena, n_slots * sizeof(*slots));
    out->keys = bd_arena_alloc(&tape->arena, n_ids * sizeof(*out->keys));
    out->index = bd_arena_alloc(&tape->arena, n_ids * sizeof(*out->index));
    if (slots == NULL || out->keys == NULL || out->index == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lookup: out of memory for %zu ids", n_ids);
    }
    memset(slots, 0xff, n_slots * sizeof(*slots)); /* NO_ROW */
    for (size_t i = 0; i < n_ids; i++) {
        size_t s = find_slot(slots, n_slots, out->keys, ids[i]);
        if (slots[s] == NO_ROW) {
            slots[s] = (uint32_t)out->n_unique;
            out->keys[out->n_unique++] = ids[i];
        }
        out->index[i] = slots[s];
    }
    return BD_OK;
}

bd_status tp_table_lookup(tp_table *t, tp_tape *tape, const uint64_t *ids, size_t n_ids,
                          tp_table_rows *out, bd_err *err)
{
    tp_table_rows r = {0};
    bd_status rc = dedup(tape, ids, n_ids, &r, err);
    if (rc == BD_OK) {
        rc = tp_tape_tensor(tape, 2, (const size_t[]){r.n_unique, t->cfg.dim}, true, &r.rows, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    float *host = bd_arena_alloc(&tape->arena, r.n_unique * t->cfg.dim * sizeof(float));
    if (host == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table %s: out of memory", t->name);
    }
    for (size_t i = 0; i < r.n_unique; i++) {
        (void)tp_table_get(t, r.keys[i], host + i * t->cfg.dim);
    }
    rc = tp_write(r.rows, host, err);
    if (rc == BD_OK) {
        *out = r;
    }
    return rc;
}

bd_status tp_table_bag(tp_table *t, tp_tape *tape, const tp_table_bags *bags, tp_table_rows *rows,
                       tp_tensor **out, bd_err *err)
{
    tp_table_rows r = {0};
    bd_status rc = tp_table_lookup(t, tape, bags->ids, bags->offsets[bags->n], &r, err);
    if (rc == BD_OK) {
        rc = tp_embedding_bag(tape, r.rows, r.index, bags->offsets, bags->n, bags->mode, out, err);
    }
    if (rc == BD_OK) {
        *rows = r;
    }
    return rc;
}

/* ---- apply ---- */

static bd_status no_memory(const tp_table *t, bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "table %s: out of memory at %zu rows", t->name, t->n_rows);
}

/* An index of at least twice `need` rows. */
static bd_status grow_index(tp_table *t, size_t need, bd_err *err)
{
    if (t->n_slots >= 2 * need) {
        return BD_OK;
    }
    size_t n_slots = slots_for(need);
    uint32_t *slots = bd_alloc(n_slots * sizeof(*slots));
    if (slots == NULL) {
        return no_memory(t, err);
    }
    memset(slots, 0xff, n_slots * sizeof(*slots));
    for (size_t i = 0; i < t->n_rows; i++) {
        slots[find_slot(slots, n_slots, t->keys, t->keys[i])] = (uint32_t)i;
    }
    bd_free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    return BD_OK;
}

static bd_status grow(tp_table *t, size_t n_more, bd_err *err)
{
    size_t need = t->n_rows + n_more, row_bytes = t->row_elems * sizeof(float);
    if (need >= NO_ROW / 2) {
        return bd_err_set(err, BD_E_EXHAUSTED, "table %s: %zu rows", t->name, need);
    }
    if (!bd_grow(&t->rows, &t->cap_rows, need, row_bytes) ||
        !bd_grow(&t->keys, &t->cap_keys, need, sizeof(*t->keys))) {
        return no_memory(t, err);
    }
    return grow_index(t, need, err);
}

/* The row of key, made when absent; there is room. */
static float *row_of(tp_table *t, uint64_t key, const float *hyper)
{
    size_t s = find_slot(t->slots, t->n_slots, t->keys, key);
    if (t->slots[s] == NO_ROW) {
        float *row = t->rows + t->n_rows * t->row_elems;
        initial(t, key, row);
        t->cfg.optim->init(hyper, row + t->cfg.dim, t->cfg.dim);
        t->keys[t->n_rows] = key;
        t->slots[s] = (uint32_t)t->n_rows++;
    }
    return t->rows + (size_t)t->slots[s] * t->row_elems;
}

bd_status tp_table_apply(tp_table *t, const tp_table_rows *rows, const float *grads,
                         const float *hyper, bd_err *err)
{
    size_t dim = t->cfg.dim;
    bd_status rc = grow(t, rows->n_unique, err);
    for (size_t i = 0; rc == BD_OK && i < rows->n_unique; i++) {
        float *row = row_of(t, rows->keys[i], hyper);
        num_optim_apply(t->cfg.optim, hyper, row, row + dim, grads + i * dim, dim, t->scratch);
    }
    return rc;
}
