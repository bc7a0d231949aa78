/* Local tables are a server's tables: same first rows, same updates, same hash. And their
 * checkpoints come back whole. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_table.h"
#include "worker/wk_file.h"
#include "worker/wk_sparse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

enum { N_IDS = 200, DIM = 5, N_STEPS = 6 };

static const cl_param uniform[] = {{"low", -0.25}, {"high", 0.5}}, constant[] = {{"value", 0.125}};
static const cl_param hypers[] = {{"learning_rate", 0.1}, {"l2", 0.01}};

static cl_table_spec spec_of(const char *optimizer, bool is_constant)
{
    return (cl_table_spec){.name = "emb.x",
                           .dim = DIM,
                           .initializer = is_constant ? "constant" : "uniform",
                           .init_params = is_constant ? constant : uniform,
                           .n_init_params = is_constant ? 1 : 2,
                           .seed = 42,
                           .optimizer = optimizer,
                           .opt_params = hypers,
                           .n_opt_params = 2};
}

static char *text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {s};
    return u.out;
}

static ps_table *server_table(const cl_table_spec *s)
{
    Braid__V1__TableSpec msg;
    Braid__V1__Param params[4], *init[2], *opt[2];
    ps_spec spec;
    braid__v1__table_spec__init(&msg);
    for (size_t i = 0; i < s->n_init_params; i++) {
        braid__v1__param__init(&params[i]);
        params[i].name = text(s->init_params[i].name);
        params[i].value = s->init_params[i].value;
        init[i] = &params[i];
    }
    for (size_t i = 0; i < s->n_opt_params; i++) {
        braid__v1__param__init(&params[2 + i]);
        params[2 + i].name = text(s->opt_params[i].name);
        params[2 + i].value = s->opt_params[i].value;
        opt[i] = &params[2 + i];
    }
    msg.name = text(s->name);
    msg.dim = s->dim;
    msg.dtype = s->dtype == NULL                ? BRAID__V1__DTYPE__DTYPE_F32
                : strcmp(s->dtype, "f16") == 0  ? BRAID__V1__DTYPE__DTYPE_F16
                : strcmp(s->dtype, "bf16") == 0 ? BRAID__V1__DTYPE__DTYPE_BF16
                                                : BRAID__V1__DTYPE__DTYPE_I8;
    msg.initializer = text(s->initializer);
    msg.init_params = init;
    msg.n_init_params = s->n_init_params;
    msg.seed = s->seed;
    msg.optimizer = text(s->optimizer);
    msg.opt_params = opt;
    msg.n_opt_params = s->n_opt_params;
    assert_int_equal(ps_spec_parse(&msg, &spec, NULL), BD_OK);
    return ps_table_new(&spec, NULL);
}

static void some_ids(uint64_t step, uint64_t *ids)
{
    for (uint64_t i = 0; i < N_IDS; i++) {
        ids[i] = bd_rand_u64(3, step, i) % 90; /* repeats within and across steps; 0 is a key */
    }
    ids[7] = UINT64_MAX;
}

/* One step on both sides with the same gradients. Looked-up rows must be equal. */
static void step_both(wk_sparse *s, uint32_t id, ps_table *t, uint64_t step)
{
    uint64_t ids[N_IDS];
    float grads[N_IDS * DIM], want[N_IDS * DIM];
    wk_lookup *l = NULL;
    double lr_scale = step % 2 == 0 ? 0.5 : 1.0;
    some_ids(step, ids);
    const cl_ids in = {.table_id = id, .dim = DIM, .ids = ids, .n_ids = N_IDS};
    assert_int_equal(s->ops->prepare(s, &in, 1, &l, NULL), BD_OK);
    assert_int_equal(s->ops->fetch(s, l, step - 1, NULL), BD_OK);
    assert_int_equal(s->ops->wait(s, l, NULL), BD_OK);
    const cl_table_rows *r = s->ops->rows(l, 0);
    for (size_t i = 0; i < N_IDS; i++) {
        assert_true(r->keys[r->index[i]] == ids[i]);
    }
    ps_table_gather(t, r->keys, r->n_unique, want);
    assert_memory_equal(r->rows, want, r->n_unique * DIM * sizeof(float));
    bd_rand_uniform(9, step, 0, -1.0f, 1.0f, grads, r->n_unique * DIM);
    assert_int_equal(s->ops->push_begin(s, step, l, lr_scale, NULL), BD_OK);
    assert_int_equal(s->ops->push_table(s, 0, grads, NULL), BD_OK);
    assert_int_equal(s->ops->push_end(s, NULL), BD_OK);
    bool commit = step != 4; /* an aborted step changes nothing */
    assert_int_equal(s->ops->commit_start(s, step, commit, lr_scale, NULL), BD_OK);
    assert_int_equal(s->ops->commit_wait(s, NULL), BD_OK);
    if (commit) {
        const ps_apply a = {.seq = {.n = step}, .step = step, .write = step, .lr_scale = lr_scale};
        assert_int_equal(ps_table_reserve(t, r->keys, r->n_unique), BD_OK);
        ps_table_apply(t, r->keys, grads, r->n_unique, &a);
    }
    s->ops->lookup_free(l);
}

static void local_tables_equal_a_servers(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"sgd", "adagrad", "rowwise_adagrad", "adam"};
    static const char *const row_types[] = {NULL, "f16", "bf16", "i8"};
    for (size_t k = 0; k < 32; k++) {
        cl_table_spec spec = spec_of(optimizers[k / 8], k % 2 == 1);
        spec.dtype = row_types[k / 2 % 4];
        wk_sparse *s = NULL;
        ps_table *t = server_table(&spec);
        uint32_t id = 0;
        uint64_t hash = 0, n_rows = 0, n_server = 0;
        assert_int_equal(wk_sparse_local_new(NULL, &s, NULL), BD_OK);
        assert_int_equal(s->ops->table(s, &spec, &id, NULL), BD_OK);
        for (uint64_t step = 1; step <= N_STEPS; step++) {
            step_both(s, id, t, step);
        }
        assert_int_equal(s->ops->param_hash(s, &hash, &n_rows, NULL), BD_OK);
        assert_true(ps_table_hash(t, &n_server) == hash);
        assert_int_equal(n_rows, n_server);
        wk_sparse_free(s);
        ps_table_free(t);
    }
}

static void a_checkpoint_brings_rows_and_state_back(void **state)
{
    (void)state;
    char dir[] = "/tmp/braid_wk_sparse_XXXXXX", sub[64];
    cl_table_spec spec = spec_of("adam", false);
    spec.dtype = "i8";
    wk_sparse *s = NULL;
    ps_table *t = server_table(&spec);
    uint32_t id = 0;
    uint64_t saved = 0, later = 0, back = 0, n = 0;
    bd_err err = BD_ERR_INIT;
    long before;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(sub, sizeof sub, "%s/c", dir);
    assert_int_equal(wk_make_dirs(sub, &err), BD_OK);
    before = bd_mem_live_blocks();
    assert_int_equal(wk_sparse_local_new(dir, &s, &err), BD_OK);
    assert_int_equal(s->ops->table(s, &spec, &id, &err), BD_OK);
    step_both(s, id, t, 1);
    assert_int_equal(s->ops->param_hash(s, &saved, &n, &err), BD_OK);
    assert_int_equal(s->ops->checkpoint(s, "c", 1, &err), BD_OK);
    step_both(s, id, t, 2);
    assert_int_equal(s->ops->param_hash(s, &later, &n, &err), BD_OK);
    assert_true(later != saved);
    assert_int_equal(wk_sparse_local_restore(s, "c", &err), BD_OK);
    assert_int_equal(s->ops->param_hash(s, &back, &n, &err), BD_OK);
    assert_true(back == saved);
    wk_sparse_free(s);

    const cl_table_spec others[] = {spec_of("sgd", false), spec_of("adam", false)};
    for (size_t i = 0; i < 2; i++) { /* another optimiser; another dtype */
        wk_sparse *o = NULL;
        assert_int_equal(wk_sparse_local_new(dir, &o, &err), BD_OK);
        assert_int_equal(o->ops->table(o, &others[i], &id, &err), BD_OK);
        assert_int_equal(wk_sparse_local_restore(o, "c", &err), BD_E_MISMATCH);
        wk_sparse_free(o);
    }
    assert_int_equal(wk_sparse_local_new(dir, &s, &err), BD_OK);
    assert_int_equal(s->ops->table(s, &spec, &id, &err), BD_OK);
    assert_int_equal(wk_sparse_local_restore(s, "c", &err), BD_OK);
    assert_int_equal(s->ops->param_hash(s, &back, &n, &err), BD_OK);
    assert_true(back == saved);
    assert_int_equal(s->ops->checkpoint_delete(s, "c", &err), BD_OK);
    assert_int_equal(wk_sparse_local_restore(s, "c", &err), BD_E_NOT_FOUND);
    wk_sparse_free(s);
    ps_table_free(t);
    assert_true(bd_mem_live_blocks() <= before);
    assert_int_equal(wk_remove_dir(sub, &err) + wk_remove_dir(dir, &err), BD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_tables_equal_a_servers),
        cmocka_unit_test(a_checkpoint_brings_rows_and_state_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
