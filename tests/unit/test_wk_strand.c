/* Rows of a step as a strand of its context: several lookups and passes sum to one gradient a key,
 * a failure anywhere keeps the servers as they were, and the count of live contexts returns to
 * zero. */
#include "base/fault.h"
#include "base/mem.h"

#include "ring/ring_reducer.h"
#include "tape/ops.h"
#include "worker/wk_remote.h"
#include "worker/wk_strand.h"

#include "tests/util/fake_ps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 2 };

/* Tables of this process, one autograd node. */
typedef struct fixture {
    wk_sparse *sparse;
    rpc_ag *ag;
    uint32_t table[2];
} fixture;

static void start(fixture *f)
{
    const cl_param zero[] = {{"value", 0}}, rate[] = {{"learning_rate", 1}};
    const rpc_ag_options opt = {.name = "worker-0", .client_id = 7};
    assert_int_equal(wk_sparse_local_new(NULL, &f->sparse, NULL), BD_OK);
    assert_int_equal(rpc_ag_new(NULL, &opt, &f->ag, NULL), BD_OK);
    for (size_t i = 0; i < 2; i++) {
        const cl_table_spec spec = {.name = i == 0 ? "users" : "items",
                                    .dim = DIM,
                                    .initializer = "constant",
                                    .init_params = zero,
                                    .n_init_params = 1,
                                    .optimizer = "sgd",
                                    .opt_params = rate,
                                    .n_opt_params = 1};
        assert_int_equal(f->sparse->ops->table(f->sparse, &spec, &f->table[i], NULL), BD_OK);
    }
}

static void stop(fixture *f)
{
    assert_int_equal(rpc_ag_n_contexts(f->ag), 0);
    rpc_ag_free(f->ag);
    wk_sparse_free(f->sparse);
}

static wk_lookup *prepare(const fixture *f, size_t table, const uint64_t *ids, size_t n)
{
    wk_lookup *l = NULL;
    const cl_ids want = {.table_id = f->table[table], .dim = DIM, .ids = ids, .n_ids = n};
    assert_int_equal(f->sparse->ops->prepare(f->sparse, &want, 1, &l, NULL), BD_OK);
    return l;
}

/* grad of id k is k in every element. Lent until the step has settled. */
static void backward(const fixture *f, rpc_ag_msg *msg, const wk_lookup *l)
{
    static float lent[8][16 * DIM];
    static size_t turn;
    float *grad = lent[turn++ % 8];
    const cl_table_rows *r = f->sparse->ops->rows(l, 0);
    assert_true(r->n_unique <= 16);
    for (size_t i = 0; i < r->n_unique * DIM; i++) {
        size_t row = i / DIM;
        grad[i] = (float)r->keys[row];
    }
    assert_int_equal(rpc_ag_recv_backward(msg, 0, grad, r->n_unique * DIM, NULL), BD_OK);
}

static float row_of(const fixture *f, size_t table, uint64_t id)
{
    wk_lookup *l = prepare(f, table, &id, 1);
    assert_int_equal(f->sparse->ops->fetch(f->sparse, l, 0, NULL), BD_OK);
    float v = f->sparse->ops->rows(l, 0)->rows[DIM - 1];
    f->sparse->ops->lookup_free(l);
    return v;
}

static uint64_t n_rows(const fixture *f)
{
    uint64_t hash, n;
    assert_int_equal(f->sparse->ops->param_hash(f->sparse, &hash, &n, NULL), BD_OK);
    return n;
}

static void end_well(wk_strand *s)
{
    assert_int_equal(wk_strand_push(s, NULL), BD_OK);
    assert_int_equal(wk_strand_push_wait(s, NULL), BD_OK);
    assert_int_equal(rpc_ag_step(s->ctx, 1, NULL), BD_OK);
    assert_int_equal(wk_strand_close(s, NULL), BD_OK);
}

static void one_lookup_pushes_while_backward_runs(void **state)
{
    (void)state;
    fixture f;
    wk_strand s = {0};
    rpc_ag_msg *rows = NULL;
    const uint64_t ids[] = {5, 3, 5};
    start(&f);
    wk_lookup *l = prepare(&f, 0, ids, 3);
    assert_int_equal(wk_strand_open(&s, f.ag, f.sparse, 1, true, NULL), BD_OK);
    assert_int_equal(rpc_ag_n_contexts(f.ag), 1);
    assert_int_equal(wk_strand_lookup(&s, l, 1, 0, &rows, NULL), BD_OK);
    assert_true(rpc_ag_msg_id(rows) > 0);
    assert_ptr_equal(rpc_ag_msg_ctx(rows), s.ctx);
    assert_int_equal(wk_strand_wait(&s, NULL), BD_OK);
    assert_int_equal(wk_strand_backward(&s, true, 1, NULL), BD_OK);
    assert_int_equal(s.state, WK_STRAND_STREAM);
    backward(&f, rows, l);
    assert_int_equal(n_rows(&f), 0); /* nothing before the step */
    end_well(&s);
    assert_true(row_of(&f, 0, 5) == -5 && row_of(&f, 0, 3) == -3);
    f.sparse->ops->lookup_free(l);
    stop(&f);
}

/* Two lookups that share keys, over two tables, two passes each: one gradient a key. */
static void lookups_and_passes_sum_per_key(void **state)
{
    (void)state;
    fixture f;
    wk_strand s = {0};
    rpc_ag_msg *rows[3] = {NULL};
    const uint64_t a[] = {1, 2, 3}, b[] = {9, 3, 2}, c[] = {2, UINT64_MAX};
    start(&f);
    wk_lookup *l[3] = {prepare(&f, 0, a, 3), prepare(&f, 0, b, 3), prepare(&f, 1, c, 1)};
    assert_int_equal(wk_strand_open(&s, f.ag, f.sparse, 1, true, NULL), BD_OK);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(wk_strand_lookup(&s, l[i], 1, 0, &rows[i], NULL), BD_OK);
    }
    assert_true(rpc_ag_msg_id(rows[0]) != rpc_ag_msg_id(rows[1]));
    assert_int_equal(wk_strand_wait(&s, NULL), BD_OK);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(wk_strand_backward(&s, pass == 1, 1, NULL), BD_OK);
        for (size_t i = 0; i < 3; i++) {
            backward(&f, rows[i], l[i]);
        }
    }
    end_well(&s);
    assert_true(row_of(&f, 0, 1) == -2 && row_of(&f, 0, 9) == -18); /* in one lookup */
    assert_true(row_of(&f, 0, 2) == -8 && row_of(&f, 0, 3) == -12); /* in both */
    assert_true(row_of(&f, 1, 2) == -4);
    assert_int_equal(n_rows(&f), 5);
    for (size_t i = 0; i < 3; i++) {
        f.sparse->ops->lookup_free(l[i]);
    }
    stop(&f);
}

/* ---- gradient accumulation ---- */

enum { BATCH = 8, N_KEYS = 5 };

/* One step over samples [first, first + n) as micro batches of m; returns the dense gradient in w.
 * loss = sum over samples of (row . w) * y, so all numbers are whole and sums exact. */
static void train_step(fixture *f, ring_comm *ring, size_t m, float *dense)
{
    static const uint64_t ids[BATCH] = {1, 4, 1, 2, 3, 4, 4, 0};
    static float y[BATCH] = {1, -2, 3, 1, 2, -1, 4, 2};
    static const uint32_t offsets[BATCH + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    tp_device *dev = NULL;
    tp_tape *tape = NULL;
    tp_tensor *w = NULL;
    ring_reducer *reducer = NULL;
    const ring_reducer_options opt = {0};
    wk_strand s = {0};
    wk_lookup *l[BATCH];
    rpc_ag_msg *rows[BATCH];
    size_t n = BATCH / m;
    assert_int_equal(tp_device_new_cpu(1, &dev, NULL), BD_OK);
    assert_int_equal(tp_tape_new(dev, &tape, NULL), BD_OK);
    assert_int_equal(tp_param_new(dev, "w", 2, (const size_t[]){1, DIM}, &w, NULL), BD_OK);
    tp_f32(w)[0] = 2;
    tp_f32(w)[1] = 3;
    tp_tensor_zero_grad(w);
    const ring_param p = {"w", DIM, NUM_F32, tp_f32(w->grad)};
    assert_int_equal(ring_reducer_new(ring, &p, 1, &opt, &reducer, NULL), BD_OK);
    assert_int_equal(wk_strand_open(&s, f->ag, f->sparse, 1, true, NULL), BD_OK);
    for (size_t i = 0; i < n; i++) {
        l[i] = prepare(f, 0, ids + i * m, m);
        assert_int_equal(wk_strand_lookup(&s, l[i], 1, 0, &rows[i], NULL), BD_OK);
    }
    assert_int_equal(wk_strand_wait(&s, NULL), BD_OK);
    for (size_t i = 0; i < n; i++) {
        const cl_table_rows *r = f->sparse->ops->rows(l[i], 0);
        tp_tensor *leaf = NULL, *bag = NULL, *z = NULL, *yt = NULL, *prod = NULL, *loss = NULL;
        bool last = i + 1 == n;
        assert_int_equal(ring_reducer_prepare(reducer, last, NULL), BD_OK);
        assert_int_equal(wk_strand_backward(&s, last, 1, NULL), BD_OK);
        tp_tape_reset(tape);
        assert_int_equal(tp_tape_wrap(tape, 2, (const size_t[]){r->n_unique, DIM}, r->rows, true,
                                      NULL, &leaf, NULL),
                         BD_OK);
        assert_int_equal(tp_embedding_bag(tape, leaf, r->index, offsets, m, TP_BAG_SUM, &bag, NULL),
                         BD_OK);
        assert_int_equal(tp_linear(tape, bag, w, NULL, TP_ACT_NONE, &z, NULL), BD_OK);
        assert_int_equal(
            tp_tape_wrap(tape, 2, (const size_t[]){m, 1}, y + i * m, false, NULL, &yt, NULL),
            BD_OK);
        assert_int_equal(tp_mul(tape, z, yt, &prod, NULL), BD_OK);
        assert_int_equal(tp_sum(tape, prod, &loss, NULL), BD_OK);
        assert_int_equal(tp_backward(tape, loss, NULL, NULL), BD_OK);
        assert_int_equal(rpc_ag_recv_backward(rows[i], 0, tp_f32(leaf->grad), leaf->n_elems, NULL),
                         BD_OK);
        if (last) {
            assert_int_equal(ring_reducer_ready(reducer, 0, NULL), BD_OK);
        }
        assert_int_equal(ring_reducer_finish(reducer, NULL), BD_OK);
    }
    memcpy(dense, tp_f32(w->grad), DIM * sizeof *dense);
    end_well(&s);
    for (size_t i = 0; i < n; i++) {
        f->sparse->ops->lookup_free(l[i]);
    }
    ring_reducer_free(reducer);
    tp_tensor_free(w);
    tp_tape_free(tape);
    tp_device_free(dev);
}

static void micro_batches_with_no_sync_are_one_big_batch(void **state)
{
    (void)state;
    float whole[DIM], parts[DIM], one_row[N_KEYS];
    const ring_options opt = {.group = "strand", .epoch = 1};
    for (size_t m = BATCH; m >= 2; m /= 2) {
        fixture f;
        ring_comm *ring = NULL;
        start(&f);
        assert_int_equal(ring_mem_new(1, &opt, &ring, NULL), BD_OK);
        train_step(&f, ring, m, m == BATCH ? whole : parts);
        for (uint64_t k = 0; k < N_KEYS; k++) {
            float v = row_of(&f, 0, k);
            if (m == BATCH) {
                one_row[k] = v;
                assert_true(v != 0);
            }
            assert_true(v == one_row[k]);
        }
        for (size_t d = 0; d < DIM && m < BATCH; d++) {
            assert_true(whole[d] == parts[d]);
        }
        ring_free(ring);
        stop(&f);
    }
}

/* ---- ends and failures ---- */

/* A strand with one lookup whose gradients have been pushed. */
static wk_lookup *pushed(const fixture *f, wk_strand *s)
{
    rpc_ag_msg *rows = NULL;
    const uint64_t id = 4;
    wk_lookup *l = prepare(f, 0, &id, 1);
    assert_int_equal(wk_strand_open(s, f->ag, f->sparse, 1, true, NULL), BD_OK);
    assert_int_equal(wk_strand_lookup(s, l, 1, 0, &rows, NULL), BD_OK);
    assert_int_equal(wk_strand_wait(s, NULL), BD_OK);
    assert_int_equal(wk_strand_backward(s, true, 1, NULL), BD_OK);
    backward(f, rows, l);
    assert_int_equal(wk_strand_push(s, NULL), BD_OK);
    return l;
}

static void a_context_that_ends_without_a_step_leaves_the_rows(void **state)
{
    (void)state;
    fixture f;
    wk_strand s = {0};
    start(&f);
    wk_lookup *l = pushed(&f, &s);
    assert_int_equal(wk_strand_close(&s, NULL), BD_OK);
    assert_int_equal(n_rows(&f), 0);
    f.sparse->ops->lookup_free(l);
    stop(&f);
}

static void a_failed_context_commits_nothing(void **state)
{
    (void)state;
    fixture f;
    wk_strand s = {0};
    bd_err err = BD_ERR_INIT, why = BD_ERR_INIT;
    start(&f);
    wk_lookup *l = pushed(&f, &s);
    (void)bd_err_set(&why, BD_E_PEER_LOST, "rank 3 is gone");
    wk_strand_fail(&s, &why);
    assert_int_equal(wk_strand_push_wait(&s, &err), BD_E_PEER_LOST);
    assert_int_equal(rpc_ag_step_start(s.ctx, 1, &err), BD_E_PEER_LOST);
    assert_string_equal(bd_err_text(&err), "Error on node worker-0: rank 3 is gone");
    assert_int_equal(wk_strand_close(&s, NULL), BD_OK);
    assert_int_equal(n_rows(&f), 0);
    f.sparse->ops->lookup_free(l);
    stop(&f);
}

static void misuse_is_an_error_and_names_the_step(void **state)
{
    (void)state;
    fixture f;
    wk_strand s = {0};
    rpc_ag_msg *rows = NULL;
    bd_err err = BD_ERR_INIT;
    const uint64_t id = 1;
    const float grad[DIM] = {1, 1};
    start(&f);
    wk_lookup *l = prepare(&f, 0, &id, 1);
    assert_int_equal(wk_strand_open(&s, f.ag, f.sparse, 9, true, NULL), BD_OK);
    assert_int_equal(wk_strand_push(&s, &err), BD_E_STATE); /* no lookup */
    assert_non_null(strstr(bd_err_text(&err), "step 9"));
    assert_int_equal(wk_strand_lookup(&s, l, 1, 0, &rows, NULL), BD_OK);
    assert_int_equal(wk_strand_backward(&s, true, 1, NULL), BD_OK);
    assert_int_equal(wk_strand_lookup(&s, l, 1, 0, &rows, &err), BD_E_STATE);
    assert_int_equal(rpc_ag_recv_backward(rows, 0, grad, DIM - 1, &err), BD_E_INVALID);
    assert_int_equal(rpc_ag_check(s.ctx, &err), BD_E_INVALID); /* it has failed */
    assert_non_null(strstr(bd_err_text(&err), "Error on node parameter servers"));
    assert_int_equal(wk_strand_close(&s, NULL), BD_OK);
    assert_int_equal(wk_strand_close(&s, NULL), BD_OK); /* a closed one */
    f.sparse->ops->lookup_free(l);
    stop(&f);
}

/* Every allocation of a step with two lookups fails once: an error, no leak, no row, no context. */
static void running_out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    const uint64_t a[] = {1, 2}, b[] = {2, 3};
    bool done = false;
    for (int k = 0; !done; k++) {
        fixture f;
        wk_strand s = {0};
        rpc_ag_msg *rows[2] = {NULL};
        bd_err err = BD_ERR_INIT;
        start(&f);
        wk_lookup *l[2] = {prepare(&f, 0, a, 2), prepare(&f, 0, b, 2)};
        const float grad[2 * DIM] = {1, 1, 1, 1};
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(k);
        bd_status rc = wk_strand_open(&s, f.ag, f.sparse, 1, true, &err);
        for (size_t i = 0; i < 2 && rc == BD_OK; i++) {
            rc = wk_strand_lookup(&s, l[i], 1, 0, &rows[i], &err);
        }
        for (size_t i = 0; i < 2 && rc == BD_OK; i++) {
            rc = rpc_ag_recv_backward(rows[i], 0, grad, (size_t)2 * DIM, &err);
        }
        rc = rc == BD_OK ? wk_strand_push(&s, &err) : rc;
        bd_fault_fail_alloc(-1);
        done = rc == BD_OK;
        assert_true(done || rc == BD_E_NOMEM);
        assert_int_equal(wk_strand_close(&s, NULL), BD_OK);
        assert_int_equal(n_rows(&f), 0);
        assert_true(bd_mem_live_blocks() <= before + 3); /* ag's note of its client, push table */
        f.sparse->ops->lookup_free(l[0]);
        f.sparse->ops->lookup_free(l[1]);
        stop(&f);
        assert_true(k < 1000);
    }
}

/* ---- over the client ---- */

typedef struct cluster {
    rpc_env *env;
    fake_ps *ps;
    cl_client *c;
    fixture f;
} cluster;

static void cluster_start(cluster *k)
{
    bd_err err = BD_ERR_INIT;
    assert_int_equal(rpc_env_new(NULL, &k->env, NULL), BD_OK);
    k->ps = fake_ps_new(k->env, 2);
    const cl_options opt = {.coordinator = fake_ps_coordinator(k->ps),
                            .name = "worker-0",
                            .connect_wait_ms = 5000,
                            .ps_wait_ms = 400};
    assert_int_equal(cl_client_new(k->env, &opt, &k->c, &err), BD_OK);
    assert_int_equal(wk_sparse_client_new(k->c, &k->f.sparse, NULL), BD_OK);
    const rpc_ag_options node = {.name = "worker-0", .client_id = cl_client_id(k->c)};
    assert_int_equal(rpc_ag_new(k->env, &node, &k->f.ag, NULL), BD_OK);
    const cl_table_spec spec = {
        .name = "users", .dim = DIM, .initializer = "constant", .optimizer = "sgd"};
    assert_int_equal(k->f.sparse->ops->table(k->f.sparse, &spec, &k->f.table[0], NULL), BD_OK);
    cl_job job = {.rank = 0, .world = 1, .consistency = CL_SYNC};
    assert_int_equal(cl_job_next_epoch(k->c, &job.epoch, NULL), BD_OK);
    assert_int_equal(cl_job_open(k->c, &job, NULL, 1, NULL), BD_OK);
    cl_job_join(k->c, &job);
}

static void cluster_stop(cluster *k)
{
    assert_int_equal(rpc_ag_n_contexts(k->f.ag), 0);
    rpc_ag_free(k->f.ag);
    wk_sparse_free(k->f.sparse);
    cl_client_free(k->c);
    fake_ps_free(k->ps);
    rpc_env_free(k->env);
}

static wk_lookup *first_lookup(cluster *k, wk_strand *s, rpc_ag_msg **rows)
{
    static const uint64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    wk_lookup *l = prepare(&k->f, 0, ids, 16);
    assert_int_equal(wk_strand_open(s, k->f.ag, k->f.sparse, 1, true, NULL), BD_OK);
    assert_int_equal(wk_strand_lookup(s, l, 1, 0, rows, NULL), BD_OK);
    assert_int_equal(wk_strand_wait(s, NULL), BD_OK);
    assert_int_equal(wk_strand_backward(s, true, 1, NULL), BD_OK);
    return l;
}

/* What the round trips of a step are: one lookup, one push and one commit a server, as without a
 * context. */
static void a_context_adds_no_message(void **state)
{
    (void)state;
    cluster k;
    wk_strand s = {0};
    rpc_ag_msg *rows = NULL;
    cluster_start(&k);
    wk_lookup *l = first_lookup(&k, &s, &rows);
    backward(&k.f, rows, l);
    end_well(&s);
    fake_ps_counts n = fake_ps_get_counts(k.ps);
    assert_int_equal(n.lookups, 2);
    assert_int_equal(n.pushes, 2);
    assert_int_equal(n.commits, 2);
    assert_int_equal(fake_ps_committed(k.ps, 0), 1);
    assert_int_equal(fake_ps_committed(k.ps, 1), 1);
    k.f.sparse->ops->lookup_free(l);
    cluster_stop(&k);
}

static void a_lost_server_fails_the_context_and_is_named(void **state)
{
    (void)state;
    cluster k;
    wk_strand s = {0};
    rpc_ag_msg *rows = NULL;
    bd_err err = BD_ERR_INIT;
    cluster_start(&k);
    wk_lookup *l = first_lookup(&k, &s, &rows);
    fake_ps_kill(k.ps, 1);
    backward(&k.f, rows, l);
    assert_int_equal(wk_strand_push(&s, NULL), BD_OK);
    assert_int_equal(wk_strand_push_wait(&s, &err), BD_E_UNAVAILABLE);
    assert_int_equal(strncmp(bd_err_text(&err), "ps-1 ", 5), 0);
    assert_int_equal(rpc_ag_step_start(s.ctx, 1, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(bd_err_text(&err), "Error on node parameter servers: ps-1 "));
    assert_int_equal(wk_strand_close(&s, NULL), BD_OK);
    assert_int_equal(fake_ps_committed(k.ps, 0), 0);
    k.f.sparse->ops->lookup_free(l);
    cluster_stop(&k);
}

/* ---- a remote module inside the same step ---- */

typedef struct node {
    rpc_env *env;
    rpc_ag *ag;
    rpc_server *server;
    rpc_module *layer;
    rpc_channel *ch;
    rpc_ag_peer *peer; /* of the trainer */
} node;

static void node_start(node *n, rpc_ag **trainer)
{
    const rpc_optim_spec sgd = {"sgd", 1};
    const rpc_linear_spec spec = {.name = "layer", .n_in = DIM, .n_out = 1, .optim = sgd};
    const rpc_ag_options opt = {.name = "helper", .client_id = 50};
    const rpc_ag_options topt = {.name = "worker-0", .client_id = 7};
    const rpc_server_options sopt = {.listen = "127.0.0.1:0"};
    const rpc_channel_options chopt = {.name = "helper"};
    char target[64];
    assert_int_equal(rpc_env_new(NULL, &n->env, NULL), BD_OK);
    assert_int_equal(rpc_ag_new(n->env, &opt, &n->ag, NULL), BD_OK);
    assert_int_equal(rpc_linear_new(&spec, &n->layer, NULL), BD_OK);
    n->layer->params[0].value[0] = 1;
    n->layer->params[0].value[1] = 2;
    assert_int_equal(rpc_ag_register(n->ag, n->layer, NULL), BD_OK);
    assert_int_equal(rpc_server_new(n->env, &sopt, &n->server, NULL), BD_OK);
    assert_int_equal(rpc_ag_serve(n->ag, n->server), BD_OK);
    assert_int_equal(rpc_server_start(n->server, NULL), BD_OK);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(n->server));
    assert_int_equal(rpc_ag_new(n->env, &topt, trainer, NULL), BD_OK);
    assert_int_equal(rpc_channel_new(n->env, target, &chopt, &n->ch, NULL), BD_OK);
    assert_int_equal(rpc_ag_peer_new(*trainer, "helper", n->ch, &n->peer), BD_OK);
}

static void node_stop(node *n)
{
    assert_int_equal(rpc_ag_n_contexts(n->ag), 0);
    rpc_channel_free(n->ch);
    rpc_server_free(n->server);
    rpc_ag_free(n->ag);
    rpc_module_free(n->layer);
    rpc_env_free(n->env);
}

static bd_status on_leaf(void *user, tp_tensor *leaf, tp_event ready, bd_err *err)
{
    bd_status rc = tp_event_wait(leaf->dev, ready, err);
    return rc == BD_OK ? rpc_ag_recv_backward(user, 0, tp_f32(leaf->grad), leaf->n_elems, err) : rc;
}

/* sum(layer(row of id 4)) with a table row of ones; module: which one is asked. */
static bd_status hybrid_step(fixture *f, const node *n, wk_strand *s, const char *module,
                             bd_err *err)
{
    tp_device *dev = NULL;
    tp_tape *tape = NULL;
    tp_tensor *leaf = NULL, *y = NULL, *loss = NULL;
    rpc_ag_msg *rows = NULL;
    const uint64_t id = 4;
    float one[DIM] = {1, 1};
    wk_lookup *l = prepare(f, 0, &id, 1);
    assert_int_equal(tp_device_new_cpu(1, &dev, NULL), BD_OK);
    assert_int_equal(tp_tape_new(dev, &tape, NULL), BD_OK);
    assert_int_equal(wk_strand_open(s, f->ag, f->sparse, 1, true, NULL), BD_OK);
    assert_int_equal(wk_strand_lookup(s, l, 1, 0, &rows, NULL), BD_OK);
    assert_int_equal(wk_strand_wait(s, NULL), BD_OK);
    assert_int_equal(tp_tape_wrap(tape, 2, (const size_t[]){1, DIM}, one, true, NULL, &leaf, NULL),
                     BD_OK);
    tp_set_ready_hook(leaf, on_leaf, rows);
    const wk_remote layer = {tape, s->ctx, n->peer, module};
    bd_status rc = wk_remote_call(&layer, leaf, &y, err);
    rc = rc == BD_OK ? tp_sum(tape, y, &loss, err) : rc;
    rc = rc == BD_OK ? wk_strand_backward(s, true, 1, err) : rc;
    rc = rc == BD_OK ? tp_backward(tape, loss, NULL, err) : rc;
    rc = rc == BD_OK ? wk_strand_push(s, err) : rc;
    rc = rc == BD_OK ? wk_strand_push_wait(s, err) : rc;
    rc = rc == BD_OK ? rpc_ag_step(s->ctx, 1, err) : rc;
    assert_int_equal(wk_strand_close(s, NULL), BD_OK);
    f->sparse->ops->lookup_free(l);
    tp_tape_free(tape);
    tp_device_free(dev);
    return rc;
}

static void a_remote_module_trains_in_the_same_step(void **state)
{
    (void)state;
    fixture f;
    node n;
    wk_strand s = {0};
    float w[DIM];
    bd_err err = BD_ERR_INIT;
    start(&f);
    rpc_ag_free(f.ag);
    node_start(&n, &f.ag);
    assert_int_equal(hybrid_step(&f, &n, &s, "layer", &err), BD_OK);
    assert_true(row_of(&f, 0, 4) == -2); /* the layer's second weight came back as its gradient */
    assert_int_equal(rpc_ag_read_param(n.ag, "layer", 0, w, NULL), BD_OK);
    assert_true(w[0] == 0 && w[1] == 1);
    stop(&f);
    node_stop(&n);
}

static void a_failure_on_the_module_s_node_stops_the_push(void **state)
{
    (void)state;
    fixture f;
    node n;
    wk_strand s = {0};
    bd_err err = BD_ERR_INIT;
    start(&f);
    rpc_ag_free(f.ag);
    node_start(&n, &f.ag);
    assert_int_equal(hybrid_step(&f, &n, &s, "no such layer", &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), "Error on node helper"));
    assert_int_equal(n_rows(&f), 0);
    stop(&f);
    node_stop(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_lookup_pushes_while_backward_runs),
        cmocka_unit_test(lookups_and_passes_sum_per_key),
        cmocka_unit_test(micro_batches_with_no_sync_are_one_big_batch),
        cmocka_unit_test(a_context_that_ends_without_a_step_leaves_the_rows),
        cmocka_unit_test(a_failed_context_commits_nothing),
        cmocka_unit_test(misuse_is_an_error_and_names_the_step),
        cmocka_unit_test(running_out_of_memory_leaves_nothing),
        cmocka_unit_test(a_context_adds_no_message),
        cmocka_unit_test(a_lost_server_fails_the_context_and_is_named),
        cmocka_unit_test(a_remote_module_trains_in_the_same_step),
        cmocka_unit_test(a_failure_on_the_module_s_node_stops_the_push),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
