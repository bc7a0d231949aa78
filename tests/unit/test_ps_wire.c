/* Rows and gradients that travel packed, through a whole server: the model is the one that rounded
 * gradients make, whatever the codec; what the server does not know or cannot read is a typed
 * error. */
#include "base/mem.h"
#include "base/num/row_codec.h"
#include "base/rand.h"

#include "client/client.h"
#include "proto/px_rows.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 5, N_IDS = 700, N_STEPS = 3 };

typedef struct fixture {
    char dir[64];
    ps_server *server;
    rpc_env *env;
    cl_client *client;
    cl_job job;
    uint32_t table;
} fixture;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(err));
    }
}

static void start(fixture *f, const char *rows, const char *grads, const char *codec)
{
    bd_err err = BD_ERR_INIT;
    char data[96];
    *f = (fixture){.job = {.world = 1, .consistency = CL_SYNC}};
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/test_ps_wire.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(data, sizeof data, "%s/ps-0", f->dir);
    ps_options opt = {.servers = 1,
                      .coordinator = "",
                      .listen = "127.0.0.1:0",
                      .advertise = "",
                      .data_dir = data,
                      .restore_from = f->dir,
                      .ready_fd = -1,
                      .journal_cap = 64 << 20,
                      .staged_limit = 64 << 20,
                      .register_wait = 10000,
                      .metrics_listen = "",
                      .health_listen = ""};
    must(ps_server_start(&opt, &f->server, &err), &err);
    cl_options co = {.coordinator = ps_server_address(f->server),
                     .part_bytes = 4096, /* several parts */
                     .wire_rows = rows,
                     .wire_grads = grads,
                     .wire_codec = codec};
    must(rpc_env_new(NULL, &f->env, &err), &err);
    must(cl_client_new(f->env, &co, &f->client, &err), &err);
    must(cl_job_next_epoch(f->client, &f->job.epoch, &err), &err);
    must(cl_job_open(f->client, &f->job, NULL, 1, &err), &err);
    cl_job_join(f->client, &f->job);
    cl_table_spec spec = {
        .name = "t", .dim = DIM, .initializer = "uniform", .seed = 3, .optimizer = "adagrad"};
    must(cl_table_create(f->client, &spec, &f->table, &err), &err);
}

static void stop(fixture *f)
{
    bd_err err = BD_ERR_INIT;
    cl_client_free(f->client);
    rpc_env_free(f->env);
    must(ps_server_stop(f->server, &err), &err);
    must(ps_dir_remove(f->dir, &err), &err);
}

static cl_rows *look_up(fixture *f, uint64_t step)
{
    static uint64_t ids[N_IDS];
    cl_ids asked = {.table_id = f->table, .dim = DIM, .ids = ids, .n_ids = N_IDS};
    bd_err err = BD_ERR_INIT;
    cl_rows *r = NULL;
    for (size_t i = 0; i < N_IDS; i++) {
        ids[i] = bd_rand_u64(5, 0, i) % 900;
    }
    must(cl_rows_prepare(f->client, &asked, 1, &r, &err), &err);
    must(cl_rows_fetch(r, step, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    return r;
}

/* Trains with gradients rounded to `round`, sent as `grads`; rows come back as `rows`. The last
 * rows end in out[N_IDS x DIM]. */
static uint64_t train(const char *rows, const char *grads, const char *codec, const char *round,
                      float *out)
{
    fixture f;
    bd_err err = BD_ERR_INIT;
    static float g[N_IDS * DIM];
    float *list[] = {g};
    uint64_t hash = 0, n = 0;
    start(&f, rows, grads, codec);
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        cl_rows *r = look_up(&f, step - 1);
        const cl_table_rows *t = cl_rows_table(r, 0);
        for (size_t i = 0; i < t->n_unique; i++) { /* of the key, not of the rows */
            bd_rand_normal(7, step, t->keys[i], 0, 0.3f, g + i * DIM, DIM);
            num_row_round(num_dtype_parse(round), g + i * DIM, DIM);
        }
        must(cl_push_start(f.client, step, r, list, &err), &err);
        must(cl_commit(f.client, step, true, 1.0, &err), &err);
        cl_rows_free(r);
    }
    cl_rows *r = look_up(&f, N_STEPS);
    const cl_table_rows *t = cl_rows_table(r, 0);
    memcpy(out, t->rows, t->n_unique * DIM * sizeof(float));
    cl_rows_free(r);
    must(cl_param_hash(f.client, &hash, &n, &err), &err);
    assert_true(n > 100);
    stop(&f);
    return hash;
}

static void the_model_is_that_of_rounded_gradients(void **state)
{
    (void)state;
    static const char *const forms[][2] = {
        {"f32", "lz4"}, {"bf16", "none"}, {"f16", "zstd"}, {"i8", "lz4"}};
    static float plain[N_IDS * DIM], packed[N_IDS * DIM];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const char *dtype = forms[i][0];
        uint64_t want = train("f32", "f32", "none", dtype, plain);
        assert_true(train(dtype, dtype, forms[i][1], "f32", packed) == want);
        for (size_t k = 0; k < N_IDS; k++) {
            num_row_round(num_dtype_parse(dtype), plain + k * DIM, DIM);
        }
        assert_memory_equal(packed, plain, sizeof plain);
    }
}

/* ---- what a client of somebody else's may send ---- */
static bd_status ask(fixture *f, const char *method, bd_chain *request, bd_err *err)
{
    rpc_channel *ch = NULL;
    bd_chain reply = {0};
    rpc_call_options opt = {.deadline_ms = 10000};
    must(rpc_channel_new(f->env, ps_server_address(f->server), NULL, &ch, err), err);
    bd_status rc = rpc_call_sync(ch, method, request, &opt, &reply, err);
    bd_chain_deinit(&reply);
    rpc_channel_free(ch);
    return rc;
}

static bd_status push(fixture *f, const px_table_grads *g, bd_err *err)
{
    px_table_grads t = *g;
    bd_chain bytes = {0};
    px_push_request r = {
        .job_epoch = f->job.epoch, .step = 1, .n_parts = 1, .tables = &t, .n_tables = 1};
    must(px_encode_push_request(&r, &bytes, err), err);
    return ask(f, "/braid.v1.ParameterServer/Push", &bytes, err);
}

static bd_status lookup(fixture *f, int32_t dtype, int32_t codec, bd_err *err)
{
    uint64_t key = 3;
    bd_buf *keys = bd_buf_copy(&key, sizeof key);
    bd_chain bytes = {0};
    px_table_keys t = {.table_id = f->table, .keys = px_bulk_of(keys, 0, 1, 8)};
    px_lookup_request r = {.tables = &t, .n_tables = 1, .row_dtype = dtype, .row_codec = codec};
    must(px_encode_lookup_request(&r, &bytes, err), err);
    bd_status rc = ask(f, "/braid.v1.ParameterServer/Lookup", &bytes, err);
    bd_buf_unref(keys);
    return rc;
}

static void what_the_server_cannot_read_is_named(void **state)
{
    (void)state;
    fixture f;
    bd_err err = BD_ERR_INIT;
    uint64_t key = 3;
    start(&f, NULL, NULL, NULL);
    bd_buf *keys = bd_buf_copy(&key, sizeof key), *bad = bd_buf_copy("not rows", 8);
    px_table_grads t = {.table_id = f.table,
                        .dim = DIM,
                        .keys = px_bulk_of(keys, 0, 1, 8),
                        .packed = px_bulk_of(bad, 0, 8, 1),
                        .packed_rows = 1};
    assert_int_equal(lookup(&f, 0, 0, &err), BD_OK);
    assert_int_equal(lookup(&f, 0, 9, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "codec 9"));
    assert_int_equal(lookup(&f, 77, 0, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "dtype 77"));
    for (int32_t codec = 0; codec <= 2; codec++) {
        t.codec = codec;
        assert_int_equal(push(&f, &t, &err), BD_E_CORRUPT);
    }
    t.codec = 3;
    assert_int_equal(push(&f, &t, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "codec 3"));
    t.codec = 1;
    t.packed_rows = UINT32_MAX; /* a promise that no server should keep */
    assert_int_equal(push(&f, &t, &err), BD_E_INVALID);
    t.packed_rows = 2; /* more rows than keys */
    t.codec = 0;
    bd_buf *two = bd_buf_new((size_t)2 * DIM * sizeof(float));
    memset(two->bytes, 0, two->n_bytes);
    t.packed = px_bulk_of(two, 0, two->n_bytes, 1);
    assert_int_equal(push(&f, &t, &err), BD_E_INVALID);
    assert_int_equal(lookup(&f, 3, 2, &err), BD_OK); /* the server goes on */
    bd_buf_unref(two);
    bd_buf_unref(bad);
    bd_buf_unref(keys);
    stop(&f);
}

static void a_client_names_what_it_does_not_know(void **state)
{
    (void)state;
    rpc_env *env = NULL;
    cl_client *c = NULL;
    bd_err err = BD_ERR_INIT;
    cl_options opt = {.coordinator = "127.0.0.1:1", .wire_codec = "gzip"};
    must(rpc_env_new(NULL, &env, &err), &err);
    assert_int_equal(cl_client_new(env, &opt, &c, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "gzip"));
    opt = (cl_options){.coordinator = "127.0.0.1:1", .wire_grads = "f64"};
    assert_int_equal(cl_client_new(env, &opt, &c, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(bd_err_text(&err), "f64"));
    rpc_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_that_of_rounded_gradients),
        cmocka_unit_test(what_the_server_cannot_read_is_named),
        cmocka_unit_test(a_client_names_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
