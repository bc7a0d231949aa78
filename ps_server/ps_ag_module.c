#include "ps_server/ps_ag_module.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_REPLY_BYTES (64ull << 20)  /* of pooled rows */
#define MAX_ROWS_BYTES  (256ull << 20) /* of rows before pooling */

enum { MODE_SUM, MODE_MEAN, MODE_SQRTN, MODE_MAX, MODE_NONE };

static const struct {
    const char *prefix;
    int mode;
} kinds[] = {
    {"embedding_bag:", MODE_SUM},
    {"embedding_bag_mean:", MODE_MEAN},
    {"embedding_bag_sqrtn:", MODE_SQRTN},
    {"embedding_bag_max:", MODE_MAX},
    {"embedding:", MODE_NONE},
};

/* What backward needs of a forward: its keys, and which output row each of them went to. */
typedef struct saved_ids {
    uint64_t epoch; /* of the job that was open */
    size_t n_ids, n_out;
    uint64_t *keys;   /* owned [n_ids] */
    size_t *first_of; /* owned [n_out + 1]: keys of row i start here; NULL: key i is row i */
    uint32_t *winner; /* max: owned [n_out x dim], the key whose element the output's is */
} saved_ids;

static void saved_free(void *self, void *saved)
{
    (void)self;
    saved_ids *s = saved;
    bd_free(s->keys);
    bd_free(s->first_of);
    bd_free(s->winner);
    bd_free(s);
}

/* ---- forward ---- */

static bd_status check_inputs(const ps_ag_module *m, const rpc_tensor *in, size_t n_in, bd_err *err)
{
    size_t want = m->mode == MODE_NONE ? 1 : 2;
    bool ok = n_in == want && in[0].dtype == NUM_I64 && in[0].n_dims == 1 && in[0].buf != NULL;
    ok = ok && (want == 1 || (in[1].dtype == NUM_I64 && in[1].n_dims == 1 && in[1].buf != NULL));
    if (!ok) {
        return bd_err_set(err, BD_E_INVALID, "%s: takes ids i64[m]%s", m->name,
                          want == 1 ? "" : " and offsets i64[n]");
    }
    size_t n_ids = in[0].n_elems, n_out = want == 1 ? n_ids : in[1].n_elems;
    size_t row_bytes = m->dim * sizeof(float);
    if (n_ids > PS_MAX_REQUEST_KEYS || n_ids > MAX_ROWS_BYTES / row_bytes ||
        n_out > MAX_REPLY_BYTES / row_bytes) {
        return bd_err_set(err, BD_E_INVALID, "%s: %zu ids in %zu rows of dim %u: ask in parts",
                          m->name, n_ids, n_out, m->dim);
    }
    return BD_OK;
}

static bd_status read_offsets(const ps_ag_module *m, const rpc_tensor *offsets, saved_ids *s,
                              bd_err *err)
{
    const int64_t *from = rpc_tensor_i64(offsets);
    int64_t last = 0;
    for (size_t i = 0; i < s->n_out; i++) {
        if (from[i] < last || (uint64_t)from[i] > s->n_ids || (i == 0 && from[0] != 0)) {
            return bd_err_set(err, BD_E_INVALID, "%s: offset %" PRId64 " at %zu", m->name, from[i],
                              i);
        }
        s->first_of[i] = (size_t)from[i];
        last = from[i];
    }
    if (s->n_out == 0 && s->n_ids > 0) {
        return bd_err_set(err, BD_E_INVALID, "%s: ids without offsets", m->name);
    }
    s->first_of[s->n_out] = s->n_ids;
    return BD_OK;
}

/* With room for the ids and offsets; NULL: out of memory. */
static saved_ids *saved_new(const ps_ag_module *m, size_t n_ids, size_t n_out)
{
    saved_ids *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->epoch = ps_shard_job(m->shard).epoch;
    s->n_ids = n_ids;
    s->n_out = n_out;
    s->keys = bd_alloc((n_ids + 1) * sizeof *s->keys);
    s->first_of = m->mode == MODE_NONE ? NULL : bd_alloc((n_out + 1) * sizeof *s->first_of);
    s->winner = m->mode == MODE_MAX ? bd_alloc((n_out * m->dim + 1) * sizeof *s->winner) : NULL;
    if (s->keys == NULL || (s->first_of == NULL && m->mode != MODE_NONE) ||
        (s->winner == NULL && m->mode == MODE_MAX)) {
        saved_free(NULL, s);
        return NULL;
    }
    return s;
}

static bd_status save(const ps_ag_module *m, const rpc_tensor *in, saved_ids **out, bd_err *err)
{
    size_t n_ids = in[0].n_elems;
    saved_ids *s = saved_new(m, n_ids, m->mode == MODE_NONE ? n_ids : in[1].n_elems);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", m->name);
    }
    memcpy(s->keys, in[0].buf->bytes, n_ids * sizeof *s->keys);
    bd_status rc = ps_shard_check_keys(m->shard, s->keys, n_ids, err);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "%s", m->name);
    }
    if (rc == BD_OK && s->first_of != NULL) {
        rc = read_offsets(m, &in[1], s, err);
    }
    if (rc != BD_OK) {
        saved_free(NULL, s);
        return rc;
    }
    *out = s;
    return BD_OK;
}

static bd_status gather(const ps_ag_module *m, const uint64_t *keys, size_t n, float *rows,
                        bd_err *err)
{
    bd_status rc = ps_shard_read(m->shard, m->table_id, m->dim, keys, n, rows, err);
    return rc == BD_OK ? rc : bd_err_wrap(err, "%s", m->name);
}

/* What the sum of a bag of n ids is divided by. */
static float divisor(const ps_ag_module *m, size_t n)
{
    if (n == 0 || (m->mode != MODE_MEAN && m->mode != MODE_SQRTN)) {
        return 1.0f;
    }
    return m->mode == MODE_MEAN ? (float)n : sqrtf((float)n);
}

/* Sums in the order of the ids, then one division: what a trainer that pools by itself does. */
static void pool_sum(const ps_ag_module *m, const saved_ids *s, size_t bag, const float *rows,
                     float *y)
{
    size_t dim = m->dim;
    float by = divisor(m, s->first_of[bag + 1] - s->first_of[bag]);
    memset(y, 0, dim * sizeof *y);
    for (size_t k = s->first_of[bag]; k < s->first_of[bag + 1]; k++) {
        for (size_t d = 0; d < dim; d++) {
            y[d] += rows[k * dim + d];
        }
    }
    for (size_t d = 0; by != 1.0f && d < dim; d++) {
        y[d] /= by;
    }
}

/* Element by element: the first of equals, and a NaN is larger. An empty bag is zeros. */
static void pool_max(const ps_ag_module *m, const saved_ids *s, size_t bag, const float *rows,
                     float *y)
{
    size_t dim = m->dim, first = s->first_of[bag], end = s->first_of[bag + 1];
    for (size_t d = 0; d < dim; d++) {
        size_t best = first;
        for (size_t k = first + 1; k < end; k++) {
            float x = rows[k * dim + d], most = rows[best * dim + d];
            best = !isnan(most) && (isnan(x) || x > most) ? k : best;
        }
        s->winner[bag * dim + d] = (uint32_t)best; /* below PS_MAX_REQUEST_KEYS */
        y[d] = end > first ? rows[best * dim + d] : 0.0f;
    }
}

static void pool(const ps_ag_module *m, const saved_ids *s, const float *rows, float *y)
{
    for (size_t i = 0; i < s->n_out; i++) {
        if (m->mode == MODE_MAX) {
            pool_max(m, s, i, rows, y + i * m->dim);
        } else {
            pool_sum(m, s, i, rows, y + i * m->dim);
        }
    }
}

static bd_status run(const ps_ag_module *m, const saved_ids *s, rpc_tensor *out, bd_err *err)
{
    const size_t dims[2] = {s->n_out, m->dim};
    float *rows = NULL;
    if (rpc_tensor_new(NUM_F32, 2, dims, out) != BD_OK) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", m->name);
    }
    if (m->mode == MODE_NONE) {
        return gather(m, s->keys, s->n_ids, rpc_tensor_f32(out), err);
    }
    rows = bd_alloc((s->n_ids * m->dim + 1) * sizeof *rows); /* ids and dim are bounded */
    if (rows == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", m->name);
    }
    bd_status rc = gather(m, s->keys, s->n_ids, rows, err);
    if (rc == BD_OK) {
        pool(m, s, rows, rpc_tensor_f32(out));
    }
    bd_free(rows);
    return rc;
}

static bd_status forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    (void)ctx;
    const ps_ag_module *m = self;
    saved_ids *s = NULL;
    bd_status rc = check_inputs(m, in, n_in, err);
    if (rc == BD_OK) {
        rc = save(m, in, &s, err);
    }
    if (rc != BD_OK || s == NULL) {
        return rc;
    }
    rc = run(m, s, out, err);
    if (rc != BD_OK) {
        rpc_tensor_free(out);
        saved_free(self, s);
        return rc;
    }
    out->requires_grad = true;
    *n_out = 1;
    *saved = s;
    return BD_OK;
}

/* ---- backward ---- */

static bd_status check_finite(const ps_ag_module *m, const float *g, size_t n, bd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(g[i])) {
            return bd_err_set(err, BD_E_NUMERIC, "%s: gradient of row %zu element %zu is %f",
                              m->name, i / m->dim, i % m->dim, (double)g[i]);
        }
    }
    return BD_OK;
}

/* Every key of the bag has a gradient, of max also those that won no element: zeros. */
static bd_status add_bag(const ps_ag_module *m, const saved_ids *s, size_t i, const float *g,
                         float *scaled, rpc_grad_sink *sink, bd_err *err)
{
    float by = divisor(m, s->first_of[i + 1] - s->first_of[i]);
    bd_status rc = BD_OK;
    for (size_t d = 0; d < m->dim; d++) {
        scaled[d] = g[d] / by;
    }
    for (size_t k = s->first_of[i]; k < s->first_of[i + 1] && rc == BD_OK; k++) {
        for (size_t d = 0; m->mode == MODE_MAX && d < m->dim; d++) {
            scaled[d] = s->winner[i * m->dim + d] == k ? g[d] : 0.0f;
        }
        rc = rpc_grad_add_rows(sink, 0, &s->keys[k], scaled, 1, err);
    }
    return rc;
}

static bd_status backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                          rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)n_out;
    (void)grad_in; /* ids and offsets have no gradient */
    (void)n_in;
    const ps_ag_module *m = self;
    const saved_ids *s = saved;
    if (grad_out[0].buf == NULL) {
        return BD_OK;
    }
    const float *g = rpc_tensor_f32(&grad_out[0]);
    float *scaled = bd_alloc((m->dim + 1) * sizeof *scaled);
    if (scaled == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", m->name);
    }
    bd_status rc = check_finite(m, g, s->n_out * m->dim, err);
    if (rc == BD_OK) {
        rc = rpc_grad_tag(sink, 0, s->epoch, err);
    }
    if (rc == BD_OK && m->mode == MODE_NONE) {
        rc = rpc_grad_add_rows(sink, 0, s->keys, g, s->n_ids, err);
    }
    for (size_t i = 0; m->mode != MODE_NONE && i < s->n_out && rc == BD_OK; i++) {
        rc = add_bag(m, s, i, g + i * m->dim, scaled, sink, err);
    }
    bd_free(scaled);
    return rc;
}

/* ---- life ---- */

/* The table that the module's name ends in; *mode says how it is read. */
static const char *table_name(const char *name, int *mode)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = strlen(kinds[i].prefix);
        if (strncmp(name, kinds[i].prefix, n) == 0) {
            *mode = kinds[i].mode;
            return name + n;
        }
    }
    return NULL;
}

static bool find_table(ps_shard *shard, const char *name, ps_ag_module *m)
{
    const ps_tables *ts = ps_shard_lock_tables(shard);
    bool found = false;
    for (size_t i = 0; i < ts->n && !found; i++) {
        const ps_spec *spec = ps_table_spec(ts->items[i]);
        found = strcmp(spec->name, name) == 0;
        if (found) {
            m->table_id = spec->id;
            m->dim = (uint32_t)spec->dim;
        }
    }
    ps_shard_unlock_tables(shard);
    return found;
}

bd_status ps_ag_module_new(ps_shard *shard, const char *name, ps_ag_module **out, bd_err *err)
{
    int mode = MODE_SUM;
    const char *table = table_name(name, &mode);
    ps_ag_module *m = bd_calloc(1, sizeof *m);
    if (m == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", name);
    }
    if (table == NULL || !find_table(shard, table, m)) {
        bd_free(m);
        return bd_err_set(err, BD_E_NOT_FOUND, "no module named \"%s\"", name);
    }
    m->name = bd_strdup(name);
    if (m->name == NULL) {
        bd_free(m);
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", name);
    }
    m->shard = shard;
    m->mode = mode;
    m->param = (rpc_param){.name = "weight", .dim = m->dim, .sparse = true, .any_row = true};
    m->module = (rpc_module){.name = m->name,
                             .self = m,
                             .params = &m->param,
                             .n_params = 1,
                             .forward = forward,
                             .backward = backward,
                             .saved_free = saved_free};
    *out = m;
    return BD_OK;
}

void ps_ag_module_free(ps_ag_module *m)
{
    bd_free(m->name);
    bd_free(m);
}
