/* The control RPCs of ParameterServer: tables, jobs, rows by hand, checkpoints, numbers. */
#include "base/log.h"
#include "base/mem.h"

#include "proto/px_pack.h"
#include "ps_server/ps_autograd.h"
#include "ps_server/ps_metrics.h"
#include "ps_server/ps_service_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

#define EXPORT_BYTES (1u << 20)

static ps_call *call_of(ps_op *op)
{
    return (ps_call *)(void *)((char *)op - offsetof(ps_call, op));
}

/* Ends the call when the op failed. */
static bool failed(ps_call *c)
{
    if (c->op.rc == BD_OK) {
        return false;
    }
    bd_err err = c->op.err;
    ps_call_fail(c, &err);
    return true;
}

static void refuse(ps_call *c, bd_err *err)
{
    ps_call_fail(c, err);
}

/* ---- tables ---- */
static void on_table_created(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__CreateTableReply r;
        braid__v1__create_table_reply__init(&r);
        r.table_id = op->spec.id;
        r.existed = op->existed;
        ps_call_reply_message(c, &r.base);
    }
}

static void on_create_table(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__CreateTableRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__create_table_request__descriptor);
    if (m == NULL) {
        return;
    }
    bd_err err;
    bd_status rc = m->spec == NULL ? bd_err_set(&err, BD_E_INVALID, "create table: no spec")
                                   : ps_spec_parse(m->spec, &c->op.spec, &err);
    px_unpacked_free(&m->base);
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    c->op.kind = PS_OP_TABLE;
    c->op.done = on_table_created;
    ps_shard_post(c->service->shard, &c->op);
}

/* The spec of a table as a message, by way of its stored form. */
static Braid__V1__TableSpec *spec_message(const ps_spec *s)
{
    bd_buf *b = ps_spec_pack(s);
    Braid__V1__TableSpec *m =
        b == NULL ? NULL : braid__v1__table_spec__unpack(NULL, b->n_bytes, b->bytes);
    bd_buf_unref(b);
    return m;
}

static bd_status fill_tables(ps_call *c, const ps_tables *ts, Braid__V1__ListTablesReply *r)
{
    r->tables = bd_arena_calloc(&c->arena, ts->n, sizeof(Braid__V1__TableInfo *));
    Braid__V1__TableInfo *infos = bd_arena_calloc(&c->arena, ts->n, sizeof *infos);
    if (r->tables == NULL || infos == NULL) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; i < ts->n; i++) {
        const ps_spec *spec = ps_table_spec(ts->items[i]);
        if (spec->hidden != PS_NOT_HIDDEN) {
            continue;
        }
        const ps_rule_counts counts = ps_table_rule_counts(ts->items[i]);
        braid__v1__table_info__init(&infos[i]);
        infos[i].filtered_gradients = counts.filtered;
        infos[i].evicted_rows = counts.evicted;
        infos[i].table_id = spec->id;
        infos[i].n_rows = ps_table_n_rows(ts->items[i]);
        infos[i].state_elems = spec->state_elems;
        infos[i].bad_gradients = ps_table_n_bad(ts->items[i], &infos[i].last_bad_key);
        infos[i].spec = spec_message(spec);
        r->tables[r->n_tables++] = &infos[i];
        if (infos[i].spec == NULL) {
            return BD_E_NOMEM;
        }
    }
    return BD_OK;
}

static void on_list_tables(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    Braid__V1__ListTablesReply r;
    bd_err err;
    braid__v1__list_tables_reply__init(&r);
    const ps_tables *ts = ps_shard_lock_tables(c->service->shard);
    bd_status rc = fill_tables(c, ts, &r);
    ps_shard_unlock_tables(c->service->shard);
    Braid__V1__TableSpec **specs = bd_arena_calloc(&c->arena, r.n_tables + 1, sizeof *specs);
    for (size_t i = 0; i < r.n_tables && specs != NULL; i++) {
        specs[i] = r.tables[i]->spec;
    }
    size_t n = r.n_tables;
    if (rc != BD_OK || specs == NULL) {
        (void)bd_err_set(&err, BD_E_NOMEM, "list tables: no memory");
        for (size_t i = 0; i < n; i++) {
            if (r.tables[i]->spec != NULL) {
                braid__v1__table_spec__free_unpacked(r.tables[i]->spec, NULL);
            }
        }
        refuse(c, &err);
        return;
    }
    bd_chain out = {0};
    rc = px_pack(&r.base, &out, &err);
    for (size_t i = 0; i < n; i++) {
        braid__v1__table_spec__free_unpacked(specs[i], NULL);
    }
    if (rc != BD_OK) {
        refuse(c, &err);
    } else {
        ps_call_reply(c, &out);
    }
}

/* ---- jobs ---- */
static void on_job_opened(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__OpenJobReply r;
        braid__v1__open_job_reply__init(&r);
        r.n_rows = op->n_rows;
        ps_call_reply_message(c, &r.base);
    }
}

static bd_status parse_job(const Braid__V1__OpenJobRequest *m, ps_op *op, bd_err *err)
{
    if (m->job_epoch == 0 || m->next_step == 0) {
        return bd_err_set(err, BD_E_INVALID,
                          "open job: job epoch %" PRIu64 " and next step %" PRIu64
                          " must be at least 1",
                          m->job_epoch, m->next_step);
    }
    if (m->world == 0 || m->world > PS_MAX_WORLD) {
        return bd_err_set(err, BD_E_INVALID, "open job: world %u is outside 1..%u", m->world,
                          PS_MAX_WORLD);
    }
    if ((unsigned)m->consistency > BRAID__V1__CONSISTENCY__CONSISTENCY_BOUNDED) {
        return bd_err_set(err, BD_E_UNSUPPORTED,
                          "open job: consistency %d; this server has sync, async and bounded",
                          (int)m->consistency);
    }
    if (m->restore_checkpoint[0] != '\0' && !ps_name_ok(m->restore_checkpoint)) {
        return bd_err_set(err, BD_E_INVALID, "open job: the checkpoint's name is malformed");
    }
    op->job =
        (ps_job){.epoch = m->job_epoch,
                 .world = m->world,
                 .consistency = m->consistency == 0 ? PS_SYNC : (ps_consistency)m->consistency,
                 .last_step = m->next_step - 1};
    (void)snprintf(op->name, sizeof op->name, "%s", m->restore_checkpoint);
    op->restore_epoch = m->restore_epoch;
    return BD_OK;
}

static void on_open_job(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__OpenJobRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__open_job_request__descriptor);
    if (m == NULL) {
        return;
    }
    bd_err err;
    bd_status rc =
        ps_health_is_draining(c->service->health)
            ? bd_err_set(&err, BD_E_UNAVAILABLE,
                         "open job: this server is draining (`braid ps undrain` ends it)")
            : parse_job(m, &c->op, &err);
    px_unpacked_free(&m->base);
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    c->op.kind = PS_OP_OPEN;
    c->op.done = on_job_opened;
    ps_shard_post(c->service->shard, &c->op);
}

/* ---- rows by hand ---- */
static void on_assigned(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__AssignReply r;
        braid__v1__assign_reply__init(&r);
        ps_call_reply_message(c, &r.base);
    }
}

static void on_assign(void *service, rpc_req *req)
{
    px_assign_request r;
    bd_err err;
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    bd_status rc = px_decode_assign_request(&c->body, NULL, &c->arena, &r, &err);
    if (rc == BD_OK) {
        rc = ps_check_assign(c->service, &r, &c->op.part, &c->op.assign_state, &err);
    }
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    c->op.kind = PS_OP_ASSIGN;
    c->op.done = on_assigned;
    ps_shard_post(c->service->shard, &c->op);
}

/* ---- all rows: from memory when they are all there, else by the keeper ---- */
/* A buffer for one page: keys, rows, state. Tables lock held. */
static bd_status make_page(ps_call *c, const ps_table *t, const px_export_request *r, bd_err *err)
{
    size_t dim = ps_table_spec(t)->dim, se = r->with_state ? ps_table_spec(t)->state_elems : 0;
    size_t row_bytes = 8 + (dim + se) * sizeof(float), n = EXPORT_BYTES / row_bytes;
    n = n == 0 ? 1 : n;
    if (r->max_rows != 0 && r->max_rows < n) {
        n = r->max_rows;
    }
    c->rows = bd_buf_new(n * row_bytes);
    if (c->rows == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "export: no memory");
    }
    c->page_dim = dim;
    c->page_state = se;
    c->scan = (ps_scan){.table_id = r->table_id, .from = r->from_key, .max_rows = n};
    c->scan.page = (ps_page){.keys = (uint64_t *)(void *)c->rows->bytes,
                             .rows = (float *)(void *)(c->rows->bytes + n * 8)};
    c->scan.page.state = r->with_state ? c->scan.page.rows + n * dim : NULL;
    return BD_OK;
}

static void reply_page(ps_call *c)
{
    px_export_reply reply = {0};
    bd_chain out = {0};
    bd_err err;
    const ps_page *page = &c->scan.page;
    size_t n = c->scan.max_rows, dim = c->page_dim, se = c->page_state;
    reply.done = !page->more;
    reply.next_key = page->next;
    reply.keys = px_bulk_of(c->rows, 0, page->n, 8);
    reply.rows = px_bulk_of(c->rows, n * 8, page->n * dim, sizeof(float));
    reply.state = px_bulk_of(c->rows, n * 8 + n * dim * sizeof(float), page->n * se, sizeof(float));
    if (px_encode_export_reply(&reply, &out, &err) == BD_OK) {
        ps_call_reply(c, &out);
    } else {
        refuse(c, &err);
    }
}

static void on_paged(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        reply_page(c);
    }
}

static void on_export(void *service, rpc_req *req)
{
    px_export_request r;
    bd_err err;
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    bd_status rc = px_decode_export_request(&c->body, NULL, &c->arena, &r, &err);
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    const ps_tables *ts = ps_shard_lock_tables(c->service->shard);
    ps_table *t = ps_tables_find(ts, r.table_id);
    rc = t == NULL ? bd_err_set(&err, BD_E_NOT_FOUND, "no table with id %u", r.table_id)
                   : make_page(c, t, &r, &err);
    bool away = rc == BD_OK && ps_table_n_away(t) != 0;
    if (rc == BD_OK && !away) {
        rc = ps_table_page(t, r.from_key, c->scan.max_rows, &c->scan.page);
        away = rc == BD_E_STATE || ps_table_n_away(t) != 0; /* rows have begun to leave */
        rc = rc == BD_E_NOMEM ? bd_err_set(&err, rc, "export: no memory") : BD_OK;
    }
    ps_shard_unlock_tables(c->service->shard);
    if (rc != BD_OK) {
        refuse(c, &err);
    } else if (!away) {
        reply_page(c);
    } else {
        c->op.kind = PS_OP_PAGE;
        c->op.scan = &c->scan;
        c->op.done = on_paged;
        ps_shard_post(c->service->shard, &c->op);
    }
}

static void on_hashed(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__ParamHashReply r;
        braid__v1__param_hash_reply__init(&r);
        r.hash = op->hash;
        r.n_rows = op->n_rows;
        ps_call_reply_message(c, &r.base);
    }
}

static void on_param_hash(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    const ps_tables *ts = ps_shard_lock_tables(c->service->shard);
    bool here = ps_tables_n_away(ts) == 0;
    if (here) {
        c->op.hash = ps_tables_hash(ts, &c->op.n_rows);
        here = ps_tables_n_away(ts) == 0;
    }
    ps_shard_unlock_tables(c->service->shard);
    if (here) {
        on_hashed(&c->op);
    } else {
        c->op.kind = PS_OP_HASH;
        c->op.done = on_hashed;
        ps_shard_post(c->service->shard, &c->op);
    }
}

/* ---- checkpoints ---- */
static void on_checkpointed(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__CheckpointReply r;
        braid__v1__checkpoint_reply__init(&r);
        r.path = op->path;
        r.n_rows = op->n_rows;
        r.n_bytes = op->n_bytes;
        ps_call_reply_message(c, &r.base);
    }
}

static bd_status take_name(const char *name, ps_op *op, bd_err *err)
{
    if (!ps_name_ok(name)) {
        return bd_err_set(err, BD_E_INVALID,
                          "a checkpoint's name is 1..%u of [A-Za-z0-9_.-] and does not start with "
                          "a dot",
                          PS_MAX_NAME_BYTES);
    }
    (void)snprintf(op->name, sizeof op->name, "%s", name);
    return BD_OK;
}

static void on_checkpoint(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__CheckpointRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__checkpoint_request__descriptor);
    if (m == NULL) {
        return;
    }
    bd_err err;
    bd_status rc = take_name(m->name, &c->op, &err);
    c->op.job.epoch = m->job_epoch;
    c->op.job.last_step = m->step;
    const ProtobufCEnumDescriptor *phases = &braid__v1__checkpoint_phase__descriptor;
    if (rc == BD_OK && protobuf_c_enum_descriptor_get_value(phases, (int)m->phase) == NULL) {
        rc = bd_err_set(&err, BD_E_UNSUPPORTED, "checkpoint: phase %d", (int)m->phase);
    }
    bool poll = m->phase == BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_POLL;
    c->op.phase = (ps_ckpt_phase)m->phase;
    px_unpacked_free(&m->base);
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    if (poll && ps_shard_is_saving(c->service->shard)) {
        Braid__V1__CheckpointReply r;
        braid__v1__checkpoint_reply__init(&r);
        r.pending = true;
        ps_call_reply_message(c, &r.base);
        return;
    }
    c->op.kind = PS_OP_CHECKPOINT;
    c->op.done = on_checkpointed;
    ps_shard_post(c->service->shard, &c->op);
}

static void on_checkpoint_deleted(ps_op *op)
{
    ps_call *c = call_of(op);
    if (!failed(c)) {
        Braid__V1__DeleteCheckpointReply r;
        braid__v1__delete_checkpoint_reply__init(&r);
        ps_call_reply_message(c, &r.base);
    }
}

static void on_delete_checkpoint(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__DeleteCheckpointRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__delete_checkpoint_request__descriptor);
    if (m == NULL) {
        return;
    }
    bd_err err;
    bd_status rc = take_name(m->name, &c->op, &err);
    px_unpacked_free(&m->base);
    if (rc != BD_OK) {
        refuse(c, &err);
        return;
    }
    c->op.kind = PS_OP_DELETE;
    c->op.done = on_checkpoint_deleted;
    ps_shard_post(c->service->shard, &c->op);
}

/* ---- numbers ---- */
static void on_stats(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    if (c == NULL) {
        return;
    }
    ps_shard_stats st;
    Braid__V1__StatsReply r;
    Braid__V1__Stat items[PS_N_METRICS], *links[PS_N_METRICS];
    double values[PS_N_METRICS];
    char text[PS_N_METRICS][64], version[] = BRAID_VERSION; /* protobuf-c wants char * */
    braid__v1__stats_reply__init(&r);
    if (atomic_load(&c->service->autograd) != NULL) {
        ps_autograd_sweep(atomic_load(&c->service->autograd));
    }
    ps_shard_get_stats(c->service->shard, &st);
    ps_metrics_values(&st, values);
    for (size_t i = 0; i < PS_N_METRICS; i++) {
        braid__v1__stat__init(&items[i]);
        (void)snprintf(text[i], sizeof text[i], "%s", ps_metric_name(i));
        items[i].name = text[i];
        items[i].value = values[i];
        links[i] = &items[i];
    }
    r.stats = links;
    r.n_stats = PS_N_METRICS;
    r.version = version;
    r.instance = c->service->instance;
    ps_call_reply_message(c, &r.base);
}

bd_status ps_register_admin(ps_service *v, rpc_server *server)
{
    static const struct {
        const char *method;
        rpc_handler_fn fn;
    } rows[] = {
        {"/braid.v1.ParameterServer/CreateTable", on_create_table},
        {"/braid.v1.ParameterServer/ListTables", on_list_tables},
        {"/braid.v1.ParameterServer/OpenJob", on_open_job},
        {"/braid.v1.ParameterServer/Assign", on_assign},
        {"/braid.v1.ParameterServer/Export", on_export},
        {"/braid.v1.ParameterServer/ParamHash", on_param_hash},
        {"/braid.v1.ParameterServer/Checkpoint", on_checkpoint},
        {"/braid.v1.ParameterServer/DeleteCheckpoint", on_delete_checkpoint},
        {"/braid.v1.ParameterServer/ReadPart", ps_on_read_part},
        {"/braid.v1.ParameterServer/Stats", on_stats},
        {"/braid.v1.ParameterServer/Drain", ps_on_drain},
        {"/braid.v1.ParameterServer/HotKeys", ps_on_hot_keys},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bd_status rc = rpc_server_register(server, rows[i].method, rows[i].fn, v);
        if (rc != BD_OK) {
            return rc;
        }
    }
    return BD_OK;
}
