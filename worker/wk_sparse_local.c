/* Tables in this process. Rows, updates and hash are those of a server (ps_server/ps_spec.h,
 * ps_table.h): a row starts from (seed, table name, key), only pushes create rows, one optimiser
 * step per distinct key and step, weights stored as the table's dtype says.
 *
 * rows.bin, all little-endian: "BRROWS1\0", u32 n_tables, then per table u32 name bytes, name,
 * u32 dim (with the dtype's number in the top byte, 0 for f32), u32 state elements, u64 n_rows,
 * n_rows x { u64 key, stored weights, f32[state] }; at the end the u64 XXH3-64 of everything before
 * it.
 */
#include "base/log.h"
#include "base/mem.h"
#include "base/num/init.h"
#include "base/num/row_codec.h"
#include "base/rand.h"

#include "worker/wk_file.h"
#include "worker/wk_sparse.h"

#include <string.h>

/* key -> number, open addressing. Any key is legal, so emptiness is in the values. */
typedef struct key_map {
    uint64_t *keys;
    uint32_t *vals; /* UINT32_MAX: empty */
    size_t n_slots; /* power of two, or 0 */
    size_t n;
} key_map;

typedef struct local_table {
    char name[128];
    uint32_t id, dim;
    int dtype;
    size_t weight_words; /* 4-byte words of stored weights */
    size_t row_elems;    /* weight_words + state */
    const num_optim *opt;
    float hyper[NUM_OPTIM_MAX_HYPER];
    float *scratch; /* [2 * dim] of num_row_update */
    const num_init *init;
    float init_param[NUM_INIT_MAX_PARAMS];
    uint64_t name_hash, init_key;
    key_map map;
    uint64_t *keys; /* [n_rows] */
    float *rows;    /* [n_rows x row_elems] */
    size_t n_rows, cap_keys, cap_rows;
} local_table;

typedef struct local {
    wk_sparse base;
    const char *dir;
    local_table *tables; /* owned */
    size_t n_tables, cap_tables;
    const wk_lookup *pushed; /* borrowed: the open step's keys */
    const float **grads;     /* owned [n of pushed], each borrowed */
    size_t cap_grads;
} local;

struct wk_lookup {
    size_t n;
    cl_table_rows *tables; /* owned, with their arrays */
    uint64_t **keys;
    uint32_t **index;
};

/* ---- key map ---- */

static bool map_init(key_map *m, size_t n_slots)
{
    m->keys = bd_alloc(n_slots * sizeof *m->keys);
    m->vals = bd_alloc(n_slots * sizeof *m->vals);
    if (m->keys == NULL || m->vals == NULL) {
        bd_free(m->keys);
        bd_free(m->vals);
        return false;
    }
    memset(m->vals, 0xff, n_slots * sizeof *m->vals);
    m->n_slots = n_slots;
    m->n = 0;
    return true;
}

static void map_deinit(key_map *m)
{
    bd_free(m->keys);
    bd_free(m->vals);
    memset(m, 0, sizeof *m);
}

/* The slot of key, or the empty one where it belongs. */
static size_t map_slot(const key_map *m, uint64_t key)
{
    size_t mask = m->n_slots - 1, i = (size_t)bd_mix64(key) & mask;
    while (m->vals[i] != UINT32_MAX && m->keys[i] != key) {
        i = (i + 1) & mask;
    }
    return i;
}

static bool map_grow(key_map *m, size_t need)
{
    key_map bigger;
    size_t n_slots = m->n_slots == 0 ? 64 : m->n_slots;
    while (n_slots < need * 2) {
        n_slots *= 2;
    }
    if (n_slots == m->n_slots) {
        return true;
    }
    if (!map_init(&bigger, n_slots)) {
        return false;
    }
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->vals[i] != UINT32_MAX) {
            size_t to = map_slot(&bigger, m->keys[i]);
            bigger.keys[to] = m->keys[i];
            bigger.vals[to] = m->vals[i];
        }
    }
    bigger.n = m->n;
    map_deinit(m);
    *m = bigger;
    return true;
}

/* The number of key; a new one gets the next number. Room was made by map_grow. */
static uint32_t map_put(key_map *m, uint64_t key)
{
    size_t i = map_slot(m, key);
    if (m->vals[i] == UINT32_MAX) {
        m->keys[i] = key;
        m->vals[i] = (uint32_t)m->n++;
    }
    return m->vals[i];
}

/* ---- tables ---- */

static bd_status table_init(local_table *t, const cl_table_spec *spec, bd_err *err)
{
    const char *names[NUM_OPTIM_MAX_HYPER];
    double values[NUM_OPTIM_MAX_HYPER];
    memset(t, 0, sizeof *t);
    t->opt = num_optim_find(spec->optimizer);
    t->init = num_init_find(spec->initializer);
    t->dtype = num_dtype_parse(spec->dtype != NULL ? spec->dtype : "f32");
    if (t->opt == NULL || t->init == NULL || num_row_bytes(t->dtype, 1) == 0 ||
        strlen(spec->name) >= sizeof t->name || spec->n_opt_params > NUM_OPTIM_MAX_HYPER ||
        spec->n_init_params > NUM_INIT_MAX_PARAMS) {
        return bd_err_set(err, BD_E_INVALID, "table \"%.64s\": bad spec", spec->name);
    }
    for (size_t i = 0; i < spec->n_init_params; i++) {
        names[i] = spec->init_params[i].name;
        values[i] = spec->init_params[i].value;
    }
    bd_status rc = num_init_params(t->init, names, values, spec->n_init_params, t->init_param, err);
    if (rc != BD_OK) {
        return bd_err_wrap(err, "table \"%.64s\": initializer", spec->name);
    }
    for (size_t i = 0; i < spec->n_opt_params; i++) {
        names[i] = spec->opt_params[i].name;
        values[i] = spec->opt_params[i].value;
    }
    memcpy(t->name, spec->name, strlen(spec->name) + 1);
    t->dim = spec->dim;
    t->weight_words = num_row_bytes(t->dtype, t->dim) / sizeof(float);
    t->row_elems = t->weight_words + t->opt->state_elems(spec->dim);
    t->name_hash = bd_hash64(t->name, strlen(t->name), 0);
    t->init_key = num_init_key(spec->seed, t->name);
    return num_optim_hyper(t->opt, names, values, spec->n_opt_params, t->hyper, err);
}

static bd_status local_create(wk_sparse *s, const cl_table_spec *spec, uint32_t *table_id,
                              bd_err *err)
{
    local *l = (local *)s;
    if (!bd_grow(&l->tables, &l->cap_tables, l->n_tables + 1, sizeof *l->tables)) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%.64s\"", spec->name);
    }
    local_table *t = &l->tables[l->n_tables];
    bd_status rc = table_init(t, spec, err);
    if (rc == BD_OK && (t->scratch = bd_alloc(2 * (size_t)t->dim * sizeof *t->scratch)) == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "table \"%.64s\"", spec->name);
    }
    if (rc == BD_OK) {
        t->id = (uint32_t)l->n_tables + 1;
        *table_id = t->id;
        l->n_tables++;
    }
    return rc;
}

static void first_row(const local_table *t, uint64_t key, float *w)
{
    num_init_row(t->init, t->init_param, t->init_key, key, w, t->dim);
    num_row_round(t->dtype, w, t->dim);
}

/* ---- lookups ---- */

static void local_lookup_free(wk_lookup *k)
{
    if (k == NULL) {
        return;
    }
    for (size_t i = 0; i < k->n; i++) {
        bd_free(k->keys[i]);
        bd_free(k->index[i]);
        bd_free(k->tables[i].rows);
    }
    bd_free(k->keys);
    bd_free(k->index);
    bd_free(k->tables);
    bd_free(k);
}

static bool dedup(wk_lookup *k, size_t i, const cl_ids *ids)
{
    key_map m = {0};
    cl_table_rows *r = &k->tables[i];
    k->keys[i] = bd_alloc((ids->n_ids + 1) * sizeof **k->keys);
    k->index[i] = bd_alloc((ids->n_ids + 1) * sizeof **k->index);
    if (k->keys[i] == NULL || k->index[i] == NULL || !map_grow(&m, ids->n_ids + 1)) {
        return false;
    }
    for (size_t j = 0; j < ids->n_ids; j++) {
        uint32_t u = map_put(&m, ids->ids[j]);
        k->keys[i][u] = ids->ids[j];
        k->index[i][j] = u;
    }
    *r = (cl_table_rows){.table_id = ids->table_id,
                         .dim = ids->dim,
                         .n_unique = m.n,
                         .keys = k->keys[i],
                         .index = k->index[i],
                         .n_rows = m.n};
    map_deinit(&m);
    r->rows = bd_alloc_aligned(64, (r->n_unique * r->dim + 1) * sizeof *r->rows);
    return r->rows != NULL;
}

static bd_status local_prepare(wk_sparse *s, const cl_ids *tables, size_t n, wk_lookup **out,
                               bd_err *err)
{
    (void)s;
    wk_lookup *k = bd_calloc(1, sizeof *k);
    bool ok = k != NULL;
    if (ok) {
        k->tables = bd_calloc(n, sizeof *k->tables);
        k->keys = bd_calloc(n, sizeof *k->keys);
        k->index = bd_calloc(n, sizeof *k->index);
        ok = k->tables != NULL && k->keys != NULL && k->index != NULL;
        k->n = ok ? n : 0;
    }
    for (size_t i = 0; ok && i < n; i++) {
        ok = dedup(k, i, &tables[i]);
    }
    if (!ok) {
        local_lookup_free(k);
        return bd_err_set(err, BD_E_NOMEM, "lookup of %zu tables", n);
    }
    *out = k;
    return BD_OK;
}

static local_table *table_of(local *l, const cl_table_rows *r)
{
    return &l->tables[r->table_id - 1];
}

static bd_status local_fetch(wk_sparse *s, wk_lookup *k, uint64_t after_step, bd_err *err)
{
    (void)after_step; /* a commit is applied when commit_start returns */
    (void)err;
    for (size_t i = 0; i < k->n; i++) {
        cl_table_rows *r = &k->tables[i];
        const local_table *t = table_of((local *)s, r);
        for (size_t j = 0; j < r->n_unique; j++) {
            size_t slot = t->map.n_slots > 0 ? map_slot(&t->map, r->keys[j]) : 0;
            float *to = r->rows + j * r->dim;
            if (t->map.n_slots > 0 && t->map.vals[slot] != UINT32_MAX) {
                num_row_decode(t->dtype, t->rows + t->map.vals[slot] * t->row_elems, r->dim, to);
            } else {
                first_row(t, r->keys[j], to);
            }
        }
    }
    return BD_OK;
}

static bd_status local_wait(wk_sparse *s, wk_lookup *k, bd_err *err)
{
    (void)s;
    (void)k;
    (void)err;
    return BD_OK;
}

static const cl_table_rows *local_rows(const wk_lookup *k, size_t i)
{
    return &k->tables[i];
}

/* ---- pushes ---- */

static bd_status local_push_begin(wk_sparse *s, uint64_t step, wk_lookup *k, double lr_scale,
                                  bd_err *err)
{
    (void)step;
    (void)lr_scale;
    local *l = (local *)s;
    if (!bd_grow(&l->grads, &l->cap_grads, k->n, sizeof *l->grads)) {
        return bd_err_set(err, BD_E_NOMEM, "push");
    }
    l->pushed = k;
    return BD_OK;
}

static bd_status local_push_table(wk_sparse *s, size_t table_idx, const float *grads, bd_err *err)
{
    (void)err;
    ((local *)s)->grads[table_idx] = grads;
    return BD_OK;
}

static bd_status local_push_done(wk_sparse *s, bd_err *err)
{
    (void)s;
    (void)err;
    return BD_OK;
}

static bd_status local_drop(wk_sparse *s, uint64_t abort_step, bd_err *err)
{
    (void)abort_step;
    (void)err;
    ((local *)s)->pushed = NULL;
    return BD_OK;
}

static bool reserve(local_table *t, size_t n_new)
{
    return map_grow(&t->map, t->n_rows + n_new) &&
           bd_grow(&t->keys, &t->cap_keys, t->n_rows + n_new, sizeof *t->keys) &&
           bd_grow(&t->rows, &t->cap_rows, (t->n_rows + n_new) * t->row_elems, sizeof *t->rows);
}

/* The row of key; created with its first weights and state when absent. Room was reserved. */
static float *touch(local_table *t, uint64_t key)
{
    uint32_t i = map_put(&t->map, key);
    float *row = t->rows + i * t->row_elems;
    if (i == t->n_rows) {
        t->keys[t->n_rows++] = key;
        first_row(t, key, t->scratch);
        num_row_encode(t->dtype, t->scratch, t->dim, NUM_ROW_NEAREST, row);
        t->opt->init(t->hyper, row + t->weight_words, t->dim);
    }
    return row;
}

static bd_status local_commit_start(wk_sparse *s, uint64_t step, bool commit, double lr_scale,
                                    bd_err *err)
{
    local *l = (local *)s;
    const wk_lookup *k = l->pushed;
    l->pushed = NULL;
    for (size_t i = 0; commit && i < k->n; i++) {
        const cl_table_rows *r = &k->tables[i];
        local_table *t = table_of(l, r);
        const num_row_form form = {t->opt, t->dtype, t->dim};
        float hyper[NUM_OPTIM_MAX_HYPER];
        memcpy(hyper, t->hyper, sizeof hyper);
        hyper[0] = (float)((double)hyper[0] * lr_scale);
        if (!reserve(t, r->n_unique)) {
            return bd_err_set(err, BD_E_NOMEM, "table \"%s\": %zu rows", t->name, t->n_rows);
        }
        for (size_t j = 0; j < r->n_unique; j++) {
            float *row = touch(t, r->keys[j]);
            num_row_update(&form, hyper, row, l->grads[i] + j * t->dim,
                           num_row_draw(t->init_key, r->keys[j], step), t->scratch);
        }
    }
    return BD_OK;
}

static bd_status local_param_hash(wk_sparse *s, uint64_t *hash, uint64_t *n_rows, bd_err *err)
{
    (void)err;
    const local *l = (const local *)s;
    *hash = 0;
    *n_rows = 0;
    for (size_t i = 0; i < l->n_tables; i++) {
        const local_table *t = &l->tables[i];
        for (size_t j = 0; j < t->n_rows; j++) {
            uint64_t seed = bd_mix64(t->name_hash ^ bd_mix64(t->keys[j]));
            *hash += bd_hash64(t->rows + j * t->row_elems, t->row_elems * sizeof(float), seed);
        }
        *n_rows += t->n_rows;
    }
    return BD_OK;
}

/* ---- checkpoints ---- */

static const char magic[8] = "BRROWS1";

static uint32_t saved_dim(const local_table *t)
{
    return t->dim | (t->dtype == NUM_F32 ? 0u : (uint32_t)t->dtype << 24);
}

static void write_table(wk_writer *w, const local_table *t)
{
    wk_write_u32(w, (uint32_t)strlen(t->name));
    wk_write(w, t->name, strlen(t->name));
    wk_write_u32(w, saved_dim(t));
    wk_write_u32(w, (uint32_t)(t->row_elems - t->weight_words));
    wk_write_u64(w, t->n_rows);
    for (size_t i = 0; i < t->n_rows; i++) {
        wk_write_u64(w, t->keys[i]);
        wk_write(w, t->rows + i * t->row_elems, t->row_elems * sizeof(float));
    }
}

static bd_status local_checkpoint(wk_sparse *s, const char *name, uint64_t step, bd_err *err)
{
    (void)step;
    const local *l = (const local *)s;
    wk_writer w;
    char *path = l->dir != NULL ? bd_strfmt("%s/%s/rows.bin", l->dir, name) : NULL;
    if (path == NULL) {
        return bd_err_set(err, l->dir != NULL ? BD_E_NOMEM : BD_E_STATE, "checkpoint %s", name);
    }
    bd_status rc = wk_writer_open(&w, path, err);
    if (rc == BD_OK) {
        wk_write(&w, magic, sizeof magic);
        wk_write_u32(&w, (uint32_t)l->n_tables);
        for (size_t i = 0; i < l->n_tables; i++) {
            write_table(&w, &l->tables[i]);
        }
        rc = wk_writer_close(&w, err);
    }
    bd_free(path);
    return rc;
}

static local_table *find_table(local *l, const char *name, size_t n)
{
    for (size_t i = 0; i < l->n_tables; i++) {
        if (strlen(l->tables[i].name) == n && memcmp(l->tables[i].name, name, n) == 0) {
            return &l->tables[i];
        }
    }
    return NULL;
}

static void table_clear(local_table *t)
{
    t->n_rows = 0;
    map_deinit(&t->map);
}

static bd_status read_table(local *l, wk_blob *b, const char *path, bd_err *err)
{
    uint32_t n_name = wk_blob_u32(b);
    const char *name = wk_blob_take(b, n_name);
    uint32_t dim = wk_blob_u32(b), state = wk_blob_u32(b);
    uint64_t n_rows = wk_blob_u64(b);
    local_table *t = name != NULL ? find_table(l, name, n_name) : NULL;
    if (t == NULL || dim != saved_dim(t) || t->weight_words + state != t->row_elems ||
        n_rows > b->n_bytes / 8) {
        return bd_err_set(err, name == NULL ? BD_E_CORRUPT : BD_E_MISMATCH,
                          "%s: a table is not the job's (name, dim, dtype or optimiser)", path);
    }
    if (!reserve(t, (size_t)n_rows)) {
        return bd_err_set(err, BD_E_NOMEM, "%s", path);
    }
    for (uint64_t i = 0; i < n_rows; i++) {
        uint64_t key = wk_blob_u64(b);
        const void *row = wk_blob_take(b, t->row_elems * sizeof(float));
        if (row == NULL) {
            return bd_err_set(err, BD_E_CORRUPT, "%s: cut short", path);
        }
        memcpy(touch(t, key), row, t->row_elems * sizeof(float));
    }
    return BD_OK;
}

bd_status wk_sparse_local_restore(wk_sparse *s, const char *name, bd_err *err)
{
    local *l = (local *)s;
    wk_blob b = {0};
    char *path = bd_strfmt("%s/%s/rows.bin", l->dir, name);
    bd_status rc = path != NULL ? wk_blob_load(&b, path, magic, err)
                                : bd_err_set(err, BD_E_NOMEM, "checkpoint %s", name);
    if (rc == BD_OK) {
        for (size_t i = 0; i < l->n_tables; i++) {
            table_clear(&l->tables[i]);
        }
        for (uint32_t n = wk_blob_u32(&b); n > 0 && rc == BD_OK; n--) {
            rc = read_table(l, &b, path, err);
        }
    }
    wk_blob_deinit(&b);
    bd_free(path);
    return rc;
}

/* The folder goes with the dense part's. */
static bd_status local_checkpoint_delete(wk_sparse *s, const char *name, bd_err *err)
{
    const local *l = (const local *)s;
    char *path = l->dir != NULL ? bd_strfmt("%s/%s/rows.bin", l->dir, name) : NULL;
    bd_status rc = path != NULL ? wk_remove_file(path, err)
                                : bd_err_set(err, BD_E_NOMEM, "checkpoint %s", name);
    bd_free(path);
    return rc;
}

static void local_free(wk_sparse *s)
{
    local *l = (local *)s;
    for (size_t i = 0; i < l->n_tables; i++) {
        map_deinit(&l->tables[i].map);
        bd_free(l->tables[i].scratch);
        bd_free(l->tables[i].keys);
        bd_free(l->tables[i].rows);
    }
    bd_free(l->tables);
    bd_free(l->grads);
    bd_free(l);
}

static const wk_sparse_ops local_ops = {
    .table = local_create,
    .prepare = local_prepare,
    .fetch = local_fetch,
    .wait = local_wait,
    .rows = local_rows,
    .lookup_free = local_lookup_free,
    .push_begin = local_push_begin,
    .push_table = local_push_table,
    .push_end = local_push_done,
    .push_wait = local_push_done,
    .commit_start = local_commit_start,
    .commit_wait = local_push_done,
    .drop = local_drop,
    .param_hash = local_param_hash,
    .checkpoint = local_checkpoint,
    .checkpoint_delete = local_checkpoint_delete,
    .free = local_free,
};

bd_status wk_sparse_local_new(const char *dir, wk_sparse **out, bd_err *err)
{
    local *l = bd_calloc(1, sizeof *l);
    if (l == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "local tables");
    }
    l->base.ops = &local_ops;
    l->dir = dir;
    *out = &l->base;
    return BD_OK;
}
