/* Jobs, tables, checkpoints and the other rare calls. */
#include "base/mem.h"
#include "base/num/dtype.h"
#include "base/num/hyper.h"

#include "client/cl_int.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <inttypes.h>
#include <string.h>

#define EPOCH_KEY "braid/job_epoch"

/* The generated structs want char *, but packing only reads. */
static char *text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s != NULL ? s : ""};
    return u.out;
}

/* One reply a server; freed by cl_replies_free. NULL: no memory. */
static ProtobufCMessage **replies_new(cl_client *c)
{
    return bd_calloc(cl_client_n_servers(c), sizeof(void *));
}

void cl_replies_free(cl_client *c, ProtobufCMessage **replies)
{
    for (size_t i = 0; replies != NULL && i < cl_client_n_servers(c); i++) {
        px_unpacked_free(replies[i]);
    }
    bd_free(replies);
}

/* Asks all servers, leaves the replies (for cl_replies_free) in *out. */
bd_status cl_ask_each(cl_client *c, const char *method, const ProtobufCMessage *req,
                      const ProtobufCMessageDescriptor *type, ProtobufCMessage ***out, bd_err *err)
{
    ProtobufCMessage **replies = replies_new(c);
    if (replies == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "%s", method);
        return BD_E_NOMEM;
    }
    *out = replies;
    return cl_ask_all(c, method, req, type, replies, err);
}

bd_status cl_job_next_epoch(cl_client *c, uint64_t *epoch, bd_err *err)
{
    int64_t after = 0;
    bd_kv *kv = cl_client_kv(c);
    bd_status rc = kv->add(kv, EPOCH_KEY, 1, &after, err);
    if (rc == BD_OK) {
        *epoch = (uint64_t)after;
    }
    return rc;
}

bd_status cl_job_open(cl_client *c, const cl_job *job, const char *restore, uint64_t next_step,
                      bd_err *err)
{
    Braid__V1__OpenJobRequest req;
    ProtobufCMessage **replies = NULL;
    braid__v1__open_job_request__init(&req);
    req.job_epoch = job->epoch;
    req.world = (uint32_t)job->world;
    req.consistency = (Braid__V1__Consistency)job->consistency;
    req.restore_checkpoint = text(restore);
    req.next_step = next_step;
    req.restore_epoch = job->restore_epoch;
    bd_status rc = cl_ask_each(c, CL_SERVICE "OpenJob", &req.base,
                               &braid__v1__open_job_reply__descriptor, &replies, err);
    cl_replies_free(c, replies);
    return rc;
}

/* ---- tables ---- */
typedef struct params {
    Braid__V1__Param *items; /* owned, [n] */
    Braid__V1__Param **list; /* owned, [n] */
} params;

static bool params_init(params *p, const cl_param *from, size_t n)
{
    *p = (params){bd_calloc(n, sizeof *p->items), bd_calloc(n, sizeof(void *))};
    for (size_t i = 0; p->items != NULL && p->list != NULL && i < n; i++) {
        braid__v1__param__init(&p->items[i]);
        p->items[i].name = text(from[i].name);
        p->items[i].value = from[i].value;
        p->list[i] = &p->items[i];
    }
    return p->items != NULL && p->list != NULL;
}

static void params_deinit(params *p)
{
    bd_free(p->items);
    bd_free(p->list);
}

static bd_status same_id(cl_client *c, ProtobufCMessage *const *replies, const char *table,
                         uint32_t *id, bd_err *err)
{
    for (size_t i = 0; i < cl_client_n_servers(c); i++) {
        uint32_t got = ((const Braid__V1__CreateTableReply *)(const void *)replies[i])->table_id;
        if (i > 0 && got != *id) {
            return bd_err_set(err, BD_E_MISMATCH, "table %s: id %u on ps-0, %u on ps-%zu", table,
                              *id, got, i);
        }
        *id = got;
    }
    return BD_OK;
}

/* An unknown name travels as a number that the server refuses by name of the table. */
static Braid__V1__DType wire_dtype(const char *name)
{
    switch (num_dtype_parse(name != NULL ? name : "f32")) {
    case NUM_F32:
        return BRAID__V1__DTYPE__DTYPE_F32;
    case NUM_F16:
        return BRAID__V1__DTYPE__DTYPE_F16;
    case NUM_BF16:
        return BRAID__V1__DTYPE__DTYPE_BF16;
    case NUM_I8:
        return BRAID__V1__DTYPE__DTYPE_I8;
    default:
        return (Braid__V1__DType)99;
    }
}

bool cl_bad_gradient_parse(const char *name, cl_bad_gradient *out)
{
    static const char *const names[] = {"reject", "drop_row", "clip", "halt"};
    if (name == NULL || name[0] == '\0') {
        *out = CL_BAD_REJECT;
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (cl_bad_gradient)i;
            return true;
        }
    }
    return false;
}

static Braid__V1__Durability wire_durability(const char *name)
{
    static const struct {
        const char *name;
        Braid__V1__Durability wire;
    } all[] = {{"checkpoint", BRAID__V1__DURABILITY__DURABILITY_CHECKPOINT},
               {"journal", BRAID__V1__DURABILITY__DURABILITY_JOURNAL},
               {"sync", BRAID__V1__DURABILITY__DURABILITY_SYNC}};
    name = name != NULL ? name : "journal";
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(name, all[i].name) == 0) {
            return all[i].wire;
        }
    }
    return (Braid__V1__Durability)99; /* the server's error names it */
}

/* Rules as messages: what protobuf-c points to. */
typedef struct rules {
    num_rules parsed;
    Braid__V1__Rule msgs[NUM_RULES_MAX], *list[NUM_RULES_MAX];
    Braid__V1__Param params[NUM_RULES_MAX][NUM_HYPER_LIST_MAX];
    Braid__V1__Param *param_lists[NUM_RULES_MAX][NUM_HYPER_LIST_MAX];
} rules;

static bd_status rules_init(rules *r, const char *text_of, size_t most, bd_err *err)
{
    bd_status rc = num_rules_parse(text_of, &r->parsed, err);
    if (rc == BD_OK && r->parsed.n > most) {
        rc = bd_err_set(err, BD_E_INVALID, "\"%.64s\": at most %zu rules", text_of, most);
    }
    for (size_t i = 0; rc == BD_OK && i < r->parsed.n; i++) {
        const num_hyper_list *l = &r->parsed.params[i];
        braid__v1__rule__init(&r->msgs[i]);
        r->msgs[i].name = r->parsed.names[i];
        r->msgs[i].params = r->param_lists[i];
        r->msgs[i].n_params = l->n;
        r->list[i] = &r->msgs[i];
        for (size_t k = 0; k < l->n; k++) {
            braid__v1__param__init(&r->params[i][k]);
            r->params[i][k].name = text(l->names[k]);
            r->params[i][k].value = l->values[k];
            r->param_lists[i][k] = &r->params[i][k];
        }
    }
    return rc;
}

bd_status cl_table_create(cl_client *c, const cl_table_spec *spec, uint32_t *table_id, bd_err *err)
{
    Braid__V1__TableSpec t;
    Braid__V1__CreateTableRequest req;
    ProtobufCMessage **replies = NULL;
    params init = {0}, opt = {0};
    uint32_t id = 0;
    bd_status rc = BD_E_NOMEM;
    rules *admission = bd_calloc(1, sizeof *admission);
    rules *eviction = bd_calloc(1, sizeof *eviction);
    if (admission == NULL || eviction == NULL ||
        !params_init(&init, spec->init_params, spec->n_init_params) ||
        !params_init(&opt, spec->opt_params, spec->n_opt_params)) {
        (void)bd_err_set(err, rc, "table %s", spec->name);
        goto out;
    }
    rc = rules_init(admission, spec->admission, 1, err);
    if (rc == BD_OK) {
        rc = rules_init(eviction, spec->eviction, NUM_RULES_MAX, err);
    }
    if (rc != BD_OK) {
        rc = bd_err_wrap(err, "table \"%s\"", spec->name);
        goto out;
    }
    braid__v1__table_spec__init(&t);
    t.admission = admission->parsed.n == 0 ? NULL : admission->list[0];
    t.evictions = eviction->list;
    t.n_evictions = eviction->parsed.n;
    t.name = text(spec->name);
    t.dim = spec->dim;
    t.dtype = wire_dtype(spec->dtype);
    t.initializer = text(spec->initializer);
    t.n_init_params = spec->n_init_params;
    t.init_params = init.list;
    t.seed = spec->seed;
    t.optimizer = text(spec->optimizer);
    t.n_opt_params = spec->n_opt_params;
    t.opt_params = opt.list;
    t.bad_gradient = (Braid__V1__BadGradient)(spec->bad_gradient + 1); /* 0: not set */
    t.max_gradient_norm = spec->max_gradient_norm;
    t.durability = wire_durability(spec->durability);
    braid__v1__create_table_request__init(&req);
    req.spec = &t;
    rc = cl_ask_each(c, CL_SERVICE "CreateTable", &req.base,
                     &braid__v1__create_table_reply__descriptor, &replies, err);
    if (rc == BD_OK) {
        rc = same_id(c, replies, spec->name, &id, err);
    }
    if (rc == BD_OK) {
        rc = cl_table_fill(c, spec, id, err);
    }
    if (rc == BD_OK) {
        *table_id = id;
    }
out:
    cl_replies_free(c, replies);
    params_deinit(&init);
    params_deinit(&opt);
    bd_free(admission);
    bd_free(eviction);
    return rc;
}

bd_status cl_param_hash(cl_client *c, uint64_t *hash, uint64_t *n_rows, bd_err *err)
{
    Braid__V1__ParamHashRequest req;
    ProtobufCMessage **replies = NULL;
    uint64_t h = 0, n = 0;
    braid__v1__param_hash_request__init(&req);
    bd_status rc = cl_ask_each(c, CL_SERVICE "ParamHash", &req.base,
                               &braid__v1__param_hash_reply__descriptor, &replies, err);
    for (size_t i = 0; rc == BD_OK && i < cl_client_n_servers(c); i++) {
        const Braid__V1__ParamHashReply *r = (const void *)replies[i];
        h += r->hash; /* modulo 2^64: the order of the servers does not matter */
        n += r->n_rows;
    }
    if (rc == BD_OK) {
        *hash = h;
        *n_rows = n;
    }
    cl_replies_free(c, replies);
    return rc;
}

static bd_status checkpoint(cl_client *c, const char *name, uint64_t step,
                            Braid__V1__CheckpointPhase phase, bool *done, bd_err *err)
{
    Braid__V1__CheckpointRequest req;
    ProtobufCMessage **replies = NULL;
    braid__v1__checkpoint_request__init(&req);
    req.name = text(name);
    req.job_epoch = cl_client_job(c).epoch;
    req.step = step;
    req.phase = phase;
    bd_status rc = cl_ask_each(c, CL_SERVICE "Checkpoint", &req.base,
                               &braid__v1__checkpoint_reply__descriptor, &replies, err);
    *done = rc == BD_OK;
    for (size_t i = 0; rc == BD_OK && i < cl_client_n_servers(c); i++) {
        *done = *done && !((const Braid__V1__CheckpointReply *)(const void *)replies[i])->pending;
    }
    cl_replies_free(c, replies);
    return rc;
}

bd_status cl_checkpoint(cl_client *c, const char *name, uint64_t step, bd_err *err)
{
    bool done = false;
    return checkpoint(c, name, step, BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_ALL, &done, err);
}

bd_status cl_checkpoint_cut(cl_client *c, const char *name, uint64_t step, bd_err *err)
{
    bool done = false;
    return checkpoint(c, name, step, BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_CUT, &done, err);
}

bd_status cl_checkpoint_poll(cl_client *c, const char *name, uint64_t step, bool wait, bool *done,
                             bd_err *err)
{
    return checkpoint(c, name, step,
                      wait ? BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_WAIT
                           : BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_POLL,
                      done, err);
}

bd_status cl_checkpoint_delete(cl_client *c, const char *name, bd_err *err)
{
    Braid__V1__DeleteCheckpointRequest req;
    ProtobufCMessage **replies = NULL;
    braid__v1__delete_checkpoint_request__init(&req);
    req.name = text(name);
    bd_status rc = cl_ask_each(c, CL_SERVICE "DeleteCheckpoint", &req.base,
                               &braid__v1__delete_checkpoint_reply__descriptor, &replies, err);
    cl_replies_free(c, replies);
    return rc;
}
