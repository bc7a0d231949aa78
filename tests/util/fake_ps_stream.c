/* A fake server's stream: lookups, staging, commit and pushes by sequence, with the failures that a
 * test has asked for. */
#include "base/assert.h"
#include "base/mem.h"

#include "proto/px.h"

#include "tests/util/fake_ps_int.h"

#include <braid/v1/parameter_server.pb-c.h>

#define LEARNING_RATE 0.5f

typedef struct stream {
    server *s;
    rpc_stream *rpc;
} stream;

/* ---- staging and commit ---- */
static void free_part(part *p)
{
    bd_free(p->grads);
    bd_free(p);
}

void fake_drop_staged(server *s)
{
    while (s->staged != NULL) {
        part *p = s->staged;
        s->staged = p->next;
        free_part(p);
    }
}

static part *copy_part(const px_push_request *req)
{
    part *p = bd_calloc(1, sizeof *p);
    BD_ASSERT(p != NULL);
    p->rank = req->rank;
    p->idx = req->part;
    p->n_parts = req->n_parts;
    for (size_t t = 0; t < req->n_tables; t++) {
        p->n_rows += px_bulk_count(&req->tables[t].keys);
    }
    p->grads = bd_calloc(p->n_rows, sizeof *p->grads);
    BD_ASSERT(p->grads != NULL);
    row *g = p->grads;
    for (size_t t = 0; t < req->n_tables; t++) {
        const px_table_grads *tg = &req->tables[t];
        BD_ASSERT(px_bulk_count(&tg->grads) == px_bulk_count(&tg->keys) * tg->dim);
        for (size_t i = 0; i < px_bulk_count(&tg->keys); i++, g++) {
            g->table_id = tg->table_id;
            px_bulk_copy(&tg->keys, i, 1, &g->key);
            px_bulk_copy(&tg->grads, i * tg->dim, tg->dim, g->w);
        }
    }
    return p;
}

static void apply_part(server *s, const part *p, double lr_scale)
{
    float lr = LEARNING_RATE * (float)(lr_scale == 0 ? 1 : lr_scale);
    for (size_t i = 0; i < p->n_rows; i++) {
        BD_ASSERT(fake_owner_of(s->f, p->grads[i].key) == s);
        row *r = fake_make_row(s, p->grads[i].table_id, p->grads[i].key);
        for (size_t e = 0; e < MAX_DIM; e++) {
            r->w[e] -= lr * p->grads[i].w[e];
        }
    }
}

static part *find_part(server *s, uint32_t rank, uint32_t idx)
{
    for (part *p = s->staged; p != NULL; p = p->next) {
        if (p->rank == rank && p->idx == idx) {
            return p;
        }
    }
    return NULL;
}

static bool has_all(server *s, uint32_t rank)
{
    part *first = find_part(s, rank, 0);
    for (uint32_t i = 0; first != NULL && i < first->n_parts; i++) {
        if (find_part(s, rank, i) == NULL) {
            return false;
        }
    }
    return first != NULL;
}

/* Commits `step` if it is the next one; BD_OK when it is committed then. */
static bd_status commit(server *s, uint64_t step, uint32_t rank, double lr_scale)
{
    if (step <= s->committed) {
        return BD_OK;
    }
    if (s->staged_step != step || !has_all(s, rank)) {
        s->f->counts.need_parts++;
        return BD_E_NEED_PARTS;
    }
    for (uint32_t r = 0; r < s->world; r++) {
        if (!has_all(s, r)) {
            return BD_E_EXHAUSTED; /* the real server parks the request */
        }
    }
    for (uint32_t r = 0; r < s->world; r++) {
        for (uint32_t i = 0; i < find_part(s, r, 0)->n_parts; i++) {
            apply_part(s, find_part(s, r, i), lr_scale);
        }
    }
    fake_drop_staged(s);
    s->committed = step;
    s->f->counts.commits++;
    return BD_OK;
}

static bool was_applied(server *s, uint64_t client_id, uint64_t sequence)
{
    for (applied *a = s->applied; a != NULL; a = a->next) {
        if (a->client_id == client_id && a->sequence == sequence) {
            return true;
        }
    }
    return false;
}

static void remember(server *s, uint64_t client_id, uint64_t sequence)
{
    applied *a = bd_calloc(1, sizeof *a);
    BD_ASSERT(a != NULL);
    *a = (applied){s->applied, client_id, sequence};
    s->applied = a;
}

static bd_status push(server *s, const px_push_request *req, bool *duplicate)
{
    s->f->counts.pushes++;
    if ((int)req->n_parts > s->f->counts.largest_push_parts) {
        s->f->counts.largest_push_parts = (int)req->n_parts;
    }
    if (req->sequence != 0) {
        *duplicate = was_applied(s, req->client_id, req->sequence);
        if (!*duplicate) {
            part *p = copy_part(req);
            apply_part(s, p, req->lr_scale);
            free_part(p);
            remember(s, req->client_id, req->sequence);
        }
    } else if (req->step <= s->committed) {
        *duplicate = true;
    } else {
        if (s->staged_step != req->step) {
            fake_drop_staged(s);
            s->staged_step = req->step;
        }
        *duplicate = find_part(s, req->rank, req->part) != NULL;
        if (!*duplicate) {
            part *p = copy_part(req);
            p->next = s->staged;
            s->staged = p;
        }
    }
    s->f->counts.duplicates += *duplicate ? 1 : 0;
    return BD_OK;
}

/* ---- stream ---- */
static void send_reply(stream *st, const px_stream_reply *reply)
{
    bd_chain out = {0};
    BD_ASSERT(px_encode_stream_reply(reply, &out, NULL) == BD_OK);
    if (rpc_stream_send(st->rpc, &out, NULL) != BD_OK) {
        bd_chain_deinit(&out);
    }
}

static void fail_reply(px_stream_reply *reply, bd_status rc)
{
    reply->status = rc;
    reply->text = "the fake says no";
}

/* Rows of a lookup; the buffer belongs to the chain that the caller encodes. */
static void answer_lookup(stream *st, const px_lookup_request *req, px_stream_reply *reply)
{
    server *s = st->s;
    px_table_rows tables[MAX_TABLES];
    bd_buf *bufs[MAX_TABLES] = {NULL};
    bd_status rc = req->after_step > 0 ? commit(s, req->after_step, req->rank, 0) : BD_OK;
    s->f->counts.lookups++;
    if (rc != BD_OK) {
        fail_reply(reply, rc);
        send_reply(st, reply);
        return;
    }
    BD_ASSERT(req->n_tables <= MAX_TABLES);
    for (size_t t = 0; t < req->n_tables; t++) {
        uint32_t dim = 0;
        for (size_t i = 0; i < s->f->n_tables; i++) {
            dim = s->f->tables[i].id == req->tables[t].table_id ? s->f->tables[i].dim : dim;
        }
        size_t n = px_bulk_count(&req->tables[t].keys);
        bufs[t] = bd_buf_new(n * dim * sizeof(float));
        BD_ASSERT(bufs[t] != NULL);
        for (size_t i = 0; i < n; i++) {
            uint64_t key;
            px_bulk_copy(&req->tables[t].keys, i, 1, &key);
            BD_ASSERT(fake_owner_of(s->f, key) == s);
            fake_read_row(s, req->tables[t].table_id, key,
                          (float *)(void *)(bufs[t]->bytes + i * dim * sizeof(float)), dim);
        }
        tables[t] = (px_table_rows){.table_id = req->tables[t].table_id,
                                    .dim = dim,
                                    .rows = px_bulk_of(bufs[t], 0, n * dim, 4)};
    }
    px_lookup_reply rows = {.step = s->committed, .tables = tables, .n_tables = req->n_tables};
    reply->lookup = &rows;
    send_reply(st, reply);
    reply->lookup = NULL;
    for (size_t t = 0; t < req->n_tables; t++) {
        bd_buf_unref(bufs[t]);
    }
}

static void answer(stream *st, const px_stream_request *req)
{
    server *s = st->s;
    px_stream_reply reply = {.id = req->id};
    px_push_reply pushed = {0};
    px_commit_reply committed = {0};
    uint64_t map_epoch = req->lookup != NULL ? req->lookup->map_epoch
                         : req->push != NULL ? req->push->map_epoch
                                             : 0;
    bd_status rc = BD_OK;
    if (s->n_ignore > 0) {
        s->n_ignore--;
        return;
    }
    if (s->n_fail > 0) {
        s->n_fail--;
        rc = s->fail_rc;
    } else if (map_epoch != 0 && map_epoch != s->f->map_epoch) {
        s->f->counts.moved++;
        rc = BD_E_MOVED;
    } else if (req->lookup != NULL) {
        answer_lookup(st, req->lookup, &reply);
        return;
    } else if (req->push != NULL) {
        rc = push(s, req->push, &pushed.duplicate);
        if (s->f->duplicate) {
            rc = push(s, req->push, &pushed.duplicate);
        }
        reply.push = &pushed;
    } else if (req->commit->decision == BRAID__V1__DECISION__DECISION_ABORT) {
        fake_drop_staged(s);
        reply.commit = &committed;
    } else {
        rc = commit(s, req->commit->step, req->commit->rank, req->commit->lr_scale);
        committed.step = s->committed;
        reply.commit = &committed;
    }
    if (rc != BD_OK) {
        fail_reply(&reply, rc);
    }
    send_reply(st, &reply);
}

/* Lock held. */
static void handle(stream *st, const bd_chain *msg)
{
    bd_arena arena;
    px_stream_request req;
    bd_arena_init(&arena);
    BD_ASSERT(px_decode_stream_request(msg, NULL, &arena, &req, NULL) == BD_OK);
    if (msg->n_bytes > st->s->f->counts.largest_request_bytes) {
        st->s->f->counts.largest_request_bytes = msg->n_bytes;
    }
    answer(st, &req);
    bd_arena_deinit(&arena);
}

static void on_message(void *user, bd_chain *msg)
{
    stream *st = user;
    server *s = st->s;
    (void)pthread_mutex_lock(&s->f->lock);
    if (s->n_hold == 0) {
        handle(st, msg);
    } else {
        held *h = &s->held[s->n_held++];
        h->stream = st;
        bd_chain_move(&h->msg, msg);
        s->n_hold = s->n_held < s->n_hold ? s->n_hold : 0;
    }
    while (s->n_hold == 0 && s->n_held > 0) {
        held *h = &s->held[--s->n_held];
        handle(h->stream, &h->msg);
        bd_chain_deinit(&h->msg);
    }
    (void)pthread_mutex_unlock(&s->f->lock);
}

static void on_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    stream *st = user;
    server *s = st->s;
    int n = 0;
    (void)pthread_mutex_lock(&s->f->lock);
    for (int i = 0; i < s->n_held; i++) {
        if (s->held[i].stream == st) {
            bd_chain_deinit(&s->held[i].msg);
        } else {
            s->held[n++] = s->held[i];
        }
    }
    s->n_held = n;
    (void)pthread_mutex_unlock(&s->f->lock);
    bd_free(st);
}

bd_status fake_on_stream(void *user, rpc_stream *rpc, rpc_stream_events *ev, bd_err *err)
{
    (void)err;
    stream *st = bd_calloc(1, sizeof *st);
    BD_ASSERT(st != NULL);
    *st = (stream){user, rpc};
    ev->on_message = on_message;
    ev->on_close = on_close;
    ev->user = st;
    return BD_OK;
}
