/* Tables and their rows by hand. */
#include "base/mem.h"
#include "base/num/hyper.h"

#include "client/abi/abi_int.h"
#include "client/cl_int.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <string.h>

static void table_free(braid_table *t)
{
    if (t != NULL) {
        bd_free(t->name);
        bd_free(t);
    }
}

void abi_tables_free(braid_client *c)
{
    for (braid_table *t = c->tables, *next; t != NULL; t = next) {
        next = t->next;
        table_free(t);
    }
}

/* Asks the servers for the table of that name; client lock held. */
static bd_status find(braid_client *c, const char *name, braid_table *out, bd_err *err)
{
    Braid__V1__ListTablesRequest req;
    size_t n = cl_client_n_servers(c->cl);
    ProtobufCMessage **replies = bd_calloc(n, sizeof(ProtobufCMessage *));
    if (replies == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\"", name);
    }
    braid__v1__list_tables_request__init(&req);
    bd_status rc = cl_ask_all(c->cl, CL_SERVICE "ListTables", &req.base,
                              &braid__v1__list_tables_reply__descriptor, replies, err);
    if (rc == BD_OK) {
        const Braid__V1__ListTablesReply *list = (const void *)replies[0];
        rc = BD_E_NOT_FOUND;
        for (size_t i = 0; i < list->n_tables; i++) {
            const Braid__V1__TableInfo *info = list->tables[i];
            if (info->spec != NULL && strcmp(info->spec->name, name) == 0) {
                out->id = info->table_id;
                out->dim = info->spec->dim;
                out->state_elems = info->state_elems;
                rc = BD_OK;
            }
        }
        if (rc != BD_OK) {
            (void)bd_err_set(err, rc, "no table \"%s\" on the servers", name);
        }
    }
    for (size_t i = 0; i < n; i++) {
        px_unpacked_free(replies[i]);
    }
    bd_free(replies);
    return rc;
}

/* The client's handle of the table, found on the servers; client lock held. */
static bd_status open_table(braid_client *c, const char *name, braid_table **out, bd_err *err)
{
    braid_table *t = c->tables;
    while (t != NULL && strcmp(t->name, name) != 0) {
        t = t->next;
    }
    if (t != NULL) {
        *out = t;
        return BD_OK;
    }
    t = bd_calloc(1, sizeof *t);
    if (t == NULL || (t->name = bd_strdup(name)) == NULL) {
        bd_free(t);
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\"", name);
    }
    bd_status rc = find(c, name, t, err);
    if (rc != BD_OK) {
        table_free(t);
        return rc;
    }
    t->c = c;
    t->next = c->tables;
    c->tables = t;
    *out = t;
    return BD_OK;
}

/* cl_param and braid_param are the same two members. */
_Static_assert(sizeof(cl_param) == sizeof(braid_param), "same layout");
_Static_assert(offsetof(cl_param, value) == offsetof(braid_param, value), "same layout");

/* An initialiser or optimiser with its numbers in its text; what name and params point to. */
typedef struct rule_text {
    num_rules rules;
    cl_param params[NUM_HYPER_LIST_MAX];
} rule_text;

/* "normal(stddev=0.3)": name and numbers are taken apart; a name alone stays as it is. */
static bd_status take_rule(const braid_table_options *o, const char *what, const char **name,
                           const cl_param **params, size_t *n_params, rule_text *to, bd_err *err)
{
    if (strchr(*name, '(') == NULL) {
        return BD_OK;
    }
    bd_status rc = num_rules_parse(*name, &to->rules, err);
    if (rc == BD_OK && to->rules.n != 1) {
        rc = bd_err_set(err, BD_E_INVALID, "\"%.200s\" is %zu, not one", *name, to->rules.n);
    }
    if (rc == BD_OK && *n_params > 0) {
        rc = bd_err_set(err, BD_E_INVALID, "\"%.200s\" beside %zu parameters: one way or the other",
                        *name, *n_params);
    }
    if (rc != BD_OK) {
        return bd_err_wrap(err, "table \"%.128s\": %s", o->name, what);
    }
    const num_hyper_list *list = &to->rules.params[0];
    for (size_t i = 0; i < list->n; i++) {
        to->params[i] = (cl_param){list->names[i], list->values[i]};
    }
    *name = to->rules.names[0];
    *params = to->params;
    *n_params = list->n;
    return BD_OK;
}

static bd_status create(braid_client *c, const braid_table_options *o, braid_table **out,
                        bd_err *err)
{
    uint32_t id = 0;
    cl_table_spec spec = {.name = o->name,
                          .dim = o->dim,
                          .dtype = o->dtype,
                          .initializer = o->initializer,
                          .init_params = (const cl_param *)(const void *)o->init_params,
                          .n_init_params = o->n_init_params,
                          .seed = o->seed,
                          .optimizer = o->optimizer != NULL ? o->optimizer : "adagrad",
                          .opt_params = (const cl_param *)(const void *)o->opt_params,
                          .n_opt_params = o->n_opt_params,
                          .max_gradient_norm = o->max_gradient_norm,
                          .admission = o->admission,
                          .durability = o->durability,
                          .eviction = o->eviction,
                          .init_file = o->init_file,
                          .init_by_other = c->job.rank != 0};
    if (o->name == NULL || o->initializer == NULL) {
        return bd_err_set(err, BD_E_INVALID, "table: no %s",
                          o->name == NULL ? "name" : "initializer");
    }
    if (!cl_bad_gradient_parse(o->bad_gradient, &spec.bad_gradient)) {
        return bd_err_set(err, BD_E_INVALID,
                          "table \"%.128s\": bad_gradient \"%.32s\" (reject, drop_row, clip, halt)",
                          o->name, o->bad_gradient);
    }
    rule_text init, opt;
    bd_status rc = take_rule(o, "initializer", &spec.initializer, &spec.init_params,
                             &spec.n_init_params, &init, err);
    if (rc == BD_OK) {
        rc = take_rule(o, "optimizer", &spec.optimizer, &spec.opt_params, &spec.n_opt_params, &opt,
                       err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    (void)pthread_mutex_lock(&c->lock);
    rc = cl_table_create(c->cl, &spec, &id, err);
    if (rc == BD_OK) {
        rc = open_table(c, o->name, out, err);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

int braid_table_create(braid_client *client, const braid_table_options *options,
                       braid_table **table, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_table_options o;
    bd_status rc = abi_take_options(&o, sizeof o, options, "braid_table_options", &e);
    if (rc == BD_OK) {
        rc = create(client, &o, table, &e);
    }
    return abi_done(rc, &e, err);
}

int braid_table_open(braid_client *client, const char *name, braid_table **table, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = open_table(client, name, table, &e);
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

const char *braid_table_name(const braid_table *table)
{
    return table->name;
}

uint32_t braid_table_dim(const braid_table *table)
{
    return table->dim;
}

uint64_t braid_table_state_elems(const braid_table *table)
{
    return table->state_elems;
}

int braid_assign(braid_table *table, const uint64_t *keys, size_t n, const float *rows,
                 const float *state, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    braid_client *c = table->c;
    (void)pthread_mutex_lock(&c->lock);
    bd_status rc = cl_assign(c->cl, table->id, table->dim, keys, rows, state, n, &e);
    (void)pthread_mutex_unlock(&c->lock);
    if (rc != BD_OK) {
        (void)bd_err_wrap(&e, "table \"%s\"", table->name);
    }
    return abi_done(rc, &e, err);
}
