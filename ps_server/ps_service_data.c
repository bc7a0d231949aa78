/* The steady traffic: Lookup, Push, Commit, unary and on streams. */
#include "base/mem.h"

#include "ps_server/ps_bags.h"
#include "ps_server/ps_dedup.h"
#include "ps_server/ps_service_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

/* True while a handler of this thread is inside the shard: a lookup that finishes at once is then
 * answered right here, of a stream too (handing it to another thread costs 20 % of the rows/s of
 * one client on 2 cores), another one by an answering thread (never by the commit thread). */
static _Thread_local bool in_handler;

static ps_call *call_of_waiter(ps_waiter *w)
{
    return (ps_call *)(void *)((char *)w - offsetof(ps_call, waiter));
}
static ps_call *call_of_op(ps_op *op)
{
    return (ps_call *)(void *)((char *)op - offsetof(ps_call, op));
}

/* ---- lookup ---- */
/* Rows of the answer for table i of the request. */
static size_t rows_of(const ps_call *c, size_t i)
{
    return c->bags[i].n_bags != 0 ? c->bags[i].n_bags : px_bulk_count(&c->lookup.tables[i].keys);
}

/* Pooled, and of a trainer's lookup it is noted where the rows are: the same keys are pushed soon. */
static bd_status pool(ps_call *c, ps_table *t, const uint64_t *keys, size_t n, const ps_bags *bags,
                      float *to)
{
    bool trains = c->lookup.job_epoch != 0 && n >= PS_TRAIL_MIN_KEYS;
    bd_buf *found = trains ? bd_buf_new(n * sizeof(uint32_t)) : NULL;
    bd_status rc = ps_table_pool(t, keys, n, bags, to,
                                 found == NULL ? NULL : (uint32_t *)(void *)found->bytes);
    if (rc == BD_OK && found != NULL) {
        ps_trail_put(&c->service->trail, ps_table_spec(t)->id, keys, n, found);
    } else {
        bd_buf_unref(found);
    }
    return rc;
}

/* Pooled at once where all rows are in memory; else the rows first, and pool_the_rest. */
static bd_status gather_bags(ps_call *c, ps_table *t, size_t i, float *to, bd_err *err)
{
    size_t n = px_bulk_count(&c->lookup.tables[i].keys), dim = ps_table_spec(t)->dim;
    bd_status rc = BD_E_NOMEM;
    if (!ps_table_is_limited(t)) {
        rc = pool(c, t, c->keys[i], n, &c->bags[i], to);
    } else {
        c->unpooled[i] = bd_arena_alloc(&c->arena, (n + 1) * dim * sizeof(float));
        if (c->unpooled[i] != NULL) {
            return ps_away_read(c, t, c->keys[i], n, c->unpooled[i], err);
        }
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "lookup: no memory to pool %zu rows", n);
}

static void pool_the_rest(ps_call *c)
{
    size_t at = 0;
    for (size_t i = 0; i < c->found.n_tables; i++) {
        uint32_t dim = c->found.tables[i].dim;
        float *to = (float *)(void *)c->rows->bytes + at;
        if (c->unpooled[i] != NULL) {
            memset(to, 0, c->bags[i].n_bags * (size_t)dim * sizeof *to);
            (void)ps_bags_pool(&c->bags[i], c->unpooled[i], dim, 0,
                               px_bulk_count(&c->lookup.tables[i].keys), to);
        }
        at += rows_of(c, i) * dim;
    }
}

/* Rows of all tables in one buffer, as far as they are in memory. The tables lock is held. */
static bd_status gather(ps_call *c, const ps_tables *ts, px_table_rows *out, bd_err *err)
{
    size_t elems = 0;
    for (size_t i = 0; i < c->lookup.n_tables; i++) {
        const ps_table *t = ps_tables_find(ts, c->lookup.tables[i].table_id);
        if (t == NULL) { /* a restore took it away since the check */
            return bd_err_set(err, BD_E_NOT_FOUND, "no table with id %u",
                              c->lookup.tables[i].table_id);
        }
        out[i].table_id = c->lookup.tables[i].table_id;
        out[i].dim = ps_table_spec(t)->dim;
        elems += rows_of(c, i) * out[i].dim;
    }
    c->rows = bd_buf_new(elems * sizeof(float));
    if (c->rows == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "lookup: no memory for %zu numbers", elems);
    }
    size_t at = 0;
    bd_status rc = BD_OK;
    for (size_t i = 0; i < c->lookup.n_tables && rc == BD_OK; i++) {
        ps_table *t = ps_tables_find(ts, out[i].table_id);
        float *to = (float *)(void *)c->rows->bytes + at;
        size_t n_elems = rows_of(c, i) * out[i].dim;
        rc = c->bags[i].n_bags == 0
                 ? ps_away_read(c, t, c->keys[i], px_bulk_count(&c->lookup.tables[i].keys), to, err)
                 : gather_bags(c, t, i, to, err);
        out[i].rows = px_bulk_of(c->rows, at * sizeof(float), n_elems, sizeof(float));
        at += n_elems;
    }
    return rc;
}

/* BD_AGAIN: rows are fetched, and this is called again when they are there. */
static bd_status find_rows(ps_call *c, bd_err *err)
{
    bd_status rc = BD_AGAIN;
    const ps_tables *ts = ps_shard_lock_tables(c->service->shard);
    if (c->away != NULL) {
        rc = ps_away_end(c, err);
        ps_away_drop(c);
    }
    if (rc == BD_AGAIN) { /* the first time, or the tables were replaced */
        bd_buf_unref(c->rows);
        c->rows = NULL;
        rc = gather(c, ts, c->found.tables, err);
    }
    ps_shard_unlock_tables(c->service->shard);
    if (rc == BD_OK && c->away == NULL) {
        pool_the_rest(c);
    }
    return rc == BD_OK && c->away != NULL ? BD_AGAIN : rc;
}

void ps_answer_lookup(ps_call *c)
{
    bd_err err = c->waiter.err;
    bd_status rc = c->waiter.rc;
    if (rc == BD_OK && c->away == NULL) {
        c->found.step = c->waiter.last_step;
        c->found.n_tables = c->lookup.n_tables;
        c->found.tables = bd_arena_calloc(&c->arena, c->found.n_tables, sizeof *c->found.tables);
        rc = c->found.tables == NULL ? bd_err_set(&err, BD_E_NOMEM, "lookup: no memory") : BD_OK;
    }
    if (rc == BD_OK) {
        rc = find_rows(c, &err);
    }
    if (rc == BD_OK) {
        rc = ps_wire_pack_reply(c, &c->found, &err);
    }
    if (rc == BD_AGAIN) {
        ps_away_start(c);
    } else if (rc == BD_OK) {
        ps_call_lookup_reply(c, &c->found);
    } else {
        ps_call_fail(c, &err);
    }
}

static void on_lookup_ready(ps_waiter *w)
{
    ps_call *c = call_of_waiter(w);
    if (in_handler) {
        ps_answer_lookup(c);
    } else {
        ps_service_hand_over(c->service, c);
    }
}

/* The client fetches the map again; where the owners are the same it sends again what it sent. */
static bd_status check_map(ps_service *v, uint64_t epoch, bd_err *err)
{
    uint64_t mine = atomic_load(&v->map_epoch);
    if (epoch == 0 || epoch >= mine) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_MOVED,
                      "request by shard map epoch %" PRIu64 ", this server's is %" PRIu64, epoch,
                      mine);
}

/* after_step says that the step was decided COMMIT, so it asks for what Commit needs. */
static bool may_decide(const ps_call *c)
{
    return c->conn != NULL ? c->conn->may_train
                           : rpc_req_may(c->req, "/braid.v1.ParameterServer/Commit");
}

void ps_start_lookup(ps_call *c, const px_lookup_request *r)
{
    bd_err err;
    if (r->after_step != 0 && !may_decide(c)) {
        (void)bd_err_set(&err, BD_E_DENIED,
                         "lookup after step %" PRIu64 ": the token's scope is read, to decide a "
                         "step needs train",
                         r->after_step);
        ps_call_fail(c, &err);
        return;
    }
    c->lookup = *r;
    c->timed = &ps_metric_lookup_s;
    if (check_map(c->service, r->map_epoch, &err) != BD_OK ||
        ps_wire_check_lookup(r, &err) != BD_OK || ps_check_lookup(c, &err) != BD_OK) {
        ps_call_fail(c, &err);
        return;
    }
    for (size_t i = 0; i < r->n_tables; i++) {
        bd_metric_add(&ps_metric_lookup_keys, r->tables[i].keys.n_bytes / sizeof(uint64_t));
    }
    c->waiter = (ps_waiter){.kind = PS_WAIT_LOOKUP,
                            .job_epoch = r->job_epoch,
                            .step = r->after_step,
                            .rank = r->rank,
                            .finish = on_lookup_ready};
    in_handler = true;
    ps_shard_lookup(c->service->shard, &c->waiter);
    in_handler = false;
}

void ps_on_lookup(void *service, rpc_req *req)
{
    px_lookup_request r;
    bd_err err;
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    if (px_decode_lookup_request(&c->body, NULL, &c->arena, &r, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_start_lookup(c, &r);
    }
}

/* ---- push ---- */
static void on_pushed(ps_op *op)
{
    ps_call *c = call_of_op(op);
    if (op->rc == BD_OK) {
        px_push_reply r = {.duplicate = op->duplicate};
        ps_call_push_reply(c, &r);
    } else {
        bd_err err = op->err;
        ps_call_fail(c, &err);
    }
}

void ps_start_push(ps_call *c, const px_push_request *r)
{
    bd_err err;
    ps_part *part = NULL;
    if ((r->client_id & PS_DEDUP_CONTEXT) != 0) {
        (void)bd_err_set(&err, BD_E_INVALID, "push: client id %" PRIu64 " was never issued",
                         r->client_id);
        ps_call_fail(c, &err);
        return;
    }
    c->timed = &ps_metric_push_s;
    if (check_map(c->service, r->map_epoch, &err) != BD_OK ||
        ps_wire_unpack_push(c, r, &err) != BD_OK ||
        ps_check_push(c->service, r, &part, &err) != BD_OK) {
        ps_call_fail(c, &err);
        return;
    }
    ps_wire_drop(c);
    bd_chain_deinit(&c->body); /* the part has copies */
    c->op.kind = PS_OP_PUSH;
    c->op.part = part;
    c->op.done = on_pushed;
    ps_shard_post(c->service->shard, &c->op);
}

void ps_on_push(void *service, rpc_req *req)
{
    px_push_request r;
    bd_err err;
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    if (px_decode_push_request(&c->body, NULL, &c->arena, &r, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_start_push(c, &r);
    }
}

/* ---- commit ---- */
static void on_decided(ps_waiter *w)
{
    ps_call *c = call_of_waiter(w);
    if (w->rc == BD_OK) {
        px_commit_reply r = {.step = w->last_step, .duplicate = w->duplicate};
        ps_call_commit_reply(c, &r);
    } else {
        bd_err err = w->err;
        ps_call_fail(c, &err);
    }
}

void ps_start_commit(ps_call *c, const px_commit_request *r)
{
    bd_err err;
    c->timed = &ps_metric_commit_s;
    double lr_scale = r->lr_scale == 0.0 ? 1.0 : r->lr_scale;
    if (r->decision != BRAID__V1__DECISION__DECISION_COMMIT &&
        r->decision != BRAID__V1__DECISION__DECISION_ABORT) {
        (void)bd_err_set(&err, BD_E_INVALID, "commit of rank %u step %" PRIu64 ": decision %d",
                         r->rank, r->step, r->decision);
        ps_call_fail(c, &err);
        return;
    }
    if (!isfinite(lr_scale) || lr_scale < 0.0) {
        (void)bd_err_set(&err, BD_E_NUMERIC, "commit of rank %u step %" PRIu64 ": lr_scale %f",
                         r->rank, r->step, lr_scale);
        ps_call_fail(c, &err);
        return;
    }
    c->waiter =
        (ps_waiter){.kind = r->decision == BRAID__V1__DECISION__DECISION_COMMIT ? PS_WAIT_COMMIT
                                                                                : PS_WAIT_ABORT,
                    .job_epoch = r->job_epoch,
                    .step = r->step,
                    .rank = r->rank,
                    .lr_scale = lr_scale,
                    .finish = on_decided};
    ps_shard_decide(c->service->shard, &c->waiter);
}

void ps_on_commit(void *service, rpc_req *req)
{
    px_commit_request r;
    bd_err err;
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    if (px_decode_commit_request(&c->body, NULL, &c->arena, &r, &err) != BD_OK) {
        ps_call_fail(c, &err);
    } else {
        ps_start_commit(c, &r);
    }
}
