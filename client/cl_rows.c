/* Lookups: distinct keys out, rows straight into place. */
#include "base/assert.h"
#include "base/mem.h"

#include "client/cl_int.h"
#include "proto/px_rows.h"

#include <string.h>

/* Parts of one server on their way at once: enough to keep it and the wire busy, and what is under
 * way stays in the caches. */
#define WINDOW 4

struct cl_rows {
    cl_client *c;
    cl_map *map; /* owned reference: what the keys are grouped by */
    size_t n_tables;
    cl_ids *ids;           /* owned array, [n_tables]; the ids are borrowed until the wait */
    cl_uniques *uniques;   /* owned, [n_tables] */
    cl_bags *bags;         /* owned, [n_tables] */
    cl_cut *cuts;          /* owned, [n_tables] */
    cl_table_rows *tables; /* owned, [n_tables] */
    cl_pool *pool;         /* shared */
    cl_block *blocks;      /* owned, [n_tables]: the tables' rows, from the pool */
    cl_plan plan;
    cl_batch batch;      /* one call a part of the plan */
    px_table_keys *wire; /* owned, [plan.n_slices] */
    cl_block *sums; /* owned, [plan.n_slices]: bags of a table's further servers, from the pool */
    uint64_t after_step;
};

const cl_plan *cl_rows_plan(const cl_rows *r)
{
    return &r->plan;
}

const cl_map *cl_rows_map(const cl_rows *r)
{
    return r->map;
}

size_t cl_rows_n_tables(const cl_rows *r)
{
    return r->n_tables;
}

bd_buf *cl_rows_keys(const cl_rows *r, size_t table_idx)
{
    return r->uniques[table_idx].keys;
}

const cl_table_rows *cl_rows_table(const cl_rows *r, size_t i)
{
    BD_ASSERT(i < r->n_tables);
    return &r->tables[i];
}

static void drop_partition(cl_rows *r)
{
    cl_batch_deinit(&r->batch);
    for (size_t s = 0; r->sums != NULL && s < r->plan.n_slices; s++) {
        cl_pool_give(r->pool, &r->sums[s]);
    }
    bd_free(r->sums);
    r->sums = NULL;
    for (size_t i = 0; i < r->n_tables; i++) {
        cl_uniques_deinit(&r->uniques[i]);
        cl_bags_deinit(&r->bags[i]);
        cl_pool_give(r->pool, &r->blocks[i]);
        r->tables[i].rows = NULL;
    }
    cl_plan_deinit(&r->plan);
    bd_free(r->wire);
    r->wire = NULL;
    cl_map_unref(r->map);
    r->map = NULL;
}

static bool may_pool(const cl_rows *r, const cl_ids *ids)
{
    return ids->offsets != NULL && r->c->pooling != CL_POOL_CLIENT && cl_bags_fit(ids) &&
           cl_client_job(r->c).consistency != CL_SYNC;
}

static bool pooling_pays(const cl_rows *r, const cl_ids *ids, size_t n_unique)
{
    return r->c->pooling == CL_POOL_SERVER || cl_bags_pay(ids, n_unique, r->map->n_servers);
}

static bd_status prepare_table(cl_rows *r, size_t i, bd_err *err)
{
    const cl_ids *ids = &r->ids[i];
    cl_uniques *u = &r->uniques[i];
    size_t n_bytes;
    bool may = may_pool(r, ids), may_repeat = may && pooling_pays(r, ids, ids->n_ids);
    bd_status rc = cl_uniques_init(u, r->map, ids->ids, ids->n_ids, may_repeat, err);
    if (rc != BD_OK) {
        return rc;
    }
    bool pooled = may && pooling_pays(r, ids, u->n_unique); /* so if the ids are as they were */
    if (pooled) {
        rc = cl_bags_init(&r->bags[i], ids, u, r->map->n_servers, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    r->cuts[i] = (cl_cut){u, ids->dim, &r->bags[i]};
    size_t n_rows = pooled ? ids->n_bags : u->n_unique;
    if (!bd_mul_size(n_rows * sizeof(float), ids->dim, &n_bytes)) {
        return bd_err_set(err, BD_E_INVALID, "%zu rows of dim %u", n_rows, ids->dim);
    }
    r->blocks[i] = cl_pool_take(r->pool, n_bytes);
    if (r->blocks[i].bytes == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%zu rows of dim %u", n_rows, ids->dim);
    }
    r->tables[i] = (cl_table_rows){.table_id = ids->table_id,
                                   .dim = ids->dim,
                                   .n_unique = u->n_unique,
                                   .keys = (const uint64_t *)(const void *)u->keys->bytes,
                                   .index = u->index,
                                   .rows = r->blocks[i].bytes,
                                   .n_rows = n_rows,
                                   .offsets = pooled ? ids->offsets : NULL,
                                   .weights = pooled ? ids->weights : NULL};
    return BD_OK;
}

void cl_rows_bags(const cl_rows *r, size_t table_idx, size_t server_idx, uint32_t *n_bags,
                  px_bulk *entries, px_bulk *weights)
{
    const cl_bags *b = &r->bags[table_idx];
    *n_bags = b->n_bags;
    if (b->n_bags > 0) {
        size_t first = b->first[server_idx], n = b->first[server_idx + 1] - first;
        *entries = px_bulk_of(b->entries, first * sizeof(uint32_t), n, sizeof(uint32_t));
        if (b->weights != NULL) {
            *weights = px_bulk_of(b->weights, first * sizeof(float), n, sizeof(float));
        }
    }
}

/* What a part's request says of its tables. */
static void fill_wire(cl_rows *r, const cl_part *part)
{
    for (size_t s = part->first_slice; s < part->first_slice + part->n_slices; s++) {
        const cl_slice *slice = &r->plan.slices[s];
        px_table_keys *w = &r->wire[s];
        w->table_id = r->ids[slice->table_idx].table_id;
        w->keys = px_bulk_of(r->uniques[slice->table_idx].keys, slice->first_row * sizeof(uint64_t),
                             slice->n_rows, sizeof(uint64_t));
        cl_rows_bags(r, slice->table_idx, part->server_idx, &w->n_bags, &w->entries, &w->weights);
    }
}

/* The table's first slice of bags, whose sums go straight to its rows; others wait their turn. */
static bool is_first_slice(const cl_rows *r, size_t slice_idx)
{
    size_t first = 0;
    while (r->plan.slices[first].table_idx != r->plan.slices[slice_idx].table_idx) {
        first++;
    }
    return first == slice_idx;
}

/* Memory for the bags of a table's second server and on. */
static bd_status take_sums(cl_rows *r, bd_err *err)
{
    for (size_t s = 0; s < r->plan.n_slices; s++) {
        const cl_table_rows *t = &r->tables[r->plan.slices[s].table_idx];
        if (t->offsets != NULL && !is_first_slice(r, s)) {
            r->sums[s] = cl_pool_take(r->pool, t->n_rows * t->dim * sizeof(float));
            if (r->sums[s].bytes == NULL) {
                return bd_err_set(err, BD_E_NOMEM, "%zu bags of dim %u", t->n_rows, t->dim);
            }
        }
    }
    return BD_OK;
}

/* Groups everything by the present shard map. */
static bd_status partition(cl_rows *r, bd_err *err)
{
    bd_status rc = BD_OK;
    drop_partition(r);
    r->map = cl_client_map(r->c);
    for (size_t i = 0; rc == BD_OK && i < r->n_tables; i++) {
        rc = prepare_table(r, i, err);
    }
    if (rc == BD_OK) {
        rc = cl_plan_init(&r->plan, r->map->n_servers, r->cuts, r->n_tables, r->c->part_bytes, err);
    }
    if (rc == BD_OK) {
        r->wire = bd_calloc(r->plan.n_slices, sizeof *r->wire);
        r->sums = bd_calloc(r->plan.n_slices, sizeof *r->sums);
        if (r->wire == NULL || r->sums == NULL) {
            (void)bd_err_set(err, BD_E_NOMEM, "lookup");
            return BD_E_NOMEM;
        }
        rc = take_sums(r, err);
    }
    for (size_t i = 0; rc == BD_OK && i < r->plan.n_parts; i++) {
        fill_wire(r, &r->plan.parts[i]);
    }
    return rc;
}

void cl_rows_ref_lists(const cl_rows *r, size_t table_idx, bd_buf *lists[2])
{
    const cl_bags *b = &r->bags[table_idx];
    lists[0] = b->entries == NULL ? NULL : bd_buf_ref(b->entries);
    lists[1] = b->weights == NULL ? NULL : bd_buf_ref(b->weights);
}

bd_status cl_rows_prepare(cl_client *c, const cl_ids *tables, size_t n_tables, cl_rows **out,
                          bd_err *err)
{
    bd_status rc = BD_E_NOMEM;
    cl_rows *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lookup");
    }
    r->c = c;
    r->ids = bd_calloc(n_tables, sizeof *r->ids);
    r->uniques = bd_calloc(n_tables, sizeof *r->uniques);
    r->bags = bd_calloc(n_tables, sizeof *r->bags);
    r->cuts = bd_calloc(n_tables, sizeof *r->cuts);
    r->tables = bd_calloc(n_tables, sizeof *r->tables);
    r->blocks = bd_calloc(n_tables, sizeof *r->blocks);
    r->pool = cl_pool_ref(c->pool);
    if (r->ids == NULL || r->uniques == NULL || r->bags == NULL || r->cuts == NULL ||
        r->tables == NULL || r->blocks == NULL) {
        (void)bd_err_set(err, rc, "lookup of %zu tables", n_tables);
        goto out;
    }
    r->n_tables = n_tables;
    for (size_t i = 0; i < n_tables; i++) {
        r->ids[i] = tables[i];
        r->tables[i].dim = tables[i].dim;
        r->tables[i].table_id = tables[i].table_id;
    }
    rc = partition(r, err);
    if (rc == BD_OK) {
        *out = r;
        r = NULL;
    }
out:
    cl_rows_free(r);
    return rc;
}

void cl_rows_free(cl_rows *r)
{
    if (r == NULL) {
        return;
    }
    if (r->uniques != NULL && r->bags != NULL && r->tables != NULL && r->blocks != NULL) {
        drop_partition(r);
    }
    cl_pool_unref(r->pool);
    bd_free(r->blocks);
    bd_free(r->ids);
    bd_free(r->uniques);
    bd_free(r->bags);
    bd_free(r->cuts);
    bd_free(r->tables);
    bd_free(r);
}

static bd_status on_answer(void *user, cl_call *call, const px_stream_reply *got, bd_err *err);

/* The first parts of every server; each answer then sends the next. */
static bd_status send_all(cl_rows *r, bd_err *err)
{
    cl_job job = cl_client_job(r->c);
    cl_batch_deinit(&r->batch);
    bd_status rc = cl_batch_init(&r->batch, r->c, r->plan.n_parts, err);
    r->batch.on_take = on_answer;
    r->batch.take_user = r;
    for (size_t i = 0; rc == BD_OK && i < r->plan.n_parts; i++) {
        const cl_part *part = &r->plan.parts[i];
        cl_call *call = &r->batch.calls[i];
        call->kind = CL_LOOKUP;
        call->server_idx = part->server_idx;
        call->after_parts_of = r->after_step;
        call->body.lookup = (px_lookup_request){.job_epoch = job.epoch,
                                                .after_step = r->after_step,
                                                .rank = (uint32_t)job.rank,
                                                .tables = r->wire + part->first_slice,
                                                .n_tables = part->n_slices,
                                                .row_dtype = r->c->wire_rows,
                                                .row_codec = r->c->wire_codec};
        if (part->part + WINDOW < part->n_parts) {
            call->then = call + WINDOW;
        }
    }
    for (size_t i = 0; rc == BD_OK && i < r->plan.n_parts; i++) {
        const cl_part *part = &r->plan.parts[i];
        if (part->n_slices > 0 && part->part < WINDOW) {
            cl_call_send(&r->batch.calls[i]);
        }
    }
    return rc;
}

bd_status cl_rows_fetch(cl_rows *r, uint64_t after_step, bd_err *err)
{
    bd_status rc = BD_OK;
    cl_map *now = cl_client_map(r->c);
    bool is_stale = !cl_map_same_owners(now, r->map);
    cl_map_unref(now);
    r->after_step = after_step;
    if (is_stale) {
        rc = partition(r, err);
    }
    return rc == BD_OK ? send_all(r, err) : rc;
}

static bd_status place_rows(const px_table_rows *got, size_t n_rows, float *to, bd_err *err)
{
    size_t n = n_rows * got->dim;
    if (got->packed.n_bytes > 0 && got->packed_rows == n_rows) {
        return px_rows_unpack(&got->packed, got->dtype, got->codec, n_rows, got->dim, to, err);
    }
    if (px_bulk_count(&got->rows) != n) {
        return bd_err_set(err, BD_E_CORRUPT, "%zu elements, %u packed rows for %zu rows of dim %u",
                          px_bulk_count(&got->rows), got->packed_rows, n_rows, got->dim);
    }
    px_bulk_copy(&got->rows, 0, n, to);
    return BD_OK;
}

/* Env thread: rows into place. The answer must be to what was asked, element for element. */
static bd_status on_answer(void *user, cl_call *call, const px_stream_reply *got_reply, bd_err *err)
{
    cl_rows *r = user;
    const cl_part *part = &r->plan.parts[call - r->batch.calls];
    const px_lookup_reply *reply = got_reply->lookup;
    if (reply->n_tables != part->n_slices) {
        return bd_err_set(err, BD_E_CORRUPT, "%s Lookup: asked for %zu tables, got %zu",
                          call->link->name, part->n_slices, reply->n_tables);
    }
    for (size_t i = 0; i < part->n_slices; i++) {
        const cl_slice *slice = &r->plan.slices[part->first_slice + i];
        const cl_table_rows *t = &r->tables[slice->table_idx];
        const px_table_rows *got = &reply->tables[i];
        if (got->table_id != t->table_id || got->dim != t->dim) {
            return bd_err_set(err, BD_E_MISMATCH,
                              "%s Lookup: asked for table %u of dim %u, got table %u of dim %u",
                              call->link->name, t->table_id, t->dim, got->table_id, got->dim);
        }
        size_t n_rows = t->offsets != NULL ? t->n_rows : slice->n_rows;
        float *to = r->sums[part->first_slice + i].bytes;
        if (to == NULL) {
            to = t->rows + (t->offsets != NULL ? 0 : slice->first_row * t->dim);
        }
        bd_status rc = place_rows(got, n_rows, to, err);
        if (rc != BD_OK) {
            return bd_err_wrap(err, "%s Lookup: table %u", call->link->name, t->table_id);
        }
    }
    return BD_OK;
}

/* Adds up the servers' parts of each bag, in the order of the servers, whatever order they came in.
 */
static void sum_bags(cl_rows *r)
{
    for (size_t s = 0; s < r->plan.n_slices; s++) {
        const cl_table_rows *t = &r->tables[r->plan.slices[s].table_idx];
        const float *more = r->sums[s].bytes;
        for (size_t i = 0; more != NULL && i < t->n_rows * t->dim; i++) {
            t->rows[i] += more[i];
        }
    }
    for (size_t t = 0; t < r->n_tables; t++) { /* all bags are empty: nobody was asked */
        if (r->tables[t].offsets != NULL && r->tables[t].n_unique == 0) {
            memset(r->tables[t].rows, 0, r->tables[t].n_rows * r->tables[t].dim * sizeof(float));
        }
    }
}

bd_status cl_rows_wait(cl_rows *r, bd_err *err)
{
    bd_err local = BD_ERR_INIT;
    bd_status rc = cl_batch_wait(&r->batch, NULL, NULL, &local);
    while (rc == BD_E_MOVED) { /* other owners: group anew and ask again */
        rc = partition(r, &local);
        if (rc == BD_OK) {
            rc = send_all(r, &local);
        }
        if (rc == BD_OK) {
            rc = cl_batch_wait(&r->batch, NULL, NULL, &local);
        }
    }
    if (rc == BD_OK) {
        sum_bags(r);
    }
    cl_batch_deinit(&r->batch);
    return rc == BD_OK ? rc : bd_err_set(err, rc, "%s", bd_err_text(&local));
}
