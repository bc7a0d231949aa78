/* A large bucket leaves in pieces, each when its own elements are final. */
#include "base/mem.h"

#include "ring/ring_reducer_log.h"

#include "tests/util/ring_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 5, N_LARGE = 20000, CAP = 20000 }; /* 80,000 bytes: four pieces */

typedef struct pieces_case {
    bool views, deterministic, static_graph;
    const char *compress;
} pieces_case;

/* Fills and tells the first `end` elements of the large gradient after `first`. */
static bd_status grow(ring_reducer *r, const model *m, int rank, int step, size_t first, size_t end,
                      bd_err *err)
{
    for (size_t k = first; k < end; k++) {
        m->grads[LARGE][k] = model_grad(rank, step, LARGE, k);
    }
    return ring_reducer_ready_upto(r, LARGE, end, err);
}

/* Every rank grows in other portions; what is launched when is the same for all. */
static bd_status parts_step(ring_reducer *r, model *m, int rank, int step, bd_err *err)
{
    size_t portion = 700 + 900 * (size_t)rank, first = 0;
    bd_status rc = ring_reducer_prepare(r, true, err);
    for (size_t i = N_PARAMS; rc == BD_OK && i-- > 0;) {
        for (; rc == BD_OK && i == LARGE && first < N_LARGE; first += portion) {
            size_t end = first + portion < N_LARGE ? first + portion : N_LARGE;
            rc = grow(r, m, rank, step, first, end, err);
        }
        if (i != LARGE) {
            model_fill(m, rank, step, i);
        }
        rc = rc == BD_OK ? ring_reducer_ready_at(r, i, m->grads[i], err) : rc;
    }
    return rc == BD_OK ? ring_reducer_finish(r, err) : rc;
}

static void parts(rank_test *t)
{
    const pieces_case *c = t->arg;
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    ring_reducer_options opt = model_buckets;
    opt.bind = c->views ? model_bind : NULL;
    opt.bind_user = &m;
    opt.deterministic = c->deterministic;
    opt.static_graph = c->static_graph;
    opt.compress = c->compress;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    for (int step = 0; step < 4; step++) {
        RANK_OK(t, parts_step(r, &m, t->rank, step, &err), &err);
        RANK_CHECK(t, model_all_sums(&m, t->world, step));
    }
    size_t n = 0, n_large = 0, large_bytes = 0;
    const ring_piece_times *p = ring_reducer_piece_times(r, &n);
    for (size_t k = 0; k < n; k++) {
        bool is_large = p[k].bucket == 1; /* the large one alone fills it */
        n_large += is_large ? 1 : 0;
        large_bytes += is_large ? p[k].n_bytes : 0;
        RANK_CHECK(t, k == 0 || p[k].launch_ns >= p[k - 1].launch_ns);
    }
    RANK_CHECK(t, n_large == 4 && large_bytes == N_LARGE * sizeof(float));
    ring_reducer_free(r);
    model_deinit(&m);
}

static void a_bucket_leaves_in_pieces(void **state)
{
    (void)state;
    pieces_case cases[] = {{.views = true}, {.static_graph = true}};
    pieces_case kinds[] = {{.deterministic = true, .views = true}, {.compress = "bf16"}};
    for (size_t i = 0; i < 2; i++) {
        ring_everywhere(parts, &cases[i]);
        ring_on_every_backend(3, parts, &kinds[i]);
    }
}

/* The first piece is on its way before the gradient is whole. */
static void early(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    size_t n = 0;
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    uint64_t before = ring_bytes_sent(t->comm);
    RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
    model_fill(&m, t->rank, 0, 6);
    RANK_OK(t, ring_reducer_ready(r, 6, &err), &err);
    RANK_OK(t, grow(r, &m, t->rank, 0, 0, N_LARGE / 2, &err), &err);
    while (ring_bytes_sent(t->comm) - before < N_LARGE / 4 * sizeof(float)) {
    }
    RANK_OK(t, grow(r, &m, t->rank, 0, N_LARGE / 2, N_LARGE, &err), &err);
    RANK_OK(t, ring_reducer_ready(r, LARGE, &err), &err);
    for (size_t i = LARGE; i-- > 0;) {
        model_fill(&m, t->rank, 0, i);
        RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
    }
    RANK_OK(t, ring_reducer_finish(r, &err), &err);
    RANK_CHECK(t, model_all_sums(&m, t->world, 0));
    RANK_CHECK(t, ring_reducer_piece_times(r, &n)[1].launch_ns > 0 && n > 4);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void a_piece_leaves_before_its_bucket_is_complete(void **state)
{
    (void)state;
    bool has_other = ring_ranks_has_other();
    ring_ranks_run(has_other ? RANKS_OTHER : RANKS_TCP, 2, NULL, early, NULL);
    ring_ranks_run(has_other ? RANKS_OTHER : RANKS_MEM, 3, NULL, early, NULL);
}

/* Wrong orders are everybody's error, after which the reducer goes on. */
static void wrong_calls(rank_test *t)
{
    static const char *const want[] = {"was declared unused after a part of it was final",
                                       "got no gradient on rank 1",
                                       "became final in part after all of it, or beyond its end"};
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    for (int c = 0; c < 3; c++) {
        bool is_culprit = t->rank == 1;
        RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
        for (size_t i = N_PARAMS; i-- > 0;) {
            model_fill(&m, t->rank, c, i);
            if (i == LARGE) {
                RANK_OK(t, ring_reducer_ready_upto(r, i, N_LARGE / 2, &err), &err);
            }
            if (i != LARGE || !is_culprit || c == 2) {
                RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
            } else if (c == 0) {
                RANK_CHECK(t, ring_reducer_unused(r, i, &err) == BD_E_STATE);
            }
        }
        if (is_culprit && c == 2) {
            RANK_CHECK(t, ring_reducer_ready_upto(r, LARGE, N_LARGE, &err) == BD_E_STATE);
        }
        RANK_CHECK(t, ring_reducer_finish(r, &err) == BD_E_STATE);
        RANK_CHECK(t, strstr(err.text, want[c]) != NULL && strstr(err.text, "fc2.w") != NULL);
    }
    RANK_CHECK(t, model_step(r, &m, t, 9, NULL) && model_all_sums(&m, t->world, 9));
    ring_reducer_free(r);
    model_deinit(&m);
}

static void wrong_calls_are_told(void **state)
{
    (void)state;
    ring_on_every_backend(3, wrong_calls, NULL);
}

/* A hook sees whole buckets. */
static bd_status hook_start(void *user, const ring_grad_bucket *b, void **work, bd_err *err)
{
    size_t *n_seen = user;
    ring_work *w = NULL;
    *n_seen += b->n_elems;
    bd_status rc = ring_allreduce(b->comm, b->data, b->n_elems, b->dtype, NUM_SUM, "", &w, err);
    *work = w;
    return rc;
}

static bd_status hook_finish(void *user, const ring_grad_bucket *b, void *work, bd_err *err)
{
    (void)user;
    (void)b;
    return ring_work_wait(work, err);
}

static void hooked(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    size_t n_seen = 0, n = 0;
    const ring_hook hook = {
        .name = "sum", .user = &n_seen, .start = hook_start, .finish = hook_finish};
    if (!model_new_reducer(t, &m, &model_buckets, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_set_hook(r, &hook, &err), &err);
    RANK_OK(t, parts_step(r, &m, t->rank, 0, &err), &err);
    RANK_CHECK(t, model_all_sums(&m, t->world, 0) && n_seen == 25382);
    (void)ring_reducer_piece_times(r, &n);
    RANK_CHECK(t, n == 4);
    ring_reducer_free(r);
    model_deinit(&m);
}

static void a_hook_sees_whole_buckets(void **state)
{
    (void)state;
    ring_on_every_backend(2, hooked, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_leaves_in_pieces),
        cmocka_unit_test(a_piece_leaves_before_its_bucket_is_complete),
        cmocka_unit_test(wrong_calls_are_told),
        cmocka_unit_test(a_hook_sees_whole_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
