#include "tests/util/tu_shard.h"

#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_rocks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "braid/v1/parameter_server.pb-c.h"

void tu_must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        (void)fprintf(stderr, "%s: %s\n", bd_status_name(rc), bd_err_text(err));
        abort();
    }
}

/* ---- folders ---- */
void tu_dir_new(char dir[64])
{
    (void)snprintf(dir, 64, "/tmp/braid_test.XXXXXX");
    if (mkdtemp(dir) == NULL) {
        abort();
    }
}

void tu_dir_drop(const char *dir)
{
    bd_err err;
    tu_must(ps_dir_remove(dir, &err), &err);
}

void tu_dir_clear(const char *dir)
{
    bd_err err;
    tu_dir_drop(dir);
    tu_must(ps_dir_make(dir, &err), &err);
}

/* ---- life ---- */
bd_status tu_shard_open(const char *dir, const ps_shard_options *opt, ps_shard **out, bd_err *err)
{
    ps_shard_options o = *opt;
    o.data_dir = dir;
    o.n_servers = o.n_servers == 0 ? 1 : o.n_servers;
    *out = NULL;
    bd_status rc = ps_shard_open(&o, out, err);
    if (rc == BD_OK) {
        tu_must(ps_shard_start(*out, err), err);
    }
    return rc;
}

ps_shard *tu_shard_must_open(const char *dir)
{
    ps_shard *s = NULL;
    bd_err err;
    tu_must(tu_shard_open(dir, &(ps_shard_options){0}, &s, &err), &err);
    return s;
}

void tu_shard_close(ps_shard *s)
{
    bd_err err;
    tu_must(ps_shard_stop(s, &err), &err);
    ps_shard_close(s);
}

/* ---- blocking calls ---- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t n_done; /* under lock */

static void one_done(void)
{
    (void)pthread_mutex_lock(&lock);
    n_done++;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void on_op(ps_op *op)
{
    (void)op;
    one_done();
}

static void on_waiter(ps_waiter *w)
{
    (void)w;
    one_done();
}

static void wait_for(size_t n)
{
    (void)pthread_mutex_lock(&lock);
    while (n_done < n) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    n_done -= n;
    (void)pthread_mutex_unlock(&lock);
}

bd_status tu_call(ps_shard *s, ps_op *op)
{
    op->done = on_op;
    ps_shard_post(s, op);
    wait_for(1);
    return op->rc;
}

uint32_t tu_table(ps_shard *s, const char *name, ps_durability d)
{
    Braid__V1__TableSpec m;
    char text[64], opt[] = "adagrad";
    static ps_op op;
    op = (ps_op){.kind = PS_OP_TABLE};
    (void)snprintf(text, sizeof text, "%s", name);
    braid__v1__table_spec__init(&m);
    m.name = text;
    m.dim = TU_SHARD_DIM;
    m.optimizer = opt;
    m.seed = 5;
    m.durability = (Braid__V1__Durability)d;
    tu_must(ps_spec_parse(&m, &op.spec, &op.err), &op.err);
    tu_must(tu_call(s, &op), &op.err);
    return op.spec.id;
}

/* Rules as messages. */
typedef struct rule_messages {
    num_rules parsed;
    Braid__V1__Rule rules[NUM_RULES_MAX], *list[NUM_RULES_MAX];
    Braid__V1__Param params[NUM_RULES_MAX][NUM_HYPER_LIST_MAX];
    Braid__V1__Param *params_list[NUM_RULES_MAX][NUM_HYPER_LIST_MAX];
} rule_messages;

static void fill_rules(rule_messages *m, const char *text)
{
    bd_err err;
    tu_must(num_rules_parse(text, &m->parsed, &err), &err);
    for (size_t i = 0; i < m->parsed.n; i++) {
        const num_hyper_list *l = &m->parsed.params[i];
        braid__v1__rule__init(&m->rules[i]);
        m->rules[i].name = m->parsed.names[i];
        m->rules[i].params = m->params_list[i];
        m->rules[i].n_params = l->n;
        m->list[i] = &m->rules[i];
        for (size_t k = 0; k < l->n; k++) {
            braid__v1__param__init(&m->params[i][k]);
            m->params[i][k].name = m->parsed.params[i].text + (l->names[k] - l->text);
            m->params[i][k].value = l->values[k];
            m->params_list[i][k] = &m->params[i][k];
        }
    }
}

static ps_spec rules_spec(const char *name, uint32_t dim, const char *admission,
                          const char *eviction)
{
    Braid__V1__TableSpec m;
    static rule_messages admit, evict;
    Braid__V1__Param lr, *params[1] = {&lr};
    char text[64], opt[] = "sgd", init[] = "constant", rate[] = "learning_rate";
    ps_spec spec;
    bd_err err;
    (void)snprintf(text, sizeof text, "%s", name);
    braid__v1__table_spec__init(&m);
    braid__v1__param__init(&lr);
    lr.name = rate;
    lr.value = 1;
    m.opt_params = params;
    m.n_opt_params = 1;
    m.name = text;
    m.dim = dim;
    m.optimizer = opt;
    m.initializer = init;
    m.seed = 5;
    fill_rules(&admit, admission);
    fill_rules(&evict, eviction);
    m.admission = admit.parsed.n == 0 ? NULL : admit.list[0];
    m.evictions = evict.list;
    m.n_evictions = evict.parsed.n;
    tu_must(ps_spec_parse(&m, &spec, &err), &err);
    return spec;
}

ps_spec tu_rules_spec(const char *name, const char *admission, const char *eviction)
{
    return rules_spec(name, TU_SHARD_DIM, admission, eviction);
}

uint32_t tu_table_wide(ps_shard *s, const char *name, uint32_t dim, ps_durability d,
                       const char *admission, const char *eviction)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_TABLE, .spec = rules_spec(name, dim, admission, eviction)};
    op.spec.durability = d;
    tu_must(tu_call(s, &op), &op.err);
    return op.spec.id;
}

uint32_t tu_table_rules(ps_shard *s, const char *name, ps_durability d, const char *admission,
                        const char *eviction)
{
    return tu_table_wide(s, name, TU_SHARD_DIM, d, admission, eviction);
}

bd_status tu_open_job(ps_shard *s, const ps_job *job, const char *restore, bd_err *err)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_OPEN, .job = *job};
    (void)snprintf(op.name, sizeof op.name, "%s", restore);
    bd_status rc = tu_call(s, &op);
    *err = op.err;
    return rc;
}

bd_status tu_checkpoint(ps_shard *s, const char *name, uint64_t epoch, uint64_t step, bd_err *err)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_CHECKPOINT, .job = {.epoch = epoch, .last_step = step}};
    (void)snprintf(op.name, sizeof op.name, "%s", name);
    bd_status rc = tu_call(s, &op);
    *err = op.err;
    return rc;
}

/* ---- gradients ---- */
ps_part *tu_part(uint32_t table, uint32_t table2, uint64_t epoch, uint64_t step, uint32_t rank)
{
    const size_t bytes = TU_SHARD_KEYS * (8 + TU_SHARD_DIM * 4);
    ps_part *p = bd_calloc(1, sizeof *p);
    p->keep = bd_buf_new(2 * bytes);
    p->tables = bd_calloc(2, sizeof *p->tables);
    for (size_t t = 0; t < (table2 == 0 ? 1u : 2u); t++) {
        uint64_t *keys = (uint64_t *)(void *)(p->keep->bytes + t * bytes);
        float *grads = (float *)(void *)(p->keep->bytes + t * bytes + TU_SHARD_KEYS * 8);
        uint64_t base = bd_rand_u64(9, rank, step) % 100;
        for (uint64_t i = 0; i < TU_SHARD_KEYS; i++) {
            keys[i] = base + i;
            bd_rand_normal(1 + t, rank, step * 1000 + i, 0.0f, 1.0f, grads + i * TU_SHARD_DIM,
                           TU_SHARD_DIM);
        }
        p->tables[p->n_tables++] = (ps_grads){.table_id = t == 0 ? table : table2,
                                              .dim = TU_SHARD_DIM,
                                              .n_keys = TU_SHARD_KEYS,
                                              .keys = keys,
                                              .grads = grads};
    }
    p->n_bytes = p->keep->n_bytes;
    p->job_epoch = epoch;
    p->step = step;
    p->rank = rank;
    p->n_parts = 1;
    p->lr_scale = 1.0;
    return p;
}

static ps_op push_op(uint32_t table, uint32_t table2, uint64_t seq)
{
    ps_op op = {.kind = PS_OP_PUSH, .part = tu_part(table, table2, 1, seq, 0)};
    op.part->client_id = 7;
    op.part->sequence = seq;
    return op;
}

bd_status tu_push_async(ps_shard *s, uint32_t table, uint32_t table2, uint64_t seq, bool *dup,
                        bd_err *err)
{
    static ps_op op;
    op = push_op(table, table2, seq);
    bd_status rc = tu_call(s, &op);
    if (dup != NULL) {
        *dup = op.duplicate;
    }
    *err = op.err;
    return rc;
}

bd_status tu_push_many(ps_shard *s, uint32_t table, uint64_t first, size_t n, bd_err *err)
{
    ps_op *ops = bd_calloc(n, sizeof *ops);
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n; i++) {
        ops[i] = push_op(table, 0, first + i);
        ops[i].done = on_op;
        ps_shard_post(s, &ops[i]);
    }
    wait_for(n);
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        rc = ops[i].rc;
        *err = ops[i].err;
    }
    bd_free(ops);
    return rc;
}

bd_status tu_push_sync(ps_shard *s, uint32_t table, uint32_t table2, uint64_t step, uint32_t rank,
                       bd_err *err)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_PUSH, .part = tu_part(table, table2, 1, step, rank)};
    bd_status rc = tu_call(s, &op);
    *err = op.err;
    return rc;
}

bd_status tu_wait(ps_shard *s, ps_waiter *w)
{
    w->finish = on_waiter;
    ps_shard_decide(s, w);
    wait_for(1);
    return w->rc;
}

bd_status tu_decide(ps_shard *s, uint64_t epoch, uint64_t step, ps_wait_kind kind, bd_err *err)
{
    ps_waiter w = {.kind = kind, .job_epoch = epoch, .step = step, .lr_scale = 1.0};
    bd_status rc = tu_wait(s, &w);
    *err = w.err;
    return rc;
}

void tu_train(ps_shard *s, uint32_t table, uint32_t table2, uint64_t first, uint64_t last)
{
    bd_err err;
    for (uint64_t step = first; step <= last; step++) {
        for (uint32_t rank = 0; rank < TU_SHARD_WORLD; rank++) {
            tu_must(tu_push_sync(s, table, table2, step, rank, &err), &err);
        }
        tu_must(tu_decide(s, 1, step, PS_WAIT_COMMIT, &err), &err);
    }
}

/* ---- looking ---- */
uint64_t tu_hash(ps_shard *s)
{
    uint64_t rows = 0;
    const ps_tables *ts = ps_shard_lock_tables(s);
    uint64_t h = ps_tables_hash(ts, &rows);
    ps_shard_unlock_tables(s);
    return h;
}

ps_shard_stats tu_stats(ps_shard *s)
{
    ps_shard_stats st;
    ps_shard_get_stats(s, &st);
    return st;
}

int tu_child(const char *const args[])
{
    union { /* execv wants char *const *, but only reads */
        const char *in[16];
        char *out[16];
    } argv = {.in = {"test", "child"}};
    for (size_t i = 0; i < 13 && args[i] != NULL; i++) {
        argv.in[i + 2] = args[i];
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)execv("/proc/self/exe", argv.out);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        abort();
    }
    return status;
}

static uint32_t dim_of(ps_shard *s, uint32_t table)
{
    const ps_tables *ts = ps_shard_lock_tables(s);
    uint32_t dim = ps_table_spec(ps_tables_find(ts, table))->dim;
    ps_shard_unlock_tables(s);
    return dim;
}

void tu_push(ps_shard *s, uint32_t table, uint64_t step, const uint64_t *keys, size_t n)
{
    static ps_op op;
    bd_err err;
    uint32_t dim = dim_of(s, table);
    ps_part *p = bd_calloc(1, sizeof *p);
    p->keep = bd_buf_new(n * (8 + dim * sizeof(float)) + 8);
    p->tables = bd_calloc(1, sizeof *p->tables);
    uint64_t *k = (uint64_t *)(void *)p->keep->bytes;
    float *g = (float *)(void *)(p->keep->bytes + n * 8);
    memcpy(k, keys, n * sizeof *k);
    for (size_t i = 0; i < n * dim; i++) {
        g[i] = -1;
    }
    p->tables[p->n_tables++] =
        (ps_grads){.table_id = table, .dim = dim, .n_keys = n, .keys = k, .grads = g};
    p->n_bytes = p->keep->n_bytes;
    p->job_epoch = 1;
    p->step = step;
    p->n_parts = 1;
    p->lr_scale = 1.0;
    op = (ps_op){.kind = PS_OP_PUSH, .part = p};
    tu_must(tu_call(s, &op), &op.err);
    tu_must(tu_decide(s, 1, step, PS_WAIT_COMMIT, &err), &err);
}

float tu_weight(ps_shard *s, uint32_t table, uint64_t key)
{
    bd_err err;
    uint32_t dim = dim_of(s, table);
    float *row = bd_alloc(dim * sizeof *row);
    tu_must(ps_shard_read(s, table, dim, &key, 1, row, &err), &err);
    float first = row[0];
    bd_free(row);
    return first;
}
