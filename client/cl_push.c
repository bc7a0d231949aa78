/* Gradients out, and the end of a step. A push is planned when it begins (its keys are known), so
 * that every part can say how many there are; a part leaves when the last of its tables is ready.
 */
#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"

#include "client/cl_int.h"
#include "proto/px_rows.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <inttypes.h>
#include <string.h>

/* Frees what the push holds; push_lock held. */
static void tear_down(cl_push *p)
{
    cl_batch_deinit(&p->batch);
    for (size_t i = 0; i < p->n_tables; i++) {
        if (p->keys != NULL) {
            bd_buf_unref(p->keys[i]);
        }
        if (p->grads != NULL) {
            bd_buf_unref(p->grads[i]);
        }
        for (size_t k = 2 * i; p->lists != NULL && k < 2 * i + 2; k++) {
            bd_buf_unref(p->lists[k]);
        }
    }
    bd_free(p->keys);
    bd_free(p->grads);
    bd_free(p->lists);
    bd_free(p->n_rows);
    bd_free(p->dims);
    bd_free(p->slices);
    bd_free(p->slice_tables);
    for (size_t s = 0; p->packed != NULL && s < p->n_slices; s++) {
        bd_buf_unref(p->packed[s]);
    }
    bd_free(p->packed);
    bd_free(p->slice_rows);
    bd_free(p->waits_for);
    *p = (cl_push){0};
}

void cl_push_deinit(cl_client *c)
{
    (void)pthread_mutex_lock(&c->push_lock);
    tear_down(&c->push);
    (void)pthread_mutex_unlock(&c->push_lock);
}

static bool allocate(cl_push *p, size_t n_tables, const cl_plan *plan)
{
    p->n_slices = plan->n_slices;
    p->keys = bd_calloc(n_tables, sizeof(void *));
    p->grads = bd_calloc(n_tables, sizeof(void *));
    p->lists = bd_calloc(2 * n_tables, sizeof(void *));
    p->n_rows = bd_calloc(n_tables, sizeof *p->n_rows);
    p->dims = bd_calloc(n_tables, sizeof *p->dims);
    p->slices = bd_calloc(plan->n_slices, sizeof *p->slices);
    p->slice_tables = bd_calloc(plan->n_slices, sizeof *p->slice_tables);
    p->slice_rows = bd_calloc(plan->n_slices, sizeof *p->slice_rows);
    p->packed = bd_calloc(plan->n_slices, sizeof(void *));
    p->waits_for = bd_calloc(plan->n_parts, sizeof *p->waits_for);
    p->n_tables = n_tables; /* last: tear_down reads the arrays by it */
    return p->keys != NULL && p->grads != NULL && p->lists != NULL && p->n_rows != NULL &&
           p->dims != NULL && p->slices != NULL && p->slice_tables != NULL &&
           p->slice_rows != NULL && p->packed != NULL && p->waits_for != NULL;
}

/* The request of one part, but for its gradients. */
static void fill_part(cl_client *c, const cl_job *job, const cl_plan *plan, size_t i)
{
    cl_push *p = &c->push;
    const cl_part *part = &plan->parts[i];
    cl_call *call = &p->batch.calls[i];
    px_push_request *req = &call->body.push;
    call->kind = CL_PUSH;
    call->server_idx = part->server_idx;
    p->waits_for[i] = part->n_slices;
    *req = (px_push_request){.job_epoch = job->epoch,
                             .step = p->step,
                             .rank = (uint32_t)job->rank,
                             .n_parts = 1,
                             .tables = p->slices + part->first_slice,
                             .n_tables = part->n_slices};
    if (job->consistency == CL_SYNC) {
        req->part = part->part;
        req->n_parts = part->n_parts;
    } else if (job->consistency == CL_BOUNDED) { /* a step is one sequence, empty or not */
        req->client_id = c->id;
        req->part = part->part;
        req->n_parts = part->n_parts;
        c->sequences[part->server_idx] += part->part == 0 ? 1u : 0u;
        req->sequence = c->sequences[part->server_idx];
        req->lr_scale = c->lr_scale;
    } else if (part->n_slices > 0) {
        req->client_id = c->id;
        req->sequence = ++c->sequences[part->server_idx];
        req->lr_scale = c->lr_scale;
    }
}

static bd_status set_up(cl_client *c, uint64_t step, const cl_rows *r, bd_err *err)
{
    cl_push *p = &c->push;
    cl_job job = cl_client_job(c);
    const cl_plan *plan = cl_rows_plan(r);
    bd_status rc = cl_batch_init(&p->batch, c, plan->n_parts, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!allocate(p, cl_rows_n_tables(r), plan)) {
        return bd_err_set(err, BD_E_NOMEM, "push of step %" PRIu64, step);
    }
    p->step = step;
    for (size_t t = 0; t < p->n_tables; t++) {
        p->keys[t] = bd_buf_ref(cl_rows_keys(r, t));
        p->dims[t] = cl_rows_table(r, t)->dim;
        p->n_rows[t] = cl_rows_table(r, t)->n_rows;
        cl_rows_ref_lists(r, t, &p->lists[2 * t]);
    }
    for (size_t s = 0; s < p->n_slices; s++) {
        const cl_slice *slice = &plan->slices[s];
        size_t t = slice->table_idx;
        p->slice_tables[s] = t;
        p->slice_rows[s] = slice->first_row;
        p->slices[s].table_id = cl_rows_table(r, t)->table_id;
        p->slices[s].dim = p->dims[t];
        p->slices[s].keys = px_bulk_of(p->keys[t], slice->first_row * sizeof(uint64_t),
                                       slice->n_rows, sizeof(uint64_t));
    }
    for (size_t i = 0; i < plan->n_parts; i++) {
        const cl_part *part = &plan->parts[i];
        for (size_t s = part->first_slice; s < part->first_slice + part->n_slices; s++) {
            px_table_grads *g = &p->slices[s];
            cl_rows_bags(r, p->slice_tables[s], part->server_idx, &g->n_bags, &g->entries,
                         &g->weights);
        }
        fill_part(c, &job, plan, i);
    }
    p->is_active = true;
    return BD_OK;
}

/* What must be so before a push may begin. */
static bd_status check_begin(cl_client *c, uint64_t step, const cl_rows *r, bd_err *err)
{
    cl_job job = cl_client_job(c);
    bd_status rc = BD_OK;
    if (job.epoch == 0) {
        return bd_err_set(err, BD_E_STATE, "push of step %" PRIu64 " outside a job", step);
    }
    if (c->push.is_active && job.consistency != CL_SYNC && c->push.is_ended) {
        rc = cl_push_wait(c, err);
    } else if (c->push.is_active) {
        rc = bd_err_set(err, BD_E_STATE,
                        "push of step %" PRIu64 ", but step %" PRIu64 " is not committed", step,
                        c->push.step);
    }
    cl_map *map = cl_client_map(c);
    if (rc == BD_OK && !cl_map_same_owners(map, cl_rows_map(r))) {
        rc = bd_err_set(err, BD_E_MOVED,
                        "slots have moved between the lookup and the push of step %" PRIu64, step);
    }
    cl_map_unref(map);
    return rc;
}

bd_status cl_push_begin(cl_client *c, uint64_t step, const cl_rows *r, bd_err *err)
{
    bd_status rc = check_begin(c, step, r, err);
    if (rc != BD_OK) {
        return rc;
    }
    (void)pthread_mutex_lock(&c->push_lock);
    rc = set_up(c, step, r, err);
    if (rc != BD_OK) {
        tear_down(&c->push);
    }
    (void)pthread_mutex_unlock(&c->push_lock);
    return rc;
}

/* The part that holds slice s. */
static size_t part_of(const cl_push *p, size_t s)
{
    size_t i = 0;
    while (p->batch.calls[i].body.push.n_tables == 0 ||
           s >= (size_t)(p->batch.calls[i].body.push.tables - p->slices) +
                    p->batch.calls[i].body.push.n_tables) {
        i++;
    }
    return i;
}

/* Slice s gets its gradients, from those of its table. */
static bd_status fill_grads(cl_client *c, size_t s, bd_buf *buf, bd_err *err)
{
    cl_push *p = &c->push;
    px_table_grads *slice = &p->slices[s];
    bool pooled = slice->n_bags > 0; /* then every server gets all bags */
    size_t first = pooled ? 0 : p->slice_rows[s] * slice->dim;
    size_t n_rows = pooled ? slice->n_bags : px_bulk_count(&slice->keys);
    if (c->wire_grads == BRAID__V1__DTYPE__DTYPE_UNSPECIFIED && c->wire_codec == NUM_CODEC_NONE) {
        slice->grads = px_bulk_of(buf, first * sizeof(float), n_rows * slice->dim, sizeof(float));
        return BD_OK;
    }
    const float *grads = (const float *)(const void *)buf->bytes + first;
    bd_status rc =
        px_rows_pack(c->wire_grads, c->wire_codec, grads, n_rows, slice->dim, &p->packed[s], err);
    if (rc == BD_OK) {
        slice->dtype = c->wire_grads;
        slice->codec = c->wire_codec;
        slice->packed_rows = (uint32_t)n_rows;
        slice->packed = px_bulk_of(p->packed[s], 0, p->packed[s]->n_bytes, 1);
    }
    return rc;
}

bd_status cl_push_table(cl_client *c, size_t table_idx, const float *grads, bd_err *err)
{
    cl_push *p = &c->push;
    if (!p->is_active || p->is_ended || table_idx >= p->n_tables || p->grads[table_idx] != NULL) {
        return bd_err_set(err, BD_E_STATE, "gradients of table %zu are not expected now",
                          table_idx);
    }
    size_t n = p->n_rows[table_idx] * p->dims[table_idx];
    bool ahead = c->push_ahead && cl_client_job(c).consistency != CL_SYNC;
    bd_buf *buf = ahead ? bd_buf_copy(grads, n * sizeof *grads) : cl_borrow(c->borrows, grads, n);
    if (buf == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "push of table %zu", table_idx);
    }
    p->grads[table_idx] = buf;
    p->n_given++;
    for (size_t s = 0; s < p->n_slices; s++) {
        if (p->slice_tables[s] != table_idx) {
            continue;
        }
        bd_status rc = fill_grads(c, s, buf, err);
        if (rc != BD_OK) {
            return rc;
        }
        size_t part = part_of(p, s);
        if (--p->waits_for[part] == 0) {
            cl_call_send(&p->batch.calls[part]);
        }
    }
    return BD_OK;
}

bd_status cl_push_end(cl_client *c, bd_err *err)
{
    cl_push *p = &c->push;
    cl_job job = cl_client_job(c);
    if (!p->is_active || p->is_ended || p->n_given < p->n_tables) {
        return bd_err_set(err, BD_E_STATE, "push ended with %zu of %zu tables", p->n_given,
                          p->n_tables);
    }
    for (size_t i = 0; i < p->batch.n_calls; i++) {
        bool is_empty = p->batch.calls[i].body.push.n_tables == 0;
        if (is_empty && job.consistency != CL_ASYNC) {
            cl_call_send(&p->batch.calls[i]);
        }
    }
    (void)pthread_mutex_lock(&c->push_lock);
    p->is_ended = true;
    (void)pthread_mutex_unlock(&c->push_lock);
    return BD_OK;
}

bd_status cl_push_start(cl_client *c, uint64_t step, const cl_rows *r, float *const *grads,
                        bd_err *err)
{
    bd_status rc = cl_push_begin(c, step, r, err);
    for (size_t t = 0; rc == BD_OK && t < cl_rows_n_tables(r); t++) {
        rc = cl_push_table(c, t, grads[t], err);
    }
    return rc == BD_OK ? cl_push_end(c, err) : rc;
}

static bd_status finish_push(cl_client *c, bd_err *err)
{
    cl_push_deinit(c);
    return cl_borrows_wait(c->borrows, err);
}

bd_status cl_push_wait(cl_client *c, bd_err *err)
{
    cl_push *p = &c->push;
    if (!p->is_active) {
        return BD_OK;
    }
    if (!p->is_ended) {
        return bd_err_set(err, BD_E_STATE, "push of step %" PRIu64 " has not ended", p->step);
    }
    bd_status rc = cl_batch_wait(&p->batch, NULL, NULL, err);
    if (rc == BD_OK && cl_client_job(c).consistency != CL_SYNC) {
        rc = finish_push(c, err);
    }
    return rc;
}

/* Copies the requests of one server's parts; the bulk stays with the push, which push_lock holds.
 */
bd_status cl_push_resend(cl_client *c, size_t server_idx, uint64_t step, bd_err *err)
{
    cl_push *p = &c->push;
    cl_batch again = {0};
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&c->push_lock);
    if (p->is_active && p->is_ended && p->step == step) {
        rc = cl_batch_init(&again, c, p->batch.n_calls, err);
        for (size_t i = 0; rc == BD_OK && i < p->batch.n_calls; i++) {
            const cl_call *part = &p->batch.calls[i];
            if (part->server_idx == server_idx) {
                again.calls[i].kind = CL_PUSH;
                again.calls[i].server_idx = server_idx;
                again.calls[i].body.push = part->body.push;
                cl_call_send(&again.calls[i]);
            }
        }
        if (rc == BD_OK) {
            rc = cl_batch_wait(&again, NULL, NULL, err);
        }
        cl_batch_deinit(&again);
    }
    (void)pthread_mutex_unlock(&c->push_lock);
    return rc;
}

/* ---- commit ---- */
bd_status cl_commit_start(cl_client *c, uint64_t step, bool commit, double lr_scale, bd_err *err)
{
    cl_job job = cl_client_job(c);
    if (c->commit_step != 0) {
        return bd_err_set(err, BD_E_STATE, "commit of step %" PRIu64 " is still open",
                          c->commit_step);
    }
    if (!commit && c->push.is_active) {
        cl_batch_cancel(&c->push.batch);
    }
    bd_status rc = commit ? cl_push_wait(c, err) : BD_OK;
    if (rc == BD_OK) {
        rc = cl_batch_init(&c->commit, c, cl_client_n_servers(c), err);
    }
    for (size_t i = 0; rc == BD_OK && i < c->commit.n_calls; i++) {
        cl_call *call = &c->commit.calls[i];
        call->kind = CL_COMMIT;
        call->server_idx = i;
        call->after_parts_of = step;
        call->body.commit = (px_commit_request){
            .job_epoch = job.epoch,
            .step = step,
            .rank = (uint32_t)job.rank,
            .decision =
                commit ? BRAID__V1__DECISION__DECISION_COMMIT : BRAID__V1__DECISION__DECISION_ABORT,
            .lr_scale = lr_scale,
        };
        cl_call_send(call);
    }
    if (rc == BD_OK) {
        c->commit_step = step;
    }
    return rc;
}

bd_status cl_commit_wait(cl_client *c, bd_err *err)
{
    if (c->commit_step == 0) {
        return BD_OK;
    }
    bd_status rc = cl_batch_wait(&c->commit, NULL, NULL, err);
    bool ends_push = rc == BD_OK && c->push.is_active && c->push.step == c->commit_step;
    cl_batch_deinit(&c->commit);
    c->commit_step = 0; /* after a failure the parts are kept: the commit may be asked for again */
    return ends_push ? finish_push(c, err) : rc;
}

/* Best effort: a new job epoch drops the parts as well. */
static void say_off(cl_client *c, uint64_t step)
{
    bd_err why = BD_ERR_INIT;
    if (cl_commit_start(c, step, false, 0, &why) != BD_OK) {
        BD_LOG(DEBUG, "the servers were not told that a step is off", "step", step, "why",
               bd_err_text(&why));
    }
}

bd_status cl_push_drop(cl_client *c, uint64_t abort_step, bd_err *err)
{
    if (abort_step != 0 && cl_client_job(c).consistency == CL_SYNC && c->commit_step == 0) {
        say_off(c, abort_step);
    }
    cl_batch_deinit(&c->commit);
    c->commit_step = 0;
    cl_push_deinit(c);
    if (cl_borrows_any(c->borrows)) { /* messages that a slow server has not taken yet */
        cl_links_cut(c, CL_LANE_PUSH);
    }
    return cl_borrows_wait(c->borrows, err);
}

bd_status cl_commit(cl_client *c, uint64_t step, bool commit, double lr_scale, bd_err *err)
{
    bd_status rc = cl_commit_start(c, step, commit, lr_scale, err);
    return rc == BD_OK ? cl_commit_wait(c, err) : rc;
}

void cl_set_lr_scale(cl_client *c, double lr_scale)
{
    c->lr_scale = lr_scale;
}
