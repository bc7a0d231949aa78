/* Uneven inputs: what ranks do that have run out of data, on any communicator. */
#include "tests/util/ring_join.h"

#include "ring/ring_reducer.h"

#include "tests/util/ring_model.h"

#include <string.h>

/* Of ranks 0, 1, 2; more ranks: the same again. */
static const int batches[] = {3, 5, 4};

static int count_active(int world, int step)
{
    int n = 0;
    for (int rank = 0; rank < world; rank++) {
        n += step < batches[rank % 3] ? 1 : 0;
    }
    return n;
}

/* Batches 3, 5, 4 (and again): every step is the sum over the ranks that still have data, on all
 * ranks. */
void ring_join_uneven(rank_test *t)
{
    static const size_t order[N_PARAMS] = {6, 5, 4, 3, 2, 1, 0};
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    int n_active = -1;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, &model_buckets, &r, &err), &err);
    for (int step = 0; n_active != 0; step++) {
        bool has_data = step < batches[t->rank % 3];
        RANK_OK(t, ring_reducer_join_step(r, has_data, &n_active, &err), &err);
        RANK_CHECK(t, n_active == count_active(t->world, step));
        if (has_data && !model_step(r, &m, t, step, order)) {
            return;
        }
        for (size_t k = 0; n_active > 0 && k < model_sizes[5]; k++) {
            float want = 0;
            for (int rank = 0; rank < t->world; rank++) {
                want += step < batches[rank % 3] ? model_grad(rank, step, 5, k) : 0.0f;
            }
            RANK_CHECK(t, m.grads[5][k] == want);
        }
    }
    ring_reducer_free(r);
    model_deinit(&m);
}

/* The same with a no_sync step after somebody ran out: joined ranks follow no bucket then. */
void ring_join_with_no_sync(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    int n_active = -1;
    model_init(&m);
    RANK_OK(t, ring_reducer_new(t->comm, m.params, N_PARAMS, NULL, &r, &err), &err);
    for (int step = 0; n_active != 0; step++) {
        bool has_data = step < (t->rank == 0 ? 0 : 2);
        RANK_OK(t, ring_reducer_join_step(r, has_data, &n_active, &err), &err);
        if (!has_data) {
            continue;
        }
        RANK_OK(t, ring_reducer_prepare(r, step == 1, &err), &err);
        for (size_t i = 0; i < N_PARAMS; i++) {
            for (size_t k = 0; k < model_sizes[i]; k++) {
                m.grads[i][k] += 1.0f;
            }
            RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
        }
        RANK_OK(t, ring_reducer_finish(r, &err), &err);
    }
    RANK_CHECK(t, m.grads[5][0] == (float)(2 * (t->world - 1)));
    ring_reducer_free(r);
    model_deinit(&m);
}

void ring_join_buffers(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    float mean = 0, weight = (float)(1000 + t->rank);
    int n_active = -1;
    const ring_buffer list[] = {{"bn.mean", &mean, 1, NUM_F32}};
    const ring_buffer tensors[] = {{"weight", &weight, 1, NUM_F32}};
    ring_reducer_options opt = model_buckets;
    bool by_active = *(const bool *)t->arg;
    opt.divide_by_active = by_active;
    opt.scale = 1.0f / (float)t->world;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_set_buffers(r, list, 1, &err), &err);
    for (int step = 0; n_active != 0; step++) {
        bool has_data = step < batches[t->rank % 3];
        int n_want = 0, highest = 0;
        for (int k = 0; k < t->world; k++) {
            bool has = step < batches[k % 3];
            n_want += has ? 1 : 0;
            highest = has ? k : highest;
        }
        mean = (float)(10 * t->rank + step);
        RANK_OK(t, ring_reducer_join_step(r, has_data, &n_active, &err), &err);
        RANK_CHECK(t, n_active == n_want);
        if (has_data) {
            RANK_OK(t, ring_reducer_forward(r, true, &err), &err);
            RANK_OK(t, ring_reducer_prepare(r, true, &err), &err);
            for (size_t i = 0; i < N_PARAMS; i++) {
                for (size_t k = 0; k < model_sizes[i]; k++) {
                    m.grads[i][k] = 1;
                }
                RANK_OK(t, ring_reducer_ready(r, i, &err), &err);
            }
            RANK_OK(t, ring_reducer_finish(r, &err), &err);
        }
        if (n_active > 0) {
            float want = by_active ? 1.0f : (float)n_active / (float)t->world;
            float off = m.grads[5][77] - want;
            RANK_CHECK(t, mean == (float)(10 * (n_active == t->world ? 0 : highest) + step));
            RANK_CHECK(t, off < 1e-6f && off > -1e-6f);
        }
    }
    int last = 0; /* the highest rank of those with the most batches */
    for (int k = 0; k < t->world; k++) {
        last = batches[k % 3] >= batches[last % 3] ? k : last;
    }
    RANK_CHECK(t, ring_reducer_join_last(r) == last);
    RANK_OK(t, ring_reducer_join_end(r, tensors, 1, &err), &err);
    RANK_CHECK(t, weight == (float)(1000 + last));
    ring_reducer_free(r);
    model_deinit(&m);
}

void ring_join_throws(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    ring_reducer *r = NULL;
    model m;
    int n_active = 0;
    ring_reducer_options opt = model_buckets;
    opt.join_throws = true;
    if (!model_new_reducer(t, &m, &opt, &r)) {
        return;
    }
    RANK_OK(t, ring_reducer_join_step(r, true, &n_active, &err), &err);
    RANK_CHECK(t, model_step(r, &m, t, 0, NULL));
    bd_status rc = ring_reducer_join_step(r, t->rank != 1, &n_active, &err);
    if (t->world > 1) {
        RANK_CHECK(t, rc == BD_E_STATE && strstr(err.text, "rank 1 has no more data") != NULL);
    }
    RANK_CHECK(t, model_step(r, &m, t, 1, NULL) && model_all_sums(&m, t->world, 1)); /* usable */
    ring_reducer_free(r);
    model_deinit(&m);
}
