#include "tests/util/fake_ps.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include "proto/px.h"
#include "proto/px_pack.h"
#include "rpc/rpc_store.h"

#include "tests/util/tu_host.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SERVERS = 4, MAX_RANKS = 4, MAX_TABLES = 8, MAX_DIM = 64, N_SLOTS = 4096 };
#define LEARNING_RATE 0.5f

typedef struct row {
    struct row *next;
    uint32_t table_id;
    uint64_t key;
    float w[MAX_DIM];
} row;

/* One staged part, gradients copied. */
typedef struct part {
    struct part *next;
    uint32_t rank, idx, n_parts;
    size_t n_rows;
    row *grads; /* owned array */
} part;

typedef struct applied {
    struct applied *next;
    uint64_t client_id, sequence;
} applied;

typedef struct table {
    uint32_t id, dim;
    char name[64];
} table;

typedef struct server {
    fake_ps *f;
    size_t idx;
    char address[64];
    rpc_server *rpc; /* NULL: killed */
    row *rows;
    part *staged;
    uint64_t staged_step, committed, epoch;
    uint32_t world;
    int consistency;
    applied *applied;
    int n_fail, n_ignore;
    bd_status fail_rc;
} server;

struct fake_ps {
    rpc_env *env;
    size_t n_servers;
    server servers[MAX_SERVERS];
    pthread_mutex_t lock; /* everything below and the servers' state */
    rpc_store store;      /* what is served: memory's, but for the map */
    rpc_store *memory;    /* owned */
    uint64_t map_epoch;
    uint32_t owner[N_SLOTS];
    table tables[MAX_TABLES];
    size_t n_tables;
    bool duplicate;
    fake_ps_counts counts;
};

typedef struct stream {
    server *s;
    rpc_stream *rpc;
} stream;

float fake_ps_initial(uint64_t key, size_t element)
{
    return (float)((bd_mix64(key) + element) % 1024) / 1024.0f;
}

static row *find_row(server *s, uint32_t table_id, uint64_t key)
{
    for (row *r = s->rows; r != NULL; r = r->next) {
        if (r->table_id == table_id && r->key == key) {
            return r;
        }
    }
    return NULL;
}

static void read_row(server *s, uint32_t table_id, uint64_t key, float *w, size_t dim)
{
    const row *r = find_row(s, table_id, key);
    for (size_t e = 0; e < dim; e++) {
        w[e] = r != NULL ? r->w[e] : fake_ps_initial(key, e);
    }
}

static row *make_row(server *s, uint32_t table_id, uint64_t key)
{
    row *r = find_row(s, table_id, key);
    if (r == NULL) {
        r = bd_calloc(1, sizeof *r);
        BD_ASSERT(r != NULL);
        r->table_id = table_id;
        r->key = key;
        for (size_t e = 0; e < MAX_DIM; e++) {
            r->w[e] = fake_ps_initial(key, e);
        }
        r->next = s->rows;
        s->rows = r;
    }
    return r;
}

static server *owner_of(fake_ps *f, uint64_t key)
{
    return &f->servers[f->owner[bd_mix64(key) >> 52]];
}

/* ---- staging and commit ---- */
static void free_part(part *p)
{
    bd_free(p->grads);
    bd_free(p);
}

static void drop_staged(server *s)
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
        BD_ASSERT(owner_of(s->f, p->grads[i].key) == s);
        row *r = make_row(s, p->grads[i].table_id, p->grads[i].key);
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
    drop_staged(s);
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
            drop_staged(s);
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
            BD_ASSERT(owner_of(s->f, key) == s);
            read_row(s, req->tables[t].table_id, key,
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
        drop_staged(s);
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

static void on_message(void *user, bd_chain *msg)
{
    stream *st = user;
    bd_arena arena;
    px_stream_request req;
    bd_arena_init(&arena);
    BD_ASSERT(px_decode_stream_request(msg, NULL, &arena, &req, NULL) == BD_OK);
    (void)pthread_mutex_lock(&st->s->f->lock);
    if (msg->n_bytes > st->s->f->counts.largest_request_bytes) {
        st->s->f->counts.largest_request_bytes = msg->n_bytes;
    }
    answer(st, &req);
    (void)pthread_mutex_unlock(&st->s->f->lock);
    bd_arena_deinit(&arena);
}

static void on_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    bd_free(user);
}

static bd_status on_stream(void *user, rpc_stream *rpc, rpc_stream_events *ev, bd_err *err)
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

/* ---- unary calls ---- */
static void reply_with(rpc_req *req, const ProtobufCMessage *msg)
{
    bd_chain out = {0};
    BD_ASSERT(px_pack(msg, &out, NULL) == BD_OK);
    rpc_req_reply(req, &out);
}

static void fail_with(rpc_req *req, bd_status rc, const char *text)
{
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, rc, "%s", text);
    rpc_req_fail(req, &err);
}

static const void *body_of(rpc_req *req, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *msg = NULL;
    BD_ASSERT(px_unpack(type, rpc_req_body(req), 0, &msg, NULL) == BD_OK);
    return msg;
}

static void body_free(const void *msg)
{
    union {
        const void *in;
        ProtobufCMessage *out;
    } u = {.in = msg};
    px_unpacked_free(u.out);
}

static void on_create_table(void *user, rpc_req *req)
{
    fake_ps *f = ((server *)user)->f;
    const Braid__V1__CreateTableRequest *r =
        body_of(req, &braid__v1__create_table_request__descriptor);
    Braid__V1__CreateTableReply reply;
    braid__v1__create_table_reply__init(&reply);
    (void)pthread_mutex_lock(&f->lock);
    size_t i = 0;
    while (i < f->n_tables && strcmp(f->tables[i].name, r->spec->name) != 0) {
        i++;
    }
    BD_ASSERT(i < MAX_TABLES && r->spec->dim <= MAX_DIM);
    reply.existed = i < f->n_tables;
    bool differs = reply.existed && f->tables[i].dim != r->spec->dim;
    if (!reply.existed) {
        f->tables[i].id = 100 + (uint32_t)i;
        f->tables[i].dim = r->spec->dim;
        (void)snprintf(f->tables[i].name, sizeof f->tables[i].name, "%s", r->spec->name);
        f->n_tables++;
    }
    reply.table_id = f->tables[i].id;
    (void)pthread_mutex_unlock(&f->lock);
    body_free(r);
    if (differs) {
        fail_with(req, BD_E_MISMATCH, "table exists with another dim");
    } else {
        reply_with(req, &reply.base);
    }
}

static void on_list_tables(void *user, rpc_req *req)
{
    fake_ps *f = ((server *)user)->f;
    Braid__V1__ListTablesReply reply;
    Braid__V1__TableInfo info[MAX_TABLES], *list[MAX_TABLES];
    braid__v1__list_tables_reply__init(&reply);
    for (size_t i = 0; i < f->n_tables; i++) {
        braid__v1__table_info__init(&info[i]);
        info[i].table_id = f->tables[i].id;
        list[i] = &info[i];
    }
    reply.n_tables = f->n_tables;
    reply.tables = list;
    reply_with(req, &reply.base);
}

static void on_open_job(void *user, rpc_req *req)
{
    server *s = user;
    const Braid__V1__OpenJobRequest *r = body_of(req, &braid__v1__open_job_request__descriptor);
    Braid__V1__OpenJobReply reply;
    braid__v1__open_job_reply__init(&reply);
    (void)pthread_mutex_lock(&s->f->lock);
    s->epoch = r->job_epoch;
    s->world = r->world;
    s->consistency = (int)r->consistency;
    s->committed = r->next_step - 1;
    drop_staged(s);
    (void)pthread_mutex_unlock(&s->f->lock);
    body_free(r);
    reply_with(req, &reply.base);
}

static void on_param_hash(void *user, rpc_req *req)
{
    server *s = user;
    Braid__V1__ParamHashReply reply;
    braid__v1__param_hash_reply__init(&reply);
    (void)pthread_mutex_lock(&s->f->lock);
    for (row *r = s->rows; r != NULL; r = r->next) {
        reply.hash += bd_hash64(r->w, sizeof r->w, r->key + r->table_id);
        reply.n_rows++;
    }
    (void)pthread_mutex_unlock(&s->f->lock);
    reply_with(req, &reply.base);
}

static void on_checkpoint(void *user, rpc_req *req)
{
    server *s = user;
    const Braid__V1__CheckpointRequest *r =
        body_of(req, &braid__v1__checkpoint_request__descriptor);
    Braid__V1__CheckpointReply reply;
    braid__v1__checkpoint_reply__init(&reply);
    bool ok = r->step == s->committed;
    body_free(r);
    if (ok) {
        reply_with(req, &reply.base);
    } else {
        fail_with(req, BD_E_STATE, "not the last committed step");
    }
}

static void on_assign(void *user, rpc_req *req)
{
    server *s = user;
    bd_arena arena;
    px_assign_request a;
    bd_arena_init(&arena);
    BD_ASSERT(px_decode_assign_request(rpc_req_body(req), NULL, &arena, &a, NULL) == BD_OK);
    (void)pthread_mutex_lock(&s->f->lock);
    size_t n = px_bulk_count(&a.keys), dim = n > 0 ? px_bulk_count(&a.rows) / n : 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t key;
        px_bulk_copy(&a.keys, i, 1, &key);
        BD_ASSERT(owner_of(s->f, key) == s);
        px_bulk_copy(&a.rows, i * dim, dim, make_row(s, a.table_id, key)->w);
    }
    (void)pthread_mutex_unlock(&s->f->lock);
    bd_arena_deinit(&arena);
    Braid__V1__AssignReply reply;
    braid__v1__assign_reply__init(&reply);
    reply_with(req, &reply.base);
}

/* ---- coordinator: a store in memory, and a map that tests turn ---- */
static fake_ps *fake_of(rpc_store *s)
{
    return (fake_ps *)(void *)((char *)(void *)s - offsetof(fake_ps, store));
}

static bd_status add_once(rpc_store *s, uint64_t op_id, const char *key, int64_t by, int64_t *after,
                          bd_err *err)
{
    rpc_store *m = fake_of(s)->memory;
    return m->add_once(m, op_id, key, by, after, err);
}

static bd_status swap_once(rpc_store *s, uint64_t op_id, const char *key, const char *expected,
                           const char *desired, bool *swapped, bd_err *err)
{
    rpc_store *m = fake_of(s)->memory;
    return m->swap_once(m, op_id, key, expected, desired, swapped, err);
}

static bd_status client_id(rpc_store *s, uint64_t op_id, const char *name, uint64_t *id,
                           bd_err *err)
{
    rpc_store *m = fake_of(s)->memory;
    return m->client_id(m, op_id, name, id, err);
}

static bd_status no_server_comes(rpc_store *s, const rpc_server_entry *e, uint64_t *epoch,
                                 bd_err *err)
{
    (void)s;
    *epoch = 0;
    return bd_err_set(err, BD_E_UNSUPPORTED, "the fake's servers are its own, not %s", e->address);
}

static bd_status shard_map(rpc_store *s, uint64_t newer_than, int64_t timeout_ms,
                           rpc_shard_map *out, bd_err *err)
{
    fake_ps *f = fake_of(s);
    bd_status rc = BD_OK;
    (void)timeout_ms;
    *out = (rpc_shard_map){0};
    (void)pthread_mutex_lock(&f->lock);
    if (f->map_epoch > newer_than) {
        *out = (rpc_shard_map){.epoch = f->map_epoch,
                               .n_servers = f->n_servers,
                               .servers = bd_calloc(f->n_servers, sizeof(char *)),
                               .n_slots = N_SLOTS,
                               .slot_owner = bd_calloc(N_SLOTS, sizeof(uint32_t))};
        BD_ASSERT(out->servers != NULL && out->slot_owner != NULL);
        for (size_t i = 0; i < f->n_servers; i++) {
            out->servers[i] = bd_strfmt("%s", f->servers[i].address);
        }
        memcpy(out->slot_owner, f->owner, sizeof f->owner);
    } else {
        rc = bd_err_set(err, BD_E_TIMEOUT, "no newer map");
    }
    (void)pthread_mutex_unlock(&f->lock);
    return rc;
}

static void open_store(fake_ps *f)
{
    f->memory = rpc_store_mem();
    BD_ASSERT(f->memory != NULL);
    f->store = (rpc_store){.kv = f->memory->kv,
                           .add_once = add_once,
                           .swap_once = swap_once,
                           .client_id = client_id,
                           .register_server = no_server_comes,
                           .shard_map = shard_map};
}

/* ---- cluster ---- */
static const struct {
    const char *method;
    rpc_handler_fn fn;
} handlers[] = {
    {"/braid.v1.ParameterServer/CreateTable", on_create_table},
    {"/braid.v1.ParameterServer/ListTables", on_list_tables},
    {"/braid.v1.ParameterServer/OpenJob", on_open_job},
    {"/braid.v1.ParameterServer/ParamHash", on_param_hash},
    {"/braid.v1.ParameterServer/Checkpoint", on_checkpoint},
    {"/braid.v1.ParameterServer/Assign", on_assign},
};

void fake_ps_start(fake_ps *f, size_t i)
{
    server *s = &f->servers[i];
    bd_err err = BD_ERR_INIT;
    rpc_server_options opt = {.listen = s->address};
    rpc_server *rpc = NULL;
    BD_ASSERT(rpc_server_new(f->env, &opt, &rpc, &err) == BD_OK);
    for (size_t h = 0; h < sizeof handlers / sizeof handlers[0]; h++) {
        BD_ASSERT(rpc_server_register(rpc, handlers[h].method, handlers[h].fn, s) == BD_OK);
    }
    BD_ASSERT(rpc_store_serve(rpc, &f->store, &err) == BD_OK);
    BD_ASSERT(rpc_server_register_stream(rpc, "/braid.v1.ParameterServer/Stream", on_stream, s) ==
              BD_OK);
    if (rpc_server_start(rpc, &err) != BD_OK) {
        (void)fprintf(stderr, "fake ps: %s\n", bd_err_text(&err));
        BD_ASSERT(false);
    }
    s->rpc = rpc;
    (void)snprintf(s->address, sizeof s->address, "%s:%d", tu_host(), rpc_server_port(rpc));
}

void fake_ps_kill(fake_ps *f, size_t i)
{
    server *s = &f->servers[i];
    rpc_server_stop(s->rpc, 0);
    rpc_server_free(s->rpc);
    s->rpc = NULL;
    drop_staged(s);
    s->staged_step = 0;
}

fake_ps *fake_ps_new(rpc_env *env, size_t n_servers)
{
    BD_ASSERT(n_servers <= MAX_SERVERS);
    fake_ps *f = bd_calloc(1, sizeof *f);
    BD_ASSERT(f != NULL);
    f->env = env;
    f->n_servers = n_servers;
    f->map_epoch = 1;
    open_store(f);
    (void)pthread_mutex_init(&f->lock, NULL);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        f->owner[slot] = slot % (uint32_t)n_servers;
    }
    for (size_t i = 0; i < n_servers; i++) {
        f->servers[i].f = f;
        f->servers[i].idx = i;
        (void)snprintf(f->servers[i].address, sizeof f->servers[i].address, "%s",
                       tu_host_any_port());
        fake_ps_start(f, i);
    }
    return f;
}

void fake_ps_free(fake_ps *f)
{
    for (size_t i = 0; i < f->n_servers; i++) {
        server *s = &f->servers[i];
        if (s->rpc != NULL) {
            fake_ps_kill(f, i);
        }
        while (s->rows != NULL) {
            row *r = s->rows;
            s->rows = r->next;
            bd_free(r);
        }
        while (s->applied != NULL) {
            applied *a = s->applied;
            s->applied = a->next;
            bd_free(a);
        }
    }
    rpc_store_free(f->memory);
    (void)pthread_mutex_destroy(&f->lock);
    bd_free(f);
}

const char *fake_ps_coordinator(const fake_ps *f)
{
    return f->servers[0].address;
}

const char *fake_ps_address(const fake_ps *f, size_t i)
{
    return f->servers[i].address;
}

void fake_ps_fail_next(fake_ps *f, size_t i, bd_status rc, int n)
{
    (void)pthread_mutex_lock(&f->lock);
    f->servers[i].fail_rc = rc;
    f->servers[i].n_fail = n;
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_ps_ignore_next(fake_ps *f, size_t i, int n)
{
    (void)pthread_mutex_lock(&f->lock);
    f->servers[i].n_ignore = n;
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_ps_duplicate_pushes(fake_ps *f, bool on)
{
    (void)pthread_mutex_lock(&f->lock);
    f->duplicate = on;
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_ps_bump_epoch(fake_ps *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->map_epoch++;
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_ps_rotate_slots(fake_ps *f)
{
    (void)pthread_mutex_lock(&f->lock);
    row *rows[MAX_SERVERS];
    f->map_epoch++;
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        f->owner[slot] = (f->owner[slot] + 1) % (uint32_t)f->n_servers;
    }
    for (size_t i = 0; i < f->n_servers; i++) {
        rows[i] = f->servers[i].rows;
    }
    for (size_t i = 0; i < f->n_servers; i++) {
        f->servers[(i + 1) % f->n_servers].rows = rows[i];
    }
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_ps_row(fake_ps *f, uint32_t table_id, uint64_t key, float *w, size_t dim)
{
    (void)pthread_mutex_lock(&f->lock);
    read_row(owner_of(f, key), table_id, key, w, dim);
    (void)pthread_mutex_unlock(&f->lock);
}

fake_ps_counts fake_ps_get_counts(fake_ps *f)
{
    (void)pthread_mutex_lock(&f->lock);
    fake_ps_counts counts = f->counts;
    (void)pthread_mutex_unlock(&f->lock);
    return counts;
}

uint64_t fake_ps_committed(fake_ps *f, size_t i)
{
    (void)pthread_mutex_lock(&f->lock);
    uint64_t step = f->servers[i].committed;
    (void)pthread_mutex_unlock(&f->lock);
    return step;
}
