/* What the reducer's options promise: gradients in the buckets, static graphs, faults that all
 * ranks hear, buffers, sums that depend on nothing but the gradients. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ring/ring_reducer_log.h"

#include "tests/util/ring_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- gradients as views ---- */

/* Gradients live in one block per bucket, in bucket order, before and after the rebuild, and hold
 * their contents while they move. */
static void views(rank_test *t)
{
    static const size_t order0[N_PARAMS] = {2, 0, 6, 4, 1, 5, 3};
    ring_reducer *r = NULL;
    model m;
    ring_reducer_options opt = model_buckets;
    opt.bind = model_bind;
    opt.bind_user = &m;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    for (int step = 0; step < 3; step++) {
        RANK_CHECK(t, model_step(r, &m, t, step, order0));
        RANK_CHECK(t,
                   model_all_sums(&m, t->world, step)); /* step 0: in the rebuilt buckets already */
        for (size_t b = 0; b < ring_reducer_n_buckets(r); b++) {
            size_t n = 0;
            const size_t *in = ring_reducer_bucket(r, b, &n);
            for (size_t k = 0; k + 1 < n; k++) {
                RANK_CHECK(t, m.grads[in[k]] + model_sizes[in[k]] == m.grads[in[k + 1]]);
                RANK_CHECK(t, m.grads[in[k]] != m.own[in[k]]);
            }
        }
    }
    ring_reducer_free(r);
    RANK_CHECK(t, m.grads[0] == m.own[0] && m.grads[5] == m.own[5]);
    model_deinit(&m);
}

static void gradient_views(void **state)
{
    (void)state;
    ring_everywhere(views, NULL);
}

/* The table of unused parameters holds for views: the sum of the others, or what was there. */
static void unused_view(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    ring_reducer_options opt = model_buckets;
    opt.bind = model_bind;
    opt.bind_user = &m;
    opt.find_unused = true;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    for (int step = 0; step < 3; step++) {
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            model_fill(&m, t->rank, step, i);
            if (i == 2 ? t->rank == 0 : i != 3) {
                RANK_OK(t, ring_reducer_ready_at(r, i, m.grads[i], &err), &err);
            }
        }
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
        for (size_t k = 0; k < model_sizes[2]; k++) {
            RANK_CHECK(t, m.grads[2][k] == model_grad(0, step, 2, k));
        }
        for (size_t k = 0; k < model_sizes[3]; k++) {
            RANK_CHECK(t, m.grads[3][k] == model_grad(t->rank, step, 3, k));
        }
        RANK_CHECK(t, model_is_sum(&m, t->world, step, 5));
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void unused_dynamic_views(void **state)
{
    (void)state;
    ring_everywhere(unused_view, NULL);
}

/* Gradients of another context are copied in and out, and the views come back. */
static void other_context(rank_test *t)
{
    ring_reducer *r = NULL;
    model m, other;
    ring_reducer_options opt = model_buckets;
    void *there[N_PARAMS];
    opt.bind = model_bind;
    opt.bind_user = &m;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    model_init(&other);
    memcpy(there, other.own, sizeof there);
    ring_reducer_bind(r, there);
    RANK_CHECK(t, model_step(r, &other, t, 0, NULL) && model_all_sums(&other, t->world, 0));
    ring_reducer_bind(r, NULL);
    RANK_CHECK(t, model_step(r, &m, t, 1, NULL) && model_all_sums(&m, t->world, 1));
    RANK_CHECK(t, model_all_sums(&other, t->world, 0));
    ring_reducer_free(r);
    model_deinit(&other);
    model_deinit(&m);
}

static void views_and_another_context(void **state)
{
    (void)state;
    ring_everywhere(other_context, NULL);
}

/* ---- faults ---- */

/* The last rank's fc1.w gets a gradient elsewhere: all ranks hear it, and the next step is good. */
static void replaced(rank_test *t)
{
    bool with_views = *(const bool *)t->arg;
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    float elsewhere[8] = {0};
    char want[96];
    ring_reducer_options opt = model_buckets;
    opt.bind = with_views ? model_bind : NULL;
    opt.bind_user = &m;
    (void)snprintf(want, sizeof want, "rank %d: parameter 2 (fc1.w) has its gradient in other",
                   t->world - 1);
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    for (int step = 0; step < 4; step += 2) {
        bd_status rc = BD_OK;
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t i = N_PARAMS; rc == BD_OK && i > 0; i--) {
            bool bad = i - 1 == 2 && t->rank == t->world - 1;
            rc = ring_reducer_ready_at(r, i - 1, bad ? elsewhere : m.grads[i - 1], &err);
        }
        RANK_CHECK(t, (rc == BD_E_STATE) == (t->rank == t->world - 1));
        RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE);
        RANK_CHECK(t, strstr(err.text, want) != NULL);
        RANK_CHECK(t,
                   model_step(r, &m, t, step + 1, NULL) && model_all_sums(&m, t->world, step + 1));
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void replaced_grad_ptr(void **state)
{
    (void)state;
    bool modes[] = {false, true};
    ring_everywhere(replaced, &modes[0]);
    ring_everywhere(replaced, &modes[1]);
}

/* A backward that ends early for a reason of its own, and one in no_sync. */
static void own_failure(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    if (t->rank == 0) {
        bd_err why = BD_ERR_INIT;
        (void)bd_err_set(&why, BD_E_NOMEM, "no memory for the gradient of relu");
        ring_reducer_fail(r, &why);
    }
    RANK_CHECK(t, ring_reducer_finish(r, &err) == (t->rank >= 0 ? BD_E_NOMEM : BD_OK));
    RANK_CHECK(t, strstr(err.text, "rank 0: no memory for the gradient of relu") != NULL);
    RANK_OK(t, ring_reducer_prepare(r, false, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, 0, &err), &err);
    RANK_CHECK(t, ring_reducer_ready(r, 0, &err) == BD_E_STATE);
    RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE); /* local: nothing was sent */
    RANK_CHECK(t, model_step(r, &m, t, 1, NULL) && model_all_sums(&m, t->world, 1));
    ring_reducer_free(r);
    model_deinit(&m);
}

static void failed_backward_is_told(void **state)
{
    (void)state;
    ring_everywhere(own_failure, NULL);
}

/* ---- static graph ---- */

/* Parameter 1 is used twice, 3 nowhere, 0 on rank 0 alone. extra: one more or less use of `which`.
 */
static bd_status static_step(ring_reducer *r, model *m, rank_test *t, int step, size_t which,
                             int extra, bd_err *err)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        model_fill(m, t->rank, step, i);
    }
    bd_status rc = ring_reducer_prepare(r, true, err);
    for (size_t k = N_PARAMS; rc == BD_OK && k > 0; k--) {
        size_t i = k - 1;
        int n = i == 3 ? 0 : i == 1 ? 2 : i == 0 ? (t->rank == 0 ? 1 : 0) : 1;
        n += i == which ? extra : 0;
        for (int use = 0; rc == BD_OK && use < n; use++) {
            rc = ring_reducer_ready_at(r, i, m->grads[i], err);
        }
    }
    return ring_reducer_finish(r, err);
}

static bool static_sums(const model *m, rank_test *t, int step)
{
    bool ok = true;
    for (size_t i = 1; i < N_PARAMS; i++) {
        ok = ok && (i == 3 || model_is_sum(m, t->world, step, i));
    }
    for (size_t k = 0; k < model_sizes[0]; k++) {
        ok = ok && m->grads[0][k] == model_grad(0, step, 0, k);
    }
    for (size_t k = 0; k < model_sizes[3]; k++) { /* used nowhere: untouched */
        ok = ok && m->grads[3][k] == model_grad(t->rank, step, 3, k);
    }
    return ok;
}

static void static_changes(rank_test *t)
{
    static const struct {
        size_t which;
        int extra;
        const char *want;
    } changes[] = {{1, 1, "(fc0.b) became ready more often"},
                   {1, -1, "(fc0.b) became ready less often"},
                   {3, 1, "(fc1.b) is used and was not in the first step"},
                   {5, -1, "(fc2.w) became ready less often"}};
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    ring_reducer_options opt = model_buckets;
    opt.static_graph = true;
    opt.bind = *(const bool *)t->arg ? model_bind : NULL;
    opt.bind_user = &m;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    RANK_OK(t, static_step(r, &m, t, 0, 0, 0, &err), &err);
    RANK_CHECK(t, static_sums(&m, t, 0));
    for (int c = 0; c < 4; c++) {
        int extra = t->rank == t->world - 1 ? changes[c].extra : 0;
        RANK_CHECK(t, static_step(r, &m, t, 1, changes[c].which, extra, &err) == BD_E_STATE);
        RANK_CHECK(t, strstr(err.text, changes[c].want) != NULL);
        RANK_OK(t, static_step(r, &m, t, 2 + c, 0, 0, &err), &err);
        RANK_CHECK(t, static_sums(&m, t, 2 + c) && !ring_reducer_used(r)[3]);
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void static_graph_change(void **state)
{
    (void)state;
    bool modes[] = {false, true};
    ring_everywhere(static_changes, &modes[0]);
    ring_everywhere(static_changes, &modes[1]);
}

/* fc2.w (80 000 bytes) is used by nobody: from the second step on it costs no bytes. */
static void idle_bytes(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    ring_reducer_options opt = model_buckets;
    uint64_t sent[3] = {0};
    opt.static_graph = true;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    for (int step = 0; step < 3; step++) {
        uint64_t before = ring_bytes_sent(t->comm);
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            if (i != 5) {
                model_fill(&m, t->rank, step, i);
                RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
            }
        }
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
        RANK_CHECK(t, model_is_sum(&m, t->world, step, 2));
        sent[step] = ring_bytes_sent(t->comm) - before;
    }
    int64_t saved = (int64_t)sent[0] - (int64_t)sent[1];
    RANK_OK(t, ring_allreduce(t->comm, &saved, 1, NUM_I64, NUM_SUM, "", NULL, &err), &err);
    RANK_CHECK(t, t->world == 1 || saved > 70000);
    RANK_CHECK(t, sent[1] == sent[2] && !ring_reducer_used(r)[5]);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void static_graph_sends_nothing_unused(void **state)
{
    (void)state;
    ring_everywhere(idle_bytes, NULL);
}

/* ---- buffers ---- */

static bool ready_all(rank_test *t, ring_reducer *r, model *m, int step, bool sync)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = ring_reducer_prepare(r, sync, &err);
    for (size_t i = 0; rc == BD_OK && i < N_PARAMS; i++) {
        model_fill(m, t->rank, step, i);
        rc = ring_reducer_ready(r, i, &err);
    }
    rc = rc == BD_OK ? ring_reducer_finish(r, &err) : rc;
    if (rc != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "step", &err);
    }
    return rc == BD_OK;
}

static void buffers(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    float mean[5];
    int64_t count = 0;
    const ring_buffer list[] = {{"bn.mean", mean, 5, NUM_F32}, {"bn.count", &count, 1, NUM_I64}};
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_set_buffers(r, list, 2, &err), &err);
    RANK_CHECK(t, ring_reducer_set_buffers(r, list, 2, &err) == BD_E_STATE);
    RANK_CHECK(t, ring_reducer_prepare(r, true, &err) == BD_E_STATE); /* forward comes first */
    for (int step = 0; step < 3; step++) {
        bool sync = step != 1;
        for (int k = 0; k < 5; k++) {
            mean[k] = (float)(100 * t->rank + 10 * step + k);
        }
        count = 7 * t->rank + step;
        RANK_OK(t, ring_reducer_forward(r, sync, &err), &err);
        int from = sync ? 0 : t->rank;
        RANK_CHECK(t, mean[4] == (float)(100 * from + 10 * step + 4) && count == 7 * from + step);
        RANK_CHECK(t, ready_all(t, r, &m, step, sync));
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

static void buffers_are_rank_0s(void **state)
{
    (void)state;
    ring_everywhere(buffers, NULL);
}

static void second_forward(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    float mean = (float)t->rank;
    const ring_buffer list[] = {{"bn.mean", &mean, 1, NUM_F32}};
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_forward(r, true, &err), &err); /* no buffers: as often as you like */
    RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
    RANK_OK(t, ring_reducer_set_buffers(r, list, 1, &err), &err);
    RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
    mean = 5;
    RANK_CHECK(t, ring_reducer_forward(r, true, &err) == BD_E_STATE && mean == 5);
    RANK_CHECK(t, strstr(err.text, "second forward") != NULL && strstr(err.text, "bn.mean"));
    RANK_CHECK(t, ready_all(t, r, &m, 0, true) && model_all_sums(&m, t->world, 0));
    RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
    ring_reducer_reset(r); /* its loss was of no use */
    RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
    RANK_CHECK(t, ready_all(t, r, &m, 1, true) && model_all_sums(&m, t->world, 1));
    ring_reducer_free(r);
    model_deinit(&m);
}

static void second_forward_buffers(void **state)
{
    (void)state;
    ring_everywhere(second_forward, NULL);
}

/* ---- determinism ---- */

enum { N_LONG = 30011 };

/* Values whose sums round, in three parameters. */
static void fill_long(float *x, int rank)
{
    for (size_t k = 0; k < N_LONG; k++) {
        x[k] = ((float)(bd_rand_u64(3, (uint64_t)rank, k) >> 40) * 0x1p-24f - 0.5f) *
               (float)(1 << (k % 13)) / (float)(1 + rank);
    }
}

static bool long_sum(rank_test *t, size_t bucket_bytes, bool deterministic, float *x)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    const ring_param params[] = {{"a", 11, NUM_F32, x},
                                 {"b", 10000, NUM_F32, x + 11},
                                 {"c", N_LONG - 10011, NUM_F32, x + 10011}};
    const ring_reducer_options opt = {.first_bucket_bytes = bucket_bytes,
                                      .bucket_bytes = bucket_bytes,
                                      .deterministic = deterministic};
    bd_status rc = ring_reducer_new(t->comm, params, 3, &opt, &r, &err);
    fill_long(x, t->rank);
    rc = rc == BD_OK ? ring_reducer_prepare(r, true, &err) : rc;
    for (size_t i = 0; rc == BD_OK && i < 3; i++) {
        rc = ring_reducer_ready(r, 2 - i, &err);
    }
    rc = rc == BD_OK ? ring_reducer_finish(r, &err) : rc;
    ring_reducer_free(r);
    if (rc != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "long_sum", &err);
    }
    return rc == BD_OK;
}

/* Any bucket size gives the bits of ((g0 + g1) + g2) + ..: on all ranks and in every run. */
static void bucket_sizes(rank_test *t)
{
    static const size_t caps[] = {1, 50000, (size_t)1 << 30};
    float *x = bd_alloc((size_t)2 * N_LONG * sizeof *x);
    float *want = x + N_LONG;
    RANK_CHECK(t, x != NULL);
    fill_long(want, 0);
    for (int rank = 1; rank < t->world; rank++) {
        fill_long(x, rank);
        for (size_t k = 0; k < N_LONG; k++) {
            want[k] += x[k];
        }
    }
    for (size_t c = 0; c < 3; c++) {
        RANK_CHECK(t, long_sum(t, caps[c], true, x));
        RANK_CHECK(t, memcmp((const uint8_t *)x, (const uint8_t *)want, N_LONG * sizeof *x) == 0);
    }
    bd_free(x);
}

static void bitwise_bucket_independent(void **state)
{
    (void)state;
    ring_everywhere(bucket_sizes, NULL);
}

/* Without the option: equal on all ranks and from run to run. */
static uint64_t g_hashes[2][8];

static void hash_of_sum(rank_test *t)
{
    int run = *(const int *)t->arg;
    float *x = bd_alloc(N_LONG * sizeof *x);
    RANK_CHECK(t, x != NULL && long_sum(t, 50000, false, x));
    g_hashes[run][t->rank] = bd_hash64(x, N_LONG * sizeof *x, 0);
    bd_free(x);
}

static void bitwise_ranks_and_runs_equal(void **state)
{
    (void)state;
    int runs[] = {0, 1};
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    ranks_backend backends[] = {RANKS_MEM, RANKS_TCP, RANKS_SHM};
    int n_backends = ring_ranks_has_other() ? 1 : 3;
    backends[0] = ring_ranks_has_other() ? RANKS_OTHER : RANKS_MEM;
    for (size_t w = 0; w < 6; w++) {
        for (int b = 0; b < n_backends; b++) {
            ring_ranks_run(backends[b], worlds[w], NULL, hash_of_sum, &runs[0]);
            ring_ranks_run(backends[b], worlds[w], NULL, hash_of_sum, &runs[1]);
            for (int k = 0; k < worlds[w]; k++) {
                assert_true(g_hashes[0][k] == g_hashes[0][0] && g_hashes[1][k] == g_hashes[0][0]);
            }
        }
    }
}

/* ---- log and times ---- */

static bool has_number(const bd_json_doc *doc, const char *key, int64_t want)
{
    int64_t v = -1;
    return bd_json_get_i64(doc, key, &v) && v == want;
}

static void record(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    bd_json j;
    bd_json_doc *doc = NULL;
    ring_reducer_options opt = model_buckets;
    int n_due = 0;
    bool flag = false;
    const char *text = NULL;
    opt.name = "mlp";
    opt.backend = "mem";
    opt.find_unused = true;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    ring_reducer_set_log_rate(r, 5);
    for (int step = 0; step < 60; step++) {
        RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
        RANK_CHECK(t, model_step(r, &m, t, step, NULL));
        n_due += ring_reducer_log_due(r) ? 1 : 0; /* 10 + 10 samples: counts 10 and 20 */
    }
    size_t n = 0;
    const ring_step_times *s = ring_reducer_times(r);
    const ring_piece_times *b = ring_reducer_piece_times(r, &n);
    RANK_CHECK(t, n_due == 2 && n == 7); /* the second bucket in four pieces */
    RANK_CHECK(t, b[1].n_bytes + b[2].n_bytes + b[3].n_bytes + b[4].n_bytes == 80000);
    RANK_CHECK(t, s->forward_ns <= s->backward_ns && s->backward_ns <= b[0].launch_ns);
    RANK_CHECK(t, b[0].launch_ns <= b[6].launch_ns && b[6].launch_ns <= b[6].done_ns);
    RANK_CHECK(t, b[6].done_ns <= b[6].wait_end_ns && s->finish_ns <= b[0].wait_start_ns);
    RANK_CHECK(t, b[6].wait_end_ns <= s->end_ns && b[4].bucket == 1 && b[4].piece == 3);
    bd_json_init(&j);
    ring_reducer_log(r, &j);
    RANK_CHECK(t, bd_json_text(&j) != NULL);
    RANK_OK(t, bd_json_parse(bd_json_text(&j), strlen(bd_json_text(&j)), "log", &doc, &err), &err);
    RANK_CHECK(t, has_number(doc, "world_size", t->world) && has_number(doc, "rank", t->rank));
    RANK_CHECK(t, has_number(doc, "iteration", 60) && has_number(doc, "sampled_iterations", 20));
    RANK_CHECK(t, has_number(doc, "num_parameter_tensors", 7));
    RANK_CHECK(t, has_number(doc, "total_parameter_size_bytes", INT64_C(4) * 25382));
    RANK_CHECK(t, bd_json_len(doc, "bucket_sizes") == 4 && has_number(doc, "bucket_sizes/0", 256));
    RANK_CHECK(t, bd_json_len(doc, "rebuilt_per_bucket_param_indices") == 4);
    RANK_CHECK(t, bd_json_len(doc, "prev_iteration_grad_ready_order_indices") == 7);
    RANK_CHECK(t, bd_json_get_bool(doc, "can_set_static_graph", &flag) && flag);
    RANK_CHECK(t, bd_json_get_str(doc, "module_name", &text) && strcmp(text, "mlp") == 0);
    RANK_CHECK(t, bd_json_get_str(doc, "comm_hook", &text) && strcmp(text, "none") == 0);
    static const char *const others[] = {"is_multi_device_module",
                                         "dtypes",
                                         "initial_bucket_size_limits",
                                         "device_ids",
                                         "output_device",
                                         "broadcast_buffers",
                                         "has_sync_bn",
                                         "bucket_cap_bytes",
                                         "find_unused_parameters",
                                         "gradient_as_bucket_view",
                                         "backend_name",
                                         "static_graph",
                                         "join_uneven_inputs",
                                         "env",
                                         "transport_threads",
                                         "unused_parameter_size_bytes",
                                         "has_rebuilt_buckets",
                                         "rebuilt_bucket_sizes",
                                         "rebuilt_bucket_size_limits",
                                         "forward_compute_time_ns",
                                         "backward_compute_time_ns",
                                         "backward_comm_time_ns",
                                         "backward_compute_comm_overlap_time_ns",
                                         "avg_forward_compute_time_ns",
                                         "avg_backward_compute_time_ns",
                                         "avg_backward_comm_time_ns",
                                         "avg_backward_compute_comm_overlap_time_ns",
                                         "forward_compute_time_start_ns",
                                         "backward_compute_time_start_ns",
                                         "backward_compute_time_end_ns",
                                         "backward_comm_time_start_ns",
                                         "backward_comm_time_end_ns",
                                         "error"};
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
        char key[64];
        (void)snprintf(key, sizeof key, "\"%s\":", others[k]);
        if (strstr(bd_json_text(&j), key) == NULL) {
            rank_failed(t, __FILE__, __LINE__, key, NULL);
        }
    }
    bd_json_free(doc);
    bd_json_deinit(&j);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void log_record(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_MEM, 1, NULL, record, NULL);
    ring_ranks_run(RANKS_MEM, 3, NULL, record, NULL);
}

/* ---- allocation failures ---- */

static bd_status whole_life(ring_comm *c, model *m, float *mean, bd_err *err)
{
    ring_reducer *r = NULL;
    int n_active = 0;
    const ring_buffer list[] = {{"mean", mean, 1, NUM_F32}};
    const ring_reducer_options opt = {.first_bucket_bytes = 100,
                                      .bucket_bytes = 20000,
                                      .bind = model_bind,
                                      .bind_user = m,
                                      .find_unused = true,
                                      .deterministic = true,
                                      .compress = "bf16"};
    bd_status rc = ring_reducer_new(c, m->params, N_PARAMS, &opt, &r, err);
    rc = rc != BD_OK ? rc : ring_reducer_set_buffers(r, list, 1, err);
    for (int step = 0; rc == BD_OK && step < 2; step++) {
        rc = ring_reducer_join_step(r, true, &n_active, err);
        rc = rc != BD_OK ? rc : ring_reducer_forward(r, true, err);
        rc = rc != BD_OK ? rc : ring_reducer_prepare(r, true, err);
        for (size_t i = 1; rc == BD_OK && i < N_PARAMS; i++) {
            rc = ring_reducer_ready(r, i, err);
        }
        rc = rc != BD_OK ? rc : ring_reducer_finish(r, err);
    }
    ring_reducer_free(r);
    return rc;
}

static void every_allocation_failure_is_reported(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_E_NOMEM;
    ring_comm *c = NULL;
    model m;
    float mean = 0;
    long nth = 0;
    model_init(&m);
    assert_int_equal(ring_mem_new(1, NULL, &c, &err), BD_OK);
    assert_int_equal(whole_life(c, &m, &mean, &err), BD_OK); /* the engine's scratch is kept */
    for (; rc != BD_OK; nth++) {
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(nth);
        rc = whole_life(c, &m, &mean, &err);
        assert_int_equal(bd_mem_live_blocks(), before);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
    }
    bd_fault_fail_alloc(-1);
    assert_true(nth > 50);
    ring_free(c);
    model_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_views),
        cmocka_unit_test(unused_dynamic_views),
        cmocka_unit_test(views_and_another_context),
        cmocka_unit_test(replaced_grad_ptr),
        cmocka_unit_test(failed_backward_is_told),
        cmocka_unit_test(static_graph_change),
        cmocka_unit_test(static_graph_sends_nothing_unused),
        cmocka_unit_test(buffers_are_rank_0s),
        cmocka_unit_test(second_forward_buffers),
        cmocka_unit_test(bitwise_bucket_independent),
        cmocka_unit_test(bitwise_ranks_and_runs_equal),
        cmocka_unit_test(log_record),
        cmocka_unit_test(every_allocation_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
