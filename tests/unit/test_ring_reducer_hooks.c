/* What replaces the plain sum of a bucket: 16-bit gradients on the wire, and hooks of a user. */
#include "base/mem.h"
#include "base/rand.h"

#include "tests/util/ring_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_WIDE = 60000 };

static float wide_grad(int rank, size_t k)
{
    return ((float)(bd_rand_u64(9, (uint64_t)rank, k) >> 40) * 0x1p-24f - 0.5f) * 3.0f;
}

/* One step of one parameter; *sent: what it put on the wire. */
static bool wide_step(rank_test *t, const char *compress, float scale, float *x, uint64_t *sent)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    const ring_param params[] = {{"w", N_WIDE, NUM_F32, x}};
    const ring_reducer_options opt = {.compress = compress, .scale = scale};
    bd_status rc = ring_reducer_new(t->comm, params, 1, &opt, &r, &err);
    uint64_t before = ring_bytes_sent(t->comm);
    rc = rc == BD_OK ? ring_reducer_prepare(r, true, &err) : rc;
    rc = rc == BD_OK ? ring_reducer_ready(r, 0, &err) : rc;
    rc = rc == BD_OK ? ring_reducer_finish(r, &err) : rc;
    *sent = ring_bytes_sent(t->comm) - before;
    ring_reducer_free(r);
    if (rc != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "wide_step", &err);
    }
    return rc == BD_OK;
}

/* Half the bytes, and a mean within the rounding of the narrow type: one rounding of each scaled
 * gradient (at most 1.5 / world) and one for each partial sum (at most 1.5). */
static void narrowed(rank_test *t)
{
    static const struct {
        const char *name;
        double eps; /* half a unit in the last place, relative */
    } types[] = {{"f16", 1.0 / 2048}, {"bf16", 1.0 / 256}};
    uint64_t plain = 0;
    float *x = bd_calloc(N_WIDE, sizeof *x);
    float scale = 1.0f / (float)t->world;
    RANK_CHECK(t, x != NULL && wide_step(t, NULL, scale, x, &plain));
    for (int c = 0; c < 2; c++) {
        uint64_t sent = 0;
        for (size_t k = 0; k < N_WIDE; k++) {
            x[k] = wide_grad(t->rank, k);
        }
        RANK_CHECK(t, wide_step(t, types[c].name, scale, x, &sent));
        RANK_CHECK(t, t->world == 1 || ((double)sent > 0.45 * (double)plain &&
                                        (double)sent < 0.52 * (double)plain));
        double bound = types[c].eps * 1.5 * (1.0 + (double)t->world), worst = 0;
        for (size_t k = 0; k < N_WIDE; k++) {
            double want = 0;
            for (int rank = 0; rank < t->world; rank++) {
                want += (double)wide_grad(rank, k) / t->world;
            }
            worst = fmax(worst, fabs((double)x[k] - want));
        }
        RANK_CHECK(t, worst > 0 && worst <= bound);
    }
    bd_free(x);
}

static void hooks_wire_bytes_and_error(void **state)
{
    (void)state;
    ring_everywhere(narrowed, NULL);
}

/* 64 ranks with gradients of 1e4: their f16 sum is infinite, their mean is not. */
static void large_gradients(rank_test *t)
{
    uint64_t sent = 0;
    float *x = bd_alloc(N_WIDE * sizeof *x);
    RANK_CHECK(t, x != NULL);
    for (size_t k = 0; k < N_WIDE; k++) {
        x[k] = 1e4f;
    }
    RANK_CHECK(t, wide_step(t, "f16", 1.0f / (float)t->world, x, &sent));
    for (size_t k = 0; k < N_WIDE; k++) {
        RANK_CHECK(t, fabsf(x[k] - 1e4f) <= 1e4f * 64 / 2048);
    }
    bd_free(x);
}

static void divide_before_sum(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_MEM, 64, NULL, large_gradients, NULL);
}

/* ---- a user's hook ---- */

/* Sums in two stages, as PowerSGD does: halves in start, doubles after the sum in finish. */
typedef struct recorder {
    size_t started[64], finished[64];
    size_t n_started, n_finished, n_open, n_layouts;
    bool wrong;
    bool fails;
} recorder;

static bd_status on_start(void *user, const ring_grad_bucket *b, void **state, bd_err *err)
{
    recorder *h = user;
    float *x = b->data;
    ring_work *work = NULL;
    h->started[h->n_started++ % 64] = b->idx;
    if (h->fails) {
        return bd_err_set(err, BD_E_NOMEM, "hook has no memory");
    }
    for (size_t p = 1; p < b->n_params; p++) {
        h->wrong = h->wrong ||
                   b->offsets_elems[p] != b->offsets_elems[p - 1] + model_sizes[b->params[p - 1]];
    }
    h->wrong = h->wrong || b->is_last != (b->idx + 1 == b->n_buckets) || b->scale != 0.25f;
    for (size_t k = 0; k < b->n_elems; k++) {
        x[k] *= b->scale;
    }
    bd_status rc = ring_allreduce(b->comm, x, b->n_elems, b->dtype, NUM_SUM, "hook", &work, err);
    *state = work;
    h->n_open += rc == BD_OK ? 1 : 0;
    return rc;
}

static bd_status on_finish(void *user, const ring_grad_bucket *b, void *state, bd_err *err)
{
    recorder *h = user;
    float *x = b->data;
    int32_t one = 1;
    h->finished[h->n_finished++ % 64] = b->idx;
    h->n_open--;
    bd_status rc = ring_work_wait(state, err);
    if (rc == BD_OK) { /* a second collective */
        rc = ring_allreduce(b->comm, &one, 1, NUM_I32, NUM_SUM, "hook.count", NULL, err);
    }
    for (size_t k = 0; rc == BD_OK && k < b->n_elems; k++) {
        x[k] *= 4;
    }
    h->wrong = h->wrong || (rc == BD_OK && one != ring_world(b->comm));
    return rc;
}

static void on_layout(void *user)
{
    ((recorder *)user)->n_layouts++;
}

static void user_hook(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    recorder h = {0};
    const ring_hook hook = {"recorder", &h, on_start, on_finish, on_layout};
    ring_reducer_options opt = model_buckets;
    opt.scale = 0.25f;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &opt, &r, &err), &err);
    RANK_OK(t, ring_reducer_set_hook(r, &hook, &err), &err);
    RANK_CHECK(t, ring_reducer_set_hook(r, &hook, &err) == BD_E_STATE); /* one only */
    for (int step = 0; step < 3; step++) {
        size_t order[N_PARAMS];
        model_shuffle(order, N_PARAMS, (uint64_t)step * 10 + (uint64_t)t->rank);
        h.n_started = h.n_finished = 0;
        RANK_CHECK(t, model_step(r, &m, t, step, order));
        for (size_t i = 0; i < N_PARAMS; i++) {
            RANK_CHECK(t, model_is_sum(&m, t->world, step, i));
        }
        for (size_t b = 0; b < h.n_started; b++) { /* launch_in_order */
            RANK_CHECK(t, h.started[b] == b && h.finished[b] == b);
        }
        RANK_CHECK(t, h.n_started == h.n_finished && h.n_open == 0 && !h.wrong);
    }
    RANK_CHECK(t, h.n_layouts == 1);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void hooks_user(void **state)
{
    (void)state;
    ring_everywhere(user_hook, NULL);
}

static void hook_rules(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    recorder h = {0};
    ring_hook hook = {"recorder", &h, on_start, on_finish, NULL};
    ring_reducer_options opt = model_buckets;
    model_init(&m);
    opt.compress = "int3";
    RANK_CHECK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &opt, &r, &err) == BD_E_INVALID);
    opt.compress = "f16";
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &opt, &r, &err), &err);
    RANK_CHECK(t, ring_reducer_set_hook(r, &hook, &err) == BD_E_STATE);
    RANK_CHECK(t, strstr(err.text, "compress") != NULL);
    ring_reducer_free(r);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    RANK_CHECK(t, model_step(r, &m, t, 0, NULL));
    RANK_CHECK(t, ring_reducer_set_hook(r, &hook, &err) == BD_E_STATE); /* too late */
    ring_reducer_free(r);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    hook.name = t->rank == 1 ? "another" : "recorder";
    bd_status rc = ring_reducer_set_hook(r, &hook, &err);
    RANK_CHECK(t, t->world == 1 ? rc == BD_OK
                                : rc == BD_E_MISMATCH && strstr(err.text, "another") != NULL);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void hook_registration(void **state)
{
    (void)state;
    ring_everywhere(hook_rules, NULL);
}

/* A hook that fails everywhere ends the step with its error; what was started is finished. */
static void failing(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    recorder h = {0};
    const ring_hook hook = {"recorder", &h, on_start, on_finish, NULL};
    ring_reducer_options opt = model_buckets;
    opt.scale = 0.25f;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &opt, &r, &err), &err);
    RANK_OK(t, ring_reducer_set_hook(r, &hook, &err), &err);
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, 6, &err), &err); /* bucket 0 */
    h.fails = true;
    RANK_CHECK(t, ring_reducer_ready(r, 5, &err) == BD_E_NOMEM);
    RANK_CHECK(t, strstr(err.text, "hook has no memory") != NULL);
    RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_NOMEM);
    RANK_CHECK(t, h.n_open == 0 && h.n_finished == 1);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void failing_hook(void **state)
{
    (void)state;
    ring_everywhere(failing, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_wire_bytes_and_error),
        cmocka_unit_test(divide_before_sum),
        cmocka_unit_test(hooks_user),
        cmocka_unit_test(hook_registration),
        cmocka_unit_test(failing_hook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
