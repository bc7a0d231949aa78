#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include "proto/px.h"
#include "proto/px_pack.h"

#include "tests/util/fake_ps_int.h"
#include "tests/util/tu_host.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

void fake_read_row(server *s, uint32_t table_id, uint64_t key, float *w, size_t dim)
{
    const row *r = find_row(s, table_id, key);
    for (size_t e = 0; e < dim; e++) {
        w[e] = r != NULL ? r->w[e] : fake_ps_initial(key, e);
    }
}

row *fake_make_row(server *s, uint32_t table_id, uint64_t key)
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

server *fake_owner_of(fake_ps *f, uint64_t key)
{
    return &f->servers[f->owner[bd_mix64(key) >> 52]];
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
    fake_drop_staged(s);
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
        BD_ASSERT(fake_owner_of(s->f, key) == s);
        px_bulk_copy(&a.rows, i * dim, dim, fake_make_row(s, a.table_id, key)->w);
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
                               .n_servers = f->map_servers,
                               .servers = bd_calloc(f->map_servers, sizeof(char *)),
                               .n_slots = N_SLOTS,
                               .slot_owner = bd_calloc(N_SLOTS, sizeof(uint32_t))};
        BD_ASSERT(out->servers != NULL && out->slot_owner != NULL && f->map_servers > 0);
        for (size_t i = 0; i < f->map_servers; i++) {
            out->servers[i] = bd_strfmt("%s", f->servers[i].address);
        }
        for (size_t slot = 0; slot < N_SLOTS; slot++) {
            out->slot_owner[slot] = f->owner[slot] % (uint32_t)f->map_servers;
        }
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
    BD_ASSERT(rpc_server_register_stream(rpc, "/braid.v1.ParameterServer/Stream", fake_on_stream,
                                         s) == BD_OK);
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
    fake_drop_staged(s);
    s->staged_step = 0;
}

fake_ps *fake_ps_new(rpc_env *env, size_t n_servers)
{
    BD_ASSERT(n_servers <= MAX_SERVERS);
    fake_ps *f = bd_calloc(1, sizeof *f);
    BD_ASSERT(f != NULL);
    f->env = env;
    f->n_servers = f->map_servers = n_servers;
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

void fake_ps_hold(fake_ps *f, size_t i, int n)
{
    BD_ASSERT(n <= MAX_HELD);
    (void)pthread_mutex_lock(&f->lock);
    f->servers[i].n_hold = n;
    (void)pthread_mutex_unlock(&f->lock);
}

int fake_ps_n_held(fake_ps *f, size_t i)
{
    (void)pthread_mutex_lock(&f->lock);
    int n = f->servers[i].n_held;
    (void)pthread_mutex_unlock(&f->lock);
    return n;
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

void fake_ps_shrink_map(fake_ps *f, size_t n)
{
    (void)pthread_mutex_lock(&f->lock);
    f->map_epoch++;
    f->map_servers = n;
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
    fake_read_row(fake_owner_of(f, key), table_id, key, w, dim);
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
