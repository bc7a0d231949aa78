/* What clients may get wrong, over the network: each is answered by a typed error that names the
 * culprit, or counted, and the server goes on. */
#include "base/log.h"
#include "base/mem.h"

#include "client/cl_int.h"
#include "proto/px.h"

#include "tests/util/tu_cluster.h"
#include "tests/util/tu_shard.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

#define DIM 4u

typedef struct fixture {
    tu_cluster c;
    tu_rank r;
    rpc_channel *raw[2]; /* to each server, past the client's own checks */
    uint32_t table;
    cl_rows *rows; /* of the case's last lookup: a client waits for those that are still open */
} fixture;

static fixture fx;

static cl_table_spec spec_of(const char *name, uint32_t dim)
{
    return (cl_table_spec){
        .name = name, .dim = dim, .initializer = "normal", .seed = 3, .optimizer = "sgd"};
}

static int start(void **state)
{
    bd_err err;
    (void)state;
    memset(&fx, 0, sizeof fx);
    tu_cluster_init(&fx.c, 2);
    tu_cluster_start_all(&fx.c);
    tu_rank_open(&fx.r, &fx.c, "bad", 120000);
    cl_job job = {.epoch = 1, .world = 1, .consistency = CL_ASYNC};
    tu_must(cl_job_open(fx.r.client, &job, NULL, 1, &err), &err);
    cl_job_join(fx.r.client, &job);
    cl_table_spec spec = spec_of("t", DIM);
    tu_must(cl_table_create(fx.r.client, &spec, &fx.table, &err), &err);
    for (size_t i = 0; i < 2; i++) {
        tu_must(rpc_channel_new(fx.r.env, fx.c.address[i], &(rpc_channel_options){.name = "raw"},
                                &fx.raw[i], &err),
                &err);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    cl_rows_free(fx.rows);
    rpc_channel_free(fx.raw[0]);
    rpc_channel_free(fx.raw[1]);
    tu_rank_close(&fx.r);
    tu_cluster_end(&fx.c);
    return 0;
}

/* One push request, as it is. */
static bd_status push_raw(size_t server, const px_push_request *req, bool *dup, bd_err *err)
{
    bd_chain out = {0}, in = {0};
    rpc_call_options opt = {.deadline_ms = 20000};
    bd_arena arena;
    px_push_reply reply = {.duplicate = false};
    bd_arena_init(&arena);
    tu_must(px_encode_push_request(req, &out, err), err);
    bd_status rc =
        rpc_call_sync(fx.raw[server], "/braid.v1.ParameterServer/Push", &out, &opt, &in, err);
    if (rc == BD_OK) {
        tu_must(px_decode_push_reply(&in, NULL, &arena, &reply, err), err);
    }
    *dup = reply.duplicate;
    bd_chain_deinit(&out);
    bd_chain_deinit(&in);
    bd_arena_deinit(&arena);
    return rc;
}

/* Keys of the server's slots. */
static void keys_of(size_t server, uint64_t *keys, size_t n)
{
    uint64_t k = 1;
    for (size_t i = 0; i < n; k++) {
        if ((bd_mix64(k) >> 63) == server) {
            keys[i++] = k;
        }
    }
}

typedef struct raw_push {
    px_push_request req;
    px_table_grads grads;
    bd_buf *keys, *values;
} raw_push;

/* A good push of n keys to server 0. */
static raw_push make_push(size_t n, uint64_t sequence)
{
    raw_push p = {.keys = bd_buf_new(n * 8), .values = bd_buf_new(n * DIM * 4)};
    float *v = (float *)(void *)p.values->bytes;
    keys_of(0, (uint64_t *)(void *)p.keys->bytes, n);
    for (size_t i = 0; i < n * DIM; i++) {
        v[i] = 1.0f;
    }
    p.grads = (px_table_grads){.table_id = fx.table,
                               .dim = DIM,
                               .keys = px_bulk_of(p.keys, 0, n, 8),
                               .grads = px_bulk_of(p.values, 0, n * DIM, 4)};
    p.req = (px_push_request){.job_epoch = 1,
                              .step = 1,
                              .n_parts = 1,
                              .client_id = cl_client_id(fx.r.client),
                              .sequence = sequence,
                              .n_tables = 1};
    return p;
}

static void drop_push(raw_push *p)
{
    bd_buf_unref(p->keys);
    bd_buf_unref(p->values);
}

static bd_status send(raw_push *p, bool *dup, bd_err *err)
{
    p->req.tables = &p->grads;
    return push_raw(0, &p->req, dup, err);
}

static uint64_t hash_now(void)
{
    bd_err err;
    uint64_t hash = 0, rows = 0;
    tu_must(cl_param_hash(fx.r.client, &hash, &rows, &err), &err);
    return hash;
}

/* Each change makes a good push bad. */
static void unknown_table(raw_push *p)
{
    p->grads.table_id = 12345;
}
static void wrong_dim(raw_push *p)
{
    p->grads.dim = DIM + 1;
}
static void too_few_numbers(raw_push *p)
{
    p->grads.grads = px_bulk_of(p->values, 0, p->values->n_bytes / 4 - 1, 4);
}
static void repeated_key(raw_push *p)
{
    memcpy(p->keys->bytes + 8, p->keys->bytes, 8);
}
/* Its slot has another key between the two. */
static void repeated_in_slot(raw_push *p)
{
    uint64_t *keys = (uint64_t *)(void *)p->keys->bytes, other = keys[0] + 1;
    while (ps_slot_of_key(other) != ps_slot_of_key(keys[0])) {
        other++;
    }
    keys[1] = other;
    keys[2] = keys[0];
}
static void repeated_far_away(raw_push *p)
{
    memcpy(p->keys->bytes + 9 * sizeof(uint64_t), p->keys->bytes, sizeof(uint64_t));
}
static void foreign_key(raw_push *p)
{
    keys_of(1, (uint64_t *)(void *)p->keys->bytes, 1);
}
static void nan_gradient(raw_push *p)
{
    ((float *)(void *)p->values->bytes)[DIM + 2] = NAN;
}
static void infinite_gradient(raw_push *p)
{
    ((float *)(void *)p->values->bytes)[DIM + 2] = -INFINITY;
}
static void nan_scale(raw_push *p)
{
    p->req.lr_scale = NAN;
}
static void old_job(raw_push *p)
{
    p->req.job_epoch = 77;
}
static void no_sequence(raw_push *p)
{
    p->req.sequence = 0;
}
static void no_parts(raw_push *p)
{
    p->req.n_parts = 0;
}
static void never_issued(raw_push *p)
{
    p->req.client_id |= 1ull << 63;
}
static void old_map(raw_push *p)
{
    p->req.map_epoch = 1; /* the second server made it 2, but this is server 1's own test below */
}

static void bad_pushes_are_named_and_change_nothing(void **state)
{
    (void)state;
    const struct {
        const char *what;
        void (*spoil)(raw_push *p);
        bd_status rc;
        const char *text;
    } cases[] = {
        {"unknown table", unknown_table, BD_E_NOT_FOUND, "12345"},
        {"wrong dim", wrong_dim, BD_E_MISMATCH, "\"t\" has dim 4"},
        {"too few numbers", too_few_numbers, BD_E_INVALID, "\"t\""},
        {"repeated key", repeated_key, BD_E_INVALID, "repeated"},
        {"repeated in its slot", repeated_in_slot, BD_E_INVALID, "repeated"},
        {"repeated far away", repeated_far_away, BD_E_INVALID, "repeated"},
        {"foreign key", foreign_key, BD_E_MOVED, "is not on server 0"},
        {"NaN", nan_gradient, BD_E_NUMERIC, "element 2 is nan"},
        {"infinity", infinite_gradient, BD_E_NUMERIC, "element 2 is -inf"},
        {"NaN scale", nan_scale, BD_E_NUMERIC, "lr_scale"},
        {"other job", old_job, BD_E_STATE, "77"},
        {"no sequence", no_sequence, BD_E_INVALID, ""},
        {"no parts", no_parts, BD_E_INVALID, ""},
        {"client never issued", never_issued, BD_E_INVALID, "never issued"},
    };
    bd_err err;
    bool dup = false;
    uint64_t sequence = 1, before = hash_now();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        raw_push p = make_push(10, sequence);
        cases[i].spoil(&p);
        bd_status rc = send(&p, &dup, &err);
        if (rc != cases[i].rc || strstr(bd_err_text(&err), cases[i].text) == NULL) {
            fail_msg("%s: %s: %s", cases[i].what, bd_status_name(rc), bd_err_text(&err));
        }
        assert_int_equal(hash_now(), before);
        drop_push(&p);
        raw_push good = make_push(10, sequence); /* the number was not used up */
        tu_must(send(&good, &dup, &err), &err);
        assert_false(dup);
        drop_push(&good);
        before = hash_now();
        sequence++;
    }
    assert_true(tu_stat(&fx.r, "braid_ps_bad_gradients_total") == 2.0);
}

/* A request by an older shard map is told to fetch a new one; the client does so by itself. */
static void old_shard_maps_are_refused(void **state)
{
    (void)state;
    bd_err err;
    bool dup = false;
    raw_push p = make_push(4, 1);
    keys_of(1, (uint64_t *)(void *)p.keys->bytes, 4);
    old_map(&p);
    p.req.tables = &p.grads;
    assert_int_equal(push_raw(1, &p.req, &dup, &err), BD_E_MOVED);
    assert_non_null(strstr(bd_err_text(&err), "shard map epoch 1"));
    p.req.map_epoch = 2;
    tu_must(push_raw(1, &p.req, &dup, &err), &err);
    drop_push(&p);
}

/* Two clients that say the same id: what comes second under a number is a repeat, counted and not
 * applied. */
static void two_clients_with_one_id_are_counted(void **state)
{
    (void)state;
    bd_err err;
    bool dup = false;
    raw_push one = make_push(10, 1), other = make_push(5, 1);
    tu_must(send(&one, &dup, &err), &err);
    assert_false(dup);
    uint64_t before = hash_now();
    tu_must(send(&other, &dup, &err), &err);
    assert_true(dup);
    assert_int_equal(hash_now(), before);
    assert_true(tu_stat(&fx.r, "braid_ps_duplicates_total") == 1.0);
    drop_push(&one);
    drop_push(&other);
}

/* A phase that this version does not have, before the first, a former one, behind the last. */
static void unknown_phases_of_a_checkpoint_are_named(void **state)
{
    (void)state;
    const int phases[] = {-1, 1, BRAID__V1__CHECKPOINT_PHASE__CHECKPOINT_PHASE_WAIT + 1};
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        Braid__V1__CheckpointRequest req;
        ProtobufCMessage *replies[TU_MAX_SERVERS] = {NULL};
        char name[] = "c", text[32];
        bd_err err;
        braid__v1__checkpoint_request__init(&req);
        req.name = name;
        req.job_epoch = 1;
        req.phase = (Braid__V1__CheckpointPhase)phases[i];
        assert_int_equal(cl_ask_all(fx.r.client, CL_SERVICE "Checkpoint", &req.base,
                                    &braid__v1__checkpoint_reply__descriptor, replies, &err),
                         BD_E_UNSUPPORTED);
        (void)snprintf(text, sizeof text, "phase %d", phases[i]);
        assert_non_null(strstr(bd_err_text(&err), text));
    }
}

static void bad_tables_are_named(void **state)
{
    (void)state;
    bd_err err;
    uint32_t id = 0;
    const struct {
        const char *name, *dtype, *optimizer, *text;
        uint32_t dim;
        bd_status rc;
    } cases[] = {
        {"u", NULL, "sgd", "dim 0", 0, BD_E_INVALID},
        {"u", NULL, "sgd", "dim 1000000", 1000000, BD_E_INVALID},
        {"u", "f64", "sgd", "\"u\"", DIM, BD_E_UNSUPPORTED},
        {"u", NULL, "magic", "magic", DIM, BD_E_INVALID},
        {"../u", NULL, "sgd", "name", DIM, BD_E_INVALID},
        {"t", NULL, "sgd", "dim", DIM + 1, BD_E_MISMATCH},
        {"t", "f16", "sgd", "\"t\"", DIM, BD_E_MISMATCH},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cl_table_spec spec = spec_of(cases[i].name, cases[i].dim);
        spec.dtype = cases[i].dtype;
        spec.optimizer = cases[i].optimizer;
        bd_status rc = cl_table_create(fx.r.client, &spec, &id, &err);
        if (rc != cases[i].rc || strstr(bd_err_text(&err), cases[i].text) == NULL) {
            fail_msg("case %zu: %s: %s", i, bd_status_name(rc), bd_err_text(&err));
        }
    }
    cl_table_spec good = spec_of("u", 65536);
    tu_must(cl_table_create(fx.r.client, &good, &id, &err), &err);
}

/* The rows are the fixture's, so that a case which fails leaves nothing open behind. */
static cl_rows *look_up(uint32_t table, const uint64_t *ids, size_t n, bd_status want)
{
    bd_err err;
    cl_ids asked = {.table_id = table, .dim = DIM, .ids = ids, .n_ids = n};
    cl_rows_free(fx.rows);
    fx.rows = NULL;
    tu_must(cl_rows_prepare(fx.r.client, &asked, 1, &fx.rows, &err), &err);
    tu_must(cl_rows_fetch(fx.rows, 0, &err), &err);
    bd_status rc = cl_rows_wait(fx.rows, &err);
    if (rc != want) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(&err));
    }
    return fx.rows;
}

/* The smallest and the largest key are keys like others; an unknown table is named; repeats in a
 * batch are one row; a million keys in one request of the user go out in parts. */
static void any_key_and_a_million_of_them(void **state)
{
    (void)state;
    bd_err err;
    const size_t n = 1000000;
    const uint64_t edges[4] = {0, UINT64_MAX, 0, 1};
    const uint64_t keys[2] = {0, UINT64_MAX};
    const float rows[2 * DIM] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)look_up(999, edges, 4, BD_E_NOT_FOUND);
    tu_must(cl_assign(fx.r.client, fx.table, DIM, keys, rows, NULL, 2, &err), &err);
    cl_rows *r = look_up(fx.table, edges, 4, BD_OK);
    const cl_table_rows *t = cl_rows_table(r, 0);
    assert_int_equal(t->n_unique, 3);
    assert_true(t->rows[(size_t)t->index[0] * DIM] == 1.0f &&
                t->rows[(size_t)t->index[1] * DIM + 3] == 8.0f);
    assert_int_equal(t->index[0], t->index[2]);
    uint64_t *many = bd_alloc(n * sizeof *many);
    float *ones = bd_alloc(n * DIM * sizeof *ones);
    for (size_t i = 0; i < n; i++) {
        many[i] = i;
        memcpy(ones + i * DIM, rows, DIM * sizeof *ones);
    }
    r = look_up(fx.table, many, n, BD_OK);
    assert_int_equal(cl_rows_table(r, 0)->n_unique, n);
    tu_must(cl_push_start(fx.r.client, 1, r, &ones, &err), &err);
    tu_must(cl_push_wait(fx.r.client, &err), &err);
    uint64_t hash = 0, n_rows = 0;
    tu_must(cl_param_hash(fx.r.client, &hash, &n_rows, &err), &err);
    assert_int_equal(n_rows, n + 1); /* key 0 was there, 2^64-1 stays */
    bd_free(many);
    bd_free(ones);
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        T(bad_pushes_are_named_and_change_nothing),
        T(old_shard_maps_are_refused),
        T(two_clients_with_one_id_are_counted),
        T(unknown_phases_of_a_checkpoint_are_named),
        T(bad_tables_are_named),
        T(any_key_and_a_million_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
